"""Leads tuples through an executor: in by credit, out to the tasks in chunks, on by credit.

It knows tasks only as places with a queue and a window, and nothing of moves or epochs but the
number of the one that is open.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from elasticutor.core.executor.batch import MOST_SINGLES, Part
from elasticutor.core.executor.config import ExecutorConfig
from elasticutor.core.executor.credits import InputCredits
from elasticutor.core.executor.emitter import Emitter
from elasticutor.core.executor.epochs import Epochs
from elasticutor.core.executor.receiver import Receiver
from elasticutor.core.executor.tasks import TaskView
from elasticutor.core.measure.load import FloatArray, ShardLoads
from elasticutor.core.measure.metrics import ExecutorMetrics, Meter
from elasticutor.core.measure.work import WorkLog, require_times
from elasticutor.core.protocol import events as ev
from elasticutor.core.protocol import instructions as do
from elasticutor.core.protocol.ids import ChunkId, Epoch, NodeId, Peer, TaskId
from elasticutor.errors import BadValueError, OutOfOrderError, UnknownShardError

Routed = tuple[npt.NDArray[np.integer[Any]], npt.NDArray[np.intp]]
"""The slot of each tuple of a batch, and its tuples per shard; `_ONE` for a single tuple."""

Answer = ev.ChunkProcessed | ev.ChunkProgressed
"""What a task says of its oldest chunk."""

_ONE = np.ones(1, np.intp)
_ANY = Peer("")  # forwarded outputs wait on no upstream's account in particular
_LEAST_BYTE_S = 1e-15  # work that takes no time at all is not measured, but not endless either
_SMOOTHING = 0.1  # weight of the newest chunk in the executor's cost per byte


class DataPath:
    """Receiver, windows, emitter and the measurements taken on the way."""

    def __init__(
        self,
        config: ExecutorConfig,
        tasks: Mapping[TaskId, TaskView],
        epochs: Epochs,
        emit: Callable[[do.Instruction], None],
        now: float,
    ) -> None:
        self.receiver = Receiver(config.shards)
        self.meter = Meter(config.shards, now, cores=0)
        self.credits = InputCredits([], first=0)
        self.outputs = Emitter([], first=0, limit=config.output_bytes, returned=False)
        self._config = config
        self._returns = config.outputs == "return"
        self._tasks = tasks
        self._epochs = epochs
        self._emit = emit
        self._next_chunk = 0
        self._boundary = 0  # the first chunk that is not of the epoch that ended last
        self._ended: dict[Peer, Epoch] = {}  # upstreams that wait for the last of their outputs
        self._inside = np.zeros(config.shards, dtype=np.int64)  # tuples not processed, per shard
        self._arrived_singly: list[int] = []  # shards of tuples that are yet to be counted there
        self._work = WorkLog(config.shards)
        self._loads = ShardLoads(config.shards, config.load_half_life_s, now)
        self._steady = ShardLoads(config.shards, config.steady_half_life_s, now)
        self._byte_s: float | None = None  # measured seconds per byte of input
        self._state_bytes: dict[NodeId, int] = {}

    def open(self, upstreams: Iterable[Peer], destinations: Iterable[Peer]) -> None:
        """Start an attempt, with nothing under way."""
        config = self._config
        self.credits = InputCredits(upstreams, first=config.min_credit_bytes)
        self.outputs = Emitter(
            upstreams if self._returns else destinations,
            first=config.min_credit_bytes,
            limit=config.output_bytes,
            returned=self._returns,
        )
        self.receiver.clear()
        self._ended.clear()
        self._count_work()
        self._inside[:] = 0

    # In

    def require_tuples(self, event: ev.TuplesArrived) -> Routed | None:
        """Refuse a batch that cannot be; returns where its tuples go, and how many per shard.

        None for few tuples, which are routed one by one.
        """
        self.credits.require_credit(event.upstream)
        require_size("a batch", event.size)
        shards, most = event.shards, self._config.shards
        if type(shards) is list:
            if len(shards) <= MOST_SINGLES and all(0 <= shard < most for shard in shards):
                return None
            must = f"be at most {MOST_SINGLES} whole numbers from 0 to {most - 1}"
            raise UnknownShardError("list of shards", must, shards)
        assert isinstance(shards, np.ndarray)  # there are these two
        if shards.dtype.kind in "iu" and shards.ndim == 1:
            if len(shards) == 1 and 0 <= shards[0] < most:
                return self.receiver.slots(shards), _ONE
            try:
                # The first refuses what is too large, the second what is negative.
                return self.receiver.slots(shards), np.bincount(shards, minlength=most)
            except (IndexError, ValueError):
                pass
        raise UnknownShardError("shards", f"be whole numbers from 0 to {most - 1}", shards)

    def arrive(self, event: ev.TuplesArrived, routed: Routed | None, now: float) -> None:
        """Take a batch in."""
        self.credits.spend(event.upstream, event.size)
        self.meter.arrived(len(event.shards), event.size)
        if not len(event.shards):
            self._return_credit({event.upstream: event.size})
            return
        upstream, content, shards, size = event.upstream, event.batch, event.shards, event.size
        if routed is None:
            assert isinstance(shards, list)  # `require_tuples` has looked
            self._arrived_singly += shards
            self.receiver.arrive_singly(upstream, content, shards, size, now)
        else:
            assert isinstance(shards, np.ndarray)
            slots, per_shard = routed
            if per_shard is _ONE:
                self._inside[shards[0]] += 1
            else:
                self._inside += per_shard
            self.receiver.arrive(upstream, content, shards, size, now, slots)
        self.feed_all(now)

    # To the tasks and back

    def feed_all(self, now: float) -> None:
        """Fill every task's window."""
        queued = self.receiver.queued
        for task in self._tasks.values():
            if queued(task.slot) and task.running:
                self.feed(task, now)

    def feed(self, task: TaskView, now: float) -> None:
        """Fill a task's window from its queue."""
        receiver, config, slot = self.receiver, self._config, task.slot
        share = self._share() if self._epochs.marked else None
        while receiver.queued(slot) and not task.full(config, share):
            if not self._returns and self.outputs.blocked(_ANY):
                return
            rows = task.next_rows(config, share, receiver.backlog(slot))
            parts, rows = receiver.take(slot, rows, one_upstream=self._returns)
            flight = task.hand_over(ChunkId(self._next_chunk), parts, rows, now)
            self._next_chunk += 1
            epochs = self._epochs
            epochs.touched = True
            self._emit(do.Dispatch(task.id, epochs.attempt, epochs.open, flight.chunk, parts))
            if share is not None:
                share = self._share()

    def _share(self) -> int | None:
        """How much of the rest of an epoch one chunk may have; None while more of it comes.

        Half of what there is for each task: chunks shrink towards the end, and all end together.
        """
        if not self._epochs.all_marked:
            return None
        running = sum(task.running for task in self._tasks.values())
        return -(-self.receiver.waiting // (2 * max(1, running)))

    @property
    def nearly_handed_out(self) -> bool:
        """Whether what waits of the open epoch is soon with the tasks, as far as one can tell."""
        running = [task for task in self._tasks.values() if task.running]
        costs = [task.row_s for task in running if task.row_s is not None]
        if not costs:
            return True
        rest_s = self.receiver.waiting * sum(costs) / len(costs) / len(running)
        return rest_s <= self._config.backlog_horizon_s

    def starving(self) -> list[TaskId]:
        """Tasks with room for work that waits for them: none, whenever an event is handled."""
        if not self._returns and self.outputs.blocked(_ANY):
            return []
        share = self._share() if self._epochs.marked else None
        return [
            task.id
            for task in self._tasks.values()
            if task.running
            and self.receiver.queued(task.slot)
            and not task.full(self._config, share)
        ]

    def require_answer(self, task: TaskView, event: Answer) -> None:
        """Refuse an answer that is not the next one of the task, or cannot be."""
        if not task.flights or task.flights[0].chunk != event.chunk:
            expected = f"be {task.flights[0].chunk}" if task.flights else "have been handed over"
            raise OutOfOrderError(f"chunk answered by task {task.id}", expected, event.chunk)
        flight = task.flights[0]
        rows = flight.rows
        if isinstance(event, ev.ChunkProgressed):
            rows = event.rows
            if not 0 < rows < flight.rows:
                raise OutOfOrderError(
                    f"tuples done of chunk {event.chunk}", f"be 1 to {flight.rows - 1}", rows
                )
        require_times(event.useful_s, event.row_seconds, rows)
        upstream = flight.parts[0].batch.upstream
        for output in event.outputs:
            self.outputs.require(output.destination)
            require_size("an output", output.size)
            require_size("an output in rows", output.rows)
            if self._returns and output.destination != upstream:
                raise OutOfOrderError(
                    "output", f"return to {upstream!r}, who sent the input", output.destination
                )

    def answered(self, task: TaskView, event: Answer, now: float) -> None:
        """Take the answer to a task's oldest chunk, or to the first tuples that were left of it."""
        rows = event.rows if isinstance(event, ev.ChunkProgressed) else task.flights[0].rows
        parts = task.answered(rows, event.useful_s)
        size_in = self._settle_inputs(parts, event.useful_s)
        size_out = rows_out = 0
        for output in event.outputs:
            size_out += output.size
            rows_out += output.rows
        self._work.add(
            task.id,
            parts,
            rows,
            event.useful_s,
            event.row_seconds,
            size_in,
            size_out,
            rows_out,
            now,
        )
        if self._work.full:
            self._count_work()
        self._take_outputs(event.outputs, event.chunk)
        if self._ended:
            self._return_marker(parts[0].batch.upstream)
        self.feed(task, now)

    def _settle_inputs(self, parts: Iterable[Part], useful_s: float) -> int:
        """Give credit back for what was processed; returns its bytes."""
        finished: dict[Peer, int] = {}
        size = 0
        for part in parts:
            batch = part.batch
            done = batch.finish(part.count)
            size += done
            finished[batch.upstream] = finished.get(batch.upstream, 0) + done
        if size:
            measured = useful_s / size
            old = self._byte_s
            self._byte_s = measured if old is None else old + _SMOOTHING * (measured - old)
        self._return_credit(finished)
        return size

    def _return_credit(self, finished: Mapping[Peer, int]) -> None:
        limit = self._credit_bytes()
        for upstream, size in finished.items():
            grant = self.credits.finish(upstream, size, self._epochs.attempt, limit)
            if grant is not None:
                self._emit(grant)

    def _credit_bytes(self) -> int:
        """Bounded in time and in bytes: `credit_s` of measured work per core."""
        config = self._config
        if self._byte_s is None:
            return config.min_credit_bytes
        wanted = config.credit_s * max(1, len(self._tasks)) / max(self._byte_s, _LEAST_BYTE_S)
        return int(min(max(wanted, config.min_credit_bytes), config.max_credit_bytes))

    # Out

    def require_credit(self, event: ev.CreditGranted) -> None:
        """Refuse a credit of a stranger, or one below an earlier one."""
        self.outputs.require(event.destination)
        require_size("a credit", event.total)
        self.outputs.require_rising(event.destination, event.total)

    def credit(self, event: ev.CreditGranted, now: float) -> None:
        """Send what a destination takes from now on, and go on with what that had stopped."""
        destination = event.destination
        blocked = self.outputs.blocked(destination)
        self.outputs.credit(destination, event.total)
        self._send(destination)
        if self.receiver.parked(destination):
            if self.outputs.relieved(destination):
                self.receiver.unpark(destination)
                self.feed_all(now)
        elif blocked and not self.outputs.blocked(destination):
            self.feed_all(now)

    def end_upstream(self, upstream: Peer, epoch: Epoch) -> None:
        """Mark the end of an upstream's outputs as soon as all are here; it has ended the epoch.

        Only where outputs return to it: it need not wait for what others have sent.
        """
        if self._returns:
            self._ended[upstream] = epoch
            self._return_marker(upstream)

    def _return_marker(self, upstream: Peer) -> None:
        if upstream in self._ended and not self.credits.inside(upstream):
            self.outputs.end_epoch(self._ended.pop(upstream), [upstream])
            self._send(upstream)

    def begin_next_epoch(self) -> None:
        """Go on with the tuples of the next epoch: all of this one are handed out."""
        self._boundary = self._next_chunk
        self.receiver.next_epoch()

    @property
    def awaits_last_epoch(self) -> bool:
        """Whether tasks have yet to answer chunks of the epoch that ended last."""
        return any(map(self.owes_last_epoch, self._tasks.values()))

    def owes_last_epoch(self, task: TaskView) -> bool:
        """Whether this task has."""
        return bool(task.flights) and task.flights[0].chunk < self._boundary

    def end_epoch(self, epoch: Epoch) -> None:
        """Mark the epoch's end behind its outputs, which are all here, and send the next one's."""
        if not self._returns:
            self.outputs.end_epoch(epoch)
            for destination in self.outputs.destinations:
                self._send(destination)

    def _take_outputs(self, outputs: Sequence[ev.Output], chunk: ChunkId) -> None:
        ahead = self._epochs.unsealed and chunk >= self._boundary and not self._returns
        for output in outputs:
            self.outputs.add(output, ahead=ahead)
        for destination in dict.fromkeys([output.destination for output in outputs]):
            self._send(destination)
            if self._returns and self.outputs.blocked(destination):
                self.receiver.park(destination)

    def _send(self, destination: Peer) -> None:
        for instruction in self.outputs.send(destination, self._epochs.attempt):
            self._emit(instruction)

    def waiting_for(self) -> list[str]:
        """What is under way and cannot go on, in words."""
        waiting = self.receiver.waiting
        waits = [f"{waiting} tuples to be handed out"] * bool(waiting)
        return [*waits, *["outputs to be taken"] * (not self.outputs.empty)]

    # Measured on the way

    def state_measured(self, node: NodeId, size: int) -> None:
        """Take note of how large the state on a node is."""
        self._state_bytes[node] = size
        self.meter.state_bytes(sum(self._state_bytes.values()))

    def forget_node(self, node: NodeId) -> None:
        """Leave out the state on a node, from the next measurement on."""
        self._state_bytes.pop(node, None)

    def measure(self, now: float) -> ExecutorMetrics:
        """What was measured since the last time, up to now."""
        self.end_interval(now)
        metrics = self.meter.snapshot(now, int(self._inside.sum()))
        self.meter.reset(now)
        return metrics

    def loads(self) -> FloatArray:
        """The load of each shard, in cores: work as of the last interval, and backlog."""
        self._count_work()
        return self._loads.loads(self._inside, self._config.backlog_horizon_s)

    def steady_loads(self) -> FloatArray:
        """The same over a longer time: steadier, and later to tell of a change."""
        self._count_work()
        return self._steady.loads(self._inside, self._config.backlog_horizon_s)

    def noise(self, tasks: int) -> float:
        """How far the loads of this many tasks are off by chance, as a share of the mean."""
        return self._loads.noise(tasks, float(self.loads().sum()))

    def steady_noise(self, tasks: int) -> float:
        """The same of the steady loads."""
        return self._steady.noise(tasks, float(self.steady_loads().sum()))

    @property
    def rest_is_known(self) -> bool:
        """Whether nothing more comes before this epoch ends, nor until the next one is wanted."""
        return self._returns and self._epochs.all_marked

    def rest_s(self) -> FloatArray:
        """What is left to do of the tuples that are here, in seconds of work per shard."""
        self._count_work()
        return self._inside * self._steady.costs()

    def has_changed(self) -> None:
        """Restart the steady loads: the load is not what it was."""
        self._steady.restart(self._loads)

    def end_interval(self, now: float) -> None:
        """Fold what was done since the last interval into the loads."""
        self._count_work()
        self._loads.update(now)
        self._steady.update(now)

    def _count_work(self) -> None:
        if self._arrived_singly:
            self._inside += np.bincount(self._arrived_singly, minlength=self._config.shards)
            self._arrived_singly.clear()
        done = self._work.take()
        if done is not None:
            self._inside -= done.rows
            self._loads.add(done.rows, done.seconds)
            self._steady.add(done.rows, done.seconds)
            self.meter.add_work(done)


def require_size(what: str, size: Any) -> None:
    """Refuse a size that is not a whole number, or negative."""
    if (type(size) is not int and not isinstance(size, (int, np.integer))) or size < 0:
        raise BadValueError(f"size of {what}", "be a whole number, at least 0", size)
