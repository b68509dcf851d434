"""What the driver does for a run. It carries the instructions out in their order.

The coordinator's orders to participants (`core.protocol.coordinator`) and introductions are among
them as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from elasticutor.core.message import Message
from elasticutor.core.protocol.coordinator import Order
from elasticutor.core.protocol.events import NodeLost, TaskLost
from elasticutor.core.protocol.ids import Attempt, Epoch, NodeId, Peer
from elasticutor.core.run.introductions import Introduction
from elasticutor.core.run.phases import RunPhase
from elasticutor.core.scheduler.placement import Placement

# Processes ---------------------------------------------------------------------------------------


class StartMain(Message):
    """Start an executor's main process."""

    who: Peer
    life: int
    placed: Placement


class StartOnHost(Message):
    """Let a host start some sources and sinks, each with its life."""

    number: int
    ends: tuple[tuple[Peer, int], ...]


class DropLife(Message):
    """A participant is lost: end what is left of it, and forget where it was."""

    who: Peer
    life: int
    """The one that is lost."""
    host: int | None
    """That of a source or a sink, if it is up."""


class RestartHosts(Message):
    """Start hosts of sources and sinks again."""

    numbers: tuple[int, ...]


class DismissHost(Message):
    """Let a host end that has come up after the run."""

    number: int


class EndProcesses(Message):
    """Let everything of the run end, on all nodes and in these hosts."""

    hosts: tuple[int, ...]
    node_grace_s: float
    """How long processes on nodes have to end by themselves."""
    host_grace_s: float


# What participants learn -------------------------------------------------------------------------


class Connect(Message):
    """A participant can be sent to, at this address."""

    who: Peer
    address: Any


class IntroduceNodes(Message):
    """Tell some executors where some nodes are."""

    receivers: tuple[Peer, ...]
    nodes: tuple[NodeId, ...]


class ReportLoss(Message):
    """Tell an executor what it has lost."""

    who: Peer
    lost: TaskLost | NodeLost


class AssignCores(Message):
    """Tell an executor which cores it should have."""

    who: Peer
    cores: Mapping[NodeId, int]


class StopSending(Message):
    """Let a source send nothing more of its own."""

    who: Peer


class AskToRest(Message):
    """Ask a participant to say when nothing of it is under way."""

    who: Peer


class AskWhy(Message):
    """Ask silent executors why they wait."""

    whom: tuple[Peer, ...]


# The run -----------------------------------------------------------------------------------------


class StartBatches(Message):
    """All executors of a query are up: let it feed them."""


class DiscardUncommitted(Message):
    """An attempt begins: what was collected and not committed comes again."""

    attempt: Attempt


class KeepCommitted(Message):
    """What was collected up to this epoch counts."""

    epoch: Epoch


class CountCores(Message):
    """Some executor should have other cores than before."""


class WriteJournal(Message):
    """Write an event down."""

    kind: str
    fields: Mapping[str, Any]


class EnterPhase(Message):
    """The run is in another phase."""

    phase: RunPhase


class Wake(Message):
    """Something is due: let time pass until then."""

    at: float


class CloseRun(Message):
    """Nothing of the run is left: give back what it had."""

    seconds: float
    error: str


class IgnoreMessage(Message):
    """A message came too late, or never should have."""

    reason: str


RunInstruction = (
    Order
    | Introduction
    | StartMain
    | StartOnHost
    | DropLife
    | RestartHosts
    | DismissHost
    | EndProcesses
    | Connect
    | IntroduceNodes
    | ReportLoss
    | AssignCores
    | StopSending
    | AskToRest
    | AskWhy
    | StartBatches
    | DiscardUncommitted
    | KeepCommitted
    | CountCores
    | WriteJournal
    | EnterPhase
    | Wake
    | CloseRun
    | IgnoreMessage
)

EmitInstruction = Callable[[RunInstruction], None]
"""Takes one instruction after the other."""
