"""A task's process: the data-processing loop on one core, one thing at a time, in order.

Only a label comes in between: the task looks at its mail between two tuples, so that a shard can
leave at once. It looks there, and at no flag that others set in shared memory, because that works
the same for a task on another node, and because what it takes in it would take in anyway.
"""

from __future__ import annotations

import gc
import os
import pickle
from collections import deque
from collections.abc import Iterator, Sequence
from time import perf_counter
from typing import Any, cast

import cloudpickle
import numpy as np
import pyarrow as pa
from msgspec.structs import replace

from elasticutor.core.protocol import events as ev
from elasticutor.core.protocol import instructions as do
from elasticutor.core.protocol.events import Output
from elasticutor.core.protocol.ids import Attempt, Epoch
from elasticutor.core.protocol.task import Task
from elasticutor.core.protocol.task_inbox import SingleWork, TaskInbox, Work
from elasticutor.errors import BadValueError, StaleAttemptError
from elasticutor.operator import Context, Operator, kind_of
from elasticutor.process.actor import Actor
from elasticutor.process.failures import LAST_WORDS_S, described
from elasticutor.process.operator.chunk_run import ChunkDone, ChunkRun, RowsDone, SingleRun
from elasticutor.process.operator.runner import OperatorRunner
from elasticutor.process.routes import Router, RowRouter
from elasticutor.process.specs import TaskSpec
from elasticutor.state.cache import StateCache
from elasticutor.state.codec import CODEC
from elasticutor.state.levels import Levels
from elasticutor.state.lmdb_backend import LmdbBackend
from elasticutor.transport import messages as say
from elasticutor.transport.codec import Chunk, Result, RowChunk, RowOutput, RowResult
from elasticutor.transport.mailbox import Mailbox
from elasticutor.transport.packets import NO_BIRTHS, Births, born_of, open_batch
from elasticutor.transport.row_packets import MOST_ROWS, UNREADABLE, RowFormat, born_one_by_one

MAIN = "main"
AnyRun = ChunkRun | SingleRun
_IDLE_S = 5.0
_WRITE_SHARE = 0.25
"""Of the time that goes to tuples, so much goes to what an epoch's end has left to write."""
_WRITE_S = 0.002
"""But no more at a time than this, and the slice that is being written."""
_WORTH_WRITING_S = 0.002
"""After so much work on tuples a slice is written, though more of them wait."""


def run_task(payload: bytes) -> None:
    """Be the task that the payload describes, until `Close` arrives."""
    spec: TaskSpec = pickle.loads(payload)  # noqa: S301 - it came from our executor, over the node
    near = spec.main.node == spec.site.node and bool(spec.main.ipc)
    mail = Mailbox.at(spec.site, f"{spec.who}-t{spec.task}", tcp=not near)
    mail.know(MAIN, spec.main)
    process: TaskProcess | None = None
    try:
        process = TaskProcess(spec, mail)
        process.run()
    except StaleAttemptError:
        pass  # the store has let it know that it was given up
    except Exception as error:
        attempt = process.attempt if process else Attempt(0)
        mail.send(MAIN, say.TaskFailed(spec.task, attempt, *described(error)))
        raise
    finally:
        mail.close(linger_s=LAST_WORDS_S)


class TaskProcess(Actor):
    """Runs the operator over chunks, and answers labels and flushes in their places."""

    def __init__(self, spec: TaskSpec, mail: Mailbox) -> None:
        super().__init__(mail, "a task")
        self._spec = spec
        self._operator: Operator = cloudpickle.loads(spec.operator.blob)
        store = Levels(LmdbBackend.attach(spec.store))
        cache = StateCache(store, CODEC, Attempt(0), Epoch(0))
        self._core = Task(spec.task, cache)
        self._cache = cache
        self._router = Router(spec.operator.routes)
        self._row_router = RowRouter.of(spec.operator.routes, spec.operator.output)
        # Of few, from a batch.
        self._few_router = RowRouter.of_batches(spec.operator.routes, spec.operator.output)
        self._schema = spec.operator.input
        self._by_rows = kind_of(self._operator) == "record"
        self._row_format = RowFormat.of(self._schema)
        self._runner = OperatorRunner(
            self._operator,
            name=spec.operator.name,
            input=spec.operator.input,
            key=spec.operator.key,
            output=spec.operator.output,
            cache=cache,
        )
        self._inbox = TaskInbox()
        self._births = NO_BIRTHS  # of the chunk under way, if it is a batch
        self._writes: deque[Iterator[ev.ShardWritten | None]] = deque()
        self._pause_s = 0.0  # the longest that the end of this epoch has kept it from tuples
        self._flush_s = 0.0  # what it took to set apart what has changed, if just now
        self._worked_s = 0.0  # time spent on tuples since something was written

    @property
    def attempt(self) -> Attempt:
        """The attempt that it works for."""
        return self._cache.attempt

    def run(self) -> None:
        """Work until `Close` arrives."""
        spec = self._spec
        self._operator.open(
            Context(spec.operator.name, spec.number, int(spec.task), str(spec.site.node))
        )
        gc.freeze()  # what the operator has opened is here to stay
        self._mail.send(MAIN, say.TaskUp(spec.task, self._mail.endpoint, os.getpid()))
        try:
            self.serve()
        finally:
            self._operator.close()

    def take(self, message: Any) -> None:
        """Queue a message by its urgency."""
        if type(message) is RowChunk and self._by_rows:
            self._inbox.put(SingleWork(message.chunk, message.shards, message))
        elif type(message) is RowChunk:
            shards = np.array(message.shards, np.int32)
            self._inbox.put(Work(message.chunk, shards, message))
        elif type(message) is Chunk:
            self._inbox.put(Work(message.chunk, message.shards, message))
        elif type(message) is do.WriteShard:
            self._writes.append(self._core.write(message))
        elif type(message) is do.SendLabel or type(message) in self.handlers:
            self._inbox.put(message)
        else:
            self._mail.drop(f"{type(message).__name__} is not for a task")

    def work(self) -> float:
        """Do one thing: labels first, and some writing if an epoch has just ended."""
        self._answer_labels()
        began = perf_counter()
        if self._inbox:
            message = self._inbox.pop()
            self.handlers[type(message)](self, message)
        if self._core.flushing:
            self._worked_s += perf_counter() - began
            if not self._inbox or self._worked_s >= _WORTH_WRITING_S:
                self._write_on()
        if self._writes:
            self._write()
        return 0.0 if self._inbox or self._writes or self._core.flushing else _IDLE_S

    def _look(self) -> bool:
        """Take in what has arrived; returns whether a label has to be answered at once."""
        for message in self._mail.receive():
            self.take(message)
        return self._inbox.interrupted

    def _on_chunk(self, work: Work) -> None:
        chunk: Chunk | RowChunk = work.content
        opening_s = 0.0
        try:
            if isinstance(chunk, RowChunk):
                began = perf_counter()
                batch, births = self._batch_of(chunk), born_one_by_one(chunk.born_us)
                opening_s = perf_counter() - began
            else:
                batch, births = open_batch(chunk.data, chunk.rows, self._schema), chunk.births
        except BadValueError as error:
            self._mail.drop(str(error))
            return
        self._open(chunk)
        self._births = births
        run = self._runner.begin(batch, work, births[:, 1].tolist())
        run.add_useful(opening_s)
        self._go_through(run)

    def _batch_of(self, chunk: RowChunk) -> pa.RecordBatch:
        if self._row_format is None:
            raise BadValueError("rows", "be of columns of simple types", str(self._schema))
        return self._row_format.batch(chunk.packed)

    def _on_row_chunk(self, work: SingleWork) -> None:
        chunk: RowChunk = work.content
        rows_of = self._row_format
        if rows_of is None:
            self._mail.drop("a chunk of rows is not for this operator")
            return
        began = perf_counter()
        try:
            rows = [rows_of.unpack(packed) for packed in chunk.packed]
        except UNREADABLE as error:
            self._mail.drop(f"a packed row must be of {self._schema}; got {error}")
            return
        unpacking_s = perf_counter() - began
        self._open(chunk)
        self._go_through(SingleRun(self._runner, rows, work, unpacking_s))

    def _open(self, chunk: Chunk | RowChunk) -> None:
        self._core.open_chunk(
            do.Dispatch(self._spec.task, chunk.attempt, chunk.epoch, chunk.chunk, [])
        )

    def _go_through(self, run: AnyRun) -> None:
        work = run.work
        while len(work.left):
            run.advance(self._look)
            self._answer_labels(run)
        if work.unreported:
            self._report(run)
        self._core.close_chunk()

    def _answer_labels(self, run: AnyRun | None = None) -> None:
        work = None if run is None else run.work
        for answer in self._core.answer_labels(self._inbox, work, lambda: self._report(run)):
            self._mail.send(MAIN, answer)
            # It would be kept until the round ends, and with it the rest of the chunk.
            self._mail.send_gathered()
            self._mail.gather()

    def _report(self, run: AnyRun | None) -> None:
        """Send what is done of the chunk under way."""
        assert run is not None  # without one there is nothing to report
        work, chunk = run.work, run.work.content
        rows = work.unreported if len(work.left) else 0
        ids = self._spec.task, chunk.attempt, chunk.chunk
        outputs: Sequence[Output] = ()
        done: RowsDone | ChunkDone
        few = True
        if isinstance(run, SingleRun):
            done = run.report()
            if done.rows_out:
                outputs = self._outputs_of(run, done, chunk.born_us)
        else:
            done = run.report()
            few = done.row_seconds is None or len(done.row_seconds) <= MOST_ROWS
            if done.output is not None:
                births = born_of(self._births, done.part_rows_out)
                outputs = self._packets_of(done.output, births, few)
        seconds = done.row_seconds
        if few and (not outputs or type(outputs[0]) is RowOutput):
            seconds = seconds.tolist() if isinstance(seconds, np.ndarray) else seconds
            rows_out = cast("Sequence[RowOutput]", outputs)
            self._mail.send(MAIN, RowResult(*ids, done.useful_s, seconds, rows_out, rows))
        else:
            self._mail.send(MAIN, Result(*ids, done.useful_s, seconds, outputs, rows))

    def _packets_of(self, output: pa.RecordBatch, births: Births, few: bool) -> Sequence[Output]:
        """The outputs of a batch as packets: of rows if they are few, and come of few tuples."""
        router = self._few_router
        if few and router is not None:
            rows = router.rows_of(output)
            if rows is not None:
                born_us = births[:, 0].repeat(births[:, 1]).tolist()
                split = router.split(rows, born_us)
                if split is not None:
                    return split
        return self._router.split(output, births)

    def _outputs_of(self, run: SingleRun, done: RowsDone, born_us: list[int]) -> Sequence[Output]:
        """The outputs of few tuples as packets: of rows if they are few themselves."""
        rows_out, births, start = done.rows_out, list[int](), 0
        for place, end in zip(done.places, done.ends, strict=True):
            births += [born_us[place]] * (end - start)
            start = end
        if self._row_router is not None and len(rows_out) <= MOST_ROWS:
            split = self._row_router.split(rows_out, births)
            if split is not None:
                return split
        batch = self._runner.written_of(rows_out, done.ends, run.rows_of(done))
        return self._router.split(batch, born_one_by_one(births))

    def _write(self) -> None:
        """Write a slice of a shard that is about to move: others wait briefly between chunks."""
        written = next(self._writes[0])
        if written is not None:
            self._writes.popleft()
            self._mail.send(MAIN, written)

    def _on_flush(self, order: do.FlushTask) -> None:
        began = perf_counter()
        self._core.flush(order)
        self._pause_s = self._flush_s = perf_counter() - began

    def _write_on(self) -> None:
        """Write some of what an epoch has changed, in proportion to the work between."""
        began = perf_counter()
        until = began + min(self._worked_s * _WRITE_SHARE, _WRITE_S)
        self._worked_s = 0.0
        answer = self._core.write_on()
        while self._core.flushing and perf_counter() < until:
            answer = self._core.write_on()
        # What follows the flush without a tuple between is one pause with it.
        self._pause_s = max(self._pause_s, self._flush_s + perf_counter() - began)
        self._flush_s = 0.0
        if answer is not None:
            self._mail.send(MAIN, replace(answer, pause_s=self._pause_s))

    def _on_reset(self, order: do.ResetTask) -> None:
        self._mail.send(MAIN, self._core.reset(order))

    def _on_close(self, message: say.Close) -> None:
        self.finish()


TaskProcess.handlers = {
    Work: TaskProcess._on_chunk,
    SingleWork: TaskProcess._on_row_chunk,
    do.FlushTask: TaskProcess._on_flush,
    do.ResetTask: TaskProcess._on_reset,
    say.Close: TaskProcess._on_close,
}
