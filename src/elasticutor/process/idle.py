"""Measures the share of the machine's CPU time that is idle."""

from __future__ import annotations

import contextlib
import os
from typing import Final

_STAT: Final = "/proc/stat"
_IDLE, _WAITING = 3, 4
_MOST_BYTES: Final = 512  # the first line is the sum over all CPUs


class IdleShare:
    """The share of this machine's CPU time that was idle since it was last asked for.

    Linux only: elsewhere, and where `/proc` is not there, it is not known.

    Args:
        path: The file to read, for tests.

    Example:
        >>> share = IdleShare().take()
        >>> share is None or 0.0 <= share <= 1.0
        True
    """

    def __init__(self, path: str = _STAT) -> None:
        self._file: int | None = None
        with contextlib.suppress(OSError):
            self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._idle, self._total = self._read() or (0, 0)

    def take(self) -> float | None:
        """The share since the last call, or since the start; None if it is not known."""
        read = self._read()
        if read is None or read[1] <= self._total:
            return None
        (idle, total), was_idle, was_total = read, self._idle, self._total
        self._idle, self._total = read
        return min(1.0, max(0.0, (idle - was_idle) / (total - was_total)))

    def _read(self) -> tuple[int, int] | None:
        """Idle and all ticks of all CPUs since the machine's start."""
        if self._file is None:
            return None
        try:
            name, *ticks = os.pread(self._file, _MOST_BYTES, 0).split(b"\n", 1)[0].split()
            numbers = [int(tick) for tick in ticks[:8]]
            return (numbers[_IDLE] + numbers[_WAITING], sum(numbers)) if name == b"cpu" else None
        except (OSError, ValueError, IndexError):
            return None

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            os.close(self._file)
            self._file = None
