"""The driver's view of one run: it starts everybody, drives the epochs, and ends everything.

```
starting ──all registered──▶ running ──stop, or sources exhausted──▶ draining ──▶ drained ──▶ ended
    └──────────────────────────┼──── anybody lost or failed ───────────┼──▶ ending ─────────▶ ended
                               └──▶ recovering, if there is a checkpoint ──▶ running, draining
```

Lives in the hub's thread; only `Run` (the user's handle) looks at it from another, under `changed`.
"""

from __future__ import annotations

import math
import pickle
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from elasticutor.core.protocol import coordinator as co
from elasticutor.core.protocol import instructions as do
from elasticutor.core.protocol.ids import Attempt, Epoch, NodeId, Peer
from elasticutor.core.run.phases import OVER, RunError, RunPhase, Terms
from elasticutor.core.run.restart_policy import RestartPolicy
from elasticutor.core.scheduler.placement import Placement
from elasticutor.driver.answers import Answers
from elasticutor.driver.blueprint import Blueprint
from elasticutor.driver.chronicle import REPORTS, note_report, note_staff
from elasticutor.driver.journal import Journal
from elasticutor.driver.life.draining import Draining
from elasticutor.driver.life.ending import Ending
from elasticutor.driver.life.epochs import RunEpochs
from elasticutor.driver.life.participants import Participants
from elasticutor.driver.life.recovery import Recovery
from elasticutor.driver.metrics import RunLedger
from elasticutor.driver.queries.batch_driver import BatchDriver
from elasticutor.driver.repartitioning import ANSWERS, Leads
from elasticutor.driver.scheduling import Interval
from elasticutor.errors import ElasticutorError, ProtocolError
from elasticutor.process.failures import described_end
from elasticutor.process.hosting.hosts import ends_name
from elasticutor.topology import Plan
from elasticutor.transport import messages as say
from elasticutor.transport.channels import Endpoint

if TYPE_CHECKING:
    from elasticutor.driver.loop import DriverLoop

_SETTLE_S = 0.6
"""For so long after the first tuple the scheduler looks at nothing: the first chunks are slow."""


class Supervisor:
    """One run, seen from the driver."""

    def __init__(
        self,
        hub: DriverLoop,
        run: str,
        plan: Plan,
        placements: Mapping[Peer, Placement],
        terms: Terms,
        *,
        blueprint: Blueprint,
        journal: Journal,
        ends_hosts: int,
        epochs: Callable[[Supervisor], RunEpochs],
        free_cores: Callable[[], dict[NodeId, int]],
        restart_hosts: Callable[[Supervisor, Sequence[int]], None],
    ) -> None:
        self._hub = hub
        self.run = run
        self.plan = plan
        self.cores = {who: dict(placed.cores) for who, placed in placements.items()}
        """The cores that every executor should have, by node."""
        self.paradigm = terms.paradigm
        self.latency_target = terms.latency_target
        self.tempo = blueprint.tempo
        """How often its executors balance and measure."""
        self.by_hand: set[Peer] = set()
        """Executors whose cores somebody has set: the scheduler leaves them alone."""
        self.interval = Interval()
        self.journal = journal
        self.ledger = RunLedger()
        self.answers = Answers(plan)
        self.changed = self.answers.changed
        self.phase = RunPhase.STARTING
        self.error: Exception | None = None
        self.ends_by_itself = terms.end_when_drained
        self._began_at = time.monotonic()
        self._start_by = self._began_at + terms.start_timeout_s
        self._running_at = math.inf
        self._attendance = Participants(hub, run, plan, blueprint, dict(placements), ends_hosts)
        self.executors = self._attendance.executors
        self.sources = self._attendance.sources
        self.pids = self._attendance.pids
        self._draining = Draining(self._attendance, terms.patience_s)
        self._patience_s = terms.patience_s
        self._ending = Ending(hub, run, self._attendance)
        self._callbacks: list[Callable[[], None]] = []
        self.sinks = self._attendance.sinks
        self.epochs = epochs(self)
        self.recovery = Recovery(
            self,
            self._attendance,
            self.epochs,
            patience=RestartPolicy(terms.restarts),
            patience_s=terms.patience_s,
            free_cores=free_cores,
            restart_hosts=lambda numbers: restart_hosts(self, numbers),
        )
        self.leads = Leads(self, self._send, hub.send_node)
        self.cores_changed()

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
        for who in self.executors:
            self._attendance.start_executor(who)

    def _on_host_up(self, message: say.EndsHostUp) -> None:
        """Give a host of sources and sinks its share of them."""
        if self.phase in OVER:
            name = f"{self.run} {ends_name(message.number)}"
            self._hub.mail.know(name, message.endpoint)
            self._hub.mail.send(name, say.EndRun(self.run, 0.0))
        elif message.number not in self._attendance.hosts:
            self._attendance.host_up(message)
        else:
            # Spark tries a lost task again.
            number = message.number
            who = f"host {number} of sources and sinks{self._attendance.near(number)}"
            reason = "was lost, and has been started anew"
            if self.recovers:
                self.recovery.host_replaced(message, f"{who} {reason}")
            else:
                self.fail(RunError(who, "go on", reason))
                self._on_host_up(message)

    def _on_registered(self, message: say.Registered) -> None:
        if self._attendance.registered(message) and self.phase not in OVER:
            self.recovery.registered(message.who)

    def _send(self, who: str, message: Any) -> None:
        if who in self._attendance.book:  # whoever is being replaced hears of what comes later
            self._attendance.send(who, message)

    def _age(self) -> float:
        return round(time.monotonic() - self._began_at, 6)

    # Epochs

    def attempt_begun(self, attempt: Attempt, base: Epoch) -> None:
        """Everybody goes back to the base."""
        self._draining.begin_anew()
        if not self._draining.asked:
            self.epochs.go_on()
        self.answers.begin(attempt)

    def sources_started(self) -> None:
        """Tuples flow, for the first time or again."""
        if self.recovery.under_way:
            return  # somebody was lost meanwhile: all begin again when the successor is up
        self._running_at = time.monotonic()
        told = self.recovery.recovered()
        if self.phase is RunPhase.STARTING:
            self.journal.write(
                "run running", run=self.run, seconds=self._age(), epoch=self.epochs.committed
            )
        if told is not None:
            reason, seconds = told
            self.journal.write(
                "recovered",
                run=self.run,
                epoch=self.epochs.committed,
                seconds=round(seconds, 6),
                reason=reason,
            )
        if self._draining.asked:
            self._set_phase(RunPhase.DRAINING)
            self._draining.stop_sources()
        else:
            self._set_phase(RunPhase.RUNNING)

    def epoch_committed(self, epoch: Epoch, seconds: float, size: int) -> None:
        """The epoch is durable, whatever happens now."""
        self.recovery.committed()
        if self.epochs.durable:
            self.journal.write(
                "epoch committed", run=self.run, epoch=epoch, seconds=round(seconds, 6), bytes=size
            )
        self.answers.commit(epoch)

    def last_epoch_committed(self) -> None:
        """And so is the last one."""
        if self.phase is RunPhase.DRAINING:
            self._come_to_rest()

    def storage_failed(self, error: Exception) -> None:
        """The checkpoint cannot be written: what is committed stays, and the run ends."""
        self.fail(error)

    def ask_why(self, missing: Sequence[Peer]) -> None:
        """Let those who have not answered say why, if they can."""
        self.answers.recounts.clear()
        for who in missing:
            if self._attendance.is_executor(who):
                self._send(who, say.Explain())

    def too_late(self, missing: Sequence[Peer], reason: str) -> None:
        """These have not answered for too long."""
        words = " | ".join([reason, *self.answers.explained()])
        if missing and self.recovers:
            self.recovery.too_late(missing, words)
        else:
            self.fail(RunError("run", "go on", f"does not: {words}"))

    def interrupted(self) -> None:
        """Tuples do not flow, until everybody has begun again."""
        if self.phase in (RunPhase.RUNNING, RunPhase.DRAINING):
            self._set_phase(RunPhase.RECOVERING)

    def give_up(self, kind: str, reason: str, summary: str) -> None:
        """Something fails again and again."""
        self.fail(
            RunError(
                kind,
                "go on",
                f"was lost too often without an epoch committed in between ({summary}). "
                f"The last time: {reason}",
                "what is committed is kept: find the cause, and submit with the same checkpoint",
            )
        )

    @property
    def recovers(self) -> bool:
        """Whether the run would go on after a loss."""
        going = (RunPhase.STARTING, RunPhase.RUNNING, RunPhase.RECOVERING, RunPhase.DRAINING)
        return self.recovery.possible and self.phase in going

    def _on_said(self, message: say.Said) -> None:
        what, who = message.what, message.who
        match what:
            case do.ReportReady(attempt):
                self.epochs.handle(co.ParticipantReady(who, attempt))
            case do.ReportPrepared(attempt, epoch, notes):
                self.epochs.handle(co.ParticipantPrepared(who, attempt, epoch, notes))
            case do.ReportFailure(attempt, reason) if self.recovers:
                self.recovery.failed(who, attempt, f"{who}: {reason}")
            case do.ReportFailure(_, reason):
                self.fail(RunError(who, "go on", f"failed: {reason}"))
            case say.Rested():
                self._on_rested(who)
            case _ if isinstance(what, REPORTS):
                self.epochs.note(who, what)
                if self.epochs.durable or not isinstance(what, do.ReportSealed):
                    note_report(self.journal, who, what)
            case co.ParticipantReady() | co.ParticipantPrepared():
                self.epochs.handle(what)
            case _ if isinstance(what, ANSWERS):
                self.leads.take(who, what)
            case _:
                self._hub.mail.drop(f"{type(what).__name__} is no report")

    # Shards that change their executor

    def round_over(self) -> None:
        """No shard of some operator is on the move any more."""
        if self._draining.put_off:
            self._draining.put_off = False
            self._drain()

    # Cores

    @property
    def is_running(self) -> bool:
        """Whether tuples flow."""
        return self.phase is RunPhase.RUNNING

    @property
    def has_settled(self) -> bool:
        """Whether tuples have flowed for long enough that what is measured means something."""
        since = max(self._running_at, self.epochs.flowing_since)
        return self.is_running and time.monotonic() - since >= _SETTLE_S

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
        there = {node: count for node, count in wanted.items() if node in self._hub.nodes}
        if sum(there.values()):  # otherwise it was decided before the node was lost
            self.cores[who] = there
            self.cores_changed()
            self._send(who, say.SetCores(there))

    def cores_changed(self) -> None:
        """Some executor of the run should have other cores than before."""
        self._hub.cores_version += 1

    def on_ended(self, callback: Callable[[], None]) -> None:
        """Have something done when the run has ended; must not take long."""
        self._callbacks.append(callback)

    def home(self, who: Peer) -> NodeId:
        """The node of an executor's main process."""
        return self._attendance.placements[who].node

    @property
    def whereabouts(self) -> Mapping[str, Endpoint]:
        """Where those are that are up."""
        return self._attendance.book

    @property
    def nodes(self) -> frozenset[NodeId]:
        """The nodes that are up."""
        return frozenset(self._hub.nodes)

    def endpoint_of(self, node: NodeId) -> Endpoint:
        """Where a node is."""
        return self._hub.nodes[node].endpoint

    @property
    def is_scheduled(self) -> bool:
        """Whether somebody decides about its cores."""
        return self.latency_target is not None

    def after(self, seconds: float, function: Callable[[], None]) -> None:
        """Have something done in the hub's thread, so many seconds from now."""
        self._hub.after(seconds, function)

    def ask(self, who: Peer, message: Any) -> None:
        """Send something to an executor."""
        self._send(who, message)

    def _on_staff(self, message: say.Staff) -> None:
        self.ledger.staff(message)
        note_staff(self.journal, message)
        self.answers.notify()
        self._hub.staff_changed(self.run, message.who)

    # The end

    def drain(self) -> None:
        """Let the sources stop, and everything that they have sent be processed."""
        self._draining.asked = True
        self._drain()

    def _drain(self) -> None:
        if self.leads.busy:
            self._draining.put_off = True  # a paused source cannot end an epoch
        elif self.phase is RunPhase.RUNNING:
            self._set_phase(RunPhase.DRAINING)
            self._draining.stop_sources()
            self.epochs.end_last()
        elif self._draining.asked and self.phase in (RunPhase.STARTING, RunPhase.RECOVERING):
            self.epochs.end_last()

    def _on_exhausted(self, message: say.Exhausted) -> None:
        if message.attempt == self.epochs.attempt and self._draining.exhausted(message.who):
            self._drain()

    def _come_to_rest(self) -> None:
        """Everything is processed; before state is read, the last shard must have arrived."""
        if self.ends_by_itself and not self.epochs.durable:
            self._drained()
            self.end()
            return
        # Until the sinks have published the last epoch, one that is lost is worth replacing.
        executors = () if self.ends_by_itself else self.executors
        self._draining.rest((*executors, *self.sinks))

    def _on_rested(self, who: Peer) -> None:
        if self.phase is RunPhase.DRAINING and self._draining.rested(who):
            self._drained()
            if self.ends_by_itself:
                self.end()

    def _drained(self) -> None:
        self._draining.done = True
        self.journal.write("run drained", run=self.run, seconds=self._age())
        self._set_phase(RunPhase.DRAINED)

    def end(self) -> None:
        """End every process of the run."""
        if self.phase in OVER:
            return
        self._set_phase(RunPhase.ENDING)
        self.epochs.stop()
        self._ending.begin(publishing=self._draining.done and self.epochs.durable)
        self._try_to_close()

    def fail(self, error: Exception) -> None:
        """End the run because of a failure; only the first one counts."""
        if self.phase in OVER:
            return
        self.error = error
        self.journal.write("failure", run=self.run, reason=str(error))
        self.end()

    def _on_failed(self, message: say.Failed) -> None:
        error = _unpickled(message)
        if isinstance(error, ProtocolError) and self.recovers:
            who, _, node = message.who.partition(" on node ")
            if node:  # the node goes on, and somebody waits for its answer in vain
                attempt = self.epochs.attempt
                self.recovery.failed(Peer(who), attempt, f"{message.who}: {error}")
            return  # otherwise the process that says so ends, and that is what counts
        if self.phase is RunPhase.ENDING and self._draining.done and self.error is None:
            # A sink that cannot close has lost what it had kept: that is no success.
            self.error = error
            self.journal.write("failure", run=self.run, reason=str(error))
        else:
            self.fail(error)

    def _on_process_ended(self, message: say.ProcessEnded) -> None:
        """A process has ended that should not have."""
        who = Peer(message.who)
        if message.life != self._attendance.lives[who]:
            return
        how = described_end(message.code)
        last = f"\nIts last words:\n{message.said.rstrip()}" if message.said.strip() else ""
        reason = f"was lost: its process on node {message.node!r} ended ({how}){last}"
        named = who if message.task is None else f"{who}, task {message.task}"
        if not self.recovers:
            self.fail(RunError(named, "go on", reason))
        elif message.task is None:
            self.recovery.participant_lost(who, f"{named} {reason}")
        else:
            self.recovery.task_lost(who, message.task, f"{named} {reason}")

    def node_lost(self, node: NodeId, slot: str, reason: str) -> None:
        """A node is gone."""
        self._ending.gone(node)
        used = {n for cores in self.cores.values() for n, count in cores.items() if count}
        used |= {placed.node for placed in self._attendance.placements.values()}
        if self.recovers:
            self.recovery.node_lost(node, slot, f"node {node!r} was lost: {reason}")
        elif node in used:
            self.fail(RunError(f"node {node!r}", "go on", f"was lost: {reason}"))
        self._try_to_close()

    def node_joined(self, node: NodeId) -> None:
        """A node is there that was not."""
        if self.recovers:
            self.recovery.node_joined(node)

    def _on_run_ended(self, message: say.RunEnded) -> None:
        self._ending.gone(message.node)
        self._try_to_close()

    def hosts_lost(self, numbers: Sequence[int], error: Exception) -> None:
        """The job that hosts sources and sinks has ended; too early, if the run goes on."""
        if self.recovers and self.phase is not RunPhase.STARTING:
            self.recovery.hosts_lost(numbers, str(error))
        else:
            self.fail(error)

    def ends_host_lost(self, number: int, how: str) -> None:
        """A host of sources and sinks has ended; if the run goes on, that was too early."""
        if number in self._attendance.hosts and self.phase not in OVER:
            who, reason = f"host {number} of sources and sinks", f"was lost: it ended ({how})"
            if self.recovers:
                self.recovery.hosts_lost([number], f"{who} {reason}")
            else:
                self.fail(RunError(who, "go on", reason))
        self._ending.gone(ends_name(number))
        self._try_to_close()

    def _try_to_close(self) -> None:
        if self.phase is not RunPhase.ENDING or self._ending.left:
            return
        self._attendance.close()
        self.epochs.close()
        self.journal.write(
            "run ended", run=self.run, seconds=self._age(), error=str(self.error or "")
        )
        self.journal.close()
        self._set_phase(RunPhase.ENDED)
        self.cores_changed()
        for callback in self._callbacks:
            callback()

    def abandon(self) -> None:
        """The cluster is gone, and with it every process of the run."""
        if self.phase is not RunPhase.ENDED:
            gone = RunError("cluster", "outlive its runs", "was stopped while the run was going on")
            self.error = self.error or (gone if self.phase is not RunPhase.ENDING else None)
            self._ending.left.clear()
            self.phase = RunPhase.ENDING
            self._try_to_close()

    def tick(self) -> None:
        """Look at the clock: nobody may be waited for without end, nor left without a word."""
        now = time.monotonic()
        if self.phase is not RunPhase.ENDED:
            self._attendance.beat()
        if self.recovers:
            self.recovery.tick(now)
        if self.phase not in OVER:
            self.epochs.tick(now, self.recovery.under_way)
        if self.phase is RunPhase.DRAINING and (missing := self._draining.overdue(now)):
            self.too_late(missing, f"not at rest within {self._patience_s:g} s: {missing}")
        if self.phase is RunPhase.RUNNING:
            self.leads.tick(may_begin=not self._draining.put_off)
        if self.phase is RunPhase.STARTING and now > self._start_by:
            self.fail(RunError("run", "start in time", f"did not start in time: {self.missing()}"))
        if self.phase is RunPhase.ENDING and (silent := self._ending.overdue(now)):
            self.journal.write("failure", run=self.run, reason=f"no word of its end from {silent}")
            self._try_to_close()

    def missing(self) -> str:
        """Who has yet to come up, in words."""
        return self._attendance.missing() or "; ".join(self.epochs.waiting_for())

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
            if self.phase not in OVER:
                self._hub.mail.drop(str(error))

    def _on_collected(self, message: say.Collected) -> None:
        try:
            self.answers.collect(message)
        except ElasticutorError as error:
            self.fail(error)

    def _on_done(self, message: say.PartitionDone) -> None:
        if isinstance(self.epochs, BatchDriver):
            self.epochs.done(message)

    def _on_answer(self, message: say.Recount | say.StateRead) -> None:
        self.answers.take(message)

    def _on_shard_loads(self, message: say.ShardLoadsMeasured) -> None:
        self.leads.loads(message)

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

    def _set_phase(self, phase: RunPhase) -> None:
        with self.changed:
            self.phase = phase
            self.changed.notify_all()


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
    say.Recount: Supervisor._on_answer,
    say.StateRead: Supervisor._on_answer,
    say.PartitionDone: Supervisor._on_done,
    say.ShardLoadsMeasured: Supervisor._on_shard_loads,
    say.Measured: Supervisor._on_measured,
    say.SourceMeasured: Supervisor._on_source_measured,
    say.SinkMeasured: Supervisor._on_sink_measured,
    say.ProcessEnded: Supervisor._on_process_ended,
}
