"""A task's write-back cache: live objects, written to the store only when they must be.

The owner of a shard works on Python objects; the store sees them on a label, at an epoch's end, or
when the cache has grown too large. So reaching a cached state costs a dictionary look-up.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Collection, Hashable, Iterator
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Final, Protocol

from elasticutor.core.ids import Attempt, Epoch, ShardId
from elasticutor.errors import OutOfOrderError
from elasticutor.state.backend import Value

_IMMUTABLE: Final = frozenset(
    {int, float, complex, bool, str, bytes, type(None), Decimal, date, datetime, time, timedelta}
)
_ABSENT: Final = object()


class StateStore(Protocol):
    """What a cache needs of the store beneath it."""

    def read(self, shard: ShardId, key: bytes) -> Value:
        """The newest value of a key, `None` if it has none."""

    def write(
        self,
        attempt: Attempt,
        epoch: Epoch,
        shard: ShardId,
        items: Collection[tuple[bytes, Value]],
    ) -> None:
        """Take over what a task changed in the epoch."""


@dataclass(frozen=True, slots=True)
class Codec:
    """How keys and values become bytes."""

    dump_key: Callable[[Any], bytes]
    dump: Callable[[Any], bytes] = lambda value: pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
    # Nothing is loaded that this executor's own tasks have not written.
    load: Callable[[bytes], Any] = pickle.loads


class StateCache:
    """The state of the shards that one task owns, as live objects.

    A value that is not known to be immutable counts as changed once it was handed out, so that
    `cache.get(shard, key, []).append(x)` needs no `set`. That goes for defaults too: one that can
    be changed becomes the key's state, as with `dict.setdefault`; to look without leaving anything
    behind, ask with an immutable one, or for `exists`.

    Example:
        >>> from elasticutor.state.backend import MemoryBackend
        >>> from elasticutor.state.levels import Levels
        >>> store = Levels.create(MemoryBackend(), attempt=Attempt(1), committed=Epoch(0))
        >>> cache = StateCache(store, Codec(str.encode), Attempt(1), Epoch(1))
        >>> cache.get(ShardId(0), "user", []).append("click")
        >>> cache.flush() > 0
        True
        >>> other = StateCache(store, Codec(str.encode), Attempt(1), Epoch(1))
        >>> other.get(ShardId(0), "user")
        ['click']
    """

    def __init__(
        self,
        store: StateStore,
        codec: Codec,
        attempt: Attempt,
        epoch: Epoch,
        *,
        max_keys: int = 1_000_000,
    ) -> None:
        self._store = store
        self._codec = codec
        self._max_keys = max_keys
        self._values: dict[ShardId, dict[Hashable, Any]] = {}
        # Keys in the order of their first change: a set would order them by their hash.
        self._dirty: dict[ShardId, dict[Hashable, None]] = {}
        self.attempt = attempt
        self.epoch = epoch

    def get(self, shard: ShardId, key: Hashable, default: Any = None) -> Any:
        """The key's state, live; where it has none, the default, which then is it if mutable."""
        value = self._look_up(shard, key)
        if value is _ABSENT:
            if _is_immutable(default):
                return default
            self._values[shard][key] = value = default
        if not _is_immutable(value):
            self._touch(shard, key)
        return value

    def set(self, shard: ShardId, key: Hashable, value: Any) -> None:
        """Make this the key's state."""
        self._values.setdefault(shard, {})[key] = value
        self._touch(shard, key)

    def clear(self, shard: ShardId, key: Hashable) -> None:
        """Let the key have no state."""
        self.set(shard, key, _ABSENT)

    def exists(self, shard: ShardId, key: Hashable) -> bool:
        """Whether the key has state."""
        return self._look_up(shard, key) is not _ABSENT

    @property
    def dirty(self) -> bool:
        """Whether anything is here that the store has not seen."""
        return bool(self._dirty)

    def __len__(self) -> int:
        return sum(len(values) for values in self._values.values())

    def flush(self) -> int:
        """Write all changes to the store; returns the bytes written."""
        return sum(self.flush_shard(shard) for shard in list(self._dirty))

    def flush_shard(self, shard: ShardId) -> int:
        """Write the shard's changes to the store; returns the bytes written."""
        items = list(self._changes(shard))
        if items:
            self._store.write(self.attempt, self.epoch, shard, items)
        self._dirty.pop(shard, None)
        return sum(len(key) + len(value or b"") for key, value in items)

    def forget_shard(self, shard: ShardId) -> None:
        """Drop the shard's cached objects, written or not."""
        self._values.pop(shard, None)
        self._dirty.pop(shard, None)

    def forget_all(self) -> None:
        """Drop all cached objects, written or not."""
        self._values.clear()
        self._dirty.clear()

    def relieve(self) -> None:
        """Write everything and start empty, if the cache holds more keys than it may.

        Only between chunks: within one, an operator may still hold an object that it was given.
        """
        if len(self) > self._max_keys:
            self.flush()
            self.forget_all()

    def open_epoch(self, attempt: Attempt, epoch: Epoch) -> None:
        """Count what changes from now on to another attempt or epoch; only when all is written."""
        if self.dirty:
            raise OutOfOrderError(
                "state changed in an epoch", "be flushed before the next one", (self.epoch, epoch)
            )
        self.attempt, self.epoch = attempt, epoch

    def _look_up(self, shard: ShardId, key: Hashable) -> Any:
        values = self._values.get(shard)
        if values is None:
            values = self._values[shard] = {}
        value = values.get(key, values)  # `values` itself can never be a value in it
        if value is values:
            stored = self._store.read(shard, self._codec.dump_key(key))
            value = values[key] = _ABSENT if stored is None else self._codec.load(stored)
        return value

    def _touch(self, shard: ShardId, key: Hashable) -> None:
        self._dirty.setdefault(shard, {})[key] = None

    def _changes(self, shard: ShardId) -> Iterator[tuple[bytes, Value]]:
        values = self._values.get(shard, {})
        for key in self._dirty.get(shard, ()):
            value = values[key]
            yield self._codec.dump_key(key), None if value is _ABSENT else self._codec.dump(value)


def _is_immutable(value: Any) -> bool:
    kind = type(value)
    if kind in _IMMUTABLE:
        return True
    return (kind is tuple or kind is frozenset) and all(_is_immutable(item) for item in value)
