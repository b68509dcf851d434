"""Sinks: where the outputs of a topology go.

A `Sink` is a description that travels to the sink's process, which opens one `Writer` and gives it
every batch that arrives, in the order of arrival. The process opens it by `open_sink`, so that
every error inside names its sink.

What a failure does to the outputs, in a run with a checkpoint:

| sink | each output is seen | when |
|---|---|---|
| `ParquetSink` | once | when its epoch is committed |
| `MemorySink` | once | when its epoch is committed |
| `DataSourceSink` | once, if the data source skips batch ids it has seen | the same |
| `CallableSink` | at least once | at once |
| your own, with an `EpochWriter` | once | when its epoch is committed |
| your own, with a `Writer` | at least once | when it writes |

So latency into a sink that publishes by epochs is up to the epoch interval and what it takes to
commit an epoch. In a run without a checkpoint all but your own write at once, or after some rows or
seconds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from elasticutor.sinks.base import EpochWriter, Sink, SinkError, SinkRun, Writer
from elasticutor.sinks.memory import EpochMemory, MemorySink, MemoryWriter
from elasticutor.sinks.opening import open_sink
from elasticutor.sinks.simple import CallableSink, NoSink

if TYPE_CHECKING:
    from elasticutor.sinks.parquet import ParquetSink

__all__ = [
    "CallableSink",
    "EpochMemory",
    "EpochWriter",
    "MemorySink",
    "MemoryWriter",
    "NoSink",
    "ParquetSink",
    "Sink",
    "SinkError",
    "SinkRun",
    "Writer",
    "open_sink",
]


def __getattr__(name: str) -> Any:
    if name == "ParquetSink":  # what it needs of Arrow takes a while to load
        from elasticutor.sinks.parquet import ParquetSink

        return ParquetSink
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
