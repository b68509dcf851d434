"""An experiment on a simulated cluster: every setting of `elasticutor sim`, as a value."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Literal, get_args

from elasticutor.core.executor.config import LIVE, ExecutorConfig
from elasticutor.core.paradigm import PARADIGMS, ParadigmName
from elasticutor.errors import BadValueError
from elasticutor.lab.sim.model.machines import Machines
from elasticutor.lab.sim.surge import Surge

Spacing = Literal["poisson", "even"]
"""How tuples fall due: at random, or one after the other at equal times, as a `Generator`'s do."""

FEWEST_ROWS, MOST_ROWS = 4, 64
"""Tuples that a message of a source should carry that sends whenever it may."""


@dataclass(frozen=True, slots=True)
class Experiment:
    """One run on a simulated cluster; the defaults are the paper's micro-benchmark (5.1)."""

    paradigm: ParadigmName = "elastic"
    machines: Machines = field(default_factory=Machines)
    executors: int = 32
    """Of elastic and naive; the others have one for each core."""
    shards: int = 256
    """Of each elastic executor; with rc the operator has as many in all."""
    upstreams: int = 32
    keys: int = 10_000
    zipf: float = 0.5
    omega: float = 2.0
    """Shuffles of the keys' frequencies, per minute."""
    cost_s: float = 0.001
    """Work per tuple."""
    exponential: bool = False
    """Whether the work varies from tuple to tuple; otherwise it is constant."""
    tuple_bytes: int = 128
    state_bytes: int = 32 * 1024
    """Of each shard."""
    rate: float = math.inf
    """Tuples per second in all; infinity: as many as are taken."""
    arrivals: Spacing = "poisson"
    """When they are due, if there is a rate."""
    seconds: float = 60.0
    warmup_s: float = 5.0
    """Before measuring starts."""
    balance_s: float = 0.1
    schedule_s: float = 1.0
    latency_target_s: float = 0.050
    inside_s: float = 0.064
    """Work per core that all upstreams together may have inside an executor, at most."""
    surge: Surge | None = None
    seed: int = 1

    def __post_init__(self) -> None:
        if self.paradigm not in PARADIGMS:
            raise BadValueError("paradigm", f"be one of {', '.join(PARADIGMS)}", self.paradigm)
        if self.arrivals not in get_args(Spacing):
            raise BadValueError("arrivals", "be poisson or even", self.arrivals)
        for name in ("executors", "shards", "upstreams", "keys", "tuple_bytes"):
            _require_whole(name, getattr(self, name), least=1)
        for name in ("state_bytes", "seed"):
            _require_whole(name, getattr(self, name), least=0)
        for name in ("zipf", "omega", "warmup_s"):
            if not 0 <= getattr(self, name) < math.inf:
                raise BadValueError(name, "be finite and at least 0", getattr(self, name))
        for name in ("cost_s", "seconds", "balance_s", "schedule_s", "latency_target_s"):
            if not 0 < getattr(self, name) < math.inf:
                raise BadValueError(name, "be finite and more than 0", getattr(self, name))
        for name in ("rate", "inside_s"):
            if not getattr(self, name) > 0:
                raise BadValueError(name, "be more than 0", getattr(self, name))
        if self.executor_count > self.machines.total:
            raise BadValueError(
                "executors",
                f"be at most {self.machines.total}, as each has a core",
                self.executors,
                "give the cluster more nodes or cores",
            )
        if self.surge is not None:
            self._require_surge(self.surge)

    def _require_surge(self, surge: Surge) -> None:
        if math.isinf(self.rate):
            raise BadValueError("rate", "be a number when there is a surge", "max")
        if surge.at_s >= self.seconds:
            raise BadValueError("surge", f"come within {self.seconds:g} s", surge.at_s)

    @property
    def end_s(self) -> float:
        """When sources with a rate end, and measuring does."""
        return self.warmup_s + self.seconds

    @property
    def one_core_each(self) -> bool:
        """Whether an executor is one core, for ever."""
        return self.paradigm in ("static", "rc")

    @property
    def executor_count(self) -> int:
        """How many executors there are."""
        return self.machines.total if self.one_core_each else self.executors

    @property
    def shard_count(self) -> int:
        """Shards that a key may belong to: of each executor, or with rc of the whole operator."""
        if self.paradigm == "rc":
            return self.executors * self.shards
        if self.paradigm == "static":
            return max(1, self.executors * self.shards // self.machines.total)
        return self.shards

    @property
    def ideal(self) -> float:
        """Tuples per second, if every core were busy all the time."""
        return self.machines.total / self.cost_s

    @property
    def message_rows(self) -> int:
        """What a message should carry: what one upstream may have inside, within limits."""
        cores = self.machines.total / self.executor_count
        rows = self.inside_s * cores / self.cost_s / self.upstreams
        return max(FEWEST_ROWS, min(MOST_ROWS, round(rows)))

    @property
    def config(self) -> ExecutorConfig:
        """Every executor's configuration: as live, with credits for this many upstreams.

        Live defaults let every upstream have 64 KB and 20 ms of work inside. With tuples that take
        a millisecond, and dozens of upstreams, that is many seconds of work for one hot key. So
        here they share what may be inside, and the least is one message each.
        """
        least = self.message_rows * self.tuple_bytes
        return replace(
            LIVE,
            shards=1 if self.paradigm == "rc" else self.shard_count,
            credit_s=max(1e-6, self.inside_s / self.upstreams),
            min_credit_bytes=least,
            max_credit_bytes=max(least, LIVE.max_credit_bytes),
        )


def _require_whole(name: str, value: int, *, least: int) -> None:
    if type(value) is not int or value < least:
        raise BadValueError(name, f"be a whole number, at least {least}", value)
