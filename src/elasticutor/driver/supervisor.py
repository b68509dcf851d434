"""The driver's side of one run: messages become events, and instructions are carried out.

What is decided, is decided by `core.run.lifecycle`. Lives in the loop's thread; only `Run` (the
user's handle) looks at it from another, under `changed`.
"""

from __future__ import annotations

import math
import pickle
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from elasticutor.core.protocol import coordinator as co
from elasticutor.core.protocol import instructions as report
from elasticutor.core.protocol.ids import NodeId, Peer
from elasticutor.core.run import run_events as ev
from elasticutor.core.run import run_instructions as do
from elasticutor.core.run.epoch_cycle import EpochBase, EpochCycle
from elasticutor.core.run.introductions import Introduction
from elasticutor.core.run.lifecycle import RunLifecycle
from elasticutor.core.run.phases import OVER, RunError, RunPhase, Terms
from elasticutor.core.scheduler.placement import Placement
from elasticutor.driver.answers import Answers
from elasticutor.driver.blueprint import Blueprint
from elasticutor.driver.checkpoint_writer import CheckpointWriter
from elasticutor.driver.checkpoints import ends
from elasticutor.driver.connections import Connections, roles_of
from elasticutor.driver.journal import REPORTS, Journal, note_report, note_staff
from elasticutor.driver.metrics import RunLedger
from elasticutor.driver.queries.batch_driver import BatchDriver
from elasticutor.driver.repartitioning import ANSWERS, Leads
from elasticutor.driver.scheduling import Interval
from elasticutor.errors import ElasticutorError, ProtocolError
from elasticutor.plan import Plan
from elasticutor.state.checkpoint import Checkpoint
from elasticutor.transport import messages as say

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
        checkpoint: Checkpoint | None,
        batches: Callable[[Supervisor], BatchDriver] | None,
        free_cores: Callable[[], dict[NodeId, int]],
        restart_hosts: Callable[[Supervisor, Sequence[int]], None],
    ) -> None:
        self._hub = hub
        self.run = run
        self.plan = plan
        self.paradigm = terms.paradigm
        self.latency_target = terms.latency_target
        self.tempo = blueprint.tempo
        """How often its executors balance and measure."""
        self.by_hand: set[Peer] = set()
        """Executors whose cores the user has set: the scheduler leaves them alone."""
        self.interval = Interval()
        self.journal = journal
        self.ledger = RunLedger()
        self.answers = Answers(plan)
        self.changed = self.answers.changed
        self.phase = RunPhase.STARTING
        self.ends_by_itself = terms.end_when_drained
        self._restart_hosts = restart_hosts
        self._callbacks: list[Callable[[], None]] = []
        self._connections = Connections(hub, run, blueprint)
        self._life = RunLifecycle(
            roles_of(plan, ends_hosts),
            placements,
            hub.nodes,
            terms,
            None if batches else _base(checkpoint),
            free_cores=free_cores,
            shards_move=lambda: self.leads.busy,
        )
        self._participants = self._life.participants
        self.cores = self._participants.cores
        """The cores that every executor should have, by node."""
        self.executors = self._participants.executors
        self.sources = self._participants.sources
        self.sinks = self._participants.sinks
        self.pids, self.book = self._connections.pids, self._connections.book
        self._batches = batches(self) if batches else None
        self._checkpoint = None if batches else checkpoint
        self._writer = CheckpointWriter(self._checkpoint, hub.post) if self._checkpoint else None
        self.leads = Leads(self, self.ask, hub.send_node)
        self.cores_changed()

    @property
    def epochs(self) -> EpochCycle | BatchDriver:
        """What drives the epochs: by a clock, or by the batches of a query."""
        found = self._batches or self._life.epochs
        assert found is not None  # a lifecycle without batches has epochs
        return found

    @property
    def error(self) -> Exception | None:
        """What made the run fail."""
        return self._life.error

    @property
    def recovers(self) -> bool:
        """Whether the run goes on after a loss."""
        return self._life.recovers

    def start(self) -> None:
        """Have all main processes started; sources and sinks follow when their hosts are up."""
        self.journal.write(
            "run started",
            run=self.run,
            topology=self.plan.name,
            paradigm=self.paradigm,
            cores={who: dict(cores) for who, cores in self.cores.items()},
        )
        self.decide(ev.StartAsked())

    # Decisions

    def decide(self, event: ev.RunEvent, at: float = 0.0) -> None:
        """Let an event be decided about, and carry out what comes of it."""
        for instruction in self._life.handle(event, max(at, time.monotonic())):
            self._enact(instruction)

    def _enact(self, order: do.RunInstruction) -> None:
        match order:
            case co.WriteManifest():
                self._write(order)
            case co.BeginAttempt() | co.StartSource() | co.EndEpoch() | co.CommitEpoch():
                self.ask(order.who, order)
            case co.AssignCores() | co.StopSending() | co.AskToRest():
                self.ask(order.who, order)
            case co.AskWhy(who):
                self.answers.recounts.pop(who, None)
                self.ask(who, order)
            case do.ReportLoss(who, lost):
                self.ask(who, lost)
            case do.Connect(who, address):
                self._connections.connect(who, address)
            case Introduction() | do.IntroduceNodes():
                self._connections.introduce(order)
            case do.StartMain():
                self._connections.start_main(order)
            case do.StartOnHost():
                self._connections.start_on_host(order)
            case do.DropLife():
                self._connections.drop(order)
            case do.RestartHosts(numbers):
                self._restart_hosts(self, numbers)
            case do.DismissHost(number):
                self._connections.send_host(number, say.EndRun(self.run, 0.0))
            case do.EndProcesses():
                if self._batches is not None:
                    self._batches.stop()
                self._connections.end(order)
            case do.DiscardUncommitted(attempt):
                self.answers.begin(attempt)
            case do.KeepCommitted(epoch):
                self.answers.commit(epoch)
            case do.CountCores():
                self.cores_changed()
            case do.WriteJournal(kind, fields):
                self.journal.write(kind, run=self.run, **fields)
            case do.EnterPhase(phase):
                self._set_phase(phase)
            case do.Wake(at):
                after_s = max(0.0, at - time.monotonic())
                self._hub.after(after_s, lambda: self.decide(ev.Tick(), at))
            case do.CloseRun():
                self._close(order)
            case do.IgnoreMessage(reason):
                self._hub.mail.drop(reason)

    def _set_phase(self, phase: RunPhase) -> None:
        with self.changed:
            self.phase = phase
            self.changed.notify_all()

    def _close(self, order: do.CloseRun) -> None:
        self._connections.close()
        if self._batches is not None:
            self._batches.close()
        if self._checkpoint is not None and self._writer is not None:
            ends(self._checkpoint)  # a run that wants it waits until it is released
            self._writer.close()
        self.journal.write("run ended", run=self.run, seconds=order.seconds, error=order.error)
        self.journal.close()
        self._set_phase(RunPhase.ENDED)
        self.cores_changed()
        for callback in self._callbacks:
            callback()

    # The checkpoint

    def _write(self, order: co.WriteManifest) -> None:
        assert self._writer is not None  # without a checkpoint no manifest is ordered

        def stored(size: int, error: Exception | None) -> None:
            self.decide(ev.EpochStored(order.epoch, order.attempt, size, error))

        self._writer.commit(order, self.executors, stored)

    # Time

    def tick(self) -> None:
        """Let time pass; called every second, or more often."""
        if self.phase is not RunPhase.ENDED:
            for number in self._participants.hosts:
                self._connections.send_host(number, say.Beat())
        if self._batches is not None and self.phase not in OVER:
            self._batches.tick(time.monotonic())
        if self.phase is RunPhase.RUNNING:
            self.leads.tick(may_begin=not self._life.draining.put_off)
        self.decide(ev.Tick())

    def on_ended(self, callback: Callable[[], None]) -> None:
        """Call something when the run has ended; must not take long."""
        self._callbacks.append(callback)

    # Cores

    @property
    def is_running(self) -> bool:
        """Whether tuples flow."""
        return self.phase is RunPhase.RUNNING

    @property
    def has_settled(self) -> bool:
        """Whether tuples have flowed for long enough that what is measured means something."""
        flowing = -math.inf if self._batches is None else self._batches.flowing_since
        since = max(self._life.running_at, flowing)
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

    def set_cores(self, who: Peer, wanted: Mapping[NodeId, int], *, by_hand: bool = False) -> None:
        """Tell an executor which cores it should have from now on."""
        if by_hand:
            self.by_hand.add(who)
        self.decide(ev.CoresAsked(who, wanted, by_hand))

    def cores_changed(self) -> None:
        """Count that an executor of the run should have other cores than before."""
        self._hub.cores_version += 1

    def home(self, who: Peer) -> NodeId:
        """The node of an executor's main process."""
        return self._participants.placements[who].node

    def ask(self, who: str, message: Any) -> None:
        """Send something to a participant, if it is up."""
        self._connections.send(who, message)

    # Everything that arrives

    def take(self, message: Any) -> None:
        """Handle a message of this run."""
        handler = _HANDLERS.get(type(message))
        if handler is None:
            self._hub.mail.drop(f"{type(message).__name__} is not for a run")
            return
        try:
            handler(self, message)
        except ProtocolError as error:
            if self.phase not in OVER:
                self._hub.mail.drop(str(error))

    def _on_host_up(self, message: say.EndsHostUp) -> None:
        near = self._connections.near(message.number)
        self._connections.know_host(message)
        self.decide(ev.HostUp(message.number, near))

    def _on_said(self, message: say.Said) -> None:
        what, who = message.what, message.who
        match what:
            case report.ReportReady(attempt):
                self._answered(co.ParticipantReady(who, attempt))
            case report.ReportPrepared(attempt, epoch, notes):
                self._answered(co.ParticipantPrepared(who, attempt, epoch, notes))
            case report.ReportFailure(attempt, reason):
                self.decide(co.ParticipantFailed(who, attempt, reason))
            case _ if isinstance(what, REPORTS):
                if self._batches is not None:
                    self._batches.note(who, what)
                if self._life.durable or not isinstance(what, report.ReportSealed):
                    note_report(self.journal, who, what)
            case co.ParticipantReady() | co.ParticipantPrepared():
                self._answered(what)
            case co.WaitExplained():
                self.answers.explain(what)
                self.decide(what)
            case (
                co.SourceExhausted() | co.ParticipantRested() | co.ProcessLost() | co.PlaceCleared()
            ):
                self.decide(what)
            case _ if isinstance(what, ANSWERS):
                self.leads.take(who, what)
            case _:
                self._hub.mail.drop(f"{type(what).__name__} is no report")

    def _answered(self, event: co.ParticipantReady | co.ParticipantPrepared) -> None:
        if self._batches is not None:
            self._batches.decide(event)
        else:
            self.decide(event)

    def _on_collected(self, message: say.Collected) -> None:
        try:
            self.answers.collect(message)
        except ElasticutorError as error:
            self.decide(ev.RunFailed(error))

    def _on_done(self, message: say.PartitionDone) -> None:
        if self._batches is not None:
            self._batches.done(message)

    def _on_staff(self, message: say.Staff) -> None:
        self.ledger.staff(message)
        note_staff(self.journal, message)
        self.answers.notify()
        self._hub.staff_changed(self.run, message.who)

    def _on_measured(self, message: say.Measured) -> None:
        self.ledger.executor(message)
        if self.latency_target is not None and self.has_settled:
            self.interval.executor(message)

    def _on_source_measured(self, message: say.SourceMeasured) -> None:
        self.ledger.source(message)
        if self.latency_target is not None and self.has_settled:
            self.interval.source(message)


def _base(checkpoint: Checkpoint | None) -> EpochBase:
    """What a run starts from."""
    if checkpoint is None:
        return EpochBase()
    notes = {Peer(who): note for who, note in checkpoint.notes.items()}
    return EpochBase(True, checkpoint.committed, checkpoint.first_attempt, notes)


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
    say.Registered: lambda run, up: run.decide(ev.ParticipantUp(up.who, up.life, up)),
    say.Said: Supervisor._on_said,
    say.Staff: Supervisor._on_staff,
    say.Failed: lambda run, told: run.decide(ev.ProcessFailed(told.who, _unpickled(told))),
    say.Collected: Supervisor._on_collected,
    say.StateRead: lambda run, told: run.answers.read(told),
    say.PartitionDone: Supervisor._on_done,
    say.ShardLoadsMeasured: lambda run, told: run.leads.loads(told),
    say.Measured: Supervisor._on_measured,
    say.SourceMeasured: Supervisor._on_source_measured,
    say.SinkMeasured: lambda run, told: run.ledger.sink(told),
}
