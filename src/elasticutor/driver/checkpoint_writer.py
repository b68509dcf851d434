"""Writes a checkpoint in a thread of its own, so that the driver's loop never waits."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterable
from functools import partial

from elasticutor.core.protocol import coordinator as co
from elasticutor.core.protocol.ids import Epoch, Peer
from elasticutor.driver.checkpoints import release
from elasticutor.process.checkpoint_io import with_patience
from elasticutor.process.slices import ask_for_short_slices
from elasticutor.state.checkpoint import Checkpoint, StateFile

log = logging.getLogger(__name__)

_RENEW_S = 2.0


class CheckpointWriter:
    """A thread that writes manifests, tidies up behind them, and keeps the lease."""

    def __init__(self, checkpoint: Checkpoint, post: Callable[[Callable[[], None]], None]) -> None:
        self._checkpoint = checkpoint
        self._post = post
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(
            target=self._run, name="elasticutor-checkpoint", daemon=True
        )
        self._tidier = threading.Thread(target=self._tidy, name="elasticutor-tidier", daemon=True)
        self._untidy = threading.Event()
        self._over = threading.Event()
        self._thread.start()
        self._tidier.start()

    def commit(
        self,
        order: co.WriteManifest,
        executors: Iterable[Peer],
        then: Callable[[int, Exception | None], None],
    ) -> None:
        """Write a manifest: the files that executors have noted, and the notes of all others.

        Then pass the size of the files, and the error or None, to `then` in the driver's loop.
        """
        notes = dict(order.notes)
        said = [note for who in executors for note in notes.pop(who, None) or ()]
        files = [StateFile.from_note(note) for note in said]
        size = sum(file.size for file in files)
        named = {str(who): note for who, note in notes.items()}
        commit = partial(self._checkpoint.commit, order.epoch, order.attempt, files, named)
        self._do(lambda: with_patience(commit), lambda error: then(size, error))

    def go_back(self, base: Epoch, then: Callable[[Exception | None], None]) -> None:
        """Let the checkpoint go on from its last epoch but one."""
        self._do(lambda: self._checkpoint.go_back(base), then)

    def _do(self, what: Callable[[], None], then: Callable[[Exception | None], None]) -> None:
        def job() -> None:
            error: Exception | None = None
            try:
                what()
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
        ask_for_short_slices()  # a batch waits for its manifest
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
        """Fold in a thread of its own: it takes long, and nothing waits for it."""
        while True:
            self._untidy.wait()
            self._untidy.clear()
            if self._over.is_set():
                return
            try:
                self._checkpoint.tidy()
            except Exception as error:
                log.warning("the checkpoint could not be tidied up: %s", error)
