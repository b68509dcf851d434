"""Returning to the state of an epoch: first the tasks forget, then the stores go back.

In that order: a task that still works on what was given up may write it to its store, so a store
returns to the base only when no task can do that any more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet

from elasticutor.core.protocol.ids import Attempt, Epoch, NodeId, ShardId, TaskId
from elasticutor.core.protocol.instructions import Instruction, ResetTask, RollBackStore
from elasticutor.errors import OutOfOrderError


class Rollback:
    """Tracks what has yet to forget an attempt: tasks, then stores.

    Losing some of them meanwhile costs nothing: all state is in the stores, or durable.
    """

    def __init__(self, stores: AbstractSet[NodeId], emit: Callable[[Instruction], None]) -> None:
        self._stores = stores
        self._emit = emit
        self._attempt = Attempt(0)
        self._base = Epoch(0)
        self.resetting: set[TaskId] = set()
        """Tasks that have yet to forget."""
        self.restoring: set[NodeId] = set()
        """Stores that have yet to go back."""
        self._stores_told = False

    def begin(self, attempt: Attempt, base: Epoch, tasks: Sequence[TaskId]) -> None:
        """Let these tasks forget; `proceed` does the rest."""
        self._attempt, self._base = attempt, base
        self._stores_told = False
        self.restoring = set()
        self.resetting = set(tasks)
        for task in tasks:
            self._emit(ResetTask(task, attempt))

    def task_reset(self, task: TaskId) -> None:
        """Take note that a task has forgotten."""
        if task not in self.resetting:
            raise OutOfOrderError(f"task {task}", "have an order to reset", self._attempt)
        self.resetting.discard(task)

    def store_rolled_back(self, node: NodeId) -> None:
        """Take note that a store has gone back."""
        if node not in self.restoring:
            raise OutOfOrderError(f"store on {node!r}", "have an order to roll back", node)
        self.restoring.discard(node)

    def forget_task(self, task: TaskId) -> None:
        """Do not wait for a task that is gone."""
        self.resetting.discard(task)

    def forget_node(self, node: NodeId) -> None:
        """Do not wait for a store that is gone."""
        self.restoring.discard(node)

    def proceed(self, homes: Sequence[NodeId | None]) -> bool:
        """Do the next thing that can be done; returns whether nothing is left to do."""
        if self.resetting:
            return False
        if not self._stores_told:
            self._stores_told = True
            self.restoring = set(self._stores)
            for node in sorted(self._stores):
                keep = tuple(ShardId(s) for s, home in enumerate(homes) if home == node)
                self._emit(RollBackStore(node, self._attempt, self._base, keep))
        return not self.restoring

    def waiting_for(self) -> list[str]:
        """What has yet to be answered, in words."""
        tasks = [f"task {task} to reset" for task in sorted(self.resetting)]
        return [*tasks, *(f"store on {node} to roll back" for node in sorted(self.restoring))]
