"""Checked runs of a continuous topology: sources, a sink, and the core's coordinator."""

from __future__ import annotations

from typing import Any

from elasticutor.core.protocol import coordinator as co
from elasticutor.core.protocol import events as ev
from elasticutor.core.protocol import instructions as do
from elasticutor.core.protocol.ids import Attempt, Epoch, Peer
from elasticutor.errors import StaleAttemptError
from elasticutor.lab.check.pipeline import ROW_BYTES, SINK, ChainOperator, Expected, Row, fold
from elasticutor.lab.check.run import CheckedRun
from elasticutor.lab.check.scenario import Scenario
from elasticutor.lab.check.trace import Trace
from elasticutor.lab.check.world.hosts import CreditSent, ExecutorHost, MarkerSent, TuplesSent
from elasticutor.lab.check.world.network import Address
from elasticutor.lab.check.world.sender import Sender


class TopologyRun(CheckedRun):
    """A topology whose epochs the core's coordinator drives."""

    def __init__(self, scenario: Scenario, trace: Trace | None = None) -> None:
        super().__init__(scenario, trace)
        self._sources = self._start_sources(0)
        last = [operator for operator in scenario.operators if not operator.downstream]
        self._sink = SinkHost(self, [name for op in last for name in op.executor_names])
        self._upstreams = self._find_upstreams()
        self._drivers = 0
        self._writing: co.WriteManifest | None = None
        self._coordinator = self._make_coordinator()

    def start(self) -> None:
        """Let the coordinator begin, and end an epoch now and then."""
        self._obey(self._coordinator.start())
        self.kernel.after(self.scenario.epoch_s, self._epoch_due)

    def expected(self) -> Expected:
        """What a sequential run comes to."""
        inputs = self.scenario.inputs
        return fold([(self.scenario.root_of(n), rows) for n, rows in enumerate(inputs)])

    def waiting_for(self) -> list[str]:
        """Why it does not go on, if it does not."""
        return [f"coordinator: {'; '.join(self._coordinator.waiting_for())}"]

    # The driver

    def _make_coordinator(self) -> co.Coordinator:
        return co.Coordinator(
            executors=[name for op in self.scenario.operators for name in op.executor_names],
            sources=[source.name for source in self._sources],
            sinks=[SINK],
        )

    def _start_sources(self, incarnation: int) -> list[SourceHost]:
        inputs = enumerate(self.scenario.inputs)
        return [
            SourceHost(self, Peer(f"source-{n}"), incarnation, self.scenario.root_of(n), rows)
            for n, rows in inputs
        ]

    def lose_driver(self) -> None:
        """The driver is gone, and with it every process that it had started; another one comes.

        A manifest that was being written may have become durable or not. The sink is a system of
        its own and stays.
        """
        self.abort("the driver was lost")
        old, self._drivers = self._coordinator, self._drivers + 1
        if self._writing is not None and self.rng.random() < 0.5:
            self._make_durable(self._writing)
        self._writing = None
        self.world.network.leave(self.world.driver)
        self.world.network.join(self.world.driver, self.driver_receives)
        for source in self._sources:
            source.end()
        for host in list(self.world.executors.values()):
            if host.alive:
                host.die()
            self.place_executor(host.name, self._operator_of(host))
        self._sources = self._start_sources(self._drivers)
        self._coordinator = self._make_coordinator()
        committed = self.world.durable.committed(next(iter(self.world.executors)))
        self._obey(self._coordinator.start(committed, self.world.durable.notes, old.attempt))

    def driver_receives(self, sender: Address, message: Any) -> None:
        """Take a message to the coordinator in."""
        match message:
            case (name, do.ReportReady(attempt)):
                self._tell(co.ParticipantReady(name, attempt))
            case (name, do.ReportPrepared(attempt, epoch)):
                self._tell(co.ParticipantPrepared(name, attempt, epoch))
            case (name, do.ReportFailure(attempt, reason)):
                self._tell(co.ParticipantFailed(name, attempt, reason))
            case _:
                self._tell(message)

    def executor_lost(self, host: ExecutorHost) -> None:
        """Tell the coordinator that a main process is gone."""
        self._tell(co.ParticipantLost(host.name, "its main process was lost"))

    def fail_something(self) -> None:
        """Let a source fail: it comes back at once, but cannot go on where it was."""
        self._tell(co.ParticipantLost(self.rng.choice(self._sources).name, "it was restarted"))

    def _tell(self, event: co.CoordinatorEvent) -> None:
        before = self._coordinator.attempt
        try:
            orders = self._coordinator.handle(event)
        except StaleAttemptError:
            return
        if not isinstance(event, co.EpochDue) or orders:
            self.note("driver", event)
        if self._coordinator.attempt > before:
            self.abort(str(event))
        self._obey(orders)

    def _obey(self, orders: list[co.Order]) -> None:
        for order in orders:
            match order:
                case co.WriteManifest():
                    self._writing = order
                    self.kernel.after(self.storage_s(), self._write_manifest, order)
                case co.BeginAttempt(who, attempt, base, epoch) if who in self.world.executors:
                    upstreams, destinations = self._upstreams[who], self._destinations(who)
                    self.begin(who, ev.AttemptBegun(attempt, base, epoch, upstreams, destinations))
                case co.CommitEpoch(who, attempt, epoch) if who in self.world.executors:
                    self._send(who, ev.EpochCommitted(attempt, epoch))
                case _:
                    self._send(order.who, order)

    def _send(self, peer: Peer, message: Any) -> None:
        self.world.send(self.world.driver, peer, message)

    def _write_manifest(self, order: co.WriteManifest) -> None:
        if order is not self._writing:
            return  # its driver is gone
        self._writing = None
        if self.rng.random() < self.scenario.rates.manifest_fails:
            self._tell(co.ManifestFailed(order.epoch, "no space left"))
            return
        self._make_durable(order)
        self._tell(co.ManifestWritten(order.epoch))
        finished = all(order.notes[source.name] == len(source.rows) for source in self._sources)
        self.done = finished and self._coordinator.phase is co.CoordinatorPhase.RUNNING

    def _make_durable(self, order: co.WriteManifest) -> None:
        for name in self.world.executors:
            self.world.durable.commit(name, order.epoch, order.attempt)
        self.world.durable.notes = order.notes
        self.oracle.counts["epochs"] += 1

    def _epoch_due(self) -> None:
        if not self.done:
            self._tell(co.EpochDue())
            self.kernel.after(self.scenario.epoch_s, self._epoch_due)

    # Who feeds whom

    def _find_upstreams(self) -> dict[Peer, tuple[Peer, ...]]:
        found: dict[Peer, list[Peer]] = {}
        for source in self._sources:
            for name in source.root.executor_names:
                found.setdefault(name, []).append(source.name)
        for operator in self.scenario.operators:
            for follower in operator.downstream:
                for name in follower.executor_names:
                    found.setdefault(name, []).extend(operator.executor_names)
        return {name: tuple(upstreams) for name, upstreams in found.items()}

    def _destinations(self, name: Peer) -> tuple[Peer, ...]:
        operator = self.world.executors[name].operator
        assert isinstance(operator, ChainOperator)
        followers = [peer for op in operator.downstream for peer in op.executor_names]
        return tuple(followers) or (SINK,)


class SourceHost:
    """A replayable source: it sends its tuples in order, as fast as it may."""

    def __init__(
        self, run: TopologyRun, name: Peer, incarnation: int, root: ChainOperator, rows: list[Row]
    ) -> None:
        self.run = run
        self.name = name
        self.root = root
        self.rows = rows
        self._address = Address(f"{name}#{incarnation}")
        self._sender = Sender(run.world, name, self._address, root)
        self._position = 0
        self._waiting = False
        run.world.network.join(self._address, self.receive)
        run.world.peers[name] = self._address

    def receive(self, sender: Address, message: Any) -> None:
        """Take an order of the coordinator or a credit of an executor in."""
        match message:
            case co.StartSource(_, attempt, _, offset):
                self._start(attempt, offset or 0)
            case co.EndEpoch(_, attempt, epoch) if attempt == self._sender.attempt:
                self._sender.end_epoch(epoch)
                prepared = co.ParticipantPrepared(self.name, attempt, epoch, self._position)
                self.run.world.network.send(self._address, self.run.world.driver, prepared)
            case CreditSent(executor, attempt, total) if attempt == self._sender.attempt:
                self._sender.credit(executor, total)
                if self._waiting and not self._sender.blocked:
                    self._waiting = False
                    self._produce(attempt)

    def end(self) -> None:
        """Let the process be gone."""
        self._sender.attempt = Attempt(-1)
        self.run.world.network.leave(self._address)

    def _start(self, attempt: Attempt, offset: int) -> None:
        first = self.run.scenario.config.min_credit_bytes
        limit = 4 * self.run.scenario.source_rows * ROW_BYTES
        self._sender.open(attempt, self.root.executor_names, first=first, limit=limit)
        self._position = offset
        self._waiting = False
        self._produce(attempt)

    def _produce(self, attempt: Attempt) -> None:
        if attempt != self._sender.attempt or self._position >= len(self.rows):
            return
        if self._sender.blocked:
            self._waiting = True
            return
        scenario, rng = self.run.scenario, self.run.rng
        count = rng.randint(1, scenario.source_rows * 2)
        batch = self.rows[self._position : self._position + count]
        self._position += len(batch)
        self._sender.put(self.root.by_executor(batch))
        slow = 20 if rng.random() < 0.01 else 1
        pause = scenario.source_interval_s * rng.uniform(0.2, 1.8) * slow
        self.run.kernel.after(pause, self._produce, attempt)


class SinkHost:
    """A transactional sink: it publishes an epoch when that is committed, and only then."""

    def __init__(self, run: TopologyRun, upstreams: list[Peer]) -> None:
        self.run = run
        self._address = Address(SINK)
        self._upstreams = upstreams
        self._attempt = Attempt(0)
        self._epoch_of: dict[Peer, Epoch] = {}
        self._taken: dict[Peer, int] = {}
        self._pending: dict[Epoch, list[Row]] = {}
        run.world.network.join(self._address, self.receive)
        run.world.peers[SINK] = self._address

    def receive(self, sender: Address, message: Any) -> None:
        """Take outputs, markers and orders of the coordinator in."""
        match message:
            case co.BeginAttempt(_, attempt, base, epoch):
                self._begin(attempt, base, epoch)
            case co.CommitEpoch(_, attempt, epoch) if attempt == self._attempt:
                self._publish(epoch)
            case TuplesSent(peer, attempt, rows, size) if attempt == self._attempt:
                self._pending.setdefault(self._epoch_of[peer], []).extend(rows)
                self._taken[peer] += size
                slow = 0.05 if self.run.rng.random() < 0.02 else 0.0
                self.run.kernel.after(slow, self._grant, peer, attempt)
            case MarkerSent(peer, attempt, epoch) if attempt == self._attempt:
                self._mark(peer, epoch)

    def _begin(self, attempt: Attempt, base: Epoch, epoch: Epoch) -> None:
        self._publish(base)
        self._pending.clear()
        self._attempt = attempt
        self._epoch_of = dict.fromkeys(self._upstreams, epoch)
        self._taken = dict.fromkeys(self._upstreams, 0)
        ready = co.ParticipantReady(SINK, attempt)
        self.run.world.network.send(self._address, self.run.world.driver, ready)

    def _grant(self, peer: Peer, attempt: Attempt) -> None:
        if attempt == self._attempt:
            total = self._taken[peer] + self.run.scenario.config.min_credit_bytes
            self.run.world.send(self._address, peer, CreditSent(SINK, attempt, total))

    def _mark(self, peer: Peer, epoch: Epoch) -> None:
        if self._epoch_of[peer] != epoch:
            self.run.oracle.violate(f"sink: {peer} ended epoch {epoch}, not {self._epoch_of[peer]}")
        self._epoch_of[peer] = Epoch(epoch + 1)
        if min(self._epoch_of.values()) > epoch:
            prepared = co.ParticipantPrepared(SINK, self._attempt, epoch)
            self.run.world.network.send(self._address, self.run.world.driver, prepared)

    def _publish(self, epoch: Epoch) -> None:
        for ready in sorted(e for e in self._pending if e <= epoch):
            self.run.published.extend(self._pending.pop(ready))
