"""Latencies as a histogram: small, mergeable, and the same in every process.

Means hide what a user feels, and percentiles cannot be averaged; histograms can be added. The
buckets are those of HdrHistogram, from one microsecond to one hour, with two significant digits: a
percentile is then at most 1 % too high, which is finer than any figure of the paper shows, and a
histogram takes 26 KB. Every executor makes and sends one per interval, and the driver adds up all
of them. So the counts are an array, and travel as the buckets that are not empty.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from elasticutor.errors import BadValueError

LEAST_S = 1e-6
"""Shorter latencies count as this."""

MOST_S = 3600.0
"""Longer latencies count as this."""

# At two digits the first 8 bits of a value tell its bucket; 128 buckets for each further bit.
_BUCKET_BITS = 8
_HALF_BUCKET = 128
_US = 1e6

BUCKETS = 3287
"""How many there are; the last one has `MOST_S`."""
_MOST_EACH = 2**63 // (2 * BUCKETS)  # so that no sum of counts overflows

IntCounts: TypeAlias = npt.NDArray[np.int64]


class LatencyHistogram:
    """How long things took: counts in buckets of at most 1 % width, from 1 µs to 1 h.

    What is shorter or longer than the range counts as its nearest end, so that a stuck tuple is
    seen as an hour and not lost. An empty histogram has no percentiles and no mean: they are NaN,
    because a latency of zero would look like a very good one.

    Example:
        >>> latencies = LatencyHistogram()
        >>> latencies.record(0.002, count=98)
        >>> latencies.record(0.5, count=2)
        >>> latencies.count, round(latencies.percentile_s(50), 4), round(latencies.mean_s, 3)
        (100, 0.002, 0.012)
    """

    __slots__ = ("_counts", "_few")

    def __init__(self) -> None:
        self._counts: IntCounts | None = np.zeros(BUCKETS, dtype=np.int64)
        # Instead of all counts: the buckets that have any, and their counts. What was received and
        # is only looked at stays so; it takes a hundredth of the memory.
        self._few: tuple[npt.NDArray[np.intp], IntCounts] | None = None

    @property
    def _all(self) -> IntCounts:
        """The counts of all buckets, to be changed."""
        if self._counts is None:
            assert self._few is not None  # one of the two is there
            buckets, counts = self._few
            self._counts = np.zeros(BUCKETS, dtype=np.int64)
            self._counts[buckets] = counts
            self._few = None
        return self._counts

    def filled(self) -> tuple[npt.NDArray[np.intp], IntCounts]:
        """The buckets that are not empty, ascending, and how many latencies are in each."""
        if self._counts is None:
            assert self._few is not None  # one of the two is there
            return self._few
        buckets = np.flatnonzero(self._counts)
        return buckets, self._counts[buckets]

    @classmethod
    def of_filled(
        cls, buckets: npt.NDArray[np.integer[Any]], counts: npt.NDArray[np.integer[Any]]
    ) -> LatencyHistogram:
        """The histogram that has these in `filled`; refused if there can be none."""
        where, many = buckets.astype(np.intp), counts.astype(np.int64)
        fits = len(where) == len(many)
        if fits and len(where):  # in few steps: the driver does this for every measurement
            ascending = bool((where[1:] > where[:-1]).all())
            counted = many.min() > 0 and many.max() <= _MOST_EACH
            fits = where[0] >= 0 and where[-1] < BUCKETS and ascending and counted
        if not fits:
            raise BadValueError("buckets of latencies", "ascend, with counts above 0", buckets)
        made = cls.__new__(cls)
        made._counts, made._few = None, (where, many)
        return made

    def record(self, seconds: float, count: int = 1) -> None:
        """Count a latency, once or a number of times."""
        if not seconds >= 0.0:
            raise BadValueError("latency", "be at least 0 s", seconds)
        if count < 0:
            raise BadValueError("count of latencies", "be at least 0", count)
        if count:
            microseconds = round(min(max(seconds, LEAST_S), MOST_S) * _US)
            shift = max(microseconds.bit_length() - _BUCKET_BITS, 0)
            self._all[_HALF_BUCKET * shift + (microseconds >> shift)] += count

    def record_many(
        self, seconds: npt.NDArray[np.float64], counts: npt.NDArray[np.integer[Any]]
    ) -> None:
        """Count many latencies, each with its number of times; much faster than one by one."""
        if not (seconds >= 0.0).all():
            raise BadValueError("latencies", "be at least 0 s", seconds.min())
        if not (counts >= 0).all():
            raise BadValueError("counts of latencies", "be at least 0", counts.min())
        microseconds = np.rint(np.clip(seconds, LEAST_S, MOST_S) * _US).astype(np.int64)
        bits = np.frexp(microseconds)[1]
        shift = np.maximum(bits - _BUCKET_BITS, 0)
        buckets = _HALF_BUCKET * shift + (microseconds >> shift)
        np.add.at(self._all, buckets, counts)

    def merge(self, other: LatencyHistogram) -> None:
        """Add the other's counts to this one; the other stays as it is."""
        if other._counts is None:
            buckets, counts = other.filled()
            self._all[buckets] += counts
        else:
            self._all[:] += other._counts

    def percentile_s(self, p: float) -> float:
        """The latency that p percent do not exceed, at most 1 % too high; NaN if empty."""
        if not 0.0 <= p <= 100.0:
            raise BadValueError("percentile", "be 0 to 100", p)
        buckets, counts = self.filled()
        if not len(buckets):
            return math.nan
        reached = np.cumsum(counts)
        rank = max(1, int(p * int(reached[-1]) / 100 + 0.5))
        edges = _bucket_edges()
        bucket = buckets[int(np.searchsorted(reached, rank))]
        highest = edges[bucket + 1] - 1 if p else edges[bucket]
        return float(highest) / _US

    @property
    def mean_s(self) -> float:
        """The mean latency, at most 0.5 % off; NaN if empty."""
        buckets, counts = self.filled()
        if not len(buckets):
            return math.nan
        edges = _bucket_edges()
        # A bucket that holds a single value has it as its middle.
        middles = (edges[buckets] + edges[buckets + 1] - 1) / 2
        return float(counts @ middles) / int(counts.sum()) / _US

    @property
    def count(self) -> int:
        """How many latencies were recorded."""
        counts = self._few[1] if self._few is not None else self._all
        return int(counts.sum())

    def copy(self) -> LatencyHistogram:
        """Another histogram with the same counts."""
        twin = LatencyHistogram.__new__(LatencyHistogram)
        twin._few = self._few  # replaced as a whole, if at all
        twin._counts = None if self._counts is None else self._counts.copy()
        return twin

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, LatencyHistogram):
            return NotImplemented
        pairs = zip(self.filled(), other.filled(), strict=True)
        return all(np.array_equal(one, two) for one, two in pairs)

    def __repr__(self) -> str:
        return f"LatencyHistogram(count={self.count}, mean_s={self.mean_s:.6g})"


@cache
def _bucket_edges() -> npt.NDArray[np.int64]:
    """The least value of every bucket, in microseconds, and what would be that of one more."""
    buckets = np.arange(BUCKETS + 1)
    shift = np.maximum(buckets // _HALF_BUCKET - 1, 0)
    edges: IntCounts = (buckets - _HALF_BUCKET * shift) << shift
    edges.setflags(write=False)
    return edges
