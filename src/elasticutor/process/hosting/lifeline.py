"""Ends a process when the one that it belongs to is gone.

A process that is killed cannot end its children, so each child sees to it by itself, twice:

- **Parent-death signal.** On Linux the kernel kills the child as soon as its parent has ended
  (`die_with_parent`). Nothing has to run for that.
- **Lifeline.** A pipe whose writing end is open in the parent only. It is never written to: that it
  becomes readable means that the parent is gone. It works on every Unix, and `watch_lifeline`
  kills the process where there is no parent-death signal.

Here as well is what a freshly forked process does to become one of its own: close the files that
are not its own (a connection's end that one process too many has open never comes to its end),
take its name, and keep to its cores.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import sys
import threading
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

_LINUX = sys.platform == "linux"
# Loaded before any fork: a process that was just forked should not have to look for libraries.
_LIBC = ctypes.CDLL(None) if _LINUX else None
_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15


def hold_on(lifeline: int, parent: int) -> None:
    """Die with the parent from now on, by the surest means that this system has.

    Args:
        lifeline: The reading end of a pipe that the parent holds the other end of.
        parent: The process id of the parent, as it was before the fork.
    """
    if not die_with_parent(parent):
        watch_lifeline(lifeline)


def watch_lifeline(lifeline: int) -> None:
    """Have this process killed as soon as the parent is gone, by a thread that waits for it."""

    def die_when_gone() -> None:
        poll = select.poll()
        poll.register(lifeline, select.POLLIN)
        poll.poll()
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=die_when_gone, name="lifeline", daemon=True).start()


def die_with_parent(parent: int) -> bool:
    """Ask the kernel to kill this process when its parent ends; False where it cannot do that.

    The kernel means the *thread* that forked: a parent with threads forks from its main one.
    """
    if _LIBC is None or _LIBC.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0) != 0:
        return False
    if os.getppid() != parent:  # It ended before we had asked, and no signal will come.
        os.kill(os.getpid(), signal.SIGKILL)
    return True


def watch_process(pid: int) -> int | None:
    """A descriptor that becomes readable when this process ends; None where there is none."""
    if not hasattr(os, "pidfd_open"):
        return None
    try:
        return os.pidfd_open(pid)
    except OSError:  # A kernel older than 5.3, or a sandbox that does not allow it.
        return None


def name_process(name: str) -> None:
    """Let `ps -o comm` and `top` tell who this is; Linux keeps the first 15 bytes."""
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_NAME, ctypes.c_char_p(name.encode()), 0, 0, 0)


def keep_to(cpus: Collection[int]) -> None:
    """Run on these cores only; cores that this process may not use are left out.

    With none left, or on a system that cannot pin, it runs anywhere, and says so on stderr.
    """
    if not cpus:
        return
    if hasattr(os, "sched_setaffinity"):
        usable = set(cpus) & os.sched_getaffinity(0)
        if usable:
            os.sched_setaffinity(0, usable)
            return
    sys.stderr.write(f"cannot be pinned to cores {sorted(cpus)} here: runs on any core\n")


def close_all_but(keep: Collection[int]) -> None:
    """Close every open file of this process except these and the three standard ones."""
    for fd in [int(path.name) for path in Path("/dev/fd").iterdir()]:
        if fd > 2 and fd not in keep:
            with suppress(OSError):  # One of them was listing the directory.
                os.close(fd)
