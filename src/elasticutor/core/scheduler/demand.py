"""From what was measured to what is wanted: the arrival and service rates of every executor.

A rate measured behind back-pressure is throttled, and a model fed with it would add one core at a
time. So demand starts at the sources, with what they would send if nothing held them up, and goes
through the topology by measured selectivities and shares of keys. Backlog is demand too: it is to
be gone within a horizon.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from elasticutor.core.measure.load import SHORTEST_S
from elasticutor.core.measure.measurements import ExecutorSeen, SourceSeen, TopologySeen
from elasticutor.core.measure.metrics import ExecutorMetrics
from elasticutor.core.protocol.ids import Peer
from elasticutor.core.scheduler.allocation import Demand, Job
from elasticutor.errors import BadValueError

HORIZON_S = 1.0
"""The time within which a backlog should be worked off."""

MOST_BLOCKED = 0.99
"""A source that was blocked for longer than this share counts as blocked for this share.

The little that it could send says little about what it would have sent, so that one measurement
stretches it a hundredfold at most.
"""

CHANCE = 2.0
"""How many standard deviations count as chance; that of a Poisson count is its root."""


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
    """How many shards have anything to do: no further core would get one."""
    certain_work: float
    """The part of the useful work that cannot be chance: backlog, and arrivals `CHANCE` less."""
    coming_work: float = 0.0
    """The useful work without the backlog."""


def offered_rate(source: SourceSeen, horizon_s: float = HORIZON_S) -> float:
    """What a source task would send per second, what it is behind with included."""
    _require_sane(source)
    if source.rate is not None and source.rate < math.inf:
        rate = source.rate
    elif source.seconds < SHORTEST_S:
        return 0.0
    else:
        rate = source.rows / source.seconds
        if source.rate is None:
            rate /= 1.0 - min(source.blocked_share, MOST_BLOCKED)
    return rate * (1.0 + source.behind_s / horizon_s)


def entry_rate(topology: TopologySeen, horizon_s: float = HORIZON_S) -> float:
    """What all sources of a topology would send per second."""
    return sum(offered_rate(source, horizon_s) for source in topology.sources)


def loads_of(topology: TopologySeen, horizon_s: float = HORIZON_S) -> dict[Peer, Load]:
    """What every executor of a topology is asked to do."""
    operators: dict[str, list[ExecutorSeen]] = {}
    for executor in topology.executors:
        operators.setdefault(executor.operator, []).append(executor)
    coming = _coming(topology, operators, horizon_s)
    ordered = [executor for executors in operators.values() for executor in executors]
    shards = _Shards([executor.metrics for executor in ordered])
    loads: dict[Peer, Load] = {}
    for executors in operators.values():
        mean = _service_rate(executor.metrics for executor in executors)
        for executor in executors:
            metrics = executor.metrics
            fresh, rows = coming[executor.name]
            waiting, own = metrics.backlog_rows / horizon_s, metrics.service_rate
            rate = fresh + waiting
            service_rate = mean if math.isnan(own) else own
            work = rate / service_rate if service_rate > 0 else 0.0
            useful, busy = shards.useful(len(loads), work)
            sure = fresh * max(0.0, 1 - CHANCE / math.sqrt(rows)) if rows else 0.0
            certain = useful * ((sure + waiting) / rate) if rate else 0.0
            coming_work = useful * (fresh / rate) if rate else 0.0
            loads[executor.name] = Load(rate, service_rate, useful, busy, certain, coming_work)
    return loads


def job_of(topology: TopologySeen, loads: Mapping[Peer, Load], entering: float) -> Job:
    """The topology as the allocation sees it, with what enters from its sources per second."""
    demands = []
    for executor in topology.executors:
        if executor.fixed:
            continue
        load = loads[executor.name]
        rate, service_rate = 0.0, 0.0
        if load.useful_work and load.service_rate > 0:  # NaN while nothing was measured
            rate, service_rate = load.useful_work * load.service_rate, load.service_rate
        demands.append(Demand(executor.name, rate, service_rate, most=max(1, load.shards)))
    at_once = any(source.rate == math.inf for source in topology.sources)
    return Job(topology.name, tuple(demands), entering, topology.target_s, at_once)


def _coming(
    topology: TopologySeen, operators: Mapping[str, list[ExecutorSeen]], horizon_s: float
) -> dict[Peer, tuple[float, int]]:
    """Tuples per second that are for every executor, and how many were counted to know that.

    What a source knows about the takers of its rows goes before what has arrived: rows for an
    executor that is overloaded do not arrive.
    """
    outflow = _outflows(topology, operators, horizon_s)
    routed: dict[str, Counter[Peer]] = {}
    for source in topology.sources:
        routed.setdefault(source.name, Counter()).update(source.routed)
    coming: dict[Peer, tuple[float, int]] = {}
    for operator, executors in operators.items():
        arrived = sum(executor.metrics.rows_arrived for executor in executors)
        by_arrivals, by_route = 0.0, []
        for feeder in topology.feeds[operator]:
            counts = routed.get(feeder)
            total = sum(counts[one.name] for one in executors) if counts else 0
            if counts and total:
                by_route.append((outflow[feeder] / total, counts))
            else:
                by_arrivals += outflow[feeder]
        for executor in executors:
            rows = executor.metrics.rows_arrived
            rate = by_arrivals * (rows / arrived if arrived else 1 / len(executors))
            if by_route:
                rate += sum(each * counts[executor.name] for each, counts in by_route)
                rows = sum(counts[executor.name] for _, counts in by_route)
            coming[executor.name] = rate, rows
    return coming


def _outflows(
    topology: TopologySeen, operators: Mapping[str, list[ExecutorSeen]], horizon_s: float
) -> dict[str, float]:
    """Tuples per second that sources and operators send each taker, if nothing holds them up."""
    outflow: dict[str, float] = {}
    for source in topology.sources:
        outflow[source.name] = outflow.get(source.name, 0.0) + offered_rate(source, horizon_s)
    takers = dict.fromkeys(operators, 0)
    for feeders in topology.feeds.values():
        for name in feeders:
            if name in takers:
                takers[name] += 1
    left = dict.fromkeys(operators)
    while left:
        ready = [
            name
            for name in left
            if name in topology.feeds and all(feed in outflow for feed in topology.feeds[name])
        ]
        if not ready:
            raise BadValueError(
                "operators", "be fed by sources and other operators, not in a ring", list(left)
            )
        for name in ready:
            del left[name]
            inflow = sum(outflow[feeder] for feeder in topology.feeds[name])
            outflow[name] = inflow * _selectivity(operators[name]) / max(1, takers[name])
    return outflow


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
    return rows / seconds if rows and seconds >= SHORTEST_S else math.nan


_AT_ONCE = 64  # executors whose arrays are joined: few enough to stay in the processor's cache


class _Shards:
    """How the work of executors lies on their shards.

    Many executors at once: a handful of array operations for each would take longer than everything
    else. Where no shard did anything, the work is as if it lay evenly on all of them.
    """

    def __init__(self, metrics: Sequence[ExecutorMetrics]) -> None:
        self._metrics = metrics
        self._busy = [measured.shards for measured in metrics]
        self._hottest = [0.0] * len(metrics)  # its share of all work
        some = [at for at, shards in enumerate(self._busy) if shards]
        for start in range(0, len(some), _AT_ONCE):
            self._sum_up(some[start : start + _AT_ONCE])

    def _sum_up(self, some: Sequence[int]) -> None:
        metrics = [self._metrics[at] for at in some]
        starts = np.cumsum([0, *(measured.shards for measured in metrics[:-1])])
        seconds = np.concatenate([measured.shard_seconds for measured in metrics])
        rows = np.concatenate([measured.shard_rows for measured in metrics])
        totals = np.add.reduceat(seconds, starts).tolist()
        hottest = np.maximum.reduceat(seconds, starts).tolist()
        busy = np.add.reduceat(seconds > 0, starts, dtype=np.intp).tolist()
        single = np.logical_or.reduceat(rows == 1, starts).tolist()
        for at, total, most, count, unsure in zip(some, totals, hottest, busy, single, strict=True):
            if total > 0:
                self._hottest[at] = most / total
                if not unsure:
                    self._busy[at] = count

    def useful(self, at: int, work: float) -> tuple[float, int]:
        """How many cores an executor can use, and how many shards there are for them.

        A shard that had a single tuple says nothing about what that shard has to do: it stands for
        all those that might have had it as well. So it is not cut, and all shards count.
        """
        if work * self._hottest[at] > 1.0:
            metrics = self._metrics[at]
            by_shard = metrics.shard_seconds * (work / metrics.shard_seconds.sum())
            np.minimum(by_shard, 1.0, out=by_shard, where=metrics.shard_rows != 1)
            work = float(by_shard.sum())
        return work, self._busy[at]


def _require_sane(source: SourceSeen) -> None:
    for name in ("seconds", "rows", "behind_s"):
        value = getattr(source, name)
        if not 0 <= value < math.inf:
            raise BadValueError(f"{name} of source {source.name!r}", "be 0 or more", value)
    if not 0 <= source.blocked_share <= 1:
        raise BadValueError(
            f"blocked share of source {source.name!r}", "be 0 to 1", source.blocked_share
        )
    if source.rate is not None and not source.rate >= 0:
        raise BadValueError(f"rate of source {source.name!r}", "be 0 or more", source.rate)
