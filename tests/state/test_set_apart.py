"""What an epoch changed stays as it was at its end, however late it is written."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elasticutor.core.protocol.ids import Attempt, Epoch, ShardId
from elasticutor.errors import StateFullError
from elasticutor.state.backend import MemoryBackend, Value
from elasticutor.state.cache import StateCache
from elasticutor.state.codec import CODEC
from elasticutor.state.levels import Levels

A1, E1, E2 = Attempt(1), Epoch(1), Epoch(2)
S0, S1 = ShardId(0), ShardId(1)


def new(slice_records: int = 512, max_keys: int = 1000) -> tuple[Levels, StateCache]:
    store = Levels.create(MemoryBackend(), attempt=A1, committed=Epoch(0))
    return store, StateCache(store, CODEC, A1, E1, max_keys=max_keys, slice_records=slice_records)


def end_epoch(cache: StateCache) -> None:
    cache.set_apart()
    cache.open_epoch(A1, Epoch(cache.epoch + 1))


def write_all(cache: StateCache) -> None:
    while cache.write_some():
        pass


def increment(store: Levels, epoch: Epoch) -> dict[Any, Any]:
    """What the epoch changed, by key; None: deleted."""
    return {
        CODEC.load(record.key): None if record.value is None else CODEC.load(record.value)
        for shard in (S0, S1)
        for record in store.increment(epoch, shard)
    }


def test_nothing_is_written_or_encoded_when_changes_are_set_apart() -> None:
    store, cache = new()
    cache.set(S0, "a", object)  # pickled by its name
    cache.set(S0, "b", lambda: 0)  # pickled with some trouble, and only when it must be
    cache.set_apart()
    assert store.contents() == {}
    assert (cache.dirty, len(cache)) == (False, 2)


def test_an_object_is_written_as_it_was_though_it_is_changed_before_that() -> None:
    store, cache = new()
    cache.get(S0, "list", []).append(1)
    cache.get(S0, "untouched", []).append(1)
    cache.set(S1, "tuple", ([1],))
    end_epoch(cache)
    cache.get(S0, "list").append(2)
    cache.get(S0, "list").append(3)  # it is dirty now, and handed out without much ado
    cache.get(S1, "tuple")[0].append(2)
    write_all(cache)
    assert increment(store, E1) == {"list": [1], "untouched": [1], "tuple": ([1],)}
    end_epoch(cache)
    write_all(cache)
    assert increment(store, E2) == {"list": [1, 2, 3], "tuple": ([1, 2],)}


@pytest.mark.parametrize("way", ["handle", "handles"])
def test_handles_too_preserve_what_was_set_apart(way: str) -> None:
    store, cache = new()
    cache.set(S0, "a", [1])
    handle = cache.handle(S0)
    end_epoch(cache)
    if way == "handle":
        handle.key = "a"
        handle.get().append(2)
    else:
        cache.handles([S0], ["a"]).get()[0].append(2)
    write_all(cache)
    assert increment(store, E1) == {"a": [1]}
    assert cache.get(S0, "a") == [1, 2]


def test_a_deletion_is_set_apart_and_what_comes_after_it_is_not() -> None:
    store, cache = new()
    cache.set(S0, "a", 1)
    end_epoch(cache)
    write_all(cache)
    cache.clear(S0, "a")
    end_epoch(cache)
    cache.get(S0, "a", []).append("new")
    write_all(cache)
    assert increment(store, E2) == {"a": None}
    assert cache.get(S0, "a") == ["new"]


def test_arrays_are_written_as_they_were_and_a_shard_of_them_first_if_it_must() -> None:
    store, cache = new(slice_records=2)
    keys, shards = np.arange(6), np.array([0, 1] * 3, np.int32)

    def put(first: int) -> None:
        states = cache.array_handle(lambda: shards, keys, item_bytes=8)
        assert states is not None
        states.set((keys + first).view("V8"))

    put(10)
    end_epoch(cache)
    put(20)
    assert cache.flush_shard(S1) == 2 * 3 * (9 + 9)
    assert sorted(increment(store, E1)) == sorted(increment(store, E2)) == [1, 3, 5]
    cache.forget_shard(S1)
    assert cache.write_some()
    assert not cache.write_some()
    numbers = {key: int.from_bytes(state, "little") for key, state in increment(store, E1).items()}
    assert numbers == {key: key + 10 for key in range(6)}
    assert cache.dirty


def test_arrays_that_become_objects_keep_what_was_set_apart() -> None:
    store, cache = new()
    states = cache.array_handle(lambda: np.zeros(1, np.int32), np.array([7]), item_bytes=1)
    assert states is not None
    states.set(np.array([b"a"], "V1"))
    end_epoch(cache)
    cache.set(S0, 7, b"b")
    write_all(cache)
    assert increment(store, E1) == {7: b"a"}
    assert cache.get(S0, 7) == b"b"


class _FullOnce(Levels):
    full = True

    def write(self, *what: Any) -> None:
        if self.full:
            self.full = False
            raise StateFullError("state", "fit", "it does not")
        super().write(*what)


@pytest.mark.parametrize("packed", [False, True])
def test_what_could_not_be_written_is_still_set_apart(packed: bool) -> None:
    backend = MemoryBackend()
    Levels.create(backend, attempt=A1, committed=Epoch(0))
    store = _FullOnce(backend)
    cache = StateCache(store, CODEC, A1, E1, slice_records=2)
    if packed:
        states = cache.array_handle(lambda: np.zeros(5, np.int32), np.arange(5), item_bytes=1)
        assert states is not None
        states.set(np.array([b"x"] * 5, "V1"))
    else:
        for key in range(5):
            cache.set(S0, key, b"x")
    end_epoch(cache)
    with pytest.raises(StateFullError):
        cache.write_some()
    write_all(cache)
    assert increment(store, E1) == dict.fromkeys(range(5), b"x")


KEYS = ("n0", "n1", "n2", "l0", "l1", "l2")
steps = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["set", "change", "clear", "label"]), st.sampled_from(KEYS)),
        st.tuples(st.sampled_from(["end", "write", "write", "relieve"]), st.just("")),
    ),
    max_size=50,
)


@settings(max_examples=300, deadline=None)
@given(steps, st.integers(1, 4), st.integers(1, 8))
def test_every_epoch_is_in_the_store_as_it_was_at_its_end(
    steps: list[tuple[str, str]], slice_records: int, max_keys: int
) -> None:
    store, cache = new(slice_records, max_keys)
    model: dict[str, Any] = {}
    ended: dict[Epoch, dict[str, Any]] = {}
    for number, (what, key) in enumerate(steps):
        shard = ShardId(int(key[1]) % 2) if key else S0
        match what:
            case "set":
                cache.set(shard, key, [number] if key[0] == "l" else number)
                model[key] = [number] if key[0] == "l" else number
            case "change" if key[0] == "l":
                cache.get(shard, key, []).append(number)
                model[key] = [*model.get(key, []), number]
            case "change":
                cache.set(shard, key, cache.get(shard, key, 0) + 1)
                model[key] = model.get(key, 0) + 1
            case "clear":
                cache.clear(shard, key)
                model.pop(key, None)
            case "label":
                cache.flush_shard(shard)
                cache.forget_shard(shard)
            case "end":
                ended[cache.epoch] = dict(model)
                end_epoch(cache)
            case "write":
                cache.write_some()
            case "relieve":
                cache.relieve()
    cache.flush()
    assert not cache.write_some()
    newest: dict[bytes, Value] = {}
    for epoch, expected in ended.items():
        for shard in (S0, S1):
            newest |= {record.key: record.value for record in store.increment(epoch, shard)}
        there = {CODEC.load(k): CODEC.load(v) for k, v in newest.items() if v is not None}
        assert there == expected
    for key in KEYS:
        assert cache.get(ShardId(int(key[1]) % 2), key) == model.get(key)
