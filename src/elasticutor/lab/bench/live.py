"""What benchmarks measure on: a local Spark, the facts of the machine, and runs taking turns."""

from __future__ import annotations

import os
import platform
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from elasticutor.core.executor.config import ExecutorConfig
from elasticutor.driver.cluster import BaseCluster
from elasticutor.driver.metrics import Moment
from elasticutor.driver.run import Run
from elasticutor.errors import ElasticutorError
from elasticutor.lab.bench.figures import Samples, percentiles
from elasticutor.operator import Operator
from elasticutor.process.hosting.directories import SHARED_MEMORY
from elasticutor.sinks import Sink
from elasticutor.sources import Source
from elasticutor.topology import Topology

Progress: TypeAlias = Callable[[str], None]
"""Takes what is done next, in words."""

MASTER = "local[2]"
"""One slot for the nodes, one for sources and sinks; the work is done in processes of our own."""

SOURCE, OPERATOR, SINK = "tuples", "work", "out"
"""What a benchmark's topology calls its parts."""

_GLANCE_S = 0.5
_REMOVAL_S = 10.0
_FOLDERS = "elasticutor-bench-"

Side = TypeVar("Side")
"""What takes turns."""


class BenchError(ElasticutorError, RuntimeError):
    """A benchmark that did not measure what it was to measure."""


class BadOptionError(ValueError):
    """An option that cannot be, or not together with the others."""

    def __init__(self, option: str, reason: str) -> None:
        super().__init__(reason)
        self.option = option


class InterruptedBenchError(KeyboardInterrupt):
    """An interruption that leaves something to print."""

    def __init__(self, found: Any, reason: str) -> None:
        super().__init__(reason)
        self.found = found


def silent(what: str) -> None:
    """Progress that is not shown."""


class Bench:
    """Where a benchmark runs: clusters to run on, progress, and the machine's facts.

    Args:
        progress: Shows what is done next.
        tick: Shows how far that has come; called many times a second.
        note: Shows what has to be known in the end.
    """

    def __init__(
        self, progress: Progress = silent, tick: Progress = silent, note: Progress = silent
    ) -> None:
        self.tick = tick
        self.note = note
        self.machine = Machine()
        self._progress = progress

    def say(self, what: str) -> None:
        """Show what is done next, and look how fast the machine is before it."""
        self._progress(what)
        self.machine.glance()

    @contextmanager
    def cluster(
        self, cores: int, nodes: int = 1, *, schedule_s: float = 0.0
    ) -> Iterator[BaseCluster]:
        """A cluster on a local Spark, as of `spark_cluster`."""
        self._progress("starting Spark")
        with spark_cluster(cores, nodes, schedule_s=schedule_s) as cluster:
            yield cluster
            self.tick("stopping")

    def runs(self, repeat: int, what: str) -> Iterator[int]:
        """Number the runs, and show each."""
        for number in range(repeat):
            self.say(f"{what}, run {number + 1} of {repeat}")
            yield number

    def turns(
        self, repeat: int, sides: Sequence[Side], what: str = "{side}, run"
    ) -> Iterator[tuple[int, Side]]:
        """Let sides take turns, round by round; in every other round in the opposite order.

        A slow minute of the machine hits all of them, and none always goes first.

        Example:
            >>> list(Bench().turns(2, ["a", "b"]))
            [(0, 'a'), (0, 'b'), (1, 'b'), (1, 'a')]
        """
        for number in range(repeat):
            for side in sides if number % 2 == 0 else tuple(reversed(sides)):
                self.say(f"{what.format(side=side)} {number + 1} of {repeat}")
                yield number, side


@contextmanager
def spark_cluster(
    cores: int,
    nodes: int = 1,
    *,
    schedule_s: float = 0.0,
    master: str = MASTER,
    name: str = "elasticutor bench",
) -> Iterator[BaseCluster]:
    """A cluster on a local Spark, both gone at the end.

    Spark's own messages are not shown, unless it does not start.

    Args:
        cores: Of each node.
        nodes: How many, emulated on this machine.
        schedule_s: How often the scheduler may change cores; 0: never.
        master: Spark's.
        name: Of the Spark application.

    Raises:
        BenchError: There is no pyspark.
    """
    try:
        from elasticutor.spark import Cluster
        from elasticutor.spark.session import local_session
    except ImportError as error:
        hint = "pip install 'elasticutor[spark]'"
        raise BenchError("pyspark", "be installed", str(error), hint) from error
    with _interruptible():
        with unheard():
            spark = local_session(master, name)
        _interrupt_as_usual()
        try:
            with Cluster(spark, nodes=nodes, cores=cores, schedule_s=schedule_s) as cluster:
                yield cluster
        finally:
            spark.stop()


def _interrupt_as_usual() -> None:
    """Let Ctrl-C raise `KeyboardInterrupt`, and nothing else.

    A SparkContext makes it cancel all Spark jobs first: that would kill the nodes under the run,
    before it can end in good order.
    """
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.default_int_handler)


@contextmanager
def _interruptible() -> Iterator[None]:
    """Put back at the end what Ctrl-C did before."""
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, before)


@contextmanager
def unheard() -> Iterator[None]:
    """Hold back what is written to standard error; it is written if something is raised.

    By file descriptor, since it is the JVM that writes: it keeps what it had when it was started.
    """
    sys.stderr.flush()
    with tempfile.TemporaryFile() as heard:
        kept = os.dup(2)
        os.dup2(heard.fileno(), 2)
        try:
            yield
        except BaseException:
            heard.seek(0)
            os.write(kept, heard.read())
            raise
        finally:
            os.dup2(kept, 2)
            os.close(kept)


@contextmanager
def notes() -> Iterator[Path]:
    """A folder for what a run's source and sink note, gone at the end."""
    with tempfile.TemporaryDirectory(prefix=_FOLDERS) as folder:
        yield Path(folder)


@contextmanager
def scratch(under: Path | None = None) -> Iterator[Path]:
    """A folder for checkpoints, gone at the end; to be made before the cluster that writes there.

    Args:
        under: Where; default: the directory for temporary files.
    """
    if under is not None:
        under.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="elasticutor-checkpoint-", dir=under))
    try:
        yield folder
    finally:
        _remove(folder)


def _remove(folder: Path) -> None:
    """Remove a folder in which a thread may still be folding files: it ends in a moment."""
    until = time.monotonic() + _REMOVAL_S
    while folder.exists() and time.monotonic() < until:
        shutil.rmtree(folder, ignore_errors=True)
        time.sleep(0.05)


@contextmanager
def shared_memory() -> Iterator[str]:
    """A directory where nodes have their stores too, if there is such a place."""
    there = SHARED_MEMORY if Path(SHARED_MEMORY).is_dir() else None
    with tempfile.TemporaryDirectory(prefix=_FOLDERS, dir=there) as place:
        yield place


def pipeline(
    name: str, source: Source, operator: Operator, sink: Sink, *, cores: int, **options: Any
) -> Topology:
    """A topology of one source, one operator by `key`, and one sink."""
    topology = Topology(name)
    stream = topology.source(SOURCE, source)
    worked = topology.operator(OPERATOR, operator, stream, key="key", cores=cores, **options)
    topology.sink(SINK, sink, worked)
    return topology


def chunks_of(seconds: float) -> ExecutorConfig:
    """Settings for chunks of so much work: two of them ahead, and credit for ten.

    Example:
        >>> chunks_of(0.02).window_s
        0.04
    """
    return ExecutorConfig(chunk_s=seconds, window_s=2 * seconds, credit_s=10 * seconds)


def watch(run: Run, seconds: float) -> float:
    """Let a run go on for so long; returns how far its sources were behind at worst.

    Raises:
        Exception: Whatever made the run fail meanwhile.
        BenchError: It ended.
    """
    until, behind_s = time.monotonic() + seconds, 0.0
    while (left_s := until - time.monotonic()) > 0:
        try:
            run.wait(min(left_s, _GLANCE_S))
        except TimeoutError:
            behind_s = max(behind_s, run.metrics().behind_s)
        else:
            raise BenchError("run", f"last for {seconds:g} s", f"it is {run.phase}")
    return behind_s


def rate_between(timeline: Sequence[Moment], start: float, end: float) -> float:
    """Rows per second that sinks took in the intervals that lie between two times.

    Example:
        >>> moments = [Moment(11.0, 1.0, 5, 1, 1), Moment(12.0, 1.0, 7, 1, 1)]
        >>> rate_between(moments, 10.5, 12.0)
        7.0
    """
    inside = [m for m in timeline if m.time - m.seconds >= start and m.time <= end]
    seconds = sum(moment.seconds for moment in inside)
    if not seconds:
        raise BenchError("measurements", "lie in the time measured", 0, "measure for longer")
    return sum(moment.rows for moment in inside) / seconds


class Machine:
    """Facts about the machine, and how fast it was meanwhile: asked between the measurements."""

    def __init__(self) -> None:
        self._reference_us: Samples = []

    def glance(self) -> None:
        """Time the reference loop: a fixed bit of pure Python."""
        started = time.perf_counter()
        for _ in range(100):
            sum(range(1000))
        self._reference_us.append((time.perf_counter() - started) * 1e4)

    def as_dict(self) -> dict[str, Any]:
        """What the reference loop took, and the machine's facts, for `--json`."""
        if not self._reference_us:
            self.glance()
        return {
            **percentiles("reference_us", self._reference_us),
            "machine": {
                "cores": os.cpu_count(),
                "system": platform.system(),
                "python": platform.python_version(),
                "pyarrow": version("pyarrow"),
                "pyspark": _version_of("pyspark"),
            },
        }


def _version_of(package: str) -> str | None:
    try:
        return version(package)
    except ImportError:
        return None
