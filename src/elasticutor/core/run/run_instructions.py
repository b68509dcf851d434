"""What the driver does for a run. It carries the instructions out in their order.

The coordinator's orders to participants (`core.protocol.coordinator`) and introductions are among
them as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from elasticutor.core.protocol.coordinator import Order
from elasticutor.core.protocol.events import NodeLost, TaskLost
from elasticutor.core.protocol.ids import Attempt, Epoch, NodeId, Peer
from elasticutor.core.run.introductions import Introduction
from elasticutor.core.run.phases import RunPhase
from elasticutor.core.scheduler.placement import Placement

# Processes ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StartMain:
    """Start an executor's main process."""

    who: Peer
    life: int
    placed: Placement


@dataclass(frozen=True, slots=True)
class StartOnHost:
    """Let a host start some sources and sinks, each with its life."""

    number: int
    ends: tuple[tuple[Peer, int], ...]


@dataclass(frozen=True, slots=True)
class DropLife:
    """A participant is lost: end what is left of it, and forget where it was."""

    who: Peer
    life: int
    """The one that is lost."""
    host: int | None
    """That of a source or a sink, if it is up."""


@dataclass(frozen=True, slots=True)
class RestartHosts:
    """Start hosts of sources and sinks again."""

    numbers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class DismissHost:
    """Let a host end that has come up after the run."""

    number: int


@dataclass(frozen=True, slots=True)
class EndProcesses:
    """Let everything of the run end, on all nodes and in these hosts."""

    hosts: tuple[int, ...]
    node_grace_s: float
    """How long processes on nodes have to end by themselves."""
    host_grace_s: float


# What participants learn -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Connect:
    """A participant can be sent to, at this address."""

    who: Peer
    address: Any


@dataclass(frozen=True, slots=True)
class IntroduceNodes:
    """Tell some executors where some nodes are."""

    receivers: tuple[Peer, ...]
    nodes: tuple[NodeId, ...]


@dataclass(frozen=True, slots=True)
class ReportLoss:
    """Tell an executor what it has lost."""

    who: Peer
    lost: TaskLost | NodeLost


@dataclass(frozen=True, slots=True)
class AssignCores:
    """Tell an executor which cores it should have."""

    who: Peer
    cores: Mapping[NodeId, int]


@dataclass(frozen=True, slots=True)
class StopSending:
    """Let a source send nothing more of its own."""

    who: Peer


@dataclass(frozen=True, slots=True)
class AskToRest:
    """Ask a participant to say when nothing of it is under way."""

    who: Peer


@dataclass(frozen=True, slots=True)
class AskWhy:
    """Ask silent executors why they wait."""

    whom: tuple[Peer, ...]


# The run -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StartBatches:
    """All executors of a query are up: let it feed them."""


@dataclass(frozen=True, slots=True)
class DiscardUncommitted:
    """An attempt begins: what was collected and not committed comes again."""

    attempt: Attempt


@dataclass(frozen=True, slots=True)
class KeepCommitted:
    """What was collected up to this epoch counts."""

    epoch: Epoch


@dataclass(frozen=True, slots=True)
class CountCores:
    """Some executor should have other cores than before."""


@dataclass(frozen=True, slots=True)
class WriteJournal:
    """Write an event down."""

    kind: str
    fields: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class EnterPhase:
    """The run is in another phase."""

    phase: RunPhase


@dataclass(frozen=True, slots=True)
class Wake:
    """Something is due: let time pass until then."""

    at: float


@dataclass(frozen=True, slots=True)
class CloseRun:
    """Nothing of the run is left: give back what it had."""

    seconds: float
    error: str


@dataclass(frozen=True, slots=True)
class IgnoreMessage:
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
