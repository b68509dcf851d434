"""Records a simulated cluster's run: tuples, latencies, moves and bytes, bin by bin."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from elasticutor.core.measure.latency import LatencyHistogram
from elasticutor.lab.sim.workload import FloatArray

BIN_S = 0.1
"""The timeline has a moment for each of these."""


@dataclass(frozen=True, slots=True)
class Bin:
    """A tenth of a second of a run."""

    time_s: float
    """Its end, from the start of measuring on; before that it is negative or 0."""
    throughput: float
    """Tuples per second."""
    mean_ms: float
    """Of latency; NaN where no tuple was done."""
    p50_ms: float
    cores: int
    """Cores that executors have."""
    moves: int
    """Shards that have moved."""


@dataclass(frozen=True, slots=True)
class Moved:
    """A shard that has moved, or, with rc, a round in which many have."""

    time_s: float
    shards: int
    remote: int
    """How many of them changed their node."""
    sync_s: float
    migration_s: float
    size: int
    """Bytes of state that were sent between nodes."""


@dataclass(slots=True)
class Recorder:
    """Records a run; the cluster closes a bin every tenth of a second."""

    warmup_s: float
    cores: Callable[[], int] = lambda: 0
    """How many cores executors have now."""
    results: list[tuple[float, FloatArray | float, int]] = field(default_factory=list)
    """Of this bin: when results arrived, when their tuples were due, each or all, and how many."""
    moments: list[Bin] = field(default_factory=list)
    moved: list[Moved] = field(default_factory=list)
    latency: LatencyHistogram = field(default_factory=LatencyHistogram)
    done: int = 0
    """Tuples, since the start of measuring."""
    remote_bytes: int = 0
    """Tuples and results to and from tasks on other nodes, since the start of measuring."""
    core_moves: int = 0
    """Cores granted after the start, since the start of measuring."""
    _moves_before: int = 0

    def close_bin(self, now: float) -> None:
        """Sum up the bin that ends now."""
        measured = now > self.warmup_s + BIN_S / 2
        mean = median = np.nan
        count = 0
        if self.results:
            ages = self._take_ages()
            count = len(ages)
            mean, median = float(ages.mean()), float(np.median(ages))
            if measured:
                self.latency.record_many(ages, np.ones(count, dtype=np.int64))
        moves = sum(moved.shards for moved in self.moved)
        self.moments.append(
            Bin(
                round(now - self.warmup_s, 6),
                count / BIN_S,
                mean * 1e3,
                median * 1e3,
                self.cores(),
                moves - self._moves_before,
            )
        )
        self._moves_before = moves
        self.done += count * measured

    def _take_ages(self) -> FloatArray:
        """How old each tuple of the bin was when its result arrived."""
        times, births, counts = zip(*self.results, strict=True)
        self.results = []
        same = isinstance(births[0], float)
        due = np.repeat(births, counts) if same else np.concatenate(births)
        ages: FloatArray = np.repeat(times, counts) - due
        return ages

    def start_measuring(self) -> None:
        """Count from now on: the warm-up is over."""
        self.remote_bytes = 0
        self.core_moves = 0

    @property
    def measured(self) -> list[Bin]:
        """The moments after the warm-up."""
        return [moment for moment in self.moments if moment.time_s > BIN_S / 2]

    @property
    def measured_moves(self) -> list[Moved]:
        """The moves after the warm-up."""
        return [moved for moved in self.moved if moved.time_s > self.warmup_s]
