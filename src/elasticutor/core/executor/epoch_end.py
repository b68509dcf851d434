"""Ends an epoch inside an executor: markers, flushes, increments, and the commit.

When every upstream has marked its end and all tuples before that are handed out, the tasks
flush behind them, and the tuples of the next epoch follow at once: a task sets apart what
it changed, and writes that while it works on. When the last chunk of the epoch is answered it is
sealed: its marker goes on, and behind it the outputs that the next epoch has had so far. When all
tasks have written, nodes persist what has changed. When all of that is persisted the epoch is
prepared, and the coordinator commits it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from elasticutor.core.executor.datapath import DataPath
from elasticutor.core.executor.epochs import Epochs
from elasticutor.core.executor.reassignment import Reassigner
from elasticutor.core.executor.tasks import TaskSet
from elasticutor.core.protocol import events as ev
from elasticutor.core.protocol import instructions as do
from elasticutor.core.protocol.ids import NodeId, ShardId
from elasticutor.errors import OutOfOrderError


@dataclass(slots=True, eq=False)
class EpochEnd:
    """Ends the epochs of one executor, while it runs."""

    _epochs: Epochs
    _data: DataPath
    _moves: Reassigner
    _task_set: TaskSet
    _emit: Callable[[do.Instruction], None]

    def mark(self, event: ev.MarkerArrived, now: float) -> None:
        """Take note that an upstream has sent all of its tuples of the open epoch."""
        at = self._epochs
        at.require_marker(event.upstream, event.epoch)
        if at.prepared is not None:  # a next epoch ends only after the commit of this
            self._commit()
        if not at.marked:
            at.marked_at = now
        at.marked.add(event.upstream)
        self._data.receiver.wait_ahead(event.upstream)
        self._data.end_upstream(event.upstream, event.epoch)

    def try_to_flush(self, now: float) -> bool:
        """Let the tasks flush when all tuples of the epoch are handed out, behind them.

        Returns whether that is so: then the next epoch is open.
        """
        at = self._epochs
        if not at.marked or not at.all_marked:
            return False
        # A shard on the move would have to be waited for. But where much is left to do, which is
        # what a batch is like that was sent at once, it pays to go on balancing.
        waited, self._moves.labels_wait = self._moves.labels_wait, self._data.nearly_handed_out
        if waited and not self._moves.labels_wait:  # what is left turns out to be expensive
            self._moves.send_waiting_labels(now)
        unplaced = None in self._moves.table.owners
        if not self._data.receiver.empty or self._moves.holding or unplaced:
            return False
        running = self._task_set.running
        epoch = at.end({task.id for task in running}, now)
        for task in running:
            self._emit(do.FlushTask(task.id, at.attempt, epoch))
        self._data.begin_next_epoch()
        self._moves.labels_wait = False
        self._moves.send_waiting_labels(now)
        return True

    def try_to_seal(self) -> bool:
        """Pass the epoch's end on when all of its chunks are answered; returns whether they are."""
        at = self._epochs
        if not at.unsealed or self._data.awaits_last_epoch:
            return False
        self._data.end_epoch(at.seal())
        return True

    def flushed(self, event: ev.TaskFlushed, now: float) -> bool:
        """Take note that a task has written the epoch; returns whether it was the last one."""
        at, task = self._epochs, event.task
        if task not in at.still_to_flush or event.epoch != at.ending:
            raise OutOfOrderError(f"task {task}", "have an order to flush", event.epoch)
        if self._data.owes_last_epoch(self._task_set.tasks[task]):
            raise OutOfOrderError(f"task {task}", "answer its chunks first", event.epoch)
        at.still_to_flush.discard(task)
        at.pause_s = max(at.pause_s, event.pause_s)
        if not at.still_to_flush:
            self._persist(now)
            return True
        return False

    def _persist(self, now: float) -> None:
        """Make durable what the epoch changed, all of which is in the stores.

        A shard that has moved since the epoch ended has brought its changes along.
        """
        at = self._epochs
        shards_on: dict[NodeId, list[ShardId]] = {}
        for shard, home in enumerate(self._moves.homes):
            assert home is not None  # an epoch ends only when every shard is placed
            shards_on.setdefault(home, []).append(ShardId(shard))
        epoch = at.persist(set(shards_on))
        for node, shards in sorted(shards_on.items()):
            self._emit(do.PersistIncrement(node, at.attempt, epoch, tuple(shards)))
        flush_s, align_s = now - at.flushing_at, at.flushing_at - at.marked_at
        self._emit(do.ReportSealed(at.attempt, epoch, align_s, flush_s, at.pause_s))

    def persisted(self, event: ev.IncrementPersisted) -> None:
        """Take note that a node has made durable what has changed there."""
        at = self._epochs
        waiting = at.persisting or set()
        if event.node not in waiting or event.epoch != at.ending:
            raise OutOfOrderError(f"node {event.node!r}", "have an order to persist", event.epoch)
        waiting.discard(event.node)
        if event.note is not None:
            at.notes.append(event.note)
        if not waiting:
            notes = tuple(at.notes)
            self._emit(do.ReportPrepared(at.attempt, at.prepare(), notes))

    def committed(self, event: ev.EpochCommitted) -> None:
        """Take note that the epoch is part of the checkpoint; idempotent."""
        at = self._epochs
        if event.epoch == at.committed:
            return
        if event.epoch != at.prepared:
            must = f"be the prepared one, {at.prepared}"
            raise OutOfOrderError("epoch committed", must, event.epoch)
        self._commit()

    def _commit(self) -> None:
        self._epochs.commit()
        self.commit_stores()

    def commit_stores(self) -> None:
        """Let every store forget what came before the committed epoch."""
        for node in sorted(self._task_set.stores):
            self._emit(do.CommitStore(node, self._epochs.committed))
