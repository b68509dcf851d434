"""Carries out what the core of an elastic executor asks for: what every simulated host shares."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, ClassVar

from elasticutor.core.executor.config import ExecutorConfig
from elasticutor.core.executor.executor import ElasticExecutor
from elasticutor.core.executor.tasks import TaskStatus
from elasticutor.core.protocol import instructions as do
from elasticutor.core.protocol.ids import NodeId, Peer, TaskId


class CoreHost:
    """Hosts an `ElasticExecutor`, and passes each of its instructions on to the addressee.

    Subclasses say what that takes: real state, messages that are lost and processes that die in the
    worlds of the checker; sizes, costs and links on the simulated cluster. They have a method for
    each name in `_ADDRESSEES`, which takes the instruction.
    """

    _methods: ClassVar[dict[type, Callable[[Any, Any], None]]] = {}

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls._methods = {kind: getattr(cls, name) for kind, name in _ADDRESSEES.items()}

    def __init__(self, name: Peer, config: ExecutorConfig, home: NodeId, now: float) -> None:
        self.name = name
        self.core = ElasticExecutor(config, home, now)

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

    def emit(self, order: do.Emit | do.EmitMarker) -> None:
        """Refuse to send outputs: by default they end where they are made."""
        raise NotImplementedError(order)


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
