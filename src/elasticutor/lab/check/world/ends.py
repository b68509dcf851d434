"""Simulated sources and sinks around the core's: what is read, what is shown, and how slowly."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from elasticutor.core.protocol import coordinator as co
from elasticutor.core.protocol import events as ev
from elasticutor.core.protocol import instructions as do
from elasticutor.core.protocol.ids import Attempt, Epoch, Peer
from elasticutor.core.protocol.sink import (
    AbortOutput,
    CommitOutput,
    PrepareOutput,
    SinkOrder,
    SinkSide,
    WriteHeld,
)
from elasticutor.core.protocol.source import (
    CommitOffset,
    ReadFrom,
    SourceOrder,
    SourceSide,
)
from elasticutor.lab.check.pipeline import ROW_BYTES, SINK, ChainOperator, Row
from elasticutor.lab.check.world.hosts import TuplesSent
from elasticutor.lab.check.world.network import Address

if TYPE_CHECKING:
    from elasticutor.lab.check.stream import TopologyRun

_RESTARTS = 0.2
"""Chance that a source or sink meets a new attempt as a new process."""


class SourceHost:
    """A source's process, and the log that it reads: in order, as fast as it may."""

    def __init__(
        self, run: TopologyRun, name: Peer, incarnation: int, root: ChainOperator, rows: list[Row]
    ) -> None:
        self.run = run
        self.name = name
        self.root = root
        self.rows = rows
        self._address = Address(f"{name}#{incarnation}")
        self._side = self._new_side()
        self._position = 0
        self._forgotten = 0  # rows before it are gone from the log
        self._waiting = False
        run.world.network.join(self._address, self.receive)
        run.world.peers[name] = self._address

    def receive(self, sender: Address, message: Any) -> None:
        """Take an order of the coordinator or a credit of an executor in."""
        match message:
            case co.StartSource():
                if self.run.rng.random() < _RESTARTS:
                    self._side = self._new_side()
                self._carry_out(self._side.start(message))
            case co.EndEpoch():
                self._carry_out(self._side.end_epoch(message, self._position))
            case co.CommitEpoch():
                self._carry_out(self._side.commit(message))
            case co.StopSending():
                self._side.drain()
            case ev.CreditGranted(executor, attempt, total):
                self._carry_out(self._side.credit(executor, attempt, total))
                if self._waiting and not self._blocked:
                    self._waiting = False
                    self._produce(self._side.attempt)

    def end(self) -> None:
        """Let the process be gone."""
        self._side = self._new_side()
        self.run.world.network.leave(self._address)

    def _new_side(self) -> SourceSide:
        first = self.run.scenario.config.min_credit_bytes
        limit = 4 * self.run.scenario.source_rows * ROW_BYTES
        return SourceSide(self.name, self.root.executor_names, first=first, limit=limit)

    @property
    def _blocked(self) -> bool:
        return self._side.outputs.blocked(self.name)

    def _carry_out(self, orders: Iterable[SourceOrder]) -> None:
        world = self.run.world
        for order in orders:
            match order:
                case do.Emit() | do.EmitMarker():
                    world.emit(self.name, self._address, order)
                case co.ParticipantPrepared() | co.SourceExhausted():
                    world.network.send(self._address, world.driver, order)
                case ReadFrom(offset):
                    self._read_from(offset or 0)
                case CommitOffset(offset):
                    self._forgotten = offset

    def _read_from(self, offset: int) -> None:
        if offset < self._forgotten:
            self.run.oracle.violate(f"{self.name}: rows from {offset} on were forgotten")
        self._position = offset
        self._waiting = False
        self._produce(self._side.attempt)

    def _produce(self, attempt: Attempt) -> None:
        side = self._side
        if attempt != side.attempt or side.silent:
            return
        if self._position >= len(self.rows):
            self._carry_out(side.exhaust())
            return
        if self._blocked:
            self._waiting = True
            return
        scenario, rng = self.run.scenario, self.run.rng
        count = rng.randint(1, scenario.source_rows * 2)
        batch = self.rows[self._position : self._position + count]
        self._position += len(batch)
        for executor, rows in self.root.by_executor(batch).items():
            side.outputs.add(ev.Output(executor, rows, self.root.size(len(rows)), len(rows)))
            self._carry_out(side.outputs.send(executor, attempt))
        slow = 20 if rng.random() < 0.01 else 1
        pause = scenario.source_interval_s * rng.uniform(0.2, 1.8) * slow
        self.run.clock.after(pause, self._produce, attempt)


class SinkHost:
    """A sink's process, and the transactions that outlive it: published when committed."""

    def __init__(self, run: TopologyRun, upstreams: list[Peer]) -> None:
        self.run = run
        self._address = Address(SINK)
        self._upstreams = upstreams
        self._side = self._new_side()
        self._written: list[Row] = []  # in the open epoch
        self._drafts: dict[tuple[Attempt, Epoch], list[Row]] = {}

    def end(self) -> None:
        """End the process; its transactions stay with the system that it writes to."""
        self._side = self._new_side()
        self.run.world.network.leave(self._address)

    def come_back(self, incarnation: int) -> None:
        """Let a process of its own take its place, at another address."""
        self._side = self._new_side()
        self._address = Address(f"{SINK}#{incarnation}")
        self.run.world.network.join(self._address, self.receive)

    def receive(self, sender: Address, message: Any) -> None:
        """Take outputs, markers and orders of the coordinator in."""
        match message:
            case co.BeginAttempt():
                if self.run.rng.random() < _RESTARTS:
                    self._side = self._new_side()
                self._carry_out(self._side.begin(message))
            case co.CommitEpoch():
                if self.run.rng.random() < self.run.scenario.rates.crash_before_commit:
                    self.run.lose_sink()
                else:
                    self._carry_out(self._side.commit(message))
            case TuplesSent(peer, attempt, rows, size):
                if self._side.arrive(peer, attempt, size, rows):
                    self._write(peer, attempt, rows, size)
            case ev.MarkerArrived(peer, attempt, epoch):
                self._carry_out(self._side.mark(peer, attempt, epoch))
            case co.AskToRest():
                rested = co.ParticipantRested(SINK)
                self.run.world.network.send(self._address, self.run.world.driver, rested)

    def _new_side(self) -> SinkSide:
        first = self.run.scenario.config.min_credit_bytes
        return SinkSide(SINK, self._upstreams, first=first, limit=first)

    def _carry_out(self, orders: Iterable[SinkOrder]) -> None:
        world = self.run.world
        for order in orders:
            match order:
                case WriteHeld(peer, attempt, size, rows):
                    self._write(peer, attempt, rows, size)
                case PrepareOutput(attempt, epoch):
                    draft = attempt, epoch
                    self._drafts[draft], self._written = self._written, []
                    self.run.clock.after(self.run.storage_s(), self._prepared, *draft, draft)
                case CommitOutput(_, note):
                    self.run.published.extend(self._drafts.pop(note, ()))
                case AbortOutput():
                    self._written.clear()
                    self._drafts.clear()
                case co.ParticipantReady() | co.ParticipantPrepared():
                    world.network.send(self._address, world.driver, order)

    def _prepared(self, attempt: Attempt, epoch: Epoch, note: Any) -> None:
        self._carry_out(self._side.prepared(attempt, epoch, note))

    def _write(self, peer: Peer, attempt: Attempt, rows: Any, size: int) -> None:
        self._written.extend(rows)
        slow = 0.05 if self.run.rng.random() < 0.02 else 0.0
        self.run.clock.after(slow, self._grant, peer, attempt, size)

    def _grant(self, peer: Peer, attempt: Attempt, size: int) -> None:
        grant = self._side.written(peer, attempt, size)
        if grant is not None:
            granted = ev.CreditGranted(SINK, grant.attempt, grant.total)
            self.run.world.send(self._address, peer, granted)
