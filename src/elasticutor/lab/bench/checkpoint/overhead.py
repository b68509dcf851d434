"""`elasticutor bench checkpoint`: what epochs cost, in throughput, in pauses and in bytes.

The operator counts and sums per key, as in `bench throughput`, and gets tuples as fast as it takes
them. Pairs of runs, one with a checkpoint and one without, follow each other, so that a slow minute
of the machine hits both; which of the two goes first alternates. Once record by record, once
vectorised. How bytes go with what is dirty, and how long a restore takes:
`lab.bench.checkpoint.state`.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from elasticutor.driver.cluster import BaseCluster
from elasticutor.driver.run import Run
from elasticutor.errors import BadValueError
from elasticutor.lab.bench.figures import Spread
from elasticutor.lab.bench.live import (
    BenchError,
    Machine,
    Progress,
    rate_between,
    silent,
    spread_as_dict,
    watch,
)
from elasticutor.lab.bench.operators import CountAndSum, CountAndSumBatch
from elasticutor.operator import Operator
from elasticutor.sinks import NoSink
from elasticutor.sources import Generator
from elasticutor.topology import Topology

KINDS: dict[str, type[Operator]] = {"per_record": CountAndSum, "vectorised": CountAndSumBatch}
"""The operators, by what they are called in the figures."""

_REMOVAL_S = 10.0


@dataclass(frozen=True, slots=True)
class OverheadSetting:
    """What is run."""

    keys: int = 10_000
    zipf: float = 0.5
    cores: int = 2
    interval_s: float = 2.0
    """From one epoch's end to the next."""
    pairs: int = 5
    seconds: float = 8.0
    """How long each run is measured."""
    warm_up_s: float = 2.5
    """How long before that it has run: an epoch at least, or the first one counts."""

    def __post_init__(self) -> None:
        if self.seconds <= self.interval_s:
            hint = "measure for longer, or end epochs more often"
            raise BadValueError("seconds", "be more than an epoch's", self.seconds, hint)


@dataclass(frozen=True, slots=True)
class EndedEpoch:
    """One epoch of one run, as it was felt."""

    pause_ms: float
    """The longest that the end of the epoch kept a task from its tuples."""
    seconds: float
    """From the marker until the epoch was committed."""
    size: int
    """Bytes of its increments."""


@dataclass(frozen=True, slots=True)
class Pair:
    """Two runs, one after the other."""

    without: float
    """Rows per second without a checkpoint."""
    kept: float
    """Rows per second with one."""
    epochs: tuple[EndedEpoch, ...]

    @property
    def ratio(self) -> float:
        """What is left of the throughput."""
        return self.kept / self.without


@dataclass(frozen=True, slots=True)
class Overhead:
    """What checkpoints cost one kind of operator."""

    pairs: tuple[Pair, ...]

    @property
    def ratio(self) -> Spread:
        """Throughput with checkpoints over throughput without, by pairs."""
        return Spread.of([pair.ratio for pair in self.pairs])

    @property
    def epochs(self) -> list[EndedEpoch]:
        """Those of all runs."""
        return [epoch for pair in self.pairs for epoch in pair.epochs]

    def pause_ms(self, percentile: float) -> float:
        """How long the pauses are."""
        pauses = [epoch.pause_ms for epoch in self.epochs]
        return round(float(np.percentile(pauses, percentile)), 3)

    @property
    def epoch_s(self) -> Spread:
        """From the marker until the epoch was committed."""
        return Spread.of([epoch.seconds for epoch in self.epochs])

    @property
    def bytes_per_epoch(self) -> int:
        """Median of what the increments of an epoch have."""
        return int(np.median([epoch.size for epoch in self.epochs]))

    def as_dict(self) -> dict[str, Any]:
        """Everything, for `--json`."""
        return {
            **spread_as_dict("ratio", self.ratio),
            "pause_ms_p50": self.pause_ms(50),
            "pause_ms_p99": self.pause_ms(99),
            "bytes_per_epoch": self.bytes_per_epoch,
            **spread_as_dict("epoch_s", self.epoch_s),
            "ratios": [round(pair.ratio, 4) for pair in self.pairs],
            **spread_as_dict("rows_s", Spread.of([round(pair.kept) for pair in self.pairs])),
            **spread_as_dict(
                "rows_s_without", Spread.of([round(pair.without) for pair in self.pairs])
            ),
            "epochs": len(self.epochs),
        }


@dataclass(frozen=True, slots=True)
class OverheadBench:
    """What was measured, by kind of operator."""

    setting: OverheadSetting
    kinds: dict[str, Overhead]
    machine: Machine

    def as_dict(self) -> dict[str, Any]:
        """Everything, for `--json`: the per-record operator's figures first, and on top."""
        setting = self.setting
        first, *others = self.kinds
        return {
            **self.kinds[first].as_dict(),
            **{kind: self.kinds[kind].as_dict() for kind in others},
            "keys": setting.keys,
            "zipf": setting.zipf,
            "tasks": setting.cores,
            "interval_s": setting.interval_s,
            "seconds": setting.seconds,
            **self.machine.as_dict(),
        }


def bench_overhead(
    cluster: BaseCluster,
    folder: Path,
    setting: OverheadSetting,
    *,
    kinds: Sequence[str] = tuple(KINDS),
    progress: Progress = silent,
) -> OverheadBench:
    """Measure what is left of the throughput when epochs become durable, and how long they pause.

    Args:
        cluster: Where; it needs `setting.cores` free cores.
        folder: For the checkpoints.
        setting: What is run.
        kinds: Of the operator; the first one's figures are the main ones.
        progress: Told about each run.
    """
    machine = Machine()
    measured: dict[str, list[Pair]] = {kind: [] for kind in kinds}
    for number in range(setting.pairs):
        for kind in kinds:
            progress(f"{kind.replace('_', ' ')}, pair {number + 1} of {setting.pairs}")
            machine.glance()
            place = folder / f"{kind}-{number}"
            measured[kind].append(_pair(cluster, place, setting, KINDS[kind], number))
            shutil.rmtree(place, ignore_errors=True)  # what is left goes with the folder
    overheads = {kind: Overhead(tuple(pairs)) for kind, pairs in measured.items()}
    return OverheadBench(setting, overheads, machine)


def _pair(
    cluster: BaseCluster,
    place: Path,
    setting: OverheadSetting,
    operator: type[Operator],
    number: int,
) -> Pair:
    rates: dict[bool, float] = {}
    epochs: tuple[EndedEpoch, ...] = ()
    for kept in (False, True) if number % 2 == 0 else (True, False):
        topology = Topology("checkpoint")
        source = Generator(rate=None, keys=setting.keys, zipf=setting.zipf, seed=number)
        stream = topology.source("tuples", source)
        counted = topology.operator("count", operator(), stream, key="key", cores=setting.cores)
        topology.sink("out", NoSink(), counted)
        where = place if kept else None
        with cluster.submit(
            topology, checkpoint=where, epoch_interval=setting.interval_s, measure_s=0.1
        ) as run:
            watch(run, setting.warm_up_s)
            started = time.time()
            watch(run, setting.seconds)
            ended = time.time()
        rates[kept] = rate_between(run.timeline(), started, ended)
        if kept:
            epochs = ended_between(run, started, ended)
    return Pair(rates[False], rates[True], epochs)


def ended_between(run: Run, start: float, end: float) -> tuple[EndedEpoch, ...]:
    """The epochs that were committed between two times.

    Raises:
        BenchError: There are none, or something was lost meanwhile.
    """
    lost = run.events("lost")
    if lost:
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


@contextmanager
def scratch(under: Path | None = None) -> Iterator[Path]:
    """A folder for checkpoints, gone at the end; to be made before the cluster that writes there.

    Args:
        under: Where; default: the directory for temporary files.
    """
    if under is not None:
        under.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="elasticutor-checkpoint-", dir=under))
    try:
        yield folder
    finally:
        _remove(folder)


def _remove(folder: Path) -> None:
    """Remove a folder in which a thread may still be folding files: it ends in a moment."""
    until = time.monotonic() + _REMOVAL_S
    while folder.exists() and time.monotonic() < until:
        shutil.rmtree(folder, ignore_errors=True)
        time.sleep(0.05)
