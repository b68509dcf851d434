"""Virtual time: things happen in the order of their times, and nothing takes time by itself."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any

from elasticutor.errors import BadValueError

Action = Callable[..., None]


class Kernel:
    """A clock and what is due when.

    Example:
        >>> kernel = Kernel()
        >>> log = []
        >>> kernel.after(2.0, log.append, "second")
        >>> kernel.after(1.0, log.append, "first")
        >>> while kernel.step():
        ...     pass
        >>> log, kernel.now
        (['first', 'second'], 2.0)
    """

    def __init__(self) -> None:
        self.now = 0.0
        self._due: list[tuple[float, int, Action, tuple[Any, ...]]] = []
        self._scheduled = 0

    def at(self, time: float, action: Action, *args: Any) -> None:
        """Let something happen at a time; at the same time, in the order of asking."""
        if not time >= self.now:
            raise BadValueError("time of an action", f"be {self.now} or later", time)
        heapq.heappush(self._due, (time, self._scheduled, action, args))
        self._scheduled += 1

    def after(self, delay: float, action: Action, *args: Any) -> None:
        """Let something happen after a delay."""
        self.at(self.now + delay, action, *args)

    def step(self) -> bool:
        """Let the next thing happen; False when there is nothing left."""
        if not self._due:
            return False
        self.now, _, action, args = heapq.heappop(self._due)
        action(*args)
        return True


class Channel:
    """Delivers messages after delays of their own, in the order in which they were sent."""

    def __init__(
        self, kernel: Kernel, delay: Callable[[], float], deliver: Callable[[Any], None]
    ) -> None:
        self._kernel = kernel
        self._delay = delay
        self._deliver = deliver
        self._free_at = 0.0
        self._open = True

    def send(self, message: Any) -> None:
        """Put a message on its way."""
        if self._open:
            self._free_at = max(self._free_at, self._kernel.now + self._delay())
            self._kernel.at(self._free_at, self._arrive, message)

    def cut(self) -> None:
        """Lose what is under way and all that follows."""
        self._open = False

    def _arrive(self, message: Any) -> None:
        if self._open:
            self._deliver(message)
