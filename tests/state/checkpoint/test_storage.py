"""Storage that refuses, for real: full, closed, read-only."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.state.checkpoint.rig import Job, contents, form, opened, some_epochs

from elasticutor.state.checkpoint import StorageError

ROOT = Path(__file__).parents[3]

UNTIL_IT_FAILS = """
import os, resource, sys
from elasticutor.state.checkpoint import StorageError
from tests.state.checkpoint.rig import Job, contents, form
where = sys.argv[1]
job = Job(where)
job.epoch({0: b""})
state = {0: b""}
TROUBLE
for epoch in range(2, 200):
    changes = {epoch: VALUE}
    try:
        job.epoch(changes)
    except StorageError as error:
        print(error)
        break
    state |= changes
print(contents(where, form(), job.checkpoint.committed) == state, job.checkpoint.committed)
"""


def script(value: str = "b'x'", trouble: str = "") -> str:
    return UNTIL_IT_FAILS.replace("VALUE", value).replace("TROUBLE", trouble)


def told(command: list[str], code: str, where: Path) -> list[str]:
    done = subprocess.run(
        [*command, sys.executable, "-c", code, str(where)],
        capture_output=True,
        text=True,
        timeout=100,
        cwd=ROOT,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def can(*command: str) -> bool:
    if shutil.which(command[0]) is None:
        return False
    return subprocess.run([*command, "true"], capture_output=True, check=False).returncode == 0


def test_a_full_disk_is_named_and_the_last_epoch_is_intact(tmp_path: Path) -> None:
    apart = ("unshare", "--mount", "--map-root-user")
    if not can(*apart):
        pytest.skip("no disk can be made here")
    mounted = f'mount -t tmpfs -o size=1m none {tmp_path} && exec "$@"'
    code = script("os.urandom(50_000)")
    words, verdict = told([*apart, "sh", "-c", mounted, "sh"], code, tmp_path)
    assert str(tmp_path) in words
    assert "got No space left on device. Hint: make room there" in words
    assert verdict.startswith("True ")


def test_files_that_may_not_grow_are_named_and_the_last_epoch_is_intact(tmp_path: Path) -> None:
    limit = "resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))"
    words, verdict = told([], script(trouble=limit), tmp_path)
    assert "epochs/" in words  # the manifest is the first to grow beyond
    assert "got File too large. Hint: files may not grow this large here" in words
    assert verdict.startswith("True ")
    assert contents(tmp_path, form(), opened(tmp_path).committed)


def test_permission_lost_is_named_and_the_last_epoch_is_intact(tmp_path: Path) -> None:
    command: list[str] = []
    if os.geteuid() == 0:  # who may do anything, unless that is taken away
        command = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"]
        if not can(*command):
            pytest.skip("root cannot be kept from anything here")
    code = script(trouble="os.chmod(f'{where}/epochs', 0o500)")
    try:
        words, verdict = told(command, code, tmp_path)
    finally:
        (tmp_path / "epochs").chmod(0o700)
    assert f"{tmp_path}/epochs/000000000002-1000000001.json must be written" in words
    assert "got Permission denied. Hint: let this user write there" in words
    assert verdict == "True 1"


def test_a_file_in_the_way_is_named_and_the_last_epoch_is_intact(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.epoch({1: "a"})
    shutil.move(tmp_path / "state", tmp_path / "kept")
    (tmp_path / "state").write_text("in the way")
    with pytest.raises(StorageError, match="a file is where a folder should be"):
        job.increments(2, {2: "b"})
    (tmp_path / "state").unlink()
    shutil.move(tmp_path / "kept", tmp_path / "state")
    job.epoch({2: "b"})
    assert contents(tmp_path, form(), 2) == {1: "a", 2: "b"}


def test_a_location_that_cannot_be_written_is_refused_when_it_is_opened(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(StorageError, match=r"file/.* Hint: "):
        opened(tmp_path / "file")


def test_what_cannot_be_removed_does_not_keep_anyone_from_beginning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    history = some_epochs(tmp_path, 6)

    def fail(self: object, path: str) -> None:
        raise StorageError(path, "be removable", "not allowed")

    monkeypatch.setattr("elasticutor.state.checkpoint.location.Location.remove", fail)
    said: list[str] = []
    assert opened(tmp_path, say=said.append).committed == 6
    assert "what is no longer needed stays for now" in said[0]
    assert contents(tmp_path, form(), 6) == history[6]
