"""The named points of the protocol at which a process can be made to die."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["task", "main", "node", "source", "sink", "host"]
"""What can be killed; `main` is an executor's main process, `host` what starts
nodes, or sources and sinks."""

Part = Literal["hand-over", "epoch", "recovery"]

KINDS: dict[Kind, int] = {"task": 8, "main": 4, "node": 4, "source": 2, "sink": 2, "host": 2}
"""What is killed at random, and how often."""


@dataclass(frozen=True, slots=True)
class Point:
    """Just before a process takes in, or sends, a message of a kind.

    Example:
        >>> print(Point("node", sends=False, message="CopyShard", part="hand-over"))
        node takes CopyShard
    """

    kind: Kind
    sends: bool
    message: str
    part: Part

    def __str__(self) -> str:
        return f"{self.kind} {'sends' if self.sends else 'takes'} {self.message}"


def _points(part: Part, *words: str) -> tuple[Point, ...]:
    """From lines like "task takes FlushTask SendLabel"."""
    kinds: dict[str, Kind] = {kind: kind for kind in KINDS}
    found = []
    for line in words:
        kind, verb, *messages = line.split()
        found += [Point(kinds[kind], verb == "sends", message, part) for message in messages]
    return tuple(found)


HAND_OVER = _points(
    "hand-over",
    "task takes WriteShard SendLabel",
    "task sends ShardWritten LabelReached",
    "main sends OpenShard CopyShard SendLabel SendRest DropShard",
    "main takes ShardOpened CopyArrived LabelReached StateArrived ShardDropped",
    "node takes OpenShard CopyShard Slice SendRest DropShard",
    "node sends Slice CopyArrived StateArrived ShardDropped",
)
"""A shard on its way from task to task: before the label, after the flush, during the transfer."""

STAFF = _points(
    "hand-over",
    "main sends StartTask EndTask",
    "main takes TaskUp",
    "node takes StartTask EndTask",
)
"""A core that comes or goes."""

EPOCH = _points(
    "epoch",
    "source takes EndEpoch CommitEpoch",
    "source sends ParticipantPrepared",
    "task takes FlushTask",
    "task sends TaskFlushed",
    "main takes Marker TaskFlushed IncrementPersisted CommitEpoch",
    "main sends FlushTask PersistIncrement ReportPrepared CommitStore",
    "node takes PersistIncrement CommitStore",
    "node sends IncrementPersisted",
    "sink takes Marker CommitEpoch",
    "sink sends ParticipantPrepared",
)
"""The end of an epoch: from the marker to its commit."""

RECOVERY = _points(
    "recovery",
    "task takes ResetTask",
    "task sends TaskReset",
    "main takes BeginAttempt TaskReset",
    "main sends RollBackStore RestoreShard ReportReady",
    "node takes RollBackStore RestoreShard",
    "source takes StartSource",
    "sink takes BeginAttempt",
    "sink sends ParticipantReady",
)
"""The way back after another process was killed."""

POINTS = (*HAND_OVER, *STAFF, *EPOCH, *RECOVERY)
