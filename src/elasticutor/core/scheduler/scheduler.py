"""Who should have which cores (paper 4): measurements in, a plan out.

A round goes from demand (`core.scheduler.demand`) to numbers of cores (`core.scheduler.allocation`)
to the cores themselves (`core.scheduler.assignment`). Around these the scheduler keeps still as
long as it can:

- An executor keeps what it has while that lies between what its demand calls for and what it would
  call for with a reserve on top. Only below does it get more, only above does it give; but none
  gives for nothing where the reserve would take all cores there are.
- A change that gains less than a margin is not made. One that gains much is made at once, also
  between two rounds, if what was measured cannot be chance.
- After a change an executor is left alone for a cool-down, and so is one that is new, unless much
  is at stake, or others need what it has too much of.

What is gained is measured on what the allocation minimises: the expected latency, or, where the
demand exceeds the cores, the most work per core that one has. Where executors outnumber
cores it is the work per core of the executor or node that has the most.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush

from elasticutor.core.measure.measurements import TopologySeen
from elasticutor.core.protocol.ids import NodeId, Peer
from elasticutor.core.scheduler.allocation import FULL
from elasticutor.core.scheduler.assignment import Assignment
from elasticutor.core.scheduler.config import SchedulerConfig
from elasticutor.core.scheduler.demand import Load, entry_rate, loads_of
from elasticutor.core.scheduler.proposal import CoresHeld, Proposal

__all__ = ["LOOK_S", "CorePlan", "Scheduler", "SchedulerConfig"]

LOOK_S = 0.25
"""How often to call `Scheduler.decide`, in seconds, or more often."""


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

    It has no clock: the caller calls `decide` with each new measurement, more often than
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
        """
        config = self.config
        cluster = CoresHeld.seen(nodes, topologies)
        if not cluster.executors:
            return None
        loads: dict[Peer, Load] = {}
        entry_rates: dict[str, float] = {}
        for topology in topologies:
            loads |= loads_of(topology, config.horizon_s)
            entry_rates[topology.name] = entry_rate(topology, config.horizon_s)
        proposal = Proposal(cluster, topologies, loads, entry_rates, config)
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
            proposal = Proposal(cluster, topologies, smooth, self._entry_rates, config)
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
        cluster: CoresHeld,
        topologies: Sequence[TopologySeen],
        loads: Mapping[Peer, Load],
    ) -> bool:
        """Whether all executors have cores enough for what comes, and only a backlog to work off.

        To deal the cores out again meanwhile would delay that. But cores may do less than was
        measured while they had less to do: an executor that has enough of them, and yet a backlog
        that has not fallen for a while, does not cope.
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

    # Where there is a core for each executor

    def _deal_out(self, now: float, proposal: Proposal, urgent: bool) -> CorePlan | None:
        cluster = proposal.cluster
        wanted = self._wanted(now, proposal, urgent)
        if wanted == cluster.have and not cluster.adrift:
            return None  # numbers as they are: locality alone is not worth a move
        assignment = cluster.assigned(wanted, cluster.nodes, self.config)
        return self._plan(now, proposal, urgent, assignment, assignment.cores, frozenset())

    def _wanted(self, now: float, proposal: Proposal, urgent: bool) -> dict[Peer, int]:
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

    def _share_out(self, now: float, proposal: Proposal, urgent: bool) -> CorePlan | None:
        config, cluster = self.config, proposal.cluster
        forced = cluster.adrift or urgent
        if not forced and proposal.gain < config.margin:
            return None
        layout = proposal.layout
        changing = (who for who, old in cluster.cores.items() if old != layout.cores[who])
        if not forced and any(
            now - self._memory[who].changed_at < config.cooldown_s for who in changing
        ):
            return None
        return self._plan(now, proposal, urgent, layout.assignment, layout.cores, layout.shared)

    def _plan(
        self,
        now: float,
        proposal: Proposal,
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
