"""How much work each shard makes: what balancing goes by (paper 3.1).

A long average would see a sudden hot key late, and a short one would chase noise. So the load of a
shard is its measured work, averaged with a half-life, plus what its waiting tuples will cost: a
key that turns hot shows in the queue long before it shows in the average.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from elasticutor.errors import BadValueError

IntArray = npt.NDArray[np.integer[Any]]
FloatArray = npt.NDArray[np.float64]
RowSeconds = FloatArray | list[float] | None
"""The time of each row; a list if they are few, None if it was not measured."""

SHORTEST_S = 1e-9
"""A shorter time than this is no time: there is nothing to divide by."""

# A shard with fewer decayed rows a second has forgotten what its rows cost. Without such a limit
# two numbers near the smallest float would be divided after a long silence.
_FORGOTTEN = 1e-9


def require_amounts(who: str, amounts: npt.NDArray[Any], length: int) -> None:
    """Refuse an array of another length, or one with a negative or non-finite number in it."""
    if amounts.shape != (length,):
        raise BadValueError(who, f"be an array of {length}", f"shape {amounts.shape}")
    # Written so that NaN is refused too: it is not at least 0.
    if length == 1 and 0 <= amounts[0] < math.inf:
        return
    if length and not (amounts.min() >= 0 and amounts.max() < math.inf):
        wrong = amounts[~((amounts >= 0) & np.isfinite(amounts))][0]
        raise BadValueError(who, "be finite and at least 0", wrong.item())


class ShardLoads:
    """The load of each shard of one executor, in cores: seconds of work per second.

    `add` counts work that is done, `update` folds it into the averages, and `loads` says what
    balancing should go by. The averages weigh an interval by its length, so that how often
    `update` is called makes no difference under a steady load; the first interval counts in full.
    After a half-life, what was measured counts half.
    """

    def __init__(self, shards: int, half_life_s: float, now: float) -> None:
        if shards < 1:
            raise BadValueError("number of shards", "be at least 1", shards)
        _require_positive("half-life", half_life_s)
        if not math.isfinite(now):
            raise BadValueError("now", "be finite", now)
        self._shards = shards
        self._half_life_s = half_life_s
        self._updated = now
        # Since the last update.
        self._new_rows = np.zeros(shards)
        self._new_seconds = np.zeros(shards)
        # Decayed averages, per second. They start from zero, so they are too low by a factor of
        # `_weight`, which approaches 1.
        self._rows = np.zeros(shards)
        self._seconds = np.zeros(shards)
        self._weight = 0.0

    def add(self, rows: IntArray, seconds: FloatArray) -> None:
        """Count rows and the time that they took, summed per shard and checked."""
        self._new_rows += rows
        self._new_seconds += seconds

    def update(self, now: float) -> None:
        """Fold what was added since the last update into the averages."""
        if not self._updated <= now < math.inf:
            raise BadValueError("now", f"be finite and not before {self._updated}", now)
        elapsed = now - self._updated
        if elapsed < SHORTEST_S:
            return
        halvings = math.log(2.0) * elapsed / self._half_life_s
        kept, gained = math.exp(-halvings), -math.expm1(-halvings)
        self._rows = kept * self._rows + (gained / elapsed) * self._new_rows
        self._seconds = kept * self._seconds + (gained / elapsed) * self._new_seconds
        self._weight = kept * self._weight + gained
        self._new_rows[:] = 0.0
        self._new_seconds[:] = 0.0
        self._updated = now

    def loads(self, waiting_rows: IntArray, horizon_s: float) -> FloatArray:
        """Measured work, and that of rows that wait to be done within the horizon; in cores."""
        require_amounts("waiting rows", waiting_rows, self._shards)
        _require_positive("horizon", horizon_s)
        measured = self._seconds / self._weight if self._weight else self._seconds
        return measured + waiting_rows * self.costs() / horizon_s

    def noise(self, tasks: int, total: float) -> float:
        """How far a task's load is off by mere chance: its standard deviation over its mean.

        For rows that come independently of each other, shared out evenly among these tasks. Backlog
        is part of the total load, but there is no chance in it.
        """
        weight = self._weight or 1.0
        rows = float(self._rows.sum()) / weight
        counted = rows * 2.0 * self._half_life_s / math.log(2.0) / max(1, tasks)
        if counted <= _FORGOTTEN or total <= 0:
            return 0.0
        measured = float(self._seconds.sum()) / weight
        return min(1.0, measured / total) / math.sqrt(counted)

    def restart(self, other: ShardLoads) -> None:
        """Go on from the averages of another, which forgets faster; what was before has changed."""
        self._rows, self._seconds = other._rows.copy(), other._seconds.copy()
        self._weight = other._weight
        self._updated = other._updated
        self._new_rows[:] = other._new_rows
        self._new_seconds[:] = other._new_seconds

    def costs(self) -> FloatArray:
        """Seconds per row of each shard; the mean of all for one that was not measured lately."""
        known = self._rows > _FORGOTTEN
        rows = float(self._rows.sum())
        mean = float(self._seconds.sum()) / rows if known.any() else 0.0
        costs = np.full(self._shards, mean)
        np.divide(self._seconds, self._rows, out=costs, where=known)
        return costs


def _require_positive(who: str, seconds: float) -> None:
    if not SHORTEST_S <= seconds < math.inf:
        raise BadValueError(who, "be finite and more than 0 s", seconds)
