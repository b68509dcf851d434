"""How often participants report, so that the driver of a large run keeps up with all of them."""

from __future__ import annotations

from typing import Final

from elasticutor.errors import BadValueError

MOST_REPORTS_S: Final = 500.0
"""Reports of one kind that the driver should get per second, from all participants of a run."""


def report_every_s(asked_s: float, senders: int) -> float:
    """Seconds between two reports of one participant: as asked, or longer where there are many.

    Args:
        asked_s: As often as it should be for its own sake; 0: never.
        senders: How many participants send such reports.

    Example:
        >>> [report_every_s(0.25, senders) for senders in (1, 125, 1000)]
        [0.25, 0.25, 2.0]
        >>> report_every_s(0.0, 1000)
        0.0
    """
    if senders < 0:
        raise BadValueError("senders", "be at least 0", senders)
    if not asked_s >= 0:
        raise BadValueError("interval", "be at least 0 s", asked_s)
    return max(asked_s, senders / MOST_REPORTS_S) if asked_s else 0.0
