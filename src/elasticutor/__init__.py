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

from elasticutor._version import __version__ as __version__

if TYPE_CHECKING:  # by their own names, so that type checkers take them for exported
    from elasticutor.core.run.phases import RunError as RunError
    from elasticutor.driver.run import Run as Run
    from elasticutor.operator import Context as Context
    from elasticutor.operator import Operator as Operator
    from elasticutor.operator import OperatorError as OperatorError
    from elasticutor.sinks import CallableSink as CallableSink
    from elasticutor.sinks import EpochWriter as EpochWriter
    from elasticutor.sinks import MemorySink as MemorySink
    from elasticutor.sinks import NoSink as NoSink
    from elasticutor.sinks import ParquetSink as ParquetSink
    from elasticutor.sinks import Sink as Sink
    from elasticutor.sinks import SinkError as SinkError
    from elasticutor.sinks import Writer as Writer
    from elasticutor.sources import Generator as Generator
    from elasticutor.sources import HotKey as HotKey
    from elasticutor.sources import IterableSource as IterableSource
    from elasticutor.sources import Offer as Offer
    from elasticutor.sources import Reader as Reader
    from elasticutor.sources import Source as Source
    from elasticutor.spark.cluster import Cluster as Cluster
    from elasticutor.spark.cluster import submit as submit
    from elasticutor.spark.datasource import DataSourceSink as DataSourceSink
    from elasticutor.spark.datasource import DataSourceSource as DataSourceSource
    from elasticutor.spark.elastic import elastic as elastic
    from elasticutor.spark.progress import ElasticListener as ElasticListener
    from elasticutor.spark.progress import ElasticProgress as ElasticProgress
    from elasticutor.spark.progress import progress as progress
    from elasticutor.spark.state import read_state as read_state
    from elasticutor.spark.supervising import supervise as supervise
    from elasticutor.state.checkpoint import CheckpointError as CheckpointError
    from elasticutor.topology import Stream as Stream
    from elasticutor.topology import Topology as Topology

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

__all__ = ["__version__", *sorted(_HOME_OF)]


def __getattr__(name: str) -> Any:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(home), name)


def __dir__() -> list[str]:
    return sorted(__all__)
