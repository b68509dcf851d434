"""Carries out what the core of an elastic executor asks for: what every simulated host shares."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, ClassVar

from elasticutor.core.executor.config import ExecutorConfig
from elasticutor.core.executor.executor import ElasticExecutor
from elasticutor.core.executor.tasks import TaskStatus
from elasticutor.core.protocol import instructions as do
from elasticutor.core.protocol.ids import NodeId, Peer, TaskId


class CoreHost(ABC):
    """Hosts an `ElasticExecutor`, and passes each of its instructions on to the addressee.

    Subclasses say what that takes: real state, messages that are lost and processes that die in the
    worlds of the checker; sizes, costs and links on the simulated cluster.
    """

    _methods: ClassVar[dict[type, Callable[[Any, Any], None]]] = {}

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls._methods = {kind: getattr(cls, name) for kind, name in _ADDRESSEES.items()}

    def __init__(self, name: Peer, config: ExecutorConfig, home: NodeId, now: float) -> None:
        self.name = name
        self.core = ElasticExecutor(config, home, now)

    @abstractmethod
    def tell(self, event: Any) -> None:
        """Let the core handle an event of this process itself, and carry its instructions out."""

    def carry_out(self, instructions: Iterable[do.Instruction]) -> None:
        """Pass instructions on, in their order."""
        methods = self._methods
        for order in instructions:
            methods[type(order)](self, order)

    @property
    def staying(self) -> dict[TaskId, NodeId]:
        """The tasks that are not leaving, with their nodes."""
        return {
            task.id: task.node
            for task in self.core.tasks.values()
            if task.status is not TaskStatus.LEAVING
        }

    # By addressee

    @abstractmethod
    def dispatch(self, order: do.Dispatch) -> None:
        """Send a chunk of tuples to a task."""

    @abstractmethod
    def to_task(self, order: Any) -> None:
        """Send anything else to a task, behind its chunks."""

    @abstractmethod
    def to_store(self, order: Any) -> None:
        """Send to the store on a node."""

    @abstractmethod
    def start_task(self, order: do.StartTask) -> None:
        """Have a task's process started."""

    @abstractmethod
    def stop_task(self, order: do.EndTask) -> None:
        """Have a task's process ended."""

    @abstractmethod
    def grant(self, order: do.GrantCredit) -> None:
        """Send a credit to an upstream."""

    def emit(self, order: do.Emit | do.EmitMarker) -> None:
        """Send outputs or a marker to a destination."""
        raise NotImplementedError(order)  # by default outputs end where they are made

    @abstractmethod
    def report(self, order: do.ReportReady | do.ReportPrepared | do.ReportFailure) -> None:
        """Report to the driver."""

    @abstractmethod
    def record(self, order: Any) -> None:
        """Take note of something that no process waits for."""


_ADDRESSEES = {
    **dict.fromkeys(do.TO_TASK, "to_task"),
    **dict.fromkeys(do.TO_NODE, "to_store"),
    do.Dispatch: "dispatch",
    do.StartTask: "start_task",
    do.EndTask: "stop_task",
    do.GrantCredit: "grant",
    **dict.fromkeys((do.Emit, do.EmitMarker), "emit"),
    **dict.fromkeys((do.ReportReady, do.ReportPrepared, do.ReportFailure), "report"),
    **dict.fromkeys((do.ReportMove, do.ReportSealed, do.ReportHotShards), "record"),
}
