from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from elasticutor.core.protocol.ids import Attempt, Epoch, ShardId
from elasticutor.errors import OutOfOrderError, StaleAttemptError
from elasticutor.state.backend import MemoryBackend, Value
from elasticutor.state.levels import START, Cursor, Levels, Record
from elasticutor.state.lmdb_backend import LmdbBackend

S0, S1 = ShardId(0), ShardId(1)
A1, A2 = Attempt(1), Attempt(2)


def levels(committed: int = 0, attempt: int = 1) -> Levels:
    return Levels.create(
        MemoryBackend(), attempt=Attempt(attempt), committed=Epoch(committed), slice_records=1
    )


def shared_levels(opened: ExitStack, committed: int = 0) -> Levels:
    path = opened.enter_context(TemporaryDirectory())
    backend = opened.enter_context(LmdbBackend.create(path, map_size=2**24))
    return Levels.create(backend, attempt=A1, committed=Epoch(committed), slice_records=1)


def fold_all(store: Levels) -> None:
    while store.fold():
        pass
    assert store.folding == ()


def write(store: Levels, epoch: int, shard: ShardId = S0, **items: bytes | None) -> None:
    store.write(store.attempt, Epoch(epoch), shard, [(k.encode(), v) for k, v in items.items()])


def copy_all(store: Levels, shard: ShardId, limit: int = 256) -> list[Record]:
    found: list[Record] = []
    cursor: Cursor | None = START
    while cursor is not None:
        records, cursor = store.copy(shard, cursor, limit)
        assert len(records) <= limit
        found += records
    return found


def state_of(store: Levels) -> dict[str, Any]:
    return {n: vars(v) if n == "_backend" else v for n, v in deepcopy(vars(store)).items()}


# Reading, writing, committing, rolling back -------------------------------------------------------

SHARDS = (S0, S1)
KEYS = {S0: (b"0/a", b"0/b", b"0/c"), S1: (b"1/a", b"1/b")}

shards = st.sampled_from(SHARDS)
steps_ahead = st.integers(1, 3)
some_values = st.none() | st.sampled_from([b"", b"1", b"22"])


class LevelsMachine(RuleBasedStateMachine):
    """Levels against a history of what each epoch wrote, while it is folded record by record."""

    def __init__(self) -> None:
        super().__init__()
        self.store = self.new_store()
        self.attempt = Attempt(1)
        self.committed = Epoch(10)
        self.history: dict[Epoch, dict[tuple[ShardId, bytes], Value]] = {}

    def new_store(self) -> Levels:
        return levels(committed=10)

    @rule(ahead=steps_ahead, shard=shards, data=st.data(), later_attempt=st.booleans())
    def write(self, ahead: int, shard: ShardId, data: st.DataObject, later_attempt: bool) -> None:
        items = data.draw(st.dictionaries(st.sampled_from(KEYS[shard]), some_values))
        epoch = Epoch(self.committed + ahead)
        attempt = Attempt(self.attempt + later_attempt)
        self.store.write(attempt, epoch, shard, list(items.items()))
        self.history.setdefault(epoch, {}).update({(shard, k): v for k, v in items.items()})

    @rule(ahead=st.integers(-2, 3))
    def commit(self, ahead: int) -> None:
        epoch = Epoch(self.committed + ahead)
        self.store.commit(epoch)
        self.committed = max(self.committed, epoch)

    @rule(slices=st.integers(1, 3))
    def fold(self, slices: int) -> None:
        for _ in range(slices):
            assert self.store.fold() == bool(self.store.folding)

    @rule(slice_records=st.integers(1, 3))
    def attach_anew(self, slice_records: int) -> None:
        """Whoever folded was killed: all that matters is in the backend."""
        self.store = Levels(self.store._backend, slice_records=slice_records)

    @rule(shard=shards, ahead=st.integers(-3, 3), data=st.data())
    def merge(self, shard: ShardId, ahead: int, data: st.DataObject) -> None:
        items = data.draw(st.dictionaries(st.sampled_from(KEYS[shard]), some_values))
        epoch = Epoch(self.committed + ahead)
        self.store.merge(shard, [Record(key, epoch, value) for key, value in items.items()])
        # What is committed already comes to be the newest that is.
        level = self.history.setdefault(max(epoch, self.committed), {})
        level.update({(shard, k): v for k, v in items.items()})

    @rule(ahead=st.integers(0, 3), keep=st.sets(shards))
    def roll_back(self, ahead: int, keep: set[ShardId]) -> None:
        base = Epoch(self.committed + ahead)
        self.attempt = Attempt(self.attempt + 1)
        self.store.roll_back(self.attempt, base, keep)
        self.committed = base
        self.history = {e: level for e, level in self.history.items() if e <= base}
        self.forget([shard for shard in SHARDS if shard not in keep])

    @precondition(lambda self: self.committed > 1)  # no epoch is before the first
    @rule()
    def roll_back_to_before_the_newest_commit(self) -> None:
        self.attempt, self.committed = Attempt(self.attempt + 1), Epoch(self.committed - 1)
        self.store.roll_back(self.attempt, self.committed, [])
        self.history = {}

    @rule(shard=shards, at_once=st.booleans(), folds=st.booleans())
    def drop(self, shard: ShardId, at_once: bool, folds: bool) -> None:
        if at_once:
            self.store.drop(shard)
        else:
            while self.store.drop_some(shard):
                if folds:
                    self.store.fold()
        self.forget([shard])

    @rule(shard=shards, ahead=st.integers(-1, 3))
    def refuse_stale_writers(self, shard: ShardId, ahead: int) -> None:
        epoch = Epoch(self.committed + ahead)
        with pytest.raises(StaleAttemptError):
            self.store.write(Attempt(self.attempt - 1), epoch, shard, [(KEYS[shard][0], b"late")])

    @rule(shard=shards, behind=st.integers(0, 2))
    def refuse_committed_epochs(self, shard: ShardId, behind: int) -> None:
        epoch = Epoch(self.committed - behind)
        with pytest.raises(OutOfOrderError):
            self.store.write(self.attempt, epoch, shard, [(KEYS[shard][0], b"late")])

    def forget(self, shards: Collection[ShardId]) -> None:
        for level in self.history.values():
            for place in [place for place in level if place[0] in shards]:
                del level[place]

    def newest(self, up_to: float = float("inf")) -> dict[tuple[ShardId, bytes], bytes]:
        newest: dict[tuple[ShardId, bytes], Value] = {}
        for epoch in sorted(epoch for epoch in self.history if epoch <= up_to):
            newest |= self.history[epoch]
        return {place: value for place, value in newest.items() if value is not None}

    @invariant()
    def reads_are_of_the_newest_epoch(self) -> None:
        newest = self.newest()
        for shard in SHARDS:
            for key in KEYS[shard]:
                assert self.store.read(shard, key) == newest.get((shard, key))
        assert self.store.contents() == {key: value for (_, key), value in newest.items()}

    @invariant()
    def increments_are_what_each_uncommitted_epoch_wrote(self) -> None:
        for epoch in (Epoch(self.committed + ahead) for ahead in range(1, 5)):
            for shard in SHARDS:
                level = self.history.get(epoch, {})
                expected = {k: Record(k, epoch, v) for (s, k), v in level.items() if s == shard}
                found = self.store.increment(epoch, shard)
                assert len(found) == len(expected)
                assert {record.key: record for record in found} == expected

    @invariant()
    def shards_are_those_with_any_record(self) -> None:
        places = set(self.newest(up_to=self.committed))
        for epoch in self.history:
            places |= set(self.history[epoch]) if epoch > self.committed else set()
        assert self.store.shards() == {shard for shard, _ in places}

    @invariant()
    def attempt_and_committed_epoch_are_known(self) -> None:
        assert (self.store.attempt, self.store.committed) == (self.attempt, self.committed)


TestLevelsAgainstAHistory = LevelsMachine.TestCase
TestLevelsAgainstAHistory.settings = settings(
    max_examples=100, stateful_step_count=20, deadline=None
)


class SharedLevelsMachine(LevelsMachine):
    """The same over LMDB."""

    def new_store(self) -> Levels:
        self.opened = ExitStack()
        return shared_levels(self.opened, committed=10)

    def teardown(self) -> None:
        self.opened.close()


TestSharedLevelsAgainstAHistory = SharedLevelsMachine.TestCase
TestSharedLevelsAgainstAHistory.settings = settings(
    max_examples=20, stateful_step_count=20, deadline=None
)


def test_refusals_leave_everything_as_it_was() -> None:
    store = levels(committed=3, attempt=2)
    store.watch(S0)
    write(store, 4, a=b"1")
    before = state_of(store)
    with pytest.raises(StaleAttemptError, match="be 2 or later; got 1"):
        store.write(A1, Epoch(5), S0, [(b"a", b"2"), (b"b", b"2")])
    for epoch in (3, 2):
        with pytest.raises(OutOfOrderError, match=f"be after 3; got {epoch}"):
            store.write(A2, Epoch(epoch), S0, [(b"a", b"2"), (b"b", b"2")])
    assert state_of(store) == before


def test_a_write_to_an_older_uncommitted_epoch_does_not_hide_a_newer_one() -> None:
    store = levels()
    write(store, 3, a=b"three")
    write(store, 2, a=b"two", b=b"two")
    assert (store.read(S0, b"a"), store.read(S0, b"b")) == (b"three", b"two")
    store.commit(Epoch(3))
    assert store.contents() == {b"a": b"three", b"b": b"two"}


def test_many_keys_are_read_as_each_of_them() -> None:
    store = levels()
    write(store, 1, a=b"one", b=b"one", c=b"one")
    store.commit(Epoch(1))
    write(store, 2, a=b"two", b=None)
    write(store, 3, S1, a=b"three")
    keys = [(shard, key) for shard in (S1, S0) for key in (b"a", b"b", b"c", b"a")]
    assert store.read_many(iter(keys)) == [store.read(shard, key) for shard, key in keys]
    assert store.read_many(keys) == [b"three", None, None, b"three", b"two", None, b"one", b"two"]
    assert store.read_many([]) == []


def test_a_deletion_hides_the_committed_value_and_goes_with_it() -> None:
    store = levels()
    write(store, 1, a=b"1")
    store.commit(Epoch(1))
    write(store, 2, a=None)
    assert store.read(S0, b"a") is None
    assert store.contents() == {}
    assert store.shards() == {S0}
    store.commit(Epoch(2))
    assert store.shards() == frozenset()


def test_a_committed_epoch_has_no_increment_left() -> None:
    store = levels()
    for epoch in (1, 2):
        write(store, epoch, a=b"%d" % epoch)
    store.commit(Epoch(1))
    assert store.increment(Epoch(1), S0) == ()
    assert store.increment(Epoch(2), S0) == (Record(b"a", Epoch(2), b"2"),)


def test_rolling_back_commits_what_the_base_has() -> None:
    store = levels()
    for epoch in (1, 2, 3):
        write(store, epoch, a=b"%d" % epoch)
    store.roll_back(A2, Epoch(2), keep=[S0])
    assert (store.read(S0, b"a"), store.committed) == (b"2", 2)
    with pytest.raises(OutOfOrderError):
        write(store, 2, a=b"again")


def test_the_size_of_a_record_counts_key_and_value() -> None:
    assert Record(b"key", Epoch(1), b"value").size == 8
    assert Record(b"key", Epoch(1), None).size == 3


# Moving a shard to another store ------------------------------------------------------------------


def test_a_copy_goes_from_the_oldest_level_to_the_newest() -> None:
    store = levels(committed=4)
    store.merge(S0, [Record(b"a", Epoch(2), b"old"), Record(b"b", Epoch(4), b"old")])
    write(store, 6, a=None)
    write(store, 5, b=b"new")
    write(store, 5, shard=S1, x=b"elsewhere")
    expected = [
        Record(b"a", Epoch(4), b"old"),
        Record(b"b", Epoch(4), b"old"),
        Record(b"b", Epoch(5), b"new"),
        Record(b"a", Epoch(6), None),
    ]
    for limit in (1, 2, 3, 256):
        assert copy_all(store, S0, limit) == expected


def test_copying_changes_nothing_and_an_empty_shard_is_copied_at_once() -> None:
    store = levels()
    write(store, 1, a=b"1")
    before = state_of(store)
    copy_all(store, S0)
    assert state_of(store) == before
    assert store.copy(S1) == ((), None)


def test_a_commit_does_not_make_a_copy_start_over() -> None:
    """With commits more frequent than slices, the copy of a large shard would never end."""
    store = levels()
    write(store, 1, a=b"1", b=b"1", c=b"1")
    store.commit(Epoch(1))
    store.watch(S0)
    cursor: Cursor | None = START
    for epoch, key in ((2, b"a"), (3, b"b"), (4, b"c")):
        assert cursor is not None
        [record], cursor = store.copy(S0, cursor, limit=1)
        assert record.key == key
        store.commit(Epoch(epoch))
    assert cursor is not None
    assert store.copy(S0, cursor, limit=1) == ((), None)


def test_only_what_changed_since_the_watch_is_sent_after_the_copy() -> None:
    store = levels()
    write(store, 1, a=b"1", b=b"1")
    store.watch(S0)
    assert list(store.changed_records(S0)) == []
    write(store, 1, shard=S1, b=b"elsewhere")
    write(store, 2, a=b"2")
    assert list(store.changed_records(S0)) == [
        Record(b"a", Epoch(0), None),  # the committed level has nothing of it
        Record(b"a", Epoch(1), b"1"),
        Record(b"a", Epoch(2), b"2"),
    ]
    assert list(store.changed_records(S1)) == []


@pytest.mark.parametrize("how", ["unwatch", "drop", "roll back"])
def test_what_changed_is_forgotten_with_the_watch(how: str) -> None:
    store = levels()
    store.watch(S0)
    write(store, 1, a=b"1")
    if how == "unwatch":
        store.unwatch(S0)
    elif how == "drop":
        store.drop(S0)
    else:
        store.roll_back(A2, Epoch(1), keep=[S0])
    write(store, 2, b=b"2")
    assert list(store.changed_records(S0)) == []
    store.watch(S0)
    write(store, 2, c=b"2")
    assert {record.key for record in store.changed_records(S0)} == {b"c"}


def test_records_fall_into_the_level_of_their_epoch() -> None:
    store = levels(committed=3)
    pieces = [Record(b"a", Epoch(2), b"2"), Record(b"a", Epoch(3), b"3")]
    pieces += [Record(b"a", Epoch(4), None), Record(b"a", Epoch(5), b"5")]
    store.merge(S0, iter(pieces))
    assert store.read(S0, b"a") == b"5"
    assert store.increment(Epoch(4), S0) == (Record(b"a", Epoch(4), None),)
    store.roll_back(A2, Epoch(3), keep=[S0])
    assert store.read(S0, b"a") == b"3"


def test_a_later_value_merged_into_the_committed_level_outlives_an_earlier_deletion() -> None:
    store = levels(committed=5)
    store.merge(S0, [Record(b"a", Epoch(2), None), Record(b"a", Epoch(3), b"3")])
    store.merge(S0, [Record(b"b", Epoch(2), b"2"), Record(b"b", Epoch(3), None)])
    assert store.contents() == {b"a": b"3"}
    assert store.uncommitted == ()


def test_a_deletion_committed_during_the_copy_is_not_undone_by_it() -> None:
    """The copy has brought the old value; the deletion left no record that could follow it."""
    source, destination = levels(), levels()
    write(source, 1, a=b"1")
    source.commit(Epoch(1))
    source.watch(S0)
    destination.merge(S0, copy_all(source, S0))
    write(source, 2, a=None)
    for store in (source, destination):
        store.commit(Epoch(2))
    assert destination.read(S0, b"a") == b"1"
    destination.merge(S0, source.changed_records(S0))
    assert destination.read(S0, b"a") is None
    assert destination.contents() == {}


Step = tuple[str, int, dict[bytes, Value]]

MOVED_KEYS = (b"a", b"b", b"c", b"d", b"e")
NOTHING: dict[bytes, Value] = {}

writes = st.tuples(
    st.just("write"),
    st.integers(1, 3),
    st.dictionaries(st.sampled_from(MOVED_KEYS), some_values, min_size=1, max_size=3),
)
commits = st.tuples(st.just("commit"), st.integers(1, 2), st.just(NOTHING))
folds = st.tuples(st.just("fold"), st.integers(1, 9), st.just(NOTHING))
meanwhile = st.lists(
    st.one_of(
        writes,
        commits,
        st.tuples(st.just("commit there"), st.integers(1, 2), st.just(NOTHING)),
        folds,
        st.tuples(st.just("fold there"), st.integers(1, 9), st.just(NOTHING)),
        st.tuples(st.just("copy"), st.integers(1, 3), st.just(NOTHING)),
        st.tuples(st.just("deliver"), st.just(0), st.just(NOTHING)),
    ),
    max_size=25,
)


class ShardMove:
    """One shard on its way between two stores that hear of commits at times of their own."""

    def __init__(self, new_store: Callable[[], Levels] = levels) -> None:
        self.source, self.destination = new_store(), new_store()
        self.under_way: deque[tuple[Record, ...]] = deque()
        self.cursor: Cursor | None = START

    def step(self, what: str, number: int, items: dict[bytes, Value]) -> None:
        if what == "write":
            # Nobody hears of a commit before all writes of that epoch are done.
            sealed = max(self.source.committed, self.destination.committed)
            self.source.write(A1, Epoch(sealed + number), S0, list(items.items()))
        elif what == "commit":
            self.source.commit(Epoch(self.source.committed + number))
        elif what == "commit there":
            self.destination.commit(Epoch(self.destination.committed + number))
        elif what in ("fold", "fold there"):
            store = self.source if what == "fold" else self.destination
            for _ in range(number):
                store.fold()
        elif what == "copy":
            self.copy(limit=number)
        elif self.under_way:
            self.destination.merge(S0, self.under_way.popleft())

    def copy(self, limit: int) -> None:
        if self.cursor is not None:
            records, self.cursor = self.source.copy(S0, self.cursor, limit)
            self.under_way.append(records)

    def finish(self, limit: int) -> None:
        while self.cursor is not None:
            self.copy(limit)
        self.under_way.append(tuple(self.source.changed_records(S0)))
        while self.under_way:
            self.destination.merge(S0, self.under_way.popleft())


@settings(max_examples=400, deadline=None)
@given(
    st.lists(st.one_of(writes, commits, folds), max_size=8),
    meanwhile,
    st.integers(1, 3),
    st.integers(0, 3),
)
def test_a_shard_copied_while_it_changes_arrives_as_it_is(
    before: list[Step], meanwhile: list[Step], limit: int, ahead: int
) -> None:
    expect_arrival_as_it_is(ShardMove(), before, meanwhile, limit, ahead)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.one_of(writes, commits, folds), max_size=8),
    meanwhile,
    st.integers(1, 3),
    st.integers(0, 3),
)
def test_a_shard_copied_between_shared_stores_arrives_as_it_is(
    before: list[Step], meanwhile: list[Step], limit: int, ahead: int
) -> None:
    with ExitStack() as opened:
        move = ShardMove(lambda: shared_levels(opened))
        expect_arrival_as_it_is(move, before, meanwhile, limit, ahead)


def expect_arrival_as_it_is(
    move: ShardMove, before: list[Step], meanwhile: list[Step], limit: int, ahead: int
) -> None:
    for step in before:
        move.step(*step)
    move.source.watch(S0)
    for step in meanwhile:
        move.step(*step)
    move.finish(limit)

    source, destination = move.source, move.destination
    for key in MOVED_KEYS:
        assert destination.read(S0, key) == source.read(S0, key)
    assert destination.contents() == source.contents()
    sealed = max(source.committed, destination.committed)
    for epoch in (Epoch(sealed + later) for later in range(1, 8)):
        assert destination.increment(epoch, S0) == source.increment(epoch, S0)
    # Whatever they go back to, and whatever is committed then, they stay equal.
    for store in (source, destination):
        store.roll_back(A2, Epoch(sealed + ahead), keep=[S0])
    assert destination.contents() == source.contents()
    for store in (source, destination):
        fold_all(store)
    assert destination.contents() == source.contents()
    assert copy_all(destination, S0) == copy_all(source, S0)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.one_of(writes, commits, folds), max_size=8), meanwhile, st.integers(1, 3))
def test_a_moved_shard_is_the_same_after_both_have_committed(
    before: list[Step], meanwhile: list[Step], limit: int
) -> None:
    move = ShardMove()
    for step in before:
        move.step(*step)
    move.source.watch(S0)
    for step in meanwhile:
        move.step(*step)
    move.finish(limit)
    expected = move.source.contents()
    for store in (move.source, move.destination):
        store.commit(Epoch(1000))
        assert store.contents() == expected
        fold_all(store)
        assert store.contents() == expected
    assert move.destination.shards() == move.source.shards()
    assert copy_all(move.destination, S0) == copy_all(move.source, S0)


def test_a_base_before_the_newest_commit_is_taken_only_with_nothing_to_keep() -> None:
    store = Levels.create(MemoryBackend(), attempt=Attempt(1), committed=Epoch(0))
    store.write(Attempt(1), Epoch(5), ShardId(0), [(b"k", b"v")])
    store.commit(Epoch(5))
    with pytest.raises(OutOfOrderError, match="be 5 or later; got 3"):
        store.roll_back(Attempt(2), Epoch(3), keep=[ShardId(0)])
    assert (store.read(ShardId(0), b"k"), store.attempt, store.committed) == (b"v", 1, 5)
    store.roll_back(Attempt(2), Epoch(3), keep=[])
    assert (store.contents(), store.committed) == ({}, 3)
    store.write(Attempt(2), Epoch(4), ShardId(0), [(b"k", b"new")])
    assert store.read(ShardId(0), b"k") == b"new"


class Diary(MemoryBackend):
    """Notes what is asked of it, and within which transaction or reading."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[str, int]] = []
        self.outermost = 0
        self._depth = 0

    @contextmanager
    def transaction(self) -> Iterator[None]:
        self.outermost += self._depth == 0
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1

    reading = transaction

    def __getattribute__(self, name: str) -> Any:
        if name in ("get", "put", "remove", "scan", "shards", "drop", "move", "load", "save"):
            self.calls.append((name, self._depth and self.outermost))
        return super().__getattribute__(name)


def refused(act: Callable[[], object]) -> None:
    with pytest.raises((StaleAttemptError, OutOfOrderError)):
        act()


@pytest.mark.parametrize(
    "act",
    [
        lambda store: store.write(A2, Epoch(6), S0, [(b"a", b"3")]),
        lambda store: refused(lambda: store.write(A1, Epoch(6), S0, [(b"a", b"3")])),
        lambda store: refused(lambda: store.write(A2, Epoch(3), S0, [(b"a", b"3")])),
        lambda store: store.commit(Epoch(5)),
        lambda store: store.fold(),
        lambda store: store.increment(Epoch(5), S1),
        lambda store: store.roll_back(Attempt(3), Epoch(4), keep=[S0]),
        lambda store: store.watch(S1),
        lambda store: store.unwatch(S0),
        lambda store: store.merge(S0, [Record(b"a", Epoch(e), b"") for e in (1, 4, 6)]),
        lambda store: store.drop(S0),
        lambda store: store.drop_some(S0),
        lambda store: store.read(S0, b"never"),
        lambda store: store.copy(S0),
        lambda store: list(store.changed_records(S0)),
        lambda store: store.shards(),
        lambda store: store.contents(),
    ],
)
def test_whatever_is_asked_of_the_store_is_one_transaction(act: Callable[[Levels], object]) -> None:
    """Another process may write, commit and roll back between any two."""
    backend = Diary()
    store = Levels.create(backend, attempt=A2, committed=Epoch(2))
    write(store, 3, a=b"0", b=b"0")
    store.commit(Epoch(3))
    store.watch(S0)
    write(store, 4, a=b"1", b=b"1")
    write(store, 5, shard=S1, x=None)
    backend.calls.clear()
    backend.outermost = 0
    act(store)
    assert backend.calls
    assert {within for _, within in backend.calls} == {1}


def test_records_are_merged_by_level_and_not_one_by_one() -> None:
    backend = Diary()
    store = Levels.create(backend, attempt=A1, committed=Epoch(0))
    store.merge(S0, [Record(b"%d" % k, Epoch(e), b"") for e in (1, 2) for k in range(50)])
    assert len([name for name, _ in backend.calls if name == "put"]) == 2
    assert len(copy_all(store, S0)) == 100


def test_two_views_of_one_backend_see_the_same_levels_fences_and_watches() -> None:
    """A keeper and its tasks are different processes: what one does, the other must see."""
    backend = MemoryBackend()
    keeper = Levels.create(backend, attempt=Attempt(1), committed=Epoch(0))
    task = Levels(backend)
    task.write(Attempt(1), Epoch(1), ShardId(0), [(b"k", b"one")])
    assert keeper.read(ShardId(0), b"k") == b"one"
    keeper.watch(ShardId(0))
    task.write(Attempt(1), Epoch(2), ShardId(0), [(b"k", b"two")])
    assert [record.value for record in keeper.changed_records(ShardId(0))] == [None, b"one", b"two"]
    keeper.commit(Epoch(1))
    with pytest.raises(OutOfOrderError):
        task.write(Attempt(1), Epoch(1), ShardId(0), [(b"k", b"late")])
    keeper.roll_back(Attempt(2), Epoch(1), keep=[ShardId(0)])
    assert task.read(ShardId(0), b"k") == b"one"
    with pytest.raises(StaleAttemptError):
        task.write(Attempt(1), Epoch(2), ShardId(0), [(b"k", b"stale")])
