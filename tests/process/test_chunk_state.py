from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticutor.core.protocol.ids import Attempt, Epoch, ShardId
from elasticutor.errors import BadValueError
from elasticutor.operator import BatchState
from elasticutor.process.operator.chunk_state import ChunkState, groups_of
from elasticutor.state.backend import MemoryBackend
from elasticutor.state.cache import Codec, StateCache
from elasticutor.state.levels import Levels


def new_cache() -> StateCache:
    store = Levels.create(MemoryBackend(), attempt=Attempt(1), committed=Epoch(0))
    return StateCache(store, Codec(lambda key: repr(key).encode()), Attempt(1), Epoch(1))


def state_of(keys: Sequence[Any], cache: StateCache | None = None) -> ChunkState:
    cache = new_cache() if cache is None else cache
    return ChunkState(cache, [pa.array(keys)], np.arange(len(keys), dtype=np.int32) % 3)


def test_it_is_what_operators_are_promised() -> None:
    promised: BatchState = state_of(["a"])
    assert promised.groups.keys == ["a"]


def test_it_is_a_mapping_over_the_keys_with_state() -> None:
    state = state_of(["a", "b", "c"])
    assert ("a" in state, len(state), state.get("a", 5)) == (False, 0, 5)
    state["a"] = 1
    state["b"] = 2
    assert (dict(state), state.pop("a"), dict(state)) == ({"a": 1, "b": 2}, 1, {"b": 2})
    del state["b"]
    for missing in (lambda: state["b"], lambda: state.pop("b"), lambda: state.__delitem__("b")):
        with pytest.raises(KeyError):
            missing()
    assert state.setdefault("c", [1]) == [1]


def test_a_mutable_default_becomes_state() -> None:
    cache = new_cache()
    state_of(["a"], cache).get("a", []).append(1)
    cache.flush()
    cache.forget_all()
    assert cache.get(ShardId(0), "a") == [1]


@pytest.mark.parametrize(
    "ask",
    [
        lambda state: state["z"],
        lambda state: state.get("z"),
        lambda state: "z" in state,
        lambda state: state.__setitem__("z", 1),
        lambda state: state.__delitem__("z"),
        lambda state: state.get_many(["a", "z"]),
        lambda state: state.set_many(["z"], [1]),
        lambda state: state.get_array(np.array(["z"]), np.int64),
    ],
)
def test_a_key_that_is_not_in_the_batch_is_refused(ask: Any) -> None:
    cache = new_cache()
    with pytest.raises(BadValueError, match="occur in the batch"):
        ask(state_of(["a", "b"], cache))
    assert not cache.dirty


def test_many_keys_may_come_as_list_or_array() -> None:
    state = state_of([5, 7, 9])
    state.set_many(np.array([7, 5]), [70, 50])
    for keys in ([5, 9, 7], np.array([5, 9, 7]), pa.array([5, 9, 7])):
        assert state.get_many(keys, 0) == [50, 0, 70]
    assert all(type(key) is int for key in state)


def test_nan_is_found_whichever_it_is() -> None:
    state = state_of([float("nan"), 1.0])
    state[float("nan")] = 1
    assert state.get_many(np.array([np.nan, 1.0])) == [1, None]


PAIR = np.dtype([("count", "<i8"), ("mean", "<f8")])


def test_an_array_of_states_comes_back_with_zeros_where_there_is_none() -> None:
    cache = new_cache()
    state = state_of(["a", "b", "c"], cache)
    state.set_array(["c", "a"], np.array([(1, 0.5), (2, 1.5)], PAIR))
    cache.flush()
    cache.forget_all()
    got = state_of(["a", "b", "c"], cache).get_array(["a", "b", "c"], PAIR)
    assert got.tolist() == [(2, 1.5), (0, 0.0), (1, 0.5)]
    got["count"] += 1  # it is the caller's own
    assert state.get_array(["a"], PAIR)["count"].tolist() == [2]
    assert not cache.dirty
    assert state.get_array([], PAIR).tolist() == []


def test_an_array_that_is_not_contiguous_is_set_as_it_reads() -> None:
    state = state_of(["a", "b"])
    state.set_array(["a", "b"], np.arange(4)[::2])
    assert state.get_array(["a", "b"], np.int64).tolist() == [0, 2]


@pytest.mark.parametrize("value", [5, "text", b"short"])
def test_states_that_are_no_array_are_not_read_as_one(value: Any) -> None:
    state = state_of(["a", "b"])
    state["a"] = value
    with pytest.raises(BadValueError, match="set by set_array as int64"):
        state.get_array(["a", "b"], np.int64)


@pytest.mark.parametrize("values", [np.zeros((1, 2)), np.array([None])], ids=["2d", "objects"])
def test_what_is_no_array_of_states_is_refused(values: Any) -> None:
    with pytest.raises(BadValueError, match="one dimension"):
        state_of(["a"]).set_array(["a"], values)


ways = st.sampled_from(["distinct", "keys", "one by one", "many", "some"])


@given(st.lists(st.tuples(ways, st.lists(st.integers(0, 5), min_size=1)), max_size=8))
def test_arrays_of_all_keys_are_the_same_states_as_any_other_way(
    chunks: list[tuple[str, list[int]]],
) -> None:
    cache, model = new_cache(), dict[int, int]()
    for way, keys in chunks:
        # Not `state_of`: a key must be in the same shard in every chunk.
        shards = np.array(keys, np.int32) % 3
        state = ChunkState(cache, [pa.array(keys)], shards)
        groups = state.groups
        expected = [model.get(key, 0) for key in groups.keys]
        model.update({key: model.get(key, 0) + 1 for key in groups.keys})
        if way in ("distinct", "keys"):
            asked = getattr(groups, way)
            counts = state.get_array(asked, np.int64)
            state.set_array(asked, counts + 1)
        elif way == "some":
            counts = state.get_array(list(groups.keys), np.int64)
            state.set_array(list(groups.keys), counts + 1)
        else:
            zero = bytes(8)
            if way == "many":
                found = state.get_many(groups.keys, zero)
            else:
                found = [state.get(key, zero) for key in groups.keys]
            counts = np.frombuffer(b"".join(found), np.int64)
            state.set_many(groups.distinct, (counts + 1).view("V8").tolist())
        assert counts.tolist() == expected
    cache.flush()
    cache.forget_all()
    left = {key: cache.get(ShardId(key % 3), key) for key in range(6)}
    assert {key: int.from_bytes(v, "little") for key, v in left.items() if v} == model


def test_an_array_stays_right_when_another_way_is_taken_in_between() -> None:
    state = state_of([5, 7])
    distinct = state.groups.distinct
    state.set_array(distinct, np.array([50, 70]))
    got = state.get_array(distinct, np.int64)
    state[7] = (71).to_bytes(8, "little")
    assert state.get_array(distinct, np.int64).tolist() == [50, 71]
    state.set_array(distinct, got)
    assert [int.from_bytes(state[key], "little") for key in (5, 7)] == [50, 70]


def test_as_many_states_as_keys_are_set() -> None:
    state = state_of([5, 7])
    with pytest.raises(BadValueError, match="as many as each other"):
        state.set_array(state.groups.distinct, np.array([50]))


whole = st.integers(-3, 3).flatmap(lambda n: st.sampled_from([n, n * 2**61]))
columns = st.one_of(
    st.lists(whole).map(lambda values: [pa.array(values, pa.int64())]),
    st.lists(st.integers(-128, 127)).map(lambda values: [pa.array(values, pa.int8())]),
    st.lists(st.sampled_from([0, 5, 2**64 - 1])).map(lambda vs: [pa.array(vs, pa.uint64())]),
    st.lists(st.none() | st.integers(0, 3)).map(lambda values: [pa.array(values, pa.int64())]),
    st.lists(st.sampled_from("abc")).map(lambda values: [pa.array(values, pa.string())]),
    st.lists(st.integers(0, 2)).map(lambda values: [pa.array(values), pa.array(values[::-1])]),
)


@given(columns)
def test_groups_hold_every_row_once_with_its_key_and_in_order(columns: list[pa.Array]) -> None:
    rows = list(zip(*(column.to_pylist() for column in columns), strict=True))
    keys = [row[0] if len(columns) == 1 else row for row in rows]
    shards = np.array([hash(key) % 7 for key in keys], np.int32)
    groups = groups_of(columns, shards)
    assert [groups.keys[place] for place in groups.of_row] == keys
    assert len(set(groups.keys)) == len(groups.keys)
    for place, start in enumerate(groups.starts):
        members = groups.order[start : start + groups.sizes[place]].tolist()
        assert members == [row for row, key in enumerate(keys) if key == groups.keys[place]]
