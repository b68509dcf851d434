"""A surge on one executor: its load goes up at once, and it is watched until it has coped."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from elasticutor.lab.sim.experiment import Surge
from elasticutor.lab.sim.recorder import BIN_S

STEP_S = 0.01
"""How often the executor is looked at."""


@dataclass(frozen=True, slots=True)
class Surged:
    """How the executor coped."""

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


class Surging:
    """Watches the executor from the surge on.

    Args:
        surge: What happens.
        start_s: When measuring starts.
        rate: Tuples per second that the executor is sent after the surge.
        target_s: Its backlog is gone when it is no more than arrives in this time.
        cores: How many cores it has now.
        backlog: Tuples that are due for it and not done.
        rounds: How often the scheduler was asked.
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
        self._rounds_before = 0
        self._got_cores: tuple[int, float] | None = None
        self._coped_s = math.nan

    def begin(self) -> None:
        """The load goes up now."""
        self._rounds_before = self._rounds()

    def look(self, now: float) -> bool:
        """See how it copes; says whether there is more to see."""
        since = now - self.at
        if self._got_cores is None and self._cores() >= self._wanted:
            self._got_cores = (self._rounds() - self._rounds_before, since)
        if self._backlog() > self._small:
            self._coped_s = math.nan
        elif self._got_cores is not None and math.isnan(self._coped_s):
            self._coped_s = since
        # Steady for a while: what comes later is not the surge's.
        return math.isnan(self._coped_s) or since - self._coped_s < 10 * BIN_S

    def result(self) -> Surged:
        """What was seen so far."""
        rounds, seconds = self._got_cores or (None, math.nan)
        return Surged(rounds, seconds, self._coped_s, self._cores())
