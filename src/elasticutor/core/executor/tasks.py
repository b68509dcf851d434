"""The tasks of an executor: what each has been given, how many there are, and on which nodes.

Binding is late: tuples wait in the main process, and a task is handed only a small window of work.
A label interrupts that window: the tuples of its shard that the task has not begun come back, so
that the time to drain a shard is that of one tuple and does not grow with the backlog.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum

import msgspec

from elasticutor.core.executor.batch import Part, divided
from elasticutor.core.executor.config import ExecutorConfig
from elasticutor.core.executor.epochs import Epochs
from elasticutor.core.executor.receiver import HELD, Receiver
from elasticutor.core.measure.metrics import Meter
from elasticutor.core.protocol.events import CoreGranted, CoreTaken
from elasticutor.core.protocol.ids import ChunkId, NodeId, ShardId, TaskId
from elasticutor.core.protocol.instructions import EndTask, Instruction, OpenStore, StartTask
from elasticutor.errors import (
    BadValueError,
    LastCoreError,
    OutOfOrderError,
    UnknownNodeError,
    UnknownTaskError,
)

_LEAST_CHUNK_S = 0.002  # a chunk of less work costs as much as it does
_MANY_CHUNKS = 4  # a queue of more is a backlog
_SMOOTHING = 0.3  # weight of the newest chunk in a task's cost per tuple


class TaskStatus(Enum):
    """Where a task is in its life."""

    STARTING = "starting"
    """Its process is not up yet; it has no shards."""
    ACTIVE = "active"
    LEAVING = "leaving"
    """Its core is wanted elsewhere; it works until its last shard has left."""


class Flight(msgspec.Struct, eq=False):
    """A chunk that was handed to a task and is not answered yet."""

    chunk: ChunkId
    parts: list[Part]
    """What is left of it: neither processed nor returned."""
    rows: int
    estimate_s: float
    sent_at: float

    def cut(self, parts: list[Part], rows: int) -> float:
        """Have only these tuples left; returns the estimated work of the others."""
        left_s = self.estimate_s * rows / self.rows
        gone_s = self.estimate_s - left_s
        self.parts, self.rows, self.estimate_s = parts, rows, left_s
        return gone_s


@dataclass(slots=True)
class TaskView:
    """A task, as the main process sees it."""

    id: TaskId
    node: NodeId
    status: TaskStatus = TaskStatus.STARTING
    slot: int = HELD
    """Its queue in the receiver; `HELD` only while it is starting."""
    flights: deque[Flight] = field(default_factory=deque)
    in_flight_s: float = 0.0
    """Estimated work of all flights."""
    granted_at: float = 0.0
    row_s: float | None = None
    """Measured seconds per tuple; None before the first measurement."""

    departures: int = 0
    """How many shards are about to leave it."""

    @property
    def running(self) -> bool:
        """Whether its process is up."""
        return self.status is not TaskStatus.STARTING

    @property
    def staying(self) -> bool:
        """Whether shards may be given to it."""
        return self.status is TaskStatus.ACTIVE

    def full(self, config: ExecutorConfig, share: int | None = None) -> bool:
        """Whether it has been given as much as it may have ahead of time.

        The window shrinks with the share (see `next_rows`), so that what is left can still go to
        another task.
        """
        chunks = len(self.flights)
        if chunks < config.min_chunks:
            return False
        if chunks >= config.max_chunks or self.row_s is None:
            return True
        window_s = self.window_s(config)
        if share is not None:
            window_s = min(window_s, max(share * self.row_s, _LEAST_CHUNK_S))
        return self.in_flight_s >= window_s

    def window_s(self, config: ExecutorConfig) -> float:
        """How much work it may be given ahead of time."""
        return max(config.window_s, 2 * config.bulk_s) if self._cheap(config) else config.window_s

    def _cheap(self, config: ExecutorConfig) -> bool:
        return self.row_s is not None and self.row_s * config.bulk_rows <= config.chunk_s

    def next_rows(self, config: ExecutorConfig, share: int | None = None, backlog: int = 0) -> int:
        """How many tuples the next chunk may have, when the window is not full.

        A chunk costs the same however many tuples it has. So a task with a backlog gets larger
        ones, and works it off faster than it came; as it shrinks, so do they. A share is how many
        it should take at most when no more tuples of the epoch come, so that no task has a large
        chunk to itself when the others are done.
        """
        if self.row_s is None:
            return min(config.first_chunk_rows, config.max_chunk_rows)
        chunk_s = max(config.chunk_s, config.bulk_s) if self._cheap(config) else config.chunk_s
        if self.departures:
            chunk_s = min(chunk_s, config.moving_chunk_s)
        rows = self._rows_of(chunk_s, config)
        if backlog > _MANY_CHUNKS * rows and not self.departures:
            most = self._rows_of(max(chunk_s, 2 * config.bulk_s), config)
            rows = max(rows, min(backlog // _MANY_CHUNKS, most))
        if share is None or share >= rows:
            return rows
        return max(share, self._rows_of(min(_LEAST_CHUNK_S, config.chunk_s), config))

    def _rows_of(self, seconds: float, config: ExecutorConfig) -> int:
        """Return how many tuples take this long, as measured."""
        assert self.row_s is not None  # the caller has looked
        if self.row_s * config.max_chunk_rows <= seconds:
            return config.max_chunk_rows
        return max(1, int(seconds / self.row_s))

    def hand_over(self, chunk: ChunkId, parts: list[Part], rows: int, now: float) -> Flight:
        """Note that a chunk is on its way to the task."""
        flight = Flight(chunk, parts, rows, rows * (self.row_s or 0.0), now)
        self.flights.append(flight)
        self.in_flight_s += flight.estimate_s
        return flight

    def answered(self, rows: int, useful_s: float) -> list[Part]:
        """Note that the first tuples of the oldest chunk are processed; returns them."""
        flight = self.flights[0]
        done = flight.parts
        if rows == flight.rows:
            self.flights.popleft()
            self._relieve(flight.estimate_s)
        else:
            done, left = divided(flight.parts, rows)
            self._relieve(flight.cut(left, flight.rows - rows))
        measured = useful_s / rows
        old = self.row_s
        self.row_s = measured if old is None else old + _SMOOTHING * (measured - old)
        return done

    def unanswered(self, shard: ShardId) -> int:
        """How many tuples of the shard are in chunks that are not answered."""
        found = [part.shards == shard for flight in self.flights for part in flight.parts]
        return int(sum(mask.sum() for mask in found))

    def give_back(self, shard: ShardId) -> list[Part]:
        """Take the shard's tuples out of all chunks, in their order; no answer covers them."""
        back: list[Part] = []
        for flight in self.flights:
            left: list[Part] = []
            for part in flight.parts:
                mine = part.shards == shard
                if not mine.any():
                    left.append(part)
                    continue
                back.append(part.pick(mine))
                if back[-1].count < part.count:
                    left.append(part.pick(~mine))
            self._relieve(flight.cut(left, sum(part.count for part in left)))
        self.flights = deque(flight for flight in self.flights if flight.rows)
        if not self.flights:
            self.in_flight_s = 0.0
        return back

    def _relieve(self, estimate_s: float) -> None:
        self.in_flight_s = max(0.0, self.in_flight_s - estimate_s) if self.flights else 0.0

    def forget_flights(self) -> None:
        """Note that nothing handed over before will be answered any more."""
        self.flights.clear()
        self.in_flight_s = 0.0


class TaskSet:
    """The tasks that an executor has, and the nodes on which it has a store."""

    def __init__(
        self,
        tasks: dict[TaskId, TaskView],
        epochs: Epochs,
        receiver: Receiver,
        meter: Meter,
        emit: Callable[[Instruction], None],
    ) -> None:
        self.tasks = tasks
        self.stores: set[NodeId] = set()
        self._epochs = epochs
        self._receiver = receiver
        self._meter = meter
        self._emit = emit
        self._next_task = 0

    def require(self, task: TaskId) -> TaskView:
        """Return the task of this number; refuses a stranger's."""
        view = self.tasks.get(task)
        if view is None:
            raise UnknownTaskError("task", f"be one of {sorted(self.tasks)}", task)
        return view

    def require_store(self, node: NodeId) -> None:
        """Refuse a node on which the executor has nothing."""
        if node not in self.stores:
            raise UnknownNodeError("node", f"be one of {sorted(self.stores)}", node)

    @property
    def running(self) -> list[TaskView]:
        """Tasks whose process is up."""
        return [task for task in self.tasks.values() if task.running]

    @property
    def leaving(self) -> list[TaskId]:
        """Tasks whose core is wanted elsewhere."""
        return [t.id for t in self.tasks.values() if t.status is TaskStatus.LEAVING]

    def on(self, node: NodeId) -> list[TaskView]:
        """Tasks on a node."""
        return [task for task in self.tasks.values() if task.node == node]

    def grant(self, node: NodeId, now: float) -> None:
        """Start a task on a core that was granted; the first on a node needs a store there."""
        if node not in self.stores:
            self.stores.add(node)
            self._emit(OpenStore(node, self._epochs.attempt, self._epochs.committed))
        task = TaskView(TaskId(self._next_task), node, granted_at=now)
        self._next_task += 1
        self.tasks[task.id] = task
        self._emit(StartTask(node, task.id))
        self._meter.set_cores(len(self.tasks), now)

    def waiting_for(self) -> list[str]:
        """What tasks have yet to answer, in words."""
        return [
            f"{len(task.flights)} chunks from task {task.id}"
            for task in self.tasks.values()
            if task.flights
        ]

    def overdue(self, before: float) -> list[str]:
        """The tasks whose cores were granted before then, and whose processes are not up."""
        return [
            f"task {task.id} on node {task.node!r} to start"
            for task in self.tasks.values()
            if not task.running and task.granted_at < before
        ]

    def started(self, task_id: TaskId) -> None:
        """Take note that a task's process is up."""
        task = self.require(task_id)
        if task.running:
            raise OutOfOrderError(f"task {task.id}", "be starting", task.status.value)
        task.status = TaskStatus.ACTIVE
        task.slot = self._receiver.add_slot()

    def require_replaceable(self, task: TaskView) -> None:
        """Refuse to take a core away twice, or the last one."""
        if task.status is TaskStatus.LEAVING:
            raise OutOfOrderError(f"task {task.id}", "not be leaving already", "a second request")
        if not any(
            t.status is not TaskStatus.LEAVING for t in self.tasks.values() if t is not task
        ):
            raise LastCoreError(
                "executor", "keep at least one core", 0, "grant it another core first"
            )

    def dismiss(self, task: TaskView, now: float) -> None:
        """Let a task end that owns nothing and has nothing to do."""
        self._emit(EndTask(task.node, task.id))
        self.remove(task, now)

    def remove(self, task: TaskView, now: float) -> None:
        """Forget a task that is gone, and its queue."""
        del self.tasks[task.id]
        if task.running:
            self._receiver.free_slot(task.slot)
        self._meter.set_cores(len(self.tasks), now)

    def forget_flights(self) -> None:
        """Expect no answer to what was handed over before."""
        for task in self.tasks.values():
            task.forget_flights()


def core_changes(
    tasks: Mapping[TaskId, NodeId],
    loads: Mapping[TaskId, float],
    wanted: Mapping[NodeId, int],
) -> list[CoreGranted | CoreTaken]:
    """Return the fewest changes that give the executor just the wanted cores on each node.

    Grants come first, so that an executor that changes its only core for another keeps one all the
    time. Where a node has too many, the least loaded tasks go: their shards are the cheapest to
    move, and the newest of equals goes first.

    Args:
        tasks: The tasks that the executor has and that are not leaving, with their nodes.
        loads: Their loads, in cores; a task that is missing here counts as idle.
        wanted: How many cores it should have on each node; none on those not named.
    """
    for node, count in wanted.items():
        if type(count) is not int or count < 0:
            raise BadValueError(f"cores on node {node!r}", "be a whole number, at least 0", count)
    if not sum(wanted.values()):
        raise LastCoreError("executor", "keep at least one core", 0, "ask for one or more")
    granted: list[CoreGranted | CoreTaken] = []
    taken: list[CoreGranted | CoreTaken] = []
    for node in sorted({*tasks.values(), *wanted}):
        there = [task for task, home in tasks.items() if home == node]
        missing = wanted.get(node, 0) - len(there)
        granted += [CoreGranted(node)] * missing
        there.sort(key=lambda task: (loads.get(task, 0.0), -task))
        taken += [CoreTaken(task) for task in there[: max(0, -missing)]]
    return [*granted, *taken]
