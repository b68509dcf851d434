"""How much is killed, and under which load."""

from __future__ import annotations

from elasticutor.errors import BadValueError
from elasticutor.lab.chaos.topology import ChaosLoad
from elasticutor.lab.options import Options, option


class ChaosSetting(Options):
    """How much is killed, and under which load."""

    kills: int = option(
        200, "Processes to kill, drivers not counted.", min=0, names=("--kills", "-n")
    )
    driver_kills: int = option(0, "Drivers to kill, in the same run.", min=0)
    seed: int = option(1, "The same seed, the same victims.", min=0)
    nodes: int = option(2, "Nodes on this machine.", min=1)
    cores: int = option(3, "Cores of each.", min=1)
    rate: float = option(1_500.0, "Tuples per second.", min=1)
    epoch_interval_s: float = option(
        0.3, "Seconds from one epoch to the next.", min=0.01, names=("--epoch-interval",)
    )
    master: str = option(
        "",
        r"local\[4] or local-cluster\[…]: have a Spark on this machine host the nodes.",
        shows="plain processes",
    )
    timeout_s: float = option(
        60.0,
        "Seconds that a recovery may take before it is a hang.",
        min=1,
        names=("--timeout",),
    )
    """The same for a start, and for the last drain."""
    keep: bool = option(False, "If something is violated, keep checkpoint, outputs and logs.")

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
