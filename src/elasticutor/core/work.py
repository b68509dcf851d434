"""What the tasks have done, noted chunk by chunk and summed per shard only when somebody asks.

Summing over 256 shards takes longer than anything else that is done with a chunk; done for many
chunks at once it takes next to nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import cast

import numpy as np
import numpy.typing as npt

from elasticutor.core.load import FloatArray, require_amounts
from elasticutor.core.parts import Part, ShardArray
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

    Example:
        >>> from elasticutor.core.parts import Batch
        >>> log = WorkLog(shards=3)
        >>> batch = Batch(0, "u", content=None, rows=4, size=400, arrived_at=1.0)
        >>> part = Part(batch, np.arange(4), np.array([0, 2, 2, 2], dtype=np.int32))
        >>> log.add([part], 4, 0.4, None, bytes_in=400, bytes_out=0, rows_out=0, now=1.5)
        >>> done = log.take()
        >>> done.rows, done.seconds.round(2), done.waits_s
        (array([1, 0, 3]), array([0.1, 0. , 0.3]), array([0.5]))
    """

    def __init__(self, shards: int) -> None:
        self._shards = shards
        self._clear()

    def _clear(self) -> None:
        self._parts: list[ShardArray] = []
        self._chunk_rows: list[int] = []
        self._row_s: list[float] = []
        self._row_seconds: list[tuple[int, FloatArray]] = []
        self._waits_s: list[float] = []
        self._wait_counts: list[int] = []
        self._count = 0
        self._useful_s = 0.0
        self._bytes_in = 0
        self._bytes_out = 0
        self._rows_out = 0

    @property
    def full(self) -> bool:
        """Whether it is time to sum up."""
        return len(self._chunk_rows) >= _FULL

    def add(
        self,
        parts: list[Part],
        rows: int,
        useful_s: float,
        row_seconds: FloatArray | None,
        *,
        bytes_in: int,
        bytes_out: int,
        rows_out: int,
        now: float,
    ) -> None:
        """Note a chunk."""
        for part in parts:
            self._parts.append(part.shards)
            self._waits_s.append(now - part.batch.arrived_at)
            self._wait_counts.append(part.count)
        if row_seconds is not None:
            self._row_seconds.append((self._count, row_seconds))
        self._chunk_rows.append(rows)
        self._row_s.append(useful_s / rows)
        self._count += rows
        self._useful_s += useful_s
        self._bytes_in += bytes_in
        self._bytes_out += bytes_out
        self._rows_out += rows_out

    def take(self) -> WorkDone | None:
        """The sum of what was noted since the last time; None if that is nothing."""
        if not self._parts:
            return None
        shards = np.concatenate(self._parts)
        per_row = np.repeat(self._row_s, self._chunk_rows)
        for start, row_seconds in self._row_seconds:
            per_row[start : start + len(row_seconds)] = row_seconds
        done = WorkDone(
            rows=np.bincount(shards, minlength=self._shards),
            # The type stubs do not know that weights make the sums floats.
            seconds=cast("FloatArray", np.bincount(shards, per_row, self._shards)),
            count=self._count,
            useful_s=self._useful_s,
            bytes_in=self._bytes_in,
            bytes_out=self._bytes_out,
            rows_out=self._rows_out,
            waits_s=np.array(self._waits_s),
            wait_counts=np.array(self._wait_counts),
        )
        self._clear()
        return done


def require_times(useful_s: float, row_seconds: FloatArray | None, rows: int) -> None:
    """Refuse times that cannot be, before anything is made of them."""
    if not 0.0 <= useful_s < math.inf:
        raise BadValueError("useful time", "be finite and at least 0 s", useful_s)
    if row_seconds is not None:
        require_amounts("time of each row", row_seconds, rows)
