"""The load of the paper's experiments (5.1): tuples made by a clock, from a seed."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from elasticutor.checks import require, require_whole
from elasticutor.errors import BadValueError
from elasticutor.sources.base import Offer, Reader, RowOffer, Source

Ints: TypeAlias = npt.NDArray[np.int64]

BLOCK_ROWS = 16_384
"""Tuples that a generator draws at once: about a millisecond of work."""

_AHEAD_ROWS = 512
_POOL_BYTES = 8 * 1024 * 1024
_MICROSECONDS = 1_000_000
# Parts of seeds, so that no two uses of a generator's seed draw the same numbers.
_DRAWS, _SHUFFLES, _PAYLOADS, _HOT = range(4)


@dataclass(frozen=True, slots=True)
class HotKey:
    """One key that draws a share of all tuples; every `seconds` it is another one."""

    share: float
    seconds: float

    def __post_init__(self) -> None:
        require("share of a hot key", self.share, most=1)
        require("seconds of a hot key", self.seconds, above=0)


@dataclass(frozen=True)
class Generator(Source):
    """Generates the paper's load (5.1): Zipf keys whose frequencies are shuffled now and then.

    Columns: `key` (long); `time` (long), when the tuple is due in microseconds after the stream's
    start; and `payload`, random bytes, unless its size is 0.

    With a rate it is an open loop: tuples fall due by the clock, whether or not the topology keeps
    up, and are offered with their due time. The schedule outlasts a recovery: what fell due
    meanwhile is offered at once, late as it is, unless `catch_up` is off.

    Tuple i of a task is a function of the seed, the task, i and the number of tasks alone. So a
    replay gives the same tuples, and `table` gives them for checking results.

    Example:
        >>> generator = Generator(rate=1_000, keys=100, payload=0, rows=10, seed=7)
        >>> generator.count(0, tasks=2)
        5
        >>> generator.table(0, 2, 0, 3).column("time").to_pylist()
        [0, 2000, 4000]
        >>> generator.table(1, 2, 0, 3).column("time").to_pylist()
        [1000, 3000, 5000]
    """

    rate: float | None = None
    """Tuples per second, of all tasks together; None for as fast as possible.

    Without a rate, stream time passes by a microsecond per tuple.
    """
    keys: int = 10_000
    """How many keys there are: 0 to keys - 1."""
    zipf: float = 0.5
    """The skew: the k-th most frequent key has a share in proportion to 1 / k^zipf."""
    payload: int = 128
    """Bytes of payload per tuple."""
    omega: float = 0.0
    """ω: how often per minute the frequencies are shuffled among the keys."""
    rows: int | None = None
    """How many tuples there are, of all tasks together; None for no end."""
    seconds: float | None = None
    """How long the stream is, by its schedule; None for no end."""
    seed: int = 0
    """Streams of different seeds are independent."""
    shuffle_rows: int | None = None
    """As `omega`, but after this many tuples of all tasks together."""
    hot: HotKey | None = None
    """A single key that outweighs the others for a while."""
    catch_up: bool = True
    """Whether a restart offers at once what fell due in between, or goes on where it stopped."""

    def __post_init__(self) -> None:
        if self.rate is not None:
            require("rate", self.rate, above=0)
        require_whole("keys", self.keys, least=1)
        require("zipf", self.zipf)
        require_whole("payload", self.payload, least=0)
        require("omega", self.omega)
        require_whole("seed", self.seed, least=0)
        for name in ("rows", "shuffle_rows"):
            if getattr(self, name) is not None:
                require_whole(name, getattr(self, name), least=1)
        if self.seconds is not None:
            require("seconds", self.seconds, above=0)
        self._require_a_clock_for("seconds", self.seconds, "rows")
        self._require_a_clock_for("omega", self.omega, "shuffle_rows")
        if self.hot is not None and not isinstance(self.hot, HotKey):
            raise BadValueError("hot", "be a HotKey", self.hot)
        if self.omega and self.shuffle_rows:
            hint = "leave one of them out"
            raise BadValueError("omega and shuffle_rows", "not both be given", self.omega, hint)

    @property
    def schema(self) -> pa.Schema:
        """Of the tuples: with or without a payload."""
        fields = [pa.field("key", pa.int64(), False), pa.field("time", pa.int64(), False)]
        if self.payload:
            fields.append(pa.field("payload", pa.binary(self.payload), False))
        return pa.schema(fields)

    def count(self, task: int = 0, tasks: int = 1) -> int | None:
        """Return how many tuples a task has in all, or None if there is no end."""
        ends = [] if self.rows is None else [self.rows]
        if self.seconds is not None and self.rate is not None:
            # Rounded, because 0.07 s at 100 per second are seven tuples and not eight.
            ends.append(math.ceil(round(self.seconds * self.rate, 6)))
        return max(0, -(-(min(ends) - task) // tasks)) if ends else None

    def table(self, task: int, tasks: int, start: int, stop: int) -> pa.RecordBatch:
        """Return a task's tuples from start to before stop, without a clock; fewer at the end."""
        tuples = _Tuples(self, task, tasks)
        batches = list(tuples.batches(start, stop))
        if not batches:
            return pa.RecordBatch.from_pylist([], schema=self.schema)
        return pa.Table.from_batches(batches).combine_chunks().to_batches()[0]

    def ranking(self, shuffle: int = 0) -> Ints:
        """Return all keys by falling frequency after a number of shuffles, without the hot key."""
        return np.random.default_rng([self.seed, _SHUFFLES, shuffle]).permutation(self.keys)

    def open(self, task: int, tasks: int, offset: Any | None) -> Reader:
        """Return a reader whose schedule starts when it is first asked."""
        return _GeneratorReader(self, task, tasks, offset)

    def _require_a_clock_for(self, name: str, value: float | None, instead: str) -> None:
        if value and self.rate is None:
            hint = f"give a rate, or {instead} instead"
            raise BadValueError(f"{name} of a generator", "have a rate to go by", None, hint)


class _Tuples:
    """The tuples of one task of a generator, by their number.

    The randomness of a tuple is drawn with that of its whole block, because this costs a tenth.
    What depends on stream time is added for the tuples asked for only: at a low rate a block lasts
    for hours, and has hundreds of shuffles in it.
    """

    def __init__(self, generator: Generator, task: int, tasks: int) -> None:
        self._generator = generator
        self._task = task
        self._tasks = tasks
        self._schema = generator.schema
        self._pool = _pool(generator.payload, generator.seed) if generator.payload else None
        self._segment = BLOCK_ROWS if self._pool is None else len(self._pool)
        self._ranks = _Ranks.of(generator.keys, generator.zipf)
        self._ahead = (0, pa.RecordBatch.from_pylist([], schema=self._schema))
        self._rows_ahead: tuple[int, list[tuple[Any, ...]]] = (0, [])
        self._block = -1
        self._drawn: Ints = np.empty(0, np.int64)
        self._shuffle = -1
        self._ranking: Ints = np.empty(0, np.int64)
        self._hot_keys: Ints | None = None  # in their order: no key follows itself
        if generator.hot:
            rng = np.random.default_rng([generator.seed, _HOT])
            self._hot_keys = rng.permutation(generator.keys)
        self.count = generator.count(task, tasks)
        self._period = 1.0 if generator.rate is None else _MICROSECONDS / generator.rate
        """Microseconds between two tuples of all tasks together."""

    def due_s(self, number: int) -> float:
        """Return seconds after the stream's start at which a tuple is due."""
        return (number * self._tasks + self._task) * self._period / _MICROSECONDS

    def due_by(self, seconds: float) -> int:
        places = seconds * _MICROSECONDS / self._period - self._task
        number = max(0, math.floor(places / self._tasks) + 1)
        # Divisions round; what is due is what `due_s` says.
        while number and self.due_s(number - 1) > seconds:
            number -= 1
        while self.due_s(number) <= seconds:
            number += 1
        return number

    def batches(self, start: int, stop: int) -> Iterable[pa.RecordBatch]:
        """Return the tuples from start to before stop, in pieces that are cheap to make."""
        stop = stop if self.count is None else min(stop, self.count)
        while start < stop:
            end = self.piece(start, stop)
            yield self.batch(start, end)
            start = end

    def piece(self, start: int, stop: int) -> int:
        return min(stop, start - start % self._segment + self._segment)

    def batch(self, start: int, stop: int) -> pa.RecordBatch:
        """Return the tuples from start to before stop, all of one segment.

        A few are cut from a batch that was made ahead: to make one costs the same for hundreds.
        """
        if stop - start >= _AHEAD_ROWS // 4:
            return self._made(start, stop)
        first, made = self._ahead
        if not first <= start <= stop <= first + made.num_rows:
            first = start
            made = self._made(start, self.piece(start, start + _AHEAD_ROWS))
            self._ahead = (first, made)
        return made.slice(start - first, stop - start)

    def rows(self, start: int, stop: int, begun_us: int) -> tuple[list[tuple[Any, ...]], list[int]]:
        """Return them as Python tuples, and when each is due; also cut from what was made ahead."""
        first, rows = self._rows_ahead
        if not first <= start <= stop <= first + len(rows):
            batch = self._made(start, self.piece(start, start + _AHEAD_ROWS))
            first, rows = start, list(zip(*(c.to_pylist() for c in batch.columns), strict=True))
            self._rows_ahead = first, rows
        few = rows[start - first : stop - first]
        return few, [begun_us + row[1] for row in few]

    def _made(self, start: int, stop: int) -> pa.RecordBatch:
        places = np.arange(start, stop, dtype=np.int64) * self._tasks + self._task
        times = places if self._period == 1 else (places * self._period).astype(np.int64)
        columns = [pa.array(self._keys(start, stop, places, times)), pa.array(times)]
        if self._pool is not None:
            columns.append(self._pool.slice(start % self._segment, stop - start))
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def _keys(self, start: int, stop: int, places: Ints, times: Ints) -> Ints:
        block, first = divmod(start, BLOCK_ROWS)
        if block != self._block:
            self._draw(block)
        drawn = self._drawn[first : first + stop - start]
        keys = np.empty(len(drawn), np.int64)
        for shuffle, part in _runs(self._shuffles(places, times)):
            keys[part] = self._ranked(shuffle)[drawn[part]]
        if self._hot_keys is not None and self._generator.hot is not None:
            period = max(1, round(self._generator.hot.seconds * _MICROSECONDS))
            hot = drawn < 0
            keys[hot] = self._hot_keys[times[hot] // period % len(self._hot_keys)]
        return keys

    def _shuffles(self, places: Ints, times: Ints) -> Ints:
        """Return how often the keys were shuffled before each tuple."""
        if self._generator.omega:
            return times // max(1, round(60 * _MICROSECONDS / self._generator.omega))
        return places // (self._generator.shuffle_rows or np.iinfo(np.int64).max)

    def _ranked(self, shuffle: int) -> Ints:
        if shuffle != self._shuffle:
            self._ranking, self._shuffle = self._generator.ranking(shuffle), shuffle
        return self._ranking

    def _draw(self, block: int) -> None:
        """The ranks of a block's tuples; -1 for those of the hot key."""
        rng = np.random.default_rng([self._generator.seed, _DRAWS, self._task, block])
        uniform = rng.random(BLOCK_ROWS)
        hot = self._generator.hot
        if hot is None or hot.share == 0:
            drawn = self._ranks.at(uniform)
        elif hot.share == 1:
            drawn = np.full(BLOCK_ROWS, -1)
        else:
            rest = np.maximum(0.0, uniform - hot.share) / (1 - hot.share)
            drawn = self._ranks.at(rest)
            drawn[uniform < hot.share] = -1
        self._drawn, self._block = drawn, block


class _Ranks:
    """Zipf's law over n ranks, by inverting its distribution function with a table of guesses.

    A binary search costs 0.1 µs per tuple for ten thousand ranks and 0.3 µs for a million: half of
    its branches are mispredicted. So the unit interval is cut into many equal cells, and a table
    says with which rank each begins; most tuples find theirs there or one further, and the others
    are searched for. The result is that of the binary search, to the bit.
    """

    def __init__(self, ranks: int, zipf: float) -> None:
        heaped = np.cumsum(np.arange(1, ranks + 1, dtype=np.float64) ** -zipf)
        self._upto = heaped / heaped[-1]
        self._upto[-1] = 1.0
        self._cells = 1 << min(22, (4 * ranks - 1).bit_length())  # times a power of 2 is exact
        edges = np.arange(self._cells) / self._cells
        self._guesses = np.searchsorted(self._upto, edges, side="right").astype(np.int64)

    @staticmethod
    @lru_cache(maxsize=4)
    def of(ranks: int, zipf: float) -> _Ranks:
        """The same for the same law: a million ranks take a moment to tabulate."""
        return _Ranks(ranks, zipf)

    def at(self, uniform: npt.NDArray[np.float64]) -> Ints:
        """Return the rank (from 0) that each number of [0, 1) falls to."""
        ranks: Ints = self._guesses[(uniform * self._cells).astype(np.int64)]
        ranks += self._upto[ranks] <= uniform
        late = np.flatnonzero(self._upto[ranks] <= uniform)
        ranks[late] = np.searchsorted(self._upto, uniform[late], side="right")
        return ranks


@lru_cache(maxsize=4)
def _pool(payload: int, seed: int) -> pa.Array:
    """Payloads to slice from: one buffer, which every block reuses.

    The number of them divides a block's, so a piece of a block is one slice and nothing is copied.
    """
    most = max(1, _POOL_BYTES // payload)
    rows = min(BLOCK_ROWS, 1 << (most.bit_length() - 1))
    noise = np.random.default_rng([seed, _PAYLOADS]).bytes(rows * payload)
    return pa.Array.from_buffers(pa.binary(payload), rows, [None, pa.py_buffer(noise)])


def _runs(values: Ints) -> Iterable[tuple[int, slice]]:
    """Return the distinct values of an array that never falls, each with where it stands."""
    if values[0] == values[-1]:
        yield int(values[0]), slice(None)
        return
    edges = [0, *(np.flatnonzero(np.diff(values)) + 1).tolist(), len(values)]
    for first, last in pairwise(edges):
        yield int(values[first]), slice(first, last)


class _GeneratorReader(Reader):
    """A generator against the clock. Its offset: the next tuple, and when the stream started."""

    def __init__(self, generator: Generator, task: int, tasks: int, offset: Any | None) -> None:
        self._tuples = _Tuples(generator, task, tasks)
        self._paced = self.knows_when = generator.rate is not None
        self.rate = math.inf if generator.rate is None else generator.rate / tasks
        self._next: int
        self._start: float | None
        self._next, self._start = (0, None) if offset is None else offset
        if not generator.catch_up:
            self._start = None

    @property
    def offset(self) -> tuple[int, float | None]:
        return self._next, self._start

    @property
    def exhausted(self) -> bool:  # type: ignore[override]
        return self._tuples.count is not None and self._next >= self._tuples.count

    def poll(self, now: float, max_rows: int) -> Offer | None:
        """Return all tuples that are due, up to the end of what is cheap to give at once."""
        first, due = self._next, self._due(now, max_rows)
        if due <= first:
            return None
        self._next = self._tuples.piece(first, due)
        batch = self._tuples.batch(first, self._next)
        if not self._paced:
            return Offer(batch, now)
        begun = self._begun(now)
        due_us = None
        if batch.num_rows > 1:
            due_us = batch.column(1).to_numpy() + round(begun * _MICROSECONDS)
        return Offer(batch, begun + self._tuples.due_s(first), due_us)

    def poll_rows(self, now: float, most: int) -> RowOffer | None:
        first = self._next
        due = self._due(now, most + 1)
        if not self._paced or not first < due <= first + most:
            return None
        self._next = self._tuples.piece(first, due)
        begun_us = round(self._begun(now) * _MICROSECONDS)
        return RowOffer(*self._tuples.rows(first, self._next, begun_us))

    def wait_s(self, now: float) -> float:
        if not self._paced:
            return 0.0
        return max(0.0, self._begun(now) + self._tuples.due_s(self._next) - now)

    def _due(self, now: float, max_rows: int) -> int:
        """Behind the last tuple that may be given now."""
        due = self._next + max_rows
        if self._paced:
            due = min(due, self._tuples.due_by(now - self._begun(now)))
        return due if self._tuples.count is None else min(due, self._tuples.count)

    def _begun(self, now: float) -> float:
        """When the stream started: so that the next tuple is due now, if it is not known."""
        if self._start is None:
            self._start = now - (self._tuples.due_s(self._next) if self._next else 0.0)
        return self._start
