"""Simulated main processes and the nodes' keepers, and what all processes of a world share.

They do what live processes do, and decide nothing: every decision is one of `core`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from elasticutor.core.executor.config import ExecutorConfig
from elasticutor.core.protocol import events as ev
from elasticutor.core.protocol import instructions as do
from elasticutor.core.protocol.ids import Attempt, NodeId, Peer, TaskId
from elasticutor.core.protocol.keeper import (
    CopyOn,
    DropOn,
    Errand,
    FoldOn,
    Keeper,
    ReadShard,
    SendSlice,
    WriteIncrement,
)
from elasticutor.errors import ProtocolError, StaleAttemptError
from elasticutor.lab.check.pipeline import ChainOperator, Row
from elasticutor.lab.check.world.durable import Durable
from elasticutor.lab.check.world.network import Address, Network
from elasticutor.lab.check.world.task_host import TaskHost
from elasticutor.lab.sim.clock import Clock
from elasticutor.lab.sim.core_host import CoreHost
from elasticutor.state.backend import MemoryBackend
from elasticutor.state.levels import Levels

if TYPE_CHECKING:  # a run has a world, and the world asks its run
    from elasticutor.lab.check.run import CheckedRun

_DRIVER = Address("driver")
_SINGLY = 4
"""Batches of up to this number of tuples arrive with a list of shards."""


@dataclass(frozen=True, slots=True)
class TuplesSent:
    """Tuples from an upstream, or outputs on their way back to it."""

    sender: Peer
    attempt: Attempt
    rows: list[Row]
    size: int


@dataclass(slots=True)
class World:
    """Everything that the simulated processes share."""

    clock: Clock
    network: Network
    durable: Durable
    surroundings: CheckedRun
    """Decides how long things take and what fails, and watches."""
    driver: Address = _DRIVER
    peers: dict[Peer, Address] = field(default_factory=dict)
    """Where upstreams, executors and sinks are now, by name."""
    executors: dict[Peer, ExecutorHost] = field(default_factory=dict)

    def send(self, source: Address, peer: Peer, message: Any) -> None:
        """Send to the process that has this name now."""
        address = self.peers.get(peer)
        if address is not None:
            self.network.send(source, address, message)

    def emit(self, name: Peer, source: Address, order: do.Emit | do.EmitMarker) -> None:
        """Send tuples or a marker of the process of this name to their destination."""
        message: TuplesSent | ev.MarkerArrived
        if isinstance(order, do.Emit):
            message = TuplesSent(name, order.attempt, order.batch, order.size)
        else:
            message = ev.MarkerArrived(name, order.attempt, order.epoch)
        self.send(source, order.destination, message)

    def lose_node(self, node: NodeId) -> None:
        """Lose a node with everything on it; main processes on it are lost as a whole."""
        for host in self.executors.values():
            if host.node == node:
                host.die()
            else:
                host.lose_node(node)


class ExecutorHost(CoreHost):
    """The main process of an elastic executor, with its tasks and keepers wherever they are."""

    def __init__(
        self,
        world: World,
        name: Peer,
        incarnation: int,
        node: NodeId,
        config: ExecutorConfig,
        operator: ChainOperator,
        slice_records: int,
    ) -> None:
        super().__init__(name, config, node, world.clock.now)
        self.world = world
        self.node = node
        self.operator = operator
        self.address = Address(f"{name}#{incarnation}")
        self.tasks: dict[TaskId, TaskHost] = {}
        self.keepers: dict[NodeId, KeeperHost] = {}
        self.alive = True
        self.slice_records = slice_records
        world.network.join(self.address, self.receive)
        world.peers[name] = self.address
        world.executors[name] = self

    def receive(self, sender: Address, message: Any) -> None:
        """Take a message in."""
        if isinstance(message, TuplesSent):
            shards = self.operator.shards_of(message.rows)
            # Few tuples go another way through the receiver than many; here both happen.
            few = shards.tolist() if len(shards) <= _SINGLY else shards
            peer, attempt, size = message.sender, message.attempt, message.size
            message = ev.TuplesArrived(peer, attempt, message.rows, few, size)
        self.tell(message)

    def tell(self, event: ev.Event) -> None:
        """Let the core handle an event, and carry its instructions out."""
        if not self.alive:
            return
        try:
            instructions = self.core.handle(event, self.world.clock.now)
        except ProtocolError as error:
            self.world.surroundings.refused(self, event, error)
            return
        self.world.surroundings.handled(self, event, instructions)
        self.carry_out(instructions)

    def to_task(self, order: Any) -> None:
        """Send to a task: chunks and all else on the same channel."""
        self._send(self._address_of(order.task), order)

    dispatch = to_task

    def to_store(self, order: Any) -> None:
        """Send to the keeper on a node, or have one there."""
        if isinstance(order, do.OpenStore):
            self.keepers[order.node] = KeeperHost(self, order)
        else:
            self._send(Address(f"{self.address}/{order.node}"), order)

    def grant(self, order: do.GrantCredit) -> None:
        """Send a credit to an upstream."""
        granted = ev.CreditGranted(self.name, order.attempt, order.total)
        self.world.send(self.address, order.upstream, granted)

    def emit(self, order: do.Emit | do.EmitMarker) -> None:
        """Send outputs or a marker to a destination."""
        self.world.emit(self.name, self.address, order)

    def report(self, order: do.ReportReady | do.ReportPrepared | do.ReportFailure) -> None:
        """Report to the driver."""
        self._send(self.world.driver, (self.name, order))

    def record(self, order: Any) -> None:
        """No-op: the surroundings see every instruction."""

    def _send(self, address: Address, message: Any) -> None:
        self.world.network.send(self.address, address, message)

    # Tasks

    def start_task(self, order: do.StartTask) -> None:
        """Start a task's process, which takes a while."""
        self.world.clock.after(self.world.surroundings.startup_s(), self._started, order)

    def _started(self, order: do.StartTask) -> None:
        keeper, task = self.keepers.get(order.node), order.task
        if self.alive and keeper is not None and task in self.core.tasks:
            self.tasks[task] = TaskHost(self, task, keeper, self._address_of(task))
            keeper.send(ev.TaskStarted(task))

    def _address_of(self, task: TaskId) -> Address:
        return Address(f"{self.address}/task-{task}")

    def stop_task(self, order: do.EndTask) -> None:
        """End a task's process."""
        if order.task in self.tasks:
            self.end_task(order.task)

    # Losses

    def lose_task(self, task: TaskId) -> None:
        """Kill a task's process, and notice it a little later."""
        self.end_task(task)
        self.world.clock.after(self.world.surroundings.notice_s(), self.tell, ev.TaskLost(task))

    def end_task(self, task: TaskId) -> None:
        """Kill a task's process."""
        self.tasks.pop(task).end()

    def suspect_task(self, task: TaskId, lives_on_s: float) -> TaskHost:
        """Take a task for lost that is not; it goes on for a while with the chunks that it has."""
        zombie = self.tasks.pop(task)
        self.world.clock.after(lives_on_s, zombie.end)
        self.tell(ev.TaskLost(task))
        return zombie

    def lose_node(self, node: NodeId) -> None:
        """Lose what this executor has on another node, and notice it a little later."""
        if self.end_store(node):
            notice_s = self.world.surroundings.notice_s()
            self.world.clock.after(notice_s, self.tell, ev.NodeLost(node))

    def end_store(self, node: NodeId) -> bool:
        """Kill what this executor has on another node; says whether there was anything."""
        keeper = self.keepers.pop(node, None)
        if keeper is None:
            return False
        keeper.end()
        for task, host in list(self.tasks.items()):
            if host.node == node:
                self.end_task(task)
        return True

    def die(self) -> None:
        """Lose the main process; its tasks and stores go with it."""
        self.alive = False
        self.world.network.leave(self.address)
        for task in self.tasks.values():
            task.end()
        for keeper in self.keepers.values():
            keeper.end()
        self.tasks.clear()
        self.keepers.clear()


class KeeperHost:
    """The process that keeps an executor's store on a node."""

    def __init__(self, executor: ExecutorHost, opened: do.OpenStore) -> None:
        self.executor = executor
        self.node = opened.node
        self.world = executor.world
        self.backend = MemoryBackend()
        slice_records = executor.slice_records
        self.store = Levels.create(
            self.backend,
            attempt=opened.attempt,
            committed=opened.committed,
            slice_records=slice_records,
        )
        self.core = Keeper(self.node, self.store, slice_records=slice_records)
        self.address = Address(f"{executor.address}/{self.node}")
        self.alive = True
        self.world.network.join(self.address, self.receive)

    def receive(self, sender: Address, message: Any) -> None:
        """Take an instruction or a slice of state in."""
        if isinstance(message, SendSlice):
            self._try(lambda: self.core.receive(message))
        else:
            self._run(self.core.handle(message))

    def send(self, message: Any) -> None:
        """Send to the main process."""
        self.world.network.send(self.address, self.executor.address, message)

    def end(self) -> None:
        """End the process."""
        self.alive = False
        self.world.network.leave(self.address)

    def _try(self, action: Callable[[], list[Errand]]) -> None:
        if self.alive:
            try:
                errands = action()
            except StaleAttemptError:
                return  # of a move that was given up
            self._run(errands)

    def _run(self, errands: list[Errand]) -> None:
        for errand in errands:
            self._carry_out(errand)

    def _carry_out(self, errand: Errand) -> None:
        after, storage = self.world.clock.after, self.world.surroundings.storage_s()
        match errand:
            case SendSlice(node=node):
                target = Address(f"{self.executor.address}/{node}")
                self.world.network.send(self.address, target, errand)
            case CopyOn() | FoldOn() | DropOn():
                after(storage / 4, self._try, lambda: self.core.go_on(errand))
            case WriteIncrement():
                after(storage, self._write, errand)
            case ReadShard():
                after(storage, self._try, lambda: self._read(errand))
            case _:
                self.send(errand)

    def _write(self, errand: WriteIncrement) -> None:
        if self.alive and self.world.surroundings.storage_fails():
            self.send(ev.AttemptFailed(errand.attempt, f"{self.node} cannot write its increment"))
        elif self.alive:
            name = self.executor.name
            changes = {shard: tuple(records) for shard, records in errand.shards.items()}
            self.world.durable.write(name, errand.epoch, errand.attempt, changes)
            self._run(self.core.written(errand))

    def _read(self, errand: ReadShard) -> list[Errand]:
        if errand.move not in self.core.moves_under_way:
            return []  # given up meanwhile, and the epoch may be no longer the newest
        records = self.world.durable.read(self.executor.name, errand.shard, errand.epoch)
        return self.core.restored(errand, records)
