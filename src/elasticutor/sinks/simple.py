"""Sinks that keep nothing: one calls a function, one only counts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa

from elasticutor.errors import BadValueError
from elasticutor.sinks.base import Sink, Writer


class CallableSink(Sink):
    """Calls a function with every batch, in the sink's process.

    It is called as soon as a batch arrives, and so *at least once*: in a run with a checkpoint,
    outputs of the epoch that was under way when something failed are given to it again.

    Example:
        >>> seen = []
        >>> writer = CallableSink(lambda batch: seen.append(batch.num_rows)).open(0, pa.schema([]))
        >>> writer.write(pa.record_batch({"a": [1, 2]}))
        >>> seen
        [2]
    """

    def __init__(self, function: Callable[[pa.RecordBatch], object]) -> None:
        given: Any = function
        if not callable(given):
            hint = "it is called with each record batch"
            raise BadValueError("function of a CallableSink", "be callable", given, hint)
        self.function = function

    def open(self, task: int, schema: pa.Schema) -> Writer:
        """Return a writer that calls the function."""
        return _Calls(self.function)


class _Calls(Writer):
    def __init__(self, function: Callable[[pa.RecordBatch], object]) -> None:
        self._function = function

    def write(self, batch: pa.RecordBatch) -> None:
        self._function(batch)


class NoSink(Sink):
    """Drops outputs; only their number and latency are measured."""

    def open(self, task: int, schema: pa.Schema) -> Writer:
        """Return a writer that keeps nothing."""
        return _Forgets()


class _Forgets(Writer):
    def write(self, batch: pa.RecordBatch) -> None:
        """Nothing is kept."""
