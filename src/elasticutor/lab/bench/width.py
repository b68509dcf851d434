"""`elasticutor bench width`: how many cores one elastic executor can feed.

The cores are emulated: a task sleeps for the time that its tuples take, once per chunk. Tuples come
as fast as they are taken. What counts is the throughput as a share of what so many cores could do
if nothing but the operator took any time. Chunks are larger than by default, since hundreds of
wake-ups a second for each of many cores are more than a machine of two can give. With chunks as
small as a tuple (`--chunk-ms 1`), how many of them an executor hands out in a second is the figure.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from elasticutor.core.executor.config import ExecutorConfig
from elasticutor.driver.cluster import BaseCluster
from elasticutor.lab.bench.figures import Spread
from elasticutor.lab.bench.live import (
    Machine,
    Progress,
    notes,
    rate_between,
    silent,
    spread_as_dict,
    watch,
)
from elasticutor.lab.bench.record import NotingSink, NotingSource, Recording
from elasticutor.lab.bench.work import Emulate
from elasticutor.sources import Generator
from elasticutor.topology import Topology

_PATIENCE_S = 60.0


@dataclass(frozen=True, slots=True)
class WidthBench:
    """What was measured."""

    share_of_ideal: Spread
    rows_s: Spread
    chunks_s: Spread
    """Chunks per second of all tasks together, by what they put out: each one message."""
    ideal_rows_s: float
    """Cores over cost."""
    cores: int
    cost_ms: float
    chunk_ms: float
    zipf: float
    moves: int
    """Shards moved by balancing, in all runs."""
    seconds: float
    machine: Machine

    def as_dict(self) -> dict[str, Any]:
        """Everything, for `--json`."""
        return {
            **spread_as_dict("share_of_ideal", self.share_of_ideal),
            **spread_as_dict("rows_s", self.rows_s),
            **spread_as_dict("chunks_s", self.chunks_s),
            "ideal_rows_s": round(self.ideal_rows_s, 3),
            "emulated_cores": self.cores,
            "cost_ms": self.cost_ms,
            "chunk_ms": self.chunk_ms,
            "zipf": self.zipf,
            "moves": self.moves,
            "seconds": self.seconds,
            **self.machine.as_dict(),
        }


def bench_width(
    cluster: BaseCluster,
    *,
    cores: int = 16,
    cost_ms: float = 1.0,
    chunk_ms: float = 20.0,
    zipf: float = 0.5,
    seconds: float = 10.0,
    warm_up_s: float = 5.0,
    repeat: int = 3,
    progress: Progress = silent,
) -> WidthBench:
    """Measure how near to ideal the throughput of one executor with many cores is.

    Args:
        cluster: Where; it needs so many free cores.
        cores: Emulated cores of the executor.
        cost_ms: Time that a tuple takes.
        chunk_ms: Work that is handed to a task at once.
        zipf: Skew of the keys, of which there are ten thousand.
        seconds: How long to measure.
        warm_up_s: How long to wait before.
        repeat: How often, each time with processes of its own.
        progress: Told about each run.
    """
    config = chunks_of(chunk_ms / 1e3)
    operator = Emulate(cost_ms / 1e3)
    ideal = cores / (cost_ms / 1e3)
    machine = Machine()
    rates: list[float] = []
    chunks: list[float] = []
    moves = 0
    for number in range(repeat):
        progress(f"{cores} emulated cores, run {number + 1} of {repeat}")
        machine.glance()
        source = Generator(rate=None, zipf=zipf, seed=number)
        with notes() as folder:
            topology = Topology("width")
            most_rows = max(64, int(ideal * config.chunk_s))  # so that little is left to drain
            noting = NotingSource(source, folder, most_rows=most_rows)
            stream = topology.source("tuples", noting)
            counted = topology.operator("work", operator, stream, key="key", cores=cores)
            topology.sink("out", NotingSink(folder), counted)
            with cluster.submit(topology, config=config) as run:
                watch(run, warm_up_s)
                started = time.time()
                watch(run, seconds)
                ended = time.time()
                rates.append(rate_between(run.timeline(), started, ended))
                moves += len(run.events("shard moved"))
                run.stop(_PATIENCE_S)
            recording = Recording.load(folder)
        arrived = recording.began + recording.arrivals
        inside = (arrived >= started) & (arrived < ended)
        chunks.append(float(inside.sum()) / (ended - started))
    shares = Spread.of([rate / ideal for rate in rates])
    return WidthBench(
        shares,
        Spread.of(rates),
        Spread.of(chunks),
        ideal,
        cores,
        cost_ms,
        chunk_ms,
        zipf,
        moves,
        seconds,
        machine,
    )


def chunks_of(seconds: float) -> ExecutorConfig:
    """Settings for chunks of so much work: two of them ahead, and credit for ten.

    Example:
        >>> chunks_of(0.02).window_s
        0.04
    """
    return ExecutorConfig(chunk_s=seconds, window_s=2 * seconds, credit_s=10 * seconds)
