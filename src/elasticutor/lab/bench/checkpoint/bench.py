"""`elasticutor bench checkpoint`: what epochs cost, what they write, and how soon state is back.

For the throughput the operator counts and sums per key, as in `bench throughput`, and gets tuples
as fast as it takes them. Pairs of runs, one with a checkpoint and one without, follow each other,
so that a slow minute of the machine hits both; which of the two goes first alternates. Once record
by record, once vectorised.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from elasticutor.driver.cluster import BaseCluster
from elasticutor.driver.run import Run
from elasticutor.lab.bench import options
from elasticutor.lab.bench.checkpoint.dirty import DirtyFigures, measure_dirty
from elasticutor.lab.bench.checkpoint.restore import RestoreFigures, measure_restore
from elasticutor.lab.bench.checkpoint.state import PATIENCE_S, filled
from elasticutor.lab.bench.declare import (
    MEDIAN,
    P50_P99,
    Benchmark,
    Figures,
    Samples,
    Table,
    figure,
    median,
    samples,
)
from elasticutor.lab.bench.live import Bench, BenchError, measured, pipeline, scratch
from elasticutor.lab.bench.work import KINDS
from elasticutor.lab.options import BadOptionError, option
from elasticutor.sinks import NoSink
from elasticutor.sources import Generator

Part = Literal["throughput", "dirty", "restore", "all"]


@dataclass(frozen=True, slots=True)
class EndedEpoch:
    """One epoch of one run, as it was felt."""

    pause_ms: float
    """The longest that the end of the epoch kept a task from its tuples."""
    seconds: float
    """From the marker until the epoch was committed."""
    size: int
    """Bytes of its increments."""


class Overhead(Figures):
    """What checkpoints cost one kind of operator, over pairs of runs with and without."""

    ratio: Samples = samples("with / without", ".3f", better="higher")
    """What is left of the throughput, by pairs."""
    pause_ms: Samples = samples("pause ms (p99)", ".1f", shows=P50_P99, better="lower")
    epoch_s: Samples = samples("epoch s", ".3f", better="lower")
    """From the marker until the epoch was committed."""
    kb_per_epoch: Samples = samples("KB per epoch", ",.0f", shows=MEDIAN, key="")
    rows_s: Samples = samples()
    rows_s_without: Samples = samples()

    def add(self, without: float, kept: float, epochs: Sequence[EndedEpoch]) -> None:
        """One pair: rows per second without a checkpoint and with one, and the epochs of that."""
        self.ratio.append(kept / without)
        self.rows_s.append(round(kept))
        self.rows_s_without.append(round(without))
        for epoch in epochs:
            self.pause_ms.append(epoch.pause_ms)
            self.epoch_s.append(epoch.seconds)
            self.kb_per_epoch.append(epoch.size / 1e3)

    def as_dict(self) -> dict[str, Any]:
        return {
            **super().as_dict(),
            "bytes_per_epoch": round(median(self.kb_per_epoch) * 1e3),
            "ratios": [round(ratio, 4) for ratio in self.ratio],
            "epochs": len(self.epoch_s),
        }


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


def measure_overhead(
    bench: Bench, cluster: BaseCluster, folder: Path, setting: CheckpointBench
) -> dict[str, Overhead]:
    """Measure each kind of operator; the first one's figures are the main ones."""
    found = {kind: Overhead() for kind in KINDS}
    for number, kind in bench.turns(setting.pairs, tuple(KINDS), "{side}, pair"):
        place = folder / f"{kind}-{number}"
        rates: dict[bool, float] = {}
        epochs: tuple[EndedEpoch, ...] = ()
        for kept in (False, True) if number % 2 == 0 else (True, False):
            source = Generator(rate=None, keys=setting.keys, seed=number)
            topology = pipeline("checkpoint", source, KINDS[kind](), NoSink(), cores=setting.cores)
            where = place if kept else None
            with cluster.submit(
                topology, checkpoint=where, epoch_interval=setting.interval, measure_s=0.1
            ) as run:
                seen = measured(run, setting.warm_up, setting.seconds)
            rates[kept] = seen.rows_s
            if kept:
                epochs = ended_between(run, seen.started, seen.ended)
        found[kind].add(rates[False], rates[True], epochs)
        shutil.rmtree(place, ignore_errors=True)  # what is left goes with the folder
    return found


def ended_between(run: Run, start: float, end: float) -> tuple[EndedEpoch, ...]:
    """The epochs that were committed between two times; nothing may have been lost meanwhile."""
    if lost := run.events("lost"):
        raise BenchError("run", "lose nothing", lost[0]["reason"])
    pauses: dict[int, float] = {}
    for sealed in run.events("epoch sealed"):
        epoch = sealed["epoch"]
        pauses[epoch] = max(pauses.get(epoch, 0.0), sealed["pause_ms"])
    found = [
        EndedEpoch(pauses[event["epoch"]], event["seconds"], event["bytes"])
        for event in run.events("epoch committed")
        if start <= event["time"] <= end
    ]
    if not found:
        raise BenchError("epochs", "be committed while it is measured", 0, "measure for longer")
    return tuple(found)
