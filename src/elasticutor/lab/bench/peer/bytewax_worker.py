"""One process of the peer: a Bytewax dataflow with the tuples and the work of a benchmark.

Started by `lab.bench.peer.beside` with a specification as JSON, and a number. The dataflow is what
its documentation would have one write: a source with one partition, a `stateful_map` per key, a
sink on every worker. Tuples are made some thousand at a time and served from a list, so that its
source costs next to nothing.
"""

from __future__ import annotations

import faulthandler
import json
import sys
import time
from bisect import bisect_right
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import bytewax.operators as op
import numpy as np
from bytewax.dataflow import Dataflow
from bytewax.inputs import FixedPartitionedSource, StatefulSourcePartition
from bytewax.outputs import DynamicSink, StatelessSinkPartition
from bytewax.recovery import RecoveryConfig, init_db_dir
from bytewax.testing import cluster_main

from elasticutor.sources import Generator

_MADE_AT_ONCE = 4096
Item = tuple[str, tuple[int, bytes]]
"""A key, as the peer wants it; when it is due in microseconds after the start; a payload."""


class PeerTuples(FixedPartitionedSource):
    """The tuples of a generator, by its schedule or as fast as they are taken."""

    def __init__(self, generator: Generator, batch_rows: int, began: Path) -> None:
        self._made = (generator, batch_rows, began)

    def list_parts(self) -> list[str]:
        return ["tuples"]

    def build_part(self, step_id: str, for_part: str, resume_state: Any) -> StatefulSourcePartition:
        return _Partition(*self._made)


class _Partition(StatefulSourcePartition):
    def __init__(self, generator: Generator, batch_rows: int, began: Path) -> None:
        self._generator = generator
        self._batch_rows = batch_rows
        self._note = began
        self._began: float | None = None
        self._count = generator.count()
        self._first = 0  # the number of the first tuple in the list
        self._items: list[Item] = []
        self._times: list[int] = []
        self._next = 0  # its place in the list
        self._make()

    def _make(self) -> None:
        self._first += len(self._items)
        table = self._generator.table(0, 1, self._first, self._first + _MADE_AT_ONCE)
        self._times = table.column("time").to_pylist()
        payloads = (
            table.column("payload").to_pylist()
            if "payload" in table.schema.names
            else [b""] * len(self._times)
        )
        keys = map(str, table.column("key").to_pylist())
        self._items = list(zip(keys, zip(self._times, payloads, strict=True), strict=True))
        self._next = 0

    def next_batch(self) -> list[Item]:
        """What is due, up to a batch; the clock starts when it is first asked."""
        now = time.time()
        if self._began is None:
            self._began = now
            self._note.write_text(repr(now))
        if self._next == len(self._items):
            self._make()
            if not self._items:
                raise StopIteration
        first, end = self._next, min(self._next + self._batch_rows, len(self._items))
        if self._generator.rate is not None:
            end = bisect_right(self._times, (now - self._began) * 1e6, first, end)
        self._next = end
        return self._items[first:end]

    def next_awake(self) -> datetime | None:
        """When the next tuple is due; at once if it is not known, or nothing to wait for."""
        if self._generator.rate is None or self._began is None or self._next == len(self._items):
            return None
        return datetime.fromtimestamp(self._began + self._times[self._next] / 1e6, UTC)

    def snapshot(self) -> int:
        return self._first + self._next


class Notes(DynamicSink):
    """A sink that notes when each tuple was due and when its output came."""

    def __init__(self) -> None:
        self.arrivals: list[float] = []
        self.rows: list[int] = []
        self.times: list[int] = []

    def build(self, step_id: str, worker_index: int, worker_count: int) -> StatelessSinkPartition:
        """All workers of a process share the notes."""
        return _Noting(self)

    def save(self, path: Path) -> None:
        """For `Recording`."""
        arrivals, rows, times = (np.array(of) for of in (self.arrivals, self.rows, self.times))
        np.savez(path, arrivals=arrivals, rows=rows, times=times)


class _Noting(StatelessSinkPartition):
    def __init__(self, notes: Notes) -> None:
        self._notes = notes

    def write_batch(self, items: list[tuple[str, tuple[int, Any]]]) -> None:
        now = time.time()
        self._notes.times.extend([time_us for _, (time_us, _) in items])
        self._notes.arrivals.append(now)
        self._notes.rows.append(len(items))


State = tuple[int, int]
Mapper = Callable[[State | None, tuple[int, bytes]], tuple[State, tuple[int, State]]]


def mapper(kind: str, cost_s: float) -> Mapper:
    """The operator: a count and a sum per key, and the time that a tuple takes."""

    def count(state: State | None, row: tuple[int, bytes]) -> tuple[State, tuple[int, State]]:
        number, total = state or (0, 0)
        after = (number + 1, total + row[0])
        return after, (row[0], after)

    def burn(state: State | None, row: tuple[int, bytes]) -> tuple[State, tuple[int, State]]:
        until = time.thread_time() + cost_s
        made = count(state, row)
        while time.thread_time() < until:
            pass
        return made

    late_s = 0.0

    def sleep(state: State | None, row: tuple[int, bytes]) -> tuple[State, tuple[int, State]]:
        """To a deadline; by how much it overslept is taken off the next one, as in `Emulate`."""
        nonlocal late_s
        until = time.perf_counter() + cost_s - late_s
        made = count(state, row)
        left_s = until - time.perf_counter()
        late_s = 0.0
        if left_s > 0:
            time.sleep(left_s)
            late_s = max(0.0, time.perf_counter() - until)
        return made

    return {"count": count, "burn": burn, "sleep": sleep}[kind]


def main(spec: dict[str, Any], number: int) -> None:
    """Be one process, until the stream has ended."""
    # Whatever becomes of the process that started it: it does not outlast its time.
    faulthandler.dump_traceback_later(spec["limit_s"], exit=True)
    folder, work, setting = Path(spec["folder"]), spec["work"], spec["setting"]
    operator = mapper(work["kind"], work["cost_s"])
    flow = Dataflow("bench")
    tuples = PeerTuples(Generator(**work["tuples"]), setting["batch_rows"], folder / "began")
    notes = Notes()
    stream = op.input("tuples", flow, tuples)
    op.output("out", op.stateful_map("work", stream, operator), notes)
    recovery = None
    if setting["checkpoint"]:
        state = folder / f"state-{number}"  # each process has its own part of it
        state.mkdir()
        init_db_dir(state, 1)
        recovery = RecoveryConfig(state)
    cluster_main(
        flow,
        spec["addresses"],
        number,
        epoch_interval=timedelta(seconds=spec["epoch_s"] if setting["checkpoint"] else 10),
        recovery_config=recovery,
        worker_count_per_proc=setting["threads"],
    )
    notes.save(folder / f"sink-{number}.npz")


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), int(sys.argv[2]))
