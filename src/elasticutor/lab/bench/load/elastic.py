"""`elasticutor bench elastic`: paradigms compared, on emulated nodes and cores.

Paradigms that are to be compared run in turn, seed by seed, with the same tuples each. With
`--surge`, the load of one paradigm rises instead.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, cast

from elasticutor.core.paradigm import PARADIGMS, ParadigmName
from elasticutor.errors import BadValueError
from elasticutor.lab.bench import options
from elasticutor.lab.bench.declare import (
    Benchmark,
    Figures,
    figure,
    interval_as_dict,
    percentiles,
    ratios,
)
from elasticutor.lab.bench.live import Bench
from elasticutor.lab.bench.load.emulated import (
    ElasticRun,
    LoadRise,
    median_or_none,
    run_once,
    run_surge,
)
from elasticutor.lab.options import BadOptionError, option, read_option
from elasticutor.sources import Generator

_COST = re.compile(r"sleep:([0-9.]+)(us|ms|s)")
_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}


class ElasticFigures(Figures):
    """All runs, in the order in which they were made."""

    runs: list[ElasticRun] = figure("paradigm", default_factory=list)

    def of(self, paradigm: str) -> list[ElasticRun]:
        """The runs of one paradigm, seed by seed."""
        return [run for run in self.runs if run.paradigm == paradigm]

    def as_dict(self) -> dict[str, Any]:
        """Everything, for `--json`; flat if there is one run only."""
        if len(self.runs) == 1:
            found: dict[str, Any] = self.runs[0].as_dict()
            return found
        figures: dict[str, Any] = {}
        first, *others = dict.fromkeys(run.paradigm for run in self.runs)
        for paradigm in (first, *others):
            runs = self.of(paradigm)
            figures[paradigm] = {
                "saturated": sum(run.saturated for run in runs),
                "recovery_s": median_or_none([s for run in runs for s in run.recoveries_s]),
            }
            for name in ("throughput", "latency_p50_ms", "latency_p99_ms"):
                mine = [getattr(run, name) for run in runs]
                figures[paradigm] |= percentiles(name, mine)
                if paradigm != first:
                    of_first = [getattr(run, name) for run in self.of(first)]
                    key = f"{name}_{first}_over_{paradigm}"
                    figures |= interval_as_dict(key, ratios(of_first, mine))
        return {**figures, **super().as_dict()}

    def remarks(self) -> Iterator[str]:
        figures = self.as_dict()
        for name, interval in figures.items():
            if name.endswith("_ci95"):
                key = name.removesuffix("_ci95")
                low, high = interval
                what = key.replace("_", " ")
                yield f"{what}: {figures[key]:.3f} (95 %: {low:.3f} – {high:.3f})"


class ElasticBench(Benchmark):
    """Throughput and latency of a paradigm, and how soon it has recovered from key shuffles.

    The cores are emulated: a task sleeps for the time that its tuples take. With --surge the
    operator starts with one core per executor, and the figure is when its backlog is gone.
    """

    about = "{nodes} nodes of {cores} emulated cores, ω = {omega:g}, Zipf {zipf:g}"

    paradigm: str = option(
        "elastic", "elastic, static, rc or naive; several, with commas, run in turn."
    )
    nodes: int = option(2, "Emulated nodes.", min=1, key="nodes")
    cores: int = option(4, "Emulated cores of each.", min=1, key="cores")
    executors: int | None = option(None, "Elastic executors.", min=1, shows="one per node")
    shards: int = option(256, "Shards of each.", min=1, key="shards")
    omega: float = option(0.0, "Key shuffles per minute.", min=0, key="omega")
    zipf: float = options.ZIPF(1.0)
    keys: int = options.KEYS(10_000, key="")
    cost: str = option("sleep:1ms", "What a tuple takes: sleep:1ms, sleep:200us.")
    load: float = option(
        0.7, "Offered rate, as a share of what all cores can do.", min=0.01, key="load"
    )
    rate: str = option("", "max: as fast as tuples are taken; or tuples per second.")
    seconds: float = options.SECONDS(30.0)
    warm_up: float = options.WARM_UP(5.0)
    seed: int = options.SEED(1, help="The first seed.")
    repeat: int = options.REPEAT(1, help="How many seeds.")
    surge: str = option("", "Instead: let the load rise, e.g. 1:8 cores' worth.")
    latency_target_ms: float = option(100.0, "What the scheduler aims at.", min=0.1)
    chunk_ms: float = options.CHUNK_MS(10.0)
    tick_ms: float = option(5.0, "Tuples are sent every so often.", min=1, key="tick_ms")

    @property
    def cost_s(self) -> float:
        """What a tuple takes."""

        def read(given: str) -> float:
            found = _COST.fullmatch(given)
            seconds = float(found[1]) * _UNITS[found[2]] if found else 0.0
            if seconds <= 0:
                raise ValueError
            return seconds

        return read_option("--cost", self.cost, read, "like sleep:1ms (or us, or s)")

    @property
    def ideal(self) -> float:
        """Tuples per second if every core did nothing else."""
        return self.nodes * self.cores / self.cost_s

    @property
    def offered(self) -> float | None:
        """Tuples per second; None: as fast as they are taken."""
        if self.rate == "max":
            return None
        if self.rate:
            return read_option("--rate", self.rate, float, "max or tuples per second")
        return self.load * self.ideal

    def tuples(self, seed: int, seconds: float | None) -> Generator:
        """What is sent."""
        return Generator(
            rate=self.offered,
            zipf=self.zipf,
            keys=self.keys,
            omega=self.omega,
            payload=0,
            seed=seed,
            seconds=seconds,
        )

    @property
    def executor_count(self) -> int:
        """As given, or one on each node."""
        return self.executors or self.nodes

    def check(self) -> None:
        self.paradigms()
        self.rise()
        cores, offered = self.nodes * self.cores, self.offered
        if cores % self.executor_count:
            raise BadValueError("executors", f"divide the {cores} cores", self.executor_count)
        if offered is None and self.omega:
            hint = "leave --omega out, or give a load"
            raise BadValueError("shuffles", "have a rate to go by", self.omega, hint)
        if offered is not None and not 0 < offered < 10 * self.ideal:
            raise BadValueError("load", "be above 0 and below 10", offered / self.ideal)

    def paradigms(self) -> tuple[ParadigmName, ...]:
        """Those that take turns; the first is compared with each of the others."""
        names = self.paradigm.split(",")
        for name in names:
            if name not in PARADIGMS:
                known = ", ".join(PARADIGMS)
                raise BadOptionError("--paradigm", f"{name!r} is not one of {known}")
        if len(set(names)) < len(names):
            raise BadOptionError("--paradigm", f"{self.paradigm!r} names one twice")
        return cast("tuple[ParadigmName, ...]", tuple(names))

    def rise(self) -> LoadRise | None:
        """How the load rises, if it does."""

        def read(given: str) -> LoadRise:
            before, after = map(float, given.split(":"))
            if not 0 < before < after:
                raise ValueError
            return LoadRise(before, after)

        return read_option("--surge", self.surge, read, "like 1:8") if self.surge else None

    def given(self) -> dict[str, Any]:
        offered = self.offered
        return {
            **super().given(),
            "ideal": round(self.ideal, 1),
            "offered": None if offered is None else round(offered, 1),
            "load": None if offered is None else offered / self.ideal,
            "executors": self.executor_count,
            "cost_ms": self.cost_s * 1e3,
        }

    def measure(self, bench: Bench) -> ElasticFigures:
        """Runs of each paradigm, in turns; or of the first, whose load rises."""
        found, rise = ElasticFigures(), self.rise()
        paradigms = self.paradigms() if rise is None else self.paradigms()[:1]
        with bench.cluster(self.cores, self.nodes, schedule_s=1.0) as cluster:
            for number, paradigm in bench.turns(self.repeat, paradigms):
                seed = self.seed + number
                if rise is None:
                    found.runs.append(run_once(cluster, self, paradigm, seed))
                else:
                    found.runs.append(run_surge(cluster, self, rise, paradigm, seed))
        return found
