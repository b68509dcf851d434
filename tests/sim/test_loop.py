"""Virtual time for many events."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticutor.lab.sim.loop import Loop


@given(st.lists(st.floats(0.0, 10.0), max_size=30))
def test_everything_happens_in_the_order_of_its_time_and_then_of_asking(times: list[float]) -> None:
    loop = Loop()
    log: list[tuple[float, int]] = []
    for number, time in enumerate(times):
        loop.at(time, log.append, (time, number))
    loop.run(until=10.0)
    assert log == sorted(log)
    assert loop.events == len(times)


def test_what_is_due_later_is_kept_and_the_clock_stands_at_the_end() -> None:
    loop, log = Loop(now=-1.0), list[float]()
    loop.at(2.0, log.append, 2.0)
    loop.run(until=1.0)
    assert (log, loop.now) == ([], 1.0)
    loop.run(until=2.0)
    assert log == [2.0]


def test_what_happens_can_ask_for_more() -> None:
    loop, log = Loop(), list[float]()

    def again(_: Any) -> None:
        log.append(loop.now)
        if loop.now < 3.0:
            loop.at(loop.now + 1.0, again)

    loop.at(1.0, again)
    loop.run(until=10.0)
    assert log == [1.0, 2.0, 3.0]


def test_events_are_counted_also_when_one_of_them_fails() -> None:
    def fail(_: Any) -> None:
        raise RuntimeError

    loop = Loop()
    loop.at(1.0, list[int]().append, 1)
    loop.at(2.0, fail)
    with pytest.raises(RuntimeError):
        loop.run(until=3.0)
    assert (loop.events, loop.now) == (2, 2.0)


def test_a_seal_tells_runs_apart_by_time_order_and_action() -> None:
    def sealed(*times: float, to: Any = None) -> int:
        loop, log = Loop(sealed=True), list[Any]()
        for time in times:
            loop.at(time, to or log.append)
        loop.run(until=10.0)
        return loop.seal

    assert sealed(1.0, 2.0) == sealed(1.0, 2.0)
    assert len({sealed(1.0, 2.0), sealed(1.0, 2.5), sealed(2.0, 1.0), sealed(1.0, 2.0, to=id)}) == 4
