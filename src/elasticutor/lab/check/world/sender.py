"""An upstream's sending side, simulated: it keeps to its credits as the live one does."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from elasticutor.core.executor.emitter import Emitter
from elasticutor.core.protocol import events as ev
from elasticutor.core.protocol.ids import Attempt, Epoch, Peer
from elasticutor.lab.check.world.hosts import CheckedOperator, Rows, World
from elasticutor.lab.check.world.network import Address


class Sender:
    """Sends tuples and markers to the executors of one operator, in order and within credit."""

    def __init__(
        self, world: World, name: Peer, address: Address, operator: CheckedOperator
    ) -> None:
        self._world = world
        self._name = name
        self._address = address
        self._operator = operator
        self._outputs = Emitter([], first=0, limit=0, returned=False)
        self.attempt = Attempt(0)

    def open(self, attempt: Attempt, executors: Iterable[Peer], *, first: int, limit: int) -> None:
        """Start an attempt; forget what was not sent in the one before."""
        self.attempt = attempt
        self._outputs = Emitter(executors, first=first, limit=limit, returned=False)

    @property
    def blocked(self) -> bool:
        """Whether too much waits for credit to add more."""
        return self._outputs.blocked(self._name)

    def put(self, batches: Mapping[Peer, Rows]) -> None:
        """Send a batch to each of some executors, as far as their credit goes."""
        for executor, rows in batches.items():
            size = self._operator.size(len(rows))
            self._outputs.add(ev.Output(executor, rows, size, len(rows)))
            self._send(executor)

    def end_epoch(self, epoch: Epoch) -> None:
        """Send a marker to every executor, behind all batches."""
        self._outputs.end_epoch(epoch)
        for executor in self._outputs.destinations:
            self._send(executor)

    def credit(self, executor: Peer, total: int) -> None:
        """An executor takes more."""
        self._outputs.credit(executor, total)
        self._send(executor)

    def _send(self, executor: Peer) -> None:
        for order in self._outputs.send(executor, self.attempt):
            self._world.emit(self._name, self._address, order)
