"""What the processes of the simulated cluster share: turns, cores, and state on its way."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from typing import Any

from elasticutor.core.executor.batch import Part
from elasticutor.core.protocol.ids import NodeId, Peer
from elasticutor.lab.sim.loop import Loop
from elasticutor.lab.sim.model.costs import Cost
from elasticutor.lab.sim.model.cpus import Cpus
from elasticutor.lab.sim.model.machines import HEADER_BYTES, SLICE_BYTES, Machines, NetworkLinks
from elasticutor.lab.sim.recorder import Recorder
from elasticutor.lab.sim.workload import FloatArray, IntArray


class Content:
    """Tuples on their way: when each was due, or all of them, and their keys."""

    __slots__ = ("births", "keys")

    def __init__(self, births: FloatArray | float, keys: IntArray) -> None:
        self.births = births
        self.keys = keys


class SimulatedWorld:
    """What everything on the simulated cluster shares.

    Args:
        machines: What the cluster is made of.
        loop: Its time.
        recorder: Who takes notes.
        work_s: How long a task works on so many tuples.
        tuple_bytes: The size of a tuple.
        shard_bytes: The size of a shard's state.
    """

    def __init__(
        self,
        machines: Machines,
        loop: Loop,
        recorder: Recorder,
        *,
        work_s: Callable[[int], float],
        tuple_bytes: int,
        shard_bytes: int,
    ) -> None:
        self.machines = machines
        self.loop = loop
        self.links = NetworkLinks(loop, machines)
        self.cpus = [
            Cpus(loop, machines.cores, shared=machines.shared_cpus) for _ in machines.names
        ]
        """Of every node, by its number."""
        self.recorder = recorder
        self.work_s = work_s
        self.tuple_bytes = tuple_bytes
        self.shard_bytes = shard_bytes
        self.number = {name: number for number, name in enumerate(machines.names)}
        """Of every node."""
        self.grants: dict[Peer, tuple[int, Callable[[tuple[Peer, int]], None]]] = {}
        """The node of every upstream, and who takes credits there."""
        self.core_freed: Callable[[NodeId], None] = _nothing
        """Told when a task has ended and its core is free."""
        self.watch: Callable[[Peer, list[Part]], None] | None = None
        """Sees all tuples that are done, in the order in which their results arrive."""


class Process(ABC):
    """A process that takes one message at a time, at what that costs a main process."""

    def __init__(self, world: SimulatedWorld, node: int) -> None:
        self.world = world
        self.node = node
        self._loop = world.loop
        self._cpus = world.cpus[node]
        cost = world.machines.costs.main
        self._message_s, self._asleep_s = cost.message_s, cost.asleep_s + cost.message_s
        self._wake_s = cost.wake_s + cost.message_s
        self._inbox: deque[Any] = deque()
        self._free_at = world.loop.now

    def take(self, message: Any) -> None:
        """A message has arrived."""
        if self._inbox or self._loop.now < self._free_at:
            self._inbox.append(message)
            if len(self._inbox) == 1:
                self._loop.at(self._free_at, self._next)
        else:
            self._free_at = self._loop.now + self._asleep_s
            self._cpus.spend(self._wake_s)
            self.handle(message)

    def _next(self, _: None) -> None:
        message = self._inbox.popleft()
        self._free_at = self._loop.now + self._message_s
        self._cpus.spend(self._message_s)
        self.handle(message)
        if self._inbox:
            self._loop.at(self._free_at, self._next)

    @abstractmethod
    def handle(self, message: Any) -> None:
        """Do what the message asks for; answers leave when its time has passed."""

    def send(self, process: Process, message: Any, size: int = HEADER_BYTES) -> None:
        """Send to another process."""
        self.world.links.send(self._free_at, self.node, process.node, size, process.take, message)


class Turns:
    """The turns of a process that nothing depends on but when it is done with each message.

    Example:
        Two messages at once: the second finds the process at work.

        >>> loop = Loop()
        >>> turns = Turns(Cpus(loop, 1, shared=False), Cost(10e-6, wake_s=5e-6, delay_s=15e-6))
        >>> [round(turns.take(0.0) * 1e6) for _ in range(2)], round(turns.take(1.0), 6)
        ([30, 40], 1.00003)
    """

    __slots__ = ("_cost", "_cpus", "free_at")

    def __init__(self, cpus: Cpus, cost: Cost) -> None:
        self.free_at = -math.inf
        self._cpus = cpus
        self._cost = cost

    def take(self, time: float) -> float:
        """A message is there then; returns when it is done with."""
        cost = self._cost
        if time < self.free_at:
            self._cpus.spend(cost.message_s)
            self.free_at += cost.message_s
        else:
            self._cpus.spend(cost.wake_s + cost.message_s)
            self.free_at = time + cost.delay_s + cost.wake_s + cost.message_s
        return self.free_at


def send_state(
    world: SimulatedWorld, source: int, destination: int, size: int, arrived: Callable[[None], None]
) -> None:
    """Send state from node to node; a slice at a time, so that others get in between."""
    links, loop = world.links, world.loop

    def send(left: int) -> None:
        piece = min(left, SLICE_BYTES)
        last = piece == left
        gone = links.send(
            loop.now,
            source,
            destination,
            piece + HEADER_BYTES,
            arrived if last else _nothing,
            None,
        )
        if not last:
            loop.at(gone, send, left - piece)

    send(size)


def _nothing(_: Any) -> None:
    """Nobody cares: a slice that is not the last has arrived, or a core is free."""
