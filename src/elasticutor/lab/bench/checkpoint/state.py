"""A checkpoint with the state of many keys, to measure what goes on from it.

Every key has a hundred bytes that no compression makes smaller. They come from a source that gives
the keys in turn, so that an epoch of n tuples changes n keys.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from elasticutor.driver.cluster import BaseCluster
from elasticutor.errors import BadValueError
from elasticutor.lab.bench.live import Bench, pipeline
from elasticutor.operator import Operator, State
from elasticutor.sinks import NoSink, Sink
from elasticutor.sources import Offer, Reader, Source
from elasticutor.state.checkpoint import Location, Manifest, epochs_of
from elasticutor.topology import Topology

PATIENCE_S = 600.0
"""How long a run may take that ends by itself."""

_POOL_ROWS = 65_536


@dataclass(frozen=True)
class Sweep(Source):
    """Keys in turn, again and again, each with some random bytes.

    Offset: how many there were. A restart with another rate goes on there, at the new rate.

    Example:
        >>> reader = Sweep(keys=3, rate=None, size=4).open(0, 1, 2)
        >>> reader.poll(0.0, 4).batch.column("key").to_pylist()
        [2, 0, 1, 2]
    """

    keys: int
    rate: float | None = None
    """Tuples per second; None: as fast as they are taken."""
    rows: int | None = None
    """How many there are in all; None: no end."""
    size: int = 100
    """Bytes that come with each key."""

    def __post_init__(self) -> None:
        if self.rate is not None and not 0 < self.rate < math.inf:
            raise BadValueError("rate", "be above 0, or None", self.rate)

    @property
    def schema(self) -> pa.Schema:
        """A key, and bytes."""
        return pa.schema([("key", pa.int64()), ("value", pa.binary(self.size))])

    def open(self, task: int, tasks: int, offset: Any | None) -> Reader:
        """A reader whose clock starts when it is first asked."""
        if tasks != 1:
            raise BadValueError("tasks of a Sweep", "be 1", tasks)
        return _SweepReader(self, offset or 0)


class _SweepReader(Reader):
    def __init__(self, sweep: Sweep, offset: int) -> None:
        self._sweep = sweep
        self.rate = math.inf if sweep.rate is None else sweep.rate
        self.offset: int = offset
        self._first = offset
        self._began: float | None = None

    @property
    def exhausted(self) -> bool:  # type: ignore[override]
        """Whether all were offered."""
        return self._sweep.rows is not None and self.offset >= self._sweep.rows

    def poll(self, now: float, max_rows: int) -> Offer | None:
        """What is due."""
        start, sweep = self.offset, self._sweep
        stop = start + max_rows
        if sweep.rate is not None:
            stop = min(stop, self._first + int((now - self._start(now)) * sweep.rate))
        if sweep.rows is not None:
            stop = min(stop, sweep.rows)
        # The pool is one buffer, of which a batch is a slice.
        stop = min(stop, start - start % _POOL_ROWS + _POOL_ROWS)
        if stop <= start:
            return None
        self.offset = stop
        keys = np.arange(start, stop, dtype=np.int64) % sweep.keys
        values = _pool(sweep.size).slice(start % _POOL_ROWS, stop - start)
        batch = pa.RecordBatch.from_arrays([pa.array(keys), values], schema=sweep.schema)
        born = now if sweep.rate is None else self._start(now) + (start - self._first) / sweep.rate
        return Offer(batch, born)

    def wait_s(self, now: float) -> float:
        """Until the next one is due."""
        rate = self._sweep.rate
        if rate is None:
            return 0.0
        due = self._start(now) + (self.offset + 1 - self._first) / rate
        return max(0.0, due - now)

    def _start(self, now: float) -> float:
        if self._began is None:
            self._began = now
        return self._began


@lru_cache(maxsize=2)
def _pool(size: int) -> pa.Array:
    noise = np.random.default_rng(size).bytes(_POOL_ROWS * size)
    return pa.Array.from_buffers(pa.binary(size), _POOL_ROWS, [None, pa.py_buffer(noise)])


class Keep(Operator):
    """Keeps the newest bytes of every key; its output says whether there were any before."""

    output: ClassVar[Any] = pa.schema([("key", pa.int64()), ("known", pa.bool_())])

    def process(self, key: Any, row: Any, state: State) -> Iterator[tuple[int, bool]]:
        """One row's bytes."""
        known = state.get() is not None
        state.set(row.value)
        yield key, known


@dataclass(frozen=True, slots=True)
class Store:
    """A checkpoint with the state of many keys, and how it came to be."""

    folder: Path
    keys: int
    size: int
    """Bytes of each key's state."""
    cores: int
    """Tasks of the operator."""
    fill_s: float = 0.0
    """What it took to fill it."""

    def topology(self, rate: float | None, rows: int | None, sink: Sink) -> Topology:
        """What is run on it."""
        sweep = Sweep(self.keys, rate, rows, self.size)
        return pipeline("state", sweep, Keep(), sink, cores=self.cores)

    def file_bytes(self) -> int:
        """Bytes of all files of the newest epoch."""
        return sum(file.size for file in self.manifests()[0].files)

    def manifests(self) -> list[Manifest]:
        """Those that count and are there, the newest first."""
        listed = epochs_of(Location.at(str(self.folder)))
        return [one.manifest for one in listed if one.manifest is not None and one.current]


def filled(
    cluster: BaseCluster,
    folder: Path,
    *,
    keys: int = 1_000_000,
    size: int = 100,
    cores: int = 2,
    interval_s: float = 2.0,
    bench: Bench,
) -> Store:
    """Fill a checkpoint with keys, in a run of its own.

    Args:
        cluster: Where; it needs `cores` free cores.
        folder: For the checkpoint.
        keys: How many there are.
        size: Bytes of each.
        cores: Tasks of the operator.
        interval_s: From one epoch's end to the next: in the end there is a file of each.
        bench: Shows that it is done now.
    """
    bench.say(f"filling a checkpoint with {keys:,} keys of {size} bytes")
    started = time.monotonic()
    store = Store(folder, keys, size, cores)
    topology = store.topology(None, keys, NoSink())
    with cluster.submit(topology, checkpoint=folder, epoch_interval=interval_s) as run:
        run.wait(PATIENCE_S)
    return replace(store, fill_s=time.monotonic() - started)
