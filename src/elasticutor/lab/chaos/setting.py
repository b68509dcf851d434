"""How much is killed, and under which load."""

from __future__ import annotations

from dataclasses import dataclass

from elasticutor.errors import BadValueError
from elasticutor.lab.chaos.topology import ChaosLoad


@dataclass(frozen=True, slots=True)
class ChaosSetting:
    """How much is killed, and under which load."""

    kills: int = 200
    driver_kills: int = 0
    seed: int = 1
    nodes: int = 2
    cores: int = 3
    rate: float = 1_500.0
    epoch_interval_s: float = 0.3
    timeout_s: float = 60.0
    """How long a start, a recovery or the last drain may take."""
    master: str = ""
    """Spark's; empty: nodes are plain processes."""
    keep: bool = False
    """Whether the folder stays if something was violated."""

    def __post_init__(self) -> None:
        for name, least in (("kills", 0), ("driver_kills", 0), ("nodes", 1), ("cores", 1)):
            if getattr(self, name) < least:
                raise BadValueError(name, f"be at least {least}", getattr(self, name))
        if self.nodes * self.cores < 4:
            must = "have 4 cores in all: one for each of 3 executors, and one to be moved about"
            raise BadValueError("nodes", must, self.nodes * self.cores)
        if self.master and not self.master.startswith("local"):
            must = "be local[…] or local-cluster[…]: processes are killed on this machine"
            raise BadValueError("master", must, self.master)
        ChaosLoad(rate=self.rate)  # refuses what cannot be
        for name in ("epoch_interval_s", "timeout_s"):
            if not 0 < getattr(self, name) < float("inf"):
                raise BadValueError(name, "be seconds above 0", getattr(self, name))
