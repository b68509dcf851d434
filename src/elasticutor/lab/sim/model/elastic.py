"""Elastic executors on the simulated cluster: main processes, tasks, and stores of sizes only.

The main process drives the very `ElasticExecutor` of the core. Its messages wait for their turn:
each costs the process some time, one after the other. A task works through its chunks, first come,
first served, but for labels, which it answers between two tuples. Results go to a sink beside the
main process, and latency ends there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from elasticutor.core.executor.batch import Part, divided
from elasticutor.core.executor.config import ExecutorConfig
from elasticutor.core.executor.tasks import core_changes
from elasticutor.core.protocol import events as ev
from elasticutor.core.protocol import instructions as do
from elasticutor.core.protocol.ids import NodeId, Peer, ShardId, TaskId
from elasticutor.lab.sim.core_host import CoreHost
from elasticutor.lab.sim.model.machines import HEADER_BYTES
from elasticutor.lab.sim.model.processes import SimulatedWorld, StoreOwner, Turns
from elasticutor.lab.sim.model.task_server import ChunkJob, TaskServer
from elasticutor.lab.sim.recorder import Moved
from elasticutor.lab.sim.workload import IntArray


class ElasticHost(StoreOwner, CoreHost):
    """The main process of an elastic executor, with its tasks and stores wherever they are."""

    def __init__(
        self,
        world: SimulatedWorld,
        name: Peer,
        node: NodeId,
        config: ExecutorConfig,
        shard_keys: IntArray,
    ) -> None:
        StoreOwner.__init__(self, world, world.number[node])
        CoreHost.__init__(self, name, config, node, world.clock.now)
        self.home = node
        self.ready = False
        self.processed = 0
        """Tuples whose results have arrived."""
        self.occupied: Counter[NodeId] = Counter()
        """Cores on every node that its tasks are on, until their processes have ended."""
        self._sink = Turns(self._cpus, world.machines.costs.sink)
        self._shard_keys = shard_keys
        self._tasks: dict[TaskId, TaskServer] = {}
        self._dirty: dict[ShardId, set[int]] = {}  # keys changed since the copy, of shards copied

    # What arrives

    def handle(self, event: Any) -> None:
        """Let the core handle an event, and carry its instructions out."""
        kind = type(event)
        if kind is ev.ChunkProcessed:
            self._note_result(self.core.tasks[event.task].flights[0].parts)
        elif kind is ev.ChunkProgressed:
            parts = self.core.tasks[event.task].flights[0].parts
            self._note_result(divided(parts, event.rows)[0])
        self.carry_out(self.core.handle(event, self._clock.now))

    def tell(self, event: ev.Event) -> None:
        """Handle an event of this process itself, a clock's or its driver's, at once."""
        self._free_at = max(self._free_at, self._clock.now)
        self.handle(event)

    def _note_result(self, parts: list[Part]) -> None:
        record, done = self.world.recorder.results.append, self._sink.take(self._free_at)
        for part in parts:
            births, count = part.batch.content.births, part.count
            if type(births) is not float:
                births = births.take(part.rows)
            record((done, births, count))
            self.processed += count
        if self._dirty:
            self._note_changes(parts)
        if self.world.watch is not None:
            self.world.watch(self.name, parts)

    def _note_changes(self, parts: list[Part]) -> None:
        for shard, changed in self._dirty.items():
            for part in parts:
                mine = part.rows[part.shards == shard]
                changed.update(part.batch.content.keys.take(mine).tolist())

    def set_cores(self, wanted: dict[NodeId, int]) -> None:
        """Let it have just these cores; those that it gives up are free when their tasks end."""
        for change in core_changes(self.staying, self.core.task_loads(), wanted):
            self.tell(change)

    # Tasks

    def dispatch(self, order: do.Dispatch) -> None:
        """Send a chunk of tuples to a task."""
        rows = 0
        for part in order.parts:
            rows += part.count
        task, work_s = self._tasks[order.task], self.world.work_s(rows)
        if task.node == self.node:
            self._begin(self._free_at, task, order, rows, work_s)
        else:
            size = rows * self.world.tuple_bytes + HEADER_BYTES
            self._to_remote_task(task, size, self._begin, task, order, rows, work_s)

    def to_task(self, order: Any) -> None:
        """Send anything else to a task."""
        task = self._tasks[order.task]
        if task.node == self.node:
            self._obey(self._free_at, task, order)
        else:
            self._to_remote_task(task, HEADER_BYTES, self._obey, task, order)

    def _to_remote_task(
        self, task: TaskServer, size: int, action: Callable[..., None], *message: Any
    ) -> None:
        """Do something with a message when it arrives, given that time."""
        self.world.recorder.remote_bytes += size
        links, act = self.world.links, self._at_remote_task
        links.send(self._free_at, self.node, task.node, size, act, action, message)

    def _at_remote_task(self, action: Callable[..., None], message: tuple[Any, ...]) -> None:
        action(self._clock.now, *message)

    def _begin(
        self, arrival: float, task: TaskServer, order: do.Dispatch, rows: int, work_s: float
    ) -> None:
        lost_s = task.lost_s
        job = task.begin(order, rows, work_s, arrival)
        self.world.cpus[task.node].work(work_s, job.taking_s - lost_s)
        self._clock.at(job.end, self._chunk_done, task, job, job.end)

    def _chunk_done(self, task: TaskServer, job: ChunkJob, end: float) -> None:
        """Answer, unless a label lets the chunk end at another time."""
        if job.end == end:
            order = job.order
            done = ev.ChunkProcessed(order.task, order.attempt, order.chunk, job.unanswered_s)
            self._answer(task, done)

    def _obey(self, arrival: float, task: TaskServer, order: Any) -> None:
        match order:
            case do.SendLabel():
                self._interrupt(arrival, task, order)
            case do.WriteShard():
                # Between two chunks; there is no state, so it takes no time but the message's.
                written = ev.ShardWritten(order.task, order.move, 0)
                self._clock.at(task.between(arrival), self._answer, task, written)
            case do.ResetTask():
                reset = ev.TaskReset(order.task, order.attempt)
                self._clock.at(task.serve(arrival), self._answer, task, reset)
            case _:
                raise NotImplementedError(order)  # no epoch ends here

    def _interrupt(self, arrival: float, task: TaskServer, order: do.SendLabel) -> None:
        hit = task.interrupt(order.shard, arrival)
        if hit.progressed is not None:
            job, rows = hit.progressed
            chunk = job.order
            progress = (chunk.task, chunk.attempt, chunk.chunk, rows, rows * job.row_s)
            self._clock.at(hit.at, self._answer, task, ev.ChunkProgressed(*progress))
        reached = ev.LabelReached(order.task, order.move, 0, hit.returned)
        self._clock.at(hit.at, self._answer, task, reached)
        for job in hit.rescheduled:
            self._clock.at(job.end, self._chunk_done, task, job, job.end)

    def _answer(self, task: TaskServer, answer: ev.Event) -> None:
        if task.node == self.node:
            self.take(answer)
        else:
            self.world.recorder.remote_bytes += HEADER_BYTES
            self._from_node(task.node, answer)

    def start_task(self, order: do.StartTask) -> None:
        """Take a core, and have a task's process started there."""
        self.occupied[order.node] += 1
        self._to_node(order.node, self._start, order)

    def _start(self, order: do.StartTask) -> None:
        self._clock.after(self.world.machines.startup_s, self._started, order)

    def _started(self, order: do.StartTask) -> None:
        node = self.world.number[order.node]
        task = TaskServer(node, self.world.machines.costs.task)
        self.world.cpus[node].join(task)
        self._tasks[order.task] = task
        self._from_node(node, ev.TaskStarted(order.task))

    def stop_task(self, order: do.EndTask) -> None:
        """Have a task's process ended; its core is free when the node has done so."""
        task = self._tasks.pop(order.task, None)
        if task is not None:
            self.world.cpus[task.node].leave(task)
        self._to_node(order.node, self._ended, order.node)

    def _ended(self, node: NodeId) -> None:
        self.occupied[node] -= 1
        self.world.core_freed()

    # Stores, upstreams, the driver

    def to_store(self, order: Any) -> None:
        """Send to the store on a node; the rest of a shard is what changed since its copy."""
        size = self.world.shard_bytes
        match order:
            case do.OpenStore():
                return  # it is empty
            case do.CopyShard(shard=shard):
                self._dirty[shard] = set()
            case do.SendRest(shard=shard):
                changed, keys = len(self._dirty.pop(shard)), int(self._shard_keys[shard])
                size = min(size, size * changed // max(1, keys))
        self._to_node(order.node, self._at_store, order, size)

    def grant(self, order: do.GrantCredit) -> None:
        """Send a credit to an upstream."""
        node, take = self.world.grants[order.upstream]
        self.world.links.send(
            self._free_at, self.node, node, HEADER_BYTES, take, self.name, order.total
        )

    def report(self, order: do.ReportReady | do.ReportPrepared | do.ReportFailure) -> None:
        """Be ready; nothing fails here."""
        assert isinstance(order, do.ReportReady), order
        self.ready = True

    def record(self, order: Any) -> None:
        """Note a move."""
        if isinstance(order, do.ReportMove):
            size = order.copied + order.migrated
            times = order.sync_s, order.migration_s
            moved = Moved(self._clock.now, 1, int(order.remote), *times, size)
            self.world.recorder.moved.append(moved)
