"""`elasticutor bench memory`: what the processes of a run weigh when they have nothing to do.

Of each process: its resident pages (RSS), the same with shared pages divided among the processes
that share them (PSS), and those of its own (USS), which is what one more of its kind costs. Before,
each task has worked through some thousand tuples, so that everything is loaded that will be.
"""

from __future__ import annotations

import re
from typing import Any

from elasticutor.lab.bench import options
from elasticutor.lab.bench.declare import MEDIAN, Benchmark, Figures, Samples, figure, samples
from elasticutor.lab.bench.live import Bench, BenchError, pipeline, roles
from elasticutor.lab.bench.work import CountAndSumBatch
from elasticutor.lab.options import option
from elasticutor.lab.proc import PROC, parent_of
from elasticutor.sinks import NoSink
from elasticutor.sources import Generator

_PATIENCE_S = 60.0
_FIELD = re.compile(r"^(Rss|Pss|Private_Clean|Private_Dirty):\s+(\d+) kB$", re.MULTILINE)


class Weight(Figures):
    """What processes of one kind weigh, in MB (of 1024 × 1024 bytes)."""

    rss_mb: Samples = samples("resident", ".1f", shows=MEDIAN, digits=2)
    pss_mb: Samples = samples("share of it (PSS)", ".1f", shows=MEDIAN, digits=2)
    uss_mb: Samples = samples("its own (USS)", ".1f", shows=MEDIAN, digits=2)

    def add(self, pid: int) -> None:
        """Weigh a process now; a `BenchError` if it is not there, or this is not Linux."""
        path = PROC / str(pid) / "smaps_rollup"
        try:
            self.read(path.read_text())
        except OSError as error:
            raise BenchError("process", f"have a {path.name} to read", str(error)) from error

    def read(self, rollup: str) -> None:
        """Add what the text of Linux's `smaps_rollup` says."""
        mb = {name: int(number) / 1024 for name, number in _FIELD.findall(rollup)}
        self.rss_mb.append(mb["Rss"])
        self.pss_mb.append(mb["Pss"])
        self.uss_mb.append(mb["Private_Clean"] + mb["Private_Dirty"])


class MemoryFigures(Figures):
    """By kind of process: task, main, node, source, sink, and zygote (which forks tasks)."""

    kinds: dict[str, Weight] = figure("process", default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        kinds = self.kinds.items()
        return {f"{kind}_{name}": mb for kind, one in kinds for name, mb in one.as_dict().items()}


class MemoryBench(Benchmark):
    """What the processes of a run weigh when they have nothing to do."""

    about = "memory of idle processes, MB: {cores} tasks"

    cores: int = options.CORES(4)
    rows: int = option(20_000, "Tuples worked through before.", min=1)
    repeat: int = options.REPEAT(3, key="repeat")

    def measure(self, bench: Bench) -> MemoryFigures:
        found = MemoryFigures()
        with bench.cluster(self.cores) as cluster:
            for number in bench.runs(self.repeat, f"{self.cores} tasks"):
                source = Generator(rate=None, rows=self.rows, seed=number)
                topology = pipeline(
                    "memory", source, CountAndSumBatch(), NoSink(), cores=self.cores
                )
                with cluster.submit(topology, keep=True) as run:
                    run.wait(_PATIENCE_S)
                    kinds = roles(cluster, run)
                    tasks = [pid for pid, kind in kinds.items() if kind == "task"]
                    kinds |= {parent_of(pid): "zygote" for pid in tasks}
                    for pid, kind in kinds.items():
                        found.kinds.setdefault(kind, Weight()).add(pid)
        return found
