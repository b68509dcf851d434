"""What the tests of `elastic` share: an operator with a known result, and streams of files."""

from __future__ import annotations

import itertools
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import cloudpickle
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from elasticutor import Operator, elastic
from elasticutor.state.inspection.reading import StateReader

# The processes of a cluster cannot import this module, so its operators travel as code.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

ROW = 10**9
"""In the state of `Tally` a row counts so much, and its id on top of that."""
KEYS = 5
WAIT_S = 120

Rows = list[tuple[int, int]]
"""Each an id and a key."""


class Tally(Operator):
    """How many rows each key has had, and which: what is lost or doubled shows."""

    output: ClassVar[Any] = "k bigint, n bigint, id bigint"

    def process(self, key: Any, row: Any, state: Any) -> Iterator[Any]:
        seen = state.get(0) + ROW + row.id
        state.set(seen)
        yield key, seen // ROW, row.id


class Patient(Tally):
    """A `Tally` that says that it has begun, and goes on when it may."""

    def __init__(self, folder: Path) -> None:
        self._begun, self._may = str(folder / "begun"), str(folder / "may go on")

    def process(self, key: Any, row: Any, state: Any) -> Iterator[Any]:
        Path(self._begun).touch()
        while not Path(self._may).exists():
            time.sleep(0.01)
        return super().process(key, row, state)

    def has_begun(self) -> bool:
        return Path(self._begun).exists()

    def go_on(self) -> None:
        Path(self._may).touch()


def lose_shuffle_files() -> int:
    """Remove all of the shared session, as a lost disk would; says how many there were."""
    lost = list(Path(os.environ["SPARK_LOCAL_DIRS"]).rglob("shuffle_*"))
    for path in lost:
        path.unlink(missing_ok=True)
    return len(lost)


def folded(rows: Iterable[tuple[int, int]]) -> dict[int, int]:
    """The state that `Tally` has to come to."""
    state: Counter[int] = Counter()
    for number, key in rows:
        state[key] += ROW + number
    return dict(state)


def require_tally(made: Iterable[Any], given: Rows, times: int = 1) -> None:
    """Outputs are those of a fold over what was given, each so many times."""
    made = list(made)
    counts = Counter(key for _, key in given)
    steps = {(key, n): times for key, count in counts.items() for n in range(1, count + 1)}
    assert Counter((row["k"], row["n"]) for row in made) == steps
    assert Counter((row["id"], row["k"]) for row in made) == dict.fromkeys(given, times)


@dataclass
class Files:
    """A stream of files, and a query that reads it."""

    spark: SparkSession
    folder: Path
    given: Rows = field(default_factory=list)
    _numbers: Iterator[int] = field(default_factory=itertools.count)
    _files: Iterator[int] = field(default_factory=itertools.count)

    def give(self, *sizes: int, keys: int = KEYS) -> Rows:
        """Write files of so many rows each; none of them twice."""
        folder = self.folder / "in"
        folder.mkdir(parents=True, exist_ok=True)
        new: Rows = []
        for size in sizes:
            rows = [(number, number % keys) for number in itertools.islice(self._numbers, size)]
            ids, ks = ([row[i] for row in rows] for i in range(2))
            table = pa.table({"id": pa.array(ids, pa.int64()), "k": pa.array(ks, pa.int64())})
            pq.write_table(table, folder / f"{next(self._files):05}.parquet")
            new += rows
        self.given += new
        return new

    def stream(self, at_once: int = 100) -> DataFrame:
        """The rows of so many files in each batch."""
        reader = self.spark.readStream.schema("id bigint, k bigint")
        return reader.option("maxFilesPerTrigger", at_once).parquet(str(self.folder / "in"))

    def tally(self, at_once: int = 100, **options: Any) -> DataFrame:
        return elastic(self.stream(at_once), Tally(), **{"key": "k", **options})

    @property
    def checkpoint(self) -> Path:
        return self.folder / "checkpoint"

    def start(self, frame: DataFrame, into: str = "out", **trigger: Any) -> StreamingQuery:
        """Into parquet files; by default until there is nothing more to read."""
        writer = frame.writeStream.format("parquet").trigger(**(trigger or {"availableNow": True}))
        return writer.option("checkpointLocation", str(self.checkpoint)).start(
            str(self.folder / into)
        )

    def run(self, frame: DataFrame, into: str = "out", **trigger: Any) -> StreamingQuery:
        return ended(self.start(frame, into, **trigger))

    def each(self, frame: DataFrame, what: Any) -> StreamingQuery:
        """Into a function, until there is nothing more to read."""
        writer = frame.writeStream.foreachBatch(what).trigger(availableNow=True)
        return ended(writer.option("checkpointLocation", str(self.checkpoint)).start())

    def out(self, into: str = "out") -> list[Any]:
        """What was written; of a query, what it has committed."""
        folder = self.folder / into
        log = folder / "_spark_metadata"
        paths = sorted(folder.glob("*.parquet"))
        if log.exists():  # Spark itself reads it only if it begins with batch 0
            said = [line for batch in log.glob("[0-9]*") for line in _lines(batch)]
            paths = sorted({folder / Path(json.loads(line)["path"]).name for line in said})
        return [row for path in paths for row in pq.read_table(path).to_pylist()]

    def state(self, name: str = "Tally", where: Path | None = None) -> dict[int, int]:
        """What is durable of it, as of the newest epoch."""
        return state_at(where or self.checkpoint / "elasticutor" / name, name)

    def require_state(self, name: str = "Tally", where: Path | None = None) -> None:
        assert self.state(name, where) == folded(self.given)


def _lines(batch: Path) -> list[str]:
    return batch.read_text(encoding="utf-8").splitlines()[1:]  # the first is a version


def state_at(where: Path, operator: str) -> dict[int, int]:
    shown = StateReader(where).show(operator, limit=1_000)
    assert not shown.more
    return {entry.key: entry.value for entry in shown.entries}


def ended(query: StreamingQuery, timeout_s: int = WAIT_S) -> StreamingQuery:
    """Wait for its end; raises what has ended it."""
    try:
        assert query.awaitTermination(timeout_s), f"{query.status}"
    finally:
        query.stop()
    return query
