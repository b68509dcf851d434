"""`elasticutor bench flush`: what the end of an epoch costs a task, without any other process.

A task's cache has many states, of which some change. Then the epoch ends: what has changed is set
apart, which is the pause, and written in slices to a store in shared memory. CPU time, since other
processes of the machine are none of its business.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from elasticutor.core.protocol.ids import Attempt, Epoch, ShardId
from elasticutor.errors import BadValueError
from elasticutor.lab.bench.declare import MEDIAN, Benchmark, Figures, Samples, figure, samples
from elasticutor.lab.bench.live import Bench, shared_memory
from elasticutor.lab.options import option
from elasticutor.state.cache import StateCache
from elasticutor.state.codec import CODEC
from elasticutor.state.levels import Levels
from elasticutor.state.lmdb_backend import LmdbBackend

KINDS: dict[str, Callable[[int], Any]] = {
    "int": lambda number: number,
    "bytes": lambda number: number.to_bytes(8, "big") * 12,
    "tuple": lambda number: (number, number / 2),
    "list": lambda number: [number, number],
}
"""States to measure with, by name."""

_A1 = Attempt(1)
_MAP_BYTES = 4 << 30


class KindFigures(Figures):
    """What was measured with one kind of state."""

    apart_ms: Samples = samples("set apart, ms", ".2f", shows=MEDIAN, better="lower")
    """To set apart what has changed: the pause."""
    us_per_state: Samples = samples("µs per state written", ".2f", shows=MEDIAN, better="lower")
    """To encode and write it."""
    slice_ms: Samples = samples("ms per slice", ".2f", shows=MEDIAN)
    """The same for one slice, between which a task works on."""


class FlushFigures(Figures):
    """What was measured, by kind of state."""

    kinds: dict[str, KindFigures] = figure("states")


class FlushBench(Benchmark):
    """What the end of an epoch costs a task, in CPU time; no other process."""

    about = "an epoch that changes {changed:,} of {states:,} states"
    facts = ()

    states: int = option(100_000, "That a task has cached.", min=1, key="states")
    changed: int = option(50_000, "Of these in every epoch.", min=1, key="changed")
    shards: int = option(256, "Of the task.", min=1, key="shards")
    rounds: int = option(5, "Epochs for each kind of state.", min=1, key="rounds")

    def check(self) -> None:
        if not 0 < self.changed <= self.states:
            raise BadValueError("changed states", f"be 1 to {self.states}", self.changed)

    def measure(self, bench: Bench) -> FlushFigures:
        """Epochs of each kind of state, after one that fills the cache."""
        return FlushFigures(kinds={kind: self._of_kind(make) for kind, make in KINDS.items()})

    def _of_kind(self, make: Callable[[int], Any]) -> KindFigures:
        found = KindFigures()
        with shared_memory() as place, LmdbBackend.create(place, map_size=_MAP_BYTES) as backend:
            store = Levels.create(backend, attempt=_A1, committed=Epoch(0))
            cache = StateCache(store, CODEC, _A1, Epoch(1))
            for number in range(-1, self.rounds):
                handles = [cache.handle(ShardId(shard)) for shard in range(self.shards)]
                for key in range(self.states if number < 0 else self.changed):
                    handle = handles[key % self.shards]
                    handle.key = key
                    handle.set(make(key + number + 1))
                took, parts = _end_epoch(cache, store)
                if number >= 0:
                    found.apart_ms.append(took * 1e3)
                    found.us_per_state.append(sum(parts) / self.changed * 1e6)
                    found.slice_ms += [part * 1e3 for part in parts]
        return found


def _end_epoch(cache: StateCache, store: Levels) -> tuple[float, list[float]]:
    """Seconds to set apart, and those of each slice."""
    began = time.process_time()
    cache.set_apart()
    apart = time.process_time() - began
    ended = cache.epoch
    cache.open_epoch(_A1, Epoch(ended + 1))
    slices, more = [], True
    while more:
        began = time.process_time()
        more = cache.write_some()
        slices.append(time.process_time() - began)
    store.commit(ended)
    while store.fold():
        pass
    return apart, slices
