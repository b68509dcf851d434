"""What tasks and the checkpoint tell `core.protocol.batches`, and what it orders."""

from __future__ import annotations

from elasticutor.core.message import Message
from elasticutor.core.protocol.coordinator import (
    BeginAttempt,
    ParticipantPrepared,
    ParticipantReady,
    WriteManifest,
)
from elasticutor.core.protocol.ids import Attempt, Epoch, Peer


class Ingress(Message):
    """A task that feeds the operators with one partition of a batch."""

    epoch: Epoch
    """What the batch's end is to them: its number plus one, since epoch 0 is the empty state."""
    execution: int
    """Which execution of a plan."""
    stage: int
    """Numbered as they begin, over all executions."""
    partition: int
    task: int
    """No two tasks have the same, not even those of one partition."""


# Events ------------------------------------------------------------------------------------------


class TaskArrived(Message):
    """A task wants to send."""

    task: Ingress


class StageCounted(Message):
    """How many tasks a stage runs, and of how many partitions its data is."""

    execution: int
    stage: int
    tasks: int
    partitions: int
    output: int | None = None
    """Of which exchange its output is; the same for a stage that makes lost output again."""


class WentBack(Message):
    """The checkpoint is at the attempt's base again."""

    attempt: Attempt


class TaskDone(Message):
    """A task has sent everything, and has all outputs of it."""

    task: Ingress
    attempt: Attempt


class EpochDurable(Message):
    """The manifest is written."""

    attempt: Attempt
    epoch: Epoch


BatchEvent = (
    TaskArrived
    | StageCounted
    | WentBack
    | ParticipantReady
    | ParticipantPrepared
    | TaskDone
    | EpochDurable
)


# Orders ------------------------------------------------------------------------------------------


class CountTasks(Message):
    """Find out how many tasks a stage has, and what its output is for."""

    execution: int
    stage: int


class GoBack(Message):
    """Let the checkpoint go on from the base: the newest epoch is to be made again."""

    attempt: Attempt
    base: Epoch


class BeginBatch(BeginAttempt):
    """Tell an executor to go to the base, and its upstreams; it answers when ready."""

    upstreams: tuple[Peer, ...] = ()


class Admit(Message):
    """Let a task send, under this name."""

    task: Ingress
    attempt: Attempt
    upstream: Peer


class Refuse(Message):
    """Let a task fail, and say why."""

    task: Ingress
    reason: str
    again: bool
    """Whether running the batch again would help."""


class Leave(Message):
    """Let a task end: all that it has sent is safe."""

    task: Ingress


BatchOrder = CountTasks | GoBack | BeginBatch | Admit | Refuse | Leave | WriteManifest
