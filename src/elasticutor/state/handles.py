"""Ways to a task's cached states: one key at a time, many at once, or as one array."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from operator import getitem, itemgetter, setitem
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from elasticutor.core.protocol.ids import ShardId
from elasticutor.errors import BadValueError
from elasticutor.state.packed import PackedStates

if TYPE_CHECKING:
    from elasticutor.state.cache import StateCache

IMMUTABLE: Final = frozenset(
    {int, float, complex, bool, str, bytes, type(None), Decimal, date, datetime, time, timedelta}
)


class Absent:
    """The type of what stands for no state, so that a look at types alone tells it."""


ABSENT: Final = Absent()


def is_immutable(value: Any) -> bool:
    """Whether a state is known to be one that cannot be changed in place."""
    kind = type(value)
    if kind in IMMUTABLE:
        return True
    if kind is not tuple and kind is not frozenset:
        return False
    # Most are flat, and a look at all types at once is several times faster than one by one.
    return IMMUTABLE.issuperset(map(type, value)) or all(map(is_immutable, value))


class KeyState:
    """The state of one key at a time, of one shard: `StateCache` with a short way for each row.

    It is given its `key`, and asked any number of times before it is given the next. A state that
    has changed already is handed out after one look-up, a plain value that is cached after two; all
    else is the cache's to decide.
    """

    __slots__ = ("_cache", "_dirty", "_shard", "_values", "key")

    key: Hashable

    def __init__(
        self,
        cache: StateCache,
        shard: ShardId,
        values: dict[Hashable, Any],
        dirty: dict[Hashable, Any],
    ) -> None:
        self._cache = cache
        self._shard = shard
        self._values = values
        self._dirty = dirty

    def get(self, default: Any = None) -> Any:
        """The key's state, live; where it has none, the default, which then is it if mutable."""
        key = self.key
        value = self._dirty.get(key, ABSENT)
        if value is not ABSENT:
            return value
        value = self._values.get(key, ABSENT)
        if type(value) in IMMUTABLE:
            return value
        return self._cache.get(self._shard, key, default)

    def set(self, value: Any) -> None:
        """Make this the key's state."""
        key = self.key
        self._values[key] = value
        self._dirty[key] = value

    def clear(self) -> None:
        """Let the key have no state."""
        self._cache.clear(self._shard, self.key)

    def exists(self) -> bool:
        """Whether the key has state."""
        return self._cache.exists(self._shard, self.key)


class KeyStates:
    """The states of many keys at once: what `StateCache` does for each, without a call for each.

    Good only until the cache forgets something, so within one chunk.
    """

    def __init__(
        self, cache: StateCache, shards: Sequence[ShardId], keys: Sequence[Hashable]
    ) -> None:
        self._cache = cache
        self._shards = shards
        self._keys = keys
        # The dictionary of each key's shard. A getter of several gives a tuple, of one it does not.
        several = len(shards) > 1
        self._dicts: Sequence[dict[Hashable, Any]] = (
            itemgetter(*shards)(cache._values) if several else [cache._values[s] for s in shards]
        )

    def get(self, default: Any = None) -> list[Any]:
        """The states, live; the default, which must be immutable, where there is none."""
        if not is_immutable(default):
            hint = "one object would become the state of many keys: ask for them one by one"
            raise BadValueError("default for many keys", "be immutable", default, hint)
        values = self._look_up()
        if not IMMUTABLE.issuperset(map(type, values)):
            for place, value in enumerate(values):
                if value is ABSENT:
                    values[place] = default
                elif not is_immutable(value):
                    self._cache._touch(self._shards[place], self._keys[place], value)
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
            return bytearray().join(default if v is ABSENT else v for v in values)

    def set(self, values: Sequence[Any]) -> None:
        """Make these the states, in the order of the keys."""
        if len(values) != len(self._keys):
            sizes = (len(self._keys), len(values))
            raise BadValueError("keys and values", "be as many as each other", sizes)
        deque(map(setitem, self._dicts, self._keys, values), maxlen=0)
        dirty = map(self._cache._dirty.__getitem__, self._shards)
        deque(map(setitem, dirty, self._keys, values), maxlen=0)

    def _look_up(self) -> list[Any]:
        try:
            return list(map(getitem, self._dicts, self._keys))
        except KeyError:
            return list(map(self._cache._look_up, self._shards, self._keys))


class KeyArray:
    """The states of many whole numbers at once, as one array.

    Good only until the cache forgets something or is asked in another way.
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
        present = np.array([value is not ABSENT for value in found])
        values = [bytes(size) if value is ABSENT else value for value in found]
        if not all(type(value) is bytes and len(value) == size for value in values):
            return False
        joined = np.frombuffer(b"".join(values), f"V{size}")
        self._packed.learn(self._slots[places], joined, present)
        return True
