"""A simulated task: what its messages cost, labels between its tuples, and time that it loses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticutor.core.executor.batch import Batch, Part
from elasticutor.core.executor.tasks import TaskView
from elasticutor.core.protocol import instructions as do
from elasticutor.core.protocol.ids import Attempt, ChunkId, Epoch, NodeId, Peer, ShardId, TaskId
from elasticutor.lab.sim.clock import Clock
from elasticutor.lab.sim.model.costs import Cost
from elasticutor.lab.sim.model.task_server import ChunkJob, Interruption, TaskServer

TASK = TaskId(0)
COST = Cost(message_s=40e-6, wake_s=20e-6, delay_s=15e-6)
ROW_S = 1e-3


def chunk(number: int, shards: list[int]) -> do.Dispatch:
    batch = Batch(number, Peer("u"), content=None, rows=len(shards), size=100, arrived_at=0.0)
    part = Part(batch, np.arange(len(shards)), np.array(shards, np.int32), len(shards))
    return do.Dispatch(TASK, Attempt(1), Epoch(1), ChunkId(number), [part])


def begin(server: TaskServer, number: int, shards: list[int], arrival: float) -> ChunkJob:
    return server.begin(chunk(number, shards), len(shards), len(shards) * ROW_S, arrival)


# What messages cost -------------------------------------------------------------------------------


def test_a_chunk_that_finds_the_task_asleep_wakes_it_up_first() -> None:
    job = begin(TaskServer(0, COST), 0, [1, 2], arrival=1.0)
    assert job.end == pytest.approx(1.0 + 75e-6 + 2e-3)
    assert job.taking_s == pytest.approx(60e-6)  # the delay costs no CPU time


def test_a_chunk_that_waits_costs_a_message() -> None:
    server = TaskServer(0, COST)
    first, second = begin(server, 0, [1], arrival=1.0), begin(server, 1, [1], arrival=1.0001)
    assert second.end - first.end == pytest.approx(40e-6 + 1e-3)


def test_a_label_is_answered_after_the_tuple_in_hand_and_puts_the_next_off() -> None:
    server = TaskServer(0, COST)
    job = begin(server, 0, [1, 1, 2], arrival=0.0)
    hit = server.interrupt(ShardId(2), job.start + 0.0005)
    assert hit.at == pytest.approx(job.end - ROW_S)
    assert (hit.returned, hit.progressed) == (1, None)
    assert hit.at == pytest.approx(75e-6 + ROW_S + 40e-6)
    assert job.end == pytest.approx(hit.at + ROW_S)


def test_a_label_wakes_a_task_up() -> None:
    hit = TaskServer(0, COST).interrupt(ShardId(2), 1.0)
    assert hit.at == pytest.approx(1.0 + 75e-6)


# Time that it loses -------------------------------------------------------------------------------


def test_time_that_others_took_puts_the_next_chunk_off_once() -> None:
    server = TaskServer(0, COST)
    first = begin(server, 0, [1], arrival=0.0)
    server.lost_s = 300e-6
    second, third = begin(server, 1, [1], arrival=0.0), begin(server, 2, [1], arrival=0.0)
    assert second.end - first.end == pytest.approx(340e-6 + ROW_S)
    assert third.end - second.end == pytest.approx(40e-6 + ROW_S)


# In order, whatever interrupts --------------------------------------------------------------------


class Main:
    """What a main process believes of the task: it refuses an answer that cannot be."""

    def __init__(self, cost: Cost) -> None:
        self.clock = Clock()
        self.server = TaskServer(0, cost)
        self.view = TaskView(TASK, NodeId("n0"))
        self.held: set[int] = set()
        self.sent = self.done = self.returned = 0

    def send(self, shards: list[int]) -> None:
        shards = [shard for shard in shards if shard not in self.held]
        if shards:
            order = chunk(self.sent, shards)
            self.sent += len(shards)
            self.view.hand_over(order.chunk, order.parts, len(shards), self.clock.now)
            work_s = len(shards) * ROW_S
            self._expect(self.server.begin(order, len(shards), work_s, self.clock.now))

    def lose(self, seconds: float) -> None:
        self.server.lost_s += seconds

    def label(self, shard: int) -> None:
        if shard not in self.held:
            self.held.add(shard)
            hit = self.server.interrupt(ShardId(shard), self.clock.now)
            self.clock.at(hit.at, self._hit, (shard, hit))
            for job in hit.rescheduled:
                self._expect(job)

    def _expect(self, job: ChunkJob) -> None:
        self.clock.at(job.end, self._end, (job, job.end))

    def _end(self, message: tuple[ChunkJob, float]) -> None:
        job, end = message
        if job.end == end:
            assert self.view.flights[0].chunk == job.order.chunk
            self._answered(self.view.flights[0].rows)

    def _hit(self, message: tuple[int, Interruption]) -> None:
        shard, hit = message
        if hit.progressed is not None:
            job, rows = hit.progressed
            assert self.view.flights[0].chunk == job.order.chunk
            self._answered(rows)
        assert self.view.unanswered(ShardId(shard)) == hit.returned
        back = self.view.give_back(ShardId(shard))
        self.returned += sum(part.count for part in back)
        self.held.remove(shard)

    def _answered(self, rows: int) -> None:
        self.view.answered(rows, rows * ROW_S)
        self.done += rows


SHARDS = st.integers(0, 2)
CHUNKS = st.tuples(st.just("send"), st.lists(SHARDS, min_size=2, max_size=4))
LABELS = st.tuples(st.just("label"), SHARDS)
LOSSES = st.tuples(st.just("lose"), st.floats(0.0, 2e-3))
STEPS = st.tuples(st.sampled_from([0.0, 10e-6, 50e-6, 0.9e-3]), CHUNKS | LABELS | LOSSES)


@given(st.lists(STEPS, min_size=8, max_size=30), st.sampled_from([COST, Cost(0.0), Cost(40e-6)]))
def test_answers_fit_what_the_main_process_knows_whatever_interrupts(
    steps: list[tuple[float, tuple[str, Any]]], cost: Cost
) -> None:
    main = Main(cost)
    for wait_s, (what, of) in steps:
        main.clock.run(main.clock.now + wait_s)
        getattr(main, what)(of)
    main.clock.run(1.0)
    assert not main.held
    assert not main.view.flights
    assert main.done + main.returned == main.sent
