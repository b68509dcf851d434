"""`elasticutor bench latency`: how old a tuple is when its output is with the sink.

Every tuple burns CPU time, as the paper's do (1 ms); tuples fall due by the clock, at a share of
what the tasks could do at most. Latency counts from when a tuple was due, whether or not anybody
had the time to send it then. The first seconds do not count.

Beside a peer, runs of both take turns, with the same keys, costs and due times; the peer's settings
are tried out first, and the best are kept. Load that shifts: `lab.bench.load.shift`.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Any

from elasticutor.driver.cluster import BaseCluster
from elasticutor.errors import BadValueError
from elasticutor.lab.bench.figures import Spread
from elasticutor.lab.bench.live import (
    Machine,
    Progress,
    notes,
    rate_between,
    silent,
    spread_as_dict,
    watch,
)
from elasticutor.lab.bench.peer.beside import (
    EPOCH_S,
    PEER,
    Beside,
    PeerSetting,
    PeerWork,
    best_of,
    run_peer,
    with_checkpoint,
)
from elasticutor.lab.bench.work import Burn
from elasticutor.sinks import NoSink
from elasticutor.sources import Generator
from elasticutor.topology import Topology

PERCENTILES = {"p50_ms": 50.0, "p90_ms": 90.0, "p99_ms": 99.0, "p999_ms": 99.9}
"""What the figures have of a latency, by name."""

_BATCHES = (1, 10, 100)
_TRIAL_S = 4.0
_TRIAL_WARM_UP_S = 1.0


@dataclass(frozen=True, slots=True)
class LatencyBench:
    """What was measured, over all runs."""

    percentiles_ms: dict[str, Spread]
    """By name, `p50_ms` and so on: each over the runs."""
    rows_s: Spread
    """Rows per second at the sink."""
    behind_s: float
    """How far the source was behind its schedule, at worst."""
    offered_rows_s: float
    cost_ms: float
    load: float
    tasks: int
    seconds: float
    """Of each run, after the warm-up."""
    machine: Machine
    checkpoint: bool = False
    """Whether state was made durable every `EPOCH_S` meanwhile, by the peer too."""
    beside: Beside | None = None

    def as_dict(self) -> dict[str, Any]:
        """Everything, for `--json`."""
        figures: dict[str, Any] = {}
        for name, spread in {**self.percentiles_ms, "rows_s": self.rows_s}.items():
            figures |= spread_as_dict(name, spread)
        return {
            **figures,
            "offered_rows_s": round(self.offered_rows_s, 3),
            "behind_s": round(self.behind_s, 4),
            "cost_ms": self.cost_ms,
            "load": self.load,
            "tasks": self.tasks,
            "seconds": self.seconds,
            "checkpoint": self.checkpoint,
            **({} if self.beside is None else {"beside": self.beside.as_dict()}),
            **self.machine.as_dict(),
        }


@dataclass(frozen=True, slots=True)
class _Work:
    """What every run does."""

    cost_s: float
    rate: float
    cores: int
    seconds: float
    warm_up_s: float
    checkpoint: bool

    def generator(self, seed: int) -> Generator:
        return Generator(rate=self.rate, seed=seed)


def bench_latency(
    cluster: BaseCluster,
    *,
    cost_ms: float = 1.0,
    load: float = 0.6,
    cores: int = 2,
    seconds: float = 20.0,
    warm_up_s: float = 5.0,
    repeat: int = 3,
    checkpoint: bool = False,
    beside: bool = False,
    progress: Progress = silent,
) -> LatencyBench:
    """Measure latency from source to sink.

    Args:
        cluster: Where; it needs so many free cores.
        cost_ms: CPU time that each tuple takes.
        load: Of the tasks: offered rate over what they could do at most.
        cores: Tasks of the executor.
        seconds: How long to measure.
        warm_up_s: How long to wait before.
        repeat: How often, each time with processes of its own.
        checkpoint: Make state durable meanwhile, every `EPOCH_S`.
        beside: Run the same on the peer, in turns.
        progress: Told about each run.
    """
    if not 0 < load < 1:
        raise BadValueError("load", "be above 0 and below 1", load, "there is no latency beyond")
    rate = load * cores / (cost_ms / 1e3)
    work = _Work(cost_ms / 1e3, rate, cores, seconds, warm_up_s, checkpoint)
    machine = Machine()
    ours: dict[str, list[float]] = {name: [] for name in PERCENTILES}
    theirs: dict[str, list[float]] = {name: [] for name in PERCENTILES}
    rates: list[float] = []
    behind_s = 0.0
    setting, tried = _best(work, progress) if beside else (None, [])

    def run_ours(number: int) -> None:
        nonlocal behind_s
        progress(f"{rate:,.0f} tuples per second, run {number + 1} of {repeat}")
        machine.glance()
        percentiles, rows_s, behind = _run(cluster, work, number)
        behind_s = max(behind_s, behind)
        rates.append(rows_s)
        for name, value in percentiles.items():
            ours[name].append(value)

    def run_theirs(number: int) -> None:
        if setting is not None:
            progress(f"{PEER}: run {number + 1} of {repeat}")
            machine.glance()
            for name, value in _run_peer(work, setting, number).items():
                theirs[name].append(value)

    for number in range(repeat):
        turn = (run_ours, run_theirs) if number % 2 == 0 else (run_theirs, run_ours)
        for one in turn:
            one(number)
    return LatencyBench(
        percentiles_ms={name: Spread.of(values) for name, values in ours.items()},
        rows_s=Spread.of(rates),
        behind_s=behind_s,
        offered_rows_s=rate,
        cost_ms=cost_ms,
        load=load,
        tasks=cores,
        seconds=seconds,
        machine=machine,
        checkpoint=checkpoint,
        beside=None if setting is None else Beside(setting, tried, ours, theirs),
    )


def _run(cluster: BaseCluster, work: _Work, seed: int) -> tuple[dict[str, float], float, float]:
    """Percentiles, rows per second, and how far the source was behind at worst."""
    topology = Topology("latency")
    stream = topology.source("tuples", work.generator(seed))
    burnt = topology.operator("burn", Burn(work.cost_s), stream, key="key", cores=work.cores)
    topology.sink("out", NoSink(), burnt)
    with notes() as folder:
        durable = folder / "checkpoint" if work.checkpoint else None
        with cluster.submit(topology, checkpoint=durable, epoch_interval=EPOCH_S) as run:
            watch(run, work.warm_up_s)
            run.reset_metrics()
            started = time.time()
            behind_s = watch(run, work.seconds)
            latency = run.metrics().latency
            rows_s = rate_between(run.timeline(), started, time.time())
            run.cancel()
    percentiles = {name: latency.percentile_s(p) * 1e3 for name, p in PERCENTILES.items()}
    return percentiles, rows_s, behind_s


def _best(work: _Work, progress: Progress) -> tuple[PeerSetting, list[dict[str, Any]]]:
    """The peer's setting with the lowest latency: p50 and p99 count alike."""
    trial = _Work(work.cost_s, work.rate, work.cores, _TRIAL_S, _TRIAL_WARM_UP_S, work.checkpoint)

    def latency(setting: PeerSetting) -> float:
        found = _run_peer(trial, setting, 0)
        return math.sqrt(found["p50_ms"] * found["p99_ms"])

    settings = [
        PeerSetting(processes, rows)
        for processes in (work.cores, work.cores + 1)
        for rows in _BATCHES
    ]
    return best_of(with_checkpoint(settings, work.checkpoint), latency, progress)


def _run_peer(work: _Work, setting: PeerSetting, seed: int) -> dict[str, float]:
    generator = work.generator(seed)
    total_s = work.warm_up_s + work.seconds
    peer = PeerWork("burn", work.cost_s, generator.keys, generator.zipf, seed, work.rate, total_s)
    run = run_peer(peer, setting)
    return {name: run.percentile_ms(p, work.warm_up_s, total_s) for name, p in PERCENTILES.items()}
