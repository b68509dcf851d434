"""What Linux says of processes and threads, in `/proc`."""

from __future__ import annotations

import os
from pathlib import Path

PROC = Path("/proc")
TICKS_S = os.sysconf("SC_CLK_TCK")
"""Ticks of CPU time in a second."""


def stat_of(folder: Path) -> tuple[str, list[str]]:
    """The name of a process or thread, and what follows it in its `stat`: state, parent, ….

    Raises:
        OSError: It has ended.
    """
    # The name, in brackets, may have blanks and brackets of its own.
    head, _, tail = (folder / "stat").read_text().rpartition(")")
    return head.partition("(")[2], tail.split()


def cpu_s(fields: list[str]) -> float:
    """User and system time, from the fields of `stat_of`."""
    return (int(fields[11]) + int(fields[12])) / TICKS_S


def parent_of(pid: int) -> int:
    """The parent's process id; 0 if there is no such process."""
    try:
        return int(stat_of(PROC / str(pid))[1][1])
    except OSError:
        return 0
