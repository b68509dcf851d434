"""Bugs where two things meet in a task: labels interrupt chunks, an epoch ends beside the next."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from elasticutor.core.executor.batch import Part, divided
from elasticutor.core.executor.emitter import Emitter
from elasticutor.core.executor.epoch_end import EpochEnd
from elasticutor.core.executor.receiver import Receiver
from elasticutor.core.executor.tasks import TaskView
from elasticutor.core.protocol import events as ev
from elasticutor.core.protocol import instructions as do
from elasticutor.core.protocol.ids import ShardId
from elasticutor.core.protocol.task import Task
from elasticutor.core.protocol.task_inbox import TaskInbox, Work
from elasticutor.lab.check.mutants.mutant import Mutant, Mutants
from elasticutor.state.cache import StateCache

INTERRUPTING = Mutants()
"""Labels that interrupt chunks."""
ENDING = Mutants()
"""The end of an epoch, beside the next one's tuples."""


@INTERRUPTING.around(Receiver, "take_back")
def _returned_tuples_doubled(
    right: Any, self: Receiver, shard: ShardId, parts: Iterable[Part]
) -> None:
    right(self, shard, [twice for part in parts for twice in (part, part)])


@INTERRUPTING.instead_of(Receiver, "take_back")
def _returned_tuples_lost(self: Receiver, shard: ShardId, parts: Iterable[Part]) -> None:
    for _ in parts:
        pass


@INTERRUPTING.around(Receiver, "take_back")
def _returned_tuples_behind_held_ones(
    right: Any, self: Receiver, shard: ShardId, parts: Iterable[Part]
) -> None:
    waiting = self._held.pop(shard, [])
    right(self, shard, parts)
    self._held.setdefault(shard, [])[:0] = waiting


@INTERRUPTING.instead_of(Work, "leave_out")
def _returned_tuples_processed_too(self: Work, shard: ShardId) -> int:
    return int((self.shards[self.left] == shard).sum())


@INTERRUPTING.around(TaskView, "answered")
def _partial_result_counted_twice(right: Any, self: TaskView, rows: int, useful_s: float) -> Any:
    flight = self.flights[0]
    return right(self, rows, useful_s) if rows == flight.rows else divided(flight.parts, rows)[0]


@INTERRUPTING.instead_of(Task, "answer_labels")
def _processed_tuples_returned_too(
    self: Task, inbox: TaskInbox, work: Work | None, report: Callable[[], None]
) -> Iterator[ev.LabelReached]:
    """Nothing is reported before the label's answer, so all of the shard seems to be left."""
    while (label := inbox.next_label()) is not None:
        count = inbox.leave_out(label.shard)
        if work is not None:
            done = [work.shards[begun] == label.shard for begun in work._done]
            count += work.leave_out(label.shard) + sum(int(mine.sum()) for mine in done)
        yield self.label(label, count)


@INTERRUPTING.around(StateCache, "write_ahead")
def _changes_while_writing_lost(right: Any, self: StateCache, shard: ShardId) -> Any:
    written = right(self, shard)
    self._dirty[shard].clear()
    return written


_ANSWER_LABELS, _OPEN_CHUNK = Task.answer_labels, Task.open_chunk


def _answered_before_the_flush(self: Task, *what: Any) -> Iterator[ev.LabelReached]:
    """The state follows with the next chunk."""
    with (
        patch.object(self.cache, "flush_shard", lambda shard: 0),
        patch.object(self.cache, "forget_shard", self.__dict__.setdefault("late", []).append),
    ):
        yield from _ANSWER_LABELS(self, *what)


def _flushed_with_the_next_chunk(self: Task, chunk: do.Dispatch) -> None:
    for shard in self.__dict__.pop("late", ()):
        self.cache.flush_shard(shard)
        self.cache.forget_shard(shard)
    _OPEN_CHUNK(self, chunk)


@contextmanager
def _state_written_too_late() -> Iterator[None]:
    with (
        patch.object(Task, "answer_labels", _answered_before_the_flush),
        patch.object(Task, "open_chunk", _flushed_with_the_next_chunk),
    ):
        yield


INTERRUPTING.append(Mutant("state written too late", _state_written_too_late))


ENDING.omission_of(StateCache, "_preserve", "change of the next epoch leaks into the last")


@ENDING.around(StateCache, "_write_apart")
def _replaced_state_leaks_into_the_last_epoch(right: Any, self: StateCache, *what: Any) -> Any:
    for shard, states in self._apart.items():
        states.update({key: self._values[shard].get(key, was) for key, was in states.items()})
    return right(self, *what)


@ENDING.around(StateCache, "_flush_apart")
def _label_leaves_the_last_epoch_behind(
    right: Any, self: StateCache, shard: ShardId | None = None
) -> Any:
    if shard is None:
        return right(self)
    self._apart.pop(shard, None)
    return 0


@ENDING.around(StateCache, "_write_apart")
def _last_epoch_written_with_the_next(right: Any, self: StateCache, *what: Any) -> Any:
    self._apart_of = self._current
    return right(self, *what)


@ENDING.around(Emitter, "add")
def _outputs_overtake_the_marker(
    right: Any, self: Emitter, output: Any, *, ahead: bool = False
) -> None:
    right(self, output)


@ENDING.instead_of(EpochEnd, "flushed")
def _persisted_before_all_is_written(self: EpochEnd, event: ev.TaskFlushed, now: float) -> bool:
    at = self._epochs
    if event.epoch == at.ending and at.persisting is None and not at.unsealed:
        self._persist(now)
        return True
    return False
