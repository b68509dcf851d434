"""The checker checked: bugs put in by hand, one at a time, that it must find.

Each mutant replaces one method by a version with a mistake in it, of the kind one makes. A checker
that lets one of them through for hundreds of seeds is not worth its green light.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

from msgspec.structs import replace

from elasticutor.core.executor.batch import Part, divided
from elasticutor.core.executor.credits import InputCredits
from elasticutor.core.executor.datapath import DataPath
from elasticutor.core.executor.emitter import Emitter
from elasticutor.core.executor.epoch_end import EpochEnd
from elasticutor.core.executor.epochs import Epochs
from elasticutor.core.executor.reassignment import Move, MovePhase, Reassigner
from elasticutor.core.executor.receiver import Receiver
from elasticutor.core.executor.rollback import Rollback
from elasticutor.core.executor.tasks import TaskView
from elasticutor.core.protocol import batch_protocol as ba
from elasticutor.core.protocol import coordinator, keeper
from elasticutor.core.protocol import events as ev
from elasticutor.core.protocol import instructions as do
from elasticutor.core.protocol.batch_attempt import BatchAttempt, BatchPhase
from elasticutor.core.protocol.batches import Batches
from elasticutor.core.protocol.coordinator import Coordinator, Order, ParticipantPrepared
from elasticutor.core.protocol.ids import Attempt, Epoch, Peer, ShardId
from elasticutor.core.protocol.keeper import Errand, Keeper, SendSlice
from elasticutor.core.protocol.succession import Succession
from elasticutor.core.protocol.task import Task
from elasticutor.core.protocol.task_inbox import TaskInbox, Work
from elasticutor.lab.check import end_mutants, run_mutants
from elasticutor.lab.check.runner import run_seeds
from elasticutor.state.cache import StateCache
from elasticutor.state.handles import ABSENT
from elasticutor.state.levels import Levels, Record

SEEDS = Path(__file__).with_name("mutant_seeds.json")
"""By mutant the first seed that finds it; `scripts/store_seeds.py` searches and writes them."""


@cache
def stored_seeds() -> dict[str, int]:
    """Return the killing seed of each mutant that has one stored."""
    seeds: dict[str, int] = json.loads(SEEDS.read_text(encoding="utf-8"))
    return seeds


@dataclass(frozen=True, slots=True)
class Mutant:
    """One bug."""

    name: str
    injected: Callable[[], AbstractContextManager[Any]]
    """Have the bug for a while."""

    @property
    def seed(self) -> int | None:
        """The stored seed that finds it; None before one is stored."""
        return stored_seeds().get(self.name)

    def found_by(self, seed: int) -> bool:
        """Replay one seed with the bug in place, and say whether the checker finds it."""
        return self.found_after(1, first=seed) is not None

    def found_after(self, most: int, first: int = 0) -> int | None:
        """After how many seeds the checker finds it; None if it does not."""
        with self.injected():
            result = run_seeds(range(first, first + most), processes=1, until_failure=True)
        return result.seeds if result.failures else None


# The eight that every version must find -----------------------------------------------------------


def _label_skipped(self: Reassigner, move: Move, now: float) -> None:
    move.phase = MovePhase.DRAINING
    self._receiver.hold([move.shard])
    self.drained(move, now)


def _hold_forgotten(self: Reassigner, move: Move, now: float) -> None:
    assert move.source is not None
    move.phase = MovePhase.DRAINING
    move.labelled_at = now
    self._emit(do.SendLabel(move.source, move.id, move.shard))


def _flush_forgotten(self: Task, label: do.SendLabel, returned: int = 0) -> ev.LabelReached:
    self.cache.forget_shard(label.shard)
    return ev.LabelReached(self.id, label.move, 0, returned)


def _routing_updated_too_early(self: Reassigner, move: Move, now: float) -> None:
    assert move.source is not None
    move.phase = MovePhase.DRAINING
    move.labelled_at = now
    self._receiver.hold([move.shard])
    self._emit(do.SendLabel(move.source, move.id, move.shard))
    self._hand_to(move)


def _order_swapped(self: Receiver, shard: ShardId, slot: int) -> None:
    self._slot_of[shard] = slot
    self._queues[slot].extendleft(self._held.pop(shard, ()))


def _single_tuples_pass_held_ones(
    self: Receiver, upstream: Peer, content: Any, shards: list[int], size: int, now: float
) -> None:
    waiting = {shard: len(parts) for shard, parts in self._held.items()}
    _RECEIVER_ARRIVE_SINGLY(self, upstream, content, shards, size, now)
    for shard, parts in self._held.items():
        before = waiting.get(shard, 0)
        parts[:] = [*parts[before:], *parts[:before]]


def _single_tuples_join_the_open_epoch(
    self: Receiver, upstream: Peer, content: Any, shards: list[int], size: int, now: float
) -> None:
    ahead, self._ahead = self._ahead, {}
    _RECEIVER_ARRIVE_SINGLY(self, upstream, content, shards, size, now)
    self._ahead = ahead


def _prepared_folded_too_early(self: Keeper, order: do.PersistIncrement) -> Iterator[Errand]:
    yield from _KEEPER_PERSIST(self, order)
    self.store.commit(order.epoch)


def _stale_attempt_accepted(self: Epochs, attempt: Attempt) -> None:
    pass


def _in_place_change_lost(self: StateCache, shard: ShardId, key: Any, default: Any = None) -> Any:
    value = self._look_up(shard, key)
    if value is ABSENT:
        self._values[shard][key] = value = default
        self._touch(shard, key, value)
    return value


# Some more ----------------------------------------------------------------------------------------


def _nothing_sent_after_the_copy(self: Keeper, order: do.SendRest) -> Iterator[Errand]:
    yield SendSlice(order.destination, order.move, order.shard, (), last=True, rest=True)


def _committed_deletion_forgotten(self: Levels, shard: ShardId) -> Iterator[Record]:
    for record in _LEVELS_CHANGED(self, shard):
        if record.value is not None:
            yield record


def _commit_not_noted_during_a_copy(self: Levels, level: Epoch) -> None:
    with patch.object(Levels, "_note_changes", lambda *changes: None):
        _LEVELS_FOLD(self, level)


def _caches_survive_an_abort(self: Task, order: do.ResetTask) -> ev.TaskReset:
    self.cache.attempt = order.attempt
    return ev.TaskReset(self.id, order.attempt)


def _stores_do_not_wait_for_tasks(self: Rollback, homes: Any) -> bool:
    self.resetting = set()
    return _ROLLBACK_PROCEED(self, homes)


def _next_epoch_not_kept_apart(self: Receiver, upstream: Peer) -> None:
    pass


def _marker_overtakes_outputs(
    self: Emitter, epoch: Epoch, destinations: Iterable[Peer] | None = None
) -> None:
    for destination in self._outlets if destinations is None else destinations:
        self._outlets[destination].waiting.appendleft(epoch)


def _committed_with_one_missing(self: Coordinator, event: ParticipantPrepared) -> list[Order]:
    for who in self._executors[1:]:
        self._prepared.setdefault(who, None)
    if event.who in self._executors[1:]:
        return []
    return _COORDINATOR_ON_PREPARED(self, event)


def _credit_never_ends(
    self: InputCredits, upstream: Peer, size: int, attempt: Attempt, limit: int
) -> Any:
    self._intakes[upstream].finished += size
    self._intakes[upstream].granted += 10 * limit
    return do.GrantCredit(upstream, attempt, self._intakes[upstream].granted)


def _old_copy_not_dropped(self: Keeper, order: do.DropShard) -> Iterator[Errand]:
    yield ev.ShardDropped(self.node, order.shard)


def _store_takes_stale_writes(
    self: Levels, attempt: Attempt, epoch: Epoch, shard: ShardId, items: Any
) -> None:
    self._put(epoch, shard, items)
    self._note_changes(shard, items)


def _watch_survives_an_abort(self: Levels, attempt: Attempt, base: Epoch, keep: Any) -> None:
    with patch.object(Levels, "unwatch", lambda *shard: None):
        _LEVELS_ROLL_BACK(self, attempt, base, keep)


def _stores_never_hear_of_commits(self: EpochEnd) -> None:
    pass


def _labels_wait_for_ever_after_an_abort(self: Reassigner) -> None:
    waits = self.labels_wait
    self.moves.clear()
    self.labels_wait = waits


def _deleted_state_comes_back(
    self: StateCache, states: dict[Hashable, Any]
) -> list[tuple[bytes, Any]]:
    return [item for item in _CACHE_ENCODED(self, states) if item[1] is not None]


# Labels that interrupt chunks ---------------------------------------------------------------------


def _returned_tuples_doubled(self: Receiver, shard: ShardId, parts: Iterable[Part]) -> None:
    _RECEIVER_TAKE_BACK(self, shard, [twice for part in parts for twice in (part, part)])


def _returned_tuples_lost(self: Receiver, shard: ShardId, parts: Iterable[Part]) -> None:
    for _ in parts:
        pass


def _returned_tuples_behind_held_ones(
    self: Receiver, shard: ShardId, parts: Iterable[Part]
) -> None:
    waiting = self._held.pop(shard, [])
    _RECEIVER_TAKE_BACK(self, shard, parts)
    self._held.setdefault(shard, [])[:0] = waiting


def _partial_result_counted_twice(self: TaskView, rows: int, useful_s: float) -> list[Part]:
    flight = self.flights[0]
    if rows == flight.rows:
        return _TASK_ANSWERED(self, rows, useful_s)
    return divided(flight.parts, rows)[0]


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


def _returned_tuples_processed_too(self: Work, shard: ShardId) -> int:
    return int((self.shards[self.left] == shard).sum())


# The end of an epoch, beside the next one's tuples ------------------------------------------------


def _next_epoch_leaks_into_the_last(self: StateCache, shard: ShardId, key: Any) -> None:
    pass


def _replaced_state_leaks_into_the_last(self: StateCache, room: int, only: Any = None) -> int:
    for shard, states in self._apart.items():
        states.update({key: self._values[shard].get(key, was) for key, was in states.items()})
    return _CACHE_WRITE_APART(self, room, only)


def _last_epoch_left_behind_by_a_label(self: StateCache, shard: ShardId | None = None) -> int:
    if shard is None:
        return _CACHE_FLUSH_APART(self)
    self._apart.pop(shard, None)
    return 0


def _last_epoch_written_with_the_next(self: StateCache, room: int, only: Any = None) -> int:
    self._apart_of = self._current
    return _CACHE_WRITE_APART(self, room, only)


def _outputs_overtake_the_marker(self: Emitter, output: Any, *, ahead: bool = False) -> None:
    _OUTPUTS_ADD(self, output)


def _persisted_before_all_is_written(self: EpochEnd, event: ev.TaskFlushed, now: float) -> bool:
    at = self._epochs
    if event.epoch == at.ending and at.persisting is None and not at.unsealed:
        self._persist(now)
        return True
    return False


def _answered_before_the_flush(
    self: Task, inbox: TaskInbox, work: Work | None, report: Callable[[], None]
) -> Iterator[ev.LabelReached]:
    """The state follows with the next chunk."""
    with (
        patch.object(self.cache, "flush_shard", lambda shard: 0),
        patch.object(self.cache, "forget_shard", self.__dict__.setdefault("late", []).append),
    ):
        yield from _TASK_ANSWER_LABELS(self, inbox, work, report)


def _flushed_with_the_next_chunk(self: Task, chunk: do.Dispatch) -> None:
    for shard in self.__dict__.pop("late", ()):
        self.cache.flush_shard(shard)
        self.cache.forget_shard(shard)
    _TASK_OPEN_CHUNK(self, chunk)


@contextmanager
def _state_written_too_late() -> Iterator[None]:
    with (
        patch.object(Task, "answer_labels", _answered_before_the_flush),
        patch.object(Task, "open_chunk", _flushed_with_the_next_chunk),
    ):
        yield


def _changes_while_writing_lost(self: StateCache, shard: ShardId) -> tuple[int, int]:
    written = _CACHE_WRITE_AHEAD(self, shard)
    self._dirty[shard].clear()
    return written


# The fencing of a query's tasks -------------------------------------------------------------------


def _second_task_admitted(
    self: Batches, current: BatchAttempt, task: ba.Ingress
) -> list[ba.BatchOrder]:
    current.arrived.pop(task.partition, None)
    return _BATCHES_ONE_OF_MANY(self, current, task)


def _last_task_does_not_wait(
    self: Batches, task: ba.Ingress, attempt: Attempt
) -> list[ba.BatchOrder]:
    self._current(attempt).left.add(task.partition)
    return [ba.Leave(task)]


def _does_not_go_back(self: Batches, task: ba.Ingress) -> list[ba.BatchOrder]:
    orders = _BATCHES_ON_NEW(self, task)
    if self._try is not None:
        self._try.returns = False
    return [order for order in orders if not isinstance(order, ba.GoBack)]


def _superseded_task_admitted(self: Batches, task: ba.Ingress) -> list[ba.BatchOrder]:
    current = self._try
    if current is not None and task.epoch == current.epoch and task.stage < current.stage:
        return self._on_one_of_many(current, task)
    return _BATCHES_ON_ARRIVED(self, task)


def _stage_in_part_accepted(self: Batches, event: ba.StageCounted) -> list[ba.BatchOrder]:
    whole = ba.StageCounted(event.execution, event.stage, event.partitions, event.partitions)
    return _BATCHES_ON_COUNTED(self, whole)


def _lost_output_is_a_second_use(self: Batches, event: ba.StageCounted) -> list[ba.BatchOrder]:
    return _BATCHES_ON_COUNTED(self, replace(event, output=None))


def _second_use_goes_on(self: Batches, current: Any, task: ba.Ingress) -> list[ba.BatchOrder]:
    return self._on_new(task)


def _last_task_leaves_too_early(
    self: Batches, who: Peer, attempt: Attempt, epoch: Epoch, notes: Any
) -> list[ba.BatchOrder]:
    orders = _BATCHES_ON_PREPARED(self, who, attempt, epoch, notes)
    current = self._try
    if not orders or current is None or current.last is None:
        return orders
    return [*orders, ba.Leave(current.last)]


def _batch_skipped(
    self: Batches, task: ba.Ingress, epoch: Epoch, reason: str, kept: bool
) -> list[ba.BatchOrder]:
    if self._try is not None:
        self._try.phase = BatchPhase.DURABLE
    self._owed = Epoch(0)
    return self._on_new(task)


def _stage_goes_on_with_another_run(self: Succession, task: ba.Ingress) -> bool:
    return True


def _marker_returns_too_early(self: DataPath, upstream: Peer) -> None:
    if upstream in self._ended:
        self.outputs.end_epoch(self._ended.pop(upstream), [upstream])
        self._send(upstream)


_BATCHES_ONE_OF_MANY = Batches._on_one_of_many
_BATCHES_ON_NEW = Batches._on_new
_BATCHES_ON_ARRIVED = Batches._on_arrived
_BATCHES_ON_COUNTED = Batches._on_counted
_BATCHES_ON_PREPARED = Batches._on_prepared
_TASK_OPEN_CHUNK = Task.open_chunk
_TASK_ANSWER_LABELS = Task.answer_labels
_CACHE_WRITE_AHEAD = StateCache.write_ahead
_TASK_ANSWERED = TaskView.answered
_RECEIVER_TAKE_BACK = Receiver.take_back
_KEEPER_PERSIST = Keeper._persist
_LEVELS_CHANGED = Levels.changed_records
_LEVELS_FOLD = Levels._fold
_LEVELS_ROLL_BACK = Levels.roll_back
_CACHE_ENCODED = StateCache._encoded
_CACHE_FLUSH_APART = StateCache._flush_apart
_CACHE_WRITE_APART = StateCache._write_apart
_OUTPUTS_ADD = Emitter.add
_RECEIVER_ARRIVE_SINGLY = Receiver.arrive_singly
_ROLLBACK_PROCEED = Rollback.proceed
_COORDINATOR_ON_PREPARED = Coordinator._on_prepared


def _method(owner: type, name: str, wrong: Any) -> Callable[[], AbstractContextManager[Any]]:
    return lambda: patch.object(owner, name, wrong)


def _handler(table: dict[type, Any], kind: type, wrong: Any) -> Callable[[], Any]:
    return lambda: patch.dict(table, {kind: wrong})


ESSENTIAL = (
    Mutant("label skipped", _method(Reassigner, "_label", _label_skipped)),
    Mutant("hold forgotten", _method(Reassigner, "_label", _hold_forgotten)),
    Mutant("flush forgotten", _method(Task, "label", _flush_forgotten)),
    Mutant("routing updated too early", _method(Reassigner, "_label", _routing_updated_too_early)),
    Mutant("order swapped", _method(Receiver, "release", _order_swapped)),
    Mutant(
        "prepared state folded too early",
        _handler(keeper._HANDLERS, do.PersistIncrement, _prepared_folded_too_early),
    ),
    Mutant("stale attempt accepted", _method(Epochs, "require_attempt", _stale_attempt_accepted)),
    Mutant("in-place change lost", _method(StateCache, "get", _in_place_change_lost)),
)

FURTHER = (
    Mutant(
        "nothing sent after the copy",
        _handler(keeper._HANDLERS, do.SendRest, _nothing_sent_after_the_copy),
    ),
    Mutant(
        "single tuples pass held ones",
        _method(Receiver, "arrive_singly", _single_tuples_pass_held_ones),
    ),
    Mutant(
        "single tuples join the open epoch",
        _method(Receiver, "arrive_singly", _single_tuples_join_the_open_epoch),
    ),
    Mutant("deletion forgotten", _method(Levels, "changed_records", _committed_deletion_forgotten)),
    Mutant(
        "commit not noted during a copy", _method(Levels, "_fold", _commit_not_noted_during_a_copy)
    ),
    Mutant("caches survive an abort", _method(Task, "reset", _caches_survive_an_abort)),
    Mutant(
        "stores do not wait for tasks",
        _method(Rollback, "proceed", _stores_do_not_wait_for_tasks),
    ),
    Mutant(
        "next epoch not kept apart", _method(Receiver, "wait_ahead", _next_epoch_not_kept_apart)
    ),
    Mutant("marker overtakes outputs", _method(Emitter, "end_epoch", _marker_overtakes_outputs)),
    Mutant(
        "committed with one missing",
        _handler(coordinator._HANDLERS, ParticipantPrepared, _committed_with_one_missing),
    ),
    Mutant("credit never ends", _method(InputCredits, "finish", _credit_never_ends)),
    Mutant("store takes stale writes", _method(Levels, "write", _store_takes_stale_writes)),
    Mutant("watch survives an abort", _method(Levels, "roll_back", _watch_survives_an_abort)),
    Mutant(
        "stores never hear of commits",
        _method(EpochEnd, "commit_stores", _stores_never_hear_of_commits),
    ),
    Mutant(
        "labels wait for ever after an abort",
        _method(Reassigner, "cancel", _labels_wait_for_ever_after_an_abort),
    ),
    Mutant("deleted state comes back", _method(StateCache, "_encoded", _deleted_state_comes_back)),
    Mutant("old copy not dropped", _handler(keeper._HANDLERS, do.DropShard, _old_copy_not_dropped)),
)

INTERRUPTING = (
    Mutant("returned tuples doubled", _method(Receiver, "take_back", _returned_tuples_doubled)),
    Mutant("returned tuples lost", _method(Receiver, "take_back", _returned_tuples_lost)),
    Mutant(
        "returned tuples behind held ones",
        _method(Receiver, "take_back", _returned_tuples_behind_held_ones),
    ),
    Mutant(
        "returned tuples processed too",
        _method(Work, "leave_out", _returned_tuples_processed_too),
    ),
    Mutant(
        "partial result counted twice",
        _method(TaskView, "answered", _partial_result_counted_twice),
    ),
    Mutant(
        "processed tuples returned too",
        _method(Task, "answer_labels", _processed_tuples_returned_too),
    ),
    Mutant("state written too late", _state_written_too_late),
    Mutant(
        "changes while writing lost",
        _method(StateCache, "write_ahead", _changes_while_writing_lost),
    ),
)

ENDING = (
    Mutant(
        "change of the next epoch leaks into the last",
        _method(StateCache, "_preserve", _next_epoch_leaks_into_the_last),
    ),
    Mutant(
        "replaced state leaks into the last epoch",
        _method(StateCache, "_write_apart", _replaced_state_leaks_into_the_last),
    ),
    Mutant(
        "label leaves the last epoch behind",
        _method(StateCache, "_flush_apart", _last_epoch_left_behind_by_a_label),
    ),
    Mutant(
        "last epoch written with the next",
        _method(StateCache, "_write_apart", _last_epoch_written_with_the_next),
    ),
    Mutant("outputs overtake the marker", _method(Emitter, "add", _outputs_overtake_the_marker)),
    Mutant(
        "persisted before all is written",
        _method(EpochEnd, "flushed", _persisted_before_all_is_written),
    ),
)

FENCING = (
    Mutant(
        "second task of a partition admitted",
        _method(Batches, "_on_one_of_many", _second_task_admitted),
    ),
    Mutant("last task does not wait", _method(Batches, "_on_done", _last_task_does_not_wait)),
    Mutant(
        "last task leaves too early", _method(Batches, "_on_prepared", _last_task_leaves_too_early)
    ),
    Mutant("batch run again on top of itself", _method(Batches, "_on_new", _does_not_go_back)),
    Mutant(
        "task of a superseded execution admitted",
        _method(Batches, "_on_arrived", _superseded_task_admitted),
    ),
    Mutant("stage in part accepted", _method(Batches, "_on_counted", _stage_in_part_accepted)),
    Mutant(
        "lost output taken for a second use",
        _method(Batches, "_on_counted", _lost_output_is_a_second_use),
    ),
    Mutant("second use goes on", _method(Batches, "_on_second", _second_use_goes_on)),
    Mutant("batch skipped", _method(Batches, "_miss", _batch_skipped)),
    Mutant("batch of a lost run skipped", _method(Batches, "owe", lambda self, epoch: None)),
    Mutant(
        "stage goes on with another run",
        _method(Succession, "may_begin", _stage_goes_on_with_another_run),
    ),
    Mutant(
        "marker returns before all outputs",
        _method(DataPath, "_return_marker", _marker_returns_too_early),
    ),
)

ENDS = tuple(Mutant(name, injected) for name, injected in end_mutants.BUGS)
LIFE = tuple(Mutant(name, injected) for name, injected in run_mutants.BUGS)

ALL = (*ESSENTIAL, *FURTHER, *INTERRUPTING, *ENDING, *FENCING, *ENDS, *LIFE)
