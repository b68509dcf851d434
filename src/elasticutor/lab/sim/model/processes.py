"""What the processes of the simulated cluster share: their world, turns, and stores of sizes."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from elasticutor.core.executor.batch import Part
from elasticutor.core.protocol import events as ev
from elasticutor.core.protocol import instructions as do
from elasticutor.core.protocol.ids import NodeId, Peer
from elasticutor.lab.sim.clock import Action, Clock
from elasticutor.lab.sim.model.costs import Cost
from elasticutor.lab.sim.model.cpus import Cpus
from elasticutor.lab.sim.model.machines import HEADER_BYTES, SLICE_BYTES, Machines, NetworkLinks
from elasticutor.lab.sim.recorder import Recorder
from elasticutor.lab.sim.workload import FloatArray, IntArray


def _nothing() -> None:
    """No-op: a slice that is not the last has arrived, or a core is free."""


@dataclass(slots=True, eq=False)
class Content:
    """Tuples on their way: when each was due, or all of them, and their keys."""

    births: FloatArray | float
    keys: IntArray


@dataclass(slots=True, eq=False)
class SimulatedWorld:
    """What everything on the simulated cluster shares."""

    machines: Machines
    clock: Clock
    recorder: Recorder
    work_s: Callable[[int], float]
    """How long a task works on a number of tuples."""
    tuple_bytes: int
    shard_bytes: int
    """Of the state of a shard."""
    links: NetworkLinks = field(init=False)
    cpus: list[Cpus] = field(init=False)
    """Of every node, by its number."""
    number: dict[NodeId, int] = field(init=False)
    """Of every node."""
    grants: dict[Peer, tuple[int, Callable[[Peer, int], None]]] = field(default_factory=dict)
    """The node of every upstream, and what takes its credits."""
    core_freed: Callable[[], None] = _nothing
    """Called when a task has ended and its core is free."""
    watch: Callable[[Peer, list[Part]], None] | None = None
    """Sees all tuples that are done, in the order in which their results arrive."""

    def __post_init__(self) -> None:
        clock, machines = self.clock, self.machines
        self.links = NetworkLinks(clock, machines)
        self.cpus = [
            Cpus(clock, machines.cores, shared=machines.shared_cpus) for _ in machines.names
        ]
        self.number = {name: number for number, name in enumerate(machines.names)}


class Process(ABC):
    """A process that takes one message at a time, at what that costs a main process."""

    def __init__(self, world: SimulatedWorld, node: int) -> None:
        self.world = world
        self.node = node
        self._clock = world.clock
        self._cpus = world.cpus[node]
        cost = world.machines.costs.main
        self._message_s, self._wake_s = cost.message_s, cost.wake_s + cost.message_s
        self._asleep_s = cost.delay_s + cost.wake_s + cost.message_s
        self._inbox: deque[Any] = deque()
        self._free_at = world.clock.now

    def take(self, message: Any) -> None:
        """Handle a message when it is its turn."""
        inbox, now = self._inbox, self._clock.now
        if inbox or now < self._free_at:
            inbox.append(message)
            if len(inbox) == 1:
                self._clock.at(self._free_at, self._next)
        else:
            self._free_at = now + self._asleep_s
            self._cpus.spend(self._wake_s)
            self.handle(message)

    def _next(self) -> None:
        message = self._inbox.popleft()
        self._free_at = self._clock.now + self._message_s
        self._cpus.spend(self._message_s)
        self.handle(message)
        if self._inbox:
            self._clock.at(self._free_at, self._next)

    @abstractmethod
    def handle(self, message: Any) -> None:
        """Do what the message asks for; answers leave when its time has passed."""

    def send(self, process: Process, message: Any, size: int = HEADER_BYTES) -> None:
        """Send to another process."""
        self.world.links.send(self._free_at, self.node, process.node, size, process.take, message)


class StoreOwner(Process):
    """A process that moves state between the stores on nodes, of which only sizes exist."""

    def _to_node(self, node: NodeId, action: Action, *args: Any) -> None:
        number = self.world.number[node]
        self.world.links.send(self._free_at, self.node, number, HEADER_BYTES, action, *args)

    def _from_node(self, node: int, event: ev.Event) -> None:
        now = self._clock.now
        self.world.links.send(now, node, self.node, HEADER_BYTES, self.take, event)

    def _at_store(self, order: Any, size: int) -> None:
        """Do what is asked of a store, and answer."""
        node = self.world.number[order.node]
        match order:
            case do.OpenShard():
                self._from_node(node, ev.ShardOpened(order.move))
            case do.CopyShard():
                self._send_state(order, size, ev.CopyArrived(order.move, size))
            case do.SendRest():
                self._send_state(order, size, ev.StateArrived(order.move, size))
            case do.DropShard():
                self._from_node(node, ev.ShardDropped(order.node, order.shard))
            case do.RollBackStore():
                self._from_node(node, ev.StoreRolledBack(order.node, order.attempt))
            case _:
                raise NotImplementedError(order)  # no epoch ends here, and nothing is lost

    def _send_state(self, order: do.CopyShard | do.SendRest, left: int, last: ev.Event) -> None:
        """Send state to its destination, a slice at a time, so that others get in between."""
        number, now, piece = self.world.number, self._clock.now, min(left, SLICE_BYTES)
        source, destination = number[order.node], number[order.destination]
        send, size = self.world.links.send, piece + HEADER_BYTES
        if piece == left:
            send(now, source, destination, size, self._from_node, destination, last)
        else:
            gone = send(now, source, destination, size, _nothing)
            self._clock.at(gone, self._send_state, order, left - piece, last)


class Turns:
    """The turns of a process that nothing depends on but when it is done with each message."""

    __slots__ = ("_cost", "_cpus", "free_at")

    def __init__(self, cpus: Cpus, cost: Cost) -> None:
        self.free_at = -math.inf
        self._cpus = cpus
        self._cost = cost

    def take(self, time: float) -> float:
        """Take a message that is there then; returns when it is done with."""
        cost = self._cost
        if time < self.free_at:
            self._cpus.spend(cost.message_s)
            self.free_at += cost.message_s
        else:
            self._cpus.spend(cost.wake_s + cost.message_s)
            self.free_at = time + cost.delay_s + cost.wake_s + cost.message_s
        return self.free_at
