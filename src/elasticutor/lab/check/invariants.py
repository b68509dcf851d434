"""Checks every decision about a query's tasks, independently of what the state comes to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from elasticutor.core.protocol import batch_protocol as ba
from elasticutor.core.protocol.coordinator import WriteManifest
from elasticutor.core.protocol.ids import Attempt, Epoch


@dataclass(slots=True, eq=False)
class Fences:
    """Watches the events and orders of one operator's `Batches`."""

    operator: str
    newest_below: Callable[[Epoch], Epoch]
    violate: Callable[[str], None]
    calm: bool
    """Nothing goes wrong: every task must be let through."""
    stage: int = -1
    """The newest that has begun."""
    _attempts: dict[Attempt, tuple[int, int]] = field(default_factory=dict)
    _partitions: dict[Attempt, int] = field(default_factory=dict)
    _admitted: dict[Attempt, dict[int, ba.Ingress]] = field(default_factory=dict)
    _left: Counter[Attempt] = field(default_factory=Counter)
    _durable: set[Attempt] = field(default_factory=set)
    _attempt_of: dict[ba.Ingress, Attempt] = field(default_factory=dict)

    def heard(self, event: ba.BatchEvent) -> None:
        """Note an event, before it is handled."""
        match event:
            case ba.TaskArrived(task):
                self.stage = max(self.stage, task.stage)
            case ba.EpochDurable(attempt, _):
                self._durable.add(attempt)

    def ordered(self, order: ba.BatchOrder) -> None:
        """Check an order, before it is carried out."""
        match order:
            case ba.BeginBatch(_, attempt, base, epoch, _, upstreams):
                self._partitions[attempt] = len(upstreams)
                wanted = self.newest_below(epoch)
                if base != wanted:
                    self._complain(f"epoch {epoch} begins from {base} instead of {wanted}")
            case ba.Admit(task, attempt, _):
                self._admit(task, attempt)
            case ba.Leave(task):
                self._leave(task)
            case WriteManifest(epoch, attempt):
                if len(self._admitted.get(attempt, {})) != self._partitions.get(attempt):
                    self._complain(f"epoch {epoch} is complete without all partitions")
            case ba.Refuse(task, reason, _) if self.calm:
                self._complain(f"{task} refused, though nothing is wrong: {reason}")

    def _admit(self, task: ba.Ingress, attempt: Attempt) -> None:
        ours = (task.execution, task.stage)
        if self._attempts.setdefault(attempt, ours) != ours:
            self._complain(f"{task} admitted to an attempt of another execution or stage")
        if task.stage < self.stage:
            self._complain(f"{task} admitted, though stage {self.stage} has begun")
        first = self._admitted.setdefault(attempt, {}).setdefault(task.partition, task)
        if first != task:
            self._complain(f"{task} admitted after {first}")
        self._attempt_of[task] = attempt

    def _leave(self, task: ba.Ingress) -> None:
        attempt = self._attempt_of.get(task)
        if attempt is None:
            self._complain(f"{task} leaves without having been admitted")
            return
        self._left[attempt] += 1
        last = self._left[attempt] >= self._partitions.get(attempt, 0)
        if last and attempt not in self._durable:
            self._complain(f"{task} leaves as the last before its epoch is durable")

    def _complain(self, text: str) -> None:
        self.violate(f"fence: {self.operator}: {text}")
