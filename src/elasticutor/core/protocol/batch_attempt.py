"""One attempt at a micro-batch, as `core.protocol.batches` keeps it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from elasticutor.core.protocol.batch_protocol import Ingress
from elasticutor.core.protocol.ids import Attempt, Epoch, Peer


class BatchPhase(Enum):
    """How far the current attempt is."""

    COUNTING = "counting the stage's tasks"
    RETURNING = "going back"
    BEGINNING = "waiting for executors to be ready"
    RUNNING = "running"
    WRITING = "writing the manifest"
    DURABLE = "durable"
    ABORTED = "given up"


SENDING = (BatchPhase.RUNNING, BatchPhase.WRITING, BatchPhase.DURABLE)
"""Phases with tasks that were admitted."""


@dataclass(slots=True)
class BatchAttempt:
    """One try of one batch: its tasks, and how far the executors are."""

    epoch: Epoch
    execution: int
    stage: int
    attempt: Attempt
    base: Epoch
    phase: BatchPhase = BatchPhase.COUNTING
    returns: bool = False
    """Whether the checkpoint has yet to go back."""
    counted: int = 0
    arrived: dict[int, Ingress] = field(default_factory=dict)
    """By partition."""
    left: set[int] = field(default_factory=set)
    last: Ingress | None = None
    """The task that waits until the epoch is durable."""
    unready: set[Peer] = field(default_factory=set)
    notes: dict[Peer, Any] = field(default_factory=dict)
    """Of the executors that have prepared."""
    written: bool = False
    """Whether its manifest may be there."""
    kept: bool = False
    """Whether an earlier execution's is there."""
    reason: str = ""
    again: bool = True
    """Whether running the batch again would help, if it was given up."""
    output: int | None = None
    """What the stage's output is for, if that is known."""
    doubtful: dict[int, list[Ingress]] = field(default_factory=dict)
    """Tasks of further stages of the execution, by stage, until it is known what they are for."""
    refused: dict[int, tuple[str, bool]] = field(default_factory=dict)
    """Further stages of which that is known: why they are refused, and whether a restart helps."""

    @property
    def identity(self) -> tuple[int, int, int]:
        """Batch, execution and stage: what its tasks have in common."""
        return self.epoch, self.execution, self.stage

    @property
    def complete(self) -> bool:
        """Whether every task has left, and so the epoch is durable."""
        return 0 < self.counted == len(self.left)

    @property
    def present(self) -> list[Ingress]:
        """The tasks that are here, and wait for something or send."""
        if self.phase is BatchPhase.ABORTED:
            return []
        here = [task for part, task in self.arrived.items() if part not in self.left]
        return [*here, *(task for tasks in self.doubtful.values() for task in tasks)]

    @property
    def waits(self) -> bool:
        """Whether it waits for an answer that should not take long."""
        if self.phase is BatchPhase.RUNNING:
            return self.last is not None
        if self.doubtful:
            return True
        return self.phase not in (BatchPhase.DURABLE, BatchPhase.ABORTED)

    def missing(self, executors: Iterable[Peer]) -> tuple[Peer, ...]:
        """Those of the executors that have yet to answer what everything waits for."""
        if self.phase is BatchPhase.BEGINNING:
            return tuple(sorted(self.unready))
        if self.phase is BatchPhase.RUNNING and self.last is not None:
            return tuple(who for who in executors if who not in self.notes)
        return ()

    def waiting_for(self, executors: Iterable[Peer]) -> list[str]:
        """Why nothing happens, in words."""
        words = [f"batch {self.epoch - 1}, attempt {self.attempt}: {self.phase.value}"]
        missing = ", ".join(self.missing(executors))
        words += [f"answer of {missing}"] * bool(missing)
        words += [f"what stage {stage} is for" for stage in self.doubtful]
        here, left = len(self.arrived), len(self.left)
        return [*words, f"{here} of {self.counted} tasks have arrived, {left} have left"]

    def upstream(self, partition: int) -> Peer:
        """The name under which the task of a partition sends."""
        return Peer(f"p{partition}@{self.attempt}")
