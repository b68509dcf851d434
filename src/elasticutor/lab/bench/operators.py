"""Operators to measure with: counts per key, with sums and without; one output for each row.

Record by record, and a batch at a time. Input: `key` and `time`, both int64, and a payload that is
carried along. Output: the key, the count, and the sum of its times so far, this row's included.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from elasticutor.lab.bench.work import COUNTED
from elasticutor.operator import BatchState, Operator, State

COUNTS_AND_SUMS = pa.schema(
    [("key", pa.int64()), ("count", pa.int64()), ("sum", pa.int64())],
)
"""What both operators make."""


class CountAndSum(Operator):
    """Count and sum, record by record."""

    output: ClassVar[Any] = COUNTS_AND_SUMS

    def process(self, key: Any, row: Any, state: State) -> Iterator[tuple[int, int, int]]:
        """One row's count and sum."""
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
        """One row's count."""
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
