"""A surge: the load of one executor goes up at once, and it is watched until it has coped."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from elasticutor.errors import BadValueError
from elasticutor.lab.sim.recorder import BIN_S

STEP_S = 0.01
"""How often the executor is looked at."""


@dataclass(frozen=True, slots=True)
class Surge:
    """The load of one executor goes up at once.

    Example:
        >>> Surge.parse("1:8@10")
        Surge(before=1.0, after=8.0, at_s=10.0)
    """

    before: float
    """What the first executor has to do at first, in cores."""
    after: float
    """The same from then on."""
    at_s: float
    """Seconds after the start of measuring."""

    @classmethod
    def parse(cls, text: str) -> Surge:
        """Read `before:after@seconds`.

        Raises:
            BadValueError: It is something else, or numbers that cannot be.
        """
        try:
            levels, at = text.split("@")
            before, after = levels.split(":")
            surge = cls(float(before), float(after), float(at))
        except ValueError:
            must = "be two loads in cores and a time in seconds, as in 1:8@10"
            raise BadValueError("surge", must, text) from None
        for number in (surge.before, surge.after, surge.at_s):
            if not 0 < number < math.inf:
                raise BadValueError("surge", "have finite numbers above 0", text)
        return surge


@dataclass(frozen=True, slots=True)
class SurgeOutcome:
    """How an executor coped with a surge."""

    rounds: int | None
    """Rounds of the scheduler until it had the cores for its new load; None: never."""
    cores_s: float
    """Seconds until then; NaN: never."""
    seconds: float
    """Seconds until its backlog was gone as well; NaN: never."""
    cores: int
    """What it had in the end."""

    def as_dict(self) -> dict[str, Any]:
        """Everything, for `--json`."""
        return {
            "surge_rounds": self.rounds,
            "surge_cores_s": round(self.cores_s, 3),
            "surge_s": round(self.seconds, 3),
            "surge_cores": self.cores,
        }


class SurgeWatch:
    """Watches an executor from its surge on.

    Args:
        surge: What happens.
        start_s: When measuring starts.
        rate: Tuples per second that the executor is sent after the surge.
        target_s: Its backlog is gone when it is no more than arrives in this time.
        cores: How many cores it has now.
        backlog: Tuples that are due for it and not done.
        rounds: How often the scheduler was called.
    """

    def __init__(
        self,
        surge: Surge,
        start_s: float,
        rate: float,
        target_s: float,
        *,
        cores: Callable[[], int],
        backlog: Callable[[], int],
        rounds: Callable[[], int],
    ) -> None:
        self.at = start_s + surge.at_s
        self._wanted = math.ceil(surge.after)
        self._small = rate * target_s
        self._cores, self._backlog, self._rounds = cores, backlog, rounds
        self._rounds_before: int | None = None
        self._got_cores: tuple[int, float] | None = None
        self._coped_s = math.nan

    def look(self, now: float) -> bool:
        """See how it copes, first when the load goes up; returns whether there is more to see."""
        since = now - self.at
        if self._rounds_before is None:
            self._rounds_before = self._rounds()
        if self._got_cores is None and self._cores() >= self._wanted:
            self._got_cores = (self._rounds() - self._rounds_before, since)
        if self._backlog() > self._small:
            self._coped_s = math.nan
        elif self._got_cores is not None and math.isnan(self._coped_s):
            self._coped_s = since
        # Steady for a while: what comes later is not the surge's.
        return math.isnan(self._coped_s) or since - self._coped_s < 10 * BIN_S

    def result(self) -> SurgeOutcome:
        """Returns what was seen so far."""
        rounds, seconds = self._got_cores or (None, math.nan)
        return SurgeOutcome(rounds, seconds, self._coped_s, self._cores())
