"""`elasticutor bench path`: where a tuple's time goes, hop by hop, and what it costs in CPU.

The work is that of `bench latency`. First some runs as usual, in which the CPU time of every
process is read from `/proc`, from outside; what the operator burns is taken off, and the rest is
divided by the tuples. Then a traced run (`lab.bench.tracing`), in which a sample of
tuples is followed from process to process. A hop between two processes has three parts:

- *queue*: the receiver is still busy with something else;
- *wake-up*: it is idle, and the message is on the wire, or the receiver waits for a CPU; it counts
  from when the sender begins to send, since the receiver often has the message before that is over;
- *python*: it is awake, and reads, decodes and handles what was before the message.

Then the process works on it itself, until it sends it on: *work*. In a task the time in the
operator is *operator*, and the rest of its work is also the wait behind chunks that it has taken
before. All of these add up to the whole. *Send* is how long the call that sends it on takes, which
is part of the next hop.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import field
from pathlib import Path
from typing import Any

from elasticutor.driver.cluster import BaseCluster
from elasticutor.driver.run import Run
from elasticutor.lab.bench import options
from elasticutor.lab.bench.declare import (
    Benchmark,
    Figures,
    Samples,
    Table,
    cells,
    figure,
    median,
    percentiles,
    samples,
)
from elasticutor.lab.bench.live import (
    OPERATOR,
    SINK,
    SOURCE,
    Bench,
    BenchError,
    notes,
    pipeline,
    roles,
    watch,
)
from elasticutor.lab.bench.tracing import ON, traced
from elasticutor.lab.bench.work import Burn
from elasticutor.lab.proc import PROC, cpu_s, stat_of
from elasticutor.sinks import NoSink
from elasticutor.sources import Generator

_PERCENTILES = {"p50": 50, "p10": 10, "p90": 90}

HOPS = (
    ("source", SOURCE, "Tuples"),
    ("main, in", OPERATOR, "Chunk"),
    ("task", "task", "Result"),
    ("main, out", OPERATOR, "Tuples"),
    ("sink", SINK, ""),
)
"""The processes on a tuple's way, by what they are called here; and the message each sends on."""


class PathFigures(Figures):
    """What was measured, over the runs in which CPU time was read; and of one that was traced."""

    cpu_beyond_ms_per_tuple: Samples = samples("all", ".3f", better="lower")
    """CPU time per tuple beyond the operator's own, of all processes together."""
    roles_ms: dict[str, Samples] = field(default_factory=dict)
    """The same by kind of process."""
    latency_p50_ms: Samples = samples()
    rows_s: float = figure(digits=1, default=0.0)
    hops_us: dict[str, dict[str, Samples]] = field(default_factory=dict)
    """By hop and part of it: of a sample of tuples."""
    sampled: int = figure(default=0)

    def as_dict(self) -> dict[str, Any]:
        return {
            **super().as_dict(),
            "cpu_beyond_ms_by_role": {
                role: median(values) for role, values in self.roles_ms.items()
            },
            "hops_us": {
                hop: {part: percentiles("", us, _PERCENTILES) for part, us in parts.items()}
                for hop, parts in self.hops_us.items()
            },
        }

    def tables(self, title: str) -> Iterator[Table]:
        hops = [
            (hop, part, *cells(values, ",.0f"))
            for hop, parts in self.hops_us.items()
            for part, values in parts.items()
        ]
        yield Table(
            f"the way of {self.sampled} tuples, µs", ("hop", "part", "p50", "p10 – p90"), hops
        )
        roles = sorted(self.roles_ms.items(), key=lambda item: -median(item[1]))
        rows = [(role, *cells(values, ".3f")) for role, values in roles]
        yield Table(title, ("process", "median", "p10 – p90"), [*rows, *self.lines()])


class PathBench(Benchmark):
    """Where a tuple's time goes, hop by hop; and CPU time per tuple beyond the operator's own.

    CPU time is read from outside in usual runs; then a run is traced, and a sample of its tuples
    followed.
    """

    about = "CPU per tuple beyond its {cost_ms:g} ms, {cores} tasks at {load:.0%}, ms"

    cost_ms: float = options.COST_MS(1.0)
    load: float = options.LOAD(0.6)
    cores: int = options.CORES(2)
    seconds: float = options.SECONDS(10.0, key="")
    warm_up: float = options.WARM_UP(3.0)
    repeat: int = options.REPEAT(3)

    def measure(self, bench: Bench) -> PathFigures:
        """Some runs in which CPU time is read, and one that is traced."""
        found = PathFigures()
        rate = self.load * self.cores / (self.cost_ms / 1e3)
        with notes() as folder, traced(folder), bench.cluster(self.cores) as cluster:

            def submit(seed: int) -> Run:
                source, work = Generator(rate=rate, seed=seed), Burn(self.cost_ms / 1e3)
                return cluster.submit(pipeline("path", source, work, NoSink(), cores=self.cores))

            for number in bench.runs(self.repeat, f"CPU time at {rate:,.0f} tuples per second"):
                with submit(number) as run:
                    self._read_cpu(cluster, run, found)
            bench.say("following tuples from hop to hop")
            (folder / ON).touch()
            with submit(self.repeat) as run:
                watch(run, self.warm_up)
                began = time.time()
                watch(run, self.seconds)
                run.stop(60.0)
            found.hops_us, found.sampled = hops_of(read_notes(folder), began)
        return found

    def _read_cpu(self, cluster: BaseCluster, run: Run, found: PathFigures) -> None:
        watch(run, self.warm_up)
        run.reset_metrics()
        before, started = _cpu_of(cluster, run), time.monotonic()
        watch(run, self.seconds)
        after, took_s = _cpu_of(cluster, run), time.monotonic() - started
        metrics = run.metrics()
        run.cancel()
        if not metrics.rows_out:
            raise BenchError("rows at the sink", "be some", 0)
        found.rows_s = metrics.rows_out / took_s
        spent = per_tuple_ms(before, after, metrics.rows_out, self.cost_ms)
        for role, ms in spent.items():
            found.roles_ms.setdefault(role, []).append(ms)
        found.cpu_beyond_ms_per_tuple.append(sum(spent.values()))
        found.latency_p50_ms.append(metrics.latency.percentile_s(50) * 1e3)


# CPU time


def per_tuple_ms(
    before: Mapping[str, float], after: Mapping[str, float], rows: int, cost_ms: float
) -> dict[str, float]:
    """CPU time per tuple by role, in milliseconds, without what the operator has burnt."""
    spent = {role: (after[role] - before.get(role, 0.0)) * 1e3 / rows for role in after}
    spent["task"] = spent.get("task", 0.0) - cost_ms
    return spent


def _cpu_of(cluster: BaseCluster, run: Run) -> dict[str, float]:
    """User and system time of all processes of this machine that belong to the run, by role."""
    known = roles(cluster, run) | {os.getpid(): "driver"}
    spent: dict[str, float] = dict.fromkeys(("source", "main", "task", "sink", "node"), 0.0)
    for pid, name, seconds in processes(os.getpid()):
        role = known.get(pid) or ("jvm" if name == "java" else "hosts")
        spent[role] = spent.get(role, 0.0) + seconds
    return spent


def processes(root: int, proc: Path = PROC) -> Iterator[tuple[int, str, float]]:
    """A process and all that descend from it: number, name, and CPU time in seconds."""
    seen: dict[int, tuple[int, str, float]] = {}
    for folder in proc.glob("[0-9]*"):
        with suppress(OSError):  # it has just ended
            name, fields = stat_of(folder)
            seen[int(folder.name)] = int(fields[1]), name, cpu_s(fields)
    children: dict[int, list[int]] = {}
    for pid, (parent, _, _) in seen.items():
        children.setdefault(parent, []).append(pid)
    left = [root]
    while left:
        pid = left.pop()
        if pid in seen:
            yield pid, *seen[pid][1:]
        left += children.get(pid, [])


# Hops


Times = dict[str, tuple[float, ...]]
"""What a process has noted of a tuple: times (see `TracedMailbox`) by `sent KIND`, `taken KIND`."""
Notes = dict[str, dict[int, Times]]
"""By process (tasks are one), and by birth."""


def read_notes(folder: Path) -> Notes:
    """What traced processes have noted in a folder."""
    seen: Notes = {}
    for path in folder.iterdir():
        name = path.name.rpartition(".")[0]
        who = "task" if "-t" in name else name.partition(".")[0]
        for line in path.read_text().splitlines():  # of the file `on`, none
            what, kind, birth, *times = line.split()
            noted = seen.setdefault(who, {}).setdefault(int(birth), {})
            noted[f"{what} {kind}"] = tuple(map(float, times))
    return seen


def hops_of(seen: Notes, since: float) -> tuple[dict[str, dict[str, Samples]], int]:
    """The parts of every hop, over the tuples that were seen on all of them; and their number.

    A tuple that was the first of its message in one process and not in another is left out; if
    none is left, that is a `BenchError`.
    """
    found: dict[str, dict[str, Samples]] = {}
    sampled = 0
    for birth in seen.get(SOURCE, {}):
        way = _way(seen, birth) if birth / 1e6 >= since else None
        if way is None:
            continue
        sampled += 1
        for hop, parts in way.items():
            for part, seconds in parts.items():
                values = found.setdefault(hop, {}).setdefault(part, [])
                values.append(round(seconds * 1e6, 1))
    if not sampled:
        raise BenchError(
            "tuples seen on every hop", "be some", 0, "trace for longer, or at less load"
        )
    return found, sampled


def _way(everywhere: Notes, birth: int) -> dict[str, dict[str, float]] | None:
    """One tuple's way, in seconds; None if some process has not noted it."""
    way: dict[str, dict[str, float]] = {}
    came = birth / 1e6  # when it was due, and then when its message was sent
    arriving = ""
    for hop, who, leaving in HOPS:
        seen = everywhere.get(who, {}).get(birth, {})
        parts: dict[str, float] = {}
        begun = done = came
        if arriving:
            if f"taken {arriving}" not in seen:
                return None
            idle, woken, begun, done = seen[f"taken {arriving}"]
            parts = _arrival(came, idle, woken, begun)
        if leaving:
            if f"sent {leaving}" not in seen:
                return None
            came, after, *operator = seen[f"sent {leaving}"]
            parts |= {"operator": operator[0]} if operator else {}
            parts["work"] = came - begun - sum(operator)
            parts["send"] = after - came
        else:
            parts["work"] = done - begun
        way[hop] = parts
        arriving = leaving
    way["in all"] = {"total": done - birth / 1e6}
    return way


def _arrival(sent: float, idle: float, woken: float, taken: float) -> dict[str, float]:
    """The parts of the time between sending a message and taking it."""
    if sent >= woken:  # it came while the receiver was at work
        return {"queue": max(0.0, taken - sent), "wake-up": 0.0, "python": 0.0}
    queue = max(0.0, idle - sent)
    return {"queue": queue, "wake-up": woken - max(sent, idle), "python": taken - woken}
