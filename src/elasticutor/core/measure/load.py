"""How much work each shard makes: what balancing goes by (paper 3.1).

A long average would see a sudden hot key late, and a short one would chase noise. So the load of a
shard is its measured work, averaged with a half-life, plus what its waiting tuples will cost: a
key that turns hot shows in the queue long before it shows in the average.
"""

from __future__ import annotations

import math
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from elasticutor.errors import BadValueError, UnknownShardError

IntArray = npt.NDArray[np.integer[Any]]
FloatArray = npt.NDArray[np.float64]
RowSeconds = FloatArray | list[float] | None
"""The time of each row; a list if they are few, None if it was not measured."""

SHORTEST_S = 1e-9
"""A shorter time than this is no time: there is nothing to divide by."""

# A shard with fewer decayed rows a second has forgotten what its rows cost. Without such a limit
# two numbers near the smallest float would be divided after a long silence.
_FORGOTTEN = 1e-9


def tally(
    shards: IntArray, count: int, useful_s: float, row_seconds: FloatArray | None = None
) -> tuple[npt.NDArray[np.intp], FloatArray]:
    """Rows and seconds per shard, of rows that were processed together.

    Args:
        shards: The shard of each row.
        count: The number of shards of the executor, z.
        useful_s: The time spent in the operator for all of these rows.
        row_seconds: The time of each row, where rows were processed singly. Without it the useful
            time is split evenly among the rows.

    Raises:
        UnknownShardError: If a shard is not one of 0 … z-1.
        BadValueError: If a time is negative or not finite, or if there is not one for each row.

    Example:
        >>> rows, seconds = tally(np.array([1, 1, 3]), 4, useful_s=0.6)
        >>> rows, seconds
        (array([0, 2, 0, 1]), array([0. , 0.4, 0. , 0.2]))
    """
    if not 0.0 <= useful_s < math.inf:
        raise BadValueError("useful time", "be finite and at least 0 s", useful_s)
    try:
        rows = np.bincount(shards, minlength=count)
    except (TypeError, ValueError, MemoryError) as error:
        raise UnknownShardError("shard of each row", f"be 0 to {count - 1}", shards) from error
    if len(rows) > count:
        raise UnknownShardError("shard of each row", f"be 0 to {count - 1}", len(rows) - 1)
    if row_seconds is None:
        return rows, cast("FloatArray", rows * (useful_s / max(len(shards), 1)))
    require_amounts("time of each row", row_seconds, len(shards))
    # The type stubs do not know that weights make the sums floats.
    return rows, cast("FloatArray", np.bincount(shards, row_seconds, count))


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

    `add` counts work as it is done, `update` folds it into the averages, and `loads` says what
    balancing should go by. The averages weigh an interval by its length, so that how often
    `update` is called makes no difference under a steady load; the first interval counts in full.

    Args:
        shards: The number of shards of the executor, z.
        half_life_s: The seconds after which what was measured counts half.
        now: When measuring starts.

    Example:
        >>> loads = ShardLoads(shards=2, half_life_s=1.0, now=10.0)
        >>> loads.add(np.array([0, 0, 1]), useful_s=0.06)
        >>> loads.update(now=10.1)
        >>> loads.loads(np.array([0, 0]), default_cost_s=0.001, horizon_s=0.1).round(2)
        array([0.4, 0.2])

        Shard 1 turns hot: 50 of its rows wait, at 20 ms each, to be done within a second.

        >>> loads.loads(np.array([0, 50]), default_cost_s=0.001, horizon_s=1.0).round(2)
        array([0.4, 1.2])
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

    def add(self, shards: IntArray, useful_s: float, row_seconds: FloatArray | None = None) -> None:
        """Count processed rows; arguments and refusals as in `tally`."""
        rows, seconds = tally(shards, self._shards, useful_s, row_seconds)
        self._new_rows += rows
        self._new_seconds += seconds

    def add_totals(self, rows: IntArray, seconds: FloatArray) -> None:
        """Count what `tally` has summed per shard, and checked."""
        self._new_rows += rows
        self._new_seconds += seconds

    def update(self, now: float) -> None:
        """Fold what was added since the last update into the averages.

        Raises:
            BadValueError: If time runs backwards, or is not finite.
        """
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

    def loads(self, waiting_rows: IntArray, default_cost_s: float, horizon_s: float) -> FloatArray:
        """Measured work plus backlog, in cores.

        Args:
            waiting_rows: Rows of each shard that wait for a core.
            default_cost_s: What a row costs as long as nothing was measured.
            horizon_s: The time within which the backlog is to be worked off.

        Raises:
            BadValueError: If a number is negative or not finite, or the horizon is zero.
        """
        require_amounts("waiting rows", waiting_rows, self._shards)
        _require_positive("horizon", horizon_s)
        measured = self._seconds / self._weight if self._weight else self._seconds
        return measured + waiting_rows * self.costs(default_cost_s) / horizon_s

    def noise(self, tasks: int, total: float) -> float:
        """How far a task's load is off by mere chance: its standard deviation over its mean.

        For rows that come independently of each other, shared out evenly among these tasks. Backlog
        is part of the total load, but there is no chance in it.

        Example:
            >>> loads = ShardLoads(shards=1, half_life_s=math.log(2.0) / 2, now=0.0)
            >>> loads.add(np.zeros(400, int), useful_s=1.0)  # as many as count, all in all
            >>> loads.update(now=1.0)
            >>> round(loads.noise(tasks=4, total=1.0), 3), round(loads.noise(tasks=4, total=2.0), 3)
            (0.1, 0.05)
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

    def costs(self, default_cost_s: float) -> FloatArray:
        """Seconds per row of each shard.

        For a shard that was not measured lately it is the mean of the executor, and the default
        as long as there is none.
        """
        if not 0.0 <= default_cost_s < math.inf:
            raise BadValueError("default cost", "be finite and at least 0 s", default_cost_s)
        known = self._rows > _FORGOTTEN
        rows = float(self._rows.sum())
        mean = float(self._seconds.sum()) / rows if known.any() else default_cost_s
        costs = np.full(self._shards, mean)
        np.divide(self._seconds, self._rows, out=costs, where=known)
        return costs


def _require_positive(who: str, seconds: float) -> None:
    if not SHORTEST_S <= seconds < math.inf:
        raise BadValueError(who, "be finite and more than 0 s", seconds)
