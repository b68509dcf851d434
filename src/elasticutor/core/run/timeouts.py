"""Time-outs: ask a silent participant why, then declare it lost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from elasticutor.core.protocol.ids import Peer

_ANSWER_S = 2.0
"""How long a participant has to say why it has not answered."""


class LateWatcher(Protocol):
    """Acts on late answers."""

    def ask_why(self, missing: Sequence[Peer]) -> None:
        """These have not answered for long: let them say why, if they can."""

    def too_late(self, missing: Sequence[Peer], reason: str) -> None:
        """These have not answered for too long."""


class Timeouts:
    """Watches for how long something has been waited for.

    Args:
        watcher: Acts on what is late.
        patience_s: How long an answer may take.

    Example:
        >>> class Watcher:
        ...     def ask_why(self, missing):
        ...         print("why,", *missing)
        ...
        ...     def too_late(self, missing, reason):
        ...         print(reason)
        >>> timeouts = Timeouts(Watcher(), patience_s=60)
        >>> for now in (0.0, 61.0, 64.0):
        ...     timeouts.look(now, "ending", lambda: ["count.0"], lambda: ["a marker"])
        why, count.0
        no answer within 60 s: a marker
    """

    def __init__(self, watcher: LateWatcher, patience_s: float) -> None:
        self._watcher = watcher
        self._patience_s = patience_s
        self._stage: object = None
        self._since = 0.0
        self._asked = False

    def look(
        self,
        now: float,
        stage: object,
        missing: Callable[[], Sequence[Peer]],
        waiting_for: Callable[[], Sequence[str]],
    ) -> None:
        """See how late it is.

        Args:
            now: The time.
            stage: What is waited for; time starts again with another one, None waits for nothing.
            missing: Says who has yet to answer.
            waiting_for: Says in words what is waited for.
        """
        if stage is None or stage != self._stage:
            self._stage, self._since, self._asked = stage, now, False
            return
        late_s = now - self._since
        if late_s > self._patience_s and not self._asked:
            self._asked = True
            self._watcher.ask_why(missing())
        elif late_s > self._patience_s + _ANSWER_S:
            self._since, self._asked = now, False
            words = "; ".join(waiting_for())
            self._watcher.too_late(missing(), f"no answer within {self._patience_s:g} s: {words}")
