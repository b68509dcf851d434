"""`elasticutor bench elastic`: a paradigm at work on emulated nodes and cores, live.

One operator, whose tuples take a set time, on all cores of the cluster. The cores are emulated: a
task sleeps for the time that its tuples take. Tuples come at a share of what the cores could do at
best, or as fast as they are taken; now and then the keys' frequencies are dealt out anew (ω).

Paradigms that are to be compared run in turn, seed by seed, with the same tuples each.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from elasticutor.core.executor.config import ExecutorConfig
from elasticutor.core.paradigm import ParadigmName
from elasticutor.core.scheduler.scheduler import SchedulerConfig
from elasticutor.driver.cluster import BaseCluster
from elasticutor.driver.run import Run
from elasticutor.errors import BadValueError
from elasticutor.lab.bench.figures import Spread
from elasticutor.lab.bench.live import BenchError, Machine, Progress, notes, silent, spread_as_dict
from elasticutor.lab.bench.load.shuffle import OutputTimes
from elasticutor.lab.bench.record import NotingSink, NotingSource, Recording
from elasticutor.lab.bench.width import chunks_of
from elasticutor.lab.bench.work import Emulate
from elasticutor.sources import Generator, Source
from elasticutor.topology import Topology

BIN_S = 0.1
"""Timelines have a moment for each of these."""
_MORE_S = 1.0
"""How much longer than it is measured a stream with a rate is."""
_PATIENCE_S = 60.0
_CREDIT_BYTES = 16 * 1024
"""A tuple has 24 bytes here and takes a millisecond: the usual 64 KB would be seconds of work."""


@dataclass(frozen=True, slots=True)
class ElasticSetting:
    """What is run, but for the paradigm and the seed."""

    nodes: int = 2
    cores: int = 4
    executors: int = 2
    shards: int = 256
    cost_s: float = 0.001
    load: float | None = 0.7
    """Offered rate over what the cores could do at best; None: as fast as it is taken."""
    omega: float = 0.0
    zipf: float = 1.0
    keys: int = 10_000
    seconds: float = 30.0
    warm_up_s: float = 5.0
    chunk_s: float = 0.010
    tick_s: float = 0.005
    latency_target_s: float = 0.1

    def __post_init__(self) -> None:
        if self.nodes * self.cores % self.executors:
            raise BadValueError(
                "executors", f"divide the {self.nodes * self.cores} cores", self.executors
            )
        if self.load is not None and not 0 < self.load < 10:
            raise BadValueError("load", "be above 0 and below 10", self.load)
        if self.load is None and self.omega:
            hint = "leave --omega out, or give a load"
            raise BadValueError("shuffles", "have a rate to go by", self.omega, hint)

    @property
    def ideal(self) -> float:
        """Tuples per second if every core did nothing else."""
        return self.nodes * self.cores / self.cost_s

    @property
    def config(self) -> ExecutorConfig:
        """Of the executors."""
        return replace(chunks_of(self.chunk_s), credit_s=0.02, min_credit_bytes=_CREDIT_BYTES)


@dataclass(frozen=True, slots=True)
class ElasticRun:
    """One run of one paradigm."""

    paradigm: ParadigmName
    seed: int
    throughput: float
    latency_mean_ms: float
    latency_p50_ms: float
    latency_p99_ms: float
    """Of all rows due after the warm-up, shuffles included."""
    behind_s: float
    """How far the source was behind its schedule at the end."""
    recoveries_s: tuple[float, ...]
    sync_ms: tuple[float, ...]
    migration_ms: tuple[float, ...]
    core_changes: int
    """Executors whose cores a plan has changed."""
    quick_changes: int
    """Those of them that had changed less than a cool-down before."""
    timeline: tuple[dict[str, float], ...]
    worst_second_p50_ms: float | None = None
    """The median of the second with the largest one, by due times."""
    worst_second_p99_ms: float | None = None
    surge_s: float | None = None
    """From the surge until its backlog was gone; infinite if it never was."""

    @property
    def saturated(self) -> bool:
        """Whether the source could not keep to its schedule."""
        return self.behind_s > 1.0

    def as_dict(self) -> dict[str, Any]:
        """Everything, for `--json`."""
        return {
            "paradigm": self.paradigm,
            "seed": self.seed,
            "throughput": round(self.throughput, 1),
            "saturated": self.saturated,
            "behind_s": round(self.behind_s, 3),
            "latency_mean_ms": round(self.latency_mean_ms, 3),
            "latency_p50_ms": round(self.latency_p50_ms, 3),
            "latency_p99_ms": round(self.latency_p99_ms, 3),
            "worst_second_p50_ms": self.worst_second_p50_ms,
            "worst_second_p99_ms": self.worst_second_p99_ms,
            "recovery_s": _median(self.recoveries_s),
            "recoveries_s": [round(seconds, 3) for seconds in self.recoveries_s],
            "sync_ms_p50": _median(self.sync_ms),
            "migration_ms_p50": _median(self.migration_ms),
            "reassignments": len(self.sync_ms),
            "core_changes": self.core_changes,
            "quick_core_changes": self.quick_changes,
            "surge_s": None if self.surge_s is None else round(self.surge_s, 3),
            "timeline": list(self.timeline),
        }


@dataclass(frozen=True, slots=True)
class ElasticBench:
    """All runs, in the order in which they were made."""

    setting: ElasticSetting
    runs: tuple[ElasticRun, ...]
    machine: Machine

    def of(self, paradigm: str) -> list[ElasticRun]:
        """The runs of one paradigm, seed by seed."""
        return [run for run in self.runs if run.paradigm == paradigm]

    def ratio(self, figure: str, one: str, other: str) -> tuple[float, float, float]:
        """One paradigm's figure over another's, by pairs: median, and its 95 % interval."""
        pairs = zip(self.of(one), self.of(other), strict=True)
        ratios = [getattr(a, figure) / max(getattr(b, figure), 1e-9) for a, b in pairs]
        return _with_interval(ratios)

    def as_dict(self) -> dict[str, Any]:
        """Everything, for `--json`; flat if there is one run only."""
        setting = self.setting
        facts = {
            "ideal": round(setting.ideal, 1),
            "offered": None if setting.load is None else round(setting.load * setting.ideal, 1),
            "load": setting.load,
            "nodes": setting.nodes,
            "cores": setting.cores,
            "executors": setting.executors,
            "shards": setting.shards,
            "cost_ms": setting.cost_s * 1e3,
            "omega": setting.omega,
            "zipf": setting.zipf,
            "seconds": setting.seconds,
            "chunk_ms": setting.chunk_s * 1e3,
            "tick_ms": setting.tick_s * 1e3,
            **self.machine.as_dict(),
        }
        if len(self.runs) == 1:
            return {**self.runs[0].as_dict(), **facts}
        return {**self._summary(), "runs": [run.as_dict() for run in self.runs], **facts}

    def _summary(self) -> dict[str, Any]:
        paradigms = list(dict.fromkeys(run.paradigm for run in self.runs))
        figures: dict[str, Any] = {}
        for paradigm in paradigms:
            runs = self.of(paradigm)
            figures[paradigm] = {
                **spread_as_dict("throughput", Spread.of([run.throughput for run in runs])),
                **spread_as_dict("latency_p50_ms", Spread.of([run.latency_p50_ms for run in runs])),
                **spread_as_dict("latency_p99_ms", Spread.of([run.latency_p99_ms for run in runs])),
                "saturated": sum(run.saturated for run in runs),
                "recovery_s": _median([s for run in runs for s in run.recoveries_s]),
            }
        first, *others = paradigms
        for other in others:
            for figure in ("throughput", "latency_p50_ms", "latency_p99_ms"):
                ratio, low, high = self.ratio(figure, first, other)
                name = f"{figure}_{first}_over_{other}"
                figures[name] = round(ratio, 4)
                figures[f"{name}_ci95"] = [round(low, 4), round(high, 4)]
        return figures


def bench_elastic(
    cluster: BaseCluster,
    setting: ElasticSetting,
    paradigms: Sequence[ParadigmName],
    *,
    seeds: Sequence[int] = (1,),
    progress: Progress = silent,
) -> ElasticBench:
    """Run paradigms in turn, for each seed.

    Args:
        cluster: Where: all of its cores must be free, and its scheduler on.
        setting: What is run.
        paradigms: Which; the first is compared with each of the others.
        seeds: Of the tuples.
        progress: Told about each run.
    """
    machine = Machine()
    runs = []
    for number, seed in enumerate(seeds):
        turn = paradigms if number % 2 == 0 else tuple(reversed(paradigms))
        for paradigm in turn:
            progress(f"{paradigm}, seed {seed}")
            machine.glance()
            runs.append(run_once(cluster, setting, paradigm, seed))
    return ElasticBench(setting, tuple(runs), machine)


def run_once(
    cluster: BaseCluster, setting: ElasticSetting, paradigm: ParadigmName, seed: int
) -> ElasticRun:
    """Run one paradigm once."""
    total_s = setting.warm_up_s + setting.seconds
    rate = None if setting.load is None else setting.load * setting.ideal
    with notes() as folder:
        generator = Generator(
            rate=rate,
            zipf=setting.zipf,
            keys=setting.keys,
            omega=setting.omega,
            payload=0,
            seed=seed,
            seconds=None if rate is None else total_s + _MORE_S,
        )
        most_rows = max(8, int(setting.ideal * setting.tick_s))
        source = NotingSource(generator, folder, setting.tick_s if rate else 0.0, most_rows)
        topology = topology_of(setting, [source], NotingSink(folder))
        run = submit(cluster, topology, setting, paradigm)
        with run:
            behind = _watch(run, setting)
            metrics = run.metrics()
            if rate is None:
                run.stop(_PATIENCE_S + setting.seconds)
            else:
                _await_end(run, _PATIENCE_S + 2 * total_s)
        recording = Recording.load(folder)
    mean_ms, p50_ms, p99_ms = (
        metrics.latency.mean_s * 1e3,
        metrics.latency.percentile_s(50) * 1e3,
        metrics.latency.percentile_s(99) * 1e3,
    )
    worst: tuple[float | None, float | None] = (None, None)
    if rate is not None:  # every row says when it was due, and counts, however late it came
        latency = recording.latency(setting.warm_up_s, total_s)
        mean_ms, p50_ms, p99_ms = latency.mean_ms, latency.p50_ms, latency.p99_ms
        worst = (latency.worst_p50_ms, latency.worst_p99_ms)
    syncs, migrations = moves_of(run)
    changes, quick = core_changes_of(run)
    return ElasticRun(
        paradigm,
        seed,
        _throughput(recording, setting),
        mean_ms,
        p50_ms,
        p99_ms,
        behind if rate else 0.0,
        tuple(_recoveries(recording, setting, rate)),
        syncs,
        migrations,
        changes,
        quick,
        tuple(_timeline(recording, setting)),
        *worst,
    )


def topology_of(setting: ElasticSetting, sources: Sequence[Source], sink: Any) -> Topology:
    """The job: one operator on emulated cores, behind its sources."""
    topology = Topology("elastic")
    streams = [topology.source(f"tuples-{n}", source) for n, source in enumerate(sources)]
    worked = topology.operator(
        "work",
        Emulate(setting.cost_s),
        streams if len(streams) > 1 else streams[0],
        key="key",
        executors=setting.executors,
        shards=setting.shards,
        cores=setting.nodes * setting.cores // setting.executors,
    )
    topology.sink("out", sink, worked)
    return topology


def submit(
    cluster: BaseCluster, topology: Topology, setting: ElasticSetting, paradigm: ParadigmName
) -> Run:
    """Start a job as a paradigm."""
    return cluster.submit(
        topology,
        paradigm=paradigm,
        latency_target=setting.latency_target_s,
        config=setting.config,
        measure_s=0.1,
    )


def _watch(run: Run, setting: ElasticSetting) -> float:
    """Let it run, count from the end of the warm-up; returns how far it is behind at the end."""
    wait(run, setting.warm_up_s)
    run.reset_metrics()
    wait(run, setting.seconds)
    return run.metrics().behind_s


def wait(run: Run, seconds: float) -> None:
    """Let a run go on for so long.

    Raises:
        BenchError: It ended.
    """
    try:
        run.wait(seconds)
    except TimeoutError:
        return
    raise BenchError("run", f"last for {seconds:g} s more", run.phase)


def _await_end(run: Run, patience_s: float) -> None:
    """Until the last tuple is done, so that those that are late count, too."""
    try:
        run.wait(patience_s)
    except TimeoutError as error:
        hint = "give it less load, or a machine with less other work"
        raise BenchError("run", f"end within {patience_s:g} s more", run.phase, hint) from error


def _throughput(recording: Recording, setting: ElasticSetting) -> float:
    arrived = recording.arrivals
    first = setting.warm_up_s
    inside = (arrived >= first) & (arrived < first + setting.seconds)
    return float(recording.rows[inside].sum()) / setting.seconds


def _recoveries(
    recording: Recording, setting: ElasticSetting, rate: float | None
) -> Iterator[float]:
    if rate is None or not setting.omega:
        return
    every_s = 60 / setting.omega
    outputs = OutputTimes(recording, rate, every_s)
    end = setting.warm_up_s + setting.seconds
    for number in range(1, int(end / every_s) + 1):
        if setting.warm_up_s <= number * every_s <= end - every_s / 2:
            yield outputs.recovery(number * every_s).seconds


def moves_of(run: Run) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """How long shards were held, and how long of that their state was on its way elsewhere."""
    events = [*run.events("shard moved"), *run.events("shards repartitioned")]
    remote = [event for event in events if event["remote"]]
    return (
        tuple(event["sync_ms"] for event in events),
        tuple(event["migration_ms"] for event in remote),
    )


def core_changes_of(run: Run) -> tuple[int, int]:
    """How often an executor's cores were changed, and how often again within a cool-down."""
    cooldown_s = SchedulerConfig().cooldown_s
    last: dict[str, float] = {}
    changes = quick = 0
    for event in run.events("cores planned"):
        changes += 1
        quick += event["time"] - last.get(event["executor"], -math.inf) < cooldown_s
        last[event["executor"]] = event["time"]
    return changes, quick


def _timeline(recording: Recording, setting: ElasticSetting) -> Iterator[dict[str, float]]:
    """Per tenth of a second since the first tuple: rows per second, and how old they were."""
    arrived = recording.arrived_s
    latency = arrived - recording.due_s if setting.load is not None else np.zeros(len(arrived))
    order = np.argsort(arrived, kind="stable")
    arrived, latency = arrived[order], latency[order]
    last = setting.warm_up_s + setting.seconds
    for start in np.arange(0.0, last, BIN_S):
        first, end = np.searchsorted(arrived, (start, start + BIN_S))
        ages = latency[first:end] * 1e3
        moment = {"time": round(float(start), 1), "throughput": round((end - first) / BIN_S, 1)}
        if setting.load is not None and len(ages):
            moment["latency_p50_ms"] = round(float(np.percentile(ages, 50)), 2)
            moment["latency_p99_ms"] = round(float(np.percentile(ages, 99)), 2)
        yield moment


def _median(numbers: Sequence[float]) -> float | None:
    return round(float(np.median(numbers)), 4) if len(numbers) else None


def _with_interval(ratios: Sequence[float]) -> tuple[float, float, float]:
    """The median of some ratios, and where it lies with 95 % by resampling them."""
    found = np.array(ratios)
    drawn = np.random.default_rng(0).choice(found, (2000, len(found)))
    low, high = np.percentile(np.median(drawn, axis=1), (2.5, 97.5))
    return float(np.median(found)), float(low), float(high)
