"""Small increments travel in the manifest: one durable write, and no file of their own."""

from __future__ import annotations

import base64
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from tests.state.checkpoint.rig import Job, contents, files_of, form, opened, some_epochs

from elasticutor.core.protocol.ids import Attempt, Epoch
from elasticutor.state.checkpoint import DamagedError, StateFile, epochs_of
from elasticutor.state.inspection.listing import check_files
from elasticutor.state.inspection.reading import StateReader

ALL = 1 << 20
NEWEST = "epochs/000000000003-1000000001.json"


def layout_of(manifest: Path) -> int:
    layout: int = json.loads(manifest.read_bytes())["layout"]
    return layout


def rewritten(manifest: Path, change: Any) -> None:
    """Change what is inside, and let the manifest itself be whole."""
    whole = json.loads(manifest.read_bytes())
    change(whole["content"])
    content = json.dumps(whole["content"], sort_keys=True, separators=(",", ":"))
    digest = hashlib.sha256(f"{whole['layout']}:{content}".encode()).hexdigest()
    text = f'{{"layout":{whole["layout"]},"sha256":"{digest}","content":{content}}}\n'
    manifest.write_text(text)


def test_epochs_whose_increments_are_inline_are_restored_and_leave_no_files(tmp_path: Path) -> None:
    history = some_epochs(tmp_path, inline=ALL)
    assert not (tmp_path / "state").exists()
    for epoch, expected in enumerate(history):
        assert contents(tmp_path, form(), epoch) == expected
    assert opened(tmp_path).committed == 3


def test_only_what_is_small_enough_is_inline(tmp_path: Path) -> None:
    job = Job(tmp_path, form(executors=1, shards=1))
    (small,) = job.increments(1, {1: "x"})
    job.inline = small.size
    (small,) = job.increments(1, {1: "x"})
    (large,) = job.increments(1, {1: "x" * 10, 2: "y" * 10})
    assert (small.inline, large.inline) == (True, False)
    assert [path.name for path in files_of(tmp_path / "state")] == [Path(large.path).name]


def test_a_manifest_without_anything_inside_is_as_older_versions_know_it(tmp_path: Path) -> None:
    some_epochs(tmp_path / "files")
    some_epochs(tmp_path / "inline", inline=ALL)
    assert layout_of(tmp_path / "files" / NEWEST) == 1
    assert layout_of(tmp_path / "inline" / NEWEST) == 2
    notes = json.loads((tmp_path / "files" / NEWEST).read_bytes())["content"]["files"]
    assert all("content" not in note for note in notes)


def test_a_checkpoint_of_files_goes_on_with_increments_inside(tmp_path: Path) -> None:
    history = some_epochs(tmp_path)
    job = Job(tmp_path, inline=ALL)
    job.epoch({100: "new"})
    assert contents(tmp_path, form(), 4) == {**history[3], 100: "new"}
    assert layout_of(tmp_path / job.checkpoint._manifest.name.path) == 2


def test_what_is_folded_becomes_a_file_and_manifests_are_small_again(tmp_path: Path) -> None:
    job = Job(tmp_path, form(executors=1, shards=1), inline=ALL)
    for number in range(17):
        job.epoch({number: number})
    assert job.checkpoint.tidy().folded == 17
    epoch = job.epoch({99: 99})
    (manifest,) = [m.manifest for m in epochs_of(job.checkpoint.location) if m.epoch == epoch]
    assert manifest is not None
    assert [file.inline for file in manifest.files] == [False, True]
    assert contents(tmp_path, job.form, epoch) == {n: n for n in (*range(17), 99)}
    assert job.checkpoint.tidy().folded == 0


def test_what_is_inline_is_shown_and_checked_like_files(tmp_path: Path) -> None:
    history = some_epochs(tmp_path, inline=ALL)
    reader = StateReader(str(tmp_path))
    checked = check_files(reader)
    assert (checked.faults, checked.epochs) == ((), 4)
    assert checked.files > 0
    shown = {entry.key: entry.value for entry in reader.show("counts", epoch=3).entries}
    assert shown == history[3]


def changed(file: dict[str, Any]) -> None:
    data = bytearray(base64.b64decode(file["content"]))
    data[len(data) // 2] ^= 1
    file["content"] = base64.b64encode(data).decode()


def torn(file: dict[str, Any]) -> None:
    file["content"] = file["content"][:-8]


def no_base64(file: dict[str, Any]) -> None:
    file["content"] = file["content"][:-4] + "?" + file["content"][-3:]


@pytest.mark.parametrize("damage", [changed, torn, no_base64])
def test_damage_inside_is_found_by_its_own_checksum(tmp_path: Path, damage: Any) -> None:
    history = some_epochs(tmp_path, inline=ALL)
    rewritten(tmp_path / NEWEST, lambda content: damage(content["files"][-1]))
    with pytest.raises(DamagedError, match="open with epoch=2"):
        opened(tmp_path)
    (fault,) = check_files(StateReader(str(tmp_path))).faults
    assert fault.epochs == (3,)
    assert contents(tmp_path, form(), opened(tmp_path, epoch=2).committed) == history[2]


def test_a_torn_manifest_is_damaged_as_a_whole(tmp_path: Path) -> None:
    some_epochs(tmp_path, inline=ALL)
    whole = (tmp_path / NEWEST).read_bytes()
    for size in range(0, len(whole), 97):
        (tmp_path / NEWEST).write_bytes(whole[:size])
        with pytest.raises(DamagedError):
            opened(tmp_path)


def test_a_note_of_a_file_carries_its_content_only_if_there_is_any() -> None:
    plain = StateFile("p", "counts.1", Epoch(1), Epoch(2), Attempt(3), 4, 5, "6", "increment")
    inside = StateFile(
        "p", "counts.1", Epoch(1), Epoch(2), Attempt(3), 4, 5, "6", "increment", "YQ=="
    )
    assert "content" not in plain.as_note()
    for file in (plain, inside):
        assert StateFile.from_note(file.as_note()) == file
