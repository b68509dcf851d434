"""A chunk on its way through the operator: in one go, or interrupted between two of its rows.

| chunk of | operator of | |
|---|---|---|
| a batch | rows | `RecordRun` |
| a batch | batches | `BatchRun` |
| few tuples, each packed by itself | batches | `BatchRun`, of a batch made of them |
| few tuples, each packed by itself | rows | `SingleRun` |
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice, pairwise
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from elasticutor.core.protocol.task_inbox import SingleWork, Work
from elasticutor.process.operator.rows import values_of
from elasticutor.state.cache import KeyState

if TYPE_CHECKING:
    from elasticutor.process.operator.runner import OperatorRunner

Turns = Iterator[tuple[Any, Any, KeyState]]
"""Key, row and state of one row after the other."""
IntArray = npt.NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class ChunkDone:
    """The outputs and times of a chunk."""

    output: pa.RecordBatch | None
    """The rows made, of exactly the output's schema; None if there are none."""
    part_rows_out: list[int]
    """How many of them came of each part of the chunk."""
    useful_s: float
    """Time spent in the operator and on its rows' conversion."""
    row_seconds: npt.NDArray[np.float64] | None
    """Time spent on each row in the operator, state included, if it was measured."""


class ChunkRun(ABC):
    """A chunk under way. It can stop between two rows, and go on without some of the others."""

    def __init__(
        self, runner: OperatorRunner, batch: pa.RecordBatch, work: Work, part_rows: Sequence[int]
    ) -> None:
        self.work = work
        self._runner = runner
        self._batch = batch
        self._part_rows = part_rows
        self._begun: list[IntArray] = []
        self._useful_s = 0.0

    @abstractmethod
    def advance(self, look: Callable[[], bool]) -> None:
        """Process rows until none is left, or `look` finds a reason to stop between two of them."""

    def add_useful(self, seconds: float) -> None:
        """Count time that its rows have taken before it began."""
        self._useful_s += seconds

    def report(self) -> ChunkDone:
        """The outputs and times of the rows that were processed since the last report."""
        rows = self.work.report()
        if not rows:
            return ChunkDone(None, [0] * len(self._part_rows), 0.0, None)
        began = perf_counter()
        places = self._begun[0] if len(self._begun) == 1 else np.concatenate(self._begun)
        self._begun.clear()
        output, made, row_seconds = self._collected(places)
        useful_s, self._useful_s = self._useful_s + perf_counter() - began, 0.0
        self._runner.count(rows, useful_s)
        return ChunkDone(output, made, useful_s, row_seconds)

    @abstractmethod
    def _collected(
        self, places: IntArray
    ) -> tuple[pa.RecordBatch | None, list[int], npt.NDArray[np.float64] | None]:
        """The outputs, how many of them came of each part, and the time of each row."""

    def _parts(self, places: IntArray) -> IntArray:
        """The part of the chunk that each of these rows is in."""
        return np.repeat(np.arange(len(self._part_rows)), self._part_rows)[places]


class _RowByRow:
    """A chunk whose rows are processed one by one."""

    _runner: OperatorRunner
    _timed: bool
    _rows_out: list[Any]
    _ends: list[int]
    _seconds: list[float]
    _useful_s: float

    def _step_through(self, turns: Turns, count: int, look: Callable[[], bool]) -> int:
        """Process rows, a few at a time, until `look` finds a reason to stop; returns how many."""
        runner, done = self._runner, 0
        while done < count:
            rows = min(runner.rows_at_once, count - done)
            began = perf_counter()
            some = islice(turns, rows)
            if self._timed:
                self._seconds += runner.process_timed(some, self._rows_out, self._ends)
            else:
                runner.process(some, self._rows_out, self._ends)
            spent_s = perf_counter() - began
            self._useful_s += spent_s
            done += rows
            runner.pace(rows, spent_s)
            if done < count and look():
                break
        return done


class RecordRun(_RowByRow, ChunkRun):
    """Row by row, a few at a time: as many as take `_LOOK_S` together."""

    def __init__(
        self, runner: OperatorRunner, batch: pa.RecordBatch, work: Work, part_rows: Sequence[int]
    ) -> None:
        super().__init__(runner, batch, work, part_rows)
        began = perf_counter()
        self._columns = [values_of(column) for column in batch.columns]
        self._keys = runner.keys(batch, self._columns)
        self._useful_s = perf_counter() - began
        self._timed = runner.times_rows
        self._rows_out: list[Any] = []
        self._ends: list[int] = []
        self._seconds: list[float] = []

    def advance(self, look: Callable[[], bool]) -> None:
        """Process rows until none is left, or `look` finds a reason to stop between two of them."""
        done = self._step_through(self._turns(), len(self.work.left), look)
        self._begun.append(self.work.begin(done))

    def _turns(self) -> Turns:
        left, keys, columns = self.work.left, self._keys, self._columns
        shards = self.work.shards
        if len(left) < len(shards):
            places = left.tolist()
            keys = [keys[place] for place in places]
            columns = [[column[place] for place in places] for column in columns]
            shards = shards[left]
        return self._runner.turns(keys, columns, shards.tolist())

    def _collected(
        self, places: IntArray
    ) -> tuple[pa.RecordBatch | None, list[int], npt.NDArray[np.float64] | None]:
        rows_out, ends, part_rows = self._rows_out, self._ends, self._part_rows
        # The time of a single row is that of its chunk.
        seconds = np.array(self._seconds) if self._timed and len(places) > 1 else None
        self._rows_out, self._ends, self._seconds = [], [], []
        output = None
        if rows_out:
            output = self._runner.written(rows_out, ends, self._batch, self._keys, places)
        if len(part_rows) == 1:
            return output, [len(rows_out)], seconds
        if len(places) == self._batch.num_rows:
            part_ends = [0, *(ends[end - 1] if end else 0 for end in accumulate(part_rows))]
            return output, [end - start for start, end in pairwise(part_ends)], seconds
        made = np.bincount(self._parts(places), np.diff(ends, prepend=0), len(part_rows))
        return output, made.astype(int).tolist(), seconds


class BatchRun(ChunkRun):
    """All rows at once, without a stop."""

    _output: pa.RecordBatch | None = None

    def advance(self, look: Callable[[], bool]) -> None:
        """Process all rows that are left."""
        batch, work = self._batch, self.work
        shards, left = work.shards, work.left
        began = perf_counter()
        if len(left) < len(shards):
            batch, shards = _picked(batch, left), shards[left]
        if batch.num_rows:
            self._output = self._runner.process_batch(batch, shards)
        self._useful_s += perf_counter() - began
        self._begun.append(work.begin(len(left)))

    def _collected(
        self, places: IntArray
    ) -> tuple[pa.RecordBatch | None, list[int], npt.NDArray[np.float64] | None]:
        part_rows = self._part_rows
        if len(places) < self._batch.num_rows:
            part_rows = np.bincount(self._parts(places), minlength=len(part_rows)).tolist()
        return self._output, _attributed(self._output, part_rows), None


@dataclass(frozen=True, slots=True)
class RowsDone:
    """The outputs and times of a chunk of few tuples."""

    rows_out: list[Any]
    """As the operator made them."""
    ends: list[int]
    """How many of them there were after each of its tuples."""
    places: list[int]
    """Which tuples of the chunk these were."""
    useful_s: float
    """Time spent in the operator, and on unpacking its rows."""
    row_seconds: list[float] | None
    """Time spent on each tuple in the operator, state included, if it was measured."""


class SingleRun(_RowByRow):
    """A chunk of few tuples on its way through the operator, without Arrow and NumPy.

    Args:
        runner: The operator's.
        rows: The tuples.
        work: Which of them are to be processed, and the shard of each.
        unpacking_s: What it took to unpack them.
    """

    def __init__(
        self,
        runner: OperatorRunner,
        rows: Sequence[Any],
        work: SingleWork,
        unpacking_s: float = 0.0,
    ) -> None:
        self.work = work
        self._runner = runner
        self._rows = rows
        self._timed = runner.times_rows
        self._clear()
        self._useful_s = unpacking_s

    def _clear(self) -> None:
        self._begun: list[int] = []
        self._rows_out: list[Any] = []
        self._ends: list[int] = []
        self._seconds: list[float] = []
        self._useful_s = 0.0

    def advance(self, look: Callable[[], bool]) -> None:
        """Process rows until none is left, or `look` finds a reason to stop between two of them."""
        work, left = self.work, self.work.left
        rows, shards = [self._rows[at] for at in left], [work.shards[at] for at in left]
        done = self._step_through(self._runner.turns_of(rows, shards), len(left), look)
        self._begun += work.begin(done)

    def rows_of(self, done: RowsDone) -> list[Any]:
        """The tuples that were reported with this."""
        return [self._rows[place] for place in done.places]

    def report(self) -> RowsDone:
        """The outputs and times of the rows that were processed since the last report."""
        rows = self.work.report()
        # The time of a single row is that of its chunk.
        seconds = self._seconds if self._timed and rows > 1 else None
        done = RowsDone(self._rows_out, self._ends, self._begun, self._useful_s, seconds)
        self._runner.count(rows, self._useful_s)
        self._clear()
        return done


def _picked(batch: pa.RecordBatch, places: IntArray) -> pa.RecordBatch:
    """The rows at these rising places: slices, joined."""
    gaps = np.flatnonzero(np.diff(places) != 1) + 1
    starts, ends = [0, *gaps.tolist()], [*gaps.tolist(), len(places)]
    runs = [
        batch.slice(int(places[start]), end - start)
        for start, end in zip(starts, ends, strict=True)
        if end > start
    ]
    whole: pa.RecordBatch = pa.concat_batches(runs) if runs else batch.slice(0, 0)
    return whole


def _attributed(output: pa.RecordBatch | None, part_rows: Sequence[int]) -> list[int]:
    """Whose outputs these are: each part's own, if they are as many as the rows; else the oldest's.

    Latency is then judged by the oldest rows that may be behind an output, never by younger ones.
    """
    if output is not None and output.num_rows == sum(part_rows):
        return list(part_rows)
    made = [0] * len(part_rows)
    if output is not None:
        made[next(part for part, rows in enumerate(part_rows) if rows)] = output.num_rows
    return made
