import pickle
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from datetime import date
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elasticutor.core.protocol.ids import Attempt, Epoch, ShardId
from elasticutor.errors import OutOfOrderError, StaleAttemptError
from elasticutor.state.backend import MemoryBackend, Value
from elasticutor.state.cache import Codec, StateCache
from elasticutor.state.levels import Levels, Record

S0, S1 = ShardId(0), ShardId(1)
A1, A2 = Attempt(1), Attempt(2)
E1, E2 = Epoch(1), Epoch(2)


class CountingStore(Levels):
    """A store that remembers who asked for what."""

    def __init__(self) -> None:
        backend = MemoryBackend()
        Levels.create(backend, attempt=A1, committed=Epoch(0))
        super().__init__(backend)
        self.reads: list[tuple[ShardId, bytes]] = []
        self.writes: list[tuple[ShardId, dict[bytes, Value]]] = []
        self.transactions: list[int] = []
        """How many records each of them wrote."""

    @contextmanager
    def together(self) -> Iterator[None]:
        self.transactions.append(0)
        with super().together():
            yield

    def read(self, shard: ShardId, key: bytes) -> Value:
        self.reads.append((shard, key))
        return super().read(shard, key)

    def write(
        self,
        attempt: Attempt,
        epoch: Epoch,
        shard: ShardId,
        items: Collection[tuple[bytes, Value]],
    ) -> None:
        super().write(attempt, epoch, shard, items)
        self.writes.append((shard, dict(items)))
        self.transactions[-1] += len(items)


@pytest.fixture
def store() -> CountingStore:
    return CountingStore()


def cache_of(store: Levels, *, max_keys: int = 1_000_000, slice_records: int = 512) -> StateCache:
    return StateCache(
        store,
        Codec(str.encode),
        A1,
        Epoch(store.committed + 1),
        max_keys=max_keys,
        slice_records=slice_records,
    )


def stored(store: Levels) -> dict[str, Any]:
    """The contents of the store, read by another cache than the one that wrote them."""
    return {key.decode(): cache_of(store).get(S0, key.decode()) for key in store.contents()}


# What an operator sees ----------------------------------------------------------------------------


def test_a_key_without_state_has_the_default(store: CountingStore) -> None:
    cache = cache_of(store)
    assert cache.get(S0, "k") is None
    assert cache.get(S0, "k", 7) == 7
    assert not cache.exists(S0, "k")


def test_what_was_set_is_got_until_it_is_cleared(store: CountingStore) -> None:
    cache = cache_of(store)
    cache.set(S0, "k", 1)
    assert (cache.get(S0, "k", 7), cache.exists(S0, "k")) == (1, True)
    cache.set(S0, "k", 2)
    assert cache.get(S0, "k", 7) == 2
    cache.clear(S0, "k")
    assert (cache.get(S0, "k", 7), cache.exists(S0, "k")) == (7, False)


def test_none_can_be_a_state(store: CountingStore) -> None:
    cache = cache_of(store)
    cache.set(S0, "k", None)
    assert cache.get(S0, "k", 7) is None
    cache.flush()
    other = cache_of(store)
    assert (other.get(S0, "k", 7), other.exists(S0, "k")) == (None, True)


def test_a_cleared_key_is_deleted_in_the_store(store: CountingStore) -> None:
    cache = cache_of(store)
    cache.set(S0, "k", 1)
    cache.flush()
    cache.clear(S0, "k")
    cache.flush()
    assert store.read(S0, b"k") is None
    assert store.increment(E1, S0) == (Record(b"k", E1, None),)
    assert not cache_of(store).exists(S0, "k")


def test_a_key_is_read_from_the_store_once(store: CountingStore) -> None:
    writer = cache_of(store)
    writer.set(S0, "k", [1])
    writer.flush()
    store.reads.clear()
    cache = cache_of(store)
    first = cache.get(S0, "k")
    assert cache.get(S0, "k") is first
    assert cache.exists(S0, "k")
    for _ in range(3):
        assert cache.get(S0, "absent", 7) == 7
        assert not cache.exists(S0, "absent")
    assert store.reads == [(S0, b"k"), (S0, b"absent")]


def test_shards_are_kept_apart(store: CountingStore) -> None:
    cache = cache_of(store)
    cache.set(S0, "k", 0)
    assert not cache.exists(S1, "k")
    cache.set(S1, "k", 1)
    assert (cache.get(S0, "k"), cache.get(S1, "k")) == (0, 1)


# What counts as changed ---------------------------------------------------------------------------


def test_a_change_in_place_needs_no_set(store: CountingStore) -> None:
    cache = cache_of(store)
    cache.set(S0, "k", [1])
    cache.flush()
    cache.get(S0, "k").append(2)
    cache.flush()
    cache.get(S0, "k").append(3)
    assert cache.dirty
    cache.flush()
    assert stored(store) == {"k": [1, 2, 3]}


def test_a_change_in_place_of_a_loaded_value_needs_no_set(store: CountingStore) -> None:
    writer = cache_of(store)
    writer.set(S0, "k", {"clicks": 1})
    writer.flush()
    cache = cache_of(store)
    cache.get(S0, "k")["clicks"] += 1
    cache.flush()
    assert stored(store) == {"k": {"clicks": 2}}


IMMUTABLE = [
    0,
    -(10**30),
    1.5,
    True,
    "text",
    b"bytes",
    Decimal("1.5"),
    date(2024, 2, 29),
    (),
    (1, "text", b"bytes"),
    ((1, (2, None)), frozenset({3})),
]
MUTABLE = [[], {}, {1}, bytearray(b"x"), ([],), (1, (2, [3])), (1, {"a": 1})]


@pytest.mark.parametrize("value", IMMUTABLE, ids=repr)
def test_an_immutable_value_handed_out_is_not_changed(store: CountingStore, value: Any) -> None:
    cache = cache_of(store)
    assert cache.get(S0, "absent", value) == value
    assert not cache.dirty
    cache.set(S0, "k", value)
    cache.flush()
    assert cache.get(S0, "k") == value
    assert cache_of(store).get(S0, "k") == value
    assert not cache.dirty
    cache.forget_all()
    assert cache.get(S0, "k") == value
    assert not cache.dirty


@pytest.mark.parametrize("value", MUTABLE, ids=repr)
def test_a_value_that_may_change_counts_as_changed(store: CountingStore, value: Any) -> None:
    cache = cache_of(store)
    cache.set(S0, "k", value)
    cache.flush()
    assert (cache.dirty, cache.get(S0, "k"), cache.dirty) == (False, value, True)
    cache.flush()
    cache.forget_all()
    assert (cache.dirty, cache.get(S0, "k"), cache.dirty) == (False, value, True)


def test_a_list_in_a_tuple_is_not_lost(store: CountingStore) -> None:
    cache = cache_of(store)
    cache.get(S0, "k", (1, []))[1].append("x")
    cache.flush()
    cache.get(S0, "k")[1].append("y")
    cache.flush()
    assert stored(store) == {"k": (1, ["x", "y"])}


def test_an_immutable_default_does_not_become_state(store: CountingStore) -> None:
    cache = cache_of(store)
    assert cache.get(S0, "k", 7) == 7
    assert (cache.get(S0, "k", 8), cache.exists(S0, "k")) == (8, False)
    assert cache.flush() == 0
    assert store.contents() == {}


def test_a_mutable_default_becomes_state_as_with_setdefault(store: CountingStore) -> None:
    cache = cache_of(store)
    default: list[int] = []
    assert cache.get(S0, "k", default) is default
    assert cache.exists(S0, "k")
    assert cache.get(S0, "k", [7]) is default
    cache.flush()
    assert stored(store) == {"k": []}


def test_what_a_default_comes_to_does_not_depend_on_when_it_is_written(
    store: CountingStore,
) -> None:
    """A move may come between any two tuples; neither `get` nor `exists` may tell."""
    for flushed in (False, True):
        cache, key = cache_of(store), f"flushed {flushed}"
        cache.get(S0, key, []).append(1)
        if flushed:
            cache.flush()
            cache.forget_shard(S0)
        cache.get(S0, key).clear()
        assert cache.exists(S0, key)
        assert cache.get(S0, key, 0) == []


def test_a_default_in_place_of_a_deleted_value_replaces_it(store: CountingStore) -> None:
    cache = cache_of(store)
    cache.set(S0, "k", 5)
    cache.flush()
    cache.clear(S0, "k")
    assert cache.get(S0, "k", []) == []
    cache.flush()
    assert stored(store) == {"k": []}


def test_a_default_can_be_changed_after_a_flush(store: CountingStore) -> None:
    cache = cache_of(store)
    cache.get(S0, "k", [])
    cache.flush()
    cache.get(S0, "k", []).append(1)
    cache.flush()
    assert stored(store) == {"k": [1]}


# Writing and forgetting ---------------------------------------------------------------------------


def test_nothing_is_written_before_a_flush_and_each_change_once(store: CountingStore) -> None:
    cache = cache_of(store)
    for value in range(5):
        cache.set(S0, "k", value)
    assert store.writes == []
    cache.flush()
    cache.flush()
    assert store.writes == [(S0, {b"k": pickle.dumps(4, pickle.HIGHEST_PROTOCOL)})]


def test_flushing_a_shard_writes_that_shard_only(store: CountingStore) -> None:
    cache = cache_of(store)
    cache.set(S0, "a", 1)
    cache.set(S1, "b", 2)
    cache.flush_shard(S0)
    assert [shard for shard, _ in store.writes] == [S0]
    assert cache.dirty
    cache.flush_shard(S1)
    assert [shard for shard, _ in store.writes] == [S0, S1]
    assert not cache.dirty


def test_a_flush_returns_the_bytes_of_keys_and_values(store: CountingStore) -> None:
    codec = Codec(str.encode, dump=str.encode, load=bytes.decode)
    cache = StateCache(store, codec, A1, E1)
    cache.set(S0, "ab", "12345")
    cache.clear(S0, "xyz")
    cache.set(S1, "c", "1")
    assert cache.flush_shard(S0) == 2 + 5 + 3
    assert cache.flush() == 1 + 1
    assert cache.flush() == 0
    assert cache.flush_shard(S0) == 0


def test_keys_and_values_go_through_the_codec(store: CountingStore) -> None:
    codec = Codec(
        lambda key: b"%d" % key, dump=lambda value: value.hex().encode(), load=float_of_hex
    )
    cache = StateCache(store, codec, A1, E1)
    cache.set(S0, 12, 0.5)
    cache.flush()
    assert store.contents() == {b"12": (0.5).hex().encode()}
    cache.forget_all()
    assert cache.get(S0, 12) == 0.5


def float_of_hex(data: bytes) -> float:
    return float.fromhex(data.decode())


def test_a_forgotten_shard_is_read_again_and_its_changes_are_gone(store: CountingStore) -> None:
    cache = cache_of(store)
    cache.set(S0, "k", 1)
    cache.set(S1, "k", 1)
    cache.flush()
    cache.set(S0, "k", 2)
    cache.set(S1, "k", 2)
    cache.get(S0, "default", []).append("lost")
    cache.forget_shard(S0)
    assert (cache.get(S0, "k"), cache.get(S1, "k")) == (1, 2)
    assert not cache.exists(S0, "default")
    cache.flush()
    assert store.writes[-1] == (S1, {b"k": pickle.dumps(2, pickle.HIGHEST_PROTOCOL)})
    assert store.contents().keys() == {b"k"}


@pytest.mark.parametrize("all_shards", [False, True])
def test_a_forgotten_default_does_not_keep_a_new_one_from_becoming_state(
    store: CountingStore, all_shards: bool
) -> None:
    """Another task wrote an empty list meanwhile: it is state, whatever the default had been."""
    cache = cache_of(store)
    cache.get(S0, "k", [])
    cache.flush()
    if all_shards:
        cache.forget_all()
    else:
        cache.forget_shard(S0)
    other = cache_of(store)
    other.set(S0, "k", [])
    other.flush()
    assert cache.exists(S0, "k")


def test_forgetting_all_forgets_everything(store: CountingStore) -> None:
    cache = cache_of(store)
    cache.set(S0, "k", 1)
    cache.get(S1, "k", []).append("lost")
    cache.forget_all()
    assert (len(cache), cache.dirty) == (0, False)
    assert not cache.exists(S0, "k")
    assert not cache.exists(S1, "k")
    assert store.writes == []


def test_a_cache_within_its_limit_is_not_relieved(store: CountingStore) -> None:
    cache = cache_of(store, max_keys=3)
    for key in "abc":
        cache.set(S0, key, key)
    cache.relieve()
    assert (len(cache), cache.dirty, store.writes) == (3, True, [])


def test_a_cache_over_its_limit_writes_everything_and_starts_empty(store: CountingStore) -> None:
    cache = cache_of(store, max_keys=3)
    cache.get(S1, "d", []).append(1)
    for key in "abc":
        cache.set(S0, key, key)
    cache.relieve()
    assert (len(cache), cache.dirty) == (0, False)
    assert store.shards() == {S0, S1}
    assert [cache.get(S0, key) for key in "abc"] == ["a", "b", "c"]
    assert cache.get(S1, "d") == [1]


def test_keys_that_were_only_looked_for_count_towards_the_limit(store: CountingStore) -> None:
    cache = cache_of(store, max_keys=3)
    for key in "abcd":
        cache.exists(S0, key)
    cache.relieve()
    assert len(cache) == 0


# Epochs and attempts ------------------------------------------------------------------------------


def test_an_epoch_is_not_opened_over_unwritten_changes(store: CountingStore) -> None:
    cache = cache_of(store)
    cache.set(S0, "k", 1)
    for attempt, epoch in ((A1, E2), (A2, E1)):
        with pytest.raises(OutOfOrderError, match="be flushed before the next one"):
            cache.open_epoch(attempt, epoch)
    assert (cache.attempt, cache.epoch, cache.get(S0, "k")) == (A1, E1, 1)
    cache.flush()
    assert [record.key for record in store.increment(E1, S0)] == [b"k"]


def test_changes_count_to_the_epoch_that_is_open(store: CountingStore) -> None:
    cache = cache_of(store)
    cache.set(S0, "k", 1)
    cache.flush()
    cache.open_epoch(A1, E2)
    assert cache.get(S0, "k") == 1  # still cached
    cache.set(S0, "k", 2)
    cache.set(S0, "new", 2)
    cache.flush()
    assert [record.key for record in store.increment(E1, S0)] == [b"k"]
    assert [record.key for record in store.increment(E2, S0)] == [b"k", b"new"]


def test_a_refused_write_leaves_the_changes_unwritten(store: CountingStore) -> None:
    cache = cache_of(store)
    cache.set(S0, "k", 1)
    store.roll_back(A2, Epoch(0), keep=[])
    with pytest.raises(StaleAttemptError):
        cache.flush()
    assert cache.dirty
    assert store.contents() == {}


# Against a dictionary -----------------------------------------------------------------------------

NUMBERS, LISTS = ("n0", "n1", "n2"), ("l0", "l1", "l2")


def shard_of(key: str) -> ShardId:
    return ShardId(int(key[1]) % 2)


steps = st.lists(
    st.one_of(
        st.tuples(st.just("set"), st.sampled_from(NUMBERS), st.integers(0, 9)),
        st.tuples(st.just("add"), st.sampled_from(NUMBERS), st.integers(1, 9)),
        st.tuples(st.just("set"), st.sampled_from(LISTS), st.lists(st.integers(0, 9), max_size=2)),
        st.tuples(st.just("append"), st.sampled_from(LISTS), st.integers(0, 9)),
        st.tuples(st.just("clear"), st.sampled_from(NUMBERS + LISTS), st.none()),
        st.tuples(st.just("get"), st.sampled_from(NUMBERS + LISTS), st.none()),
        st.tuples(st.just("exists"), st.sampled_from(NUMBERS + LISTS), st.none()),
        st.tuples(st.just("label"), st.sampled_from(NUMBERS), st.none()),
        st.tuples(
            st.sampled_from(["flush", "relieve", "epoch", "restart"]), st.just(""), st.none()
        ),
    ),
    max_size=40,
)


@settings(max_examples=300, deadline=None)
@given(steps, st.integers(1, 5), st.integers(1, 4))
def test_a_cache_is_a_dictionary_whatever_is_written_and_forgotten_meanwhile(
    steps: list[tuple[str, str, Any]], max_keys: int, slice_records: int
) -> None:
    store = Levels.create(
        MemoryBackend(), attempt=A1, committed=Epoch(0), slice_records=slice_records
    )
    cache = cache_of(store, max_keys=max_keys, slice_records=slice_records)
    model: dict[str, Any] = {}
    for what, key, value in steps:
        shard = shard_of(key) if key else S0
        match what:
            case "set":
                cache.set(shard, key, list(value) if isinstance(value, list) else value)
                model[key] = value
            case "add":
                cache.set(shard, key, cache.get(shard, key, 0) + value)
                model[key] = model.get(key, 0) + value
            case "append":
                cache.get(shard, key, []).append(value)
                model[key] = [*model.get(key, []), value]
            case "clear":
                cache.clear(shard, key)
                model.pop(key, None)
            case "get":
                assert cache.get(shard, key) == model.get(key)
            case "exists":
                assert cache.exists(shard, key) == (key in model)
            case "label":
                cache.flush_shard(shard)
                cache.forget_shard(shard)
            case "flush":
                cache.flush()
            case "relieve":
                cache.relieve()
            case "epoch":
                cache.flush()
                cache.open_epoch(A1, Epoch(cache.epoch + 1))
            case "restart":
                cache.flush()
                store.commit(cache.epoch)
                store.fold()
                cache = cache_of(store, max_keys=max_keys, slice_records=slice_records)

    cache.flush()
    assert {key.decode() for key in store.contents()} == model.keys()
    fresh = cache_of(store)
    for key in NUMBERS + LISTS:
        assert fresh.get(shard_of(key), key) == model.get(key)
        assert fresh.exists(shard_of(key), key) == (key in model)
