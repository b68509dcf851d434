"""A task's write-back cache: live objects, written to the store only when they must be.

The owner of a shard works on Python objects; the store sees them on a label, at an epoch's end, or
when the cache has grown too large. So reaching a cached state costs a dictionary look-up.

Where states are read and written as arrays, under whole numbers and in no other way, they are not
objects but are kept in arrays (`elasticutor.state.packed`). The first who asks for them in another
way makes them objects, and they stay so.
"""

from __future__ import annotations

import pickle
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import repeat
from operator import setitem
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from elasticutor.core.ids import Attempt, Epoch, ShardId
from elasticutor.errors import OutOfOrderError
from elasticutor.state.backend import Value
from elasticutor.state.handles import ABSENT, KeyArray, KeyState, KeyStates, is_immutable
from elasticutor.state.packed import PackedStates

__all__ = ["Codec", "KeyArray", "KeyState", "KeyStates", "StateCache", "StateStore"]

_ABSENT: Final = ABSENT

# Records that are written at once: a third of a millisecond, in which nobody else can write. With
# fewer, each write costs more; with more, no less.
_AT_ONCE: Final = 512


class StateStore(Protocol):
    """What a cache needs of the store beneath it."""

    def read(self, shard: ShardId, key: bytes) -> Value:
        """The newest value of a key, `None` if it has none."""

    def read_many(self, keys: Iterable[tuple[ShardId, bytes]]) -> list[Value]:
        """The newest value of each key."""

    def write(
        self,
        attempt: Attempt,
        epoch: Epoch,
        shard: ShardId,
        items: Collection[tuple[bytes, Value]],
    ) -> None:
        """Take over what a task changed in the epoch."""

    def together(self) -> AbstractContextManager[object]:
        """Let all writes inside be one."""


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
        slice_records: int = _AT_ONCE,
    ) -> None:
        self._store = store
        self._codec = codec
        self._max_keys = max_keys
        self._slice_records = slice_records
        # A shard's dictionaries are emptied but never replaced, for a `KeyState` holds on to them.
        self._values: defaultdict[ShardId, dict[Hashable, Any]] = defaultdict(dict)
        # Keys in the order of their first change: a set would order them by their hash. Whatever
        # is in here is in `_values` too.
        self._dirty: defaultdict[ShardId, dict[Hashable, None]] = defaultdict(dict)
        # Shards of which some cached key may not be dirty; within an epoch, soon there are none.
        self._partly_clean: set[ShardId] = set()
        # While states are packed there are no objects, and once there are, no state is packed.
        self._packed: PackedStates | None = None
        self._packs = True
        self.attempt = attempt
        self.epoch = epoch

    def get(self, shard: ShardId, key: Hashable, default: Any = None) -> Any:
        """The key's state, live; where it has none, the default, which then is it if mutable."""
        value = self._look_up(shard, key)
        if value is _ABSENT:
            if is_immutable(default):
                return default
            self._values[shard][key] = value = default
        if not is_immutable(value):
            self._touch(shard, key)
        return value

    def set(self, shard: ShardId, key: Hashable, value: Any) -> None:
        """Make this the key's state."""
        if self._packs:
            self._unpack()
        self._values[shard][key] = value
        self._dirty[shard][key] = None

    def clear(self, shard: ShardId, key: Hashable) -> None:
        """Let the key have no state."""
        self.set(shard, key, _ABSENT)

    def exists(self, shard: ShardId, key: Hashable) -> bool:
        """Whether the key has state."""
        return self._look_up(shard, key) is not _ABSENT

    def handle(self, shard: ShardId) -> KeyState:
        """A handle on the states of the shard's keys, one after another."""
        self._unpack()
        return KeyState(self, shard, self._values[shard], self._dirty[shard])

    def handles(self, shards: Sequence[ShardId], keys: Sequence[Hashable]) -> KeyStates:
        """A handle on the states of many keys at once, given the shard of each."""
        self._unpack()
        return KeyStates(self, shards, keys)

    def array_handle(
        self,
        shards: Callable[[], npt.NDArray[np.int32]],
        keys: npt.NDArray[Any],
        item_bytes: int,
    ) -> KeyArray | None:
        """A handle on the states of distinct whole numbers, which are bytes of one size.

        None if there are states that have been used in other ways: then `handles` has them.

        Args:
            shards: Says the shard of each key; only asked if a key is new here.
            keys: Whole numbers of any width.
            item_bytes: The size of each state.
        """
        if not self._packs:
            return None
        kind = np.dtype(np.uint64 if keys.dtype == np.uint64 else np.int64)
        if self._packed is None and item_bytes:
            self._packed = PackedStates(kind, item_bytes)
        if self._packed is None or not self._packed.fits(kind, item_bytes):
            self._unpack()
            return None
        return KeyArray(self, self._packed, shards, keys.astype(kind, copy=False))

    @property
    def dirty(self) -> bool:
        """Whether anything is here that the store has not seen."""
        return any(self._dirty.values()) or (self._packed is not None and self._packed.dirty)

    def __len__(self) -> int:
        packed = 0 if self._packed is None else len(self._packed)
        return sum(map(len, self._values.values())) + packed

    def flush(self) -> int:
        """Write all changes to the store; returns the bytes written.

        In slices, so that others come between: if one of them fails, those before it are written.
        """
        if self._packed is not None:
            return self._flush_packed()
        return self._flush_shards(shard for shard, keys in self._dirty.items() if keys)

    def flush_shard(self, shard: ShardId) -> int:
        """Write the shard's changes to the store; returns the bytes written."""
        if self._packed is not None:
            return self._flush_packed(shard)
        return self._flush_shards([shard])

    def forget_shard(self, shard: ShardId) -> None:
        """Drop the shard's cached objects, written or not."""
        if self._packed is not None:
            self._packed.forget(shard)
        self._values[shard].clear()
        self._dirty[shard].clear()

    def forget_all(self) -> None:
        """Drop all cached objects, written or not."""
        self._packed = None
        for shard in self._values:
            self.forget_shard(shard)

    def relieve(self) -> None:
        """Write everything and start empty, if the cache holds more keys than it may.

        Only between chunks: within one, an operator may still hold an object that it was given.
        """
        packed = 0 if self._packed is None else self._packed.count
        if max(packed, sum(map(len, self._values.values()))) > self._max_keys:
            self.flush()
            self.forget_all()

    def open_epoch(self, attempt: Attempt, epoch: Epoch) -> None:
        """Count what changes from now on to another attempt or epoch; only when all is written."""
        if self.dirty:
            raise OutOfOrderError(
                "state changed in an epoch", "be flushed before the next one", (self.epoch, epoch)
            )
        self.attempt, self.epoch = attempt, epoch

    def _touch_many(self, shards: Sequence[ShardId], keys: Sequence[Hashable]) -> None:
        deque(map(setitem, map(self._dirty.__getitem__, shards), keys, repeat(None)), maxlen=0)
        self._partly_clean = {
            s for s in self._partly_clean if len(self._dirty[s]) < len(self._values[s])
        }

    def _look_up(self, shard: ShardId, key: Hashable) -> Any:
        if self._packs:
            self._unpack()
        values = self._values[shard]
        value = values.get(key, values)  # `values` itself can never be a value in it
        if value is values:
            stored = self._store.read(shard, self._codec.dump_key(key))
            self._partly_clean.add(shard)
            value = values[key] = _ABSENT if stored is None else self._codec.load(stored)
        return value

    def _touch(self, shard: ShardId, key: Hashable) -> None:
        self._dirty[shard][key] = None

    def _changes(self, shard: ShardId) -> Iterator[tuple[bytes, Value]]:
        dirty, dump = self._dirty[shard], self._codec.dump
        changed = map(self._values[shard].__getitem__, dirty)
        values = [None if value is _ABSENT else dump(value) for value in changed]
        return zip(map(self._codec.dump_key, dirty), values, strict=True)

    def _flush_shards(self, shards: Iterable[ShardId]) -> int:
        written = 0
        changes = ((shard, list(self._changes(shard))) for shard in shards)
        for some in _slices(changes, self._slice_records):
            self._write((shard, items) for shard, items, _ in some)
            for shard, items, last in some:
                written += sum(len(key) + len(value or b"") for key, value in items)
                if last:
                    self._dirty[shard].clear()
                    self._partly_clean.add(shard)
        return written

    def _flush_packed(self, shard: ShardId | None = None) -> int:
        packed, codec, written = self._packed, self._codec, 0
        assert packed is not None
        shards, slots = packed.changed(shard)
        size = self._slice_records
        for begin in range(0, len(slots), size):
            some, mine = slots[begin : begin + size], shards[begin : begin + size]
            items = packed.dumped(some, codec.dump_key, codec.dump)
            starts = [0, *(np.flatnonzero(np.diff(mine)) + 1).tolist()]
            ends = [*starts[1:], len(items)]
            parts = zip(mine[starts].tolist(), starts, ends, strict=True)
            self._write([(ShardId(s), items[start:end]) for s, start, end in parts])
            packed.written(some)
            written += sum(len(key) + len(value) for key, value in items)
        return written

    def _write(self, changes: Iterable[tuple[ShardId, Collection[tuple[bytes, Value]]]]) -> None:
        with self._store.together():
            for shard, items in changes:
                self._store.write(self.attempt, self.epoch, shard, items)

    def _unpack(self) -> None:
        """Make objects of all states, and let them be objects from now on."""
        self._packs = False
        if self._packed is None:
            return
        packed, self._packed = self._packed, None
        for number, key, value, changed in packed.contents():
            shard = ShardId(number)
            self._values[shard][key] = _ABSENT if value is None else value
            if changed:
                self._dirty[shard][key] = None
            else:
                self._partly_clean.add(shard)

    def _stored(self, shards: Iterable[ShardId], keys: Iterable[Hashable]) -> list[Any]:
        """What the store has for each key."""
        found = self._store.read_many(zip(shards, map(self._codec.dump_key, keys), strict=True))
        return [_ABSENT if stored is None else self._codec.load(stored) for stored in found]


def _slices(
    changes: Iterable[tuple[ShardId, list[tuple[bytes, Value]]]], size: int
) -> Iterator[list[tuple[ShardId, list[tuple[bytes, Value]], bool]]]:
    """Shards' changes, so many at a time; and of each part whether it is the last of its shard.

    Example:
        >>> changes = [(ShardId(0), []), (ShardId(1), [(b"a", b"1"), (b"b", b"2"), (b"c", None)])]
        >>> list(_slices(changes, 2))
        [[(1, [(b'a', b'1'), (b'b', b'2')], False)], [(1, [(b'c', None)], True)]]
    """
    some: list[tuple[ShardId, list[tuple[bytes, Value]], bool]] = []
    room = size
    for shard, items in changes:
        begin = 0
        while begin < len(items):
            part = items[begin : begin + room]
            begin += len(part)
            room -= len(part)
            some.append((shard, part, begin == len(items)))
            if not room:
                yield some
                some, room = [], size
    if some:
        yield some
