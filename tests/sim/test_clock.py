"""Virtual time."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticutor.errors import BadValueError
from elasticutor.lab.sim.clock import Clock

Log = list[tuple[float, object]]


def run(clock: Clock) -> None:
    while clock.step():
        pass


def test_nothing_happens_by_itself() -> None:
    clock = Clock()
    assert not clock.step()
    assert clock.now == 0.0


def test_time_passes_from_one_thing_to_the_next() -> None:
    clock, log = Clock(), []
    clock.at(2.5, lambda: log.append(clock.now))
    clock.at(1.5, lambda: log.append(clock.now))
    assert clock.now == 0.0
    assert (clock.step(), log) == (True, [1.5])
    assert (clock.step(), log) == (True, [1.5, 2.5])
    assert (clock.step(), clock.now) == (False, 2.5)


def test_a_delay_counts_from_now() -> None:
    clock = Clock()
    log: Log = []

    def first() -> None:
        log.append((clock.now, "first"))
        clock.after(1.5, second, "x", "y")

    def second(*args: str) -> None:
        log.append((clock.now, args))

    clock.after(1.0, first)
    run(clock)
    assert log == [(1.0, "first"), (2.5, ("x", "y"))]


def test_what_is_asked_for_now_happens_behind_all_else_that_is_due_now() -> None:
    clock = Clock()
    log: list[str] = []
    clock.at(1.0, lambda: clock.after(0.0, log.append, "asked last"))
    clock.at(1.0, log.append, "asked first")
    clock.at(1.5, log.append, "later")
    run(clock)
    assert log == ["asked first", "asked last", "later"]


@given(st.lists(st.integers(0, 5)))
def test_things_happen_in_the_order_of_their_times_and_then_of_asking(times: list[int]) -> None:
    clock = Clock()
    log: Log = []
    for number, time in enumerate(times):
        clock.at(time, lambda n: log.append((clock.now, n)), number)
    run(clock)
    assert log == sorted((time, number) for number, time in enumerate(times))


def test_actions_need_not_be_comparable() -> None:
    clock = Clock()
    log: list[object] = []
    for item in ({}, object(), 1j):
        clock.at(1.0, log.append, item)
    run(clock)
    assert len(log) == 3


def test_nothing_can_be_asked_for_in_the_past() -> None:
    clock = Clock()
    clock.after(1.0, lambda: None)
    clock.step()
    for time in (0.5, math.nan):
        with pytest.raises(BadValueError, match="time of an action"):
            clock.at(time, lambda: None)


@given(st.lists(st.floats(0.0, 10.0), max_size=30))
def test_a_run_keeps_the_order_of_times_and_then_of_asking(
    times: list[float],
) -> None:
    clock = Clock()
    log: list[tuple[float, int]] = []
    for number, time in enumerate(times):
        clock.at(time, log.append, (time, number))
    clock.run(until=10.0)
    assert log == sorted(log)
    assert clock.events == len(times)


def test_what_is_due_later_is_kept_and_the_clock_stands_at_the_end() -> None:
    clock, log = Clock(now=-1.0), list[float]()
    clock.at(2.0, log.append, 2.0)
    clock.run(until=1.0)
    assert (log, clock.now) == ([], 1.0)
    clock.run(until=2.0)
    assert log == [2.0]


def test_what_happens_can_ask_for_more() -> None:
    clock, log = Clock(), list[float]()

    def again() -> None:
        log.append(clock.now)
        if clock.now < 3.0:
            clock.at(clock.now + 1.0, again)

    clock.at(1.0, again)
    clock.run(until=10.0)
    assert log == [1.0, 2.0, 3.0]


def test_events_are_counted_also_when_one_of_them_fails() -> None:
    def fail() -> None:
        raise RuntimeError

    clock = Clock()
    clock.at(1.0, list[int]().append, 1)
    clock.at(2.0, fail)
    with pytest.raises(RuntimeError):
        clock.run(until=3.0)
    assert (clock.events, clock.now) == (2, 2.0)
