"""Whole runs on small simulated clusters."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import zlib
from collections import defaultdict
from dataclasses import replace
from functools import cache
from itertools import pairwise
from statistics import fmean
from typing import Any

import numpy as np
import pytest

from elasticutor.core.executor.batch import Part
from elasticutor.core.measure.pacing import LEAST_GAP_S, MOST_GAP_S
from elasticutor.core.paradigm import PARADIGMS, ParadigmName
from elasticutor.core.protocol import events as ev
from elasticutor.core.protocol.ids import Peer
from elasticutor.lab.sim.clock import Action, Clock
from elasticutor.lab.sim.cluster import SimulatedCluster
from elasticutor.lab.sim.experiment import Experiment
from elasticutor.lab.sim.model.costs import Cost, Costs
from elasticutor.lab.sim.model.machines import Machines
from elasticutor.lab.sim.report import Report, report

SMALL = Experiment(
    machines=Machines(nodes=2, cores=4),
    executors=2,
    shards=64,
    upstreams=3,
    keys=300,
    zipf=0.8,
    omega=0,
    seconds=2.0,
    warmup_s=1.0,
)
DRAINED_S = 5.0


def finished(experiment: Experiment, **options: Any) -> SimulatedCluster:
    cluster = SimulatedCluster(experiment, **options)
    cluster.run()
    return cluster


@cache
def saturated(paradigm: ParadigmName) -> Report:
    """A run of each paradigm with all that it takes, and keys that are not shuffled."""
    return report(finished(replace(SMALL, paradigm=paradigm, warmup_s=3.0)))


# The same run every time --------------------------------------------------------------------------


class SealedClock(Clock):
    """Keeps a checksum over what it is asked for: when, in which order, and what."""

    seal = 0

    def at(self, time: float, action: Action, *args: Any) -> None:
        name = getattr(action, "__qualname__", "").encode()
        self.seal = zlib.crc32(struct.pack("<d", time) + name, self.seal)
        super().at(time, action, *args)


def test_a_seal_tells_runs_apart_by_time_order_and_action() -> None:
    def sealed(*times: float, to: Any = None) -> int:
        clock, log = SealedClock(), list[Any]()
        for time in times:
            clock.at(time, to or log.append, None)
        return clock.seal

    assert sealed(1.0, 2.0) == sealed(1.0, 2.0)
    assert len({sealed(1.0, 2.0), sealed(1.0, 2.5), sealed(2.0, 1.0), sealed(1.0, 2.0, to=id)}) == 4


@pytest.mark.parametrize("paradigm", PARADIGMS)
def test_equal_seeds_give_equal_runs_to_the_last_event(paradigm: ParadigmName) -> None:
    experiment = replace(SMALL, paradigm=paradigm, omega=120, seconds=0.7, exponential=True)
    seals, figures = [], []
    for seed in (7, 7, 8):
        cluster = finished(replace(experiment, seed=seed), clock=SealedClock)
        assert isinstance(cluster.clock, SealedClock)
        seals.append((cluster.clock.seal, cluster.clock.events))
        found = report(cluster).as_dict()
        figures.append({k: v for k, v in found.items() if not k.startswith("wall") and k != "seed"})
    assert seals[0] == seals[1] != seals[2]
    assert figures[0] == figures[1] != figures[2]


def test_a_run_does_not_depend_on_how_python_hashes_strings() -> None:
    words = "sim --nodes 2 --cores 3 --executors 2 --upstreams 2 --seconds 1 --warmup 1 --omega 60"
    outputs = [
        subprocess.run(
            [sys.executable, "-m", "elasticutor", *words.split(), "--rate", "4000", "--json"],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("1", "2")
    ]
    assert _without_wall_time(outputs[0]) == _without_wall_time(outputs[1])


def _without_wall_time(text: str) -> list[str]:
    return [line for line in text.splitlines() if "wall_s" not in line]


# Nothing is lost, and order is kept ---------------------------------------------------------------


class Watcher:
    """Notes every tuple that is done: its executor, source, key and time of birth."""

    def __init__(self, cluster: SimulatedCluster) -> None:
        self.births: dict[tuple[Peer, int], list[float]] = defaultdict(list)
        self.done = 0
        cluster.world.watch = self.watch

    def watch(self, executor: Peer, parts: list[Part]) -> None:
        for part in parts:
            content, source = part.batch.content, part.batch.upstream
            keys, births = content.keys[part.rows].tolist(), content.births[part.rows].tolist()
            self.done += len(keys)
            for key, birth in zip(keys, births, strict=True):
                self.births[source, key].append(birth)


@pytest.mark.parametrize("paradigm", PARADIGMS)
def test_every_tuple_is_done_once_and_in_order_whatever_moves(paradigm: ParadigmName) -> None:
    experiment = replace(SMALL, paradigm=paradigm, omega=90, rate=6000.0, zipf=1.0)
    cluster = SimulatedCluster(experiment)
    watcher = Watcher(cluster)
    cluster.run()
    if cluster.scheduling is not None:
        cluster.scheduling.stop()
    cluster.clock.run(experiment.end_s + DRAINED_S)
    cut = sum(sum(upstream.cut) for upstream in cluster.upstreams)
    assert cut == pytest.approx(experiment.rate * experiment.end_s, rel=0.05)
    assert watcher.done == cut == sum(host.processed for host in cluster.hosts)
    assert all(host.core.inside_rows == 0 for host in cluster.hosts)
    assert all(births == sorted(births) for births in watcher.births.values())
    moved = sum(one.shards for one in cluster.recorder.moved)
    assert (moved > 0) == (paradigm != "static")


@pytest.mark.parametrize("paradigm", PARADIGMS)
def test_what_is_cut_and_not_done_is_inside_or_under_way(paradigm: ParadigmName) -> None:
    cluster = finished(replace(SMALL, paradigm=paradigm, omega=30))
    for number, host in enumerate(cluster.hosts):
        cut = sum(upstream.cut[number] for upstream in cluster.upstreams)
        assert 0 <= host.core.inside_rows <= cut - host.processed
    assert all(host.core.starving() == [] for host in cluster.hosts)


def test_all_that_was_done_is_in_the_timeline() -> None:
    cluster = finished(SMALL)
    recorder = cluster.recorder
    done = sum(host.processed for host in cluster.hosts)
    assert sum(moment.throughput for moment in recorder.moments) / 10 == pytest.approx(done)
    assert sum(moment.throughput for moment in recorder.measured) / 10 == recorder.done
    assert recorder.latency.count == recorder.done
    assert len(recorder.measured) == 20


# What the paradigms are good for ------------------------------------------------------------------


def test_static_moves_nothing() -> None:
    static = saturated("static")
    assert (static.reassignments, static.core_moves, static.state_migrated_mb_s) == (0, 0, 0)
    assert all(moment.cores == 8 for moment in static.timeline)


def test_elastic_beats_static_at_saturation() -> None:
    static, elastic = saturated("static"), saturated("elastic")
    assert static.saturated
    assert elastic.saturated
    assert elastic.throughput > 1.2 * static.throughput
    assert elastic.throughput <= min(elastic.ideal, elastic.bound) * 1.05


def test_repartitioning_beats_static_and_takes_longer_to_synchronise_than_elastic() -> None:
    assert saturated("rc").throughput > 1.1 * saturated("static").throughput
    moving = replace(SMALL, omega=60)
    rc, elastic = (report(finished(replace(moving, paradigm=name))) for name in ("rc", "elastic"))
    assert rc.reassignments > 0
    assert rc.sync_ms_p50 > 2 * elastic.sync_ms_p50


@pytest.mark.parametrize("exponential", [False, True])
def test_cores_are_busy_for_as_long_as_tuples_cost(exponential: bool) -> None:
    # A static executor is not measured before the end.
    experiment = replace(SMALL, paradigm="static", rate=3000.0, exponential=exponential, zipf=0.0)
    cluster = finished(experiment)
    measured = [host.core.measure(cluster.clock.now) for host in cluster.hosts]
    rows = sum(metrics.rows_processed for metrics in measured)
    useful = sum(metrics.useful_s for metrics in measured)
    assert useful == pytest.approx(rows * experiment.cost_s, rel=0.05 if exponential else 1e-6)


# Latency ------------------------------------------------------------------------------------------

ONE_NODE = Machines(nodes=1, cores=2)
CALM = replace(SMALL, rate=60.0, upstreams=1, zipf=0.0, seconds=10.0)
FREE = Costs().times(0)
MESSAGES_MS = {"source": 0.107, "main": 2 * 0.054, "task": 0.075, "sink": 0.036}
"""What the messages of a lone tuple take: every process is asleep when they come."""


def calm(machines: Machines) -> Report:
    return report(finished(replace(CALM, machines=machines, executors=1)))


def test_latency_of_a_calm_run_is_the_work_and_the_messages() -> None:
    found = calm(ONE_NODE)
    assert found.latency_p50_ms == pytest.approx(1.0 + sum(MESSAGES_MS.values()), rel=0.01)
    assert not found.saturated


@pytest.mark.parametrize("role", ["source", "main", "task", "sink"])
def test_each_process_on_the_way_costs_what_its_messages_do(role: str) -> None:
    costs = replace(FREE, **{role: getattr(Costs(), role)})
    found = calm(replace(ONE_NODE, costs=costs))
    cost, messages = getattr(costs, role), 2 if role == "main" else 1
    assert found.latency_p50_ms - 1.0 == pytest.approx(MESSAGES_MS[role], rel=0.1)
    spent_ms = messages * (cost.wake_s + cost.message_s) * 1e3
    assert found.cpu_beyond_ms == pytest.approx(spent_ms, rel=0.03)


def test_messages_that_cost_nothing_leave_the_work_alone() -> None:
    found = calm(replace(ONE_NODE, costs=FREE))
    assert found.latency_p50_ms == pytest.approx(1.0, rel=0.005)
    assert found.cpu_beyond_ms == 0


def test_a_message_waits_for_the_process_that_takes_it() -> None:
    slow = replace(FREE, main=Cost(message_s=0.002))
    assert calm(replace(ONE_NODE, costs=slow)).latency_mean_ms > 5.0  # both of a tuple's messages


def test_a_busy_process_takes_more_messages_than_one_that_has_to_wake_up_for_each() -> None:
    calm, busy = (
        report(finished(replace(SMALL, machines=ONE_NODE, executors=1, rate=rate)))
        for rate in (60.0, 1900.0)
    )
    assert busy.cpu_beyond_ms < 0.7 * calm.cpu_beyond_ms


def packets(cluster: SimulatedCluster) -> list[int]:
    """How many tuples each message of the sources has."""
    found: list[int] = []
    for host in cluster.hosts:
        take = host.take

        def noting(message: Any, take: Any = take) -> None:
            if isinstance(message, ev.TuplesArrived):
                found.append(len(message.shards))
            take(message)

        host.take = noting  # type: ignore[method-assign]
    return found


@pytest.mark.parametrize(("rate", "gap_s"), [(1000.0, LEAST_GAP_S), (1880.0, MOST_GAP_S)])
def test_sources_send_what_is_due_as_often_as_the_machine_has_time(
    rate: float, gap_s: float
) -> None:
    experiment = replace(CALM, machines=ONE_NODE, executors=1, rate=rate, arrivals="even")
    cluster = SimulatedCluster(experiment)
    sent = packets(cluster)
    cluster.run()
    assert cluster.world.cpus[0].gap_s == gap_s
    # Tuples that are due in the gap after a packet wait for its end, together.
    assert fmean(sent[len(sent) // 2 :]) == pytest.approx(max(1.0, rate * gap_s), rel=0.05)


def test_a_source_that_was_stopped_goes_on_when_there_is_credit_again() -> None:
    flooded = replace(SMALL, rate=20_000.0, arrivals="even", zipf=0.0)
    cluster = finished(flooded)
    assert report(cluster).saturated
    assert report(cluster).throughput > 0.9 * flooded.ideal


def test_processes_that_share_the_cores_leave_less_of_them_to_tasks() -> None:
    machines = replace(ONE_NODE, costs=Costs().times(20))
    own, shared = (
        report(finished(replace(SMALL, machines=each, executors=1)))
        for each in (machines, replace(machines, shared_cpus=True))
    )
    assert shared.throughput < 0.9 * own.throughput
    beyond = shared.throughput * shared.cpu_beyond_ms / 1e3
    work = shared.throughput * SMALL.cost_s
    assert work + beyond == pytest.approx(2.0, rel=0.05)  # two CPUs, for everything


def test_a_remote_task_costs_latency_and_bytes() -> None:
    near = Machines(nodes=1, cores=2, latency_s=0.002)
    far = Machines(nodes=2, cores=1, latency_s=0.002)
    here, there = (
        report(finished(replace(CALM, machines=machines, executors=1))) for machines in (near, far)
    )
    assert here.remote_mb_s == 0
    assert there.remote_mb_s > 0
    # Half of the tuples go to the other node and come back.
    assert there.latency_mean_ms - here.latency_mean_ms == pytest.approx(2.0, abs=0.4)


def test_sources_that_cannot_send_what_is_due_are_reported() -> None:
    flooded = report(finished(replace(SMALL, rate=9000.0)))
    assert flooded.saturated
    assert flooded.latency_p99_ms > 100


# What else happens --------------------------------------------------------------------------------


def test_keys_are_shuffled_at_the_right_times() -> None:
    cluster = SimulatedCluster(replace(SMALL, omega=60, rate=100.0))
    tables = []
    cluster.run(lambda now: tables.append((round(now, 6), cluster.space.key_of_rank.copy())))
    changed = [
        now for (_, before), (now, after) in pairwise(tables) if not np.array_equal(before, after)
    ]
    assert cluster.shuffles == [1.5, 2.5]
    assert changed == [1.5, 2.5]


def test_state_that_moves_between_nodes_crosses_the_links() -> None:
    experiment = replace(SMALL, executors=1, omega=60, rate=5000.0, zipf=1.0)
    few, many = (
        report(finished(replace(experiment, state_bytes=size))) for size in (1024, 1024 * 1024)
    )
    assert few.state_migrated_mb_s > 0
    assert many.state_migrated_mb_s > 100 * few.state_migrated_mb_s
    assert many.sync_ms_p50 < 30  # the copy goes ahead of the pause


def test_an_executor_that_shares_a_node_never_has_more_cores_than_there_are() -> None:
    cluster = SimulatedCluster(replace(SMALL, omega=60, zipf=1.2))
    most = 0

    def look(now: float) -> None:
        nonlocal most
        for node in cluster.experiment.machines.names:
            most = max(most, sum(host.occupied[node] for host in cluster.hosts))

    cluster.run(look)
    assert most == 4


def test_a_shard_that_nobody_touches_moves_ahead_of_the_pause_with_nothing_left_to_send() -> None:
    machines = Machines(nodes=2, cores=1)
    cluster = finished(replace(CALM, machines=machines, executors=1, seconds=1.0))
    assert cluster.scheduling is not None
    cluster.scheduling.stop()
    host, clock = cluster.hosts[0], cluster.clock
    near, far = sorted(host.core.tasks)
    shard = host.core.table.shards_of(near)[0]
    host.tell(ev.MoveAsked(shard, far))
    clock.run(clock.now + 1.0)
    moved = cluster.recorder.moved[-1]
    assert host.core.table.owner(shard) == far
    assert moved.remote == 1
    assert moved.size == cluster.experiment.state_bytes
    assert moved.sync_s < 0.001  # the label and its answer, by a task that is asleep
    assert moved.migration_s < 0.001  # an order, an empty rest and a word that it is there
