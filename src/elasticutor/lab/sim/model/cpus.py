"""The CPUs of a simulated node: what takes their time, and how often its sources send."""

from __future__ import annotations

from elasticutor.core.measure.pacing import USUAL_GAP_S, next_gap_s
from elasticutor.lab.sim.clock import Clock
from elasticutor.lab.sim.model.task_server import TaskServer


class Cpus:
    """The CPUs of one node.

    Every task has one of them. Other processes have CPUs of their own, unless they share these:
    then a message that comes while all of them are busy with tuples takes its time from a task.
    """

    def __init__(self, clock: Clock, count: int, *, shared: bool) -> None:
        self.path_s = 0.0
        """CPU time that messages have cost, of all processes here."""
        self.gap_s = USUAL_GAP_S
        """The least time between two packets of a source here."""
        self._clock = clock
        self._count = count
        self._shared = shared
        self._tasks: list[TaskServer] = []
        self._work_s = 0.0  # of operators
        self._used_s = 0.0  # of everything, as of the last look
        self._turn = 0

    def join(self, task: TaskServer) -> None:
        """Add a task that runs here from now on."""
        self._tasks.append(task)

    def leave(self, task: TaskServer) -> None:
        """Remove a task that has ended."""
        self._tasks.remove(task)

    def work(self, work_s: float, message_s: float) -> None:
        """Count a task's chunk: its work, and what its message costs besides."""
        self._work_s += work_s
        self.path_s += message_s

    def spend(self, seconds: float) -> None:
        """Take CPU time for a process that is no task."""
        self.path_s += seconds
        if self._shared:
            busy = [task for task in self._tasks if task.free_at > self._clock.now]
            if len(busy) >= self._count:
                self._turn += 1
                busy[self._turn % len(busy)].lost_s += seconds

    def pace(self, over_s: float) -> None:
        """Set how often sources send, by how idle the CPUs were over this time."""
        used_s = self._work_s + self.path_s
        idle = 1.0 - (used_s - self._used_s) / (over_s * self._count)
        self._used_s = used_s
        self.gap_s = next_gap_s(self.gap_s, max(0.0, idle))
