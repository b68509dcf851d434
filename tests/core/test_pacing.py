"""How often participants report, and how often sources send."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticutor.core.measure.pacing import (
    LEAST_GAP_S,
    MOST_GAP_S,
    MOST_REPORTS_S,
    USUAL_GAP_S,
    next_gap_s,
    report_every_s,
)
from elasticutor.errors import BadValueError


@pytest.mark.parametrize("senders", [0, 1, 8, 125])
def test_small_runs_report_as_often_as_asked(senders: int) -> None:
    assert report_every_s(0.25, senders) == 0.25


@given(st.floats(0.001, 60.0), st.integers(0, 100_000))
def test_the_driver_never_gets_more_than_it_can_take_nor_more_often_than_asked(
    asked_s: float, senders: int
) -> None:
    every_s = report_every_s(asked_s, senders)
    assert every_s >= asked_s
    assert senders / every_s <= MOST_REPORTS_S * (1 + 1e-9)


def test_never_stays_never() -> None:
    assert report_every_s(0.0, 10_000) == 0.0


@pytest.mark.parametrize(("asked_s", "senders"), [(-1.0, 1), (math.nan, 1), (0.25, -1)])
def test_what_cannot_be_is_refused(asked_s: float, senders: int) -> None:
    with pytest.raises(BadValueError, match="be at least 0"):
        report_every_s(asked_s, senders)


def settled(gap_s: float, idle: float) -> float:
    for _ in range(20):
        gap_s = next_gap_s(gap_s, idle)
    return gap_s


gaps = st.floats(LEAST_GAP_S, MOST_GAP_S)


@given(gaps)
def test_packets_get_rare_on_a_busy_machine_and_frequent_on_an_easy_one(gap_s: float) -> None:
    assert settled(gap_s, idle=0.01) == MOST_GAP_S
    assert settled(gap_s, idle=0.5) == LEAST_GAP_S
    assert settled(gap_s, idle=0.09) == max(gap_s, USUAL_GAP_S)
    assert settled(gap_s, idle=0.14) == min(gap_s, USUAL_GAP_S)


@pytest.mark.parametrize("sources", [1, 2, 3])
@pytest.mark.parametrize("load", [0.3, 0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85])
def test_the_gap_settles_though_packets_cost_time_themselves(sources: int, load: float) -> None:
    gap_s, seen = MOST_GAP_S, list[float]()
    for _ in range(100):
        idle = max(0.0, 1.0 - load - sources * 0.000_2 / gap_s / 2)  # two CPUs, 0.2 ms a packet
        gap_s = next_gap_s(gap_s, idle)
        seen.append(gap_s)
    assert len(set(seen[-20:])) == 1


@given(gaps, st.floats(0.0, 1.0))
def test_the_gap_between_packets_stays_within_its_bounds(gap_s: float, idle: float) -> None:
    assert LEAST_GAP_S <= next_gap_s(gap_s, idle) <= MOST_GAP_S


@pytest.mark.parametrize(
    ("gap_s", "idle"),
    [(0.002, 0.09), (0.001, 0.09), (0.001, 0.14), (0.000_5, 0.14), (0.000_5, 0.2)],
)
def test_where_idle_time_is_neither_scarce_nor_plenty_the_gap_stays(
    gap_s: float, idle: float
) -> None:
    assert next_gap_s(gap_s, idle) == gap_s
