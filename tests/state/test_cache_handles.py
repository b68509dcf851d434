"""The short ways into a cache: they must be the cache in all but the time they take."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticutor.core.protocol.ids import Attempt, Epoch, ShardId
from elasticutor.errors import BadValueError
from elasticutor.state.backend import MemoryBackend
from elasticutor.state.cache import Codec, KeyState, KeyStates, StateCache
from elasticutor.state.levels import Levels

S0, S1 = ShardId(0), ShardId(1)


def new_cache() -> StateCache:
    store = Levels.create(MemoryBackend(), attempt=Attempt(1), committed=Epoch(0))
    return again(store)


def again(store: Levels) -> StateCache:
    return StateCache(store, Codec(str.encode), Attempt(1), Epoch(1))


def on(state: KeyState, key: str) -> KeyState:
    state.key = key
    return state


def test_a_handle_sees_what_the_cache_forgot() -> None:
    cache = new_cache()
    state = on(cache.handle(S0), "k")
    state.set(1)
    cache.flush()
    state.set(2)
    cache.forget_shard(S0)
    assert state.get() == 1
    state.set(3)
    cache.forget_all()
    assert state.get() == 1


def test_what_a_handle_set_after_all_was_forgotten_is_written() -> None:
    cache = new_cache()
    state = on(cache.handle(S0), "k")
    cache.forget_all()
    state.set(1)
    assert cache.flush() > 0
    state.set(2)
    assert cache.dirty
    cache.flush()
    cache.forget_all()
    assert state.get() == 2


def test_a_change_in_place_through_a_handle_is_not_lost() -> None:
    cache = new_cache()
    state = on(cache.handle(S0), "k")
    for item in range(3):
        state.get([]).append(item)
        cache.flush()
        assert not cache.dirty
    cache.forget_all()
    assert state.get() == [0, 1, 2]


def test_a_cleared_key_is_absent_though_it_is_dirty() -> None:
    state = on(new_cache().handle(S0), "k")
    state.set((1, 2))
    state.clear()
    assert (state.get(7), state.exists()) == (7, False)


def test_many_defaults_cannot_be_one_mutable_object() -> None:
    states = new_cache().handles([S0, S1], ["a", "b"])
    with pytest.raises(BadValueError, match="be immutable"):
        states.get([])


def test_many_states_need_as_many_values() -> None:
    cache = new_cache()
    with pytest.raises(BadValueError, match="as many"):
        cache.handles([S0, S1], ["a", "b"]).set([1])
    assert len(cache) == 0


@pytest.mark.parametrize("flushed", [False, True])
def test_what_was_read_and_set_is_written_whether_it_was_new_or_had_been_written(
    flushed: bool,
) -> None:
    cache = new_cache()
    states = cache.handles([S0, S1], ["a", "b"])
    if flushed:
        states.get()
        states.set([1, 2])
        cache.flush()
    states.get()
    states.set([3, 4])
    cache.flush()
    cache.forget_all()
    assert (cache.get(S0, "a"), cache.get(S1, "b")) == (3, 4)


def test_lists_handed_out_together_are_written_when_changed() -> None:
    cache = new_cache()
    states = cache.handles([S0, S1], ["a", "b"])
    states.set([[], ()])
    cache.flush()
    states.get()[0].append(1)
    cache.flush()
    cache.forget_all()
    assert cache.get(S0, "a") == [1]


@pytest.mark.parametrize("shards", [[], [S0], [S0, S1]])
def test_joined_bytes_are_a_copy_with_the_default_where_there_is_none(shards: list[Any]) -> None:
    cache = new_cache()
    keys = "ab"[: len(shards)]
    states = cache.handles(shards, keys)
    if shards:
        cache.set(S0, "a", b"12")
    assert states.joined(b"--") == b"12--"[: 2 * len(shards)]
    cache.flush()
    states.joined(b"--")[:1] = b"x"
    assert not cache.dirty
    assert not cache.exists(S1, "b")


def test_joining_what_is_not_bytes_is_refused() -> None:
    states = new_cache().handles([S0], ["a"])
    states.set([5])
    with pytest.raises(TypeError):
        states.joined(b"")


KEYS = ("a0", "b0", "c0", "a1", "b1")
values = st.one_of(st.integers(0, 9), st.lists(st.integers(0, 9), max_size=2), st.just((1, 2)))
steps = st.lists(
    st.one_of(
        st.tuples(st.just("set"), st.sampled_from(KEYS), values),
        st.tuples(st.just("change"), st.sampled_from(KEYS), st.none()),
        st.tuples(st.just("clear"), st.sampled_from(KEYS), st.none()),
        st.tuples(st.just("get"), st.sampled_from(KEYS), st.none()),
        st.tuples(
            st.just("set many"), st.lists(st.sampled_from(KEYS), unique=True, max_size=4), values
        ),
        st.tuples(
            st.just("read and set many"),
            st.lists(st.sampled_from(KEYS), unique=True, max_size=4),
            values,
        ),
        st.tuples(st.just("get many"), st.just(""), st.none()),
        st.tuples(st.sampled_from(["flush", "label"]), st.just("a0"), st.none()),
    ),
    max_size=40,
)


@given(steps)
def test_all_handles_and_the_cache_are_one_dictionary(steps: list[tuple[str, Any, Any]]) -> None:
    store = Levels.create(MemoryBackend(), attempt=Attempt(1), committed=Epoch(0))
    cache = again(store)
    handles = [cache.handle(S0), cache.handle(S1)]
    model: dict[str, Any] = {}

    def shard_of(key: str) -> ShardId:
        return ShardId(int(key[1]))

    def many(keys: Any) -> KeyStates:
        return cache.handles([shard_of(key) for key in keys], list(keys))

    def copied(value: Any) -> Any:
        return list(value) if isinstance(value, list) else value

    for what, key, value in steps:
        match what:
            case "set":
                on(handles[shard_of(key)], key).set(copied(value))
                model[key] = copied(value)
            case "change":
                got = on(handles[shard_of(key)], key).get()
                if isinstance(got, list):
                    got.append(5)
                    model[key].append(5)
            case "clear":
                on(handles[shard_of(key)], key).clear()
                model.pop(key, None)
            case "get":
                assert on(handles[shard_of(key)], key).get(7) == model.get(key, 7)
            case "set many":
                many(key).set([copied(value) for _ in key])
                model |= {one: copied(value) for one in key}
            case "read and set many":
                states = many(key)
                assert states.get(7) == [model.get(one, 7) for one in key]
                states.set([copied(value) for _ in key])
                model |= {one: copied(value) for one in key}
            case "get many":
                assert many(KEYS).get(7) == [model.get(one, 7) for one in KEYS]
            case "flush":
                cache.flush()
            case "label":
                cache.flush_shard(S0)
                cache.forget_shard(S0)
    cache.flush()
    fresh = again(store)
    assert {k: fresh.get(shard_of(k), k) for k in KEYS if fresh.exists(shard_of(k), k)} == model
