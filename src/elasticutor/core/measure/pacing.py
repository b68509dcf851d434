"""How often participants report, and how often sources send: as often as there is CPU for it."""

from __future__ import annotations

from typing import Final

from elasticutor.errors import BadValueError

MOST_REPORTS_S: Final = 500.0
"""Reports of one kind that the driver should get per second, from all participants of a run."""


def report_every_s(asked_s: float, senders: int) -> float:
    """Seconds between two reports of one participant: as asked, or longer where many send.

    0 means never.
    """
    if senders < 0:
        raise BadValueError("senders", "be at least 0", senders)
    if not asked_s >= 0:
        raise BadValueError("interval", "be at least 0 s", asked_s)
    return max(asked_s, senders / MOST_REPORTS_S) if asked_s else 0.0


LEAST_GAP_S: Final = 0.000_25
USUAL_GAP_S: Final = 0.001
MOST_GAP_S: Final = 0.003
PACE_S: Final = 0.1
"""How often a source sets its gap."""
_BUSY, _EASY, _SPARE = 0.06, 0.12, 0.24
"""Shares of the machine's CPU time that are idle. Below the first packets get fewer than usual,
above the last more frequent than usual; on either side of the second they come as usual again, if
they were fewer, or more frequent. The bands are wider than what a step of one source makes."""
_STEP: Final = 1.2


def next_gap_s(gap_s: float, idle: float) -> float:
    """The least time between two packets of a source, given how idle its machine is.

    A packet wakes up four processes in turn, which take 0.04 to 0.2 ms of CPU in all before and
    beside the tuples in it (`elasticutor bench path`). While CPU is left, frequent packets make
    latency short. When hardly any is left, the same CPU time is what tuples wait for: then fewer
    and fuller packets make it shorter.

    Args:
        gap_s: The time until now.
        idle: The share of the machine's CPU time that was idle of late.
    """
    if idle < _BUSY:
        return min(MOST_GAP_S, gap_s * _STEP)
    if idle > _SPARE:
        return max(LEAST_GAP_S, gap_s / _STEP)
    if idle < _EASY:
        return max(gap_s, min(USUAL_GAP_S, gap_s * _STEP))
    return min(gap_s, max(USUAL_GAP_S, gap_s / _STEP))
