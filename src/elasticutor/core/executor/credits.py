"""Flow control on the receiving side: how many bytes each upstream may send.

Credits are cumulative byte counts from the start of an attempt. A sender that has sent less than
it was granted may send one more message, whatever its size. So what is under way is bounded by the
credit and one message, and no message is too large to be sent at all.

An attempt starts with the same first credit on both sides, which is not announced: a grant sent
before the other side has heard of the attempt would be refused there, and lost. So every grant
answers data of the same attempt.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from elasticutor.core.protocol.ids import Attempt, Peer
from elasticutor.core.protocol.instructions import GrantCredit
from elasticutor.errors import CreditExceededError, UnknownPeerError


@dataclass(slots=True)
class _Intake:
    granted: int
    sent: int = 0
    finished: int = 0


class InputCredits:
    """What each upstream may still send to this executor."""

    def __init__(self, upstreams: Iterable[Peer], *, first: int) -> None:
        self._intakes = {upstream: _Intake(granted=first) for upstream in upstreams}

    def require(self, upstream: Peer) -> None:
        """Refuse an upstream that the attempt does not name."""
        if upstream not in self._intakes:
            raise UnknownPeerError(
                "upstream",
                f"be one of {sorted(self._intakes)}",
                upstream,
                "begin an attempt with it",
            )

    def require_credit(self, upstream: Peer) -> None:
        """Refuse a message from an upstream that has used up what it was granted."""
        intake = self._intakes.get(upstream)
        if intake is None:
            self.require(upstream)
        elif intake.sent >= intake.granted:
            raise CreditExceededError(
                f"upstream {upstream!r}",
                f"have sent less than the {intake.granted} bytes granted before it sends more",
                intake.sent,
            )

    def spend(self, upstream: Peer, size: int) -> None:
        """Count a message that has arrived."""
        self._intakes[upstream].sent += size

    def finish(self, upstream: Peer, size: int, attempt: Attempt, limit: int) -> GrantCredit | None:
        """Count bytes as processed, and let up to `limit` be inside, if that is worth a message."""
        intake = self._intakes[upstream]
        intake.finished += size
        total = intake.finished + limit
        if total - intake.granted < max(1, limit // 4):
            return None
        intake.granted = total
        return GrantCredit(upstream, attempt, total)

    def inside(self, upstream: Peer) -> int:
        """Bytes that have arrived and are not processed yet."""
        intake = self._intakes[upstream]
        return intake.sent - intake.finished
