"""What the life of a run is decided from: everything that the driver learns of it.

The answers of participants to an attempt or an epoch are the coordinator's events
(`core.protocol.coordinator`): `ParticipantReady`, `ParticipantPrepared`, `ParticipantFailed`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from elasticutor.core.protocol.coordinator import (
    ParticipantFailed,
    ParticipantPrepared,
    ParticipantReady,
)
from elasticutor.core.protocol.ids import Attempt, Epoch, NodeId, Peer, TaskId

# What the user wants -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StartAsked:
    """Start all participants."""


@dataclass(frozen=True, slots=True)
class DrainAsked:
    """Let the sources stop, and everything that they have sent be processed."""


@dataclass(frozen=True, slots=True)
class EndAsked:
    """End every process of the run, whatever is under way."""


@dataclass(frozen=True, slots=True)
class CoresAsked:
    """An executor should have these cores from now on."""

    who: Peer
    cores: Mapping[NodeId, int]
    by_hand: bool = False
    """Whether the user has said so: after a loss the executor gets as many again."""


# What comes up -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NodeJoined:
    """A node is up."""

    node: NodeId


@dataclass(frozen=True, slots=True)
class HostUp:
    """A host of sources and sinks is up."""

    number: int
    near: str = ""
    """Beside which nodes the one before it was, in words."""


@dataclass(frozen=True, slots=True)
class ParticipantUp:
    """A process of a participant is up."""

    who: Peer
    life: int
    address: Any = None
    """Handed back with `Connect`."""


@dataclass(frozen=True, slots=True)
class BatchesFlow:
    """The query that drives the batches of this run can feed it."""


# What is lost ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ProcessLost:
    """A process has ended that should not have: of a participant, or of one of its tasks."""

    who: Peer
    life: int
    task: TaskId | None
    reason: str


@dataclass(frozen=True, slots=True)
class NodeLeft:
    """A node is gone, with everything on it."""

    node: NodeId
    slot: str
    """Its place on the cluster, which the node after it takes."""
    reason: str


@dataclass(frozen=True, slots=True)
class HostLost:
    """A host of sources and sinks has ended."""

    number: int
    how: str


@dataclass(frozen=True, slots=True)
class HostsLost:
    """The job that runs hosts of sources and sinks has ended."""

    numbers: tuple[int, ...]
    error: Exception


@dataclass(frozen=True, slots=True)
class MessageLost:
    """A message to the driver is lost, and with it what it said."""

    error: Exception


@dataclass(frozen=True, slots=True)
class ClusterGone:
    """The cluster has stopped, and with it every process of the run."""


# What goes wrong ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ProcessFailed:
    """A participant, or one of its tasks, says that it cannot go on."""

    who: str
    error: Exception


@dataclass(frozen=True, slots=True)
class RunFailed:
    """Something is wrong with the run as a whole."""

    error: Exception


@dataclass(frozen=True, slots=True)
class AnswersLate:
    """Answers to something else than an attempt or an epoch are late."""

    missing: tuple[Peer, ...]
    reason: str | None = None
    """What has not come although the participants were asked why; None: ask them."""


@dataclass(frozen=True, slots=True)
class WaitExplained:
    """An executor says why it waits."""

    who: Peer
    waits: tuple[str, ...]


# How it goes on ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class EpochStored:
    """A manifest that was ordered is durable, or could not be written."""

    epoch: Epoch
    attempt: Attempt
    size: int
    """In bytes, of the state that it names."""
    error: Exception | None = None


@dataclass(frozen=True, slots=True)
class SourceExhausted:
    """A source has sent everything that it will ever have."""

    who: Peer
    attempt: Attempt


@dataclass(frozen=True, slots=True)
class ShardsSettled:
    """No shard is on its way between executors."""


@dataclass(frozen=True, slots=True)
class ParticipantRested:
    """Nothing of a participant is under way: no move of an executor, no publishing of a sink."""

    who: Peer


@dataclass(frozen=True, slots=True)
class PlaceCleared:
    """Nothing of the run is left on a node or in a host."""

    name: str


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed."""


RunEvent = (
    StartAsked
    | DrainAsked
    | EndAsked
    | CoresAsked
    | NodeJoined
    | HostUp
    | ParticipantUp
    | BatchesFlow
    | ProcessLost
    | NodeLeft
    | HostLost
    | HostsLost
    | MessageLost
    | ClusterGone
    | ProcessFailed
    | RunFailed
    | AnswersLate
    | WaitExplained
    | ParticipantReady
    | ParticipantPrepared
    | ParticipantFailed
    | EpochStored
    | SourceExhausted
    | ShardsSettled
    | ParticipantRested
    | PlaceCleared
    | Tick
)
