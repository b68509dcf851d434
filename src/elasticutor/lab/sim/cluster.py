"""Builds and runs a simulated cluster: nodes, executors, sources, and a scheduler or a lead.

The objects of `core` decide, as they do live. What is simulated is time: of tuples on cores, of
messages on links, and of the processes that take them. No epochs end here: there is no checkpoint
in the paper's experiments.
"""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np

from elasticutor.core.executor.batch import ShardArray
from elasticutor.core.keys import executors_of, shards_of
from elasticutor.core.measure.pacing import PACE_S, USUAL_GAP_S
from elasticutor.core.protocol import events as ev
from elasticutor.core.protocol import repartition as rc
from elasticutor.core.protocol.ids import Epoch, Peer
from elasticutor.core.scheduler.placement import Placement, place
from elasticutor.core.scheduler.scheduler import Scheduler, SchedulerConfig
from elasticutor.lab.sim.clock import Clock
from elasticutor.lab.sim.experiment import Experiment
from elasticutor.lab.sim.model.elastic import ElasticHost
from elasticutor.lab.sim.model.processes import SimulatedWorld
from elasticutor.lab.sim.model.resource_centric import (
    RcHost,
    RcUpstream,
    SimulatedLead,
    TableRoutes,
)
from elasticutor.lab.sim.model.upstreams import ATTEMPT, Flow, Routes, Upstream
from elasticutor.lab.sim.recorder import BIN_S, Recorder
from elasticutor.lab.sim.scheduling import SimulatedScheduling
from elasticutor.lab.sim.surge import STEP_S, Surge, SurgeWatch
from elasticutor.lab.sim.workload import Arrivals, IntArray, KeySpace, KeyStream, shuffle_times

_SETTING_UP_S = 1.0
"""Before time 0, besides the start of the tasks."""


class SimulatedCluster:
    """One run; `run` may be called once. `clock` makes its clock, given when that begins."""

    def __init__(self, experiment: Experiment, *, clock: Callable[[float], Clock] = Clock) -> None:
        self.experiment = experiment
        machines = experiment.machines
        self.clock = clock(-_SETTING_UP_S - machines.startup_s)
        self.recorder = Recorder(experiment.warmup_s, self._cores)
        spawned = np.random.SeedSequence(experiment.seed).spawn(experiment.upstreams + 2)
        seeds = [np.random.default_rng(seed) for seed in spawned]
        self.world = SimulatedWorld(
            machines,
            self.clock,
            self.recorder,
            _work(experiment, seeds[0]),
            experiment.tuple_bytes,
            experiment.state_bytes,
        )
        self.space = KeySpace(experiment.keys, experiment.zipf, seeds[1])
        times = shuffle_times(experiment.omega, experiment.seconds)
        self.shuffles = [experiment.warmup_s + time for time in times]
        self.wall_s = 0.0
        self._path_before_s = 0.0
        self.placements = self._place()
        self.hosts = self._make_hosts()
        self.upstreams = self._make_upstreams(seeds[2:])
        self.scheduling = self._make_scheduling()
        self.lead = self._make_lead()
        self.surge = self._make_surge()

    # Putting together

    def _place(self) -> dict[Peer, Placement]:
        experiment, machines = self.experiment, self.experiment.machines
        count = experiment.executor_count
        digits = len(str(count - 1))
        each, more = divmod(machines.total, count)
        wants = [(Peer(f"e{number:0{digits}}"), each + (number < more)) for number in range(count)]
        return place(wants, dict.fromkeys(machines.names, machines.cores))

    def _make_hosts(self) -> list[ElasticHost]:
        self._owners, self._shards = self._tables()
        experiment, config = self.experiment, self.experiment.config
        hosts: list[ElasticHost] = []
        for number, (name, placed) in enumerate(self.placements.items()):
            mine = self._shards[self._owners == number]
            keys = np.bincount(mine, minlength=config.shards)
            shared = self.world, name, placed.node, config, keys
            if experiment.paradigm == "rc":
                shards = experiment.shard_count
                hosts.append(RcHost(*shared, shard_of_key=self._shards, shards=shards))
            else:
                hosts.append(ElasticHost(*shared))
        return hosts

    def _tables(self) -> tuple[IntArray, ShardArray]:
        """The executor and the shard of every key."""
        hashes, experiment = self.space.hashes, self.experiment
        owners = executors_of(hashes, experiment.executor_count)
        # Small numbers, so that a stable sort is a radix sort.
        small: IntArray = owners.astype(
            np.uint16 if experiment.executor_count <= 1 << 16 else np.uint32
        )
        return small, shards_of(hashes, experiment.shard_count)

    def _make_upstreams(self, seeds: list[np.random.Generator]) -> list[Upstream]:
        experiment = self.experiment
        digits = len(str(experiment.upstreams - 1))
        fixed = Routes(self._owners, self._shards)
        made: list[Upstream] = []
        for number, rng in enumerate(seeds):
            name, node = Peer(f"u{number:0{digits}}"), number % experiment.machines.nodes
            shared = self._flows(rng), experiment.message_rows
            if experiment.paradigm == "rc":
                route = rc.PausableRoute(
                    name, shards=experiment.shard_count, executors=len(self.hosts)
                )
                routes = TableRoutes(route, self._shards)
                made.append(RcUpstream(self.world, name, node, *shared, routes, self.hosts))
            else:
                made.append(Upstream(self.world, name, node, *shared, fixed, self.hosts))
        return made

    def _flows(self, rng: np.random.Generator) -> list[Flow]:
        experiment = self.experiment
        keys = KeyStream(self.space, rng)
        if math.isinf(experiment.rate):
            return [Flow(keys)]
        rate = experiment.rate / experiment.upstreams
        even = experiment.arrivals == "even"
        flows = [Flow(keys, Arrivals(rate, rng, end=experiment.end_s, even=even))]
        if experiment.surge is not None:
            flows += self._surge_flows(experiment.surge, rng)
        return flows

    def _surge_flows(self, surge: Surge, rng: np.random.Generator) -> Iterator[Flow]:
        """Yield what the first executor's keys get on top of their share, before and after."""
        experiment = self.experiment
        mine = np.flatnonzero(self._owners == 0)
        share = float(self.space.shares()[mine].sum())
        at = experiment.warmup_s + surge.at_s
        for level, start, end in ((surge.before, 0.0, at), (surge.after, at, experiment.end_s)):
            more = level / experiment.cost_s - experiment.rate * share
            if more > 0:
                rate = more / experiment.upstreams
                keys = KeyStream(self.space, rng, among=mine)
                even = experiment.arrivals == "even"
                yield Flow(keys, Arrivals(rate, rng, start=start, end=end, even=even))

    def _make_scheduling(self) -> SimulatedScheduling | None:
        experiment = self.experiment
        if experiment.one_core_each:
            return None
        naive = experiment.paradigm == "naive"
        scheduler = Scheduler(SchedulerConfig(interval_s=experiment.schedule_s, naive=naive))
        hosts = {host.name: (host, self.placements[host.name].cores) for host in self.hosts}
        target_s = experiment.latency_target_s
        return SimulatedScheduling(self.world, hosts, self.upstreams, scheduler, target_s)

    def _make_lead(self) -> SimulatedLead | None:
        if self.experiment.paradigm != "rc":
            return None
        hosts = [host for host in self.hosts if isinstance(host, RcHost)]
        upstreams = [upstream for upstream in self.upstreams if isinstance(upstream, RcUpstream)]
        over_s = self.experiment.schedule_s
        return SimulatedLead(self.world, self.experiment.shard_count, hosts, upstreams, over_s)

    def _make_surge(self) -> SurgeWatch | None:
        experiment, surge, first = self.experiment, self.experiment.surge, self.hosts[0]
        if surge is None:
            return None

        def backlog() -> int:
            cut = sum(upstream.cut[0] for upstream in self.upstreams)
            behind = max(upstream.behind_s() for upstream in self.upstreams)
            late = int(behind * surge.after / experiment.cost_s)
            return cut - first.processed + late

        def cores() -> int:
            return sum(task.running for task in first.core.tasks.values())

        return SurgeWatch(
            experiment.warmup_s + surge.at_s,
            math.ceil(surge.after),
            surge.after / experiment.cost_s * experiment.latency_target_s,
            cores,
            backlog,
            rounds=lambda: self.scheduling.rounds if self.scheduling else 0,
        )

    # Running

    def run(self, progress: Callable[[float], None] | None = None) -> None:
        """Run it to its end; an interrupted run can be reported on too.

        Args:
            progress: Called with the simulated seconds since the start, after every bin.
        """
        began = time.perf_counter()
        try:
            with _without_collector():
                self._start()
                self._run_bins(progress or (lambda seconds: None))
        finally:
            self.wall_s = time.perf_counter() - began

    def _start(self) -> None:
        """Have every task up and every executor ready at time 0, when the sources start."""
        for host in self.hosts:
            host.set_cores(dict(self.placements[host.name].cores))
        self.clock.run(-_SETTING_UP_S / 2)
        peers = tuple(upstream.name for upstream in self.upstreams)
        begun = ev.AttemptBegun(ATTEMPT, Epoch(0), Epoch(1), peers)
        for host in self.hosts:
            host.tell(begun)
        self.clock.run(0.0)
        assert all(host.ready for host in self.hosts)  # half a second is plenty
        for number, upstream in enumerate(self.upstreams):  # not all at the same moment
            upstream.start(USUAL_GAP_S * number / len(self.upstreams))
        self._start_clocks()
        for at in self.shuffles:
            self.clock.at(at, self.space.shuffle)

    def _start_clocks(self) -> None:
        if not math.isinf(self.experiment.rate):
            self.clock.at(PACE_S, self._pace)
        if self.surge is not None:
            self.clock.at(self.surge.at, self._watch_surge, self.surge)
        if self.lead is not None:
            self.clock.at(self.experiment.schedule_s, self._repartition, self.lead)
        if self.scheduling is not None:
            self.scheduling.start()
            every = self.experiment.balance_s
            for number, host in enumerate(self.hosts):  # not all at the same moment
                self.clock.at(every * (number + 1) / len(self.hosts), self._balance, host)

    def _pace(self) -> None:
        self.clock.after(PACE_S, self._pace)
        for cpus in self.world.cpus:
            cpus.pace(PACE_S)

    def _balance(self, host: ElasticHost) -> None:
        self.clock.after(self.experiment.balance_s, self._balance, host)
        host.tell(ev.BalanceDue())

    def _repartition(self, lead: SimulatedLead) -> None:
        self.clock.after(self.experiment.schedule_s, self._repartition, lead)
        lead.balance()
        if not lead.busy:
            for host in self.hosts:
                assert isinstance(host, RcHost)  # a lead has no others
                host.tell_loads()

    def _watch_surge(self, surge: SurgeWatch) -> None:
        if surge.look(self.clock.now):
            self.clock.after(STEP_S, self._watch_surge, surge)

    def _run_bins(self, progress: Callable[[float], None]) -> None:
        experiment = self.experiment
        warm = round(experiment.warmup_s / BIN_S)
        for number in range(1, warm + round(experiment.seconds / BIN_S) + 1):
            self.clock.run(number * BIN_S)
            self.recorder.close_bin(self.clock.now)
            if number == warm:
                self.recorder.start_measuring()
                self._path_before_s = self._path_s()
            progress(self.clock.now)

    # Looking

    def _cores(self) -> int:
        return sum(host.occupied.total() for host in self.hosts)

    def _path_s(self) -> float:
        return sum(cpus.path_s for cpus in self.world.cpus)

    @property
    def measured_path_s(self) -> float:
        """CPU time that messages have cost, of all processes, after the warm-up."""
        return self._path_s() - self._path_before_s


def _work(experiment: Experiment, rng: np.random.Generator) -> Callable[[int], float]:
    """Returns a function: how long this number of tuples takes."""
    cost_s = experiment.cost_s
    if not experiment.exponential:
        return lambda rows: rows * cost_s
    gamma = rng.standard_gamma
    return lambda rows: float(gamma(rows)) * cost_s


@contextmanager
def _without_collector() -> Iterator[None]:
    """Switch the collector off: a simulation makes no garbage in cycles."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
