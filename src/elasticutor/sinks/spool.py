"""A queue of record batches: in memory while they are few, then in an unnamed file."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from typing import IO

import pyarrow as pa

MEMORY_BYTES = 64 * 1024 * 1024
"""Bytes that a spool keeps in memory by default."""


class Spool:
    """Keeps batches of one schema in their order, whatever their number.

    Beyond about `memory_bytes` they go to a file in the directory for temporary files. It has no
    name there, so a process that is killed leaves nothing behind.
    """

    def __init__(self, schema: pa.Schema, memory_bytes: int = MEMORY_BYTES) -> None:
        self._schema = schema
        self._memory_bytes = memory_bytes
        self._kept: list[pa.RecordBatch] = []
        self._bytes = 0
        self._file: IO[bytes] | None = None
        self._stream: pa.ipc.RecordBatchStreamWriter | None = None
        self.rows = 0

    @property
    def spilled(self) -> bool:
        """Whether some of it is in a file."""
        return self._file is not None

    def append(self, batch: pa.RecordBatch) -> None:
        """Put a batch behind the others."""
        self._kept.append(batch)
        self._bytes += batch.nbytes
        self.rows += batch.num_rows
        if self._bytes > self._memory_bytes:
            self._spill()

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield all of them, read back as they are taken; nothing may be appended meanwhile."""
        if self._file is not None and self._stream is not None:
            self._stream.close()
            self._stream = None
        if self._file is not None:
            self._file.seek(0)
            yield from pa.ipc.open_stream(self._file)
        yield from self._kept

    def clear(self) -> None:
        """Forget them, and the file."""
        self._kept, self._bytes, self.rows = [], 0, 0
        self._stream = None
        if self._file is not None:
            self._file.close()
            self._file = None

    def _spill(self) -> None:
        if self._file is None:
            self._file = tempfile.TemporaryFile(prefix="elasticutor-")  # noqa: SIM115 (kept open)
            self._stream = pa.ipc.new_stream(self._file, self._schema)
        assert self._stream is not None  # it ends only when all is read back
        for batch in self._kept:
            self._stream.write_batch(batch)
        self._kept, self._bytes = [], 0
