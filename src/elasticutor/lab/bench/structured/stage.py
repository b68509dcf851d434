"""Where the queries of `bench structured` run: a local Spark, one query at a time.

They all read the same Parquet files in the same order, a few at a time: one micro-batch each. The
first batch is small: it is there to start processes and to compile plans, and is not counted.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from elasticutor.errors import BadValueError
from elasticutor.lab.bench.live import Bench, BenchError, unheard
from elasticutor.lab.bench.structured.figures import PASSTHROUGH, Ran
from elasticutor.lab.bench.work import Burning
from elasticutor.operator import Operator
from elasticutor.sources import Generator

if TYPE_CHECKING:
    from elasticutor.lab.bench.structured.bench import StructuredBench

FILES = 2
"""Files of each batch: Spark makes one task of each. Rows are dealt to them in turn."""

_PACKAGES = {
    "pyspark": ("pyspark", "'elasticutor[spark]'"),
    "pandas": ("pandas", "'pandas<3'"),
    "google.protobuf": ("protobuf", "protobuf"),
}
"""By module: the package that has it, and what to install."""
_GLANCE_S = 0.25


@dataclass(frozen=True, slots=True)
class Files:
    """A stream in a folder."""

    folder: Path
    schema: str
    """Of the rows, as DDL."""
    batch_rows: int
    warm_up_rows: int
    """Of the first batch, which is not counted."""
    batches: int
    """Those that are counted."""

    @property
    def rows(self) -> int:
        """Those that are counted."""
        return self.batches * self.batch_rows


def write_files(
    folder: Path, generator: Generator, rows: int, batch_rows: int, warm_up_rows: int
) -> Files:
    """Write a stream's tuples into a new folder: as many of the rows as fill batches."""
    for name, number in (("rows of a batch", batch_rows), ("rows to warm up with", warm_up_rows)):
        if number < FILES:
            raise BadValueError(name, f"be at least {FILES}, one for each file", number)
    batches = rows // batch_rows
    if not batches:
        hint = "give more rows, or smaller batches"
        raise BadValueError("rows", f"fill a batch of {batch_rows:,}", rows, hint)
    folder.mkdir(parents=True)
    sizes = [warm_up_rows // FILES, *[batch_rows // FILES] * batches]
    # A file stream reads files by their age.
    age = int(time.time()) - FILES * len(sizes)
    start = 0
    for batch, size in enumerate(sizes):
        for number in range(FILES):
            drawn = generator.table(number, FILES, start, start + size)
            path = folder / f"{batch:05d}-{number}.parquet"
            pq.write_table(_as_spark_has_it(drawn), path)
            age += 1
            os.utime(path, (age, age))
        start += size
    schema = "key bigint, time bigint" + (", payload binary" if generator.payload else "")
    return Files(folder, schema, sizes[1] * FILES, sizes[0] * FILES, batches)


def _as_spark_has_it(batch: pa.RecordBatch) -> pa.Table:
    """The same with a payload of any length: Spark has no other."""
    table = pa.Table.from_batches([batch])
    if "payload" not in table.column_names:
        return table
    place = table.column_names.index("payload")
    return table.cast(table.schema.set(place, pa.field("payload", pa.binary())))


def require_packages() -> None:
    """See that everything is there that Spark's own APIs need."""
    for module, (package, wanted) in _PACKAGES.items():
        if not _is_there(module):
            hint = f"pip install {wanted}"
            raise BenchError(package, "be installed", f"no module {module}", hint)


def _is_there(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # not even the package around it
        return False


@contextmanager
def spark_stage(setting: StructuredBench, folder: Path, bench: Bench) -> Iterator[SparkStage]:
    """A local Spark, gone at the end; Spark's own messages are not shown, unless it fails to start.

    The folder is for the rows and for the queries' checkpoints.
    """
    require_packages()
    from elasticutor.lab.spark.rivals import rivals_session

    made: list[Any] = []
    try:
        with unheard():
            _aside(lambda _: made.append(rivals_session(f"local[{setting.slots}]", setting.cores)))
        yield SparkStage(made[0], setting, folder, bench)
    finally:
        _aside(lambda _: [spark.stop() for spark in made])


class SparkStage:
    """Where queries run, where files go, and what shows it."""

    def __init__(self, spark: Any, setting: StructuredBench, folder: Path, bench: Bench) -> None:
        self.folder = folder
        self.bench = bench
        self._spark = spark
        self._setting = setting
        self._runs = 0

    def cluster(self) -> AbstractContextManager[Any]:
        """A cluster for elastic operators, gone at the end."""
        from elasticutor.spark import Cluster

        return Cluster(self._spark, nodes=1, cores=self._setting.cores)

    def run(
        self,
        name: str,
        files: Files,
        operator: Operator | Burning | None = None,
        *,
        cluster: Any = None,
        most_s: float = math.inf,
        balance: bool = True,
    ) -> Ran:
        """Run a query over all files, or until the time is over.

        Args:
            name: Of the query; an elastic one's begins with `elastic`.
            files: What it reads.
            operator: Of an elastic one; of a rival, what work a row takes.
            cluster: For an elastic one.
            most_s: End it after this many seconds, but not before a batch has counted.
            balance: Whether an elastic one may move shards.
        """
        from elasticutor.lab.spark import rivals

        self._runs += 1
        checkpoint = self.folder / f"checkpoint-{self._runs}"
        setting = self._setting

        def batches(ended: threading.Event) -> list[tuple[int, float]]:
            frame = rivals.file_stream(self._spark, files.folder, files.schema, FILES)
            mode = "append"
            if name == PASSTHROUGH:
                query = rivals.passthrough(frame)
            elif isinstance(operator, Operator):
                query = rivals.elastic_frame(
                    frame, operator, cluster=cluster, balance=balance, exchange=setting.exchange
                )
            else:
                query = rivals.RIVALS[name](frame, operator, each=setting.answers == "row")
                mode = "update"
            return rivals.run_to_nowhere(query, checkpoint, mode=mode, most_s=most_s, ended=ended)

        done = _aside(batches)
        _require_batches(name, files, [rows for rows, _ in done], ended_early=most_s < math.inf)
        return Ran(tuple(done[1:]))


Found = TypeVar("Found")


def _aside(call: Callable[[threading.Event], Found]) -> Found:
    """Call in a thread of its own, and wait for it; an interruption asks it to end, and waits.

    An interruption in the midst of a call to the JVM would cut the connection to it for good. And a
    SparkContext that is not made in the main thread leaves alone what an interruption does.
    """
    ended = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        calling = pool.submit(call, ended)
        try:
            while not calling.done():
                wait([calling], timeout=_GLANCE_S)
        finally:
            ended.set()
    return calling.result()


def _require_batches(
    name: str, files: Files, rows: Sequence[int], *, ended_early: bool = False
) -> None:
    """Refuse to compare what did not read the batches that were written."""
    wanted = [files.warm_up_rows, *[files.batch_rows] * files.batches]
    if ended_early:
        wanted = wanted[: len(rows)]
    if list(rows) != wanted:
        raise BenchError(f"batches of {name}", f"have {wanted} rows", rows)
