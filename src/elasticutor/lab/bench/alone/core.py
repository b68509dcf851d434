"""`elasticutor bench core`: what the core's logic costs per chunk, without any process or socket.

An executor with all its tasks answering in turn. What is timed is `ElasticExecutor.handle` and
nothing else; the sum over all events of a round divided by the chunks dispatched in it is one
measurement. Balancing is timed on its own, since it comes ten times a second and not per chunk; it
includes summing up what the tasks have done since.
"""

from __future__ import annotations

import math
import time
from collections import deque

import numpy as np

from elasticutor.core.executor.config import ExecutorConfig
from elasticutor.core.executor.executor import ElasticExecutor
from elasticutor.core.protocol import events as ev
from elasticutor.core.protocol import instructions as do
from elasticutor.core.protocol.ids import Attempt, Epoch, NodeId, Peer, TaskId
from elasticutor.errors import BadValueError
from elasticutor.lab.bench.declare import Benchmark, Figures, Samples, figure, samples
from elasticutor.lab.bench.live import Bench
from elasticutor.lab.options import option

_UPSTREAMS = (Peer("u0"), Peer("u1"))
_DESTINATION = Peer("down")
_ROW_BYTES = 144
_WINDOW_BYTES = 1 << 21  # of the destination, which grants as an executor does: by quarters


WORKLOADS = (
    (1000.0, 64),  # the paper's tuples
    (50.0, 1024),
    (5.0, 4096),
    (5.0, 1024),  # chunks of several parts each: the costliest
)
"""What the operator takes per tuple, in µs; and tuples per arriving batch, Zipf-skewed over shards.

Both decide how large chunks are.
"""


class WorkloadFigures(Figures):
    """What was measured with one workload."""

    row_us: float = figure()
    batch_rows: int = figure()
    rows_per_chunk: float = figure("tuples per chunk", ".0f", digits=1, default=0.0)
    us_per_chunk: Samples = samples("µs per chunk", ".1f", better="lower")
    us_per_balance: Samples = samples("µs per balancing", ".0f", better="lower")

    def heading(self) -> str:
        return f"{self.row_us:g} µs, batches of {self.batch_rows}"


class CoreFigures(Figures):
    """What was measured."""

    us_per_chunk: Samples = samples("µs per chunk, all workloads", ".1f", better="lower")
    workloads: list[WorkloadFigures] = figure("workload")


class CoreBench(Benchmark):
    """What the core's logic costs per chunk, in microseconds; no process, no socket."""

    about = "core logic: {shards} shards, {tasks} tasks"
    facts = ("reference_us",)

    shards: int = option(256, "Shards of the executor.", min=1, key="shards")
    tasks: int = option(8, "Its cores.", min=1, key="tasks")
    rounds: int = option(30, "Measurements per workload.", min=1, key="rounds")
    row_us: float | None = option(
        None, "Only this workload: what a tuple takes, in µs.", shows="four"
    )
    batch_rows: int = option(1024, "With --row-us: tuples per arriving batch.", min=1)

    def check(self) -> None:
        if self.row_us is not None and not 0 < self.row_us < math.inf:
            raise BadValueError("row_us", "be finite and more than 0", self.row_us)

    def measure(self, bench: Bench) -> CoreFigures:
        """Some hundred to some thousand chunks for each measurement; workloads take turns."""
        workloads = WORKLOADS if self.row_us is None else ((self.row_us, self.batch_rows),)
        rigs = [_Rig(self.shards, self.tasks, *workload) for workload in workloads]
        for rig in rigs:
            rig.warm_up()
        for _ in range(self.rounds):
            bench.machine.glance()
            for rig in rigs:
                rig.measure()
        found = [rig.found for rig in rigs]
        costs = [cost for figures in found for cost in figures.us_per_chunk]
        return CoreFigures(us_per_chunk=costs, workloads=found)


class _Rig:
    """An executor whose tasks answer as soon as their virtual work is done."""

    def __init__(self, shards: int, tasks: int, row_us: float, batch_rows: int) -> None:
        rng = np.random.default_rng(1)
        weights = 1.0 / np.arange(1, shards + 1) ** 0.5
        self._batches = [
            rng.choice(shards, batch_rows, p=weights / weights.sum()).astype(np.int32)
            for _ in range(64)
        ]
        config = ExecutorConfig(shards=shards)
        self._executor = ElasticExecutor(config, NodeId("n0"), now=0.0)
        self._row_us, self._batch_rows = row_us, batch_rows
        self._now = 0.0
        self._seconds = 0.0
        self._due: deque[do.Dispatch] = deque()
        self._sent = dict.fromkeys(_UPSTREAMS, 0)
        self._granted = dict.fromkeys(_UPSTREAMS, config.min_credit_bytes)
        self._emitted = 0
        self._taken = config.min_credit_bytes
        self._forget()
        for task in range(tasks):
            self._tell(ev.CoreGranted(NodeId("n0")))
            self._tell(ev.TaskStarted(TaskId(task)))
        self._tell(ev.AttemptBegun(Attempt(1), Epoch(0), Epoch(1), _UPSTREAMS, (_DESTINATION,)))
        for task in range(tasks):
            self._tell(ev.TaskReset(TaskId(task), Attempt(1)))
        self._tell(ev.StoreRolledBack(NodeId("n0"), Attempt(1)))

    def _forget(self) -> None:
        """Count from zero."""
        self.found = WorkloadFigures(row_us=self._row_us, batch_rows=self._batch_rows)
        self.chunks = 0
        self.rows = 0

    def warm_up(self) -> None:
        """Let costs be learnt, and chunks find their size."""
        for _ in range(3):
            self.measure()
        self._forget()

    def measure(self) -> None:
        chunks = self.chunks
        seconds = self.round()
        self.found.us_per_chunk.append(seconds / (self.chunks - chunks) * 1e6)
        self.found.us_per_balance.append(self.balance() * 1e6)
        self.found.rows_per_chunk = self.rows / self.chunks

    def round(self) -> float:
        """All batches, all the way through; returns seconds in the core."""
        before = self._seconds
        for number, shards in enumerate(self._batches):
            upstream = _UPSTREAMS[number % len(_UPSTREAMS)]
            size = len(shards) * _ROW_BYTES
            while self._sent[upstream] >= self._granted[upstream]:
                self._answer()
            self._sent[upstream] += size
            self._tell(ev.TuplesArrived(upstream, Attempt(1), None, shards, size))
        while self._due:
            self._answer()
        return self._seconds - before

    def balance(self) -> float:
        """One balancing interval; returns the seconds it took."""
        before = self._seconds
        self._now += 0.1
        writes = [i for i in self._tell(ev.BalanceDue()) if isinstance(i, do.WriteShard)]
        seconds = self._seconds - before
        for write in writes:
            self._tell(ev.ShardWritten(write.task, write.move, 0))
            self._tell(ev.LabelReached(write.task, write.move, 0))
        return seconds

    def _answer(self) -> None:
        chunk = self._due.popleft()
        rows = sum(len(part.rows) for part in chunk.parts)
        self.chunks += 1
        self.rows += rows
        size = rows * _ROW_BYTES
        output = ev.Output(_DESTINATION, None, size, rows)
        useful = rows * self._row_us * 1e-6
        self._tell(ev.ChunkProcessed(chunk.task, Attempt(1), chunk.chunk, useful, (output,)))
        self._emitted += size
        if self._emitted + _WINDOW_BYTES - self._taken >= _WINDOW_BYTES // 4:
            self._taken = self._emitted + _WINDOW_BYTES
            self._tell(ev.CreditGranted(_DESTINATION, Attempt(1), self._taken))

    def _tell(self, event: ev.Event) -> list[do.Instruction]:
        self._now += 1e-6
        started = time.perf_counter()
        instructions = self._executor.handle(event, self._now)
        self._seconds += time.perf_counter() - started
        for instruction in instructions:
            if isinstance(instruction, do.Dispatch):
                self._due.append(instruction)
            elif isinstance(instruction, do.GrantCredit):
                self._granted[instruction.upstream] = instruction.total
        return instructions
