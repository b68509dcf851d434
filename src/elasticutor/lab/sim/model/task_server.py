"""A simulated task on its core: chunks one after the other, interrupted between two tuples."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

import numpy as np

from elasticutor.core.protocol import instructions as do
from elasticutor.core.protocol.ids import ShardId
from elasticutor.core.protocol.task_inbox import Work
from elasticutor.lab.sim.model.costs import Cost

LOOK_S = 200e-6
"""How long a task works before it looks for a label (`elasticutor.process.operator.runner`)."""


class ChunkJob:
    """A chunk at a task."""

    __slots__ = ("_work", "arrival", "end", "order", "row_s", "rows", "start", "taking_s")

    def __init__(
        self, order: do.Dispatch, rows: int, work_s: float, taking_s: float, arrival: float
    ) -> None:
        self.order = order
        self.rows = rows
        self.row_s = work_s / rows
        self.taking_s = taking_s
        """What comes before the work: to read the chunk and to answer it, and what others took."""
        self.arrival = arrival
        self.start = self.end = arrival
        """When the work on what is left of it begins, and when that is done."""
        self._work: Work | None = None

    @property
    def work(self) -> Work:
        """Which of its tuples are left."""
        if self._work is None:
            shards = np.concatenate([part.shards for part in self.order.parts])
            self._work = Work(self.order.chunk, shards)
        return self._work

    @property
    def unanswered_s(self) -> float:
        """The work of all its tuples that are neither reported nor returned."""
        if self._work is None:
            return self.rows * self.row_s
        return (self._work.unreported + len(self._work.left)) * self.row_s


@dataclass(frozen=True, slots=True)
class Interruption:
    """What comes of a label."""

    at: float
    """When the tuples in hand are done, and the label is answered."""
    returned: int
    progressed: tuple[ChunkJob, int] | None
    """The chunk under way and how many of its tuples are done, if that has to be reported."""
    rescheduled: list[ChunkJob]
    """Chunks that end at another time than they would have."""


class TaskServer:
    """What a task has been given, and when it will be done with it.

    What a chunk costs its process comes before the work, though part of it is for the answer.
    """

    def __init__(self, node: int, cost: Cost) -> None:
        self.node = node
        self.free_at = -math.inf
        self.lost_s = 0.0
        """Time of its core that others have taken: the next chunk begins later by it."""
        self._message_s = cost.message_s
        self._delay_s, self._wake_s = cost.delay_s, cost.wake_s
        self._jobs: deque[ChunkJob] = deque()
        self._resumed_at = -math.inf

    def serve(self, arrival: float) -> float:
        """Answer what arrives then, behind all that came before; returns when it is done."""
        self.free_at = end = self._awake(arrival) + self._message_s
        return end

    def begin(self, order: do.Dispatch, rows: int, work_s: float, arrival: float) -> ChunkJob:
        """Take in a chunk that arrives then."""
        jobs = self._jobs
        while jobs and jobs[0].end <= arrival:
            jobs.popleft()
        free = self.free_at
        if free > arrival:
            taking_s = self._message_s
        else:
            taking_s = self._message_s + self._wake_s
            free = arrival + self._delay_s
        if self.lost_s:
            taking_s += self.lost_s
            self.lost_s = 0.0
        job = ChunkJob(order, rows, work_s, taking_s, arrival)
        job.start = free + taking_s
        job.end = self.free_at = job.start + work_s
        jobs.append(job)
        return job

    def _awake(self, arrival: float) -> float:
        """When the process can take what arrives then."""
        return max(arrival + self._delay_s + self._wake_s, self.free_at)

    def between(self, arrival: float) -> float:
        """When something that arrives then is answered between two chunks."""
        under_way = (job.end for job in self._jobs if job.start < arrival < job.end)
        return next(under_way, arrival) + self._message_s

    def interrupt(self, shard: ShardId, arrival: float) -> Interruption:
        """A label arrives then: give back what is not begun of the shard, between two tuples."""
        asleep = self.free_at <= arrival
        self._jobs = jobs = deque(job for job in self._jobs if job.end > arrival)
        at, progressed = max(arrival, self._resumed_at), None
        if asleep:
            at += self._delay_s + self._wake_s
        if jobs and jobs[0].start < arrival:
            job = jobs[0]
            turn = max(1, int(LOOK_S / job.row_s))
            done = turn * math.ceil((arrival - job.start) / (turn * job.row_s))
            if done >= len(job.work.left):
                at = job.end  # behind its answer
                jobs.popleft()
            else:
                at = job.start + done * job.row_s
                job.work.begin(done)
                job.taking_s = 0.0  # it was taken in
        # Two labels may come within one tuple; what the first had no need for, the second has.
        if jobs and len(jobs[0].work.left) and jobs[0].work.owes(shard):
            progressed = (jobs[0], jobs[0].work.report())
        returned = sum(job.work.leave_out(shard) for job in jobs)
        at += self._message_s
        self._resumed_at = at
        rescheduled = self._let_go(at) + self._reschedule(at)
        return Interruption(at, returned, progressed, rescheduled)

    def _let_go(self, at: float) -> list[ChunkJob]:
        """Be done with chunks of which nothing is left; returns those that are answered then.

        That is behind the label that has left nothing of them: the main process hears first of
        what is returned, and then of what is done.
        """
        empty = [job for job in self._jobs if not len(job.work.left)]
        if empty:
            self._jobs = deque(job for job in self._jobs if len(job.work.left))
        for job in empty:
            # What was begun of it is done; of the others it has nothing to answer.
            job.start = job.end = at if job.work.unreported else math.inf
        return [job for job in empty if job.end == at]

    def _reschedule(self, free_at: float) -> list[ChunkJob]:
        changed = []
        for job in self._jobs:
            start = max(job.arrival, free_at) + job.taking_s
            free_at = end = start + len(job.work.left) * job.row_s
            if end != job.end:
                job.start, job.end = start, end
                changed.append(job)
        self.free_at = free_at
        return changed
