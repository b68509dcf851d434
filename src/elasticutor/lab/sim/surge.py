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


@dataclass(slots=True, eq=False)
class SurgeWatch:
    """Watches an executor from its surge on."""

    at: float
    """When its load goes up."""
    wanted: int
    """The cores that it needs from then on."""
    small: float
    """Its backlog is gone when it is no more than this number of tuples."""
    cores: Callable[[], int]
    """How many cores it has now."""
    backlog: Callable[[], int]
    """Tuples that are due for it and not done."""
    rounds: Callable[[], int]
    """How often the scheduler was called."""
    _rounds_before: int | None = None
    _got_cores: tuple[int, float] | None = None
    _coped_s: float = math.nan

    def look(self, now: float) -> bool:
        """See how it copes, first when the load goes up; returns whether there is more to see."""
        since = now - self.at
        if self._rounds_before is None:
            self._rounds_before = self.rounds()
        if self._got_cores is None and self.cores() >= self.wanted:
            self._got_cores = (self.rounds() - self._rounds_before, since)
        if self.backlog() > self.small:
            self._coped_s = math.nan
        elif self._got_cores is not None and math.isnan(self._coped_s):
            self._coped_s = since
        # Steady for a while: what comes later is not the surge's.
        return math.isnan(self._coped_s) or since - self._coped_s < 10 * BIN_S

    def result(self) -> SurgeOutcome:
        """Returns what was seen so far."""
        rounds, seconds = self._got_cores or (None, math.nan)
        return SurgeOutcome(rounds, seconds, self._coped_s, self.cores())
