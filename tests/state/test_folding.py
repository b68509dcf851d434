"""A commit counts at once, and nobody sees how its level is folded into the committed one."""

from __future__ import annotations

from pathlib import Path

import pytest

from elasticutor.core.protocol.ids import Attempt, Epoch, ShardId
from elasticutor.state.backend import MemoryBackend, Value
from elasticutor.state.levels import START, Cursor, Levels, Record, Records
from elasticutor.state.lmdb_backend import LmdbBackend

S0, S1 = ShardId(0), ShardId(1)
A1, A2 = Attempt(1), Attempt(2)
E1, E2, E3 = Epoch(1), Epoch(2), Epoch(3)


def levels(slice_records: int = 1) -> Levels:
    return Levels.create(
        MemoryBackend(), attempt=A1, committed=Epoch(0), slice_records=slice_records
    )


def write(store: Levels, epoch: Epoch, shard: ShardId = S0, **items: bytes | None) -> None:
    store.write(store.attempt, epoch, shard, [(k.encode(), v) for k, v in items.items()])


def left(store: Levels, epoch: Epoch) -> dict[bytes, Value]:
    """What the level of a committed epoch still has."""
    table = f"epoch-{epoch}"
    return {k: v for shard in (S0, S1) for k, v in store._backend.scan(table, shard)}


def copy_all(store: Levels, shard: ShardId) -> list[Record]:
    found: list[Record] = []
    cursor: Cursor | None = START
    while cursor is not None:
        records, cursor = store.copy(shard, cursor, 2)
        found += records
    return found


def test_a_commit_is_known_at_once_and_moves_nothing() -> None:
    store = levels()
    write(store, E1, a=b"1", b=b"1")
    write(store, E2, a=b"2")
    store.commit(E1)
    assert (store.committed, store.folding, store.uncommitted) == (E1, (E1,), (E2,))
    assert store.increment(E1, S0) == ()
    assert store.contents() == {b"a": b"2", b"b": b"1"}
    assert len(left(store, E1)) == 2


@pytest.mark.parametrize("slice_records", [1, 2, 3, 100])
def test_a_fold_takes_so_many_records_at_a_time_and_says_whether_there_are_more(
    slice_records: int,
) -> None:
    store = levels(slice_records)
    write(store, E1, a=b"1", b=None, c=b"1")
    write(store, E1, S1, d=b"1", e=b"1", f=None)
    write(store, E2, a=None)
    store.commit(E1)
    count = 6
    while store.fold():
        count -= slice_records
        assert len(left(store, E1)) == count > 0
        assert store.contents() == {b"c": b"1", b"d": b"1", b"e": b"1"}
    assert (store.folding, left(store, E1), store.fold()) == ((), {}, False)
    assert store.uncommitted == (E2,)
    store.roll_back(A2, E1, keep=[S0, S1])
    assert store.contents() == {b"a": b"1", b"c": b"1", b"d": b"1", b"e": b"1"}


def test_an_older_level_is_folded_before_a_newer_one() -> None:
    store = levels()
    write(store, E2, a=b"2")
    write(store, E1, a=b"1", b=b"1")
    store.commit(E2)
    store.fold()
    assert (left(store, E1), left(store, E2)) == ({b"b": b"1"}, {b"a": b"2"})
    while store.fold():
        assert store.contents() == {b"a": b"2", b"b": b"1"}
    assert store.contents() == {b"a": b"2", b"b": b"1"}


@pytest.mark.parametrize("value", [b"late", None])
@pytest.mark.parametrize("epoch", [E1, E2])
def test_what_comes_for_the_committed_level_is_not_hidden_by_what_is_still_to_be_folded(
    epoch: Epoch, value: Value
) -> None:
    """A shard's copy brought a value of an epoch that was not over; now comes the rest."""
    store = levels()
    for shard in (S0, S1):
        store.merge(shard, [Record(b"%d" % shard, e, b"early") for e in (E1, E2)])
    store.commit(E2)
    store.merge(S0, [Record(b"0", epoch, value)])
    for _ in range(5):
        assert (store.read(S0, b"0"), store.read(S1, b"1")) == (value, b"early")
        store.fold()
    assert store.folding == ()


def test_a_deletion_that_is_committed_leaves_no_shard_even_before_it_is_folded() -> None:
    store = levels()
    write(store, E1, a=b"1")
    store.commit(E1)
    store.fold()
    write(store, E2, a=None)
    assert store.shards() == {S0}
    store.commit(E2)
    assert (store.shards(), left(store, E2)) == (frozenset(), {b"a": None})
    store.fold()
    assert store.shards() == frozenset()


def test_a_copy_brings_what_is_to_be_folded_after_what_it_goes_over_and_as_committed() -> None:
    """Were it told by its own epoch, a node that knows of neither commit would put it below."""
    store = levels()
    write(store, E1, a=b"1", b=b"1")
    store.commit(E1)
    while store.fold():
        pass
    write(store, E2, a=b"2", b=None)
    write(store, E3, S1, c=b"3")
    write(store, Epoch(4), a=b"4")
    store.commit(E3)
    assert copy_all(store, S0) == [
        Record(b"a", E3, b"1"),
        Record(b"b", E3, b"1"),
        Record(b"a", E3, b"2"),
        Record(b"b", E3, None),
        Record(b"a", Epoch(4), b"4"),
    ]
    other = levels()
    other.merge(S0, copy_all(store, S0))
    assert other.contents() == {b"a": b"4"}
    other.roll_back(A2, E3, keep=[S0])
    assert other.contents() == {b"a": b"2"}


def test_what_a_fold_takes_past_a_copy_is_sent_after_it() -> None:
    store = levels()
    write(store, E1, a=b"1", z=b"1")
    store.watch(S0)
    store.commit(E1)
    store.fold()  # a is committed now, and z is not
    [record], cursor = store.copy(S0, START, limit=1)
    assert record == Record(b"a", E1, b"1")
    store.fold()
    assert cursor is not None
    seen, _ = store.copy(S0, cursor, limit=9)
    sent = {record.key for record in (*seen, *store.changed_records(S0))}
    assert sent == {b"a", b"z"}
    assert list(store.changed_records(S0)) == [Record(b"a", E1, b"1"), Record(b"z", E1, b"1")]


def test_a_changed_key_is_told_once_for_all_that_is_committed() -> None:
    store = levels()
    write(store, E1, a=b"1", b=b"1", c=b"1")
    store.commit(E1)
    store.watch(S0)
    write(store, E2, a=b"2", b=None)
    write(store, E3, c=b"3")
    store.commit(E2)
    expected = [
        Record(b"a", E2, b"2"),
        Record(b"b", E2, None),
        Record(b"c", E2, b"1"),
        Record(b"c", E3, b"3"),
    ]
    for _ in range(6):
        assert list(store.changed_records(S0)) == expected
        store.fold()
    assert store.folding == ()


def test_a_roll_back_in_the_middle_of_a_fold_keeps_both_halves_of_what_is_kept() -> None:
    store = levels(2)
    write(store, E1, a=b"1", b=b"1", c=b"1")
    write(store, E1, S1, d=b"1")
    write(store, E2, a=b"2")
    store.commit(E1)
    store.fold()
    store.roll_back(A2, E1, keep=[S0])
    assert (store.folding, left(store, E1)) == ((E1,), {b"c": b"1"})
    assert store.contents() == {b"a": b"1", b"b": b"1", b"c": b"1"}
    write(store, E2, c=b"again")
    store.fold()
    store.roll_back(Attempt(3), Epoch(0), keep=[])
    assert (store.contents(), store.folding, store.uncommitted) == ({}, (), ())
    write(store, E1, a=b"anew")
    assert store.contents() == {b"a": b"anew"}


def test_a_level_of_dropped_shards_is_folded_by_nothing() -> None:
    store = levels()
    write(store, E1, a=b"1")
    store.commit(E1)
    store.drop(S0)
    assert store.fold() is False
    assert store.folding == ()


def test_a_shard_is_dropped_in_slices_on_all_levels(tmp_path: Path) -> None:
    with LmdbBackend.create(str(tmp_path), map_size=2**20) as backend:
        store = Levels.create(backend, attempt=A1, committed=Epoch(0), slice_records=2)
        write(store, E1, a=b"1", b=b"1", c=b"1")
        store.commit(E1)
        store.fold()
        write(store, E2, a=b"2", d=b"2")
        write(store, E2, S1, z=b"stays")
        store.watch(S0)
        slices = 1
        while store.drop_some(S0):
            slices += 1
        assert (slices, store.watched, store.contents()) == (3, (), {b"z": b"stays"})


def test_a_fold_goes_on_in_another_process_after_it_was_cut_off(tmp_path: Path) -> None:
    with LmdbBackend.create(str(tmp_path), map_size=2**20) as backend:
        store = Levels.create(backend, attempt=A1, committed=Epoch(0), slice_records=1)
        write(store, E1, a=b"1", b=b"1")
        store.commit(E1)
        assert store.fold()
    with LmdbBackend.attach(str(tmp_path)) as backend:
        store = Levels(backend)
        assert (store.folding, store.contents()) == ((E1,), {b"a": b"1", b"b": b"1"})
        assert not store.fold()
        assert (store.folding, store.contents()) == ((), {b"a": b"1", b"b": b"1"})


# Increments that are held -------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["late", "commit", "drop", "roll back"])
def test_an_increment_is_as_of_when_it_was_asked_for(tmp_path: Path, how: str) -> None:
    with LmdbBackend.create(str(tmp_path), map_size=2**20) as backend:
        store = Levels.create(backend, attempt=A1, committed=Epoch(0))
        write(store, E1, a=b"11", b=None)
        write(store, E1, S1, c=b"not asked for")
        increment = store.hold(E1, [S0, ShardId(2)])
        if how == "late":
            write(store, E1, a=b"late", d=b"late")
        elif how == "commit":
            store.commit(E1)
            store.fold()
        elif how == "drop":
            store.drop(S0)
        else:
            store.roll_back(A2, Epoch(0), keep=[])
        expected = {S0: Records(E1, [b"a", b"b"], [b"11", None])}
        assert (increment.size, increment.read(), increment.size) == (0, expected, 4)
        assert increment.read() is increment.read()
        increment.release()
        assert store.hold(Epoch(9), [S0]).read() == {}


def test_a_committed_epoch_has_no_increment_to_hold() -> None:
    store = levels()
    write(store, E1, a=b"1")
    store.commit(E1)
    assert store.hold(E1, [S0]).read() == {}


def test_records_by_columns_are_the_records() -> None:
    records = Records(E1, [b"a", b"b", b"c"], [b"1", None, b""])
    each = [Record(b"a", E1, b"1"), Record(b"b", E1, None), Record(b"c", E1, b"")]
    assert [*records] == each
    assert [records[0], records[-1], len(records)] == [each[0], each[2], 3]
    assert list(records[1:]) == each[1:]
    assert records.size == sum(record.size for record in each) == 4
