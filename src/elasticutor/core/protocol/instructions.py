"""What an elastic executor asks its host to do, by addressee.

The host (the live runtime, or the simulation) carries instructions out in the order given. All
that goes to one task travels on one channel in that order, and so does all that goes to one node:
the protocol rests on it.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from elasticutor.core.executor.batch import Part
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

Cause = Literal["balance", "core granted", "core taken", "asked", "lost"]
"""Why a shard moves: the load is uneven, a core came or goes, a user asked, its task is gone."""

# To a task, in-band with its data ----------------------------------------------------------------


class Dispatch(msgspec.Struct, eq=False):
    """Hand a chunk of tuples to a task."""

    task: TaskId
    attempt: Attempt
    epoch: Epoch
    chunk: ChunkId
    parts: list[Part]


class _ToTask(Message):
    task: TaskId


class WriteShard(_ToTask):
    """Let the task write what it has changed in the shard, and go on working on it.

    Answered by `ShardWritten`, when it suits the task: the shard's tuples flow meanwhile, and the
    label has little left to write.
    """

    move: MoveId
    shard: ShardId


class SendLabel(_ToTask):
    """Let the task be done with the shard: tuples of it that are not begun come back.

    Answered by `LabelReached`, before the next tuple.
    """

    move: MoveId
    shard: ShardId


class FlushTask(_ToTask):
    """Let the task write everything it changed in the epoch to the store, while it works on."""

    attempt: Attempt
    epoch: Epoch


class ResetTask(_ToTask):
    """Let the task forget what it has cached: the attempt it was for is given up."""

    attempt: Attempt


# To a node ---------------------------------------------------------------------------------------


class _ToNode(Message):
    node: NodeId


class OpenStore(_ToNode):
    """Have an empty store for this executor on the node."""

    attempt: Attempt
    committed: Epoch


class StartTask(_ToNode):
    """Start a task's process on the node; answered by `TaskStarted`."""

    task: TaskId


class EndTask(_ToNode):
    """End the task's process: it has no shards and nothing to do."""

    task: TaskId


class OpenShard(_ToNode):
    """Make ready to take the shard's state from another node."""

    move: MoveId
    shard: ShardId


class CopyShard(_ToNode):
    """Send a copy of the shard's state, and note from now on which keys change."""

    move: MoveId
    shard: ShardId
    destination: NodeId


class SendRest(_ToNode):
    """Send what changed in the shard since the copy; there always was one."""

    move: MoveId
    shard: ShardId
    destination: NodeId


class RestoreShard(_ToNode):
    """Fetch the shard's state of the epoch from the checkpoint."""

    move: MoveId
    shard: ShardId
    epoch: Epoch


class DropShard(_ToNode):
    """Forget the shard's state: another node has it all."""

    shard: ShardId


class PersistIncrement(_ToNode):
    """Make durable what these shards changed in the epoch.

    The node takes its snapshot when the instruction reaches it, and writes beside the processing:
    so moves may start as soon as this has been sent.
    """

    attempt: Attempt
    epoch: Epoch
    shards: tuple[ShardId, ...]


class CommitStore(_ToNode):
    """Fold everything up to the epoch into the committed level."""

    epoch: Epoch


class RollBackStore(_ToNode):
    """Return to the state of epoch `base`, keep these shards and no others."""

    attempt: Attempt
    base: Epoch
    shards: tuple[ShardId, ...]


# To an upstream ----------------------------------------------------------------------------------


class GrantCredit(Message):
    """The upstream may send up to this many bytes, counted from the attempt's start."""

    upstream: Peer
    attempt: Attempt
    total: int


# To a destination of outputs ---------------------------------------------------------------------


class Emit(msgspec.Struct):
    """Send outputs."""

    destination: Peer
    attempt: Attempt
    batch: Any
    size: int


class EmitMarker(Message):
    """All outputs of the epoch for this destination have been sent."""

    destination: Peer
    attempt: Attempt
    epoch: Epoch


# To the coordinator ------------------------------------------------------------------------------


class _ToDriver(Message):
    """A report of the executor."""


class ReportReady(_ToDriver):
    """The state of the attempt's base is in place, tuples are welcome."""

    attempt: Attempt


class ReportPrepared(_ToDriver):
    """The epoch is durable here; it is kept and not yet committed."""

    attempt: Attempt
    epoch: Epoch
    notes: tuple[Any, ...] = ()
    """What the nodes said of their increments, for the manifest."""


class ReportFailure(_ToDriver):
    """The attempt cannot go on: what it did since its last epoch is lost in part."""

    attempt: Attempt
    reason: str


# For the record ----------------------------------------------------------------------------------


class ReportMove(_ToDriver):
    """A shard has moved; times as the paper's figures 8 and 9 split them."""

    move: MoveId
    shard: ShardId
    source: TaskId | None
    destination: TaskId
    remote: bool
    cause: Cause
    sync_s: float
    """From the label until the source task had reached it."""
    migration_s: float
    """From then until the state was with the destination; 0 within a node."""
    copied: int
    """Bytes sent before the shard was held."""
    migrated: int
    """Bytes sent while it was held."""


class ReportSealed(_ToDriver):
    """All tuples of an epoch are processed, and what they changed is in the stores."""

    attempt: Attempt
    epoch: Epoch
    align_s: float
    """From the first marker until all had come, and the epoch's tuples were handed to tasks."""
    flush_s: float
    """From then until the last task had written its changes, beside the next epoch's tuples."""
    pause_s: float = 0.0
    """The longest that this kept a task from its tuples at a time: what is felt of the end."""


class ReportHotShards(_ToDriver):
    """These shards fill a core each, alone: no further core can help them."""

    shards: tuple[ShardId, ...]


Instruction = Dispatch | _ToTask | _ToNode | GrantCredit | Emit | EmitMarker | _ToDriver

TO_TASK: tuple[type[Dispatch | _ToTask], ...] = (Dispatch, *_ToTask.__subclasses__())
TO_NODE = tuple(_ToNode.__subclasses__())
TO_DRIVER = tuple(_ToDriver.__subclasses__())
