"""Storage that fails ends the run by the failure's name, and what is committed stays."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.runtime.live import PATIENCE_S, Chain, folded, started, wait_until
from tests.runtime.test_recovery import ENDLESS, chained, committed, submitted

from elasticutor.driver.process_cluster import ProcessCluster
from elasticutor.driver.run import Run
from elasticutor.errors import BadValueError, StateFullError
from elasticutor.operator import Operator, State
from elasticutor.sinks import NoSink
from elasticutor.state.checkpoint import (
    CheckpointError,
    DamagedError,
    InUseError,
    MismatchError,
    StorageError,
)
from elasticutor.topology import Topology

pytestmark = pytest.mark.live


def goes_on_to_the_fold(cluster: ProcessCluster, folder: Path) -> None:
    """What was committed before is what a further run goes on from."""
    run = submitted(cluster, folder, chained(source=ENDLESS))
    epochs = committed(run)
    wait_until(lambda: committed(run) > epochs, "an epoch")
    run.drain()
    found = run.state("chain")
    _, state = folded(ENDLESS.table(0, 1, 0, sum(count for count, _ in found.values())))
    assert found == state
    run.stop()


class Padded(Chain):
    """Has states that are too large to travel in a manifest."""

    def process(self, key: Any, row: Any, state: State) -> Any:
        count, chain = state.get((0, 0))[:2]
        state.set((count, chain))
        yield from super().process(key, row, state)
        state.set((*state.get(), os.urandom(20_000)))


def test_a_checkpoint_that_cannot_be_written_any_more_ends_the_run_and_keeps_what_is_committed(
    nodes: ProcessCluster, tmp_path: Path
) -> None:
    folder = tmp_path / "kept"
    run = submitted(nodes, folder, chained(Padded(), source=ENDLESS))
    wait_until(lambda: committed(run) >= 2, "two epochs")
    state, aside = folder / "state", tmp_path / "aside"
    state.rename(aside)
    state.write_text("in the way")
    with pytest.raises(StorageError, match="state/chain"):
        run.wait(PATIENCE_S)
    state.unlink()
    aside.rename(state)
    run = submitted(nodes, folder, chained(Padded(), source=ENDLESS))
    epochs = committed(run)
    wait_until(lambda: committed(run) > epochs, "an epoch")
    run.drain()
    found = {key: state[:2] for key, state in run.state("chain").items()}
    _, expected = folded(ENDLESS.table(0, 1, 0, sum(count for count, _ in found.values())))
    assert found == expected
    run.stop()


class Hoard(Chain):
    """Grows fast."""

    def process(self, key: Any, row: Any, state: State) -> Any:
        yield from super().process(key, row, state)
        state.set((*state.get(), os.urandom(100_000)))


def test_shared_memory_that_is_full_ends_the_run_and_keeps_what_is_committed(
    nodes: ProcessCluster, tmp_path: Path
) -> None:
    with started(nodes=1, cores=2, map_bytes=2 * 1024 * 1024) as small:
        drained(small, tmp_path, executors=1)
        run = submitted(small, tmp_path, chained(Hoard(), source=ENDLESS, executors=1))
        with pytest.raises(StateFullError, match=r"chain\.0.*Hint: "):
            run.wait(PATIENCE_S)
    goes_on_to_the_fold(nodes, tmp_path)


def drained(cluster: ProcessCluster, folder: Path, executors: int = 2) -> Run:
    run = submitted(
        cluster, folder, chained(source=replace(ENDLESS, rows=1_000), executors=executors)
    )
    run.wait(PATIENCE_S)
    run.stop()
    return run


def test_a_flipped_byte_is_named_with_the_epoch_to_go_back_to(
    nodes: ProcessCluster, tmp_path: Path
) -> None:
    drained(nodes, tmp_path)
    manifest = max((tmp_path / "epochs").iterdir())
    content = bytearray(manifest.read_bytes())
    content[len(content) // 2] ^= 1
    manifest.write_bytes(content)
    with pytest.raises(DamagedError, match=manifest.name):
        submitted(nodes, tmp_path, chained())


def test_a_checkpoint_in_use_is_refused(nodes: ProcessCluster, tmp_path: Path) -> None:
    run = submitted(nodes, tmp_path, chained(executors=1, cores=1))
    for spelling in (tmp_path, f"file://{tmp_path}/", tmp_path / ".." / tmp_path.name):
        with pytest.raises(InUseError, match=run.id):
            nodes.submit(chained(executors=1, cores=1), checkpoint=str(spelling))
    run.cancel()


def other(change: str) -> Topology:
    topology = Topology("other")
    rows = topology.source("rows", ENDLESS, tasks=2 if change == "tasks" else 1)
    name = "another" if change == "operator" else "chain"
    keys = ["key", "time"] if change == "key" else "key"
    chain = topology.operator(name, Chain(), rows, key=keys)
    topology.sink("out", NoSink(), chain)
    return topology


@pytest.mark.parametrize(
    ("change", "words"), [("operator", "chain"), ("key", "key"), ("tasks", "rows")]
)
def test_another_topology_is_refused(
    nodes: ProcessCluster, tmp_path: Path, change: str, words: str
) -> None:
    drained(nodes, tmp_path)
    with pytest.raises(MismatchError, match=words):
        submitted(nodes, tmp_path, other(change))


class Typed(Operator):
    """Declares its state, and keeps something else."""

    output = "key bigint"
    state_schema = "count bigint"

    def process(self, key: Any, row: Any, state: State) -> Any:
        state.set("not a number")
        yield (key,)


def test_state_that_does_not_fit_its_schema_is_told_with_operator_and_key(
    nodes: ProcessCluster, tmp_path: Path
) -> None:
    run = submitted(nodes, tmp_path, chained(Typed()))
    with pytest.raises(BadValueError, match=r"chain.*not a number"):
        run.wait(PATIENCE_S)


@pytest.mark.parametrize("uri", ["nosuch://place", ""])
def test_a_location_that_cannot_be_is_refused_before_anything_starts(
    nodes: ProcessCluster, uri: str
) -> None:
    with pytest.raises((BadValueError, CheckpointError)):
        nodes.submit(chained(), checkpoint=uri)
    assert [run for run in nodes.runs if run.phase == "starting"] == []


def test_the_resource_centric_paradigm_has_no_checkpoints(
    nodes: ProcessCluster, tmp_path: Path
) -> None:
    with pytest.raises(BadValueError, match="'rc' must have no checkpoint"):
        nodes.submit(chained(), checkpoint=tmp_path, paradigm="rc")
