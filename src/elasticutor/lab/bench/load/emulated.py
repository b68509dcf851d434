"""A paradigm at work on emulated nodes and cores: what `bench elastic` and `latency --shift` run.

One operator, whose tuples take a set time, on all cores of the cluster. The cores are emulated: a
task sleeps for the time that its tuples take. Tuples come at a share of what the cores could do at
best, or as fast as they are taken; now and then the keys' frequencies are shuffled (ω). Or the load
rises at once, and the question is how long the backlog lasts.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from elasticutor.core.measure.latency import LatencyHistogram
from elasticutor.core.paradigm import ParadigmName
from elasticutor.core.scheduler.scheduler import SchedulerConfig
from elasticutor.driver.cluster import BaseCluster
from elasticutor.driver.metrics import Moment
from elasticutor.driver.run import Run
from elasticutor.lab.bench.declare import P50, Figures, Samples, figure, samples
from elasticutor.lab.bench.live import OPERATOR, SINK, SOURCE, BenchError, chunks_of, notes, watch
from elasticutor.lab.bench.load.shuffle import OutputTimes
from elasticutor.lab.bench.record import DelayedSource, Latency, NotingSink, NotingSource, Recording
from elasticutor.lab.bench.work import Emulate
from elasticutor.sinks import NoSink, Sink
from elasticutor.sources import Source
from elasticutor.topology import Topology

if TYPE_CHECKING:
    from elasticutor.lab.bench.load.elastic import ElasticBench

_BIN_S = 0.1
"""Timelines have a moment for each of these."""
_CREDIT_BYTES = 16 * 1024
"""A tuple has 24 bytes here and takes a millisecond: the usual 64 KB would be seconds of work."""
_MORE_S = 1.0
"""How much longer than it is measured a stream with a rate is."""
_PATIENCE_S = 60.0
_CALM_BINS = 3


@dataclass(frozen=True, slots=True)
class LoadRise:
    """The load of the operator, in cores' worth: before, and from some time on."""

    before: float
    after: float
    at_s: float = 10.0


class ElasticRun(Figures):
    """One run of one paradigm."""

    paradigm: str = figure()
    seed: int = figure("seed")
    throughput: float = figure("tuples/s", ",.0f", digits=1, better="higher", default=0.0)
    of_ideal: float = figure("of ideal", ".2f", key="", default=0.0)
    behind_s: float = figure(digits=3, default=0.0)
    """How far the source was behind its schedule at the end."""
    latency_mean_ms: float = figure("mean ms", ",.1f", digits=3, better="lower", default=0.0)
    latency_p50_ms: float = figure("p50 ms", ",.1f", digits=3, better="lower", default=0.0)
    latency_p99_ms: float = figure("p99 ms", ",.1f", digits=3, better="lower", default=0.0)
    """Of all rows due after the warm-up, shuffles included."""
    latency: Latency | None = None
    """The same, and of the worst second, if rows say when they were due."""
    recoveries_s: Samples = figure(digits=3, default_factory=list)
    surge_s: float | None = figure(digits=3, default=None)
    """From the surge until its backlog was gone; infinite if it never was."""
    sync_ms: Samples = samples(shows=P50, digits=4)
    migration_ms: Samples = samples(shows=P50, digits=4)
    core_changes: int = figure(default=0)
    """Executors whose cores a plan has changed."""
    quick_core_changes: int = figure(default=0)
    """Those of them that had changed less than a cool-down before."""
    timeline: list[dict[str, float]] = figure(default_factory=list)

    @property
    def saturated(self) -> bool:
        """Whether the source could not keep to its schedule."""
        return self.behind_s > 1.0

    def take_latency(self, histogram: LatencyHistogram) -> None:
        """How old tuples were at the sink, from the run's own measurements."""
        seconds = histogram.mean_s, *map(histogram.percentile_s, (50, 99))
        self.latency_mean_ms, self.latency_p50_ms, self.latency_p99_ms = (s * 1e3 for s in seconds)

    def heading(self) -> str:
        return self.paradigm + (" (saturated)" if self.saturated else "")

    def as_dict(self) -> dict[str, Any]:
        seen = self.latency
        return {
            **super().as_dict(),
            "worst_second_p50_ms": seen.worst_second_p50_ms if seen else None,
            "worst_second_p99_ms": seen.worst_second_p99_ms if seen else None,
            "saturated": self.saturated,
            "recovery_s": median_or_none(self.recoveries_s),
            "reassignments": len(self.sync_ms),
        }

    def cells(self) -> Iterator[tuple[str, str]]:
        """Its row, with how soon it has recovered and what was moved."""
        yield from super().cells()
        recovery = median_or_none(self.recoveries_s) if self.surge_s is None else self.surge_s
        yield "recovery s ↓", "" if recovery is None else f"{recovery:.2f}"
        yield "moves", str(len(self.sync_ms))
        yield "core changes", str(self.core_changes)

    def count_changes(self, run: Run) -> None:
        """Take from a run's journal how long shards were held, and how often cores changed."""
        moved = [*run.events("shard moved"), *run.events("shards repartitioned")]
        self.sync_ms = [event["sync_ms"] for event in moved]
        self.migration_ms = [event["migration_ms"] for event in moved if event["remote"]]
        cooldown_s = SchedulerConfig().cooldown_s
        last: dict[str, float] = {}
        for event in run.events("cores planned"):
            since_s = event["time"] - last.get(event["executor"], -math.inf)
            self.core_changes += 1
            self.quick_core_changes += since_s < cooldown_s
            last[event["executor"]] = event["time"]


def run_once(
    cluster: BaseCluster, setting: ElasticBench, paradigm: ParadigmName, seed: int
) -> ElasticRun:
    """Run one paradigm once."""
    total_s, rate = setting.warm_up + setting.seconds, setting.offered
    tick_s = setting.tick_ms / 1e3
    with notes() as folder:
        generator = setting.tuples(seed, None if rate is None else total_s + _MORE_S)
        most_rows = max(8, int(setting.ideal * tick_s))
        source = NotingSource(generator, folder, tick_s if rate else 0.0, most_rows)
        cores = setting.nodes * setting.cores
        with submit(cluster, setting, paradigm, [source], NotingSink(folder), cores) as run:
            watch(run, setting.warm_up)
            run.reset_metrics()
            watch(run, setting.seconds)
            metrics = run.metrics()
            if rate is None:
                run.stop(_PATIENCE_S + setting.seconds)
            else:
                try:  # those that are late count, too
                    run.wait(patience_s := _PATIENCE_S + 2 * total_s)
                except TimeoutError as error:
                    hint = "give it less load, or a machine with less other work"
                    must = f"end within {patience_s:g} s more"
                    raise BenchError("run", must, run.phase, hint) from error
        recording = Recording.load(folder)
    found = ElasticRun(paradigm=paradigm, seed=seed)
    if rate is None:
        found.take_latency(metrics.latency)
    else:  # every row says when it was due, and counts, however late it came
        found.behind_s = metrics.behind_s
        seen = found.latency = recording.latency(setting.warm_up, total_s)
        found.latency_mean_ms = seen.mean_ms
        found.latency_p50_ms, found.latency_p99_ms = seen.p50_ms, seen.p99_ms
    arrived = recording.arrivals
    inside = (arrived >= setting.warm_up) & (arrived < total_s)
    found.throughput = float(recording.rows[inside].sum()) / setting.seconds
    found.of_ideal = found.throughput / setting.ideal
    found.recoveries_s = [*_recoveries(recording, setting, rate)]
    found.timeline = [*_timeline(recording, total_s, timed=rate is not None)]
    found.count_changes(run)
    return found


def run_surge(
    cluster: BaseCluster, setting: ElasticBench, surge: LoadRise, paradigm: ParadigmName, seed: int
) -> ElasticRun:
    """Let the load rise at once, and see how long the backlog lasts."""
    tuples = replace(setting.tuples(seed, None), omega=0.0)
    base = replace(tuples, rate=surge.before / setting.cost_s)
    more = replace(tuples, rate=(surge.after - surge.before) / setting.cost_s)
    sources = [base, DelayedSource(more, surge.at_s)]
    cores = setting.executor_count  # one each to begin with
    with submit(cluster, setting, paradigm, sources, NoSink(), cores) as run:
        started = time.time()
        watch(run, surge.at_s + setting.seconds)
        metrics, timeline = run.metrics(), run.timeline()
        run.cancel()
    found = ElasticRun(
        paradigm=paradigm,
        seed=seed,
        behind_s=metrics.behind_s,
        surge_s=_backlog_gone_s(timeline, started, surge, setting.cost_s),
        timeline=[
            {
                "time": round(moment.time - started, 2),
                "throughput": round(moment.rows / moment.seconds, 1),
                "latency_p50_ms": round(moment.p50_ms, 2),
                "latency_p99_ms": round(moment.p99_ms, 2),
            }
            for moment in timeline
        ],
    )
    found.take_latency(metrics.latency)
    rows = sum(m.rows for m in timeline if m.time > started + surge.at_s)
    found.throughput = rows / setting.seconds
    found.of_ideal = found.throughput / setting.ideal
    found.count_changes(run)
    return found


def submit(
    cluster: BaseCluster,
    setting: ElasticBench,
    paradigm: ParadigmName,
    sources: Sequence[Source],
    sink: Sink,
    cores: int,
) -> Run:
    """Start one operator behind its sources as a paradigm, with this many cores to begin with."""
    topology = Topology("elastic")
    streams = [topology.source(f"{SOURCE}-{n}", source) for n, source in enumerate(sources)]
    worked = topology.operator(
        OPERATOR,
        Emulate(setting.cost_s),
        streams if len(streams) > 1 else streams[0],
        key="key",
        executors=setting.executor_count,
        shards=setting.shards,
        cores=cores // setting.executor_count,
    )
    topology.sink(SINK, sink, worked)
    return cluster.submit(
        topology,
        paradigm=paradigm,
        latency_target=setting.latency_target_ms / 1e3,
        config=replace(
            chunks_of(setting.chunk_ms / 1e3), credit_s=0.02, min_credit_bytes=_CREDIT_BYTES
        ),
        measure_s=0.1,
    )


def _recoveries(recording: Recording, setting: ElasticBench, rate: float | None) -> Iterator[float]:
    if rate is None or not setting.omega:
        return
    every_s = 60 / setting.omega
    outputs = OutputTimes(recording, rate, every_s)
    end = setting.warm_up + setting.seconds
    for number in range(1, int(end / every_s) + 1):
        if setting.warm_up <= number * every_s <= end - every_s / 2:
            yield outputs.recovery(number * every_s).seconds


def _timeline(recording: Recording, last_s: float, *, timed: bool) -> Iterator[dict[str, float]]:
    """Per tenth of a second since the first tuple: rows per second, and how old they were."""
    arrived = recording.arrived_s
    latency = arrived - recording.due_s if timed else np.zeros(len(arrived))
    order = np.argsort(arrived, kind="stable")
    arrived, latency = arrived[order], latency[order]
    for start in np.arange(0.0, last_s, _BIN_S):
        first, end = np.searchsorted(arrived, (start, start + _BIN_S))
        ages = latency[first:end] * 1e3
        moment = {"time": round(float(start), 1), "throughput": round((end - first) / _BIN_S, 1)}
        if timed and len(ages):
            moment["latency_p50_ms"] = round(float(np.percentile(ages, 50)), 2)
            moment["latency_p99_ms"] = round(float(np.percentile(ages, 99)), 2)
        yield moment


def _backlog_gone_s(
    timeline: Sequence[Moment], started: float, surge: LoadRise, cost_s: float
) -> float:
    """From the surge until no more waits than falls due in a tenth of a second; infinite if never.

    What waits is what was due by a time and is not with the sink then; it has to be so for three
    intervals in a row.
    """
    done, gone, calm = 0, 0.0, 0
    for moment in timeline:
        done += moment.rows
        since = moment.time - started - surge.at_s
        if since <= 0:
            continue
        more = (surge.after - surge.before) * since
        due = (surge.before * (moment.time - started) + more) / cost_s
        if due - done > _BIN_S * surge.after / cost_s:
            gone, calm = math.inf, 0
            continue
        calm += 1
        if calm == 1 and gone:
            gone = since
        if calm == _CALM_BINS and gone:
            break
    return round(gone, 3)


def median_or_none(numbers: Sequence[float]) -> float | None:
    """The median for `--json`, of no numbers None."""
    return round(float(np.median(numbers)), 4) if len(numbers) else None
