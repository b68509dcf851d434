"""A task's side of the protocol: what it does with everything that is not a tuple.

A task takes what it is sent in order (paper 3.3: "on a first-come-first-served basis"), apart from
labels, which interrupt its chunks (`elasticutor.core.protocol.task_inbox`). It writes its cached
state only on a label, after an epoch's end, or when its cache grew too large. At an epoch's end it
only sets apart what has changed, which takes no time; it writes that in slices, between the chunks
of the next epoch. Running the operator over a chunk is the host's part, between `open_chunk` and
`close_chunk`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from elasticutor.core.protocol import events as ev
from elasticutor.core.protocol import instructions as do
from elasticutor.core.protocol.ids import Attempt, Epoch, TaskId
from elasticutor.core.protocol.task_inbox import TaskInbox, Work
from elasticutor.errors import OutOfOrderError, StaleAttemptError
from elasticutor.state.cache import StateCache


class Task:
    """The protocol of one task."""

    def __init__(self, task: TaskId, cache: StateCache) -> None:
        self.id = task
        self.cache = cache
        self._flushing: do.FlushTask | None = None

    @property
    def flushing(self) -> bool:
        """Whether `write_on` has something to do."""
        return self._flushing is not None

    def open_chunk(self, chunk: do.Dispatch) -> None:
        """Make ready for the tuples of a chunk."""
        self._require_attempt(chunk.attempt)
        if (chunk.attempt, chunk.epoch) != (self.cache.attempt, self.cache.epoch):
            self.cache.open_epoch(chunk.attempt, chunk.epoch)

    def close_chunk(self) -> None:
        """The operator is done with the chunk."""
        self.cache.relieve()

    def write(self, order: do.WriteShard) -> Iterator[ev.ShardWritten | None]:
        """Write what is changed of the shard now, a slice at each step; at last comes the answer.

        Tuples may be processed between two steps. What they change is left to the label.
        """
        left, size = self.cache.dirty_keys(order.shard), 0
        while left > 0:
            keys, written = self.cache.write_ahead(order.shard)
            if not keys:
                break  # a flush or a reset came first
            left, size = left - keys, size + written
            yield None
        yield ev.ShardWritten(self.id, order.move, size)

    def label(self, label: do.SendLabel, returned: int = 0) -> ev.LabelReached:
        """No tuple of the shard is left here: let its state be where others can read it."""
        size = self.cache.flush_shard(label.shard)
        return ev.LabelReached(self.id, label.move, size, returned)

    def answer_labels(
        self, inbox: TaskInbox, work: Work | None, report: Callable[[], None]
    ) -> Iterator[ev.LabelReached]:
        """Answer every label that waits, between two tuples; each answer is sent as it comes.

        Args:
            inbox: What the task has been sent.
            work: The chunk under way, if there is one.
            report: Sends what is done of that chunk. Its outputs must be with the main process
                before the answer to a label of their shard: another task goes on from there.
        """
        while (label := inbox.next_label()) is not None:
            if work is not None and work.owes(label.shard):
                report()
            left = 0 if work is None else work.leave_out(label.shard)
            yield self.label(label, left + inbox.leave_out(label.shard))
            # Behind the answer: to let go of a large state takes a while.
            self.cache.forget_shard(label.shard)

    def flush(self, order: do.FlushTask) -> None:
        """The epoch ends: set apart what has changed, and count from now on to the next."""
        self._require_attempt(order.attempt)
        if order.attempt == self.cache.attempt and order.epoch < self.cache.epoch:
            raise OutOfOrderError("epoch to flush", f"be {self.cache.epoch} or later", order.epoch)
        if self._flushing is not None:
            must = f"come after epoch {self._flushing.epoch} is written"
            raise OutOfOrderError("epoch to flush", must, order.epoch)
        self.cache.set_apart()
        self.cache.open_epoch(order.attempt, Epoch(order.epoch + 1))
        self._flushing = order

    def write_on(self) -> ev.TaskFlushed | None:
        """Write a slice of what was set apart; once all of it is written, that is the answer."""
        order = self._flushing
        if order is None or self.cache.write_some():
            return None
        self._flushing = None
        return ev.TaskFlushed(self.id, order.attempt, order.epoch)

    def reset(self, order: do.ResetTask) -> ev.TaskReset:
        """The attempt was given up: forget all that it changed."""
        self._require_attempt(order.attempt)
        self._flushing = None
        self.cache.forget_all()
        self.cache.open_epoch(order.attempt, Epoch(0))  # the next chunk says which
        return ev.TaskReset(self.id, order.attempt)

    def _require_attempt(self, attempt: Attempt) -> None:
        if attempt < self.cache.attempt:
            raise StaleAttemptError("attempt", f"be {self.cache.attempt} or later", attempt)
