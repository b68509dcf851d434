"""A flush is written in slices, so that others who write come between them."""

from __future__ import annotations

from typing import Any

import pytest
from tests.state.test_cache import A1, E1, S0, S1, CountingStore

from elasticutor.core.protocol.ids import ShardId
from elasticutor.state.cache import Codec, StateCache


@pytest.mark.parametrize("size", [1, 2, 3, 4, 100])
def test_a_flush_is_written_in_slices_of_several_shards_or_of_a_part_of_one(
    size: int,
) -> None:
    store = CountingStore()
    cache = StateCache(store, Codec(str.encode), A1, E1, slice_records=size)
    for shard, keys in ((S0, "a"), (S1, "bcdef"), (ShardId(2), ""), (ShardId(3), "ghi")):
        for key in keys:
            cache.set(shard, key, key)
    assert cache.flush() > 0
    assert not cache.dirty
    full, rest = divmod(9, size)
    assert store.transactions == [size] * full + [rest] * (rest > 0)
    assert sum(len(items) for _, items in store.writes) == len(store.contents()) == 9
    assert cache.flush() == 0


class FailingStore(CountingStore):
    """A store that has no room for the second write."""

    fails = True

    def write(self, *args: Any) -> None:
        if self.fails and self.writes:
            raise ZeroDivisionError
        super().write(*args)


def test_a_flush_that_fails_halfway_writes_the_rest_the_next_time() -> None:
    store = FailingStore()
    cache = StateCache(store, Codec(str.encode), A1, E1, slice_records=2)
    for key in "abc":
        cache.set(S0, key, 1)
        cache.set(S1, key.upper(), 1)
    with pytest.raises(ZeroDivisionError):
        cache.flush()
    store.fails = False
    cache.flush()
    assert not cache.dirty
    assert store.contents().keys() == {b"a", b"b", b"c", b"A", b"B", b"C"}
