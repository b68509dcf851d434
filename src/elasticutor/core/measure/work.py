"""What the tasks have done, noted chunk by chunk and summed per shard only when asked for.

Summing over 256 shards takes longer than anything else that is done with a chunk; done for many
chunks at once it takes next to nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from elasticutor.core.executor.batch import Part
from elasticutor.core.measure.load import FloatArray, RowSeconds, require_amounts
from elasticutor.core.protocol.ids import TaskId
from elasticutor.errors import BadValueError

_FULL = 64  # chunks


@dataclass(frozen=True, slots=True)
class WorkDone:
    """The sum over some chunks."""

    rows: npt.NDArray[np.intp]
    """Per shard."""
    seconds: FloatArray
    """Per shard."""
    count: int
    useful_s: float
    bytes_in: int
    bytes_out: int
    rows_out: int
    waits_s: FloatArray
    """How long tuples were inside, from their arrival until they were processed …"""
    wait_counts: npt.NDArray[np.intp]
    """… and how many tuples each of these is for."""


class WorkLog:
    """Chunks that were processed and are not summed yet.

    Where the time of single tuples is not known, the time of a task's chunks since the last sum is
    divided evenly among their tuples.
    """

    def __init__(self, shards: int) -> None:
        self._shards = shards
        self._clear()

    def _clear(self) -> None:
        self._untimed: dict[TaskId, list[tuple[list[Part], float]]] = {}
        self._timed: list[tuple[list[Part], FloatArray | list[float]]] = []
        self._answers: list[tuple[list[Part], float]] = []
        self._count = 0
        self._useful_s = 0.0
        self._bytes_in = 0
        self._bytes_out = 0
        self._rows_out = 0

    @property
    def full(self) -> bool:
        """Whether it is time to sum up."""
        return len(self._answers) >= _FULL

    def add(
        self,
        task: TaskId,
        parts: list[Part],
        rows: int,
        useful_s: float,
        row_seconds: RowSeconds,
        bytes_in: int,
        bytes_out: int,
        rows_out: int,
        now: float,
    ) -> None:
        """Note a chunk."""
        if row_seconds is not None:
            self._timed.append((parts, row_seconds))
        elif task in self._untimed:
            self._untimed[task].append((parts, useful_s))
        else:
            self._untimed[task] = [(parts, useful_s)]
        self._answers.append((parts, now))
        self._count += rows
        self._useful_s += useful_s
        self._bytes_in += bytes_in
        self._bytes_out += bytes_out
        self._rows_out += rows_out

    def take(self) -> WorkDone | None:
        """The sum of what was noted since the last time; None if that is nothing."""
        if not self._answers:
            return None
        rows, seconds = self._sum_up()
        waits = [now - part.batch.arrived_at for parts, now in self._answers for part in parts]
        done = WorkDone(
            rows=rows,
            seconds=seconds,
            count=self._count,
            useful_s=self._useful_s,
            bytes_in=self._bytes_in,
            bytes_out=self._bytes_out,
            rows_out=self._rows_out,
            waits_s=np.array(waits),
            wait_counts=np.array([part.count for parts, _ in self._answers for part in parts]),
        )
        self._clear()
        return done

    def _sum_up(self) -> tuple[npt.NDArray[np.intp], FloatArray]:
        rows, seconds = np.zeros(self._shards, dtype=np.intp), np.zeros(self._shards)
        for chunks in self._untimed.values():
            shards = np.concatenate([part.shards for parts, _ in chunks for part in parts])
            counted = np.bincount(shards, minlength=self._shards)
            rows += counted
            seconds += counted * (sum(useful_s for _, useful_s in chunks) / len(shards))
        if self._timed:
            shards = np.concatenate([part.shards for parts, _ in self._timed for part in parts])
            row_seconds = np.concatenate([times for _, times in self._timed])
            rows += np.bincount(shards, minlength=self._shards)
            seconds += np.bincount(shards, row_seconds, self._shards)
        return rows, seconds


def require_times(useful_s: float, row_seconds: RowSeconds, rows: int) -> None:
    """Refuse times that cannot be, before anything is made of them."""
    if not 0.0 <= useful_s < math.inf:
        raise BadValueError("useful time", "be finite and at least 0 s", useful_s)
    if type(row_seconds) is list:
        if len(row_seconds) != rows or not all(0.0 <= time < math.inf for time in row_seconds):
            must = f"be {rows} finite numbers, at least 0"
            raise BadValueError("time of each row", must, row_seconds)
    elif isinstance(row_seconds, np.ndarray):
        require_amounts("time of each row", row_seconds, rows)
