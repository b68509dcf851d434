"""The epochs of a topology: when they end, and when they are committed.

What an epoch and an attempt are is the coordinator's to say (`core.protocol.coordinator`). This
adds the time from one epoch to the next, the last epoch, and time-outs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from elasticutor.core.protocol import coordinator as co
from elasticutor.core.protocol.ids import Attempt, Epoch, Peer
from elasticutor.core.run import run_events as ev
from elasticutor.core.run import run_instructions as do
from elasticutor.core.run.participants import Participants
from elasticutor.core.run.timeouts import Timeouts

if TYPE_CHECKING:
    from elasticutor.core.run.lifecycle import RunLifecycle


@dataclass(frozen=True, slots=True)
class EpochBase:
    """What a run starts from: the newest manifest of its checkpoint."""

    durable: bool = False
    """Whether there is a checkpoint; without one, only the last epoch ends."""
    committed: Epoch = Epoch(0)
    attempt: Attempt = Attempt(0)
    """At least the last one that was begun before."""
    notes: Mapping[Peer, Any] = field(default_factory=dict)
    """What the manifest says of sources and sinks."""


class EpochCycle:
    """Drives the epochs of one topology."""

    def __init__(
        self,
        coordinator: co.Coordinator,
        life: RunLifecycle,
        emit: do.EmitInstruction,
        base: EpochBase,
        *,
        participants: Participants,
        interval_s: float,
        patience_s: float,
    ) -> None:
        self._coordinator = coordinator
        self._life = life
        self._emit = emit
        self._base = base
        self._participants = participants
        self._interval_s = interval_s
        self._due_at = math.inf
        self._began_at = 0.0  # of the epoch's end
        self._last = False  # the epoch that is ended next is the last one
        self._ending_last = False
        self._closed = False
        self._timeouts = Timeouts(patience_s)

    @property
    def durable(self) -> bool:
        """Whether what is committed outlives the run."""
        return self._base.durable

    @property
    def started(self) -> bool:
        """Whether an attempt has begun."""
        return self._coordinator.phase is not co.CoordinatorPhase.IDLE

    @property
    def attempt(self) -> Attempt:
        """The current one."""
        return self._coordinator.attempt

    @property
    def committed(self) -> Epoch:
        """The newest epoch that is."""
        return self._coordinator.committed

    def waiting_for(self) -> list[str]:
        """Why nothing happens, in words."""
        return self._coordinator.waiting_for()

    def start(self, now: float) -> None:
        """Begin, from the newest epoch of the checkpoint."""
        base = self._base
        self._enact(self._coordinator.start(base.committed, base.notes, base.attempt), now)

    def handle(self, event: co.CoordinatorEvent, now: float) -> None:
        """Let the coordinator decide about an event."""
        self._enact(self._coordinator.handle(event), now)

    def end_last(self, now: float) -> None:
        """End the open epoch now, or as soon as the one before it is done; no other follows."""
        self._last = True
        self._end_epoch(now)

    def go_on(self) -> None:
        """Take back that the next epoch is the last one."""
        self._last = False

    def stop(self) -> None:
        """End no more epochs; one that is being written still counts."""
        self._closed = True

    def _end_epoch(self, now: float) -> None:
        if self._coordinator.phase is co.CoordinatorPhase.RUNNING:
            self._began_at = now
            self._due_at = math.inf
            self._ending_last = self._last
            self.handle(co.EpochDue(), now)

    def _enact(self, orders: list[co.Order], now: float) -> None:
        begun = False
        if orders and isinstance(orders[0], co.BeginAttempt):
            self._due_at = math.inf
            self._ending_last = False
            begun = self._participants.complete
            if begun:
                self._life.attempt_begun(orders[0].attempt)
            else:  # the manifest held a failure up; successors that come up begin another one
                orders = [order for order in orders if not isinstance(order, co.BeginAttempt)]
        for order in orders:
            if isinstance(order, co.WriteManifest) and not self.durable:
                # Without a checkpoint a manifest has nothing to name: the epoch is over.
                self._written(order.epoch, 0, now)
            elif isinstance(order, co.WriteManifest | co.BeginAttempt):
                self._emit(order)
            elif order.who not in self._participants.newcomers:
                # A newcomer takes part from the next attempt on.
                self._emit(order)
        if begun:
            self._participants.newcomers.clear()
        if any(isinstance(order, co.StartSource) for order in orders):
            self._began_at = now
            self._life.sources_started()
            self._plan_next(now)

    def _plan_next(self, now: float) -> None:
        if self._last:
            self._end_epoch(now)
        elif self.durable:
            self._due_at = max(now, self._began_at + self._interval_s)
            self._emit(do.Wake(self._due_at))

    # The manifest

    def stored(self, event: ev.EpochStored, now: float) -> None:
        """Take in that a manifest was written, or could not be."""
        if self._closed:
            # The run has ended, but whatever goes on from here finds the manifest.
            if event.error is None:
                seconds = now - self._began_at
                self._life.epoch_committed(event.epoch, seconds, event.size)
        elif event.error is not None:
            self._life.fail(event.error)
        else:
            self._written(event.epoch, event.size, now)

    def _written(self, epoch: Epoch, size: int, now: float) -> None:
        orders = self._coordinator.handle(co.ManifestWritten(epoch))
        self._life.epoch_committed(epoch, now - self._began_at, size)
        was_last = self._ending_last
        self._enact(orders, now)
        if self._coordinator.phase is not co.CoordinatorPhase.RUNNING:
            return  # a participant was lost meanwhile
        if was_last:
            self._life.last_epoch_committed()
        else:
            self._plan_next(now)

    # Time

    def tick(self, now: float, *, absent: bool) -> ev.AnswersLate | None:
        """End the epoch if it is due; returns who is late, unless a participant is `absent`."""
        if self._closed:
            return None
        if now >= self._due_at:
            self._end_epoch(now)
        at = self._coordinator
        waits = at.phase not in (co.CoordinatorPhase.IDLE, co.CoordinatorPhase.RUNNING)
        stage = None
        if waits and self.durable and not absent:
            stage = (at.phase, at.attempt, at.epoch)
        return self._timeouts.look(now, stage, at.missing, at.waiting_for)
