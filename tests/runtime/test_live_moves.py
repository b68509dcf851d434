"""Shards move and cores come and go while tuples flow, and nothing is seen of it in the results."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import cloudpickle
import pyarrow as pa
import pytest
from tests.runtime.live import PATIENCE_S, Chain, by_key, folded, wait_until

from elasticutor.core.executor.config import ExecutorConfig
from elasticutor.core.protocol.ids import TaskId
from elasticutor.driver.process_cluster import ProcessCluster
from elasticutor.driver.run import Run
from elasticutor.errors import BadValueError, LastCoreError
from elasticutor.operator import Context, Operator, State
from elasticutor.sinks import CallableSink, MemorySink
from elasticutor.sources import Generator, HotKey
from elasticutor.topology import Topology

pytestmark = pytest.mark.live

cloudpickle.register_pickle_by_value(sys.modules[__name__])

SHARDS = 8
FLOWING = Generator(rate=2_000, keys=60, payload=0, seed=3)


def chained(generator: Generator) -> Topology:
    topology = Topology("chained")
    rows = topology.source("rows", generator)
    chain = topology.operator("chain", Chain(), rows, key="key", cores=1, shards=SHARDS)
    topology.sink("out", MemorySink(), chain)
    return topology


def require_fold(run: Run) -> None:
    """All that the source has sent until now is in outputs and state, once and in order."""
    run.drain(PATIENCE_S)
    sent = run.collected("out").num_rows
    wait_until(lambda: run.metrics().rows_in == sent, "the source to have sent what came out")
    outputs, state = folded(FLOWING.table(0, 1, 0, sent))
    assert by_key(run.collected("out")) == outputs
    assert run.state("chain") == state
    run.stop()


def tasks_on(run: Run, node: str) -> list[TaskId]:
    return sorted(t for t, seen in run.tasks("chain", 0).items() if seen.node == node)


def flow(run: Run) -> None:
    """Wait until some more tuples have come through."""
    before = run.collected("out").num_rows
    wait_until(lambda: run.collected("out").num_rows > before + 100, "tuples to flow")


def move_all_to(run: Run, task: TaskId) -> None:
    """Asks until all are there: as long as an old copy of a shard is about, it is refused."""

    def all_there() -> bool:
        last = {move["shard"]: move["destination"] for move in run.events("shard moved")}
        missing = [shard for shard in range(SHARDS) if last.get(shard) != task]
        for shard in missing:
            run.move("chain", 0, shard, task)
        return not missing

    wait_until(all_there, f"every shard to be at task {task}")


def test_shards_that_move_to_and_fro_lose_nothing_and_keep_the_order(
    cluster: ProcessCluster,
) -> None:
    run = cluster.submit(chained(FLOWING), balance_s=0, measure_s=0.05, keep=True)
    run.set_cores("chain", 0, {"n0": 2, "n1": 1})
    (one, another), (remote,) = tasks_on(run, "n0"), tasks_on(run, "n1")
    wait_until(lambda: run.collected("out").num_rows > 500, "some state to move")
    for task in (another, one, another, remote, another, remote, one):
        move_all_to(run, task)
    require_fold(run)
    moves = [move for move in run.events("shard moved") if move["cause"] == "asked"]
    local = [m for m in moves if {m["source"], m["destination"]} == {one, another}]
    across = [m for m in moves if remote in (m["source"], m["destination"])]
    assert len(local) >= 2 * SHARDS
    assert len(across) >= 4 * SHARDS
    assert all(m["executor"] == "chain.0" and m["sync_ms"] >= 0 for m in moves)
    assert all(not m["remote"] and m["bytes"] == m["migration_ms"] == 0 for m in local)
    assert all(m["remote"] and m["migration_ms"] > 0 for m in across)
    assert sum(m["bytes"] for m in across) > 0


def test_cores_come_and_go_from_node_to_node_while_tuples_flow(cluster: ProcessCluster) -> None:
    run = cluster.submit(chained(FLOWING), measure_s=0.05, keep=True)
    (home,) = run.cores("chain", 0)  # a plain number of cores begins there
    steps: list[tuple[int | dict[str, int], dict[str, int]]] = [
        ({"n0": 1}, {"n0": 1, "n1": 0}),
        (4, {"n0": 2, "n1": 2}),
        ({"n1": 2}, {"n0": 0, "n1": 2}),
        ({"n1": 1}, {"n0": 0, "n1": 1}),
        ({"n0": 1, "n1": 0}, {"n0": 1, "n1": 0}),
        (2, {"n0": 2, "n1": 0} if home == "n0" else {"n0": 0, "n1": 2}),
    ]
    for wanted, by_node in steps:
        run.set_cores("chain", 0, wanted)
        assert Counter(seen.node for seen in run.tasks("chain", 0).values()) == Counter(by_node)
        assert cluster.free_cores == {node: 2 - cores for node, cores in by_node.items()}
        flow(run)
    require_fold(run)
    granted, taken = run.events("core granted"), run.events("core taken")
    assert len(granted) >= 6
    assert len(taken) >= 4
    assert all(event["cause"] and event["seconds"] >= 0 for event in granted + taken)
    moves = run.events("shard moved")
    assert {move["cause"] for move in moves} >= {"core taken"}
    assert any(move["remote"] and move["bytes"] for move in moves)


def test_cores_that_cannot_be_had_are_refused_and_nothing_changes(cluster: ProcessCluster) -> None:
    run = cluster.submit(chained(FLOWING))
    cores, free = run.cores("chain", 0), cluster.free_cores
    refusals: list[tuple[Callable[[], object], type[Exception], str]] = [
        (lambda: run.set_cores("chain", 0, 5), BadValueError, "at most the 4"),
        (lambda: run.set_cores("chain", 0, {"n0": 3}), BadValueError, "cores on node 'n0'"),
        (lambda: run.set_cores("chain", 0, 0), LastCoreError, "at least one core"),
        (lambda: run.set_cores("chain", 0, {"n0": 0}), LastCoreError, "at least one core"),
        (lambda: run.set_cores("chain", 0, {"n0": -1}), BadValueError, "at least 0"),
        (lambda: run.set_cores("chain", 0, -1), BadValueError, "cores must"),
        (lambda: run.set_cores("chain", 0, {"n7": 1}), BadValueError, "'n0', 'n1'"),
        (lambda: run.set_cores("chain", 1, 1), BadValueError, "executor of 'chain'"),
        (lambda: run.set_cores("chian", 0, 1), BadValueError, "'chain'"),
        (lambda: run.move("chain", 1, 0, 0), BadValueError, "executor of 'chain'"),
        (lambda: run.move("chain", 0, SHARDS, 0), BadValueError, "shard"),
        (lambda: run.move("chain", 0, 0, 99), BadValueError, "task"),
        (lambda: run.collected("chain"), BadValueError, "'out'"),
        (lambda: cluster.submit(wide()), BadValueError, "cores of the topology's executors"),
    ]
    for ask, error, words in refusals:
        with pytest.raises(error, match=words):
            ask()
    assert run.cores("chain", 0) == cores
    assert cluster.free_cores == free
    run.stop()
    with pytest.raises(RuntimeError, match="ended"):
        run.set_cores("chain", 0, 2)


def wide() -> Topology:
    topology = Topology("wide")
    rows = topology.source("rows", FLOWING)
    topology.sink("out", MemorySink(), topology.operator("w", Chain(), rows, key="key", cores=4))
    return topology


class Busy(Operator):
    """Takes a while over every row, and says which task did it."""

    output = "key bigint, task int"

    def open(self, context: Context) -> None:
        self.task = context.task

    def process(self, key: Any, row: Any, state: State) -> Iterable[Any]:
        state.set(sum(range(2_000)))
        yield key, self.task


def test_a_hot_key_has_its_task_to_itself_in_the_end(cluster: ProcessCluster) -> None:
    hot = HotKey(share=0.8, seconds=1_000)
    topology = Topology("hot")
    rows = topology.source("rows", Generator(rate=3_000, keys=200, payload=0, hot=hot, seed=1))
    busy = topology.operator("busy", Busy(), rows, key="key", cores=2, shards=SHARDS)
    topology.sink("out", MemorySink(), busy)
    run = cluster.submit(topology, measure_s=0.05)

    def task_of_hot() -> int:
        out = run.collected("out").to_pydict()
        hottest = Counter(out["key"]).most_common(1)[0][0]
        return int(dict(zip(out["key"], out["task"], strict=True))[hottest])

    def alone() -> bool:
        seen = run.tasks("busy", 0)
        return run.collected("out").num_rows > 0 and seen[TaskId(task_of_hot())].shards == 1

    wait_until(alone, "the hot key's task to have no other shard")
    moves = run.events("shard moved")
    assert {move["cause"] for move in moves} == {"balance"}
    assert all(move["bytes"] == 0 and not move["remote"] for move in moves)
    run.stop()


class Gate:
    """A sink's function that does not return until somebody opens the other end of a pipe."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def __call__(self, batch: pa.RecordBatch) -> None:
        if Path(self.path).exists():
            with Path(self.path).open("rb") as pipe:
                pipe.read()


def test_a_sink_that_does_not_take_anything_stops_the_source_before_much_is_inside(
    cluster: ProcessCluster, tmp_path: Path
) -> None:
    credit, outputs, row = 128 * 1024, 64 * 1024, 100
    config = ExecutorConfig(
        min_credit_bytes=16 * 1024, max_credit_bytes=credit, output_bytes=outputs
    )
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    topology = Topology("slow")
    rows = topology.source("rows", Generator(keys=60, payload=row, seed=3))
    chain = topology.operator("chain", Chain(), rows, key="key", cores=1, shards=SHARDS)
    topology.sink("out", CallableSink(Gate(gate)), chain)
    run = cluster.submit(topology, measure_s=0.05, config=config, keep=True)
    wait_until(
        lambda: run.metrics().rows_in > 0 and run.metrics().rows_in_s == 0, "the source to wait"
    )
    inside = run.metrics()
    assert inside.rows_out == 0
    # Inside the executor, its outputs, and one batch of a source that had credit left.
    assert inside.rows_in * row < credit + outputs + 64 * 16 * 1024 + 1024 * 1024
    with gate.open("wb"):
        gate.unlink()
    wait_until(lambda: run.metrics().rows_out > 10 * inside.rows_in, "the source to go on")
    run.drain(PATIENCE_S)
    wait_until(lambda: run.metrics().rows_in == run.metrics().rows_out, "all rows to be out")
    run.stop()
