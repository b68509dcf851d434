"""What was measured of streaming queries: their batches, compared by rounds and by pairs."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from elasticutor.lab.bench.declare import (
    Figures,
    Samples,
    Table,
    figure,
    grid,
    interval_as_dict,
    median,
    percentiles,
    ratios,
    samples,
    with_interval,
)
from elasticutor.lab.bench.live import BenchError

ELASTIC = "elastic"
VECTORISED = "elastic_vectorised"
PASSTHROUGH = "passthrough"
RIVALS = ("transformWithState", "transformWithStateInPandas", "applyInPandasWithState")
"""Spark's own APIs for state per key in Python."""


@dataclass(frozen=True, slots=True)
class Ran:
    """One run of one query: the batches that count."""

    batches: tuple[tuple[int, float], ...]
    """Rows of each, and milliseconds from its trigger until it was committed."""

    def __post_init__(self) -> None:
        if not self.ms:
            hint = "give it more time or more rows"
            raise BenchError("query", "end a batch after the first", 0, hint)

    @property
    def ms(self) -> float:
        """What all batches take."""
        return sum(ms for _, ms in self.batches)

    @property
    def rows(self) -> int:
        """How many it saw."""
        return sum(rows for rows, _ in self.batches)


class Runs(Figures):
    """All runs of one query."""

    rows_s: Samples = samples("rows per second", ",.0f", digits=None, better="higher")
    of_best: float = figure("of the best rival", ".2f", key="", default=1.0)
    batches_ms: Samples = samples(
        "batch p99 ms", ",.0f", key="batch_p99_ms", shows={"": 99}, digits=1, better="lower"
    )
    """Of the batches of all runs."""
    batch_ms: Samples = field(default_factory=list)
    """What a batch takes in each run, as a median."""
    rows: list[int] = figure(default_factory=list)

    @classmethod
    def of(cls, *runs: Ran) -> Runs:
        found = cls()
        for ran in runs:
            found.add(ran)
        return found

    def add(self, ran: Ran) -> None:
        times_ms = [ms for _, ms in ran.batches]
        self.rows_s.append(ran.rows / ran.ms * 1e3)
        self.batch_ms.append(statistics.median(times_ms))
        self.batches_ms += times_ms
        self.rows.append(ran.rows)

    def as_dict(self) -> dict[str, Any]:
        return {**super().as_dict(), "batches": len(self.batches_ms)}


class Compared(Figures):
    """The same rows through several queries, round by round."""

    runs: dict[str, Runs]
    batch_rows: int = figure()

    @property
    def best_rival(self) -> str:
        """Which of Spark's own APIs was the fastest."""
        rivals = (name for name in RIVALS if name in self.runs)
        return max(rivals, key=lambda name: median(self.runs[name].rows_s))

    def ratio(self, one: str, other: str) -> Samples:
        """One query's rows per second over another's, by rounds."""
        return ratios(self.runs[one].rows_s, self.runs[other].rows_s)

    def as_dict(self) -> dict[str, Any]:
        """Everything, for `--json`: ours also against the best rival, and what passes through."""
        best = self.best_rival
        found: dict[str, Any] = {name: runs.as_dict() for name, runs in self.runs.items()}
        found |= {"best_rival": best, **super().as_dict()}
        for name, short in ((ELASTIC, ""), (VECTORISED, "vectorised_")):
            for other, which in ((best, "over_best_rival"), (PASSTHROUGH, "of_passthrough")):
                if {name, other} <= set(self.runs):
                    found |= percentiles(f"{short}{which}", self.ratio(name, other))
        return found

    def table(self, title: str) -> Table:
        """A row for each query."""
        best = median(self.runs[self.best_rival].rows_s)
        for runs in self.runs.values():
            runs.of_best = median(runs.rows_s) / best
        return grid(title, "query", self.runs)


class Small(Figures):
    """Batches with few rows: what a batch costs whatever is in it."""

    elastic_ms: Samples = samples(digits=1)
    passthrough_ms: Samples = samples(digits=1)
    own_ms: Samples = samples(digits=1)
    """Our share of a batch: what it takes beyond one that only passes through, by rounds."""
    batch_rows: int = figure()
    batches: int = figure()

    @classmethod
    def of(cls, runs: Mapping[str, Runs], batch_rows: int) -> Small:
        """From the runs of both queries."""
        ours, theirs = runs[ELASTIC].batch_ms, runs[PASSTHROUGH].batch_ms
        return cls(
            elastic_ms=ours,
            passthrough_ms=theirs,
            own_ms=[one - other for one, other in zip(ours, theirs, strict=True)],
            batch_rows=batch_rows,
            batches=len(runs[ELASTIC].batches_ms),
        )

    def remarks(self) -> Iterator[str]:
        own = f"{median(self.own_ms):.0f} ms longer than those that pass through"
        yield f"batches of {self.batch_rows} rows: {own}"


class Uniform(Figures):
    """Pairs of runs with balancing and without, where there is nothing to balance."""

    balanced: Runs = figure(default_factory=Runs)
    still: Runs = figure(default_factory=Runs)
    batch_rows: int = figure()

    @property
    def ratios(self) -> Samples:
        """Rows per second with balancing over those without, by pairs."""
        return ratios(self.balanced.rows_s, self.still.rows_s)

    def as_dict(self) -> dict[str, Any]:
        found = [round(one, 4) for one in self.ratios]
        uniform = {**super().as_dict(), "ratios": found, "pairs": len(found)}
        return {**interval_as_dict("uniform_ratio", self.ratios), "uniform": uniform}

    def remarks(self) -> Iterator[str]:
        ratio, low, high = with_interval(self.ratios)
        yield (
            f"uniform keys, {len(self.ratios)} pairs: with balancing {ratio:.3f} of the rows per "
            f"second without (95 %: {low:.3f} – {high:.3f})"
        )
