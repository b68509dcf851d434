"""Failures are put up with as long as there is progress."""

from __future__ import annotations

import pytest

from elasticutor.core.run.restart_policy import RestartPolicy
from elasticutor.errors import BadValueError


def test_the_same_failure_is_put_up_with_so_often_and_no_more() -> None:
    patience = RestartPolicy(most=3)
    assert [patience.failed("a task") for _ in range(5)] == [True, True, True, False, False]


def test_progress_makes_up_for_failures() -> None:
    patience = RestartPolicy(most=2)
    for _ in range(10):
        assert patience.failed("a task")
        assert patience.failed("a task")
        patience.progressed()


def test_many_parts_may_be_lost_at_once() -> None:
    patience = RestartPolicy(most=1)
    assert all(patience.failed(f"node {number}") for number in range(100))
    assert patience.failures == 100
    assert not patience.failed("node 7")


def test_tries_are_further_and_further_apart_but_not_without_end() -> None:
    patience = RestartPolicy(most=99)
    pauses = []
    for _ in range(30):
        patience.failed("a task")
        pauses.append(patience.pause_s)
    assert pauses[:2] == [0.0, 0.02]
    assert pauses == sorted(pauses)
    assert pauses[-1] == 5.0
    patience.progressed()
    patience.failed("a task")
    assert patience.pause_s == 0.0


def test_no_restarts_means_that_the_first_failure_is_the_last() -> None:
    assert not RestartPolicy(most=0).failed("a task")


@pytest.mark.parametrize("most", [-1, 1.5, True, "3"])
def test_a_limit_is_a_whole_number(most: int) -> None:
    with pytest.raises(BadValueError, match="restarts must be a whole number"):
        RestartPolicy(most)


def test_a_summary_tells_what_has_failed_since_the_last_progress() -> None:
    patience = RestartPolicy(most=5)
    patience.failed("the sink")
    patience.progressed()
    patience.failed("a task")
    patience.failed("a node")
    patience.failed("a task")
    assert patience.summary() == "a task 2 times, a node 1 times"
