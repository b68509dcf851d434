"""Tuples as Parquet files, which a file stream reads a few at a time: one micro-batch each.

All queries read the same files in the same order. The first batch is small: it is there to start
processes and to compile plans, and is not counted.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from elasticutor.errors import BadValueError
from elasticutor.sources import Generator

FILES = 2
"""Files of each batch: Spark makes one task of each. Rows are dealt to them in turn."""


@dataclass(frozen=True, slots=True)
class Files:
    """A stream in a folder."""

    folder: Path
    schema: str
    """Of the rows, as DDL."""
    batch_rows: int
    warm_up_rows: int
    """Of the first batch, which is not counted."""
    batches: int
    """Those that are counted."""

    @property
    def rows(self) -> int:
        """Those that are counted."""
        return self.batches * self.batch_rows


def write_files(
    folder: Path, generator: Generator, rows: int, batch_rows: int, warm_up_rows: int
) -> Files:
    """Write a stream's tuples into a new folder: as many of the rows as fill batches."""
    for name, number in (("rows of a batch", batch_rows), ("rows to warm up with", warm_up_rows)):
        if number < FILES:
            raise BadValueError(name, f"be at least {FILES}, one for each file", number)
    batches = rows // batch_rows
    if not batches:
        hint = "give more rows, or smaller batches"
        raise BadValueError("rows", f"fill a batch of {batch_rows:,}", rows, hint)
    folder.mkdir(parents=True)
    sizes = [warm_up_rows // FILES, *[batch_rows // FILES] * batches]
    # A file stream reads files by their age.
    age = int(time.time()) - FILES * len(sizes)
    start = 0
    for batch, size in enumerate(sizes):
        for number in range(FILES):
            drawn = generator.table(number, FILES, start, start + size)
            path = folder / f"{batch:05d}-{number}.parquet"
            pq.write_table(_as_spark_has_it(drawn), path)
            age += 1
            os.utime(path, (age, age))
        start += size
    schema = "key bigint, time bigint" + (", payload binary" if generator.payload else "")
    return Files(folder, schema, sizes[1] * FILES, sizes[0] * FILES, batches)


def _as_spark_has_it(batch: pa.RecordBatch) -> pa.Table:
    """The same with a payload of any length: Spark has no other."""
    table = pa.Table.from_batches([batch])
    if "payload" not in table.column_names:
        return table
    place = table.column_names.index("payload")
    return table.cast(table.schema.set(place, pa.field("payload", pa.binary())))
