"""Random operators, keys, batches and restarts: what a stream comes to is what a fold comes to."""

from __future__ import annotations

import ast
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import cloudpickle
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from pyspark.sql.streaming.query import StreamingQuery
from tests.runtime.live import remove_journals
from tests.spark.dooms import PATIENCE_S, write_file
from tests.spark.rig import assert_gone, await_that, of_clusters

from elasticutor import Operator, elastic, read_state
from elasticutor.spark import Cluster

# The processes of a cluster cannot import this module, so its operators travel as code.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


class Row(NamedTuple):
    id: int
    i: int | None
    s: str | None
    v: int


SCHEMA = pa.schema({"id": pa.int64(), "i": pa.int64(), "s": pa.string(), "v": pa.int64()})
INTS = (None, 0, -1, 1, 2**40)
TEXTS = (None, "", "a", "b", "ä" * 300)
Key = str | list[str | Column]

KEYS: dict[str, tuple[Key, Callable[[Row], tuple[Any, ...]]]] = {
    "an int": ("i", lambda row: (row.i,)),
    "a string": ("s", lambda row: (row.s,)),
    "two columns": (["s", "i"], lambda row: (row.s, row.i)),
    "an expression": ("v % 3", lambda row: (row.v % 3,)),
}
NONE = object()
"""No state at all."""
SEED = 1
"""Of the journey of each operator in `make test`; `make matrix` draws others."""


# Operators, and what each of them comes to for the rows of one key -------------------------------


class Made(Operator):
    """Output rows say of which row they are, and whatever else there is to say as text."""

    output: ClassVar[Any] = "id bigint, made string"


class CountRows(Made):
    def process(self, key: Any, row: Any, state: Any) -> Iterator[Any]:
        state.set(state.get(0) + 1)
        yield row.id, str(state.get())


class SumUp(Made):
    def process(self, key: Any, row: Any, state: Any) -> Iterator[Any]:
        before = state.get(0)
        state.set(before + row.v)
        yield row.id, f"{before} + {row.v}"


class Last(Made):
    """The state is of another type now and then, and may be None."""

    def process(self, key: Any, row: Any, state: Any) -> Iterator[Any]:
        yield row.id, f"{state.exists()} {state.get()}"
        state.set(None if row.v % 5 == 0 else row.v if row.v % 2 else (row.v, row.s))


class Append(Made):
    def process(self, key: Any, row: Any, state: Any) -> Iterator[Any]:
        values = state.get([])
        values.append(row.v)  # in place, and never set
        yield row.id, str(values[-3:])


class Several(Made):
    """None to three rows of each."""

    def process(self, key: Any, row: Any, state: Any) -> Iterator[Any]:
        for _ in range(row.v % 4):
            state.set(state.get(0) + 1)
            yield row.id, str(state.get())


class Clear(Made):
    """Begins anew after three rows."""

    def process(self, key: Any, row: Any, state: Any) -> Iterator[Any]:
        state.set(state.get(0) + 1)
        yield row.id, str(state.get())
        if state.get() == 3:
            state.clear()


Outputs = list[tuple[int, str]]


def counted(rows: Sequence[Row]) -> tuple[Outputs, Any]:
    return [(row.id, str(n)) for n, row in enumerate(rows, start=1)], len(rows)


def summed(rows: Sequence[Row]) -> tuple[Outputs, Any]:
    sums = [sum(row.v for row in rows[:n]) for n in range(len(rows) + 1)]
    made = [(row.id, f"{before} + {row.v}") for before, row in zip(sums, rows, strict=False)]
    return made, sums[-1]


def last(rows: Sequence[Row]) -> tuple[Outputs, Any]:
    kept = [None if r.v % 5 == 0 else r.v if r.v % 2 else (r.v, r.s) for r in rows]
    before = [False, *[True] * len(rows)], [None, *kept]
    made = [(r.id, f"{there} {value}") for r, there, value in zip(rows, *before, strict=False)]
    return made, kept[-1]


def appended(rows: Sequence[Row]) -> tuple[Outputs, Any]:
    values = [row.v for row in rows]
    made = [(row.id, str(values[max(0, n - 2) : n + 1])) for n, row in enumerate(rows)]
    return made, values


def several(rows: Sequence[Row]) -> tuple[Outputs, Any]:
    ids = [row.id for row in rows for _ in range(row.v % 4)]
    return [(number, str(n)) for n, number in enumerate(ids, start=1)], len(ids) or NONE


def cleared(rows: Sequence[Row]) -> tuple[Outputs, Any]:
    made = [(row.id, str(n % 3 + 1)) for n, row in enumerate(rows)]
    return made, len(rows) % 3 or NONE


OPERATORS: dict[type[Made], Callable[[Sequence[Row]], tuple[Outputs, Any]]] = {
    CountRows: counted,
    SumUp: summed,
    Last: last,
    Append: appended,
    Several: several,
    Clear: cleared,
}

# A stream ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Leg:
    """From one start of a query to its end; files that it leaves are for the next one."""

    files: tuple[tuple[Row, ...], ...]
    executors: int
    shards: int
    partitions: int
    """0: as the file is read."""
    cut: bool
    """Whether it is stopped after its first batch, in the midst of whatever is next."""


@dataclass(frozen=True)
class Journey:
    key: str
    legs: tuple[Leg, ...]

    def rows(self) -> list[Row]:
        return [row for leg in self.legs for file in leg.files for row in file]


def journey_of(chance: random.Random) -> Journey:
    count = chance.choice([2, 2, 3])
    number = 0
    legs = []
    for last_one in [*[False] * (count - 1), True]:
        files = []
        for _ in range(chance.choice([1, 2, 2, 3])):
            size = chance.choice([0, 1, 5, 40, 400])
            files.append(
                tuple(
                    Row(number + n, chance.choice(INTS), chance.choice(TEXTS), chance.randrange(99))
                    for n in range(size)
                )
            )
            number += size
        cut = not last_one and len(files) > 1 and chance.random() < 0.6
        shape = chance.randint(1, 3), chance.choice([1, 3, 16]), chance.randint(0, 3)
        legs.append(Leg(tuple(files), *shape, cut))
    return Journey(chance.choice(list(KEYS)), tuple(legs))


class Stream:
    """A journey's files, query and results in a folder."""

    def __init__(self, spark: SparkSession, cluster: Cluster, folder: Path) -> None:
        self._spark = spark
        self._cluster = cluster
        self._folder = folder
        self._files = 0

    def travel(self, operator: Made, key: Key, leg: Leg) -> None:
        for rows in leg.files:
            table = pa.Table.from_pylist([row._asdict() for row in rows], schema=SCHEMA)
            write_file(self._folder / "in", self._files, table)
            self._files += 1
        query = self._start(operator, key, leg)
        try:
            if leg.cut:
                await_that(lambda: _progressed(query), "a batch", PATIENCE_S)
            else:
                assert query.awaitTermination(PATIENCE_S), query.status
        finally:
            query.stop()

    def _start(self, operator: Made, key: Key, leg: Leg) -> StreamingQuery:
        source = self._spark.readStream.schema("id bigint, i bigint, s string, v bigint")
        rows = source.option("maxFilesPerTrigger", 1).parquet(str(self._folder / "in"))
        if leg.partitions:  # those of one key stay together, and in order
            columns = map(F.expr, [key] if isinstance(key, str) else map(str, key))
            rows = rows.repartition(leg.partitions, *columns)
        made = elastic(
            rows,
            operator,
            key=key,
            name="op",
            executors=leg.executors,
            shards=leg.shards,
            cluster=self._cluster,
        )
        writer = made.writeStream.format("parquet")
        if not leg.cut:
            writer = writer.trigger(availableNow=True)
        return writer.option("checkpointLocation", str(self._folder / "checkpoint")).start(
            str(self._folder / "out")
        )

    def outputs(self) -> Counter[tuple[int, str]]:
        out = self._spark.read.schema("id bigint, made string").parquet(str(self._folder / "out"))
        return Counter((row.id, row.made) for row in out.collect())

    def state(self) -> dict[tuple[Any, ...], Any]:
        place = self._folder / "checkpoint" / "elasticutor" / "op"
        frame = read_state(self._spark, place, operator="op", unpickle=True)
        keys = frame.columns[2:-1]
        found = [(tuple(row[key] for key in keys), row.value) for row in frame.collect()]
        assert len(found) == len(dict(found)), "a key is there twice"
        return {key: ast.literal_eval(value) for key, value in found}


def _progressed(query: StreamingQuery) -> bool:
    if not query.isActive:
        raise AssertionError(f"it has ended: {query.exception()}")
    return any(seen["numInputRows"] or seen["batchId"] for seen in query.recentProgress)


def folded(
    operator: type[Made], key_of: Callable[[Row], tuple[Any, ...]], rows: Sequence[Row]
) -> tuple[Counter[tuple[int, str]], dict[tuple[Any, ...], Any]]:
    """All rows at once, key by key."""
    by_key: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        by_key.setdefault(key_of(row), []).append(row)
    made: Counter[tuple[int, str]] = Counter()
    state = {}
    for key, own in by_key.items():
        outputs, after = OPERATORS[operator](own)
        made.update(outputs)
        if after is not NONE:
            state[key] = after
    return made, state


@pytest.fixture(scope="module")
def nodes(spark: SparkSession) -> Iterator[Cluster]:
    """Two nodes, of which nothing may be left at the end."""
    before = {process.pid for process in of_clusters()}
    with Cluster(spark, nodes=2, cores=2) as cluster:
        yield cluster
        processes = [process for process in of_clusters() if process.pid not in before]
    assert_gone(processes, cluster.id)
    remove_journals(cluster.id)


def require_fold(
    spark: SparkSession, nodes: Cluster, folder: Path, operator: type[Made], seed: int
) -> None:
    """Let a stream travel with restarts, and compare it with a fold over all of its rows."""
    journey = journey_of(random.Random(f"{operator.__name__} {seed}"))
    key, key_of = KEYS[journey.key]
    stream = Stream(spark, nodes, folder)
    for leg in journey.legs:
        stream.travel(operator(), key, leg)
    outputs, state = folded(operator, key_of, journey.rows())
    assert stream.outputs() == outputs
    assert stream.state() == state


def test_the_journeys_of_the_seed_have_every_key_and_shape() -> None:
    journeys = [journey_of(random.Random(f"{made.__name__} {SEED}")) for made in OPERATORS]
    legs = [leg for journey in journeys for leg in journey.legs]
    assert {journey.key for journey in journeys} == set(KEYS)
    assert {leg.executors for leg in legs} == {1, 2, 3}
    assert {leg.shards for leg in legs} == {1, 3, 16}
    assert {leg.partitions for leg in legs} == {0, 1, 2, 3}
    assert sum(leg.cut for leg in legs) >= 3


@pytest.mark.parametrize("operator", OPERATORS, ids=lambda operator: operator.__name__)
def test_a_stream_with_restarts_comes_to_what_all_rows_at_once_come_to(
    spark: SparkSession, nodes: Cluster, tmp_path: Path, operator: type[Made]
) -> None:
    require_fold(spark, nodes, tmp_path, operator, SEED)


@pytest.mark.matrix
@pytest.mark.timeout(600)
@pytest.mark.parametrize("operator", OPERATORS, ids=lambda operator: operator.__name__)
@settings(
    max_examples=3,
    derandomize=True,
    database=None,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],  # a smaller example is not worth the minutes
    suppress_health_check=list(HealthCheck),
)
@given(seed=st.integers(0, 2**32 - 1))
def test_any_stream_with_restarts_comes_to_what_all_rows_at_once_come_to(
    spark: SparkSession,
    nodes: Cluster,
    tmp_path_factory: pytest.TempPathFactory,
    operator: type[Made],
    seed: int,
) -> None:
    require_fold(spark, nodes, tmp_path_factory.mktemp("stream"), operator, seed)
