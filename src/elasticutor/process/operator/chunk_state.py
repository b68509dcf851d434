"""The states of a chunk's keys, for operators that take a chunk at a time."""

from __future__ import annotations

import math
from collections.abc import Iterator, MutableMapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from elasticutor.core.protocol.ids import ShardId
from elasticutor.errors import BadValueError
from elasticutor.operator import Groups, Keys
from elasticutor.process.operator.rows import keys_of
from elasticutor.state.cache import KeyArray, KeyStates, StateCache


class ChunkState(MutableMapping[Any, Any]):
    """The state that `process_batch` gets: `elasticutor.operator.BatchState` documents it.

    Nothing is computed before it is asked for: an operator that keeps no state pays nothing.
    """

    def __init__(
        self, cache: StateCache, keys: Sequence[pa.Array], shards: npt.NDArray[np.int32]
    ) -> None:
        self._cache = cache
        self._columns = keys
        self._row_shards = shards
        self._array: KeyArray | None = None

    @cached_property
    def groups(self) -> Groups:
        """The distinct keys of the batch, and which rows have them."""
        return groups_of(self._columns, self._row_shards)

    @cached_property
    def _shard_array(self) -> npt.NDArray[np.int32]:
        """The shard of each of the keys."""
        first_rows = self.groups.order[self.groups.starts]
        return self._row_shards[first_rows]

    @cached_property
    def _shards(self) -> list[ShardId]:
        shards: list[ShardId] = self._shard_array.tolist()
        return shards

    @cached_property
    def _all_states(self) -> KeyStates:
        return self._cache.handles(self._shards, self.groups.keys)

    @cached_property
    def _places(self) -> dict[Any, int]:
        return {key: place for place, key in enumerate(self.groups.keys)}

    def __getitem__(self, key: Any) -> Any:
        shard, key = self._find(key)
        if not self._cache.exists(shard, key):
            raise KeyError(key)
        return self._cache.get(shard, key)

    def __setitem__(self, key: Any, value: Any) -> None:
        self._cache.set(*self._find(key), value)

    def __delitem__(self, key: Any) -> None:
        shard, key = self._find(key)
        if not self._cache.exists(shard, key):
            raise KeyError(key)
        self._cache.clear(shard, key)

    def __contains__(self, key: object) -> bool:
        return self._cache.exists(*self._find(key))

    def __iter__(self) -> Iterator[Any]:
        return (key for key in self.groups.keys if key in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def get(self, key: Any, default: Any = None) -> Any:
        """A key's state; where it has none, the default, which then is it if mutable."""
        return self._cache.get(*self._find(key), default)

    def get_many(self, keys: Keys, default: Any = None) -> list[Any]:
        """The states of many keys; where one has none, the default, which must be immutable."""
        return self._states_of(keys).get(default)

    def set_many(self, keys: Keys, values: Sequence[Any]) -> None:
        """Make these the states of many keys."""
        self._states_of(keys).set(values)

    def get_array(self, keys: Keys, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """The states of many keys as an array of their own; zero where a key has none."""
        kind = np.dtype(dtype)
        array = None if kind.hasobject else self._array_of(keys, kind.itemsize)
        states = None if array is None else array.get()
        if states is not None:
            return states.view(kind)
        try:
            packed = self._states_of(keys).joined(bytes(kind.itemsize))
        except TypeError:
            packed = bytearray(b"?")
        if len(packed) != len(keys) * kind.itemsize:
            hint = "use either get_array and set_array or the other methods for all states"
            kinds = {type(value) for value in self.get_many(keys)}
            raise BadValueError("states", f"have been set by set_array as {kind}", kinds, hint)
        return np.frombuffer(packed, kind)

    def set_array(self, keys: Keys, values: npt.NDArray[Any]) -> None:
        """Make each element of the array, which may have fields, the state of its key."""
        if values.ndim != 1 or values.dtype.hasobject:
            hint = "one number, or one record of a structured type, for each key"
            raise BadValueError("states", "be in one dimension and no objects", values, hint)
        whole = values.view(f"V{values.dtype.itemsize}")
        array = self._array_of(keys, values.dtype.itemsize)
        if array is not None and len(values) == len(keys):
            array.set(whole)
        else:
            self.set_many(keys, whole.tolist())

    def _array_of(self, keys: Keys, item_bytes: int) -> KeyArray | None:
        """The states of all keys as one array, if that is what is asked for and they can be."""
        groups = self.groups
        if not isinstance(groups.distinct, np.ndarray):
            return None
        if keys is not groups.distinct and keys is not vars(groups).get("keys"):
            return None
        standing = self._array
        if standing is None or not standing.fits(item_bytes):
            self._array = self._cache.array_handle(
                lambda: self._shard_array, groups.distinct, item_bytes
            )
        return self._array

    def _states_of(self, keys: Keys) -> KeyStates:
        if keys is self.groups.keys or keys is self.groups.distinct:
            return self._all_states
        if isinstance(keys, np.ndarray):
            keys = keys.tolist()
        elif isinstance(keys, pa.Array):
            keys = keys_of([keys])
        found = [self._find(key) for key in keys]
        return self._cache.handles([shard for shard, _ in found], [key for _, key in found])

    def _find(self, key: Any) -> tuple[ShardId, Any]:
        place = self._places.get(math.nan if key != key else key)
        if place is None:
            hint = "other keys may belong to other tasks; get keys from state.groups.keys"
            raise BadValueError("key", "occur in the batch that is being processed", key, hint)
        return self._shards[place], self.groups.keys[place]


def groups_of(columns: Sequence[pa.Array], shards: npt.NDArray[np.int32]) -> Groups:
    """The rows of some key columns, by key; numbers also by shard, since memory likes order.

    Example:
        >>> groups = groups_of([pa.array(["b", "a", "b"])], np.array([1, 0, 1], np.int32))
        >>> groups.keys, groups.order.tolist(), groups.starts.tolist()
        (['b', 'a'], [0, 2, 1], [0, 2])
    """
    column = columns[0]
    if len(columns) == 1 and pa.types.is_integer(column.type) and not column.null_count:
        numbers = column.to_numpy()
        order = _stable_order(numbers, shards)
        ordered = numbers[order]
        starts = _starts(ordered)
        return Groups(ordered[starts], order, starts)
    places: dict[Any, int] = {}
    codes = np.array([places.setdefault(k, len(places)) for k in keys_of(columns)], np.int64)
    order = _stable_order(codes, np.zeros(1, np.int32))
    return Groups(list(places), order, _starts(codes[order]))


def _starts(ordered: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    begins = np.empty(len(ordered), np.bool_)
    begins[:1] = True
    np.not_equal(ordered[1:], ordered[:-1], out=begins[1:])
    return np.flatnonzero(begins)


def _stable_order(
    numbers: npt.NDArray[Any], shards: npt.NDArray[np.int32]
) -> npt.NDArray[np.int64]:
    """Row numbers in the order of shards and numbers, and among equals in their own.

    All three are packed into 64 bits, because sorting those is eight times faster than
    `argsort(kind="stable")`, and as stable, since no two are equal. What of a shard does not fit is
    lost, and with it only some of the order of shards; where number and row do not fit, all of it.
    """
    if not len(numbers):
        return np.empty(0, np.int64)
    least = int(numbers.min())
    row_bits = (len(numbers) - 1).bit_length()
    bits = (int(numbers.max()) - least).bit_length() + row_bits
    if bits > 63:
        return np.argsort(numbers, kind="stable")
    wide = numbers.astype(np.uint64 if numbers.dtype == np.uint64 else np.int64) - least
    packed = wide.astype(np.int64, copy=False) << row_bits
    packed |= shards.astype(np.int64) << bits
    packed |= np.arange(len(numbers))
    packed.sort()
    packed &= (1 << row_bits) - 1
    return packed
