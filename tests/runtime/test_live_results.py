"""Live runs on real processes make what a sequential fold of their input makes."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import cloudpickle
import pyarrow as pa
import pytest
from tests.runtime.live import (
    PATIENCE_S,
    Chain,
    ChainBatches,
    Link,
    by_key,
    folded,
    link,
    processes_of,
    wait_until,
    wait_until_gone,
)

from elasticutor.core.paradigm import ParadigmName
from elasticutor.driver.metrics import RunMetrics
from elasticutor.driver.process_cluster import ProcessCluster
from elasticutor.operator import BatchState, Operator, State
from elasticutor.sinks import MemorySink
from elasticutor.sources import Generator, IterableSource
from elasticutor.topology import Topology

pytestmark = pytest.mark.live

cloudpickle.register_pickle_by_value(sys.modules[__name__])

ROWS = 6_000
GENERATOR = Generator(keys=50, rows=ROWS, payload=8, seed=11)


class Tens(Operator):
    """How many rows every ten keys have had, and the sum of their times: order does not matter."""

    output = "ten bigint"

    def process(self, key: Any, row: Any, state: State) -> None:
        count, total = state.get((0, 0))
        state.set((count + 1, total + row.time))


class AddTen(Chain):
    """A chain whose outputs have one more column to be a key."""

    output = "key bigint, time bigint, count bigint, chain bigint, ten bigint"

    def process(self, key: Any, row: Any, state: State) -> Iterable[Any]:
        for made in super().process(key, row, state):
            yield *made, key // 10


@dataclass(frozen=True)
class Outcome:
    """What is left of a run that was looked at and stopped."""

    collected: dict[str, pa.Table]
    state: dict[str, dict[Any, Any]]
    metrics: RunMetrics


@pytest.fixture(scope="module")
def branching(shared_cluster: ProcessCluster) -> Outcome:
    """Of a run whose source feeds an operator and a sink, and that operator two and a sink."""
    topology = Topology("branching")
    rows = topology.source("rows", GENERATOR)
    first = topology.operator("first", AddTen(), rows, key="key", executors=1, cores=2, shards=8)
    again = topology.operator("again", ChainBatches(), first, key="key", cores=1, shards=8)
    tens = topology.operator("tens", Tens(), first, key="ten", cores=1, shards=4)
    topology.sink("raw", MemorySink(), rows)
    topology.sink("firsts", MemorySink(), first)
    topology.sink("repeats", MemorySink(), again)
    topology.sink("nothing", MemorySink(), tens)
    with shared_cluster.submit(topology, keep=True) as run:
        run.wait(PATIENCE_S)
        return Outcome(
            {sink: run.collected(sink) for sink in ("raw", "firsts", "repeats", "nothing")},
            {operator: run.state(operator) for operator in ("first", "again", "tens")},
            run.metrics(),
        )


def test_an_operator_makes_what_a_sequential_fold_makes_in_the_order_of_each_key(
    branching: Outcome,
) -> None:
    outputs, state = folded(GENERATOR.table(0, 1, 0, ROWS))
    assert by_key(branching.collected["firsts"].drop_columns("ten")) == outputs
    assert branching.state["first"] == state


def test_a_batch_operator_behind_an_operator_keeps_the_order_of_each_key(
    branching: Outcome,
) -> None:
    outputs, state = folded(GENERATOR.table(0, 1, 0, ROWS))
    assert by_key(branching.collected["repeats"]) == outputs
    assert branching.state["again"] == state


def test_everyone_who_takes_a_stream_gets_all_of_it(branching: Outcome) -> None:
    expected: dict[int, tuple[int, int]] = {}
    table = GENERATOR.table(0, 1, 0, ROWS)
    for key, time in zip(table["key"].to_pylist(), table["time"].to_pylist(), strict=True):
        count, total = expected.get(key // 10, (0, 0))
        expected[key // 10] = count + 1, total + time
    assert branching.state["tens"] == expected
    assert branching.collected["firsts"].num_rows == ROWS


def test_a_sink_straight_at_a_source_gets_its_rows_as_they_were_sent(branching: Outcome) -> None:
    assert branching.collected["raw"].to_batches() != []
    assert branching.collected["raw"].combine_chunks() == pa.Table.from_batches(
        [GENERATOR.table(0, 1, 0, ROWS)]
    )


def test_an_operator_without_outputs_gives_its_sink_nothing(branching: Outcome) -> None:
    assert branching.collected["nothing"].num_rows == 0


def test_what_sinks_took_is_counted_and_so_is_its_age(branching: Outcome) -> None:
    metrics = branching.metrics
    assert metrics.rows_out == 3 * ROWS
    assert metrics.latency.count == 3 * ROWS
    assert metrics.dropped == 0


class ChainByOrigin(Operator):
    """A chain for each origin of a key's rows: what is in order is what one upstream sent."""

    output = "key string, origin int, count bigint, chain bigint"

    def process(self, key: Any, row: Any, state: State) -> Iterable[Any]:
        chains = state.get({})
        chains[row.origin] = link(chains.get(row.origin, (0, 0)), row.value)
        yield key, row.origin, *chains[row.origin]


def test_sources_that_come_together_keep_their_own_order_in_each_key(
    cluster: ProcessCluster,
) -> None:
    schema = "key string, origin int, value bigint"
    rows = [
        [(f"k{n * n % 17}", origin, n) for n in range(origin * 500, 2_000)] for origin in range(3)
    ]
    topology = Topology("fan-in")
    streams = [
        topology.source(f"from{origin}", IterableSource(some, schema, batch_rows=100))
        for origin, some in enumerate(rows)
    ]
    chains = topology.operator("chains", ChainByOrigin(), streams, key="key", executors=2, shards=8)
    topology.sink("out", MemorySink(), chains)
    with cluster.submit(topology, keep=True) as run:
        run.wait(PATIENCE_S)
        expected: dict[str, dict[int, Link]] = {}
        for key, origin, value in (row for some in rows for row in some):
            chain = expected.setdefault(key, {})
            chain[origin] = link(chain.get(origin, (0, 0)), value)
        assert run.state("chains") == expected
        assert run.collected("out").num_rows == sum(map(len, rows))


class Visits(Operator):
    """Counts by user and page."""

    output = "user string, page int, visits bigint"

    def process(self, key: Any, row: Any, state: State) -> Iterable[Any]:
        state.set(state.get(0) + row.clicks)
        yield *key, state.get()


class Clicks(Operator):
    """Sums by user, a batch at a time."""

    output = pa.schema({"user": pa.string(), "clicks": pa.int64()})

    def process_batch(self, batch: Any, state: BatchState) -> Any:
        users, clicks = batch["user"].to_pylist(), batch["clicks"].to_pylist()
        for user, more in zip(users, clicks, strict=True):
            state[user] = state.get(user, 0) + more
        sums = [state[user] for user in users]
        return pa.RecordBatch.from_arrays([pa.array(users), pa.array(sums)], schema=self.output)


def test_string_keys_and_keys_of_several_columns_have_states_of_their_own(
    cluster: ProcessCluster,
) -> None:
    users = ["ann", "bob", "", "Ann", "ännchen"]
    rows = [(users[n % 5], n % 7, n) for n in range(3_000)]
    topology = Topology("clicks")
    clicks = topology.source("clicks", IterableSource(rows, "user string, page int, clicks bigint"))
    visits = topology.operator("visits", Visits(), clicks, key=["user", "page"], cores=2, shards=8)
    sums = topology.operator("sums", Clicks(), clicks, key="user", cores=1, shards=8)
    topology.sink("visited", MemorySink(), visits)
    topology.sink("clicked", MemorySink(), sums)
    with cluster.submit(topology, keep=True) as run:
        run.wait(PATIENCE_S)
        pages: dict[tuple[str, int], int] = {}
        totals: dict[str, int] = {}
        for user, page, more in rows:
            pages[user, page] = pages.get((user, page), 0) + more
            totals[user] = totals.get(user, 0) + more
        assert run.state("visits") == pages
        assert run.state("sums") == totals
        last = {(u, p): n for u, p, n in zip(*columns(run.collected("visited")), strict=True)}
        assert last == pages
        assert dict(zip(*columns(run.collected("clicked")), strict=True)) == totals


class Names(Operator):
    """Says which columns its rows have."""

    output = "key bigint, names string, value bigint"
    columns = ("value",)

    def process(self, key: Any, row: Any, state: State) -> Iterable[Any]:
        yield key, " ".join(row._fields), row.value


class NamesOfBatches(Operator):
    """The same of its batches."""

    output = pa.schema({"key": pa.int64(), "names": pa.string()})
    columns = ()

    def process_batch(self, batch: Any, state: BatchState) -> Any:
        names = pa.array([" ".join(batch.schema.names)] * batch.num_rows, pa.string())
        return pa.RecordBatch.from_arrays([batch["key"], names], schema=self.output)


@pytest.mark.parametrize("paradigm", ["elastic", "rc"])
def test_an_operator_is_sent_the_columns_that_it_reads_and_its_key_and_a_sink_all(
    cluster: ProcessCluster, paradigm: ParadigmName
) -> None:
    rows = [("no", n, datetime(2020, 1, 1), n % 7) for n in range(1_000)]
    schema = "unread string, value bigint, at timestamp_ntz, key bigint"
    topology = Topology("names")
    many, few = (  # one goes in batches, one as rows
        topology.source(name, IterableSource(rows, schema, batch_rows=size))
        for name, size in (("many", 500), ("few", 10))
    )
    streams = [many, few]
    single = topology.operator("single", Names(), streams, key="key", shards=8)
    if paradigm == "elastic":  # otherwise sources alone feed operators
        streams, single = [single], topology.operator("again", Names(), single, key="key", shards=8)
    batches = topology.operator("batches", NamesOfBatches(), streams, key="key", shards=8)
    for name, stream in (("out", single), ("of-batches", batches), ("raw", many)):
        topology.sink(name, MemorySink(), stream)
    with cluster.submit(topology, paradigm=paradigm) as run:
        run.wait(PATIENCE_S)
        keys, names, values = columns(run.collected("out"))
        assert sorted(zip(values, keys, strict=True)) == sorted(
            (n, n % 7) for n in [*range(1_000)] * 2
        )
        assert set(names) == {"key value" if paradigm == "elastic" else "value key"}
        assert set(columns(run.collected("of-batches"))[1]) == {"key"}
        assert run.collected("of-batches").num_rows == 2 * run.collected("raw").num_rows == 2_000
        assert run.collected("raw").schema.equals(topology.plan().sinks[-1].schema)
        assert run.metrics().dropped == 0


def columns(table: pa.Table) -> list[list[Any]]:
    return [column.to_pylist() for column in table.columns]


def test_a_run_ends_by_itself_with_all_of_its_processes_while_another_goes_on(
    cluster: ProcessCluster,
) -> None:
    """One of two source tasks by a schedule and without end, one as fast as it goes."""
    paced = Generator(rate=4_000, keys=20, payload=0, seed=5)
    quick = Generator(keys=20, rows=3_000, payload=0, seed=6)
    endless = cluster.submit(chained(paced, tasks=2), keep=True)
    before = processes_of(cluster)
    run = cluster.submit(chained(quick))
    own = processes_of(cluster) - before
    assert cluster.free_cores == {"n0": 0, "n1": 0} or run.phase == "ended"
    run.wait(PATIENCE_S)
    assert run.phase == "ended"
    wait_until_gone(own)
    assert by_key(run.collected("out")) == folded(quick.table(0, 1, 0, 3_000))[0]

    assert endless.phase == "running"
    assert sorted(cluster.free_cores.values()) == [0, 2]
    endless.drain(PATIENCE_S)
    times = columns(endless.collected("out"))[1]
    wait_until(lambda: endless.metrics().rows_in == len(times), "all rows to be out")
    endless.stop()
    per_task = [[time for time in times if time // 250 % 2 == task] for task in range(2)]
    assert sorted(times) == sorted(
        time
        for task, some in enumerate(per_task)
        for time in paced.table(task, 2, 0, len(some))["time"].to_pylist()
    )


def chained(generator: Generator, tasks: int = 1) -> Topology:
    topology = Topology("chained")
    rows = topology.source("rows", generator, tasks=tasks)
    chain = topology.operator("chain", Chain(), rows, key="key", cores=2, shards=8)
    topology.sink("out", MemorySink(), chain)
    return topology


def test_a_source_without_rows_makes_a_run_without_outputs(cluster: ProcessCluster) -> None:
    topology = Topology("empty")
    rows = topology.source("rows", IterableSource([], "key bigint, time bigint"))
    topology.sink("out", MemorySink(), topology.operator("chain", Chain(), rows, key="key"))
    with cluster.submit(topology, keep=True) as run:
        run.wait(PATIENCE_S)
        assert run.collected("out").num_rows == 0
        assert run.state("chain") == {}


def test_state_is_not_read_before_the_run_is_drained(cluster: ProcessCluster) -> None:
    run = cluster.submit(chained(Generator(rate=100, payload=0)), keep=True)
    with pytest.raises(ValueError, match="be drained; got 'running'"):
        run.state("chain")
    run.drain(PATIENCE_S)
    rows = run.collected("out").num_rows
    assert sum(count for count, _ in run.state("chain").values()) == rows
