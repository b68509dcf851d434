"""`elasticutor bench scheduler`: how long a decision takes, and how good its assignments are.

What is timed is whole calls of `Scheduler.decide`, from measurements to a plan; making up the
measurements is not. Between two calls a tenth of the executors get another amount of work and all
get some noise, and every plan is carried out at once, so that there is a plan to make each time.
How near the assignment comes to the best one is found in small cases, since only there the best is
known.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from elasticutor.core.measure.latency import LatencyHistogram
from elasticutor.core.measure.measurements import ExecutorSeen, SourceSeen, TopologySeen
from elasticutor.core.measure.metrics import ExecutorMetrics
from elasticutor.core.protocol.ids import NodeId, Peer
from elasticutor.core.scheduler.placement import place
from elasticutor.core.scheduler.scheduler import CorePlan, Scheduler
from elasticutor.lab.bench import options
from elasticutor.lab.bench.alone.assignment import against_optimum
from elasticutor.lab.bench.declare import Benchmark, Figures, Samples, figure, samples
from elasticutor.lab.bench.live import Bench
from elasticutor.lab.options import option

_WARM_UP = 3
_EVERY_S = 20.0  # longer than a cool-down
_INTERVAL_S = 0.25
_LOAD = 0.8  # work as a share of all cores
_CHANGING = 0.1  # share of the executors that get another amount of work
_NOISE = 0.05
_SERVICE_RATE = 1000.0  # tuples of 1 ms
_ROW_BYTES = 128
_SHARDS = 256
_TARGET_S = 0.05
_OPERATORS = ("parse", "count")


class SchedulerFigures(Figures):
    """What was measured."""

    median_ms: Samples = samples("a decision, median, ms", ".2f", better="lower")
    plans: int = figure("decisions that made a plan", default=0)
    changes: Samples = samples("executors that a plan changes", "g")
    assignment: dict[str, Any] = figure(default_factory=dict)
    """How near assignments come to the best, in small cases; see `against_optimum`."""

    def lines(self) -> Iterator[Sequence[str]]:
        yield from super().lines()
        found = self.assignment
        yield "small assignments at the optimum", f"{found['at_optimum']:.1%}", ""
        yield "cost over the optimum, mean", f"{found['mean_ratio']:.4f}", ""
        yield "cost over the optimum, worst", f"{found['worst_ratio']:.2f}", ""


class SchedulerBench(Benchmark):
    """How long the scheduler takes from measurements to a plan, and how good its plans are."""

    about = "{executors} executors on {nodes} × {cores} cores"

    nodes: int = option(32, "Of the cluster.", min=1, key="nodes")
    cores: int = option(8, "Of each node.", min=1, key="cores")
    executors: int = option(384, "More than there are cores: some share.", min=1, key="executors")
    repeat: int = option(50, "Decisions to time.", min=1, key="repeat")
    cases: int = option(500, "Small assignments to compare with the best.", min=1)
    seed: int = options.SEED(1, help="For loads, states and cases.")

    def measure(self, bench: Bench) -> SchedulerFigures:
        """Time decisions about a cluster that is made up; some before them do not count."""
        found = SchedulerFigures()
        cluster = _Cluster(self.nodes, self.cores, self.executors, self.seed)
        scheduler = Scheduler()
        bench.say(f"{self.repeat} decisions about {self.title()}")
        for number in range(-_WARM_UP, self.repeat):
            bench.machine.glance()
            seen = cluster.measure()
            started = time.perf_counter()
            plan = scheduler.decide(number * _EVERY_S, cluster.nodes, [seen])
            elapsed_s = time.perf_counter() - started
            if plan is not None:
                cluster.carry_out(plan)
            if number >= 0:
                changed = 0 if plan is None else len(plan.changed)
                found.median_ms.append(elapsed_s * 1e3)
                found.changes.append(changed)
                found.plans += changed > 0
        bench.say(f"{self.cases} small assignments against the best")
        found.assignment = against_optimum(self.cases, self.seed)
        return found


class _Cluster:
    """Executors with some work each; every plan is carried out at once."""

    def __init__(self, nodes: int, cores: int, executors: int, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        self.nodes = {NodeId(f"n{number:04}"): cores for number in range(nodes)}
        self._capacity = float(nodes * cores)
        names = [Peer(f"e{number:05}") for number in range(executors)]
        each = max(1, nodes * cores // executors)
        placed = place([(name, each) for name in names], self.nodes, share=True)
        self._homes = {name: placed[name].node for name in names}
        self._cores = {name: placed[name].cores for name in names}
        self._weights = self._rng.lognormal(0.0, 1.0, executors)  # many small, a few large ones
        self._states = (2.0 ** self._rng.uniform(16, 26, executors)).astype(int)  # to 64 MB
        skew = 1.0 / np.arange(1, _SHARDS + 1) ** 0.5
        self._shares = skew / skew.sum()

    def measure(self) -> TopologySeen:
        """What is to be seen next: another amount of work for some, and noise for all."""
        rng, count = self._rng, len(self._homes)
        changing = rng.random(count) < _CHANGING
        changing[rng.integers(count)] = True
        self._weights[changing] = rng.lognormal(0.0, 1.0, int(changing.sum()))
        noise = rng.normal(1.0, _NOISE, count).clip(0.5, 1.5)
        work = self._weights * noise * (_LOAD * self._capacity / self._weights.sum())
        operator = np.arange(count) * len(_OPERATORS) // count
        executors = tuple(
            self._seen(name, _OPERATORS[operator[at]], float(work[at]), int(self._states[at]))
            for at, name in enumerate(self._homes)
        )
        feeds = {"parse": ("clicks",), "count": ("parse",)} if count > 1 else {"parse": ("clicks",)}
        rows = round(float(work[operator == 0].sum()) * _SERVICE_RATE * _INTERVAL_S)
        source = SourceSeen("clicks", _INTERVAL_S, rows, blocked_share=0.0)
        return TopologySeen("bench", (source,), executors, feeds, _TARGET_S)

    def _seen(self, name: Peer, operator: str, work: float, state_bytes: int) -> ExecutorSeen:
        cores = sum(self._cores[name].values())
        arrived = round(work * _SERVICE_RATE * _INTERVAL_S)
        done = min(arrived, round(cores * _SERVICE_RATE * _INTERVAL_S))
        rows = self._rng.multinomial(done, self._shares)
        metrics = ExecutorMetrics(
            seconds=_INTERVAL_S,
            core_seconds=cores * _INTERVAL_S,
            rows_arrived=arrived,
            bytes_arrived=arrived * _ROW_BYTES,
            rows_processed=done,
            rows_out=done,
            useful_s=done / _SERVICE_RATE,
            bytes_in=done * _ROW_BYTES,
            bytes_out=done * _ROW_BYTES,
            state_bytes=state_bytes,
            shard_rows=rows,
            shard_seconds=rows / _SERVICE_RATE,
            latency=LatencyHistogram(),  # the scheduler does not look at it
            backlog_rows=arrived - done,
        )
        return ExecutorSeen(name, operator, self._homes[name], self._cores[name], metrics)

    def carry_out(self, plan: CorePlan) -> None:
        """Have the cores of a plan."""
        for name in plan.changed:
            self._cores[name] = dict(plan.cores[name])
