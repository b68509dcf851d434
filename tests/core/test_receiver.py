from collections import defaultdict, deque

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from elasticutor.core.executor.batch import Part, ShardArray
from elasticutor.core.executor.receiver import Receiver
from elasticutor.core.protocol.ids import Peer, ShardId

SHARDS = 4
U, V, W = Peer("u"), Peer("v"), Peer("w")

upstreams = st.sampled_from([U, V, W])
shards = st.integers(0, SHARDS - 1).map(ShardId)
batches = st.lists(shards, max_size=6)


def array(*numbers: int) -> ShardArray:
    return np.array(numbers, dtype=np.int32)


def arrive(receiver: Receiver, upstream: Peer, *numbers: int) -> None:
    """A batch whose content names each tuple: upstream, shard, position in the batch."""
    content = [f"{upstream}{shard}.{row}" for row, shard in enumerate(numbers)]
    receiver.arrive(upstream, content, array(*numbers), 10 * len(numbers), 0.0)


def names(parts: list[Part]) -> list[str]:
    return [part.batch.content[row] for part in parts for row in part.rows.tolist()]


def take(receiver: Receiver, slot: int, rows: int = 1000, one_upstream: bool = False) -> list[str]:
    parts, count = receiver.take(slot, rows, one_upstream=one_upstream)
    taken = names(parts)
    assert count == len(taken)
    assert [int(s) for part in parts for s in part.shards] == [int(name[1]) for name in taken]
    return taken


def two_tasks() -> tuple[Receiver, int, int]:
    """Shards 0 and 1 are with one task, 2 and 3 with another."""
    receiver = Receiver(SHARDS)
    one, other = receiver.add_slot(), receiver.add_slot()
    for shard in range(SHARDS):
        receiver.release(ShardId(shard), one if shard < 2 else other)
    return receiver, one, other


class AnyUse(RuleBasedStateMachine):
    """A receiver beside the plainest model of it: a queue for each upstream and shard."""

    def __init__(self) -> None:
        super().__init__()
        self.receiver = Receiver(SHARDS)
        self.slots = [self.receiver.add_slot(), self.receiver.add_slot()]
        self.freed: set[int] = set()
        self.slot_of: dict[ShardId, int | None] = dict.fromkeys(map(ShardId, range(SHARDS)))
        self.parked: set[Peer] = set()
        self.ahead: dict[Peer, list[tuple[ShardId, int]]] = {}
        self.waiting: dict[tuple[Peer, ShardId], deque[int]] = defaultdict(deque)
        self.serial = 0

    def available(self, slot: int) -> int:
        return sum(
            len(queue)
            for (upstream, shard), queue in self.waiting.items()
            if self.slot_of[shard] == slot and upstream not in self.parked
        )

    @rule(upstream=upstreams, batch=batches, singly=st.booleans())
    def tuples_arrive(self, upstream: Peer, batch: list[ShardId], singly: bool) -> None:
        content = list(range(self.serial, self.serial + len(batch)))
        self.serial += len(batch)
        if singly:
            numbers = [int(shard) for shard in batch]
            self.receiver.arrive_singly(upstream, content, numbers, 10 * len(batch), 0.0)
        else:
            self.receiver.arrive(upstream, content, array(*batch), 10 * len(batch), 0.0)
        for shard, serial in zip(batch, content, strict=True):
            if upstream in self.ahead:
                self.ahead[upstream].append((shard, serial))
            else:
                self.waiting[upstream, shard].append(serial)

    @rule(some=st.sets(shards))
    def hold(self, some: set[ShardId]) -> None:
        self.receiver.hold(some)
        for shard in some:
            self.slot_of[shard] = None

    @rule(shard=shards, which=st.integers(0, 9))
    def release(self, shard: ShardId, which: int) -> None:
        if self.slot_of[shard] is None:
            slot = self.slots[which % len(self.slots)]
            self.receiver.release(shard, slot)
            self.slot_of[shard] = slot

    @rule(upstream=upstreams)
    def park(self, upstream: Peer) -> None:
        self.receiver.park(upstream)
        self.parked.add(upstream)

    @precondition(lambda self: self.parked)
    @rule()
    def unpark(self) -> None:
        upstream = min(self.parked)
        self.parked.discard(upstream)
        self.receiver.unpark(upstream)

    @rule(upstream=upstreams)
    def upstream_ends_its_epoch(self, upstream: Peer) -> None:
        if upstream not in self.ahead:
            self.receiver.wait_ahead(upstream)
            self.ahead[upstream] = []

    @rule()
    def next_epoch(self) -> None:
        self.receiver.next_epoch()
        for upstream, tuples in self.ahead.items():
            for shard, serial in tuples:
                self.waiting[upstream, shard].append(serial)
        self.ahead = {}

    @precondition(lambda self: len(self.slots) < 4)
    @rule()
    def task_comes(self) -> None:
        slot = self.receiver.add_slot()
        assert slot not in self.slots
        assert not self.freed or slot in self.freed, "a freed slot is used again"
        self.freed.discard(slot)
        self.slots.append(slot)

    @rule(which=st.integers(0, 9))
    def task_goes(self, which: int) -> None:
        slot = self.slots[which % len(self.slots)]
        if len(self.slots) > 1 and slot not in self.slot_of.values():
            self.receiver.free_slot(slot)
            self.slots.remove(slot)
            self.freed.add(slot)

    @rule(which=st.integers(0, 9), rows=st.integers(1, 12), one_upstream=st.booleans())
    def take(self, which: int, rows: int, one_upstream: bool) -> None:
        slot = self.slots[which % len(self.slots)]
        available = self.available(slot)
        parts, count = self.receiver.take(slot, rows, one_upstream=one_upstream)
        assert count == sum(part.count for part in parts) <= rows + rows // 4
        if one_upstream:
            assert len({part.batch.upstream for part in parts}) <= 1
            assert count > 0 or available == 0
        else:
            assert 2 * count >= rows or count == available
        for part in parts:
            assert part.batch.upstream not in self.parked
            for row, shard in zip(part.rows.tolist(), part.shards.tolist(), strict=True):
                assert self.slot_of[shard] == slot
                oldest = self.waiting[part.batch.upstream, shard].popleft()
                assert part.batch.content[row] == oldest

    @invariant()
    def every_waiting_tuple_is_counted(self) -> None:
        count = sum(map(len, self.waiting.values()))
        assert self.receiver.waiting == count
        assert self.receiver.empty == (count == 0)

    @invariant()
    def a_task_has_a_queue_if_any_tuple_may_go_to_it(self) -> None:
        for slot in self.slots:
            assert self.receiver.queued(slot) == (self.available(slot) > 0)

    @invariant()
    def parked_is_who_was_parked(self) -> None:
        assert {peer for peer in (U, V, W) if self.receiver.parked(peer)} == self.parked

    def teardown(self) -> None:
        """Whatever happened before, in the end every tuple is handed out."""
        self.next_epoch()
        while self.parked:
            self.unpark()
        for shard in range(SHARDS):
            self.release(ShardId(shard), 0)
        for which in range(len(self.slots)):
            self.take(which, 10**6, one_upstream=False)
        assert not any(self.waiting.values())
        assert self.receiver.empty


TestNoTupleIsLostDoubledOrOvertaken = AnyUse.TestCase
TestNoTupleIsLostDoubledOrOvertaken.settings = settings(
    max_examples=150, stateful_step_count=40, deadline=None
)


def test_a_held_shard_holds_its_own_tuples_only() -> None:
    receiver, one, other = two_tasks()
    arrive(receiver, U, 0, 1, 2, 0)
    receiver.hold([ShardId(0)])
    arrive(receiver, V, 0, 1)
    assert take(receiver, one) == ["u1.1", "v1.1"]
    assert take(receiver, other) == ["u2.2"]
    assert receiver.waiting == 3
    receiver.release(ShardId(0), other)
    assert take(receiver, other) == ["u0.0", "u0.3", "v0.0"]
    assert not receiver.queued(one)


def test_shards_that_are_held_together_are_released_one_by_one() -> None:
    receiver, one, other = two_tasks()
    arrive(receiver, U, 0, 2, 1, 0, 3)
    arrive(receiver, V, 1, 0)
    receiver.hold([ShardId(0), ShardId(1), ShardId(2)])
    assert (take(receiver, one), take(receiver, other)) == ([], ["u3.4"])
    receiver.release(ShardId(1), other)
    assert take(receiver, other) == ["u1.2", "v1.0"]
    receiver.release(ShardId(0), one)
    assert take(receiver, one) == ["u0.0", "u0.3", "v0.1"]
    assert receiver.waiting == 1


def test_a_parked_upstream_keeps_back_its_own_tuples_only() -> None:
    receiver, one, other = two_tasks()
    arrive(receiver, U, 0, 2)
    arrive(receiver, V, 0, 2)
    receiver.park(U)
    arrive(receiver, U, 0)
    arrive(receiver, V, 1)
    assert take(receiver, one) == ["v0.0", "v1.0"]
    assert take(receiver, other) == ["v2.1"]
    receiver.unpark(U)
    assert take(receiver, one) == ["u0.0", "u0.0"]
    assert take(receiver, other) == ["u2.1"]


def test_what_is_parked_goes_to_the_owner_at_the_time_of_unparking() -> None:
    receiver, one, other = two_tasks()
    arrive(receiver, U, 0, 1)
    receiver.park(U)
    receiver.hold([ShardId(0)])
    receiver.release(ShardId(0), other)
    receiver.hold([ShardId(1)])
    receiver.unpark(U)
    assert (take(receiver, one), take(receiver, other)) == ([], ["u0.0"])
    receiver.release(ShardId(1), one)
    assert take(receiver, one) == ["u1.1"]


def test_tuples_ahead_of_the_epoch_are_not_counted_and_not_handed_out() -> None:
    receiver, one, _ = two_tasks()
    arrive(receiver, U, 0)
    receiver.wait_ahead(U)
    arrive(receiver, U, 1, 1)
    arrive(receiver, V, 1)
    assert receiver.waiting == 2
    assert take(receiver, one) == ["u0.0", "v1.0"]
    assert receiver.empty
    receiver.next_epoch()
    assert receiver.waiting == 2
    assert take(receiver, one) == ["u1.0", "u1.1"]


def test_what_was_ahead_is_taken_in_as_it_arrived_between_upstreams_too() -> None:
    receiver, one, _ = two_tasks()
    receiver.wait_ahead(U)
    receiver.wait_ahead(V)
    for upstream in (V, U, V):
        arrive(receiver, upstream, 0)
    receiver.next_epoch()
    assert take(receiver, one) == ["v0.0", "u0.0", "v0.0"]


steps = st.lists(
    st.tuples(st.just("arrive"), upstreams, shards)
    | st.tuples(st.sampled_from(["hold", "release", "take"]), st.none(), shards),
    min_size=20,
    max_size=60,
)


@settings(deadline=None)
@given(steps)
def test_tuples_of_a_shard_are_handed_out_as_they_arrived_from_whichever_upstream(
    history: list[tuple[str, Peer | None, ShardId]],
) -> None:
    receiver, *slots = two_tasks()
    taken: dict[str, list[int]] = defaultdict(list)
    for number, (what, upstream, shard) in enumerate(history):
        if what == "arrive":
            assert upstream is not None
            if number % 3:
                receiver.arrive(upstream, number, array(shard), 10, 0.0)
            else:
                receiver.arrive_singly(upstream, number, [int(shard)], 10, 0.0)
        elif what == "hold":
            receiver.hold([shard])
        elif what == "release":
            receiver.hold([shard])
            receiver.release(shard, slots[number % 2])
        else:
            for part in receiver.take(slots[number % 2], 3, one_upstream=False)[0]:
                taken[str(part.shards[0])].append(part.batch.content)
    assert all(order == sorted(order) for order in taken.values())


def test_few_tuples_are_parts_of_their_own_and_many_are_one() -> None:
    receiver, one, _ = two_tasks()
    receiver.arrive_singly(U, "few", [0, 0], 20, 0.0)
    receiver.arrive(U, "many", array(0, 0), 20, 0.0)
    taken, rows = receiver.take(one, 9, one_upstream=False)
    assert [(part.batch.content, part.rows.tolist()) for part in taken] == [
        ("few", [0]),
        ("few", [1]),
        ("many", [0, 1]),
    ]
    assert rows == 4


@pytest.mark.parametrize(("rows", "count"), [(8, 10), (7, 5), (10, 10), (3, 3)])
def test_a_quarter_more_is_taken_rather_than_a_part_split_unevenly(rows: int, count: int) -> None:
    receiver, one, _ = two_tasks()
    arrive(receiver, U, *[0] * 10)
    assert len(take(receiver, one, rows)) == count
    assert receiver.waiting == 10 - count


@pytest.mark.parametrize(("rows", "counts"), [(7, [4, 5, 5]), (9, [9, 5]), (12, [14])])
def test_as_little_as_half_is_taken_rather_than_a_part_split(rows: int, counts: list[int]) -> None:
    receiver, one, _ = two_tasks()
    arrive(receiver, U, *[0] * 4)
    arrive(receiver, U, *[0] * 5)
    arrive(receiver, V, *[0] * 5)
    assert [len(take(receiver, one, rows)) for _ in counts] == counts
    assert receiver.empty


def test_a_part_is_split_where_less_than_half_would_be_taken() -> None:
    receiver, one, _ = two_tasks()
    arrive(receiver, U, *[0] * 2)
    arrive(receiver, U, *[0] * 10)
    assert len(take(receiver, one, 8)) == 7
    assert receiver.waiting == 5


def test_a_chunk_for_one_upstream_ends_where_another_begins() -> None:
    receiver, one, _ = two_tasks()
    for upstream in (U, U, V):
        arrive(receiver, upstream, 0)
    assert take(receiver, one, one_upstream=True) == ["u0.0", "u0.0"]
    assert take(receiver, one, one_upstream=True) == ["v0.0"]


def test_clearing_forgets_tuples_wherever_they_wait_and_keeps_the_routing() -> None:
    receiver, one, other = two_tasks()
    receiver.hold([ShardId(3)])
    arrive(receiver, U, 0, 3)
    receiver.park(U)
    arrive(receiver, V, 0, 3)
    receiver.wait_ahead(V)
    arrive(receiver, V, 0, 3)
    receiver.clear()
    assert receiver.empty
    assert not receiver.parked(U)
    receiver.next_epoch()
    receiver.release(ShardId(3), other)
    assert (take(receiver, one), take(receiver, other)) == ([], [])
    arrive(receiver, V, 1, 2)
    assert (take(receiver, one), take(receiver, other)) == (["v1.0"], ["v2.1"])


def test_more_tasks_than_fit_in_a_byte_have_slots_of_their_own() -> None:
    receiver = Receiver(300)
    slots = [receiver.add_slot() for _ in range(300)]
    assert len(set(slots)) == 300
    for shard, slot in enumerate(slots):
        receiver.release(ShardId(shard), slot)
    receiver.arrive(U, list(range(300)), np.arange(300, dtype=np.int32)[::-1], 300, 0.0)
    for shard, slot in enumerate(slots):
        parts, count = receiver.take(slot, 9, one_upstream=False)
        assert count == 1
        assert parts[0].shards.tolist() == [shard]
        assert parts[0].rows.tolist() == [299 - shard]


def test_routing_is_kept_when_slots_outgrow_a_byte() -> None:
    receiver = Receiver(SHARDS)
    first = receiver.add_slot()
    receiver.release(ShardId(2), first)
    last = [receiver.add_slot() for _ in range(300)][-1]
    receiver.release(ShardId(3), last)
    arrive(receiver, U, 3, 2, 3)
    assert (take(receiver, first), take(receiver, last)) == (["u2.1"], ["u3.0", "u3.2"])


def test_freed_slots_are_used_again_before_new_ones_are_made() -> None:
    receiver = Receiver(SHARDS)
    slots = [receiver.add_slot() for _ in range(3)]
    receiver.free_slot(slots[0])
    receiver.free_slot(slots[2])
    assert {receiver.add_slot(), receiver.add_slot()} == {slots[0], slots[2]}
    assert receiver.add_slot() not in slots


def test_tuples_that_come_back_are_before_the_held_ones_of_their_shard() -> None:
    receiver, one, other = two_tasks()
    arrive(receiver, U, 0, 1, 0)
    parts, _ = receiver.take(one, 2, one_upstream=False)
    receiver.hold([ShardId(0)])
    arrive(receiver, U, 0)
    receiver.take_back(ShardId(0), [part.pick(part.shards == 0) for part in parts])
    assert receiver.waiting == 3
    receiver.release(ShardId(0), other)
    assert take(receiver, other) == ["u0.0", "u0.2", "u0.0"]


def test_tuples_that_come_back_to_a_parked_upstream_are_before_its_parked_ones() -> None:
    receiver, one, other = two_tasks()
    arrive(receiver, U, 0, 0, 0, 0)
    parts, _ = receiver.take(one, 2, one_upstream=False)
    arrive(receiver, U, 0)
    receiver.park(U)
    receiver.hold([ShardId(0)])
    receiver.take_back(ShardId(0), [half for part in parts for half in part.split(1)])
    receiver.release(ShardId(0), other)
    assert not receiver.queued(other)
    receiver.unpark(U)
    assert take(receiver, other) == ["u0.0", "u0.1", "u0.2", "u0.3", "u0.0"]
