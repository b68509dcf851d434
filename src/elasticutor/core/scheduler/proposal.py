"""What a measured demand calls for, and what would be gained by it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from elasticutor.core.measure.measurements import ExecutorSeen, TopologySeen
from elasticutor.core.protocol.ids import NodeId, Peer
from elasticutor.core.scheduler.allocation import FULL, Allocation, Job, allocate
from elasticutor.core.scheduler.assignment import Assignment, Holding, assign, assign_naively
from elasticutor.core.scheduler.config import SchedulerConfig
from elasticutor.core.scheduler.demand import Load, job_of
from elasticutor.core.scheduler.queueing import network_sojourn_s, sojourn_s
from elasticutor.core.scheduler.sharing import seated


@dataclass(frozen=True, slots=True)
class CoresHeld:
    """The cores that executors have now, and those that there are."""

    nodes: Mapping[NodeId, int]
    total: int
    executors: Mapping[Peer, ExecutorSeen]
    cores: Mapping[Peer, Mapping[NodeId, int]]
    """Without zeros; those on nodes that are gone included."""
    have: Mapping[Peer, int]
    """How many of them are left."""
    crowded: bool
    """Whether there are more executors than cores."""
    unplaced: bool
    """Whether some executor has no core that is left."""
    adrift: bool
    """Whether some core is not there: its node is gone, or has fewer."""

    @classmethod
    def seen(cls, nodes: Mapping[NodeId, int], topologies: Sequence[TopologySeen]) -> CoresHeld:
        """What was measured of all executors whose cores the scheduler may change."""
        executors = {
            seen.name: seen
            for topology in topologies
            for seen in topology.executors
            if not seen.fixed
        }
        cores: dict[Peer, Mapping[NodeId, int]] = {}
        have: dict[Peer, int] = {}
        left = dict(nodes)
        lost = False
        for who, seen in executors.items():
            cores[who] = {node: count for node, count in seen.cores.items() if count}
            have[who] = 0
            for node, count in cores[who].items():
                if node in left:
                    left[node] -= count
                    have[who] += count
                else:
                    lost = True
        total = sum(nodes.values())
        crowded = len(executors) > total
        unplaced = not all(have.values())
        overdrawn = not crowded and min(left.values(), default=0) < 0
        adrift = lost or unplaced or overdrawn
        return cls(dict(nodes), total, executors, cores, have, crowded, unplaced, adrift)

    def assigned(
        self, wanted: Mapping[Peer, int], room: Mapping[NodeId, int], config: SchedulerConfig
    ) -> Assignment:
        """Which cores executors get, given their numbers and the cores of each node."""
        holdings = []
        for who, count in wanted.items():
            seen = self.executors[who]
            state, intensity = seen.metrics.state_bytes, seen.metrics.data_intensity
            holdings.append(Holding(who, seen.home, self.cores[who], count, state, intensity))
        if config.naive:
            return assign_naively(holdings, room)
        return assign(holdings, room, phi=config.phi)


@dataclass(frozen=True, slots=True)
class Layout:
    """The cores of all executors where these outnumber them."""

    cores: Mapping[Peer, Mapping[NodeId, int]]
    shared: frozenset[Peer]
    assignment: Assignment
    strain: float


class Proposal:
    """What a demand calls for, and how much better than now that would be.

    Everything is worked out when it is asked for: most calls end with all targets met.
    """

    def __init__(
        self,
        cluster: CoresHeld,
        topologies: Sequence[TopologySeen],
        loads: Mapping[Peer, Load],
        entry_rates: Mapping[str, float],
        config: SchedulerConfig,
    ) -> None:
        self.cluster = cluster
        self._loads = loads
        self._work = {who: load.useful_work for who, load in loads.items()}
        self._config = config
        self._jobs = [job_of(seen, loads, entry_rates[seen.name]) for seen in topologies]

    @cached_property
    def need(self) -> Allocation:
        """How many cores each executor needs."""
        return allocate(self._jobs, self.cluster.total)

    def with_reserve(self) -> Allocation:
        """How many cores each executor would need with the reserve on top."""
        more, jobs = 1 + self._config.reserve, []
        for job in self._jobs:
            demands = (replace(one, arrival_rate=one.arrival_rate * more) for one in job.demands)
            jobs.append(replace(job, entry_rate=job.entry_rate * more, demands=tuple(demands)))
        return allocate(jobs, self.cluster.total)

    @cached_property
    def gain(self) -> float:
        """The share by which latency, or the largest work per core, would fall."""
        return self._gain_with(self._work)

    @cached_property
    def certain_gain(self) -> float:
        """The same, with no more to do now than what cannot be chance."""
        return self._gain_with({who: load.certain_work for who, load in self._loads.items()})

    def _gain_with(self, work: Mapping[Peer, float]) -> float:
        if not self.cluster.crowded:
            return max(self._gain_of(job, work) for job in self._jobs)
        before = _strain(work, self.cluster.cores, self.cluster.nodes)
        if before * (1 + self._config.reserve) <= 1:
            return 0.0  # good enough, whatever could be better
        return _fall(before, self.layout.strain)

    def _gain_of(self, job: Job, work: Mapping[Peer, float]) -> float:
        have = self.cluster.have
        if not job.demands:
            return 0.0
        if not job.all_at_once:
            before = _expected_s(job, have, work)
            if before <= job.target_s:
                return 0.0  # good enough, whatever could be better
            after = self.need.expected_s[job.name]
            if after < math.inf:
                return _fall(before, after)
        need = self.need.cores
        return _fall(
            max(_per_core(work[one.executor], have[one.executor]) for one in job.demands),
            max(_per_core(self._work[one.executor], need[one.executor]) for one in job.demands),
        )

    @cached_property
    def layout(self) -> Layout:
        """Who has cores of its own, and who shares them on its own node."""
        cluster, work = self.cluster, self._work
        homes = {who: seen.home for who, seen in cluster.executors.items()}
        seats, room, wholes = seated(cluster.nodes, homes, self.need.cores, work)
        assignment = cluster.assigned(wholes, room, self._config)
        cores = {**assignment.cores, **{who: {node: 1} for who, node in seats.items()}}
        strain = _strain(work, cores, cluster.nodes)
        return Layout(cores, frozenset(seats), assignment, strain)

    def reasons(
        self,
        changed: Iterable[Peer],
        cores: Mapping[Peer, Mapping[NodeId, int]],
        shared: frozenset[Peer],
    ) -> dict[Peer, str]:
        """Why the cores of these executors change, in words."""
        why: dict[Peer, str] = {}
        for job in self._jobs:
            why |= dict.fromkeys((one.executor for one in job.demands), self.need.reason[job.name])
        reasons = {}
        for who in changed:
            old, new = sum(self.cluster.cores[who].values()), sum(cores[who].values())
            cores_word = "core" if new == 1 else "cores"
            what = f"{old} → {new} {cores_word}" if old != new else f"{new} {cores_word}, elsewhere"
            if who in shared:
                what += ", shared"
            reasons[who] = f"{what}: {self._work[who]:.2f} cores of work; {why[who]}"
        return reasons


def _fall(before: float, after: float) -> float:
    """The share by which something falls."""
    if math.isinf(before):
        return 0.0 if math.isinf(after) else 1.0
    return (before - after) / before if before > 0 else 0.0


def _per_core(work: float, cores: float) -> float:
    if cores:
        return work / cores
    return math.inf if work else 0.0


def _expected_s(job: Job, have: Mapping[Peer, int], work: Mapping[Peer, float]) -> float:
    """E[T] with the cores that executors have, and this to do."""
    stations = []
    for demand in job.demands:
        if demand.arrival_rate <= 0:
            continue
        cores, rate = have[demand.executor], work[demand.executor] * demand.service_rate
        if not cores:
            return math.inf
        if demand.most is not None and cores >= demand.most:
            cores = demand.most
            rate = min(rate, FULL * cores * demand.service_rate)  # as `allocate` sees it
        sojourn = sojourn_s(rate, demand.service_rate, cores)
        stations.append((demand.arrival_rate, sojourn))
    return network_sojourn_s(stations, job.entry_rate)


def _strain(
    work: Mapping[Peer, float],
    cores: Mapping[Peer, Mapping[NodeId, int]],
    nodes: Mapping[NodeId, int],
) -> float:
    """The work per core of the executor or the node that has the most.

    An executor's work lies evenly over its cores.
    """
    worst = 0.0
    on_node = dict.fromkeys(nodes, 0.0)
    for who, mine in cores.items():
        total = sum(mine.values())
        if len(mine) == 1 and total:  # most are like this
            (node,) = mine
            if node in on_node:
                on_node[node] += work[who]
                worst = max(worst, work[who] / total)
                continue
        if not mine.keys() <= nodes.keys():
            total = sum(count for node, count in mine.items() if node in nodes)
        each = _per_core(work[who], total)
        worst = max(worst, each)
        for node, count in mine.items():
            if node in on_node:
                on_node[node] += each * count
    return max(worst, max(_per_core(done, nodes[node]) for node, done in on_node.items()))
