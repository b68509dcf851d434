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
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from elasticutor.core.executor.config import ExecutorConfig
from elasticutor.driver.cluster import BaseCluster
from elasticutor.driver.metrics import Moment, RunMetrics
from elasticutor.driver.run import Run
from elasticutor.errors import ElasticutorError
from elasticutor.lab.bench.declare import Samples, percentiles
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


class BenchError(ElasticutorError, RuntimeError):
    """A benchmark that did not measure what it was to measure."""


class InterruptedBenchError(KeyboardInterrupt):
    """An interruption that leaves something to print."""

    def __init__(self, found: Any, reason: str) -> None:
        super().__init__(reason)
        self.found = found


def silent(what: str) -> None:
    """Progress that is not shown."""


class Bench:
    """Where a benchmark runs: clusters to run on, progress, and the machine's facts."""

    def __init__(
        self, progress: Progress = silent, tick: Progress = silent, note: Progress = silent
    ) -> None:
        self.tick = tick
        """Shows how far something has come; called many times a second."""
        self.note = note
        """Shows what has to be known in the end."""
        self.machine = Machine()
        self._progress = progress

    def say(self, what: str) -> None:
        """Show what is done next, and look how fast the machine is before it."""
        self._progress(what)
        self.machine.glance()

    @contextmanager
    def cluster(self, cores: int, nodes: int = 1, schedule_s: float = 0.0) -> Iterator[BaseCluster]:
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
    """A cluster of emulated nodes on a local Spark, both gone at the end.

    Spark's own messages are not shown, unless it does not start. With `schedule_s` 0 no scheduler
    changes cores.
    """
    try:
        from elasticutor.spark import Cluster
        from elasticutor.spark.session import local_session
    except ImportError as error:
        hint = "pip install 'elasticutor[spark]'"
        raise BenchError("pyspark", "be installed", str(error), hint) from error
    with ExitStack() as stack:
        stack.callback(_on_interrupt, signal.getsignal(signal.SIGINT))
        with unheard():
            spark = local_session(master, name)
        stack.callback(spark.stop)
        # A SparkContext makes Ctrl-C cancel all Spark jobs first: that would kill the nodes under
        # the run, before it can end in good order.
        _on_interrupt(signal.default_int_handler)
        yield stack.enter_context(Cluster(spark, nodes=nodes, cores=cores, schedule_s=schedule_s))


def _on_interrupt(handler: Any) -> None:
    """Let Ctrl-C do this; only the main thread can say so."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, handler)


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
    """A folder for checkpoints, gone at the end: after the cluster that writes there."""
    if under is not None:
        under.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="elasticutor-checkpoint-", dir=under))
    try:
        yield folder
    finally:
        # A thread may still be folding files in it: it ends in a moment.
        until = time.monotonic() + _REMOVAL_S
        while folder.exists() and time.monotonic() < until:
            shutil.rmtree(folder, ignore_errors=True)
            time.sleep(0.05)


def shared_memory() -> AbstractContextManager[str]:
    """A directory where nodes have their stores too, if there is such a place; gone at the end."""
    there = SHARED_MEMORY if Path(SHARED_MEMORY).is_dir() else None
    return tempfile.TemporaryDirectory(prefix=_FOLDERS, dir=there)


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
    """Settings for chunks of this length: two of them ahead, and credit for ten."""
    return ExecutorConfig(chunk_s=seconds, window_s=2 * seconds, credit_s=10 * seconds)


def roles(cluster: BaseCluster, run: Run) -> dict[int, str]:
    """What each process of a `pipeline` is, by process id: task, main, source, sink or node."""
    participants = run.supervisor.pids
    return {
        **{seen.pid: "task" for seen in run.tasks(OPERATOR, 0).values()},
        participants[f"{OPERATOR}.0"]: "main",
        participants[f"{SOURCE}.0"]: "source",
        participants[SINK]: "sink",
        **{node.pid: "node" for node in cluster.hub.nodes.values()},
    }


def watch(run: Run, seconds: float) -> float:
    """Let a run go on for a while; returns how far its sources were behind at worst.

    Raises what makes the run fail meanwhile, and a `BenchError` if it ends.
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
    """Rows per second that sinks took in the intervals that lie between two times."""
    inside = [m for m in timeline if m.time - m.seconds >= start and m.time <= end]
    seconds = sum(moment.seconds for moment in inside)
    if not seconds:
        raise BenchError("measurements", "lie in the time measured", 0, "measure for longer")
    return sum(moment.rows for moment in inside) / seconds


@dataclass(frozen=True, slots=True)
class RunWindow:
    """What a run did between two times, in seconds since 1970."""

    started: float
    ended: float
    rows_s: float
    behind_s: float
    """How far its sources were behind at worst."""
    metrics: RunMetrics


def measured(run: Run, warm_up_s: float, seconds: float) -> RunWindow:
    """Let a run warm up, then measure it."""
    watch(run, warm_up_s)
    run.reset_metrics()
    started = time.time()
    behind_s = watch(run, seconds)
    metrics, ended = run.metrics(), time.time()
    rows_s = rate_between(run.timeline(), started, ended)
    return RunWindow(started, ended, rows_s, behind_s, metrics)


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
                "pyspark": version_of("pyspark"),
            },
        }


def version_of(package: str) -> str | None:
    """Which version of a package is installed, if one is."""
    try:
        return version(package)
    except ImportError:
        return None
