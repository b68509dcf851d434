"""A simulated network: processes with addresses, and a channel between any two of them."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NewType

from elasticutor.lab.sim.clock import Clock

Address = NewType("Address", str)

Receive = Callable[[Address, Any], None]
"""Called with the sender and the message."""


@dataclass(slots=True, eq=False)
class Channel:
    """Delivers messages after delays of their own, in the order in which they were sent."""

    clock: Clock
    delay: Callable[[], float]
    deliver: Callable[[Any], None]
    _free_at: float = 0.0
    _open: bool = True

    def send(self, message: Any) -> None:
        """Send a message."""
        if self._open:
            self._free_at = max(self._free_at, self.clock.now + self.delay())
            self.clock.at(self._free_at, self._arrive, message)

    def cut(self) -> None:
        """Lose all messages that are under way, and all that follow."""
        self._open = False

    def _arrive(self, message: Any) -> None:
        if self._open:
            self.deliver(message)


class Network:
    """Knows which processes are alive, and what is under way between them.

    A process that ends loses what is on its way to it. What it had sent before may still arrive or
    may be lost with it: both happen to sockets.
    """

    def __init__(self, clock: Clock, rng: random.Random, delay: Callable[[], float]) -> None:
        self._clock = clock
        self._rng = rng
        self._delay = delay
        self._receivers: dict[Address, Receive] = {}
        self._channels: dict[tuple[Address, Address], Channel] = {}

    def join(self, address: Address, receive: Receive) -> None:
        """Add a process; it can be reached from now on."""
        self._receivers[address] = receive

    def leave(self, address: Address) -> None:
        """Remove a process."""
        self._receivers.pop(address, None)
        lose_sent = self._rng.random() < 0.5
        for (source, destination), channel in list(self._channels.items()):
            if destination == address or (source == address and lose_sent):
                channel.cut()
            if address in (source, destination):
                del self._channels[source, destination]

    def send(self, source: Address, destination: Address, message: Any) -> None:
        """Send a message, behind all earlier ones between the two."""
        if destination not in self._receivers or source not in self._receivers:
            return
        channel = self._channels.get((source, destination))
        if channel is None:
            receive = self._receivers[destination]
            channel = Channel(self._clock, self._delay, lambda m: receive(source, m))
            self._channels[source, destination] = channel
        channel.send(message)
