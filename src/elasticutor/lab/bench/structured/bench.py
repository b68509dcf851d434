"""`elasticutor bench structured`: `elastic()` beside Spark's own APIs for state per key.

The same rows, from the same files, on the same local session, with as many partitions after an
exchange as the elastic operator has cores. Queries run in turns, one at a time; the cluster of the
elastic executors is there only for an elastic query. What counts is the time of whole batches, from
the trigger to the commit, as the query's own progress has it; the first batch does not count.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any, Literal

from elasticutor.lab.bench import options
from elasticutor.lab.bench.declare import Benchmark, Figures, Table, figure
from elasticutor.lab.bench.live import Bench, scratch
from elasticutor.lab.bench.structured.figures import (
    ELASTIC,
    PASSTHROUGH,
    RIVALS,
    VECTORISED,
    Compared,
    Runs,
    Small,
    Uniform,
)
from elasticutor.lab.bench.structured.stage import (
    Files,
    SparkStage,
    require_packages,
    spark_stage,
    write_files,
)
from elasticutor.lab.bench.work import Burn, Burning, Count, CountBatches
from elasticutor.lab.options import BadOptionError, option
from elasticutor.operator import Operator
from elasticutor.sources import Generator

COUNTED = (PASSTHROUGH, *RIVALS, ELASTIC, VECTORISED)
"""What counts are compared of."""

SKEWED = (*RIVALS, ELASTIC)
"""What is compared where rows take CPU time: with the operator that works record by record."""

_ZIPF, _SKEWED_ZIPF = 0.5, 1.0
_SMALL_ROWS, _SMALL_BATCHES = 100, 40
"""Of batches that show what a batch costs whatever is in it."""
_WARM_UP_ROWS, _SKEWED_WARM_UP_ROWS = 10_000, 1_000
_SEED = 1


Part = Literal["count", "skewed", "uniform", "all"]


class StructuredFigures(Figures):
    """What was measured; None: what was not asked for."""

    setting: StructuredBench
    count: Compared | None = None
    small: Small | None = figure(omit_none=True, default=None)
    skewed: list[Compared] | None = None
    uniform: Uniform | None = None

    def as_dict(self) -> dict[str, Any]:
        setting, found = self.setting, super().as_dict()
        if self.count is not None:
            more = {"keys": setting.keys, "zipf": _ZIPF, "payload": setting.payload}
            found["count"] = self.count.as_dict() | more
        if self.skewed is not None:
            # The smallest batches' figures on top, and all of them by their size.
            found["skewed"] = {
                **self.skewed[0].as_dict(),
                "by_batch_rows": {str(one.batch_rows): one.as_dict() for one in self.skewed},
                "cost_ms": setting.cost_ms,
                "zipf": _SKEWED_ZIPF,
                "shuffle_rows": setting.shuffle_rows,
                "ideal_rows_s": round(setting.cores / setting.cost_ms * 1e3),
            }
        if self.uniform is not None:
            found |= self.uniform.as_dict()
        return {**found, "sink": "noop", "state_store": "RocksDB"}

    def tables(self, title: str) -> Iterator[Table]:
        setting = self.setting
        if self.count is not None:
            rows = self.count.batch_rows
            yield self.count.table(f"counts of {setting.keys:,} keys, batches of {rows:,} rows")
        for one in self.skewed or ():
            what = f"{setting.cost_ms:g} ms of CPU per row"
            yield one.table(f"{what}, batches of {one.batch_rows:,}")

    def remarks(self) -> Iterator[str]:
        for part in (self.small, self.uniform):
            if part is not None:
                yield from part.remarks()


class StructuredBench(Benchmark):
    """How elastic() compares with Spark's own APIs for state per key, on the same rows.

    Count: counts per key, with rows that only pass through beside them, and elastic()'s own share
    of a batch with few rows. Skewed: rows that take CPU time, with keys whose frequencies change.
    Uniform: pairs of runs with balancing and without, where there is nothing to balance.
    """

    about = ""

    part: Part = option("all", "What to measure.")
    rows: int = option(1_000_000, "Rows to count.", min=1)
    batch_rows: int = option(100_000, "Rows of a batch of them.", min=2)
    keys: int = options.KEYS(10_000)
    payload: int = option(0, "Bytes carried along in each row.", min=0)
    seconds: float = options.SECONDS(
        20.0, help="End a query that counts after this many seconds.", min=0.1, key=""
    )
    dear_rows: int = option(80_000, "Rows that take CPU time, for the skewed part.", min=1)
    dear_batch_rows: list[int] | None = option(
        None, "Rows of a batch of them.", min=2, shows="10000 and 40000"
    )
    cost_ms: float = options.COST_MS(1.0, help="CPU time that each of them takes, in ms.", key="")
    shuffle: float = option(10.0, "Seconds of work between two shuffles of the keys.", min=0.1)
    pairs: int = option(10, "Pairs of runs with and without balancing.", min=1)
    repeat: int = options.REPEAT(
        1, help="Rounds of the other parts; figures are medians.", key="rounds"
    )
    cores: int = options.CORES(2, help="Of the elastic operator; partitions of the others.")
    answers: Literal["row", "key"] = option(
        "row",
        "What Spark's own APIs answer: each row as elastic() does, or each key.",
        key="answers",
    )
    exchange: bool = option(False, "Let an exchange follow the elastic operator.", key="exchange")
    folder: Path | None = options.FOLDER(None, help="For files and checkpoints.")

    @property
    def shuffle_rows(self) -> int:
        """Rows between two shuffles of the keys: `shuffle` seconds' work for all cores."""
        return max(1, round(self.shuffle * self.cores / self.cost_ms * 1e3))

    @property
    def slots(self) -> int:
        """Of the session: nodes of elastic executors take one, the query's tasks the others."""
        return self.cores + 2

    @property
    def skewed_sizes(self) -> list[int]:
        """Rows of the batches of those that take CPU time, the smallest first."""
        return sorted(self.dear_batch_rows or (10_000, 40_000))

    def has(self, part: Part) -> bool:
        """Whether a part is to be measured."""
        return self.part in (part, "all")

    def check(self) -> None:
        counts = self.has("count") or self.has("uniform")
        largest = self.skewed_sizes[-1]
        if self.has("skewed") and self.dear_rows < largest:
            reason = f"{self.dear_rows:,} do not fill a batch of {largest:,}"
            raise BadOptionError("--dear-rows", reason)
        if counts and self.rows < self.batch_rows:
            reason = f"{self.rows:,} do not fill a batch of {self.batch_rows:,}"
            raise BadOptionError("--rows", reason)
        Burning(self.cost_ms / 1e3)
        require_packages()

    def given(self) -> dict[str, Any]:
        return {**super().given(), "slots": self.slots}

    def measure(self, bench: Bench) -> StructuredFigures:
        bench.say("starting Spark")
        # The folder outlives Spark, whose processes write into it.
        with scratch(self.folder) as place, spark_stage(self, place, bench) as stage:
            return self.on(stage)

    def on(self, stage: SparkStage) -> StructuredFigures:
        """The same where queries run already."""
        found = StructuredFigures(setting=self)
        if self.has("count"):
            found.count = self._count(stage)
            found.small = self._small(stage)
        if self.has("skewed"):
            found.skewed = [self._skewed(stage, rows) for rows in self.skewed_sizes]
        if self.has("uniform"):
            found.uniform = self._uniform(stage)
        return found

    def _count(self, stage: SparkStage) -> Compared:
        stage.bench.say(f"writing {self.rows:,} rows")
        folder = stage.folder / "count"
        files = self._files(folder, self.rows, self.batch_rows, payload=self.payload)
        stage.bench.say("count: once for the JVM to warm up")
        stage.run(PASSTHROUGH, files, most_s=self.seconds)
        operators = {ELASTIC: Count(), VECTORISED: CountBatches()}
        runs = self._rounds(stage, "count", COUNTED, files, operators, self.seconds)
        return Compared(runs=runs, batch_rows=files.batch_rows)

    def _small(self, stage: SparkStage) -> Small:
        files = self._files(stage.folder / "small", _SMALL_ROWS * _SMALL_BATCHES, _SMALL_ROWS)
        names, what = (PASSTHROUGH, ELASTIC), f"batches of {files.batch_rows}"
        runs = self._rounds(stage, what, names, files, {ELASTIC: Count()}, self.seconds)
        return Small.of(runs, files.batch_rows)

    def _skewed(self, stage: SparkStage, batch_rows: int) -> Compared:
        files = self._files(
            stage.folder / f"skewed-{batch_rows}",
            self.dear_rows,
            batch_rows,
            zipf=_SKEWED_ZIPF,
            shuffle_rows=self.shuffle_rows,
            warm_up_rows=_SKEWED_WARM_UP_ROWS,
        )
        cost_s = self.cost_ms / 1e3
        work: dict[str, Operator | Burning] = dict.fromkeys(RIVALS, Burning(cost_s))
        work[ELASTIC] = Burn(cost_s)
        runs = self._rounds(stage, f"skewed, batches of {batch_rows:,}", SKEWED, files, work)
        return Compared(runs=runs, batch_rows=files.batch_rows)

    def _uniform(self, stage: SparkStage) -> Uniform:
        folder = stage.folder / "uniform"
        files = self._files(folder, self.rows, self.batch_rows, zipf=0.0, payload=self.payload)
        found = Uniform(batch_rows=files.batch_rows)
        with stage.cluster() as cluster:
            run = partial(stage.run, ELASTIC, files, Count(), cluster=cluster, most_s=self.seconds)
            stage.bench.say("uniform: once for the JVM to warm up")
            run(balance=True)
            for _, balance in stage.bench.turns(self.pairs, (True, False), "uniform, pair"):
                (found.balanced if balance else found.still).add(run(balance=balance))
        return found

    def _files(
        self,
        folder: Path,
        rows: int,
        batch_rows: int,
        *,
        zipf: float = _ZIPF,
        warm_up_rows: int = _WARM_UP_ROWS,
        **more: Any,
    ) -> Files:
        generator = Generator(keys=self.keys, zipf=zipf, seed=_SEED, **{"payload": 0, **more})
        return write_files(folder, generator, rows, batch_rows, min(warm_up_rows, batch_rows))

    def _rounds(
        self,
        stage: SparkStage,
        what: str,
        names: Sequence[str],
        files: Files,
        operators: Mapping[str, Operator | Burning],
        most_s: float = math.inf,
    ) -> dict[str, Runs]:
        """Each query once per round; elastic ones with a cluster that is there for them alone."""
        found = {name: Runs() for name in names}
        for _, name in stage.bench.turns(self.repeat, names, f"{what}: {{side}}, round"):
            elastic = name in (ELASTIC, VECTORISED)
            with stage.cluster() if elastic else nullcontext() as cluster:
                operator = operators.get(name)
                found[name].add(stage.run(name, files, operator, cluster=cluster, most_s=most_s))
        return found
