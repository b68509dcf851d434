"""`elasticutor bench reassign`: a shard handed over under load, again and again, with a stopwatch.

One executor with two tasks, on one node or on two. One of its shards is filled with values of 1 KB,
and goes back and forth between the tasks; the times are those of the executor's own reports, split
into *sync* (from the label to when the source task has written what is dirty) and *migration*.

Tuples of two kinds fall due by the clock, and burn CPU as an operator would. *Touches* set values
of the shard that moves, of one and the same tenth of its keys, each at least once between two
moves: so just this tenth is dirty when the label comes. *Bystanders* are tuples of all other
shards. How old these are when they reach the sink says whether a move is felt by others: every
interval is a pair of windows, one that begins with the move and one, half an interval later,
without any; the ratio of their 99th percentiles comes with an interval from resampling the pairs.
"""

from __future__ import annotations

import tempfile
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from elasticutor.core.keys import key_hashes, shards_of
from elasticutor.errors import BadValueError, ElasticutorError
from elasticutor.operator import Operator, State
from elasticutor.sinks import Sink, Writer
from elasticutor.sources import Offer, Reader, Source
from elasticutor.topology import Topology

if TYPE_CHECKING:
    from elasticutor.driver.cluster import BaseCluster
    from elasticutor.driver.run import Run

Ints: TypeAlias = npt.NDArray[np.int64]
Floats: TypeAlias = npt.NDArray[np.float64]
Where: TypeAlias = Literal["local", "remote"]

SHARDS = 32
MOVED = 7
"""The shard that goes back and forth."""
TOUCH_MS = 0.1
DIRTY = 0.1
"""The share of the shard's keys that is dirty when it moves."""

_OPERATOR, _SINK = "touch", "ages"
_VALUE_BYTES = 1024
_BYSTANDERS = 1024  # keys of other shards
_TICK_S, _BLOCK_TICKS = 0.001, 1000
_WINDOW_S = 0.1
_TOUCH_SHARE = 0.25  # of all work
_WARM_UP = 4  # moves that do not count: the first writes everything that was loaded
_MOVE_TIMEOUT_S, _ASK_S = 60.0, 2.0
_LOAD_TIMEOUT_S = 60.0
_BEHIND_S, _TOO_FAR_S = 0.25, 2.0  # how far the source may be behind at first, and at the end
_TOO_BUSY = "the machine is too busy for this load: try a smaller one"
_RESAMPLED = 2000

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

AGES = pa.schema([pa.field("kind", pa.int8(), False), pa.field("due", pa.float64(), False)])


@dataclass(frozen=True, slots=True)
class Scene:
    """What is measured: how large the shard is, where it goes, and what goes on beside it."""

    state_kb: float
    where: Where
    row_ms: float = TOUCH_MS
    """What a bystander costs; a touch always costs a tenth of a millisecond."""
    load: float = 0.5
    """How busy each of the two tasks is."""

    def __post_init__(self) -> None:
        if not 0 < self.state_kb <= 1024 * 1024:
            raise BadValueError("state_kb", "be more than 0, and at most a gigabyte", self.state_kb)
        if self.where not in ("local", "remote"):
            raise BadValueError("where", 'be "local" or "remote"', self.where)
        if not 0 < self.row_ms <= 100:
            raise BadValueError("row_ms", "be more than 0, and at most 100", self.row_ms)
        if not 0 < self.load <= 1:
            raise BadValueError("load", "be more than 0, and at most 1", self.load)

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
        """Touches per second."""
        return 2 * self.load * _TOUCH_SHARE / (TOUCH_MS / 1e3)

    @property
    def bystanders_s(self) -> float:
        """Bystanders per second."""
        return 2 * self.load * (1 - _TOUCH_SHARE) / (self.row_ms / 1e3)

    @property
    def interval_s(self) -> float:
        """Between two moves: long enough to touch a tenth of the keys, and for the copy to travel.

        Example:
            >>> Scene(32, "local").interval_s, round(Scene(32768, "local").interval_s, 2)
            (0.25, 1.44)
        """
        touching = 1.1 * self.dirty_keys / self.touches_s
        copying = self.state_kb / 1024 * 0.08 if self.where == "remote" else 0.0
        return max(0.25, touching, copying)


@dataclass(frozen=True, slots=True)
class _Keys:
    moved: Ints
    others: Ints


def _keys_for(scene: Scene) -> _Keys:
    """Numbers whose shard is the one that moves, and numbers of all other shards."""
    candidates = np.arange(2 * SHARDS * (scene.keys + 64) + _BYSTANDERS * 2, dtype=np.int64)
    shards = shards_of(key_hashes(pa.array(candidates)), SHARDS)
    moved = candidates[shards == MOVED][: scene.keys]
    assert len(moved) == scene.keys  # twice as many candidates as it takes
    return _Keys(moved, candidates[shards != MOVED][:_BYSTANDERS])


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
        self._keys = _keys_for(scene)
        self._rng = np.random.default_rng(seed)
        self._touched = 0
        self._drawn_to = 0.0
        self._block, self._dues = _rows([], [], []), np.empty(0)
        self._given = 0
        self.offset = loaded

    def poll(self, now: float, max_rows: int) -> Offer | None:
        if self.offset < len(self._keys.moved):
            keys = self._keys.moved[self.offset : self.offset + max_rows]
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
        keys = [self._touches(len(touches)), rng.choice(self._keys.others, len(others))]
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
        chosen: Ints = self._keys.moved[places]
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

    output: ClassVar[Any] = AGES

    def __init__(self, value_bytes: int) -> None:
        self.value_bytes = value_bytes

    def process(self, key: Any, row: Any, state: State) -> Iterator[tuple[int, float]]:
        """Work on one tuple."""
        until = time.perf_counter() + row.burn_us * 1e-6
        count = int.from_bytes(state.get(b"")[:8], "little") + 1
        state.set(count.to_bytes(8, "little").ljust(self.value_bytes, b"."))
        while time.perf_counter() < until:
            pass
        if row.kind == _BYSTANDER:
            yield row.kind, row.due


@dataclass(frozen=True)
class AgeSink(Sink):
    """Notes when each bystander was due, and how old it was when it came, in a file."""

    path: str

    def open(self, task: int, schema: pa.Schema) -> Writer:
        """A writer that keeps pairs of numbers until it is told to flush."""
        return _AgeWriter(Path(self.path))


class _AgeWriter(Writer):
    def __init__(self, path: Path) -> None:
        self._path = path
        self._pairs = array("d")

    def write(self, batch: pa.RecordBatch) -> None:
        now, due = time.time(), batch.column("due").to_numpy()
        self._pairs.frombytes(np.column_stack([due, now - due]).tobytes())

    def flush(self) -> None:
        with self._path.open("ab") as file:
            self._pairs.tofile(file)
        self._pairs = array("d")


@dataclass(frozen=True, slots=True)
class Reassignment:
    """What was measured in one scene."""

    scene: Scene
    moves: int
    sync_ms: tuple[float, float]
    """Median and 99th percentile."""
    migration_ms: tuple[float, float]
    bytes: int
    """State that travelled with a move, at the median; of it, those that tuples waited for:"""
    bytes_held: int
    steady_p99_ms: float
    moving_p99_ms: float
    ratio: tuple[float, float, float]
    """Of the two, with the bounds of its 95 % interval."""

    def as_dict(self) -> dict[str, Any]:
        """Everything, for `--json`."""
        return {
            "state_kb": self.scene.state_kb,
            "where": self.scene.where,
            "row_ms": self.scene.row_ms,
            "load": self.scene.load,
            "moves": self.moves,
            "sync_ms_p50": self.sync_ms[0],
            "sync_ms_p99": self.sync_ms[1],
            "migration_ms_p50": self.migration_ms[0],
            "migration_ms_p99": self.migration_ms[1],
            "bytes": self.bytes,
            "bytes_held": self.bytes_held,
            "bystander_p99_ms_steady": self.steady_p99_ms,
            "bystander_p99_ms_moving": self.moving_p99_ms,
            "bystander_p99_ratio": self.ratio[0],
            "bystander_p99_ratio_low": self.ratio[1],
            "bystander_p99_ratio_high": self.ratio[2],
        }


def bench_reassign(
    cluster: BaseCluster,
    scene: Scene,
    *,
    moves: int = 40,
    seed: int = 1,
    progress: Callable[[int], object] = lambda done: None,
) -> Reassignment:
    """Move a shard back and forth under load.

    Args:
        cluster: On this machine, with two cores free on a node, or one on each of two.
        scene: What to measure.
        moves: How many to time; at least 5.
        seed: For the tuples.
        progress: Called with the number of moves done.

    Raises:
        BadValueError: Numbers that cannot be, or too few nodes.
        ElasticutorError: A move that does not come to its end, or a source that cannot keep up.
    """
    if moves < 5:
        raise BadValueError("moves", "be at least 5", moves)
    if scene.where == "remote" and len(cluster.nodes) < 2:
        raise BadValueError("cluster", "have two nodes for a remote hand-over", cluster.nodes)
    with tempfile.TemporaryDirectory(prefix="elasticutor-") as home:
        path = Path(home) / "ages"
        with cluster.submit(_topology(scene, seed, path), balance_s=0, keep=True) as run:
            if scene.where == "remote":
                first, second, *_ = sorted(cluster.nodes)
                run.set_cores(_OPERATOR, 0, {first: 1, second: 1})
            events, windows = _moved(run, scene, moves, progress)
            behind = run.metrics().behind_s
            run.drain()
        if behind > _TOO_FAR_S:
            raise ElasticutorError("source", "keep up", f"{behind:.2f} s behind", _TOO_BUSY)
        ages = np.fromfile(path).reshape(-1, 2)
    return _summary(scene, events, ages, windows, seed)


def _topology(scene: Scene, seed: int, path: Path) -> Topology:
    topology = Topology("reassign")
    stream = topology.source("load", TouchLoad(scene, seed))
    made = topology.operator(
        _OPERATOR, Touch(scene.value_bytes), stream, key="key", cores=2, shards=SHARDS
    )
    topology.sink(_SINK, AgeSink(str(path)), made)
    return topology


Window: TypeAlias = tuple[float, float]


def _moved(
    run: Run, scene: Scene, moves: int, progress: Callable[[int], object]
) -> tuple[list[dict[str, Any]], list[tuple[Window, Window]]]:
    """Move the shard in every interval; returns the reports, and a pair of windows for each."""
    _await_loaded(run, scene)
    one, two = sorted(run.tasks(_OPERATOR, 0))
    if _move(run, two, timeout_s=10.0) is None and _move(run, one) is None:
        raise ElasticutorError("shard", "move", "no report of it")
    events: list[dict[str, Any]] = []
    windows: list[tuple[Window, Window]] = []
    while len(events) < moves + _WARM_UP:
        asked = time.time()
        target = one if run.events("shard moved")[-1]["destination"] == two else two
        event = _move(run, target)
        if event is None:
            raise ElasticutorError("move", f"end within {_MOVE_TIMEOUT_S:g} s", "no report of it")
        events.append(event)
        steady = max(asked + scene.interval_s / 2, event["time"] + 0.01)
        windows.append(
            ((asked, max(asked + _WINDOW_S, event["time"])), (steady, steady + _WINDOW_S))
        )
        progress(max(0, len(events) - _WARM_UP))
        _pause_until(max(asked + scene.interval_s, steady + _WINDOW_S))
    return events[_WARM_UP:], windows[_WARM_UP:]


def _await_loaded(run: Run, scene: Scene) -> None:
    """Wait until the shard has its values, and the load is steady."""
    until = time.monotonic() + _LOAD_TIMEOUT_S
    enough = scene.keys + scene.touches_s
    while (seen := run.metrics()).rows_in < enough or seen.behind_s > _BEHIND_S:
        if time.monotonic() > until:
            got = f"{seen.rows_in} rows, {seen.behind_s:.2f} s behind"
            raise ElasticutorError(
                "source", f"keep up within {_LOAD_TIMEOUT_S:g} s", got, _TOO_BUSY
            )
        _pause_until(time.time() + 0.05)


def _pause_until(at: float) -> None:
    time.sleep(max(0.0, at - time.time()))


def _move(run: Run, task: int, timeout_s: float = _MOVE_TIMEOUT_S) -> dict[str, Any] | None:
    """Move the shard; returns the report, or None if there is none: the task may have it."""
    before = len(run.events("shard moved"))
    until, ask_at = time.monotonic() + timeout_s, 0.0
    while time.monotonic() < until:
        if time.monotonic() >= ask_at:
            # Again and again, for it is refused as long as the last move's old copy is there.
            ask_at = time.monotonic() + _ASK_S
            run.move(_OPERATOR, 0, MOVED, task)
        for event in run.events("shard moved")[before:]:
            if event["destination"] == task:
                return event
        _pause_until(time.time() + 0.005)
    return None


def _summary(
    scene: Scene,
    events: Sequence[dict[str, Any]],
    ages: Floats,
    windows: Sequence[tuple[Window, Window]],
    seed: int,
) -> Reassignment:
    ages = ages[np.argsort(ages[:, 0], kind="stable")]
    moving, steady = ([_within(ages, pair[which]) for pair in windows] for which in (0, 1))
    return Reassignment(
        scene,
        moves=len(events),
        sync_ms=_percentiles([event["sync_ms"] for event in events]),
        migration_ms=_percentiles(
            [event["migration_ms"] if event["remote"] else 0.0 for event in events]
        ),
        bytes=int(np.median([event["bytes"] for event in events])),
        bytes_held=int(np.median([event["bytes_held"] for event in events])),
        steady_p99_ms=round(_p99(steady) * 1e3, 3),
        moving_p99_ms=round(_p99(moving) * 1e3, 3),
        ratio=ratio_of_p99(moving, steady, seed),
    )


def _within(ages: Floats, window: Window) -> Floats:
    first, last = np.searchsorted(ages[:, 0], window)
    found: Floats = ages[first:last, 1]
    return found


def _percentiles(numbers: list[float]) -> tuple[float, float]:
    middle, high = np.percentile(numbers, (50, 99))
    return round(float(middle), 3), round(float(high), 3)


def _p99(windows: Sequence[Floats]) -> float:
    return float(np.percentile(np.concatenate(windows), 99))


def ratio_of_p99(
    moving: Sequence[Floats], steady: Sequence[Floats], seed: int = 0
) -> tuple[float, float, float]:
    """The ratio of two 99th percentiles, and its 95 % interval by resampling pairs of windows.

    Args:
        moving: Ages in each window with a move.
        steady: Ages in the window that goes with it.
        seed: For the resampling.

    Example:
        >>> ones = [np.ones(100)] * 9
        >>> ratio_of_p99([2 * ages for ages in ones], ones)
        (2.0, 2.0, 2.0)
    """
    rng = np.random.default_rng(seed)
    pairs = len(moving)
    ratios = []
    for _ in range(_RESAMPLED):
        drawn = rng.integers(0, pairs, pairs)
        ratios.append(_p99([moving[n] for n in drawn]) / _p99([steady[n] for n in drawn]))
    low, high = np.percentile(ratios, (2.5, 97.5))
    middle = _p99(moving) / _p99(steady)
    return round(middle, 3), round(float(low), 3), round(float(high), 3)
