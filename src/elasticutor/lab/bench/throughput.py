"""`elasticutor bench throughput`: rows per second from source to sink, as fast as they are taken.

The tuples are those of the paper's experiments: key, time and 128 bytes of payload, Zipf-skewed.
The operator counts and sums per key and has one output per tuple; once record by record and once
vectorised, taking turns, so that a slow minute of the machine hits both. Every run has processes of
its own. Its time is from when the source was first asked for tuples to the last output at the sink.

Beside a peer, its runs take turns with ours; its settings are tried out first, and the best kept.
"""

from __future__ import annotations

from elasticutor.driver.cluster import BaseCluster
from elasticutor.lab.bench import options
from elasticutor.lab.bench.declare import Benchmark, Figures, Samples, figure, samples
from elasticutor.lab.bench.live import Bench, BenchError, notes, pipeline
from elasticutor.lab.bench.peer import beside as peers
from elasticutor.lab.bench.record import NotingSink, NotingSource, Recording
from elasticutor.lab.bench.work import KINDS
from elasticutor.lab.options import option
from elasticutor.operator import Operator
from elasticutor.sources import Generator

_PATIENCE_S = 600.0
_BATCHES = (100, 1_000, 10_000)


class ThroughputFigures(Figures):
    """Rows per second of all runs."""

    per_record_rows_s: Samples = samples("per record", ",.0f", better="higher")
    vectorised_rows_s: Samples = samples("vectorised", ",.0f", better="higher")
    runs: dict[str, list[int]] = figure(default_factory=dict)
    payload: int = figure()
    beside: peers.Beside | None = figure("peer", omit_none=True, default=None)


class ThroughputBench(Benchmark):
    """Rows per second from source to sink on a local Spark: per record, and vectorised."""

    about = "throughput, rows per second: {rows:,} tuples of {keys:,} keys, {cores} tasks"

    rows: int = option(1_000_000, "Tuples of each run.", min=1, key="rows")
    cores: int = options.CORES(2)
    repeat: int = options.REPEAT(5)
    keys: int = options.KEYS(10_000)
    zipf: float = options.ZIPF(0.5)
    beside: str = options.BESIDE("")
    checkpoint: bool = options.CHECKPOINT(False)

    def check(self) -> None:
        peers.require_peer(self.beside)

    def measure(self, bench: Bench) -> ThroughputFigures:
        source = Generator(rate=None, keys=self.keys, zipf=self.zipf, rows=self.rows, seed=1)
        found = ThroughputFigures(payload=source.payload)
        if self.beside:  # what was tried has µs per row
            settings = peers.settings_of(self.cores, _BATCHES, self.checkpoint)
            found.beside = peers.best_of(settings, lambda one: 1e6 / _run_peer(source, one), bench)
        peer = found.beside
        theirs: Samples = []
        sides = (*KINDS, peers.PEER) if self.beside else tuple(KINDS)
        with bench.cluster(self.cores) as cluster:
            for _, side in bench.turns(self.repeat, sides):
                if side in KINDS:
                    rates = getattr(found, f"{side}_rows_s")
                    rates.append(self._run(cluster, source, KINDS[side]()))
                elif peer is not None:
                    theirs.append(_run_peer(source, peer.setting))
        found.runs = {kind: list(map(round, getattr(found, f"{kind}_rows_s"))) for kind in KINDS}
        if peer is not None:
            peer.form = ",.0f"
            peer.ours = {f"{kind}_rows_s": getattr(found, f"{kind}_rows_s") for kind in KINDS}
            # The peer has one kind of operator: record by record.
            peer.theirs = dict.fromkeys(peer.ours, theirs)
        return found

    def _run(self, cluster: BaseCluster, source: Generator, operator: Operator) -> float:
        """Rows per second of one run."""
        with notes() as folder:
            noting = NotingSource(source, folder)
            sink = NotingSink(folder)
            topology = pipeline("throughput", noting, operator, sink, cores=self.cores)
            durable = folder / "checkpoint" if self.checkpoint else None
            with cluster.submit(topology, checkpoint=durable, epoch_interval=peers.EPOCH_S) as run:
                run.wait(_PATIENCE_S)
            recording = Recording.load(folder)
        if recording.total != source.rows:
            raise BenchError("sink", f"have taken {source.rows} rows", recording.total)
        return recording.rows_s


def _run_peer(source: Generator, setting: peers.PeerSetting) -> float:
    return peers.run_peer(peers.PeerWork("count", source), setting).rows_s
