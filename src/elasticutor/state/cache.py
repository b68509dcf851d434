"""A task's write-back cache: live objects, written to the store only when they must be.

The owner of a shard works on Python objects; the store sees them on a label, after an epoch's end,
or when the cache has grown too large. So reaching a cached state costs a dictionary look-up.

At an epoch's end changed states are only *set apart*, and written in slices while the task works
on. What is set apart stays as it is: a state that is replaced meanwhile is another object, and one
that can be changed in place is encoded before it is handed out again.

Where states are read and written as arrays, under whole numbers and in no other way, they are not
objects but are kept in arrays (`elasticutor.state.packed`). The first use in another way makes them
objects, and they stay so.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from elasticutor.core.protocol.ids import Attempt, Epoch, ShardId
from elasticutor.errors import OutOfOrderError
from elasticutor.state.backend import Value
from elasticutor.state.codec import Codec
from elasticutor.state.handles import ABSENT, KeyArray, KeyState, KeyStates, is_immutable
from elasticutor.state.levels import Levels
from elasticutor.state.packed import PackedChanges, PackedStates

__all__ = ["Codec", "KeyArray", "KeyState", "KeyStates", "StateCache"]

# Records that are written at once: a third of a millisecond, in which no other task can write. With
# fewer, each write costs more; with more, no less.
_AT_ONCE: Final = 512

# Keys that a chunk adds at the most, as far as the limit of the cache is concerned; and how many
# chunks go by before they are counted again, however far it is: counting takes 10 µs.
_CHUNK_KEYS: Final = 8192
_MOST_UNSEEN: Final = 64


class StateCache:
    """The state of the shards that one task owns, as live objects.

    A value that is not known to be immutable counts as changed once it was handed out, so that
    `cache.get(shard, key, []).append(x)` needs no `set`. That goes for defaults too: one that can
    be changed becomes the key's state, as with `dict.setdefault`; to look without leaving anything
    behind, ask with an immutable one, or for `exists`.
    """

    def __init__(
        self,
        store: Levels,
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
        self._chunks_to_look = 0  # until the keys are counted again
        self._slice_records = slice_records
        # A shard's values are emptied but never replaced, for a `KeyState` holds on to them.
        self._values: defaultdict[ShardId, dict[Hashable, Any]] = defaultdict(dict)
        # The states that have changed; whatever is in here is in `_values` too, the same object.
        self._dirty: defaultdict[ShardId, dict[Hashable, Any]] = defaultdict(dict)
        self._handles: dict[ShardId, KeyState] = {}
        # While states are packed there are no objects, and once there are, no state is packed.
        self._packed: PackedStates | None = None
        self._packs = True
        # What was set apart at the end of an epoch and is not written yet, and for which epoch.
        self._apart: dict[ShardId, dict[Hashable, Any]] = {}
        self._packed_apart: PackedChanges | None = None
        self._apart_of = (attempt, epoch)
        self.attempt = attempt
        self.epoch = epoch

    def get(self, shard: ShardId, key: Hashable, default: Any = None) -> Any:
        """The key's state, live; where it has none, the default, which then is it if mutable."""
        value = self._look_up(shard, key)
        if value is ABSENT:
            if is_immutable(default):
                return default
            self._values[shard][key] = value = default
        if not is_immutable(value):
            self._touch(shard, key, value)
        return value

    def set(self, shard: ShardId, key: Hashable, value: Any) -> None:
        """Make this the key's state."""
        if self._packs:
            self._unpack()
        self._values[shard][key] = value
        self._dirty[shard][key] = value

    def clear(self, shard: ShardId, key: Hashable) -> None:
        """Let the key have no state."""
        self.set(shard, key, ABSENT)

    def exists(self, shard: ShardId, key: Hashable) -> bool:
        """Whether the key has state."""
        return self._look_up(shard, key) is not ABSENT

    def handle(self, shard: ShardId) -> KeyState:
        """The handle on the states of the shard's keys, one after another: always the same one."""
        self._unpack()
        handle = self._handles.get(shard)
        if handle is None:
            handle = KeyState(self, shard, self._values[shard], self._dirty[shard])
            self._handles[shard] = handle
        return handle

    def handles(self, shards: Sequence[ShardId], keys: Sequence[Hashable]) -> KeyStates:
        """A handle on the states of many keys at once, given the shard of each."""
        self._unpack()
        return KeyStates(self, shards, keys)

    def array_handle(
        self, shards: Callable[[], npt.NDArray[np.int32]], keys: npt.NDArray[Any], item_bytes: int
    ) -> KeyArray | None:
        """A handle on the states of distinct whole numbers, which are bytes of one size.

        None if states have been used in other ways: then `handles` has them. `shards` says the
        shard of each key, and is only asked if a key is new here.
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
        """Whether anything has changed that is neither written nor set apart."""
        return any(self._dirty.values()) or (self._packed is not None and self._packed.dirty)

    def __len__(self) -> int:
        packed = 0 if self._packed is None else len(self._packed)
        return sum(map(len, self._values.values())) + packed

    def flush(self) -> int:
        """Write all changes to the store, those set apart too; returns the bytes written.

        In slices, so that others come between: if one of them fails, those before it are written.
        """
        written = self._flush_apart()
        if self._packed is not None:
            return written + self._write_packed(self._packed.changes(), self._current, clean=True)
        return written + self._flush_shards(shard for shard, keys in self._dirty.items() if keys)

    def flush_shard(self, shard: ShardId) -> int:
        """Write the shard's changes to the store, those set apart too; returns the bytes."""
        written = self._flush_apart(shard)
        if self._packed is not None:
            mine = self._packed.changes(shard)
            return written + self._write_packed(mine, self._current, clean=True)
        return written + self._flush_shards([shard])

    def set_apart(self) -> None:
        """Keep what has changed in the epoch as it is now, to be written by `write_some`.

        No state is looked at, so as objects this takes as long as there are shards.
        """
        self._flush_apart()  # nothing, unless an epoch ends before the last one is written
        self._apart_of = self._current
        if self._packed is not None:
            self._packed_apart = self._packed.changes()
            self._packed.written(self._packed_apart.slots)
        self._apart = {shard: dirty for shard, dirty in self._dirty.items() if dirty}
        for shard in self._apart:
            fresh: dict[Hashable, Any] = {}
            self._dirty[shard] = fresh
            if shard in self._handles:
                self._handles[shard]._dirty = fresh

    def write_some(self) -> bool:
        """Write a slice of what was set apart to the store; returns whether there is more."""
        if self._packed_apart is not None:
            some, rest = self._packed_apart.split(self._slice_records)
            self._write_packed(some, self._apart_of)
            self._packed_apart = rest
        elif self._apart:
            self._write_apart(self._slice_records)
        return bool(self._apart) or self._packed_apart is not None

    def dirty_keys(self, shard: ShardId) -> int:
        """How many states of the shard have changed that the store has not seen."""
        apart = len(self._apart.get(shard, ()))
        if self._packed is not None:
            return apart + len(self._packed.changes(shard).slots)
        return apart + len(self._dirty[shard])

    def write_ahead(self, shard: ShardId) -> tuple[int, int]:
        """Write the oldest of the shard's changes, a slice; returns how many states and bytes."""
        size, apart = self._slice_records, self._apart.get(shard)
        if apart is not None:
            before = len(apart)
            written = self._write_apart(size, shard)
            return before - len(self._apart.get(shard, ())), written
        if self._packed is not None:
            written = self._flush_apart(shard)
            some, _ = self._packed.changes(shard).split(size)
            return len(some.slots), written + self._write_packed(some, self._current, clean=True)
        dirty = self._dirty[shard]
        oldest = dict(islice(dirty.items(), size))
        items = self._encoded(oldest)
        if items:
            self._write([(shard, items)], self._current)
            for key in oldest:
                del dirty[key]
        return len(items), _size(items)

    def forget_shard(self, shard: ShardId) -> None:
        """Drop the shard's cached objects, written or not."""
        if self._packed is not None:
            self._packed.forget(shard)
        self._values[shard].clear()
        self._dirty[shard].clear()

    def forget_all(self) -> None:
        """Drop all cached objects, written or not."""
        self._packed = self._packed_apart = None
        self._apart.clear()
        for shard in self._values:
            self.forget_shard(shard)

    def relieve(self) -> None:
        """Write everything and start empty, if the cache holds more keys than it may.

        Only between chunks: within one, an operator may still hold an object that it was given.
        """
        if self._packed is not None:
            keys = self._packed.count
        elif self._chunks_to_look:
            self._chunks_to_look -= 1
            return
        else:
            keys = sum(map(len, self._values.values()))
            # A chunk adds a limited number of keys: far from the limit, few looks will do.
            self._chunks_to_look = min(_MOST_UNSEEN, (self._max_keys - keys) // _CHUNK_KEYS)
        if keys > self._max_keys:
            self._chunks_to_look = 0
            self.flush()
            self.forget_all()

    def open_epoch(self, attempt: Attempt, epoch: Epoch) -> None:
        """Count changes to another attempt or epoch; all until now must be written or set apart."""
        if self.dirty:
            raise OutOfOrderError(
                "state changed in an epoch", "be flushed before the next one", (self.epoch, epoch)
            )
        self.attempt, self.epoch = attempt, epoch

    def _look_up(self, shard: ShardId, key: Hashable) -> Any:
        if self._packs:
            self._unpack()
        values = self._values[shard]
        value = values.get(key, values)  # `values` itself can never be a value in it
        if value is values:
            stored = self._store.read(shard, self._codec.dump_key(key))
            value = values[key] = ABSENT if stored is None else self._codec.load(stored)
        return value

    def _touch(self, shard: ShardId, key: Hashable, value: Any) -> None:
        """Count a state as changed that may be changed in place from now on."""
        if self._apart:
            self._preserve(shard, key)
        self._dirty[shard][key] = value

    def _preserve(self, shard: ShardId, key: Hashable) -> None:
        """Encode a state that was set apart, before it changes."""
        apart = self._apart.get(shard)
        if apart is not None and key in apart:
            value = apart[key]
            if value is not ABSENT and type(value) is not _Encoded:
                apart[key] = _Encoded(self._codec.dump(value))

    @property
    def _current(self) -> tuple[Attempt, Epoch]:
        return self.attempt, self.epoch

    def _encoded(self, states: dict[Hashable, Any]) -> list[tuple[bytes, Value]]:
        codec, values = self._codec, states.values()
        encoded: Iterable[Value]
        if _SPECIAL.isdisjoint(map(type, values)):
            encoded = codec.all_values(values)
        else:
            encoded = map(self._encoded_one, values)
        return list(zip(codec.all_keys(states), encoded, strict=True))

    def _encoded_one(self, value: Any) -> Value:
        if value is ABSENT:
            return None
        return value.data if type(value) is _Encoded else self._codec.dump(value)

    def _flush_apart(self, shard: ShardId | None = None) -> int:
        """Write what was set apart, all of it or that of one shard."""
        written = 0
        if self._packed_apart is not None:
            mine, rest = self._packed_apart.part_of(shard)
            written += self._write_packed(mine, self._apart_of)
            self._packed_apart = rest
        while self._apart if shard is None else shard in self._apart:
            written += self._write_apart(self._slice_records, shard)
        return written

    def _write_apart(self, room: int, only: ShardId | None = None) -> int:
        """Write some states that were set apart as objects."""
        some: list[tuple[ShardId, dict[Hashable, Any]]] = []
        while self._apart and room > 0:
            shard = next(reversed(self._apart)) if only is None else only
            if shard not in self._apart:
                break
            states = self._apart[shard]
            if len(states) <= 2 * room:
                some.append((shard, self._apart.pop(shard)))
                room -= len(states)
            else:  # from the end, where a dictionary finds its items at once
                some.append((shard, dict(states.popitem() for _ in range(room))))
                room = 0
        changes = [(shard, self._encoded(states)) for shard, states in some]
        try:
            self._write(changes, self._apart_of)
        except BaseException:
            for shard, states in some:
                self._apart.setdefault(shard, {}).update(states)
            raise
        return sum(_size(items) for _, items in changes)

    def _flush_shards(self, shards: Iterable[ShardId]) -> int:
        written = 0
        changes = ((shard, self._encoded(self._dirty[shard])) for shard in shards)
        for some in _slices(changes, self._slice_records):
            self._write(((shard, items) for shard, items, _ in some), self._current)
            for shard, items, last in some:
                written += _size(items)
                if last:
                    self._dirty[shard].clear()
        return written

    def _write_packed(
        self, changes: PackedChanges | None, when: tuple[Attempt, Epoch], *, clean: bool = False
    ) -> int:
        """Write states in slices; `clean`: and count them as not changed any more."""
        codec, written = self._codec, 0
        while changes is not None:
            some, changes = changes.split(self._slice_records)
            items = some.dumped(codec.all_keys, codec.all_values)
            mine = some.shards
            starts = [0, *(np.flatnonzero(np.diff(mine)) + 1).tolist()] if items else []
            ends = [*starts[1:], len(items)]
            parts = zip(mine[starts].tolist(), starts, ends, strict=True) if items else ()
            self._write([(ShardId(s), items[start:end]) for s, start, end in parts], when)
            if clean:
                some.states.written(some.slots)
            written += _size(items)
        return written

    def _write(
        self,
        changes: Iterable[tuple[ShardId, Collection[tuple[bytes, Value]]]],
        when: tuple[Attempt, Epoch],
    ) -> None:
        with self._store.together():
            for shard, items in changes:
                self._store.write(*when, shard, items)

    def _unpack(self) -> None:
        """Make objects of all states, and let them be objects from now on."""
        self._packs = False
        if self._packed is None:
            return
        packed, self._packed = self._packed, None
        for number, key, value, changed in packed.contents():
            shard = ShardId(number)
            state = ABSENT if value is None else value
            self._values[shard][key] = state
            if changed:
                self._dirty[shard][key] = state

    def _stored(self, shards: Iterable[ShardId], keys: Iterable[Hashable]) -> list[Any]:
        found = self._store.read_many(zip(shards, map(self._codec.dump_key, keys), strict=True))
        return [ABSENT if stored is None else self._codec.load(stored) for stored in found]


@dataclass(frozen=True, slots=True)
class _Encoded:
    """A state that was set apart and then handed out: as it was before."""

    data: bytes


_SPECIAL: Final = frozenset({type(ABSENT), _Encoded})


def _size(items: Iterable[tuple[bytes, Value]]) -> int:
    return sum(len(key) + len(value or b"") for key, value in items)


def _slices(
    changes: Iterable[tuple[ShardId, list[tuple[bytes, Value]]]], size: int
) -> Iterator[list[tuple[ShardId, list[tuple[bytes, Value]], bool]]]:
    """Shards' changes in slices of this size; of each part whether it is the last of its shard."""
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
