"""`elasticutor bench checkpoint`: what epochs cost, what they write, and how soon state is back."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Literal

from elasticutor.lab.bench import options
from elasticutor.lab.bench.checkpoint.dirty import DirtyFigures, measure_dirty
from elasticutor.lab.bench.checkpoint.overhead import Overhead, measure_overhead
from elasticutor.lab.bench.checkpoint.restore import RestoreFigures, measure_restore
from elasticutor.lab.bench.checkpoint.state import PATIENCE_S, filled
from elasticutor.lab.bench.declare import Benchmark
from elasticutor.lab.bench.figures import Figures, Table, figure
from elasticutor.lab.bench.live import BadOptionError, Bench, scratch
from elasticutor.lab.options import option
from elasticutor.sources import Generator

Part = Literal["throughput", "dirty", "restore", "all"]


class CheckpointFigures(Figures):
    """What was measured; None: what was not asked for."""

    kinds: dict[str, Overhead] | None = figure("operator", default=None)
    dirty: DirtyFigures | None = figure(omit_none=True, default=None)
    restore: RestoreFigures | None = figure(omit_none=True, default=None)

    def as_dict(self) -> dict[str, Any]:
        """Everything, for `--json`: the per-record operator's figures first, and on top."""
        found: dict[str, Any] = super().as_dict()
        kinds = found.pop("kinds") or {}
        return {**kinds.pop("per_record", {}), **kinds, **found}

    def tables(self, title: str) -> Iterator[Table]:
        """A table of each part."""
        yield from super().tables(title)
        if self.dirty is not None:
            whole = f"{self.dirty.bytes_of_all / 1e6:,.1f} MB in all"
            keys = self.dirty.store.keys
            yield from self.dirty.tables(f"what epochs write of {keys:,} keys ({whole})")
        if self.restore is not None:
            store = self.restore.store
            yield from self.restore.tables(f"restore of {store.keys:,} keys of {store.size} bytes")


class CheckpointBench(Benchmark):
    """What checkpoints cost: throughput, pauses and bytes; and how soon state is back.

    Throughput: pairs of runs with a checkpoint and without, as fast as tuples are taken. Dirty:
    what epochs write that change 1 % and 10 % of much state. Restore: how soon a run goes on from
    a checkpoint with much state.
    """

    about = "{pairs} pairs: an epoch every {interval:g} s, {keys:,} keys"

    part: Part = option("throughput", "What to measure.")
    pairs: int = option(5, "Pairs of runs, with and without.", min=1)
    seconds: float = options.SECONDS(8.0, help="How long each run is measured.", min=0.5)
    warm_up: float = options.WARM_UP(2.5)
    interval: float = option(
        2.0, "Seconds from one epoch's end to the next.", min=0.05, key="interval_s"
    )
    keys: int = options.KEYS(10_000, help="Keys, for the throughput.")
    cores: int = options.CORES(2)
    state_keys: int = option(1_000_000, "Keys, for what is dirty and for restores.", min=100)
    epochs: int = option(20, "Epochs for each share of dirty keys.", min=1)
    repeat: int = option(3, "Restores to time.", min=1)
    folder: Path | None = options.FOLDER(None)

    def check(self) -> None:
        """Refuse to measure for less than an epoch."""
        if self.seconds <= self.interval:
            reason = f"{self.seconds:g} is not more than an epoch's {self.interval:g} s"
            raise BadOptionError("--seconds", reason)

    def has(self, part: Part) -> bool:
        """Whether a part is to be measured."""
        return self.part in (part, "all")

    def given(self) -> dict[str, Any]:
        """The options, as far as the throughput goes by them."""
        if not self.has("throughput"):
            return {}
        return {**super().given(), "zipf": Generator().zipf}

    def measure(self, bench: Bench) -> CheckpointFigures:
        """Each part that is to be measured."""
        found = CheckpointFigures()
        # The folder outlives the cluster, whose processes write into it.
        with scratch(self.folder) as place, bench.cluster(self.cores) as cluster:
            fill = partial(filled, cluster, keys=self.state_keys, cores=self.cores, bench=bench)
            if self.has("throughput"):
                found.kinds = measure_overhead(bench, cluster, place, self)
            if self.has("restore"):
                store = fill(place / "restore", interval_s=self.interval)
                found.restore = measure_restore(bench, cluster, store, place, self.repeat)
            if self.has("dirty"):
                # In one epoch, so that all is in one file: what is folded later is of later ones.
                store = fill(place / "dirty", interval_s=PATIENCE_S)
                found.dirty = measure_dirty(bench, cluster, store, self.epochs, self.interval)
        return found
