import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticutor.errors import BadValueError
from elasticutor.lab.check.world.kernel import Channel, Kernel

Log = list[tuple[float, object]]


def run(kernel: Kernel) -> None:
    while kernel.step():
        pass


# Virtual time -------------------------------------------------------------------------------------


def test_nothing_happens_by_itself() -> None:
    kernel = Kernel()
    assert not kernel.step()
    assert kernel.now == 0.0


def test_time_passes_from_one_thing_to_the_next() -> None:
    kernel, log = Kernel(), []
    kernel.at(2.5, lambda: log.append(kernel.now))
    kernel.at(1.5, lambda: log.append(kernel.now))
    assert kernel.now == 0.0
    assert (kernel.step(), log) == (True, [1.5])
    assert (kernel.step(), log) == (True, [1.5, 2.5])
    assert (kernel.step(), kernel.now) == (False, 2.5)


def test_a_delay_counts_from_now() -> None:
    kernel = Kernel()
    log: Log = []

    def first() -> None:
        log.append((kernel.now, "first"))
        kernel.after(1.5, second, "x", "y")

    def second(*args: str) -> None:
        log.append((kernel.now, args))

    kernel.after(1.0, first)
    run(kernel)
    assert log == [(1.0, "first"), (2.5, ("x", "y"))]


def test_what_is_asked_for_now_happens_behind_all_else_that_is_due_now() -> None:
    kernel = Kernel()
    log: list[str] = []
    kernel.at(1.0, lambda: kernel.after(0.0, log.append, "asked last"))
    kernel.at(1.0, log.append, "asked first")
    kernel.at(1.5, log.append, "later")
    run(kernel)
    assert log == ["asked first", "asked last", "later"]


@given(st.lists(st.integers(0, 5)))
def test_things_happen_in_the_order_of_their_times_and_then_of_asking(times: list[int]) -> None:
    kernel = Kernel()
    log: Log = []
    for number, time in enumerate(times):
        kernel.at(time, lambda n: log.append((kernel.now, n)), number)
    run(kernel)
    assert log == sorted((time, number) for number, time in enumerate(times))


def test_actions_need_not_be_comparable() -> None:
    kernel = Kernel()
    log: list[object] = []
    for item in ({}, object(), 1j):
        kernel.at(1.0, log.append, item)
    run(kernel)
    assert len(log) == 3


# Channels -----------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.floats(0, 10), st.floats(0, 10)), max_size=20))
def test_a_channel_delivers_in_the_order_of_sending_and_never_early(
    messages: list[tuple[float, float]],
) -> None:
    kernel = Kernel()
    sent: list[tuple[float, int]] = []
    arrived: list[tuple[float, int]] = []
    delays = iter(delay for _, delay in messages)
    taken: list[float] = []

    def delay() -> float:
        taken.append(next(delays))
        return taken[-1]

    channel = Channel(kernel, delay, lambda message: arrived.append((kernel.now, message)))

    def send(number: int) -> None:
        sent.append((kernel.now, number))
        channel.send(number)

    for number, (time, _) in enumerate(messages):
        kernel.at(time, send, number)
    run(kernel)
    assert [number for _, number in arrived] == [number for _, number in sent]
    earliest = 0.0
    for (sent_at, _), took, (arrived_at, _) in zip(sent, taken, arrived, strict=True):
        earliest = max(earliest, sent_at + took)
        assert arrived_at == earliest  # after its own delay, or behind a slower one


def test_channels_do_not_wait_for_each_other() -> None:
    kernel = Kernel()
    log: Log = []
    slow = Channel(kernel, lambda: 5.0, lambda message: log.append((kernel.now, message)))
    fast = Channel(kernel, lambda: 1.0, lambda message: log.append((kernel.now, message)))
    slow.send("slow")
    fast.send("fast")
    run(kernel)
    assert log == [(1.0, "fast"), (5.0, "slow")]


@pytest.mark.parametrize(
    ("cut_at", "arrived"), [(0.5, []), (1.5, ["first"]), (2.5, ["first", "second"])]
)
def test_a_cut_channel_loses_what_is_under_way_and_all_that_follows(
    cut_at: float, arrived: list[str]
) -> None:
    kernel = Kernel()
    log: list[str] = []
    channel = Channel(kernel, lambda: 1.0, log.append)
    kernel.at(0.0, channel.send, "first")
    kernel.at(1.0, channel.send, "second")
    kernel.at(cut_at, channel.cut)
    kernel.at(3.0, channel.send, "third")
    run(kernel)
    assert log == arrived


def test_nothing_can_be_asked_for_in_the_past() -> None:
    kernel = Kernel()
    kernel.after(1.0, lambda: None)
    kernel.step()
    for time in (0.5, math.nan):
        with pytest.raises(BadValueError, match="time of an action"):
            kernel.at(time, lambda: None)
