"""Elastic executors hosted by Spark: the only package that imports pyspark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from elasticutor.spark.cluster import Cluster, submit

__all__ = ["Cluster", "submit"]


def __getattr__(name: str) -> Any:
    # When it is asked for: the tasks of a query need little of this, and begin sooner without.
    if name in __all__:
        from elasticutor.spark import cluster

        return getattr(cluster, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
