"""The life of one run: what the driver decides from start to end.

```
starting ──all registered──▶ running ──stop, or sources exhausted──▶ draining ──▶ drained ──▶ ended
    └──────────────────────────┼──── a loss or a failure ──────────────┼──▶ ending ─────────▶ ended
                               └──▶ recovering, if there is a checkpoint ──▶ running, draining
```

Events go in with the time, instructions come out. The driver's supervisor and the checker carry
these out; both drive this very object.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from elasticutor.core.protocol import coordinator as co
from elasticutor.core.protocol.ids import Attempt, Epoch, NodeId, Peer
from elasticutor.core.run import run_events as ev
from elasticutor.core.run import run_instructions as do
from elasticutor.core.run.draining import Draining
from elasticutor.core.run.ending import Ending
from elasticutor.core.run.epoch_cycle import EpochBase, EpochCycle
from elasticutor.core.run.participants import Participants, Roles
from elasticutor.core.run.phases import OVER, RunError, RunPhase, Terms
from elasticutor.core.run.recovery import Recovery
from elasticutor.core.run.restart_policy import RestartPolicy
from elasticutor.core.scheduler.placement import Placement
from elasticutor.errors import BadValueError, ProtocolError

_GOING = (RunPhase.STARTING, RunPhase.RUNNING, RunPhase.RECOVERING, RunPhase.DRAINING)


class RunLifecycle:
    """Decides about one run. A query drives the epochs of one without a `base`.

    `free_cores` says how many cores of every node no executor of any run has, `shards_move` whether
    shards are on the way between executors, with sources paused.
    """

    def __init__(
        self,
        roles: Roles,
        placements: Mapping[Peer, Placement],
        nodes: Iterable[NodeId],
        terms: Terms,
        base: EpochBase | None,
        *,
        free_cores: Callable[[], dict[NodeId, int]],
        shards_move: Callable[[], bool] = lambda: False,
    ) -> None:
        self._out: list[do.RunInstruction] = []
        self._now = 0.0
        self._terms = terms
        self._shards_move = shards_move
        self.phase = RunPhase.STARTING
        self.error: Exception | None = None
        """What made the run fail."""
        self.running_at = math.inf
        """When tuples began to flow the last time."""
        self._began_at = 0.0
        self._explained: dict[Peer, tuple[str, ...]] = {}
        self.participants = Participants(self._emit, roles, placements, nodes)
        self.epochs: EpochCycle | None = None
        if base is not None:
            coordinator = co.Coordinator(roles.executors, roles.sources, roles.sinks)
            self.epochs = EpochCycle(
                coordinator,
                self,
                self._emit,
                base,
                participants=self.participants,
                interval_s=terms.epoch_interval_s,
                patience_s=terms.patience_s,
            )
        self._recovery = Recovery(
            self,
            self.participants,
            self.epochs,
            self._emit,
            policy=RestartPolicy(terms.restarts),
            patience_s=terms.patience_s,
            free_cores=free_cores,
            scheduled=terms.latency_target is not None,
        )
        self.draining = Draining(self._emit, self.participants, terms.patience_s)
        self._ending = Ending(self._emit, self.participants)

    def handle(self, event: ev.RunEvent, now: float) -> list[do.RunInstruction]:
        """Take one event in, and say what is to be done about it, in order."""
        handler = _HANDLERS.get(type(event))
        if handler is None:
            raise BadValueError("event", "be one for a run", event)
        self._now = now
        try:
            handler(self, event)
        except ProtocolError as error:
            if self.phase not in OVER:
                self._emit(do.IgnoreMessage(str(error)))
        out, self._out = self._out, []
        return out

    @property
    def durable(self) -> bool:
        """Whether what is committed outlives the run."""
        return self.epochs is not None and self.epochs.durable

    @property
    def recovers(self) -> bool:
        """Whether the run goes on after a loss."""
        return self.durable and self.phase in _GOING

    def _emit(self, instruction: do.RunInstruction) -> None:
        self._out.append(instruction)

    def _journal(self, kind: str, **fields: Any) -> None:
        self._emit(do.WriteJournal(kind, fields))

    def _enter(self, phase: RunPhase) -> None:
        self.phase = phase
        self._emit(do.EnterPhase(phase))

    def _age(self) -> float:
        return round(self._now - self._began_at, 6)

    # Starting

    def _on_start(self, event: ev.StartAsked) -> None:
        self._began_at = self._now
        for who in self.participants.executors:
            self.participants.start_main(who)

    def _on_host_up(self, event: ev.HostUp) -> None:
        number = event.number
        if self.phase in OVER:
            self._emit(do.DismissHost(number))
        elif number not in self.participants.hosts:
            self.participants.host_up(number)
        else:
            # Spark tries a lost task again.
            who = f"host {number} of sources and sinks{event.near}"
            reason = "was lost, and has a successor"
            if self.recovers:
                self._recovery.host_replaced(number, f"{who} {reason}", self._now)
            else:
                self.fail(RunError(who, "go on", reason))
                self._emit(do.DismissHost(number))

    def _on_up(self, event: ev.ParticipantUp) -> None:
        known = self.participants.registered(event.who, event.life, event.address)
        if known and self.phase not in OVER:
            self._recovery.registered(event.who, self._now)

    def all_up(self) -> None:
        """Begin: all participants are up for the first time."""
        if self.epochs is None:
            self.sources_started()  # a query's tuples flow as soon as it has any
        else:
            self.epochs.start(self._now)

    # Epochs

    def _on_answer(self, event: co.ParticipantReady | co.ParticipantPrepared) -> None:
        if self.epochs is not None:
            self.epochs.handle(event, self._now)

    def _on_stored(self, event: ev.EpochStored) -> None:
        if self.epochs is not None:
            self.epochs.stored(event, self._now)

    def attempt_begun(self, attempt: Attempt) -> None:
        """Let all participants go back to the last epoch that was committed."""
        self.draining.begin_again()
        if not self.draining.asked and self.epochs is not None:
            self.epochs.go_on()
        self._emit(do.DiscardUncommitted(attempt))

    def sources_started(self) -> None:
        """Take in that tuples flow, for the first time or again."""
        if self._recovery.under_way or self.phase in OVER:
            return  # one was lost meanwhile: all begin again when its successor is up
        self.running_at = self._now
        recovered = self._recovery.recovered(self._now)
        epoch = Epoch(0) if self.epochs is None else self.epochs.committed
        if self.phase is RunPhase.STARTING:
            self._journal("run running", seconds=self._age(), epoch=epoch)
        if recovered is not None:
            reason, seconds = recovered
            self._journal("recovered", epoch=epoch, seconds=round(seconds, 6), reason=reason)
        if self.draining.asked:
            self._enter(RunPhase.DRAINING)
            self.draining.stop_sources()
        else:
            self._enter(RunPhase.RUNNING)

    def epoch_committed(self, epoch: Epoch, seconds: float, size: int) -> None:
        """Take in that an epoch is durable, whatever happens now."""
        self._recovery.committed()
        if self.durable:
            self._journal("epoch committed", epoch=epoch, seconds=round(seconds, 6), bytes=size)
        self._emit(do.KeepCommitted(epoch))

    def last_epoch_committed(self) -> None:
        """Come to rest: all is processed; before state is read, the last shard must arrive."""
        if self.phase is not RunPhase.DRAINING:
            return
        if self._terms.end_when_drained and not self.durable:
            self._drained()
            self._end()
            return
        # Until the sinks have published the last epoch, one that is lost is worth replacing.
        executors = () if self._terms.end_when_drained else self.participants.executors
        self.draining.rest((*executors, *self.participants.sinks), self._now)

    # Late answers

    def _on_late(self, event: ev.AnswersLate) -> None:
        """Ask silent participants why; once that is over, replace them, or end the run."""
        if event.reason is None:
            self._explained.clear()
            for who in filter(self.participants.is_executor, event.missing):
                self._emit(co.AskWhy(who))
            return
        explained = [f"{who}: {'; '.join(waits)}" for who, waits in self._explained.items()]
        words = " | ".join([event.reason, *explained])
        if event.missing and self.recovers:
            self._recovery.too_late(event.missing, words, self._now)
        else:
            self.fail(RunError("run", "go on", f"does not: {words}"))

    # Losses

    def interrupted(self) -> None:
        """Take in that tuples do not flow until a new attempt has begun."""
        if self.phase in (RunPhase.RUNNING, RunPhase.DRAINING):
            self._enter(RunPhase.RECOVERING)

    def give_up(self, kind: str, reason: str, summary: str) -> None:
        """End the run: something fails again and again."""
        self.fail(
            RunError(
                kind,
                "go on",
                f"was lost too often without an epoch committed in between ({summary}). "
                f"The last time: {reason}",
                "what is committed is kept: find the cause, and submit with the same checkpoint",
            )
        )

    def _on_participant_failed(self, event: co.ParticipantFailed) -> None:
        if self.recovers:
            reason = f"{event.who}: {event.reason}"
            self._recovery.failed(event.who, event.attempt, reason, self._now)
        else:
            self.fail(RunError(event.who, "go on", f"failed: {event.reason}"))

    def _on_process_failed(self, event: ev.ProcessFailed) -> None:
        error = event.error
        if isinstance(error, ProtocolError) and self.recovers:
            who, _, node = event.who.partition(" on node ")
            if node and self.epochs is not None:  # the node goes on, but its answer does not come
                reason = f"{event.who}: {error}"
                self._recovery.failed(Peer(who), self.epochs.attempt, reason, self._now)
            return  # otherwise the process that says so ends, and that is what counts
        if self.phase is RunPhase.ENDING and self.draining.done and self.error is None:
            # A sink that cannot close has lost what it had kept: that is no success.
            self.error = error
            self._journal("failure", reason=str(error))
        else:
            self.fail(error)

    def _on_process_lost(self, event: co.ProcessLost) -> None:
        who = event.who
        if event.life != self.participants.lives[who]:
            return
        named = who if event.task is None else f"{who}, task {event.task}"
        reason = f"{named} {event.reason}"
        if not self.recovers:
            self.fail(RunError(named, "go on", event.reason))
        elif event.task is None:
            self._recovery.participant_lost(who, reason, self._now)
        else:
            self._recovery.task_lost(who, event.task, reason, self._now)

    def _on_node_left(self, event: ev.NodeLeft) -> None:
        node = event.node
        there = self.participants
        there.node_left(node)
        self._ending.cleared(node)
        if self.recovers:
            reason = f"node {node!r} was lost: {event.reason}"
            self._recovery.node_lost(node, event.slot, reason, self._now)
        elif there.uses(node):
            self.fail(RunError(f"node {node!r}", "go on", f"was lost: {event.reason}"))
        self._try_to_close()

    def _on_node_joined(self, event: ev.NodeJoined) -> None:
        if self.phase in OVER:
            return
        self.participants.node_joined(event.node)
        if self.recovers:
            self._recovery.node_joined(event.node)

    def _on_hosts_lost(self, event: ev.HostsLost) -> None:
        if self.recovers and self.phase is not RunPhase.STARTING:
            self._recovery.hosts_lost(event.numbers, str(event.error), self._now)
        else:
            self.fail(event.error)

    def _on_host_lost(self, event: ev.HostLost) -> None:
        number = event.number
        if number in self.participants.hosts and self.phase not in OVER:
            who, reason = f"host {number} of sources and sinks", f"was lost: it ended ({event.how})"
            if self.recovers:
                self._recovery.hosts_lost([number], f"{who} {reason}", self._now)
            else:
                self.fail(RunError(who, "go on", reason))
        self._ending.cleared(self.participants.host_names[number])
        self._try_to_close()

    def _on_message_lost(self, event: ev.MessageLost) -> None:
        if self.recovers:
            self._recovery.message_lost(str(event.error), self._now)
        else:
            self.fail(event.error)

    # Cores

    def _on_cores(self, event: ev.CoresAsked) -> None:
        if event.by_hand:
            self._recovery.want(event.who, sum(event.cores.values()))
        self._recovery.assign(event.who, event.cores)

    # Draining

    def _on_drain(self, event: ev.DrainAsked) -> None:
        self.draining.asked = True
        self._drain()

    def _drain(self) -> None:
        if self.epochs is None:
            return  # a query ends its batches itself
        if self._shards_move():
            self.draining.put_off = True  # a paused source cannot end an epoch
        elif self.phase is RunPhase.RUNNING:
            self._enter(RunPhase.DRAINING)
            self.draining.stop_sources()
            self.epochs.end_last(self._now)
        elif self.draining.asked and self.phase in (RunPhase.STARTING, RunPhase.RECOVERING):
            self.epochs.end_last(self._now)

    def _on_exhausted(self, event: co.SourceExhausted) -> None:
        current = self.epochs is not None and event.attempt == self.epochs.attempt
        if current and self.draining.exhausted(event.who):
            self._drain()

    def _on_settled(self, event: ev.ShardsSettled) -> None:
        if self.draining.put_off:
            self.draining.put_off = False
            self._drain()

    def _on_rested(self, event: co.ParticipantRested) -> None:
        if self.phase is RunPhase.DRAINING and self.draining.rested(event.who):
            self._drained()
            if self._terms.end_when_drained:
                self._end()

    def _drained(self) -> None:
        self.draining.done = True
        self._journal("run drained", seconds=self._age())
        self._enter(RunPhase.DRAINED)

    # The end

    def _end(self) -> None:
        if self.phase in OVER:
            return
        self._enter(RunPhase.ENDING)
        if self.epochs is not None:
            self.epochs.stop()
        self._ending.begin(self._now, publishing=self.draining.done and self.durable)
        self._try_to_close()

    def fail(self, error: Exception) -> None:
        """End the run because of a failure; only the first one counts."""
        if self.phase in OVER:
            return
        self.error = error
        self._journal("failure", reason=str(error))
        self._end()

    def _on_cleared(self, event: co.PlaceCleared) -> None:
        self._ending.cleared(event.name)
        self._try_to_close()

    def _on_cluster_gone(self, event: ev.ClusterGone) -> None:
        if self.phase is not RunPhase.ENDED:
            gone = RunError("cluster", "outlive its runs", "was stopped while the run was going on")
            self.error = self.error or (gone if self.phase is not RunPhase.ENDING else None)
            self._ending.left.clear()
            self.phase = RunPhase.ENDING
            self._try_to_close()

    def _try_to_close(self) -> None:
        if self.phase is RunPhase.ENDING and not self._ending.left:
            self.phase = RunPhase.ENDED
            self._emit(do.CloseRun(self._age(), str(self.error or "")))

    # Time

    def _on_tick(self, event: ev.Tick) -> None:
        now = self._now
        if self.recovers:
            self._recovery.tick(now)
        if self.phase not in OVER and self.epochs is not None:
            late = self.epochs.tick(now, absent=self._recovery.under_way)
            if late is not None:
                self._on_late(late)
        if self.phase is RunPhase.DRAINING and (missing := self.draining.overdue(now)):
            words = f"not at rest within {self._terms.patience_s:g} s: {missing}"
            self._on_late(ev.AnswersLate(tuple(missing), words))
        if self.phase is RunPhase.STARTING and now > self._began_at + self._terms.start_timeout_s:
            words = f"did not start in time: {self.missing()}"
            self.fail(RunError("run", "start in time", words))
        if self.phase is RunPhase.ENDING and (silent := self._ending.overdue(now)):
            self._journal("failure", reason=f"no word of its end from {silent}")
            self._try_to_close()

    def missing(self) -> str:
        """Who has yet to come up or to answer, in words."""
        waiting = [] if self.epochs is None else self.epochs.waiting_for()
        return self.participants.missing() or "; ".join(waiting)


_HANDLERS: dict[type, Callable[[RunLifecycle, Any], None]] = {
    ev.StartAsked: RunLifecycle._on_start,
    ev.DrainAsked: RunLifecycle._on_drain,
    ev.EndAsked: lambda life, _: life._end(),
    ev.CoresAsked: RunLifecycle._on_cores,
    ev.NodeJoined: RunLifecycle._on_node_joined,
    ev.HostUp: RunLifecycle._on_host_up,
    ev.ParticipantUp: RunLifecycle._on_up,
    co.ProcessLost: RunLifecycle._on_process_lost,
    ev.NodeLeft: RunLifecycle._on_node_left,
    ev.HostLost: RunLifecycle._on_host_lost,
    ev.HostsLost: RunLifecycle._on_hosts_lost,
    ev.MessageLost: RunLifecycle._on_message_lost,
    ev.ClusterGone: RunLifecycle._on_cluster_gone,
    ev.ProcessFailed: RunLifecycle._on_process_failed,
    ev.RunFailed: lambda life, event: life.fail(event.error),
    ev.AnswersLate: RunLifecycle._on_late,
    co.WaitExplained: lambda life, event: life._explained.update({event.who: event.waits}),
    co.ParticipantReady: RunLifecycle._on_answer,
    co.ParticipantPrepared: RunLifecycle._on_answer,
    co.ParticipantFailed: RunLifecycle._on_participant_failed,
    ev.EpochStored: RunLifecycle._on_stored,
    co.SourceExhausted: RunLifecycle._on_exhausted,
    ev.ShardsSettled: RunLifecycle._on_settled,
    co.ParticipantRested: RunLifecycle._on_rested,
    co.PlaceCleared: RunLifecycle._on_cleared,
    ev.Tick: RunLifecycle._on_tick,
}
