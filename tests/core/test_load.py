import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticutor.core.measure.load import ShardLoads
from elasticutor.errors import BadValueError

SHARDS = 4
NONE_WAITING = np.zeros(SHARDS, dtype=np.int64)


def ints(*values: int) -> npt.NDArray[np.int64]:
    return np.array(values, dtype=np.int64)


def floats(*values: float) -> npt.NDArray[np.float64]:
    return np.array(values, dtype=np.float64)


def measured(loads: ShardLoads) -> npt.NDArray[np.float64]:
    return loads.loads(NONE_WAITING, horizon_s=1.0)


def state_of(loads: ShardLoads) -> dict[str, Any]:
    return {
        name: value.tolist() if isinstance(value, np.ndarray) else value
        for name, value in vars(loads).items()
    }


@given(
    st.lists(st.floats(1e-3, 10), min_size=1, max_size=20),
    st.lists(st.floats(0, 8), min_size=SHARDS, max_size=SHARDS),
    st.floats(1e-3, 100),
)
def test_steady_work_is_seen_as_it_is_from_the_first_update_on(
    intervals: list[float], work: list[float], half_life_s: float
) -> None:
    now = 1000.0
    loads = ShardLoads(SHARDS, half_life_s, now)
    for interval in intervals:
        elapsed, now = (now + interval) - now, now + interval
        loads.add(ints(1, 1, 1, 1), floats(*work) * elapsed)
        loads.update(now)
        assert measured(loads) == pytest.approx(floats(*work))


def test_what_was_measured_counts_half_after_a_half_life() -> None:
    loads = ShardLoads(SHARDS, 2.0, 0.0)
    loads.add(ints(1, 1, 1, 1), floats(0, 100, 200, 400))
    loads.update(100.0)  # so long that the start is forgotten
    loads.update(102.0)
    assert measured(loads) == pytest.approx(floats(0, 0.5, 1, 2))
    loads.update(106.0)
    assert measured(loads) == pytest.approx(floats(0, 0.125, 0.25, 0.5))


def test_new_work_counts_half_after_a_half_life() -> None:
    loads = ShardLoads(SHARDS, 1.0, 0.0)
    loads.update(100.0)
    loads.add(ints(0, 0, 2, 0), floats(0, 0, 1, 0))
    loads.update(101.0)
    assert measured(loads) == pytest.approx(floats(0, 0, 0.5, 0))


def test_work_is_not_seen_before_an_update_and_not_counted_twice() -> None:
    loads = ShardLoads(SHARDS, 1.0, 0.0)
    loads.add(ints(1, 0, 0, 0), floats(1, 0, 0, 0))
    assert measured(loads).tolist() == [0.0] * SHARDS
    loads.update(1.0)
    assert measured(loads) == pytest.approx(floats(1, 0, 0, 0))
    loads.update(1.0)
    assert measured(loads) == pytest.approx(floats(1, 0, 0, 0))


def test_work_added_before_an_update_without_time_is_kept() -> None:
    loads = ShardLoads(SHARDS, 1.0, 5.0)
    loads.add(ints(1, 0, 0, 0), floats(1, 0, 0, 0))
    loads.update(5.0)
    loads.update(7.0)
    assert measured(loads) == pytest.approx(floats(0.5, 0, 0, 0))


def test_a_sudden_hot_key_is_seen_in_its_backlog_at_once() -> None:
    """A minute of even load; then, within one balancing interval, 500 rows of one shard."""
    loads = ShardLoads(SHARDS, half_life_s=10.0, now=0.0)
    for tick in range(1, 601):
        loads.add(ints(1, 1, 1, 1), floats(*[0.001] * SHARDS))
        loads.update(tick / 10)
    assert measured(loads) == pytest.approx(floats(0.01, 0.01, 0.01, 0.01))

    seen = loads.loads(ints(0, 0, 500, 0), horizon_s=0.1)
    assert seen == pytest.approx(floats(0.01, 0.01, 0.01 + 500 * 0.001 / 0.1, 0.01))


def test_cost_per_row_is_the_shards_own_else_the_mean_else_nothing() -> None:
    loads = ShardLoads(SHARDS, 1.0, 0.0)
    assert loads.costs().tolist() == loads.loads(ints(0, 4, 0, 0), 2.0).tolist() == [0.0] * SHARDS
    loads.add(ints(1, 3, 0, 0), floats(1, 1, 0, 0))
    loads.update(1.0)
    assert loads.costs() == pytest.approx(floats(1, 1 / 3, 0.5, 0.5))


def test_cost_per_row_follows_what_was_measured_lately() -> None:
    loads = ShardLoads(SHARDS, 1.0, 0.0)
    loads.add(ints(1, 0, 0, 0), floats(1, 0, 0, 0))
    loads.update(1.0)
    loads.add(ints(1, 0, 0, 0), floats(4, 0, 0, 0))
    loads.update(2.0)
    # The older row counts half.
    assert loads.costs()[0] == pytest.approx((0.5 * 1 + 4) / 1.5)


@pytest.mark.parametrize(("silence_s", "cost_s"), [(1, 0.5), (25, 0.5), (35, 0.0), (1073, 0.0)])
def test_cost_per_row_outlives_silence_and_is_forgotten_in_the_end(
    silence_s: float, cost_s: float
) -> None:
    """After 1073 half-lives 0.25 is the smallest float there is: not a number to divide by."""
    loads = ShardLoads(SHARDS, 1.0, 0.0)
    loads.add(ints(1, 0, 0, 0), floats(0.5, 0, 0, 0))
    loads.update(1.0)
    loads.update(1.0 + silence_s)
    assert loads.costs() == pytest.approx(floats(*[cost_s] * SHARDS))


def test_refusals_leave_everything_as_it_was() -> None:
    loads = ShardLoads(SHARDS, 1.0, 10.0)
    loads.add(ints(1, 1, 0, 0), floats(0.25, 0.25, 0, 0))
    loads.update(11.0)
    loads.add(ints(0, 1, 0, 0), floats(0, 0.25, 0, 0))
    before = state_of(loads)

    for now in (10.9, math.nan, math.inf, -math.inf):
        with pytest.raises(BadValueError, match="now"):
            loads.update(now)
    for bad in (-1.0, 0.0, math.nan, math.inf):
        with pytest.raises(BadValueError, match="horizon"):
            loads.loads(NONE_WAITING, bad)
    with pytest.raises(BadValueError, match="waiting rows"):
        loads.loads(ints(0, 0, 0, -1), 1.0)
    with pytest.raises(BadValueError, match="waiting rows"):
        loads.loads(ints(0), 1.0)

    assert state_of(loads) == before


@pytest.mark.parametrize(
    ("shards", "half_life_s", "now"),
    [
        (0, 1.0, 0.0),
        (1, 0.0, 0.0),
        (1, -1.0, 0.0),
        (1, math.nan, 0.0),
        (1, math.inf, 0.0),
        (1, 1.0, math.nan),
    ],
)
def test_impossible_settings_are_refused(shards: int, half_life_s: float, now: float) -> None:
    with pytest.raises(BadValueError):
        ShardLoads(shards, half_life_s, now)


def test_the_answer_is_the_callers_to_change() -> None:
    loads = ShardLoads(SHARDS, 1.0, 0.0)
    measured(loads)[:] = 7
    loads.costs()[:] = 7
    assert measured(loads).tolist() == [0.0] * SHARDS


def test_chance_falls_with_the_rows_that_count_and_with_the_share_of_what_was_measured() -> None:
    loads = ShardLoads(1, half_life_s=math.log(2.0) / 2, now=0.0)
    loads.add(ints(400), floats(1))  # as many as count, all in all
    loads.update(1.0)
    assert loads.noise(tasks=4, total=1.0) == pytest.approx(0.1)
    assert loads.noise(tasks=4, total=2.0) == pytest.approx(0.05)
