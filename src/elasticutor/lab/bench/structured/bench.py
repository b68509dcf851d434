"""`elasticutor bench structured`: `elastic()` beside Spark's own APIs for state per key.

The same rows, from the same files, on the same session: local, with as many partitions after an
exchange as the elastic operator has cores. Queries run in turn, one at a time, round by round; in
every other round in the opposite order. The cluster of the elastic executors is there only while
an elastic query runs. What counts is the time of whole batches, from the trigger to the commit, as
the query's own progress tells it; the first batch, which starts processes and compiles plans, does
not count.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar

from elasticutor.errors import BadValueError
from elasticutor.lab.bench.live import (
    BenchError,
    Machine,
    Progress,
    silent,
    unheard,
)
from elasticutor.lab.bench.structured.data import FILES, Files, write_files
from elasticutor.lab.bench.structured.figures import (
    ELASTIC,
    PASSTHROUGH,
    RIVALS,
    VECTORISED,
    Compared,
    Ran,
    Runs,
    Small,
    TimedBatch,
    Uniform,
)
from elasticutor.lab.bench.structured.work import Burning, Count, CountAndWork, CountBatches
from elasticutor.operator import Operator
from elasticutor.sources import Generator

COUNTED = (PASSTHROUGH, *RIVALS, ELASTIC, VECTORISED)
"""What counts are compared of."""

SKEWED = (*RIVALS, ELASTIC)
"""What is compared where rows are dear: with the operator that works record by record."""

_PACKAGES = {"pyspark": "pyspark", "pandas": "pandas", "google.protobuf": "protobuf"}
_GLANCE_S = 0.25
_WARM_UP_ROWS = 10_000
_DEAR_WARM_UP_ROWS = 1_000


@dataclass(frozen=True, slots=True)
class StructuredSetting:
    """What is run."""

    rows: int = 1_000_000
    """Of the counts: at most, since a slow query is ended after `seconds`."""
    batch_rows: int = 100_000
    keys: int = 10_000
    zipf: float = 0.5
    payload: int = 0
    """Bytes that are carried along in every row, and that nobody looks at."""
    seconds: float = 20.0
    """How long a query may count before it is ended."""
    small_batch_rows: int = 100
    """Of batches that show what a batch costs whatever is in it."""
    small_batches: int = 40
    exchange: bool = False
    """Whether an exchange follows the elastic operator."""
    dear_rows: int = 80_000
    """Of those that take CPU time; every query sees all of them."""
    dear_batch_rows: tuple[int, ...] = (10_000, 40_000)
    dear_zipf: float = 1.0
    cost_s: float = 0.001
    """CPU time that each of them takes."""
    shuffle_s: float = 10.0
    """The keys' frequencies are dealt out anew after so many seconds' work for all cores."""
    answers: Literal["row", "key"] = "row"
    """Whether Spark's own APIs answer each row, as the elastic operator does, or each key once per
    batch, which is less."""
    cores: int = 2
    """Of the elastic operator; partitions of the others."""
    slots: int = 4
    """Of the session."""
    repeat: int = 1
    """Rounds."""
    pairs: int = 10
    """With balancing and without, for keys that are all alike."""
    seed: int = 1

    def __post_init__(self) -> None:
        counts = ("rows", "batch_rows", "keys", "dear_rows", "cores", "repeat", "pairs")
        for name in (*counts, "small_batch_rows", "small_batches"):
            if getattr(self, name) < 1:
                raise BadValueError(name, "be at least 1", getattr(self, name))
        if not self.dear_batch_rows:
            raise BadValueError("dear_batch_rows", "have a number of rows at least", "none")
        if self.slots < 2:
            hint = "the nodes of the elastic executors take one, the query's tasks the others"
            raise BadValueError("slots", "be at least 2", self.slots, hint)

    @property
    def shuffle_rows(self) -> int:
        """Rows between two shuffles of the keys."""
        return max(1, round(self.shuffle_s * self.cores / self.cost_s))

    def as_dict(self) -> dict[str, Any]:
        """What all parts share, for `--json`."""
        return {
            "keys": self.keys,
            "tasks": self.cores,
            "slots": self.slots,
            "rounds": self.repeat,
            "answers": self.answers,
            "exchange": self.exchange,
            "sink": "noop",
            "state_store": "RocksDB",
        }


class MeasuredStage(Protocol):
    """Where queries run."""

    def cluster(self) -> AbstractContextManager[Any]:
        """A cluster for elastic operators, gone at the end."""

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
            most_s: End it after so long, but not before a batch has counted.
            balance: Whether an elastic one may move shards.
        """


@dataclass(frozen=True, slots=True)
class StructuredBench:
    """What was measured; None: what was not asked for."""

    setting: StructuredSetting
    count: Compared | None
    small: Small | None
    """With the counts."""
    skewed: tuple[Compared, ...] | None
    """By size of the batches."""
    uniform: Uniform | None
    machine: Machine

    def as_dict(self) -> dict[str, Any]:
        """Everything, for `--json`."""
        setting = self.setting
        found: dict[str, Any] = {}
        if self.count is not None:
            more = {"keys": setting.keys, "zipf": setting.zipf, "payload": setting.payload}
            found["count"] = {**self.count.as_dict(), **more}
        if self.small is not None:
            found["small"] = self.small.as_dict()
        if self.skewed is not None:
            # The smallest batches' figures on top, and all of them by their size.
            found["skewed"] = {
                **self.skewed[0].as_dict(),
                "by_batch_rows": {str(one.batch_rows): one.as_dict() for one in self.skewed},
                "cost_ms": setting.cost_s * 1e3,
                "zipf": setting.dear_zipf,
                "shuffle_rows": setting.shuffle_rows,
                "ideal_rows_s": round(setting.cores / setting.cost_s),
            }
        if self.uniform is not None:
            found.update(self.uniform.as_dict())
        return {**found, **setting.as_dict(), **self.machine.as_dict()}


def bench_structured(
    stage: MeasuredStage,
    folder: Path,
    setting: StructuredSetting,
    *,
    count: bool = True,
    skewed: bool = True,
    uniform: bool = True,
    progress: Progress = silent,
) -> StructuredBench:
    """Measure some or all of it.

    Args:
        stage: Where queries run.
        folder: For the files.
        setting: What is run.
        count: Counts per key.
        skewed: Rows that take CPU time, and keys whose frequencies change.
        uniform: What balancing costs where there is nothing to balance.
        progress: Told about each run.
    """
    machine = Machine()
    machine.glance()
    counted = few = dear = still = None
    if count:
        counted = _count(stage, folder, setting, machine, progress)
        few = _small(stage, folder, setting, machine, progress)
    if skewed:
        dear = tuple(
            _skewed(stage, folder, setting, rows, machine, progress)
            for rows in sorted(setting.dear_batch_rows)
        )
    if uniform:
        still = _uniform(stage, folder, setting, machine, progress)
    return StructuredBench(setting, counted, few, dear, still, machine)


def _count(
    stage: MeasuredStage,
    folder: Path,
    setting: StructuredSetting,
    machine: Machine,
    progress: Progress,
) -> Compared:
    progress(f"writing {setting.rows:,} rows")
    files = _cheap_files(folder / "count", setting, setting.zipf)
    operators: dict[str, Operator] = {ELASTIC: Count(), VECTORISED: CountBatches()}

    def run(name: str, cluster: Any) -> Ran:
        return stage.run(name, files, operators.get(name), cluster=cluster, most_s=setting.seconds)

    progress("count: once for the JVM to warm up")
    stage.run(PASSTHROUGH, files, most_s=setting.seconds)
    runs = _rounds(stage, COUNTED, setting.repeat, run, "count", machine, progress)
    return Compared(runs, files.batch_rows)


def _small(
    stage: MeasuredStage,
    folder: Path,
    setting: StructuredSetting,
    machine: Machine,
    progress: Progress,
) -> Small:
    rows = setting.small_batch_rows
    files = write_files(
        folder / "small",
        Generator(keys=setting.keys, zipf=setting.zipf, payload=0, seed=setting.seed),
        rows=rows * setting.small_batches,
        batch_rows=rows,
        warm_up_rows=rows,
    )

    def run(name: str, cluster: Any) -> Ran:
        operator = Count() if name == ELASTIC else None
        return stage.run(name, files, operator, cluster=cluster, most_s=setting.seconds)

    names, what = (PASSTHROUGH, ELASTIC), f"batches of {files.batch_rows}"
    runs = _rounds(stage, names, setting.repeat, run, what, machine, progress)
    return Small(runs[ELASTIC], runs[PASSTHROUGH], files.batch_rows)


def _skewed(
    stage: MeasuredStage,
    folder: Path,
    setting: StructuredSetting,
    batch_rows: int,
    machine: Machine,
    progress: Progress,
) -> Compared:
    generator = Generator(
        keys=setting.keys,
        zipf=setting.dear_zipf,
        payload=0,
        shuffle_rows=setting.shuffle_rows,
        seed=setting.seed,
    )
    files = write_files(
        folder / f"skewed-{batch_rows}",
        generator,
        rows=setting.dear_rows,
        batch_rows=batch_rows,
        warm_up_rows=min(_DEAR_WARM_UP_ROWS, batch_rows),
    )
    work = Burning(setting.cost_s)

    def run(name: str, cluster: Any) -> Ran:
        return stage.run(
            name, files, CountAndWork(work) if name == ELASTIC else work, cluster=cluster
        )

    what = f"skewed, batches of {batch_rows:,}"
    runs = _rounds(stage, SKEWED, setting.repeat, run, what, machine, progress)
    return Compared(runs, files.batch_rows)


def _uniform(
    stage: MeasuredStage,
    folder: Path,
    setting: StructuredSetting,
    machine: Machine,
    progress: Progress,
) -> Uniform:
    files = _cheap_files(folder / "uniform", setting, 0.0)
    pairs = []
    with stage.cluster() as cluster:
        progress("uniform: once for the JVM to warm up")
        stage.run(ELASTIC, files, Count(), cluster=cluster, most_s=setting.seconds)
        for number in range(setting.pairs):
            progress(f"uniform, pair {number + 1} of {setting.pairs}")
            machine.glance()
            ran = {
                balance: stage.run(
                    ELASTIC,
                    files,
                    Count(),
                    cluster=cluster,
                    most_s=setting.seconds,
                    balance=balance,
                )
                for balance in ((True, False) if number % 2 == 0 else (False, True))
            }
            pairs.append((ran[True], ran[False]))
    return Uniform(tuple(pairs), files.batch_rows)


def _cheap_files(folder: Path, setting: StructuredSetting, zipf: float) -> Files:
    generator = Generator(keys=setting.keys, zipf=zipf, payload=setting.payload, seed=setting.seed)
    return write_files(
        folder,
        generator,
        rows=setting.rows,
        batch_rows=setting.batch_rows,
        warm_up_rows=min(_WARM_UP_ROWS, setting.batch_rows),
    )


def _rounds(
    stage: MeasuredStage,
    names: Sequence[str],
    repeat: int,
    run: Callable[[str, Any], Ran],
    what: str,
    machine: Machine,
    progress: Progress,
) -> dict[str, Runs]:
    """Each query once per round; elastic ones with a cluster that is there for them alone."""
    ran: dict[str, list[Ran]] = {name: [] for name in names}
    for number in range(repeat):
        for name in names if number % 2 == 0 else tuple(reversed(names)):
            progress(f"{what}: {name}" + (f", round {number + 1} of {repeat}" * (repeat > 1)))
            machine.glance()
            if name in (ELASTIC, VECTORISED):
                with stage.cluster() as cluster:
                    ran[name].append(run(name, cluster))
            else:
                ran[name].append(run(name, None))
    return {name: Runs(tuple(runs)) for name, runs in ran.items()}


# On Spark -----------------------------------------------------------------------------------------


def require_packages() -> None:
    """See that everything is there that Spark's own APIs need.

    Raises:
        BenchError: Something is not; says how to install it.
    """
    for module, package in _PACKAGES.items():
        if not _is_there(module):
            hint = f"pip install {package}"
            if package == "pyspark":
                hint = "pip install 'elasticutor[spark]'"
            elif package == "pandas":
                hint = "pip install 'pandas<3'"
            raise BenchError(package, "be installed", f"no module {module}", hint)


def _is_there(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # not even the package around it
        return False


@contextmanager
def spark_stage(setting: StructuredSetting, folder: Path) -> Iterator[MeasuredStage]:
    """A local Spark, gone at the end; Spark's own messages are not shown, unless it fails to start.

    Args:
        setting: What is to be run.
        folder: For the queries' checkpoints.

    Raises:
        BenchError: A package is missing.
    """
    require_packages()
    from elasticutor.lab.spark.rivals import rivals_session

    made: list[Any] = []
    try:
        with unheard():
            _aside(lambda _: made.append(rivals_session(f"local[{setting.slots}]", setting.cores)))
        yield _SparkStage(made[0], setting, folder)
    finally:
        _aside(lambda _: [spark.stop() for spark in made])


class _SparkStage:
    def __init__(self, spark: Any, setting: StructuredSetting, folder: Path) -> None:
        self._spark = spark
        self._setting = setting
        self._folder = folder
        self._runs = 0

    def cluster(self) -> AbstractContextManager[Any]:
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
        self._runs += 1
        checkpoint = self._folder / f"checkpoint-{self._runs}"
        done = _aside(
            lambda ended: self._batches(
                name, files, operator, cluster, balance, checkpoint, most_s, ended
            )
        )
        _require_batches(name, files, [rows for rows, _ in done], ended_early=most_s < math.inf)
        return Ran(tuple(TimedBatch(rows, ms) for rows, ms in done[1:]))

    def _batches(
        self,
        name: str,
        files: Files,
        operator: Operator | Burning | None,
        cluster: Any,
        balance: bool,
        checkpoint: Path,
        most_s: float,
        ended: threading.Event,
    ) -> list[tuple[int, float]]:
        from elasticutor.lab.spark import rivals

        frame = rivals.file_stream(self._spark, files.folder, files.schema, FILES)
        mode = "append"
        if name == PASSTHROUGH:
            query = rivals.passthrough(frame)
        elif isinstance(operator, Operator):
            query = rivals.elastic_frame(
                frame, operator, cluster=cluster, balance=balance, exchange=self._setting.exchange
            )
        else:
            query = rivals.RIVALS[name](frame, operator, each=self._setting.answers == "row")
            mode = "update"
        return rivals.run_to_nowhere(query, checkpoint, mode=mode, most_s=most_s, ended=ended)


Found = TypeVar("Found")
"""What comes of a call."""


def _aside(call: Callable[[threading.Event], Found]) -> Found:
    """Call in a thread of its own, and wait for it; an interruption tells it to end, and waits.

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
