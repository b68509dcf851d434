from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.runtime.live import started, wait_until

from elasticutor.core.measure.measurements import TopologySeen
from elasticutor.core.protocol.ids import NodeId, Peer
from elasticutor.core.scheduler.scheduler import CorePlan
from elasticutor.driver import scheduling
from elasticutor.driver.process_cluster import ProcessCluster
from elasticutor.driver.run import Run
from elasticutor.lab.bench.work import Emulate
from elasticutor.sinks import NoSink
from elasticutor.sources import Generator
from elasticutor.topology import Topology

pytestmark = pytest.mark.live


@pytest.fixture(scope="module")
def scheduled_cluster() -> Iterator[ProcessCluster]:
    with started(nodes=2, cores=3, schedule_s=0.25) as cluster:
        yield cluster


@pytest.fixture
def cluster(scheduled_cluster: ProcessCluster) -> Iterator[ProcessCluster]:
    yield scheduled_cluster
    for run in scheduled_cluster.runs:
        run.cancel()


def working(cores_worth: float, *, executors: int = 1, cores: int = 1) -> Topology:
    """An operator that needs so many cores, which sleep instead of working."""
    topology = Topology("working")
    cost_s = 0.01
    rate = cores_worth / cost_s
    stream = topology.source("gen", Generator(rate=rate, zipf=0.2, payload=0))
    made = topology.operator(
        "work", Emulate(cost_s), stream, key="key", executors=executors, cores=cores
    )
    topology.sink("out", NoSink(), made)
    return topology


def cores_of(run: Run, executor: int = 0) -> int:
    return sum(run.cores("work", executor).values())


def tasks_of(run: Run, executor: int = 0) -> int:
    return len(run.tasks("work", executor))


def test_an_executor_with_too_few_cores_gets_more_with_a_reason(cluster: ProcessCluster) -> None:
    run = cluster.submit(working(3.3))
    wait_until(lambda: tasks_of(run) >= 4, "four cores for 3.3 cores' worth of load")
    planned = run.events("cores planned")
    assert planned[0]["executor"] == "work.0"
    assert "1 → " in planned[0]["reason"]
    assert planned[0]["before"] == {"n0": 1}
    assert run.events("core granted")
    run.stop()


def test_cores_go_to_another_node_when_the_own_one_has_no_more(cluster: ProcessCluster) -> None:
    run = cluster.submit(working(4.4))
    wait_until(lambda: tasks_of(run) >= 5, "five cores, of two nodes")
    assert set(run.cores("work", 0)) == {"n0", "n1"}
    run.stop()


def test_cores_that_were_set_by_hand_are_left_alone_until_they_are_released(
    cluster: ProcessCluster,
) -> None:
    run = cluster.submit(working(2.3))
    run.set_cores("work", 0, 1)
    seen = len(run.timeline())
    wait_until(lambda: len(run.timeline()) > seen + 6, "a second and a half")
    assert cores_of(run) == 1
    run.release_cores("work", 0)
    wait_until(lambda: tasks_of(run) >= 3, "three cores after the release")
    run.cancel()


def test_a_run_without_a_target_keeps_its_cores(cluster: ProcessCluster) -> None:
    run = cluster.submit(working(2.3), latency_target=None)
    wait_until(lambda: len(run.timeline()) > 8, "two seconds")
    assert cores_of(run) == 1
    assert not run.events("cores planned")
    run.cancel()


def test_two_runs_share_the_cores_and_what_one_leaves_the_other_takes(
    cluster: ProcessCluster,
) -> None:
    first = cluster.submit(working(2.3))
    second = cluster.submit(working(9.0, cores=1))  # more than there are
    wait_until(lambda: tasks_of(first) + tasks_of(second) == 6, "all six cores in use")
    first.cancel()
    wait_until(lambda: tasks_of(second) == 6, "all six cores with the other")
    second.cancel()


def test_more_executors_than_cores_share_them(cluster: ProcessCluster) -> None:
    run = cluster.submit(working(1.0, executors=9))
    assert [cores_of(run, number) for number in range(9)] == [1] * 9
    metrics = run.metrics
    wait_until(lambda: metrics().rows_out > 200, "outputs of executors that share cores")
    run.stop()


def test_a_plan_whose_cores_never_become_free_is_given_up_and_the_next_one_is_made(
    cluster: ProcessCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduling, "GRANT_S", 0.5)
    run = cluster.submit(working(0.5), latency_target=None)
    scheduler = cluster._scheduler
    assert scheduler is not None
    (home,) = run.cores("work", 0)
    who = Peer(f"{run.id}/work.0")
    plan = CorePlan({who: {home: 9}}, {who: ""}, frozenset(), 1.0, 0.0, 1.0)
    before = {who: run.cores("work", 0)}
    seen = TopologySeen(run.id, (), (), {}, 0.1)
    cluster._hub.call(lambda: scheduler._begin(plan, {home: 9}, [seen], before))
    wait_until(lambda: run.events("plan dropped"), "the end of a plan that cannot be")
    assert "did not get its cores" in run.events("plan dropped")[0]["reason"]
    assert scheduler._carrying is None
    run.cancel()


def test_cores_set_by_hand_upstream_do_not_keep_the_next_operator_from_getting_its_own(
    cluster: ProcessCluster,
) -> None:
    topology = Topology("chain")
    stream = topology.source("gen", Generator(rate=230.0, zipf=0.2, payload=0))
    first = topology.operator("first", Emulate(0.001), stream, key="key")
    second = topology.operator("work", Emulate(0.01), first, key="key")
    topology.sink("out", NoSink(), second)
    run = cluster.submit(topology)
    run.set_cores("first", 0, 1)
    wait_until(lambda: tasks_of(run) >= 3, "three cores for 2.3 cores' worth of load")
    run.cancel()


def test_a_plan_that_was_overtaken_is_dropped_whole(cluster: ProcessCluster) -> None:
    run = cluster.submit(working(0.5, executors=2), latency_target=None)
    scheduler, hub = cluster._scheduler, cluster._hub
    assert scheduler is not None
    first, second = (Peer(f"{run.id}/work.{number}") for number in range(2))
    more = {first: {NodeId("n0"): 2}, second: {NodeId("n1"): 2}}
    plan = CorePlan(more, {first: "", second: ""}, frozenset(), 1.0, 0.0, 1.0)
    seen = TopologySeen(run.id, (), (), {}, 0.1)

    def dropped(nodes: dict[NodeId, int], before: dict[Peer, dict[NodeId, int]]) -> list[str]:
        known = len(run.events("plan dropped"))
        hub.call(lambda: scheduler._begin(plan, nodes, [seen], before))
        return [event["reason"] for event in run.events("plan dropped")[known:]]

    now = {first: run.cores("work", 0), second: run.cores("work", 1)}
    gone = {NodeId("n0"): 3, NodeId("gone"): 3}
    assert dropped(gone, now) == ["node 'gone' is gone"]
    older = {**now, second: {NodeId("n1"): 3}}
    assert dropped({NodeId("n0"): 3}, older) == ["the cores of work.1 have been changed"]
    assert [cores_of(run, number) for number in range(2)] == [1, 1]
    run.cancel()
    assert dropped({NodeId("n0"): 3}, now) == []  # its journal is closed
    assert not run.events("cores planned")
