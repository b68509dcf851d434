"""The phases of moving one shard (paper 3.3, with a write and a copy ahead of the pause).

```
within a node:              WRITING → [WAITING] → DRAINING → done
to another node:  OPENING → WRITING → COPYING → [WAITING] → DRAINING → MIGRATING → done
of a shard whose task is gone,
  with its state still on a node:      OPENING → COPYING → MIGRATING → done
  with its state in the checkpoint:                        RESTORING → done
```

Up to WAITING the source task goes on working on the shard. From DRAINING on the shard is *held*:
its tuples wait, and an epoch's end waits for it too.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from elasticutor.core.protocol.ids import MoveId, NodeId, ShardId, TaskId
from elasticutor.core.protocol.instructions import Cause, ReportMove


class MovePhase(Enum):
    """How far a move has come."""

    OPENING = "opening"
    """The destination's node makes ready."""
    WRITING = "writing"
    """The source task writes what it has changed; tuples still flow."""
    COPYING = "copying"
    """A first copy of the state travels; tuples still flow."""
    WAITING = "waiting"
    """Ready for the label, which is not sent while an epoch ends."""
    DRAINING = "draining"
    """The label is on its way to the source task, which gives back what it has not begun."""
    MIGRATING = "migrating"
    """What changed since the copy travels."""
    RESTORING = "restoring"
    """The state is fetched from the checkpoint."""


@dataclass(slots=True)
class Move:
    """One shard on its way from one task to another."""

    id: MoveId
    shard: ShardId
    source: TaskId | None
    """None: the shard has no owner, and is held from the start."""
    destination: TaskId
    origin: NodeId | None
    """The node with the shard's state; None: only the checkpoint has it."""
    target: NodeId
    phase: MovePhase
    cause: Cause
    started_at: float = 0.0
    labelled_at: float = 0.0
    drained_at: float = 0.0
    copied: int = 0

    @property
    def remote(self) -> bool:
        """Whether state has to travel."""
        return self.origin != self.target

    @property
    def holds(self) -> bool:
        """Whether the shard's tuples wait for this move."""
        return self.source is None or self.phase in (MovePhase.DRAINING, MovePhase.MIGRATING)

    @property
    def awaits(self) -> str:
        """Who has to answer next, in words."""
        if self.phase in (MovePhase.WRITING, MovePhase.WAITING, MovePhase.DRAINING):
            return f"task {self.source}"
        return (
            f"node {self.target!r}"
            if self.phase is not MovePhase.COPYING
            else (f"nodes {self.origin!r} and {self.target!r}")
        )

    def report(self, migrated: int, now: float) -> ReportMove:
        """What is kept of a finished move."""
        return ReportMove(
            move=self.id,
            shard=self.shard,
            source=self.source,
            destination=self.destination,
            remote=self.remote,
            cause=self.cause,
            sync_s=self.drained_at - self.labelled_at,
            migration_s=now - self.drained_at,
            copied=self.copied,
            migrated=migrated,
        )
