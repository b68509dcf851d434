"""Parquet files: each committed epoch once, whatever is killed and whenever."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import cloudpickle
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import fs
from tests.process.sink_rig import LEFT, KilledError, SinkRig, live

from elasticutor.errors import BadValueError
from elasticutor.sinks import EpochWriter, ParquetSink, SinkError, SinkRun, Writer, open_sink
from elasticutor.sinks import parquet as parquet_module

SCHEMA = pa.schema([pa.field("n", pa.int64(), nullable=False)])
CHECKPOINTED = SinkRun("out", "run-1", "file:///checkpoint", checkpointed=True)


def batch(*numbers: int) -> pa.RecordBatch:
    return pa.record_batch([pa.array(numbers, pa.int64())], schema=SCHEMA)


def by_epoch(folder: Path) -> dict[int, list[int]]:
    """What a reader of the folder sees, by the epoch in the names."""
    found: dict[int, list[int]] = {}
    for path in sorted(folder.glob("*.parquet")):
        numbers = pq.read_table(path).column("n").to_pylist()
        found.setdefault(int(path.name.split("-")[1]), []).extend(numbers)
    return found


def leftovers(folder: Path) -> list[Path]:
    return [path for path in (folder / "_pending").rglob("*") if path.is_file()]


def epochs(sink: ParquetSink, run: SinkRun = CHECKPOINTED) -> EpochWriter:
    writer = open_sink("out", sink, 0, SCHEMA, run)
    assert isinstance(writer, EpochWriter)
    return writer


# The promise --------------------------------------------------------------------------------------


def test_an_epoch_is_seen_when_it_is_committed_and_not_before(tmp_path: Path) -> None:
    rig = SinkRig(ParquetSink(tmp_path))
    rig.begin()
    rig.write(3)
    assert by_epoch(tmp_path) == {}
    rig.prepare()
    rig.write(2)  # of the next epoch, before this one is committed
    assert by_epoch(tmp_path) == {}
    rig.write_manifest()
    rig.commit()
    assert by_epoch(tmp_path) == {1: [0, 1, 2]}
    rig.end_epoch()
    assert by_epoch(tmp_path) == {1: [0, 1, 2], 2: [3, 4]}
    assert leftovers(tmp_path) == []


def test_readers_pass_over_what_is_pending(tmp_path: Path) -> None:
    rig = SinkRig(ParquetSink(tmp_path))
    rig.begin()
    rig.write(3)
    rig.end_epoch()
    rig.write(4)
    rig.prepare()
    assert len(leftovers(tmp_path)) == 1
    assert pq.read_table(tmp_path).column("n").to_pylist() == [0, 1, 2]


@pytest.mark.parametrize("told", ["written", "prepared", "manifest", "between", "committed"])
@pytest.mark.parametrize("same_process", [True, False])
def test_a_committed_epoch_is_seen_once_wherever_the_sink_is_interrupted(
    tmp_path: Path, told: str, same_process: bool
) -> None:
    """Three files an epoch; one case is killed with the second copied but not moved."""
    sink = ParquetSink(tmp_path, max_rows=2)
    sink.filesystem = ShakyStore()
    rig = SinkRig(sink)
    rig.begin()
    rig.write(5)
    rig.end_epoch()
    rig.write(5)
    if told != "written":
        rig.prepare()
        rig.write(1)
    if told in ("manifest", "between", "committed"):
        rig.write_manifest()
    if told == "between":
        ShakyStore.fuse = 3
        with pytest.raises(KilledError):
            rig.commit()
        ShakyStore.fuse = None
        assert len(list(tmp_path.glob(f"epoch-{2:012d}-*"))) == 2
    if told == "committed":
        rig.commit()
    if same_process and told != "between":
        rig.begin()
    else:
        rig.crash()
    assert by_epoch(tmp_path) == rig.counted
    assert sorted(rig.counted) == ([1, 2] if told in ("manifest", "between", "committed") else [1])
    assert leftovers(tmp_path) == []
    rig.write(1)
    rig.end_epoch()
    assert by_epoch(tmp_path) == rig.counted


class ShakyStore:
    """A local disk that moves as object stores do, by copying and deleting; it can be killed."""

    fuse: ClassVar[int | None] = None
    """After how many steps of moves."""
    type_name = "shaky"

    def __getattr__(self, name: str) -> Any:
        return getattr(fs.LocalFileSystem(), name)

    def move(self, source: str, target: str) -> None:
        self.step()
        self.copy_file(source, target)
        self.step()
        self.delete_file(source)

    def step(self) -> None:
        if ShakyStore.fuse is not None:
            ShakyStore.fuse -= 1
            if ShakyStore.fuse < 0:
                raise KilledError


def set_fuse(steps: int | None) -> None:
    ShakyStore.fuse = steps


@settings(max_examples=100, deadline=None)
@given(
    choices=st.lists(st.integers(0, 999), max_size=40),
    max_rows=st.sampled_from([1, 3, 1000]),
)
def test_whatever_happens_the_folder_has_every_committed_epoch_once(
    choices: list[int], max_rows: int
) -> None:
    with tempfile.TemporaryDirectory() as home:
        sink = ParquetSink(home, max_rows=max_rows)
        sink.filesystem = ShakyStore()
        rig = SinkRig(sink)
        live(rig, choices, set_fuse)
        assert by_epoch(Path(home)) == rig.counted
        rig.begin()
        assert by_epoch(Path(home)) == rig.counted
        assert leftovers(Path(home)) == []
        assert rig.mail.dropped == []


KILLED = """
import sys, pyarrow as pa
from elasticutor.sinks import ParquetSink, SinkRun
run = SinkRun("out", "run-1", "file:///checkpoint", checkpointed=True)
schema = pa.schema([pa.field("n", pa.int64(), nullable=False)])
writer = ParquetSink(sys.argv[1], max_rows=2).open_in(run, 0, schema)
writer.write(pa.record_batch([pa.array([1, 2, 3])], schema=schema))
print(repr(writer.prepare(1)), flush=True)
writer.write(pa.record_batch([pa.array([4, 5, 6])], schema=schema))
print("more", flush=True)
sys.stdin.read()
"""


def test_another_process_commits_what_a_killed_one_has_prepared(tmp_path: Path) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    message = eval(child.stdout.readline())  # noqa: S307 (our own)
    assert child.stdout.readline() == "more\n"
    child.send_signal(signal.SIGKILL)
    child.communicate()
    assert by_epoch(tmp_path) == {}
    writer = epochs(ParquetSink(tmp_path))
    writer.commit(1, message)
    writer.abort()
    assert by_epoch(tmp_path) == {1: [1, 2, 3]}
    assert leftovers(tmp_path) == []


def test_a_folder_that_is_mounted_elsewhere_can_be_committed_to(tmp_path: Path) -> None:
    before = tmp_path / "before"
    writer = epochs(ParquetSink(before))
    writer.write(batch(1))
    message = writer.prepare(1)
    after = before.rename(tmp_path / "after")
    epochs(ParquetSink(after)).commit(1, message)
    assert by_epoch(after) == {1: [1]}


def test_files_that_are_in_neither_place_are_named(tmp_path: Path) -> None:
    writer = epochs(ParquetSink(tmp_path / "here"))
    writer.write(batch(1))
    message = writer.prepare(7)
    [(pending, final)] = message["files"]
    elsewhere = epochs(ParquetSink(tmp_path / "there"))
    with pytest.raises(SinkError, match="sink 'out' must commit epoch 7") as refused:
        elsewhere.commit(7, message)
    assert pending in str(refused.value)
    assert final in str(refused.value)


def test_a_copy_that_was_not_followed_by_its_delete_is_completed(tmp_path: Path) -> None:
    writer = epochs(ParquetSink(tmp_path))
    writer.write(batch(1))
    message = writer.prepare(1)
    [(pending, final)] = message["files"]
    shutil.copy(tmp_path / pending, tmp_path / final)
    writer.commit(1, message)
    assert by_epoch(tmp_path) == {1: [1]}
    assert leftovers(tmp_path) == []


def test_the_message_of_another_kind_of_sink_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SinkError, match="be that of a ParquetSink"):
        epochs(ParquetSink(tmp_path)).commit(1, b"pickled")


def test_another_job_in_the_same_folder_is_left_alone(tmp_path: Path) -> None:
    """Both call their sink the same, and both are in their first epoch."""
    ours, theirs = (
        epochs(ParquetSink(tmp_path), SinkRun("out", name, f"file:///{name}", checkpointed=True))
        for name in ("ours", "theirs")
    )
    theirs.write(batch(1))
    message = theirs.prepare(1)
    ours.abort()
    ours.write(batch(2))
    ours.commit(1, ours.prepare(1))
    theirs.commit(1, message)
    assert sorted(pq.read_table(tmp_path).column("n").to_pylist()) == [1, 2]


def test_an_epoch_without_rows_has_no_file_and_nothing_to_commit(tmp_path: Path) -> None:
    writer = epochs(ParquetSink(tmp_path))
    assert writer.prepare(1) is None
    writer.write(batch())
    assert writer.prepare(2) is None
    assert by_epoch(tmp_path) == {}


def test_closing_keeps_what_is_prepared_and_drops_the_rest(tmp_path: Path) -> None:
    writer = epochs(ParquetSink(tmp_path, max_rows=1))
    writer.write(batch(1))
    message = writer.prepare(1)
    writer.write(batch(2, 3))
    assert len(leftovers(tmp_path)) == 3
    writer.close()
    assert len(leftovers(tmp_path)) == 1
    epochs(ParquetSink(tmp_path)).commit(1, message)
    assert by_epoch(tmp_path) == {1: [1]}


# Files --------------------------------------------------------------------------------------------


def test_small_batches_are_gathered_into_row_groups_and_files_have_no_more_than_their_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet_module, "_GROUP_ROWS", 10)
    writer = epochs(ParquetSink(tmp_path, max_rows=25, compression="snappy"))
    for n in range(60):
        writer.write(batch(n))
    writer.write(batch(*range(60, 120)))
    writer.commit(1, writer.prepare(1))
    files = [pq.ParquetFile(path) for path in sorted(tmp_path.glob("*.parquet"))]
    assert [file.metadata.num_rows for file in files] == [25, 25, 25, 25, 20]
    assert [
        files[0].metadata.row_group(group).num_rows for group in range(files[0].num_row_groups)
    ] == [10, 10, 5]
    assert files[0].metadata.row_group(0).column(0).compression == "SNAPPY"
    assert by_epoch(tmp_path) == {1: list(range(120))}


def test_rows_go_to_disk_as_they_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet_module, "_GROUP_BYTES", 1000)
    monkeypatch.setattr(parquet_module, "_FILE_BYTES", 3000)
    writer = epochs(ParquetSink(tmp_path, compression="none"))
    for n in range(100):
        writer.write(batch(*range(n * 100, n * 100 + 100)))
        assert writer.inner._files._kept_bytes < 2000  # type: ignore[attr-defined]
    assert len(leftovers(tmp_path)) > 10
    writer.commit(1, writer.prepare(1))
    assert by_epoch(tmp_path) == {1: list(range(10_000))}


def test_outputs_of_another_schema_than_what_is_there_are_refused(tmp_path: Path) -> None:
    lists = pa.schema([("n", pa.int64()), ("l", pa.list_(pa.struct([("a", pa.string())])))])
    writer = ParquetSink(tmp_path).open_in(CHECKPOINTED, 0, lists)
    assert isinstance(writer, EpochWriter)
    writer.write(pa.RecordBatch.from_pylist([{"n": 1, "l": [{"a": "x"}]}], schema=lists))
    writer.commit(1, writer.prepare(1))
    ParquetSink(tmp_path).open_in(CHECKPOINTED, 0, lists)
    with pytest.raises(SinkError, match=r"must open; got .*epoch-000000000001.* n int64, l list<"):
        open_sink("out", ParquetSink(tmp_path), 0, SCHEMA)


def test_a_column_that_parquet_has_no_type_for_is_refused_by_name(tmp_path: Path) -> None:
    schema = pa.schema([("n", pa.int64()), ("gap", pa.month_day_nano_interval())])
    with pytest.raises(BadValueError, match="column 'gap' must have a type that Parquet has"):
        ParquetSink(tmp_path).open(0, schema)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ParquetSink("ftp://host/x"), "uri must be a path, or begin with file://"),
        (lambda: ParquetSink(""), "uri must be a path"),
        (lambda: ParquetSink(7), "uri must be a path"),  # type: ignore[arg-type]
        (lambda: ParquetSink("/x", compression="zip"), "compression must be one of"),
        (lambda: ParquetSink("/x", compression=None), "compression must be one of"),  # type: ignore[arg-type]
        (lambda: ParquetSink("/x", max_rows=0), "max_rows must be a whole number"),
        (lambda: ParquetSink("/x", flush_s=float("nan")), "flush_s must be a number of seconds"),
        (lambda: ParquetSink("/x", filesystem="s3"), "filesystem must be one of pyarrow.fs"),
    ],
)
def test_what_cannot_be_is_refused_with_a_reason(make: Any, message: str) -> None:
    with pytest.raises(BadValueError, match=message):
        make()


def test_a_location_may_be_a_path_a_uri_or_in_a_file_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    sinks = [
        ParquetSink("some where"),
        ParquetSink((tmp_path / "some where").as_uri()),
        ParquetSink(
            "some where", filesystem=fs.SubTreeFileSystem(str(tmp_path), fs.LocalFileSystem())
        ),
    ]
    monkeypatch.chdir("/")
    for number, sink in enumerate(sinks, 1):
        writer = epochs(cloudpickle.loads(cloudpickle.dumps(sink)))
        writer.write(batch(number))
        writer.commit(number, writer.prepare(number))
    assert by_epoch(tmp_path / "some where") == {1: [1], 2: [2], 3: [3]}


# Without a checkpoint -----------------------------------------------------------------------------


def all_rows(folder: Path) -> list[list[int]]:
    paths = sorted(folder.glob("run-*.parquet"))
    return [pq.read_table(path).column("n").to_pylist() for path in paths]


def at_once(folder: Path, run: str = "r1", **options: Any) -> Writer:
    writer = open_sink("out", ParquetSink(folder, **options), 0, SCHEMA, SinkRun("out", run))
    assert not isinstance(writer, EpochWriter)
    return writer


def test_without_a_checkpoint_files_appear_when_they_are_full_or_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(parquet_module, "time", SimpleNamespace(monotonic=lambda: clock.now))
    writer = at_once(tmp_path, max_rows=3, flush_s=5)
    writer.write(batch(1, 2))
    assert all_rows(tmp_path) == []
    writer.write(batch(3))
    assert all_rows(tmp_path) == [[1, 2, 3]]
    writer.write(batch(4))
    clock.now = 4.9
    writer.tick()
    assert all_rows(tmp_path) == [[1, 2, 3]]
    clock.now = 5.0
    writer.tick()
    writer.tick()
    assert all_rows(tmp_path) == [[1, 2, 3], [4]]
    writer.write(batch(5))
    writer.close()
    assert all_rows(tmp_path) == [[1, 2, 3], [4], [5]]
    assert leftovers(tmp_path) == []


def test_runs_without_a_checkpoint_add_to_what_is_there(tmp_path: Path) -> None:
    for run in ("r1", "r2", "r1"):
        writer = at_once(tmp_path, run)
        writer.write(batch(1))
        writer.close()
    assert all_rows(tmp_path) == [[1], [1], [1]]


def test_what_could_not_be_written_whole_is_not_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_space(self: Any, *parts: Any, **more: Any) -> None:
        raise OSError(28, "No space left on device")

    writer = at_once(tmp_path)
    writer.write(batch(1))
    monkeypatch.setattr(pq.ParquetWriter, "write_table", no_space)
    with pytest.raises(SinkError, match="No space left on device"):
        writer.flush()
    monkeypatch.undo()
    writer.close()
    assert all_rows(tmp_path) == []
    assert leftovers(tmp_path) == []


def test_without_a_checkpoint_the_process_publishes_at_the_end_of_the_run(tmp_path: Path) -> None:
    rig = SinkRig(ParquetSink(tmp_path), checkpointed=False)
    rig.begin()
    rig.write(3)
    rig.write(2, LEFT)
    rig.end_epoch()
    assert all_rows(tmp_path) == [[0, 1, 2, 3, 4]]
