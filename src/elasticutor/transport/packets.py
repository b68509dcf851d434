"""Packets: Arrow record batches as they travel, with the hash and the birth of their tuples.

The schema is not in a packet: it is sent once per channel (`transport.messages.Hello`).

| part | what it is | who needs it |
|---|---|---|
| births | (when, how many): runs of tuples that became due together | who measures latency |
| hashes | the 64-bit hash of every tuple's key, made once, by the sender | the receiver |
| data | an Arrow IPC record batch | the operator |
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from elasticutor.errors import BadValueError

Births: TypeAlias = npt.NDArray[np.int64]
"""Shape (n, 2): microseconds since 1970, and a number of tuples; in the order of the tuples."""

Buffer: TypeAlias = Any
"""Bytes, or anything with the buffer protocol."""

_SAME_BIRTH_US = 100

NO_BIRTHS: Births = np.empty((0, 2), np.int64)
NO_HASHES: npt.NDArray[np.uint64] = np.empty(0, np.uint64)


class Packet:
    """Some tuples, ready to be sent or just received."""

    __slots__ = ("_batch", "_order", "_ordered", "births", "data", "hashes", "rows")

    def __init__(
        self, data: Buffer, rows: int, births: Births, hashes: npt.NDArray[np.uint64]
    ) -> None:
        self.data = data
        self.rows = rows
        self.births = births
        self.hashes = hashes
        self._batch: pa.RecordBatch | None = None
        self._order: npt.NDArray[np.intp] | None = None
        self._ordered: pa.RecordBatch | None = None

    @classmethod
    def of(
        cls,
        batch: pa.RecordBatch,
        births: Births,
        hashes: npt.NDArray[np.uint64] = NO_HASHES,
    ) -> Packet:
        """Pack a batch."""
        return cls(batch.serialize(), batch.num_rows, births, hashes)

    @property
    def size(self) -> int:
        """Bytes, as they count against a credit; never 0, so that empty ones count too."""
        return memoryview(self.data).nbytes + self.hashes.nbytes + 1

    def open(self, schema: pa.Schema) -> pa.RecordBatch:
        """The record batch, without a copy."""
        if self._batch is None:
            self._batch = open_batch(self.data, self.rows, schema)
        return self._batch

    def pick(self, rows: npt.NDArray[np.intp], schema: pa.Schema) -> pa.RecordBatch:
        """The rows at these positions.

        To divide a packet, sort the positions of all its rows and pass slices of that.
        So all rows are put in that order once, and every part is a slice: with 64 parts, to take
        each by itself costs 7 µs a row.
        """
        batch = self.open(schema)
        first, count = int(rows[0]), len(rows)
        if int(rows[-1]) - first + 1 == count:
            return batch.slice(first, count)
        order: npt.NDArray[np.intp] | None = rows.base
        if order is None or order.shape != (self.rows,):
            return batch.take(pa.array(rows))
        if self._order is not order:
            self._order, self._ordered = order, batch.take(pa.array(order))
        assert self._ordered is not None
        start = (rows.ctypes.data - order.ctypes.data) // order.itemsize
        return self._ordered.slice(start, count)

    def births_of(self, rows: npt.NDArray[np.intp]) -> Births:
        """The births of the tuples at these rising positions."""
        births = self.births
        if len(births) == 1:
            return np.array([[births[0, 0], len(rows)]], np.int64)
        return split_births(births, np.searchsorted(np.cumsum(births[:, 1]), rows, "right"))


def open_batch(data: Buffer, rows: int, schema: pa.Schema) -> pa.RecordBatch:
    """Read a record batch of a known schema, without a copy, and refuse anything else.

    What is returned can be read safely, whatever the bytes: all offsets are within their buffers,
    and all text is UTF-8. Arrow looks no further than lengths by itself, and what follows a wrong
    offset then ends the process or reads a stranger's memory. To look at every value costs nothing
    for numbers and 0.3 ns a byte for text (35 µs for 1,000 rows of 110 characters), little beside
    what Python takes to touch them.

    The bytes come from authenticated peers, so this is against mistakes. It is no guard against an
    enemy among them: Arrow itself believes how large a compressed buffer says it is.

    Raises:
        BadValueError: It is not a record batch of this schema, or of another length.
    """
    try:
        batch = pa.ipc.read_record_batch(pa.py_buffer(data), schema)
        batch.validate(full=True)
    except Exception as error:  # Arrow has many words for it, EOFError among them
        raise BadValueError("packet", "be a record batch of the channel", str(error)) from error
    if batch.num_rows != rows:
        raise BadValueError("packet", f"have the {rows} rows that it announces", batch.num_rows)
    return batch


def born(when_s: float, rows: int) -> Births:
    """The births of tuples that became due together."""
    return np.array([[round(when_s * 1e6), rows]], np.int64)


def born_at(due_us: npt.NDArray[np.int64]) -> Births:
    """The births of tuples that became due one after the other, never falling.

    Those within a tenth of a millisecond share the birth of the first: what latency is measured in.

    Example:
        >>> born_at(np.array([1_000_000, 1_000_030, 1_000_100, 1_000_950])).tolist()
        [[1000000, 2], [1000100, 1], [1000950, 1]]
    """
    slots = due_us // _SAME_BIRTH_US
    starts = np.flatnonzero(np.r_[True, slots[1:] != slots[:-1]])
    return np.stack([due_us[starts], np.diff(np.r_[starts, len(due_us)])], axis=1)


def born_of(births: Births, made: Sequence[int]) -> Births:
    """The births of outputs, given how many of them came of each run of inputs.

    Example:
        >>> born_of(np.array([[100, 3], [200, 2]]), [0, 4]).tolist()
        [[200, 4]]
    """
    if len(births) == 1 and births[0, 1] == made[0]:
        return births
    theirs = births.copy()
    theirs[:, 1] = made
    return theirs[theirs[:, 1] > 0]


def split_births(births: Births, runs: npt.NDArray[np.intp]) -> Births:
    """The births of some tuples, given for each of them the run that it belongs to."""
    counts = np.bincount(runs, minlength=len(births))
    present = counts > 0
    return np.stack([births[present, 0], counts[present]], axis=1)


def join_births(births: Sequence[Births]) -> Births:
    """Several one after the other."""
    return births[0] if len(births) == 1 else np.concatenate(births)
