"""What the processes of a cluster tell each other besides the core's own events and instructions.

Who says it to whom is the heading it stands under. Names: a *participant* of a run is a source task
(`clicks.0`), an elastic executor's main process (`counts.1`) or a sink (`out`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from elasticutor.core.measure.latency import LatencyHistogram
from elasticutor.core.measure.metrics import ExecutorMetrics
from elasticutor.core.protocol.batches import Ingress
from elasticutor.core.protocol.ids import Attempt, Epoch, NodeId, Peer, ShardId, TaskId
from elasticutor.core.protocol.keeper import SendSlice
from elasticutor.transport.channels import Endpoint

# To any process, from tests of what happens when it is lost ------------------------------------


@dataclass(frozen=True, slots=True)
class DieAt:
    """Kill yourself at a named point: just before a message of this kind is taken in, or sent."""

    sends: bool
    kind: str
    """The name of the message's class; of what it carries, if it carries another one."""
    task: TaskId | None = None
    """For this task of the executor that it is sent to; None: for whoever it is sent to."""


# From whoever sends tuples, to whoever receives them ----------------------------------------------


@dataclass(frozen=True, slots=True)
class Hello:
    """The schema of everything that this sender will send on this channel; the first message."""

    sender: Peer
    schema: bytes


@dataclass(frozen=True, slots=True)
class Marker:
    """The sender has sent all of its tuples of the epoch."""

    sender: Peer
    attempt: Attempt
    epoch: Epoch


@dataclass(frozen=True, slots=True)
class Join:
    """An upstream that comes and goes with its attempt: what it sends, and where it takes outputs.

    The first message on its channel.
    """

    sender: Peer
    attempt: Attempt
    schema: bytes
    endpoint: Endpoint


# Between the tasks that feed a query's operators, and the driver ----------------------------------


@dataclass(frozen=True, slots=True)
class Arrive:
    """A task wants to send."""

    frame: str
    """The elastic DataFrame that it is of."""
    query: str
    """Empty for an action on a batch DataFrame."""
    group: str
    """The job group, which is the run of the query unless somebody has set another one."""
    task: Ingress
    endpoint: Endpoint
    home: str
    """Which machine, user and Spark executor it is on; those alike can share files."""


@dataclass(frozen=True, slots=True)
class Admitted:
    """The task may send, under this name."""

    task: int
    run: str
    attempt: Attempt
    epoch: Epoch
    upstream: Peer
    credit: int
    """What it may send to each executor before it is granted more, and they to it."""
    measure_s: float
    book: Mapping[str, Endpoint]
    """Where the executors are."""
    node: NodeId
    """The node that it is beside; empty if there is none."""
    sockets: str
    """The directory of that node's ipc sockets."""


@dataclass(frozen=True, slots=True)
class Refused:
    """The task must fail."""

    task: int
    error: bytes
    """The exception, pickled by the driver."""
    text: str
    """The same in words."""


@dataclass(frozen=True, slots=True)
class PartitionDone:
    """The task has sent everything, and has all outputs of it."""

    run: str
    task: Ingress
    attempt: Attempt
    rows_in: Mapping[str, int]
    """By operator, as all that follows."""
    rows_out: Mapping[str, int]
    latency: Mapping[str, LatencyHistogram]


@dataclass(frozen=True, slots=True)
class Left:
    """The task may end: all that it has sent is safe."""

    task: int


# From participants to the driver ------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Registered:
    """A participant is up: this is where it is."""

    run: str
    who: Peer
    endpoint: Endpoint
    pid: int
    life: int = 0


@dataclass(frozen=True, slots=True)
class Said:
    """An executor's report, or a source's or a sink's answer to the coordinator."""

    run: str
    who: Peer
    what: Any


@dataclass(frozen=True, slots=True)
class MoveRefused:
    """An executor's report: it does not move a shard, though it was asked to."""

    shard: ShardId
    destination: TaskId
    why: str


@dataclass(frozen=True, slots=True)
class Rested:
    """An executor's report: nothing moves there any more; a sink's: all is published."""


@dataclass(frozen=True, slots=True)
class Exhausted:
    """A source has sent everything it will ever have."""

    run: str
    who: Peer
    attempt: Attempt


@dataclass(frozen=True, slots=True)
class Failed:
    """A participant, or one of its tasks, cannot go on."""

    run: str
    who: str
    """The participant, and the task if it is one."""
    error: bytes
    """The exception, pickled by whoever raised it; only the driver's user sees it unpickled."""
    text: str
    """The same in words."""


@dataclass(frozen=True, slots=True)
class TaskSeen:
    """A task, as its main process sees it."""

    node: NodeId
    status: str
    load: float = 0.0
    """Work of its shards, in cores."""
    shards: int = 0
    pid: int = 0


@dataclass(frozen=True, slots=True)
class Staff:
    """The tasks of an executor; told whenever one comes or goes."""

    run: str
    who: Peer
    tasks: Mapping[TaskId, TaskSeen]
    cause: str
    """What has just changed, in words; empty for none."""
    seconds: float = 0.0
    """How long that took, from the grant or the taking."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What an executor measured since the last time."""

    run: str
    who: Peer
    metrics: ExecutorMetrics
    tasks: Mapping[TaskId, TaskSeen]
    dropped: int
    """Messages that were malformed or out of place, since it started."""


@dataclass(frozen=True, slots=True)
class SourceMeasured:
    """What a source task sent since the last time."""

    run: str
    who: Peer
    seconds: float
    rows: int
    blocked_share: float
    behind_s: float
    """How far what it sends now is behind the time at which it was due."""
    rate: float | None = None
    """What it would send per second, if it knows; infinity for all it has at once."""
    routed: Mapping[Peer, int] = field(default_factory=dict)
    """How many of the rows are for which executor."""


@dataclass(frozen=True, slots=True)
class ShardLoadsMeasured:
    """The load of every shard of an executor, in cores, where upstreams hold the table."""

    run: str
    who: Peer
    loads: Any


@dataclass(frozen=True, slots=True)
class SinkMeasured:
    """What a sink took in since the last time, and how old it was."""

    run: str
    who: Peer
    seconds: float
    rows: int
    latency: LatencyHistogram


@dataclass(frozen=True, slots=True)
class Collected:
    """A batch of a memory sink, on its way to the driver."""

    run: str
    who: Peer
    attempt: Attempt
    epoch: Epoch
    schema: bytes
    data: bytes
    rows: int


@dataclass(frozen=True, slots=True)
class Recount:
    """Why an executor waits, in words; the answer to `Explain`."""

    run: str
    who: Peer
    waits: tuple[str, ...]


# From the driver to participants ------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Peers:
    """Where everybody of the run is."""

    book: Mapping[str, Endpoint]


@dataclass(frozen=True, slots=True)
class SetCores:
    """The cores that the executor should have, by node."""

    wanted: Mapping[NodeId, int]


@dataclass(frozen=True, slots=True)
class Rest:
    """Move nothing from now on, and say when the last move is done, or all is published."""


@dataclass(frozen=True, slots=True)
class Explain:
    """Say why nothing happens."""


@dataclass(frozen=True, slots=True)
class Finish:
    """The run is over: end."""


# Between a main process and its tasks -------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TaskUp:
    """A task's process runs, and takes chunks here."""

    task: TaskId
    endpoint: Endpoint
    pid: int


@dataclass(frozen=True, slots=True)
class TaskFailed:
    """The task cannot go on: its operator raised, or its state has no room."""

    task: TaskId
    attempt: Attempt
    error: bytes
    text: str


@dataclass(frozen=True, slots=True)
class Close:
    """Let the task close its operator and end."""


# To nodes -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StartExecutor:
    """Start the main process of an elastic executor."""

    run: str
    who: Peer
    payload: bytes
    life: int = 0
    """Which one it is, counted from 0: one that was lost has a successor."""


@dataclass(frozen=True, slots=True)
class DropExecutor:
    """End whatever earlier lives of an executor have left here: its tasks, and its store."""

    run: str
    who: Peer
    life: int
    """The first life that stays."""


@dataclass(frozen=True, slots=True)
class ToNode:
    """An instruction of an executor to a node: for its store, or about a task's process."""

    run: str
    who: Peer
    reply: Endpoint
    order: Any
    payload: bytes = b""
    """What a task's process needs to know, with `StartTask`."""
    task: Endpoint | None = None
    """Where the task is, with `EndTask`; None if it has not come up."""
    store: str = ""
    """Whose store it is about; empty: the executor's own."""
    life: int = 0


@dataclass(frozen=True, slots=True)
class ForStore:
    """An instruction of the driver to a node, for a store that several executors share."""

    run: str
    store: Peer
    order: Any


@dataclass(frozen=True, slots=True)
class Slice:
    """Some of a shard's state, from node to node."""

    run: str
    who: Peer
    life: int
    """Of the executor; moves of another life may have the same numbers."""
    piece: SendSlice


@dataclass(frozen=True, slots=True)
class ReadState:
    """Send all of an operator's state that is on this node to the driver."""

    run: str
    who: Peer
    ask: int


@dataclass(frozen=True, slots=True)
class EndRun:
    """End every process of a run, and remove its state; first let them end by themselves."""

    run: str
    grace_s: float


@dataclass(frozen=True, slots=True)
class Beat:
    """The driver is alive; sent again and again, and answered by `Alive`."""


@dataclass(frozen=True, slots=True)
class EndNode:
    """The cluster is over."""


# From nodes to the driver -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NodeUp:
    """A node offers its cores."""

    node: NodeId
    cores: int
    endpoint: Endpoint
    pid: int
    host: str
    """The address of its machine."""
    home: str
    """Which machine, user and Spark executor it is on; those alike can share files."""
    sockets: str
    """The directory of its ipc sockets."""
    note: str
    """Something that its user should know, or empty."""
    slot: str = ""
    """What it is called among the nodes that were wanted: at most one of a slot is alive."""
    before: str = ""
    """How the one before it ended, if that is known."""


@dataclass(frozen=True, slots=True)
class Alive:
    """A node is alive."""

    node: NodeId


@dataclass(frozen=True, slots=True)
class NodeGone:
    """A node's process has ended; told by whoever hosts it."""

    node: NodeId
    reason: str


@dataclass(frozen=True, slots=True)
class ProcessEnded:
    """A process that the node had started has ended, and nobody had asked for that."""

    node: NodeId
    run: str
    who: str
    """The participant."""
    code: int
    said: str
    task: TaskId | None = None
    """Which task of the participant it was; None for the participant itself."""
    life: int = 0


@dataclass(frozen=True, slots=True)
class StateRead:
    """The answer to `ReadState`: keys and values as the store has them."""

    node: NodeId
    run: str
    who: Peer
    ask: int
    items: tuple[tuple[bytes, bytes], ...]


@dataclass(frozen=True, slots=True)
class RunEnded:
    """Nothing of the run is left on the node."""

    node: NodeId
    run: str


# Between the hosts of sources and sinks, and the driver -------------------------------------------


@dataclass(frozen=True, slots=True)
class EndsHostUp:
    """A process that can start sources and sinks of a run is up."""

    run: str
    number: int
    endpoint: Endpoint
    home: str
    host: str
    sockets: str = ""
    """The directory of its processes' socket files."""


@dataclass(frozen=True, slots=True)
class StartEnd:
    """Start a task of a source, or a sink."""

    kind: str
    who: Peer
    life: int
    payload: bytes


@dataclass(frozen=True, slots=True)
class StartEnds:
    """Start these sources and sinks."""

    ends: tuple[StartEnd, ...]


@dataclass(frozen=True, slots=True)
class KillEnd:
    """Kill a source or sink that does not answer."""

    who: Peer
    life: int


@dataclass(frozen=True, slots=True)
class StopSource:
    """Let a source send nothing more of its own after the epoch that is ended next."""
