"""Drives the scheduler: a thread on the driver that looks, decides, and hands cores out.

It decides nothing itself: `core.scheduler.scheduler` makes the plan of what the driver's loop has
seen. A plan is carried out in that loop, cores that are given up first, and those that are
granted when they are really free. One that is overtaken by events (an executor's cores were set by
hand, a run or a node is gone) is dropped as a whole before it begins, and abandoned where it stands
after that: every executor then has the cores that its supervisor says it has.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from elasticutor.core.measure.measurements import ExecutorSeen, SourceSeen, TopologySeen
from elasticutor.core.measure.metrics import ExecutorMetrics
from elasticutor.core.paradigm import Paradigm
from elasticutor.core.protocol.ids import NodeId, Peer
from elasticutor.core.scheduler.plan_execution import GRANT_S, CoresInUse, PlanExecution
from elasticutor.core.scheduler.scheduler import LOOK_S, CorePlan, Scheduler, SchedulerConfig
from elasticutor.transport import messages as say

if TYPE_CHECKING:
    from elasticutor.driver.loop import DriverLoop
    from elasticutor.driver.supervisor import Supervisor

log = logging.getLogger(__name__)

_SHORTEST_S = 0.2
"""Less than this is too little to go by."""


_RECOUNT_S = 1.0
"""How often the cores of all executors are counted while a plan is carried out."""


class Interval:
    """What was measured of a run since the scheduler last looked."""

    def __init__(self) -> None:
        self._executors: dict[Peer, ExecutorMetrics] = {}
        self._sources: dict[Peer, list[say.SourceMeasured]] = {}

    def executor(self, message: say.Measured) -> None:
        """Add an executor's measurement."""
        before = self._executors.get(message.who)
        metrics = message.metrics
        self._executors[message.who] = metrics if before is None else before.then(metrics)

    def source(self, message: say.SourceMeasured) -> None:
        """Add a source task's measurement."""
        self._sources.setdefault(message.who, []).append(message)

    def complete(self, executors: Sequence[Peer], sources: Sequence[Peer]) -> bool:
        """Whether all participants were measured, for long enough to go by."""
        return (
            self._executors.keys() >= set(executors)
            and self._sources.keys() >= set(sources)
            and all(self._executors[who].seconds >= _SHORTEST_S for who in executors)
        )

    def take(self) -> tuple[dict[Peer, ExecutorMetrics], list[SourceSeen]]:
        """Everything since the last call."""
        sources = []
        for who, said in self._sources.items():
            seconds = sum(message.seconds for message in said)
            routed: Counter[Peer] = Counter()
            for message in said:
                routed.update(message.routed)
            blocked = sum(message.blocked_share * message.seconds for message in said)
            sources.append(
                SourceSeen(
                    who.rpartition(".")[0],
                    seconds,
                    sum(message.rows for message in said),
                    min(1.0, blocked / seconds) if seconds > 0 else 0.0,
                    said[-1].behind_s,
                    said[-1].rate,
                    {_named(said[0].run, peer): rows for peer, rows in routed.items()},
                )
            )
        executors, self._executors, self._sources = self._executors, {}, {}
        return executors, sources


@dataclass(slots=True)
class _Carrying:
    """A plan that is being carried out."""

    dealing: PlanExecution
    until: float
    nodes: frozenset[NodeId]
    shared: frozenset[Peer]
    in_use: CoresInUse
    version: int
    """The hub's `cores_version` up to which `in_use` was counted."""
    recount_at: float
    """When to count all executors again, with or without news of them."""


class CoreScheduler:
    """The scheduler of one cluster, for all of its runs."""

    def __init__(self, hub: DriverLoop, interval_s: float) -> None:
        self._hub = hub
        self._interval_s = interval_s
        self._schedulers = {
            paradigm: Scheduler(
                SchedulerConfig(interval_s=interval_s, naive=paradigm.assigns_naively)
            )
            for paradigm in Paradigm
            if paradigm.is_scheduled
        }
        self._carrying: _Carrying | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="elasticutor-scheduler", daemon=True)
        hub.staff_changed = self._staff_changed
        self._thread.start()

    def close(self) -> None:
        """Stop deciding; a plan under way stays where it is."""
        self._over.set()
        self._thread.join(5.0)

    def _run(self) -> None:
        look_s = min(LOOK_S, self._interval_s)
        while not self._over.wait(look_s):
            for paradigm, scheduler in self._schedulers.items():
                try:
                    self._round(paradigm, scheduler)
                except Exception:
                    if not self._over.is_set() and not self._hub.over:
                        log.exception("a round of the scheduler has failed")

    def _round(self, paradigm: Paradigm, scheduler: Scheduler) -> None:
        seen = self._hub.call(lambda: self._look(paradigm))
        if seen is None:
            return
        nodes, topologies = seen
        plan = scheduler.decide(time.monotonic(), nodes, topologies)
        if plan is not None:
            before = {
                executor.name: dict(executor.cores)
                for topology in topologies
                for executor in topology.executors
            }
            self._hub.call(lambda: self._begin(plan, nodes, topologies, before))

    # In the hub's thread

    def _scheduled(self, paradigm: Paradigm) -> list[Supervisor]:
        return [
            run
            for run in self._hub.runs.values()
            if run.paradigm is paradigm and run.latency_target is not None and run.has_settled
        ]

    def _look(self, paradigm: Paradigm) -> tuple[dict[NodeId, int], list[TopologySeen]] | None:
        """The nodes with the cores that may be dealt out, and what was measured; None: not yet."""
        self._go_on()  # also without news: a plan must not wait without end
        runs = self._scheduled(paradigm)
        if self._carrying is not None or not runs:
            return None
        if not all(run.interval.complete(run.executors, run.sources) for run in runs):
            return None
        nodes = {node: up.cores for node, up in self._hub.nodes.items()}
        for cores in self._others(runs):
            for node, count in cores.items():
                if node in nodes:
                    nodes[node] = max(0, nodes[node] - count)
        topologies = [self._seen(run) for run in runs]
        if not sum(nodes.values()):
            return None
        return nodes, topologies

    def _others(self, runs: Sequence[Supervisor]) -> Iterator[Mapping[NodeId, int]]:
        """The cores of executors that are not the scheduler's to deal out."""
        for run in self._hub.runs.values():
            if not run.is_over:
                for who, cores in run.cores.items():
                    if run not in runs or who in run.by_hand:
                        yield cores

    def _seen(self, run: Supervisor) -> TopologySeen:
        metrics, sources = run.interval.take()
        assert run.latency_target is not None
        return TopologySeen(
            run.run,
            tuple(sources),
            tuple(
                ExecutorSeen(
                    _named(run.run, who),
                    who.rpartition(".")[0],
                    run.home(who),
                    dict(run.cores[who]),
                    metrics[who],
                    fixed=who in run.by_hand,
                )
                for who in run.executors
            ),
            run.feeds,
            run.latency_target,
        )

    def _begin(
        self,
        plan: CorePlan,
        nodes: Mapping[NodeId, int],
        topologies: Sequence[TopologySeen],
        before: Mapping[Peer, Mapping[NodeId, int]],
    ) -> None:
        """Carry a plan out, unless something has happened since it was made."""
        overtaken = self._overtaken(plan, nodes, topologies, before)
        if overtaken:
            for topology in topologies:
                run = self._hub.runs.get(topology.name)
                if run is not None and not run.is_over:
                    run.journal.write("plan dropped", run=run.run, reason=overtaken)
            return
        for named, reason in plan.changed.items():
            name, who = _parts(named)
            run = self._hub.runs[name]
            run.journal.write(
                "cores planned",
                executor=who,
                before=dict(run.cores[who]),
                cores={node: count for node, count in plan.cores[named].items() if count},
                reason=reason,
                gain=round(min(plan.gain, 1.0), 4),
                state_bytes=round(plan.cost_bytes),
                phi=None if plan.phi == float("inf") else plan.phi,
            )
        shared = frozenset(plan.shared)
        dealing = PlanExecution({named: plan.cores[named] for named in plan.changed})
        self._carrying = _Carrying(
            dealing,
            time.monotonic() + GRANT_S,
            frozenset(nodes),
            shared,
            self._in_use(shared),
            self._hub.cores_version,
            time.monotonic() + _RECOUNT_S,
        )
        self._order(dealing.give_up(self._promised(dealing.waiting)))
        self._go_on()

    def _overtaken(
        self,
        plan: CorePlan,
        nodes: Mapping[NodeId, int],
        topologies: Sequence[TopologySeen],
        before: Mapping[Peer, Mapping[NodeId, int]],
    ) -> str:
        """What has happened since the plan was made, in words; empty if nothing."""
        gone = set(nodes) - self._hub.nodes.keys()
        if gone:
            return f"node {min(gone)!r} is gone"
        for topology in topologies:
            run = self._hub.runs.get(topology.name)
            if run is None or not run.is_running:
                return f"run {topology.name} is over"
        for named in plan.changed:
            name, who = _parts(named)
            run = self._hub.runs[name]
            if dict(run.cores[who]) != dict(before[named]) or who in run.by_hand:
                return f"the cores of {who} have been changed"
        return ""

    def _staff_changed(self, name: str, who: Peer) -> None:
        """A task of an executor has come or gone: grant what has become free by that."""
        if self._carrying is not None and self._count(self._carrying, name, who):
            self._go_on()

    def _go_on(self) -> None:
        """Grant what is free."""
        carrying = self._carrying
        if carrying is None:
            return
        if time.monotonic() > carrying.until or not carrying.nodes <= self._hub.nodes.keys():
            self._abandon(carrying)
            return
        for named in carrying.dealing.waiting:
            name, who = _parts(named)
            run = self._hub.runs.get(name)
            if run is None or not run.is_running or who in run.by_hand:
                carrying.dealing.forget(named)
        now = time.monotonic()
        if carrying.version != self._hub.cores_version or now >= carrying.recount_at:
            carrying.in_use = self._in_use(carrying.shared)
            carrying.version = self._hub.cores_version
            carrying.recount_at = now + _RECOUNT_S
        nodes = {node: up.cores for node, up in self._hub.nodes.items()}
        promised = self._promised(carrying.dealing.waiting)
        self._order(carrying.dealing.grant(promised, carrying.in_use, nodes))
        if carrying.dealing.done:
            self._carrying = None

    def _order(self, cores: Mapping[Peer, Mapping[NodeId, int]]) -> None:
        carrying = self._carrying
        for named, wanted in cores.items():
            name, who = _parts(named)
            up_to_date = carrying is not None and carrying.version == self._hub.cores_version
            self._hub.runs[name].set_cores(who, wanted)
            if carrying is not None and up_to_date:
                self._count(carrying, name, who)
                carrying.version = self._hub.cores_version

    def _promised(self, names: Sequence[Peer]) -> dict[Peer, Mapping[NodeId, int]]:
        """The cores that executors were ordered to have."""
        parts = ((named, *_parts(named)) for named in names)
        return {named: self._hub.runs[name].cores[who] for named, name, who in parts}

    def _in_use(self, shared: frozenset[Peer]) -> CoresInUse:
        """The cores that are promised or have a task on them, those about to leave included."""
        counted = CoresInUse(shared)
        for name, run in self._hub.runs.items():
            if not run.is_over:
                for who, cores in run.cores.items():
                    counted.set(_named(name, who), cores, _occupied(run, who))
        return counted

    def _count(self, carrying: _Carrying, name: str, who: Peer) -> bool:
        """Count an executor's cores again; returns whether some have become free."""
        run = self._hub.runs.get(name)
        if run is None or run.is_over or who not in run.cores:
            return False
        return carrying.in_use.set(_named(name, who), run.cores[who], _occupied(run, who))

    def _abandon(self, carrying: _Carrying) -> None:
        self._carrying = None
        for named in carrying.dealing.waiting:
            name, who = _parts(named)
            run = self._hub.runs.get(name)
            if run is not None and not run.is_over:
                reason = f"{who} did not get its cores within {GRANT_S:g} s"
                run.journal.write("plan dropped", run=name, reason=reason)


def _occupied(run: Supervisor, who: Peer) -> Counter[NodeId]:
    """The nodes that an executor has tasks on, those about to leave included."""
    return Counter(seen.node for seen in run.ledger.tasks(who).values())


def _named(run: str, who: Peer) -> Peer:
    """An executor's name among all runs of a cluster."""
    return Peer(f"{run}/{who}")


def _parts(named: Peer) -> tuple[str, Peer]:
    run, _, who = named.partition("/")
    return run, Peer(who)
