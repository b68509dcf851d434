"""The main process of an elastic executor: one event loop around the core's state machine.

It decides nothing. What arrives becomes an event for `ElasticExecutor.handle`, and what that
answers is sent to tasks, nodes, upstreams, destinations and the driver.
"""

from __future__ import annotations

import contextlib
import pickle
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from elasticutor.core.executor.batch import MOST_SINGLES, ShardArray
from elasticutor.core.executor.executor import ElasticExecutor
from elasticutor.core.executor.tasks import TaskStatus, core_changes
from elasticutor.core.keys import shard_hasher, shards_of
from elasticutor.core.protocol import events as ev
from elasticutor.core.protocol import instructions as do
from elasticutor.core.protocol.batch_protocol import BeginBatch
from elasticutor.core.protocol.coordinator import (
    AskToRest,
    AskWhy,
    AssignCores,
    BeginAttempt,
    CommitEpoch,
    ParticipantRested,
    WaitExplained,
)
from elasticutor.core.protocol.giver import Drain, Release
from elasticutor.core.protocol.ids import NodeId, Peer, TaskId
from elasticutor.core.protocol.repartition import (
    ConfirmOutputs,
    DrainExecutor,
    OutputsTaken,
    ReleaseShards,
)
from elasticutor.errors import (
    LATE,
    BadValueError,
    OutOfOrderError,
    ProtocolError,
)
from elasticutor.process.actor import Participant
from elasticutor.process.chunks import Chunks
from elasticutor.process.failures import reporting
from elasticutor.process.routes import greetings, require_schema
from elasticutor.process.slices import ask_for_short_slices
from elasticutor.process.specs import ExecutorSpec, TaskSpec
from elasticutor.transport import messages as say
from elasticutor.transport.channels import Endpoint
from elasticutor.transport.codec import (
    Credit,
    Result,
    RowResult,
    RowTuples,
    Tuples,
    tuples,
)
from elasticutor.transport.mailbox import DRIVER, Mailbox
from elasticutor.transport.row_packets import RowPacket

_IDLE_S = 1.0


def run_executor(payload: bytes) -> None:
    """Run the main process that the payload describes, until the driver ends it."""
    spec: ExecutorSpec = pickle.loads(payload)  # noqa: S301 - it came from the driver, over the node
    ask_for_short_slices()
    mail = Mailbox.at(spec.site, spec.who)
    with reporting(mail, spec.site.run, spec.who):
        MainProcess(spec, mail).run()


class MainProcess(Participant):
    """Drives one elastic executor."""

    def __init__(self, spec: ExecutorSpec, mail: Mailbox) -> None:
        super().__init__(mail, "an executor", spec.site, spec.who)
        self._spec = spec
        self._run = spec.site.run
        self._core = ElasticExecutor(spec.config, spec.site.node, time.monotonic())
        self._schema = spec.operator.input
        self._chunks = Chunks(self._schema)
        self._few_shards = shard_hasher(spec.config.shards)
        self._greeted: set[str] = set()
        self._tasks: dict[TaskId, say.TaskUp] = {}
        self._asked_at: dict[TaskId, float] = {}  # when a core was granted or taken
        self._registered = False
        self._resting = self._rested = False
        self._wanted = spec.cores
        self._shares_store = spec.store != spec.who
        self._returns = spec.config.outputs == "return"
        self._destinations = tuple(p for route in spec.operator.routes for p in route.peers)
        self._drain = Drain(spec.who, self._destinations)
        self._release = Release(spec.who)
        for node, endpoint in spec.nodes.items():
            mail.know(_node(node), endpoint)

    def run(self) -> None:
        """Work until the driver says `Finish`."""
        self._assign(self._spec.cores)
        tempo = self._spec.tempo
        self.every(tempo.balance_s, self._balance)
        self.every(tempo.measure_s, self._measure)
        self.every(tempo.measure_s, self._look_for_delays)
        self.serve()

    def work(self) -> float:
        """Rest, if asked to and nothing is on the move."""
        if self._resting:
            self._try_to_rest()
        return _IDLE_S

    def _look_for_delays(self) -> None:
        """Give the attempt up when an answer is overdue, and name what owes it."""
        patience_s = self._spec.tempo.patience_s
        late = [] if self._resting else self._core.overdue(time.monotonic(), patience_s)
        if late:
            reason = f"waited {patience_s:g} s for {'; '.join(late)}"
            with contextlib.suppress(*LATE):
                self._tell(ev.AttemptFailed(self._core.epochs.attempt, reason))

    def _balance(self) -> None:
        if self._shares_store:  # balanced by the driver, with all others of its operator
            loads = say.ShardLoadsMeasured(self._run, self._spec.who, self._core.shard_loads())
            self._mail.send(DRIVER, loads)
        if not self._resting:
            self._tell(ev.BalanceDue())

    # What arrives

    def take(self, message: Any) -> None:
        """Handle a message; one that comes late is ignored, one that cannot be is dropped."""
        handler = self.handlers.get(type(message))
        if handler is None:
            super().take(message)
            return
        try:
            handler(self, message)
        except LATE:
            return
        except BadValueError as error:
            self._mail.drop(str(error))

    def _tell(self, event: Any) -> None:
        """Let the core handle an event, and carry out what it answers."""
        try:
            orders = self._core.handle(event, time.monotonic())
        except LATE:
            raise
        except (ProtocolError, BadValueError) as error:
            if isinstance(event, ev.MoveAsked):  # a wish, which nothing waits for
                self.report(say.MoveRefused(event.shard, event.destination, str(error)))
                return
            failed = ev.AttemptFailed(self._core.epochs.attempt, f"{type(event).__name__}: {error}")
            orders = self._core.handle(failed, time.monotonic())
        for order in orders:
            _ORDERS[type(order)](self, order)

    def _on_hello(self, message: say.Hello) -> None:
        require_schema(message, self._schema)
        self._greeted.add(message.sender)

    def _on_join(self, message: say.Join) -> None:
        if message.attempt == self._core.epochs.attempt:
            self._mail.know(message.sender, message.endpoint)
            self._on_hello(say.Hello(message.sender, message.schema))

    def _on_tuples(self, message: Tuples | RowTuples) -> None:
        packet = message.packet
        if message.sender not in self._greeted or len(packet.hashes) != packet.rows:
            raise BadValueError("tuples", "follow a greeting and carry hashes", message.sender)
        shards: ShardArray | list[int]
        if type(packet) is RowPacket and packet.rows <= MOST_SINGLES:
            shards = self._few_shards(packet.hashes)
        else:
            hashes = np.asarray(packet.hashes, np.uint64)
            shards = shards_of(hashes, self._spec.config.shards)
        event = ev.TuplesArrived(message.sender, message.attempt, packet, shards, message.size)
        self._tell(event)

    def _on_credit(self, message: Credit) -> None:
        self._tell(ev.CreditGranted(message.sender, message.attempt, message.total))
        if self._shares_store:
            self._go_on_draining()

    def _on_marker(self, message: say.Marker) -> None:
        self._tell(ev.MarkerArrived(message.sender, message.attempt, message.epoch))

    def _on_result(self, message: Result | RowResult) -> None:
        outputs = message.outputs
        if self._returns:
            sender = self._sender_of(message)
            if sender is not None:
                outputs = [ev.Output(sender, out.batch, out.size, out.rows) for out in outputs]
        before = self._core.inside_rows if self._shares_store else 0
        chunk, did = message.chunk, (message.useful_s, outputs, message.row_seconds)
        if message.rows:
            progress = (message.task, message.attempt, chunk, message.rows)
            self._tell(ev.ChunkProgressed(*progress, *did))
        else:
            self._tell(ev.ChunkProcessed(message.task, message.attempt, chunk, *did))
        if self._shares_store:
            self._drain.processed(before - self._core.inside_rows)
            self._go_on_draining()

    def _sender_of(self, message: Result | RowResult) -> Peer | None:
        """The upstream that had sent what a chunk was made of; tasks do not know it."""
        task = self._core.tasks.get(message.task)
        if task is None or not task.flights:
            return None
        return task.flights[0].parts[0].batch.upstream

    def _on_begin_batch(self, order: BeginBatch) -> None:
        for gone in self._greeted:  # every batch has upstreams of its own
            self._mail.forget(gone)
        self._greeted.clear()
        begun = ev.AttemptBegun(order.attempt, order.base, order.epoch, order.upstreams)
        self._tell(begun)

    def _on_begin(self, order: BeginAttempt) -> None:
        self._resting = False  # if it was asked to rest, that was before something was lost
        operator = self._spec.operator
        for destination, hello in greetings(self._spec.who, operator.routes, operator.output):
            self._mail.send(destination, hello)
        self._tell(
            ev.AttemptBegun(
                order.attempt,
                order.base,
                order.epoch,
                self._spec.upstreams,
                self._destinations,
            )
        )

    def _on_commit(self, order: CommitEpoch) -> None:
        self._tell(ev.EpochCommitted(order.attempt, order.epoch))

    def _on_peers(self, message: say.Peers) -> None:
        self._mail.know_all(message.book)

    def _on_explain(self, message: AskWhy) -> None:
        waits = (*self._core.waiting_for(), *self._drain.waiting_for())
        self.report(WaitExplained(self._spec.who, waits))

    def _on_move_asked(self, event: ev.MoveAsked) -> None:
        if self._resting:
            refused = say.MoveRefused(event.shard, event.destination, "the run is drained")
            self.report(refused)
        else:
            self._tell(event)

    # Shards that change their executor, where upstreams hold the table

    def _on_drain(self, order: DrainExecutor) -> None:
        self._drain.begin(order)
        self._go_on_draining()

    def _go_on_draining(self) -> None:
        for step in self._drain.proceed(sent=self._core.outputs_sent):
            if isinstance(step, ConfirmOutputs):
                self._mail.send(step.destination, step)
            else:
                self.report(step)

    def _on_outputs_taken(self, message: OutputsTaken) -> None:
        try:
            self._report_if(self._drain.taken(message))
        except OutOfOrderError as error:
            self._mail.drop(str(error))

    def _on_release(self, order: ReleaseShards) -> None:
        (task,) = self._core.tasks
        for label in self._release.begin(order, task):
            self._mail.send(_task(task), label)

    def _on_label_reached(self, event: ev.LabelReached) -> None:
        if self._release.awaits(event.move):
            self._report_if(self._release.reached(event.move))
        else:
            self._tell(event)

    def _report_if(self, what: Any) -> None:
        if what is not None:
            self.report(what)

    def _on_rest(self, message: AskToRest) -> None:
        self._resting = True
        self._rested = False

    def _try_to_rest(self) -> None:
        if self._resting and not self._rested and not self._core.moves:
            self._rested = True
            self.report(ParticipantRested(self._spec.who))

    def _on_finish(self, message: say.Finish) -> None:
        for task in self._tasks:
            self._mail.send(_task(task), say.Close())
        self.finish()

    # Cores and tasks

    def _on_task_lost(self, event: ev.TaskLost) -> None:
        self._tasks.pop(event.task, None)
        self._mail.forget(_task(event.task))
        self._tell(event)
        self._tell_staff(f"task {event.task} ended", event.task)
        self._assign(self._wanted)

    def _on_node_lost(self, event: ev.NodeLost) -> None:
        gone = [task.id for task in self._core.tasks.values() if task.node == event.node]
        self._mail.forget(_node(event.node))
        for task in gone:
            self._tasks.pop(task, None)
            self._mail.forget(_task(task))
        self._tell(event)
        for task in gone:
            self._tell_staff(f"task {task} ended", task)

    def _assign(self, cores: Mapping[NodeId, int]) -> None:
        self._wanted = cores
        tasks = {
            task.id: task.node
            for task in self._core.tasks.values()
            if task.status is not TaskStatus.LEAVING
        }
        for change in core_changes(tasks, self._core.task_loads(), cores):
            if isinstance(change, ev.CoreTaken):
                self._asked_at[change.task] = time.monotonic()
            self._tell(change)

    def _on_task_up(self, message: say.TaskUp) -> None:
        self._mail.know(_task(message.task), message.endpoint)
        self._tasks[message.task] = message
        self._tell(ev.TaskStarted(message.task))
        self._tell_staff(f"task {message.task} started", message.task)
        if not self._registered and all(task.running for task in self._core.tasks.values()):
            self._registered = True
            self.register()

    def _on_task_failed(self, message: say.TaskFailed) -> None:
        if 0 < message.attempt < self._core.epochs.attempt:
            return  # what it worked on was given up
        who = f"{self._spec.who}, task {message.task}"
        self._mail.send(DRIVER, say.Failed(self._run, who, message.error, message.text))
        self._tell(ev.AttemptFailed(message.attempt, message.text))

    def _seen(self) -> dict[TaskId, say.TaskSeen]:
        loads = self._core.task_loads()
        shards = Counter(self._core.table.owners)
        return {
            task.id: say.TaskSeen(
                task.node,
                task.status.value,
                loads[task.id],
                shards[task.id],
                self._tasks[task.id].pid if task.id in self._tasks else 0,
            )
            for task in self._core.tasks.values()
        }

    def _tell_staff(self, cause: str, task: TaskId) -> None:
        seconds = time.monotonic() - self._asked_at.pop(task, time.monotonic())
        self._mail.send(DRIVER, say.Staff(self._run, self._spec.who, self._seen(), cause, seconds))

    def _measure(self) -> None:
        metrics = self._core.measure(time.monotonic())
        self._mail.send(
            DRIVER,
            say.Measured(self._run, self._spec.who, metrics, self._seen(), self._mail.dropped),
        )

    # What the core asks for

    def _dispatch(self, order: do.Dispatch) -> None:
        self._mail.send(_task(order.task), self._chunks.chunk(order))

    def _to_task(self, order: Any) -> None:
        self._mail.send(_task(order.task), order)

    def _to_node(self, order: Any, payload: bytes = b"", task: Endpoint | None = None) -> None:
        store = self._spec.store if self._shares_store else ""
        message = say.ToNode(
            self._run,
            self._spec.who,
            self._mail.endpoint,
            order,
            payload,
            task,
            store,
            self._spec.site.life,
        )
        self._mail.send(_node(order.node), message)

    def _open_store(self, order: do.OpenStore) -> None:
        keeping = self._spec.keeping
        self._to_node(order, b"" if keeping is None else pickle.dumps(keeping))

    def _start_task(self, order: do.StartTask) -> None:
        self._asked_at[order.task] = time.monotonic()
        spec = self._spec
        task = TaskSpec(
            spec.site, spec.who, spec.number, order.task, spec.operator, self._mail.endpoint
        )
        self._to_node(order, pickle.dumps(task, pickle.HIGHEST_PROTOCOL))

    def _end_task(self, order: do.EndTask) -> None:
        task = self._tasks.pop(order.task, None)
        self._to_node(order, task=task.endpoint if task else None)
        self._mail.forget(_task(order.task))
        self._tell_staff(f"task {order.task} ended", order.task)

    def _grant(self, order: do.GrantCredit) -> None:
        self._mail.send(order.upstream, Credit(self._spec.who, order.attempt, order.total))

    def _emit(self, order: do.Emit) -> None:
        self._mail.send(
            order.destination, tuples(self._spec.who, order.attempt, order.size, order.batch)
        )

    def _emit_marker(self, order: do.EmitMarker) -> None:
        marker = say.Marker(self._spec.who, order.attempt, order.epoch)
        self._mail.send(order.destination, marker)


def _task(task: TaskId) -> str:
    return f"task {task}"


def _node(node: NodeId) -> str:
    return f"node {node}"


_FROM_OTHERS = (
    ev.ShardWritten,
    ev.TaskFlushed,
    ev.TaskReset,
    ev.ShardOpened,
    ev.CopyArrived,
    ev.StateArrived,
    ev.ShardDropped,
    ev.IncrementPersisted,
    ev.StoreRolledBack,
    ev.StateMeasured,
    ev.AttemptFailed,
)
"""Events of the core that tasks, nodes, upstreams and the driver send as they are."""

MainProcess.handlers = {
    **dict.fromkeys(_FROM_OTHERS, MainProcess._tell),
    ev.LabelReached: MainProcess._on_label_reached,
    DrainExecutor: MainProcess._on_drain,
    OutputsTaken: MainProcess._on_outputs_taken,
    ReleaseShards: MainProcess._on_release,
    say.Hello: MainProcess._on_hello,
    say.Join: MainProcess._on_join,
    BeginBatch: MainProcess._on_begin_batch,
    Tuples: MainProcess._on_tuples,
    RowTuples: MainProcess._on_tuples,
    Credit: MainProcess._on_credit,
    say.Marker: MainProcess._on_marker,
    Result: MainProcess._on_result,
    RowResult: MainProcess._on_result,
    BeginAttempt: MainProcess._on_begin,
    CommitEpoch: MainProcess._on_commit,
    say.Peers: MainProcess._on_peers,
    AssignCores: lambda process, order: process._assign(order.cores),
    ev.TaskLost: MainProcess._on_task_lost,
    ev.NodeLost: MainProcess._on_node_lost,
    ev.MoveAsked: MainProcess._on_move_asked,
    AskToRest: MainProcess._on_rest,
    AskWhy: MainProcess._on_explain,
    say.Finish: MainProcess._on_finish,
    say.TaskUp: MainProcess._on_task_up,
    say.TaskFailed: MainProcess._on_task_failed,
}

_ORDERS: dict[type, Callable[[MainProcess, Any], None]] = {
    **dict.fromkeys(do.TO_TASK, MainProcess._to_task),
    **dict.fromkeys(do.TO_NODE, MainProcess._to_node),
    **dict.fromkeys(do.TO_DRIVER, MainProcess.report),
    do.Dispatch: MainProcess._dispatch,
    do.OpenStore: MainProcess._open_store,
    do.StartTask: MainProcess._start_task,
    do.EndTask: MainProcess._end_task,
    do.GrantCredit: MainProcess._grant,
    do.Emit: MainProcess._emit,
    do.EmitMarker: MainProcess._emit_marker,
}
