"""What a keeper does in slices: folds of what is committed, and the removal of shards."""

from __future__ import annotations

import pytest
from tests.core.test_keeper import A2, E1, E2, M1, NORTH, S0, S1, keeper, roll_back, write

from elasticutor.core.protocol import events as ev
from elasticutor.core.protocol import instructions as do
from elasticutor.core.protocol.ids import Epoch
from elasticutor.core.protocol.keeper import DropOn, FoldOn, Keeper, ReadShard


def test_a_commit_counts_at_once_and_is_folded_slice_by_slice() -> None:
    north = keeper(slice_records=2)
    write(north, E1, a=b"1", b=b"1", c=b"1")
    write(north, E2, a=b"2")
    errands = north.handle(do.CommitStore(NORTH, E1))
    assert (errands, north.store.committed, north.store.folding) == ([FoldOn(E1)], E1, (E1,))
    assert north.fold_on(E1) == [FoldOn(E1)]
    assert north.fold_on(E1) == []
    assert north.store.folding == ()
    assert north.fold_on(E1) == []
    roll_back(north, S0)
    assert north.store.contents() == {b"a": b"1", b"b": b"1", b"c": b"1"}


def test_a_commit_with_nothing_to_fold_asks_for_nothing() -> None:
    north = keeper()
    assert north.handle(do.CommitStore(NORTH, E1)) == []


def test_one_fold_goes_on_at_a_time_through_commits_and_roll_backs() -> None:
    north = keeper(slice_records=1)
    write(north, E1, a=b"1", b=b"1")
    write(north, E2, a=b"2", b=b"2")
    assert north.handle(do.CommitStore(NORTH, E1)) == [FoldOn(E1)]
    assert north.handle(do.CommitStore(NORTH, E2)) == []
    answer = north.handle(do.RollBackStore(NORTH, A2, E2, (S0,)))
    assert answer == [ev.StoreRolledBack(NORTH, A2)]
    slices = 1
    while north.fold_on(E1):
        slices += 1
    assert (slices, north.store.folding) == (4, ())
    assert north.store.contents() == {b"a": b"2", b"b": b"2"}
    write(north, Epoch(3), a=b"3")
    assert north.handle(do.CommitStore(NORTH, Epoch(3))) == [FoldOn(Epoch(3))]


def test_a_roll_back_folds_what_its_base_has() -> None:
    north = keeper()
    write(north, E1, a=b"1")
    answer = north.handle(do.RollBackStore(NORTH, A2, E1, (S0,)))
    assert answer == [ev.StoreRolledBack(NORTH, A2), FoldOn(E1)]
    assert north.go_on(FoldOn(E1)) == []
    assert (north.store.folding, north.store.contents()) == ((), {b"a": b"1"})


def half_dropped() -> Keeper:
    north = keeper(slice_records=2)
    write(north, E1, a=b"1", b=b"1", c=b"1")
    write(north, E1, S1, z=b"stays")
    assert north.handle(do.DropShard(NORTH, S0)) == [DropOn(S0)]
    return north


def test_a_large_shard_is_dropped_slice_by_slice_and_said_to_be_gone_in_the_end() -> None:
    north = half_dropped()
    assert north.go_on(DropOn(S0)) == [ev.ShardDropped(NORTH, S0)]
    assert north.go_on(DropOn(S0)) == []
    assert north.store.contents() == {b"z": b"stays"}


@pytest.mark.parametrize("how", ["opened", "restored", "rolled back"])
def test_a_shard_that_is_half_dropped_is_gone_before_anything_else_is_done_with_it(
    how: str,
) -> None:
    north = half_dropped()
    dropped = ev.ShardDropped(NORTH, S0)
    if how == "opened":
        answer = north.handle(do.OpenShard(NORTH, M1, S0))
        assert answer == [dropped, ev.ShardOpened(M1)]
    elif how == "restored":
        answer = north.handle(do.RestoreShard(NORTH, M1, S0, E1))
        assert answer == [dropped, ReadShard(M1, S0, E1)]
    else:
        answer = north.handle(do.RollBackStore(NORTH, A2, E1, (S0, S1)))
        assert answer == [dropped, ev.StoreRolledBack(NORTH, A2), FoldOn(E1)]
    assert north.store.shards() == {S1}
    assert north.go_on(DropOn(S0)) == []  # and not once more
