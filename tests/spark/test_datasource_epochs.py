"""Data sources in the epochs of a topology: batch ids that are committed once more, and offsets."""

# ruff: noqa: N802, N803 (the names are Spark's)

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import Row, SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType
from tests.process.sink_rig import SCHEMA, KilledError, SinkRig, live

from elasticutor.sinks import EpochWriter, ParquetSink, SinkError, SinkRun, open_sink
from elasticutor.sinks import spool as spool_module
from elasticutor.spark.datasource import DataSourceSink, DataSourceSource

CHECKPOINTED = SinkRun("out", "run-1", "file:///checkpoint", checkpointed=True)
NOW = 1_700_000_000.0


@dataclass
class Draft(WriterCommitMessage):
    path: str


class Shelf(DataSource):
    """A file for each batch id; it skips those it has, and notes what is asked of it."""

    log: ClassVar[list[Any]] = []
    fuse: ClassVar[int | None] = None

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        Shelf.log.append(("writer", overwrite))
        kind = ArrowShelfWriter if self.options.get("arrow") else ShelfWriter
        return kind(Path(self.options["path"]), overwrite)


class ShelfWriter(DataSourceStreamWriter):
    numbers: ClassVar[Iterator[int]] = count()

    def __init__(self, folder: Path, overwrite: bool) -> None:
        self.folder = folder
        self.overwrite = overwrite

    def write(self, iterator: Iterator[Any]) -> Draft:
        return self.draft([row.n for row in iterator])

    def draft(self, numbers: list[int]) -> Draft:
        Shelf.log.append(("write", numbers))
        path = self.folder / f"draft-{next(ShelfWriter.numbers)}"
        path.write_text(json.dumps(numbers))
        return Draft(str(path))

    def commit(self, messages: Sequence[Any], batchId: int) -> None:
        Shelf.log.append(("commit", batchId))
        self.step()
        final = self.folder / f"{batchId}.json"
        if not final.exists():
            (message,) = messages
            if self.overwrite:
                for path in self.folder.glob("*.json"):
                    path.unlink()
            Path(message.path).rename(final)
        self.step()

    def abort(self, messages: Sequence[Any], batchId: int) -> None:
        Shelf.log.append(("abort", batchId))
        for message in messages:
            if message is not None:
                Path(message.path).unlink()

    def step(self) -> None:
        if Shelf.fuse is not None:
            Shelf.fuse -= 1
            if Shelf.fuse < 0:
                raise KilledError


class ArrowShelfWriter(ShelfWriter, DataSourceStreamArrowWriter):
    def write(self, iterator: Iterator[Any]) -> Draft:
        return self.draft([n for batch in iterator for n in batch.column("n").to_pylist()])


def set_fuse(steps: int | None) -> None:
    Shelf.fuse = steps


def shelf(folder: Path | str, arrow: bool = False, **settings: Any) -> DataSourceSink:
    Shelf.log.clear()
    options = {"path": str(folder), **({"arrow": "1"} if arrow else {})}
    return DataSourceSink(Shelf, options, **settings)


def on_shelf(folder: Path | str) -> dict[int, list[int]]:
    paths = Path(folder).glob("*.json")
    return {int(path.stem): json.loads(path.read_text()) for path in paths}


def epochs(sink: DataSourceSink) -> EpochWriter:
    writer = open_sink("out", sink, 0, SCHEMA, CHECKPOINTED)
    assert isinstance(writer, EpochWriter)
    return writer


def batch(*numbers: int) -> pa.RecordBatch:
    return pa.record_batch([pa.array(numbers, pa.int64())], schema=SCHEMA)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 999), max_size=40), st.booleans())
def test_whatever_happens_every_committed_epoch_is_there_once(
    choices: list[int], overwrite: bool
) -> None:
    with tempfile.TemporaryDirectory() as home:
        rig = SinkRig(shelf(home, overwrite=overwrite))
        live(rig, choices, set_fuse)
        found = on_shelf(home)
        if overwrite and rig.base:
            # The first epoch replaces what is there, even by nothing.
            rig.counted.setdefault(1, [])
        assert found == rig.counted
        assert rig.mail.dropped == []


@pytest.mark.parametrize("arrow", [True, False])
def test_an_epoch_is_one_batch_that_is_committed_under_its_number(
    tmp_path: Path, arrow: bool
) -> None:
    rig = SinkRig(shelf(tmp_path, arrow, flush_rows=1, flush_s=0))
    rig.begin()
    rig.write(2)
    rig.write(1)
    rig.prepare()
    rig.write(1)
    assert Shelf.log == [("writer", False), ("write", [0, 1, 2])]
    rig.write_manifest()
    rig.commit()
    rig.end_epoch()
    rig.end_epoch()  # without rows: the number is left out
    rig.write(1)
    rig.end_epoch()
    assert [entry[1] for entry in Shelf.log if entry[0] == "commit"] == [1, 2, 4]
    assert on_shelf(tmp_path) == {1: [0, 1, 2], 2: [3], 4: [4]}


@pytest.mark.parametrize("same_process", [True, False])
def test_the_last_epoch_is_committed_once_more_with_its_message_and_never_aborted(
    tmp_path: Path, same_process: bool
) -> None:
    rig = SinkRig(shelf(tmp_path))
    rig.begin()
    rig.write(2)
    rig.prepare()
    rig.write_manifest()
    rig.write(1)
    if same_process:
        rig.begin()
    else:
        rig.crash()
    rig.crash()
    assert [entry for entry in Shelf.log if entry[0] in ("commit", "abort")] == [
        ("commit", 1),
        ("commit", 1),
    ]
    assert on_shelf(tmp_path) == {1: [0, 1]}


def test_an_epoch_that_is_given_up_is_aborted_by_whoever_wrote_it(tmp_path: Path) -> None:
    rig = SinkRig(shelf(tmp_path))
    rig.begin()
    rig.write(2)
    rig.prepare()
    rig.write(1)
    rig.begin()
    assert Shelf.log[-1] == ("abort", 1)
    rig.write(1)
    rig.end_epoch()
    assert on_shelf(tmp_path) == {1: [3]}
    assert list(tmp_path.glob("draft-*")) == []


def test_only_the_first_epoch_ever_replaces_what_is_there(tmp_path: Path) -> None:
    (tmp_path / "99.json").write_text("[]")
    rig = SinkRig(shelf(tmp_path, overwrite=True))
    rig.begin()
    assert Shelf.log == []  # nothing is made before it is known which epoch it is for
    rig.prepare()  # no rows, and yet there is something to do
    assert set(on_shelf(tmp_path)) == {99}
    rig.write_manifest()
    rig.crash()
    assert on_shelf(tmp_path) == {1: []}
    rig.write(1)
    rig.end_epoch()
    rig.crash()
    rig.write(1)
    rig.end_epoch()
    assert on_shelf(tmp_path) == {1: [], 2: [0], 3: [1]}
    made = [entry[1] for entry in Shelf.log if entry[0] == "writer"]
    assert made == [True, True, False, False]


def test_many_rows_wait_in_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool_module.Spool.__init__, "__defaults__", (1000,))
    writer = epochs(shelf(tmp_path))
    for n in range(300):
        writer.write(batch(n))
    assert writer.inner._spool.spilled  # type: ignore[attr-defined]
    writer.commit(1, writer.prepare(1))
    assert on_shelf(tmp_path) == {1: list(range(300))}
    writer.write(batch(300))
    writer.commit(2, writer.prepare(2))
    assert on_shelf(tmp_path)[2] == [300]


class Brittle(DataSource):
    """Its writer, one for batches, breaks where it is told to."""

    log: ClassVar[list[Any]] = []

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return BrittleWriter(self.options["broken"])


class BrittleWriter(DataSourceWriter):
    def __init__(self, broken: str) -> None:
        self.broken = broken

    def write(self, iterator: Iterator[Any]) -> Any:
        rows = list(iterator)
        assert all(isinstance(row, Row) for row in rows)
        self.break_in("write")
        return 7 if self.broken == "message" else Draft(str(len(rows)))

    def commit(self, messages: Sequence[Any]) -> None:
        Brittle.log.append(("commit", messages))
        self.break_in("commit")

    def abort(self, messages: Sequence[Any]) -> None:
        Brittle.log.append(("abort", messages))

    def break_in(self, where: str) -> None:
        if self.broken == where:
            raise OSError(f"no {where}")


def brittle(broken: str) -> EpochWriter:
    Brittle.log.clear()
    writer = epochs(DataSourceSink(Brittle, {"broken": broken}))
    writer.write(batch(1, 2))
    return writer


@pytest.mark.parametrize(
    ("broken", "message"), [("write", "OSError: no write"), ("message", "WriterCommitMessage")]
)
def test_a_write_that_fails_is_aborted_and_ends_the_run(broken: str, message: str) -> None:
    writer = brittle(broken)
    with pytest.raises(SinkError, match=f"sink 'out' must prepare epoch 3.*{message}"):
        writer.prepare(3)
    assert Brittle.log == [("abort", [None])]


def test_a_commit_that_fails_is_not_aborted_since_the_epoch_counts() -> None:
    writer = brittle("commit")
    note = writer.prepare(3)
    with pytest.raises(SinkError, match=r"sink 'out' must commit epoch 3.*OSError: no commit"):
        writer.commit(3, note)
    writer.close()
    assert Brittle.log == [("commit", [Draft("2")])]
    after = brittle("")
    after.commit(3, note)
    after.abort()
    assert Brittle.log == [("commit", [Draft("2")])]


def test_the_message_of_another_kind_of_sink_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SinkError, match="be that of a data source"):
        epochs(shelf(tmp_path)).commit(1, {"files": []})


# Sources ------------------------------------------------------------------------------------------


@dataclass
class Span(InputPartition):
    first: int
    last: int


class Tape(DataSource):
    """The numbers up to 12, four in a range, in two partitions."""

    def schema(self) -> str:
        return "n long"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return TapeReader()


class TapeReader(DataSourceStreamReader):
    def __init__(self) -> None:
        self.committed: list[int] = []

    def initialOffset(self) -> dict[str, int]:
        return {"n": 0}

    def latestOffset(self, start: dict[str, int], limit: Any) -> dict[str, int]:
        return {"n": min(12, start["n"] + 4)}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[Span]:
        middle = (start["n"] + end["n"]) // 2
        return [Span(start["n"], middle), Span(middle, end["n"])]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        assert isinstance(partition, Span)
        return ((n,) for n in range(partition.first, partition.last))

    def commit(self, end: dict[str, int]) -> None:
        self.committed.append(end["n"])


def test_with_a_checkpoint_a_range_is_committed_with_the_epoch_that_covers_it() -> None:
    reader: Any = DataSourceSource(Tape, poll_s=0).open(0, 1, None)
    reader.checkpointed = True
    told = reader._ranges._reader.committed
    offsets = {}
    for rows in range(1, 13):
        while reader.poll(NOW, 1) is None:
            pass
        offsets[rows] = reader.offset
    assert told == []
    reader.committed(offsets[2])  # within the first range
    assert told == []
    reader.committed(offsets[6])  # within the second one
    reader.committed(offsets[7])
    assert told == [4]
    assert reader.poll(NOW, 1) is None  # all is read, and nothing more has come
    reader.committed(reader.offset)
    assert told == [4, 12]
    again: Any = DataSourceSource(Tape, poll_s=0).open(0, 1, offsets[6])
    again.checkpointed = True
    again.committed(offsets[7])
    assert again._ranges._reader.committed == []
    again.committed(offsets[10])
    assert again._ranges._reader.committed == [8]


# Parquet files, read by Spark ---------------------------------------------------------------------


def test_spark_reads_a_folder_of_parquet_files_while_it_is_written_to(
    spark: SparkSession, tmp_path: Path
) -> None:
    rig = SinkRig(ParquetSink(tmp_path, max_rows=2))
    rig.begin()
    rig.write(3)
    rig.end_epoch()
    rig.write(3)
    rig.prepare()
    rig.write(3)
    rows = spark.read.parquet(str(tmp_path)).orderBy("n").collect()
    assert [row.n for row in rows] == [0, 1, 2]
