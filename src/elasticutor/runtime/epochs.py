"""The epochs of a run, live: when they end, and how they become durable.

What happens next is the coordinator's to say (`core.coordinator`). Here is what it cannot have: a
clock, the checkpoint, and the thread in which that is written, so that the driver's own never
waits for a disk.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from elasticutor.core import coordinator as co
from elasticutor.core.ids import Attempt, Epoch, Peer
from elasticutor.runtime.keeping import ends, release
from elasticutor.runtime.tries import with_patience
from elasticutor.state.checkpoint import Checkpoint, StateFile

if TYPE_CHECKING:
    from elasticutor.runtime.hub import Hub

log = logging.getLogger(__name__)

_RENEW_S = 2.0
_ANSWER_S = 2.0
"""How long those have who are asked why they have not answered."""


class EpochWatcher(Protocol):
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

    def ask_why(self, missing: Sequence[Peer]) -> None:
        """These have not answered for long: let them say why, if they can."""

    def too_late(self, missing: Sequence[Peer], reason: str) -> None:
        """These have not answered for too long."""


class EpochDriver:
    """Drives the epochs of one run. Lives in the hub's thread.

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
        hub: Hub,
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
        self._patience_s = patience_s
        self._clerk = None if checkpoint is None else _Clerk(checkpoint, hub.post)
        self._due_at = float("inf")
        self._began_at = 0.0  # of the epoch's end
        self._bytes = 0
        self._last = False  # the epoch that is ended next is the last one
        self._ending_last = False
        self._closed = False
        self._stage: tuple[Any, ...] = ()
        self._stage_since = 0.0
        self._asked = False

    @property
    def durable(self) -> bool:
        """Whether what is committed outlives the run."""
        return self._checkpoint is not None

    @property
    def started(self) -> bool:
        """Whether an attempt has begun."""
        return self.coordinator.phase is not co.CoordinatorPhase.IDLE

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
        if self._closed:
            return  # the run has ended; whoever goes on from here finds the manifest
        if error is not None:
            self._watcher.storage_failed(error)
            return
        orders = self.coordinator.handle(co.ManifestWritten(order.epoch))
        seconds = time.monotonic() - self._began_at
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
        coordinator = self.coordinator
        stage = (coordinator.phase, coordinator.attempt, coordinator.epoch)
        waits = coordinator.phase not in (co.CoordinatorPhase.IDLE, co.CoordinatorPhase.RUNNING)
        if stage != self._stage or absent or not waits or not self.durable:
            self._stage, self._stage_since, self._asked = stage, now, False
            return
        late_s = now - self._stage_since
        missing = coordinator.missing()
        if late_s > self._patience_s and not self._asked:
            self._asked = True
            self._watcher.ask_why(missing)
        elif late_s > self._patience_s + _ANSWER_S:
            self._stage_since, self._asked = now, False
            waited = "; ".join(coordinator.waiting_for())
            self._watcher.too_late(missing, f"no answer within {self._patience_s:g} s: {waited}")

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


class _Clerk:
    """A thread that writes manifests, tidies up behind them, and keeps the lease."""

    def __init__(self, checkpoint: Checkpoint, post: Callable[[Callable[[], None]], None]) -> None:
        self._checkpoint = checkpoint
        self._post = post
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="elasticutor-clerk", daemon=True)
        self._tidier = threading.Thread(target=self._tidy, name="elasticutor-tidier", daemon=True)
        self._untidy = threading.Event()
        self._over = threading.Event()
        self._thread.start()
        self._tidier.start()

    def commit(
        self,
        order: co.WriteManifest,
        files: Sequence[StateFile],
        notes: Mapping[Peer, Any],
        then: Callable[[Exception | None], None],
    ) -> None:
        """Write a manifest; then tell, in the hub's thread, what kept it from being there."""
        named = {str(who): note for who, note in notes.items()}

        def job() -> None:
            error: Exception | None = None
            try:
                with_patience(
                    lambda: self._checkpoint.commit(order.epoch, order.attempt, files, named)
                )
                self._untidy.set()
            except Exception as problem:
                error = problem
            self._post(lambda: then(error))

        self._jobs.put(job)

    def close(self) -> None:
        """End, as soon as what is being written is written; returns at once."""
        self._over.set()
        self._jobs.put(None)
        self._untidy.set()

    def _run(self) -> None:
        renew_at = time.monotonic() + _RENEW_S
        while True:
            try:
                job = self._jobs.get(timeout=max(0.0, renew_at - time.monotonic()))
                if job is None:
                    break
                job()
            except queue.Empty:
                pass
            if time.monotonic() >= renew_at:
                renew_at = time.monotonic() + _RENEW_S
                self._renew()
        release(self._checkpoint)

    def _renew(self) -> None:
        try:
            self._checkpoint.renew()
        except Exception as error:
            log.warning("the lease of the checkpoint could not be renewed: %s", error)

    def _tidy(self) -> None:
        """Folding takes long and nobody waits for it, so it has a thread of its own."""
        while True:
            self._untidy.wait()
            self._untidy.clear()
            if self._over.is_set():
                return
            try:
                self._checkpoint.tidy()
            except Exception as error:
                log.warning("the checkpoint could not be tidied up: %s", error)
