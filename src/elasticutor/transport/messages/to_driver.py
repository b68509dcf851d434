"""Messages to the driver: from participants, nodes, and hosts of sources and sinks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from elasticutor.core.measure.latency import LatencyHistogram
from elasticutor.core.measure.load import FloatArray
from elasticutor.core.measure.metrics import ExecutorMetrics
from elasticutor.core.message import Message
from elasticutor.core.protocol.ids import Attempt, Epoch, NodeId, Peer, ShardId, TaskId
from elasticutor.transport.channels import Endpoint

# From participants --------------------------------------------------------------------------------


class _FromParticipant(Message):
    run: str
    who: Peer


class Registered(_FromParticipant):
    """A participant is up, at this endpoint."""

    endpoint: Endpoint
    pid: int
    life: int = 0


class Said(_FromParticipant):
    """An executor's report, or a source's or a sink's answer to the coordinator."""

    what: Any
    """Another message."""


class MoveRefused(Message):
    """An executor's report: it refuses to move a shard."""

    shard: ShardId
    destination: TaskId
    why: str


class Failed(Message):
    """A participant, or one of its tasks, cannot go on."""

    run: str
    who: str
    """The participant, and the task if it is one."""
    error: bytes
    """The exception, pickled where it was raised; unpickled only to raise it to the user."""
    text: str
    """The same in words."""


class TaskSeen(Message):
    """A task, as its main process sees it."""

    node: NodeId
    status: str
    load: float = 0.0
    """Work of its shards, in cores."""
    shards: int = 0
    pid: int = 0


class Staff(Message):
    """The tasks of an executor; sent whenever one comes or goes."""

    run: str
    who: Peer
    tasks: Mapping[TaskId, TaskSeen]
    cause: str
    """What has just changed, in words; empty for none."""
    seconds: float = 0.0
    """How long the change took, from the grant or the taking of the core."""


class Measured(_FromParticipant):
    """What an executor measured since the last time."""

    metrics: ExecutorMetrics
    tasks: Mapping[TaskId, TaskSeen]
    dropped: int
    """Messages that were malformed or out of place, since it started."""


class SourceMeasured(_FromParticipant):
    """What a source task sent since the last time."""

    seconds: float
    rows: int
    blocked_share: float
    behind_s: float
    """How far what it sends now is behind the time at which it was due."""
    rate: float | None = None
    """Rows per second that it would send, if known; infinity for all it has at once."""
    routed: Mapping[Peer, int] = msgspec.field(default_factory=dict)
    """The number of rows for each executor."""


class ShardLoadsMeasured(_FromParticipant):
    """The load of every shard of an executor, in cores, where upstreams hold the table."""

    loads: FloatArray


class SinkMeasured(_FromParticipant):
    """Rows that a sink took in since the last time, and their latencies."""

    seconds: float
    rows: int
    latency: LatencyHistogram


class Collected(_FromParticipant):
    """A batch of a memory sink, on its way to the driver."""

    attempt: Attempt
    epoch: Epoch
    schema: bytes
    data: bytes
    rows: int


# From nodes ---------------------------------------------------------------------------------------


class NodeUp(Message):
    """A node offers its cores."""

    node: NodeId
    cores: int
    endpoint: Endpoint
    pid: int
    host: str
    """The address of its machine."""
    home: str
    """Its machine, user and Spark executor; processes of one home can share files."""
    sockets: str
    """The directory of its ipc sockets."""
    note: str
    """A warning for the user, or empty."""
    slot: str = ""
    """Its name among the wanted nodes: at most one node of a slot is alive."""
    before: str = ""
    """How the last node of this slot ended, if known."""


class Alive(Message):
    """A node is alive."""

    node: NodeId


class NodeGone(Message):
    """A node's process has ended; sent by its host."""

    node: NodeId
    reason: str


class StateRead(Message):
    """The answer to `ReadState`: keys and values as the store has them."""

    node: NodeId
    run: str
    who: Peer
    ask: int
    items: tuple[tuple[bytes, bytes], ...]


# From hosts of sources and sinks ------------------------------------------------------------------


class EndsHostUp(Message):
    """A process that can start sources and sinks of a run is up."""

    run: str
    number: int
    endpoint: Endpoint
    home: str
    host: str
    sockets: str = ""
    """The directory of its processes' socket files."""
