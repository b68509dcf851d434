"""Where the outputs of a topology go.

A `Sink` is a description that travels to the sink's process, which opens one `Writer` and gives it
every batch that arrives, in the order of arrival. `open_sink` is how the process does so: whatever
goes wrong inside then says which sink it was.
"""

from __future__ import annotations

import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from elasticutor.errors import BadValueError, ElasticutorError


class SinkError(ElasticutorError, RuntimeError):
    """A sink that did not take what it was given."""


class Writer(ABC):
    """What takes the outputs, inside the sink's process. Used by one thread only."""

    @abstractmethod
    def write(self, batch: pa.RecordBatch) -> None:
        """Take a batch. While this lasts nothing else is taken, and back-pressure builds up."""

    def flush(self) -> None:  # noqa: B027 (most keep nothing back)
        """Pass on what was kept back. Called when an epoch ends, before it is committed."""

    def tick(self) -> None:  # noqa: B027 (most have nothing that grows old)
        """Some time has passed. Called a few times a second, also when nothing arrives."""

    def close(self) -> None:  # noqa: B027 (most have nothing to close)
        """Let go of files and connections. Called once, whatever happened."""


class Sink(ABC):
    """Where outputs go; derive from it for your own. Must survive `cloudpickle`.

    After a failure, outputs of the epoch that was under way are written again.
    """

    collects: bool = False
    """Whether the batches are wanted on the driver.

    If so the runtime ships them there, and opens the sink on the driver and not in the sink's
    process.
    """

    @abstractmethod
    def open(self, task: int, schema: pa.Schema) -> Writer:
        """A writer for outputs of this schema; tasks are counted from 0."""


class CallableSink(Sink):
    """Calls a function with every batch, in the sink's process.

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
        """A writer that calls the function."""
        return _Calls(self.function)


class _Calls(Writer):
    def __init__(self, function: Callable[[pa.RecordBatch], object]) -> None:
        self._function = function

    def write(self, batch: pa.RecordBatch) -> None:
        self._function(batch)


class MemorySink(Sink):
    """Keeps all outputs on the driver, to be looked at: for tests, notebooks and small results.

    It never loses any: more rows than it may keep are an error.

    Args:
        max_rows: How many rows it may keep.
    """

    collects = True

    def __init__(self, max_rows: int = 1_000_000) -> None:
        given: Any = max_rows
        if isinstance(given, bool) or not isinstance(given, int) or given < 1:
            raise BadValueError("max_rows", "be a whole number, at least 1", max_rows)
        self.max_rows = max_rows

    def open(self, task: int, schema: pa.Schema) -> MemoryWriter:
        """A writer that keeps batches in the process where it was opened: on the driver."""
        return MemoryWriter(schema, self.max_rows)


class MemoryWriter(Writer):
    """Keeps batches, up to a number of rows.

    Example:
        >>> writer = MemorySink().open(0, pa.schema([("a", pa.int64())]))
        >>> writer.write(pa.record_batch({"a": [1, 2]}))
        >>> writer.write(pa.record_batch({"a": [3]}))
        >>> writer.table().column("a").to_pylist(), writer.rows
        ([1, 2, 3], 3)
    """

    def __init__(self, schema: pa.Schema, max_rows: int) -> None:
        self._schema = schema
        self._max_rows = max_rows
        self._batches: list[pa.RecordBatch] = []
        self.rows = 0

    def write(self, batch: pa.RecordBatch) -> None:
        """Keep a batch, or refuse it as a whole if it is too much."""
        rows = self.rows + batch.num_rows
        if rows > self._max_rows:
            hint = "raise max_rows, or write to files with a CallableSink"
            raise SinkError("MemorySink", f"be given at most {self._max_rows} rows", rows, hint)
        self._batches.append(batch)
        self.rows = rows

    def table(self) -> pa.Table:
        """All that was written, in the order of arrival."""
        return pa.Table.from_batches(self._batches, self._schema)


class NoSink(Sink):
    """Takes outputs and forgets them, so that only their number and latency are seen."""

    def open(self, task: int, schema: pa.Schema) -> Writer:
        """A writer that keeps nothing."""
        return _Forgets()


class _Forgets(Writer):
    def write(self, batch: pa.RecordBatch) -> None:
        """Nothing is kept."""


def open_sink(name: str, sink: Sink, task: int, schema: pa.Schema) -> Writer:
    """Open a sink so that its errors say which one it is.

    Args:
        name: What the topology calls it.
        sink: The sink.
        task: Which of its processes this is, from 0.
        schema: Of the outputs.

    Raises:
        SinkError: From here and from every method of the writer: the sink's name, what was raised
            and where. It can be pickled, whatever the error behind it was.

    Example:
        >>> writer = open_sink("out", CallableSink(lambda batch: 1 / 0), 0, pa.schema([]))
        >>> writer.write(pa.record_batch({"a": [1]}))  # doctest: +ELLIPSIS
        Traceback (most recent call last):
            ...
        elasticutor.sinks.SinkError: sink 'out' must take what it is given; got \
'ZeroDivisionError: division by zero'. Hint: raised in <lambda>, ...
    """
    with _named(name, "open"):
        writer: Any = sink.open(task, schema)
        if not isinstance(writer, Writer):
            raise SinkError(f"{type(sink).__name__}.open", "return a Writer", writer)
    return _Named(name, writer)


class _Named(Writer):
    """Another writer, with the sink's name on all that it raises."""

    def __init__(self, name: str, writer: Writer) -> None:
        self._name = name
        self.inner = writer

    def write(self, batch: pa.RecordBatch) -> None:
        with _named(self._name, "take what it is given"):
            self.inner.write(batch)

    def flush(self) -> None:
        with _named(self._name, "flush"):
            self.inner.flush()

    def tick(self) -> None:
        with _named(self._name, "go on"):
            self.inner.tick()

    def close(self) -> None:
        with _named(self._name, "close"):
            self.inner.close()


@contextmanager
def _named(name: str, must: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        # As text, because errors of users' libraries often do not survive pickling.
        got = f"{type(error).__name__}: {error}"
        frame = traceback.extract_tb(error.__traceback__)[-1]
        hint = f"raised in {frame.name}, {Path(frame.filename).name} line {frame.lineno}"
        raise SinkError(f"sink {name!r}", must, got, hint) from error
