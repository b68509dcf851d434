"""A task's process: the data-processing loop on one core, one thing at a time, in order."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from typing import Any

import cloudpickle

from elasticutor.core import instructions as do
from elasticutor.core.ids import Attempt, Epoch
from elasticutor.core.task import Task
from elasticutor.errors import BadValueError, StaleAttemptError
from elasticutor.operator import Context, Operator
from elasticutor.runtime import messages as say
from elasticutor.runtime.failures import LAST_WORDS_S, described
from elasticutor.runtime.mailroom import Mailroom
from elasticutor.runtime.operating import OperatorRunner
from elasticutor.runtime.packets import open_batch
from elasticutor.runtime.routes import Router
from elasticutor.runtime.specs import TaskSpec
from elasticutor.runtime.wire import Chunk, Result
from elasticutor.state.cache import StateCache
from elasticutor.state.codec import CODEC
from elasticutor.state.levels import Levels
from elasticutor.state.lmdb_backend import LmdbBackend

MAIN = "main"
_IDLE_S = 5.0


def run_task(payload: bytes) -> None:
    """Be the task that the payload describes, until told to close."""
    spec: TaskSpec = pickle.loads(payload)  # noqa: S301 - it came from our executor, over the node
    mail = Mailroom.at(spec.site, f"{spec.who}-t{spec.task}")
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


class TaskProcess:
    """Runs the operator over chunks, and answers labels and flushes in their places."""

    def __init__(self, spec: TaskSpec, mail: Mailroom) -> None:
        self._spec = spec
        self._mail = mail
        self._operator: Operator = cloudpickle.loads(spec.operator.blob)
        store = Levels(LmdbBackend.attach(spec.store))
        cache = StateCache(store, CODEC, Attempt(0), Epoch(0))
        self._core = Task(spec.task, cache)
        self._cache = cache
        self._router = Router(spec.operator.routes)
        self._schema = spec.operator.input
        self._runner = OperatorRunner(
            self._operator,
            name=spec.operator.name,
            input=spec.operator.input,
            key=spec.operator.key,
            output=spec.operator.output,
            cache=cache,
        )
        self._closed = False

    @property
    def attempt(self) -> Attempt:
        """The attempt that it works for."""
        return self._cache.attempt

    def run(self) -> None:
        """Work until told to close."""
        spec = self._spec
        self._operator.open(
            Context(spec.operator.name, spec.number, int(spec.task), str(spec.site.node))
        )
        self._mail.send(MAIN, say.TaskUp(spec.task, self._mail.endpoint, os.getpid()))
        try:
            while not self._closed:
                self._mail.wait(_IDLE_S)
                for message in self._mail.receive():
                    self._take(message)
        finally:
            self._operator.close()

    def _take(self, message: Any) -> None:
        handler = _HANDLERS.get(type(message))
        if handler is None:
            self._mail.drop(f"{type(message).__name__} is not for a task")
        elif not self._closed:
            handler(self, message)

    def _on_chunk(self, chunk: Chunk) -> None:
        try:
            batch = open_batch(chunk.data, chunk.rows, self._schema)
        except BadValueError as error:
            self._mail.drop(str(error))
            return
        self._core.open_chunk(
            do.Dispatch(self._spec.task, chunk.attempt, chunk.epoch, chunk.chunk, [])
        )
        births = chunk.births
        done = self._runner.run(batch, chunk.shards, births[:, 1].tolist())
        outputs = []
        if done.output is not None:
            births = births.copy()
            births[:, 1] = done.part_rows_out
            outputs = self._router.split(done.output, births[births[:, 1] > 0])
        self._core.close_chunk()
        self._mail.send(
            MAIN,
            Result(
                self._spec.task,
                chunk.attempt,
                chunk.chunk,
                done.useful_s,
                done.row_seconds,
                outputs,
            ),
        )

    def _on_label(self, order: do.SendLabel) -> None:
        self._mail.send(MAIN, self._core.label(order))

    def _on_flush(self, order: do.FlushTask) -> None:
        self._mail.send(MAIN, self._core.flush(order))

    def _on_reset(self, order: do.ResetTask) -> None:
        self._mail.send(MAIN, self._core.reset(order))

    def _on_close(self, message: say.Close) -> None:
        self._closed = True


_HANDLERS: dict[type, Callable[[TaskProcess, Any], None]] = {
    Chunk: TaskProcess._on_chunk,
    do.SendLabel: TaskProcess._on_label,
    do.FlushTask: TaskProcess._on_flush,
    do.ResetTask: TaskProcess._on_reset,
    say.Close: TaskProcess._on_close,
}
