"""What the main process knows of each of its tasks, and how much it gives each ahead of time.

Binding is late: tuples wait in the main process, and a task is handed only a small window of work,
so that the time to drain a shard does not grow with the backlog (the label waits behind the window
and nothing else).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import Enum

from elasticutor.core.config import ExecutorConfig
from elasticutor.core.ids import ChunkId, NodeId, TaskId
from elasticutor.core.parts import Part
from elasticutor.core.receiver import HELD

_SMOOTHING = 0.3  # weight of the newest chunk in a task's cost per tuple


class TaskStatus(Enum):
    """Where a task is in its life."""

    STARTING = "starting"
    """Its process is not up yet; it has no shards."""
    ACTIVE = "active"
    LEAVING = "leaving"
    """Its core is wanted elsewhere; it works until its last shard has left."""


@dataclass(slots=True)
class Flight:
    """A chunk that was handed to a task and is not answered yet."""

    chunk: ChunkId
    parts: list[Part]
    rows: int
    estimate_s: float
    sent_at: float


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
    answered_at: float = 0.0
    """When its last chunk was answered."""
    row_s: float | None = None
    """Measured seconds per tuple; None before the first measurement."""

    @property
    def running(self) -> bool:
        """Whether its process is up."""
        return self.status is not TaskStatus.STARTING

    @property
    def staying(self) -> bool:
        """Whether shards may be given to it."""
        return self.status is TaskStatus.ACTIVE

    def full(self, config: ExecutorConfig) -> bool:
        """Whether it has been given as much as it may have ahead of time."""
        chunks = len(self.flights)
        if chunks < config.min_chunks:
            return False
        return (
            self.in_flight_s >= config.window_s or chunks >= config.max_chunks or self.row_s is None
        )

    def room(self, config: ExecutorConfig) -> int:
        """How many tuples the next chunk may have; 0 while the window is full."""
        if self.full(config):
            return 0
        if self.row_s is None:
            return min(config.first_chunk_rows, config.max_chunk_rows)
        if self.row_s * config.max_chunk_rows <= config.chunk_s:
            return config.max_chunk_rows
        return max(1, int(config.chunk_s / self.row_s))

    def hand_over(self, chunk: ChunkId, parts: list[Part], rows: int, now: float) -> Flight:
        """Note that a chunk is on its way to the task."""
        flight = Flight(chunk, parts, rows, rows * (self.row_s or 0.0), now)
        self.flights.append(flight)
        self.in_flight_s += flight.estimate_s
        return flight

    def answered(self, useful_s: float) -> Flight:
        """Note that the oldest chunk is processed."""
        flight = self.flights.popleft()
        self.in_flight_s = max(0.0, self.in_flight_s - flight.estimate_s) if self.flights else 0.0
        measured = useful_s / flight.rows
        old = self.row_s
        self.row_s = measured if old is None else old + _SMOOTHING * (measured - old)
        return flight

    def forget_flights(self) -> None:
        """Note that nothing handed over before will be answered any more."""
        self.flights.clear()
        self.in_flight_s = 0.0
