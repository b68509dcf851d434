"""What an elastic executor measures over an interval, for the scheduler and for the curious.

A `Meter` counts; its snapshots, `ExecutorMetrics`, are values that can be added up over successive
intervals. The paper's λ, μ, s and data intensity (section 4) are derived from the sums and never
averaged.

Where nothing happened: a rate over no time, and a share of no time, is 0.0. What is measured per
row is NaN as long as there was no row, because a service rate of zero would mean something else.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from elasticutor.core.measure.latency import LatencyHistogram
from elasticutor.core.measure.load import SHORTEST_S, FloatArray, require_amounts
from elasticutor.core.measure.work import WorkDone
from elasticutor.errors import BadValueError


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ExecutorMetrics:
    """What one executor did over an interval.

    A value: the arrays are copies and cannot be written to; record nothing into the
    latencies. It survives pickling. Negative and non-finite numbers are refused.
    """

    seconds: float
    """Length of the interval."""
    core_seconds: float
    """Cores times the seconds for which they were there."""
    rows_arrived: int
    """Rows that the receiver took in."""
    bytes_arrived: int
    """Their size."""
    rows_processed: int
    """Rows that went through the operator."""
    rows_out: int
    """Rows that the operator put out."""
    useful_s: float
    """Time spent in the operator, over all cores; not the time blocked on queues or sockets."""
    bytes_in: int
    """Bytes that the tasks were given."""
    bytes_out: int
    """Bytes that the tasks put out."""
    state_bytes: int
    """Size of the state at the end of the interval (the paper's s)."""
    shard_rows: npt.NDArray[np.int64]
    """Rows processed, by shard."""
    shard_seconds: FloatArray
    """Useful time, by shard; as long as `shard_rows`."""
    latency: LatencyHistogram
    """Latencies of what was completed in the interval."""
    backlog_rows: int = 0
    """Rows that had arrived and were not processed at the end of the interval."""

    def __post_init__(self) -> None:
        for name in _AMOUNTS:
            if not 0 <= getattr(self, name) < math.inf:
                raise BadValueError(name, "be finite and at least 0", getattr(self, name))
        rows = np.array(self.shard_rows, dtype=np.int64)
        seconds = np.array(self.shard_seconds, dtype=np.float64)
        if rows.ndim != 1 or getattr(self.shard_rows, "dtype", None) not in _NEVER_NEGATIVE:
            require_amounts("shard_rows", rows, rows.size)
        require_amounts("shard_seconds", seconds, len(rows))
        rows.setflags(write=False)
        seconds.setflags(write=False)
        object.__setattr__(self, "shard_rows", rows)
        object.__setattr__(self, "shard_seconds", seconds)

    def then(self, *later: ExecutorMetrics) -> ExecutorMetrics:
        """This interval and the next ones of the same executor, as one.

        State and backlog are those of the last interval that has any length.
        """
        for part in later:
            if part.shards != self.shards:
                must, hint = f"be {self.shards} in all of them", "join those of one executor only"
                raise BadValueError("number of shards", must, part.shards, hint)
        parts = (self, *later)
        last = next((part for part in reversed(parts) if part.seconds), self)
        latency = LatencyHistogram()
        for part in parts:
            latency.merge(part.latency)
        sums: dict[str, Any] = {name: sum(getattr(part, name) for part in parts) for name in _SUMS}
        return ExecutorMetrics(
            state_bytes=last.state_bytes,
            backlog_rows=last.backlog_rows,
            shard_rows=np.sum([part.shard_rows for part in parts], axis=0),
            shard_seconds=np.sum([part.shard_seconds for part in parts], axis=0),
            latency=latency,
            **sums,
        )

    @property
    def shards(self) -> int:
        """The number of shards, z."""
        return len(self.shard_rows)

    @property
    def cores(self) -> float:
        """Cores, on average over the interval."""
        return _per(self.core_seconds, self.seconds)

    @property
    def arrival_rate(self) -> float:
        """Rows that arrived per second (λ), throttled by back-pressure."""
        return _per(self.rows_arrived, self.seconds)

    @property
    def service_rate(self) -> float:
        """Rows that one core processes per second of useful time (μ); NaN if unmeasured."""
        measured = self.rows_processed and self.useful_s >= SHORTEST_S
        return self.rows_processed / self.useful_s if measured else math.nan

    @property
    def utilisation(self) -> float:
        """Share of the cores' time that was useful.

        It can exceed 1 a little, as the time of a chunk counts in the interval in which it ends.
        """
        return _per(self.useful_s, self.core_seconds)

    @property
    def selectivity(self) -> float:
        """Rows put out per row processed; NaN before any row."""
        return self.rows_out / self.rows_processed if self.rows_processed else math.nan

    @property
    def data_intensity(self) -> float:
        """Bytes per second into and out of each core (paper 4.2)."""
        return _per(self.bytes_in + self.bytes_out, self.core_seconds)

    def as_dict(self) -> dict[str, float | int | None]:
        """Sums, rates and latencies as plain numbers, for JSON; None stands for NaN.

        The shards are left out: they are many, and of no use to a reader.
        """
        numbers: dict[str, float | int] = {name: getattr(self, name) for name in _AMOUNTS}
        numbers |= {name: getattr(self, name) for name in _DERIVED}
        numbers["latency_count"] = self.latency.count
        numbers["latency_mean_ms"] = self.latency.mean_s * 1e3
        for name, p in (("p50", 50.0), ("p99", 99.0), ("p999", 99.9)):
            numbers[f"latency_{name}_ms"] = self.latency.percentile_s(p) * 1e3
        return {name: None if math.isnan(number) else number for name, number in numbers.items()}

    def __reduce__(self) -> tuple[Callable[[], ExecutorMetrics], tuple[()]]:
        # By way of the constructor: unpickled arrays could be written to.
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return partial(ExecutorMetrics, **values), ()


_NEVER_NEGATIVE = (np.dtype(np.uint16), np.dtype(np.uint32))  # nor too large for 64 bits
_NO_AMOUNTS = {"shard_rows", "shard_seconds", "latency"}
_AMOUNTS = tuple(one.name for one in fields(ExecutorMetrics) if one.name not in _NO_AMOUNTS)
_SUMS = tuple(name for name in _AMOUNTS if name not in ("state_bytes", "backlog_rows"))
_DERIVED = (
    *("cores", "arrival_rate", "service_rate"),
    *("utilisation", "selectivity", "data_intensity"),
)


def _per(amount: float, time_s: float) -> float:
    return amount / time_s if time_s >= SHORTEST_S else 0.0


class Meter:
    """Counts what happens in an executor, until it is reset.

    It has no clock: the caller says what time it is. The size of the state and the number
    of cores are kept over a reset, since they go on being what they were.
    """

    def __init__(self, shards: int, now: float, cores: float = 1.0) -> None:
        if shards < 1:
            raise BadValueError("number of shards", "be at least 1", shards)
        _require_amount("cores", cores)
        if not math.isfinite(now):
            raise BadValueError("now", "be finite", now)
        self._shards = shards
        self._cores = float(cores)
        self._state_bytes = 0
        self._clear(now)

    def _clear(self, now: float) -> None:
        self._start = now
        # Core-seconds are summed up to the last change of cores.
        self._cores_since = now
        self._core_seconds = 0.0
        self._rows_arrived = 0
        self._bytes_arrived = 0
        self._rows_processed = 0
        self._rows_out = 0
        self._useful_s = 0.0
        self._bytes_in = 0
        self._bytes_out = 0
        self._shard_rows = np.zeros(self._shards, dtype=np.int64)
        self._shard_seconds = np.zeros(self._shards)
        self._latency = LatencyHistogram()

    def arrived(self, rows: int, size_bytes: int = 0) -> None:
        """The receiver took in this number of rows."""
        if not (0 <= rows < math.inf and 0 <= size_bytes < math.inf):
            _require_amount("arrived rows", rows)
            _require_amount("arrived bytes", size_bytes)
        # int(): a numpy int of 32 bits would turn the sum into one.
        self._rows_arrived += int(rows)
        self._bytes_arrived += int(size_bytes)

    def add_work(self, done: WorkDone) -> None:
        """Chunks went through the operator, and were checked and summed up."""
        self._shard_rows += done.rows
        self._shard_seconds += done.seconds
        self._rows_processed += done.count
        self._useful_s += done.useful_s
        self._bytes_in += done.bytes_in
        self._bytes_out += done.bytes_out
        self._rows_out += done.rows_out
        self._latency.record_many(done.waits_s, done.wait_counts)

    def state_bytes(self, total: int) -> None:
        """The state has this size now."""
        _require_amount("state bytes", total)
        self._state_bytes = int(total)

    def set_cores(self, cores: float, now: float) -> None:
        """The number of cores from now on."""
        _require_amount("cores", cores)
        self._core_seconds = self._core_seconds_until(now)
        self._cores_since = now
        self._cores = float(cores)

    def snapshot(self, now: float, backlog_rows: int = 0) -> ExecutorMetrics:
        """What was counted since the start; counting goes on."""
        return ExecutorMetrics(
            backlog_rows=int(backlog_rows),
            core_seconds=self._core_seconds_until(now),
            seconds=now - self._start,
            rows_arrived=self._rows_arrived,
            bytes_arrived=self._bytes_arrived,
            rows_processed=self._rows_processed,
            rows_out=self._rows_out,
            useful_s=self._useful_s,
            bytes_in=self._bytes_in,
            bytes_out=self._bytes_out,
            state_bytes=self._state_bytes,
            shard_rows=self._shard_rows,
            shard_seconds=self._shard_seconds,
            latency=self._latency.copy(),
        )

    def reset(self, now: float) -> None:
        """Count from zero, as of now."""
        self._core_seconds_until(now)  # refuses a time that lies in the past
        self._clear(now)

    def _core_seconds_until(self, now: float) -> float:
        if not self._cores_since <= now < math.inf:
            raise BadValueError("now", f"be finite and not before {self._cores_since}", now)
        return self._core_seconds + self._cores * (now - self._cores_since)


def _require_amount(who: str, amount: float) -> None:
    if not 0 <= amount < math.inf:
        raise BadValueError(who, "be finite and at least 0", amount)
