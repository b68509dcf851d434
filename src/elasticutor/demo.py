"""The demo, live on a local Spark: a rush that goes from one operator to another, hot keys in it.

Two operators on two nodes with eight cores in all. First the one has a rush, then the other, and
each time a few keys are hotter than the rest. An elastic run lets the cores go where the load is;
a static one has four cores for each operator, whatever happens. The cores are emulated (their work
is slept), so that eight of them fit on any machine; processes, sockets, state, moves and the
scheduler are real.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from elasticutor.bench.later import Later
from elasticutor.bench.width import chunks_of
from elasticutor.bench.work import Emulate
from elasticutor.sinks import NoSink
from elasticutor.sources import Generator, HotKey
from elasticutor.topology import Topology

if TYPE_CHECKING:
    from elasticutor.core.paradigm import Paradigm
    from elasticutor.runtime.cluster import BaseCluster
    from elasticutor.runtime.run import Run

NODES = 2
CORES = 4
"""Of each node."""
OPERATORS = ("clicks", "orders")
SHARDS = 64
KEYS = 500
ROW_S = 0.004
CALM = 1.0
"""What an operator has to do all the time, in cores' worth."""
RUSH = 4.0
"""What it has to do on top of that during its rush."""
FIRST_S = 4.0
"""When the first rush begins."""
RUSH_S = 8.0
"""How long a rush lasts; then it is the other's turn."""
HOT = HotKey(0.2, 4.0)
LENGTH_S = 22.0
LOOK_S = 0.25
"""Figures are gathered over this long."""
SLOW_S = 30.0
"""For so much longer it waits for the first tuple that comes out."""


@dataclass(frozen=True, slots=True)
class Moment:
    """What one interval looked like."""

    time_s: float
    rows_s: float
    p50_ms: float
    p99_ms: float
    cores: dict[str, int]
    """The cores of each operator."""
    loads: dict[str, tuple[float, ...]]
    """The load of each of them: its work and backlog; above 1 it falls behind."""
    moves: int


@dataclass(slots=True)
class Story:
    """A whole run."""

    paradigm: Paradigm
    moments: list[Moment] = field(default_factory=list)
    moves: list[dict[str, Any]] = field(default_factory=list)
    plans: int = 0
    """How often the scheduler has changed an executor's cores."""
    p50_ms: float = float("nan")
    p99_ms: float = float("nan")
    rows_out: int = 0

    @property
    def seen(self) -> bool:
        """Whether anything has come out."""
        return any(moment.rows_s > 0 for moment in self.moments)

    @property
    def rows_s(self) -> float:
        """Mean throughput after the first second."""
        settled = [moment.rows_s for moment in self.moments if moment.time_s > 1.0]
        return sum(settled) / len(settled) if settled else 0.0

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "paradigm": self.paradigm,
            "rows_s": round(self.rows_s, 1),
            "p50_ms": round(self.p50_ms, 3),
            "p99_ms": round(self.p99_ms, 3),
            "moves": len(self.moves),
            "core_changes": self.plans,
            "timeline": [
                {
                    "time_s": round(moment.time_s, 3),
                    "rows_s": round(moment.rows_s, 1),
                    "p50_ms": round(moment.p50_ms, 3),
                    "p99_ms": round(moment.p99_ms, 3),
                    "cores": moment.cores,
                    "loads": {
                        name: [round(load, 3) for load in loads]
                        for name, loads in moment.loads.items()
                    },
                    "moves": moment.moves,
                }
                for moment in self.moments
            ],
        }


def offered_rows_s(time_s: float) -> float:
    """Tuples per second that both operators are sent at a time.

    Example:
        >>> offered_rows_s(0.0), offered_rows_s(FIRST_S + 1)
        (500.0, 1500.0)
    """
    rushing = FIRST_S <= time_s < FIRST_S + len(OPERATORS) * RUSH_S
    return (len(OPERATORS) * CALM + RUSH * rushing) / ROW_S


def topology(seed: int) -> Topology:
    """The job: clicks and orders, each counted by key."""
    job = Topology("demo")
    for number, name in enumerate(OPERATORS):
        calm = Generator(rate=CALM / ROW_S, keys=KEYS, zipf=0.3, payload=16, seed=seed + number)
        rush = Generator(
            rate=RUSH / ROW_S,
            keys=KEYS,
            zipf=0.3,
            payload=16,
            hot=HOT,
            seed=seed + number,
            seconds=RUSH_S,
        )
        streams = [
            job.source(f"{name}-calm", calm),
            job.source(f"{name}-rush", Later(rush, FIRST_S + number * RUSH_S)),
        ]
        cores = NODES * CORES // len(OPERATORS)
        made = job.operator(name, Emulate(ROW_S), streams, key="key", cores=cores, shards=SHARDS)
        job.sink(f"{name}-out", NoSink(), made)
    return job


def tell(
    cluster: BaseCluster,
    *,
    paradigm: Paradigm,
    seed: int = 1,
    seconds: float = LENGTH_S,
    watch: Callable[[Story], None] = lambda story: None,
) -> Story:
    """Run the demo once, live.

    Args:
        cluster: Where; `NODES` nodes of `CORES` cores, with a scheduler.
        paradigm: Usually "elastic" or "static".
        seed: Another seed, other hot keys.
        seconds: For how long; longer on a machine so busy that nothing has come out by then.
        watch: Called with the story so far after every interval.
    """
    run = cluster.submit(
        topology(seed), paradigm=paradigm, measure_s=LOOK_S / 2, config=chunks_of(3 * ROW_S)
    )
    story = Story(paradigm)
    try:
        began = time.monotonic()
        now_s = 0.0
        while now_s < seconds or (now_s < seconds + SLOW_S and not story.seen):
            time.sleep(LOOK_S)
            now_s = time.monotonic() - began
            _look(run, story, now_s)
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
    loads: dict[str, tuple[float, ...]] = dict.fromkeys(OPERATORS, ())
    for who, tasks in sorted(metrics.tasks.items()):
        name = who.rpartition(".")[0]
        loads[name] += tuple(tasks[task].load for task in sorted(tasks))
    moment = Moment(
        now_s,
        metrics.rows_out_s,
        metrics.recent_latency.percentile_s(50) * 1e3,
        metrics.recent_latency.percentile_s(99) * 1e3,
        {name: len(found) for name, found in loads.items()},
        loads,
        len(moves) - len(story.moves),
    )
    story.moves = moves
    story.plans = len(run.events("cores planned"))
    story.moments.append(moment)
