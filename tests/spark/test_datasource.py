"""PySpark's Python data sources, as sources and sinks of a topology."""

# ruff: noqa: N802, N803 (the names are Spark's)

from __future__ import annotations

import json
import os
import pickle
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import cloudpickle
import psutil
import pyarrow as pa
import pytest
from pyspark.sql import Row, SparkSession
from pyspark.sql.conversion import ArrowTableToRowsConversion, LocalDataToArrowConversion
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
    SimpleDataSourceStreamReader,
    WriterCommitMessage,
)
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows
from pyspark.sql.types import LongType, StringType, StructField, StructType, VariantVal
from tests.spark.rig import await_that

from elasticutor.errors import BadValueError
from elasticutor.operator import Operator
from elasticutor.schemas import to_arrow
from elasticutor.sinks import SinkError, Writer, open_sink
from elasticutor.sources import Reader
from elasticutor.spark import Cluster
from elasticutor.spark.datasource import DataSourceError, DataSourceSink, DataSourceSource
from elasticutor.spark.datasource import sink as sink_module
from elasticutor.spark.datasource.given import to_spark
from elasticutor.spark.datasource.rows import ArrowToRows, RowsToArrow
from elasticutor.topology import Topology

# The processes of a cluster cannot import this module, so its classes travel as code.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

NOW = 1_700_000_000.0


# Data sources to read from ----------------------------------------------------------------------


@dataclass
class Span(InputPartition):
    first: int
    last: int


class Numbers(DataSource):
    """The numbers up to `rows`, `step` in a range, divided among three partitions."""

    def schema(self) -> str:
        return "n long not null, word string"

    def streamReader(self, schema: StructType) -> NumbersReader:
        return NumbersReader(self.options)


class NumbersReader(DataSourceStreamReader):
    def __init__(self, options: Mapping[str, str]) -> None:
        self.rows = int(options.get("rows", "20"))
        self.step = int(options.get("step", "7"))
        self.form = options.get("form", "tuples")
        self.calls: list[Any] = []

    def initialOffset(self) -> dict[str, int]:
        return {"n": 0}

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self.step)

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        assert isinstance(limit, ReadMaxRows)
        start["n"] = min(self.rows, start["n"] + limit.max_rows)
        return start  # changed in place, as users do

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[Span]:
        self.calls.append(("partitions", start["n"], end["n"]))
        first, last = start["n"], end["n"]
        third = (last - first) // 3
        spans = [(first, first + third), (first + third, first + third), (first + third, last)]
        return [Span(*span) for span in spans]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        assert isinstance(partition, Span)
        numbers = list(range(partition.first, partition.last))
        if self.form == "tuples":
            return ((n, f"w{n}") for n in numbers)
        if self.form == "rows":
            return (Row(word=f"w{n}", n=n) for n in numbers)
        return self.mixed(numbers)

    def mixed(self, numbers: list[int]) -> Iterator[Any]:
        """An empty batch, one of the second half behind single rows, and one row behind it."""
        yield pa.record_batch({"word": pa.array([], pa.string()), "n": pa.array([], pa.int64())})
        half, last = len(numbers) // 2, numbers[-1:]
        yield from ([n, f"w{n}"] for n in numbers[:half])
        some = numbers[half:-1]
        yield pa.record_batch({"word": [f"w{n}" for n in some], "n": pa.array(some, pa.int32())})
        yield from ((n, f"w{n}") for n in last)

    def commit(self, end: dict[str, int]) -> None:
        self.calls.append(("commit", end["n"]))

    def stop(self) -> None:
        self.calls.append("stop")


class OldNumbers(Numbers):
    """Written for Spark 4.0: `latestOffset` has no parameters, and remembers instead."""

    def streamReader(self, schema: StructType) -> NumbersReader:
        return OldNumbersReader(self.options)


class OldNumbersReader(NumbersReader):
    latest = 0

    def latestOffset(self) -> dict[str, int]:  # type: ignore[override]
        self.latest = min(self.rows, self.latest + self.step)
        return {"n": self.latest}


class SimpleNumbers(Numbers):
    """The same numbers by a simple reader; `streamReader` is there, but not implemented."""

    def streamReader(self, schema: StructType) -> NumbersReader:
        return DataSource.streamReader(self, schema)  # type: ignore[return-value]

    def simpleStreamReader(self, schema: StructType) -> SimpleDataSourceStreamReader:
        return SimpleNumbersReader(self.options)


class SimpleNumbersReader(SimpleDataSourceStreamReader):
    def __init__(self, options: Mapping[str, str]) -> None:
        self.inner = NumbersReader(options)
        self.calls = self.inner.calls

    def initialOffset(self) -> dict[str, int]:
        return {"n": 0}

    def read(self, start: dict[str, int]) -> tuple[Iterator[Any], dict[str, int]]:
        end = {"n": min(self.inner.rows, start["n"] + self.inner.step)}
        if end != start:
            self.calls.append(("read", start["n"]))
        return self.between(start, end), end

    def readBetweenOffsets(self, start: dict[str, int], end: dict[str, int]) -> Iterator[Any]:
        self.calls.append(("again", start["n"], end["n"]))
        return self.between(start, end)

    def between(self, start: dict[str, int], end: dict[str, int]) -> Iterator[Any]:
        return ((n, f"w{n}") for n in range(start["n"], end["n"]))

    def commit(self, end: dict[str, int]) -> None:
        self.calls.append(("commit", end["n"]))


SOURCES = {
    "tuples": DataSourceSource(Numbers, poll_s=0),
    "rows": DataSourceSource(Numbers, {"FORM": "rows"}, poll_s=0),
    "mixed": DataSourceSource(Numbers({"form": "mixed"}), poll_s=0),
    "old": DataSourceSource(OldNumbers, poll_s=0),
    "simple": DataSourceSource(SimpleNumbers, poll_s=0),
}
ALL = [(n, f"w{n}") for n in range(20)]


def taken(reader: Reader, most: int, rows: int) -> list[tuple[Any, ...]]:
    """So many rows of a reader, and proof that no more are there."""
    found: list[tuple[Any, ...]] = []
    until = time.monotonic() + 10
    while len(found) < rows:
        assert time.monotonic() < until, found
        offer = reader.poll(NOW, most)
        if offer is not None:
            assert 0 < offer.batch.num_rows <= most
            assert offer.born == NOW
            found.extend(tuple(row.values()) for row in offer.batch.to_pylist())
    assert all(reader.poll(NOW, most) is None for _ in range(5))
    return found


def users_reader(reader: Any) -> Any:
    return reader._ranges._reader


@pytest.mark.parametrize("most", [1, 3, 100])
@pytest.mark.parametrize("name", SOURCES)
def test_every_row_is_offered_once_and_in_order(name: str, most: int) -> None:
    reader = SOURCES[name].open(0, 1, None)
    assert taken(reader, most, 20) == ALL
    assert not reader.exhausted


@pytest.mark.parametrize("name", sorted(set(SOURCES) - {"old"}))
def test_a_replay_from_every_offset_gives_the_same_rows(name: str) -> None:
    source = SOURCES[name]
    reader = source.open(0, 1, None)
    offsets: dict[Any, int] = {reader.offset: 0}
    rows = 0
    while rows < 20:
        offer = reader.poll(NOW, 2)
        rows += 0 if offer is None else offer.batch.num_rows
        offsets[reader.offset] = rows
    reader.poll(NOW, 2)
    offsets[reader.offset] = rows
    assert len(offsets) > 10
    for offset, done in offsets.items():
        travelled = pickle.loads(pickle.dumps(offset))  # noqa: S301 (our own)
        again = cloudpickle.loads(cloudpickle.dumps(source)).open(0, 1, travelled)
        assert taken(again, 3, 20 - done) == ALL[done:], offset


def test_a_replay_plans_the_same_range_though_more_has_come_since() -> None:
    before = DataSourceSource(Numbers, {"rows": "10", "step": "100"}, poll_s=0).open(0, 1, None)
    assert before.poll(NOW, 2) is not None
    later = DataSourceSource(Numbers, {"rows": "20", "step": "100"}, poll_s=0)
    after = later.open(0, 1, before.offset)
    assert taken(after, 100, 18) == ALL[2:]
    planned = [call[1:] for call in users_reader(after).calls if call[0] == "partitions"]
    assert planned == [(0, 10), (10, 20)]


def test_a_simple_reader_reads_a_range_once_and_again_only_for_a_replay() -> None:
    source = DataSourceSource(SimpleNumbers, {"rows": "14"}, poll_s=0)
    reader = source.open(0, 1, None)
    assert taken(reader, 4, 14) == ALL[:14]
    assert users_reader(reader).calls == [("read", 0), ("read", 7), ("commit", 7)]
    half = source.open(0, 1, ('{"n": 0}', '{"n": 7}', 0, 5))
    assert taken(half, 4, 9) == ALL[5:14]
    assert users_reader(half).calls == [("again", 0, 7), ("read", 7), ("commit", 7)]


def test_a_range_is_committed_when_the_next_one_is_begun_and_never_before() -> None:
    reader = SOURCES["tuples"].open(0, 1, None)
    assert taken(reader, 4, 20) == ALL
    assert users_reader(reader).calls == [
        ("partitions", 0, 7),
        ("commit", 7),
        ("partitions", 7, 14),
        ("commit", 14),
        ("partitions", 14, 20),
    ]
    reader.close()
    assert users_reader(reader).calls[-1] == "stop"
    assert ("commit", 20) not in users_reader(reader).calls


def test_new_offsets_are_asked_for_at_most_so_often_and_also_when_the_clock_is_set_back() -> None:
    reader = DataSourceSource(Numbers, {"rows": "9", "step": "3"}, poll_s=5).open(0, 1, None)

    def rows(now: float) -> int:
        polled = [reader.poll(now, 100) for _ in range(9)]
        return sum(offer.batch.num_rows for offer in polled if offer is not None)

    assert reader.wait_s(NOW) == 0
    assert rows(NOW) == 3
    assert rows(NOW + 4) == 0
    assert reader.wait_s(NOW + 4) == 1
    assert rows(NOW + 5) == 3
    assert rows(NOW - 3600) == 3


class Wells(DataSource):
    """A single partition that never ends, of rows or of large batches."""

    closed: ClassVar[list[int]] = []

    def schema(self) -> StructType:
        return StructType([StructField("n", LongType())])

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return WellsReader(self.options)


class WellsReader(NumbersReader):
    def partitions(self, start: Any, end: Any) -> list[Any]:
        return [InputPartition(0)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        try:
            for n in count():
                yield pa.record_batch({"n": range(n * 50, n * 50 + 50)}) if self.form else (n,)
        finally:
            Wells.closed.append(n)


@pytest.mark.parametrize(("form", "items"), [("", 9), ("batches", 0)])
def test_a_partition_is_read_no_further_than_it_is_needed_and_closed_at_the_end(
    form: str, items: int
) -> None:
    reader = DataSourceSource(Wells, {"form": form}).open(0, 1, None)
    offer = reader.poll(NOW, 10)
    assert offer is not None
    assert offer.batch.column("n").to_pylist() == list(range(10))
    Wells.closed.clear()
    reader.close()
    assert Wells.closed == [items]


class SlowReader(WellsReader):
    """Every row takes longer than a poll may."""

    def read(self, partition: InputPartition) -> Iterator[Any]:
        nap = threading.Event()
        for n in count():
            nap.wait(0.02)
            yield (n,)


class Slow(Wells):
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return SlowReader(self.options)


def test_a_slow_iterator_gives_what_it_has_and_not_all_that_was_asked_for() -> None:
    reader = DataSourceSource(Slow).open(0, 1, None)
    offer = reader.poll(NOW, 1_000_000)
    assert offer is not None
    assert offer.batch.column("n").to_pylist() == [0]


def test_the_schema_is_the_data_sources_unless_another_one_is_given() -> None:
    assert SOURCES["tuples"].schema == to_arrow("n long not null, word string")
    assert DataSourceSource(Wells).schema == to_arrow("n long")
    given = DataSourceSource(Numbers, schema="n int, word string", poll_s=0)
    assert given.schema == to_arrow("n int, word string")
    assert taken(given.open(0, 1, None), 100, 20) == ALL


# Rows by Spark's rules --------------------------------------------------------------------------

EVERYTHING = """b boolean, i int, l long, f double, s string, x binary, d date, t timestamp,
    tn timestamp_ntz, m decimal(6, 2), a array<struct<u: timestamp, v: string>>,
    k map<string, struct<w: int>>, p interval day to second, y variant,
    st struct<one: int, two: array<int>>"""


def everything() -> list[tuple[Any, ...]]:
    noon = datetime(2024, 7, 1, 12, 0, 0, 250)
    full = (
        True,
        1,
        2**40,
        0.5,
        "ä",
        b"\0\1",
        date(2024, 2, 29),
        noon,
        noon,
        Decimal("1.235"),
        [Row(u=noon, v="v"), (noon.replace(tzinfo=UTC), True), None],
        {"k": {"w": 3}, "none": None},
        timedelta(days=1, microseconds=5),
        VariantVal(b"\x0c\x07", b"\x01\x00\x00"),
        (1, [2, None]),
    )
    return [full, (None,) * len(full)]


@pytest.fixture
def far_from_utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "Asia/Kolkata")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.usefixtures("far_from_utc")
def test_values_of_all_types_go_to_arrow_and_back_as_spark_itself_does_it() -> None:
    schema = to_arrow(EVERYTHING)
    struct = to_spark(schema)
    batch = RowsToArrow("test", schema).batch(everything())
    assert batch.schema == schema
    theirs = LocalDataToArrowConversion.convert(everything(), struct, False)
    assert batch.to_pylist() == theirs.to_pylist()
    rows = list(ArrowToRows(schema).rows(batch))
    expected = ArrowTableToRowsConversion.convert(theirs, struct)
    assert [str(row) for row in rows] == [str(row) for row in expected]
    assert rows[0].t == datetime(2024, 7, 1, 12, 0, 0, 250)


def test_text_may_be_given_as_anything_as_in_spark() -> None:
    batch = RowsToArrow("test", to_arrow("s string")).batch([(1,), (True,), ("x",)])
    assert batch.to_pydict() == {"s": ["1", "true", "x"]}


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ((1,), "row of it must have 2 values; got (1,)"),
        (7, "row of it must be a tuple, list, Row or pyarrow.RecordBatch; got 7"),
        (Row(n=1, m=2), "row of it must have the columns ['n', 'word']; got ['n', 'm']"),
        (("x", "y"), "column 'n' of it must have values of type int64; got "),
        ((None, "y"), "column 'n' of it must have no null"),
    ],
)
def test_a_row_that_does_not_fit_is_refused_by_its_column(row: Any, message: str) -> None:
    with pytest.raises(DataSourceError) as refused:
        RowsToArrow("it", to_arrow("n long not null, word string")).batch([row])
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ({"n": [1]}, "record batch of it must have the columns ['n', 'word']; got ['n']"),
        ({"n": [0.5], "word": ["x"]}, "column 'n' of it must have values of type int64; got "),
        ({"n": [None], "word": ["x"]}, "column 'n' of it must have no null"),
    ],
)
def test_a_record_batch_that_cannot_be_cast_is_refused(batch: Any, message: str) -> None:
    with pytest.raises(DataSourceError) as refused:
        RowsToArrow("it", to_arrow("n long not null, word string")).conform(pa.record_batch(batch))
    assert message in str(refused.value)


# Readers that break their promises --------------------------------------------------------------


def stream(**methods: Any) -> type[DataSource]:
    """A data source whose stream reader has some other methods than `NumbersReader`."""
    reader = type("Reader", (NumbersReader,), methods)
    return type("Odd", (Numbers,), {"streamReader": lambda self, schema: reader(self.options)})


def simple(**methods: Any) -> type[DataSource]:
    reader = type("Reader", (SimpleNumbersReader,), methods)
    body = {"simpleStreamReader": lambda self, schema: reader(self.options)}
    return type("Odd", (SimpleNumbers,), body)


def few(self: Any, start: Any, end: Any) -> list[Span]:
    return [Span(0, 1)]


@pytest.mark.parametrize(
    ("source", "offset", "message"),
    [
        (
            stream(partitions=few),
            ('{"n": 0}', '{"n": 7}', 0, 5),
            'give the 5 rows of partition 0 from {"n": 0} to {"n": 7} once more; got 1',
        ),
        (
            stream(partitions=few),
            ('{"n": 0}', '{"n": 7}', 2, 0),
            'give the 2 partitions from {"n": 0} to {"n": 7} once more; got 1',
        ),
        (stream(read=lambda self, p: None), None, "read of data source 'Odd' must return an"),
        (stream(initialOffset=lambda self: {"n": {1}}), None, "'Odd' must be JSON; got {'n': {1}}"),
        (
            simple(read=lambda self, start: (iter([(1, "x")]), start)),
            None,
            "must say a new offset when read gives rows",
        ),
        (
            type("Odd", (Numbers,), {"streamReader": lambda self, schema: None}),
            None,
            "streamReader of data source 'Odd' must return a DataSourceStreamReader; got None",
        ),
    ],
)
def test_a_reader_that_breaks_its_promises_is_refused(
    source: type[DataSource], offset: Any, message: str
) -> None:
    with pytest.raises(DataSourceError) as refused:
        DataSourceSource(source, poll_s=0).open(0, 1, offset).poll(NOW, 100)
    assert message in str(refused.value)


# What cannot be a source or a sink --------------------------------------------------------------


class Unfit(DataSource):
    """Neither readable nor writable."""


class NoSchema(Numbers):
    schema = DataSource.schema  # type: ignore[assignment]


def unpicklable() -> Numbers:
    source = Numbers({})
    source.lock = threading.Lock()  # type: ignore[attr-defined]
    return source


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: DataSourceSource("rate"), "Hint: registered names are known to Spark's JVM only"),  # type: ignore[arg-type]
        (lambda: DataSourceSource(dict), "must be a DataSource, or its class"),  # type: ignore[arg-type]
        (lambda: DataSourceSource(Unfit), "'Unfit' must have streamReader or simpleStreamReader"),
        (lambda: DataSourceSink(Unfit), "'Unfit' must have streamWriter or writer"),
        (
            lambda: DataSourceSource(unpicklable()),
            "'Numbers' must survive pickling; got \"Typ",
        ),
        (lambda: DataSourceSource(Numbers({}), {"a": "b"}), "Hint: give them when you make it"),
        (lambda: DataSourceSource(Numbers, {"rows": 3}), "option 'rows' must be text; got 3"),  # type: ignore[dict-item]
        (lambda: DataSourceSource(NoSchema), "'NoSchema' must say its schema"),
        (lambda: DataSourceSource(Numbers, poll_s=-1), "poll_s must be a number of seconds"),
        (lambda: DataSourceSource(Numbers, tasks=2), "tasks of data source 'Numbers' must be 1"),
        (lambda: SOURCES["tuples"].open(0, 2, None), "tasks of data source 'Numbers' must be 1"),
        (lambda: DataSourceSink(Lines, flush_rows=0), "flush_rows must be a whole number"),
        (lambda: DataSourceSink(Lines, flush_s=float("nan")), "flush_s must be a number"),
    ],
)
def test_what_cannot_be_is_refused_with_a_reason(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(BadValueError) as refused:
        make()
    assert message in str(refused.value)


# Data sources to write to -----------------------------------------------------------------------


@dataclass
class Written(WriterCommitMessage):
    path: str
    rows: int


class Lines(DataSource):
    """JSON lines: a file per commit, which has its name only when it is committed."""

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        return LinesWriter(Path(self.options["path"]), schema, overwrite)


class LinesWriter(DataSourceStreamWriter):
    def __init__(self, folder: Path, schema: StructType, overwrite: bool) -> None:
        self.folder = folder
        self.names = schema.names
        self.overwrite = overwrite

    def write(self, iterator: Iterator[Row]) -> Written:
        path = self.folder / f"{time.monotonic_ns()}.part"
        rows = list(iterator)
        assert all(list(row.__fields__) == self.names for row in rows)
        path.write_text("".join(json.dumps(row.asDict()) + "\n" for row in rows))
        return Written(str(path), len(rows))

    def commit(self, messages: Sequence[Any], batchId: int) -> None:
        (message,) = messages
        if self.overwrite:
            for path in self.folder.glob("*.json"):
                path.unlink()
        Path(message.path).rename(self.folder / f"{batchId}.json")
        (self.folder / "writer").write_text(str(os.getpid()))

    def abort(self, messages: Sequence[Any], batchId: int) -> None:
        (self.folder / f"aborted-{batchId}").touch()


SCHEMA = pa.schema([pa.field("n", pa.int64(), nullable=False), ("word", pa.string())])


def batch(*numbers: int) -> pa.RecordBatch:
    columns = [pa.array(numbers, pa.int64()), pa.array([f"w{n}" for n in numbers])]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def contents(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """The rows in each committed file."""
    return {
        path.stem: [json.loads(line) for line in path.read_text().splitlines()]
        for path in sorted(folder.glob("*.json"))
    }


def files(folder: Path) -> dict[str, list[int]]:
    """The numbers in each committed file."""
    return {name: [row["n"] for row in rows] for name, rows in contents(folder).items()}


def lines(folder: Path, **settings: Any) -> Writer:
    sink = DataSourceSink(Lines, {"Path": str(folder)}, **settings)
    travelled: DataSourceSink = cloudpickle.loads(cloudpickle.dumps(sink))
    return open_sink("out", travelled, 0, SCHEMA)


def test_outputs_are_kept_until_a_flush_and_committed_under_rising_numbers(tmp_path: Path) -> None:
    writer = lines(tmp_path, flush_s=3600)
    writer.write(batch(1, 2))
    writer.write(batch(3))
    assert files(tmp_path) == {}
    writer.flush()
    writer.flush()
    writer.write(batch(4))
    writer.write(batch())
    assert files(tmp_path) == {"0": [1, 2, 3]}
    writer.close()
    assert files(tmp_path) == {"0": [1, 2, 3], "1": [4]}
    assert json.loads((tmp_path / "1.json").read_text()) == {"n": 4, "word": "w4"}


def test_outputs_that_are_many_or_old_are_committed_before_an_epoch_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    many = lines(tmp_path, flush_s=3600, flush_rows=3)
    for n in range(5):
        many.write(batch(n))
    assert files(tmp_path) == {"0": [0, 1, 2]}
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(sink_module, "time", SimpleNamespace(monotonic=lambda: clock.now))
    old = lines(tmp_path, flush_s=1)
    for n, clock.now in zip(range(7, 11), (10.0, 10.6, 11.0, 11.9), strict=True):
        old.write(batch(n))
    assert files(tmp_path) == {"0": [7, 8, 9]}
    clock.now = 12.8
    old.tick()
    assert files(tmp_path) == {"0": [7, 8, 9]}
    clock.now = 12.9
    old.tick()
    assert files(tmp_path) == {"0": [7, 8, 9], "1": [10]}


def test_only_the_first_commit_replaces_what_is_there(tmp_path: Path) -> None:
    (tmp_path / "before.json").write_text('{"n": 9}\n')
    writer = lines(tmp_path, overwrite=True, flush_s=0)
    for n in range(3):
        writer.write(batch(n))
    assert files(tmp_path) == {"0": [0], "1": [1], "2": [2]}


class Log(DataSource):
    """Notes what is asked of its writer, which is one of the classes below."""

    calls: ClassVar[list[Any]] = []

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        Log.calls.append(("writer", schema, overwrite))
        return LogArrowWriter() if self.options.get("arrow") else LogWriter(self.options)


class ArrowLog(DataSource):
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        return ArrowLogWriter()


class LogWriter(DataSourceWriter):
    def __init__(self, options: Mapping[str, str]) -> None:
        self.broken = options.get("broken", "")

    def write(self, iterator: Iterator[Any]) -> Any:
        Log.calls.append(list(iterator))
        self.break_in("write")
        return 7 if self.broken == "message" else Written("", 1)

    def commit(self, messages: Sequence[Any]) -> None:
        Log.calls.append(("commit", messages))
        self.break_in("commit")

    def abort(self, messages: Sequence[Any]) -> None:
        Log.calls.append(("abort", messages))
        self.break_in("write")

    def break_in(self, where: str) -> None:
        if self.broken == where:
            raise OSError(f"no {where}")


class LogArrowWriter(LogWriter, DataSourceArrowWriter):
    def __init__(self) -> None:
        super().__init__({})


class ArrowLogWriter(DataSourceStreamArrowWriter):
    def write(self, iterator: Iterator[Any]) -> Any:
        Log.calls.append(list(iterator))
        return Written("", 1)

    def commit(self, messages: Sequence[Any], batchId: int) -> None:
        Log.calls.append(("commit", messages, batchId))


def logged(sink: DataSourceSink) -> list[Any]:
    """What two flushes ask of a data source's writer."""
    Log.calls.clear()
    writer = sink.open(0, SCHEMA)
    writer.write(batch(1))
    writer.write(batch(2))
    writer.flush()
    writer.write(batch(3))
    writer.close()
    return Log.calls


def test_a_writer_for_batches_is_made_anew_for_each_commit() -> None:
    struct = StructType([StructField("n", LongType(), False), StructField("word", StringType())])
    message = [Written("", 1)]
    assert logged(DataSourceSink(Log({}))) == [
        ("writer", struct, False),
        [Row(n=1, word="w1"), Row(n=2, word="w2")],
        ("commit", message),
        ("writer", struct, False),
        [Row(n=3, word="w3")],
        ("commit", message),
    ]


def test_arrow_writers_get_record_batches_as_they_came() -> None:
    calls = [call for call in logged(DataSourceSink(Log({"arrow": "1"}))) if isinstance(call, list)]
    assert calls == [[batch(1), batch(2)], [batch(3)]]
    message = [Written("", 1)]
    assert logged(DataSourceSink(ArrowLog)) == [
        [batch(1), batch(2)],
        ("commit", message, 0),
        [batch(3)],
        ("commit", message, 1),
    ]


@pytest.mark.parametrize(
    ("broken", "message", "got", "notes"),
    [
        ("write", None, "OSError: no write", ["and then, in abort: OSError: no write"]),
        ("commit", Written("", 1), "OSError: no commit", []),
        ("message", None, "write of data source 'Log' must return a WriterCommitMessage", []),
    ],
)
def test_what_fails_is_aborted_once_and_not_written_again(
    broken: str, message: Any, got: str, notes: list[str]
) -> None:
    Log.calls.clear()
    writer = open_sink("out", DataSourceSink(Log, {"broken": broken}), 0, SCHEMA)
    writer.write(batch(1))
    with pytest.raises(SinkError) as refused:
        writer.flush()
    assert got in str(refused.value)
    assert getattr(refused.value.__cause__, "__notes__", []) == notes
    assert Log.calls[-1] == ("abort", [message])
    seen = len(Log.calls)
    writer.close()
    assert len(Log.calls) == seen


def test_a_column_that_spark_has_no_type_for_is_refused_by_name() -> None:
    with pytest.raises(BadValueError, match="column 'u' must have a type that Spark has"):
        DataSourceSink(ArrowLog).open(0, pa.schema([("u", pa.uint16())]))


# Both, in a topology on Spark -------------------------------------------------------------------


class SignedNumbers(Numbers):
    """As before, and says which process reads them."""

    def streamReader(self, schema: StructType) -> NumbersReader:
        Path(self.options["path"], "reader").write_text(str(os.getpid()))
        return NumbersReader(self.options)


class Squares(Operator):
    output: ClassVar[Any] = "n long, square long"

    def process(self, key: Any, row: Any, state: Any) -> Iterator[Any]:
        yield key, key * key


def test_a_topology_on_spark_reads_from_a_data_source_and_writes_to_another(
    spark: SparkSession, tmp_path: Path
) -> None:
    options = {"path": str(tmp_path), "rows": "1000", "step": "300"}
    topology = Topology("squares")
    numbers = topology.source("numbers", DataSourceSource(SignedNumbers, options, poll_s=0.01))
    squares = topology.operator("squares", Squares(), numbers, key="n", shards=8)
    topology.sink("out", DataSourceSink(Lines, {"path": str(tmp_path)}, flush_rows=400), squares)
    with Cluster(spark, nodes=1, cores=1) as cluster:
        run = cluster.submit(topology, journal=tmp_path / "journal")
        await_that(
            lambda: run.metrics().rows_in == 1000 or run.phase != "running", "all to be read"
        )
        run.stop()
    found = contents(tmp_path)
    assert list(found) == [str(number) for number in range(len(found))]
    rows = sorted((row["n"], row["square"]) for part in found.values() for row in part)
    assert rows == [(n, n * n) for n in range(1000)]
    pids = [int((tmp_path / name).read_text()) for name in ("reader", "writer")]
    assert os.getpid() not in pids
    await_that(lambda: not any(map(psutil.pid_exists, pids)), "source and sink to end")
