"""Plans of the scheduler, carried out on a simulated cluster."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from elasticutor.core.measure.measurements import TopologySeen
from elasticutor.core.protocol.ids import NodeId, Peer
from elasticutor.core.scheduler.scheduler import CorePlan, Scheduler, SchedulerConfig
from elasticutor.lab.sim.cluster import SimulatedCluster
from elasticutor.lab.sim.experiment import Experiment
from elasticutor.lab.sim.model.machines import Machines
from elasticutor.lab.sim.report import report
from elasticutor.lab.sim.scheduling import SimulatedScheduling
from elasticutor.lab.sim.surge import Surge

N0, N1 = NodeId("n0"), NodeId("n1")
E0, E1 = Peer("e0"), Peer("e1")
TWO = Experiment(
    machines=Machines(nodes=2, cores=2),
    executors=2,
    shards=16,
    upstreams=2,
    keys=100,
    omega=0,
    rate=1000.0,
    seconds=2.0,
    warmup_s=0.0,
)
Cores = Mapping[Peer, Mapping[NodeId, int]]


class Scripted(Scheduler):
    """Makes one plan, at its first chance after a time, and remembers what was measured."""

    def __init__(self, at: float, cores: Cores) -> None:
        super().__init__(SchedulerConfig())
        self.at, self.cores = at, cores
        self.seen: list[tuple[float, TopologySeen]] = []

    def decide(
        self, now: float, nodes: Mapping[NodeId, int], topologies: Sequence[TopologySeen]
    ) -> CorePlan | None:
        assert nodes == {N0: 2, N1: 2}
        self.seen.append((now, topologies[0]))
        if now < self.at:
            return None
        self.at = math.inf
        why = dict.fromkeys(self.cores, "scripted")
        return CorePlan(self.cores, why, frozenset(), 1.0, 0.0, 1.0)


def carried_out(cores: Cores, experiment: Experiment = TWO) -> tuple[SimulatedCluster, Scripted]:
    """A run in which these cores are planned after a second; soon no node is overdrawn."""
    cluster = SimulatedCluster(experiment)
    assert cluster.scheduling is not None
    scheduler = Scripted(1.1, cores)  # its next look is at 1.25, and ours at 1.3
    hosts = {host.name: (host, cluster.placements[host.name].cores) for host in cluster.hosts}
    cluster.scheduling = SimulatedScheduling(
        cluster.world, hosts, cluster.upstreams, scheduler, 0.05
    )

    def look(_: float) -> None:
        for node in (N0, N1):
            assert sum(host.occupied[node] for host in cluster.hosts) <= 2

    cluster.run(look)
    return cluster, scheduler


def test_cores_change_hands_when_they_are_free() -> None:
    plan = {E0: {N0: 2, N1: 1}, E1: {N1: 1}}
    cluster, _ = carried_out(plan)
    assert {host.name: dict(+host.occupied) for host in cluster.hosts} == plan
    assert cluster.recorder.core_moves == 1
    # Shards followed: the new task has some, the old one is gone.
    first = cluster.hosts[0].core
    assert {task.node for task in first.tasks.values()} == {N0, N1}
    assert all(first.table.shards_of(task) for task in first.tasks)


def test_a_core_that_nobody_gets_stays_free() -> None:
    plan = {E0: {N0: 1}, E1: {N1: 2}}
    cluster, _ = carried_out(plan)
    assert {host.name: dict(+host.occupied) for host in cluster.hosts} == plan


def test_an_only_core_is_given_up_when_the_other_is_there() -> None:
    # At first each has its own node; then the first goes to the other's.
    cluster, _ = carried_out({E0: {N1: 1}, E1: {N1: 1}})
    assert dict(+cluster.hosts[0].occupied) == {N1: 1}
    assert set(cluster.hosts[0].core.homes) == {N1}


def test_executors_that_want_each_others_cores_change_places() -> None:
    """Neither can give first: for a moment they share."""
    cluster, _ = carried_out({E0: {N1: 2}, E1: {N0: 2}})
    assert {host.name: dict(+host.occupied) for host in cluster.hosts} == {E0: {N1: 2}, E1: {N0: 2}}


def test_the_scheduler_is_told_what_was_measured() -> None:
    cluster, scheduler = carried_out({})
    _, seen = scheduler.seen[-2]
    assert [executor.name for executor in seen.executors] == [E0, E1]
    assert [executor.home for executor in seen.executors] == [N0, N1]
    assert [dict(executor.cores) for executor in seen.executors] == [{N0: 2}, {N1: 2}]
    assert sum(source.rate or 0 for source in seen.sources) == 1000.0
    assert [source.seconds for source in seen.sources] == pytest.approx([0.25, 0.25])
    assert sum(source.rows for source in seen.sources) == pytest.approx(250, rel=0.3)
    for source in seen.sources:
        assert sum(source.routed.values()) == source.rows
    state = cluster.experiment.state_bytes * 16
    assert [executor.metrics.state_bytes for executor in seen.executors] == [state, state]


def test_a_source_without_a_rate_says_so() -> None:
    _, scheduler = carried_out({}, replace(TWO, rate=math.inf))
    assert {source.rate for source in scheduler.seen[-1][1].sources} == {math.inf}


# A surge ------------------------------------------------------------------------------------------

SURGE = replace(
    TWO,
    machines=Machines(nodes=4, cores=3),
    executors=4,
    keys=1000,
    shards=64,
    rate=2000.0,
    warmup_s=2.0,
    seconds=4.0,
    surge=Surge(1.0, 5.0, 1.0),
)


def test_a_surge_gets_its_cores_within_a_few_rounds_and_works_its_backlog_off() -> None:
    cluster = SimulatedCluster(SURGE)
    cluster.run()
    surged = report(cluster).surge
    assert surged is not None
    assert surged.rounds is not None
    assert surged.rounds <= 6
    assert surged.cores >= 5
    assert surged.cores_s <= surged.seconds < 3.0


def test_a_source_does_not_tell_of_a_surge_before_it_comes() -> None:
    cluster = SimulatedCluster(replace(SURGE, seconds=1.5))
    rates = []
    cluster.run(lambda now: rates.append((now, sum(u.rate for u in cluster.upstreams))))
    before = [rate for now, rate in rates if now < 2.95]
    after = [rate for now, rate in rates if 3.05 < now < 3.45]
    assert max(after) == min(after)
    assert min(after) - max(before) == pytest.approx(4000.0)


def test_a_static_executor_never_copes_with_a_surge() -> None:
    cluster = SimulatedCluster(replace(SURGE, paradigm="static", seconds=2.0))
    cluster.run()
    figures = report(cluster).as_dict()
    assert figures["surge_rounds"] is None
    assert figures["surge_s"] is None
