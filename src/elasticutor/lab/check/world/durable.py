"""A simulated checkpoint location: what is in it survives every process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from elasticutor.core.protocol.ids import Attempt, Epoch, Peer, ShardId
from elasticutor.errors import OutOfOrderError
from elasticutor.state.levels import Record

Increment = Mapping[ShardId, tuple[Record, ...]]
_Shards = dict[ShardId, dict[bytes, bytes]]


class Durable:
    """Increments per executor, epoch and attempt, and the manifests that make them count.

    An increment that no manifest names is as good as absent: an attempt that was given up may have
    left it behind, even after a later attempt wrote its own. As in a real checkpoint, an epoch that
    is to be made again stays until it has been, and counts for readers of the location until then.
    """

    def __init__(self) -> None:
        self._increments: dict[tuple[str, Epoch, Attempt], dict[ShardId, tuple[Record, ...]]] = {}
        self._history: dict[str, dict[Epoch, _Shards]] = {}
        self._committed: dict[str, Epoch] = {}
        self.notes: Mapping[Peer, Any] = {}
        """What the newest manifest says of sources and sinks."""

    def write(self, executor: str, epoch: Epoch, attempt: Attempt, changes: Increment) -> None:
        """Keep what some shards of an executor changed in an epoch."""
        self._increments.setdefault((executor, epoch, attempt), {}).update(changes)

    def commit(self, executor: str, epoch: Epoch, attempt: Attempt) -> None:
        """Make an executor's increment count, on top of the epoch that it goes on from."""
        base = self.committed(executor)
        if epoch <= base:
            raise OutOfOrderError(f"epoch of {executor}", f"come after {base}", epoch)
        shards = {shard: dict(values) for shard, values in self._shards(executor).items()}
        for shard, records in self._increments.get((executor, epoch, attempt), {}).items():
            values = shards.setdefault(shard, {})
            for record in records:
                if record.value is None:
                    values.pop(record.key, None)
                else:
                    values[record.key] = record.value
        earlier = self._history.get(executor, {})
        kept = {at: before for at, before in earlier.items() if at <= base}
        self._history[executor] = kept | {epoch: shards}
        self._committed[executor] = epoch
        self._increments = {k: v for k, v in self._increments.items() if k[0] != executor}

    def read(self, executor: str, shard: ShardId, epoch: Epoch) -> tuple[Record, ...]:
        """A shard's state as of the newest committed epoch, which must be the one asked for."""
        committed = self.committed(executor)
        if committed != epoch:
            raise OutOfOrderError(f"epoch of {executor} to restore", f"be {committed}", epoch)
        values = self._shards(executor).get(shard, {})
        return tuple(Record(key, epoch, value) for key, value in values.items())

    def state(self, executor: str) -> dict[bytes, bytes]:
        """Everything committed of an executor, over all shards."""
        shards = self._shards(executor).values()
        return {key: value for values in shards for key, value in values.items()}

    def committed(self, executor: str) -> Epoch:
        """The newest epoch that counts."""
        return self._committed.get(executor, Epoch(0))

    def newest_below(self, executor: str, epoch: Epoch) -> Epoch:
        """The newest epoch that counts for readers and is before this one."""
        return max((at for at in self._history.get(executor, {}) if at < epoch), default=Epoch(0))

    def go_back(self, executor: str, epoch: Epoch) -> None:
        """Go on from an epoch that counts."""
        history = self._history.get(executor, {})
        if epoch and epoch not in history:
            raise OutOfOrderError(f"epoch of {executor}", f"be one of {sorted(history)}", epoch)
        self._committed[executor] = epoch

    def _shards(self, executor: str) -> _Shards:
        return self._history.get(executor, {}).get(self.committed(executor), {})
