"""What the life of a run is decided from: everything that the driver learns of it.

What participants and nodes say themselves is in `core.protocol.coordinator`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from elasticutor.core.message import Message
from elasticutor.core.protocol.coordinator import (
    ParticipantFailed,
    ParticipantPrepared,
    ParticipantReady,
    ParticipantRested,
    PlaceCleared,
    ProcessLost,
    SourceExhausted,
    WaitExplained,
)
from elasticutor.core.protocol.ids import Attempt, Epoch, NodeId, Peer


class DriverEvent(Message):
    """Something that the driver or its user has to say to a run."""


# What the user wants -----------------------------------------------------------------------------


class StartAsked(DriverEvent):
    """Start all participants."""


class DrainAsked(DriverEvent):
    """Let the sources stop, and everything that they have sent be processed."""


class EndAsked(DriverEvent):
    """End every process of the run, whatever is under way."""


class CoresAsked(DriverEvent):
    """An executor should have these cores from now on."""

    who: Peer
    cores: Mapping[NodeId, int]
    by_hand: bool = False
    """Whether the user has said so: after a loss the executor gets as many again."""


# What comes up -----------------------------------------------------------------------------------


class NodeJoined(DriverEvent):
    """A node is up."""

    node: NodeId


class HostUp(DriverEvent):
    """A host of sources and sinks is up."""

    number: int
    near: str = ""
    """Beside which nodes the one before it was, in words."""


class ParticipantUp(DriverEvent):
    """A process of a participant is up."""

    who: Peer
    life: int
    address: Any = None
    """Handed back with `Connect`."""


# What is lost ------------------------------------------------------------------------------------


class NodeLeft(DriverEvent):
    """A node is gone, with everything on it."""

    node: NodeId
    slot: str
    """Its place on the cluster, which the node after it takes."""
    reason: str


class HostLost(DriverEvent):
    """A host of sources and sinks has ended."""

    number: int
    how: str


class HostsLost(DriverEvent):
    """The job that runs hosts of sources and sinks has ended."""

    numbers: tuple[int, ...]
    error: Exception


class MessageLost(DriverEvent):
    """A message to the driver is lost, and with it what it said."""

    error: Exception


class ClusterGone(DriverEvent):
    """The cluster has stopped, and with it every process of the run."""


# What goes wrong ---------------------------------------------------------------------------------


class ProcessFailed(DriverEvent):
    """A participant, or one of its tasks, says that it cannot go on."""

    who: str
    error: Exception


class RunFailed(DriverEvent):
    """Something is wrong with the run as a whole."""

    error: Exception


class AnswersLate(DriverEvent):
    """Answers to something else than an attempt or an epoch are late."""

    missing: tuple[Peer, ...]
    reason: str | None = None
    """What has not come although the participants were asked why; None: ask them."""


# How it goes on ----------------------------------------------------------------------------------


class EpochStored(DriverEvent):
    """A manifest that was ordered is durable, or could not be written."""

    epoch: Epoch
    attempt: Attempt
    size: int
    """In bytes, of the state that it names."""
    error: Exception | None = None


class ShardsSettled(DriverEvent):
    """No shard is on its way between executors."""


class Tick(DriverEvent):
    """Time has passed."""


RunEvent = (
    DriverEvent
    | ParticipantReady
    | ParticipantPrepared
    | ParticipantFailed
    | SourceExhausted
    | ParticipantRested
    | WaitExplained
    | ProcessLost
    | PlaceCleared
)
