"""What an elastic executor measures over an interval, for the scheduler and for the curious.

A `Meter` counts; its snapshot, `ExecutorMetrics`, is a value that can be added up: over successive
intervals (`then`), over the tasks of one executor (`beside`), and over executors (`total`). The
paper's λ, μ, s and data intensity (section 4) are derived from the sums and never averaged.

Where nothing happened: a rate over no time, and a share of no time, is 0.0. What is measured per
row is NaN as long as there was no row, because a service rate of zero would mean something else.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from elasticutor.core.measure.latency import LatencyHistogram
from elasticutor.core.measure.load import SHORTEST_S, FloatArray, IntArray, require_amounts, tally
from elasticutor.core.measure.work import WorkDone
from elasticutor.errors import BadValueError


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ExecutorMetrics:
    """What one executor, or one of its tasks, did over an interval.

    A value: the arrays are copies and cannot be written to; record nothing into the
    latencies. It survives pickling. Negative and non-finite numbers are refused.

    Example:
        >>> meter = Meter(shards=2, now=0.0, cores=2)
        >>> meter.arrived(rows=500, size_bytes=64_000)
        >>> meter.processed(np.array([0, 0, 0, 1]), useful_s=0.4, bytes_in=512, rows_out=2)
        >>> metrics = meter.snapshot(now=1.0)
        >>> metrics.arrival_rate, metrics.service_rate, metrics.utilisation, metrics.selectivity
        (500.0, 10.0, 0.2, 0.5)
        >>> metrics.shard_loads.round(3)
        array([0.3, 0.1])
        >>> metrics.then(metrics).seconds, metrics.beside(metrics).cores
        (2.0, 4.0)
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
    """Rows processed, by shard; empty where several executors were added up."""

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

    @classmethod
    def empty(cls, shards: int) -> ExecutorMetrics:
        """No time, in which nothing happened: changes nothing that it is joined to."""
        if shards < 0:
            raise BadValueError("number of shards", "be at least 0", shards)
        return _joined((), seconds=0.0, state_bytes=0, backlog_rows=0, shards=shards)

    def then(self, later: ExecutorMetrics) -> ExecutorMetrics:
        """This interval and the next one of the same executor, as one.

        The state is as large as it was in the later one, unless that has no length.
        """
        return self.then_all((later,))

    def then_all(self, later: Sequence[ExecutorMetrics]) -> ExecutorMetrics:
        """This interval and the next ones of the same executor, as one; as `then`, but faster."""
        for part in later:
            self._same_shards(part)
        parts = (self, *later)
        last = next((part for part in reversed(parts) if part.seconds), self)
        return _joined(
            parts,
            seconds=sum(part.seconds for part in parts),
            state_bytes=last.state_bytes,
            backlog_rows=last.backlog_rows,
            shards=self.shards,
        )

    def beside(self, other: ExecutorMetrics) -> ExecutorMetrics:
        """Two tasks of one executor over the same interval, as one.

        The intervals should be the same but for the moment it takes to ask both; the result has
        the length of the longer. For several executors use `total`: their shards are not the same
        shards, though they have the same numbers.
        """
        return _joined(
            (self, other),
            seconds=max(self.seconds, other.seconds),
            state_bytes=self.state_bytes + other.state_bytes,
            backlog_rows=self.backlog_rows + other.backlog_rows,
            shards=self._same_shards(other),
        )

    @classmethod
    def total(cls, executors: Iterable[ExecutorMetrics]) -> ExecutorMetrics:
        """Several executors over the same interval, without the shards of each."""
        parts = tuple(executors)
        return _joined(
            parts,
            seconds=max((part.seconds for part in parts), default=0.0),
            state_bytes=sum(part.state_bytes for part in parts),
            backlog_rows=sum(part.backlog_rows for part in parts),
            shards=0,
        )

    @property
    def shards(self) -> int:
        """The number of shards, z; 0 where several executors were added up."""
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

    @property
    def shard_loads(self) -> FloatArray:
        """Work of each shard, in cores: seconds per second."""
        if self.seconds < SHORTEST_S:
            return np.zeros(self.shards)
        return self.shard_seconds / self.seconds

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

    def _same_shards(self, other: ExecutorMetrics) -> int:
        if other.shards != self.shards:
            raise BadValueError(
                "number of shards",
                f"be {self.shards} on both sides",
                other.shards,
                "only measurements of one executor can be joined; add up executors with `total`",
            )
        return self.shards

    def __reduce__(self) -> tuple[Callable[[], ExecutorMetrics], tuple[()]]:
        # By way of the constructor: unpickled arrays could be written to.
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return partial(ExecutorMetrics, **values), ()


_NEVER_NEGATIVE = (np.dtype(np.uint16), np.dtype(np.uint32))  # nor too large for 64 bits
_SUMS = (
    "core_seconds",
    "rows_arrived",
    "bytes_arrived",
    "rows_processed",
    "rows_out",
    "useful_s",
    "bytes_in",
    "bytes_out",
)
_AMOUNTS = ("seconds", "state_bytes", "backlog_rows", *_SUMS)
_DERIVED = (
    "cores",
    "arrival_rate",
    "service_rate",
    "utilisation",
    "selectivity",
    "data_intensity",
)


def _joined(
    parts: Sequence[ExecutorMetrics],
    *,
    seconds: float,
    state_bytes: int,
    backlog_rows: int,
    shards: int,
) -> ExecutorMetrics:
    """The sum of the parts; without their shards if `shards` is 0."""
    latency = LatencyHistogram()
    shard_rows = np.zeros(shards, dtype=np.int64)
    shard_seconds = np.zeros(shards)
    for part in parts:
        latency.merge(part.latency)
        if shards:
            shard_rows += part.shard_rows
            shard_seconds += part.shard_seconds
    sums: dict[str, Any] = {name: sum(getattr(part, name) for part in parts) for name in _SUMS}
    return ExecutorMetrics(
        seconds=seconds,
        state_bytes=state_bytes,
        backlog_rows=backlog_rows,
        shard_rows=shard_rows,
        shard_seconds=shard_seconds,
        latency=latency,
        **sums,
    )


def _per(amount: float, time_s: float) -> float:
    return amount / time_s if time_s >= SHORTEST_S else 0.0


class Meter:
    """Counts what happens in an executor, or in one of its tasks, until it is reset.

    It has no clock: the caller says what time it is. The size of the state and the number
    of cores are kept over a reset, since they go on being what they were.

    Args:
        shards: The number of shards of the executor, z.
        now: When measuring starts.
        cores: The cores at that time; of a task, one. May be a fraction.

    Example:
        >>> meter = Meter(shards=256, now=0.0)
        >>> meter.arrived(rows=100)
        >>> meter.latency(0.005, count=100)
        >>> meter.set_cores(3, now=1.0)
        >>> metrics = meter.snapshot(now=2.0)
        >>> metrics.arrival_rate, metrics.latency.count, metrics.cores
        (50.0, 100, 2.0)
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
        # int(), here and below: a numpy int of 32 bits would turn the sum into one.
        self._rows_arrived += int(rows)
        self._bytes_arrived += int(size_bytes)

    def processed(
        self,
        shards: IntArray,
        useful_s: float,
        row_seconds: FloatArray | None = None,
        *,
        bytes_in: int = 0,
        bytes_out: int = 0,
        rows_out: int = 0,
    ) -> None:
        """A chunk went through the operator; `shards`, times and refusals as in `tally`."""
        if bytes_in < 0 or bytes_out < 0 or rows_out < 0:
            got = (bytes_in, bytes_out, rows_out)
            raise BadValueError("bytes in, bytes out and rows out", "be at least 0", got)
        rows, seconds = tally(shards, self._shards, useful_s, row_seconds)
        self._shard_rows += rows
        self._shard_seconds += seconds
        self._rows_processed += len(shards)
        self._useful_s += float(useful_s)
        self._bytes_in += int(bytes_in)
        self._bytes_out += int(bytes_out)
        self._rows_out += int(rows_out)

    def add_work(self, done: WorkDone) -> None:
        """Many chunks went through the operator, and were checked and summed up."""
        self._shard_rows += done.rows
        self._shard_seconds += done.seconds
        self._rows_processed += done.count
        self._useful_s += done.useful_s
        self._bytes_in += done.bytes_in
        self._bytes_out += done.bytes_out
        self._rows_out += done.rows_out
        self._latency.record_many(done.waits_s, done.wait_counts)

    def latency(self, seconds: float, count: int = 1) -> None:
        """Count rows that were completed after this time; see `LatencyHistogram.record`."""
        self._latency.record(seconds, count)

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
