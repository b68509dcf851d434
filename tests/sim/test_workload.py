"""Keys, shuffles, and the times at which tuples are due."""

from __future__ import annotations

import math

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticutor.core.keys import key_hashes
from elasticutor.errors import BadValueError
from elasticutor.lab.sim.workload import Arrivals, KeySpace, KeyStream, shuffle_times, zipf_weights


def space(keys: int = 50, skew: float = 1.0, seed: int = 1) -> KeySpace:
    return KeySpace(keys, skew, np.random.default_rng(seed))


def test_shares_fall_with_the_rank_and_sum_up_to_one() -> None:
    weights = zipf_weights(10_000, 0.5)
    assert weights.sum() == pytest.approx(1.0)
    assert weights[0] / weights[3] == pytest.approx(2.0)
    assert 1 / weights[0] == pytest.approx(198.5, abs=0.1)


def test_without_skew_all_keys_are_alike() -> None:
    assert len(set(zipf_weights(7, 0.0).tolist())) == 1


@pytest.mark.parametrize(("keys", "skew"), [(0, 1.0), (3, -1.0), (3, math.inf), (3, math.nan)])
def test_distributions_that_cannot_be_are_refused(keys: int, skew: float) -> None:
    with pytest.raises(BadValueError):
        zipf_weights(keys, skew)


def test_drawn_keys_follow_their_shares() -> None:
    keys = space()
    drawn = KeyStream(keys, np.random.default_rng(2)).draw(200_000)
    seen = np.bincount(drawn, minlength=50) / len(drawn)
    assert np.abs(seen - keys.shares()).max() < 0.005


def test_a_shuffle_shows_in_the_very_next_key_although_ranks_are_drawn_ahead() -> None:
    keys = space(keys=1000)
    stream, twin = (KeyStream(keys, np.random.default_rng(2)) for _ in range(2))
    stream.draw(10), twin.draw(10)
    before = keys.key_of_rank
    unshuffled = stream.draw(500)
    keys.shuffle()
    shuffled = twin.draw(500)
    rank_of = np.argsort(before)
    assert shuffled.tolist() == keys.key_of_rank[rank_of[unshuffled]].tolist()


def test_a_stream_can_be_kept_to_some_keys() -> None:
    among = np.array([3, 7, 11])
    drawn = KeyStream(space(), np.random.default_rng(2), among=among).draw(1000)
    assert set(drawn.tolist()) == {3, 7, 11}


def test_keys_are_hashed_as_everywhere() -> None:
    assert space(keys=5).hashes.tolist() == key_hashes(pa.array(range(5))).tolist()


@given(st.floats(10.0, 1e5), st.integers(0, 100))
def test_even_arrivals_come_at_equal_times_from_somewhere_in_the_first_interval(
    rate: float, seed: int
) -> None:
    arrivals = Arrivals(rate, np.random.default_rng(seed), start=1.0, end=2.0, even=True)
    times = arrivals.due(3.0, most=10**6)
    assert 1.0 <= times[0] <= 1.0 + 1.0 / rate
    assert np.allclose(np.diff(times), 1.0 / rate)
    assert len(times) in (math.floor(rate), math.ceil(rate))


@given(st.floats(0.1, 100), st.floats(0.1, 100))
def test_shuffles_come_evenly_and_within_the_time(omega: float, seconds: float) -> None:
    times = shuffle_times(omega, seconds)
    every = 60 / omega
    assert all(0 < time < seconds for time in times)
    assert len(times) in (math.floor(seconds / every), math.ceil(seconds / every))
    if times:
        assert times[0] == pytest.approx(every / 2)
        assert np.allclose(np.diff(times), every)


def test_without_omega_nothing_is_shuffled() -> None:
    assert shuffle_times(0, 60) == []


@given(st.lists(st.floats(0, 0.05), max_size=30), st.integers(1, 50))
def test_every_tuple_is_due_once_however_often_one_asks(steps: list[float], most: int) -> None:
    def arrivals() -> Arrivals:
        return Arrivals(1000.0, np.random.default_rng(3))

    asked, now, taken = arrivals(), 0.0, []
    for step in steps:
        now += step
        taken += asked.due(now, most).tolist()
    whole = arrivals().due(now, 1_000_000).tolist()
    assert taken == whole[: len(taken)]
    following = [*whole, math.inf][len(taken)]
    assert asked.next_s() == following or following == math.inf


def test_arrivals_come_at_their_rate_between_start_and_end() -> None:
    arrivals = Arrivals(10_000.0, np.random.default_rng(4), start=2.0, end=3.0)
    times = arrivals.due(10.0, 1_000_000)
    assert len(times) == pytest.approx(10_000, rel=0.05)
    assert times.min() >= 2.0
    assert times.max() < 3.0
    assert arrivals.next_s() == math.inf
    assert [arrivals.rate_at(now) for now in (1.9, 2.0, 2.9, 3.0)] == [0, 10_000, 10_000, 0]
