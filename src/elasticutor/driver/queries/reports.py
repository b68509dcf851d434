"""The figures of each batch of a query: rows, latency, cores, moves and hot shards, by operator."""

from __future__ import annotations

import math
import time
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from elasticutor.core.measure.latency import LatencyHistogram
from elasticutor.core.protocol.ids import Attempt, Epoch, NodeId, Peer, ShardId
from elasticutor.plan import Plan

_KEPT = 100
"""How many reports are kept; Spark keeps as many of its own."""


@dataclass(frozen=True, slots=True)
class OperatorReport:
    """One operator's part of a batch."""

    rows_in: int
    rows_out: int
    latency: LatencyHistogram
    """From when a row was read by its task to when what was made of it was back there."""
    executors: int
    cores: int
    """At the end of the batch."""
    moves: int
    """How many shards were moved meanwhile."""
    hot_shards: tuple[str, ...]
    """Shards that fill a core each, alone, as `executor/shard`: no further core can help them."""

    def as_dict(self) -> dict[str, Any]:
        """Plain values; None stands for what is not known."""
        milliseconds = {p: self.latency.percentile_s(p) * 1e3 for p in (50, 99)}
        return {
            "rowsIn": self.rows_in,
            "rowsOut": self.rows_out,
            "latencyMs": {
                f"p{p}": None if math.isnan(ms) else round(ms, 3) for p, ms in milliseconds.items()
            },
            "executors": self.executors,
            "cores": self.cores,
            "moves": self.moves,
            "hotShards": list(self.hot_shards),
        }


@dataclass(frozen=True, slots=True)
class BatchReport:
    """The figures of one batch."""

    epoch: Epoch
    attempt: Attempt
    tasks: int
    """How many have fed it."""
    seconds: float
    """From the first task's arrival until the last might leave."""
    bytes: int
    """The size of what was written to make it durable."""
    operators: Mapping[str, OperatorReport]

    @property
    def batch(self) -> int:
        """Its number, as the query counts."""
        return self.epoch - 1

    def as_dict(self) -> dict[str, Any]:
        """Plain values, in the manner of Spark's progress of a query."""
        return {
            "batchId": self.batch,
            "epoch": self.epoch,
            "attempt": self.attempt,
            "tasks": self.tasks,
            "durationMs": round(self.seconds * 1e3, 3),
            "stateBytesWritten": self.bytes,
            "operators": {name: report.as_dict() for name, report in self.operators.items()},
        }


@dataclass(slots=True)
class _Sums:
    rows_in: int = 0
    rows_out: int = 0
    latency: LatencyHistogram = field(default_factory=LatencyHistogram)


class Reporter:
    """Makes a report of each batch, in the driver's loop; reports are values."""

    def __init__(self, plan: Plan) -> None:
        self._operator_of = {
            Peer(who): operator.name for operator in plan.operators for who in operator.processes
        }
        self._names = tuple(operator.name for operator in plan.operators)
        self.reports: deque[BatchReport] = deque(maxlen=_KEPT)
        """The newest last."""
        self.moves: Counter[Peer] = Counter()
        self.hot: dict[Peer, tuple[ShardId, ...]] = {}
        self._start()

    def _start(self) -> None:
        self._began_at = time.monotonic()
        self._tasks = 0
        self._sums = {name: _Sums() for name in self._names}
        self._moves_before = Counter(self.moves)
        self._bytes = 0

    def begin(self) -> None:
        """Start over: the first task of an attempt has come."""
        self._start()

    def add(
        self,
        rows_in: Mapping[str, int],
        rows_out: Mapping[str, int],
        latency: Mapping[str, LatencyHistogram],
    ) -> None:
        """Add what a task has sent and taken, by operator."""
        self._tasks += 1
        for name, sums in self._sums.items():
            sums.rows_in += rows_in.get(name, 0)
            sums.rows_out += rows_out.get(name, 0)
            if name in latency:
                sums.latency.merge(latency[name])

    def wrote(self, size: int) -> None:
        """Note the size of the increments that are durable."""
        self._bytes = size

    def end(
        self, epoch: Epoch, attempt: Attempt, cores: Mapping[Peer, Mapping[NodeId, int]]
    ) -> BatchReport:
        """Close the report: the last task may leave."""
        report = BatchReport(
            epoch,
            attempt,
            self._tasks,
            time.monotonic() - self._began_at,
            self._bytes,
            {name: self._operator(name, sums, cores) for name, sums in self._sums.items()},
        )
        self.reports.append(report)
        return report

    def _operator(
        self, name: str, sums: _Sums, cores: Mapping[Peer, Mapping[NodeId, int]]
    ) -> OperatorReport:
        mine = [who for who, operator in self._operator_of.items() if operator == name]
        return OperatorReport(
            sums.rows_in,
            sums.rows_out,
            sums.latency,
            len(mine),
            sum(sum(cores.get(who, {}).values()) for who in mine),
            sum(self.moves[who] - self._moves_before[who] for who in mine),
            tuple(f"{who}/{shard}" for who in mine for shard in self.hot.get(who, ())),
        )
