"""Time-outs: ask a silent participant why, then declare it lost."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from elasticutor.core.protocol.ids import Peer
from elasticutor.core.run.run_events import AnswersLate

_ANSWER_S = 2.0
"""How long a participant has to say why it has not answered."""


class Timeouts:
    """Watches for how long something has been waited for.

    Example:
        >>> timeouts = Timeouts(patience_s=60)
        >>> for now in (0.0, 61.0, 64.0):
        ...     print(timeouts.look(now, "ending", lambda: ["count.0"], lambda: ["a marker"]))
        None
        AnswersLate(missing=('count.0',), reason=None)
        AnswersLate(missing=('count.0',), reason='no answer within 60 s: a marker')
    """

    def __init__(self, patience_s: float) -> None:
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
    ) -> AnswersLate | None:
        """See how late it is.

        Args:
            now: The time.
            stage: What is waited for; time starts again with another one, None waits for nothing.
            missing: Says who has yet to answer.
            waiting_for: Says in words what is waited for.
        """
        if stage is None or stage != self._stage:
            self._stage, self._since, self._asked = stage, now, False
            return None
        late_s = now - self._since
        if late_s > self._patience_s and not self._asked:
            self._asked = True
            return AnswersLate(tuple(missing()))
        if late_s > self._patience_s + _ANSWER_S:
            self._since, self._asked = now, False
            words = "; ".join(waiting_for())
            reason = f"no answer within {self._patience_s:g} s: {words}"
            return AnswersLate(tuple(missing()), reason)
        return None
