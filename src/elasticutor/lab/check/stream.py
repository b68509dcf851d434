"""Checked runs of a continuous topology: sources, a sink, and the core's coordinator."""

from __future__ import annotations

from typing import Any

from elasticutor.core.protocol import coordinator as co
from elasticutor.core.protocol import events as ev
from elasticutor.core.protocol import instructions as do
from elasticutor.core.protocol.ids import Peer
from elasticutor.errors import StaleAttemptError
from elasticutor.lab.check.pipeline import SINK, ChainOperator, Expected, fold
from elasticutor.lab.check.run import CheckedRun
from elasticutor.lab.check.scenario import Scenario
from elasticutor.lab.check.trace import Trace
from elasticutor.lab.check.world.ends import SinkHost, SourceHost
from elasticutor.lab.check.world.hosts import ExecutorHost
from elasticutor.lab.check.world.network import Address


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
