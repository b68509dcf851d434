"""What messages cost simulated processes: awake or asleep, and what is taken from their CPUs."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticutor.core.measure.pacing import LEAST_GAP_S, MOST_GAP_S, PACE_S, USUAL_GAP_S
from elasticutor.core.protocol import instructions as do
from elasticutor.core.protocol.ids import Attempt, ChunkId, Epoch, TaskId
from elasticutor.errors import BadValueError
from elasticutor.lab.sim.clock import Clock
from elasticutor.lab.sim.model.costs import Cost, Costs
from elasticutor.lab.sim.model.cpus import Cpus
from elasticutor.lab.sim.model.machines import Machines
from elasticutor.lab.sim.model.processes import Process, SimulatedWorld, Turns
from elasticutor.lab.sim.model.task_server import TaskServer
from elasticutor.lab.sim.recorder import Recorder

COST = Cost(message_s=20e-6, wake_s=18e-6, delay_s=16e-6)
ODD = Cost(message_s=20.03e-6, wake_s=18.01e-6, delay_s=16.07e-6)
"""With these, no message comes at the very moment at which another is done with."""


class Taker(Process):
    """Notes when the answer to each message would leave."""

    def __init__(self, world: SimulatedWorld) -> None:
        super().__init__(world, 0)
        self.answered: list[float] = []

    def handle(self, message: Any) -> None:
        self.answered.append(self._free_at)


def world(cost: Cost) -> SimulatedWorld:
    costs = replace(Costs(), main=cost)
    clock = Clock()
    machines = Machines(nodes=1, cores=1, costs=costs)
    recorder = Recorder(0.0)
    return SimulatedWorld(
        machines, clock, recorder, work_s=lambda rows: 0.0, tuple_bytes=1, shard_bytes=0
    )


@given(st.lists(st.integers(0, 100), max_size=20))
def test_a_process_takes_messages_as_its_turns_say(gaps_us: list[int]) -> None:
    """Processes that handle messages, and those of which only the times count, are alike."""
    one, other = world(ODD), world(ODD)
    taker, turns = Taker(one), Turns(other.cpus[0], ODD)
    time_us, expected = 0, []
    for gap_us in gaps_us:
        time_us += gap_us
        one.clock.at(time_us * 1e-6, taker.take, None)
        expected.append(turns.take(time_us * 1e-6))
    one.clock.run(1.0)
    assert taker.answered == pytest.approx(expected)
    assert one.cpus[0].path_s == pytest.approx(other.cpus[0].path_s)


def test_only_the_first_of_some_messages_wakes_a_process_up() -> None:
    turns = Turns(Cpus(Clock(), 1, shared=False), COST)
    assert [round(turns.take(0.0) * 1e6) for _ in range(3)] == [54, 74, 94]
    assert round(turns.take(1.0) * 1e6) == 1_000_054


def test_costs_scale_with_the_machine() -> None:
    doubled, usual = Costs().times(2), Costs()
    assert doubled.main == Cost(*(2 * s for s in (20e-6, 18e-6, 16e-6)))
    assert doubled.sink.message_s == 2 * usual.sink.message_s
    assert usual.times(1) == usual


@pytest.mark.parametrize("name", ["message_s", "wake_s", "delay_s"])
@pytest.mark.parametrize("wrong", [-1e-6, math.inf, math.nan])
def test_costs_that_cannot_be_are_refused(name: str, wrong: float) -> None:
    with pytest.raises(BadValueError, match=name):
        replace(COST, **{name: wrong})


@pytest.mark.parametrize("factor", [-1.0, math.inf, math.nan])
def test_factors_that_cannot_be_are_refused(factor: float) -> None:
    with pytest.raises(BadValueError, match="factor of the costs"):
        Costs().times(factor)


# CPUs ---------------------------------------------------------------------------------------------


def busy_task(clock: Clock, cpus: Cpus) -> TaskServer:
    task = TaskServer(0, Cost(0.0))
    cpus.join(task)
    order = do.Dispatch(TaskId(0), Attempt(1), Epoch(1), ChunkId(0), [])
    task.begin(order, 1, 1.0, clock.now)
    return task


def test_messages_take_time_from_tasks_in_turn_where_all_shared_cpus_are_busy() -> None:
    clock = Clock()
    cpus = Cpus(clock, 2, shared=True)
    first = busy_task(clock, cpus)
    cpus.spend(1e-4)  # the other CPU is idle
    assert first.lost_s == 0
    second = busy_task(clock, cpus)
    for _ in range(2):
        cpus.spend(1e-4)
    assert (first.lost_s, second.lost_s) == (1e-4, 1e-4)
    cpus.leave(second)
    cpus.spend(1e-4)
    assert first.lost_s == 1e-4


def test_messages_take_no_time_from_tasks_where_processes_have_cpus_of_their_own() -> None:
    clock = Clock()
    cpus = Cpus(clock, 1, shared=False)
    task = busy_task(clock, cpus)
    cpus.spend(1e-4)
    assert (task.lost_s, cpus.path_s) == (0, 1e-4)


def test_sources_pace_themselves_by_how_idle_their_node_is() -> None:
    cpus = Cpus(Clock(), 2, shared=False)
    assert cpus.gap_s == USUAL_GAP_S
    for _ in range(10):
        cpus.work(0.18, 0.018)  # 99 % of two CPUs
        cpus.pace(PACE_S)
    assert cpus.gap_s == MOST_GAP_S
    for _ in range(20):
        cpus.work(0.1, 0.0)
        cpus.spend(0.02)
        cpus.pace(PACE_S)
    assert cpus.gap_s == LEAST_GAP_S
