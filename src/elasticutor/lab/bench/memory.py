"""`elasticutor bench memory`: what the processes of a run weigh when they have nothing to do.

Of each process: its resident pages (RSS), the same with shared pages divided among those who share
them (PSS), and those that are its own (USS), which is what one more of its kind costs. Before, each
task has worked through some thousand tuples, so that everything is loaded that will be.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from elasticutor.driver.cluster import BaseCluster
from elasticutor.driver.run import Run
from elasticutor.lab.bench.live import BenchError, Machine, Progress, silent
from elasticutor.lab.bench.operators import CountAndSumBatch
from elasticutor.sinks import NoSink
from elasticutor.sources import Generator
from elasticutor.topology import Topology

_PATIENCE_S = 60.0
_FIELD = re.compile(r"^(Rss|Pss|Private_Clean|Private_Dirty):\s+(\d+) kB$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Weight:
    """What a process weighs, in MB (of 1024 × 1024 bytes)."""

    rss_mb: float
    pss_mb: float
    uss_mb: float

    @classmethod
    def of(cls, pid: int) -> Weight:
        """What a process weighs now.

        Raises:
            BenchError: It is not there, or this is not Linux.
        """
        path = Path("/proc") / str(pid) / "smaps_rollup"
        try:
            return cls.read(path.read_text())
        except OSError as error:
            raise BenchError("process", f"have a {path.name} to read", str(error)) from error

    @classmethod
    def read(cls, rollup: str) -> Weight:
        r"""From the text of Linux's `smaps_rollup`.

        Example:
            >>> text = "Rss: 2048 kB\nPss: 1024 kB\nPrivate_Clean: 512 kB\nPrivate_Dirty: 256 kB\n"
            >>> Weight.read(text)
            Weight(rss_mb=2.0, pss_mb=1.0, uss_mb=0.75)
        """
        kilobytes = {name: int(number) for name, number in _FIELD.findall(rollup)}
        own = kilobytes["Private_Clean"] + kilobytes["Private_Dirty"]
        return cls(kilobytes["Rss"] / 1024, kilobytes["Pss"] / 1024, own / 1024)

    @classmethod
    def median(cls, weights: Iterable[Weight]) -> Weight:
        """The median of each of the three."""
        columns = zip(*((w.rss_mb, w.pss_mb, w.uss_mb) for w in weights), strict=True)
        rss, pss, uss = (round(float(np.median(column)), 2) for column in columns)
        return cls(rss, pss, uss)


@dataclass(frozen=True, slots=True)
class MemoryBench:
    """What was measured."""

    kinds: dict[str, Weight]
    """Medians by kind of process: task, main, node, source, sink, and zygote (forks tasks)."""
    tasks: int
    repeat: int
    machine: Machine

    def as_dict(self) -> dict[str, Any]:
        """Everything, for `--json`."""
        figures: dict[str, Any] = {}
        for kind, weight in self.kinds.items():
            figures[f"{kind}_rss_mb"] = weight.rss_mb
            figures[f"{kind}_pss_mb"] = weight.pss_mb
            figures[f"{kind}_uss_mb"] = weight.uss_mb
        return {**figures, "tasks": self.tasks, "repeat": self.repeat, **self.machine.as_dict()}


def bench_memory(
    cluster: BaseCluster,
    *,
    cores: int = 4,
    rows: int = 20_000,
    repeat: int = 3,
    progress: Progress = silent,
) -> MemoryBench:
    """Weigh the processes of a run that is drained.

    Args:
        cluster: Where; it needs so many free cores.
        cores: Tasks of the executor.
        rows: Tuples that they have worked through before.
        repeat: How often, each time with processes of its own.
        progress: Told about each run.
    """
    machine = Machine()
    found: dict[str, list[Weight]] = {}
    for number in range(repeat):
        progress(f"{cores} tasks, run {number + 1} of {repeat}")
        machine.glance()
        topology = Topology("memory")
        stream = topology.source("tuples", Generator(rate=None, rows=rows, seed=number))
        counted = topology.operator("count", CountAndSumBatch(), stream, key="key", cores=cores)
        topology.sink("out", NoSink(), counted)
        with cluster.submit(topology, keep=True) as run:
            run.wait(_PATIENCE_S)
            for kind, pids in _pids(cluster, run).items():
                found.setdefault(kind, []).extend(Weight.of(pid) for pid in pids)
    kinds = {kind: Weight.median(weights) for kind, weights in found.items()}
    return MemoryBench(kinds, cores, repeat, machine)


def _pids(cluster: BaseCluster, run: Run) -> dict[str, list[int]]:
    """The processes of a run by their kind."""
    tasks = [seen.pid for seen in run.tasks("count", 0).values()]
    participants = run._supervisor.pids
    return {
        "task": tasks,
        "main": [participants["count.0"]],
        "node": [node.pid for node in cluster._hub.nodes.values()],
        "source": [participants["tuples.0"]],
        "sink": [participants["out"]],
        "zygote": sorted({_parent(pid) for pid in tasks}),
    }


def _parent(pid: int) -> int:
    """Who has forked a process."""
    # The name, in brackets, may have blanks of its own.
    return int((Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[1])
