"""The demo, live on a local Spark: a rush that goes from one operator to another, hot keys in it.

Two operators on two nodes with eight emulated cores in all; processes, sockets, state, moves and
the scheduler are real. First the one has a rush, then the other, and each time one key is hotter
than the rest. An elastic run lets the cores go where the load is; a static one has four cores for
each operator, whatever happens.

The rush is one that eight cores can take and four cannot: with six cores an operator is two
thirds busy then, and the hottest key needs less than half a core. So what is to be seen is how
cores and shards move, and not a key that no number of cores could help.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import field, replace
from typing import Any

from elasticutor.core.paradigm import ParadigmName
from elasticutor.driver.cluster import BaseCluster
from elasticutor.driver.run import Run
from elasticutor.lab.bench.declare import Figures, figure
from elasticutor.lab.bench.live import chunks_of
from elasticutor.lab.bench.record import DelayedSource
from elasticutor.lab.bench.work import Emulate
from elasticutor.sinks import NoSink
from elasticutor.sources import Generator, HotKey
from elasticutor.topology import Topology

NODES = 2
CORES = 4
"""Of each node."""
OPERATORS = ("clicks", "orders")
SHARDS = 64
KEYS = 500
ROW_S = 0.004
CALM = 0.4
"""What an operator has to do all the time, in cores' worth."""
RUSH = 3.6
"""What it has to do on top of that during its rush."""
TARGET_S = 0.008
"""The mean latency that the scheduler is asked to keep: two tuples' worth of work."""
WARM_UP_S = 3.0
"""What happens before does not count, and is not drawn."""
FIRST_S = 3.0
"""When the first rush begins, after that."""
RUSH_S = 8.0
"""How long a rush lasts; then it is the other's turn."""
HOT = HotKey(0.1, 4.0)
ABSORBED_MS = 50.0
"""A rush is absorbed when the 99th percentile of latency is below this again, and stays there."""
LENGTH_S = 21.0
LOOK_S = 0.25
"""Figures are gathered over this long."""
SLOW_S = 30.0
"""How much longer it waits for the first tuple that comes out."""


class Frame(Figures):
    """What one interval looked like."""

    time_s: float = figure(digits=3)
    rows_s: float = figure(digits=1)
    p50_ms: float = figure(digits=3)
    """Of what came out in this interval alone."""
    p99_ms: float = figure(digits=3)
    cores: dict[str, int] = figure()
    loads: dict[str, tuple[float, ...]] = figure(digits=3)
    """The load of each of them: its work and backlog; above 1 it falls behind."""
    moves: int = figure()


class DemoStory(Figures):
    """A whole run."""

    paradigm: ParadigmName = figure()
    moments: list[Frame] = figure(key="timeline", default_factory=list)
    moves: list[dict[str, Any]] = field(default_factory=list)
    plans: int = figure(key="core_changes", default=0)
    """How often the scheduler has changed an executor's cores."""
    p50_ms: float = figure(digits=3, default=math.nan)
    p99_ms: float = figure(digits=3, default=math.nan)
    rows_out: int = 0

    @property
    def rows_s(self) -> float:
        """Mean throughput after the first second."""
        settled = [moment.rows_s for moment in self.moments if moment.time_s > 1.0]
        return sum(settled) / len(settled) if settled else 0.0

    @property
    def absorbed_s(self) -> list[float]:
        """For each rush that is over: how long it was felt; infinite: until its end."""
        rushes = [FIRST_S + number * RUSH_S for number in range(len(OPERATORS))]
        end_s = self.moments[-1].time_s if self.moments else 0.0
        return [
            _absorbed(self.moments, begin, begin + RUSH_S)
            for begin in rushes
            if begin + RUSH_S <= end_s
        ]

    def as_dict(self) -> dict[str, Any]:
        absorbed = [None if math.isinf(s) else round(s, 2) for s in self.absorbed_s]
        rows_s = round(self.rows_s, 1)
        found: dict[str, Any] = super().as_dict()
        return found | {"absorbed_s": absorbed, "rows_s": rows_s, "moves": len(self.moves)}


def _absorbed(moments: Sequence[Frame], begin_s: float, end_s: float) -> float:
    """How long after its beginning a rush was last felt: the end of the last slow interval.

    An interval in which one tuple of a hundred is slow by chance, between calm ones, is not it.
    """
    during = [moment for moment in moments if begin_s < moment.time_s <= end_s]
    slow = [not moment.p99_ms <= ABSORBED_MS for moment in during]
    felt = [
        number
        for number, is_slow in enumerate(slow)
        if is_slow and any(slow[max(0, number - 1) : number] + slow[number + 1 : number + 2])
    ]
    if not felt:
        return 0.0
    return math.inf if felt[-1] == len(during) - 1 else during[felt[-1]].time_s - begin_s


def offered_rows_s(time_s: float) -> float:
    """Tuples per second that both operators are sent at a time."""
    rushing = FIRST_S <= time_s < FIRST_S + len(OPERATORS) * RUSH_S
    return (len(OPERATORS) * CALM + RUSH * rushing) / ROW_S


def topology(seed: int) -> Topology:
    """The job: clicks and orders, each counted by key."""
    job = Topology("demo")
    for number, name in enumerate(OPERATORS):
        calm = Generator(rate=CALM / ROW_S, keys=KEYS, zipf=0.3, payload=16, seed=seed + number)
        rush = replace(calm, rate=RUSH / ROW_S, hot=HOT, seconds=RUSH_S)
        streams = [
            job.source(f"{name}-calm", calm),
            job.source(f"{name}-rush", DelayedSource(rush, WARM_UP_S + FIRST_S + number * RUSH_S)),
        ]
        cores = NODES * CORES // len(OPERATORS)
        made = job.operator(name, Emulate(ROW_S), streams, key="key", cores=cores, shards=SHARDS)
        job.sink(f"{name}-out", NoSink(), made)
    return job


def tell(
    cluster: BaseCluster,
    paradigm: ParadigmName,
    seed: int,
    seconds: float,
    watch: Callable[[DemoStory], None],
) -> DemoStory:
    """Run the demo once, live, and show the story so far after every interval.

    It lasts for `seconds` after the warm-up; longer on a machine so busy that nothing has come out
    by then.
    """
    run = cluster.submit(
        topology(seed),
        paradigm=paradigm,
        latency_target=TARGET_S,
        measure_s=LOOK_S / 2,
        config=chunks_of(ROW_S),
    )
    story = DemoStory(paradigm=paradigm)
    try:
        time.sleep(WARM_UP_S)
        run.reset_metrics()
        warmed_up = len(run.events("shard moved")), len(run.events("cores planned"))
        began, seen_until = time.monotonic(), time.time()
        now_s = 0.0
        while now_s < seconds or (
            now_s < seconds + SLOW_S and not any(moment.rows_s for moment in story.moments)
        ):
            time.sleep(LOOK_S)
            now_s = time.monotonic() - began
            seen_until = _look(run, story, now_s, seen_until, warmed_up)
            watch(story)
        latency = run.metrics().latency
        story.p50_ms, story.p99_ms = (latency.percentile_s(p) * 1e3 for p in (50, 99))
        story.rows_out = run.metrics().rows_out
    finally:
        run.cancel()
    return story


def _look(
    run: Run, story: DemoStory, now_s: float, since: float, warmed_up: tuple[int, int]
) -> float:
    """Add what has happened since the last look; returns until when it has been seen."""
    metrics = run.metrics()
    moved, planned = warmed_up
    moves = run.events("shard moved")[moved:]
    loads: dict[str, tuple[float, ...]] = dict.fromkeys(OPERATORS, ())
    for who, tasks in sorted(metrics.tasks.items()):
        name = who.rpartition(".")[0]
        loads[name] += tuple(tasks[task].load for task in sorted(tasks))
    intervals = [interval for interval in run.timeline() if interval.time > since]
    rows = sum(interval.rows for interval in intervals)
    filled = [interval for interval in intervals if interval.rows]
    p50_ms = sum(interval.p50_ms * interval.rows for interval in filled)
    moment = Frame(
        time_s=now_s,
        rows_s=metrics.rows_out_s,
        p50_ms=p50_ms / rows if rows else math.nan,
        p99_ms=max((interval.p99_ms for interval in filled), default=math.nan),
        cores={name: len(found) for name, found in loads.items()},
        loads=loads,
        moves=len(moves) - len(story.moves),
    )
    story.moves = moves
    story.plans = len(run.events("cores planned")[planned:])
    story.moments.append(moment)
    return max((interval.time for interval in intervals), default=since)
