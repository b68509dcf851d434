from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import Any

import cloudpickle
import numpy as np
import psutil
import pyarrow as pa
import pytest

from elasticutor.core.run.phases import RunError
from elasticutor.driver.process_cluster import ProcessCluster
from elasticutor.lab.bench.moves.consistency import ChainLinks, ConsistencyBench, violations
from elasticutor.operator import Operator, State
from elasticutor.sinks import NoSink
from elasticutor.sources import Generator
from elasticutor.topology import Topology

pytestmark = pytest.mark.live

KEYS = np.array([1, 2, 1, 1, 2, 3])
TIMES = np.array([0, 10, 20, 30, 40, 50])
EXPECTED = {0: ChainLinks.of_source(KEYS, TIMES)}
STATE = {key: {0: end} for key, end in EXPECTED[0].ends().items()}


def outputs(*places: int) -> pa.Table:
    """The right outputs at these places, of the origin's links as they are sorted."""
    links = EXPECTED[0]
    chosen = np.array(places)
    return pa.table(
        {
            "key": links.keys[chosen],
            "origin": np.zeros(len(chosen), np.int32),
            "sequence": links.sequences[chosen],
            "chain": links.chains[chosen],
        }
    )


def test_a_run_that_did_what_it_should_has_no_violations() -> None:
    assert violations(EXPECTED, STATE, outputs(0, 1, 2, 3, 4, 5)) == []
    assert violations(EXPECTED, STATE, outputs(5, 3, 0, 4, 1, 2)) == []  # keys need no order


@pytest.mark.parametrize(
    ("came", "key"),
    [
        pytest.param((0, 2, 3, 4, 5), 1, id="lost"),
        pytest.param((0, 1, 2, 3, 4, 4, 5), 2, id="twice"),
        pytest.param((0, 2, 1, 3, 4, 5), 1, id="swapped"),
        pytest.param((0, 1, 1, 3, 4, 5), 1, id="one for another"),
    ],
)
def test_an_output_that_is_wrong_is_found(came: tuple[int, ...], key: int) -> None:
    (found,) = violations(EXPECTED, STATE, outputs(*came))
    assert found.startswith(f"outputs: key {key} of source 0")


def test_a_state_that_is_wrong_missing_or_of_nobody_is_found() -> None:
    right = outputs(0, 1, 2, 3, 4, 5)
    swapped = ChainLinks.of_source(KEYS, TIMES[[0, 1, 3, 2, 4, 5]]).ends()
    assert len(violations(EXPECTED, {**STATE, 1: {0: swapped[1]}}, right)) == 1
    assert len(violations(EXPECTED, {k: STATE[k] for k in (1, 2)}, right)) == 1
    assert len(violations(EXPECTED, {**STATE, 9: {0: (1, 1)}}, right)) == 1


def test_nothing_is_lost_doubled_or_swapped_while_shards_move_and_cores_change() -> None:
    before = _children()
    seen: dict[int, psutil.Process] = {}

    def look(elapsed: float) -> None:
        if not seen or elapsed > 2.5:
            seen.update({child.pid: child for child in _children() - before})

    with ProcessCluster(nodes=2, cores=4, schedule_s=0) as cluster:
        for seconds in (3.0, 6.0, 12.0):  # a busy machine needs longer for as many changes
            bench = ConsistencyBench(seconds=seconds, rate=6_000, keys=1_000, omega=120)
            result = bench.on(cluster, look)
            assert result.first_violations == ()
            assert result.violations == 0
            assert result.rows >= 6_000 * seconds
            if result.moves > 20 and result.remote_moves > 5 and result.core_changes > 5:
                break
    assert result.moves > 20
    assert result.remote_moves > 5
    assert result.core_changes > 5
    assert len(seen) > 8  # two nodes, two main processes, tasks, three sources and a sink
    assert psutil.wait_procs(list(seen.values()), timeout=10)[1] == []


class Leaves(Operator):
    """Ends its process as if it had been told to."""

    output = "key bigint"

    def process(self, key: Any, row: Any, state: State) -> Iterator[tuple[int]]:
        os._exit(0)


def test_a_task_that_ends_without_being_told_to_is_lost_even_if_it_says_that_all_is_well() -> None:
    before = _children()
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    try:
        topology = Topology("leaving")
        stream = topology.source("gen", Generator(rate=100, keys=10))
        made = topology.operator("leaves", Leaves(), stream, key="key")
        topology.sink("out", NoSink(), made)
        with ProcessCluster(nodes=1, cores=1, schedule_s=0) as cluster:
            children = _children()
            run = cluster.submit(topology)
            children |= _children()
            with pytest.raises(RunError, match="task 0 was lost"):
                run.wait(20)
    finally:
        cloudpickle.unregister_pickle_by_value(sys.modules[__name__])
    assert psutil.wait_procs(children - before, timeout=10)[1] == []


def _children() -> set[psutil.Process]:
    """All processes below this one but Python's own, which outlives every cluster."""
    children = psutil.Process().children(recursive=True)
    return {child for child in children if not _is_resource_tracker(child)}


def _is_resource_tracker(process: psutil.Process) -> bool:
    try:
        return "resource_tracker" in " ".join(process.cmdline())
    except psutil.Error:
        return False
