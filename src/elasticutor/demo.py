"""The demo, live on a local Spark: a hot key that moves, with balancing and without.

One elastic executor with four cores. Every few seconds another key becomes hot and brings most of a
core's work all by itself. The cores are emulated (their work is slept), so that four of them fit on
any machine; processes, sockets, state and moves are real.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from elasticutor.bench.work import Emulate
from elasticutor.core.config import ExecutorConfig
from elasticutor.sinks import NoSink
from elasticutor.sources import Generator, HotKey
from elasticutor.topology import Topology

if TYPE_CHECKING:
    from elasticutor.runtime.cluster import BaseCluster
    from elasticutor.runtime.run import Run

CORES = 4
SHARDS = 64
KEYS = 500
ROW_S = 0.002
RATE = 1200.0
HOT_SHARE = 0.3
HOT_S = 5.0
"""How long a key stays hot."""
LENGTH_S = 15.0
LOOK_S = 0.25
"""Figures are gathered over this long."""


@dataclass(frozen=True, slots=True)
class Moment:
    """What one interval looked like."""

    time_s: float
    rows_s: float
    p50_ms: float
    p99_ms: float
    loads: tuple[float, ...]
    """Per core: its work and backlog; above 1 it falls behind."""
    moves: int


@dataclass(slots=True)
class Story:
    """A whole run."""

    balanced: bool
    moments: list[Moment] = field(default_factory=list)
    moves: list[dict[str, Any]] = field(default_factory=list)
    p50_ms: float = float("nan")
    p99_ms: float = float("nan")
    rows_out: int = 0

    @property
    def rows_s(self) -> float:
        """Mean throughput after the first second."""
        settled = [moment.rows_s for moment in self.moments if moment.time_s > 1.0]
        return sum(settled) / len(settled) if settled else 0.0

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "balanced": self.balanced,
            "rows_s": round(self.rows_s, 1),
            "offered_rows_s": RATE,
            "p50_ms": round(self.p50_ms, 3),
            "p99_ms": round(self.p99_ms, 3),
            "moves": len(self.moves),
            "timeline": [
                {
                    "time_s": round(moment.time_s, 3),
                    "rows_s": round(moment.rows_s, 1),
                    "p50_ms": round(moment.p50_ms, 3),
                    "p99_ms": round(moment.p99_ms, 3),
                    "loads": [round(load, 3) for load in moment.loads],
                    "moves": moment.moves,
                }
                for moment in self.moments
            ],
        }


def topology(seed: int) -> Topology:
    """The job: clicks of many keys, one of them hot, counted."""
    job = Topology("demo")
    hot = HotKey(HOT_SHARE, HOT_S)
    source = Generator(rate=RATE, keys=KEYS, zipf=0.3, payload=16, hot=hot, seed=seed)
    clicks = job.source("clicks", source)
    counts = job.operator("counts", Emulate(ROW_S), clicks, key="key", cores=CORES, shards=SHARDS)
    job.sink("out", NoSink(), counts)
    return job


def tell(
    cluster: BaseCluster,
    *,
    balanced: bool,
    seed: int = 1,
    seconds: float = LENGTH_S,
    watch: Callable[[Story], None] = lambda story: None,
) -> Story:
    """Run the demo once, live.

    Args:
        cluster: Where; one node with `CORES` cores will do.
        balanced: Whether the executor may move its shards.
        seed: Another seed, other hot keys.
        seconds: For how long.
        watch: Called with the story so far after every interval.
    """
    run = cluster.submit(
        topology(seed),
        balance_s=0.1 if balanced else 0.0,
        measure_s=LOOK_S / 2,
        config=ExecutorConfig(chunk_s=0.004, window_s=0.008),
    )
    story = Story(balanced)
    try:
        began = time.monotonic()
        while time.monotonic() - began < seconds:
            time.sleep(LOOK_S)
            _look(run, story, time.monotonic() - began)
            watch(story)
        latency = run.metrics().latency
        story.p50_ms, story.p99_ms = (latency.percentile_s(p) * 1e3 for p in (50, 99))
        story.rows_out = run.metrics().rows_out
    finally:
        run.cancel()
    return story


def _look(run: Run, story: Story, now_s: float) -> None:
    metrics = run.metrics()
    moves = run.events("shard moved")
    tasks = run.tasks("counts", 0)
    moment = Moment(
        now_s,
        metrics.rows_out_s,
        metrics.recent_latency.percentile_s(50) * 1e3,
        metrics.recent_latency.percentile_s(99) * 1e3,
        tuple(tasks[task].load for task in sorted(tasks)),
        len(moves) - len(story.moves),
    )
    story.moves = moves
    story.moments.append(moment)
