"""Emulated cores: operators whose work is slept, so that a small machine can show many cores.

A core that sleeps costs nothing, and everything else is real: processes, sockets, state, moves.
"""

from __future__ import annotations

import time
from typing import Any

import pyarrow as pa

from elasticutor.operator import BatchState, Context, Operator


class EmulatedWork(Operator):
    """Counts per key, and takes a fixed time for every tuple.

    It sleeps once per chunk, until a deadline: what one sleep took too long, the next one makes up
    for, so that an emulated core does neither more nor less than a real one.

    Example:
        >>> EmulatedWork(row_s=0.001).output.names
        ['key', 'count']
    """

    output = pa.schema([("key", pa.int64()), ("count", pa.int64())])

    def __init__(self, row_s: float, key: str = "key") -> None:
        self.row_s = row_s
        self.key = key
        self._free_at = 0.0

    def open(self, context: Context) -> None:
        """The core is free from now on."""
        self._free_at = time.monotonic()

    def process_batch(self, batch: Any, state: BatchState) -> Any:
        """Count, and sleep for as long as the tuples should have taken."""
        groups = state.groups
        counts = state.get_many(groups.keys, 0)
        sizes = groups.sizes.tolist()
        state.set_many(groups.keys, [n + size for n, size in zip(counts, sizes, strict=True)])
        began = max(self._free_at, time.monotonic() - self.row_s)
        self._free_at = began + batch.num_rows * self.row_s
        time.sleep(max(0.0, self._free_at - time.monotonic()))
        counted = pa.array(counts, pa.int64()).take(pa.array(groups.of_row))
        return pa.record_batch([batch.column(self.key), counted], schema=self.output)
