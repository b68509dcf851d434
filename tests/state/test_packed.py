"""States in arrays: each of them must be what a dictionary would have."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticutor.core.protocol.ids import Attempt, Epoch, ShardId
from elasticutor.state.backend import MemoryBackend
from elasticutor.state.cache import KeyArray, StateCache
from elasticutor.state.codec import CODEC
from elasticutor.state.levels import Levels
from elasticutor.state.packed import PackedStates

S0 = ShardId(0)
SHARDS = 3


def new_store() -> Levels:
    return Levels.create(MemoryBackend(), attempt=Attempt(1), committed=Epoch(0))


def new_cache(
    store: Levels | None = None, max_keys: int = 1_000_000, slice_records: int = 512
) -> StateCache:
    store = new_store() if store is None else store
    return StateCache(
        store, CODEC, Attempt(1), Epoch(1), max_keys=max_keys, slice_records=slice_records
    )


def handle(cache: StateCache, keys: list[int], kind: Any = np.int64) -> KeyArray:
    array = np.array(keys, kind)
    shards = np.array([key % SHARDS for key in keys], np.int32)
    made = cache.array_handle(lambda: shards, array, item_bytes=8)
    assert made is not None
    return made


def numbers(states: KeyArray) -> list[int]:
    got = states.get()
    assert got is not None
    return [int(number) for number in got.view(np.int64)]


def put(cache: StateCache, states: dict[int, int]) -> None:
    handle(cache, list(states)).set(np.array(list(states.values()), np.int64).view("V8"))


wide = st.integers(-(2**63), 2**63 - 1)
# Numbers that differ in their upper or lower bits only are what a poor index would stumble over.
alike = st.builds(lambda number, shift: number << shift, st.integers(0, 15), st.integers(0, 58))


@given(st.lists(st.lists(wide | alike, unique=True, max_size=40), max_size=6))
def test_every_key_is_found_where_it_was_put(batches: list[list[int]]) -> None:
    states = PackedStates(np.dtype(np.int64), 8)
    slots: dict[int, int] = {}
    for batch in batches:
        new = [key for key in batch if key not in slots]
        keys = np.array(new, np.int64)
        assert (states.find(keys) == -1).all()
        slots.update(zip(new, states.added(keys, np.zeros(len(new), np.int32)), strict=True))
    assert len(set(slots.values())) == states.count == len(slots)
    assert states.find(np.array(list(slots), np.int64)).tolist() == list(slots.values())


def test_keys_are_found_after_the_arrays_have_grown_many_times() -> None:
    states = PackedStates(np.dtype(np.uint64), 1)
    keys = np.random.default_rng(1).permutation(50_000).astype(np.uint64) << np.uint64(45)
    for part in np.array_split(keys, 7):
        slots = states.added(part, np.zeros(len(part), np.int32))
        states.set(slots, (part >> np.uint64(45)).astype(np.uint8).view("V1"))
    assert states.find(keys).tolist() == list(range(len(keys)))
    values = states.get(states.find(keys)).view(np.uint8)
    assert (values == (keys >> np.uint64(45)).astype(np.uint8)).all()


steps = st.lists(
    st.tuples(st.just("set"), st.dictionaries(st.integers(-9, 9), st.integers(1, 99), min_size=1))
    | st.tuples(st.just("get"), st.lists(st.integers(-9, 9), unique=True))
    | st.tuples(st.sampled_from(["flush", "relieve"]), st.none())
    | st.tuples(st.sampled_from(["flush shard", "move"]), st.integers(0, SHARDS - 1)),
    max_size=12,
)


@given(steps, st.booleans(), st.integers(1, 5))
def test_whatever_is_done_states_are_as_in_a_dictionary(
    done: list[tuple[str, Any]], as_objects: bool, slice_records: int
) -> None:
    store = new_store()
    cache, model = new_cache(store, 5, slice_records), dict[int, int]()
    for what, argument in done:
        if what == "set":
            put(cache, argument)
            model.update(argument)
        elif what == "get":
            assert numbers(handle(cache, argument)) == [model.get(key, 0) for key in argument]
        elif what == "flush":
            cache.flush()
            assert not cache.dirty
        elif what == "relieve":
            cache.relieve()
        else:
            cache.flush_shard(argument)
            if what == "move":
                cache.forget_shard(argument)
    keys = list(range(-9, 10))
    expected = [model.get(key, 0) for key in keys]
    if as_objects:
        states = [cache.get(ShardId(key % SHARDS), key, bytes(8)) for key in keys]
        assert np.frombuffer(b"".join(states), np.int64).tolist() == expected
    else:
        assert numbers(handle(cache, keys)) == expected
    cache.flush()
    assert not cache.dirty
    assert numbers(handle(new_cache(store), keys)) == expected
    assert {key for key in keys if new_cache(store).exists(ShardId(key % SHARDS), key)} == set(
        model
    )


def test_what_is_forgotten_unwritten_is_lost() -> None:
    cache = new_cache()
    put(cache, {0: 1, 1: 2})
    cache.flush()
    put(cache, {0: 3, 1: 4})
    cache.forget_shard(S0)
    assert numbers(handle(cache, [0, 1])) == [1, 4]
    cache.forget_all()
    assert (len(cache), cache.dirty) == (0, False)
    assert numbers(handle(cache, [0, 1])) == [1, 2]


def test_only_what_has_changed_is_written_and_once() -> None:
    cache = new_cache()
    put(cache, {0: 1, 1: 1})
    both = cache.flush()
    assert numbers(handle(cache, [0, 1, 2])) == [1, 1, 0]
    assert cache.flush() == 0
    put(cache, {0: 2})
    assert cache.flush_shard(ShardId(1)) == 0
    assert cache.flush_shard(S0) == both // 2


@pytest.mark.parametrize("size", [1, 3, 7, 1000])
def test_a_flush_in_slices_writes_every_state_into_its_shard(size: int) -> None:
    store = new_store()
    cache = new_cache(store, slice_records=size)
    states = {key: key + 1 for key in range(20)}
    put(cache, states)
    cache.flush()
    put(cache, {7: 700})  # of a key that has been written before
    assert cache.flush() == len(CODEC.dump_key(7)) + len(CODEC.dump(bytes(8)))
    assert not cache.dirty
    states[7] = 700
    found = {
        CODEC.load(record.key): int.from_bytes(CODEC.load(record.value), "little")
        for shard in range(SHARDS)
        for record in store.increment(Epoch(1), ShardId(shard))
        if CODEC.load(record.key) % SHARDS == shard and record.value is not None
    }
    assert found == states


def test_states_are_written_after_the_arrays_have_grown_too() -> None:
    store = new_store()
    cache = new_cache(store)
    for end in (10, 3000):
        put(cache, {key: key + end for key in range(end)})
        cache.flush()
    assert numbers(handle(new_cache(store), [0, 9, 10, 2999])) == [3000, 3009, 3010, 5999]
    assert len(store.contents()) == 3000


def test_to_look_leaves_no_state_behind() -> None:
    cache = new_cache()
    assert numbers(handle(cache, [5])) == [0]
    assert (cache.dirty, len(cache), cache.exists(ShardId(2), 5)) == (False, 1, False)


def test_states_are_objects_from_when_they_are_first_used_as_such() -> None:
    cache = new_cache()
    put(cache, {0: 1, 3: 2})
    assert cache.get(S0, 3) == (2).to_bytes(8, "little")
    assert cache.array_handle(lambda: np.zeros(1, np.int32), np.array([3]), 8) is None
    assert (len(cache), cache.dirty) == (2, True)
    state = cache.handle(S0)
    state.key = 0
    assert state.get() == (1).to_bytes(8, "little")
    cache.flush()
    cache.handles([S0, S0], [0, 3]).set([b"x", b"y"])  # known, and clean until now
    assert cache.dirty


@pytest.mark.parametrize(("keys", "size"), [(np.array([0], np.uint64), 8), (np.array([0]), 4)])
def test_other_keys_or_sizes_find_objects(keys: Any, size: int) -> None:
    cache = new_cache()
    put(cache, {0: 1})
    assert cache.array_handle(lambda: np.zeros(1, np.int32), keys, size) is None
    assert cache.get(S0, 0) == (1).to_bytes(8, "little")


def test_keys_may_be_narrow() -> None:
    cache = new_cache()
    put(cache, {-1: 7})
    assert numbers(handle(cache, [-1, 1], np.int8)) == [7, 0]


@pytest.mark.parametrize("value", [b"short", 7, "12345678", None])
def test_a_stored_state_of_another_kind_makes_all_of_them_objects(value: Any) -> None:
    store = new_store()
    before = new_cache(store)
    before.set(S0, 3, value)
    before.flush()
    cache = new_cache(store)
    put(cache, {0: 1})
    assert handle(cache, [0, 3]).get() is None
    assert (cache.get(S0, 0), cache.get(S0, 3)) == ((1).to_bytes(8, "little"), value)
