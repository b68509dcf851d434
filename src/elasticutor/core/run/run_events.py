"""What the life of a run is decided from: everything that the driver learns of it.

The answers of participants to an attempt or an epoch are the coordinator's events
(`core.protocol.coordinator`): `ParticipantReady`, `ParticipantPrepared`, `ParticipantFailed`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from elasticutor.core.message import Message
from elasticutor.core.protocol.coordinator import (
    ParticipantFailed,
    ParticipantPrepared,
    ParticipantReady,
)
from elasticutor.core.protocol.ids import Attempt, Epoch, NodeId, Peer, TaskId

# What the user wants -----------------------------------------------------------------------------


class StartAsked(Message):
    """Start all participants."""


class DrainAsked(Message):
    """Let the sources stop, and everything that they have sent be processed."""


class EndAsked(Message):
    """End every process of the run, whatever is under way."""


class CoresAsked(Message):
    """An executor should have these cores from now on."""

    who: Peer
    cores: Mapping[NodeId, int]
    by_hand: bool = False
    """Whether the user has said so: after a loss the executor gets as many again."""


# What comes up -----------------------------------------------------------------------------------


class NodeJoined(Message):
    """A node is up."""

    node: NodeId


class HostUp(Message):
    """A host of sources and sinks is up."""

    number: int
    near: str = ""
    """Beside which nodes the one before it was, in words."""


class ParticipantUp(Message):
    """A process of a participant is up."""

    who: Peer
    life: int
    address: Any = None
    """Handed back with `Connect`."""


class BatchesFlow(Message):
    """The query that drives the batches of this run can feed it."""


# What is lost ------------------------------------------------------------------------------------


class ProcessLost(Message):
    """A process has ended that should not have: of a participant, or of one of its tasks."""

    who: Peer
    life: int
    task: TaskId | None
    reason: str


class NodeLeft(Message):
    """A node is gone, with everything on it."""

    node: NodeId
    slot: str
    """Its place on the cluster, which the node after it takes."""
    reason: str


class HostLost(Message):
    """A host of sources and sinks has ended."""

    number: int
    how: str


class HostsLost(Message):
    """The job that runs hosts of sources and sinks has ended."""

    numbers: tuple[int, ...]
    error: Exception


class MessageLost(Message):
    """A message to the driver is lost, and with it what it said."""

    error: Exception


class ClusterGone(Message):
    """The cluster has stopped, and with it every process of the run."""


# What goes wrong ---------------------------------------------------------------------------------


class ProcessFailed(Message):
    """A participant, or one of its tasks, says that it cannot go on."""

    who: str
    error: Exception


class RunFailed(Message):
    """Something is wrong with the run as a whole."""

    error: Exception


class AnswersLate(Message):
    """Answers to something else than an attempt or an epoch are late."""

    missing: tuple[Peer, ...]
    reason: str | None = None
    """What has not come although the participants were asked why; None: ask them."""


class WaitExplained(Message):
    """An executor says why it waits."""

    who: Peer
    waits: tuple[str, ...]


# How it goes on ----------------------------------------------------------------------------------


class EpochStored(Message):
    """A manifest that was ordered is durable, or could not be written."""

    epoch: Epoch
    attempt: Attempt
    size: int
    """In bytes, of the state that it names."""
    error: Exception | None = None


class SourceExhausted(Message):
    """A source has sent everything that it will ever have."""

    who: Peer
    attempt: Attempt


class ShardsSettled(Message):
    """No shard is on its way between executors."""


class ParticipantRested(Message):
    """Nothing of a participant is under way: no move of an executor, no publishing of a sink."""

    who: Peer


class PlaceCleared(Message):
    """Nothing of the run is left on a node or in a host."""

    name: str


class Tick(Message):
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
