"""Enacts what `core.protocol.batches` decides about the epochs of operators that a query feeds.

Here are the mail of the query's tasks, the checkpoint and its writer, a thread that asks how large
a stage is, and a clock.
"""

from __future__ import annotations

import logging
import math
import queue
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from elasticutor.core.protocol import batch_protocol as ba
from elasticutor.core.protocol import coordinator as co
from elasticutor.core.protocol import instructions as do
from elasticutor.core.protocol.batch_attempt import BatchPhase
from elasticutor.core.protocol.batches import Batches
from elasticutor.core.protocol.ids import Attempt, Epoch, NodeId, Peer
from elasticutor.core.run import run_events as ev
from elasticutor.core.run.phases import RunError
from elasticutor.core.run.timeouts import Timeouts
from elasticutor.driver.checkpoint_writer import CheckpointWriter
from elasticutor.driver.checkpoints import ends
from elasticutor.driver.queries.reports import Reporter
from elasticutor.driver.scheduling import Interval
from elasticutor.errors import StaleAttemptError
from elasticutor.process.failures import AGAIN, RERUN, BatchError, described
from elasticutor.process.slices import ask_for_short_slices
from elasticutor.process.specs import Tempo
from elasticutor.state.checkpoint import Checkpoint
from elasticutor.transport import messages as say

if TYPE_CHECKING:
    from elasticutor.driver.loop import DriverLoop
    from elasticutor.driver.supervisor import Supervisor

log = logging.getLogger(__name__)


class BatchDriver:
    """Drives the batches of the operators of one query or action, in the driver's loop.

    `count` says of a stage how many tasks it runs, of how many partitions its data is, and which
    exchange its output is for. Without a checkpoint every execution begins with no state.
    """

    durable = False
    """False: a loss ends the run, and the query runs its batch again with another one."""

    def __init__(
        self,
        hub: DriverLoop,
        supervisor: Supervisor,
        count: Callable[[int], tuple[int, int, int | None]],
        checkpoint: Checkpoint | None,
        tempo: Tempo,
        credit_bytes: int,
    ) -> None:
        self._hub = hub
        self._supervisor = supervisor
        self._count = count
        self._checkpoint = checkpoint
        self._tempo = tempo
        self._credit_bytes = credit_bytes
        self._writer = None if checkpoint is None else CheckpointWriter(checkpoint, hub.post)
        self.batches = Batches(
            supervisor.executors,
            committed=Epoch(0) if checkpoint is None else checkpoint.committed,
            first=Attempt(0) if checkpoint is None else checkpoint.first_attempt,
            keeps=checkpoint is not None,
        )
        self.reporter = Reporter(supervisor.plan)
        self.flowing_since = math.inf
        self.idle_since = time.monotonic()
        """When the last task left."""
        self._homes: dict[ba.Ingress, str] = {}
        """The machines of tasks that have not been admitted yet."""
        self._closed = False
        self._questions: queue.SimpleQueue[ba.CountTasks | None] = queue.SimpleQueue()
        name = f"stages of {supervisor.run}"
        threading.Thread(target=self._ask, name=name, daemon=True).start()
        self._began_at = 0.0
        self._lateness = Timeouts(tempo.patience_s)

    @property
    def attempt(self) -> Attempt:
        """The current attempt."""
        return self.batches.attempt

    @property
    def committed(self) -> Epoch:
        """The newest epoch that the query is known to have committed."""
        return self.batches.committed

    @property
    def checkpoint(self) -> str | None:
        """Where epochs become durable; None: nowhere."""
        return None if self._checkpoint is None else self._checkpoint.location.uri

    def waiting_for(self) -> list[str]:
        """What the batch waits for, in words."""
        return self.batches.waiting_for()

    def note(self, who: Peer, report: Any) -> None:
        """Take what an executor reports for the record."""
        match report:
            case do.ReportMove():
                self.reporter.moves[who] += 1
            case do.ReportHotShards(shards):
                self.reporter.hot[who] = shards

    # Tasks

    def arrive(self, message: say.Arrive) -> None:
        """Admit a task of the query, or let it wait, or refuse it."""
        self._hub.mail.know(self._name(message.task), message.endpoint)
        self._homes[message.task] = message.home
        if self._closed:
            self._refuse(message.task, self._end_in_words())
        else:
            self.decide(ba.TaskArrived(message.task))

    def done(self, message: say.PartitionDone) -> None:
        """Note that a task has all of its outputs."""
        if message.attempt == self.batches.attempt:
            self.reporter.add(message.rows_in, message.rows_out, message.latency)
        self.decide(ba.TaskDone(message.task, message.attempt))

    def decide(self, event: ba.BatchEvent) -> None:
        """Let an event be decided about, and carry out what comes of it."""
        try:
            orders = self.batches.handle(event)
        except StaleAttemptError as error:
            self._hub.mail.drop(str(error))
            return
        for order in orders:
            self._enact(order)

    def _enact(self, order: ba.BatchOrder) -> None:
        match order:
            case ba.CountTasks():
                if self.batches.phase is BatchPhase.COUNTING:  # not what is only looked into
                    self._began_at = time.monotonic()
                    self.reporter.begin()
                self._questions.put(order)
            case ba.GoBack(attempt, base):
                assert self._writer is not None  # only what is kept goes back
                self._writer.go_back(base, lambda error: self._went_back(attempt, error))
            case ba.BeginBatch(who=who):
                self._supervisor.ask(who, order)
            case ba.Admit():
                if math.isinf(self.flowing_since):
                    self.flowing_since = time.monotonic()
                    self._supervisor.interval = Interval()
                self._admit(order)
            case ba.Refuse(task, reason, again):
                hint = self._what_helps if again else ""
                self._refuse(task, BatchError("elastic operators", "go on", reason, hint))
            case ba.Leave(task):
                self.idle_since = time.monotonic()
                if self.batches.idle:
                    self._completed()  # so that its report is there at the end of the batch
                self._answer(task, say.Left(task.task))
            case co.WriteManifest():
                self._write(order)

    def _completed(self) -> None:
        self.flowing_since = math.inf
        report = self.reporter.end(self.batches.epoch, self.attempt, self._supervisor.cores)
        self._supervisor.journal.write("batch done", run=self._supervisor.run, **report.as_dict())
        self._supervisor.answers.notify()

    def _ask(self) -> None:
        """Count tasks of one stage after the other, in a thread that keeps its way to the JVM."""
        ask_for_short_slices()
        while (order := self._questions.get()) is not None:
            self._find_out(order)

    def _find_out(self, order: ba.CountTasks) -> None:
        try:
            found = self._count(order.stage)
        except Exception as error:
            words = f"the size of stage {order.stage} is not known: {error}"
            self._hub.post(lambda: self._cannot_count(order, words))
            return
        counted = ba.StageCounted(order.execution, order.stage, *found)
        self._hub.post(lambda: self.decide(counted))

    def _cannot_count(self, order: ba.CountTasks, reason: str) -> None:
        for answer in self.batches.cannot_count(order, reason):
            self._enact(answer)

    def _went_back(self, attempt: Attempt, error: Exception | None) -> None:
        if error is None:
            self.decide(ba.WentBack(attempt))
        else:
            self._supervisor.decide(ev.RunFailed(error))

    def _admit(self, order: ba.Admit) -> None:
        supervisor = self._supervisor
        self._answer(
            order.task,
            say.Admitted(
                order.task.task,
                supervisor.run,
                order.attempt,
                order.task.epoch,
                order.upstream,
                self._credit_bytes,
                self._tempo.measure_s,
                {who: supervisor.book[who] for who in supervisor.executors},
                *self._beside(self._homes.pop(order.task, "")),
            ),
        )

    def _beside(self, home: str) -> tuple[NodeId, str]:
        """A node on the same machine, preferably one with an executor's main process."""
        near = [node for node, seen in sorted(self._hub.nodes.items()) if seen.home == home]
        mains = {self._supervisor.home(who) for who in self._supervisor.executors}
        for node in (*(node for node in near if node in mains), *near):
            return node, self._hub.nodes[node].sockets
        return NodeId(""), ""

    def _refuse(self, task: ba.Ingress, error: Exception) -> None:
        blob, text = described(error)
        self._answer(task, say.Refused(task.task, blob, text))

    def _answer(self, task: ba.Ingress, message: Any) -> None:
        name = self._name(task)
        self._hub.mail.send(name, message)
        if not isinstance(message, say.Admitted):
            # The process has a task of the next batch, most likely.
            self._hub.mail.rest(name)
            self._homes.pop(task, None)

    def _name(self, task: ba.Ingress) -> str:
        return f"{self._supervisor.run} task {task.task}"

    # The manifest

    def _write(self, order: co.WriteManifest) -> None:
        assert self._writer is not None  # only what is kept is written
        written = partial(self._written, order)
        self._writer.commit(order, self._supervisor.executors, written)

    def _written(self, order: co.WriteManifest, size: int, error: Exception | None) -> None:
        if self._closed:
            return  # the next run finds the manifest
        if error is not None:
            self._supervisor.decide(ev.RunFailed(error))
            return
        self.reporter.wrote(size)
        self._supervisor.journal.write(
            "epoch durable",
            run=self._supervisor.run,
            epoch=order.epoch,
            attempt=order.attempt,
            seconds=round(time.monotonic() - self._began_at, 6),
            bytes=size,
        )
        self.decide(ba.EpochDurable(order.attempt, order.epoch))

    # Time

    def tick(self, now: float) -> None:
        """Send heartbeats to tasks, and look for answers that are overdue."""
        for task in self.batches.present:
            self._hub.mail.send(self._name(task), say.Beat())
        at = self.batches
        stage = (at.phase, at.attempt) if at.waits() else None
        late = self._lateness.look(now, stage, at.missing, at.waiting_for)
        if late is not None:
            self._supervisor.decide(late)

    def stop(self) -> None:
        """Refuse all tasks that are here: the run is over."""
        if self._closed:
            return
        self._closed = True
        if self._checkpoint is not None:
            ends(self._checkpoint)  # before a task is refused: the query may start again at once
        error = self._end_in_words()
        for task in self.batches.present:
            self._refuse(task, error)
        self.batches.give_up(str(error))

    @property
    def _what_helps(self) -> str:
        return RERUN if self._checkpoint is None else AGAIN

    def _end_in_words(self) -> Exception:
        error = self._supervisor.error
        if error is None:
            return BatchError("elastic operators", "go on", "their run was ended")
        if isinstance(error, RunError):
            return BatchError(
                "elastic operators",
                "go on",
                error,
                f"the batch can be run again: {self._what_helps}",
            )
        return error

    def close(self) -> None:
        """Stop, and release the checkpoint to the next run."""
        self.stop()
        self._questions.put(None)
        if self._writer is not None:
            self._writer.close()
