"""Bugs of the fencing of a query's tasks."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from elasticutor.core.executor.datapath import DataPath
from elasticutor.core.protocol import batch_protocol as ba
from elasticutor.core.protocol.batch_attempt import BatchAttempt, BatchPhase
from elasticutor.core.protocol.batches import Batches
from elasticutor.core.protocol.ids import Attempt, Epoch, Peer
from elasticutor.core.protocol.succession import Succession
from elasticutor.lab.check.mutants.mutant import Mutants

Orders = list[ba.BatchOrder]

FENCING = Mutants()


@FENCING.around(Batches, "_on_one_of_many")
def _second_task_of_a_partition_admitted(
    right: Any, self: Batches, current: BatchAttempt, task: ba.Ingress
) -> Any:
    current.arrived.pop(task.partition, None)
    return right(self, current, task)


@FENCING.instead_of(Batches, "_on_done")
def _last_task_does_not_wait(self: Batches, task: ba.Ingress, attempt: Attempt) -> Orders:
    self._current(attempt).left.add(task.partition)
    return [ba.Leave(task)]


@FENCING.around(Batches, "_on_prepared")
def _last_task_leaves_too_early(right: Any, self: Batches, *what: Any) -> Orders:
    orders: Orders = right(self, *what)
    current = self._try
    if not orders or current is None or current.last is None:
        return orders
    return [*orders, ba.Leave(current.last)]


@FENCING.around(Batches, "_on_new")
def _batch_run_again_on_top_of_itself(right: Any, self: Batches, task: ba.Ingress) -> Orders:
    orders = right(self, task)
    if self._try is not None:
        self._try.returns = False
    return [order for order in orders if not isinstance(order, ba.GoBack)]


@FENCING.around(Batches, "_on_arrived")
def _task_of_a_superseded_execution_admitted(right: Any, self: Batches, task: ba.Ingress) -> Any:
    current = self._try
    if current is not None and task.epoch == current.epoch and task.stage < current.stage:
        return self._on_one_of_many(current, task)
    return right(self, task)


@FENCING.around(Batches, "_on_counted")
def _stage_in_part_accepted(right: Any, self: Batches, event: ba.StageCounted) -> Any:
    whole = ba.StageCounted(event.execution, event.stage, event.partitions, event.partitions)
    return right(self, whole)


@FENCING.around(Batches, "_on_counted")
def _lost_output_taken_for_a_second_use(right: Any, self: Batches, event: ba.StageCounted) -> Any:
    return right(self, replace(event, output=None))


@FENCING.instead_of(Batches, "_on_second")
def _second_use_goes_on(self: Batches, current: Any, task: ba.Ingress) -> Orders:
    return self._on_new(task)


@FENCING.instead_of(Batches, "_miss")
def _batch_skipped(self: Batches, task: ba.Ingress, epoch: Epoch, reason: str, kept: bool) -> Any:
    if self._try is not None:
        self._try.phase = BatchPhase.DURABLE
    self._owed = Epoch(0)
    return self._on_new(task)


FENCING.omission_of(Batches, "owe", "batch of a lost run skipped")


@FENCING.instead_of(Succession, "may_begin")
def _stage_goes_on_with_another_run(self: Succession, task: ba.Ingress) -> bool:
    return True


@FENCING.instead_of(DataPath, "_return_marker")
def _marker_returns_before_all_outputs(self: DataPath, upstream: Peer) -> None:
    if upstream in self._ended:
        self.outputs.end_epoch(self._ended.pop(upstream), [upstream])
        self._send(upstream)
