"""The machines of a simulated cluster: nodes with cores, and the links between them.

Each node has one link out and one link in. A link sends one message at a time, in the order of
asking, so that large messages delay others. Within a node a message arrives at once: sockets are
memory there, and what takes time is that its receiver has to wake up.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from elasticutor.core.protocol.ids import NodeId
from elasticutor.errors import BadValueError
from elasticutor.lab.sim.clock import Action, Clock
from elasticutor.lab.sim.model.costs import Costs

HEADER_BYTES = 200
"""What a message has besides its tuples: addresses, numbers, framing."""

SLICE_BYTES = 256 * 1024
"""State travels in pieces of this size, so that other messages get between them."""


@dataclass(frozen=True, slots=True)
class Machines:
    """What the cluster is made of."""

    nodes: int = 32
    cores: int = 8
    """Of each node."""
    bandwidth: float = 1e9 / 8
    """Bytes per second of every link, each way."""
    latency_s: float = 100e-6
    """From node to node, besides the time on the links."""
    costs: Costs = field(default_factory=Costs)
    """What messages cost the processes that take them in; one after the other."""
    shared_cpus: bool = False
    """Whether these processes run on the cores of their node; otherwise they have CPUs besides."""
    startup_s: float = 0.030
    """From the order to start a task until its process is up."""

    def __post_init__(self) -> None:
        for name in ("nodes", "cores"):
            count = getattr(self, name)
            if type(count) is not int or count < 1:
                raise BadValueError(name, "be a whole number, at least 1", count)
        for name in ("latency_s", "startup_s"):
            if not 0 <= getattr(self, name) < math.inf:
                raise BadValueError(name, "be finite and at least 0", getattr(self, name))
        if not 0 < self.bandwidth < math.inf:
            raise BadValueError("bandwidth", "be finite and more than 0", self.bandwidth)

    @property
    def names(self) -> tuple[NodeId, ...]:
        """The nodes by name, in an order that sorting keeps."""
        digits = len(str(self.nodes - 1))
        return tuple(NodeId(f"n{number:0{digits}}") for number in range(self.nodes))

    @property
    def total(self) -> int:
        """All cores."""
        return self.nodes * self.cores


class NetworkLinks:
    """Carries messages from node to node."""

    def __init__(self, clock: Clock, machines: Machines) -> None:
        self._clock = clock
        self._latency_s = machines.latency_s
        self._byte_s = 1.0 / machines.bandwidth
        self._out_free = [-math.inf] * machines.nodes
        self._in_free = [-math.inf] * machines.nodes

    def send(
        self, time: float, source: int, destination: int, size: int, deliver: Action, *message: Any
    ) -> float:
        """Send a message, which calls `deliver`; returns when it has left the source.

        Messages between two nodes arrive in the order sent, and so they do within a node.
        """
        if source == destination:
            self._clock.at(time, deliver, *message)
            return time
        transfer_s = size * self._byte_s
        free = self._out_free[source]
        left = max(time, free) + transfer_s
        self._out_free[source] = left
        # Its last bit is there then, if the link into the destination is not busy with others.
        there = left + self._latency_s
        self._clock.at(there, self._arrive, destination, transfer_s, deliver, message)
        return left

    def _arrive(
        self, destination: int, transfer_s: float, deliver: Action, message: tuple[Any, ...]
    ) -> None:
        free = self._in_free[destination] + transfer_s
        now = self._clock.now
        if free <= now:
            self._in_free[destination] = now
            deliver(*message)
        else:
            self._in_free[destination] = free
            self._clock.at(free, deliver, *message)
