"""The load of `bench reassign`: tuples that touch the shard that moves, and bystanders.

Tuples of both kinds fall due by the clock, and burn CPU as an operator would. *Touches* set values
of the shard that moves, of one and the same tenth of its keys, each at least once between two
moves: so just this tenth is dirty when the label comes. *Bystanders* are tuples of all other
shards; they alone come out, with their due times.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from elasticutor.core.keys import key_hashes, shards_of
from elasticutor.errors import BadValueError
from elasticutor.operator import Operator, State
from elasticutor.sources import Offer, Reader, Source

Ints: TypeAlias = npt.NDArray[np.int64]
Where: TypeAlias = Literal["local", "remote"]

SHARDS = 32
MOVED = 7
"""The shard that goes back and forth."""
TOUCH_MS = 0.1
DIRTY = 0.1
"""The share of the shard's keys that is dirty when it moves."""

_VALUE_BYTES = 1024
_BYSTANDERS = 1024  # keys of other shards
_TICK_S, _BLOCK_TICKS = 0.001, 1000
_TOUCH_SHARE = 0.25  # of all work

_LOAD, _TOUCH, _BYSTANDER = range(3)

TUPLES = pa.schema(
    [
        pa.field("key", pa.int64(), False),
        pa.field("kind", pa.int8(), False),
        pa.field("due", pa.float64(), False),
        pa.field("burn_us", pa.int32(), False),
    ]
)
"""A tuple: its key, what it is for, when it was due (seconds since 1970), and what it costs."""

DUES = pa.schema([pa.field("time", pa.int64(), False)])
"""When a bystander was due, in microseconds since 1970."""


@dataclass(frozen=True, slots=True)
class Scene:
    """What is measured: how large the shard is, where it goes, and what goes on beside it."""

    state_kb: float
    where: Where
    row_ms: float = TOUCH_MS
    """What a bystander costs; a touch always costs a tenth of a millisecond."""
    load: float = 0.5

    def __post_init__(self) -> None:
        for name, most in (("state_kb", 1024 * 1024), ("row_ms", 100), ("load", 1)):
            value = getattr(self, name)
            if not 0 < value <= most:
                raise BadValueError(name, f"be more than 0, and at most {most}", value)

    def __str__(self) -> str:
        kb = self.state_kb
        size = f"{kb / 1024:g} MB" if kb >= 1024 else f"{kb:g} KB"
        return f"{size}, {self.where}, {self.row_ms:g} ms tuples beside it"

    @property
    def keys(self) -> int:
        """Of the shard that moves: one for each KB."""
        return max(1, round(self.state_kb))

    @property
    def value_bytes(self) -> int:
        """Of each value: 1 KB, or all of a state that is less."""
        return min(_VALUE_BYTES, round(self.state_kb * 1024))

    @property
    def dirty_keys(self) -> int:
        """Of the shard, when it moves; at least one."""
        return max(1, round(self.keys * DIRTY))

    @property
    def touches_s(self) -> float:
        return 2 * self.load * _TOUCH_SHARE / (TOUCH_MS / 1e3)

    @property
    def bystanders_s(self) -> float:
        return 2 * self.load * (1 - _TOUCH_SHARE) / (self.row_ms / 1e3)

    @property
    def interval_s(self) -> float:
        """Between two moves: enough to touch a tenth of the keys, and for the copy to travel."""
        touching = 1.1 * self.dirty_keys / self.touches_s
        copying = self.state_kb / 1024 * 0.08 if self.where == "remote" else 0.0
        return max(0.25, touching, copying)


def _keys_for(scene: Scene) -> tuple[Ints, Ints]:
    """Numbers whose shard is the one that moves, and numbers of all other shards."""
    candidates = np.arange(2 * SHARDS * (scene.keys + 64) + _BYSTANDERS * 2, dtype=np.int64)
    shards = shards_of(key_hashes(pa.array(candidates)), SHARDS)
    moved = candidates[shards == MOVED][: scene.keys]
    assert len(moved) == scene.keys  # twice as many candidates as it takes
    return moved, candidates[shards != MOVED][:_BYSTANDERS]


@dataclass(frozen=True)
class TouchLoad(Source):
    """First every key of the shard once; from then on touches and bystanders by the clock.

    They fall due in ticks of a millisecond, as from a network; how many in each is Poisson's.
    """

    scene: Scene
    seed: int
    schema: Any = field(default=TUPLES, init=False)

    def open(self, task: int, tasks: int, offset: Any | None) -> Reader:
        """A reader whose clock starts when everything is loaded."""
        return _TouchReader(self.scene, self.seed, 0 if offset is None else offset)


class _TouchReader(Reader):
    def __init__(self, scene: Scene, seed: int, loaded: int) -> None:
        self._scene = scene
        self._moved, self._others = _keys_for(scene)
        self._rng = np.random.default_rng(seed)
        self._touched = 0
        self._drawn_to = 0.0
        self._block, self._dues = _rows([], [], []), np.empty(0)
        self._given = 0
        self.offset = loaded

    def poll(self, now: float, max_rows: int) -> Offer | None:
        if self.offset < len(self._moved):
            keys = self._moved[self.offset : self.offset + max_rows]
            self.offset += len(keys)
            zeros = np.zeros(len(keys))
            return Offer(_rows(keys, zeros, zeros + now), now)
        if self._given == len(self._dues):
            self._draw(self._drawn_to or now)
        first = self._given
        last = min(first + max_rows, int(np.searchsorted(self._dues, now, side="right")))
        if last <= first:
            return None
        self._given = last
        return Offer(self._block.slice(first, last - first), float(self._dues[first]))

    def wait_s(self, now: float) -> float:
        if self._given == len(self._dues):
            return 0.0
        return max(0.0, float(self._dues[self._given]) - now)

    def _draw(self, start: float) -> None:
        """The tuples of the next second or so, in the order in which they are due."""
        scene, rng = self._scene, self._rng
        ticks = start + np.arange(_BLOCK_TICKS) * _TICK_S
        touches = np.repeat(ticks, rng.poisson(scene.touches_s * _TICK_S, len(ticks)))
        others = np.repeat(ticks, rng.poisson(scene.bystanders_s * _TICK_S, len(ticks)))
        keys = [self._touches(len(touches)), rng.choice(self._others, len(others))]
        kinds = np.repeat([_TOUCH, _BYSTANDER], [len(touches), len(others)])
        dues = np.concatenate([touches, others])
        # Touches and bystanders of one tick in any order.
        order = np.lexsort((rng.random(len(dues)), dues))
        self._dues = dues[order]
        burns = np.where(kinds == _TOUCH, TOUCH_MS, scene.row_ms)[order]
        self._block = _rows(np.concatenate(keys)[order], kinds[order], self._dues, burns)
        self._given = 0
        self._drawn_to = start + _BLOCK_TICKS * _TICK_S

    def _touches(self, count: int) -> Ints:
        """Keys of the tenth that is touched, one after the other."""
        places = (self._touched + np.arange(count)) % self._scene.dirty_keys
        self._touched += count
        chosen: Ints = self._moved[places]
        return chosen


def _rows(
    keys: npt.ArrayLike, kinds: npt.ArrayLike, dues: npt.ArrayLike, costs_ms: npt.ArrayLike = 0.0
) -> pa.RecordBatch:
    burns = np.broadcast_to(np.rint(np.asarray(costs_ms) * 1e3), np.shape(keys))
    columns = [
        pa.array(np.asarray(keys, np.int64)),
        pa.array(np.asarray(kinds, np.int8)),
        pa.array(np.asarray(dues, np.float64)),
        pa.array(burns.astype(np.int32)),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=TUPLES)


class Touch(Operator):
    """Burns the CPU that a tuple costs, and sets its key's value; bystanders come out."""

    output: ClassVar[Any] = DUES

    def __init__(self, value_bytes: int) -> None:
        self.value_bytes = value_bytes

    def process(self, key: Any, row: Any, state: State) -> Iterator[tuple[int]]:
        until = time.perf_counter() + row.burn_us * 1e-6
        count = int.from_bytes(state.get(b"")[:8], "little") + 1
        state.set(count.to_bytes(8, "little").ljust(self.value_bytes, b"."))
        while time.perf_counter() < until:
            pass
        if row.kind == _BYSTANDER:
            yield (round(row.due * 1e6),)
