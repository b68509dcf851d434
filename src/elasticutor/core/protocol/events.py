"""What can happen to an elastic executor: the events that its main process handles.

An event says what *has happened*; it is handed to `ElasticExecutor.handle`, which answers with
instructions (`elasticutor.core.protocol.instructions`). Its heading says what sends
it.

Those that are made for every chunk are `msgspec.Struct`s, which are made without a call of Python.

What one sender sends arrives in the order sent: a task's answer to a flush is behind its answers to
the chunks before it, and its answer to a label behind those to all tuples of the shard that it has
processed. Between senders nothing is assumed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from elasticutor.core.executor.batch import ShardArray
from elasticutor.core.measure.load import RowSeconds
from elasticutor.core.message import Message
from elasticutor.core.protocol.ids import (
    Attempt,
    ChunkId,
    Epoch,
    MoveId,
    NodeId,
    Peer,
    ShardId,
    TaskId,
)


class _Event(Message):
    """What is not made for every chunk."""


# From the coordinator ----------------------------------------------------------------------------


class AttemptBegun(_Event):
    """Go on from the state of epoch `base`, with these upstreams and destinations.

    Whatever came after `base` is given up. This is the first event of an executor, the answer to a
    failure, and, in a Structured Streaming query, the start of every batch.
    """

    attempt: Attempt
    base: Epoch
    epoch: Epoch
    """The epoch that is open from now on; later than `base`, though not always by one."""
    upstreams: tuple[Peer, ...]
    destinations: tuple[Peer, ...] = ()
    """Where outputs go, when they are forwarded; returned outputs go to the upstreams."""


class EpochCommitted(_Event):
    """All participants have prepared the epoch, and it will never be rolled back."""

    attempt: Attempt
    epoch: Epoch


# From the scheduler, and from clocks and watchers of the host -------------------------------------


class CoreGranted(_Event):
    """A core on this node is ours from now on."""

    node: NodeId


class CoreTaken(_Event):
    """The core of this task is wanted elsewhere; its shards are to leave it first."""

    task: TaskId


class BalanceDue(_Event):
    """A balancing interval has passed."""


class MoveAsked(_Event):
    """A person, a benchmark or a test wants this shard on that task."""

    shard: ShardId
    destination: TaskId


class TaskLost(_Event):
    """A task's process is gone, and with it its cached state."""

    task: TaskId


class NodeLost(_Event):
    """A node is gone, with its tasks and its store. Never the executor's own local node."""

    node: NodeId


class AttemptFailed(_Event):
    """The host cannot go on with the attempt: storage failed, a link broke, an operator raised.

    Also what a host makes of any refusal that is not of something late: the sender waits
    for an answer that will not come.
    """

    attempt: Attempt
    reason: str


# From upstreams ----------------------------------------------------------------------------------


class TuplesArrived(msgspec.Struct, eq=False):
    """A batch of tuples from an upstream; `batch` is opaque, and handed on as it is."""

    upstream: Peer
    attempt: Attempt
    batch: Any
    shards: ShardArray | list[int]
    """Of each tuple. A list, if they are few (`MOST_SINGLES`): then no array is made of anything,
    since NumPy costs a microsecond a call however little it does."""
    size: int
    """Bytes of the whole batch, as the upstream counts them against its credit."""


class MarkerArrived(_Event):
    """This upstream has sent all of its tuples of the epoch."""

    upstream: Peer
    attempt: Attempt
    epoch: Epoch


# From destinations of outputs --------------------------------------------------------------------


class CreditGranted(_Event):
    """The destination takes outputs up to this many bytes, counted from the attempt's start."""

    destination: Peer
    attempt: Attempt
    total: int


# From tasks --------------------------------------------------------------------------------------


class Output(msgspec.Struct):
    """Outputs of one chunk for one destination; `batch` is opaque."""

    destination: Peer
    batch: Any
    size: int
    rows: int = 0


class ChunkProcessed(msgspec.Struct, eq=False):
    """The task is done with a chunk, and this came out of it."""

    task: TaskId
    attempt: Attempt
    chunk: ChunkId
    useful_s: float
    """Time spent in the operator; not the time blocked on a queue or a socket."""
    outputs: Sequence[Output] = ()
    row_seconds: RowSeconds = None
    """Time per tuple, where tuples are processed singly."""


class ChunkProgressed(msgspec.Struct, eq=False):
    """The task is done with the first tuples of a chunk, and this came out of them.

    Sent when a label interrupts a chunk; the rest is answered by `ChunkProcessed`, if the label
    leaves anything of it.
    """

    task: TaskId
    attempt: Attempt
    chunk: ChunkId
    rows: int
    """How many of those that were left of the chunk, in their order."""
    useful_s: float
    outputs: Sequence[Output] = ()
    row_seconds: RowSeconds = None


class ShardWritten(_Event):
    """What the task had changed in the shard is in the store; tuples still flow."""

    task: TaskId
    move: MoveId
    size: int


class LabelReached(_Event):
    """The task is done with the shard, whose state is in the store; the rest of it comes back.

    The task has not begun the tuples of the shard that are left in its chunks, and leaves them out.
    The main process knows which they are: all that no answer has covered.
    """

    task: TaskId
    move: MoveId
    size: int
    """Bytes of changed state that had to be written for it."""
    returned: int = 0
    """How many tuples come back."""


class TaskFlushed(_Event):
    """All that the task changed in the epoch is in the store."""

    task: TaskId
    attempt: Attempt
    epoch: Epoch
    pause_s: float = 0.0
    """The longest stretch of time for which this kept the task from its tuples."""


class TaskReset(_Event):
    """The task has forgotten everything cached, and works for this attempt only."""

    task: TaskId
    attempt: Attempt


# From nodes --------------------------------------------------------------------------------------


class TaskStarted(_Event):
    """The task's process runs, and waits for chunks."""

    task: TaskId


class ShardOpened(_Event):
    """The destination's store is ready to take the shard's state."""

    move: MoveId


class CopyArrived(_Event):
    """The first copy of the shard's state has reached the destination; tuples still flow."""

    move: MoveId
    size: int


class StateArrived(_Event):
    """The destination's store has everything of the shard."""

    move: MoveId
    size: int
    """Bytes that came since `CopyArrived`, so while the shard was held."""


class ShardDropped(_Event):
    """The node's store holds nothing of the shard any more."""

    node: NodeId
    shard: ShardId


class IncrementPersisted(_Event):
    """What the node's shards changed in the epoch is durable."""

    node: NodeId
    attempt: Attempt
    epoch: Epoch
    size: int
    note: Any = None
    """What the manifest should say of it; handed on as it is."""


class StoreRolledBack(_Event):
    """The node's store is back at the base of the attempt."""

    node: NodeId
    attempt: Attempt


class StateMeasured(_Event):
    """The executor's state on this node has this many bytes now."""

    node: NodeId
    size: int


Event = _Event | TuplesArrived | ChunkProcessed | ChunkProgressed

MOVE_EVENTS = (
    BalanceDue,
    MoveAsked,
    CoreTaken,
    ShardWritten,
    LabelReached,
    ShardOpened,
    CopyArrived,
    StateArrived,
    ShardDropped,
)
"""Events on account of moves: none of them may lead to a message to an upstream."""
