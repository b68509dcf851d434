"""`elasticutor bench flush`: what the end of an epoch costs a task, without any other process.

A task's cache has many states, of which some change. Then the epoch ends: what has changed is set
apart, which is the pause, and written in slices to a store in shared memory. CPU time, since other
processes of the machine are none of its business.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from elasticutor.core.protocol.ids import Attempt, Epoch, ShardId
from elasticutor.errors import BadValueError
from elasticutor.lab.bench.figures import Spread
from elasticutor.process.hosting.directories import SHARED_MEMORY
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


@dataclass(frozen=True, slots=True)
class KindFigures:
    """What was measured with one kind of state."""

    apart_ms: Spread
    """To set apart what has changed: the pause."""
    us_per_state: Spread
    """To encode and write it."""
    slice_ms: Spread
    """The same for one slice, between which a task works on."""


@dataclass(frozen=True, slots=True)
class FlushBench:
    """What was measured, by kind of state."""

    kinds: dict[str, KindFigures]
    states: int
    changed: int
    shards: int
    rounds: int

    def as_dict(self) -> dict[str, Any]:
        """Everything, for `--json`."""
        return {
            "states": self.states,
            "changed": self.changed,
            "shards": self.shards,
            "rounds": self.rounds,
            "kinds": {
                kind: {
                    "apart_ms": round(figures.apart_ms.median, 4),
                    "us_per_state": round(figures.us_per_state.median, 3),
                    "slice_ms": round(figures.slice_ms.median, 3),
                }
                for kind, figures in self.kinds.items()
            },
        }


def bench_flush(
    *, states: int = 100_000, changed: int = 50_000, shards: int = 256, rounds: int = 5
) -> FlushBench:
    """Measure the end of an epoch in a task.

    Args:
        states: How many the task has cached.
        changed: How many of them an epoch changes.
        shards: Of the task.
        rounds: Epochs for each kind of state.

    Raises:
        BadValueError: There are not as many to change.
    """
    if not 0 < changed <= states:
        raise BadValueError("changed states", f"be 1 to {states}", changed)
    kinds = {kind: _measured(make, states, changed, shards, rounds) for kind, make in KINDS.items()}
    return FlushBench(kinds, states, changed, shards, rounds)


def _measured(
    make: Callable[[int], Any], states: int, changed: int, shards: int, rounds: int
) -> KindFigures:
    there = SHARED_MEMORY if Path(SHARED_MEMORY).is_dir() else None
    apart, whole, slices = [], [], []
    with (
        tempfile.TemporaryDirectory(prefix="elasticutor-bench-", dir=there) as place,
        LmdbBackend.create(place, map_size=_MAP_BYTES) as backend,
    ):
        store = Levels.create(backend, attempt=_A1, committed=Epoch(0))
        cache = StateCache(store, CODEC, _A1, Epoch(1))
        for number in range(-1, rounds):
            some = range(states if number < 0 else changed)
            _change(cache, some, make, number, shards)
            took, parts = _end_epoch(cache, store)
            if number >= 0:
                apart.append(took * 1e3)
                whole.append(sum(parts) / changed * 1e6)
                slices += [part * 1e3 for part in parts]
    return KindFigures(Spread.of(apart), Spread.of(whole), Spread.of(slices))


def _change(
    cache: StateCache, keys: range, make: Callable[[int], Any], number: int, shards: int
) -> None:
    handles = [cache.handle(ShardId(shard)) for shard in range(shards)]
    for key in keys:
        handle = handles[key % shards]
        handle.key = key
        handle.set(make(key + number + 1))


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
