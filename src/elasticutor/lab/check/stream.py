"""Checked runs of a continuous topology: the core's run lifecycle, and simulated processes.

What the driver decides is decided by the very object that the live driver has; here are the
processes that it starts, how they are lost, and how that is noticed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from elasticutor.core.paradigm import Paradigm
from elasticutor.core.protocol import coordinator as co
from elasticutor.core.protocol import events as ev
from elasticutor.core.protocol import instructions as do
from elasticutor.core.protocol.ids import NodeId, Peer, TaskId
from elasticutor.core.run import run_events as ru
from elasticutor.core.run import run_instructions as order
from elasticutor.core.run.epoch_cycle import EpochBase
from elasticutor.core.run.introductions import Introduction
from elasticutor.core.run.lifecycle import RunLifecycle
from elasticutor.core.run.participants import Roles
from elasticutor.core.run.phases import OVER, RunError, RunPhase, Terms
from elasticutor.core.scheduler.placement import Placement
from elasticutor.errors import OutOfOrderError
from elasticutor.lab.check.pipeline import SINK, Expected
from elasticutor.lab.check.run import CheckedRun
from elasticutor.lab.check.run_invariants import RunInvariants
from elasticutor.lab.check.scenario import Scenario
from elasticutor.lab.check.trace import Trace
from elasticutor.lab.check.world.ends import SinkHost, SourceHost
from elasticutor.lab.check.world.hosts import ExecutorHost
from elasticutor.lab.check.world.network import Address

_TICK_S = 0.5
_START_S = 10.0
_PATIENCE_S = 4.0
"""Longer than any answer takes here: only what hangs is late."""
_NODE_CORES = 6


@dataclass(slots=True)
class _Simulated:
    """A process of a participant, from when it is started until it is lost."""

    life: int
    end: Callable[[], None] | None = None
    """None as long as it is not up."""
    host: int | None = None
    """That of a source or a sink."""


class TopologyRun(CheckedRun):
    """A topology whose life the core decides about."""

    def __init__(self, scenario: Scenario, trace: Trace | None = None) -> None:
        super().__init__(scenario, trace)
        rng = self.rng
        self._operators = {name: op for op in scenario.operators for name in op.executor_names}
        self._inputs = {
            Peer(f"source-{n}"): (scenario.root_of(n), rows)
            for n, rows in enumerate(scenario.inputs)
        }
        last = [op for op in scenario.operators if not op.downstream]
        self._sink = SinkHost(self, [name for op in last for name in op.executor_names])
        self._upstreams = self._find_upstreams()
        self._roles = Roles(
            tuple(self._operators),
            tuple(self._inputs),
            (SINK,),
            tuple(self._find_groups()),
            tuple(f"host {n}" for n in range(rng.choice((1, 2)))),
        )
        ends_when_drained, restarts = rng.random() < 0.5, rng.choice((1, 2, 5))
        epoch_s, elastic = scenario.epoch_s, Paradigm.ELASTIC
        self._terms = Terms(
            elastic, None, ends_when_drained, _START_S, epoch_s, _PATIENCE_S, restarts
        )
        self._processes: dict[Peer, _Simulated] = {}
        self._book: dict[Peer, Address] = {}
        self._hosts_up: set[int] = set()
        self._writing: co.WriteManifest | None = None
        self._base = EpochBase(durable=True)
        self._submit()

    def start(self) -> None:
        """Submit the topology, and let time pass."""
        self.decide(ru.StartAsked())
        self._start_hosts(range(len(self._roles.host_names)))
        self._tick()

    def expected(self) -> Expected:
        """What a sequential run comes to."""
        expected = Expected()
        for root, rows in self._inputs.values():
            for row in rows:
                expected.take(root, row)
        return expected

    def waiting_for(self) -> list[str]:
        """Why it does not go on, if it does not."""
        return [f"run: {self._life.phase.value}: {self._life.missing()}"]

    def start_executors(self) -> None:
        """Do nothing: the run's life says when."""

    @property
    def over(self) -> bool:
        """Whether the run has begun to end its processes."""
        return self._life.phase in OVER

    # The driver

    def _submit(self) -> None:
        nodes = list(self._nodes)
        placements = {}
        for who in self._roles.executors:
            home = self.rng.choice(nodes)
            others = [self.rng.choice(nodes) for _ in range(self.scenario.cores - 1)]
            placements[who] = Placement(home, Counter([home, *others]))
        self._life = RunLifecycle(
            self._roles, placements, nodes, self._terms, self._base, free_cores=self._free_cores
        )
        self._invariants = RunInvariants(self._roles, self._terms, self.oracle.violate)

    def _free_cores(self) -> dict[NodeId, int]:
        there = self._life.participants
        used = Counter[NodeId]()
        for cores in there.cores.values():
            used.update(cores)
        return {node: _NODE_CORES - used[node] for node in sorted(there.nodes)}

    def decide(self, event: ru.RunEvent) -> None:
        """Let the core decide about an event, and carry its instructions out."""
        instructions = self._life.handle(event, self.clock.now)
        if not isinstance(event, ru.Tick) or instructions:
            self.note("driver", event)
        self._invariants.handled(event, instructions)
        for instruction in instructions:
            self._carry_out(instruction)

    def _later(self, event: ru.RunEvent, delay_s: float) -> None:
        """Let the driver learn of something, unless it is another one by then."""
        self.soon(delay_s, self._learn, event)

    def _learn(self, event: ru.RunEvent) -> None:
        self.decide(event)
        if self._life.phase in OVER and self._life.error is None:
            self._notice_at_the_end(event)

    def _notice_at_the_end(self, event: ru.RunEvent) -> None:
        """Let executors know what they have lost since the run ended, for the last look at them."""
        match event:
            case co.ProcessLost(who, _, task) if task is not None:
                self.world.executors[who].tell(ev.TaskLost(task))
            case ru.NodeLeft(node):
                for host in self.world.executors.values():
                    host.tell(ev.NodeLost(node))

    def driver_receives(self, sender: Address, message: Any) -> None:
        """Take a message to the driver in."""
        match message:
            case (name, do.ReportReady(attempt)):
                self.decide(co.ParticipantReady(name, attempt))
            case (name, do.ReportPrepared(attempt, epoch)):
                self.decide(co.ParticipantPrepared(name, attempt, epoch))
            case (name, do.ReportFailure(attempt, reason)):
                self.decide(co.ParticipantFailed(name, attempt, reason))
            case _:
                self.decide(message)

    def _tick(self) -> None:
        if not self.done:
            self.decide(ru.Tick())
            self.clock.after(_TICK_S, self._tick)

    def _carry_out(self, what: order.RunInstruction) -> None:
        self.note("driver", what)
        match what:
            case co.WriteManifest():
                self._writing = what
                self.clock.after(self.storage_s(), self._write_manifest, what)
            case co.BeginAttempt(who, attempt, base, epoch) if who in self._operators:
                self._begin(who, ev.AttemptBegun(attempt, base, epoch, *self._neighbours(who)))
            case co.CommitEpoch(who, attempt, epoch) if who in self._operators:
                self._send(who, ev.EpochCommitted(attempt, epoch))
            case co.BeginAttempt() | co.CommitEpoch() | co.StartSource() | co.EndEpoch():
                self._send(what.who, what)
            case order.ReportLoss(who, lost):
                self._send(who, lost)
            case order.Connect(who, address):
                self._book[who] = address
            case Introduction(_, whom):
                self.world.peers.update({who: self._book[who] for who in whom})
            case order.StartMain(who, life, placed):
                self._processes[who] = _Simulated(life)
                self.soon(self.startup_s(), self._main_up, who, life, placed)
            case order.StartOnHost(number, ends) if number in self._hosts_up:
                for who, life in ends:
                    self._processes[who] = _Simulated(life, host=number)
                    self.soon(self.startup_s(), self._end_up, who, life)
            case order.DropLife(who, life):
                self._book.pop(who, None)
                self._kill(who, life)
            case order.RestartHosts(numbers):
                self._start_hosts(numbers)
            case co.AssignCores(who, cores):
                self._assign(who, Counter(cores))
            case co.StopSending(who) | co.AskToRest(who) if who not in self._operators:
                self._send(who, what)  # behind what it was sent before, such as a commit
            case co.AskToRest(who):
                self._rest(who)
            case order.Wake(at):
                self._later(ru.Tick(), max(0.0, at - self.clock.now))
            case order.DiscardUncommitted(attempt) if attempt > self._base.attempt + 1:
                self.abort(f"attempt {attempt} begins")
            case order.EnterPhase(RunPhase.DRAINED) if not self._terms.end_when_drained:
                self._later(ru.EndAsked(), self.startup_s())
            case order.EndProcesses(hosts):
                self.done = self._life.error is None
                names = [self._roles.host_names[number] for number in hosts]
                for name in (*sorted(self._life.participants.nodes), *names):
                    self._later(co.PlaceCleared(name), self.startup_s())
            case order.CloseRun() if self._life.error is not None:
                self._run_failed()

    def _send(self, who: Peer, message: Any) -> None:
        address = self._book.get(who)
        if address is not None:
            self.world.network.send(self.world.driver, address, message)

    def _begin(self, who: Peer, begun: ev.AttemptBegun) -> None:
        host = self.world.executors.get(who)  # its process may have registered and hang
        if host is not None and host.address == self._book.get(who):
            self.begin(who, begun)

    def _assign(self, who: Peer, wanted: Counter[NodeId]) -> None:
        host = self.world.executors.get(who)
        if host is None:
            return
        for node in (wanted - Counter(host.staying.values())).elements():
            if node in self._nodes:
                host.tell(ev.CoreGranted(node))

    def _rest(self, who: Peer) -> None:
        """Answer when nothing is under way, unless the process is gone by then."""
        simulated = self._processes.get(who)
        if simulated is None or simulated.end is None:
            return
        if who in self._operators and self.world.executors[who].core.moves:
            self.soon(self.startup_s(), self._rest, who)
        else:
            rested = co.ParticipantRested(who)
            address = self._book.get(who, Address(""))
            self.world.network.send(address, self.world.driver, rested)

    # The manifest

    def _write_manifest(self, what: co.WriteManifest) -> None:
        if what is not self._writing:
            return  # its driver is gone
        self._writing = None
        error: Exception | None = None
        if self.rng.random() < self.scenario.rates.manifest_fails:
            error = RunError("storage", "take the manifest", "has no space left")
        else:
            self._make_durable(what)
        self.decide(ru.EpochStored(what.epoch, what.attempt, 0, error))

    def _make_durable(self, what: co.WriteManifest) -> None:
        for name in self._operators:
            self.world.durable.commit(name, what.epoch, what.attempt)
        self.world.durable.notes = what.notes
        self.oracle.counts["epochs"] += 1

    # Processes

    def _start_hosts(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            self.soon(self.startup_s(), self._host_up, number)

    def _host_up(self, number: int) -> None:
        self._hosts_up.add(number)
        self.decide(ru.HostUp(number))

    def _there(self, who: Peer, life: int) -> _Simulated | None:
        """The process, if nothing has happened to it since it was started."""
        simulated = self._processes.get(who)
        return simulated if simulated is not None and simulated.life == life else None

    def _main_up(self, who: Peer, life: int, placed: Placement) -> None:
        simulated = self._there(who, life)
        if simulated is None or placed.node not in self._nodes:
            return
        cores = [node for node in Counter(placed.cores).elements() if node in self._nodes]
        known = self.world.peers.get(who)
        host = self.place_executor(who, self._operators[who], placed.node, cores)
        self._not_yet_known(who, known)
        simulated.end = host.die
        self._register(who, life, host.address)

    def _end_up(self, who: Peer, life: int) -> None:
        simulated = self._there(who, life)
        if simulated is None or simulated.host not in self._hosts_up:
            return
        self._incarnations += 1
        if who == SINK:
            self._sink.come_back(self._incarnations)
            simulated.end = self._sink.end
        else:
            known = self.world.peers.get(who)
            source = SourceHost(self, who, self._incarnations, *self._inputs[who])
            self._not_yet_known(who, known)
            simulated.end = source.end
        self._register(who, life, Address(f"{who}#{self._incarnations}"))

    def _not_yet_known(self, who: Peer, known: Address | None) -> None:
        """Let others send to its old address until they are introduced to the new one."""
        self.world.peers.pop(who)
        if known is not None:
            self.world.peers[who] = known

    def _register(self, who: Peer, life: int, address: Address) -> None:
        up = ru.ParticipantUp(who, life, address)
        self.world.network.send(address, self.world.driver, up)

    def _kill(self, who: Peer, life: int) -> None:
        """End a process if it is still there; one that is only starting never comes up."""
        simulated = self._there(who, life)
        if simulated is not None:
            del self._processes[who]
            if simulated.end is not None:
                simulated.end()

    # Losses

    def lose(self, who: Peer, *, noticed: bool = True) -> None:
        """Lose a process; what watches it notices, unless it merely hangs."""
        simulated = self._processes.get(who)
        if simulated is None:
            return
        life = simulated.life
        self._kill(who, life)
        if noticed:
            self._later(co.ProcessLost(who, life, None, "was lost"), self.notice_s())
        if simulated.end is not None and self.rng.random() < 0.3:
            # Its registration has been under way for long.
            late = ru.ParticipantUp(who, life, Address(f"{who} is gone"))
            self._later(late, 2 * self.notice_s())

    def lose_main(self, host: ExecutorHost) -> None:
        """Lose a main process; its node notices, and that its tasks end with it."""
        simulated, tasks = self._processes.get(host.name), sorted(host.tasks)
        self.lose(host.name)
        if simulated is not None:
            for task in tasks:
                lost = co.ProcessLost(host.name, simulated.life, task, "was lost with it")
                self._later(lost, 2 * self.notice_s())

    def lose_task_of(self, host: ExecutorHost, task: TaskId) -> None:
        """Lose a task's process; its node notices."""
        host.end_task(task)
        simulated = self._processes.get(host.name)
        if simulated is not None:
            lost = co.ProcessLost(host.name, simulated.life, task, "was lost")
            self._later(lost, self.notice_s())

    def lose_everything_on(self, node: NodeId, successor: NodeId) -> None:
        """Lose a node; another one comes up later."""
        for host in self.world.executors.values():
            if host.node == node and host.alive:
                self.lose(host.name, noticed=False)
            else:
                host.end_store(node)
        noticed = self.notice_s()
        self._later(ru.NodeLeft(node, f"slot of {node}", "it was killed"), noticed)
        self._later(ru.NodeJoined(successor), noticed + self.startup_s())

    def _lose_host(self) -> None:
        if not self._hosts_up:
            return
        number = self.rng.choice(sorted(self._hosts_up))
        self.oracle.counts["lost_hosts"] += 1
        self._hosts_up.discard(number)
        for who, simulated in list(self._processes.items()):
            if simulated.host == number:
                self.lose(who, noticed=False)
        if self.rng.random() < 0.5:
            self._later(ru.HostLost(number, "killed"), self.notice_s())
        else:  # Spark starts its task again by itself
            self._start_hosts([number])

    def fail_something(self) -> None:
        """Lose a source, the sink, their host, or a message to the driver; or let one hang."""
        kind = self.rng.choice(("source", "source", "sink", "sink", "host", "message", "hang"))
        self.note("fault", f"lose a {kind}")
        match kind:
            case "source":
                who = self.rng.choice(self._roles.sources)
                self.oracle.counts["lost_sources"] += who in self._processes
                self.lose(who)
            case "sink":
                self.lose_sink()
            case "host":
                self._lose_host()
            case "message":
                lost = OutOfOrderError("message", "arrive", "nothing")
                self.decide(ru.MessageLost(lost))
            case "hang":
                self.oracle.counts["hanging"] += 1
                self.lose(self.rng.choice(self._life.participants.everybody), noticed=False)

    def lose_sink(self) -> None:
        """Lose the sink; its host notices."""
        self.oracle.counts["lost_sinks"] += SINK in self._processes
        self.lose(SINK)

    def lose_driver(self) -> None:
        """Lose the driver, and with it every process that it had started; another one comes.

        A manifest that was being written may have become durable or not. The system that the sink
        writes to stays.
        """
        if self._writing is not None and self.rng.random() < 0.5:
            self._make_durable(self._writing)
        self._submit_again("the driver was lost")

    def _run_failed(self) -> None:
        """Go on from what is committed, as a user does."""
        self.oracle.counts["failed_runs"] += 1
        self._submit_again(f"the run failed: {self._life.error}")

    def _submit_again(self, reason: str) -> None:
        self.abort(reason)
        self.turn += 1
        self._writing = None
        self.world.network.leave(self.world.driver)
        self.world.network.join(self.world.driver, self.driver_receives)
        for who, simulated in list(self._processes.items()):
            self._kill(who, simulated.life)
        self._book.clear()
        self._hosts_up.clear()
        durable = self.world.durable
        committed = durable.committed(self._roles.executors[0])
        assert self._life.epochs is not None  # a topology has epochs
        attempt = self._life.epochs.attempt
        self._base = EpochBase(True, committed, attempt, durable.notes)
        self._submit()
        self.decide(ru.StartAsked())
        self._start_hosts(range(len(self._roles.host_names)))

    # Who feeds whom

    def _find_upstreams(self) -> dict[Peer, tuple[Peer, ...]]:
        found: dict[Peer, list[Peer]] = {}
        for source, (root, _) in self._inputs.items():
            for name in root.executor_names:
                found.setdefault(name, []).append(source)
        for operator in self.scenario.operators:
            for follower in operator.downstream:
                for name in follower.executor_names:
                    found.setdefault(name, []).extend(operator.executor_names)
        return {name: tuple(upstreams) for name, upstreams in found.items()}

    def _neighbours(self, name: Peer) -> tuple[tuple[Peer, ...], tuple[Peer, ...]]:
        followers = [p for op in self._operators[name].downstream for p in op.executor_names]
        return self._upstreams[name], tuple(followers) or (SINK,)

    def _find_groups(self) -> Iterator[tuple[tuple[Peer, ...], tuple[Peer, ...]]]:
        for source, (root, _) in self._inputs.items():
            yield (source,), tuple(root.executor_names)
        for name in self._operators:
            upstreams, destinations = self._neighbours(name)
            yield (name,), (*upstreams, *destinations)
        yield (SINK,), tuple(n for n in self._operators if SINK in self._neighbours(n)[1])
