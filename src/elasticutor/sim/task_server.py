"""A task's process on its core: chunks one after the other, interrupted between two tuples."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

import numpy as np

from elasticutor.core import instructions as do
from elasticutor.core.ids import ShardId
from elasticutor.core.task_inbox import Work

LOOK_S = 200e-6
"""How long a task works before it looks for a label (`elasticutor.process.operator_runner`)."""


class Job:
    """A chunk at a task."""

    __slots__ = ("_work", "arrival", "end", "order", "row_s", "rows", "start")

    def __init__(self, order: do.Dispatch, rows: int, work_s: float, arrival: float) -> None:
        self.order = order
        self.rows = rows
        self.row_s = work_s / rows
        self.arrival = arrival
        self.start = self.end = arrival
        """When what is left of it is begun and done."""
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
    """When the tuples in hand are done."""
    returned: int
    progressed: tuple[Job, int] | None
    """The chunk under way and how many of its tuples are done, if that has to be reported."""
    rescheduled: list[Job]
    """Chunks that end at another time than they would have."""


class TaskServer:
    """What a task has been given, and when it will be done with it."""

    def __init__(self, node: int) -> None:
        self.node = node
        self.free_at = -math.inf
        self._jobs: deque[Job] = deque()
        self._resumed_at = -math.inf

    def serve(self, arrival: float, work_s: float) -> float:
        """Work on what arrives then, behind all that came before; returns when it is done."""
        free = self.free_at
        self.free_at = end = (max(arrival, free)) + work_s
        return end

    def begin(self, order: do.Dispatch, rows: int, work_s: float, arrival: float) -> Job:
        """Take in a chunk that arrives then."""
        jobs = self._jobs
        while jobs and jobs[0].end <= arrival:
            jobs.popleft()
        job = Job(order, rows, work_s, arrival)
        job.start = max(arrival, self.free_at)
        job.end = self.free_at = job.start + work_s
        jobs.append(job)
        return job

    def under_way(self, arrival: float) -> float:
        """When the chunk that it then works on is done; at once, if there is none."""
        return next((job.end for job in self._jobs if job.start < arrival < job.end), arrival)

    def interrupt(self, shard: ShardId, arrival: float) -> Interruption:
        """A label arrives then: give back what is not begun of the shard, between two tuples."""
        self._jobs = jobs = deque(job for job in self._jobs if job.end > arrival)
        at, progressed = max(arrival, self._resumed_at), None
        if jobs and jobs[0].start < arrival:
            job = jobs[0]
            turn = max(1, int(LOOK_S / job.row_s))
            done = turn * math.ceil((arrival - job.start) / (turn * job.row_s))
            if done >= len(job.work.left):
                at = job.end  # behind its answer
                jobs.popleft()
            else:
                at = job.start = job.start + done * job.row_s
                job.work.begin(done)
        # Two labels may come within one tuple; what the first had no need for, the second has.
        if jobs and len(jobs[0].work.left) and jobs[0].work.owes(shard):
            progressed = (jobs[0], jobs[0].work.report())
        self._resumed_at = at
        returned = sum(job.work.leave_out(shard) for job in jobs)
        return Interruption(at, returned, progressed, self._reschedule(at) if returned else [])

    def _reschedule(self, free_at: float) -> list[Job]:
        changed = []
        for job in self._jobs:
            start = max(job.arrival, free_at)
            end = start + len(job.work.left) * job.row_s
            answered = not len(job.work.left) and not job.work.unreported
            if answered:
                end = math.inf  # never: there is nothing to answer
            else:
                free_at = end
            if end != job.end:
                job.start, job.end = start, end
                if not answered:
                    changed.append(job)
        self._jobs = deque(job for job in self._jobs if job.end < math.inf)
        self.free_at = free_at
        return changed
