"""One checked run: the world of a scenario, and everything that is done to it.

`TopologyRun` and `QueryRun` add who drives the epochs; what is common to both is here: how long
things take, cores that come and go, moves that are asked for, losses.
"""

from __future__ import annotations

import random
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from elasticutor.core.protocol import events as ev
from elasticutor.core.protocol import instructions as do
from elasticutor.core.protocol.ids import NodeId, Peer, ShardId, TaskId
from elasticutor.errors import ProtocolError
from elasticutor.lab.check.oracle import Oracle
from elasticutor.lab.check.pipeline import ChainOperator, Expected, Row
from elasticutor.lab.check.scenario import Scenario
from elasticutor.lab.check.trace import Trace
from elasticutor.lab.check.world.durable import Durable
from elasticutor.lab.check.world.hosts import ExecutorHost, World
from elasticutor.lab.check.world.network import Address, Network
from elasticutor.lab.check.world.task_host import TaskHost
from elasticutor.lab.sim.clock import Clock

_LONGEST_S = 60.0  # of virtual time; a healthy run takes one or two
_MOST_CORES = 5


class CheckedRun(ABC):
    """A scenario being run; also the surroundings of its simulated processes."""

    def __init__(self, scenario: Scenario, trace: Trace | None = None) -> None:
        self.scenario = scenario
        self.rng = random.Random(scenario.seed + 1_000_003)
        self.clock = Clock()
        network = Network(self.clock, self.rng, self.delay_s)
        self.world = World(self.clock, network, Durable(), self)
        most = max(len(operator.downstream) for operator in scenario.operators)
        self.oracle = Oracle(self._largest_batch(), destinations=max(1, most))
        self.trace = trace
        self.published: list[Row] = []
        self.done = False
        self.turn = 0
        """What was begun in an earlier one is over: its driver is gone, or its batch abandoned."""
        self._nodes = [NodeId(f"n{n}") for n in range(scenario.nodes)]
        self._next_node = scenario.nodes
        self._incarnations = 0
        network.join(self.world.driver, self.driver_receives)
        for operator in scenario.operators:
            operator.complain = self.oracle.violate
        self.start_executors()

    @abstractmethod
    def start(self) -> None:
        """Let the sources flow."""

    @abstractmethod
    def driver_receives(self, sender: Address, message: Any) -> None:
        """Take a message to the driver in."""

    @abstractmethod
    def start_executors(self) -> None:
        """Start the main processes that there are from the beginning."""

    @abstractmethod
    def lose_main(self, host: ExecutorHost) -> None:
        """Lose a main process."""

    @abstractmethod
    def lose_task_of(self, host: ExecutorHost, task: TaskId) -> None:
        """Lose a task's process."""

    @abstractmethod
    def lose_everything_on(self, node: NodeId, successor: NodeId) -> None:
        """Lose a node with everything on it; another one takes its place."""

    @abstractmethod
    def lose_driver(self) -> None:
        """Lose everything that is not durable."""

    @abstractmethod
    def fail_something(self) -> None:
        """Let the attempt fail although nothing of the executors is lost."""

    @abstractmethod
    def expected(self) -> Expected:
        """What a sequential run comes to."""

    @abstractmethod
    def waiting_for(self) -> list[str]:
        """Why it does not go on, if it does not."""

    def execute(self) -> None:
        """Run to the end, and compare with the sequential run."""
        try:
            self.start()
            self._schedule_trouble()
            while self.clock.step():
                if self.clock.now > _LONGEST_S:
                    self.oracle.violate(f"stuck: {self._why_stuck()}")
                    return
                if self.oracle.violations:
                    return
            if not self.done:
                self.oracle.violate(f"stopped: {self._why_stuck()}")
                return
            self._check_end()
        except Exception:  # whatever the core raises unasked is what the checker is for
            self.oracle.violate(f"exception: {traceback.format_exc()}")

    def soon(self, delay_s: float, action: Callable[..., None], *args: Any) -> None:
        """Do something later, unless this turn is over by then."""
        self.clock.after(delay_s, self._in_turn, self.turn, action, *args)

    def _in_turn(self, turn: int, action: Callable[..., None], *args: Any) -> None:
        if turn == self.turn:
            action(*args)

    def _check_end(self) -> None:
        committed = {name: self.world.durable.state(name) for name in self.world.executors}
        hosts, operators = self.hosts_at_end(), self.scenario.operators
        self.oracle.check_end(hosts, operators, self.expected(), committed, self.published)

    def hosts_at_end(self) -> list[ExecutorHost]:
        """The main processes to be looked at when all is done."""
        return list(self.world.executors.values())

    def _why_stuck(self) -> str:
        hosts = self.world.executors.values()
        waits = [f"{host.name}: {'; '.join(host.core.waiting_for())}" for host in hosts]
        return " | ".join([*self.waiting_for(), *waits])

    def _largest_batch(self) -> int:
        """The most bytes that one message to an executor can have."""
        config = self.scenario.config
        copies = max(operator.copies for operator in self.scenario.operators)
        chunk_rows = config.max_chunk_rows + config.max_chunk_rows // 4
        rows = max(self.scenario.source_rows * 2, chunk_rows * copies)
        return self.scenario.operators[0].size(rows)

    # Surroundings

    def delay_s(self) -> float:
        """How long a message is under way."""
        usual = self.scenario.delay_s
        return usual * (20 if self.rng.random() < 0.01 else self.rng.uniform(0.1, 2.0))

    def startup_s(self) -> float:
        """How long a task's process takes to start."""
        return self.rng.uniform(0.001, 0.03)

    def service_s(self, host: TaskHost, rows: int) -> float:
        """How long a task works on a number of tuples."""
        return rows * self.scenario.row_s * self.rng.uniform(0.5, 2.0)

    def pause_s(self, host: TaskHost) -> float | None:
        """How soon a working task finds a label; None: only when its chunk is done."""
        if self.rng.random() < 0.2:
            return None
        return self.scenario.row_s * self.rng.choice((0.0, 1.0, 1.0, 5.0)) * self.rng.random()

    def storage_s(self) -> float:
        """How long the checkpoint location takes to read or write."""
        return self.rng.uniform(0.0005, 0.01) * (20 if self.rng.random() < 0.01 else 1)

    def storage_fails(self) -> bool:
        """Whether the checkpoint location refuses what is being written now."""
        fails = self.rng.random() < self.scenario.rates.write_fails
        self.oracle.counts["failed_writes"] += fails
        return fails

    def notice_s(self) -> float:
        """How long it takes until a loss is noticed."""
        return self.rng.uniform(0.0005, 0.02)

    def handled(
        self, host: ExecutorHost, event: ev.Event, instructions: list[do.Instruction]
    ) -> None:
        """An executor has handled an event."""
        if self.trace is not None:
            self.trace.handled(self.clock.now, host.name, event, instructions)
        self.oracle.handled(host, event, instructions)
        if isinstance(event, (ev.TaskLost, ev.NodeLost)):
            self.clock.after(self.notice_s(), self._replace_cores, host)

    def refused(self, host: ExecutorHost, message: Any, error: ProtocolError) -> None:
        """An executor has refused a message."""
        if self.trace is not None:
            self.trace.refused(self.clock.now, host.name, message, error)
        self.oracle.refused(host, message, error)

    def note(self, who: str, what: Any) -> None:
        """Write something else into the trace."""
        if self.trace is not None:
            self.trace.note(self.clock.now, who, what)

    # Executors and nodes

    def place_executor(
        self, name: Peer, operator: ChainOperator, node: NodeId, cores: Iterable[NodeId]
    ) -> ExecutorHost:
        """Start a main process on a node, with some cores."""
        host = ExecutorHost(
            self.world,
            name,
            self._incarnations,
            node,
            self.scenario.config,
            operator,
            self.scenario.slice_records,
        )
        self._incarnations += 1
        for core in cores:
            host.tell(ev.CoreGranted(core))
        self.clock.after(self.scenario.balance_s, self._balance, host)
        return host

    def place_anywhere(self, name: Peer, operator: ChainOperator) -> None:
        """Start a main process somewhere, with some cores."""
        home, nodes = self.rng.choice(self._nodes), self._nodes
        cores = (self.rng.choice(nodes) if n else home for n in range(self.scenario.cores))
        self.place_executor(name, operator, home, cores)

    def begin(self, name: Peer, begun: ev.AttemptBegun) -> None:
        """Pass the beginning of an attempt on to an executor, over the network."""
        host = self.world.executors[name]
        self.oracle.before_attempt(host, begun)
        self.world.network.send(self.world.driver, host.address, begun)

    def abort(self, reason: str) -> None:
        """Note that an attempt is given up."""
        self.note("driver", f"ABORT: {reason}")
        self.oracle.aborted(list(self.world.executors.values()))

    def _balance(self, host: ExecutorHost) -> None:
        if host.alive and not self.done:
            host.tell(ev.BalanceDue())
            self.clock.after(self.scenario.balance_s, self._balance, host)

    def _replace_cores(self, host: ExecutorHost) -> None:
        """Give an executor without a core another one, as a scheduler does."""
        if not host.staying:
            host.tell(ev.CoreGranted(self.rng.choice(self._nodes)))

    # Trouble

    def _schedule_trouble(self) -> None:
        rates = self.scenario.rates
        kinds: list[tuple[float, Callable[[], None]]] = [
            (rates.moves, self._ask_move),
            (rates.core_changes, self._change_cores),
            (rates.lost_tasks, self._lose_task),
            (rates.lost_nodes, self._lose_node),
            (rates.lost_executors, self._lose_executor),
            (rates.lost_drivers, self._lose_driver),
            (rates.failures, self._fail),
            (rates.slow_phases, self._slow_down),
        ]
        # All rates are meant for a run of this scenario's length, whatever that is in seconds.
        for rate, action in kinds:
            for _ in range(self._times(rate)):
                when = self.rng.uniform(0.0, self.scenario.length_s * 1.2)
                self.clock.at(when, self._unless_over, action)

    def _times(self, expected: float) -> int:
        whole = int(expected)
        return whole + (self.rng.random() < expected - whole)

    @property
    def over(self) -> bool:
        """Whether its processes end by themselves, so that no loss means anything any more."""
        return self.done

    def _unless_over(self, action: Callable[[], None]) -> None:
        if not self.over:
            action()

    def _some_executor(self) -> ExecutorHost | None:
        alive = [host for host in self.world.executors.values() if host.alive]
        return self.rng.choice(alive) if alive else None

    def _ask_move(self) -> None:
        host = self._some_executor()
        if host is not None and host.core.tasks:
            shard = ShardId(self.rng.randrange(self.scenario.config.shards))
            task = self.rng.choice(sorted(host.core.tasks))
            host.tell(ev.MoveAsked(shard, task))

    def _change_cores(self) -> None:
        host = self._some_executor()
        if host is None:
            return
        tasks = sorted(host.core.tasks)
        if len(tasks) < 2 or (len(tasks) < _MOST_CORES and self.rng.random() < 0.5):
            self.oracle.counts["cores_granted"] += 1
            host.tell(ev.CoreGranted(self.rng.choice(self._nodes)))
        else:
            self.oracle.counts["cores_taken"] += 1
            host.tell(ev.CoreTaken(self.rng.choice(tasks)))

    def _lose_task(self) -> None:
        host = self._some_executor()
        if host is not None and host.tasks:
            task = self.rng.choice(sorted(host.tasks))
            self.oracle.counts["lost_tasks"] += 1
            if self.rng.random() < 0.3:
                self.oracle.counts["suspected_tasks"] += 1
                self.note("fault", f"take task {task} of {host.name} for lost, though it lives")
                zombie = host.suspect_task(task, lives_on_s=self.rng.uniform(0.0, 1.0))
                zombie.slowness *= 10  # it was silent for long: that is why it counts as lost
                # What it reads may change under its hands; that is no fault while it stays unseen.
                zombie.operator = replace(host.operator, complain=lambda text: None)
            else:
                self.note("fault", f"kill task {task} of {host.name}")
                self.lose_task_of(host, task)

    def _lose_node(self) -> None:
        node = self.rng.choice(self._nodes)
        self.oracle.counts["lost_nodes"] += 1
        self.note("fault", f"kill node {node}")
        self._nodes.remove(node)
        successor = NodeId(f"n{self._next_node}")
        self._nodes.append(successor)
        self._next_node += 1
        before = [host for host in self.world.executors.values() if host.alive]
        self.oracle.counts["lost_executors"] += sum(host.node == node for host in before)
        self.lose_everything_on(node, successor)

    def _lose_executor(self) -> None:
        host = self._some_executor()
        if host is not None:
            self.oracle.counts["lost_executors"] += 1
            self.note("fault", f"kill the main process of {host.name}")
            self.lose_main(host)

    def _lose_driver(self) -> None:
        self.oracle.counts["lost_drivers"] += 1
        self.note("fault", "kill the driver and everything with it")
        self.lose_driver()

    def _fail(self) -> None:
        self.oracle.counts["failures"] += 1
        self.fail_something()

    def _slow_down(self) -> None:
        host = self._some_executor()
        if host is not None and host.tasks:
            task = host.tasks[self.rng.choice(sorted(host.tasks))]
            task.slowness = self.rng.choice((5.0, 30.0))
            self.clock.after(0.05, setattr, task, "slowness", 1.0)
