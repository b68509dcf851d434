"""`elasticutor bench elastic --surge`: the load of an operator rises, and its backlog lasts."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from elasticutor.core.paradigm import ParadigmName
from elasticutor.driver.cluster import BaseCluster
from elasticutor.driver.metrics import Moment
from elasticutor.lab.bench.live import watch
from elasticutor.lab.bench.load.emulated import BIN_S, ElasticRun, submit
from elasticutor.lab.bench.record import DelayedSource
from elasticutor.sinks import NoSink

if TYPE_CHECKING:
    from elasticutor.lab.bench.load.elastic import ElasticBench

_CALM_BINS = 3


@dataclass(frozen=True, slots=True)
class LoadRise:
    """The load of the operator, in cores' worth: before, and from some time on."""

    before: float
    after: float
    at_s: float = 10.0


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
        if due - done > BIN_S * surge.after / cost_s:
            gone, calm = math.inf, 0
            continue
        calm += 1
        if calm == 1 and gone:
            gone = since
        if calm == _CALM_BINS and gone:
            break
    return round(gone, 3)
