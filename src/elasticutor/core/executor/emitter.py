"""The emitter: sends an executor's outputs on (paper 3.3)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from elasticutor.core.protocol.events import Output
from elasticutor.core.protocol.ids import Attempt, Epoch, Peer
from elasticutor.core.protocol.instructions import Emit, EmitMarker
from elasticutor.errors import OutOfOrderError, UnknownPeerError


@dataclass(slots=True)
class _Outlet:
    granted: int
    sent: int = 0
    buffered: int = 0
    waiting: deque[Output | Epoch] = field(default_factory=deque)
    ahead: list[Output] = field(default_factory=list)
    """Outputs of the next epoch, which wait for the marker of this one."""


class Emitter:
    """The emitter: outputs in order, per destination, sent as far as its credit goes (paper 3.3).

    When outputs are returned to the upstreams that caused them, each upstream answers for its own
    buffer only. When they are forwarded, all destinations share one limit: every chunk may have
    outputs for each of them.
    """

    def __init__(
        self, destinations: Iterable[Peer], *, first: int, limit: int, returned: bool
    ) -> None:
        self._outlets = {destination: _Outlet(granted=first) for destination in destinations}
        self._limit = limit
        self._returned = returned
        self._buffered = 0

    def require(self, destination: Peer) -> None:
        """Refuse a destination that the attempt does not name."""
        if destination not in self._outlets:
            raise UnknownPeerError("destination", f"be one of {sorted(self._outlets)}", destination)

    def add(self, output: Output, *, ahead: bool = False) -> None:
        """Put an output behind the others; one of the next epoch waits for this one's marker."""
        outlet = self._outlets[output.destination]
        (outlet.ahead if ahead else outlet.waiting).append(output)
        outlet.buffered += output.size
        self._buffered += output.size

    def end_epoch(self, epoch: Epoch, destinations: Iterable[Peer] | None = None) -> None:
        """Put a marker behind the outputs for these destinations; None: for all of them."""
        for destination in self._outlets if destinations is None else destinations:
            outlet = self._outlets[destination]
            outlet.waiting += [epoch, *outlet.ahead]
            outlet.ahead.clear()

    def require_rising(self, destination: Peer, total: int) -> int:
        """Refuse a credit that is below an earlier one; returns by how much it is above."""
        granted = self._outlets[destination].granted
        if total < granted:
            raise OutOfOrderError(f"credit of {destination!r}", f"be at least {granted}", total)
        return total - granted

    def credit(self, destination: Peer, total: int) -> None:
        """Take note of what a destination has granted."""
        self._outlets[destination].granted = total

    def send(self, destination: Peer, attempt: Attempt) -> list[Emit | EmitMarker]:
        """Return what may be sent to the destination now, in order."""
        outlet = self._outlets[destination]
        sent: list[Emit | EmitMarker] = []
        while outlet.waiting:
            item = outlet.waiting[0]
            if not isinstance(item, Output):
                sent.append(EmitMarker(destination, attempt, item))
            elif outlet.sent < outlet.granted:
                sent.append(Emit(destination, attempt, item.batch, item.size))
                outlet.sent += item.size
                outlet.buffered -= item.size
                self._buffered -= item.size
            else:
                break
            outlet.waiting.popleft()
        return sent

    @property
    def destinations(self) -> list[Peer]:
        """All that get outputs."""
        return list(self._outlets)

    @property
    def empty(self) -> bool:
        """Whether everything has been sent, markers included."""
        return not any(outlet.waiting or outlet.ahead for outlet in self._outlets.values())

    def buffered(self, upstream: Peer) -> int:
        """Bytes of outputs that wait on account of this upstream."""
        return self._outlets[upstream].buffered if self._returned else self._buffered

    def blocked(self, upstream: Peer) -> bool:
        """Whether so much waits that no more of this upstream's tuples should be processed."""
        return self.buffered(upstream) > self._limit

    def relieved(self, upstream: Peer) -> bool:
        """Whether so much has been taken that processing may go on; well below `blocked`."""
        return self.buffered(upstream) <= self._limit // 2
