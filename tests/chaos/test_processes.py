"""Only processes with the mark are found, and only those are killed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from elasticutor.lab.chaos.processes import (
    MARK,
    Victim,
    age_s,
    ancestors,
    await_gone,
    described,
    has_mark,
    marked,
)
from elasticutor.lab.proc import parent_of

_SLEEP = "import subprocess, sys; print(1, flush=True); sys.stdin.read()"
_WITH_CHILD = (
    "import subprocess, sys; "
    f"child = subprocess.Popen([sys.executable, '-c', {_SLEEP!r}], stdin=subprocess.PIPE, "
    "stdout=subprocess.PIPE); child.stdout.readline(); print(child.pid, flush=True); "
    "sys.stdin.read()"
)


@pytest.fixture
def family() -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """A process with the mark "ours", and its child, which ends when it does."""
    with subprocess.Popen(
        [sys.executable, "-c", _WITH_CHILD],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | {MARK: "ours"},
    ) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        yield parent, child
        parent.kill()


Family = tuple[subprocess.Popen[bytes], int]


def test_the_mark_is_inherited_and_found(family: Family) -> None:
    parent, child = family
    assert marked("ours") == {parent.pid, child}
    assert marked("our") == set()
    assert parent_of(child) == parent.pid
    assert ancestors(child)[:2] == [parent.pid, os.getpid()]
    assert 0 <= age_s(child) <= age_s(os.getpid())


def test_nobody_else_can_be_a_victim(family: Family) -> None:
    with pytest.raises(ProcessLookupError):
        Victim(os.getpid(), "ours")
    with pytest.raises(ProcessLookupError):
        Victim(family[0].pid, "theirs")


def test_a_victim_is_dead_when_it_was_killed_and_not_before(family: Family) -> None:
    parent, child = family
    with Victim(child, "ours") as victim:
        assert not victim.dead()
        victim.kill()
        assert victim.dead(timeout_s=30.0)
        victim.kill()  # once more does nothing
    parent.kill()
    parent.wait()
    assert await_gone("ours", 30.0) == set()
    with pytest.raises(ProcessLookupError):
        Victim(child, "ours")


def test_who_outlives_a_time_is_named(family: Family) -> None:
    parent, child = family
    assert await_gone("ours", 0.0) == {parent.pid, child}
    assert str(child) in described(child)
    assert "python" in described(child)


def test_a_process_that_is_not_there_has_no_mark_and_no_parent() -> None:
    gone = 2**22 + 1  # above the most that Linux has
    assert not has_mark(gone, "ours")
    assert parent_of(gone) == 0
    assert age_s(gone) == float("inf")
    assert ancestors(gone) == []
    assert str(gone) in described(gone)
