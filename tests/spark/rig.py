"""What the tests of hosting on Spark share: a topology with a known result, and who may survive."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, Self

import cloudpickle
import psutil
import pyarrow as pa

from elasticutor.operator import Operator
from elasticutor.process.hosting.directories import SHARED_MEMORY
from elasticutor.sinks import CallableSink, MemorySink
from elasticutor.sources import Generator
from elasticutor.topology import Topology

# The processes of a cluster cannot import this module, so its operator travels as code.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

ROOT = Path(__file__).parents[2]


class Count(Operator):
    """How often each key has been seen so far."""

    output: ClassVar[Any] = "key bigint, n bigint"

    def process(self, key: Any, row: Any, state: Any) -> Iterator[Any]:
        n = state.get(0) + 1
        state.set(n)
        yield key, n


def generator(rows: int | None = 5_000, *, rate: float | None = None) -> Generator:
    return Generator(rate=rate, keys=50, payload=0, rows=rows, seed=1)


def counting(
    source: Generator, *, executors: int = 2, cores: int = 1, collect: bool = False
) -> Topology:
    """Counts the tuples of every key; keeps the counts on the driver if they end, or if asked."""
    topology = Topology("counting")
    stream = topology.source("gen", source)
    counts = topology.operator(
        "count", Count(), stream, key="key", executors=executors, cores=cores, shards=8
    )
    topology.sink("out", MemorySink() if source.rows or collect else CallableSink(len), counts)
    return topology


def folded(source: Generator) -> Counter[int]:
    """What counting has to come to."""
    assert source.rows is not None
    return Counter(source.table(0, 1, 0, source.rows).column("key").to_pylist())


def steps(source: Generator) -> Counter[tuple[int, int]]:
    """Every row that counting has to put out."""
    return Counter((key, n) for key, total in folded(source).items() for n in range(1, total + 1))


def rows_of(table: pa.Table) -> Counter[tuple[int, int]]:
    return Counter(zip(table.column("key").to_pylist(), table.column("n").to_pylist(), strict=True))


def await_that(condition: Callable[[], object], what: str, timeout_s: float = 60.0) -> None:
    until = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < until, f"waited {timeout_s:g} s for {what}"
        time.sleep(0.02)


def descendants(pid: int | None = None) -> list[psutil.Process]:
    """All processes that descend from one, this one by default."""
    found: list[psutil.Process] = psutil.Process(pid).children(recursive=True)
    return found


def of_clusters(pid: int | None = None) -> list[psutil.Process]:
    """Those among them that clusters have had started: the zygotes, and what they forked."""
    found = []
    for process in descendants(pid):
        try:
            if "elasticutor.process.hosting.zygote" in process.cmdline():
                found.append(process)
        except psutil.Error:
            continue  # It has ended since.
    return found


def directories(cluster: str) -> list[str]:
    """What there is of the directories of a cluster's nodes."""
    bases = {SHARED_MEMORY, tempfile.gettempdir(), "/tmp"}  # noqa: S108 - where NodeDirectories may be
    pattern = f"elasticutor-{os.getuid()}-{cluster}-*"
    return sorted(str(path) for base in bases for path in Path(base).glob(pattern))


def assert_gone(
    processes: Iterable[psutil.Process], cluster: str, *, timeout_s: float = 30.0
) -> None:
    """None of these processes may be left, and none of the cluster's directories."""
    _, alive = psutil.wait_procs(list(processes), timeout=timeout_s)
    left = {process.pid: process.cmdline() for process in alive if _lives(process)}
    assert not left
    await_that(lambda: not directories(cluster), f"the directories of {cluster} to go", 10.0)


def _lives(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


class Script:
    """A driver of its own, in a session (and so a process group) of its own, as in a terminal.

    It tells what happens by writing JSON files into a directory, each appearing at once.
    """

    def __init__(self, name: str, told: Path, env: Mapping[str, str] | None = None) -> None:
        self.name = name
        self._told = told
        self._said = told / "stderr.txt"
        variables = {key: value for key, value in os.environ.items() if key != "PYSPARK_PYTHON"}
        variables["SPARK_CONF_DIR"] = str(told)  # none there: Spark warns, for whoever has to look
        with self._said.open("wb") as said:
            self.process = subprocess.Popen(
                [sys.executable, "-m", f"tests.spark.scripts.{name}", str(told)],
                cwd=ROOT,
                env={**variables, **(env or {})},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=said,
                start_new_session=True,
            )
        self.seen: dict[int, psutil.Process] = {}

    def told(self, what: str, timeout_s: float = 240.0) -> Any:
        """Wait for what it tells under this name; fails when it ends without."""
        path = self._told / f"{what}.json"
        await_that(
            lambda: path.exists() or self.process.poll() is not None,
            f"{self.name}: {what}",
            timeout_s,
        )
        assert path.exists(), f"{self.name} has ended without telling {what!r}:\n{self.said()}"
        return json.loads(path.read_text(encoding="utf-8"))

    def said(self) -> str:
        return self._said.read_text(encoding="utf-8", errors="replace")[-4_000:]

    def look(self) -> list[psutil.Process]:
        """Take note of all processes that descend from it now; returns all seen so far."""
        self.seen |= {process.pid: process for process in descendants(self.process.pid)}
        return list(self.seen.values())

    def ended(self, timeout_s: float = 120.0) -> int:
        """Wait for its end; its return code."""
        return self.process.wait(timeout_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Whatever the test came to: nothing that it has started stays."""
        if self.process.poll() is None:
            self.look()
            self.process.kill()
        self.process.wait(30)
        for process in self.seen.values():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()


def tell(directory: Path, what: str, value: object) -> None:
    """The other side of `Script.told`."""
    draft = directory / f"{what}.draft"
    draft.write_text(json.dumps(value), encoding="utf-8")
    draft.rename(directory / f"{what}.json")
