"""`elasticutor bench width`: how many cores one elastic executor can feed.

The cores are emulated: a task sleeps for the time that its tuples take, once per chunk. Tuples come
as fast as they are taken. What counts is the throughput as a share of what these cores could do
if nothing but the operator took any time. Chunks are larger than by default, since hundreds of
wake-ups a second for each of many cores are more than a machine of two can give. With chunks as
small as a tuple (`--chunk-ms 1`), how many of them an executor hands out in a second is the figure.
"""

from __future__ import annotations

from dataclasses import replace

from elasticutor.driver.cluster import BaseCluster
from elasticutor.lab.bench import options
from elasticutor.lab.bench.declare import Benchmark, Figures, Samples, figure, samples
from elasticutor.lab.bench.live import Bench, chunks_of, measured, notes, pipeline
from elasticutor.lab.bench.record import NotingSink, NotingSource, Recording
from elasticutor.lab.bench.work import Emulate
from elasticutor.sources import Generator

_PATIENCE_S = 60.0


class WidthFigures(Figures):
    """What was measured, over the runs."""

    share_of_ideal: Samples = samples("share of ideal", ".1%", better="higher")
    rows_s: Samples = samples("rows per second", ",.0f", better="higher")
    chunks_s: Samples = samples("chunks per second, in all", ",.0f")
    """By what all tasks put out: each one message."""
    ideal_rows_s: float = figure("rows per second, ideally", ",.0f", digits=3)
    moves: int = figure("shards moved", ",", default=0)
    """By balancing, in all runs."""


class WidthBench(Benchmark):
    """How near to ideal the throughput of one executor with many emulated cores is."""

    about = "width: {cores} emulated cores, {cost_ms:g} ms per tuple"

    cores: int = options.EMULATED(16)
    cost_ms: float = options.COST_MS(1.0)
    chunk_ms: float = options.CHUNK_MS(20.0)
    zipf: float = options.ZIPF(0.5)
    seconds: float = options.SECONDS(10.0)
    warm_up: float = options.WARM_UP(5.0)
    repeat: int = options.REPEAT(3)

    def measure(self, bench: Bench) -> WidthFigures:
        found = WidthFigures(ideal_rows_s=self.cores / (self.cost_ms / 1e3))
        with bench.cluster(self.cores) as cluster:
            for number in bench.runs(self.repeat, f"{self.cores} emulated cores"):
                self._run(cluster, number, found)
        found.share_of_ideal = [rate / found.ideal_rows_s for rate in found.rows_s]
        return found

    def _run(self, cluster: BaseCluster, number: int, found: WidthFigures) -> None:
        # A backlog would make them larger, and their number says how many can be handed out.
        most = max(1, round(self.chunk_ms / self.cost_ms))
        config = replace(chunks_of(self.chunk_ms / 1e3), max_chunk_rows=most)
        most_rows = max(64, int(found.ideal_rows_s * config.chunk_s))  # little is left to drain
        with notes() as folder:
            generator = Generator(rate=None, zipf=self.zipf, seed=number)
            source = NotingSource(generator, folder, most_rows=most_rows)
            work = Emulate(self.cost_ms / 1e3)
            topology = pipeline("width", source, work, NotingSink(folder), cores=self.cores)
            with cluster.submit(topology, config=config) as run:
                seen = measured(run, self.warm_up, self.seconds)
                found.rows_s.append(seen.rows_s)
                found.moves += len(run.events("shard moved"))
                run.stop(_PATIENCE_S)
            recording = Recording.load(folder)
        arrived = recording.began + recording.arrivals
        inside = (arrived >= seen.started) & (arrived < seen.ended)
        found.chunks_s.append(float(inside.sum()) / (seen.ended - seen.started))
