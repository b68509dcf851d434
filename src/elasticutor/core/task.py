"""A task's side of the protocol: what it does with everything that is not a tuple.

A task takes what it is sent strictly in order (paper 3.3: "on a first-come-first-served basis"),
and writes its cached state only on a label, at an epoch's end, or when its cache grew too large.
Running the operator over a chunk is the host's part, between `open_chunk` and `close_chunk`.
"""

from __future__ import annotations

from typing import Protocol

from elasticutor.core import events as ev
from elasticutor.core import instructions as do
from elasticutor.core.ids import Attempt, Epoch, ShardId, TaskId
from elasticutor.errors import OutOfOrderError, StaleAttemptError


class TaskCache(Protocol):
    """What a task needs of its state cache; `elasticutor.state.cache.StateCache` is one."""

    attempt: Attempt
    epoch: Epoch

    def flush(self) -> int:
        """Write all changes to the store; returns the bytes written."""

    def flush_shard(self, shard: ShardId) -> int:
        """Write the shard's changes to the store; returns the bytes written."""

    def forget_shard(self, shard: ShardId) -> None:
        """Drop the shard's cached objects, written or not."""

    def forget_all(self) -> None:
        """Drop all cached objects, written or not."""

    def open_epoch(self, attempt: Attempt, epoch: Epoch) -> None:
        """Count what changes from now on to another attempt or epoch; only when all is written."""

    def relieve(self) -> None:
        """Write everything and start empty, if the cache holds more than it may."""


class Task:
    """The protocol of one task."""

    def __init__(self, task: TaskId, cache: TaskCache) -> None:
        self.id = task
        self.cache = cache

    def open_chunk(self, chunk: do.Dispatch) -> None:
        """Make ready for the tuples of a chunk."""
        self._require_attempt(chunk.attempt)
        if (chunk.attempt, chunk.epoch) != (self.cache.attempt, self.cache.epoch):
            self.cache.open_epoch(chunk.attempt, chunk.epoch)

    def close_chunk(self) -> None:
        """The operator is done with the chunk."""
        self.cache.relieve()

    def label(self, label: do.SendLabel) -> ev.LabelReached:
        """Every tuple of the shard is processed: let its state be where others can read it."""
        size = self.cache.flush_shard(label.shard)
        self.cache.forget_shard(label.shard)
        return ev.LabelReached(self.id, label.move, size)

    def flush(self, order: do.FlushTask) -> ev.TaskFlushed:
        """The epoch ends: write everything, keep it cached, and count from now on to the next."""
        self._require_attempt(order.attempt)
        if order.attempt == self.cache.attempt and order.epoch < self.cache.epoch:
            raise OutOfOrderError("epoch to flush", f"be {self.cache.epoch} or later", order.epoch)
        self.cache.flush()
        self.cache.open_epoch(order.attempt, Epoch(order.epoch + 1))
        return ev.TaskFlushed(self.id, order.attempt, order.epoch)

    def reset(self, order: do.ResetTask) -> ev.TaskReset:
        """The attempt was given up: forget all that it changed."""
        self._require_attempt(order.attempt)
        self.cache.forget_all()
        self.cache.open_epoch(order.attempt, Epoch(0))  # the next chunk says which
        return ev.TaskReset(self.id, order.attempt)

    def _require_attempt(self, attempt: Attempt) -> None:
        if attempt < self.cache.attempt:
            raise StaleAttemptError("attempt", f"be {self.cache.attempt} or later", attempt)
