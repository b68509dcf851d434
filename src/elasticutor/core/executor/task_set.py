"""The tasks of an executor, from the grant of a core until it is given back, and their nodes."""

from __future__ import annotations

from collections.abc import Callable

from elasticutor.core.executor.epochs import Epochs
from elasticutor.core.executor.receiver import Receiver
from elasticutor.core.executor.tasks import TaskStatus, TaskView
from elasticutor.core.measure.metrics import Meter
from elasticutor.core.protocol.ids import NodeId, TaskId
from elasticutor.core.protocol.instructions import EndTask, Instruction, OpenStore, StartTask
from elasticutor.errors import LastCoreError, OutOfOrderError, UnknownNodeError, UnknownTaskError


class TaskSet:
    """Who works for an executor, and on which nodes it has a store."""

    def __init__(
        self,
        tasks: dict[TaskId, TaskView],
        epochs: Epochs,
        receiver: Receiver,
        meter: Meter,
        emit: Callable[[Instruction], None],
    ) -> None:
        self.tasks = tasks
        self.stores: set[NodeId] = set()
        self._epochs = epochs
        self._receiver = receiver
        self._meter = meter
        self._emit = emit
        self._next_task = 0

    def require(self, task: TaskId) -> TaskView:
        """The task of this number; refuses a stranger's."""
        view = self.tasks.get(task)
        if view is None:
            raise UnknownTaskError("task", f"be one of {sorted(self.tasks)}", task)
        return view

    def require_store(self, node: NodeId) -> None:
        """Refuse a node on which the executor has nothing."""
        if node not in self.stores:
            raise UnknownNodeError("node", f"be one of {sorted(self.stores)}", node)

    @property
    def running(self) -> list[TaskView]:
        """Those whose process is up."""
        return [task for task in self.tasks.values() if task.running]

    @property
    def leaving(self) -> list[TaskId]:
        """Those whose core is wanted elsewhere."""
        return [t.id for t in self.tasks.values() if t.status is TaskStatus.LEAVING]

    def on(self, node: NodeId) -> list[TaskView]:
        """Those on a node."""
        return [task for task in self.tasks.values() if task.node == node]

    def grant(self, node: NodeId, now: float) -> None:
        """Start a task on a core that was granted; the first on a node needs a store there."""
        if node not in self.stores:
            self.stores.add(node)
            self._emit(OpenStore(node, self._epochs.attempt, self._epochs.committed))
        task = TaskView(TaskId(self._next_task), node, granted_at=now)
        self._next_task += 1
        self.tasks[task.id] = task
        self._emit(StartTask(node, task.id))
        self._meter.set_cores(len(self.tasks), now)

    def overdue(self, before: float) -> list[str]:
        """The tasks whose cores were granted before then, and whose processes are not up."""
        return [
            f"task {task.id} on node {task.node!r} to start"
            for task in self.tasks.values()
            if not task.running and task.granted_at < before
        ]

    def started(self, task_id: TaskId) -> None:
        """A task's process is up."""
        task = self.require(task_id)
        if task.running:
            raise OutOfOrderError(f"task {task.id}", "be starting", task.status.value)
        task.status = TaskStatus.ACTIVE
        task.slot = self._receiver.add_slot()

    def require_replaceable(self, task: TaskView) -> None:
        """Refuse to take a core away twice, or the last one."""
        if task.status is TaskStatus.LEAVING:
            raise OutOfOrderError(f"task {task.id}", "not be leaving already", "a second request")
        if not any(
            t.status is not TaskStatus.LEAVING for t in self.tasks.values() if t is not task
        ):
            raise LastCoreError(
                "executor", "keep at least one core", 0, "grant it another core first"
            )

    def dismiss(self, task: TaskView, now: float) -> None:
        """Let a task end that owns nothing and has nothing to do."""
        self._emit(EndTask(task.node, task.id))
        self.remove(task, now)

    def remove(self, task: TaskView, now: float) -> None:
        """A task is gone, and so is its queue."""
        del self.tasks[task.id]
        if task.running:
            self._receiver.free_slot(task.slot)
        self._meter.set_cores(len(self.tasks), now)

    def forget_flights(self) -> None:
        """Nothing that was handed over before will be answered any more."""
        for task in self.tasks.values():
            task.forget_flights()
