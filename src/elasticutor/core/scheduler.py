"""Who should have which cores (paper 4): measurements in, a plan out.

A round goes from demand (`core.demand`) to numbers of cores (`core.allocation`) to the cores
themselves (`core.assignment`). Around these the scheduler keeps still as long as it can:

- An executor keeps what it has while that lies between what its demand calls for and what it would
  call for with a reserve on top. Only below does it get more, only above does it give.
- A change that gains less than a margin is not made; one that gains much is made at once, also
  between two rounds.
- After a change an executor is left alone for a cool-down, unless much is at stake.

What is gained is measured on what the allocation minimises: the expected latency, or, where the
demand exceeds the cores, the work per core of whoever has the most.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from elasticutor.core.allocation import Allocation, Demand, Job, allocate
from elasticutor.core.assignment import Assignment, Holding, assign, assign_naively
from elasticutor.core.demand import HORIZON_S, Load, job_of, loads_of
from elasticutor.core.ids import NodeId, Peer
from elasticutor.core.queueing import network_sojourn_s, sojourn_s
from elasticutor.core.seen import ExecutorSeen, TopologySeen
from elasticutor.errors import BadValueError


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

    reserve: float = 0.2
    """The share of its demand that an executor may keep cores for."""

    horizon_s: float = HORIZON_S
    """How soon a backlog should be gone."""

    phi: float = 512 * 1024.0
    """Bytes per second and core from which an executor counts as data-intensive (paper 4.2)."""

    naive: bool = False
    """Whether migration costs and locality are ignored (the paper's naive-EC)."""

    def __post_init__(self) -> None:
        for name in ("interval_s", "cooldown_s", "margin", "urgent", "reserve"):
            if not 0 <= getattr(self, name) < math.inf:
                raise BadValueError(name, "be finite and at least 0", getattr(self, name))
        for name in ("horizon_s", "phi"):
            if not getattr(self, name) > 0:
                raise BadValueError(name, "be more than 0", getattr(self, name))


@dataclass(frozen=True, slots=True)
class Plan:
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
    changed_at: float = -math.inf


class Scheduler:
    """Decides how many cores every executor has, and which.

    It has no clock: whoever drives it calls `decide` with each new measurement, more often than
    every `interval_s`, and carries the plan out.
    """

    def __init__(self, config: SchedulerConfig | None = None) -> None:
        self.config = config or SchedulerConfig()
        self._memory: dict[Peer, _Memory] = {}
        self._round_at = -math.inf

    def decide(
        self, now: float, nodes: Mapping[NodeId, int], topologies: Sequence[TopologySeen]
    ) -> Plan | None:
        """The plan for what was measured since the last call; None to leave everything as it is.

        Args:
            now: The time, never before that of an earlier call.
            nodes: The nodes that are there, and how many cores each has in all.
            topologies: All that run on them.

        Raises:
            BadValueError: There are no cores, or a measurement cannot be.
        """
        executors = {seen.name: seen for topology in topologies for seen in topology.executors}
        if not executors:
            return None
        loads = {
            who: load
            for topology in topologies
            for who, load in loads_of(topology, self.config.horizon_s).items()
        }
        due = now - self._round_at >= self.config.interval_s * 0.99
        fresh = self._propose(nodes, topologies, executors, loads)
        urgent = fresh.gain >= self.config.urgent or fresh.unplaced
        smooth = self._smoothed(executors, loads, start_anew=urgent)
        if not urgent:
            if not due:
                return None
            fresh = self._propose(nodes, topologies, executors, smooth)
            urgent = fresh.gain >= self.config.urgent
        self._round_at = now
        wanted = self._wanted(now, fresh, executors, urgent)
        return self._plan(now, nodes, executors, fresh, wanted)

    # What the demand calls for

    def _smoothed(
        self, executors: Mapping[Peer, ExecutorSeen], loads: Mapping[Peer, Load], start_anew: bool
    ) -> dict[Peer, Load]:
        """The loads over the last few calls; from now only, where they have clearly changed."""
        smooth: dict[Peer, Load] = {}
        for who, load in loads.items():
            memory = self._memory.get(who)
            if memory is None:
                memory = self._memory[who] = _Memory(load.useful_work)
            elif start_anew:
                memory.work = load.useful_work
            else:
                memory.work += _SMOOTHING * (load.useful_work - memory.work)
            smooth[who] = replace(load, useful_work=memory.work)
        for who in self._memory.keys() - executors.keys():
            del self._memory[who]
        return smooth

    def _propose(
        self,
        nodes: Mapping[NodeId, int],
        topologies: Sequence[TopologySeen],
        executors: Mapping[Peer, ExecutorSeen],
        loads: Mapping[Peer, Load],
    ) -> _Proposal:
        total = sum(nodes.values())
        jobs = [job_of(topology, loads) for topology in topologies]
        need = allocate(jobs, total)
        have = {
            who: sum(count for node, count in seen.cores.items() if node in nodes)
            for who, seen in executors.items()
        }
        gain = max((_gain(job, have, need) for job in jobs), default=0.0)
        return _Proposal(jobs, loads, need, have, gain, total)

    def _wanted(
        self,
        now: float,
        proposal: _Proposal,
        executors: Mapping[Peer, ExecutorSeen],
        urgent: bool,
    ) -> dict[Peer, int]:
        """Numbers of cores: what is needed, or what an executor has if that is near enough."""
        config = self.config
        need, have = proposal.need.cores, proposal.have
        wanted: dict[Peer, int] = {}
        worth_it = urgent or proposal.gain >= config.margin or proposal.unplaced
        for who in executors:
            least = max(1, int(need[who]))
            memory = self._memory[who]
            work = proposal.loads[who].useful_work
            most = least + int((1 + config.reserve) * work) - int(work)
            cooling = now - memory.changed_at < config.cooldown_s and not urgent
            if not have[who]:
                wanted[who] = least
            elif cooling or (have[who] < least and not worth_it):
                wanted[who] = have[who]
            elif have[who] < least:
                wanted[who] = most
            else:
                wanted[who] = min(have[who], most)
        over = sum(wanted.values()) - proposal.total
        if over > 0 and not proposal.crowded:
            self._trim(wanted, need, over)
        return wanted

    def _trim(self, wanted: dict[Peer, int], need: Mapping[Peer, float], over: int) -> None:
        """Let those give who have more than they need, the largest surplus first."""
        for _ in range(over):
            who = max(wanted, key=lambda who: (wanted[who] - need[who], who))
            wanted[who] -= 1

    # Which cores

    def _plan(
        self,
        now: float,
        nodes: Mapping[NodeId, int],
        executors: Mapping[Peer, ExecutorSeen],
        proposal: _Proposal,
        wanted: Mapping[Peer, int],
    ) -> Plan | None:
        shared, room, wanted = _share(nodes, executors, proposal, wanted)
        holdings = [
            Holding(
                who,
                seen.home,
                dict(seen.cores),
                wanted[who],
                seen.metrics.state_bytes,
                seen.metrics.data_intensity,
            )
            for who, seen in executors.items()
            if who not in shared
        ]
        if all(
            holding.wanted == proposal.have[holding.executor] for holding in holdings
        ) and not any(_astray(executors[who], nodes) for who in executors):
            return None  # numbers as they are: locality alone is not worth a move
        assignment = _assigned(holdings, room, self.config)
        cores = {**assignment.cores, **{who: {executors[who].home: 1} for who in shared}}
        changed = {
            who: self._reason(seen, cores[who], proposal)
            for who, seen in executors.items()
            if dict(seen.cores) != dict(cores[who])
        }
        if not changed:
            return None
        for who in changed:
            self._memory[who].changed_at = now
        return Plan(
            cores,
            changed,
            frozenset(shared),
            proposal.gain,
            assignment.cost_bytes,
            assignment.phi,
        )

    def _reason(self, seen: ExecutorSeen, cores: Mapping[NodeId, int], proposal: _Proposal) -> str:
        work = proposal.loads[seen.name].useful_work
        old, new = sum(seen.cores.values()), sum(cores.values())
        job = next(job for job in proposal.jobs if _has(job, seen.name))
        what = f"{old} → {new} cores" if old != new else f"{new} cores, elsewhere"
        return f"{what}: {work:.2f} cores of work; {proposal.need.reason[job.name]}"


_SMOOTHING = 0.5  # weight of the newest measurement


@dataclass(frozen=True, slots=True)
class _Proposal:
    """What the demand calls for, and how much better than now that would be."""

    jobs: Sequence[Job]
    loads: Mapping[Peer, Load]
    need: Allocation
    have: Mapping[Peer, int]
    gain: float
    total: int

    @property
    def unplaced(self) -> bool:
        """Whether some executor has no core that is left."""
        return not all(self.have.values())

    @property
    def crowded(self) -> bool:
        """Whether there are more executors than cores."""
        return len(self.have) > self.total


def _gain(job: Job, have: Mapping[Peer, int], need: Allocation) -> float:
    """The share by which a job's latency, or its largest work per core, would fall."""
    if not any(demand.arrival_rate > 0 for demand in job.demands):
        return 0.0
    after = need.expected_s[job.name]
    if math.isfinite(after) and not job.all_at_once:
        before = _expected_s(job, have)
        if before <= job.target_s:
            return 0.0  # good enough, whatever could be better
        return 1.0 if math.isinf(before) else (before - after) / before
    worst_before = max(_work_per_core(demand, have[demand.executor]) for demand in job.demands)
    worst_after = max(_work_per_core(demand, need.cores[demand.executor]) for demand in job.demands)
    if math.isinf(worst_before):
        return 1.0
    return (worst_before - worst_after) / worst_before


def _expected_s(job: Job, have: Mapping[Peer, int]) -> float:
    stations = []
    for demand in job.demands:
        cores = have[demand.executor]
        if demand.arrival_rate <= 0:
            continue
        if not cores:
            return math.inf
        rate = demand.arrival_rate
        if demand.most is not None and cores >= demand.most:
            rate = min(rate, _NEARLY_FULL * cores * demand.service_rate)
        stations.append((rate, sojourn_s(rate, demand.service_rate, cores, demand.variation)))
    return network_sojourn_s(stations, job.entry_rate) if job.entry_rate > 0 else 0.0


_NEARLY_FULL = 0.99


def _work_per_core(demand: Demand, cores: float) -> float:
    if demand.arrival_rate <= 0:
        return 0.0
    if not cores:
        return math.inf
    return demand.arrival_rate / demand.service_rate / cores


def _has(job: Job, who: Peer) -> bool:
    return any(demand.executor == who for demand in job.demands)


def _astray(seen: ExecutorSeen, nodes: Mapping[NodeId, int]) -> bool:
    """Whether it has cores on a node that is gone."""
    return not set(seen.cores) <= set(nodes)


def _assigned(
    holdings: Sequence[Holding], room: Mapping[NodeId, int], config: SchedulerConfig
) -> Assignment:
    if config.naive:
        return assign_naively(holdings, room)
    return assign(holdings, room, phi=config.phi)


def _share(
    nodes: Mapping[NodeId, int],
    executors: Mapping[Peer, ExecutorSeen],
    proposal: _Proposal,
    wanted: Mapping[Peer, int],
) -> tuple[set[Peer], dict[NodeId, int], dict[Peer, int]]:
    """Who shares cores with others on its own node, the cores left to the rest, and their numbers.

    Only when executors outnumber cores; otherwise nobody does.
    """
    if not proposal.crowded:
        return set(), dict(nodes), dict(wanted)
    need = proposal.need.cores
    shared = {who for who in executors if need[who] < 1}
    wholes = {who: max(1, int(need[who])) for who in executors if who not in shared}
    while True:
        parts: Counter[NodeId] = Counter()
        for who in shared:
            parts[executors[who].home] += need[who]  # type: ignore[assignment]
        room = {
            node: cores - min(cores, max(1, round(parts[node]))) if node in parts else cores
            for node, cores in nodes.items()
        }
        over = sum(wholes.values()) - sum(room.values())
        if over <= 0:
            return shared, room, wholes
        rich = [who for who in wholes if wholes[who] > 1]
        if rich:
            who = min(rich, key=lambda w: (proposal.loads[w].useful_work / (wholes[w] - 1), w))
            wholes[who] -= 1
        else:
            who = min(wholes, key=lambda w: (proposal.loads[w].useful_work, w))
            del wholes[who]
            shared.add(who)
