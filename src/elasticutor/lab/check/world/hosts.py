"""Simulated processes around the pure core: main processes, tasks and the nodes' keepers.

They do what the live runtime does, and decide nothing: every decision is one of `core`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from elasticutor.core.executor.batch import ShardArray
from elasticutor.core.executor.config import ExecutorConfig
from elasticutor.core.executor.executor import ElasticExecutor
from elasticutor.core.protocol import events as ev
from elasticutor.core.protocol import instructions as do
from elasticutor.core.protocol.ids import Attempt, Epoch, NodeId, Peer, ShardId, TaskId
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
from elasticutor.core.protocol.task import Task
from elasticutor.core.protocol.task_inbox import TaskInbox, Work
from elasticutor.errors import ProtocolError, StaleAttemptError
from elasticutor.lab.check.world.durable import Durable
from elasticutor.lab.check.world.kernel import Kernel
from elasticutor.lab.check.world.network import Address, Network
from elasticutor.state.backend import MemoryBackend
from elasticutor.state.cache import Codec, StateCache
from elasticutor.state.levels import Levels

Rows = Sequence[Any]
_SINGLY = 4
"""Batches of up to this number of tuples arrive with a list of shards."""


# What processes tell each other besides the core's own messages -----------------------------------


@dataclass(frozen=True, slots=True)
class TuplesSent:
    """Tuples from an upstream, or outputs on their way back to it."""

    sender: Peer
    attempt: Attempt
    rows: Rows
    size: int


@dataclass(frozen=True, slots=True)
class MarkerSent:
    """The end of an epoch."""

    sender: Peer
    attempt: Attempt
    epoch: Epoch


@dataclass(frozen=True, slots=True)
class CreditSent:
    """What the sender of this lets the other side send."""

    sender: Peer
    attempt: Attempt
    total: int


class CheckedOperator(Protocol):
    """User logic, and where its outputs go."""

    codec: Codec
    max_keys: int

    def shards_of(self, rows: Rows) -> ShardArray:
        """The shard of each tuple."""

    def process(self, cache: StateCache, shard: ShardId, row: Any, upstream: Peer) -> Rows:
        """Apply one tuple to the state; returns (destination, tuple) pairs."""

    def size(self, rows: int) -> int:
        """The bytes of so many tuples."""


class Surroundings(Protocol):
    """What decides how long things take, and who watches."""

    def startup_s(self) -> float:
        """How long a task's process takes to start."""

    def service_s(self, host: TaskHost, rows: int) -> float:
        """How long a task works on so many tuples."""

    def pause_s(self, host: TaskHost) -> float | None:
        """How soon a working task finds a label; None: only when its chunk is done."""

    def storage_s(self) -> float:
        """How long the checkpoint location takes to read or write."""

    def storage_fails(self) -> bool:
        """Whether the checkpoint location refuses what is being written now."""

    def notice_s(self) -> float:
        """How long it takes until a loss is noticed."""

    def handled(
        self, host: ExecutorHost, event: ev.Event, instructions: list[do.Instruction]
    ) -> None:
        """An executor has handled an event."""

    def refused(self, host: ExecutorHost, message: Any, error: ProtocolError) -> None:
        """An executor has refused a message."""


class World:
    """Everything that the simulated processes share."""

    def __init__(
        self, kernel: Kernel, network: Network, durable: Durable, surroundings: Surroundings
    ) -> None:
        self.kernel = kernel
        self.network = network
        self.durable = durable
        self.surroundings = surroundings
        self.driver = Address("driver")
        self.peers: dict[Peer, Address] = {}
        """Where upstreams, executors and sinks are now, by name."""
        self.executors: dict[Peer, ExecutorHost] = {}

    def send(self, source: Address, peer: Peer, message: Any) -> None:
        """Send to whoever has this name now."""
        address = self.peers.get(peer)
        if address is not None:
            self.network.send(source, address, message)

    def lose_node(self, node: NodeId) -> None:
        """Let a node be gone with everything on it; main processes on it are lost as a whole."""
        for host in self.executors.values():
            if host.node == node:
                host.die()
            else:
                host.lose_node(node)


class ExecutorHost:
    """The main process of an elastic executor, with its tasks and keepers wherever they are."""

    def __init__(
        self,
        world: World,
        name: Peer,
        incarnation: int,
        node: NodeId,
        config: ExecutorConfig,
        operator: CheckedOperator,
        *,
        slice_records: int = 256,
    ) -> None:
        self.world = world
        self.name = name
        self.node = node
        self.operator = operator
        self.address = Address(f"{name}#{incarnation}")
        self.core = ElasticExecutor(config, node, world.kernel.now)
        self.tasks: dict[TaskId, TaskHost] = {}
        self.keepers: dict[NodeId, KeeperHost] = {}
        self.alive = True
        self.slice_records = slice_records
        world.network.join(self.address, self.receive)
        world.peers[name] = self.address
        world.executors[name] = self

    def receive(self, sender: Address, message: Any) -> None:
        """Take a message in."""
        match message:
            case TuplesSent(peer, attempt, rows, size):
                shards = self.operator.shards_of(rows)
                # Few tuples go another way through the receiver than many; here both happen.
                few = shards.tolist() if len(shards) <= _SINGLY else shards
                self.tell(ev.TuplesArrived(peer, attempt, rows, few, size))
            case MarkerSent(peer, attempt, epoch):
                self.tell(ev.MarkerArrived(peer, attempt, epoch))
            case CreditSent(peer, attempt, total):
                self.tell(ev.CreditGranted(peer, attempt, total))
            case _:
                self.tell(message)

    def tell(self, event: ev.Event) -> None:
        """Let the core handle an event, and carry its instructions out."""
        if not self.alive:
            return
        try:
            instructions = self.core.handle(event, self.world.kernel.now)
        except ProtocolError as error:
            self.world.surroundings.refused(self, event, error)
            return
        self.world.surroundings.handled(self, event, instructions)
        for instruction in instructions:
            self._carry_out(instruction)

    def _carry_out(self, order: do.Instruction) -> None:
        match order:
            case do.Dispatch() | do.WriteShard() | do.SendLabel() | do.FlushTask() | do.ResetTask():
                self._send(self._task_address(order.task), order)
            case do.OpenStore(node, attempt, committed):
                self.keepers[node] = KeeperHost(self, node, attempt, committed, self.slice_records)
            case do.StartTask(node, task):
                startup = self.world.surroundings.startup_s()
                self.world.kernel.after(startup, self._start_task, node, task)
            case do.EndTask(_, task):
                if task in self.tasks:
                    self.tasks.pop(task).end()
            case do.GrantCredit(upstream, attempt, total):
                self.world.send(self.address, upstream, CreditSent(self.name, attempt, total))
            case do.Emit(destination, attempt, rows, size):
                message = TuplesSent(self.name, attempt, rows, size)
                self.world.send(self.address, destination, message)
            case do.EmitMarker(destination, attempt, epoch):
                self.world.send(self.address, destination, MarkerSent(self.name, attempt, epoch))
            case do.ReportReady() | do.ReportPrepared() | do.ReportFailure():
                self._send(self.world.driver, (self.name, order))
            case do.ReportMove() | do.ReportSealed() | do.ReportHotShards():
                pass  # for the record: whoever watches has seen it
            case _:
                self._send(self._keeper_address(order.node), order)

    def _send(self, address: Address, message: Any) -> None:
        self.world.network.send(self.address, address, message)

    def _task_address(self, task: TaskId) -> Address:
        return Address(f"{self.address}/task-{task}")

    def _keeper_address(self, node: NodeId) -> Address:
        return Address(f"{self.address}/{node}")

    def _start_task(self, node: NodeId, task: TaskId) -> None:
        keeper = self.keepers.get(node)
        if self.alive and keeper is not None and task in self.core.tasks:
            self.tasks[task] = TaskHost(self, task, keeper, self._task_address(task))
            keeper.send(ev.TaskStarted(task))

    # Losses

    def lose_task(self, task: TaskId) -> None:
        """Kill a task's process, and notice it a little later."""
        self.end_task(task)
        self.world.kernel.after(self.world.surroundings.notice_s(), self.tell, ev.TaskLost(task))

    def end_task(self, task: TaskId) -> None:
        """Kill a task's process."""
        self.tasks.pop(task).end()

    def suspect_task(self, task: TaskId, lives_on_s: float) -> TaskHost:
        """Take a task for lost that is not; it goes on for a while with what it was given."""
        zombie = self.tasks.pop(task)
        self.world.kernel.after(lives_on_s, zombie.end)
        self.tell(ev.TaskLost(task))
        return zombie

    def lose_node(self, node: NodeId) -> None:
        """Lose what this executor has on another node, and notice it a little later."""
        if self.end_store(node):
            notice_s = self.world.surroundings.notice_s()
            self.world.kernel.after(notice_s, self.tell, ev.NodeLost(node))

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
    """A node's process that keeps an executor's store there."""

    def __init__(
        self,
        executor: ExecutorHost,
        node: NodeId,
        attempt: Attempt,
        committed: Epoch,
        slice_records: int,
    ) -> None:
        self.executor = executor
        self.node = node
        self.world = executor.world
        self.backend = MemoryBackend()
        self.store = Levels.create(
            self.backend, attempt=attempt, committed=committed, slice_records=slice_records
        )
        self.core = Keeper(node, self.store, slice_records=slice_records)
        self.address = Address(f"{executor.address}/{node}")
        self.alive = True
        self.world.network.join(self.address, self.receive)

    def receive(self, sender: Address, message: Any) -> None:
        """Take an instruction or a slice of state in."""
        if isinstance(message, SendSlice):
            self._try(lambda: self.core.receive(message))
        else:
            self._run(self.core.handle(message))

    def send(self, message: Any) -> None:
        """Tell the main process."""
        self.world.network.send(self.address, self.executor.address, message)

    def end(self) -> None:
        """Let the process be gone."""
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
        after, storage = self.world.kernel.after, self.world.surroundings.storage_s()
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


class TaskHost:
    """A task's process: one thing at a time, in order."""

    def __init__(
        self, executor: ExecutorHost, task: TaskId, keeper: KeeperHost, address: Address
    ) -> None:
        self.executor = executor
        self.world = executor.world
        self.node = keeper.node
        self.address = address
        self.alive = True
        self.slowness = 1.0
        self.operator = operator = executor.operator
        cache = StateCache(
            Levels(keeper.backend),
            operator.codec,
            Attempt(0),
            Epoch(0),
            max_keys=operator.max_keys,
            slice_records=executor.slice_records,
        )
        self.core = Task(task, cache)
        self.cache = cache
        self._inbox = TaskInbox()
        self._writes: deque[Iterator[ev.ShardWritten | None]] = deque()
        self._run: _ChunkRun | None = None
        self.world.network.join(address, self.receive)

    @property
    def idle(self) -> bool:
        """Whether there is nothing to do."""
        busy = self._run is not None or self._inbox or self._writes or self.core.flushing
        return not busy

    def receive(self, sender: Address, message: Any) -> None:
        """Queue a message; a label is looked at as soon as the tuple in hand is done."""
        if isinstance(message, do.Dispatch):
            shards = np.concatenate([part.shards for part in message.parts])
            message = Work(message.chunk, shards, message)
        if isinstance(message, do.WriteShard):
            self._writes.append(self.core.write(message))
        else:
            self._inbox.put(message)
        if self._run is None:
            self._work()
        elif self._inbox.interrupted:
            pause_s = self.world.surroundings.pause_s(self)
            if pause_s is not None:
                self.world.kernel.after(pause_s, self._interrupt, self._run)

    def end(self) -> None:
        """Let the process be gone, with all that it has cached."""
        self.alive = False
        self.world.network.leave(self.address)

    def _work(self) -> None:
        try:
            self._work_on()
        except StaleAttemptError:
            self.end()  # the store has let it know that it was given up

    def _work_on(self) -> None:
        while (self._inbox or self._writes) and self.alive:
            self._answer_labels()
            if self._writes:
                self._write()
            if not self._inbox:
                continue
            message = self._inbox.pop()
            match message:
                case Work():
                    rows = len(message.left)
                    seconds = self.world.surroundings.service_s(self, rows) * self.slowness
                    self._run = _ChunkRun(message, seconds / rows, self.world.kernel.now)
                    self.world.kernel.after(seconds, self._finish, self._run)
                    return
                case do.FlushTask():
                    self.core.flush(message)
                    self._write_later()
                case do.ResetTask():
                    self._send(self.core.reset(message))

    def _write_later(self) -> None:
        seconds = self.world.surroundings.service_s(self, 1) * self.slowness
        self.world.kernel.after(seconds, self._write_on)

    def _write_on(self) -> None:
        """Write a slice of what an epoch changed, between any two things that it does."""
        if not self.alive or not self.core.flushing:
            return
        try:
            answer = self.core.write_on()
        except StaleAttemptError:
            self.end()
            return
        if answer is None:
            self._write_later()
        else:
            self._send(answer)

    def _write(self) -> None:
        written = next(self._writes[0])
        if written is not None:
            self._writes.popleft()
            self._send(written)

    def _interrupt(self, run: _ChunkRun) -> None:
        """Answer the labels that have come, between two tuples of a chunk."""
        if not self.alive or self._run is not run or not self._inbox.interrupted:
            return
        try:
            now = self.world.kernel.now
            self._process(run, min(len(run.work.left), int((now - run.at) / run.row_s)))
            self._answer_labels(run)
        except StaleAttemptError:
            self.end()
            return
        rest = len(run.work.left)
        if rest or run.work.unreported:
            self._run = run.resumed(self.world.kernel.now)
            self.world.kernel.after(rest * run.row_s, self._finish, self._run)
        else:
            self._done()

    def _answer_labels(self, run: _ChunkRun | None = None) -> None:
        work = None if run is None else run.work
        for answer in self.core.answer_labels(self._inbox, work, lambda: self._report(run)):
            self._send(answer)

    def _report(self, run: _ChunkRun | None) -> None:
        assert run is not None  # without a chunk there is nothing to report
        self._send(run.answer(self.core.id, self.operator))

    def _finish(self, run: _ChunkRun) -> None:
        if not self.alive or self._run is not run:
            return
        try:
            self._process(run, len(run.work.left))
        except StaleAttemptError:
            self.end()
            return
        self._report(run)
        self._done()

    def _done(self) -> None:
        self._run = None
        try:
            self.core.close_chunk()
        except StaleAttemptError:
            self.end()
            return
        self._work()

    def _process(self, run: _ChunkRun, count: int) -> None:
        """Let the operator have the next tuples of the chunk."""
        chunk: do.Dispatch = run.work.content
        self.core.open_chunk(chunk)
        parts = chunk.parts
        ends = np.cumsum([part.count for part in parts])
        for place in run.work.begin(count).tolist():
            number = int(np.searchsorted(ends, place, "right"))
            part = parts[number]
            at = place - int(ends[number]) + part.count
            batch, upstream = part.batch.content, part.batch.upstream
            shard, row = ShardId(int(part.shards[at])), batch[part.rows[at]]
            for destination, output in self.operator.process(self.cache, shard, row, upstream):
                run.outputs.setdefault(destination, []).append(output)

    def _send(self, event: ev.Event) -> None:
        self.world.network.send(self.address, self.executor.address, event)


class _ChunkRun:
    """A chunk under way, from when it was begun or last interrupted."""

    def __init__(self, work: Work, row_s: float, at: float) -> None:
        self.work = work
        self.row_s = row_s
        self.at = at
        self.outputs: dict[Peer, list[Any]] = {}

    def resumed(self, at: float) -> _ChunkRun:
        """The same, interrupted now; what was to happen to this one does not happen."""
        run = _ChunkRun(self.work, self.row_s, at)
        run.outputs = self.outputs
        return run

    def answer(
        self, task: TaskId, operator: CheckedOperator
    ) -> ev.ChunkProgressed | ev.ChunkProcessed:
        """The answer to what is done of it and was not answered before."""
        chunk: do.Dispatch = self.work.content
        rows = self.work.report()
        outputs = tuple(
            ev.Output(destination, made, operator.size(len(made)), len(made))
            for destination, made in self.outputs.items()
        )
        self.outputs = {}
        times = np.full(rows, self.row_s) if self.work.chunk % 2 else None
        did = (rows * self.row_s, outputs, times)
        if len(self.work.left):
            return ev.ChunkProgressed(task, chunk.attempt, chunk.chunk, rows, *did)
        return ev.ChunkProcessed(task, chunk.attempt, chunk.chunk, *did)
