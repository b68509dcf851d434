"""What was killed, how it went on, and what went wrong."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

_SHOWN = 20


@dataclass
class ChaosResult:
    """Grows as a run goes on; the same object is handed out again and again."""

    seed: int = 1
    kills: int = 0
    """Drivers not counted."""
    driver_kills: int = 0
    by_kind: Counter[str] = field(default_factory=Counter)
    """Tasks, main processes, nodes, sources, sinks, hosts of these."""
    by_point: Counter[str] = field(default_factory=Counter)
    """At random, during a recovery, or at which named point; drivers, too."""
    missed: Counter[str] = field(default_factory=Counter)
    """Points that were not reached in time; a process was killed at random instead."""
    unnoticed: int = 0
    """Kills after which nothing had to be recovered: of an unused node, for instance."""
    recoveries_s: list[float] = field(default_factory=list)
    """From each kill until tuples flowed again."""
    slowest: str = ""
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
        return {
            "kills": self.kills,
            "violations": self.violations,
            "slowest_recovery_s": _most(self.recoveries_s),
            "slowest_recovery": self.slowest,
            "median_recovery_s": _median(self.recoveries_s),
            "driver_kills": self.driver_kills,
            "slowest_driver_recovery_s": _most(self.driver_recoveries_s),
            "median_driver_recovery_s": _median(self.driver_recoveries_s),
            "kills_by_kind": dict(self.by_kind.most_common()),
            "kills_by_point": dict(self.by_point.most_common()),
            "missed_points": dict(self.missed.most_common()),
            "unnoticed": self.unnoticed,
            "mishaps": len(self.mishaps),
            "restarts": self.restarts,
            "reshaped": self.reshaped,
            "epochs": self.epochs,
            "rows": self.rows,
            "moves": self.moves,
            "core_changes": self.core_changes,
            "seconds": round(self.seconds, 3),
            "seed": self.seed,
            "violated": self.violated[:_SHOWN],
            "first_mishaps": self.mishaps[:_SHOWN],
            "folder": self.folder,
        }


def _most(seconds: Sequence[float]) -> float | None:
    return round(max(seconds), 3) if seconds else None


def _median(seconds: Sequence[float]) -> float | None:
    return round(statistics.median(seconds), 3) if seconds else None
