"""A checkpoint with the state of many keys, to measure what goes on from it.

Every key has a hundred bytes that no compression makes smaller. They come from a source that gives
the keys in turn, so that an epoch of n tuples changes n keys.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from elasticutor.driver.cluster import BaseCluster
from elasticutor.lab.bench.live import Bench, pipeline
from elasticutor.lab.bench.record import Remade
from elasticutor.operator import Operator, State
from elasticutor.sinks import NoSink, Sink
from elasticutor.sources import BLOCK_ROWS, Generator
from elasticutor.state.checkpoint import Location, Manifest, epochs_of
from elasticutor.topology import Topology

PATIENCE_S = 600.0
"""How long a run may take that ends by itself."""

_POOL_ROWS = 4 * BLOCK_ROWS


def sweep(keys: int, rate: float | None = None, rows: int | None = None, size: int = 100) -> Remade:
    """Keys in turn, again and again, each with some random bytes.

    A restart with another rate goes on where it was, at the new rate.
    """
    generator = Generator(rate=rate, rows=rows, payload=0, catch_up=False)
    schema = pa.schema([("key", pa.int64()), ("value", pa.binary(size))])
    return Remade(generator, schema, partial(_swept, keys, size))


def _swept(keys: int, size: int, first: int, batch: pa.RecordBatch) -> list[Any]:
    numbers = np.arange(first, first + batch.num_rows, dtype=np.int64)
    return [pa.array(numbers % keys), _pool(size).slice(first % _POOL_ROWS, batch.num_rows)]


@lru_cache(maxsize=2)
def _pool(size: int) -> pa.Array:
    """One buffer, of which the bytes of a batch are a slice: a generator's batches end with it."""
    noise = np.random.default_rng(size).bytes(_POOL_ROWS * size)
    return pa.Array.from_buffers(pa.binary(size), _POOL_ROWS, [None, pa.py_buffer(noise)])


class Keep(Operator):
    """Keeps the newest bytes of every key; its output says whether there were any before."""

    output: ClassVar[Any] = pa.schema([("key", pa.int64()), ("known", pa.bool_())])

    def process(self, key: Any, row: Any, state: State) -> Iterator[tuple[int, bool]]:
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

    def topology(self, rate: float | None, rows: int | None, sink: Sink) -> Topology:
        """What is run on it."""
        source = sweep(self.keys, rate, rows, self.size)
        return pipeline("state", source, Keep(), sink, cores=self.cores)

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
    """Fill a checkpoint with keys of `size` bytes, in a run of its own; a file for each epoch."""
    bench.say(f"filling a checkpoint with {keys:,} keys of {size} bytes")
    started = time.monotonic()
    store = Store(folder, keys, size, cores)
    topology = store.topology(None, keys, NoSink())
    with cluster.submit(topology, checkpoint=folder, epoch_interval=interval_s) as run:
        run.wait(PATIENCE_S)
    return replace(store, fill_s=time.monotonic() - started)
