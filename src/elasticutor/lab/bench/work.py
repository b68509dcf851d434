"""Operators to measure with, all with one output for each row.

Some take a set time per tuple, on a real core or on an emulated one. Others count per key, with
sums and without, record by record and a batch at a time. Input: `key` and `time`, both int64, and a
payload that is carried along.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from elasticutor.errors import BadValueError
from elasticutor.operator import BatchState, Operator, State

COUNTED = pa.schema([("key", pa.int64()), ("count", pa.int64())])
"""A key, and how many tuples of it there were."""
COUNTS_AND_SUMS = pa.schema(
    [("key", pa.int64()), ("count", pa.int64()), ("sum", pa.int64())],
)
"""A key, the count of its tuples so far, and the sum of their times."""
_TIMED = pa.schema([("key", pa.int64()), ("time", pa.int64())])


@dataclass(frozen=True, slots=True)
class Burning:
    """Work that takes CPU time: `cost_s` seconds of it for each row.

    The thread's own CPU time, not the clock's: a task that is not given a core is not done sooner.

    Example:
        >>> before = time.thread_time()
        >>> Burning(0.001)(2)
        >>> time.thread_time() - before >= 0.002
        True
    """

    cost_s: float

    def __post_init__(self) -> None:
        _required(self.cost_s)

    def __call__(self, rows: int) -> None:
        """Do the work of some rows."""
        until = time.thread_time() + rows * self.cost_s
        while time.thread_time() < until:
            pass


class Burn(Operator):
    """Counts per key, and burns CPU time: `cost_s` seconds of it for each tuple."""

    output: ClassVar[Any] = COUNTED

    def __init__(self, cost_s: float) -> None:
        self.work = Burning(cost_s)

    def process(self, key: Any, row: Any, state: State) -> Iterator[tuple[int, int]]:
        self.work(1)
        count = state.get(0) + 1
        state.set(count)
        yield key, count


class Emulate(Operator):
    """Counts per key, and sleeps for the time that the tuples of a chunk would take.

    So a machine can have more cores than it has. It sleeps once per chunk, to a deadline. By how
    much it overslept is taken off the next chunk, since a core of one's own does not oversleep;
    what passes between chunks is not: that is what the runtime costs.
    """

    output: ClassVar[Any] = _TIMED

    def __init__(self, cost_s: float) -> None:
        self._cost_s = _required(cost_s)
        self._late_s = 0.0

    def process_batch(self, batch: pa.RecordBatch, state: BatchState) -> pa.RecordBatch:
        """A chunk's work; the output has when each tuple was due."""
        until = time.perf_counter() + batch.num_rows * self._cost_s - self._late_s
        groups = state.groups
        counts = state.get_array(groups.keys, "int64") + groups.sizes
        state.set_array(groups.keys, counts)
        left_s = until - time.perf_counter()
        # What one chunk cannot make up for is lost: no core is faster than itself for long.
        self._late_s = 0.0
        if left_s > 0:
            time.sleep(left_s)
            self._late_s = max(0.0, time.perf_counter() - until)
        columns = [batch.column("key"), batch.column("time")]
        return pa.RecordBatch.from_arrays(columns, schema=_TIMED)


def _required(cost_s: float) -> float:
    if not 0 < cost_s < 3600:
        raise BadValueError("cost of a tuple", "be above 0 s and below an hour", cost_s)
    return cost_s


class CountAndSum(Operator):
    """Count and sum, record by record."""

    output: ClassVar[Any] = COUNTS_AND_SUMS

    def process(self, key: Any, row: Any, state: State) -> Iterator[tuple[int, int, int]]:
        count, total = state.get((0, 0))
        count += 1
        total += row.time
        state.set((count, total))
        yield key, count, total


class CountAndSumBatch(Operator):
    """Count and sum, a batch at a time: the state is read and written once per distinct key."""

    output: ClassVar[Any] = COUNTS_AND_SUMS
    so_far: ClassVar[Any] = np.dtype([("count", "<i8"), ("sum", "<i8")])

    def process_batch(self, batch: pa.RecordBatch, state: BatchState) -> pa.RecordBatch:
        """The running counts and sums of all rows, in the order of the rows."""
        groups = state.groups
        order, starts, sizes = groups.order, groups.starts, groups.sizes
        times = batch.column("time").to_numpy()[order]
        before = state.get_array(groups.distinct, self.so_far)
        # A running sum over all rows, less what it was where the row's key begins.
        running = np.cumsum(times)
        base = running[starts] - times[starts] - before["sum"]
        first = starts - 1 - before["count"]
        counts, sums = np.empty_like(order), np.empty_like(order)
        counts[order] = np.arange(len(order)) - np.repeat(first, sizes)
        sums[order] = running - np.repeat(base, sizes)
        last = starts + sizes - 1
        after = np.empty_like(before)
        after["count"] = last - first
        after["sum"] = running[last] - base
        state.set_array(groups.distinct, after)
        columns = [batch.column("key"), pa.array(counts), pa.array(sums)]
        return pa.RecordBatch.from_arrays(columns, schema=COUNTS_AND_SUMS)


KINDS: dict[str, type[Operator]] = {"per_record": CountAndSum, "vectorised": CountAndSumBatch}
"""Both, by what they are called in figures."""


class Count(Operator):
    """How many rows of its key there were up to each row, record by record."""

    output: ClassVar[Any] = COUNTED

    def process(self, key: Any, row: Any, state: State) -> Iterator[tuple[int, int]]:
        count = state.get(0) + 1
        state.set(count)
        yield key, count


class CountBatches(Operator):
    """The same counts, a batch at a time: the state is read and written once per distinct key."""

    output: ClassVar[Any] = COUNTED

    def process_batch(self, batch: pa.RecordBatch, state: BatchState) -> pa.RecordBatch:
        """The counts of all rows, in the order of the rows."""
        groups = state.groups
        before = state.get_array(groups.distinct, "int64")
        counts = np.empty_like(groups.order)
        within = np.arange(len(counts)) - np.repeat(groups.starts - before - 1, groups.sizes)
        counts[groups.order] = within
        state.set_array(groups.distinct, before + groups.sizes)
        return pa.RecordBatch.from_arrays([batch.column("key"), pa.array(counts)], schema=COUNTED)
