"""A checkpoint location, simulated, whose newest epoch can be made anew."""

from __future__ import annotations

from collections.abc import Mapping

from elasticutor.core.protocol.ids import Attempt, Epoch, ShardId
from elasticutor.errors import OutOfOrderError
from elasticutor.lab.check.world.durable import Durable

_Shards = dict[ShardId, dict[bytes, bytes]]


class QueryCheckpoint(Durable):
    """Keeps what every epoch came to.

    As in a real checkpoint, an epoch that is to be made anew stays until it has been, and counts
    for whoever opens the location until then.

    Example:
        >>> kept = QueryCheckpoint()
        >>> for epoch in (1, 4):
        ...     kept.commit("a/0", Epoch(epoch), Attempt(epoch))
        >>> kept.newest_below("a/0", Epoch(4)), kept.newest_below("a/0", Epoch(7))
        (1, 4)
        >>> kept.go_back("a/0", Epoch(1))
        >>> kept.committed("a/0"), kept.newest_below("a/0", Epoch(7))
        (1, 4)
    """

    def __init__(self) -> None:
        super().__init__()
        self._history: dict[str, dict[Epoch, _Shards]] = {}

    def commit(self, executor: str, epoch: Epoch, attempt: Attempt) -> None:
        """Let an executor's increment count, on top of the epoch that it goes on from."""
        base = self.committed(executor)
        if epoch <= base:
            raise OutOfOrderError(f"epoch of {executor}", f"come after {base}", epoch)
        super().commit(executor, epoch, attempt)
        earlier = self._history.get(executor, {})
        self._history[executor] = {at: kept for at, kept in earlier.items() if at <= base}
        self._history[executor][epoch] = _copied(self._folded.get(executor, {}))

    def newest_below(self, executor: str, epoch: Epoch) -> Epoch:
        """The newest epoch that counts and is before this one."""
        return max((at for at in self._history.get(executor, {}) if at < epoch), default=Epoch(0))

    def go_back(self, executor: str, epoch: Epoch) -> None:
        """Go on from an epoch that counts."""
        history = self._history.get(executor, {})
        if epoch and epoch not in history:
            raise OutOfOrderError(f"epoch of {executor}", f"be one of {sorted(history)}", epoch)
        self._folded[executor] = _copied(history.get(epoch, {}))
        self._committed[executor] = epoch


def _copied(shards: Mapping[ShardId, Mapping[bytes, bytes]]) -> _Shards:
    return {shard: dict(values) for shard, values in shards.items()}
