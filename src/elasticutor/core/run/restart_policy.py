"""How often a run tries again before it gives up.

A process that was killed once will do better next time; one that dies of the same tuple again and
again will not. What tells them apart is progress: an epoch that was committed in between.
"""

from __future__ import annotations

from collections import Counter

from elasticutor.errors import BadValueError

_PAUSE_S, _LONGEST_PAUSE_S = 0.01, 5.0


class RestartPolicy:
    """Counts failures since the last progress, by their kind."""

    def __init__(self, most: int) -> None:
        if type(most) is not int or most < 0:
            raise BadValueError("restarts", "be a whole number, at least 0", most)
        self._most = most
        self._failures: Counter[str] = Counter()

    def failed(self, kind: str) -> bool:
        """Take note of a failure; says whether to try again."""
        self._failures[kind] += 1
        return self._failures[kind] <= self._most

    @property
    def failures(self) -> int:
        """How many there were since the last progress, of any kind."""
        return self._failures.total()

    @property
    def pause_s(self) -> float:
        """How long to wait before the next try.

        What fails again at once fails for a reason that may pass: the more, the longer the pause.
        """
        again = self.failures - 1
        return 0.0 if again < 1 else min(_LONGEST_PAUSE_S, _PAUSE_S * 2 ** min(again, 16))

    def progressed(self) -> None:
        """An epoch was committed: what failed before does not count any more."""
        self._failures.clear()

    def summary(self) -> str:
        """What has failed, and how often, in words."""
        return ", ".join(f"{kind} {times} times" for kind, times in self._failures.items())
