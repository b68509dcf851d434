"""`elasticutor bench throughput`: rows per second from source to sink, as fast as they are taken.

The tuples are those of the paper's experiments: key, time and 128 bytes of payload, Zipf-skewed.
The operator counts and sums per key and has one output per tuple; once record by record and once
vectorised, taking turns, so that a slow minute of the machine hits both. Every run has processes of
its own. Its time is from when the source was first asked for tuples to the last output at the sink.

Beside a peer, its runs take turns with ours; its settings are tried out first, and the best kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from elasticutor.driver.cluster import BaseCluster
from elasticutor.lab.bench.figures import Spread
from elasticutor.lab.bench.live import (
    BenchError,
    Machine,
    Progress,
    notes,
    silent,
    spread_as_dict,
)
from elasticutor.lab.bench.operators import CountAndSum, CountAndSumBatch
from elasticutor.lab.bench.peer.beside import (
    EPOCH_S,
    PEER,
    Beside,
    PeerSetting,
    PeerWork,
    best_of,
    run_peer,
    with_checkpoint,
)
from elasticutor.lab.bench.record import NotingSink, NotingSource, Recording
from elasticutor.operator import Operator
from elasticutor.sources import Generator
from elasticutor.topology import Topology

_PATIENCE_S = 600.0
_BATCHES = (100, 1_000, 10_000)
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
    checkpoint: bool = False
    """Whether state was made durable every `EPOCH_S` meanwhile, by the peer too."""
    beside: Beside | None = None

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
            "checkpoint": self.checkpoint,
            **({} if self.beside is None else {"beside": self.beside.as_dict()}),
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
    checkpoint: bool = False,
    beside: bool = False,
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
        checkpoint: Make state durable meanwhile, every `EPOCH_S`.
        beside: Run the same on the peer, in turns.
        progress: Told about each run.
    """
    source = Generator(rate=None, keys=keys, zipf=zipf, rows=rows, seed=1)
    measured: dict[str, list[float]] = {kind: [] for kind in _KINDS}
    theirs: list[float] = []
    machine = Machine()
    setting, tried = _best(source, cores, checkpoint, progress) if beside else (None, [])
    for number in range(repeat):
        for kind, operator in _KINDS.items():
            progress(f"{kind.replace('_', ' ')}, run {number + 1} of {repeat}")
            machine.glance()
            measured[kind].append(_run(cluster, source, operator(), cores, checkpoint))
        if setting is not None:
            progress(f"{PEER}: run {number + 1} of {repeat}")
            machine.glance()
            theirs.append(_run_peer(source, setting))
    ours = {f"{kind}_rows_s": rates for kind, rates in measured.items()}
    peer = dict.fromkeys(ours, theirs)  # it has one kind of operator: record by record
    per_record, vectorised = (Spread.of(measured[kind]) for kind in _KINDS)
    return ThroughputBench(
        per_record,
        vectorised,
        measured,
        source,
        cores,
        machine,
        checkpoint,
        None if setting is None else Beside(setting, tried, ours, peer),
    )


def _run(
    cluster: BaseCluster, source: Generator, operator: Operator, cores: int, checkpoint: bool
) -> float:
    """Rows per second of one run."""
    with notes() as folder:
        topology = Topology("throughput")
        stream = topology.source("tuples", NotingSource(source, folder))
        counted = topology.operator("count", operator, stream, key="key", cores=cores)
        topology.sink("out", NotingSink(folder), counted)
        durable = folder / "checkpoint" if checkpoint else None
        with cluster.submit(topology, checkpoint=durable, epoch_interval=EPOCH_S) as run:
            run.wait(_PATIENCE_S)
        recording = Recording.load(folder)
    if recording.total != source.rows:
        raise BenchError("sink", f"have taken {source.rows} rows", recording.total)
    return recording.total / recording.seconds


def _best(
    source: Generator, cores: int, checkpoint: bool, progress: Progress
) -> tuple[PeerSetting, list[dict[str, Any]]]:
    """The peer's setting with the most rows per second; what was tried has µs per row."""
    settings = [
        PeerSetting(processes, rows) for processes in (cores, cores + 1) for rows in _BATCHES
    ]

    def us_per_row(setting: PeerSetting) -> float:
        return 1e6 / _run_peer(source, setting)

    return best_of(with_checkpoint(settings, checkpoint), us_per_row, progress)


def _run_peer(source: Generator, setting: PeerSetting) -> float:
    assert source.rows is not None
    work = PeerWork(
        "count",
        0.0,
        source.keys,
        source.zipf,
        source.seed,
        rows=source.rows,
        payload=source.payload,
    )
    return run_peer(work, setting).rows_s
