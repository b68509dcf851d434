"""The table of damage: each is found before anything is used, and the last good epoch opens."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.state.checkpoint.rig import Contents, Job, contents, files_of, form, opened, some_epochs

from elasticutor.core.protocol.ids import Epoch
from elasticutor.state.checkpoint import (
    CheckpointError,
    DamagedError,
    LayoutError,
    Location,
    Restorer,
)

NEWEST = "epochs/000000000003-1000000001.json"


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Contents]]:
    where = tmp_path_factory.mktemp("original")
    return where, some_epochs(where)


@pytest.fixture
def case(original: tuple[Path, list[Contents]], tmp_path: Path) -> tuple[Path, list[Contents]]:
    shutil.copytree(original[0], tmp_path / "copy")
    return tmp_path / "copy", original[1]


def newest_files(where: Path) -> list[Path]:
    """Those that only the newest epoch has."""
    return [path for path in files_of(where / "state") if "-000000000003-" in path.name]


def check_way_out(where: Path, history: list[Contents], damaged: Path, good: int) -> None:
    """The error names the file and an epoch, which opens, and from then on counts."""
    with pytest.raises((DamagedError, LayoutError)) as caught:
        opened(where)
    assert str(damaged) in str(caught.value)
    told = re.search(
        r"open with epoch=(\d+) to go on from there; what later epochs", str(caught.value)
    )
    assert told is not None
    assert int(told[1]) == good
    checkpoint = opened(where, epoch=good)
    assert checkpoint.committed == good
    assert contents(where, form(), good) == history[good]
    checkpoint.release()
    assert opened(where).committed == good


def test_a_missing_file_is_named_and_the_epoch_before_it_can_be_used(
    case: tuple[Path, list[Contents]],
) -> None:
    where, history = case
    damaged = newest_files(where)[0]
    damaged.unlink()
    check_way_out(where, history, damaged, 2)


def test_a_file_that_is_too_short_is_named_and_the_epoch_before_it_can_be_used(
    case: tuple[Path, list[Contents]],
) -> None:
    where, history = case
    damaged = newest_files(where)[0]
    damaged.write_bytes(damaged.read_bytes()[:-1])
    check_way_out(where, history, damaged, 2)


def test_a_file_of_every_epoch_that_is_gone_leaves_only_the_beginning(
    case: tuple[Path, list[Contents]],
) -> None:
    where, history = case
    damaged = next(path for path in files_of(where / "state") if "-000000000001-" in path.name)
    damaged.unlink()
    check_way_out(where, history, damaged, 0)


def test_without_any_good_epoch_the_error_says_so(case: tuple[Path, list[Contents]]) -> None:
    where, _ = case
    for path in files_of(where / "epochs"):
        path.write_bytes(b"{}")
    with pytest.raises(DamagedError, match="no other epoch is whole; start over"):
        opened(where)


def test_a_manifest_that_is_gone_leaves_the_epoch_before_it(
    case: tuple[Path, list[Contents]],
) -> None:
    where, history = case
    (where / NEWEST).unlink()
    assert opened(where).committed == 2
    assert contents(where, form(), 2) == history[2]


def test_a_manifest_under_another_name_is_damage(case: tuple[Path, list[Contents]]) -> None:
    where, history = case
    other = where / "epochs/000000000004-1000000001.json"
    (where / NEWEST).rename(other)
    check_way_out(where, history, other, 2)


def test_nodes_find_the_damage_too(case: tuple[Path, list[Contents]]) -> None:
    where, _ = case
    damaged = newest_files(where)[0]
    damaged.write_bytes(damaged.read_bytes()[::-1])
    executor = f"counts.{damaged.parent.name}"
    with pytest.raises(DamagedError, match=re.escape(str(damaged))):
        Restorer.load(Location.at(where), form(), executor, Epoch(3))
    with pytest.raises(DamagedError, match="have a manifest of epoch 9"):
        Restorer.load(Location.at(where), form(), executor, Epoch(9))


def test_a_damaged_file_is_not_folded_and_removing_goes_on(tmp_path: Path) -> None:
    job = Job(tmp_path, form(1, 2), keep=2)
    for epoch in range(20):
        job.epoch({epoch: epoch})
    damaged = files_of(tmp_path / "state")[-1]
    damaged.write_bytes(b"x" * damaged.stat().st_size)
    with pytest.raises(DamagedError, match=re.escape(damaged.name)):
        job.checkpoint.tidy()
    assert len(files_of(tmp_path / "epochs")) == 2
    assert job.checkpoint.committed == 20


def with_layout(data: bytes, layout: int) -> bytes:
    content = json.dumps(json.loads(data)["content"], sort_keys=True, separators=(",", ":"))
    digest = hashlib.sha256(f"{layout}:{content}".encode()).hexdigest()
    return f'{{"layout":{layout},"sha256":"{digest}","content":{content}}}\n'.encode()


@pytest.mark.parametrize(
    ("layout", "hint"), [(0, "with the version that wrote it"), (3, "update elasticutor")]
)
def test_older_and_newer_layouts_are_refused_by_name(
    case: tuple[Path, list[Contents]], layout: int, hint: str
) -> None:
    where, history = case
    damaged = where / NEWEST
    damaged.write_bytes(with_layout(damaged.read_bytes(), layout))
    told = rf"must be of layout 1 or 2; got layout {layout}\. .*{hint}"
    with pytest.raises(LayoutError, match=told):
        opened(where)
    check_way_out(where, history, damaged, 2)


def test_a_state_file_of_another_layout_is_refused_by_name(
    case: tuple[Path, list[Contents]],
) -> None:
    where, _ = case
    path = newest_files(where)[0]
    table = pq.read_table(path)
    metadata = {**(table.schema.metadata or {}), b"elasticutor.layout": b"2"}
    sink = pa.BufferOutputStream()
    pq.write_table(table.replace_schema_metadata(metadata), sink)
    data = sink.getvalue().to_pybytes()
    manifest = where / NEWEST
    whole = json.loads(manifest.read_bytes())
    for note in whole["content"]["files"]:
        if note["path"].endswith(path.name):
            note |= {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    path.write_bytes(data)
    manifest.write_bytes(with_layout(json.dumps(whole).encode(), 1))
    with pytest.raises(LayoutError, match=r"must be of layout 1; got layout 2"):
        contents(where, form(), 3)


@pytest.fixture(scope="module")
def scratch(
    original: tuple[Path, list[Contents]], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, list[Contents]]:
    """A copy in which one file at a time is changed and changed back."""
    where = tmp_path_factory.mktemp("scratch") / "copy"
    shutil.copytree(original[0], where)
    return where, original[1]


def newest_or_fault(where: Path) -> Any:
    """What opening and restoring gives, or the error; without leaving a trace."""
    before = set(files_of(where))
    try:
        checkpoint = opened(where, lease_s=0.01, keep=10)
        found = checkpoint.committed, contents(where, form(), checkpoint.committed)
    except CheckpointError as error:
        return error
    finally:
        for path in set(files_of(where)) - before:
            path.unlink()
    return found


@given(st.data())
@settings(max_examples=60)
def test_a_manifest_that_is_torn_anywhere_is_named(
    scratch: tuple[Path, list[Contents]], data: st.DataObject
) -> None:
    where, _ = scratch
    path = where / NEWEST
    content = path.read_bytes()
    size = data.draw(st.integers(0, len(content) - 1))
    try:
        path.write_bytes(content[:size])
        fault = newest_or_fault(where)
        assert isinstance(fault, DamagedError)
        assert fault.who == str(path)
        assert "open with epoch=2" in fault.hint
    finally:
        path.write_bytes(content)


@given(st.data())
@settings(max_examples=60)
def test_any_byte_of_any_file_that_is_changed_is_named_or_does_not_matter(
    scratch: tuple[Path, list[Contents]], data: st.DataObject
) -> None:
    where, history = scratch
    path = data.draw(st.sampled_from(files_of(where)))
    content = path.read_bytes()
    place = data.draw(st.integers(0, len(content) - 1))
    change = data.draw(st.integers(1, 255))
    try:
        path.write_bytes(content[:place] + bytes([content[place] ^ change]) + content[place + 1 :])
        found = newest_or_fault(where)
        if isinstance(found, CheckpointError):
            assert isinstance(found, DamagedError | LayoutError)
            assert found.who == str(path)
        else:
            assert found == (3, history[3])
            # Then it is a claim, or of an epoch that nobody asked for.
            assert path.parent.name in ("claims", "epochs")
            assert path != where / NEWEST
    finally:
        path.write_bytes(content)
