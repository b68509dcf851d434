"""Where a node keeps its files, who may, and what is left behind."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from elasticutor.errors import BadValueError
from elasticutor.process.hosting.directories import (
    LONGEST_SOCKET_PATH,
    SOCKET_NAME_ROOM,
    DirectoryError,
    NodeDirectories,
    remove_directory,
    remove_stale,
)

UID = os.getuid()
# Holds a place until its stdin ends; the place stays behind, as nobody removes it.
_HOLD = """
import sys
from elasticutor.process.hosting.directories import NodeDirectories
place = NodeDirectories.make("c", sys.argv[2], need_bytes=1, shm=sys.argv[1], tmp=sys.argv[1])
print(place.owned[0], flush=True)
sys.stdin.read()
"""


@pytest.fixture
def base() -> Iterator[str]:
    # Not `tmp_path`: its path is too long for sockets.
    path = tempfile.mkdtemp(prefix="e-")
    yield path
    shutil.rmtree(path)


def held_by_another(base: str, node: str) -> tuple[subprocess.Popen[str], str]:
    holder = subprocess.Popen(
        [sys.executable, "-c", _HOLD, base, node],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holder.stdout
    return holder, holder.stdout.readline().strip()


def test_state_is_in_shared_memory_and_the_rest_under_a_short_path(base: str) -> None:
    shm, tmp = Path(base, "shm"), Path(base, "tmp")
    shm.mkdir()
    tmp.mkdir()
    place = NodeDirectories.make("c1", "n1", need_bytes=1, shm=str(shm), tmp=str(tmp))
    assert place.state == shm / f"elasticutor-{UID}-c1-n1" / "state"
    assert place.sockets == tmp / f"elasticutor-{UID}-c1-n1" / "sockets"
    assert place.logs.parent == place.sockets.parent
    assert place.note == ""
    for path in (place.state, place.sockets, place.logs, *map(Path, place.owned)):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
    place.remove()
    assert not [*shm.iterdir(), *tmp.iterdir()]


def test_state_goes_elsewhere_and_says_so_when_shared_memory_is_short(
    base: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = str(Path(base, "missing"))
    monkeypatch.setenv("SPARK_LOCAL_DIRS", base)
    place = NodeDirectories.make("c", "n", need_bytes=1, shm=missing, tmp=base)
    assert place.state.is_relative_to(base)
    assert f"{missing} has 0 MiB free" in place.note
    place.remove()


def test_without_room_anywhere_it_says_how_much_there_is(
    base: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(Path(base, "spark")))
    with pytest.raises(DirectoryError, match=r"have 1099511627776 MiB free; got .*spark': '0 MiB'"):
        NodeDirectories.make("c", "n", need_bytes=1 << 60, tmp=base)
    assert not list(Path(base).iterdir())


def test_there_is_room_for_a_sockets_name(base: str) -> None:
    longest = LONGEST_SOCKET_PATH - SOCKET_NAME_ROOM - 1
    taken = len(f"{base}/elasticutor-{UID}-c-/sockets")
    place = NodeDirectories.make("c", "n" * (longest - taken), need_bytes=1, shm=base, tmp=base)
    assert len(str(place.sockets / ("s" * SOCKET_NAME_ROOM))) == LONGEST_SOCKET_PATH
    place.remove()
    with pytest.raises(BadValueError, match="shorter"):
        NodeDirectories.make("c", "n" * (longest - taken + 1), need_bytes=1, shm=base, tmp=base)


@pytest.mark.parametrize("name", ["", "../up", "a/b", "a b", "x" * 65])
def test_a_name_that_is_no_part_of_a_path_is_refused(name: str) -> None:
    with pytest.raises(BadValueError, match="letters, digits"):
        NodeDirectories.make(name, "n")


def test_a_symbolic_link_is_refused_and_what_it_leads_to_left_alone(base: str) -> None:
    precious = Path(base, "precious")
    precious.mkdir()
    (precious / "file").touch()
    link = Path(base, f"elasticutor-{UID}-c-n")
    link.symlink_to(precious)
    with pytest.raises(DirectoryError, match="be a directory"):
        NodeDirectories.make("c", "n", need_bytes=1, shm=base, tmp=base)
    assert remove_stale(base) == []
    assert not remove_directory(str(link))
    assert (precious / "file").exists()


@pytest.mark.skipif(UID != 0, reason="only root can give a directory away")
def test_a_directory_of_somebody_else_is_refused_and_left_alone(base: str) -> None:
    theirs = Path(base, f"elasticutor-{UID}-c-n")
    theirs.mkdir()
    os.chown(theirs, 12345, -1)
    with pytest.raises(DirectoryError, match="be owned by user 0; got 12345"):
        NodeDirectories.make("c", "n", need_bytes=1, shm=base, tmp=base)
    assert remove_stale(base) == []
    assert theirs.exists()


def test_a_place_in_use_is_not_given_twice_nor_removed_as_stale(base: str) -> None:
    place = NodeDirectories.make("c", "n", need_bytes=1, shm=base, tmp=base)
    with pytest.raises(DirectoryError, match="of one node at a time"):
        NodeDirectories.make("c", "n", need_bytes=1, shm=base, tmp=base, patience_s=0.05)
    assert remove_stale(base) == []
    assert place.state.is_dir()
    place.remove()


def test_a_failed_second_directory_leaves_no_first_one(base: str) -> None:
    shm = Path(base, "shm")
    shm.mkdir()
    Path(base, f"elasticutor-{UID}-c-n").touch()
    with pytest.raises(DirectoryError):
        NodeDirectories.make("c", "n", need_bytes=1, shm=str(shm), tmp=base)
    assert not list(shm.iterdir())


def test_what_a_killed_process_left_is_stale_and_what_a_living_one_holds_is_not(base: str) -> None:
    dead, left = held_by_another(base, "dead")
    living, held = held_by_another(base, "living")
    with dead, living:
        assert remove_stale(base) == []
        dead.kill()
        dead.wait(10)
        assert Path(left).is_dir()
        assert remove_stale(base) == [left]
        assert not Path(left).exists()
        assert Path(held, "state").is_dir()
        assert living.stdin
        living.stdin.close()
        assert living.wait(10) == 0


def test_a_node_of_the_same_name_starts_with_empty_directories(base: str) -> None:
    holder, left = held_by_another(base, "n")
    with holder:
        Path(left, "state", "old").touch()
        holder.kill()
    place = NodeDirectories.make("c", "n", need_bytes=1, shm=base, tmp=base)
    assert str(place.state.parent) == left
    assert not list(place.state.iterdir())
    place.remove()


def test_the_lock_lives_as_long_as_somebody_it_was_handed_to(base: str) -> None:
    place = NodeDirectories.make("c", "n", need_bytes=1, shm=base, tmp=base)
    with subprocess.Popen(
        [sys.executable, "-c", "import sys; sys.stdin.read()"],
        stdin=subprocess.PIPE,
        pass_fds=place.locks,
    ) as other:
        for fd in place.locks:
            os.close(fd)
        assert remove_stale(base) == []
        other.kill()
    assert remove_stale(base) == list(place.owned)


def test_removing_once_more_does_nothing(base: str) -> None:
    place = NodeDirectories.make("c", "n", need_bytes=1, shm=base, tmp=base)
    place.remove()
    again = NodeDirectories.make("c", "n", need_bytes=1, shm=base, tmp=base)
    place.remove()
    assert again.state.is_dir()
    again.remove()
