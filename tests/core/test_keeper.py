from collections import deque
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elasticutor.core.protocol import events as ev
from elasticutor.core.protocol import instructions as do
from elasticutor.core.protocol.ids import Attempt, Epoch, MoveId, NodeId, ShardId, TaskId
from elasticutor.core.protocol.keeper import (
    CopyOn,
    DropOn,
    Errand,
    FoldOn,
    Keeper,
    ReadShard,
    SendSlice,
    WriteIncrement,
)
from elasticutor.errors import BadValueError, StaleAttemptError
from elasticutor.state.backend import MemoryBackend, Value
from elasticutor.state.levels import Levels, Record

NORTH, SOUTH = NodeId("north"), NodeId("south")
S0, S1 = ShardId(0), ShardId(1)
A1, A2 = Attempt(1), Attempt(2)
E0, E1, E2 = Epoch(0), Epoch(1), Epoch(2)
M1, M2 = MoveId(1), MoveId(2)


def keeper(node: NodeId = NORTH, *, slice_records: int = 256) -> Keeper:
    store = Levels.create(MemoryBackend(), attempt=A1, committed=E0, slice_records=slice_records)
    return Keeper(node, store, slice_records=slice_records)


def write(keeper: Keeper, epoch: Epoch, shard: ShardId = S0, **items: bytes | None) -> None:
    changes: list[tuple[bytes, Value]] = [(key.encode(), value) for key, value in items.items()]
    keeper.store.write(keeper.store.attempt, epoch, shard, changes)


def changes(errands: list[Errand]) -> dict[ShardId, list[Record]]:
    """What the only errand asks to write."""
    [errand] = errands
    assert isinstance(errand, WriteIncrement)
    return {shard: list(records) for shard, records in errand.shards.items()}


def state_of(keeper: Keeper) -> dict[str, Any]:
    store = vars(keeper.store) | {"_backend": vars(keeper.store._backend)}
    return deepcopy(vars(keeper) | {"store": store})


class Pair:
    """Two keepers, what is under way between them, and what they told the main process."""

    def __init__(self, slice_records: int = 256) -> None:
        self.north = keeper(NORTH, slice_records=slice_records)
        self.south = keeper(SOUTH, slice_records=slice_records)
        self.slices: deque[SendSlice] = deque()
        self.slow: deque[tuple[Keeper, CopyOn | FoldOn | DropOn]] = deque()
        self.events: list[Any] = []

    def at(self, node: NodeId) -> Keeper:
        return {NORTH: self.north, SOUTH: self.south}[node]

    def run(self, keeper: Keeper, errands: list[Errand]) -> None:
        for errand in errands:
            if isinstance(errand, SendSlice):
                self.slices.append(errand)
            elif isinstance(errand, CopyOn | FoldOn | DropOn):
                self.slow.append((keeper, errand))
            else:
                self.events.append(errand)

    def order(self, order: Any) -> None:
        keeper = self.at(order.node)
        self.run(keeper, keeper.handle(order))

    def deliver(self) -> None:
        piece = self.slices.popleft()
        keeper = self.at(piece.node)
        self.run(keeper, keeper.receive(piece))

    def go_on(self) -> None:
        keeper, errand = self.slow.popleft()
        self.run(keeper, keeper.go_on(errand))

    def settle(self) -> None:
        while self.slices or self.slow:
            self.deliver() if self.slices else self.go_on()

    def begin(self, move: MoveId = M1, source: NodeId = NORTH, target: NodeId = SOUTH) -> None:
        self.order(do.OpenShard(target, move, S0))
        self.order(do.CopyShard(source, move, S0, target))

    def end(self, move: MoveId = M1, source: NodeId = NORTH, target: NodeId = SOUTH) -> None:
        self.settle()
        self.order(do.SendRest(source, move, S0, target))
        self.settle()
        self.order(do.DropShard(source, S0))
        self.settle()


# Moving a shard -----------------------------------------------------------------------------------


def test_a_shard_moves_by_copy_rest_and_drop() -> None:
    pair = Pair(slice_records=2)
    write(pair.north, E1, a=b"11", b=b"1", c=b"1")
    write(pair.north, E1, S1, z=b"stays")
    pair.begin()
    assert pair.events == [ev.ShardOpened(M1)]
    pair.settle()
    assert pair.events[1:] == [ev.CopyArrived(M1, 3 + 2 + 2)]
    write(pair.north, E1, a=b"333", d=None)
    pair.end()
    # Both keys on the committed level, where they are not, and as the epoch left them.
    size = (1 + 1) + (4 + 1)
    assert pair.events[2:] == [ev.StateArrived(M1, size), ev.ShardDropped(NORTH, S0)]
    assert pair.south.store.contents() == {b"a": b"333", b"b": b"1", b"c": b"1"}
    assert pair.north.store.contents() == {b"z": b"stays"}
    assert pair.north.store.shards() == {S1}


def test_an_empty_shard_moves_too() -> None:
    pair = Pair()
    pair.begin()
    pair.end()
    assert pair.events == [
        ev.ShardOpened(M1),
        ev.CopyArrived(M1, 0),
        ev.StateArrived(M1, 0),
        ev.ShardDropped(NORTH, S0),
    ]


@pytest.mark.parametrize("slice_records", [1, 2, 3])
def test_a_copy_comes_in_slices_and_says_which_is_the_last(slice_records: int) -> None:
    north = keeper(slice_records=slice_records)
    write(north, E1, a=b"", b=b"", c=b"", d=b"", e=b"")
    errands = north.handle(do.CopyShard(NORTH, M1, S0, SOUTH))
    sent: list[SendSlice] = []
    while errands:
        piece, *then = errands
        assert isinstance(piece, SendSlice)
        assert (piece.node, piece.move, piece.shard, piece.rest) == (SOUTH, M1, S0, False)
        assert len(piece.records) <= slice_records
        assert then == ([] if piece.last else [CopyOn(M1)])
        sent.append(piece)
        errands = north.copy_on(M1) if then else []
    assert [record.key for piece in sent for record in piece.records] == [
        b"%c" % c for c in b"abcde"
    ]
    assert [piece.last for piece in sent] == [False] * (len(sent) - 1) + [True]
    assert north.copy_on(M1) == []


def test_no_event_is_sent_before_the_last_slice() -> None:
    pair = Pair(slice_records=1)
    write(pair.north, E1, a=b"", b=b"")
    pair.begin()
    while pair.slow:
        pair.go_on()
    pair.events.clear()
    for _ in range(2):
        pair.deliver()
        assert pair.events == []
    pair.deliver()
    assert pair.events == [ev.CopyArrived(M1, 2)]


def test_opening_a_shard_removes_what_was_left_of_it() -> None:
    """An earlier attempt may have got halfway."""
    south = keeper(SOUTH)
    write(south, E1, a=b"left over")
    write(south, E1, S1, b=b"stays")
    assert south.handle(do.OpenShard(SOUTH, M1, S0)) == [ev.ShardOpened(M1)]
    assert south.store.shards() == {S1}


def test_two_moves_do_not_mix_their_sizes() -> None:
    south = keeper(SOUTH)
    for move, shard in ((M1, S0), (M2, S1)):
        south.handle(do.OpenShard(SOUTH, move, shard))
    records = (Record(b"k", E1, b"12345"),)
    assert south.receive(SendSlice(SOUTH, M1, S0, records, last=False, rest=False)) == []
    last = SendSlice(SOUTH, M2, S1, (), last=True, rest=False)
    assert south.receive(last) == [ev.CopyArrived(M2, 0)]
    last = SendSlice(SOUTH, M1, S0, records, last=True, rest=False)
    assert south.receive(last) == [ev.CopyArrived(M1, 12)]
    rest = SendSlice(SOUTH, M1, S0, records, last=True, rest=True)
    assert south.receive(rest) == [ev.StateArrived(M1, 6)]


def test_a_shard_can_come_back_after_it_left() -> None:
    pair = Pair()
    write(pair.north, E1, a=b"1", b=b"1")
    pair.begin()
    pair.end()
    write(pair.south, E1, a=None, b=b"2")
    pair.begin(M2, SOUTH, NORTH)
    pair.end(M2, SOUTH, NORTH)
    assert pair.north.store.contents() == {b"b": b"2"}
    assert pair.south.store.contents() == {}


keys = st.sampled_from(["a", "b", "c", "d"])
meanwhile = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.dictionaries(keys, st.none() | st.just(b"new"))),
        st.tuples(st.sampled_from(["seal", "north commits", "south commits"]), st.just({})),
        st.tuples(st.sampled_from(["go on", "go on", "deliver"]), st.just({})),
    ),
    max_size=20,
)


@settings(max_examples=100, deadline=None)
@given(
    st.dictionaries(keys, st.just(b"old")),
    st.dictionaries(keys, st.none() | st.just(b"older")),
    meanwhile,
    st.integers(1, 3),
)
def test_a_move_takes_every_change_along_whatever_happens_meanwhile(
    first: dict[str, Value], second: dict[str, Value], meanwhile: list[Any], slice_records: int
) -> None:
    pair = Pair(slice_records)
    sealed = 1  # the newest epoch that may be committed
    write(pair.north, E1, S0, **first)
    write(pair.north, E2, S0, **second)
    pair.begin()
    for what, items in meanwhile:
        if what == "write":
            write(pair.north, Epoch(sealed + 1), S0, **items)
        elif what == "seal":
            sealed += 1
        elif what == "north commits":
            pair.order(do.CommitStore(NORTH, Epoch(sealed)))
        elif what == "south commits":
            pair.order(do.CommitStore(SOUTH, Epoch(sealed)))
        elif what == "go on" and pair.slow:
            pair.go_on()
        elif what == "deliver" and pair.slices:
            pair.deliver()
    pair.settle()
    expected = pair.north.store.contents()
    persist = do.PersistIncrement(NORTH, A1, Epoch(sealed + 1), (S0,))
    increment = changes(pair.north.handle(persist))
    pair.end()
    assert pair.south.store.contents() == expected
    assert pair.north.store.contents() == {}
    assert changes(pair.south.handle(persist)) == increment


# What was given up --------------------------------------------------------------------------------


def roll_back(keeper: Keeper, *shards: ShardId) -> list[Errand]:
    return keeper.handle(do.RollBackStore(keeper.node, A2, keeper.store.committed, shards))


def test_rolling_back_returns_to_the_base_and_says_so() -> None:
    north = keeper()
    write(north, E1, a=b"1")
    write(north, E1, S1, b=b"1")
    write(north, E2, a=b"2")
    answer = north.handle(do.RollBackStore(NORTH, A2, E1, (S0,)))
    assert answer == [ev.StoreRolledBack(NORTH, A2), FoldOn(E1)]
    assert north.store.contents() == {b"a": b"1"}
    assert (north.store.attempt, north.store.committed) == (A2, E1)


@pytest.mark.parametrize("rest", [False, True])
@pytest.mark.parametrize("last", [False, True])
def test_slices_of_a_move_that_was_given_up_are_refused(last: bool, rest: bool) -> None:
    south = keeper(SOUTH)
    south.handle(do.OpenShard(SOUTH, M1, S0))
    roll_back(south)
    south.handle(do.OpenShard(SOUTH, M2, S0))
    before = state_of(south)
    late = SendSlice(SOUTH, M1, S0, (Record(b"late", E1, b"1"),), last, rest)
    with pytest.raises(StaleAttemptError, match="move of a slice must be one of"):
        south.receive(late)
    assert state_of(south) == before


def test_slices_after_the_last_of_the_rest_are_refused() -> None:
    south = keeper(SOUTH)
    south.handle(do.OpenShard(SOUTH, M1, S0))
    piece = SendSlice(SOUTH, M1, S0, (), last=True, rest=True)
    south.receive(piece)
    with pytest.raises(StaleAttemptError):
        south.receive(piece)


def test_a_copy_that_was_given_up_sends_nothing_more() -> None:
    north = keeper(slice_records=1)
    write(north, E1, a=b"1", b=b"1")
    north.handle(do.CommitStore(NORTH, E1))
    assert CopyOn(M1) in north.handle(do.CopyShard(NORTH, M1, S0, SOUTH))
    roll_back(north, S0)
    before = state_of(north)
    assert north.copy_on(M1) == []
    assert state_of(north) == before


def test_a_second_try_copies_from_the_start_and_knows_only_its_own_changes() -> None:
    north = keeper(slice_records=1)
    write(north, E1, a=b"1", b=b"1")
    north.handle(do.CommitStore(NORTH, E1))
    north.handle(do.CopyShard(NORTH, M1, S0, SOUTH))
    write(north, E2, b=b"given up")
    roll_back(north, S0)
    first, *_ = north.handle(do.CopyShard(NORTH, M2, S0, SOUTH))
    assert first == SendSlice(SOUTH, M2, S0, (Record(b"a", E1, b"1"),), last=False, rest=False)
    [rest] = north.handle(do.SendRest(NORTH, M2, S0, SOUTH))
    assert rest == SendSlice(SOUTH, M2, S0, (), last=True, rest=True)


# Checkpoints --------------------------------------------------------------------------------------


def test_an_increment_is_what_the_named_shards_changed_in_the_epoch() -> None:
    north = keeper()
    write(north, E1, a=b"1", b=None)
    write(north, E2, c=b"2")
    write(north, E1, S1, x=b"1")
    [increment] = north.handle(do.PersistIncrement(NORTH, A1, E1, (S0, ShardId(2))))
    assert isinstance(increment, WriteIncrement)
    assert (increment.attempt, increment.epoch) == (A1, E1)
    assert changes([increment]) == {S0: [Record(b"a", E1, b"1"), Record(b"b", E1, None)]}
    assert north.written(increment) == [ev.IncrementPersisted(NORTH, A1, E1, 2 + 1)]


@pytest.mark.parametrize("how", ["next epoch", "late write", "commit", "drop", "roll back"])
def test_an_increment_is_as_it_was_when_it_was_asked_for(how: str) -> None:
    """Writing takes time, and the stream goes on meanwhile."""
    north = keeper()
    write(north, E1, a=b"1")
    [increment] = north.handle(do.PersistIncrement(NORTH, A1, E1, (S0,)))
    assert isinstance(increment, WriteIncrement)
    if how == "next epoch":
        write(north, E2, a=b"2", b=b"2")
    elif how == "late write":
        write(north, E1, a=b"late", b=b"late")
    elif how == "commit":
        north.handle(do.CommitStore(NORTH, E1))
    elif how == "drop":
        north.handle(do.DropShard(NORTH, S0))
    else:
        roll_back(north)
    assert changes([increment]) == {S0: [Record(b"a", E1, b"1")]}
    assert north.written(increment) == [ev.IncrementPersisted(NORTH, A1, E1, 2)]


def test_an_increment_without_changes_is_made_durable_too() -> None:
    north = keeper()
    [increment] = north.handle(do.PersistIncrement(NORTH, A1, E1, (S0,)))
    assert isinstance(increment, WriteIncrement)
    assert (increment.attempt, increment.epoch, increment.shards) == (A1, E1, {})
    assert north.written(increment) == [ev.IncrementPersisted(NORTH, A1, E1, 0)]


def test_an_increment_that_nobody_reads_is_let_go_of() -> None:
    """Without a checkpoint there is nothing to write."""
    north = keeper()
    write(north, E1, a=b"1")
    [increment] = north.handle(do.PersistIncrement(NORTH, A1, E1, (S0,)))
    assert isinstance(increment, WriteIncrement)
    assert north.written(increment) == [ev.IncrementPersisted(NORTH, A1, E1, 0)]


def test_a_shard_is_restored_from_the_checkpoint() -> None:
    north = keeper()
    write(north, E2, a=b"left over")
    errands = north.handle(do.RestoreShard(NORTH, M1, S0, E1))
    read = ReadShard(M1, S0, E1)
    assert errands == [read]
    assert north.store.contents() == {}
    records = iter([Record(b"b", E1, b"22"), Record(b"c", E1, b"1")])
    assert north.restored(read, records) == [ev.StateArrived(M1, 3 + 2)]
    assert north.store.contents() == {b"b": b"22", b"c": b"1"}


@pytest.mark.parametrize("how", ["given up", "restored already"])
def test_what_comes_from_the_checkpoint_unasked_is_refused(how: str) -> None:
    north = keeper()
    [read] = north.handle(do.RestoreShard(NORTH, M1, S0, E1))
    assert isinstance(read, ReadShard)
    if how == "given up":
        roll_back(north)
    else:
        north.restored(read, [Record(b"a", E1, b"1")])
    before = state_of(north)
    with pytest.raises(StaleAttemptError):
        north.restored(read, [Record(b"late", E1, b"1")])
    assert state_of(north) == before


# Strangers ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "order",
    [
        do.StartTask(NORTH, TaskId(1)),
        do.OpenStore(NORTH, A1, E0),
        ev.ShardOpened(M1),
        CopyOn(M1),
        FoldOn(E1),
        DropOn(S0),
        "drop everything",
        None,
    ],
    ids=lambda order: type(order).__name__,
)
def test_what_is_no_instruction_for_a_keeper_is_refused(order: Any) -> None:
    north = keeper()
    write(north, E1, a=b"1")
    before = state_of(north)
    with pytest.raises(BadValueError, match="instruction must be one for a keeper"):
        north.handle(order)
    assert state_of(north) == before


def test_every_instruction_to_a_node_is_for_the_keeper_or_for_its_host() -> None:
    for_host = {do.OpenStore, do.StartTask, do.EndTask}
    samples = [
        do.OpenShard(NORTH, M1, S0),
        do.CopyShard(NORTH, M2, S0, SOUTH),
        do.SendRest(NORTH, M2, S0, SOUTH),
        do.RestoreShard(NORTH, M1, S1, E1),
        do.DropShard(NORTH, S0),
        do.PersistIncrement(NORTH, A1, E1, (S0,)),
        do.CommitStore(NORTH, E1),
        do.RollBackStore(NORTH, A2, E1, ()),
    ]
    north = keeper()
    for order in samples:
        north.handle(order)
    assert {type(order) for order in samples} == set(do.TO_NODE) - for_host
