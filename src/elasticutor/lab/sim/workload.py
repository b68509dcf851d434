"""Draws what simulated sources send: keys by a Zipf distribution that is shuffled, and times.

All randomness comes from generators that are passed in.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from elasticutor.core.keys import Hashes, key_hashes
from elasticutor.errors import BadValueError

IntArray = npt.NDArray[np.integer[Any]]
FloatArray = npt.NDArray[np.float64]

_BLOCK = 16_384  # tuples drawn at once


def zipf_weights(keys: int, skew: float) -> FloatArray:
    """Returns the shares of keys, the most frequent first: 1/rank to the power of the skew."""
    if keys < 1:
        raise BadValueError("keys", "be at least 1", keys)
    if not 0 <= skew < math.inf:
        raise BadValueError("zipf", "be finite and at least 0", skew)
    weights = np.arange(1, keys + 1, dtype=np.float64) ** -skew
    shares: FloatArray = weights / weights.sum()
    return shares


def shuffle_times(omega: float, seconds: float) -> list[float]:
    """Returns when shuffles happen: ω per minute, evenly, the first after half an interval."""
    if not 0 <= omega < math.inf:
        raise BadValueError("omega", "be finite and at least 0", omega)
    if omega == 0:
        return []
    every = 60.0 / omega
    times = (every * (number + 0.5) for number in range(math.ceil(seconds / every)))
    return [time for time in times if time < seconds]


class KeySpace:
    """All keys with their frequencies, which a shuffle gives to other keys."""

    def __init__(self, keys: int, skew: float, rng: np.random.Generator) -> None:
        self.weights = zipf_weights(keys, skew)
        """By rank: the most frequent key's share is the first."""
        self.hashes: Hashes = key_hashes(pa.array(np.arange(keys)))
        self.edges = np.cumsum(self.weights)
        self.edges[-1] = 1.0
        self._rng = rng
        self.key_of_rank: IntArray = rng.permutation(keys)

    def shuffle(self) -> None:
        """Give the frequencies to other keys."""
        self.key_of_rank = self._rng.permutation(len(self.weights))

    def shares(self) -> FloatArray:
        """The share of every key now."""
        shares = np.empty(len(self.weights))
        shares[self.key_of_rank] = self.weights
        return shares


class KeyStream:
    """Draws keys for one source, by their frequencies as they are at the time of drawing.

    Or from some keys only (`among`), by their relative frequencies as of now.
    """

    def __init__(
        self, space: KeySpace, rng: np.random.Generator, among: IntArray | None = None
    ) -> None:
        self._space = space
        self._rng = rng
        self._among = among
        self._edges = space.edges
        if among is not None:
            shares = space.shares()[among]
            self._edges = np.cumsum(shares / shares.sum())
            self._edges[-1] = 1.0
        self._drawn: IntArray = np.empty(0, dtype=np.intp)
        self._used = 0

    def draw(self, count: int) -> IntArray:
        """Draw keys; ranks are drawn ahead, and become keys now."""
        if self._used + count > len(self._drawn):
            fresh = self._rng.random(max(_BLOCK, count))
            rest = self._drawn[self._used :]
            ranks: IntArray = np.searchsorted(self._edges, fresh, side="right")
            self._drawn = np.concatenate([rest, np.minimum(ranks, len(self._edges) - 1)])
            self._used = 0
        ranks = self._drawn[self._used : self._used + count]
        self._used += count
        table = self._space.key_of_rank if self._among is None else self._among
        return table.take(ranks)


class Arrivals:
    """Times at which tuples are due, from one time to another, at a fixed rate.

    They are a Poisson process, or come evenly, as the tuples of a live `Generator` do; the first of
    them is then somewhere in the first interval.
    """

    def __init__(
        self,
        rate: float,
        rng: np.random.Generator,
        *,
        start: float = 0.0,
        end: float = math.inf,
        even: bool = False,
    ) -> None:
        if not 0 < rate < math.inf:
            raise BadValueError("rate", "be finite and more than 0", rate)
        self._rng = rng
        self._rate = rate
        self._start = self._last = start
        self._even = even
        if even:
            self._last -= rng.random() / rate
        self._end = end
        self._times: FloatArray = np.empty(0)
        self._used = 0

    def due(self, now: float, most: int) -> FloatArray:
        """Take the times of tuples that are due, at most this number of them."""
        while self._last <= now and self._last < self._end:
            self._more()
        upto = min(int(np.searchsorted(self._times, now, side="right")), self._used + most)
        taken = self._times[self._used : upto]
        self._used = upto
        return taken

    def rate_at(self, now: float) -> float:
        """The rate, while it goes on; before and after that 0."""
        return self._rate if self._start <= now < self._end else 0.0

    def next_s(self) -> float:
        """When the next tuple is due; infinity after the end."""
        if self._used >= len(self._times) and self._last < self._end:
            self._more()
        return float(self._times[self._used]) if self._used < len(self._times) else math.inf

    def _more(self) -> None:
        if self._even:
            fresh = self._last + np.arange(1, _BLOCK // 4 + 1) / self._rate
        else:
            fresh = self._last + np.cumsum(self._rng.exponential(1.0 / self._rate, _BLOCK // 4))
        self._last = float(fresh[-1])
        self._times = np.concatenate([self._times[self._used :], fresh[fresh < self._end]])
        self._used = 0
