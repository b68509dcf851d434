"""Elastic executors on the simulated cluster: main processes, tasks, and stores of sizes only.

The main process drives the very `ElasticExecutor` of the core. What it is told waits for its turn:
each message costs the process some time, one after the other. A task works through what it was
sent, first come, first served, but for labels, which it answers between two tuples. Results go to a
sink beside the main process, and latency ends there. State is not there, only how large it is; what
of it crosses the links is what the protocol sends.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

from elasticutor.core.executor.batch import Part, divided
from elasticutor.core.executor.config import ExecutorConfig
from elasticutor.core.executor.executor import ElasticExecutor
from elasticutor.core.executor.tasks import TaskStatus, core_changes
from elasticutor.core.protocol import events as ev
from elasticutor.core.protocol import instructions as do
from elasticutor.core.protocol.ids import NodeId, Peer, ShardId, TaskId
from elasticutor.lab.sim.model.machines import HEADER_BYTES
from elasticutor.lab.sim.model.processes import Process, SimulatedWorld, Turns, send_state
from elasticutor.lab.sim.model.task_server import ChunkJob, TaskServer
from elasticutor.lab.sim.recorder import Moved
from elasticutor.lab.sim.workload import IntArray


class ElasticHost(Process):
    """The main process of an elastic executor, with its tasks and stores wherever they are."""

    def __init__(
        self,
        world: SimulatedWorld,
        name: Peer,
        node: NodeId,
        config: ExecutorConfig,
        shard_keys: IntArray,
    ) -> None:
        super().__init__(world, world.number[node])
        self.name = name
        self.home = node
        self.core = ElasticExecutor(config, node, world.loop.now)
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

    def handle(self, event: ev.Event) -> None:
        """Let the core handle an event, and carry its instructions out."""
        if isinstance(event, ev.ChunkProcessed):
            self._note_result(self.core.tasks[event.task].flights[0].parts)
        elif isinstance(event, ev.ChunkProgressed):
            parts = self.core.tasks[event.task].flights[0].parts
            self._note_result(divided(parts, event.rows)[0])
        for order in self.core.handle(event, self._loop.now):
            _ORDERS[type(order)](self, order)

    def tell(self, event: ev.Event) -> None:
        """An event of this process itself: a clock, or its driver; it waits for nothing."""
        self._free_at = max(self._free_at, self._loop.now)
        self.handle(event)

    def _note_result(self, parts: list[Part]) -> None:
        recorder, done = self.world.recorder, self._sink.take(self._free_at)
        for part in parts:
            births = part.batch.content.births
            if type(births) is not float:
                births = births.take(part.rows)
            recorder.times.append(done)
            recorder.births.append(births)
            recorder.counts.append(part.count)
            self.processed += part.count
        if self._dirty:
            self._note_changes(parts)
        if self.world.watch is not None:
            self.world.watch(self.name, parts)

    def _note_changes(self, parts: list[Part]) -> None:
        for shard, changed in self._dirty.items():
            for part in parts:
                mine = part.rows[part.shards == shard]
                changed.update(part.batch.content.keys.take(mine).tolist())

    # Cores

    def set_cores(self, wanted: dict[NodeId, int]) -> None:
        """Let it have just these cores; those that it gives up are free when their tasks end."""
        for change in core_changes(self.staying, self.core.task_loads(), wanted):
            self.tell(change)

    @property
    def staying(self) -> dict[TaskId, NodeId]:
        """The tasks that are not leaving, with their nodes."""
        return {
            task.id: task.node
            for task in self.core.tasks.values()
            if task.status is not TaskStatus.LEAVING
        }

    # What the core asks for: tasks

    def _dispatch(self, order: do.Dispatch) -> None:
        rows = 0
        for part in order.parts:
            rows += part.count
        work_s = self.world.work_s(rows)
        task = self._tasks[order.task]
        chunk = (task, order, rows, work_s)
        if task.node == self.node:
            self._begin(chunk, self._free_at)
        else:
            size = rows * self.world.tuple_bytes + HEADER_BYTES
            self._to_remote_task(task, size, self._begin_now, chunk)

    def _begin_now(self, chunk: tuple[TaskServer, do.Dispatch, int, float]) -> None:
        self._begin(chunk, self._loop.now)

    def _begin(self, chunk: tuple[TaskServer, do.Dispatch, int, float], arrival: float) -> None:
        task, order, rows, work_s = chunk
        lost_s = task.lost_s
        job = task.begin(order, rows, work_s, arrival)
        self.world.cpus[task.node].work(work_s, job.taking_s - lost_s)
        self._expect(task, job)

    def _expect(self, task: TaskServer, job: ChunkJob) -> None:
        """Answer when the chunk is done, unless a label lets that be at another time."""
        self._loop.at(job.end, self._chunk_done, (task, job, job.end))

    def _chunk_done(self, message: tuple[TaskServer, ChunkJob, float]) -> None:
        task, job, end = message
        if job.end == end:
            order = job.order
            answer = (order.task, order.attempt, order.chunk, job.unanswered_s)
            self._answer((task, ev.ChunkProcessed(*answer)))

    def _write_shard(self, order: do.WriteShard) -> None:
        self._to_task(order, self._write)

    def _write(self, task: TaskServer, order: do.WriteShard, arrival: float) -> None:
        """Between two chunks; there is no state, so it takes no time but the message's."""
        written = ev.ShardWritten(order.task, order.move, 0)
        self._loop.at(task.between(arrival), self._answer, (task, written))

    def _send_label(self, order: do.SendLabel) -> None:
        self._to_task(order, self._interrupt)

    def _interrupt(self, task: TaskServer, order: do.SendLabel, arrival: float) -> None:
        hit = task.interrupt(order.shard, arrival)
        if hit.progressed is not None:
            job, rows = hit.progressed
            chunk = job.order
            progress = (chunk.task, chunk.attempt, chunk.chunk, rows, rows * job.row_s)
            self._loop.at(hit.at, self._answer, (task, ev.ChunkProgressed(*progress)))
        reached = ev.LabelReached(order.task, order.move, 0, hit.returned)
        self._loop.at(hit.at, self._answer, (task, reached))
        for job in hit.rescheduled:
            self._expect(task, job)

    def _reset_task(self, order: do.ResetTask) -> None:
        self._to_task(order, self._reset)

    def _reset(self, task: TaskServer, order: do.ResetTask, arrival: float) -> None:
        reset = ev.TaskReset(order.task, order.attempt)
        self._loop.at(task.serve(arrival), self._answer, (task, reset))

    def _to_task(self, order: Any, action: Callable[[TaskServer, Any, float], None]) -> None:
        """Let a task do something when the order arrives, which is at the time that it is given."""
        task = self._tasks[order.task]
        if task.node == self.node:
            action(task, order, self._free_at)
        else:
            self._to_remote_task(task, HEADER_BYTES, self._at_task, (task, order, action))

    def _to_remote_task(
        self, task: TaskServer, size: int, action: Callable[[Any], None], message: Any
    ) -> None:
        self.world.recorder.remote_bytes += size
        self.world.links.send(self._free_at, self.node, task.node, size, action, message)

    def _at_task(self, message: tuple[TaskServer, Any, Callable[..., None]]) -> None:
        task, order, action = message
        action(task, order, self._loop.now)

    def _answer(self, message: tuple[TaskServer, ev.Event]) -> None:
        task, answer = message
        if task.node == self.node:
            self.take(answer)
        else:
            self.world.recorder.remote_bytes += HEADER_BYTES
            self._from_node(task.node, answer)

    def _start_task(self, order: do.StartTask) -> None:
        self.occupied[order.node] += 1
        self._to_node(order.node, self._start, order)

    def _start(self, order: do.StartTask) -> None:
        self._loop.at(self._loop.now + self.world.machines.startup_s, self._started, order)

    def _started(self, order: do.StartTask) -> None:
        node = self.world.number[order.node]
        task = TaskServer(node, self.world.machines.costs.task)
        self.world.cpus[node].join(task)
        self._tasks[order.task] = task
        self._from_node(node, ev.TaskStarted(order.task))

    def _end_task(self, order: do.EndTask) -> None:
        task = self._tasks.pop(order.task, None)
        if task is not None:
            self.world.cpus[task.node].leave(task)
        self._to_node(order.node, self._ended, order.node)

    def _ended(self, node: NodeId) -> None:
        self.occupied[node] -= 1
        self.world.core_freed(node)

    # What the core asks for: stores

    def _to_node(self, node: NodeId, action: Callable[[Any], None], order: Any) -> None:
        number = self.world.number[node]
        self.world.links.send(self._free_at, self.node, number, HEADER_BYTES, action, order)

    def _from_node(self, node: int, event: ev.Event, size: int = HEADER_BYTES) -> None:
        self.world.links.send(self._loop.now, node, self.node, size, self.take, event)

    def _open_shard(self, order: do.OpenShard) -> None:
        self._to_node(order.node, self._opened, order)

    def _opened(self, order: do.OpenShard) -> None:
        self._from_node(self.world.number[order.node], ev.ShardOpened(order.move))

    def _copy_shard(self, order: do.CopyShard) -> None:
        self._dirty[order.shard] = set()
        self._to_node(order.node, self._copy, order)

    def _copy(self, order: do.CopyShard) -> None:
        size = self.world.shard_bytes
        arrived = ev.CopyArrived(order.move, size)
        self._send_state(order.node, order.destination, size, arrived)

    def _send_rest(self, order: do.SendRest) -> None:
        changed, size = self._dirty.pop(order.shard), self.world.shard_bytes
        rest = size * len(changed) // max(1, int(self._shard_keys[order.shard]))
        self._to_node(order.node, self._rest, (order, min(size, rest)))

    def _rest(self, message: tuple[do.SendRest, int]) -> None:
        order, size = message
        self._send_state(order.node, order.destination, size, ev.StateArrived(order.move, size))

    def _send_state(self, source: NodeId, destination: NodeId, size: int, last: ev.Event) -> None:
        number = self.world.number
        there = number[destination]
        arrived = partial(self._arrived, there, last)
        send_state(self.world, number[source], there, size, arrived)

    def _arrived(self, node: int, event: ev.Event, _: None) -> None:
        self._from_node(node, event)

    def _drop_shard(self, order: do.DropShard) -> None:
        self._to_node(order.node, self._dropped, order)

    def _dropped(self, order: do.DropShard) -> None:
        dropped = ev.ShardDropped(order.node, order.shard)
        self._from_node(self.world.number[order.node], dropped)

    def _roll_back(self, order: do.RollBackStore) -> None:
        self._to_node(order.node, self._rolled_back, order)

    def _rolled_back(self, order: do.RollBackStore) -> None:
        back = ev.StoreRolledBack(order.node, order.attempt)
        self._from_node(self.world.number[order.node], back)

    # What the core asks for: the others

    def _grant(self, order: do.GrantCredit) -> None:
        node, take = self.world.grants[order.upstream]
        credit = (self.name, order.total)
        self.world.links.send(self._free_at, self.node, node, HEADER_BYTES, take, credit)

    def _moved(self, order: do.ReportMove) -> None:
        size = order.copied + order.migrated
        remote = int(order.remote)
        moved = Moved(self._loop.now, 1, remote, order.sync_s, order.migration_s, size)
        self.world.recorder.moved.append(moved)

    def _is_ready(self, order: do.ReportReady) -> None:
        self.ready = True

    def _failed(self, order: do.ReportFailure) -> None:
        raise AssertionError(order.reason)

    def _ignore(self, order: Any) -> None:
        """Nothing to do: a store that is empty, a report that nobody reads."""


_ORDERS: dict[type, Callable[[ElasticHost, Any], None]] = {
    do.Dispatch: ElasticHost._dispatch,
    do.WriteShard: ElasticHost._write_shard,
    do.SendLabel: ElasticHost._send_label,
    do.ResetTask: ElasticHost._reset_task,
    do.OpenStore: ElasticHost._ignore,
    do.StartTask: ElasticHost._start_task,
    do.EndTask: ElasticHost._end_task,
    do.OpenShard: ElasticHost._open_shard,
    do.CopyShard: ElasticHost._copy_shard,
    do.SendRest: ElasticHost._send_rest,
    do.DropShard: ElasticHost._drop_shard,
    do.RollBackStore: ElasticHost._roll_back,
    do.GrantCredit: ElasticHost._grant,
    do.ReportReady: ElasticHost._is_ready,
    do.ReportMove: ElasticHost._moved,
    do.ReportFailure: ElasticHost._failed,
    do.ReportSealed: ElasticHost._ignore,
    do.ReportHotShards: ElasticHost._ignore,
}
