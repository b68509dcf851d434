"""What live benchmarks share: a cluster on a local Spark, facts about the machine, and patience."""

from __future__ import annotations

import os
import platform
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeAlias

from elasticutor.driver.cluster import BaseCluster
from elasticutor.driver.metrics import Moment
from elasticutor.driver.run import Run
from elasticutor.errors import ElasticutorError
from elasticutor.lab.bench.figures import Spread

Progress: TypeAlias = Callable[[str], None]
"""Told what is being done, before it is."""

MASTER = "local[2]"
"""One slot for the nodes, one for sources and sinks; the work is done in processes of our own."""

_GLANCE_S = 0.5


class BenchError(ElasticutorError, RuntimeError):
    """A benchmark that did not measure what it was to measure."""


def silent(what: str) -> None:
    """Progress that nobody looks at."""


@contextmanager
def spark_cluster(cores: int, nodes: int = 1, *, schedule_s: float = 0.0) -> Iterator[BaseCluster]:
    """A cluster on a local Spark, both gone at the end.

    Spark's own messages are not shown, unless it does not start.

    Args:
        cores: Of each node.
        nodes: How many, emulated on this machine.
        schedule_s: How often the scheduler may change cores; 0: never.

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
            spark = local_session(MASTER, "elasticutor bench")
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
    """Keep to ourselves what is written to standard error; told after all if something is raised.

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
    with tempfile.TemporaryDirectory(prefix="elasticutor-bench-") as folder:
        yield Path(folder)


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


def spread_as_dict(name: str, spread: Spread) -> dict[str, float]:
    """A spread under three names, for `--json`.

    Example:
        >>> spread_as_dict("p50_ms", Spread(2.0, 1.0, 3.0))
        {'p50_ms': 2.0, 'p50_ms_p10': 1.0, 'p50_ms_p90': 3.0}
    """
    return {name: spread.median, f"{name}_p10": spread.low, f"{name}_p90": spread.high}


class Machine:
    """Facts about the machine, and how fast it was meanwhile: asked between the measurements."""

    def __init__(self) -> None:
        self._reference: list[float] = []

    def glance(self) -> None:
        """Time a fixed bit of pure Python, the one that `bench core` times."""
        started = time.perf_counter()
        for _ in range(100):
            sum(range(1000))
        self._reference.append((time.perf_counter() - started) * 1e4)

    @property
    def reference_us(self) -> Spread:
        """What that took."""
        if not self._reference:
            self.glance()
        return Spread.of(self._reference)

    def as_dict(self) -> dict[str, Any]:
        """Everything, for `--json`."""
        return {
            **spread_as_dict("reference_us", self.reference_us),
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
