import math
import pickle

import numpy as np
import pytest
from hdrh.histogram import HdrHistogram
from hypothesis import given, settings
from hypothesis import strategies as st

from elasticutor.core.measure.latency import BUCKETS, LEAST_S, MOST_S, LatencyHistogram
from elasticutor.errors import BadValueError

latencies_s = st.floats(LEAST_S, MOST_S)
samples = st.lists(latencies_s, min_size=1, max_size=60)


def histogram_of(seconds: list[float]) -> LatencyHistogram:
    histogram = LatencyHistogram()
    for latency in seconds:
        histogram.record(latency)
    return histogram


@given(samples, st.floats(0.1, 100.0))
@settings(deadline=None)
def test_percentile_is_the_nearest_rank_within_one_percent(seconds: list[float], p: float) -> None:
    rank = max(int(p * len(seconds) / 100 + 0.5), 1)
    exact = sorted(seconds)[rank - 1]

    # Half a microsecond is what rounding to whole microseconds may take away.
    measured = histogram_of(seconds).percentile_s(p)
    assert exact - 0.5e-6 <= measured <= exact * 1.01 + 0.5e-6


@given(samples)
@settings(deadline=None)
def test_mean_is_right_within_half_a_percent(seconds: list[float]) -> None:
    exact = math.fsum(seconds) / len(seconds)
    assert histogram_of(seconds).mean_s == pytest.approx(exact, rel=0.005, abs=0.5e-6)


def test_mean_of_short_latencies_is_exact() -> None:
    """Below 256 µs a bucket holds a single value, whose middle is the value itself."""
    assert histogram_of([1e-6, 4e-6]).mean_s == 2.5e-6


def test_latencies_are_rounded_to_the_nearest_microsecond() -> None:
    assert histogram_of([2.9e-6, 3.1e-6]) == histogram_of([3e-6] * 2)


@given(samples, samples)
@settings(deadline=None)
def test_merging_is_recording_in_one_histogram(one: list[float], two: list[float]) -> None:
    merged, other = histogram_of(one), histogram_of(two)
    merged.merge(other)
    assert merged == histogram_of(one + two)
    assert merged.count == len(one) + len(two)
    assert other == histogram_of(two)


def test_merging_an_empty_histogram_changes_nothing() -> None:
    histogram = histogram_of([0.5])
    histogram.merge(LatencyHistogram())
    assert histogram == histogram_of([0.5])
    assert histogram.percentile_s(0) == pytest.approx(0.5, rel=0.01)


def test_merging_into_itself_doubles() -> None:
    histogram = histogram_of([0.5, 0.1])
    histogram.merge(histogram)
    assert histogram == histogram_of([0.5, 0.1] * 2)
    assert histogram.count == 4


@given(st.lists(latencies_s, max_size=60))
@settings(deadline=None)
def test_copies_and_what_has_travelled_carry_everything(seconds: list[float]) -> None:
    histogram = histogram_of(seconds)
    for twin in (
        LatencyHistogram.of_filled(*histogram.filled()),
        pickle.loads(pickle.dumps(histogram)),  # noqa: S301  our own bytes
        histogram.copy(),
    ):
        assert twin == histogram
        assert twin.count == histogram.count
        twin.record(0.001)
        assert twin.count == histogram.count + 1


@pytest.mark.parametrize(
    ("buckets", "counts"),
    [
        ([1, 1], [1, 1]),
        ([2, 1], [1, 1]),
        ([-1], [1]),
        ([BUCKETS], [1]),
        ([1], [0]),
        ([1], []),
        ([1, 2], [2**62] * 2),
    ],
)
def test_buckets_that_cannot_be_are_refused(buckets: list[int], counts: list[int]) -> None:
    with pytest.raises(BadValueError, match="buckets of latencies"):
        LatencyHistogram.of_filled(np.array(buckets, np.int64), np.array(counts, np.int64))


def test_the_buckets_are_those_of_hdr_histogram() -> None:
    hdr = HdrHistogram(1, 3_600_000_000, 2)
    for bucket in range(2, BUCKETS):
        least_us = hdr.get_value_from_index(bucket)
        found, _ = histogram_of([least_us / 1e6, (least_us - 1) / 1e6]).filled()
        assert found.tolist() == [bucket - 1, bucket]
    assert histogram_of([MOST_S]).filled()[0].tolist() == [BUCKETS - 1]


@given(st.lists(st.tuples(st.floats(0, 2 * MOST_S), st.integers(0, 9)), max_size=30))
@settings(deadline=None)
def test_many_at_once_are_counted_as_one_by_one(recorded: list[tuple[float, int]]) -> None:
    one_by_one, at_once = LatencyHistogram(), LatencyHistogram()
    for latency_s, count in recorded:
        one_by_one.record(latency_s, count)
    at_once.record_many(
        np.array([latency_s for latency_s, _ in recorded], np.float64),
        np.array([count for _, count in recorded], np.int64),
    )
    assert at_once == one_by_one
    with pytest.raises(BadValueError, match="latencies must be at least 0 s"):
        at_once.record_many(np.array([math.nan]), np.array([1]))
    with pytest.raises(BadValueError, match="counts of latencies must be at least 0"):
        at_once.record_many(np.array([0.1]), np.array([-1]))
    assert at_once == one_by_one


def test_latencies_outside_the_range_count_as_its_ends() -> None:
    assert histogram_of([0.0, 1e-9]) == histogram_of([LEAST_S] * 2)
    assert histogram_of([3601.0, 1e12, math.inf]) == histogram_of([MOST_S] * 3)
    assert histogram_of([math.inf]).percentile_s(50) == pytest.approx(MOST_S, rel=0.01)


@pytest.mark.parametrize("seconds", [-1e-9, -math.inf, math.nan])
def test_impossible_latencies_are_refused_and_change_nothing(seconds: float) -> None:
    histogram = histogram_of([0.1])
    with pytest.raises(BadValueError, match="latency must be at least 0 s"):
        histogram.record(seconds)
    assert histogram == histogram_of([0.1])


def test_counts_are_weights_and_never_negative() -> None:
    histogram = LatencyHistogram()
    histogram.record(0.25, 3)
    histogram.record(0.75, 0)
    assert histogram == histogram_of([0.25] * 3)
    with pytest.raises(BadValueError, match="count of latencies"):
        histogram.record(0.25, -1)
    assert histogram.count == 3


def test_an_empty_histogram_knows_no_latency() -> None:
    empty = LatencyHistogram()
    assert empty.count == 0
    assert math.isnan(empty.mean_s)
    assert math.isnan(empty.percentile_s(99))


@pytest.mark.parametrize("p", [-0.1, 100.1, math.nan])
def test_impossible_percentiles_are_refused(p: float) -> None:
    with pytest.raises(BadValueError, match="percentile must be 0 to 100"):
        histogram_of([0.1]).percentile_s(p)


def test_a_histogram_equals_histograms_only_and_is_no_dictionary_key() -> None:
    histogram = histogram_of([0.1])
    assert histogram != histogram_of([0.2])
    assert histogram != 1
    with pytest.raises(TypeError, match="unhashable"):
        hash(histogram)
