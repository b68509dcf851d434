"""Checks every decision about a query's tasks, independently of what the state comes to."""

from __future__ import annotations

from collections.abc import Callable

from elasticutor.core.protocol import batch_protocol as ba
from elasticutor.core.protocol.coordinator import WriteManifest
from elasticutor.core.protocol.ids import Attempt, Epoch


class Fences:
    """Watches the events and orders of one operator's `Batches`."""

    def __init__(
        self,
        name: str,
        newest_below: Callable[[Epoch], Epoch],
        violate: Callable[[str], None],
        *,
        calm: bool,
    ) -> None:
        self._name = name
        self._newest_below = newest_below
        self._violate = violate
        self._calm = calm
        self._stage = -1
        self._attempts: dict[Attempt, tuple[int, int]] = {}
        self._partitions: dict[Attempt, int] = {}
        self._admitted: dict[Attempt, dict[int, ba.Ingress]] = {}
        self._left: dict[Attempt, int] = {}
        self._durable: set[Attempt] = set()
        self._attempt_of: dict[ba.Ingress, Attempt] = {}

    def started_over(self) -> None:
        """Expect stages to be numbered from the first again."""
        self._stage = -1

    def heard(self, event: ba.BatchEvent) -> None:
        """Note an event, before it is handled."""
        match event:
            case ba.TaskArrived(task):
                self._stage = max(self._stage, task.stage)
            case ba.EpochDurable(attempt, _):
                self._durable.add(attempt)

    def ordered(self, order: ba.BatchOrder) -> None:
        """Check an order, before it is carried out."""
        match order:
            case ba.BeginBatch(_, attempt, base, epoch, _, upstreams):
                self._partitions[attempt] = len(upstreams)
                wanted = self._newest_below(epoch)
                if base != wanted:
                    self._complain(f"epoch {epoch} begins from {base} instead of {wanted}")
            case ba.Admit(task, attempt, _):
                self._admit(task, attempt)
            case ba.Leave(task):
                self._leave(task)
            case WriteManifest(epoch, attempt):
                if len(self._admitted.get(attempt, {})) != self._partitions.get(attempt):
                    self._complain(f"epoch {epoch} is complete without all partitions")
            case ba.Refuse(task, reason, _) if self._calm:
                self._complain(f"{task} refused, though nothing is wrong: {reason}")

    def _admit(self, task: ba.Ingress, attempt: Attempt) -> None:
        ours = (task.execution, task.stage)
        if self._attempts.setdefault(attempt, ours) != ours:
            self._complain(f"{task} admitted to an attempt of another execution or stage")
        if task.stage < self._stage:
            self._complain(f"{task} admitted, though stage {self._stage} has begun")
        first = self._admitted.setdefault(attempt, {}).setdefault(task.partition, task)
        if first != task:
            self._complain(f"{task} admitted after {first}")
        self._attempt_of[task] = attempt

    def _leave(self, task: ba.Ingress) -> None:
        attempt = self._attempt_of.get(task)
        if attempt is None:
            self._complain(f"{task} leaves without having been admitted")
            return
        self._left[attempt] = self._left.get(attempt, 0) + 1
        last = self._left[attempt] >= self._partitions.get(attempt, 0)
        if last and attempt not in self._durable:
            self._complain(f"{task} leaves as the last before its epoch is durable")

    def _complain(self, text: str) -> None:
        self._violate(f"fence: {self._name}: {text}")
