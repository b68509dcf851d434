"""The named points of the protocol at which a process can be made to die."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

Kind = Literal["task", "main", "node", "source", "sink", "host"]
"""What can be killed; `main` is an executor's main process, `host` what starts
nodes, or sources and sinks."""

KINDS: dict[Kind, int] = {"task": 8, "main": 4, "node": 4, "source": 2, "sink": 2, "host": 2}
"""What is killed at random, and how often."""


@dataclass(frozen=True, slots=True)
class Point:
    """Just before a process takes in, or sends, a message of a kind."""

    kind: Kind
    sends: bool
    message: str
    recovering: bool
    """Whether it is on the way back after another process was killed."""

    def __str__(self) -> str:
        return f"{self.kind} {'sends' if self.sends else 'takes'} {self.message}"


_HAND_OVER = (
    "task takes WriteShard SendLabel",
    "task sends ShardWritten LabelReached",
    "main sends OpenShard CopyShard SendLabel SendRest DropShard",
    "main takes ShardOpened CopyArrived LabelReached StateArrived ShardDropped",
    "node takes OpenShard CopyShard Slice SendRest DropShard",
    "node sends Slice CopyArrived StateArrived ShardDropped",
)
"""A shard on its way from task to task: before the label, after the flush, during the transfer."""

_CORES = (
    "main sends StartTask EndTask",
    "main takes TaskUp",
    "node takes StartTask EndTask",
)
"""A core that comes or goes."""

_EPOCH = (
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

_RECOVERY = (
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


def _points(lines: Iterable[str], *, recovering: bool) -> Iterator[Point]:
    kinds: dict[str, Kind] = {kind: kind for kind in KINDS}
    for line in lines:
        kind, verb, *messages = line.split()
        for message in messages:
            yield Point(kinds[kind], verb == "sends", message, recovering)


POINTS = (
    *_points((*_HAND_OVER, *_CORES, *_EPOCH), recovering=False),
    *_points(_RECOVERY, recovering=True),
)
