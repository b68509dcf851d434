"""`elasticutor bench checkpoint --part restore`: how soon a run with much state goes on.

A run is submitted with a filled checkpoint, and timed until all state is back and the first output
is with the sink. The same with an empty checkpoint tells what a start takes by itself. Every output
must know its key, so what is timed is a restore of everything. Beside it each step alone, in one
process and one after the other: to open and verify, to load, to put into a store.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import pyarrow.compute as pc

from elasticutor.core.protocol.ids import Attempt, ShardId
from elasticutor.driver.checkpoints import form_of, opened, release
from elasticutor.driver.cluster import BaseCluster
from elasticutor.driver.run import Run
from elasticutor.lab.bench.checkpoint.state import PATIENCE_S, Store
from elasticutor.lab.bench.figures import Spread
from elasticutor.lab.bench.live import BenchError, Progress, silent, spread_as_dict, watch
from elasticutor.process.hosting.directories import SHARED_MEMORY
from elasticutor.sinks import MemorySink
from elasticutor.state.checkpoint import Restorer
from elasticutor.state.levels import Levels
from elasticutor.state.lmdb_backend import LmdbBackend

_TRICKLE = 500.0
"""Tuples per second: enough to see them flow."""
_MAP_BYTES = 8 << 30
_GLANCE_S = 0.05


@dataclass(frozen=True, slots=True)
class Started:
    """One start of a run, in seconds since it was submitted."""

    opened_s: float
    """Until the checkpoint was open, and all of its files verified."""
    running_s: float
    """Until all processes were there, and the sources were told to send."""
    restored_s: float
    """Until every shard was back in a store; without any to restore, as `running_s`."""
    flowing_s: float
    """Until an output was with the sink."""

    @property
    def seconds(self) -> float:
        """Until all state was back and tuples flowed."""
        return max(self.restored_s, self.flowing_s)


@dataclass(frozen=True, slots=True)
class Steps:
    """Each step of a restore alone, in seconds."""

    open_s: float
    load_s: float
    store_s: float


@dataclass(frozen=True, slots=True)
class Restore:
    """What restores take."""

    store: Store
    size: int
    """Bytes of the files."""
    starts: tuple[Started, ...]
    empty: tuple[Started, ...]
    """The same without anything to restore."""
    steps: tuple[Steps, ...]

    @property
    def seconds(self) -> Spread:
        """From submit until all is back and tuples flow."""
        return Spread.of([start.seconds for start in self.starts])

    def as_dict(self) -> dict[str, Any]:
        """Everything, for `--json`."""
        return {
            "keys": self.store.keys,
            "bytes_per_key": self.store.size,
            "file_bytes": self.size,
            **spread_as_dict("seconds", self.seconds),
            "until": _medians(self.starts),
            "empty": _medians(self.empty),
            "steps_alone": _medians(self.steps),
            "fill_s": round(self.store.fill_s, 3),
            "repeat": len(self.starts),
        }


def bench_restore(
    cluster: BaseCluster,
    store: Store,
    spare: Path,
    *,
    repeat: int = 3,
    progress: Progress = silent,
) -> Restore:
    """Time runs that go on from a filled checkpoint.

    Args:
        cluster: Where.
        store: From `filled`; each run adds an epoch or two to it.
        spare: A folder for checkpoints that have nothing in them.
        repeat: How often.
        progress: Told about each run.
    """
    size = sum(file.size for file in store.manifests()[0].files)
    starts, empty, steps = [], [], []
    for number in range(repeat):
        progress(f"restore of {store.keys:,} keys, {number + 1} of {repeat}")
        starts.append(_start(cluster, store, store.folder, known=True))
        empty.append(_start(cluster, store, spare / f"empty-{number}", known=False))
        steps.append(_steps(store))
    return Restore(store, size, tuple(starts), tuple(empty), tuple(steps))


def _start(cluster: BaseCluster, store: Store, folder: Path, *, known: bool) -> Started:
    topology = store.topology(_TRICKLE, None, MemorySink())
    submitted = time.time()
    with cluster.submit(topology, checkpoint=folder, measure_s=_GLANCE_S, keep=True) as run:
        flowing = _flowing(run)
        restored = _restored(run, topology.plan().operators[0].shards) if known else None
        run.drain()
        outputs = run.collected("out")
    if outputs.num_rows == 0 or (known and not pc.all(outputs["known"]).as_py()):
        raise BenchError("restored state", "have every key", outputs)
    started, running = run.events("run started")[0], run.events("run running")[0]
    times = (started["time"], running["time"], restored or running["time"], flowing)
    return Started(*(moment - submitted for moment in times))


def _flowing(run: Run) -> float:
    """When the first output was with the sink."""

    def first() -> float | None:
        return next((moment.time for moment in run.timeline() if moment.rows), None)

    return _await(run, first, "have outputs")


def _restored(run: Run, shards: int) -> float:
    """When the last shard was back."""

    def last() -> float | None:
        back = [event["time"] for event in run.events("shard moved") if event["source"] is None]
        return max(back) if len(back) >= shards else None

    return _await(run, last, f"have {shards} shards back")


def _await(run: Run, when: Callable[[], float | None], must: str) -> float:
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        found = when()
        if found is not None:
            return found
        watch(run, _GLANCE_S)
    raise BenchError("run", f"{must} within {PATIENCE_S:g} s", run.phase)


def _steps(store: Store) -> Steps:
    plan = store.topology(_TRICKLE, None, MemorySink()).plan()
    form = form_of(plan.operators[0])
    before = time.perf_counter()
    checkpoint = opened(str(store.folder), "bench", plan, None)
    try:
        open_at = time.perf_counter()
        state = Restorer.load(
            checkpoint.location, form, plan.operators[0].processes[0], checkpoint.committed
        )
        load_at = time.perf_counter()
        with _shared_memory() as place, LmdbBackend.create(place, map_size=_MAP_BYTES) as backend:
            levels = Levels.create(backend, attempt=Attempt(1), committed=checkpoint.committed)
            for shard in map(ShardId, range(form.shards)):
                levels.merge(shard, state.records(shard))
            store_at = time.perf_counter()
    finally:
        release(checkpoint)
    return Steps(open_at - before, load_at - open_at, store_at - load_at)


@contextmanager
def _shared_memory() -> Iterator[str]:
    """A directory where nodes have their stores too, if there is such a place."""
    there = SHARED_MEMORY if Path(SHARED_MEMORY).is_dir() else None
    with tempfile.TemporaryDirectory(prefix="elasticutor-bench-", dir=there) as place:
        yield place


def _medians(measured: tuple[Any, ...]) -> dict[str, float]:
    names = [field.name for field in fields(measured[0])]
    return {name: Spread.of([getattr(one, name) for one in measured]).median for name in names}
