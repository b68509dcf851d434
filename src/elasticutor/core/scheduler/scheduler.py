"""Who should have which cores (paper 4): measurements in, a plan out.

A round goes from demand (`core.scheduler.demand`) to numbers of cores (`core.scheduler.allocation`)
to the cores themselves (`core.scheduler.assignment`). Around these the scheduler keeps still as
long as it can:

- An executor keeps what it has while that lies between what its demand calls for and what it would
  call for with a reserve on top. Only below does it get more, only above does it give; but nobody
  gives for nothing where the reserve would take all cores there are.
- A change that gains less than a margin is not made. One that gains much is made at once, also
  between two rounds, if what was measured cannot be chance.
- After a change an executor is left alone for a cool-down, and so is one that is new, unless much
  is at stake, or others need what it has too much of.

What is gained is measured on what the allocation minimises: the expected latency, or, where the
demand exceeds the cores, the work per core of whoever has the most. Where executors outnumber
cores it is the work per core of the executor or node that has the most.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from heapq import heappop, heappush

from elasticutor.core.measure.measurements import ExecutorSeen, TopologySeen
from elasticutor.core.protocol.ids import NodeId, Peer
from elasticutor.core.scheduler.allocation import FULL, Allocation, Demand, Job, allocate
from elasticutor.core.scheduler.assignment import Assignment, Holding, assign, assign_naively
from elasticutor.core.scheduler.demand import HORIZON_S, Load, job_of, loads_of, offered_rate
from elasticutor.core.scheduler.queueing import network_sojourn_s, sojourn_s
from elasticutor.core.scheduler.sharing import seated
from elasticutor.errors import BadValueError

LOOK_S = 0.25
"""How often whoever drives a scheduler should have it decide, in seconds, or more often."""


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """How a scheduler behaves; every default is meant to be left alone."""

    interval_s: float = 1.0
    """How often it may make a change that can wait."""

    cooldown_s: float = 10.0
    """How long an executor whose cores have changed is left alone."""

    margin: float = 0.1
    """The gain below which nothing is changed, as a share."""

    urgent: float = 0.15
    """The gain from which a change waits neither for the next round nor for a cool-down."""

    settle_s: float = 1.5
    """How long after a plan nothing is urgent: shards on the move disturb what is measured."""

    reserve: float = 0.2
    """The share of its demand that an executor may keep cores for."""

    horizon_s: float = HORIZON_S
    """How soon a backlog should be gone."""

    phi: float = 512 * 1024.0
    """Bytes per second and core from which an executor counts as data-intensive (paper 4.2)."""

    gives_back: bool = False
    """Whether executors give up cores that nobody else needs, as the paper has it.

    Here a core that is given up stays idle, and giving it up moves shards for nothing.
    """

    naive: bool = False
    """Whether migration costs and locality are ignored (the paper's naive-EC)."""

    def __post_init__(self) -> None:
        for name in ("interval_s", "cooldown_s", "margin", "urgent", "settle_s", "reserve"):
            if not 0 <= getattr(self, name) < math.inf:
                raise BadValueError(name, "be finite and at least 0", getattr(self, name))
        for name in ("horizon_s", "phi"):
            if not getattr(self, name) > 0:
                raise BadValueError(name, "be more than 0", getattr(self, name))


@dataclass(frozen=True, slots=True)
class CorePlan:
    """The cores that every executor should have, and why."""

    cores: Mapping[Peer, Mapping[NodeId, int]]
    changed: Mapping[Peer, str]
    """The executors whose cores change, and why in words."""
    shared: frozenset[Peer]
    """Executors that have only a part of a core: its others have the rest."""
    gain: float
    """The share by which it lowers latency, or the largest work per core."""
    cost_bytes: float
    """State that has to move for it, by the paper's cost model."""
    phi: float
    """The threshold of data intensity that could be kept."""


@dataclass(slots=True)
class _Memory:
    """What is remembered of an executor from round to round."""

    work: float
    since: float
    """When it was first seen."""
    changed_at: float = -math.inf
    backlog: float = math.inf
    """The least that has waited since its cores changed, in cores' worth."""
    lowered_at: float = -math.inf
    """When that was."""


class Scheduler:
    """Decides how many cores every executor has, and which.

    It has no clock: whoever drives it calls `decide` with each new measurement, more often than
    every `interval_s`, and carries the plan out.
    """

    def __init__(self, config: SchedulerConfig | None = None) -> None:
        self.config = config or SchedulerConfig()
        self._memory: dict[Peer, _Memory] = {}
        self._entry_rates: dict[str, float] = {}
        self._round_at = self._planned_at = -math.inf

    def decide(
        self, now: float, nodes: Mapping[NodeId, int], topologies: Sequence[TopologySeen]
    ) -> CorePlan | None:
        """The plan for what was measured since the last call; None to leave everything as it is.

        Args:
            now: The time, never before that of an earlier call.
            nodes: The nodes that are there, and how many cores each has in all.
            topologies: All that run on them.

        Raises:
            BadValueError: There are no cores, or a measurement cannot be.
        """
        config = self.config
        cluster = _Cluster.seen(nodes, topologies)
        if not cluster.executors:
            return None
        loads: dict[Peer, Load] = {}
        entry_rates: dict[str, float] = {}
        for topology in topologies:
            loads |= loads_of(topology, config.horizon_s)
            offered = (offered_rate(source, config.horizon_s) for source in topology.sources)
            entry_rates[topology.name] = sum(offered)
        proposal = _Proposal(cluster, topologies, loads, entry_rates, config)
        settled = now - self._planned_at >= config.settle_s
        self._note_backlogs(now, loads)
        if now - self._planned_at < config.cooldown_s:
            settled = settled and not self._copes(now, cluster, topologies, loads)
        urgent = cluster.unplaced or (settled and proposal.certain_gain >= config.urgent)
        if urgent:
            self._remember(now, loads, entry_rates, weight=1.0)
        else:
            self._remember(now, loads, entry_rates, weight=_SMOOTHING)
            if now - self._round_at < config.interval_s * 0.99:
                return None
            smooth = self._smoothed(loads)
            proposal = _Proposal(cluster, topologies, smooth, self._entry_rates, config)
            urgent = settled and proposal.certain_gain >= config.urgent
        self._round_at = now
        if cluster.crowded:
            return self._share_out(now, proposal, urgent)
        return self._deal_out(now, proposal, urgent)

    def _note_backlogs(self, now: float, loads: Mapping[Peer, Load]) -> None:
        """Take note of whose backlog falls."""
        for who, load in loads.items():
            memory = self._memory.get(who)
            backlog = load.useful_work - load.coming_work
            if memory is not None and backlog < _LOWER * memory.backlog:
                memory.backlog, memory.lowered_at = backlog, now

    def _copes(
        self,
        now: float,
        cluster: _Cluster,
        topologies: Sequence[TopologySeen],
        loads: Mapping[Peer, Load],
    ) -> bool:
        """Whether all executors have cores enough for what comes, and only a backlog to work off.

        To deal the cores out again meanwhile would delay that. But cores may do less than was
        measured while they had less to do: who has enough of them, and yet a backlog that has not
        fallen for a while, does not cope.
        """
        if any(source.rate == math.inf for seen in topologies for source in seen.sources):
            return False
        for who, have in cluster.have.items():
            load, memory = loads[who], self._memory.get(who)
            if load.coming_work > FULL * have:
                return False
            backlog = load.useful_work - load.coming_work
            stuck = memory is not None and now - memory.lowered_at >= self.config.settle_s
            if stuck and backlog > _STUCK * have:
                return False
        return True

    def _remember(
        self,
        now: float,
        loads: Mapping[Peer, Load],
        entry_rates: Mapping[str, float],
        weight: float,
    ) -> None:
        """Take a measurement in, with so much weight against those before."""
        for who in self._memory.keys() - loads.keys():
            del self._memory[who]
        for who, load in loads.items():
            memory = self._memory.get(who)
            if memory is None:
                self._memory[who] = _Memory(load.useful_work, since=now)
            else:
                memory.work += weight * (load.useful_work - memory.work)
        before = self._entry_rates
        self._entry_rates = {
            name: before.get(name, rate) + weight * (rate - before.get(name, rate))
            for name, rate in entry_rates.items()
        }

    def _smoothed(self, loads: Mapping[Peer, Load]) -> dict[Peer, Load]:
        """The loads over the last few calls."""
        smooth: dict[Peer, Load] = {}
        for who, load in loads.items():
            work = self._memory[who].work
            certain = work * (load.certain_work / load.useful_work) if load.useful_work else 0.0
            smooth[who] = replace(load, useful_work=work, certain_work=certain)
        return smooth

    # Where there is a core for everybody

    def _deal_out(self, now: float, proposal: _Proposal, urgent: bool) -> CorePlan | None:
        cluster = proposal.cluster
        wanted = self._wanted(now, proposal, urgent)
        if wanted == cluster.have and not cluster.adrift:
            return None  # numbers as they are: locality alone is not worth a move
        assignment = _assigned(cluster, wanted, cluster.nodes, self.config)
        return self._plan(now, proposal, urgent, assignment, assignment.cores, frozenset())

    def _wanted(self, now: float, proposal: _Proposal, urgent: bool) -> dict[Peer, int]:
        """Numbers of cores: what is needed, or what an executor has if that is near enough."""
        config, cluster, need = self.config, proposal.cluster, proposal.need.cores
        wanted = dict(cluster.have)
        growing, giving = [], []
        worth_it = urgent or proposal.gain >= config.margin
        for who, have in cluster.have.items():
            memory = self._memory[who]
            left_alone = now - memory.changed_at < config.cooldown_s
            is_new = now - memory.since < config.cooldown_s
            if have < need[who]:
                if not have or (worth_it and (urgent or not left_alone)):
                    growing.append(who)
            elif config.gives_back and have > need[who] and not left_alone and not is_new:
                giving.append(who)
        roomy: Mapping[Peer, float] = {}
        if growing or giving:
            roomy = proposal.with_reserve().cores
            for who in growing:
                wanted[who] = int(max(need[who], roomy[who]))
            if sum(roomy.values()) < cluster.total:
                for who in giving:
                    wanted[who] = min(wanted[who], int(max(need[who], roomy[who])))
        over = sum(wanted.values()) - cluster.total
        if over > 0:
            _trim(wanted, need, roomy, cluster.have, over)
        return wanted

    # Where executors outnumber cores

    def _share_out(self, now: float, proposal: _Proposal, urgent: bool) -> CorePlan | None:
        config, cluster = self.config, proposal.cluster
        astray = cluster.adrift or urgent
        if not astray and proposal.gain < config.margin:
            return None
        layout = proposal.layout
        changing = (who for who, old in cluster.cores.items() if old != layout.cores[who])
        if not astray and any(
            now - self._memory[who].changed_at < config.cooldown_s for who in changing
        ):
            return None
        return self._plan(now, proposal, urgent, layout.assignment, layout.cores, layout.shared)

    def _plan(
        self,
        now: float,
        proposal: _Proposal,
        urgent: bool,
        assignment: Assignment,
        cores: Mapping[Peer, Mapping[NodeId, int]],
        shared: frozenset[Peer],
    ) -> CorePlan | None:
        cluster = proposal.cluster
        changed = [who for who, old in cluster.cores.items() if old != cores[who]]
        if not changed:
            return None
        self._planned_at = now
        for who in changed:
            memory = self._memory[who]
            memory.changed_at = memory.lowered_at = now
            memory.backlog = math.inf
        return CorePlan(
            cores,
            proposal.reasons(changed, cores, shared),
            shared,
            max(0.0, proposal.certain_gain if urgent else proposal.gain),
            assignment.cost_bytes,
            assignment.phi,
        )


_SMOOTHING = 0.5  # weight of the newest measurement
_LOWER = 0.95  # a backlog that is lower by less than this has not fallen
_STUCK = 0.1  # the backlog that is left alone, in cores' worth for each core


@dataclass(frozen=True, slots=True)
class _Cluster:
    """Who has which cores now."""

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
    def seen(cls, nodes: Mapping[NodeId, int], topologies: Sequence[TopologySeen]) -> _Cluster:
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


@dataclass(frozen=True, slots=True)
class _Layout:
    """Everybody's cores where executors outnumber them."""

    cores: Mapping[Peer, Mapping[NodeId, int]]
    shared: frozenset[Peer]
    assignment: Assignment
    strain: float


class _Proposal:
    """What a demand calls for, and how much better than now that would be.

    Everything is worked out when it is asked for: most calls end with all targets met.
    """

    def __init__(
        self,
        cluster: _Cluster,
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
        """How many cores everybody needs."""
        return allocate(self._jobs, self.cluster.total)

    def with_reserve(self) -> Allocation:
        """How many cores everybody would need with so much more to do."""
        more = 1 + self._config.reserve
        jobs = [
            replace(
                job,
                entry_rate=job.entry_rate * more,
                demands=tuple(
                    Demand(one.executor, one.arrival_rate * more, one.service_rate, one.most)
                    for one in job.demands
                ),
            )
            for job in self._jobs
        ]
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
    def layout(self) -> _Layout:
        """Who has cores of its own, and who shares them on its own node."""
        cluster, work = self.cluster, self._work
        homes = {who: seen.home for who, seen in cluster.executors.items()}
        seats, room, wholes = seated(cluster.nodes, homes, self.need.cores, work)
        assignment = _assigned(cluster, wholes, room, self._config)
        cores = {**assignment.cores, **{who: {node: 1} for who, node in seats.items()}}
        strain = _strain(work, cores, cluster.nodes)
        return _Layout(cores, frozenset(seats), assignment, strain)

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
        sojourn = sojourn_s(rate, demand.service_rate, cores, demand.variation)
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


def _trim(
    wanted: dict[Peer, int],
    need: Mapping[Peer, float],
    roomy: Mapping[Peer, float],
    have: Mapping[Peer, int],
    over: int,
) -> None:
    """Let those do with less who want more than they need, the largest surplus first.

    What an executor has beyond its reserve comes first, since it lies idle while another has a
    rush; then reserves that are not there yet; then those that an executor would have to give.
    """
    heap: list[tuple[int, float, Peer]] = []

    def push(who: Peer) -> None:
        surplus = need[who] - wanted[who]
        if surplus < 0:
            idle = who in roomy and wanted[who] > max(need[who], roomy[who])
            heappush(heap, (0 if idle else 1 + (wanted[who] <= have[who]), surplus, who))

    for who in wanted:
        push(who)
    for _ in range(over):
        *_, who = heappop(heap)
        wanted[who] -= 1
        push(who)


def _assigned(
    cluster: _Cluster,
    wanted: Mapping[Peer, int],
    room: Mapping[NodeId, int],
    config: SchedulerConfig,
) -> Assignment:
    holdings = []
    for who, count in wanted.items():
        seen = cluster.executors[who]
        metrics, cores = seen.metrics, cluster.cores[who]
        holdings.append(
            Holding(who, seen.home, cores, count, metrics.state_bytes, metrics.data_intensity)
        )
    if config.naive:
        return assign_naively(holdings, room)
    return assign(holdings, room, phi=config.phi)
