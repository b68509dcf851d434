"""`elasticutor bench checkpoint --part dirty`: much state, little of it dirty.

Runs go on from a filled checkpoint, in which every epoch changes the same share of the keys, each
key once. What an epoch writes must be in proportion to what is dirty, and not to what there is.
Files are counted as manifests list them: increments, and what increments are folded into.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from elasticutor.driver.cluster import BaseCluster
from elasticutor.driver.run import Run
from elasticutor.lab.bench.checkpoint.state import PATIENCE_S, Store
from elasticutor.lab.bench.live import BenchError, Progress, silent, watch
from elasticutor.sinks import NoSink
from elasticutor.state.checkpoint import StateFile

_GLANCE_S = 0.5


@dataclass(frozen=True, slots=True)
class Written:
    """What the epochs of one run have written."""

    share: float
    """The share of the keys that every epoch changes."""
    rows: tuple[int, ...]
    """Keys that were dirty, by epoch."""
    sizes: tuple[int, ...]
    """Bytes of the increments, by epoch."""
    folded: int
    """Bytes of what increments were folded into meanwhile."""
    folds: int
    pauses_ms: tuple[float, ...]
    epochs_s: tuple[float, ...]

    @property
    def bytes_per_key(self) -> float:
        """Bytes of increments per dirty key."""
        return sum(self.sizes) / sum(self.rows)

    def as_dict(self) -> dict[str, Any]:
        """Everything, for `--json`."""
        return {
            "share": self.share,
            "dirty_keys_per_epoch": int(np.median(self.rows)),
            "bytes_per_epoch": int(np.median(self.sizes)),
            "bytes_per_dirty_key": round(self.bytes_per_key, 2),
            "folded_bytes_per_epoch": round(self.folded / len(self.rows)),
            "folded_over_increments": round(self.folded / sum(self.sizes), 3),
            "folds": self.folds,
            "pause_ms_p50": round(float(np.median(self.pauses_ms)), 3),
            "epoch_s_p50": round(float(np.median(self.epochs_s)), 3),
            "epochs": len(self.rows),
        }


@dataclass(frozen=True, slots=True)
class Dirty:
    """What epochs write when little of much state is dirty."""

    store: Store
    runs: tuple[Written, ...]
    whole: int
    """Bytes of all files of the filled checkpoint."""

    @property
    def proportion(self) -> float:
        """Bytes per dirty key of the last share over that of the first; 1: in proportion."""
        return self.runs[-1].bytes_per_key / self.runs[0].bytes_per_key

    def as_dict(self) -> dict[str, Any]:
        """Everything, for `--json`."""
        return {
            "keys": self.store.keys,
            "bytes_of_all": self.whole,
            "shares": [written.as_dict() for written in self.runs],
            "proportion": round(self.proportion, 3),
        }


def bench_dirty(
    cluster: BaseCluster,
    store: Store,
    *,
    shares: Sequence[float] = (0.01, 0.1),
    epochs: int = 20,
    interval_s: float = 2.0,
    progress: Progress = silent,
) -> Dirty:
    """Let runs go on from a filled checkpoint that change a share of the keys in every epoch.

    Args:
        cluster: Where.
        store: From `filled`; later epochs are added to it.
        shares: Of the keys, a run each.
        epochs: So many in each run.
        interval_s: How long each is.
        progress: Told about each run.
    """
    whole = sum(file.size for file in store.manifests()[0].files)
    runs = []
    for share in shares:
        progress(f"{share:.1%} of {store.keys:,} keys in every epoch, {epochs} epochs")
        runs.append(_change(cluster, store, share, epochs, interval_s))
    return Dirty(store, tuple(runs), whole)


def _change(
    cluster: BaseCluster, store: Store, share: float, epochs: int, interval_s: float
) -> Written:
    topology = store.topology(share * store.keys / interval_s, None, NoSink())
    before = _files(store).keys()
    seen: dict[str, StateFile] = {}
    with cluster.submit(topology, checkpoint=store.folder, epoch_interval=interval_s) as run:
        until = time.monotonic() + PATIENCE_S
        while (so_far := len(run.events("epoch committed"))) <= epochs:
            if time.monotonic() > until:
                raise BenchError("run", f"end {epochs + 1} epochs in {PATIENCE_S:g} s", so_far)
            watch(run, min(_GLANCE_S, interval_s / 2))
            seen |= _files(store)
    return _written(run, share, epochs, [file for path, file in seen.items() if path not in before])


def _written(run: Run, share: float, epochs: int, files: Sequence[StateFile]) -> Written:
    """What the epochs have written, but for the first: it has what the start let heap up."""
    committed = run.events("epoch committed")[1 : epochs + 1]
    pauses = {event["epoch"]: event["pause_ms"] for event in run.events("epoch sealed")}
    numbers = [event["epoch"] for event in committed]
    increments = {number: [f for f in files if f.first == f.last == number] for number in numbers}
    folds = [file for file in files if file.first != file.last]
    for event in committed:
        found = sum(file.size for file in increments[event["epoch"]])
        if found != event["bytes"]:
            who = f"increments of epoch {event['epoch']}"
            raise BenchError(who, f"be seen in manifests: {event['bytes']} bytes", found)
    return Written(
        share,
        tuple(sum(file.rows for file in increments[number]) for number in numbers),
        tuple(event["bytes"] for event in committed),
        sum(file.size for file in folds),
        len(folds),
        tuple(pauses[number] for number in numbers),
        tuple(event["seconds"] for event in committed),
    )


def _files(store: Store) -> dict[str, StateFile]:
    """All files that a manifest lists, by path."""
    return {file.path: file for manifest in store.manifests() for file in manifest.files}
