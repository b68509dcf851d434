"""A topology's sink that is a PySpark Python data source."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any

import pyarrow as pa
from pyspark.errors import PySparkNotImplementedError
from pyspark.sql import datasource as spark
from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamWriter,
    DataSourceWriter,
    WriterCommitMessage,
)

from elasticutor.errors import BadValueError
from elasticutor.sinks import Sink, Writer
from elasticutor.spark.datasource.given import (
    Given,
    require_given,
    require_kind,
    require_seconds,
    to_spark,
)
from elasticutor.spark.datasource.rows import ArrowToRows

# The stream one of these came with Spark 4.1.
_ARROW_WRITERS = tuple(
    getattr(spark, name)
    for name in ("DataSourceArrowWriter", "DataSourceStreamArrowWriter")
    if hasattr(spark, name)
)


class DataSourceSink(Sink):
    """Writes to any PySpark Python data source that has a writer: one for streams, or for batches.

    Outputs are kept until there are `flush_rows` of them, until the oldest is about `flush_s` old,
    or until an epoch ends. Then they are written and committed as one, as Spark does
    with a micro-batch of one partition: `write`, then `commit` with its message; `abort` if either
    fails, and the run fails with it. A writer for streams is told numbers that rise by 1 from 0
    with every commit of the run. Every run counts anew, so a data source that skips numbers it has
    seen needs a fresh place for each. A writer for batches is made anew for each commit.

    Rows are Spark's `Row`; Arrow writers get record batches.

    Args:
        source: The data source's class, or one that is made already.
        options: Its options, as for `df.writeStream.options`.
        overwrite: Whether the first commit replaces what is there; the others always append.
        flush_rows: How many rows are kept at most, give or take a batch.
        flush_s: How old the oldest may become, about.

    Raises:
        BadValueError: It is no data source, has no writer, does not survive pickling, or something
            else of this cannot be.

    Example:
        >>> from pyspark.sql.datasource import DataSource, DataSourceStreamWriter
        >>> class Printer(DataSource):
        ...     def streamWriter(self, schema, overwrite):
        ...         return PrintingWriter()
        >>> class PrintingWriter(DataSourceStreamWriter):
        ...     def write(self, iterator):
        ...         print(*iterator)
        ...         return WriterCommitMessage()
        ...     def commit(self, messages, batchId):
        ...         print("batch", batchId)
        >>> writer = DataSourceSink(Printer).open(0, pa.schema([("user", pa.string())]))
        >>> writer.write(pa.record_batch({"user": ["ann", "bob"]}))
        >>> writer.flush()
        Row(user='ann') Row(user='bob')
        batch 0
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
        rows: Any = flush_rows
        if isinstance(rows, bool) or not isinstance(rows, int) or rows < 1:
            raise BadValueError("flush_rows", "be a whole number, at least 1", flush_rows)
        require_seconds("flush_s", flush_s)
        self.overwrite = bool(overwrite)
        self.flush_rows = flush_rows
        self.flush_s = flush_s

    def open(self, task: int, schema: pa.Schema) -> Writer:
        """A writer to the data source."""
        return _CommittingWriter(
            _Writers(self._given, schema, self.overwrite), self.flush_rows, self.flush_s
        )


class _Writers:
    """The user's writers: one for all commits if it is one for streams, else one for each."""

    def __init__(self, given: Given, schema: pa.Schema, overwrite: bool) -> None:
        self.who = given.who
        self._given = given
        self._source = given.made()
        self._struct = to_spark(schema)
        self._rows = ArrowToRows(schema)
        self._overwrite = overwrite
        self._writer: Any = self._make()

    def next(self) -> Any:
        """The writer for the next commit."""
        if self._writer is None:
            self._writer = self._make()
        return self._writer

    def committed(self) -> None:
        """From now on all is appended."""
        if self._overwrite or not isinstance(self._writer, DataSourceStreamWriter):
            self._writer = None
        self._overwrite = False

    def input(self, batches: list[pa.RecordBatch]) -> Iterator[Any]:
        """What the writer takes: record batches, or rows that are made as they are taken."""
        if isinstance(self._writer, _ARROW_WRITERS):
            return iter(batches)
        return chain.from_iterable(map(self._rows.rows, batches))

    def _make(self) -> Any:
        """As Spark does for a stream; the writer for batches only if there is no other."""
        if self._given.has("streamWriter"):
            try:
                writer = self._source.streamWriter(self._struct, self._overwrite)
            except PySparkNotImplementedError:
                if not self._given.has("writer"):
                    raise
            else:
                return require_kind(f"streamWriter of {self.who}", writer, DataSourceStreamWriter)
        single = self._source.writer(self._struct, self._overwrite)
        return require_kind(f"writer of {self.who}", single, DataSourceWriter)


class _CommittingWriter(Writer):
    """Keeps batches, and commits some of them as one."""

    def __init__(self, writers: _Writers, flush_rows: int, flush_s: float) -> None:
        self._writers = writers
        self._flush_rows = flush_rows
        self._flush_s = flush_s
        self._kept: list[pa.RecordBatch] = []
        self._rows = 0
        self._since = 0.0
        """When the oldest of them came; only if there are any."""
        self._number = 0

    def write(self, batch: pa.RecordBatch) -> None:
        """Keep a batch; commit all if that is enough."""
        if batch.num_rows:
            self._since = self._since if self._kept else time.monotonic()
            self._kept.append(batch)
            self._rows += batch.num_rows
        if self._rows >= self._flush_rows:
            self.flush()
        else:
            self.tick()

    def tick(self) -> None:
        """Commit all if the oldest has become too old."""
        if self._kept and time.monotonic() - self._since >= self._flush_s:
            self.flush()

    def flush(self) -> None:
        """Commit what is kept, if there is any. What fails is not tried again."""
        if not self._kept:
            return
        batches, self._kept, self._rows = self._kept, [], 0
        writer = self._writers.next()
        message: WriterCommitMessage | None = None
        try:
            message = self._written(writer, batches)
            self._end(writer, "commit", message)
        except Exception as error:
            try:
                self._end(writer, "abort", message)
            except Exception as second:
                error.add_note(f"and then, in abort: {type(second).__name__}: {second}")
            raise
        self._number += 1
        self._writers.committed()

    def close(self) -> None:
        """Commit the last of it."""
        self.flush()

    def _written(self, writer: Any, batches: list[pa.RecordBatch]) -> WriterCommitMessage | None:
        message: Any = writer.write(self._writers.input(batches))
        who = f"write of {self._writers.who}"
        # Spark's documentation allows None, though Spark itself does not.
        return None if message is None else require_kind(who, message, WriterCommitMessage)

    def _end(self, writer: Any, how: str, message: WriterCommitMessage | None) -> None:
        """Call `commit` or `abort`, with the number if it is a writer for streams."""
        number = (self._number,) if isinstance(writer, DataSourceStreamWriter) else ()
        getattr(writer, how)([message], *number)
