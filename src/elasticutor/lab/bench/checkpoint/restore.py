"""`elasticutor bench checkpoint --part restore`: how soon a run with much state goes on.

A run is submitted with a filled checkpoint, and timed until all state is back and the first output
is with the sink. The same with an empty checkpoint shows what a start takes by itself. Every output
must know its key, so what is timed is a restore of everything. Beside it each step alone, in one
process and one after the other: to open and verify, to load, to put into a store.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow.compute as pc

from elasticutor.core.protocol.ids import Attempt, ShardId
from elasticutor.driver.checkpoints import form_of, opened, release
from elasticutor.driver.cluster import BaseCluster
from elasticutor.driver.run import Run
from elasticutor.lab.bench.checkpoint.state import PATIENCE_S, Store
from elasticutor.lab.bench.declare import MEDIAN, Figures, Samples, Table, figure, grid, samples
from elasticutor.lab.bench.live import SINK, Bench, BenchError, shared_memory, watch
from elasticutor.sinks import MemorySink
from elasticutor.state.checkpoint import Restorer
from elasticutor.state.levels import Levels
from elasticutor.state.lmdb_backend import LmdbBackend

_TRICKLE = 500.0
"""Tuples per second: enough to see them flow."""
_MAP_BYTES = 8 << 30
_GLANCE_S = 0.05


class Started(Figures):
    """Starts of a run, in seconds since it was submitted."""

    opened_s: Samples = samples("opened, s", ".2f", shows=MEDIAN)
    """Until the checkpoint was open, and all of its files verified."""
    running_s: Samples = samples("running, s", ".2f", shows=MEDIAN)
    """Until all processes were there, and the sources began to send."""
    restored_s: Samples = samples("restored, s", ".2f", shows=MEDIAN)
    """Until every shard was back in a store; without any to restore, as `running_s`."""
    flowing_s: Samples = samples("flowing, s", ".2f", shows=MEDIAN)
    """Until an output was with the sink."""


class Steps(Figures):
    """Each step of a restore alone, in seconds."""

    open_s: Samples = samples("open, alone, s", ".2f", shows=MEDIAN)
    load_s: Samples = samples("load, alone, s", ".2f", shows=MEDIAN)
    store_s: Samples = samples("store, alone, s", ".2f", shows=MEDIAN)


class RestoreFigures(Figures):
    """What restores take."""

    store: Store
    file_bytes: int = figure()
    seconds: Samples = samples("until state is back and tuples flow, s", ".2f", better="lower")
    steps_alone: Steps = figure("steps", default_factory=Steps)
    until: Started = figure(default_factory=Started)
    empty: Started = figure(default_factory=Started)
    """The same without anything to restore."""

    def as_dict(self) -> dict[str, Any]:
        store = self.store
        filled = {"keys": store.keys, "bytes_per_key": store.size, "fill_s": round(store.fill_s, 3)}
        return {**super().as_dict(), **filled, "repeat": len(self.seconds)}

    def tables(self, title: str) -> Iterator[Table]:
        yield grid(title, "start", {"restored": self.until, "empty": self.empty})
        yield from super().tables(title)


def measure_restore(
    bench: Bench, cluster: BaseCluster, store: Store, spare: Path, repeat: int
) -> RestoreFigures:
    """Time runs that go on from a filled checkpoint, and others from empty ones in `spare`."""
    found = RestoreFigures(store=store, file_bytes=store.file_bytes())
    for number in bench.runs(repeat, f"restore of {store.keys:,} keys"):
        _start(cluster, store, store.folder, found.until, known=True)
        _start(cluster, store, spare / f"empty-{number}", found.empty, known=False)
        _steps(store, found.steps_alone)
    starts = zip(found.until.restored_s, found.until.flowing_s, strict=True)
    found.seconds = [max(start) for start in starts]
    return found


def _start(
    cluster: BaseCluster, store: Store, folder: Path, found: Started, *, known: bool
) -> None:
    topology = store.topology(_TRICKLE, None, MemorySink())
    submitted = time.time()
    with cluster.submit(topology, checkpoint=folder, measure_s=_GLANCE_S, keep=True) as run:
        flowing = _await(run, "have outputs", _flowed)
        shards = topology.plan().operators[0].shards
        restored = _await(run, "have all shards back", _restored, shards) if known else None
        run.drain()
        outputs = run.collected(SINK)
    if outputs.num_rows == 0 or (known and not pc.all(outputs["known"]).as_py()):
        raise BenchError("restored state", "have every key", outputs)
    started, running = run.events("run started")[0], run.events("run running")[0]
    found.opened_s.append(started["time"] - submitted)
    found.running_s.append(running["time"] - submitted)
    found.restored_s.append((restored or running["time"]) - submitted)
    found.flowing_s.append(flowing - submitted)


def _flowed(run: Run) -> float | None:
    """When the first output was with the sink."""
    return next((moment.time for moment in run.timeline() if moment.rows), None)


def _restored(run: Run, shards: int) -> float | None:
    """When the last shard was back."""
    back = [event["time"] for event in run.events("shard moved") if event["source"] is None]
    return max(back) if len(back) >= shards else None


def _await(run: Run, must: str, when: Callable[..., float | None], *args: int) -> float:
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        if (found := when(run, *args)) is not None:
            return found
        watch(run, _GLANCE_S)
    raise BenchError("run", f"{must} within {PATIENCE_S:g} s", run.phase)


def _steps(store: Store, found: Steps) -> None:
    plan = store.topology(_TRICKLE, None, MemorySink()).plan()
    form = form_of(plan.operators[0])
    times = [time.perf_counter()]
    checkpoint = opened(str(store.folder), "bench", plan, None)
    try:
        times.append(time.perf_counter())
        executor = plan.operators[0].processes[0]
        state = Restorer.load(checkpoint.location, form, executor, checkpoint.committed)
        times.append(time.perf_counter())
        with shared_memory() as place, LmdbBackend.create(place, map_size=_MAP_BYTES) as backend:
            levels = Levels.create(backend, attempt=Attempt(1), committed=checkpoint.committed)
            for shard in map(ShardId, range(form.shards)):
                levels.merge(shard, state.records(shard))
            times.append(time.perf_counter())
    finally:
        release(checkpoint)
    for seconds, (start, end) in zip(vars(found).values(), pairwise(times), strict=True):
        seconds.append(end - start)
