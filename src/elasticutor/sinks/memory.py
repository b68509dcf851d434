"""A sink that keeps outputs in the driver's memory."""

from __future__ import annotations

import pyarrow as pa

from elasticutor.checks import require_whole
from elasticutor.sinks.base import Sink, SinkError, Writer


class MemorySink(Sink):
    """Keeps all outputs on the driver: for tests, notebooks and small results.

    It never loses any: more rows than it may keep are an error. In a run with a checkpoint only
    rows of committed epochs are shown, each once. A driver that is started again begins with none.

    Args:
        max_rows: How many rows it may keep.
    """

    collects = True

    def __init__(self, max_rows: int = 1_000_000) -> None:
        require_whole("max_rows", max_rows)
        self.max_rows = max_rows

    def open(self, task: int, schema: pa.Schema) -> MemoryWriter:
        """Return a writer that keeps batches in the process where it was opened: on the driver."""
        return MemoryWriter(schema, self.max_rows)


class MemoryWriter(Writer):
    """Keeps batches, up to a number of rows."""

    def __init__(self, schema: pa.Schema, max_rows: int) -> None:
        self._memory = EpochMemory(schema, max_rows)

    def write(self, batch: pa.RecordBatch) -> None:
        """Keep a batch, or refuse it as a whole if it is too much."""
        self._memory.write(1, 1, batch)

    def table(self) -> pa.Table:
        """Return all that was written, in the order of arrival."""
        return self._memory.table(committed_only=False)


class EpochMemory:
    """Keeps batches by epoch, and forgets those of epochs that came to nothing.

    An epoch's manifest commits it: `commit` is to be called for that before any `begin` of the
    attempt that goes on from there. `max_rows` counts those of the epoch under way too.
    """

    def __init__(self, schema: pa.Schema, max_rows: int) -> None:
        self._schema = schema
        self._max_rows = max_rows
        self._attempt = 0
        self._committed: list[pa.RecordBatch] = []
        self._open: dict[int, list[pa.RecordBatch]] = {}  # by epoch, of this attempt
        self._lasting = 0  # committed rows
        self.rows = 0  # how many are kept, committed or not
        self.epoch = 0  # the last one committed

    def write(self, attempt: int, epoch: int, batch: pa.RecordBatch) -> None:
        """Keep a batch, or refuse it if it is too much; none of an earlier attempt or epoch."""
        if attempt < self._attempt or epoch <= self.epoch:
            return
        rows = self.rows + batch.num_rows
        if rows > self._max_rows:
            hint = "raise max_rows, or write to files with a ParquetSink"
            raise SinkError("MemorySink", f"be given at most {self._max_rows} rows", rows, hint)
        self._open.setdefault(epoch, []).append(batch)
        self.rows = rows

    def begin(self, attempt: int) -> None:
        """Begin an attempt: forget what is not committed, since it comes again."""
        if attempt > self._attempt:
            self._attempt = attempt
            self._open.clear()
            self.rows = self._lasting

    def commit(self, epoch: int) -> None:
        """Commit this epoch, and every one before it."""
        for done in sorted(number for number in self._open if number <= epoch):
            batches = self._open.pop(done)
            self._committed.extend(batches)
            self._lasting += sum(batch.num_rows for batch in batches)
        self.epoch = max(self.epoch, epoch)

    def table(self, committed_only: bool = True) -> pa.Table:
        """Return the rows of committed epochs; or of all, those under way behind the others."""
        batches = list(self._committed)
        if not committed_only:
            for epoch in sorted(self._open):
                batches.extend(self._open[epoch])
        return pa.Table.from_batches(batches, self._schema)
