"""`elasticutor bench checkpoint --part dirty`: much state, little of it dirty.

Runs go on from a filled checkpoint, in which every epoch changes the same share of the keys, each
key once. What an epoch writes must be in proportion to what is dirty, and not to what there is.
Files are counted as manifests list them: increments, and what increments are folded into.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from elasticutor.driver.cluster import BaseCluster
from elasticutor.driver.run import Run
from elasticutor.lab.bench.checkpoint.state import PATIENCE_S, Store
from elasticutor.lab.bench.declare import MEDIAN, P50, Figures, Samples, figure, samples
from elasticutor.lab.bench.live import Bench, BenchError, watch
from elasticutor.sinks import NoSink
from elasticutor.state.checkpoint import StateFile

_SHARES = (0.01, 0.1)
"""Of the keys that every epoch changes, a run each."""
_GLANCE_S = 0.5


class Written(Figures):
    """What the epochs of one run have written."""

    share: float = figure()
    dirty_keys_per_epoch: Samples = samples("dirty keys", ",.0f", shows=MEDIAN, digits=None)
    bytes_per_epoch: Samples = samples(
        "bytes per epoch", ",.0f", shows=MEDIAN, digits=None, better="lower"
    )
    """Of increments."""
    bytes_per_dirty_key: float = figure("bytes per dirty key", ".1f", digits=2, default=0.0)
    folded_bytes_per_epoch: int = figure("folded bytes per epoch", ",", default=0)
    folded_over_increments: float = figure(digits=3, default=0.0)
    folds: int = figure(default=0)
    pause_ms: Samples = samples("pause ms", ".1f", shows=P50, better="lower")
    epoch_s: Samples = samples(shows=P50)
    epochs: int = figure(default=0)

    def heading(self) -> str:
        return f"{self.share:.1%}"


class DirtyFigures(Figures):
    """What epochs write when little of much state is dirty."""

    store: Store
    shares: list[Written] = figure("share", default_factory=list)
    bytes_of_all: int = figure()
    """Of all files of the filled checkpoint."""
    proportion: float = figure(digits=3, default=0.0)
    """Bytes per dirty key of the last share over that of the first; 1: in proportion."""

    def as_dict(self) -> dict[str, Any]:
        return {"keys": self.store.keys, **super().as_dict()}


def measure_dirty(
    bench: Bench, cluster: BaseCluster, store: Store, epochs: int, interval_s: float
) -> DirtyFigures:
    """Let runs go on from a filled checkpoint that change a share of the keys in every epoch."""
    found = DirtyFigures(store=store, bytes_of_all=store.file_bytes())
    for share in _SHARES:
        bench.say(f"{share:.1%} of {store.keys:,} keys in every epoch, {epochs} epochs")
        found.shares.append(_change(cluster, store, share, epochs, interval_s))
    first, last = found.shares[0], found.shares[-1]
    found.proportion = last.bytes_per_dirty_key / first.bytes_per_dirty_key
    return found


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
    found = Written(share=share, epochs=epochs)
    pauses = {event["epoch"]: event["pause_ms"] for event in run.events("epoch sealed")}
    for event in run.events("epoch committed")[1 : epochs + 1]:
        number = event["epoch"]
        increments = [file for file in files if file.first == file.last == number]
        size = sum(file.size for file in increments)
        if size != event["bytes"]:
            who = f"increments of epoch {number}"
            raise BenchError(who, f"be seen in manifests: {event['bytes']} bytes", size)
        found.dirty_keys_per_epoch.append(sum(file.rows for file in increments))
        found.bytes_per_epoch.append(size)
        found.pause_ms.append(pauses[number])
        found.epoch_s.append(event["seconds"])
    written = sum(found.bytes_per_epoch)
    folds = [file.size for file in files if file.first != file.last]
    found.bytes_per_dirty_key = written / sum(found.dirty_keys_per_epoch)
    found.folds = len(folds)
    found.folded_bytes_per_epoch = round(sum(folds) / epochs)
    found.folded_over_increments = sum(folds) / written
    return found


def _files(store: Store) -> dict[str, StateFile]:
    """All files that a manifest lists, by path."""
    return {file.path: file for manifest in store.manifests() for file in manifest.files}
