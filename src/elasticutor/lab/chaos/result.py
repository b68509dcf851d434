"""What was killed, how it went on, and what went wrong."""

from __future__ import annotations

import statistics
from collections import Counter
from dataclasses import dataclass, field, fields
from typing import Any

_SHOWN = 20


@dataclass
class ChaosResult:
    """Grows as a run goes on; the same object is handed out again and again."""

    kills: int = 0
    """Drivers not counted."""
    driver_kills: int = 0
    kills_by_kind: Counter[str] = field(default_factory=Counter)
    """Tasks, main processes, nodes, sources, sinks, hosts of these."""
    kills_by_point: Counter[str] = field(default_factory=Counter)
    """At random, during a recovery, or at which named point; drivers, too."""
    missed_points: Counter[str] = field(default_factory=Counter)
    """Points that were not reached in time; a process was killed at random instead."""
    unnoticed: int = 0
    """Kills after which nothing had to be recovered: of an unused node, for instance."""
    recoveries_s: list[float] = field(default_factory=list)
    """From each kill until tuples flowed again."""
    slowest_recovery: str = ""
    """Who was killed, and what was lost, when that took longest; in words."""
    driver_recoveries_s: list[float] = field(default_factory=list)
    """From each kill of a driver until tuples flowed under the next one."""
    mishaps: list[str] = field(default_factory=list)
    """What was lost without a kill: processes that ended by themselves, answers that
    did not come. The run went on, but should not have had to."""
    restarts: int = 0
    """Drivers that were started after one that was killed, or had failed."""
    reshaped: int = 0
    """Those of them that divided the work otherwise: other executors, shards or nodes."""
    epochs: int = 0
    """Committed."""
    rows: int = 0
    """Tuples that are committed."""
    moves: int = 0
    core_changes: int = 0
    seconds: float = 0.0
    seed: int = 1
    violated: list[str] = field(default_factory=list)
    """In words, one for each violation."""
    folder: str = ""
    """Where everything about it is, if it was kept."""

    @property
    def violations(self) -> int:
        """How many there are."""
        return len(self.violated)

    def as_dict(self) -> dict[str, Any]:
        """Everything, for `--json`."""
        rest = {one.name: getattr(self, one.name) for one in fields(self)}
        found: dict[str, Any] = {"kills": rest.pop("kills"), "violations": self.violations}
        for who in ("", "driver_"):
            seconds = rest.pop(f"{who}recoveries_s")
            found[f"slowest_{who}recovery_s"] = round(max(seconds), 3) if seconds else None
            median = round(statistics.median(seconds), 3) if seconds else None
            found[f"median_{who}recovery_s"] = median
        for name in ("kills_by_kind", "kills_by_point", "missed_points"):
            rest[name] = dict(rest[name].most_common())
        lists = {"violated": self.violated[:_SHOWN], "first_mishaps": self.mishaps[:_SHOWN]}
        counts = {"mishaps": len(self.mishaps), "seconds": round(self.seconds, 3)}
        return found | rest | counts | lists
