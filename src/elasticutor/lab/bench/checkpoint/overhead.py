"""`elasticutor bench checkpoint`: what epochs cost, in throughput, in pauses and in bytes.

The operator counts and sums per key, as in `bench throughput`, and gets tuples as fast as it takes
them. Pairs of runs, one with a checkpoint and one without, follow each other, so that a slow minute
of the machine hits both; which of the two goes first alternates. Once record by record, once
vectorised.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elasticutor.driver.cluster import BaseCluster
from elasticutor.driver.run import Run
from elasticutor.lab.bench.figures import MEDIAN, P50_P99, Figures, Samples, median, samples
from elasticutor.lab.bench.live import Bench, BenchError, measured, pipeline
from elasticutor.lab.bench.operators import KINDS
from elasticutor.operator import Operator
from elasticutor.sinks import NoSink
from elasticutor.sources import Generator

if TYPE_CHECKING:
    from elasticutor.lab.bench.checkpoint.bench import CheckpointBench


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
        """Everything, for `--json`."""
        return {
            **super().as_dict(),
            "bytes_per_epoch": round(median(self.kb_per_epoch) * 1e3),
            "ratios": [round(ratio, 4) for ratio in self.ratio],
            "epochs": len(self.epoch_s),
        }


def measure_overhead(
    bench: Bench, cluster: BaseCluster, folder: Path, setting: CheckpointBench
) -> dict[str, Overhead]:
    """Measure each kind of operator; the first one's figures are the main ones."""
    found = {kind: Overhead() for kind in KINDS}
    for number, kind in bench.turns(setting.pairs, tuple(KINDS), "{side}, pair"):
        place = folder / f"{kind}-{number}"
        _add_pair(cluster, place, setting, KINDS[kind], number, found[kind])
        shutil.rmtree(place, ignore_errors=True)  # what is left goes with the folder
    return found


def _add_pair(
    cluster: BaseCluster,
    place: Path,
    setting: CheckpointBench,
    operator: type[Operator],
    number: int,
    found: Overhead,
) -> None:
    rates: dict[bool, float] = {}
    epochs: tuple[EndedEpoch, ...] = ()
    for kept in (False, True) if number % 2 == 0 else (True, False):
        source = Generator(rate=None, keys=setting.keys, seed=number)
        topology = pipeline("checkpoint", source, operator(), NoSink(), cores=setting.cores)
        where = place if kept else None
        with cluster.submit(
            topology, checkpoint=where, epoch_interval=setting.interval, measure_s=0.1
        ) as run:
            seen = measured(run, setting.warm_up, setting.seconds)
        rates[kept] = seen.rows_s
        if kept:
            epochs = ended_between(run, seen.started, seen.ended)
    found.add(rates[False], rates[True], epochs)


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
