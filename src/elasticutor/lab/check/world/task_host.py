"""A simulated task: it works through its chunks, one after the other, and writes their state."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from elasticutor.core.protocol import events as ev
from elasticutor.core.protocol import instructions as do
from elasticutor.core.protocol.ids import Attempt, Epoch, Peer, ShardId, TaskId
from elasticutor.core.protocol.task import Task
from elasticutor.core.protocol.task_inbox import TaskInbox, Work
from elasticutor.errors import StaleAttemptError
from elasticutor.lab.check.pipeline import ChainOperator, Row
from elasticutor.lab.check.world.network import Address
from elasticutor.state.cache import StateCache
from elasticutor.state.levels import Levels

if TYPE_CHECKING:  # hosts have tasks, and tasks know their host
    from elasticutor.lab.check.world.hosts import ExecutorHost, KeeperHost


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
            self._do(self._work)
        elif self._inbox.interrupted:
            pause_s = self.world.surroundings.pause_s(self)
            if pause_s is not None:
                self.world.clock.after(pause_s, self._do, self._interrupt, self._run)

    def end(self) -> None:
        """End the process, with all that it has cached."""
        self.alive = False
        self.world.network.leave(self.address)

    def _do(self, action: Callable[..., None], *args: Any) -> None:
        """Do something unless the process has ended; it ends when the store refuses its writes."""
        if self.alive:
            try:
                action(*args)
            except StaleAttemptError:
                self.end()

    def _work(self) -> None:
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
                    self._run = _ChunkRun(message, seconds / rows, self.world.clock.now)
                    self.world.clock.after(seconds, self._do, self._finish, self._run)
                    return
                case do.FlushTask():
                    self.core.flush(message)
                    self._write_later()
                case do.ResetTask():
                    self._send(self.core.reset(message))

    def _write_later(self) -> None:
        seconds = self.world.surroundings.service_s(self, 1) * self.slowness
        self.world.clock.after(seconds, self._do, self._write_on)

    def _write_on(self) -> None:
        """Write a slice of what an epoch changed, between any two things that it does."""
        if self.core.flushing:
            answer = self.core.write_on()
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
        if self._run is not run or not self._inbox.interrupted:
            return
        clock = self.world.clock
        self._process(run, min(len(run.work.left), int((clock.now - run.at) / run.row_s)))
        self._answer_labels(run)
        rest = len(run.work.left)
        if rest or run.work.unreported:
            self._run = replace(run, at=clock.now)  # what was to happen to this one does not
            clock.after(rest * run.row_s, self._do, self._finish, self._run)
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
        if self._run is run:
            self._process(run, len(run.work.left))
            self._report(run)
            self._done()

    def _done(self) -> None:
        self._run = None
        self.core.close_chunk()
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


@dataclass(slots=True, eq=False)
class _ChunkRun:
    """A chunk under way, from when it was begun or last interrupted."""

    work: Work
    row_s: float
    at: float
    outputs: dict[Peer, list[Row]] = field(default_factory=dict)

    def answer(
        self, task: TaskId, operator: ChainOperator
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
