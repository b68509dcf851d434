"""Runs the scheduler on the simulated cluster: measures, has a plan made, carries it out.

`core.scheduler.scheduler` decides. Cores that are given up come first, and those that are granted
follow when they are free.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from elasticutor.core.measure.measurements import ExecutorSeen, TopologySeen
from elasticutor.core.protocol import events as ev
from elasticutor.core.protocol.ids import NodeId, Peer
from elasticutor.core.scheduler.plan_execution import GRANT_S, CoresInUse, PlanExecution
from elasticutor.core.scheduler.scheduler import LOOK_S, CorePlan, Scheduler
from elasticutor.lab.sim.model.elastic import ElasticHost
from elasticutor.lab.sim.model.machines import HEADER_BYTES
from elasticutor.lab.sim.model.processes import SimulatedWorld
from elasticutor.lab.sim.model.upstreams import Upstream

_DRIVER = 0
"""The number of the node that the scheduler is on."""


class SimulatedScheduling:
    """Schedules the cores of all executors, each given with those that it starts with."""

    def __init__(
        self,
        world: SimulatedWorld,
        hosts: Mapping[Peer, tuple[ElasticHost, Mapping[NodeId, int]]],
        upstreams: Sequence[Upstream],
        scheduler: Scheduler,
        target_s: float,
    ) -> None:
        self._world = world
        self._hosts = {name: host for name, (host, _) in hosts.items()}
        self.cores = {name: dict(cores) for name, (_, cores) in hosts.items()}
        """What every executor has, or has been promised."""
        self.rounds = 0
        """How often the scheduler was called."""
        self._upstreams = upstreams
        self._scheduler = scheduler
        self._target_s = target_s
        self._room = dict.fromkeys(world.machines.names, world.machines.cores)
        self._execution = PlanExecution({})
        self._shared: frozenset[Peer] = frozenset()
        self._until = 0.0
        self._over = False
        self._look_s = min(LOOK_S, scheduler.config.interval_s)
        world.core_freed = self._go_on

    def start(self) -> None:
        """Look every interval from now on."""
        self._world.clock.after(self._look_s, self._look)

    def stop(self) -> None:
        """Make no more plans; executors keep the cores that they have."""
        self._over = True

    def _look(self) -> None:
        if self._over:
            return
        clock = self._world.clock
        clock.after(self._look_s, self._look)
        if not self._execution.done and clock.now < self._until:
            return  # a plan is being carried out
        self._execution = PlanExecution({})
        self.rounds += 1
        plan = self._scheduler.decide(clock.now, self._room, [self._seen()])
        if plan is not None:
            self._begin(plan)

    def _seen(self) -> TopologySeen:
        return TopologySeen(
            "sim",
            tuple(upstream.seen() for upstream in self._upstreams),
            tuple(self._measured(name, host) for name, host in self._hosts.items()),
            {"operator": ("source",)},
            self._target_s,
        )

    def _measured(self, name: Peer, host: ElasticHost) -> ExecutorSeen:
        shards = Counter(home for home in host.core.homes if home is not None)
        for node, count in shards.items():
            host.tell(ev.StateMeasured(node, count * self._world.shard_bytes))
        metrics = host.core.measure(self._world.clock.now)
        return ExecutorSeen(name, "operator", host.home, dict(self.cores[name]), metrics)

    def _begin(self, plan: CorePlan) -> None:
        self._until = self._world.clock.now + GRANT_S
        self._execution = PlanExecution({name: plan.cores[name] for name in plan.changed})
        self._shared = plan.shared
        self._order(self._execution.give_up(self.cores))
        self._go_on()

    def _go_on(self) -> None:
        """Grant what has become free."""
        if not self._execution.done:
            in_use = CoresInUse(self._shared)
            for name, host in self._hosts.items():
                in_use.set(name, self.cores[name], host.occupied)
            self._order(self._execution.grant(self.cores, in_use, self._room))

    def _order(self, orders: Mapping[Peer, dict[NodeId, int]]) -> None:
        now, send = self._world.clock.now, self._world.links.send
        for name, cores in orders.items():
            more = sum(max(0, n - self.cores[name].get(node, 0)) for node, n in cores.items())
            self._world.recorder.core_moves += more
            self.cores[name] = cores
            host = self._hosts[name]
            send(now, _DRIVER, host.node, HEADER_BYTES, host.set_cores, dict(cores))
