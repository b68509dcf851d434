"""From what was measured to what is wanted: the arrival and service rates of every executor.

A rate measured behind back-pressure is throttled, and a model fed with it would add one core at a
time. So demand starts at the sources, with what they would send if nothing held them up, and goes
through the topology by measured selectivities and shares of keys. Backlog is demand too: it is to
be gone within a horizon.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from elasticutor.core.allocation import Demand, Job
from elasticutor.core.ids import Peer
from elasticutor.core.metrics import MOST_BLOCKED, ExecutorMetrics
from elasticutor.core.seen import ExecutorSeen, SourceSeen, TopologySeen
from elasticutor.errors import BadValueError

HORIZON_S = 1.0
"""The time within which a backlog should be worked off."""


@dataclass(frozen=True, slots=True)
class Load:
    """What one executor is asked to do."""

    arrival_rate: float
    """Tuples per second that want in, backlog included."""
    service_rate: float
    """Tuples per second that one core can do; NaN while nothing was measured."""
    useful_work: float
    """The same in cores, as far as cores can help: no shard counts for more than one."""
    shards: int
    """How many shards had anything to do: no further core would get one."""


def offered_rate(source: SourceSeen) -> float:
    """What a source task would send per second, what it is behind with included.

    Example:
        >>> offered_rate(SourceSeen("clicks", seconds=1.0, rows=300, blocked_share=0.7))
        1000.0
    """
    if source.rate is not None and math.isfinite(source.rate):
        rate = source.rate
    elif source.seconds <= 0:
        return 0.0
    else:
        rate = source.rows / source.seconds
        if source.rate is None:
            rate /= 1.0 - min(source.blocked_share, MOST_BLOCKED)
    return rate * (1.0 + source.behind_s / HORIZON_S)


def loads_of(topology: TopologySeen, horizon_s: float = HORIZON_S) -> dict[Peer, Load]:
    """What every executor of a topology is asked to do.

    Raises:
        BadValueError: Operators feed each other in a ring, or one is fed by something unknown.
    """
    operators: dict[str, list[ExecutorSeen]] = {}
    for executor in topology.executors:
        operators.setdefault(executor.operator, []).append(executor)
    inflow = _inflows(topology, operators)
    loads: dict[Peer, Load] = {}
    for operator, executors in operators.items():
        arrived = sum(executor.metrics.rows_arrived for executor in executors)
        mean = _service_rate(executor.metrics for executor in executors)
        for executor in executors:
            metrics = executor.metrics
            share = metrics.rows_arrived / arrived if arrived else 1 / len(executors)
            rate = inflow[operator] * share + metrics.backlog_rows / horizon_s
            own = metrics.service_rate
            loads[executor.name] = _load(metrics, rate, mean if math.isnan(own) else own)
    return loads


def job_of(topology: TopologySeen, loads: Mapping[Peer, Load]) -> Job:
    """The topology as the allocation sees it."""
    demands = tuple(
        Demand(
            executor.name,
            load.useful_work * load.service_rate if load.useful_work else 0.0,
            load.service_rate if load.useful_work else 0.0,
            most=max(1, load.shards),
        )
        for executor in topology.executors
        for load in (loads[executor.name],)
    )
    return Job(
        topology.name,
        demands,
        sum(map(offered_rate, topology.sources)),
        topology.target_s,
        any(source.rate == math.inf for source in topology.sources),
    )


def _inflows(
    topology: TopologySeen, operators: Mapping[str, list[ExecutorSeen]]
) -> dict[str, float]:
    """Tuples per second that every operator is sent, if nothing holds anybody up."""
    outflow: dict[str, float] = {}
    for source in topology.sources:
        outflow[source.name] = outflow.get(source.name, 0.0) + offered_rate(source)
    takers = dict.fromkeys(operators, 0)
    for feeders in topology.feeds.values():
        for name in feeders:
            if name in takers:
                takers[name] += 1
    inflow: dict[str, float] = {}
    left = dict.fromkeys(operators)
    while left:
        ready = [name for name in left if all(feeder in outflow for feeder in topology.feeds[name])]
        if not ready:
            raise BadValueError(
                "operators", "be fed by sources and other operators, not in a ring", list(left)
            )
        for name in ready:
            del left[name]
            inflow[name] = sum(outflow[feeder] for feeder in topology.feeds[name])
            outflow[name] = inflow[name] * _selectivity(operators[name]) / max(1, takers[name])
    return inflow


def _selectivity(executors: Iterable[ExecutorSeen]) -> float:
    """Rows out, to all takers together, per row in; 1 while nothing was measured."""
    processed = made = 0
    for executor in executors:
        processed += executor.metrics.rows_processed
        made += executor.metrics.rows_out
    return made / processed if processed else 1.0


def _service_rate(metrics: Iterable[ExecutorMetrics]) -> float:
    rows, seconds = 0, 0.0
    for measured in metrics:
        rows += measured.rows_processed
        seconds += measured.useful_s
    return rows / seconds if rows and seconds > 0 else math.nan


def _load(metrics: ExecutorMetrics, rate: float, service_rate: float) -> Load:
    if not service_rate > 0:
        return Load(rate, math.nan, 0.0, metrics.shards)
    work = rate / service_rate
    total = float(metrics.shard_seconds.sum())
    if total <= 0:
        return Load(rate, service_rate, work, metrics.shards)
    by_shard = metrics.shard_seconds * (work / total)
    useful = float(np.minimum(by_shard, 1.0).sum())
    return Load(rate, service_rate, useful, int(np.count_nonzero(by_shard)))
