"""The epochs of a run, live: when they end, and how they become durable.

What happens next is the coordinator's to say (`core.protocol.coordinator`). Here is what it cannot
have: a clock, the checkpoint, and the thread in which that is written, so that the driver's own
never waits for a disk.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from elasticutor.core.protocol import coordinator as co
from elasticutor.core.protocol.ids import Attempt, Epoch, Peer
from elasticutor.core.run.timeouts import LateWatcher, Timeouts
from elasticutor.driver.checkpoint_writer import CheckpointWriter
from elasticutor.driver.checkpoints import ends
from elasticutor.state.checkpoint import Checkpoint, StateFile

if TYPE_CHECKING:
    from elasticutor.driver.loop import DriverLoop


class EpochWatcher(LateWatcher, Protocol):
    """Whoever is told how the epochs of a run go."""

    def attempt_begun(self, attempt: Attempt, base: Epoch) -> None:
        """Everybody goes back to the base."""

    def sources_started(self) -> None:
        """Tuples flow."""

    def epoch_committed(self, epoch: Epoch, seconds: float, size: int) -> None:
        """The epoch is durable, whatever happens now."""

    def last_epoch_committed(self) -> None:
        """And so is the last one: everybody has been told to commit it."""

    def storage_failed(self, error: Exception) -> None:
        """The checkpoint cannot be written."""


class RunEpochs(Protocol):
    """Whatever drives the epochs of a run: by a clock, or by the batches of a query."""

    @property
    def durable(self) -> bool:
        """Whether the run itself can go on from what is committed."""

    @property
    def started(self) -> bool:
        """Whether an attempt has begun, or may at any time."""

    @property
    def attempt(self) -> Attempt:
        """The current one."""

    @property
    def committed(self) -> Epoch:
        """The newest epoch that is."""

    @property
    def flowing_since(self) -> float:
        """Since when tuples flow, as far as it knows; infinity while none do."""

    def start(self) -> None:
        """Everybody is up."""

    def handle(self, event: co.CoordinatorEvent) -> None:
        """A participant has answered, or is lost."""

    def note(self, who: Peer, report: Any) -> None:
        """An executor has reported something for the record."""

    def end_last(self) -> None:
        """End the open epoch; no other follows."""

    def go_on(self) -> None:
        """The last epoch was not the last one, after all."""

    def waiting_for(self) -> list[str]:
        """Why nothing happens, in words."""

    def tick(self, now: float, absent: bool) -> None:
        """Nobody may be waited for without end."""

    def stop(self) -> None:
        """The run is over: begin and commit nothing more."""

    def close(self) -> None:
        """Nothing of the run is left: let the next one have the checkpoint."""


class EpochDriver:
    """Drives the epochs of one topology. Lives in the hub's thread.

    Args:
        hub: Whose thread.
        coordinator: What decides.
        watcher: Told of everything.
        send: Sends to a participant.
        sources: Told of commits too: some keep what is read until it is committed.
        executors: Those whose notes tell which files have their state.
        checkpoint: Where epochs become durable; None: nowhere, and only the last one ends.
        interval_s: From one epoch's end to the next.
        patience_s: How long an answer may take.
    """

    def __init__(
        self,
        hub: DriverLoop,
        coordinator: co.Coordinator,
        watcher: EpochWatcher,
        send: Callable[[Peer, Any], None],
        *,
        sources: Sequence[Peer],
        executors: Sequence[Peer],
        checkpoint: Checkpoint | None,
        interval_s: float,
        patience_s: float,
    ) -> None:
        self._hub = hub
        self.coordinator = coordinator
        self._watcher = watcher
        self._send = send
        self._sources = sources
        self._executors = executors
        self._checkpoint = checkpoint
        self._interval_s = interval_s
        self._clerk = None if checkpoint is None else CheckpointWriter(checkpoint, hub.post)
        self._due_at = float("inf")
        self._began_at = 0.0  # of the epoch's end
        self._bytes = 0
        self._last = False  # the epoch that is ended next is the last one
        self._ending_last = False
        self._closed = False
        self._lateness = Timeouts(watcher, patience_s)

    @property
    def durable(self) -> bool:
        """Whether what is committed outlives the run."""
        return self._checkpoint is not None

    @property
    def started(self) -> bool:
        """Whether an attempt has begun."""
        return self.coordinator.phase is not co.CoordinatorPhase.IDLE

    @property
    def flowing_since(self) -> float:
        """The run itself knows better."""
        return -math.inf

    @property
    def attempt(self) -> Attempt:
        """The current one."""
        return self.coordinator.attempt

    @property
    def committed(self) -> Epoch:
        """The newest epoch that is."""
        return self.coordinator.committed

    def waiting_for(self) -> list[str]:
        """Why nothing happens, in words."""
        return self.coordinator.waiting_for()

    def start(self) -> None:
        """Begin, from the newest epoch of the checkpoint."""
        kept = self._checkpoint
        if kept is None:
            self._enact(self.coordinator.start())
        else:
            notes = {Peer(who): note for who, note in kept.notes.items()}
            self._enact(self.coordinator.start(kept.committed, notes, kept.first_attempt))

    def handle(self, event: co.CoordinatorEvent) -> None:
        """Something has happened that is the coordinator's to decide about."""
        self._enact(self.coordinator.handle(event))

    def note(self, who: Peer, report: Any) -> None:
        """The journal is enough."""

    def end_last(self) -> None:
        """End the open epoch now, or as soon as the one before it is done; no other follows."""
        self._last = True
        self._end_epoch()

    def go_on(self) -> None:
        """The last epoch was not the last one, after all."""
        self._last = False

    def _end_epoch(self) -> None:
        if self.coordinator.phase is co.CoordinatorPhase.RUNNING:
            self._began_at = time.monotonic()
            self._due_at = float("inf")
            self._ending_last = self._last
            self.handle(co.EpochDue())

    def _enact(self, orders: list[co.Order]) -> None:
        starts = [order for order in orders if isinstance(order, co.StartSource)]
        if orders and isinstance(orders[0], co.BeginAttempt):
            self._due_at = float("inf")
            self._ending_last = False
            self._watcher.attempt_begun(orders[0].attempt, orders[0].base)
        for order in orders:
            if isinstance(order, co.WriteManifest):
                self._write(order)
            else:
                self._send(order.who, order)
        if starts:
            self._began_at = time.monotonic()
            self._watcher.sources_started()
            self._plan_next()

    def _plan_next(self) -> None:
        if self._last:
            self._end_epoch()
        elif self.durable:
            now = time.monotonic()
            self._due_at = max(now, self._began_at + self._interval_s)
            self._hub.after(self._due_at - now, self._look)

    def _look(self) -> None:
        if time.monotonic() >= self._due_at and not self._closed:
            self._end_epoch()

    # The manifest

    def _write(self, order: co.WriteManifest) -> None:
        if self._clerk is None:
            # Without a checkpoint a manifest has nothing to name: the epoch is over.
            self._written(order, None)
            return
        notes = dict(order.notes)
        said = [note for who in self._executors for note in notes.pop(who, None) or ()]
        files = [StateFile.from_note(note) for note in said]
        self._bytes = sum(file.size for file in files)
        self._clerk.commit(order, files, notes, lambda error: self._written(order, error))

    def _written(self, order: co.WriteManifest, error: Exception | None) -> None:
        seconds = time.monotonic() - self._began_at
        if self._closed:
            # The run has ended, but whoever goes on from here finds the manifest.
            if error is None and self.durable:
                self._watcher.epoch_committed(order.epoch, seconds, self._bytes)
            return
        if error is not None:
            self._watcher.storage_failed(error)
            return
        orders = self.coordinator.handle(co.ManifestWritten(order.epoch))
        self._watcher.epoch_committed(order.epoch, seconds, self._bytes)
        for source in self._sources:
            self._send(source, co.CommitEpoch(source, order.attempt, order.epoch))
        was_last = self._ending_last
        self._enact(orders)
        if self.coordinator.phase is not co.CoordinatorPhase.RUNNING:
            return  # somebody was lost meanwhile
        if was_last:
            self._watcher.last_epoch_committed()
        else:
            self._plan_next()

    # Time-outs

    def tick(self, now: float, absent: bool) -> None:
        """Nobody may be waited for without end.

        Args:
            now: The time.
            absent: Whether somebody is being replaced, and an answer cannot be expected.
        """
        at = self.coordinator
        waits = at.phase not in (co.CoordinatorPhase.IDLE, co.CoordinatorPhase.RUNNING)
        stage = None
        if waits and self.durable and not absent:
            stage = (at.phase, at.attempt, at.epoch)
        self._lateness.look(now, stage, at.missing, at.waiting_for)

    def stop(self) -> None:
        """End no more epochs."""
        self._closed = True

    def close(self) -> None:
        """Let the next run have the checkpoint."""
        self.stop()
        if self._checkpoint is not None:
            ends(self._checkpoint)
        if self._clerk is not None:
            self._clerk.close()
