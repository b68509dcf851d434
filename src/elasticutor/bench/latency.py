"""`elasticutor bench latency`: how old a tuple is when its output is with the sink.

Every tuple burns CPU time, as the paper's do (1 ms); tuples fall due by the clock, at a share of
what the tasks could do at most. Latency counts from when a tuple was due, whether or not anybody
had the time to send it then. The first seconds do not count.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from elasticutor.bench.figures import Spread
from elasticutor.bench.live import (
    Machine,
    Progress,
    rate_between,
    silent,
    spread_as_dict,
    watch,
)
from elasticutor.bench.work import Burn
from elasticutor.errors import BadValueError
from elasticutor.runtime.cluster import BaseCluster
from elasticutor.sinks import NoSink
from elasticutor.sources import Generator
from elasticutor.topology import Topology

_PERCENTILES = {"p50_ms": 50.0, "p90_ms": 90.0, "p99_ms": 99.0, "p999_ms": 99.9}


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
            **self.machine.as_dict(),
        }


def bench_latency(
    cluster: BaseCluster,
    *,
    cost_ms: float = 1.0,
    load: float = 0.6,
    cores: int = 2,
    seconds: float = 20.0,
    warm_up_s: float = 5.0,
    repeat: int = 3,
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
        progress: Told about each run.
    """
    if not 0 < load < 1:
        raise BadValueError("load", "be above 0 and below 1", load, "there is no latency beyond")
    operator = Burn(cost_ms / 1e3)
    rate = load * cores / (cost_ms / 1e3)
    machine = Machine()
    found: dict[str, list[float]] = {name: [] for name in _PERCENTILES}
    rates: list[float] = []
    behind_s = 0.0
    for number in range(repeat):
        progress(f"{rate:,.0f} tuples per second, run {number + 1} of {repeat}")
        machine.glance()
        topology = Topology("latency")
        stream = topology.source("tuples", Generator(rate=rate, seed=number))
        counted = topology.operator("burn", operator, stream, key="key", cores=cores)
        topology.sink("out", NoSink(), counted)
        with cluster.submit(topology) as run:
            watch(run, warm_up_s)
            run.reset_metrics()
            started = time.time()
            behind_s = max(behind_s, watch(run, seconds))
            latency = run.metrics().latency
            rates.append(rate_between(run.timeline(), started, time.time()))
            run.cancel()
        for name, percent in _PERCENTILES.items():
            found[name].append(latency.percentile_s(percent) * 1e3)
    percentiles = {name: Spread.of(values) for name, values in found.items()}
    return LatencyBench(
        percentiles, Spread.of(rates), behind_s, rate, cost_ms, load, cores, seconds, machine
    )
