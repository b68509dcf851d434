"""Measurements made up, and a small world that is scheduled: fluid queues behind one source."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from elasticutor.core.measure.latency import LatencyHistogram
from elasticutor.core.measure.measurements import ExecutorSeen, SourceSeen, TopologySeen
from elasticutor.core.measure.metrics import ExecutorMetrics
from elasticutor.core.protocol.ids import NodeId, Peer
from elasticutor.core.scheduler.scheduler import LOOK_S, CorePlan, Scheduler

A, B, C = NodeId("a"), NodeId("b"), NodeId("c")
SHARDS = 64
SERVICE_RATE = 1000.0


def measured(
    *,
    arrived: int = 0,
    processed: int | None = None,
    out: int | None = None,
    seconds: float = 1.0,
    service_rate: float = SERVICE_RATE,
    shards: Sequence[float] = (1,) * SHARDS,
    cores: float = 1,
    **others: Any,
) -> ExecutorMetrics:
    """What an executor measures; all that arrived is processed and put out unless said otherwise.

    `shards` says how the work lies on them.
    """
    done = arrived if processed is None else processed
    useful_s = done / service_rate
    weights = np.array(shards, dtype=float)
    rows = np.floor(weights / weights.sum() * done) if weights.any() else weights
    return ExecutorMetrics(
        seconds=seconds,
        core_seconds=cores * seconds,
        rows_arrived=arrived,
        rows_processed=done,
        rows_out=done if out is None else out,
        useful_s=useful_s,
        shard_rows=rows.astype(np.int64),
        shard_seconds=weights / weights.sum() * useful_s if weights.any() else weights,
        latency=LatencyHistogram(),
        **{**dict.fromkeys(("bytes_arrived", "bytes_in", "bytes_out", "state_bytes"), 0), **others},
    )


def executor(
    name: str,
    metrics: ExecutorMetrics | None = None,
    *,
    operator: str = "count",
    home: NodeId = A,
    cores: Mapping[NodeId, int] | None = None,
) -> ExecutorSeen:
    return ExecutorSeen(
        Peer(name), operator, home, {home: 1} if cores is None else cores, metrics or measured()
    )


def topology(
    *executors: ExecutorSeen,
    sources: Sequence[SourceSeen] = (),
    feeds: Mapping[str, tuple[str, ...]] | None = None,
    target_s: float = 0.05,
    name: str = "t",
) -> TopologySeen:
    """All operators are fed by the source "s" unless said otherwise."""
    if feeds is None:
        feeds = {one.operator: ("s",) for one in executors}
    return TopologySeen(name, tuple(sources), executors, feeds, target_s)


def source(rate: float | None, *, rows: int = 0, name: str = "s", **others: Any) -> SourceSeen:
    """A source that knows its rate, or one that has sent so many rows in a second."""
    return SourceSeen(name, 1.0, rows, others.pop("blocked_share", 0.0), rate=rate, **others)


class World:
    """Executors as fluid queues, which have what a plan gives them by the next look.

    Each does `SERVICE_RATE` per core. When one's queue is full the source stops as a whole, and
    with it what all others get, as live.

    Args:
        nodes: Their cores.
        work: What every executor is offered, in cores' worth.
        cores: What each has at the start; one at home unless given. Homes go round the nodes.
        knows_rate: Whether the source knows what it would send.
        noise: Relative deviation of what comes in an interval.
        target_s: The latency that is wanted.
        queue_s: How much work may wait in an executor, in seconds of one core.
    """

    def __init__(
        self,
        nodes: Mapping[NodeId, int],
        work: Mapping[str, float],
        *,
        cores: Mapping[str, Mapping[NodeId, int]] | None = None,
        knows_rate: bool = False,
        noise: float = 0.0,
        target_s: float = 0.05,
        queue_s: float = 0.1,
        seed: int = 1,
        name: str = "t",
    ) -> None:
        self.nodes = dict(nodes)
        self.work = {Peer(f"{name}.{who}"): amount for who, amount in work.items()}
        order = sorted(nodes)
        self.homes = {who: order[at % len(order)] for at, who in enumerate(self.work)}
        given = {Peer(f"{name}.{who}"): dict(mine) for who, mine in (cores or {}).items()}
        self.cores = {who: given.get(who, {self.homes[who]: 1}) for who in self.work}
        self.now = 0.0
        self.plans: list[tuple[float, CorePlan]] = []
        self._queues = dict.fromkeys(self.work, 0.0)
        self._rng = np.random.default_rng(seed)
        self._knows_rate, self._noise = knows_rate, noise
        self._target_s, self._queue_s, self._name = target_s, queue_s, name

    def count(self, who: str) -> int:
        """How many cores an executor has on the nodes that are left."""
        mine = self.cores[Peer(f"{self._name}.{who}")]
        return sum(n for node, n in mine.items() if node in self.nodes)

    def look(self) -> TopologySeen:
        """Let an interval go by; returns what is to be seen of it."""
        self.now += LOOK_S
        offered = {
            who: amount * SERVICE_RATE * LOOK_S * self._chance()
            for who, amount in self.work.items()
        }
        able = {
            who: SERVICE_RATE * LOOK_S * sum(n for at, n in mine.items() if at in self.nodes)
            for who, mine in self.cores.items()
        }
        limit = self._queue_s * SERVICE_RATE
        free = min(
            (
                (limit - self._queues[who] + able[who]) / rows
                for who, rows in offered.items()
                if rows
            ),
            default=1.0,
        )
        free = min(1.0, max(0.0, free))
        seen = []
        for who, rows in offered.items():
            there = self._queues[who] + rows * free
            done = min(there, able[who])
            self._queues[who] = there - done
            metrics = measured(
                arrived=round(rows * free),
                processed=round(done),
                seconds=LOOK_S,
                cores=able[who] / SERVICE_RATE / LOOK_S,
                backlog_rows=round(there - done),
                state_bytes=1 << 20,
            )
            seen.append(ExecutorSeen(who, "count", self.homes[who], dict(self.cores[who]), metrics))
        total = sum(offered.values())
        known = total / LOOK_S if self._knows_rate else None
        sent = SourceSeen("s", LOOK_S, round(total * free), 1.0 - free, 0.0, known)
        return TopologySeen(self._name, (sent,), tuple(seen), {"count": ("s",)}, self._target_s)

    def round(self, scheduler: Scheduler) -> CorePlan | None:
        """Look, decide, and have the cores that were decided on."""
        seen = self.look()
        plan = scheduler.decide(self.now, self.nodes, [seen])
        self.carry_out(plan)
        return plan

    def carry_out(self, plan: CorePlan | None) -> None:
        """Have the cores of a plan."""
        if plan is not None:
            self.plans.append((self.now, plan))
            for who in plan.changed.keys() & self.cores.keys():
                self.cores[who] = dict(plan.cores[who])

    def rounds(self, scheduler: Scheduler, count: int) -> list[CorePlan | None]:
        return [self.round(scheduler) for _ in range(count)]

    def _chance(self) -> float:
        return max(0.0, 1.0 + self._noise * float(self._rng.standard_normal()))


def fits(plan: CorePlan, nodes: Mapping[NodeId, int]) -> None:
    """Everybody has a core, and nobody's own cores are more than a node has."""
    own: Counter[NodeId] = Counter()
    for who, cores in plan.cores.items():
        assert sum(cores.values()) >= 1, who
        assert all(count >= 1 for count in cores.values()), who
        assert cores.keys() <= nodes.keys(), who
        if who not in plan.shared:
            own.update(cores)
    for node, count in own.items():
        assert count <= nodes[node], node
    for who in plan.shared:
        assert list(plan.cores[who].values()) == [1], who
