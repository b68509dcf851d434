"""A sink that writes to a PySpark Python data source."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Any

import cloudpickle
import pyarrow as pa
from pyspark.errors import PySparkNotImplementedError
from pyspark.sql import datasource as spark
from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamWriter,
    DataSourceWriter,
    WriterCommitMessage,
)

from elasticutor.checks import require_seconds, require_whole
from elasticutor.sinks import EpochWriter, Sink, SinkError, SinkRun, Writer
from elasticutor.sinks.spool import Spool
from elasticutor.spark.datasource.given import Given, require_given, require_kind, to_spark
from elasticutor.spark.datasource.rows import ArrowToRows

# The stream one of these came with Spark 4.1.
_ARROW_WRITERS = tuple(
    getattr(spark, name)
    for name in ("DataSourceArrowWriter", "DataSourceStreamArrowWriter")
    if hasattr(spark, name)
)


class DataSourceSink(Sink):
    """Writes to any PySpark Python data source that has a writer: one for streams, or for batches.

    In a run with a checkpoint, an epoch's outputs are like a micro-batch of one partition in Spark:
    kept until the epoch ends (in memory, then in a temporary file), written with one `write`, and
    committed when the checkpoint has the epoch. The batch id is the epoch's number: it rises from
    1, with gaps where there were no outputs, and goes on where it was after a restart. The message
    that `write` returned is pickled into the checkpoint. After a failure the last epoch is
    committed again, perhaps by another process, with the same message and batch id: so the data
    source shows every output once if it skips what it has committed, as with Spark itself. A
    writer for batches does not get the number: it has to recognise its message. An epoch that is
    given up is aborted, unless the process that wrote it is gone. A commit that fails ends the run,
    and is repeated when the run restarts.

    In a run without a checkpoint, outputs are kept until there are `flush_rows` of them, until the
    oldest is about `flush_s` old, or until the run ends. Then they are written and committed as
    one; `abort` if either fails, and the run fails with it. A writer for streams gets numbers that
    rise by 1 from 0 with every commit. Every run counts from 0, so a data source that skips numbers
    it has seen needs a new place for each.

    Each commit has its own writer for batches. Rows are Spark's `Row`; Arrow writers get record
    batches.

    Args:
        source: The data source's class, or an instance.
        options: Its options, as for `df.writeStream.options`.
        overwrite: Whether the first commit replaces what is there; the others always append. With
            a checkpoint it is that of epoch 1, which is then written even if there are no outputs.
        flush_rows: How many rows are kept at most, give or take a batch, without a checkpoint.
        flush_s: How old the oldest may become, about, without a checkpoint.

    Example:
        >>> class Printer(DataSource):
        ...     def streamWriter(self, schema, overwrite):
        ...         return PrintingWriter()
        >>> class PrintingWriter(DataSourceStreamWriter):
        ...     def write(self, iterator):
        ...         print(*iterator)
        ...         return WriterCommitMessage()
        >>> writer = DataSourceSink(Printer).open(0, pa.schema([("user", pa.string())]))
        >>> writer.write(pa.record_batch({"user": ["ann", "bob"]}))
        >>> writer.flush()
        Row(user='ann') Row(user='bob')
    """

    def __init__(
        self,
        source: DataSource | type[DataSource],
        options: Mapping[str, str] | None = None,
        *,
        overwrite: bool = False,
        flush_rows: int = 10_000,
        flush_s: float = 1.0,
    ) -> None:
        self._given = require_given(source, options, "streamWriter", "writer")
        require_whole("flush_rows", flush_rows)
        require_seconds("flush_s", flush_s)
        self.overwrite = bool(overwrite)
        self.flush_rows = flush_rows
        self.flush_s = flush_s

    def open(self, task: int, schema: pa.Schema) -> Writer:
        """Return a writer to the data source, as for a run without a checkpoint."""
        writers = _Writers(self._given, schema, self.overwrite)
        writers.have_first()
        return _CommittingWriter(writers, self.flush_rows, self.flush_s)

    def open_in(self, run: SinkRun, task: int, schema: pa.Schema) -> Writer:
        """Return a writer: by epochs if there is a checkpoint, by rows and time if not."""
        if not run.checkpointed:
            return self.open(task, schema)
        return _EpochCommits(_Writers(self._given, schema, self.overwrite), Spool(schema))


class _Writers:
    """The user's writers: one for all commits if it is one for streams, else one for each."""

    def __init__(self, given: Given, schema: pa.Schema, overwrite: bool) -> None:
        self.who = given.who
        self.overwrite = overwrite
        self._given = given
        self._source = given.made()
        self._struct = to_spark(schema)
        self._rows = ArrowToRows(schema)
        self._ready: dict[bool, Any] = {}  # by whether it replaces what is there

    def have_first(self) -> None:
        """Make the writer for the first commit, so that what cannot be is refused early."""
        self._ready = {self.overwrite: self._make(self.overwrite)}

    def writer(self, *, first: bool) -> Any:
        """Return a writer for the first commit, which may replace data, or for a later one."""
        overwrite = first and self.overwrite
        made = self._ready.pop(overwrite, None)
        if made is None:
            made = self._make(overwrite)
        if isinstance(made, DataSourceStreamWriter):
            self._ready = {overwrite: made}
        return made

    def write(self, writer: Any, batches: Iterable[pa.RecordBatch]) -> WriterCommitMessage | None:
        arrow = isinstance(writer, _ARROW_WRITERS)
        rows: Iterator[Any] = (
            iter(batches) if arrow else chain.from_iterable(map(self._rows.rows, batches))
        )
        message: Any = writer.write(rows)
        who = f"write of {self.who}"
        # Spark's documentation allows None, though Spark itself does not.
        return None if message is None else require_kind(who, message, WriterCommitMessage)

    def _make(self, overwrite: bool) -> Any:
        """As Spark does for a stream; the writer for batches only if there is no other."""
        if self._given.has("streamWriter"):
            try:
                writer = self._source.streamWriter(self._struct, overwrite)
            except PySparkNotImplementedError:
                if not self._given.has("writer"):
                    raise
            else:
                return require_kind(f"streamWriter of {self.who}", writer, DataSourceStreamWriter)
        single = self._source.writer(self._struct, overwrite)
        return require_kind(f"writer of {self.who}", single, DataSourceWriter)


def _end(writer: Any, how: str, message: WriterCommitMessage | None, number: int) -> None:
    """Call `commit` or `abort`, with the number if it is a writer for streams."""
    numbered = (number,) if isinstance(writer, DataSourceStreamWriter) else ()
    getattr(writer, how)([message], *numbered)


def _abort_after(error: Exception, writer: Any, message: Any, number: int) -> None:
    """Abort what has failed; if that fails too, the error says so."""
    try:
        _end(writer, "abort", message, number)
    except Exception as second:
        error.add_note(f"and then, in abort: {type(second).__name__}: {second}")


class _CommittingWriter(Writer):
    """Keeps batches, and commits some of them as one."""

    def __init__(self, writers: _Writers, flush_rows: int, flush_s: float) -> None:
        self._writers = writers
        self._flush_rows = flush_rows
        self._flush_s = flush_s
        self._kept: list[pa.RecordBatch] = []
        self._rows = 0
        self._since = 0.0  # when the oldest of them came; only if there are any
        self._number = 0

    def write(self, batch: pa.RecordBatch) -> None:
        if batch.num_rows:
            self._since = self._since if self._kept else time.monotonic()
            self._kept.append(batch)
            self._rows += batch.num_rows
        if self._rows >= self._flush_rows:
            self.flush()
        else:
            self.tick()

    def tick(self) -> None:
        if self._kept and time.monotonic() - self._since >= self._flush_s:
            self.flush()

    def flush(self) -> None:
        """Commit what is kept, if there is any. What fails is not tried again."""
        if not self._kept:
            return
        batches, self._kept, self._rows = self._kept, [], 0
        writer = self._writers.writer(first=self._number == 0)
        message: WriterCommitMessage | None = None
        try:
            message = self._writers.write(writer, batches)
            _end(writer, "commit", message, self._number)
        except Exception as error:
            _abort_after(error, writer, message, self._number)
            raise
        self._number += 1

    def close(self) -> None:
        self.flush()


class _EpochCommits(EpochWriter):
    """Writes an epoch's outputs when it ends, and commits them when it counts."""

    def __init__(self, writers: _Writers, spool: Spool) -> None:
        self._writers = writers
        self._spool = spool
        self._prepared: dict[int, tuple[Any, WriterCommitMessage | None]] = {}
        """By epoch: the writer that wrote it, and its message for the commit."""

    def write(self, batch: pa.RecordBatch) -> None:
        if batch.num_rows:
            self._spool.append(batch)

    def prepare(self, epoch: int) -> bytes | None:
        first = epoch == 1
        if not self._spool.rows and not (first and self._writers.overwrite):
            return None
        writer = self._writers.writer(first=first)
        try:
            message = self._writers.write(writer, self._spool.batches())
            note: bytes = cloudpickle.dumps(message)
        except Exception as error:
            _abort_after(error, writer, None, epoch)
            raise
        self._spool.clear()
        self._prepared[epoch] = (writer, message)
        return note

    def commit(self, epoch: int, message: Any) -> None:
        known, written = _unpickled(message), self._prepared.get(epoch)
        writer = self._writers.writer(first=epoch == 1) if written is None else written[0]
        _end(writer, "commit", known, epoch)
        self._prepared.pop(epoch, None)

    def abort(self) -> None:
        self._spool.clear()
        prepared, self._prepared = self._prepared, {}
        for epoch, (writer, message) in prepared.items():
            _end(writer, "abort", message, epoch)

    def close(self) -> None:
        """Close; what is written stays, since a successor may have to commit it."""
        self._spool.clear()


def _unpickled(note: Any) -> WriterCommitMessage | None:
    if not isinstance(note, bytes):
        hint = "was it another kind of sink before?"
        raise SinkError("commit message", "be that of a data source", note, hint)
    message: WriterCommitMessage | None = cloudpickle.loads(note)  # of the run's own checkpoint
    return message
