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
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from elasticutor.driver.cluster import BaseCluster
from elasticutor.driver.run import Run
from elasticutor.lab.bench.figures import Spread
from elasticutor.lab.bench.live import BenchError, Machine, Progress, silent, spread_as_dict, watch
from elasticutor.lab.bench.tracing import ON
from elasticutor.lab.bench.work import Burn
from elasticutor.sinks import NoSink
from elasticutor.sources import Generator
from elasticutor.topology import Topology

SOURCE, OPERATOR, SINK = "tuples", "burn", "out"
_TICKS_S = os.sysconf("SC_CLK_TCK")

HOPS = (
    ("source", SOURCE, "Tuples"),
    ("main, in", OPERATOR, "Chunk"),
    ("task", "task", "Result"),
    ("main, out", OPERATOR, "Tuples"),
    ("sink", SINK, ""),
)
"""The processes on a tuple's way, by what they are called here; and the message each sends on."""


@dataclass(frozen=True, slots=True)
class PathBench:
    """What was measured."""

    beyond_ms: Spread
    """CPU time per tuple beyond the operator's own, of all processes together, over the runs."""
    roles_ms: dict[str, Spread]
    """The same by kind of process."""
    hops_us: dict[str, dict[str, Spread]]
    """By hop and part of it, in microseconds: of a sample of tuples."""
    latency_ms: Spread
    """Median latency of the runs in which CPU time was read."""
    sampled: int
    rows_s: float
    cost_ms: float
    load: float
    tasks: int
    machine: Machine

    def as_dict(self) -> dict[str, Any]:
        """Everything, for `--json`."""
        return {
            **spread_as_dict("cpu_beyond_ms_per_tuple", self.beyond_ms),
            "cpu_beyond_ms_by_role": {
                role: spread.median for role, spread in self.roles_ms.items()
            },
            **spread_as_dict("latency_p50_ms", self.latency_ms),
            "hops_us": {
                hop: {
                    part: {"p50": spread.median, "p10": spread.low, "p90": spread.high}
                    for part, spread in parts.items()
                }
                for hop, parts in self.hops_us.items()
            },
            "sampled": self.sampled,
            "rows_s": round(self.rows_s, 1),
            "cost_ms": self.cost_ms,
            "load": self.load,
            "tasks": self.tasks,
            **self.machine.as_dict(),
        }


def bench_path(
    cluster: BaseCluster,
    folder: Path,
    *,
    cost_ms: float = 1.0,
    load: float = 0.6,
    cores: int = 2,
    seconds: float = 10.0,
    warm_up_s: float = 3.0,
    repeat: int = 3,
    progress: Progress = silent,
) -> PathBench:
    """Measure CPU time per tuple, and follow a sample of tuples from hop to hop.

    Args:
        cluster: Where; it was started inside `tracing.traced(folder)`.
        folder: Where traced processes take notes.
        cost_ms: CPU time that each tuple takes.
        load: Of the tasks: offered rate over what they could do at most.
        cores: Tasks of the executor.
        seconds: How long to measure each time.
        warm_up_s: How long to wait before.
        repeat: Runs in which CPU time is read; one more is traced.
        progress: Told about each run.
    """
    machine = Machine()
    rate = load * cores / (cost_ms / 1e3)
    beyond: list[float] = []
    roles: dict[str, list[float]] = {}
    latencies: list[float] = []
    rows_s = 0.0

    def submit(seed: int) -> Run:
        topology = Topology("path")
        stream = topology.source(SOURCE, Generator(rate=rate, seed=seed))
        burnt = topology.operator(OPERATOR, Burn(cost_ms / 1e3), stream, key="key", cores=cores)
        topology.sink(SINK, NoSink(), burnt)
        return cluster.submit(topology)

    for number in range(repeat):
        progress(f"CPU time at {rate:,.0f} tuples per second, run {number + 1} of {repeat}")
        machine.glance()
        with submit(number) as run:
            watch(run, warm_up_s)
            run.reset_metrics()
            before, started = _cpu_of(cluster, run), time.monotonic()
            watch(run, seconds)
            after, took_s = _cpu_of(cluster, run), time.monotonic() - started
            metrics = run.metrics()
            run.cancel()
        if not metrics.rows_out:
            raise BenchError("rows at the sink", "be some", 0)
        rows_s = metrics.rows_out / took_s
        spent = per_tuple_ms(before, after, metrics.rows_out, cost_ms)
        for role, ms in spent.items():
            roles.setdefault(role, []).append(ms)
        beyond.append(sum(spent.values()))
        latencies.append(metrics.latency.percentile_s(50) * 1e3)
    progress("following tuples from hop to hop")
    (folder / ON).touch()
    with submit(repeat) as run:
        watch(run, warm_up_s)
        began = time.time()
        watch(run, seconds)
        run.stop(60.0)
    hops, sampled = hops_of(read_notes(folder), began)
    return PathBench(
        Spread.of(beyond),
        {role: Spread.of(values) for role, values in roles.items()},
        hops,
        Spread.of(latencies),
        sampled,
        rows_s,
        cost_ms,
        load,
        cores,
        machine,
    )


# CPU time


def per_tuple_ms(
    before: Mapping[str, float], after: Mapping[str, float], rows: int, cost_ms: float
) -> dict[str, float]:
    """CPU time per tuple by role, in milliseconds, without what the operator has burnt.

    Example:
        >>> before, after = {"main": 1.0, "task": 2.0}, {"main": 1.05, "task": 3.1}
        >>> spent = per_tuple_ms(before, after, rows=1000, cost_ms=1.0)
        >>> {role: round(ms, 3) for role, ms in spent.items()}
        {'main': 0.05, 'task': 0.1}
    """
    spent = {role: (after[role] - before.get(role, 0.0)) * 1e3 / rows for role in after}
    spent["task"] = spent.get("task", 0.0) - cost_ms
    return spent


def _cpu_of(cluster: BaseCluster, run: Run) -> dict[str, float]:
    """User and system time of all processes of this machine that belong to the run, by role."""
    participants = run._supervisor.pids
    known = {seen.pid: "task" for seen in run.tasks(OPERATOR, 0).values()}
    known[participants[f"{OPERATOR}.0"]] = "main"
    known[participants[f"{SOURCE}.0"]] = "source"
    known[participants[SINK]] = "sink"
    known |= {node.pid: "node" for node in cluster._hub.nodes.values()}
    known[os.getpid()] = "driver"
    spent: dict[str, float] = dict.fromkeys(("source", "main", "task", "sink", "node"), 0.0)
    for pid, name, seconds in processes(os.getpid()):
        role = known.get(pid) or ("jvm" if name == "java" else "hosts")
        spent[role] = spent.get(role, 0.0) + seconds
    return spent


def processes(root: int, proc: Path = Path("/proc")) -> Iterator[tuple[int, str, float]]:
    """A process and all that descend from it: number, name, and CPU time in seconds."""
    seen: dict[int, tuple[int, str, float]] = {}
    for path in proc.glob("[0-9]*/stat"):
        try:
            text = path.read_text()
        except OSError:
            continue  # it has just ended
        # The name, in brackets, may have blanks and brackets of its own.
        head, _, tail = text.rpartition(")")
        fields = tail.split()
        ticks = int(fields[11]) + int(fields[12])
        seen[int(path.parent.name)] = int(fields[1]), head.partition("(")[2], ticks / _TICKS_S
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


@dataclass(slots=True)
class _Seen:
    """What a process has noted of a tuple."""

    taken: dict[str, tuple[float, ...]] = field(default_factory=dict)
    """By kind of message: idle since, woken up, taken, done."""
    sent: dict[str, tuple[float, ...]] = field(default_factory=dict)
    """By kind of message: before and after; of a result also the time in the operator."""


Notes = dict[str, dict[int, _Seen]]
"""By process (tasks are one), and by birth."""


def read_notes(folder: Path) -> Notes:
    """What traced processes have noted in a folder."""
    notes: Notes = {}
    for path in folder.iterdir():
        name = path.name.rpartition(".")[0]
        who = "task" if "-t" in name else name.partition(".")[0]
        if path.name != ON:
            _read(path.read_text().splitlines(), notes.setdefault(who, {}))
    return notes


def _read(lines: Iterable[str], seen: dict[int, _Seen]) -> None:
    for line in lines:
        what, kind, birth, *times = line.split()
        one = seen.setdefault(int(birth), _Seen())
        getattr(one, what)[kind] = tuple(map(float, times))


def hops_of(notes: Notes, since: float) -> tuple[dict[str, dict[str, Spread]], int]:
    """The parts of every hop, over the tuples that were seen on all of them; and their number.

    A tuple that was the first of its message in one process and not in another is left out.

    Raises:
        BenchError: There is none.
    """
    found: dict[str, dict[str, list[float]]] = {}
    sampled = 0
    for birth in notes.get(SOURCE, {}):
        way = _way(notes, birth) if birth / 1e6 >= since else None
        if way is None:
            continue
        sampled += 1
        for hop, parts in way.items():
            for part, seconds in parts.items():
                found.setdefault(hop, {}).setdefault(part, []).append(seconds * 1e6)
    if not sampled:
        raise BenchError(
            "tuples seen on every hop", "be some", 0, "trace for longer, or at less load"
        )
    spreads = {
        hop: {part: Spread.of(np.round(values, 1)) for part, values in parts.items()}
        for hop, parts in found.items()
    }
    return spreads, sampled


def _way(notes: Notes, birth: int) -> dict[str, dict[str, float]] | None:
    """One tuple's way, in seconds; None if some process has not noted it."""
    way: dict[str, dict[str, float]] = {}
    came = birth / 1e6  # when it was due, and then when its message was sent
    arriving = ""
    for hop, who, leaving in HOPS:
        seen = notes.get(who, {}).get(birth)
        if seen is None:
            return None
        parts: dict[str, float] = {}
        begun = done = came
        if arriving:
            if arriving not in seen.taken:
                return None
            idle, woken, begun, done = seen.taken[arriving]
            parts = _arrival(came, idle, woken, begun)
        if leaving:
            if leaving not in seen.sent:
                return None
            came, after, *operator = seen.sent[leaving]
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
    """The parts of the time between sending a message and taking it.

    Example:
        A receiver that was busy until 3, woken up at 5 and took it at 6; one that was idle.

        >>> _arrival(1.0, 3.0, 5.0, 6.0)
        {'queue': 2.0, 'wake-up': 2.0, 'python': 1.0}
        >>> _arrival(4.0, 3.0, 5.0, 6.0)
        {'queue': 0.0, 'wake-up': 1.0, 'python': 1.0}
        >>> _arrival(5.5, 3.0, 5.0, 6.0)
        {'queue': 0.5, 'wake-up': 0.0, 'python': 0.0}
    """
    if sent >= woken:  # it came while the receiver was at work
        return {"queue": max(0.0, taken - sent), "wake-up": 0.0, "python": 0.0}
    queue = max(0.0, idle - sent)
    return {"queue": queue, "wake-up": woken - max(sent, idle), "python": taken - woken}
