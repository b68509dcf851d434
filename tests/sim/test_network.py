import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elasticutor.lab.check.world.network import Address, Channel, Network
from elasticutor.lab.sim.clock import Clock


def run(clock: Clock) -> None:
    while clock.step():
        pass


# Channels -----------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.floats(0, 10), st.floats(0, 10)), max_size=20))
def test_a_channel_delivers_in_the_order_of_sending_and_never_early(
    messages: list[tuple[float, float]],
) -> None:
    clock = Clock()
    sent: list[tuple[float, int]] = []
    arrived: list[tuple[float, int]] = []
    delays = iter(delay for _, delay in messages)
    taken: list[float] = []

    def delay() -> float:
        taken.append(next(delays))
        return taken[-1]

    channel = Channel(clock, delay, lambda message: arrived.append((clock.now, message)))

    def send(number: int) -> None:
        sent.append((clock.now, number))
        channel.send(number)

    for number, (time, _) in enumerate(messages):
        clock.at(time, send, number)
    run(clock)
    assert [number for _, number in arrived] == [number for _, number in sent]
    earliest = 0.0
    for (sent_at, _), took, (arrived_at, _) in zip(sent, taken, arrived, strict=True):
        earliest = max(earliest, sent_at + took)
        assert arrived_at == earliest  # after its own delay, or behind a slower one


def test_channels_do_not_wait_for_each_other() -> None:
    clock = Clock()
    log: list[tuple[float, object]] = []
    slow = Channel(clock, lambda: 5.0, lambda message: log.append((clock.now, message)))
    fast = Channel(clock, lambda: 1.0, lambda message: log.append((clock.now, message)))
    slow.send("slow")
    fast.send("fast")
    run(clock)
    assert log == [(1.0, "fast"), (5.0, "slow")]


@pytest.mark.parametrize(
    ("cut_at", "arrived"), [(0.5, []), (1.5, ["first"]), (2.5, ["first", "second"])]
)
def test_a_cut_channel_loses_what_is_under_way_and_all_that_follows(
    cut_at: float, arrived: list[str]
) -> None:
    clock = Clock()
    log: list[str] = []
    channel = Channel(clock, lambda: 1.0, log.append)
    clock.at(0.0, channel.send, "first")
    clock.at(1.0, channel.send, "second")
    clock.at(cut_at, channel.cut)
    clock.at(3.0, channel.send, "third")
    run(clock)
    assert log == arrived


# Networks -----------------------------------------------------------------------------------------

A, B, C = Address("a"), Address("b"), Address("c")


class Rig:
    """Three processes that write down what they get."""

    def __init__(self, seed: int = 0, delay: Callable[[], float] = lambda: 1.0) -> None:
        self.clock = Clock()
        self.network = Network(self.clock, random.Random(seed), delay)
        self.log: list[tuple[float, Address, Address, Any]] = []
        for address in (A, B, C):
            self.join(address)

    def join(self, address: Address) -> None:
        def receive(sender: Address, message: Any) -> None:
            self.log.append((self.clock.now, sender, address, message))

        self.network.join(address, receive)

    def run(self) -> None:
        run(self.clock)

    def got(self) -> list[tuple[Address, Address, Any]]:
        self.run()
        return [(sender, receiver, message) for _, sender, receiver, message in self.log]


def test_a_message_reaches_whom_it_is_for_and_says_from_whom() -> None:
    rig = Rig()
    rig.network.send(A, B, "hello")
    assert rig.log == []
    rig.run()
    assert rig.log == [(1.0, A, B, "hello")]


pairs = st.sampled_from([(A, B), (B, A), (A, C), (C, B), (A, A)])


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), pairs), max_size=30), st.integers(0, 1000))
def test_between_two_processes_order_is_kept_and_nothing_is_lost_or_doubled(
    messages: list[tuple[int, tuple[Address, Address]]], seed: int
) -> None:
    rng = random.Random(seed)
    rig = Rig(delay=lambda: rng.choice([0.0, 0.5, 3.0, 10.0]))
    expected: dict[tuple[Address, Address], list[int]] = {}
    ordered = sorted(enumerate(messages), key=lambda item: (item[1][0], item[0]))
    for number, (time, (source, destination)) in ordered:
        rig.clock.at(time, rig.network.send, source, destination, number)
        expected.setdefault((source, destination), []).append(number)
    found: dict[tuple[Address, Address], list[int]] = {}
    for source, destination, number in rig.got():
        found.setdefault((source, destination), []).append(number)
    assert found == expected


def test_one_pair_does_not_wait_for_another() -> None:
    delays = iter([5.0, 1.0, 1.0])
    rig = Rig(delay=lambda: next(delays))
    rig.network.send(A, B, "slow")
    rig.network.send(A, C, "other receiver")
    rig.network.send(C, B, "other sender")
    assert [message for *_, message in rig.got()] == ["other receiver", "other sender", "slow"]


def test_who_leaves_changes_nothing_for_the_others() -> None:
    rig = Rig()
    rig.network.leave(A)
    rig.network.leave(Address("stranger"))
    rig.network.send(B, C, "hello")
    assert rig.got() == [(B, C, "hello")]


def test_nothing_is_sent_to_or_from_who_is_not_there() -> None:
    rig = Rig()
    rig.network.leave(A)
    rig.network.send(A, B, "from the dead")
    rig.network.send(B, A, "to the dead")
    rig.network.send(B, Address("stranger"), "to nobody")
    rig.network.send(Address("stranger"), B, "from nobody")
    assert rig.got() == []


@pytest.mark.parametrize("seed", range(10))
def test_the_dead_get_nothing_though_it_was_on_its_way(seed: int) -> None:
    rig = Rig(seed)
    rig.network.send(A, B, "to the dead")
    rig.network.send(A, C, "to the living")
    rig.network.send(C, A, "to the sender")
    rig.clock.at(0.5, rig.network.leave, B)
    assert rig.got() == [(A, C, "to the living"), (C, A, "to the sender")]


def test_what_the_dead_had_sent_arrives_or_is_lost_as_a_whole() -> None:
    outcomes = set()
    for seed in range(50):
        rig = Rig(seed)
        rig.network.send(A, B, 1)
        rig.clock.at(0.5, rig.network.send, A, B, 2)
        rig.clock.at(0.5, rig.network.send, A, C, 3)
        rig.clock.at(0.5, rig.network.send, B, C, 4)
        rig.clock.at(1.25, rig.network.leave, A)
        outcomes.add(tuple(message for *_, message in rig.got()))
    assert outcomes == {(1, 4), (1, 2, 3, 4)}


def test_the_same_seed_gives_the_same_losses() -> None:
    def outcome(seed: int) -> list[Any]:
        rig = Rig(seed)
        rig.network.send(A, C, "from a")
        rig.network.send(B, C, "from b")
        rig.network.leave(A)
        rig.network.leave(B)
        return rig.got()

    assert all(outcome(seed) == outcome(seed) for seed in range(20))


def test_survivors_go_on_talking() -> None:
    rig = Rig()
    rig.network.send(A, B, 1)
    rig.network.send(A, C, 2)
    rig.network.leave(C)
    rig.network.send(A, B, 3)
    rig.network.send(B, A, 4)
    assert rig.got() == [(A, B, 1), (A, B, 3), (B, A, 4)]


def test_who_joins_later_is_reached() -> None:
    rig = Rig()
    late = Address("late")
    rig.network.send(A, late, "too early")
    rig.join(late)
    rig.network.send(A, late, "in time")
    assert rig.got() == [(A, late, "in time")]
