from __future__ import annotations

import datetime as dt
import itertools
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticutor.core.keys import key_hashes, shards_of
from elasticutor.core.protocol.ids import Attempt, ChunkId, Epoch, ShardId
from elasticutor.core.protocol.task_inbox import SingleWork, Work
from elasticutor.errors import BadValueError, StaleAttemptError
from elasticutor.lab.bench.work import COUNTS_AND_SUMS, CountAndSum, CountAndSumBatch
from elasticutor.operator import BatchState, Operator, OperatorError, State
from elasticutor.process.operator import chunk_run
from elasticutor.process.operator import runner as operating
from elasticutor.process.operator.chunk_run import ChunkDone, ChunkRun, SingleRun
from elasticutor.process.operator.runner import OperatorRunner
from elasticutor.state.backend import MemoryBackend
from elasticutor.state.cache import Codec, StateCache
from elasticutor.state.levels import Levels

INPUT = pa.schema([("user", pa.string()), ("n", pa.int64())])
OUTPUT = pa.schema([("user", pa.string()), ("total", pa.int64())])


class Record(Operator):
    """An operator of one function."""

    def __init__(self, function: Callable[[Any, Any, State], Iterable[Any] | None]) -> None:
        self.function = function

    def process(self, key: Any, row: Any, state: State) -> Iterable[Any] | None:
        return self.function(key, row, state)


class Batch(Operator):
    """A vectorised operator of one function."""

    def __init__(self, function: Callable[[pa.RecordBatch, BatchState], Any]) -> None:
        self.function = function

    def process_batch(self, batch: pa.RecordBatch, state: BatchState) -> Any:
        return self.function(batch, state)


class Rig:
    """A runner with its cache, fed with columns."""

    def __init__(
        self,
        operator: Operator,
        *,
        input: pa.Schema = INPUT,  # noqa: A002 - as the runner has it
        key: Sequence[str] = ("user",),
        output: pa.Schema = OUTPUT,
    ) -> None:
        store = Levels.create(MemoryBackend(), attempt=Attempt(1), committed=Epoch(0))
        codec = Codec(lambda key: repr(key).encode())
        self.cache = StateCache(store, codec, Attempt(1), Epoch(1))
        self.input = input
        self.key = key
        self.runner = OperatorRunner(
            operator, name="op", input=input, key=tuple(key), output=output, cache=self.cache
        )

    def run(self, *columns: Sequence[Any], parts: Sequence[int] | None = None) -> ChunkDone:
        arrays = [
            pa.array(column, field.type) for column, field in zip(columns, self.input, strict=True)
        ]
        batch = pa.RecordBatch.from_arrays(arrays, schema=self.input)
        shards = shards_of(key_hashes(*(batch.column(name) for name in self.key)), 16)
        return self.runner.run(batch, shards, parts or [batch.num_rows])

    def outputs(self, *columns: Sequence[Any]) -> list[tuple[Any, ...]]:
        output = self.run(*columns).output
        return [] if output is None else [tuple(row.values()) for row in output.to_pylist()]


def add(key: Any, row: Any, state: State) -> Iterable[Any]:
    state.set(state.get(0) + row.n)
    yield key, state.get()


# Record by record ---------------------------------------------------------------------------------


def test_rows_are_processed_in_order_with_their_keys_state() -> None:
    rig = Rig(Record(add))
    assert rig.outputs(["a", "b", "a"], [1, 2, 3]) == [("a", 1), ("b", 2), ("a", 4)]
    assert rig.outputs(["b", None], [10, 5]) == [("b", 12), (None, 5)]


def test_output_is_of_exactly_the_schema() -> None:
    output = pa.schema([pa.field("user", pa.large_string(), nullable=False), ("total", pa.int16())])
    done = Rig(Record(add), output=output.with_metadata({"m": "1"})).run(["a"], [1])
    assert done.output is not None
    assert done.output.schema.equals(output.with_metadata({"m": "1"}), check_metadata=True)


def test_outputs_are_counted_by_part() -> None:
    rig = Rig(Record(lambda key, row, state: [(key, row.n)] * row.n))
    assert rig.run(["a"] * 5, [2, 0, 1, 0, 3], parts=[2, 0, 2, 1]).part_rows_out == [2, 0, 1, 3]


def test_nothing_made_is_no_output() -> None:
    nothings: list[Iterable[Any] | None] = [None, [], ()]
    for nothing in nothings:
        done = Rig(Record(lambda *_, made=nothing: made)).run(["a", "b"], [1, 2])
        assert (done.output, done.part_rows_out) == (None, [0])
    assert Rig(Record(add)).run([], [], parts=[0, 0]).part_rows_out == [0, 0]


def test_rows_may_be_tuples_named_tuples_and_dictionaries() -> None:
    def make(key: Any, row: Any, state: State) -> Iterable[Any]:
        return [(key, 1), row, {"total": 3, "user": key}, {"user": key}]

    assert Rig(Record(make)).outputs(["a"], [2]) == [("a", 1), ("a", 2), ("a", 3), ("a", None)]


def test_any_column_can_be_the_key() -> None:
    rig = Rig(Record(lambda key, row, state: [(row.user, key)]), key=("n",))
    assert rig.outputs(["a", "b"], [1, 2]) == [("a", 1), ("b", 2)]


def test_a_key_of_several_columns_is_a_tuple_and_a_struct_is_one_too() -> None:
    seen: list[Any] = []
    spy = Record(lambda key, row, state: seen.append(key))
    Rig(spy, key=("n", "user")).run(["a"], [1])
    pair = pa.struct([("x", pa.int64()), ("y", pa.float64())])
    rig = Rig(spy, input=pa.schema([("pair", pair)]), key=("pair",))
    rig.run([{"x": 1, "y": -0.0}, None, {"x": None, "y": 2.0}])
    assert seen == [(1, "a"), (1, 0.0), None, (None, 2.0)]


@pytest.mark.parametrize("kind", [pa.float64(), pa.float32()], ids=str)
def test_equal_floats_are_one_key_nan_and_minus_zero_too(kind: pa.DataType) -> None:
    rig = Rig(
        Record(add),
        input=pa.schema([("user", kind), ("n", pa.int64())]),
        output=pa.schema([("user", kind), ("total", pa.int64())]),
    )
    nan = float("nan")
    rows = rig.outputs([nan, 0.0, nan, -0.0, None], [1, 1, 1, 1, 1])
    assert [total for _, total in rows] == [1, 1, 2, 2, 1]
    assert [total for _, total in rig.outputs([nan, -0.0], [1, 1])] == [3, 3]


def test_odd_column_names_are_reached_by_place() -> None:
    seen: list[Any] = []
    names = pa.schema([("class", pa.int64()), ("two words", pa.int64()), ("ok", pa.int64())])
    rig = Rig(Record(lambda key, row, state: seen.append(row)), input=names, key=("class",))
    rig.run([1], [2], [3])
    assert (seen[0]._0, seen[0]._1, seen[0].ok) == (1, 2, 3)


NOW = dt.datetime(2024, 2, 29, 12, 30, 0, 5)
VALUES = [
    (pa.int8(), [1, None, -3]),
    (pa.uint64(), [2**64 - 1, None]),
    (pa.float64(), [1.5, None]),
    (pa.bool_(), [True, None, False]),
    (pa.string(), ["é", None, ""]),
    (pa.binary(), [b"\0x", None]),
    (pa.binary(2), [b"\0\0", b"x\0", None]),
    (pa.date32(), [dt.date(1969, 12, 31), None]),
    (pa.timestamp("us"), [NOW, None, dt.datetime(1, 1, 1)]),
    (pa.timestamp("us", "UTC"), [NOW.replace(tzinfo=dt.UTC), None]),
    (pa.timestamp("ms", "Europe/Oslo"), [NOW.replace(microsecond=0, tzinfo=dt.UTC), None]),
    (pa.duration("us"), [dt.timedelta(microseconds=5), None]),
    (pa.decimal128(5, 2), [Decimal("1.50"), None]),
    (pa.list_(pa.int64()), [[1, None], None]),
    (pa.struct([("a", pa.int64())]), [{"a": 1}, None]),
    (pa.dictionary(pa.int32(), pa.string()), ["a", None, "a"]),
]


@pytest.mark.parametrize(("kind", "values"), VALUES, ids=lambda value: str(value)[:30])
def test_values_of_every_type_pass_through_unchanged(kind: pa.DataType, values: list[Any]) -> None:
    schema = pa.schema([("k", pa.int64()), ("v", kind)])
    seen: list[Any] = []

    def spy(key: Any, row: Any, state: State) -> Iterable[Any]:
        seen.append(row.v)
        yield row

    rig = Rig(Record(spy), input=schema, key=("k",), output=schema)
    done = rig.run(list(range(len(values))), values)
    assert seen == values
    assert list(map(type, seen)) == list(map(type, pa.array(values, kind).to_pylist()))
    assert done.output is not None
    assert done.output.column("v").to_pylist() == values


def test_a_slice_of_a_batch_is_that_slice() -> None:
    schema = pa.schema([("k", pa.int64()), ("p", pa.binary(1)), ("t", pa.timestamp("us"))])
    batch = pa.record_batch(
        [pa.array([1, 2, 3]), pa.array([b"a", b"b", b"c"], pa.binary(1)), pa.array([1, 2, 3])],
        names=schema.names,
    ).cast(schema)
    rig = Rig(Record(lambda key, row, state: [row]), input=schema, key=("k",), output=schema)
    done = rig.runner.run(batch.slice(1, 2), np.zeros(2, np.int32), [2])
    assert done.output is not None
    assert done.output.equals(batch.slice(1, 2))


# Times --------------------------------------------------------------------------------------------


def clocked(monkeypatch: pytest.MonkeyPatch, seconds_per_look: float) -> None:
    looks = itertools.count()
    for module in (operating, chunk_run):
        monkeypatch.setattr(module, "perf_counter", lambda: next(looks) * seconds_per_look)


def test_rows_of_a_dear_operator_are_timed_in_every_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    clocked(monkeypatch, 1.0)
    rig = Rig(Record(add))
    for _ in range(20):
        done = rig.run(["a", "b", "c"], [1, 2, 3])
        assert done.row_seconds is not None
        assert done.row_seconds.tolist() == [1.0, 1.0, 1.0]
        # To convert the chunk, for every row the looks around it and in it, and to write outputs.
        assert done.useful_s == 1.0 + 3 * 3.0 + 1.0


def test_rows_of_a_cheap_operator_are_timed_in_every_sixteenth_chunk(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clocked(monkeypatch, 1e-9)
    rig = Rig(Record(add))
    timed = [rig.run(["a", "b"], [1, 2]).row_seconds is not None for _ in range(33)]
    assert [number for number, was in enumerate(timed) if was] == [0, 16, 32]


def test_the_time_of_a_single_row_is_that_of_its_chunk() -> None:
    done = Rig(Record(add)).run(["a"], [1])
    assert done.row_seconds is None
    assert done.useful_s > 0


def test_a_row_that_takes_longer_is_seen_to(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    for module in (operating, chunk_run):
        monkeypatch.setattr(module, "perf_counter", lambda: now[0])

    def slow(key: Any, row: Any, state: State) -> Iterable[Any]:
        yield key, row.n
        now[0] += row.n  # also what comes after a yield is the row's

    done = Rig(Record(slow)).run(["a", "b", "c"], [1, 5, 2])
    assert done.row_seconds is not None
    assert done.row_seconds.tolist() == [1.0, 5.0, 2.0]
    assert done.useful_s == 8.0


# What goes wrong ----------------------------------------------------------------------------------


def deeper(n: int) -> float:
    return 1 / n


def test_an_error_names_operator_key_and_row_and_shows_the_users_frames_only() -> None:
    rig = Rig(Record(lambda key, row, state: [(key, deeper(row.n))]))
    with pytest.raises(OperatorError) as caught:
        rig.run(["a", "b"], [1, 0])
    error = pickle.loads(pickle.dumps(caught.value))  # noqa: S301
    assert (error.operator, error.key, error.row) == ("op", "'b'", "Row(user='b', n=0)")
    assert "ZeroDivisionError: division by zero" in str(error)
    assert "in deeper" in error.trace
    assert "process/operator/runner.py" not in error.trace


def test_an_error_after_a_yield_is_the_same_rows() -> None:
    def late(key: Any, row: Any, state: State) -> Iterable[Any]:
        yield key, row.n
        raise LookupError("late")

    with pytest.raises(OperatorError, match="LookupError: late") as caught:
        Rig(Record(late)).run(["a", "b"], [1, 0])
    assert caught.value.key == "'a'"


def test_a_large_row_is_shown_in_part() -> None:
    with pytest.raises(OperatorError) as caught:
        Rig(Record(lambda key, row, state: [1 / 0])).run(["x" * 100_000], [1])
    assert len(str(caught.value)) < 5_000


def test_an_error_of_the_engine_is_not_blamed_on_the_operator() -> None:
    def stale(key: Any, row: Any, state: State) -> Iterable[Any]:
        raise StaleAttemptError("attempt", "be 2 or later", 1)

    with pytest.raises(StaleAttemptError):
        Rig(Record(stale)).run(["a"], [1])


MISFITS: list[tuple[Any, str]] = [
    (("a",), r"rows of 2 values \(user, total\); got 1"),
    (("a", 1, 2), "rows of 2 values"),
    (("a", "one"), "make int64 for column 'total'; got 'one', a str"),
    (("a", 1.5), "make int64 for column 'total'; got 1.5, a float"),
    (("a", 2**63), "make int64 for column 'total'"),
    ((5, 1), "make string for column 'user'; got 5, a int"),
    ({"usr": "a", "total": 1}, r"name columns of its output \(user, total\); got 'usr'"),
    (["a", 1], "rows that are tuples or dictionaries"),
    ("ab", "rows that are tuples or dictionaries"),
]


@pytest.mark.parametrize(("row", "message"), MISFITS, ids=repr)
def test_a_row_that_does_not_fit_is_refused_by_name(row: Any, message: str) -> None:
    def make(key: Any, given: Any, state: State) -> Iterable[Any]:
        return [(key, 0)] * 2 + [row] if key == "c" else [(key, None)] * given.n

    with pytest.raises(OperatorError, match=message) as caught:
        Rig(Record(make)).run(["a", "b", "c", "d"], [3, 0, 1, 1])
    assert (caught.value.key, caught.value.row) == ("'c'", "Row(user='c', n=1)")


@pytest.mark.parametrize("kind", [pa.timestamp("us"), pa.date32(), pa.int32()], ids=str)
def test_half_a_day_is_not_a_day(kind: pa.DataType) -> None:
    rig = Rig(Record(lambda key, row, state: [(1.5,)]), output=pa.schema([("t", kind)]))
    with pytest.raises(OperatorError, match=r"for column 't'; got 1\.5"):
        rig.run(["a"], [1])


@pytest.mark.parametrize("kind", [pa.int64(), pa.string()], ids=str)
def test_a_null_where_there_can_be_none_is_refused(kind: pa.DataType) -> None:
    output = pa.schema([pa.field("v", kind, nullable=False)])
    with pytest.raises(OperatorError, match="not null, for column 'v'; got None"):
        Rig(Record(lambda key, row, state: [(None,)]), output=output).run(["a"], [1])


def test_one_row_returned_without_a_list_is_explained() -> None:
    with pytest.raises(OperatorError, match="yield each row"):
        Rig(Record(lambda key, row, state: (key, 1))).run(["a"], [1])
    with pytest.raises(OperatorError, match="yield rows, or return an iterable"):
        Rig(Record(lambda key, row, state: 5)).run(["a"], [1])  # type: ignore[arg-type, return-value]


def test_a_chunk_that_does_not_hold_together_is_refused() -> None:
    rig = Rig(Record(add))
    with pytest.raises(BadValueError, match="the same number"):
        rig.run(["a", "b"], [1, 2], parts=[1])
    with pytest.raises(BadValueError, match="have the columns"):
        rig.runner.run(pa.record_batch({"n": [1]}), np.zeros(1, np.int32), [1])
    with pytest.raises(BadValueError, match="name columns of the input"):
        Rig(Record(add), key=("nobody",))


# A batch at a time --------------------------------------------------------------------------------


def total_of(batch: pa.RecordBatch, state: BatchState) -> pa.RecordBatch:
    groups = state.groups
    sums = np.bincount(groups.of_row, batch.column("n").to_numpy()).astype(np.int64)
    totals = state.get_array(groups.keys, np.int64) + sums
    state.set_array(groups.keys, totals)
    return pa.record_batch([pa.array(groups.keys, pa.string()), totals], schema=OUTPUT)


def test_a_batch_operator_sees_the_whole_chunk_and_keeps_state() -> None:
    rig = Rig(Batch(total_of))
    assert sorted(rig.outputs(["a", "b", "a"], [1, 2, 3])) == [("a", 4), ("b", 2)]
    assert rig.outputs(["b", "b"], [10, 1]) == [("b", 13)]


def test_outputs_of_a_batch_are_each_parts_own_or_the_oldest_ones() -> None:
    assert Rig(Batch(total_of)).run(["a", "b"], [1, 2], parts=[1, 1]).part_rows_out == [1, 1]
    assert Rig(Batch(total_of)).run(["a", "a"], [1, 2], parts=[1, 1]).part_rows_out == [1, 0]
    done = Rig(Batch(lambda batch, state: None)).run(["a", "a"], [1, 2], parts=[1, 1])
    assert (done.output, done.part_rows_out, done.row_seconds) == (None, [0, 0], None)


def test_a_batch_operator_may_make_batches_and_tables_any_number() -> None:
    def pieces(batch: pa.RecordBatch, state: BatchState) -> Iterable[Any]:
        one = batch.rename_columns(["user", "total"])
        yield one
        yield None
        yield pa.Table.from_batches([one, one.slice(0, 0), one])

    assert Rig(Batch(pieces)).outputs(["a"], [1]) == [("a", 1)] * 3
    table = Batch(lambda batch, state: pa.Table.from_batches([batch]).rename_columns(OUTPUT.names))
    assert Rig(table).outputs(["a"], [1]) == [("a", 1)]


def one_row(**columns: pa.Array) -> Batch:
    return Batch(lambda batch, state: pa.record_batch(columns))


def test_columns_of_a_batch_are_put_in_order_and_cast_where_that_is_safe() -> None:
    small = one_row(total=pa.array([1], pa.int8()), user=pa.array(["a"], pa.large_string()))
    done = Rig(small).run(["a"], [1])
    assert done.output is not None
    assert done.output.schema.equals(OUTPUT)
    assert done.output.to_pylist() == [{"user": "a", "total": 1}]


A = pa.array(["a"])
BAD_BATCHES = [
    (one_row(user=A), "with the columns user, total; got user"),
    (one_row(user=A, total=A), "make int64 for column 'total'; got string"),
    (one_row(user=A, total=pa.array([1.0])), "make int64 for column 'total'; got double"),
    (one_row(user=A, total=pa.array([2**63], pa.uint64())), "safely int64"),
    (Batch(lambda batch, state: [5]), "be RecordBatch, Table or None"),
    (Batch(lambda batch, state: 5), "yield rows, or return"),
    (Batch(lambda batch, state: 1 / 0), "ZeroDivisionError"),
]


@pytest.mark.parametrize(("operator", "message"), BAD_BATCHES, ids=lambda value: str(value)[:40])
def test_a_batch_that_does_not_fit_is_refused(operator: Batch, message: str) -> None:
    with pytest.raises(OperatorError, match=message):
        Rig(operator).run(["a"], [1])


def test_nulls_in_a_batch_are_refused_where_there_can_be_none() -> None:
    strict = pa.schema([pa.field("user", pa.string(), nullable=False)])
    made = pa.record_batch([pa.array(["a", None])], schema=strict)
    with pytest.raises(OperatorError, match="no nulls for column 'user'"):
        Rig(Batch(lambda batch, state: made), output=strict).run(["a"], [1])


# The same of both kinds ---------------------------------------------------------------------------

COUNTED = pa.schema([("key", pa.int64()), ("time", pa.int64())])
chunks = st.lists(
    st.lists(st.tuples(st.integers(-5, 5), st.integers(-100, 100)), min_size=1, max_size=40),
    max_size=4,
)


@given(chunks, st.sampled_from([1, 2**58]))
def test_counting_by_batch_is_counting_by_record(
    chunks: list[list[tuple[int, int]]], spread: int
) -> None:
    by_record, by_batch = (
        Rig(operator, input=COUNTED, key=("key",), output=COUNTS_AND_SUMS)
        for operator in (CountAndSum(), CountAndSumBatch())
    )
    totals: dict[int, tuple[int, int]] = {}
    for chunk in chunks:
        keys, times = [key * spread for key, _ in chunk], [time for _, time in chunk]
        expected = []
        for key, time in zip(keys, times, strict=True):
            count, total = totals.get(key, (0, 0))
            totals[key] = count + 1, total + time
            expected.append((key, *totals[key]))
        assert by_record.outputs(keys, times) == expected
        assert by_batch.outputs(keys, times) == expected


def test_a_task_does_without_what_it_does_not_need() -> None:
    code = (
        "import sys, elasticutor.process.operator.runner; "
        "print([m for m in ('pyarrow.compute', 'pandas', 'pyspark') if m in sys.modules])"
    )
    told = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert told.stdout.strip() == "[]"


def shards(*numbers: int) -> npt.NDArray[np.int32]:
    return np.array(numbers, np.int32)


def test_state_goes_to_the_shard_that_the_row_came_with() -> None:
    rig = Rig(Record(add))
    batch = pa.record_batch([["a", "b"], [1, 2]], schema=INPUT)
    rig.runner.run(batch, shards(3, 5), [2])
    assert (rig.cache.get(ShardId(3), "a"), rig.cache.get(ShardId(5), "b")) == (1, 2)


# Interrupted --------------------------------------------------------------------------------------


def begun(rig: Rig, users: Sequence[str], shards: Sequence[int], parts: Sequence[int]) -> ChunkRun:
    batch = pa.record_batch([pa.array(users), pa.array(range(len(users)))], schema=INPUT)
    return rig.runner.begin(batch, Work(ChunkId(0), np.array(shards, np.int32)), parts)


def looks(*answers: bool) -> Callable[[], bool]:
    """Has something urgent at some of the looks, and at none that follow."""
    rest = iter(answers)
    return lambda: next(rest, False)


def rows_in(done: ChunkDone) -> list[tuple[Any, ...]]:
    return [] if done.output is None else [tuple(row.values()) for row in done.output.to_pylist()]


def test_a_chunk_stops_between_two_rows_and_goes_on_without_those_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clocked(monkeypatch, 1.0)  # there is a look after every row
    rig = Rig(Record(lambda key, row, state: [(key, row.n)]))
    run = begun(rig, ["a", "b", "c", "d", "e"], [1, 2, 1, 2, 1], parts=[2, 3])
    run.advance(looks(False, True))
    assert run.work.unreported == 2
    first = run.report()
    assert (rows_in(first), first.part_rows_out) == ([("a", 0), ("b", 1)], [2, 0])
    assert run.work.leave_out(ShardId(1)) == 2
    run.advance(looks())
    rest = run.report()
    assert (rows_in(rest), rest.part_rows_out) == ([("d", 3)], [0, 1])
    assert len(run.work.left) == 0


def test_what_is_done_before_and_after_an_interruption_is_one_report_if_nobody_asks() -> None:
    rig = Rig(Record(lambda key, row, state: [(key, row.n)] * row.n))
    run = begun(rig, ["a", "b", "c"], [1, 2, 3], parts=[1, 2])
    run.advance(looks(True))
    run.work.leave_out(ShardId(2))
    run.advance(looks())
    done = run.report()
    assert (rows_in(done), done.part_rows_out) == ([("c", 2), ("c", 2)], [0, 2])
    assert done.row_seconds is not None
    assert len(done.row_seconds) == 2


def test_an_output_that_does_not_fit_names_its_row_after_an_interruption_too() -> None:
    rig = Rig(Record(lambda key, row, state: [(key, "no number" if key == "d" else 1)]))
    run = begun(rig, ["a", "b", "c", "d"], [1, 2, 1, 2], parts=[4])
    run.advance(looks(True))
    run.report()
    run.work.leave_out(ShardId(1))
    run.advance(looks())
    with pytest.raises(OperatorError, match="user='d'"):
        run.report()


def test_a_batch_operator_is_given_what_is_left_of_a_chunk_at_once() -> None:
    seen = []

    def note(batch: pa.RecordBatch, state: BatchState) -> pa.RecordBatch:
        seen.append(batch.column(0).to_pylist())
        return pa.record_batch([batch.column(0), batch.column(1)], schema=OUTPUT)

    rig = Rig(Batch(note))
    run = begun(rig, ["a", "b", "c", "d"], [1, 2, 1, 1], parts=[1, 3])
    run.work.leave_out(ShardId(2))
    run.advance(looks(True, True))
    done = run.report()
    assert (seen, done.part_rows_out) == ([["a", "c", "d"]], [1, 2])


@pytest.mark.parametrize(("row_s", "most"), [(1e-3, 40), (1e-5, 8), (1e-7, 8)])
def test_rows_are_looked_up_from_about_every_fifth_of_a_millisecond(
    monkeypatch: pytest.MonkeyPatch, row_s: float, most: int
) -> None:
    now, looked = [0.0], [0.0]
    for module in (operating, chunk_run):
        monkeypatch.setattr(module, "perf_counter", lambda: now[0])

    def work(key: Any, row: Any, state: State) -> None:
        now[0] += row_s

    def look() -> bool:
        assert now[0] - looked[0] <= max(row_s, 400e-6) * 1.01
        looked[0] = now[0]
        return False

    rig = Rig(Record(work))
    for _ in range(30):  # until it has found its pace
        run = begun(rig, ["a"] * 40, [1] * 40, parts=[40])
        looked[0] = now[0]
        run.advance(look)
        run.report()
    count = [0]

    def counted() -> bool:
        count[0] += 1
        return False

    run = begun(rig, ["a"] * 40, [1] * 40, parts=[40])
    run.advance(counted)
    assert count[0] <= most


# Few tuples, each by itself -----------------------------------------------------------------------


def single(rig: Rig, rows: list[tuple[Any, ...]], numbers: list[int]) -> SingleRun:
    return SingleRun(rig.runner, rows, SingleWork(ChunkId(0), numbers))


@given(chunks, st.data())
def test_few_tuples_are_processed_as_a_batch_of_them_is(
    chunks: list[list[tuple[int, int]]], data: st.DataObject
) -> None:
    in_batches, singly = (
        Rig(CountAndSum(), input=COUNTED, key=("key",), output=COUNTS_AND_SUMS) for _ in range(2)
    )
    for chunk in chunks:
        keys, times = [key for key, _ in chunk], [time for _, time in chunk]
        numbers = shards_of(key_hashes(pa.array(keys, pa.int64())), 16).tolist()
        run = single(singly, chunk, numbers)
        made: list[Any] = []
        while len(run.work.left):
            run.advance(looks(*data.draw(st.lists(st.booleans(), max_size=3))))
            done = run.report()
            assert len(done.ends) == len(done.places)
            assert run.rows_of(done) == [chunk[place] for place in done.places]
            made += done.rows_out
        assert made == in_batches.outputs(keys, times)


def test_few_tuples_stop_between_two_and_go_on_without_those_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clocked(monkeypatch, 1.0)  # there is a look after every row
    rig = Rig(Record(lambda key, row, state: [(key, row.n)] * row.n))
    run = single(rig, [("a", 0), ("b", 1), ("c", 2), ("d", 3), ("e", 4)], [1, 2, 1, 2, 1])
    run.advance(looks(False, True))
    assert run.work.unreported == 2
    first = run.report()
    assert (first.rows_out, first.ends, first.places) == ([("b", 1)], [0, 1], [0, 1])
    assert run.work.leave_out(ShardId(1)) == 2
    run.advance(looks())
    rest = run.report()
    assert (rest.rows_out, rest.ends, rest.places) == ([("d", 3)] * 3, [3], [3])
    assert len(run.work.left) == 0


def test_the_key_of_several_columns_is_a_tuple_for_single_tuples_too() -> None:
    seen: list[Any] = []
    rig = Rig(Record(lambda key, row, state: seen.append((key, row.n))), key=("n", "user"))
    single(rig, [("a", 7)], [0]).advance(looks())
    assert seen == [((7, "a"), 7)]


def test_an_output_of_single_tuples_that_does_not_fit_names_key_and_row() -> None:
    rig = Rig(Record(lambda key, row, state: [(key, "one" if row.n == 2 else row.n)]))
    run = single(rig, [("a", 1), ("b", 2)], [0, 0])
    run.advance(looks())
    done = run.report()
    with pytest.raises(OperatorError, match=r"column 'total'.*'one'") as caught:
        rig.runner.written_of(done.rows_out, done.ends, run.rows_of(done))
    assert "'b'" in str(caught.value)
