"""The driver's view of one run: it starts everybody, drives the epochs, and ends everything.

```
starting ──all registered──▶ running ──stop, or sources exhausted──▶ draining ──▶ drained ──▶ ended
    └──────────────────────────┴──── anybody lost or failed ───────────┴──▶ ending ─────────▶ ended
```

Lives in the hub's thread; only `Run` (the user's handle) looks at it from another, under `changed`.
"""

from __future__ import annotations

import math
import pickle
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any

import cloudpickle
import pyarrow as pa

from elasticutor.core import coordinator as co
from elasticutor.core import instructions as do
from elasticutor.core.ids import NodeId, Peer
from elasticutor.core.paradigm import Paradigm
from elasticutor.core.placement import Placement
from elasticutor.errors import ElasticutorError, ProtocolError
from elasticutor.runtime import messages as say
from elasticutor.runtime.blueprint import Blueprint
from elasticutor.runtime.channels import Endpoint
from elasticutor.runtime.failures import described_end
from elasticutor.runtime.hosts import ends_name
from elasticutor.runtime.journal import Journal
from elasticutor.runtime.ledger import Ledger
from elasticutor.runtime.packets import open_batch
from elasticutor.runtime.repartitioning import ANSWERS, Lead
from elasticutor.runtime.scheduling import Interval
from elasticutor.sinks import Writer
from elasticutor.topology import Plan, StagePlan

if TYPE_CHECKING:
    from elasticutor.runtime.hub import Hub

_GRACE_S = 2.0
"""How long processes have to end by themselves."""
_SETTLE_S = 0.6
"""For so long after the first tuple the scheduler looks at nothing: the first chunks are slow."""


class RunError(ElasticutorError, RuntimeError):
    """A run that ended by a failure: who failed, and how."""

    def __str__(self) -> str:
        said = f"{self.who} {self.got}"
        return f"{said}. Hint: {self.hint}" if self.hint else said


class RunPhase(Enum):
    """Where a run is in its life."""

    STARTING = "starting"
    RUNNING = "running"
    DRAINING = "draining"
    DRAINED = "drained"
    ENDING = "ending"
    ENDED = "ended"


class Supervisor:
    """One run, seen from the driver."""

    def __init__(
        self,
        hub: Hub,
        run: str,
        plan: Plan,
        placements: Mapping[Peer, Placement],
        *,
        blueprint: Blueprint,
        paradigm: Paradigm,
        latency_target: float | None,
        journal: Journal,
        ends_hosts: int,
        start_timeout_s: float,
        end_when_drained: bool,
    ) -> None:
        self._hub = hub
        self.run = run
        self.plan = plan
        self.cores = {who: dict(placed.cores) for who, placed in placements.items()}
        """The cores that every executor should have, by node."""
        self.paradigm = paradigm
        self.latency_target = latency_target
        """What the scheduler aims at, in seconds; None: it leaves the run alone."""
        self.by_hand: set[Peer] = set()
        """Executors whose cores somebody has set: the scheduler leaves them alone."""
        self.interval = Interval()
        self._placements = placements
        self._blueprint = blueprint
        self.journal = journal
        self.ledger = Ledger()
        self.changed = threading.Condition()
        self.phase = RunPhase.STARTING
        self.error: Exception | None = None
        self._ends_hosts = ends_hosts
        self.ends_by_itself = end_when_drained
        self._began_at = time.monotonic()
        self._start_by = self._began_at + start_timeout_s
        self._running_at = math.inf
        self._end_by = float("inf")
        self._book: dict[str, Endpoint] = {}
        self.pids: dict[str, int] = {}
        self.executors = _processes(plan.operators)
        self.sources = _processes(plan.sources)
        self._sinks = _processes(plan.sinks)
        self._everybody = (*self.executors, *self.sources, *self._sinks)
        self._hosts_up: dict[int, str] = {}
        """Hosts of sources and sinks, and in words where they are."""
        self._exhausted: set[Peer] = set()
        self._restless: set[Peer] = set()
        self._was_drained = False
        self._left: set[str] = set()
        """Those that have yet to say that nothing of the run is left there: nodes, and the hosts
        of sources and sinks."""
        self.collected: dict[str, Writer] = {}
        self._schemas = {sink.name: sink.schema for sink in plan.sinks}
        self._callbacks: list[Callable[[], None]] = []
        self.recounts: dict[Peer, tuple[str, ...]] = {}
        self.state_read: dict[int, list[say.StateRead]] = {}
        self.coordinator = co.Coordinator(self.executors, self.sources, self._sinks)
        self._leads = self._make_leads() if paradigm == "rc" else {}
        self._drains = False  # as soon as no shard is on the move between executors
        for sink in plan.sinks:
            if sink.collects:
                self.collected[sink.name] = cloudpickle.loads(sink.blob).open(0, sink.schema)

    # Starting

    def start(self) -> None:
        """Have all main processes started; sources and sinks follow when their hosts are up."""
        self.journal.write(
            "run started",
            run=self.run,
            topology=self.plan.name,
            paradigm=self.paradigm,
            cores={who: dict(cores) for who, cores in self.cores.items()},
        )
        for node, order in self._blueprint.executors():
            self._hub.send_node(node, order)

    def _on_host_up(self, message: say.EndsHostUp) -> None:
        """Give a host of sources and sinks its share of them."""
        if message.number in self._hosts_up:
            # Spark tries a lost task again, but what the first one had sent cannot be taken back.
            who = f"host {message.number} of sources and sinks{self._hosts_up[message.number]}"
            self.fail(RunError(who, "go on", "was lost, and has been started anew"))
        if self.phase in (RunPhase.ENDING, RunPhase.ENDED):
            self._hub.mail.know(self._name(ends_name(message.number)), message.endpoint)
            self._send(ends_name(message.number), say.EndRun(self.run, 0.0))
            return
        near = [n for n, seen in sorted(self._hub.nodes.items()) if seen.home == message.home]
        beside = f", beside {' and '.join(f'node {node!r}' for node in near)}," if near else ""
        self._hosts_up[message.number] = beside
        ends: list[tuple[str, str, bytes]] = []
        for place, (kind, who, make) in enumerate(self._blueprint.ends()):
            if place % self._ends_hosts == message.number:
                if near:
                    site = self._blueprint.site(near[place % len(near)])
                else:
                    site = self._blueprint.site_elsewhere(message)
                ends.append((kind, who, pickle.dumps(make(site), pickle.HIGHEST_PROTOCOL)))
        self._hub.mail.know(self._name(ends_name(message.number)), message.endpoint)
        self._send(ends_name(message.number), say.StartEnds(tuple(ends)))

    def _on_registered(self, message: say.Registered) -> None:
        self._book[message.who] = message.endpoint
        self.pids[message.who] = message.pid
        self._hub.mail.know(self._name(message.who), message.endpoint)
        if self.phase is RunPhase.STARTING and set(self._everybody) <= set(self._book):
            for who in self._everybody:
                self._send(who, say.Peers(self._book))
            self._enact(self.coordinator.start())

    def _name(self, who: str) -> str:
        return f"{self.run} {who}"

    def _send(self, who: str, message: Any) -> None:
        self._hub.mail.send(self._name(who), message)

    # Epochs

    def _enact(self, orders: list[co.Order]) -> None:
        for order in orders:
            match order:
                case co.WriteManifest(epoch=epoch):
                    # Without a checkpoint a manifest has nothing to name: the epoch is over.
                    self._enact(self.coordinator.handle(co.ManifestWritten(epoch)))
                    if self.phase is RunPhase.DRAINING:
                        self._come_to_rest()
                case co.StartSource(who=who):
                    self._send(who, order)
                    if self.phase is RunPhase.STARTING:
                        self.journal.write("run running", run=self.run, seconds=self._age())
                        self._running_at = time.monotonic()
                        self._set_phase(RunPhase.RUNNING)
                case _:
                    self._send(order.who, order)

    def _age(self) -> float:
        return round(time.monotonic() - self._began_at, 6)

    def _on_said(self, message: say.Said) -> None:
        what, who = message.what, message.who
        match what:
            case do.ReportReady(attempt):
                self._enact(self.coordinator.handle(co.ParticipantReady(who, attempt)))
            case do.ReportPrepared(attempt, epoch):
                self._enact(self.coordinator.handle(co.ParticipantPrepared(who, attempt, epoch)))
            case do.ReportFailure(_, reason):
                self.fail(RunError(who, "go on", f"failed: {reason}"))
            case do.ReportMove():
                self._journal_move(who, what)
            case say.MoveRefused():
                self.journal.write(
                    "move refused", executor=who, shard=what.shard, cause="asked", reason=what.why
                )
            case say.Rested():
                self._on_rested(who)
            case do.ReportHotShards(shards):
                self.journal.write("hot shards", executor=who, shards=list(shards))
            case co.ParticipantReady() | co.ParticipantPrepared():
                self._enact(self.coordinator.handle(what))
            case _ if isinstance(what, ANSWERS):
                self._lead_of(who, what).take(what)
            case _:
                self._hub.mail.drop(f"{type(what).__name__} is no report")

    def _journal_move(self, who: Peer, move: do.ReportMove) -> None:
        self.journal.write(
            "shard moved",
            executor=who,
            shard=move.shard,
            source=move.source,
            destination=move.destination,
            remote=move.remote,
            cause=move.cause,
            sync_ms=round(move.sync_s * 1e3, 4),
            migration_ms=round(move.migration_s * 1e3, 4),
            bytes=move.copied + move.migrated,
            bytes_held=move.migrated,
        )

    # Shards that change their executor

    def _make_leads(self) -> dict[str, Lead]:
        return {
            operator.name: Lead(
                self,
                operator.name,
                operator.shards,
                [(Peer(who), self._placements[Peer(who)].node) for who in operator.processes],
                _peers(self.plan.upstreams_of(operator.processes[0])),
                send_node=self._hub.send_node,
                send=self._send,
            )
            for operator in self.plan.operators
        }

    def _lead_of(self, who: Peer, what: Any) -> Lead:
        """Whoever leads the operator that an answer is about."""
        named = getattr(what, "operator", "") or who
        return self._leads.get(named) or self._leads[who.rpartition(".")[0]]

    def lead(self, operator: str) -> Lead:
        """Whoever leads an operator's shards from executor to executor."""
        return self._leads[operator]

    def _on_shard_loads(self, message: say.ShardLoads) -> None:
        self._lead_of(message.who, message).loads(message)

    def round_over(self) -> None:
        """No shard of some operator is on the move any more."""
        if self._drains:
            self._drains = False
            self.drain()

    def fail_for(self, who: str, reason: str) -> None:
        """End the run, because of somebody."""
        self.fail(RunError(who, "go on", f"failed: {reason}"))

    # Cores

    @property
    def is_running(self) -> bool:
        """Whether tuples flow."""
        return self.phase is RunPhase.RUNNING

    @property
    def has_settled(self) -> bool:
        """Whether tuples have flowed for long enough that what is measured means something."""
        return self.is_running and time.monotonic() - self._running_at >= _SETTLE_S

    @property
    def is_over(self) -> bool:
        """Whether it has given back all of its cores."""
        return self.phase is RunPhase.ENDED

    @property
    def feeds(self) -> dict[str, tuple[str, ...]]:
        """What every operator and sink is fed by."""
        operators = {operator.name: operator.inputs for operator in self.plan.operators}
        return operators | {sink.name: sink.inputs for sink in self.plan.sinks}

    def set_cores(self, who: Peer, wanted: Mapping[NodeId, int]) -> None:
        """Tell an executor which cores it should have from now on."""
        self.cores[who] = dict(wanted)
        self._send(who, say.SetCores(dict(wanted)))

    def on_ended(self, callback: Callable[[], None]) -> None:
        """Have something done when the run has ended; must not take long."""
        self._callbacks.append(callback)

    def home(self, who: Peer) -> NodeId:
        """The node of an executor's main process."""
        return self._placements[who].node

    def ask(self, who: Peer, message: Any) -> None:
        """Send something to an executor."""
        self._send(who, message)

    def _on_staff(self, message: say.Staff) -> None:
        self.ledger.staff(message)
        if message.cause:
            kind = "core granted" if message.cause.endswith("started") else "core taken"
            self.journal.write(
                kind,
                executor=message.who,
                cause=message.cause,
                cores=len(message.tasks),
                seconds=round(message.seconds, 6),
            )
        with self.changed:
            self.changed.notify_all()
        self._hub.staff_changed()

    # The end

    def drain(self) -> None:
        """Let the sources stop, and everything that they have sent be processed."""
        if any(lead.busy for lead in self._leads.values()):
            self._drains = True  # a paused source cannot end an epoch: the round ends first
        elif self.phase is RunPhase.RUNNING:
            self._set_phase(RunPhase.DRAINING)
            for source in self.sources:
                self._send(source, say.Drain())
            self._enact(self.coordinator.handle(co.EpochDue()))

    def _on_exhausted(self, message: say.Exhausted) -> None:
        self._exhausted.add(message.who)
        if self._exhausted == set(self.sources):
            self.drain()

    def _come_to_rest(self) -> None:
        """Everything is processed; before state is read, the last shard must have arrived."""
        if self.ends_by_itself:
            self._drained()
            self.end()
            return
        self._restless = set(self.executors)
        for who in self.executors:
            self._send(who, say.Rest())

    def _on_rested(self, who: Peer) -> None:
        self._restless.discard(who)
        if not self._restless and self.phase is RunPhase.DRAINING:
            self._drained()

    def _drained(self) -> None:
        self._was_drained = True
        self.journal.write("run drained", run=self.run, seconds=self._age())
        self._set_phase(RunPhase.DRAINED)

    def end(self) -> None:
        """End every process of the run."""
        if self.phase in (RunPhase.ENDING, RunPhase.ENDED):
            return
        self._set_phase(RunPhase.ENDING)
        for who in self._everybody:
            if who in self._book:
                self._send(who, say.Finish())
        order = say.EndRun(self.run, _GRACE_S)
        self._end_by = time.monotonic() + 4 * _GRACE_S
        self._hub.send_nodes(self._hub.nodes, order)
        hosts = {ends_name(number) for number in self._hosts_up}
        for host in hosts:
            self._send(host, order)
        self._left = {*self._hub.nodes, *hosts}
        self._try_to_close()

    def fail(self, error: Exception) -> None:
        """End the run because of a failure; only the first one counts."""
        if self.phase in (RunPhase.ENDING, RunPhase.ENDED):
            return
        self.error = error
        self.journal.write("failure", run=self.run, reason=str(error))
        self.end()

    def _on_failed(self, message: say.Failed) -> None:
        error = _unpickled(message)
        if self.phase is RunPhase.ENDING and self._was_drained and self.error is None:
            # A sink that cannot close has lost what it had kept: that is no success.
            self.error = error
            self.journal.write("failure", run=self.run, reason=str(error))
        else:
            self.fail(error)

    def lost(self, who: str, code: int, said: str, where: str) -> None:
        """A process has ended that should not have."""
        how = described_end(code)
        last = f"\nIts last words:\n{said.rstrip()}" if said.strip() else ""
        reason = f"was lost: its process on {where} ended ({how}){last}"
        self.fail(RunError(who, "go on", reason))

    def node_lost(self, node: NodeId, reason: str) -> None:
        """A node is gone."""
        self._left.discard(node)
        used = {n for cores in self.cores.values() for n, count in cores.items() if count}
        used |= {placed.node for placed in self._placements.values()}
        if node in used:
            self.fail(RunError(f"node {node!r}", "go on", f"was lost: {reason}"))
        self._try_to_close()

    def _on_run_ended(self, message: say.RunEnded) -> None:
        self._left.discard(message.node)
        self._try_to_close()

    def ends_host_lost(self, number: int, how: str) -> None:
        """A host of sources and sinks has ended; if the run goes on, that was too early."""
        if number in self._hosts_up and self.phase not in (RunPhase.ENDING, RunPhase.ENDED):
            reason = f"was lost: its process ended ({how})"
            self.fail(RunError(f"host {number} of sources and sinks", "go on", reason))
        self._left.discard(ends_name(number))
        self._try_to_close()

    def _try_to_close(self) -> None:
        if self.phase is not RunPhase.ENDING or self._left:
            return
        for who in self._book:
            self._hub.mail.forget(self._name(who))
        for number in self._hosts_up:
            self._hub.mail.forget(self._name(ends_name(number)))
        self.journal.write(
            "run ended", run=self.run, seconds=self._age(), error=str(self.error or "")
        )
        self.journal.close()
        self._set_phase(RunPhase.ENDED)
        for callback in self._callbacks:
            callback()

    def abandon(self) -> None:
        """The cluster is gone, and with it every process of the run."""
        if self.phase is not RunPhase.ENDED:
            gone = RunError("cluster", "outlive its runs", "was stopped while the run was going on")
            self.error = self.error or (gone if self.phase is not RunPhase.ENDING else None)
            self._left.clear()
            self.phase = RunPhase.ENDING
            self._try_to_close()

    def tick(self) -> None:
        """Look at the clock: nobody may be waited for without end, nor left without a word."""
        now = time.monotonic()
        if self.phase is not RunPhase.ENDED:
            for number in self._hosts_up:
                self._send(ends_name(number), say.Beat())
        if self.phase is RunPhase.RUNNING:
            for lead in self._leads.values():
                lead.tick(may_begin=not self._drains)
        if self.phase is RunPhase.STARTING and now > self._start_by:
            self.fail(RunError("run", "start in time", f"did not start in time: {self.missing()}"))
        if self.phase is RunPhase.ENDING and now > self._end_by:
            left = ", ".join(sorted(self._left))
            self.journal.write("failure", run=self.run, reason=f"no word of its end from {left}")
            self._left.clear()
            self._try_to_close()

    def missing(self) -> str:
        """Who has yet to come up, in words."""
        absent = [who for who in self._everybody if who not in self._book]
        hosts = sorted(set(range(self._ends_hosts)) - self._hosts_up.keys())
        if not absent:
            return "; ".join(self.coordinator.waiting_for())
        words = f"no word from {', '.join(absent)}"
        if hosts:
            words += (
                f"; the Spark job for sources and sinks has not started {len(hosts)} of its "
                f"{self._ends_hosts} tasks: are there free slots?"
            )
        return words

    # Everything that arrives

    def take(self, message: Any) -> None:
        """A message of this run."""
        handler = _HANDLERS.get(type(message))
        if handler is None:
            self._hub.mail.drop(f"{type(message).__name__} is not for a run")
            return
        try:
            handler(self, message)
        except ProtocolError as error:
            if self.phase not in (RunPhase.ENDING, RunPhase.ENDED):
                self._hub.mail.drop(str(error))

    def _on_collected(self, message: say.Collected) -> None:
        if message.who not in self.collected:
            return
        schema = self._schemas[message.who]
        batch: pa.RecordBatch = open_batch(message.data, message.rows, schema)
        try:
            with self.changed:
                self.collected[message.who].write(batch)
        except ElasticutorError as error:
            self.fail(error)

    def _on_recount(self, message: say.Recount) -> None:
        with self.changed:
            self.recounts[message.who] = message.waits
            self.changed.notify_all()

    def _on_state_read(self, message: say.StateRead) -> None:
        with self.changed:
            self.state_read.setdefault(message.ask, []).append(message)
            self.changed.notify_all()

    def _on_measured(self, message: say.Measured) -> None:
        self.ledger.executor(message)
        if self.latency_target is not None and self.has_settled:
            self.interval.executor(message)

    def _on_source_measured(self, message: say.SourceMeasured) -> None:
        self.ledger.source(message)
        if self.latency_target is not None and self.has_settled:
            self.interval.source(message)

    def _on_sink_measured(self, message: say.SinkMeasured) -> None:
        self.ledger.sink(message)

    def _on_process_ended(self, message: say.ProcessEnded) -> None:
        self.lost(message.who, message.code, message.said, f"node {message.node!r}")

    def _set_phase(self, phase: RunPhase) -> None:
        with self.changed:
            self.phase = phase
            self.changed.notify_all()


def _processes(stages: Sequence[StagePlan]) -> tuple[Peer, ...]:
    return _peers(process for stage in stages for process in stage.processes)


def _peers(names: Iterable[str]) -> tuple[Peer, ...]:
    return tuple(map(Peer, names))


def _unpickled(message: say.Failed) -> Exception:
    """The error that was raised elsewhere, if it can be had; otherwise what it said."""
    if message.error:
        try:
            error = pickle.loads(message.error)  # noqa: S301 - of our own processes, authenticated
        except Exception:
            error = None
        if isinstance(error, ElasticutorError):
            return error
    return RunError(message.who, "go on", f"failed: {message.text}")


_HANDLERS: dict[type, Callable[[Supervisor, Any], None]] = {
    say.EndsHostUp: Supervisor._on_host_up,
    say.Registered: Supervisor._on_registered,
    say.Said: Supervisor._on_said,
    say.Staff: Supervisor._on_staff,
    say.Exhausted: Supervisor._on_exhausted,
    say.Failed: Supervisor._on_failed,
    say.RunEnded: Supervisor._on_run_ended,
    say.Collected: Supervisor._on_collected,
    say.Recount: Supervisor._on_recount,
    say.StateRead: Supervisor._on_state_read,
    say.ShardLoads: Supervisor._on_shard_loads,
    say.Measured: Supervisor._on_measured,
    say.SourceMeasured: Supervisor._on_source_measured,
    say.SinkMeasured: Supervisor._on_sink_measured,
    say.ProcessEnded: Supervisor._on_process_ended,
}
