"""A source that reads a PySpark Python data source."""

from __future__ import annotations

import inspect
import json
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, NoReturn, TypeAlias

import pyarrow as pa
from pyspark.errors import PySparkNotImplementedError
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, SimpleDataSourceStreamReader
from pyspark.sql.types import StructType

from elasticutor.checks import require_seconds
from elasticutor.errors import BadValueError
from elasticutor.schemas import SchemaLike, to_arrow
from elasticutor.sources import Offer, Reader, Source
from elasticutor.spark.datasource.given import (
    DataSourceError,
    Given,
    require_given,
    require_kind,
    to_spark,
)
from elasticutor.spark.datasource.rows import RowsToArrow

_POLL_S = 0.01  # how long one poll goes on collecting rows

Place: TypeAlias = tuple[str, str, int, int]
"""Where a reader is: its range's start and end as JSON, the partition, and the rows into it.

Start and end are the same between two ranges.
"""


class DataSourceSource(Source):
    """Reads any PySpark Python data source that has a stream reader, simple or not.

    The data source's offsets cut the stream into *ranges*, as Spark's micro-batches do: the source
    gets the range's end, plans its partitions, and reads them one after the other, in one process:
    several would get different ends. Rows may be tuples, lists, Rows or Arrow record batches, and
    are read as they are needed. An iterator that waits delays its process, and with it the end of
    an epoch: let it end, and leave the rest to the next range.

    After a failure the range that was being read is planned again with the same start and end
    (`readBetweenOffsets` for a simple reader), so the data source must give the same rows in the
    same partitions again.

    In a run with a checkpoint, `commit` of the data source is called for a range when the epoch is
    committed by whose end all of it was read: none of it is read again, and the data source may
    delete it. After a failure a commit may be left out; the next one covers it. In a run without
    one, it is called when the next range begins: all tuples of the range have been sent by then,
    but not necessarily processed. The last range is never committed.

    A stream reader has no end: `Run.stop` or `Run.drain` ends it.

    Args:
        source: The data source's class, or an instance.
        options: Its options, as for `spark.readStream.options`.
        schema: The rows' schema, in any form that `elasticutor.schemas.to_arrow` takes; default:
            the data source's own.
        poll_s: The least time between two calls for new offsets, in seconds. A data
            source that limits what a range has is never read faster than one range in that time.
        tasks: Only 1.

    Example:
        >>> from pyspark.sql.datasource import SimpleDataSourceStreamReader
        >>> class Ticks(DataSource):
        ...     def schema(self):
        ...         return "tick long"
        ...     def simpleStreamReader(self, schema):
        ...         return TicksReader()
        >>> class TicksReader(SimpleDataSourceStreamReader):
        ...     def initialOffset(self):
        ...         return 0
        ...     def read(self, start):
        ...         return self.readBetweenOffsets(start, start + 5), start + 5
        ...     def readBetweenOffsets(self, start, end):
        ...         return ((tick,) for tick in range(start, end))
        >>> reader = DataSourceSource(Ticks).open(0, 1, None)
        >>> reader.poll(0.0, 3).batch.to_pydict()
        {'tick': [0, 1, 2]}
    """

    def __init__(
        self,
        source: DataSource | type[DataSource],
        options: Mapping[str, str] | None = None,
        schema: SchemaLike | None = None,
        *,
        poll_s: float = 0.1,
        tasks: int = 1,
    ) -> None:
        self._given = require_given(source, options, "streamReader", "simpleStreamReader")
        _require_one_task(self._given, tasks)
        require_seconds("poll_s", poll_s)
        self.poll_s = poll_s
        said = _schema_of(self._given) if schema is None else schema
        self.schema = to_arrow(said)
        # A StructType knows more than Arrow does: lengths of strings, comments.
        self._struct = said if isinstance(said, StructType) else to_spark(self.schema)

    def open(self, task: int, tasks: int, offset: Any | None) -> Reader:
        """Return a reader of all partitions."""
        _require_one_task(self._given, tasks)
        ranges = _ranges(self._given, self._struct)
        rows = RowsToArrow(self._given.who, self.schema)
        return _RangeReader(self._given.who, ranges, rows, self.poll_s, offset)


def _require_one_task(given: Given, tasks: int) -> None:
    if tasks != 1:
        hint = "each would hear of other offsets; divide it by options, as several sources"
        raise BadValueError(f"tasks of {given.who}", "be 1", tasks, hint)


def _schema_of(given: Given) -> SchemaLike:
    try:
        return given.made().schema()
    except PySparkNotImplementedError:
        raise BadValueError(given.who, "say its schema", "none", "give schema=…") from None


# Ranges


class _Ranges:
    """Plans and reads the ranges of a `DataSourceStreamReader`; offsets are what that says."""

    def __init__(self, who: str, reader: Any) -> None:
        self._who = who
        self._reader = reader

    def initial(self) -> Any:
        return self._reader.initialOffset()

    def end(self, start: Any) -> Any:
        """Return how far one can read from there now."""
        # Before Spark 4.2 `latestOffset` had no parameters, and Spark still calls such readers so.
        if not inspect.signature(self._reader.latestOffset).parameters:
            return self._reader.latestOffset()
        return self._reader.latestOffset(start, self._reader.getDefaultReadLimit())

    def partitions(self, start: Any, end: Any) -> list[Callable[[], Iterable[Any]]]:
        """Return what to call for the rows of each partition of a range."""
        planned = self._reader.partitions(start, end)
        return [partial(self._reader.read, partition) for partition in planned]

    def commit(self, end: Any) -> None:
        self._reader.commit(end)

    def stop(self) -> None:
        self._reader.stop()


class _SimpleRanges(_Ranges):
    """Those of a `SimpleDataSourceStreamReader`, which are of one partition.

    It finds the end of a range by reading it, and what it has read is used if it is asked for next.
    """

    _fresh: tuple[str, str, Iterable[Any]] | None = None

    def end(self, start: Any) -> Any:
        before = _text(self._who, start)
        rows, end = self._reader.read(start)
        after = _text(self._who, end)
        if before != after:
            self._fresh = (before, after, rows)
        elif next(iter(rows), None) is not None:
            hint = "the same rows would be read for ever"
            must = "say a new offset when read gives rows"
            raise DataSourceError(self._who, must, after, hint)
        return end

    def partitions(self, start: Any, end: Any) -> list[Callable[[], Iterable[Any]]]:
        fresh, self._fresh = self._fresh, None
        if fresh is not None and fresh[:2] == (_text(self._who, start), _text(self._who, end)):
            rows = fresh[2]
            return [lambda: rows]
        return [partial(self._reader.readBetweenOffsets, start, end)]

    def stop(self) -> None:
        """Simple readers have nothing to let go of."""


def _ranges(given: Given, struct: StructType) -> _Ranges:
    """As Spark chooses: the simple reader only if there is no other."""
    made = given.made()
    if given.has("streamReader"):
        try:
            reader = made.streamReader(struct)
        except PySparkNotImplementedError:
            if not given.has("simpleStreamReader"):
                raise
        else:
            require_kind(f"streamReader of {given.who}", reader, DataSourceStreamReader)
            return _Ranges(given.who, reader)
    simple = made.simpleStreamReader(struct)
    require_kind(f"simpleStreamReader of {given.who}", simple, SimpleDataSourceStreamReader)
    return _SimpleRanges(given.who, simple)


def _text(who: str, offset: Any) -> str:
    """Return an offset as JSON, which readers cannot change afterwards, and which compares."""
    try:
        return json.dumps(offset, sort_keys=True)
    except (TypeError, ValueError) as error:
        hint = "a dictionary of numbers, strings and truth values"
        raise DataSourceError(f"offset of {who}", "be JSON", offset, hint) from error


# Reading


class _RangeReader(Reader):
    """One range after the other, each partition by partition."""

    def __init__(
        self, who: str, ranges: _Ranges, rows: RowsToArrow, poll_s: float, offset: Place | None
    ) -> None:
        self._who = who
        self._ranges = ranges
        self._rows = rows
        self._poll_s = poll_s
        if offset is None:
            begin = _text(who, ranges.initial())
            offset = (begin, begin, 0, 0)
        self.offset: Place = offset
        self._asked = -math.inf
        self._partitions: list[Callable[[], Iterable[Any]]] | None = None
        self._partition: _Partition | None = None
        self._read: str | None = None  # the end of the range that is read, but not committed
        self._committed = offset[0]
        """The offset of the data source's last commit, or where it began."""

    def poll(self, now: float, max_rows: int) -> Offer | None:
        until = time.monotonic() + _POLL_S
        while self._partition is not None or self._begin(now):
            assert self._partition is not None
            batch = self._partition.take(max_rows, until)
            start, end, partition, row = self.offset
            if batch is not None:
                self.offset = (start, end, partition, row + batch.num_rows)
                return Offer(batch, now)
            self.offset = (start, end, partition + 1, 0)
            self._partition = None
            if time.monotonic() >= until:
                return None
        return None

    def wait_s(self, now: float) -> float:
        """Nothing within a range; between two, until the data source may be asked again."""
        start, end, *_ = self.offset
        return 0.0 if start != end or self._may_ask(now) else self._asked + self._poll_s - now

    def committed(self, offset: Place) -> None:
        start = offset[0]
        if start != self._committed:
            self._ranges.commit(json.loads(start))
            self._committed = start

    def close(self) -> None:
        try:
            if self._partition is not None:
                self._partition.close()
        finally:
            self._ranges.stop()

    def _may_ask(self, now: float) -> bool:
        return not 0 <= now - self._asked < self._poll_s  # clocks may be set back

    def _begin(self, now: float) -> bool:
        """Open the next partition; False if there is none yet, or if the range is at its end."""
        if self.offset[0] == self.offset[1] and not self._plan(now):
            return False
        start, end, partition, row = self.offset
        if self._partitions is None:
            self._partitions = self._ranges.partitions(json.loads(start), json.loads(end))
            if partition > len(self._partitions):
                self._refuse_replay(f"{partition} partitions", len(self._partitions))
        if partition == len(self._partitions):
            self.offset, self._partitions, self._read = (end, end, 0, 0), None, end
            return False
        self._partition = _Partition(self._who, self._partitions[partition](), self._rows)
        if (skipped := self._partition.skip(row)) < row:
            self._refuse_replay(f"{row} rows of partition {partition}", skipped)
        return True

    def _plan(self, now: float) -> bool:
        """Find the end of a new range, if there is one, and commit the range before it."""
        if not self._may_ask(now):
            return False
        self._asked = now
        start = self.offset[0]
        end = _text(self._who, self._ranges.end(json.loads(start)))
        if end == start:
            return False
        if self._read is not None and not self.checkpointed:
            self._ranges.commit(json.loads(self._read))
        self._read = None
        self.offset = (start, end, 0, 0)
        return True

    def _refuse_replay(self, given: str, now: int) -> NoReturn:
        start, end, *_ = self.offset
        hint = "partitions and rows between two offsets may never change"
        must = f"give the {given} from {start} to {end} once more"
        raise DataSourceError(self._who, must, now, hint)


class _Partition:
    """The rows of one partition, taken from the user's iterator as they are needed."""

    def __init__(self, who: str, rows: Any, table: RowsToArrow) -> None:
        if not isinstance(rows, Iterable):
            raise DataSourceError(f"read of {who}", "return an iterator", rows)
        self._given: Iterator[Any] = iter(rows)
        self._table = table
        self._rest: pa.RecordBatch | None = None  # what is left of the last record batch

    def take(self, most: int, until: float) -> pa.RecordBatch | None:
        """Return at least one row if there are any, at most `most`, by `until`; None at the end."""
        if self._rest is None:
            rows = self._pull(most, until)
            if rows:
                return self._table.batch(rows)
        if self._rest is None:
            return None
        piece, rest = self._rest.slice(0, most), self._rest.slice(most)
        self._rest = rest if rest.num_rows else None
        return piece

    def skip(self, rows: int) -> int:
        left = rows
        while left and (batch := self.take(left, math.inf)) is not None:
            left -= batch.num_rows
        return rows - left

    def close(self) -> None:
        """Let a generator clean up."""
        close = getattr(self._given, "close", None)
        if close is not None:
            close()

    def _pull(self, most: int, until: float) -> list[Any]:
        """Return rows up to the next record batch, which is then the rest."""
        rows: list[Any] = []
        for item in self._given:
            if not isinstance(item, pa.RecordBatch):
                rows.append(item)
                if len(rows) >= most or time.monotonic() >= until:
                    break
            elif item.num_rows:
                self._rest = self._table.conform(item)
                break
        return rows
