"""Whatever is lost, the run goes on from its last epoch, and every tuple counts once."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import cloudpickle
import msgspec
import pyarrow as pa
import pytest
from tests.runtime.live import (
    PATIENCE_S,
    Chain,
    by_key,
    chain_of,
    folded,
    pid_of,
    pid_of_node,
    running,
    wait_until,
)

from elasticutor.core.protocol.ids import Peer
from elasticutor.core.run.phases import RunError
from elasticutor.driver.process_cluster import ProcessCluster
from elasticutor.driver.run import Run
from elasticutor.errors import BadValueError, LastCoreError
from elasticutor.lab.chaos.doom import DieAt
from elasticutor.operator import Operator, OperatorError, State
from elasticutor.sinks import Sink, Writer
from elasticutor.sources import Generator, Source
from elasticutor.state.checkpoint import Checkpoint
from elasticutor.topology import Topology

pytestmark = pytest.mark.live

cloudpickle.register_pickle_by_value(sys.modules[__name__])

ROWS = 6_000
ROUND = Generator(rate=3_000, keys=60, payload=8, seed=5, rows=ROWS)
ENDLESS = replace(ROUND, rate=2_000, rows=None)
"""For what is done to a run in the middle: it cannot be over before that."""
EPOCH_S = 0.15
MAIN = Peer("chain.0")


def chained(
    operator: Operator | None = None,
    *,
    source: Source = ROUND,
    sink: Sink | None = None,
    executors: int = 2,
    cores: int = 2,
    shards: int = 8,
) -> Topology:
    return chain_of(source, operator, sink=sink, executors=executors, cores=cores, shards=shards)


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


def require_fold_of_what_came(run: Run) -> None:
    """The same of a run without an end, which is drained."""
    run.drain()
    require_fold(run, ENDLESS, run.collected("out").num_rows)


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


# One loss each


def task_of(cluster: ProcessCluster, run: Run) -> int:
    return next(iter(run.tasks("chain", 0).values())).pid


VICTIMS: dict[str, Callable[[ProcessCluster, Run], int]] = {
    "task": task_of,
    "main process": lambda cluster, run: pid_of(run, "chain.1"),
    "node": lambda cluster, run: pid_of_node(cluster, max(cluster.nodes)),
    "source": lambda cluster, run: pid_of(run, "rows.0"),
    "sink": lambda cluster, run: pid_of(run, "out"),
    "host of sources and sinks": lambda cluster, run: int(cluster._hosts[-1].pid or 0),
}


@pytest.mark.parametrize("victim", VICTIMS)
def test_a_run_goes_on_after_the_loss_of_any_process(
    nodes: ProcessCluster, tmp_path: Path, victim: str
) -> None:
    run = submitted(nodes, tmp_path, chained(source=ENDLESS))
    wait_until(lambda: committed(run) >= 2, "two epochs")
    kill(VICTIMS[victim](nodes, run))
    wait_until(lambda: run.events("recovered"), "another attempt")
    require_fold_of_what_came(run)
    run.stop()


# At named points of a move and of an epoch

# Whoever it is: what it is about to take in, and what it is about to send.
POINTS = {
    "task": [
        *("take SendLabel", "send LabelReached", "take FlushTask", "send TaskFlushed"),
        *("take ResetTask", "send TaskReset"),
    ],
    "main": [
        *("send SendLabel", "take StateArrived", "send FlushTask", "take TaskFlushed"),
        *("send ReportPrepared", "take CommitEpoch"),
    ],
    "node": [
        *("take OpenShard", "take CopyShard", "take Slice", "take SendRest", "send StateArrived"),
        *("take DropShard", "take PersistIncrement", "send IncrementPersisted"),
        *("take CommitStore", "take RollBackStore", "send StoreRolledBack"),
    ],
    "source": ["take EndEpoch", "send ParticipantPrepared", "take StartSource"],
    "sink": ["send ParticipantPrepared", "take CommitEpoch", "take BeginAttempt"],
}
AFTER_A_LOSS = (
    *("BeginAttempt", "ResetTask", "TaskReset"),
    *("RollBackStore", "StoreRolledBack", "StartSource"),
)
"""What is met only when another attempt begins."""


def doom(cluster: ProcessCluster, run: Run, who: str, point: str) -> None:
    """Let somebody die at a named point."""
    supervisor, hub = run._supervisor, cluster._hub
    verb, _, kind = point.partition(" ")
    order = DieAt(verb == "send", kind)
    match who:
        case "task":
            # A task that is only starting has no mailbox yet, and the order would be dropped.
            wait_until(lambda: all(t.pid for t in run.tasks("chain", 0).values()), "all tasks")
            task = max(run.tasks("chain", 0))
            hub.call(
                lambda: supervisor.ask(
                    supervisor.executors[0], msgspec.structs.replace(order, task=task)
                )
            )
        case "node":
            node = max(run.cores("chain", 0), key=lambda name: name != supervisor.home(MAIN))
            hub.call(lambda: hub.send_node(node, order))
        case _:
            named = {"main": MAIN, "source": supervisor.sources[0]}
            whom = named.get(who, supervisor.sinks[0])
            hub.call(lambda: supervisor.ask(whom, order))


def stir(run: Run) -> None:
    """Keep shards on the move, from node to node and back."""
    with contextlib.suppress(BadValueError, RunError, LastCoreError):  # a task is gone just now
        if len(run.cores("chain", 0)) < 2:
            run.set_cores("chain", 0, dict.fromkeys(run._hub.nodes, 1), wait=False)
        tasks = sorted(run.tasks("chain", 0))
        for shard in range(8):
            for step in range(len(tasks)):
                run.move("chain", 0, shard, tasks[(shard + step) % len(tasks)])


@pytest.mark.parametrize("who", POINTS)
def test_a_run_goes_on_when_a_process_dies_at_any_named_point(
    nodes: ProcessCluster, tmp_path: Path, who: str
) -> None:
    run = submitted(nodes, tmp_path, chained(source=ENDLESS, executors=1))
    for point in POINTS[who]:
        epochs, lost = committed(run), len(run.events("lost"))
        after_a_loss = point.partition(" ")[2] in AFTER_A_LOSS
        # A doomed task must be there, and another one to be lost first.
        least = 2 if after_a_loss and who == "task" else 1

        def settled() -> bool:
            pids = [task.pid for task in run.tasks("chain", 0).values()]
            up = len(pids) >= least and all(pid and running(pid) for pid in pids)  # noqa: B023
            return up and committed(run) > epochs and run.phase == "running"  # noqa: B023

        wait_until(settled, "an epoch with all tasks up")
        doom(nodes, run, who, point)
        if after_a_loss:
            kill(min(task.pid for task in run.tasks("chain", 0).values()))

        def died() -> bool:
            if run.phase == "running":
                stir(run)
            return len(run.events("lost")) > lost + after_a_loss  # noqa: B023

        wait_until(died, f"{who} to die when about to {point}", timeout_s=20.0)
    require_fold_of_what_came(run)
    run.stop()


# Started again


def test_a_run_that_was_stopped_goes_on_where_it_was(nodes: ProcessCluster, tmp_path: Path) -> None:
    first = submitted(nodes, tmp_path, chained(source=ENDLESS))
    wait_until(lambda: committed(first) >= 2, "two epochs")
    first.drain()
    seen = first.collected("out").num_rows
    first.stop()
    second = submitted(nodes, tmp_path, chained(source=ENDLESS))
    wait_until(lambda: committed(second) >= 2, "two epochs")
    second.drain()
    rows = seen + second.collected("out").num_rows
    outputs, state = folded(ENDLESS.table(0, 1, 0, rows))
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
    again = submitted(nodes, tmp_path, chained())
    again.wait(PATIENCE_S)
    # The last epoch may have become durable after all, when the run had failed.
    wait_until(
        lambda: run.collected("out").num_rows + again.collected("out").num_rows == ROWS,
        "all rows, each in one of the runs",
    )
    assert run.collected("out").num_rows < 3_001
    _, state = folded(ROUND.table(0, 1, 0, ROWS))
    assert again.state("chain") == state
    again.stop()


def test_an_epoch_that_becomes_durable_when_its_run_has_failed_counts(
    nodes: ProcessCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, failed, commit = threading.Event(), threading.Event(), Checkpoint.commit

    def slowly(self: Checkpoint, *args: Any) -> Any:
        begun.set()
        assert failed.wait(PATIENCE_S)
        return commit(self, *args)

    monkeypatch.setattr(Checkpoint, "commit", slowly)
    run = submitted(nodes, tmp_path, chained(source=ENDLESS), restarts=0)
    assert begun.wait(PATIENCE_S)
    kill(task_of(nodes, run))
    with pytest.raises(RunError, match="SIGKILL"):
        run.wait(PATIENCE_S)
    assert run.collected("out").num_rows == 0
    failed.set()
    wait_until(lambda: committed(run) == 1, "its first epoch")
    seen = run.collected("out").num_rows
    again = submitted(nodes, tmp_path, chained(source=ENDLESS))
    wait_until(lambda: committed(again) >= 1, "an epoch")
    again.drain()
    rows = seen + again.collected("out").num_rows
    assert again.state("chain") == folded(ENDLESS.table(0, 1, 0, rows))[1]
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
    run = nodes.submit(chained(source=ENDLESS), keep=True)
    kill(task_of(nodes, run))
    with pytest.raises(RunError, match="was lost"):
        run.wait(PATIENCE_S)


def test_when_all_nodes_are_lost_at_once_others_take_their_places(
    nodes: ProcessCluster, tmp_path: Path
) -> None:
    run = submitted(nodes, tmp_path, chained(source=ENDLESS))
    wait_until(lambda: committed(run) >= 2, "two epochs")
    before = set(nodes.nodes)
    kill(int(nodes._hosts[0].pid or 0))
    wait_until(lambda: run.events("recovered"), "another attempt")
    require_fold_of_what_came(run)
    wait_until(lambda: sorted(nodes.nodes) == ["n0g1", "n1g1"], "both nodes")
    assert not before & set(nodes.nodes)
    run.stop()


def test_a_run_that_is_cancelled_leaves_the_cluster_to_others(
    nodes: ProcessCluster, tmp_path: Path
) -> None:
    run = submitted(nodes, tmp_path, chained(source=ENDLESS, cores=1))
    wait_until(lambda: committed(run) >= 2, "two epochs")
    run.cancel()
    # At once: the checkpoint may not have been released yet, but it is about to be.
    again = submitted(nodes, tmp_path, chained(source=ENDLESS, cores=1))
    wait_until(lambda: committed(again) >= 3, "more epochs than were due when it was cancelled")
    again.stop()


class Reluctant(Writer):
    """Takes its time to publish."""

    def write(self, batch: pa.RecordBatch) -> None:
        time.sleep(0.02)


class ReluctantSink(Sink):
    def open(self, task: int, schema: pa.Schema) -> Writer:
        return Reluctant()


def test_to_stop_a_run_whose_sources_are_exhausted_waits_until_all_is_processed(
    nodes: ProcessCluster, tmp_path: Path
) -> None:
    some = Generator(rate=None, keys=60, payload=0, seed=5, rows=2_000)
    topology = chained(source=some, sink=ReluctantSink(), cores=1)
    run = nodes.submit(topology, checkpoint=tmp_path, epoch_interval=1_000.0)
    wait_until(lambda: run.phase in ("draining", "ended"), "the end of the sources")
    run.stop(PATIENCE_S)
    assert committed(run) == 1
    assert [event["kind"] for event in run.events()[-2:]] == ["run drained", "run ended"]
