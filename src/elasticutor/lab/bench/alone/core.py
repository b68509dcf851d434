"""`elasticutor bench core`: what the core's logic costs per chunk, without any process or socket.

An executor with all its tasks answering in turn: batches arrive as credits allow, chunks are
dispatched, results come back, outputs are taken. What is timed is `ElasticExecutor.handle` and
nothing else; the sum over all events of a round divided by the chunks dispatched in it is one
measurement. Balancing is timed on its own, since it comes ten times a second and not per chunk; it
includes summing up what the tasks have done since.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from elasticutor.core.executor.config import ExecutorConfig
from elasticutor.core.executor.executor import ElasticExecutor
from elasticutor.core.protocol import events as ev
from elasticutor.core.protocol import instructions as do
from elasticutor.core.protocol.ids import Attempt, Epoch, NodeId, Peer, TaskId
from elasticutor.errors import BadValueError
from elasticutor.lab.bench.figures import Spread

_UPSTREAMS = (Peer("u0"), Peer("u1"))
_DESTINATION = Peer("down")
_ROW_BYTES = 144
_WINDOW_BYTES = 1 << 21  # of the destination, which grants as an executor does: by quarters


@dataclass(frozen=True, slots=True)
class Workload:
    """What arrives, and what it costs: both decide how large chunks are."""

    row_us: float
    """What the operator takes per tuple."""
    batch_rows: int
    """Tuples per arriving batch; Zipf-skewed over the shards."""

    def __post_init__(self) -> None:
        if not 0 < self.row_us < math.inf:
            raise BadValueError("row_us", "be finite and more than 0", self.row_us)
        if self.batch_rows < 1:
            raise BadValueError("batch_rows", "be at least 1", self.batch_rows)


WORKLOADS = (
    Workload(row_us=1000, batch_rows=64),  # the paper's tuples
    Workload(row_us=50, batch_rows=1024),
    Workload(row_us=5, batch_rows=4096),
    Workload(row_us=5, batch_rows=1024),  # chunks of several parts each: the dearest
)


@dataclass(frozen=True, slots=True)
class WorkloadFigures:
    """What was measured with one workload."""

    workload: Workload
    us_per_chunk: Spread
    us_per_balance: Spread
    rows_per_chunk: float

    def as_dict(self) -> dict[str, Any]:
        """Everything, for `--json`."""
        return {
            "row_us": self.workload.row_us,
            "batch_rows": self.workload.batch_rows,
            "rows_per_chunk": round(self.rows_per_chunk, 1),
            "us_per_chunk": self.us_per_chunk.median,
            "us_per_chunk_p10": self.us_per_chunk.low,
            "us_per_chunk_p90": self.us_per_chunk.high,
            "us_per_balance": self.us_per_balance.median,
            "us_per_balance_p10": self.us_per_balance.low,
            "us_per_balance_p90": self.us_per_balance.high,
        }


@dataclass(frozen=True, slots=True)
class CoreBench:
    """What was measured."""

    us_per_chunk: Spread
    """Over all rounds of all workloads."""
    reference_us: Spread
    """A fixed bit of pure Python, timed between the rounds: how fast the machine was meanwhile."""
    workloads: tuple[WorkloadFigures, ...]
    rounds: int
    shards: int
    tasks: int

    def as_dict(self) -> dict[str, Any]:
        """Everything, for `--json`."""
        return {
            "us_per_chunk": self.us_per_chunk.median,
            "us_per_chunk_p10": self.us_per_chunk.low,
            "us_per_chunk_p90": self.us_per_chunk.high,
            "reference_us": self.reference_us.median,
            "reference_us_p10": self.reference_us.low,
            "reference_us_p90": self.reference_us.high,
            "rounds": self.rounds,
            "shards": self.shards,
            "tasks": self.tasks,
            "workloads": [figures.as_dict() for figures in self.workloads],
        }


def bench_core(
    *,
    shards: int = 256,
    tasks: int = 8,
    rounds: int = 30,
    workloads: Sequence[Workload] = WORKLOADS,
    seed: int = 1,
) -> CoreBench:
    """Measure the core's logic per chunk.

    Args:
        shards: z of the executor.
        tasks: Its cores.
        rounds: Measurements per workload, of some hundred to some thousand chunks each. Workloads
            take turns, so that a slow moment of the machine hits all of them.
        workloads: What arrives, and what it costs.
        seed: For the shards of the tuples.
    """
    for name, value in (("shards", shards), ("tasks", tasks), ("rounds", rounds)):
        if value < 1:
            raise BadValueError(name, "be at least 1", value)
    rigs = [_Rig(shards, tasks, workload, seed) for workload in workloads]
    for rig in rigs:
        rig.warm_up()
    reference = []
    for _ in range(rounds):
        reference.append(_reference() * 1e6)
        for rig in rigs:
            rig.measure()
    return CoreBench(
        us_per_chunk=Spread.of([cost for rig in rigs for cost in rig.per_chunk]),
        reference_us=Spread.of(reference),
        workloads=tuple(rig.figures() for rig in rigs),
        rounds=rounds,
        shards=shards,
        tasks=tasks,
    )


def _reference() -> float:
    started = time.perf_counter()
    for _ in range(100):
        sum(range(1000))
    return (time.perf_counter() - started) / 100


class _Rig:
    """An executor whose tasks answer as soon as their virtual work is done."""

    def __init__(self, shards: int, tasks: int, workload: Workload, seed: int) -> None:
        rng = np.random.default_rng(seed)
        weights = 1.0 / np.arange(1, shards + 1) ** 0.5
        self._batches = [
            rng.choice(shards, workload.batch_rows, p=weights / weights.sum()).astype(np.int32)
            for _ in range(64)
        ]
        config = ExecutorConfig(shards=shards)
        self._executor = ElasticExecutor(config, NodeId("n0"), now=0.0)
        self._workload = workload
        self._row_s = workload.row_us * 1e-6
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
        self.per_chunk: list[float] = []
        self.per_balance: list[float] = []
        self.chunks = 0
        self.rows = 0

    def warm_up(self) -> None:
        """Let costs be learnt, and chunks find their size."""
        for _ in range(3):
            self.measure()
        self._forget()

    def measure(self) -> None:
        """Take one measurement."""
        seconds, chunks = self.round()
        self.per_chunk.append(seconds / chunks * 1e6)
        self.per_balance.append(self.balance() * 1e6)

    def figures(self) -> WorkloadFigures:
        """What was measured."""
        per_chunk, per_balance = Spread.of(self.per_chunk), Spread.of(self.per_balance)
        return WorkloadFigures(self._workload, per_chunk, per_balance, self.rows / self.chunks)

    def round(self) -> tuple[float, int]:
        """Some batches, all the way through; returns seconds in the core, and chunks."""
        before, chunks = self._seconds, self.chunks
        for number in range(64):
            shards = self._batches[number % len(self._batches)]
            upstream = _UPSTREAMS[number % len(_UPSTREAMS)]
            size = len(shards) * _ROW_BYTES
            while self._sent[upstream] >= self._granted[upstream]:
                self._answer()
            self._sent[upstream] += size
            self._tell(ev.TuplesArrived(upstream, Attempt(1), None, shards, size))
        while self._due:
            self._answer()
        return self._seconds - before, self.chunks - chunks

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
        useful = rows * self._row_s
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
