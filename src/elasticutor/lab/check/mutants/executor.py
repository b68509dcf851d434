"""Bugs of the executor, its tasks and its stores: moves, epochs, attempts, credit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any
from unittest.mock import patch

from elasticutor.core.executor.credits import InputCredits
from elasticutor.core.executor.emitter import Emitter
from elasticutor.core.executor.epoch_end import EpochEnd
from elasticutor.core.executor.epochs import Epochs
from elasticutor.core.executor.reassignment import Move, MovePhase, Reassigner
from elasticutor.core.executor.receiver import Receiver
from elasticutor.core.executor.rollback import Rollback
from elasticutor.core.protocol import coordinator, keeper
from elasticutor.core.protocol import events as ev
from elasticutor.core.protocol import instructions as do
from elasticutor.core.protocol.coordinator import Coordinator, ParticipantPrepared
from elasticutor.core.protocol.ids import Attempt, Epoch, Peer, ShardId
from elasticutor.core.protocol.keeper import Errand, Keeper, SendSlice
from elasticutor.core.protocol.task import Task
from elasticutor.lab.check.mutants.mutant import Mutants
from elasticutor.state.cache import StateCache
from elasticutor.state.handles import ABSENT
from elasticutor.state.levels import Levels, Record

ESSENTIAL = Mutants()
"""The eight that every version must find."""
FURTHER = Mutants()


@ESSENTIAL.instead_of(Reassigner, "_label")
def _label_skipped(self: Reassigner, move: Move, now: float) -> None:
    move.phase = MovePhase.DRAINING
    self._receiver.hold([move.shard])
    self.drained(move, now)


@ESSENTIAL.around(Reassigner, "_label")
def _hold_forgotten(right: Any, self: Reassigner, move: Move, now: float) -> None:
    right(self, move, now)
    self._unheld.pop()


@ESSENTIAL.instead_of(Task, "label")
def _flush_forgotten(self: Task, label: do.SendLabel, returned: int = 0) -> ev.LabelReached:
    self.cache.forget_shard(label.shard)
    return ev.LabelReached(self.id, label.move, 0, returned)


@ESSENTIAL.around(Reassigner, "_label")
def _routing_updated_too_early(right: Any, self: Reassigner, move: Move, now: float) -> None:
    right(self, move, now)
    self.hold_labelled()
    self._hand_to(move)


@ESSENTIAL.instead_of(Receiver, "release")
def _order_swapped(self: Receiver, shard: ShardId, slot: int) -> None:
    self._slot_of[shard] = slot
    self._queues[slot].extendleft(self._held.pop(shard, ()))


@ESSENTIAL.around(keeper._HANDLERS, do.PersistIncrement)
def _prepared_state_folded_too_early(right: Any, self: Keeper, order: do.PersistIncrement) -> Any:
    yield from right(self, order)
    self.store.commit(order.epoch)


ESSENTIAL.omission_of(Epochs, "require_attempt", "stale attempt accepted")


@ESSENTIAL.instead_of(StateCache, "get")
def _in_place_change_lost(self: StateCache, shard: ShardId, key: Any, default: Any = None) -> Any:
    value = self._look_up(shard, key)
    if value is ABSENT:
        self._values[shard][key] = value = default
        self._touch(shard, key, value)
    return value


@FURTHER.instead_of(keeper._HANDLERS, do.SendRest)
def _nothing_sent_after_the_copy(self: Keeper, order: do.SendRest) -> Iterator[Errand]:
    yield SendSlice(order.destination, order.move, order.shard, (), last=True, rest=True)


@FURTHER.around(Receiver, "arrive_singly")
def _single_tuples_pass_held_ones(right: Any, self: Receiver, *arrived: Any) -> None:
    waiting = {shard: len(parts) for shard, parts in self._held.items()}
    right(self, *arrived)
    for shard, parts in self._held.items():
        before = waiting.get(shard, 0)
        parts[:] = [*parts[before:], *parts[:before]]


@FURTHER.around(Receiver, "arrive_singly")
def _single_tuples_join_the_open_epoch(right: Any, self: Receiver, *arrived: Any) -> None:
    ahead, self._ahead = self._ahead, {}
    right(self, *arrived)
    self._ahead = ahead


@FURTHER.around(Levels, "changed_records")
def _deletion_forgotten(right: Any, self: Levels, shard: ShardId) -> Iterator[Record]:
    return (record for record in right(self, shard) if record.value is not None)


@FURTHER.around(Levels, "_fold")
def _commit_not_noted_during_a_copy(right: Any, self: Levels, level: Epoch) -> None:
    with patch.object(Levels, "_note_changes", lambda *changes: None):
        right(self, level)


@FURTHER.instead_of(Task, "reset")
def _caches_survive_an_abort(self: Task, order: do.ResetTask) -> ev.TaskReset:
    self.cache.attempt = order.attempt
    return ev.TaskReset(self.id, order.attempt)


@FURTHER.around(Rollback, "proceed")
def _stores_do_not_wait_for_tasks(right: Any, self: Rollback, homes: Any) -> Any:
    self.resetting = set()
    return right(self, homes)


FURTHER.omission_of(Receiver, "wait_ahead", "next epoch not kept apart")


@FURTHER.instead_of(Emitter, "end_epoch")
def _marker_overtakes_outputs(
    self: Emitter, epoch: Epoch, destinations: Iterable[Peer] | None = None
) -> None:
    for destination in self._outlets if destinations is None else destinations:
        self._outlets[destination].waiting.appendleft(epoch)


@FURTHER.around(coordinator._HANDLERS, ParticipantPrepared)
def _committed_with_one_missing(right: Any, self: Coordinator, event: ParticipantPrepared) -> Any:
    for who in self._executors[1:]:
        self._prepared.setdefault(who, None)
    return [] if event.who in self._executors[1:] else right(self, event)


@FURTHER.instead_of(InputCredits, "finish")
def _credit_never_ends(
    self: InputCredits, upstream: Peer, size: int, attempt: Attempt, limit: int
) -> Any:
    self._intakes[upstream].finished += size
    self._intakes[upstream].granted += 10 * limit
    return do.GrantCredit(upstream, attempt, self._intakes[upstream].granted)


@FURTHER.instead_of(Levels, "write")
def _store_takes_stale_writes(
    self: Levels, attempt: Attempt, epoch: Epoch, shard: ShardId, items: Any
) -> None:
    self._put(epoch, shard, items)
    self._note_changes(shard, items)


@FURTHER.around(Levels, "roll_back")
def _watch_survives_an_abort(right: Any, self: Levels, *what: Any) -> None:
    with patch.object(Levels, "unwatch", lambda *shard: None):
        right(self, *what)


FURTHER.omission_of(EpochEnd, "commit_stores", "stores never hear of commits")


@FURTHER.instead_of(Reassigner, "cancel")
def _labels_wait_for_ever_after_an_abort(self: Reassigner) -> None:
    waits = self.labels_wait
    self.moves.clear()
    self.labels_wait = waits


@FURTHER.around(StateCache, "_encoded")
def _deleted_state_comes_back(right: Any, self: StateCache, states: Any) -> Any:
    return [(key, value) for key, value in right(self, states) if value is not None]


@FURTHER.instead_of(keeper._HANDLERS, do.DropShard)
def _old_copy_not_dropped(self: Keeper, order: do.DropShard) -> Iterator[Errand]:
    yield ev.ShardDropped(self.node, order.shard)
