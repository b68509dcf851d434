"""The elastic executor: the main process of the paper's section 3, as a state machine without I/O.

`ElasticExecutor.handle(event, now)` takes an event and returns instructions. It has no clock, no
threads, no sockets: live processes, the simulator and the checker drive it, one event at a time.
It refuses an event before anything has changed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from enum import Enum
from typing import Any

from elasticutor.core.executor.config import ExecutorConfig
from elasticutor.core.executor.datapath import Answer, DataPath, require_size
from elasticutor.core.executor.epoch_end import EpochEnd
from elasticutor.core.executor.epochs import Epochs
from elasticutor.core.executor.reassignment import Move, MovePhase, Reassigner
from elasticutor.core.executor.rebalancing import Rebalancer
from elasticutor.core.executor.rollback import Rollback
from elasticutor.core.executor.routing import RoutingTable
from elasticutor.core.executor.tasks import TaskSet, TaskStatus, TaskView
from elasticutor.core.measure.load import FloatArray
from elasticutor.core.measure.metrics import ExecutorMetrics
from elasticutor.core.protocol import events as ev
from elasticutor.core.protocol import instructions as do
from elasticutor.core.protocol.ids import NodeId, Peer, ShardId, TaskId
from elasticutor.errors import BadValueError, OutOfOrderError, ProtocolError, UnknownTaskError


class Phase(Enum):
    """What the executor does as a whole."""

    IDLE = "idle"
    """No attempt has begun yet."""
    ROLLING_BACK = "rolling back"
    """Tasks forget, stores return to the base."""
    RUNNING = "running"
    FAILED = "failed"
    """The attempt cannot go on; only a new one helps."""


class ElasticExecutor:
    """Owner of a fixed key subspace, with any number of cores on any number of nodes.

    Example:
        >>> executor = ElasticExecutor(ExecutorConfig(shards=4), NodeId("n0"), now=0.0)
        >>> executor.handle(ev.CoreGranted(NodeId("n0")), now=0.0)[-1]
        StartTask(node='n0', task=0)
        >>> executor.handle(ev.TaskStarted(TaskId(0)), now=0.1)
        []
        >>> begun = ev.AttemptBegun(attempt=1, base=0, epoch=1, upstreams=("source",))
        >>> executor.handle(begun, now=0.2)
        [ResetTask(task=0, attempt=1)]
    """

    def __init__(self, config: ExecutorConfig, node: NodeId, now: float) -> None:
        self.config = config
        self.node = node
        self.phase = Phase.IDLE
        self.epochs = Epochs()
        self.tasks: dict[TaskId, TaskView] = {}
        self._out: list[do.Instruction] = []
        self._data = DataPath(config, self.tasks, self.epochs, self._emit, now)
        self._moves = Reassigner(config.shards, self._data.receiver, self.tasks, self._emit)
        receiver, meter = self._data.receiver, self._data.meter
        self._task_set = TaskSet(self.tasks, self.epochs, receiver, meter, self._emit)
        self._rollback = Rollback(self._task_set.stores, self._emit)
        parts = (self._data, self._moves, self._task_set)
        self._epoch_end = EpochEnd(self.epochs, *parts, self._emit)
        self._rebalancer = Rebalancer(config, *parts, self.epochs, self._emit, self._after_moves)
        self._now = now

    def handle(self, event: ev.Event, now: float) -> list[do.Instruction]:
        """Return the instructions that an event leads to, in order.

        Raises:
            ProtocolError: The event is not allowed here. A `StaleAttemptError` is late, from an
                attempt or a move that was given up: drop it. Others are mistakes.
            BadValueError: It carries a value that cannot be.
        """
        handler = _HANDLERS.get(type(event))
        if handler is None:
            raise BadValueError("event", "be one of elasticutor.core.protocol.events", event)
        if not self._now <= now < math.inf:
            self._require_time(now)
        self._out.clear()
        handler(self, event, now)
        self._now = now
        return self._out.copy()

    # What hosts, monitors and tests look at

    @property
    def table(self) -> RoutingTable:
        """Which task owns which shard now."""
        return self._moves.table

    @property
    def moves(self) -> tuple[Move, ...]:
        """The shards on the move now."""
        return tuple(self._moves.moves.values())

    @property
    def homes(self) -> tuple[NodeId | None, ...]:
        """The node with the state of each shard."""
        return tuple(self._moves.homes)

    @property
    def waiting(self) -> int:
        """How many tuples of the open epoch wait to be handed to a task."""
        return self._data.receiver.waiting

    @property
    def inside_rows(self) -> int:
        """How many tuples of the open epoch have arrived and are not processed."""
        flights = (flight for task in self.tasks.values() for flight in task.flights)
        return self.waiting + sum(flight.rows for flight in flights)

    def starving(self) -> list[TaskId]:
        """Tasks with room for work that waits for them: none, whenever an event is handled."""
        return self._data.starving()

    def shard_loads(self) -> FloatArray:
        """The load of every shard, in cores: measured work and backlog."""
        return self._data.loads()

    def task_loads(self) -> dict[TaskId, float]:
        """The load of every task, in cores: measured work of its shards, and their backlog."""
        loads = self._data.loads()
        shares = dict.fromkeys(self.tasks, 0.0)
        for owner, load in zip(self.table.owners, loads.tolist(), strict=True):
            if owner in shares:
                shares[owner] += load
        return shares

    def measure(self, now: float) -> ExecutorMetrics:
        """What was measured since the last time, up to now."""
        self._require_time(now)
        self._now = now
        return self._data.measure(now)

    def inside_bytes(self, upstream: Peer) -> int:
        """What this upstream has sent and is not processed yet."""
        return self._data.credits.inside(upstream)

    def buffered_bytes(self, upstream: Peer) -> int:
        """Outputs that wait on account of this upstream."""
        return self._data.outputs.buffered(upstream)

    @property
    def outputs_sent(self) -> bool:
        """Whether all outputs there are have been sent, so that none waits for credit."""
        return self._data.outputs.empty

    def waiting_for(self) -> list[str]:
        """Why nothing happens: what each component waits for, in words."""
        at = f"{self.phase.value}, attempt {self.epochs.attempt}, epoch {self.epochs.open}"
        parts = (self._rollback, self._task_set, self._moves, self._data, self.epochs)
        return [at, *(wait for part in parts for wait in part.waiting_for())]

    def overdue(self, now: float, patience_s: float) -> list[str]:
        """What has not been answered for so long, by whom: moves, and tasks that start.

        The coordinator watches the ends of epochs and the beginnings of attempts.
        """
        before = now - patience_s
        return [*self._moves.overdue(before), *self._task_set.overdue(before)]

    # Attempts

    def _on_attempt_begun(self, event: ev.AttemptBegun, now: float) -> None:
        self.epochs.require_next(event.attempt, event.base, event.epoch)
        if not event.upstreams or type(event.upstreams) is not tuple:
            raise BadValueError("upstreams", "be a tuple of at least one", event.upstreams)
        goes_on = self.phase is Phase.RUNNING and self.epochs.continues(event.base)
        known = event.base in (self.epochs.committed, self.epochs.prepared)
        self.epochs.begin(event.attempt, event.base, event.epoch, frozenset(event.upstreams))
        self._data.open(event.upstreams, event.destinations)
        if goes_on:
            self._epoch_end.commit_stores()
            self._set_out(now)
            return
        if not known:  # no store here has that state any more: the checkpoint must
            self._moves.homes = [None] * self.config.shards
            self._moves.unplace([ShardId(shard) for shard in range(self.config.shards)])
        self._roll_back(now)

    def _roll_back(self, now: float) -> None:
        self.phase = Phase.ROLLING_BACK
        self._moves.cancel()
        self._task_set.forget_flights()
        self._moves.settle()
        running = [task.id for task in self._task_set.running]
        self._rollback.begin(self.epochs.attempt, self.epochs.committed, running)
        self._go_on_rolling_back(now)

    def _go_on_rolling_back(self, now: float) -> None:
        if self.phase is Phase.ROLLING_BACK and self._rollback.proceed(self._moves.homes):
            self._set_out(now)

    def _on_task_reset(self, event: ev.TaskReset, now: float) -> None:
        self.epochs.require_attempt(event.attempt)
        self._task_set.require(event.task)
        self._rollback.task_reset(event.task)
        self._go_on_rolling_back(now)

    def _on_store_rolled_back(self, event: ev.StoreRolledBack, now: float) -> None:
        self.epochs.require_attempt(event.attempt)
        self._task_set.require_store(event.node)
        self._rollback.store_rolled_back(event.node)
        self._go_on_rolling_back(now)

    def _set_out(self, now: float) -> None:
        self.phase = Phase.RUNNING
        self._emit(do.ReportReady(self.epochs.attempt))
        self._arrange(now)
        self._retire_all(now)

    def _fail(self, reason: str) -> None:
        """Give the attempt up; `AttemptBegun` is what helps."""
        self.phase = Phase.FAILED
        self._moves.cancel()
        self._data.receiver.clear()
        self._task_set.forget_flights()
        self._emit(do.ReportFailure(self.epochs.attempt, reason))

    # Cores

    def _on_core_granted(self, event: ev.CoreGranted, now: float) -> None:
        self._task_set.grant(event.node, now)

    def _on_task_started(self, event: ev.TaskStarted, now: float) -> None:
        self._task_set.started(event.task)
        self._data.end_interval(now)
        if self.phase is Phase.RUNNING:
            self._rebalancer.use_new_core(now)

    def _on_core_taken(self, event: ev.CoreTaken, now: float) -> None:
        task = self._task_set.require(event.task)
        self._task_set.require_replaceable(task)
        if task.running:
            task.status = TaskStatus.LEAVING
            self._arrange(now)
            self._retire(task, now)
        else:
            self._task_set.dismiss(task, now)

    def _retire(self, task: TaskView, now: float) -> None:
        """Let a leaving task go as soon as nothing depends on it."""
        if task.status is not TaskStatus.LEAVING or task.flights:
            return
        awaited = task.id in self._rollback.resetting or task.id in self.epochs.still_to_flush
        if not awaited and not self._moves.involved(task.id):
            self._task_set.dismiss(task, now)
            if self.phase is Phase.RUNNING and self.epochs.all_marked:
                self._data.feed_all(now)  # fewer tasks share the rest of the epoch

    def _retire_all(self, now: float) -> None:
        for task in list(self.tasks.values()):
            self._retire(task, now)

    # Losses

    def _on_task_lost(self, event: ev.TaskLost, now: float) -> None:
        task = self._task_set.require(event.task)
        if self.phase is Phase.RUNNING and task.running:
            self._fail(f"task {task.id} on node {task.node!r} was lost")
        self._lose(task, now)
        self._go_on_rolling_back(now)

    def _on_node_lost(self, event: ev.NodeLost, now: float) -> None:
        self._task_set.require_store(event.node)
        if event.node == self.node:
            hint = "without its main process it is gone"
            raise ProtocolError("node lost", "be a remote one", event.node, hint)
        tasks = self._task_set.on(event.node)
        needed = any(task.running for task in tasks) or event.node in self._moves.homes
        needed |= bool(self._moves.touching(event.node))
        needed |= event.node in (self.epochs.persisting or ())
        if self.phase is Phase.RUNNING and needed:
            self._fail(f"node {event.node!r} was lost with {len(tasks)} of the executor's tasks")
        self._task_set.stores.discard(event.node)
        self._data.forget_node(event.node)
        self._moves.forget_node(event.node)
        self._rollback.forget_node(event.node)
        for task in tasks:
            self._lose(task, now)
        self._go_on_rolling_back(now)

    def _lose(self, task: TaskView, now: float) -> None:
        self._rollback.forget_task(task.id)
        self._moves.unplace(self.table.shards_of(task.id))
        self._task_set.remove(task, now)

    def _on_attempt_failed(self, event: ev.AttemptFailed, now: float) -> None:
        self.epochs.require_attempt(event.attempt)
        if self.phase is not Phase.FAILED:
            self._fail(event.reason)

    # The data path

    def _on_tuples_arrived(self, event: ev.TuplesArrived, now: float) -> None:
        self.epochs.require_attempt(event.attempt)
        routed = self._data.require_tuples(event)
        if self.phase is Phase.RUNNING:
            self._data.arrive(event, routed, now)

    def _on_answer(self, event: Answer, now: float) -> None:
        self.epochs.require_attempt(event.attempt)
        if self.phase is not Phase.RUNNING:
            return
        task = self._task_set.require(event.task)
        self._data.require_answer(task, event)
        self._data.answered(task, event, now)
        if type(event) is ev.ChunkProgressed:
            return
        if self.epochs.ends:
            self._try_to_end_epoch(now)
        if task.status is TaskStatus.LEAVING:
            self._retire(task, now)

    def _on_credit_granted(self, event: ev.CreditGranted, now: float) -> None:
        self.epochs.require_attempt(event.attempt)
        self._data.require_credit(event)
        if self.phase is Phase.RUNNING:
            self._data.credit(event, now)
            self._try_to_end_epoch(now)

    # Moves

    def _on_balance_due(self, event: ev.BalanceDue, now: float) -> None:
        if self.phase is Phase.RUNNING:
            self._data.end_interval(now)
            self._rebalancer.balance(now)

    def _arrange(self, now: float) -> None:
        if self.phase is Phase.RUNNING:
            self._rebalancer.arrange(now)

    def _after_moves(self, now: float) -> None:
        """A shard may have found its task: its tuples flow, and nothing waits for it any more."""
        self._moves.hold_labelled()
        self._data.feed_all(now)
        self._try_to_end_epoch(now)

    def _on_move_asked(self, event: ev.MoveAsked, now: float) -> None:
        self.table.require(event.shard)
        task = self._task_set.require(event.destination)
        if not task.staying:
            raise UnknownTaskError("destination", "be an active task", task.status.value)
        if self.phase is not Phase.RUNNING:
            raise OutOfOrderError("executor", "be running", self.phase.value)
        if any(move.shard == event.shard for move in self.moves):
            raise OutOfOrderError(f"shard {event.shard}", "not be on the move", "a second request")
        if self.table.owner(event.shard) in (event.destination, None):
            return
        base = self.epochs.committed
        if not self._moves.start(event.shard, event.destination, "asked", base, now):
            raise OutOfOrderError(
                f"old copy of shard {event.shard} on {task.node!r}", "be dropped first", task.id
            )
        self._moves.hold_labelled()

    def _on_shard_opened(self, event: ev.ShardOpened, now: float) -> None:
        self._moves.opened(self._moves.require(event.move, MovePhase.OPENING))

    def _on_shard_written(self, event: ev.ShardWritten, now: float) -> None:
        require_size("written state", event.size)
        self._moves.written(self._moves.require_from(event, MovePhase.WRITING), now)

    def _on_copy_arrived(self, event: ev.CopyArrived, now: float) -> None:
        require_size("copy", event.size)
        self._moves.copied(self._moves.require(event.move, MovePhase.COPYING), event.size, now)

    def _on_label_reached(self, event: ev.LabelReached, now: float) -> None:
        require_size("flushed state", event.size)
        move = self._moves.require_from(event, MovePhase.DRAINING)
        left = self.tasks[event.task].unanswered(move.shard)
        if left != event.returned:
            must = f"answer its chunks first, or return {left} tuples of shard {move.shard}"
            raise OutOfOrderError(f"task {event.task}", must, event)
        self._moves.drained(move, now)
        self._moved(move, now)

    def _on_state_arrived(self, event: ev.StateArrived, now: float) -> None:
        require_size("state", event.size)
        move = self._moves.require(event.move, MovePhase.MIGRATING, MovePhase.RESTORING)
        self._moves.arrived(move, event.size, now)
        self._moved(move, now)

    def _moved(self, move: Move, now: float) -> None:
        self._arrange(now)
        self._after_moves(now)
        source = None if move.source is None else self.tasks.get(move.source)
        if source is not None:
            self._retire(source, now)

    def _on_shard_dropped(self, event: ev.ShardDropped, now: float) -> None:
        self._task_set.require_store(event.node)
        self._moves.dropped(event.node, event.shard)
        self._arrange(now)

    # Epochs

    def _on_marker_arrived(self, event: ev.MarkerArrived, now: float) -> None:
        self.epochs.require_attempt(event.attempt)
        self._data.credits.require(event.upstream)
        if self.phase is Phase.RUNNING:
            self._epoch_end.mark(event, now)
            self._try_to_end_epoch(now)

    def _try_to_end_epoch(self, now: float) -> None:
        if self.phase is not Phase.RUNNING:
            return
        ended = self._epoch_end.try_to_flush(now)
        sealed = self._epoch_end.try_to_seal()
        if ended:
            self._arrange(now)
        if ended or sealed:  # the outputs of a sealed epoch may have been what was in the way
            self._data.feed_all(now)

    def _on_task_flushed(self, event: ev.TaskFlushed, now: float) -> None:
        self.epochs.require_attempt(event.attempt)
        if self.phase is not Phase.RUNNING:
            return
        self._task_set.require(event.task)
        if self._epoch_end.flushed(event, now):
            self._retire_all(now)

    def _on_increment_persisted(self, event: ev.IncrementPersisted, now: float) -> None:
        self.epochs.require_attempt(event.attempt)
        require_size("increment", event.size)
        if self.phase is Phase.RUNNING:
            self._task_set.require_store(event.node)
            self._epoch_end.persisted(event)

    def _on_epoch_committed(self, event: ev.EpochCommitted, now: float) -> None:
        self.epochs.require_attempt(event.attempt)
        if self.phase is Phase.RUNNING:
            self._epoch_end.committed(event)

    # Measurements

    def _on_state_measured(self, event: ev.StateMeasured, now: float) -> None:
        self._task_set.require_store(event.node)
        require_size("state", event.size)
        self._data.state_measured(event.node, event.size)

    # Odds and ends

    def _emit(self, instruction: do.Instruction) -> None:
        self._out.append(instruction)

    def _require_time(self, now: float) -> None:
        if not self._now <= now < math.inf:
            raise BadValueError("now", f"be finite, and {self._now} or later", now)


_HANDLERS: dict[type, Callable[[ElasticExecutor, Any, float], None]] = {
    ev.AttemptBegun: ElasticExecutor._on_attempt_begun,
    ev.EpochCommitted: ElasticExecutor._on_epoch_committed,
    ev.CoreGranted: ElasticExecutor._on_core_granted,
    ev.CoreTaken: ElasticExecutor._on_core_taken,
    ev.BalanceDue: ElasticExecutor._on_balance_due,
    ev.MoveAsked: ElasticExecutor._on_move_asked,
    ev.TaskLost: ElasticExecutor._on_task_lost,
    ev.NodeLost: ElasticExecutor._on_node_lost,
    ev.AttemptFailed: ElasticExecutor._on_attempt_failed,
    ev.TuplesArrived: ElasticExecutor._on_tuples_arrived,
    ev.MarkerArrived: ElasticExecutor._on_marker_arrived,
    ev.CreditGranted: ElasticExecutor._on_credit_granted,
    ev.ChunkProcessed: ElasticExecutor._on_answer,
    ev.ChunkProgressed: ElasticExecutor._on_answer,
    ev.ShardWritten: ElasticExecutor._on_shard_written,
    ev.LabelReached: ElasticExecutor._on_label_reached,
    ev.TaskFlushed: ElasticExecutor._on_task_flushed,
    ev.TaskReset: ElasticExecutor._on_task_reset,
    ev.TaskStarted: ElasticExecutor._on_task_started,
    ev.ShardOpened: ElasticExecutor._on_shard_opened,
    ev.CopyArrived: ElasticExecutor._on_copy_arrived,
    ev.StateArrived: ElasticExecutor._on_state_arrived,
    ev.ShardDropped: ElasticExecutor._on_shard_dropped,
    ev.IncrementPersisted: ElasticExecutor._on_increment_persisted,
    ev.StoreRolledBack: ElasticExecutor._on_store_rolled_back,
    ev.StateMeasured: ElasticExecutor._on_state_measured,
}
