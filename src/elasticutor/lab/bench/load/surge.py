"""`elasticutor bench elastic --surge`: the load of an operator rises, and its backlog lasts."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from elasticutor.core.paradigm import ParadigmName
from elasticutor.driver.cluster import BaseCluster
from elasticutor.driver.metrics import Moment
from elasticutor.lab.bench.live import Machine, Progress, silent
from elasticutor.lab.bench.load.delayed_source import DelayedSource
from elasticutor.lab.bench.load.elastic import (
    BIN_S,
    ElasticBench,
    ElasticRun,
    ElasticSetting,
    core_changes_of,
    moves_of,
    submit,
    topology_of,
    wait,
)
from elasticutor.sinks import NoSink
from elasticutor.sources import Generator

_CALM_BINS = 3


@dataclass(frozen=True, slots=True)
class SurgeBench:
    """The load of the operator, in cores' worth: before, and from some time on."""

    before: float
    after: float
    at_s: float = 10.0


def bench_surge(
    cluster: BaseCluster,
    setting: ElasticSetting,
    surge: SurgeBench,
    paradigm: ParadigmName,
    *,
    seeds: Sequence[int] = (1,),
    progress: Progress = silent,
) -> ElasticBench:
    """Let the load of an operator rise at once, and see how long its backlog lasts.

    The operator starts with one core for each executor.
    """
    machine = Machine()
    runs = []
    for seed in seeds:
        progress(f"{paradigm}: {surge.before:g} to {surge.after:g} cores' worth, seed {seed}")
        machine.glance()
        runs.append(_surge(cluster, setting, surge, paradigm, seed))
    return ElasticBench(setting, tuple(runs), machine)


def _surge(
    cluster: BaseCluster,
    setting: ElasticSetting,
    surge: SurgeBench,
    paradigm: ParadigmName,
    seed: int,
) -> ElasticRun:
    base = Generator(
        rate=surge.before / setting.cost_s,
        zipf=setting.zipf,
        keys=setting.keys,
        payload=0,
        seed=seed,
    )
    more = replace(base, rate=(surge.after - surge.before) / setting.cost_s)
    few = replace(setting, nodes=1, cores=setting.executors)  # one core each to begin with
    topology = topology_of(few, [base, DelayedSource(more, surge.at_s)], NoSink())
    with submit(cluster, topology, setting, paradigm) as run:
        started = time.time()
        wait(run, surge.at_s + setting.seconds)
        metrics, timeline = run.metrics(), run.timeline()
        run.cancel()
    gone = _backlog_gone_s(timeline, started, surge, setting.cost_s)
    syncs, migrations = moves_of(run)
    changes, quick = core_changes_of(run)
    rows = sum(m.rows for m in timeline if m.time > started + surge.at_s)
    latency = metrics.latency
    return ElasticRun(
        paradigm,
        seed,
        rows / setting.seconds,
        latency.mean_s * 1e3,
        latency.percentile_s(50) * 1e3,
        latency.percentile_s(99) * 1e3,
        metrics.behind_s,
        (),
        syncs,
        migrations,
        changes,
        quick,
        tuple(_moments(timeline, started)),
        surge_s=gone,
    )


def _backlog_gone_s(
    timeline: Sequence[Moment], started: float, surge: SurgeBench, cost_s: float
) -> float:
    """From the surge until no more waits than falls due in a tenth of a second; infinite if never.

    What waits is what was due by a time and is not with the sink then; it has to be so for three
    intervals in a row.

    Example:
        >>> outs = [10, 10, 10, 0, 30, 150, 150, 110, 80]  # of tenths of a second; 80 fall due
        >>> moments = [Moment(k / 10, 0.1, rows, 1, 1) for k, rows in enumerate(outs, start=1)]
        >>> _backlog_gone_s(moments, 0.0, SurgeBench(1.0, 8.0, at_s=0.3), cost_s=0.01)
        0.3
    """
    done, gone, calm = 0, 0.0, 0
    for moment in timeline:
        done += moment.rows
        since = moment.time - started - surge.at_s
        if since <= 0:
            continue
        more = (surge.after - surge.before) * since
        due = (surge.before * (moment.time - started) + more) / cost_s
        if due - done > BIN_S * surge.after / cost_s:
            gone, calm = math.inf, 0
            continue
        calm += 1
        if calm == 1 and gone:
            gone = since
        if calm == _CALM_BINS and gone:
            break
    return round(gone, 3)


def _moments(timeline: Sequence[Moment], started: float) -> Iterator[dict[str, float]]:
    for moment in timeline:
        yield {
            "time": round(moment.time - started, 2),
            "throughput": round(moment.rows / moment.seconds, 1),
            "latency_p50_ms": round(moment.p50_ms, 2),
            "latency_p99_ms": round(moment.p99_ms, 2),
        }
