"""Elastic, stateful, real-time stream processing for Python people on Spark.

What a job is made of is here; see `elastic` and `Topology` for examples.

| name | what it is |
|---|---|
| `elastic` | an operator on the rows of a DataFrame, streaming or not |
| `supervise` | a streaming query, started again when a process was lost |
| `progress`, `ElasticListener`, `ElasticProgress` | what a query's elastic operators do |
| `Topology` | sources, operators and sinks, and how they are connected |
| `Operator`, `Context` | user logic over a key space |
| `Generator`, `HotKey`, `IterableSource`, `Source`, `Reader`, `Offer` | where tuples come from |
| `ParquetSink`, `MemorySink`, `CallableSink`, `NoSink` | where outputs go |
| `Sink`, `Writer`, `EpochWriter` | what sinks of your own are made of |
| `Cluster`, `submit`, `Run` | Spark as the host, a topology at work |
| `DataSourceSource`, `DataSourceSink` | PySpark's Python data sources as both |
| `read_state` | state in a checkpoint, or of a running query, as a DataFrame |

Everything is loaded when it is first asked for: the processes that do the work need little of it,
and only what is used of `elasticutor.spark` loads pyspark.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from elasticutor._version import __version__

if TYPE_CHECKING:
    from elasticutor.core.run.phases import RunError
    from elasticutor.driver.run import Run
    from elasticutor.operator import Context, Operator, OperatorError
    from elasticutor.sinks import (
        CallableSink,
        EpochWriter,
        MemorySink,
        NoSink,
        ParquetSink,
        Sink,
        SinkError,
        Writer,
    )
    from elasticutor.sources import Generator, HotKey, IterableSource, Offer, Reader, Source
    from elasticutor.spark.cluster import Cluster, submit
    from elasticutor.spark.datasource import DataSourceSink, DataSourceSource
    from elasticutor.spark.elastic import elastic
    from elasticutor.spark.progress import ElasticListener, ElasticProgress, progress
    from elasticutor.spark.state import read_state
    from elasticutor.spark.supervising import supervise
    from elasticutor.state.checkpoint import CheckpointError
    from elasticutor.topology import Stream, Topology

__all__ = [
    "CallableSink",
    "CheckpointError",
    "Cluster",
    "Context",
    "DataSourceSink",
    "DataSourceSource",
    "ElasticListener",
    "ElasticProgress",
    "EpochWriter",
    "Generator",
    "HotKey",
    "IterableSource",
    "MemorySink",
    "NoSink",
    "Offer",
    "Operator",
    "OperatorError",
    "ParquetSink",
    "Reader",
    "Run",
    "RunError",
    "Sink",
    "SinkError",
    "Source",
    "Stream",
    "Topology",
    "Writer",
    "__version__",
    "elastic",
    "progress",
    "read_state",
    "submit",
    "supervise",
]

_HOMES = {
    "elasticutor.operator": ("Context", "Operator", "OperatorError"),
    "elasticutor.driver.run": ("Run",),
    "elasticutor.core.run.phases": ("RunError",),
    "elasticutor.sinks": (
        "CallableSink",
        "EpochWriter",
        "MemorySink",
        "NoSink",
        "ParquetSink",
        "Sink",
        "SinkError",
        "Writer",
    ),
    "elasticutor.sources": ("Generator", "HotKey", "IterableSource", "Offer", "Reader", "Source"),
    "elasticutor.spark.cluster": ("Cluster", "submit"),
    "elasticutor.spark.datasource": ("DataSourceSink", "DataSourceSource"),
    "elasticutor.spark.elastic": ("elastic",),
    "elasticutor.spark.progress": ("ElasticListener", "ElasticProgress", "progress"),
    "elasticutor.spark.state": ("read_state",),
    "elasticutor.spark.supervising": ("supervise",),
    "elasticutor.state.checkpoint": ("CheckpointError",),
    "elasticutor.topology": ("Stream", "Topology"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(home), name)


def __dir__() -> list[str]:
    return sorted(__all__)
