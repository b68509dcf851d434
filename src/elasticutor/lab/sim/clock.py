"""Virtual time: what is due happens in the order of its times, and takes no time by itself.

The one clock of the laboratory: the simulated cluster runs millions of events on it, and so do the
worlds of the seeded checker.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

from elasticutor.errors import BadValueError

Action = Callable[..., None]


class Clock:
    """The time now, and what is due when; at the same time, in the order of asking."""

    __slots__ = ("_asked", "_due", "events", "now")

    def __init__(self, now: float = 0.0) -> None:
        self.now = now
        self.events = 0
        """How many have happened."""
        self._due: list[tuple[float, int, Action, tuple[Any, ...]]] = []
        self._asked = 0

    def at(self, time: float, action: Action, *args: Any) -> None:
        """Schedule a call for a time."""
        if not time >= self.now:
            raise BadValueError("time of an action", f"be {self.now} or later", time)
        self._asked = asked = self._asked + 1
        heappush(self._due, (time, asked, action, args))

    def after(self, delay: float, action: Action, *args: Any) -> None:
        """Schedule a call after a delay."""
        self.at(self.now + delay, action, *args)

    def step(self) -> bool:
        """Make the next call; returns False when there is none left."""
        if not self._due:
            return False
        self.now, _, action, args = heappop(self._due)
        self.events += 1
        action(*args)
        return True

    def run(self, until: float) -> None:
        """Make all calls that are due until then."""
        due, events = self._due, 0
        try:
            while due and due[0][0] <= until:
                self.now, _, action, args = heappop(due)
                events += 1
                action(*args)
        finally:
            self.events += events
        self.now = until
