"""Outputs as Parquet files in a folder, which appear when their epoch is committed.

```
<uri>/epoch-000000000012-out-000-5f0c93ab.parquet    an epoch's rows, published
<uri>/run-3f9a-1-out-000004-77ab01cd.parquet         those of a run without a checkpoint
<uri>/_pending/out.0-1b6e0a52/…                      what is not committed yet, or left behind
```
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from elasticutor.checks import require_seconds, require_whole
from elasticutor.errors import BadValueError
from elasticutor.sinks.base import EpochWriter, Sink, SinkError, SinkRun, Writer
from elasticutor.sinks.folder import Folder, require_uri

_GROUP_ROWS = 128 * 1024
_GROUP_BYTES = 32 * 1024 * 1024
"""What is kept in memory at most, give or take a batch; then it is written as a row group."""
_FILE_BYTES = 1024 * 1024 * 1024
"""When a file is large enough; object stores do not move those above 5 GB."""
_OWN = ("epoch-", "run-")  # how the names of published files begin


class ParquetSink(Sink):
    """Writes Parquet files to a folder: local, or on HDFS, S3, GCS or Azure, by `pyarrow.fs`.

    In a run with a checkpoint, the rows of an epoch are in files of their own, which appear when
    the epoch is committed, and once: after a failure the epoch under way leaves nothing behind. So
    a row is seen after up to the epoch interval. An epoch without rows has no file.

    In a run without one, files appear when they have `max_rows`, or when their oldest row is about
    `flush_s` old, and what a failure leaves unpublished is lost with the run.

    Readers of the folder never see half a file: rows are written below `_pending`, which Spark
    (`spark.read.parquet(uri)`) and pyarrow's datasets pass over, and files are moved from there.
    Published files are never touched again, and no two runs use the same names, so runs add to what
    is there. Others may take files away, except those of the last epoch: a recovery needs them
    where they were put.

    The folder must be the same for every process that may run the sink: a local one works only
    while all are on one machine.

    Args:
        uri: The folder; it is made if it is not there. With `filesystem`, its path there.
        compression: As for `pyarrow.parquet.write_table`: "zstd", "snappy", "gzip", "none", ….
        max_rows: How many rows a file may have.
        flush_s: How old the oldest unpublished row may become, about, without a checkpoint.
        filesystem: Where it is, if a URI does not say enough; must survive pickling.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as home:
        ...     sink = ParquetSink(home)
        ...     writer = sink.open(0, pa.schema([("a", pa.int64())]))
        ...     writer.write(pa.record_batch({"a": [1, 2]}))
        ...     writer.close()
        ...     print(pq.read_table(home).num_rows, "rows")
        2 rows
    """

    def __init__(
        self,
        uri: str | os.PathLike[str],
        *,
        compression: str = "zstd",
        max_rows: int = 1_000_000,
        flush_s: float = 10.0,
        filesystem: fs.FileSystem | None = None,
    ) -> None:
        self.uri = require_uri(uri) if filesystem is None else os.fspath(uri)
        if filesystem is not None and not isinstance(filesystem, fs.FileSystem):
            raise BadValueError("filesystem", "be one of pyarrow.fs", filesystem)
        codec: Any = compression
        if not (isinstance(codec, str) and (codec == "none" or _codec_available(codec))):
            must = 'be one of "zstd", "snappy", "gzip", "brotli", "lz4" and "none"'
            raise BadValueError("compression", must, compression)
        require_whole("max_rows", max_rows)
        require_seconds("flush_s", flush_s, endless=True)
        self.compression = compression
        self.max_rows = max_rows
        self.flush_s = flush_s
        self.filesystem = filesystem

    def open(self, task: int, schema: pa.Schema) -> Writer:
        """Return a writer outside of any run, as for a run without a checkpoint."""
        return self.open_in(SinkRun(), task, schema)

    def open_in(self, run: SinkRun, task: int, schema: pa.Schema) -> Writer:
        """Return a writer: by epochs if there is a checkpoint, by rows and time if not."""
        folder = Folder.at(self.uri, self.filesystem)
        _require_schema(folder, schema)
        # Others may write to this folder as well, and what they have pending is none of ours.
        mine = hashlib.sha256((run.job or run.run).encode()).hexdigest()[:8]
        pending = f"_pending/{run.sink}.{task}-{mine}"
        files = _Files(folder, pending, schema, self.compression, self.max_rows)
        if run.checkpointed:
            return _EpochFiles(files, run.sink)
        return _RunFiles(files, f"run-{run.run}-{run.sink}" if run.run else f"run-{run.sink}", self)


@dataclass(slots=True)
class _Open:
    name: str
    stream: Any
    parquet: pq.ParquetWriter
    rows: int = 0


class _Files:
    """Turns rows into files that are whole and safe, but not published."""

    def __init__(
        self, folder: Folder, pending: str, schema: pa.Schema, compression: str, max_rows: int
    ) -> None:
        self.folder = folder
        self.pending = pending
        self.token = ""  # part of every file's name; renewed before names could repeat
        self._schema = schema
        self._compression = compression
        self._max_rows = max_rows
        self._numbers = count()
        self._kept: list[pa.RecordBatch] = []  # the next row group
        self._kept_rows = 0
        self._kept_bytes = 0
        self._file: _Open | None = None
        self._whole: list[str] = []
        self.broken = False
        """Whether something has failed, and what is left is not all that was written."""
        self.renew()

    def renew(self) -> None:
        """Begin with names that were never used."""
        self.token = secrets.token_hex(4)
        self._numbers = count()
        self.folder.make(self.pending)

    @property
    def empty(self) -> bool:
        return not (self._whole or self._file or self._kept_rows)

    @property
    def full(self) -> bool:
        return bool(self._whole)

    def write(self, batch: pa.RecordBatch) -> None:
        """Take rows; at most a row group of them stays in memory."""
        start = 0
        while start < batch.num_rows:
            begun = self._kept_rows + (self._file.rows if self._file else 0)
            piece = batch.slice(start, self._max_rows - begun)
            start += piece.num_rows
            self._kept.append(piece)
            self._kept_rows += piece.num_rows
            self._kept_bytes += piece.nbytes
            with self._noting_failure():
                if begun + piece.num_rows >= self._max_rows:
                    self._end_file()
                elif self._kept_rows >= _GROUP_ROWS or self._kept_bytes >= _GROUP_BYTES:
                    self._end_group()

    def finish(self) -> list[str]:
        """Make all that was written safe; return the files that it is in, and forget them."""
        with self._noting_failure():
            self._end_file()
            self.folder.settle(*self._whole)
        names, self._whole = self._whole, []
        return names

    def drop(self) -> None:
        """Remove what was written since the last `finish`."""
        self._kept, self._kept_rows, self._kept_bytes = [], 0, 0
        names, self._whole = self._whole, []
        if self._file is not None:
            file, self._file = self._file, None
            names.append(file.name)
            with contextlib.suppress(Exception):  # it may be what failed; it is removed anyway
                file.parquet.close()
            with contextlib.suppress(Exception):
                file.stream.close()
        for name in names:
            self.folder.remove(name)

    def drop_all(self) -> None:
        """Remove what is pending, of earlier lives too."""
        self.drop()
        for name in self.folder.names(self.pending):
            self.folder.remove(f"{self.pending}/{name}")
        self.renew()

    def _end_group(self) -> None:
        if not self._kept_rows:
            return
        if self._file is None:
            name = f"{self.pending}/{self.token}-{next(self._numbers):06d}.parquet"
            stream = self.folder.create(name)
            parquet = pq.ParquetWriter(stream, self._schema, compression=self._compression)
            self._file = _Open(name, stream, parquet)
        rows = self._kept_rows
        table = pa.Table.from_batches(self._kept, self._schema)
        self._kept, self._kept_rows, self._kept_bytes = [], 0, 0
        self._file.parquet.write_table(table, row_group_size=rows)
        self._file.rows += rows
        if self._file.stream.tell() >= _FILE_BYTES:
            self._end_file()

    def _end_file(self) -> None:
        self._end_group()
        if self._file is not None:
            self._file.parquet.close()
            self._file.stream.close()
            self._whole.append(self._file.name)
            self._file = None

    @contextlib.contextmanager
    def _noting_failure(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self.broken = True
            raise


class _EpochFiles(EpochWriter):
    """Publishes what was written in an epoch when it is committed."""

    def __init__(self, files: _Files, sink: str) -> None:
        self._files = files
        self._sink = sink

    def write(self, batch: pa.RecordBatch) -> None:
        self._files.write(batch)

    def prepare(self, epoch: int) -> Any:
        """Return names relative to the folder: the next process may have it mounted elsewhere."""
        names = self._files.finish()
        if not names:
            return None
        begin, end = f"epoch-{epoch:012d}-{self._sink}", f"{self._files.token}.parquet"
        moves = [[name, f"{begin}-{number:03d}-{end}"] for number, name in enumerate(names)]
        return {"files": moves}

    def commit(self, epoch: int, message: Any) -> None:
        if not isinstance(message, dict) or "files" not in message:
            hint = "was it another kind of sink before?"
            raise SinkError("commit message", "be that of a ParquetSink", message, hint)
        self._files.folder.publish([(source, target) for source, target in message["files"]])

    def abort(self) -> None:
        self._files.drop_all()

    def close(self) -> None:
        """Close; what is prepared stays, since a successor may have to commit it."""
        self._files.drop()


class _RunFiles(Writer):
    """Publishes files as they become full or old."""

    def __init__(self, files: _Files, begin: str, sink: ParquetSink) -> None:
        self._files = files
        self._begin = begin
        self._flush_s = sink.flush_s
        self._numbers = count()
        self._since = 0.0  # when the oldest row came; only if there are any

    def write(self, batch: pa.RecordBatch) -> None:
        if self._files.empty:
            self._since = time.monotonic()
        self._files.write(batch)
        if self._files.full:
            self.flush()
        else:
            self.tick()

    def tick(self) -> None:
        if not self._files.empty and time.monotonic() - self._since >= self._flush_s:
            self.flush()

    def flush(self) -> None:
        end = f"{self._files.token}.parquet"
        moves = [
            (name, f"{self._begin}-{next(self._numbers):06d}-{end}")
            for name in self._files.finish()
        ]
        self._files.folder.publish(moves)

    def close(self) -> None:
        if not self._files.broken:
            self.flush()
        self._files.drop()
        with contextlib.suppress(OSError):
            self._files.folder.remove_folder(self._files.pending)


def _codec_available(name: str) -> bool:
    try:
        return bool(pa.Codec.is_available(name))
    except ValueError:
        return False


def _require_schema(folder: Folder, schema: pa.Schema) -> None:
    """Refuse a schema that Parquet lacks, or that is another than that of the files there."""
    ours = _as_parquet(schema)
    published = [name for name in folder.names() if name.startswith(_OWN)]
    if not published:
        return
    try:
        with folder.open(published[-1]) as file:
            theirs = pq.read_schema(file)
    except FileNotFoundError:  # removed meanwhile
        return
    if _shape(theirs) != _shape(ours):
        must = f"have the columns of {published[-1]} there: {_in_words(theirs)}"
        hint = "write to another folder"
        raise SinkError(f"outputs for {folder}", must, _in_words(ours), hint)


def _as_parquet(schema: pa.Schema) -> pa.Schema:
    """Return the schema as Parquet reads it back: with its own names within lists, for instance."""
    for field in schema:
        try:
            pq.ParquetWriter(pa.BufferOutputStream(), pa.schema([field])).close()
        except pa.ArrowException as error:
            who, got = f"column {field.name!r}", str(field.type)
            raise BadValueError(who, "have a type that Parquet has", got, "cast it") from error
    stream = pa.BufferOutputStream()
    pq.ParquetWriter(stream, schema).close()
    return pq.read_schema(pa.BufferReader(stream.getvalue()))


def _shape(schema: pa.Schema) -> list[tuple[str, str]]:
    return [(field.name, str(field.type)) for field in schema]


def _in_words(schema: pa.Schema) -> str:
    return ", ".join(f"{name} {kind}" for name, kind in _shape(schema))
