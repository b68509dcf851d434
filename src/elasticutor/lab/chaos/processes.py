"""Processes that carry a mark: found wherever they are, killed, and seen to be gone.

The mark is in the environment of a driver, and all processes below it inherit it. So no other
process is ever killed, whatever a process id means by now, and none of ours is overlooked, even if
its parent has ended.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Self

from elasticutor.errors import ElasticutorError
from elasticutor.lab.proc import PROC, TICKS_S, parent_of, stat_of
from elasticutor.process.hosting.directories import SHARED_MEMORY

MARK = "ELASTICUTOR_CHAOS"
"""The variable of the environment."""

_GLANCE_S = 0.02
_SHORT_LIFE_S, _SHORT_LIVES = 6.0, 2
"""A host gives a node up that dies so young once more than this in a row, so that is spared."""


def require_linux() -> None:
    """Refuse a system that has no such processes: any but Linux."""
    if not (hasattr(os, "pidfd_open") and PROC.is_dir()):
        raise ElasticutorError("system", "be Linux: processes are found in /proc", sys.platform)


class Victim:
    """A process that is to die; a context manager, for it holds an open file.

    Raises:
        ProcessLookupError: It is gone, or has another mark or none.
    """

    def __init__(self, pid: int, mark: str) -> None:
        self.pid = pid
        self._fd = os.pidfd_open(pid)
        try:
            if not has_mark(pid, mark):
                raise ProcessLookupError(pid)
        except BaseException:
            self.close()
            raise

    def kill(self) -> None:
        """`kill -9`; nothing if it has ended already."""
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._fd, signal.SIGKILL)

    def dead(self, timeout_s: float = 0.0) -> bool:
        """Whether it has ended, or does so within some time."""
        poll = select.poll()
        poll.register(self._fd, select.POLLIN)
        return bool(poll.poll(timeout_s * 1e3))

    def close(self) -> None:
        """Let go of it; once more does nothing."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()


def has_mark(pid: int, mark: str) -> bool:
    """Whether a process that runs has this mark."""
    try:
        environment = (PROC / str(pid) / "environ").read_bytes()
    except OSError:  # gone, or not ours
        return False
    return f"{MARK}={mark}".encode() in environment.split(b"\0")


def marked(mark: str) -> set[int]:
    """Processes that have this mark, but for those that have ended and are not yet reaped."""
    pids = (int(entry.name) for entry in PROC.iterdir() if entry.name.isdigit())
    return {pid for pid in pids if has_mark(pid, mark)}


def await_gone(mark: str, timeout_s: float) -> set[int]:
    """Wait until no process has this mark any more; returns those that still do."""
    until = time.monotonic() + timeout_s
    while (left := marked(mark)) and time.monotonic() < until:
        time.sleep(_GLANCE_S)
    return left


def age_s(pid: int) -> float:
    """For how long a process has been running; infinity if there is no such process."""
    try:
        since = int(stat_of(PROC / str(pid))[1][19])
    except OSError:
        return float("inf")
    return time.clock_gettime(time.CLOCK_BOOTTIME) - since / TICKS_S


class Lives:
    """How long the nodes of one place have lived: too many short lives, and it gets no more."""

    def __init__(self) -> None:
        self._short: Counter[str] = Counter()

    def may_die(self, node: str, pid: int) -> bool:
        """Whether its host will start another one."""
        return self._short[_place(node)] < _SHORT_LIVES or age_s(pid) >= _SHORT_LIFE_S

    def died(self, node: str, age: float) -> None:
        """Take note of an end, at some age in seconds."""
        place = _place(node)
        self._short[place] = self._short[place] + 1 if age < _SHORT_LIFE_S else 0


def _place(node: str) -> str:
    return node.partition(".")[0]


def ancestors(pid: int) -> list[int]:
    """Parent, grandparent and so on; none if there is no such process."""
    found = []
    while (pid := parent_of(pid)) > 1:
        found.append(pid)
    return found


def command_line(pid: int) -> str:
    """What a process was started with; empty if there is no such process."""
    try:
        return (PROC / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
    except OSError:
        return ""


def described(pid: int) -> str:
    """A process in words."""
    return f"{pid} ({command_line(pid)[:80]})"


def directories_of(clusters: Iterable[str]) -> list[Path]:
    """What clusters of these ids have in shared memory and in the directory for temporary files."""
    bases = sorted({SHARED_MEMORY, tempfile.gettempdir()})
    return [
        path
        for cluster in clusters
        for base in bases
        for path in sorted(Path(base).glob(f"elasticutor-*-{cluster}-*"))
    ]
