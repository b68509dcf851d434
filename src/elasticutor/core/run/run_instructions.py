"""What the driver does for a run. It carries the instructions out in their order.

The coordinator's orders to participants (`core.protocol.coordinator`) and introductions are among
them as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from elasticutor.core.message import Message
from elasticutor.core.protocol.coordinator import (
    AskToRest,
    AskWhy,
    AssignCores,
    Order,
    StopSending,
)
from elasticutor.core.protocol.events import NodeLost, TaskLost
from elasticutor.core.protocol.ids import Attempt, Epoch, NodeId, Peer
from elasticutor.core.run.introductions import Introduction
from elasticutor.core.run.phases import RunPhase
from elasticutor.core.scheduler.placement import Placement


class DriverInstruction(Message):
    """Something that the driver is to do for a run."""


# Processes ---------------------------------------------------------------------------------------


class StartMain(DriverInstruction):
    """Start an executor's main process."""

    who: Peer
    life: int
    placed: Placement


class StartOnHost(DriverInstruction):
    """Let a host start some sources and sinks, each with its life."""

    number: int
    ends: tuple[tuple[Peer, int], ...]


class DropLife(DriverInstruction):
    """A participant is lost: end what is left of it, and forget where it was."""

    who: Peer
    life: int
    """The one that is lost."""
    host: int | None
    """That of a source or a sink, if it is up."""


class RestartHosts(DriverInstruction):
    """Start hosts of sources and sinks again."""

    numbers: tuple[int, ...]


class DismissHost(DriverInstruction):
    """Let a host end that has come up after the run."""

    number: int


class EndProcesses(DriverInstruction):
    """Let everything of the run end, on all nodes and in these hosts."""

    hosts: tuple[int, ...]
    node_grace_s: float
    """How long processes on nodes have to end by themselves."""
    host_grace_s: float


# What participants learn -------------------------------------------------------------------------


class Connect(DriverInstruction):
    """A participant can be sent to, at this address."""

    who: Peer
    address: Any


class IntroduceNodes(DriverInstruction):
    """Tell some executors where some nodes are."""

    receivers: tuple[Peer, ...]
    nodes: tuple[NodeId, ...]


class ReportLoss(DriverInstruction):
    """Tell an executor what it has lost."""

    who: Peer
    lost: TaskLost | NodeLost


# The run -----------------------------------------------------------------------------------------


class DiscardUncommitted(DriverInstruction):
    """An attempt begins: what was collected and not committed comes again."""

    attempt: Attempt


class KeepCommitted(DriverInstruction):
    """What was collected up to this epoch counts."""

    epoch: Epoch


class CountCores(DriverInstruction):
    """Some executor should have other cores than before."""


class WriteJournal(DriverInstruction):
    """Write an event down."""

    kind: str
    fields: Mapping[str, Any]


class EnterPhase(DriverInstruction):
    """The run is in another phase."""

    phase: RunPhase


class Wake(DriverInstruction):
    """Something is due: let time pass until then."""

    at: float


class CloseRun(DriverInstruction):
    """Nothing of the run is left: give back what it had."""

    seconds: float
    error: str


class IgnoreMessage(DriverInstruction):
    """A message came too late, or never should have."""

    reason: str


RunInstruction = (
    DriverInstruction | Order | Introduction | AssignCores | StopSending | AskToRest | AskWhy
)

EmitInstruction = Callable[[RunInstruction], None]
"""Takes one instruction after the other."""
