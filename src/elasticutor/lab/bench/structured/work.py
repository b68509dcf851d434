"""What the queries do: count the rows of each key, and burn CPU time where that is wanted.

The operators of `elastic()` are here; the same for Spark's own APIs is in
`elasticutor.lab.spark.rivals`.
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

_COUNTED = pa.schema([("key", pa.int64()), ("count", pa.int64())])


@dataclass(frozen=True, slots=True)
class Burning:
    """Work that takes CPU time: so many seconds of it for each row.

    The thread's own CPU time, not the clock's: who is not given a core is not done sooner.

    Example:
        >>> before = time.thread_time()
        >>> Burning(0.001)(2)
        >>> time.thread_time() - before >= 0.002
        True
    """

    cost_s: float

    def __post_init__(self) -> None:
        if not 0 < self.cost_s < 3600:
            raise BadValueError("cost of a row", "be above 0 s and below an hour", self.cost_s)

    def __call__(self, rows: int) -> None:
        """Do the work of so many rows."""
        until = time.thread_time() + rows * self.cost_s
        while time.thread_time() < until:
            pass


class Count(Operator):
    """How many rows of its key there were up to each row, record by record."""

    output: ClassVar[Any] = _COUNTED

    def process(self, key: Any, row: Any, state: State) -> Iterator[tuple[int, int]]:
        """One row's count."""
        count = state.get(0) + 1
        state.set(count)
        yield key, count


class CountBatches(Operator):
    """The same counts, a batch at a time: the state is read and written once per distinct key."""

    output: ClassVar[Any] = _COUNTED

    def process_batch(self, batch: pa.RecordBatch, state: BatchState) -> pa.RecordBatch:
        """The counts of all rows, in the order of the rows."""
        groups = state.groups
        before = state.get_array(groups.distinct, "int64")
        counts = np.empty_like(groups.order)
        within = np.arange(len(counts)) - np.repeat(groups.starts - before - 1, groups.sizes)
        counts[groups.order] = within
        state.set_array(groups.distinct, before + groups.sizes)
        return pa.RecordBatch.from_arrays([batch.column("key"), pa.array(counts)], schema=_COUNTED)


class CountAndWork(Operator):
    """Counts as `Count` does, and does a row's work for each."""

    output: ClassVar[Any] = _COUNTED

    def __init__(self, work: Burning) -> None:
        self._work = work

    def process(self, key: Any, row: Any, state: State) -> Iterator[tuple[int, int]]:
        """One row's work and count."""
        count = state.get(0) + 1
        state.set(count)
        self._work(1)
        yield key, count
