"""Whatever is lost, the run goes on from its last epoch, and every tuple counts once."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.runtime.live import (
    PATIENCE_S,
    Chain,
    by_key,
    folded,
    pid_of,
    pid_of_node,
    started,
    wait_until,
)

from elasticutor.core.ids import NodeId
from elasticutor.operator import Operator, OperatorError, State
from elasticutor.runtime import messages as say
from elasticutor.runtime.cluster import ProcessCluster
from elasticutor.runtime.run import Run
from elasticutor.runtime.supervisor import RunError
from elasticutor.sinks import MemorySink, Sink
from elasticutor.sources import Generator, Source
from elasticutor.topology import Topology

ROWS = 6_000
ROUND = Generator(rate=3_000, keys=60, payload=0, seed=5, rows=ROWS)
EPOCH_S = 0.15


@pytest.fixture
def nodes() -> Iterator[ProcessCluster]:
    """Two nodes of its own: some of them are killed."""
    with started(nodes=2, cores=3) as cluster:
        yield cluster


def chained(
    operator: Operator | None = None,
    *,
    source: Source = ROUND,
    sink: Sink | None = None,
    executors: int = 2,
    cores: int = 2,
    shards: int = 8,
) -> Topology:
    topology = Topology("chained")
    chain = topology.operator(
        "chain",
        operator or Chain(),
        topology.source("rows", source),
        key="key",
        cores=cores,
        executors=executors,
        shards=shards,
    )
    topology.sink("out", sink or MemorySink(), chain)
    return topology


def submitted(cluster: ProcessCluster, folder: Path, topology: Topology, **options: Any) -> Run:
    return cluster.submit(
        topology, checkpoint=folder, epoch_interval=EPOCH_S, keep=True, patience_s=20.0, **options
    )


def committed(run: Run) -> int:
    return len(run.events("epoch committed"))


def require_fold(run: Run, source: Generator = ROUND, rows: int = ROWS) -> None:
    """State and outputs are those of the tuples in order, each of them once."""
    outputs, state = folded(source.table(0, 1, 0, rows))
    assert by_key(run.collected("out")) == outputs
    assert run.state("chain") == state


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


# One loss each


def task_of(cluster: ProcessCluster, run: Run) -> int:
    return next(iter(run.tasks("chain", 0).values())).pid


VICTIMS: dict[str, Callable[[ProcessCluster, Run], int]] = {
    "task": task_of,
    "main process": lambda cluster, run: pid_of(run, "chain.1"),
    "node": lambda cluster, run: pid_of_node(cluster, "n1"),
    "source": lambda cluster, run: pid_of(run, "rows.0"),
    "sink": lambda cluster, run: pid_of(run, "out"),
    "host of sources and sinks": lambda cluster, run: int(cluster._hosts[-1].pid or 0),
}


@pytest.mark.parametrize("victim", VICTIMS)
def test_a_run_goes_on_after_the_loss_of_any_process(
    nodes: ProcessCluster, tmp_path: Path, victim: str
) -> None:
    run = submitted(nodes, tmp_path, chained())
    wait_until(lambda: committed(run) >= 2, "two epochs")
    kill(VICTIMS[victim](nodes, run))
    run.wait(PATIENCE_S)
    assert run.events("recovered")
    require_fold(run)
    run.stop()


# At named points of a move and of an epoch

POINTS: list[tuple[str, bool, str]] = [
    ("task", False, "SendLabel"),
    ("task", True, "LabelReached"),
    ("task", False, "FlushTask"),
    ("task", True, "TaskFlushed"),
    ("main", True, "SendLabel"),
    ("main", False, "StateArrived"),
    ("main", True, "FlushTask"),
    ("main", False, "TaskFlushed"),
    ("main", True, "ReportPrepared"),
    ("main", False, "CommitEpoch"),
    ("node", False, "OpenShard"),
    ("node", False, "CopyShard"),
    ("node", False, "Slice"),
    ("node", False, "SendRest"),
    ("node", True, "StateArrived"),
    ("node", False, "DropShard"),
    ("node", False, "PersistIncrement"),
    ("node", True, "IncrementPersisted"),
    ("node", False, "CommitStore"),
    ("source", False, "EndEpoch"),
    ("source", True, "ParticipantPrepared"),
    ("sink", True, "ParticipantPrepared"),
    ("sink", False, "CommitEpoch"),
]


def doom(cluster: ProcessCluster, run: Run, who: str, point: say.DieAt) -> None:
    """Let somebody die at a named point."""
    supervisor, hub = run._supervisor, cluster._hub
    match who:
        case "task":
            task = next(iter(run.tasks("chain", 0)))
            where = say.DieAt(point.sends, point.kind, task)
            hub.call(lambda: supervisor.ask(supervisor.executors[0], where))
        case "node":
            hub.call(lambda: hub.send_node(NodeId("n1"), point))
        case _:
            named = {"main": supervisor.executors[0], "source": supervisor.sources[0]}
            whom = named.get(who, supervisor._attendance.sinks[0])
            hub.call(lambda: supervisor.ask(whom, point))


def move_around(run: Run) -> None:
    """Move every shard of the first executor to some other task, on either node."""
    tasks = sorted(run.tasks("chain", 0))
    for shard in range(8):
        run.move("chain", 0, shard, tasks[shard % len(tasks)])
        run.move("chain", 0, shard, tasks[(shard + 1) % len(tasks)])


@pytest.mark.parametrize(("who", "sends", "kind"), POINTS, ids=lambda part: str(part))
def test_a_run_goes_on_when_somebody_dies_at_a_named_point(
    nodes: ProcessCluster, tmp_path: Path, who: str, sends: bool, kind: str
) -> None:
    topology = chained(executors=1, cores=2)
    run = submitted(nodes, tmp_path, topology)
    run.set_cores("chain", 0, {"n0": 1, "n1": 1})
    wait_until(lambda: committed(run) >= 2, "two epochs")
    doom(nodes, run, who, say.DieAt(sends, kind))

    def died() -> bool:
        if run.phase == "running" and not run.events("lost"):
            move_around(run)
        return bool(run.events("lost"))

    wait_until(died, f"{who} to die at {kind}", timeout_s=20.0)
    run.wait(PATIENCE_S)
    require_fold(run)
    run.stop()


# Started again


def test_a_run_that_was_stopped_goes_on_where_it_was(nodes: ProcessCluster, tmp_path: Path) -> None:
    endless = Generator(rate=3_000, keys=60, payload=0, seed=5)
    first = submitted(nodes, tmp_path, chained(source=endless))
    wait_until(lambda: committed(first) >= 2, "two epochs")
    first.drain()
    seen = first.collected("out").num_rows
    first.stop()
    second = submitted(nodes, tmp_path, chained(source=endless))
    wait_until(lambda: committed(second) >= 2, "two epochs")
    second.drain()
    rows = seen + second.collected("out").num_rows
    outputs, state = folded(endless.table(0, 1, 0, rows))
    assert second.state("chain") == state
    news = by_key(second.collected("out"))
    assert all(outputs[key][-len(rest) :] == rest for key, rest in news.items())
    second.stop()


@pytest.mark.parametrize(
    ("before", "after"),
    [((2, 8), (1, 8)), ((1, 8), (2, 8)), ((2, 8), (2, 3)), ((1, 4), (3, 16))],
    ids=lambda shape: "x".join(map(str, shape)),
)
def test_executors_and_shards_may_be_more_or_fewer_at_a_restart(
    nodes: ProcessCluster, tmp_path: Path, before: tuple[int, int], after: tuple[int, int]
) -> None:
    half = Generator(rate=None, keys=60, payload=0, seed=5, rows=2_000)
    whole = Generator(rate=None, keys=60, payload=0, seed=5, rows=4_000)
    first = chained(source=half, executors=before[0], shards=before[1], cores=1)
    run = submitted(nodes, tmp_path, first)
    run.wait(PATIENCE_S)
    run.stop()
    second = chained(source=whole, executors=after[0], shards=after[1], cores=1)
    again = submitted(nodes, tmp_path, second)
    again.wait(PATIENCE_S)
    _, state = folded(whole.table(0, 1, 0, 4_000))
    assert again.state("chain") == state
    assert again.collected("out").num_rows == 2_000
    again.stop()


class Picky(Chain):
    """Cannot cope with the tuple of the first second."""

    def process(self, key: Any, row: Any, state: State) -> Iterable[Any]:
        if row.time == 1_000_000:
            raise ValueError("a second")
        return super().process(key, row, state)


def test_an_operator_that_raises_ends_the_run_and_mended_code_goes_on(
    nodes: ProcessCluster, tmp_path: Path
) -> None:
    run = submitted(nodes, tmp_path, chained(Picky()))
    with pytest.raises(OperatorError, match="a second"):
        run.wait(PATIENCE_S)
    before = run.collected("out").num_rows
    again = submitted(nodes, tmp_path, chained())
    again.wait(PATIENCE_S)
    assert 0 < before < 3_001
    assert before + again.collected("out").num_rows == ROWS
    _, state = folded(ROUND.table(0, 1, 0, ROWS))
    assert again.state("chain") == state
    again.stop()


class Deadly(Chain):
    """Takes its process along."""

    def process(self, key: Any, row: Any, state: State) -> Iterable[Any]:
        if row.time == 1_000_000:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().process(key, row, state)


def test_a_tuple_that_kills_every_task_makes_the_run_give_up_and_say_so(
    nodes: ProcessCluster, tmp_path: Path
) -> None:
    run = submitted(nodes, tmp_path, chained(Deadly()), restarts=2)
    with pytest.raises(RunError) as raised:
        run.wait(PATIENCE_S)
    for word in ("task of chain.", "3 times", "SIGKILL", "without an epoch committed"):
        assert word in str(raised.value)
    again = submitted(nodes, tmp_path, chained())
    again.wait(PATIENCE_S)
    _, state = folded(ROUND.table(0, 1, 0, ROWS))
    assert again.state("chain") == state
    again.stop()


def test_without_a_checkpoint_a_loss_ends_the_run(nodes: ProcessCluster) -> None:
    run = nodes.submit(chained(), keep=True)
    kill(task_of(nodes, run))
    with pytest.raises(RunError, match="was lost"):
        run.wait(PATIENCE_S)
