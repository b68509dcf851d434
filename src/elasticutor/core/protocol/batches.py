"""Fencing of micro-batches: whatever is run again is applied once.

Spark runs a query in batches, and may run any part of it again: a task that was lost, a copy
of a slow one, a stage whose output is gone, a whole plan that a second action needs. An operator
with state outside of that plan must tell them apart:

```
no batch ──a task arrives──▶ counting ──▶ beginning ──all ready──▶ running ──all prepared──▶ writing
                                ▲                                     │                         │
                                └── another execution, or batch ──────┴────── durable ◀─────────┘
```

- The tasks of one stage of one execution of one batch are one *attempt*. How many they are must be
  known before the first may send, since an epoch ends when all have.
- A later execution of the same batch goes back to the state before it, and starts over.
- A second stage in one execution means that a plan has the operator twice, or that output was lost
  which others still need; a second task for a partition, that what the first has sent is half
  applied. All are refused, never guessed at; but only the first would be refused again and again.
- The last task may only leave when the epoch is durable, so no batch is committed before it is.
  That it was committed is known when a later batch begins.
- Numbers of batches may have gaps: an operator without input is not called at all.

Pure, as all of `core`: events in, orders out.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from elasticutor.core.protocol.batch_attempt import SENDING, BatchAttempt, BatchPhase
from elasticutor.core.protocol.batch_protocol import (
    Admit,
    BatchEvent,
    BatchOrder,
    BeginBatch,
    CountTasks,
    EpochDurable,
    GoBack,
    Ingress,
    Leave,
    Refuse,
    StageCounted,
    TaskArrived,
    TaskDone,
    WentBack,
)
from elasticutor.core.protocol.coordinator import (
    ParticipantPrepared,
    ParticipantReady,
    WriteManifest,
)
from elasticutor.core.protocol.ids import Attempt, Epoch, Peer
from elasticutor.errors import BadValueError, OutOfOrderError, StaleAttemptError


class Batches:
    """Decides what becomes of the tasks that feed the operators of one query, or of one action.

    `committed` is the epoch to begin with, and all attempts come after `first`. Unless it `keeps`
    state, every execution begins with nothing.

    Example:
        >>> batches = Batches(["count.0"], committed=Epoch(4))
        >>> task = Ingress(Epoch(5), execution=7, stage=2, partition=0, task=31)
        >>> batches.handle(TaskArrived(task))
        [CountTasks(execution=7, stage=2)]
        >>> [begin] = batches.handle(StageCounted(7, 2, tasks=1, partitions=1))
        >>> begin.base, begin.epoch, begin.upstreams
        (4, 5, ('p0@1',))
        >>> batches.handle(ParticipantReady("count.0", 1))[0].upstream
        'p0@1'

        All outputs are back, but the last task may not leave until the epoch is durable:

        >>> batches.handle(TaskDone(task, 1))
        []
        >>> batches.handle(ParticipantPrepared("count.0", 1, 5))
        [WriteManifest(epoch=5, attempt=1, predecessor=4, notes={'count.0': None})]
        >>> batches.handle(EpochDurable(1, 5)) == [Leave(task)]
        True

        The same task once more would be applied twice:

        >>> again = Ingress(Epoch(5), execution=7, stage=2, partition=0, task=32)
        >>> type(batches.handle(TaskArrived(again))[0]).__name__
        'Refuse'
    """

    def __init__(
        self,
        executors: Iterable[str],
        *,
        committed: Epoch = Epoch(0),
        first: Attempt = Attempt(0),
        keeps: bool = True,
    ) -> None:
        self._executors = tuple(Peer(name) for name in executors)
        if not self._executors:
            raise BadValueError("batches", "have an executor", self._executors)
        self.attempt = first
        self.committed = committed
        """The newest epoch that Spark is known to have committed."""
        self._keeps = keeps
        self._try: BatchAttempt | None = None
        self._owed = Epoch(0)
        self._missed: tuple[str, bool] | None = None
        """Why no batch can follow any more, and whether a restart helps; None if one can."""

    # What hosts, monitors and tests look at

    @property
    def phase(self) -> BatchPhase | None:
        """How far the current attempt is; None if there was none yet."""
        return None if self._try is None else self._try.phase

    @property
    def epoch(self) -> Epoch:
        """The epoch of the current attempt; before the first, what it begins with."""
        return self.committed if self._try is None else self._try.epoch

    @property
    def present(self) -> list[Ingress]:
        """The tasks that are here, and wait for something or send."""
        return [] if self._try is None else self._try.present

    @property
    def idle(self) -> bool:
        """Whether no attempt is under way."""
        current = self._try
        return current is None or current.complete or current.phase is BatchPhase.ABORTED

    def missing(self) -> tuple[Peer, ...]:
        """Return the executors that have yet to answer what everything waits for."""
        return () if self._try is None else self._try.missing(self._executors)

    def waits(self) -> bool:
        """Whether it waits for an answer that should not take long."""
        return self._try is not None and self._try.waits

    def waiting_for(self) -> list[str]:
        """Why nothing happens, in words."""
        return ["the first batch"] if self._try is None else self._try.waiting_for(self._executors)

    @property
    def owed(self) -> Epoch:
        """The epoch that was begun and did not come to its end; 0 if there is none.

        The next run learns of it by `owe`.
        """
        current = self._try
        if current is None:
            return self._owed
        return Epoch(0) if current.phase is BatchPhase.DURABLE else current.epoch

    def owe(self, epoch: Epoch) -> None:
        """Before the first task: require an epoch that others have begun before any later batch.

        No-op if it is in the state all the same.
        """
        if epoch > self.committed:
            self._owed = epoch

    # What happens

    def handle(self, event: BatchEvent) -> list[BatchOrder]:
        """Return the orders that an event leads to, in order.

        Raises:
            StaleAttemptError: It belongs to an attempt that was given up.
            OutOfOrderError: It cannot come now.
            BadValueError: It carries a value that cannot be.
        """
        match event:
            case TaskArrived(task):
                return self._on_arrived(task)
            case StageCounted():
                return self._on_counted(event)
            case WentBack(attempt):
                return self._on_went_back(attempt)
            case ParticipantReady(who, attempt):
                return self._on_ready(who, attempt)
            case ParticipantPrepared(who, attempt, epoch, notes):
                return self._on_prepared(who, attempt, epoch, notes)
            case TaskDone(task, attempt):
                return self._on_done(task, attempt)
            case EpochDurable(attempt, epoch):
                return self._on_durable(attempt, epoch)

    def give_up(self, reason: str, *, again: bool = True) -> list[BatchOrder]:
        """Refuse all tasks that are here: something is lost, or has failed."""
        current = self._try
        if current is None:
            return []
        orders: list[BatchOrder] = [Refuse(task, reason, again) for task in self.present]
        current.doubtful.clear()
        if not current.complete and current.phase is not BatchPhase.ABORTED:
            current.phase, current.reason, current.again = BatchPhase.ABORTED, reason, again
        return orders

    def cannot_count(self, order: CountTasks, reason: str) -> list[BatchOrder]:
        """Refuse the tasks of a stage whose size or purpose cannot be found out."""
        current = self._try
        if current is None or order.execution != current.execution:
            return []
        if order.stage in current.doubtful:
            return [Refuse(task, reason, True) for task in current.doubtful.pop(order.stage)]
        if order.stage == current.stage and current.phase is BatchPhase.COUNTING:
            return self.give_up(reason)
        return []

    # Tasks

    def _on_arrived(self, task: Ingress) -> list[BatchOrder]:
        if task.epoch < 1 or task.partition < 0:
            raise BadValueError("task", "have a batch and a partition", task)
        if self._missed is not None:
            return [Refuse(task, *self._missed)]
        current = self._try
        if current is None:
            return self._on_new(task)
        if (task.epoch, task.execution, task.stage) == current.identity:
            return self._on_one_of_many(current, task)
        if task.epoch == current.epoch and task.execution == current.execution and self._keeps:
            return self._on_second(current, task)
        # Executions may be within one another, but stages are numbered as they begin.
        if task.epoch < current.epoch or task.stage <= current.stage:
            reason = f"a task of batch {task.epoch - 1} comes too late: another try has begun"
            return [Refuse(task, reason, True)]
        return self._on_new(task)

    def _on_new(self, task: Ingress) -> list[BatchOrder]:
        """Take the first task of an execution in; it ends what is under way."""
        if self._keeps and task.epoch <= self.committed:
            reason = (
                f"batch {task.epoch - 1} is committed in the state already, and later ones too: "
                "the query's checkpoint is older than the state. Restore both, or start both "
                "from nothing"
            )
            return [Refuse(task, reason, False)]
        before = self._try
        orders: list[BatchOrder] = []
        returns = kept = False
        if before is None:
            if self._keeps and 0 < self._owed < task.epoch:
                return self._miss(task, self._owed, "its executors were lost", kept=False)
        else:
            whole = before.phase is BatchPhase.DURABLE
            if self._keeps and task.epoch > before.epoch:
                if not whole:
                    reason = before.reason or "it was not run to its end"
                    return self._miss(task, before.epoch, reason, before.kept)
                self.committed = before.epoch
            else:
                returns, kept = before.written or before.returns, whole or before.kept
            word = "is over" if task.epoch > before.epoch else "runs again"
            reason = f"batch {before.epoch - 1} {word} (execution {task.execution})"
            orders += self.give_up(reason)
        self.attempt = Attempt(self.attempt + 1)
        self._try = BatchAttempt(
            task.epoch,
            task.execution,
            task.stage,
            self.attempt,
            self.committed,
            returns=returns,
            kept=kept,
        )
        if returns:
            orders.append(GoBack(self.attempt, self.committed))
        orders.append(CountTasks(task.execution, task.stage))
        return [*orders, *self._on_one_of_many(self._try, task)]

    def _miss(self, task: Ingress, epoch: Epoch, reason: str, kept: bool) -> list[BatchOrder]:
        """Refuse a batch that follows one that is not in the state, and all later ones."""
        words = (
            f"batch {task.epoch - 1} has come, though batch {epoch - 1} is not in the state "
            f"({reason}). Its rows would be lost"
        )
        if not kept:  # else its earlier execution counts again, for the next to open the checkpoint
            words += (
                ": the query has committed it without its state, as when a foreachBatch function "
                "catches errors. Let errors end the query; then start it and its state from nothing"
            )
        self._missed = words, kept
        return [*self.give_up(words, again=kept), Refuse(task, words, kept)]

    def _on_one_of_many(self, current: BatchAttempt, task: Ingress) -> list[BatchOrder]:
        first = current.arrived.get(task.partition)
        if current.phase is BatchPhase.ABORTED:
            return [Refuse(task, current.reason, current.again)]
        if first is not None:
            if first.task == task.task:
                raise OutOfOrderError("task", "arrive once", task)
            reason = (
                f"partition {task.partition} of batch {task.epoch - 1} is run a second time (task "
                f"{task.task} after {first.task}), and what the first has sent is in the state"
            )
            if task.partition in current.left:
                return [Refuse(task, reason, True)]
            return [*self.give_up(reason), Refuse(task, reason, True)]
        if current.counted and task.partition >= current.counted:
            return [*self.give_up(_IN_PART), Refuse(task, _IN_PART, True)]
        current.arrived[task.partition] = task
        if current.phase in (BatchPhase.RUNNING, BatchPhase.WRITING):
            return [Admit(task, current.attempt, current.upstream(task.partition))]
        return []

    def _on_second(self, current: BatchAttempt, task: Ingress) -> list[BatchOrder]:
        """Take a task of another stage of the execution in."""
        if not current.complete:  # then nothing of it can have been lost yet
            return [*self.give_up(_TWICE, again=False), Refuse(task, _TWICE, False)]
        if task.stage in current.refused:
            return [Refuse(task, *current.refused[task.stage])]
        waiting = current.doubtful.setdefault(task.stage, [])
        waiting.append(task)
        return [CountTasks(task.execution, task.stage)] if len(waiting) == 1 else []

    def _on_second_counted(self, current: BatchAttempt, event: StageCounted) -> list[BatchOrder]:
        again = event.output is not None and event.output == current.output
        reason = _LOST if again else _TWICE
        current.refused[event.stage] = reason, again
        return [Refuse(task, reason, again) for task in current.doubtful.pop(event.stage)]

    def _on_counted(self, event: StageCounted) -> list[BatchOrder]:
        current = self._try
        if current is None or event.execution != current.execution:
            raise StaleAttemptError("stage", "be of the current attempt", event)
        if event.stage in current.doubtful:
            return self._on_second_counted(current, event)
        if event.stage != current.stage:
            raise StaleAttemptError("stage", "be of the current attempt", event)
        if current.counted or current.phase is not BatchPhase.COUNTING:
            return []
        if event.tasks < 1 or event.partitions < 1:
            raise BadValueError("stage", "have tasks and partitions", event)
        current.counted, current.output = event.partitions, event.output
        if event.tasks != event.partitions or any(p >= event.partitions for p in current.arrived):
            return self.give_up(_IN_PART)
        return self._try_to_begin()

    def _on_went_back(self, attempt: Attempt) -> list[BatchOrder]:
        current = self._current(attempt)
        if not current.returns:
            raise OutOfOrderError("checkpoint", "have an order to go back", attempt)
        current.returns = False
        return self._try_to_begin()

    def _try_to_begin(self) -> list[BatchOrder]:
        current = self._try
        assert current is not None  # the callers have one
        if current.phase is BatchPhase.ABORTED or not current.counted:
            return []
        if current.returns:
            current.phase = BatchPhase.RETURNING
            return []
        current.phase = BatchPhase.BEGINNING
        current.unready = set(self._executors)
        upstreams = tuple(current.upstream(part) for part in range(current.counted))
        return [
            BeginBatch(who, current.attempt, current.base, current.epoch, None, upstreams)
            for who in self._executors
        ]

    def _on_done(self, task: Ingress, attempt: Attempt) -> list[BatchOrder]:
        current = self._current(attempt)
        here = current.arrived.get(task.partition) == task and task.partition not in current.left
        if not here or current.phase not in SENDING:
            raise OutOfOrderError("task that is done", "be one that was admitted", task)
        if len(current.left) + 1 < current.counted:
            current.left.add(task.partition)
            return [Leave(task)]
        current.last = task
        return self._try_to_leave(current)

    # Executors

    def _on_ready(self, who: Peer, attempt: Attempt) -> list[BatchOrder]:
        current = self._current(attempt)
        current.unready.discard(who)
        if current.unready or current.phase is not BatchPhase.BEGINNING:
            return []
        current.phase = BatchPhase.RUNNING
        return [
            Admit(task, attempt, current.upstream(part)) for part, task in current.arrived.items()
        ]

    def _on_prepared(
        self, who: Peer, attempt: Attempt, epoch: Epoch, notes: Any
    ) -> list[BatchOrder]:
        current = self._current(attempt)
        known = who in self._executors and who not in current.notes
        if not known or epoch != current.epoch or current.phase is not BatchPhase.RUNNING:
            raise OutOfOrderError("prepared executor", f"be one of epoch {current.epoch}", who)
        current.notes[who] = notes
        if len(current.notes) < len(self._executors):
            return []
        if not self._keeps:
            current.phase = BatchPhase.DURABLE
            return self._try_to_leave(current)
        current.phase, current.written = BatchPhase.WRITING, True
        return [WriteManifest(epoch, attempt, current.base, dict(current.notes))]

    def _on_durable(self, attempt: Attempt, epoch: Epoch) -> list[BatchOrder]:
        current = self._current(attempt)
        if current.phase is not BatchPhase.WRITING or epoch != current.epoch:
            raise OutOfOrderError("durable epoch", f"be {current.epoch}, being written", epoch)
        current.phase = BatchPhase.DURABLE
        return self._try_to_leave(current)

    def _try_to_leave(self, current: BatchAttempt) -> list[BatchOrder]:
        if current.last is None or current.phase is not BatchPhase.DURABLE:
            return []
        last, current.last = current.last, None
        current.left.add(last.partition)
        return [Leave(last)]

    def _current(self, attempt: Attempt) -> BatchAttempt:
        current = self._try
        if current is None or attempt < current.attempt or current.phase is BatchPhase.ABORTED:
            raise StaleAttemptError("attempt", f"be {self.attempt}, and going on", attempt)
        if attempt > current.attempt:
            raise OutOfOrderError("attempt", f"be {current.attempt}", attempt)
        return current


_TWICE = (
    "the same elastic DataFrame is used twice in one execution (as in a union of it with itself, "
    "filtered), and both uses would be applied to the same state. Use it once: write it and read "
    "it back, or persist() it in foreachBatch before it is used twice. (In foreachBatch, .rdd and "
    "foreachPartition belong to one execution as well.)"
)
_LOST = (
    "output of the stage that feeds the operators was lost (a shuffle file, or a whole Spark "
    "executor), and Spark runs the stage again; its rows are in the state already"
)
_IN_PART = (
    "the stage that feeds the operators is run in part only, since some of its output was lost "
    "(a shuffle file, or a cached partition); its other rows are in the state already"
)
