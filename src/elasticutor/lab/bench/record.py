"""Sources and sinks around others: they note what came when, begin later, or make other tuples.

Notes go to files, which the driver reads when the run is drained: so they are for processes of one
machine, which also share a clock. What they note costs a microsecond per batch.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from elasticutor.errors import BadValueError
from elasticutor.sinks import Sink, Writer
from elasticutor.sources import Generator, Offer, Reader, Source

Floats: TypeAlias = npt.NDArray[np.float64]

BEGAN, ARRIVED = "began", "arrived.npz"
"""Files of notes."""


@dataclass(frozen=True, slots=True)
class Recording:
    """What a run's source and sink noted."""

    began: float
    """When the source was first asked for tuples, in seconds since 1970: its schedule's start."""
    arrivals: Floats
    """When each batch was with the sink, in seconds after that."""
    rows: npt.NDArray[np.int64]
    """How many rows each had."""
    due_s: Floats
    """When each row was due, in seconds after the beginning; empty if the rows do not say."""

    @classmethod
    def load(cls, folder: Path, sinks: Sequence[str] = (ARRIVED,)) -> Recording:
        """What was noted in a folder, by a run that is drained: in a file for each sink."""
        began = float((folder / BEGAN).read_text())
        noted = [np.load(folder / sink) for sink in sinks]
        arrivals, rows, times = (
            np.concatenate([one[name] for one in noted]) for name in ("arrivals", "rows", "times")
        )
        return cls(began, arrivals - began, rows, times / 1e6)

    @property
    def seconds(self) -> float:
        """From the first tuple to the last output."""
        return float(self.arrivals.max(initial=0.0))

    @property
    def total(self) -> int:
        """Rows in all."""
        return int(self.rows.sum())

    @property
    def rows_s(self) -> float:
        """Rows per second, from the first tuple asked for to the last output."""
        return self.total / max(self.seconds, 1e-9)

    @property
    def arrived_s(self) -> Floats:
        """When each row was with the sink, in seconds after the beginning."""
        return np.repeat(self.arrivals, self.rows)

    def latency(self, start_s: float, end_s: float) -> Latency:
        """Of the rows that were due between two times."""
        return Latency.of(self.due_s, self.arrived_s, start_s, end_s)


@dataclass(frozen=True, slots=True)
class Latency:
    """How old the rows of a while were at the sink, in milliseconds, whenever they came there."""

    mean_ms: float
    p50_ms: float
    p90_ms: float
    p99_ms: float
    p999_ms: float
    worst_second_p50_ms: float
    """The median of the second, counted by due times, with the largest one."""
    worst_second_p99_ms: float

    @classmethod
    def of(cls, due_s: Floats, arrived_s: Floats, start_s: float, end_s: float) -> Latency:
        """Of the rows that were due between two times."""
        inside = (due_s >= start_s) & (due_s < end_s)
        if not inside.any():
            raise BadValueError("rows", f"be due between {start_s:g} and {end_s:g} s", 0)
        late_ms, due = (arrived_s - due_s)[inside] * 1e3, due_s[inside] - start_s
        order = np.argsort(due, kind="stable")
        edges = np.searchsorted(due[order], np.arange(1.0, end_s - start_s))
        seconds = [second for second in np.split(late_ms[order], edges) if len(second)]
        figures = (
            late_ms.mean(),
            *np.percentile(late_ms, (50, 90, 99, 99.9)),
            max(np.percentile(second, 50) for second in seconds),
            max(np.percentile(second, 99) for second in seconds),
        )
        return cls(*(round(float(figure), 3) for figure in figures))


class NotingSource(Source):
    """Another source, read by one task, with a note in a folder of when it was first asked.

    With a `tick_s`, what has fallen due is offered only this often: at some thousand rows a second
    a message for each would keep a small machine busy by itself. Latency still counts from when a
    row was due. `most_rows` limits what is offered at once.
    """

    def __init__(
        self, source: Source, folder: Path, tick_s: float = 0.0, most_rows: int = 0
    ) -> None:
        if not tick_s >= 0:
            raise BadValueError("tick_s", "be at least 0", tick_s)
        self.schema = source.schema
        self._source = source
        self._how = folder, tick_s, most_rows

    def open(self, task: int, tasks: int, offset: Any | None) -> Reader:
        if tasks != 1:
            raise BadValueError("tasks of a NotingSource", "be 1", tasks)
        return _NotingReader(self._source.open(task, tasks, offset), *self._how)


class WrappedReader(Reader):
    """Another reader, with the same offsets; `poll` is for the subclass to define."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    @property
    def rate(self) -> float | None:  # type: ignore[override]
        return self._reader.rate

    @property
    def exhausted(self) -> bool:  # type: ignore[override]
        return self._reader.exhausted

    @property
    def offset(self) -> Any:
        return self._reader.offset

    def wait_s(self, now: float) -> float:
        return self._reader.wait_s(now)

    def close(self) -> None:
        self._reader.close()


class _NotingReader(WrappedReader):
    def __init__(self, reader: Reader, folder: Path, tick_s: float, most_rows: int) -> None:
        super().__init__(reader)
        self._most_rows = most_rows
        self._folder = folder
        self._tick_s = tick_s
        self._began: float | None = None
        self._tick_at = 0.0

    def poll(self, now: float, max_rows: int) -> Offer | None:
        """What the other has, once per tick; more often only while it has more than is wanted."""
        if self._began is None:
            self._began = now
            (self._folder / BEGAN).write_text(repr(now))
        if now < self._tick_at:
            return None
        if self._most_rows:
            max_rows = min(max_rows, self._most_rows)
        offer = self._reader.poll(now, max_rows)
        if self._tick_s and (offer is None or offer.batch.num_rows < max_rows):
            ticks = (now - self._began) // self._tick_s + 1
            self._tick_at = self._began + ticks * self._tick_s
        return offer

    def wait_s(self, now: float) -> float:
        if self._tick_s:
            return max(0.0, self._tick_at - now)
        return super().wait_s(now)


@dataclass(frozen=True)
class Remade(Source):
    """A generator, read by one task, whose tuples are made into others by their number."""

    generator: Generator
    schema: pa.Schema
    remake: Callable[[int, pa.RecordBatch], list[Any]]
    """Of the number of the first of some tuples, and these: the columns of the others."""

    def open(self, task: int, tasks: int, offset: Any | None) -> Reader:
        if tasks != 1:
            raise BadValueError("tasks of a remade source", "be 1", tasks)
        return _RemadeReader(self.generator.open(task, tasks, offset), self)


class _RemadeReader(WrappedReader):
    def __init__(self, reader: Reader, source: Remade) -> None:
        super().__init__(reader)
        self._source = source

    def poll(self, now: float, max_rows: int) -> Offer | None:
        first = self._reader.offset[0]
        offer = self._reader.poll(now, max_rows)
        if offer is None:
            return None
        columns = self._source.remake(first, offer.batch)
        batch = pa.RecordBatch.from_arrays(columns, schema=self._source.schema)
        return replace(offer, batch=batch)


class DelayedSource(Source):
    """Another source, which is silent for `delay_s` first, from when it is first asked."""

    def __init__(self, source: Source, delay_s: float) -> None:
        if not delay_s >= 0:
            raise BadValueError("delay_s", "be at least 0", delay_s)
        self.schema = source.schema
        self.tasks = source.tasks
        self._source = source
        self._delay_s = delay_s

    def open(self, task: int, tasks: int, offset: Any | None) -> Reader:
        return _LateReader(self._source.open(task, tasks, offset), self._delay_s)


class _LateReader(WrappedReader):
    def __init__(self, reader: Reader, delay_s: float) -> None:
        super().__init__(reader)
        self._delay_s = delay_s
        self._begins = math.inf

    @property
    def rate(self) -> float | None:  # type: ignore[override]
        """As the other, and nothing before it has begun or after its end."""
        begun = self._begun(time.time()) and not self._reader.exhausted
        return self._reader.rate if begun else 0.0

    def poll(self, now: float, max_rows: int) -> Offer | None:
        return self._reader.poll(now, max_rows) if self._begun(now) else None

    def wait_s(self, now: float) -> float:
        return self._reader.wait_s(now) if self._begun(now) else self._begins - now

    def _begun(self, now: float) -> bool:
        if math.isinf(self._begins):
            self._begins = now + self._delay_s
        return now >= self._begins


class NotingSink(Sink):
    """Keeps no rows, but notes when they came; and when they were due, if they say (`time`)."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def open(self, task: int, schema: pa.Schema) -> Writer:
        return _NotingWriter(self._folder, "time" in schema.names)


class _NotingWriter(Writer):
    def __init__(self, folder: Path, timed: bool) -> None:
        self._path = folder / ARRIVED
        self._timed = timed
        self._arrivals: list[float] = []
        self._rows: list[int] = []
        self._times: list[npt.NDArray[np.int64]] = [np.empty(0, np.int64)]

    def write(self, batch: pa.RecordBatch) -> None:
        self._arrivals.append(time.time())
        self._rows.append(batch.num_rows)
        if self._timed:
            # A copy, because a view would keep the whole message.
            self._times.append(batch.column("time").to_numpy().copy())

    def flush(self) -> None:
        np.savez(
            self._path,
            arrivals=np.array(self._arrivals),
            rows=np.array(self._rows, np.int64),
            times=np.concatenate(self._times),
        )
