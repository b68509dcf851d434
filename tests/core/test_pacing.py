"""How often participants report."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticutor.core.pacing import MOST_REPORTS_S, report_every_s
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
