"""Virtual time for millions of events: a clock, and a heap of what is due when.

Like `elasticutor.lab.check.world.kernel`, without what costs time per event: an action takes one
argument, and nothing is checked. The fast path of the simulated cluster is here.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

Action = Callable[[Any], None]
"""What happens, called with the argument that was given for it."""


class Loop:
    """A clock and what is due when; at the same time, in the order of asking.

    Args:
        now: When it begins.
        sealed: Keep a checksum over all events, so that two runs can be compared.

    Example:
        >>> loop, log = Loop(), []
        >>> loop.at(2.0, log.append, "second")
        >>> loop.at(1.0, log.append, "first")
        >>> loop.at(9.0, log.append, "never")
        >>> loop.run(until=3.0)
        >>> log, loop.now, loop.events
        (['first', 'second'], 3.0, 2)
    """

    __slots__ = ("_asked", "_due", "_sealed", "events", "now", "seal")

    def __init__(self, now: float = 0.0, *, sealed: bool = False) -> None:
        self.now = now
        self.events = 0
        """How many have happened."""
        self.seal = 0
        """A checksum over the times and kinds of all events, if wanted."""
        self._due: list[tuple[float, int, Action, Any]] = []
        self._asked = 0
        self._sealed = sealed

    def at(self, time: float, action: Action, argument: Any = None) -> None:
        """Let something happen at a time, which must not be past."""
        self._asked = asked = self._asked + 1
        heappush(self._due, (time, asked, action, argument))

    def run(self, until: float) -> None:
        """Let everything happen that is due until then."""
        (self._run_sealed if self._sealed else self._run)(until)
        self.now = until

    def _run(self, until: float) -> None:
        due, events = self._due, 0
        try:
            while due and due[0][0] <= until:
                self.now, _, action, argument = heappop(due)
                events += 1
                action(argument)
        finally:
            self.events += events

    def _run_sealed(self, until: float) -> None:
        due = self._due
        while due and due[0][0] <= until:
            self.now, asked, action, argument = heappop(due)
            self.events += 1
            name = getattr(action, "__qualname__", "").encode()
            self.seal = zlib.crc32(struct.pack("<dq", self.now, asked) + name, self.seal)
            action(argument)
