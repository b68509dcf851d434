"""What was measured of streaming queries: their batches, compared by rounds and by pairs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from elasticutor.lab.bench.figures import Spread
from elasticutor.lab.bench.live import BenchError, spread_as_dict

ELASTIC = "elastic"
VECTORISED = "elastic_vectorised"
PASSTHROUGH = "passthrough"
RIVALS = ("transformWithState", "transformWithStateInPandas", "applyInPandasWithState")
"""Spark's own APIs for state per key in Python."""


@dataclass(frozen=True, slots=True)
class TimedBatch:
    """A micro-batch, as the query's progress has it."""

    rows: int
    ms: float
    """From its trigger until it was committed."""


@dataclass(frozen=True, slots=True)
class Ran:
    """One run of one query: the batches that count."""

    batches: tuple[TimedBatch, ...]

    def __post_init__(self) -> None:
        if not sum(batch.ms for batch in self.batches):
            hint = "give it more time or more rows"
            raise BenchError("query", "end a batch after the first", 0, hint)

    @property
    def rows(self) -> int:
        """How many it saw."""
        return sum(batch.rows for batch in self.batches)

    @property
    def rows_s(self) -> float:
        """Rows per second, over whole batches.

        Example:
            >>> Ran((TimedBatch(1000, 400), TimedBatch(1000, 100))).rows_s
            4000.0
        """
        return self.rows / sum(batch.ms for batch in self.batches) * 1e3

    @property
    def batch_ms(self) -> float:
        """What a batch takes, as a median."""
        return float(np.median([batch.ms for batch in self.batches]))


@dataclass(frozen=True, slots=True)
class Runs:
    """All runs of one query."""

    runs: tuple[Ran, ...]

    @property
    def rows_s(self) -> Spread:
        """Over the runs."""
        return Spread.of([run.rows_s for run in self.runs])

    @property
    def batch_p99_ms(self) -> float:
        """Of the batches of all runs."""
        return float(np.percentile([b.ms for run in self.runs for b in run.batches], 99))

    def as_dict(self) -> dict[str, Any]:
        """Everything, for `--json`."""
        spread = self.rows_s
        rounded = Spread(round(spread.median), round(spread.low), round(spread.high))
        return {
            **spread_as_dict("rows_s", rounded),
            "batch_p99_ms": round(self.batch_p99_ms, 1),
            "rows": [run.rows for run in self.runs],
            "batches": sum(len(run.batches) for run in self.runs),
        }


@dataclass(frozen=True, slots=True)
class Compared:
    """The same rows through several queries, round by round."""

    runs: Mapping[str, Runs]
    batch_rows: int

    @property
    def best_rival(self) -> str:
        """Which of Spark's own APIs was the fastest."""
        return max(
            (name for name in RIVALS if name in self.runs),
            key=lambda name: self.runs[name].rows_s.median,
        )

    def ratio(self, one: str, other: str) -> Spread:
        """One query's rows per second over another's, by rounds."""
        pairs = zip(self.runs[one].runs, self.runs[other].runs, strict=True)
        return Spread.of([a.rows_s / b.rows_s for a, b in pairs])

    def ratios(self) -> dict[str, Any]:
        """Ours against the best of theirs, and against rows that only pass through."""
        best = self.best_rival
        found: dict[str, Any] = {"best_rival": best}
        for name, short in ((ELASTIC, ""), (VECTORISED, "vectorised_")):
            if name not in self.runs:
                continue
            found.update(spread_as_dict(f"{short}over_best_rival", self.ratio(name, best)))
            if PASSTHROUGH in self.runs:
                of = self.ratio(name, PASSTHROUGH)
                found.update(spread_as_dict(f"{short}of_passthrough", of))
        return found

    def as_dict(self) -> dict[str, Any]:
        """Everything, for `--json`."""
        return {
            **{name: runs.as_dict() for name, runs in self.runs.items()},
            **self.ratios(),
            "batch_rows": self.batch_rows,
        }


@dataclass(frozen=True, slots=True)
class Small:
    """Batches with few rows: what a batch costs whatever is in it."""

    elastic: Runs
    passthrough: Runs
    batch_rows: int

    @property
    def own_ms(self) -> Spread:
        """Our share of a batch: what it takes beyond one that only passes through, by rounds."""
        pairs = zip(self.elastic.runs, self.passthrough.runs, strict=True)
        return Spread.of([ours.batch_ms - theirs.batch_ms for ours, theirs in pairs])

    def as_dict(self) -> dict[str, Any]:
        """Everything, for `--json`."""
        both = {ELASTIC: self.elastic, PASSTHROUGH: self.passthrough}
        found: dict[str, Any] = {}
        for name, runs in both.items():
            taken = Spread.of([run.batch_ms for run in runs.runs])
            found.update(spread_as_dict(f"{name}_ms", _rounded(taken)))
        found.update(spread_as_dict("own_ms", _rounded(self.own_ms)))
        batches = sum(len(run.batches) for run in self.elastic.runs)
        return {**found, "batch_rows": self.batch_rows, "batches": batches}


def _rounded(spread: Spread) -> Spread:
    return Spread(round(spread.median, 1), round(spread.low, 1), round(spread.high, 1))


@dataclass(frozen=True, slots=True)
class Uniform:
    """Pairs of runs with balancing and without, where there is nothing to balance."""

    pairs: tuple[tuple[Ran, Ran], ...]
    """With, without."""
    batch_rows: int

    @property
    def ratios(self) -> list[float]:
        """Rows per second with balancing over those without, by pairs."""
        return [balanced.rows_s / still.rows_s for balanced, still in self.pairs]

    def as_dict(self) -> dict[str, Any]:
        """Everything, for `--json`."""
        ratio, low, high = with_interval(self.ratios)
        return {
            "uniform_ratio": round(ratio, 4),
            "uniform_ratio_ci95": [round(low, 4), round(high, 4)],
            "uniform": {
                "ratios": [round(one, 4) for one in self.ratios],
                "balanced": Runs(tuple(balanced for balanced, _ in self.pairs)).as_dict(),
                "still": Runs(tuple(still for _, still in self.pairs)).as_dict(),
                "pairs": len(self.pairs),
                "batch_rows": self.batch_rows,
            },
        }


def with_interval(ratios: Sequence[float]) -> tuple[float, float, float]:
    """The median of some ratios, and where it lies with 95 % by resampling them.

    Example:
        >>> with_interval([0.9, 1.0, 1.1])
        (1.0, 0.9, 1.1)
    """
    found = np.array(ratios, dtype=float)
    drawn = np.random.default_rng(0).choice(found, (2000, len(found)))
    low, high = np.percentile(np.median(drawn, axis=1), (2.5, 97.5))
    return float(np.median(found)), float(low), float(high)
