"""The second tier of routing: which task owns which shard, as an immutable, versioned table.

Only the main process of an elastic executor has one (paper 3.2); upstreams never see it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Integral
from typing import Any

from elasticutor.core.protocol.ids import ShardId, TaskId
from elasticutor.errors import BadValueError, UnknownShardError


@dataclass(frozen=True, slots=True)
class RoutingTable:
    """Shard → task, as it was at one moment.

    A shard without a task (`None`) is *unplaced*: its tuples wait until it has one. That happens
    at the very start, and after a task was lost.
    """

    version: int
    """Counts the changes since the table was made."""
    owners: tuple[TaskId | None, ...]
    """The owner of shard s is `owners[s]`."""

    @classmethod
    def unplaced(cls, shards: int) -> RoutingTable:
        """Return a table of shards without owners."""
        if shards < 1:
            raise BadValueError("number of shards", "be at least 1", shards)
        return cls(0, (None,) * shards)

    def owner(self, shard: ShardId) -> TaskId | None:
        """The task that owns the shard, or None while it is unplaced."""
        self.require(shard)
        return self.owners[shard]

    def shards_of(self, task: TaskId | None) -> tuple[ShardId, ...]:
        """All shards of a task (of `None`: the unplaced ones), in rising order."""
        return tuple(ShardId(s) for s, owner in enumerate(self.owners) if owner == task)

    def with_owners(self, changes: Mapping[ShardId, TaskId | None]) -> RoutingTable:
        """The next version of the table, with other owners for some shards."""
        for shard in changes:
            self.require(shard)
        owners = list(self.owners)
        for shard, task in changes.items():
            owners[shard] = task
        return RoutingTable(self.version + 1, tuple(owners))

    def require(self, shard: Any) -> None:
        """Refuse a shard number that is not in the table."""
        if not isinstance(shard, Integral) or not 0 <= int(shard) < len(self.owners):
            raise UnknownShardError("shard", f"be 0 to {len(self.owners) - 1}", shard)
