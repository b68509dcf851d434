"""`elasticutor bench throughput`: rows per second from source to sink, as fast as they are taken.

The tuples are those of the paper's experiments: key, time and 128 bytes of payload, Zipf-skewed.
The operator counts and sums per key and has one output per tuple; once record by record and once
vectorised, taking turns, so that a slow minute of the machine hits both. Every run has processes of
its own. Its time is from when the source was first asked for tuples to the last output at the sink.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from elasticutor.bench.figures import Spread
from elasticutor.bench.live import (
    BenchError,
    Machine,
    Progress,
    notes,
    silent,
    spread_as_dict,
)
from elasticutor.bench.operators import CountAndSum, CountAndSumBatch
from elasticutor.bench.record import NotingSink, NotingSource, Recording
from elasticutor.operator import Operator
from elasticutor.runtime.cluster import BaseCluster
from elasticutor.sources import Generator
from elasticutor.topology import Topology

_PATIENCE_S = 600.0
_KINDS: dict[str, type[Operator]] = {"per_record": CountAndSum, "vectorised": CountAndSumBatch}


@dataclass(frozen=True, slots=True)
class ThroughputBench:
    """What was measured."""

    per_record: Spread
    """Rows per second, record by record."""
    vectorised: Spread
    """Rows per second, a batch at a time."""
    measured: dict[str, list[float]]
    """Rows per second of every run."""
    source: Generator
    tasks: int
    machine: Machine

    def as_dict(self) -> dict[str, Any]:
        """Everything, for `--json`."""
        return {
            **spread_as_dict("per_record_rows_s", self.per_record),
            **spread_as_dict("vectorised_rows_s", self.vectorised),
            "runs": {
                kind: [round(rate) for rate in rates] for kind, rates in self.measured.items()
            },
            "rows": self.source.rows,
            "keys": self.source.keys,
            "zipf": self.source.zipf,
            "payload": self.source.payload,
            "tasks": self.tasks,
            **self.machine.as_dict(),
        }


def bench_throughput(
    cluster: BaseCluster,
    *,
    rows: int = 1_000_000,
    cores: int = 2,
    repeat: int = 5,
    keys: int = 10_000,
    zipf: float = 0.5,
    progress: Progress = silent,
) -> ThroughputBench:
    """Measure throughput from source to sink.

    Args:
        cluster: Where; it needs so many free cores.
        rows: Tuples of each run.
        cores: Tasks of the executor.
        repeat: Runs of each kind of operator.
        keys: How many keys there are.
        zipf: Their skew.
        progress: Told about each run.
    """
    source = Generator(rate=None, keys=keys, zipf=zipf, rows=rows, seed=1)
    measured: dict[str, list[float]] = {kind: [] for kind in _KINDS}
    machine = Machine()
    for number in range(repeat):
        for kind, operator in _KINDS.items():
            progress(f"{kind.replace('_', ' ')}, run {number + 1} of {repeat}")
            machine.glance()
            measured[kind].append(_run(cluster, source, operator(), cores))
    per_record, vectorised = (Spread.of(measured[kind]) for kind in _KINDS)
    return ThroughputBench(per_record, vectorised, measured, source, cores, machine)


def _run(cluster: BaseCluster, source: Generator, operator: Operator, cores: int) -> float:
    """Rows per second of one run."""
    with notes() as folder:
        topology = Topology("throughput")
        stream = topology.source("tuples", NotingSource(source, folder))
        counted = topology.operator("count", operator, stream, key="key", cores=cores)
        topology.sink("out", NotingSink(folder), counted)
        with cluster.submit(topology) as run:
            run.wait(_PATIENCE_S)
        recording = Recording.load(folder)
    if recording.total != source.rows:
        raise BenchError("sink", f"have taken {source.rows} rows", recording.total)
    return recording.total / recording.seconds
