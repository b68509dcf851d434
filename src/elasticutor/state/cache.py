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
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from itertools import repeat
from operator import getitem, itemgetter, setitem
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from elasticutor.core.ids import Attempt, Epoch, ShardId
from elasticutor.errors import BadValueError, OutOfOrderError
from elasticutor.state.backend import Value
from elasticutor.state.packed import PackedStates, Slots

_IMMUTABLE: Final = frozenset(
    {int, float, complex, bool, str, bytes, type(None), Decimal, date, datetime, time, timedelta}
)


class _Absent:
    """The type of what stands for no state, so that a look at types alone tells it."""


_ABSENT: Final = _Absent()


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
            if _is_immutable(default):
                return default
            self._values[shard][key] = value = default
        if not _is_immutable(value):
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
        """Write all changes to the store; returns the bytes written."""
        packed = [] if self._packed is None else list(self._packed.changed())
        written = sum(self._flush_packed(ShardId(shard), slots) for shard, slots in packed)
        return written + sum(self.flush_shard(shard) for shard in list(self._dirty))

    def flush_shard(self, shard: ShardId) -> int:
        """Write the shard's changes to the store; returns the bytes written."""
        if self._packed is not None:
            return sum(self._flush_packed(shard, slots) for _, slots in self._packed.changed(shard))
        items = list(self._changes(shard))
        if items:
            self._store.write(self.attempt, self.epoch, shard, items)
            self._dirty[shard].clear()
            self._partly_clean.add(shard)
        return sum(len(key) + len(value or b"") for key, value in items)

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
        values = self._values[shard]
        for key in self._dirty[shard]:
            value = values[key]
            yield self._codec.dump_key(key), None if value is _ABSENT else self._codec.dump(value)

    def _flush_packed(self, shard: ShardId, slots: Slots) -> int:
        assert self._packed is not None
        dump_key, dump = self._codec.dump_key, self._codec.dump
        items = [(dump_key(key), dump(value)) for key, value in self._packed.items(slots)]
        self._store.write(self.attempt, self.epoch, shard, items)
        self._packed.written(slots)
        return sum(len(key) + len(value) for key, value in items)

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


class KeyState:
    """The state of one key at a time, of one shard: `StateCache` with a short way for each row.

    It is told its `key`, and asked any number of times before it is told the next. A state that is
    cached, and either a plain value or dirty already, is handed out after two look-ups; all else is
    the cache's to decide.

    Example:
        >>> from elasticutor.state.backend import MemoryBackend
        >>> from elasticutor.state.levels import Levels
        >>> store = Levels.create(MemoryBackend(), attempt=Attempt(1), committed=Epoch(0))
        >>> cache = StateCache(store, Codec(str.encode), Attempt(1), Epoch(1))
        >>> state = cache.handle(ShardId(0))
        >>> for state.key in ("a", "b", "a"):
        ...     state.set(state.get(0) + 1)
        >>> cache.get(ShardId(0), "a")
        2
    """

    __slots__ = ("_cache", "_dirty", "_shard", "_values", "key")

    key: Hashable

    def __init__(
        self,
        cache: StateCache,
        shard: ShardId,
        values: dict[Hashable, Any],
        dirty: dict[Hashable, None],
    ) -> None:
        self._cache = cache
        self._shard = shard
        self._values = values
        self._dirty = dirty

    def get(self, default: Any = None) -> Any:
        """The key's state, live; where it has none, the default, which then is it if mutable."""
        key = self.key
        value = self._values.get(key, _ABSENT)
        if type(value) in _IMMUTABLE or (key in self._dirty and value is not _ABSENT):
            return value
        return self._cache.get(self._shard, key, default)

    def set(self, value: Any) -> None:
        """Make this the key's state."""
        key = self.key
        self._values[key] = value
        self._dirty[key] = None

    def clear(self) -> None:
        """Let the key have no state."""
        self._cache.clear(self._shard, self.key)

    def exists(self) -> bool:
        """Whether the key has state."""
        return self._cache.exists(self._shard, self.key)


class KeyStates:
    """The states of many keys at once: what `StateCache` does for each, without a call for each.

    Good only until the cache forgets something, so within one chunk.

    Example:
        >>> from elasticutor.state.backend import MemoryBackend
        >>> from elasticutor.state.levels import Levels
        >>> store = Levels.create(MemoryBackend(), attempt=Attempt(1), committed=Epoch(0))
        >>> cache = StateCache(store, Codec(str.encode), Attempt(1), Epoch(1))
        >>> states = cache.handles([ShardId(0), ShardId(1)], ["a", "b"])
        >>> states.set([5, 6])
        >>> states.get(), cache.get(ShardId(1), "b")
        ([5, 6], 6)
    """

    def __init__(
        self, cache: StateCache, shards: Sequence[ShardId], keys: Sequence[Hashable]
    ) -> None:
        self._cache = cache
        self._shards = shards
        self._keys = keys
        self._looked_up = False
        # The dictionary of each key's shard. A getter of several gives a tuple, of one it does not.
        several = len(shards) > 1
        self._dicts: Sequence[dict[Hashable, Any]] = (
            itemgetter(*shards)(cache._values) if several else [cache._values[s] for s in shards]
        )

    def get(self, default: Any = None) -> list[Any]:
        """The states, live; the default, which must be immutable, where there is none."""
        if not _is_immutable(default):
            hint = "one object would become the state of many keys: ask for them one by one"
            raise BadValueError("default for many keys", "be immutable", default, hint)
        values = self._look_up()
        if not _IMMUTABLE.issuperset(map(type, values)):
            for place, value in enumerate(values):
                if value is _ABSENT:
                    values[place] = default
                elif not _is_immutable(value):
                    self._cache._touch(self._shards[place], self._keys[place])
        return values

    def joined(self, default: bytes) -> bytearray:
        """The states, which are all bytes, one after another in a copy.

        Raises:
            TypeError: One of them is something else.
        """
        values = self._look_up()
        try:
            return bytearray().join(values)
        except TypeError:
            return bytearray().join(default if v is _ABSENT else v for v in values)

    def set(self, values: Sequence[Any]) -> None:
        """Make these the states, in the order of the keys."""
        if len(values) != len(self._keys):
            sizes = (len(self._keys), len(values))
            raise BadValueError("keys and values", "be as many as each other", sizes)
        deque(map(setitem, self._dicts, self._keys, values), maxlen=0)
        # Keys that have been looked up are cached; where all that is cached is dirty, so are they.
        if not self._looked_up or self._cache._partly_clean:
            self._cache._touch_many(self._shards, self._keys)

    def _look_up(self) -> list[Any]:
        self._looked_up = True
        try:
            return list(map(getitem, self._dicts, self._keys))
        except KeyError:
            return list(map(self._cache._look_up, self._shards, self._keys))


class KeyArray:
    r"""The states of many whole numbers at once, as one array.

    Good only until the cache forgets something or is asked in another way.

    Example:
        >>> from elasticutor.state.backend import MemoryBackend
        >>> from elasticutor.state.levels import Levels
        >>> store = Levels.create(MemoryBackend(), attempt=Attempt(1), committed=Epoch(0))
        >>> codec = Codec(lambda key: str(key).encode())
        >>> cache = StateCache(store, codec, Attempt(1), Epoch(1))
        >>> shards = np.array([0, 1], np.int32)
        >>> states = cache.array_handle(lambda: shards, np.array([5, 7]), item_bytes=8)
        >>> states.set(np.array([50, 70]).view("V8"))
        >>> states.get().view(np.int64), cache.get(ShardId(1), 7)
        (array([50, 70]), b'F\x00\x00\x00\x00\x00\x00\x00')
    """

    def __init__(
        self,
        cache: StateCache,
        packed: PackedStates,
        shards: Callable[[], npt.NDArray[np.int32]],
        keys: npt.NDArray[Any],
    ) -> None:
        self._cache = cache
        self._packed = packed
        self._shards = shards
        self._keys = keys
        self._slots = packed.find(keys)
        self._all_known = False

    def fits(self, item_bytes: int) -> bool:
        """Whether the cache still has these states as arrays, and they are of this size."""
        return self._cache._packed is self._packed and self._packed.item_bytes == item_bytes

    def get(self) -> npt.NDArray[Any] | None:
        """The states as an array of its own, zeros where there is none.

        None if one in the store is something else; then they all are objects from now on.
        """
        self._add_missing()
        if not self._all_known:
            unknown = np.flatnonzero(self._packed.unknown(self._slots))
            if len(unknown) and not self._read(unknown):
                self._cache._unpack()
                return None
            self._all_known = True
        return self._packed.get(self._slots)

    def set(self, values: npt.NDArray[Any]) -> None:
        """Make these the states, in the order of the keys."""
        self._add_missing()
        self._packed.set(self._slots, values)

    def _add_missing(self) -> None:
        missing = np.flatnonzero(self._slots < 0)
        if len(missing):
            shards = self._shards()[missing]
            self._slots[missing] = self._packed.added(self._keys[missing], shards)

    def _read(self, places: npt.NDArray[np.intp]) -> bool:
        """Take over what the store has; whether all of it is bytes of the right size."""
        size = self._packed.item_bytes
        shards = self._shards()[places].tolist()
        found = self._cache._stored(shards, self._keys[places].tolist())
        present = np.array([value is not _ABSENT for value in found])
        values = [bytes(size) if value is _ABSENT else value for value in found]
        if not all(type(value) is bytes and len(value) == size for value in values):
            return False
        joined = np.frombuffer(b"".join(values), f"V{size}")
        self._packed.learn(self._slots[places], joined, present)
        return True


def _is_immutable(value: Any) -> bool:
    kind = type(value)
    if kind in _IMMUTABLE:
        return True
    if kind is not tuple and kind is not frozenset:
        return False
    # Most are flat, and a look at all types at once is several times faster than one by one.
    return _IMMUTABLE.issuperset(map(type, value)) or all(map(_is_immutable, value))
