"""`elasticutor bench driver`: what the driver of a large run costs, in shares of a core.

The driver is the real one: its hub, a supervisor, the scheduler and its thread, and real sockets.
The executors, sources and sinks are stand-ins (`lab.bench.alone.stand_ins`): a few processes that
send, over as many connections as there are executors, what these would send and as often. What is
measured is the CPU time of this process, which is the driver and nothing else.
"""

from __future__ import annotations

import multiprocessing
import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from typing import Any

from elasticutor.driver.cluster import BaseCluster
from elasticutor.driver.supervisor import Supervisor
from elasticutor.lab.bench import options
from elasticutor.lab.bench.alone.stand_ins import StandInWork, be_ends, be_nodes
from elasticutor.lab.bench.declare import Benchmark, Figures, figure
from elasticutor.lab.bench.live import Bench, BenchError, notes
from elasticutor.lab.bench.work import Count, CountAndSum
from elasticutor.lab.options import option
from elasticutor.lab.proc import PROC, cpu_s, stat_of
from elasticutor.sinks import NoSink
from elasticutor.sources import Generator
from elasticutor.topology import Topology

_CORES = 32
"""Of a node."""
_SPARE = 1.25
"""Cores for every executor."""
_PROCESSES = 4
"""That stand in for nodes."""
_SOURCES = 4
_START_S = 300.0
_END_S = 20.0


class DriverFigures(Figures):
    """What was measured."""

    cpu: float = figure("CPU, of a core", ".3f", digits=4, better="lower")
    threads: dict[str, float] = figure("of that, by thread", ".3f", digits=4)
    messages_s: float = figure("messages taken in, a second", ".0f", digits=1)
    measurements_due_s: float = figure("measurements due, a second", ".0f", digits=1)
    """If it takes in fewer messages, it cannot keep up."""
    measure_s: float = figure()
    """Between two measurements of an executor."""
    plans: int = figure()
    """Executors whose cores the scheduler planned to change."""
    start_s: float = figure("start, s", ".1f", digits=3, better="lower")
    """From the submission until all participants were up, and sources would send."""
    start_cpu_s: float = figure("start, s of CPU", ".1f", digits=3, better="lower")
    dropped: int = figure()


class DriverBench(Benchmark):
    """How much of a core the driver takes: hub, supervisor, scheduler and sockets are real."""

    about = "The driver of {executors} executors"

    executors: int = option(1000, "Of the run; stand-ins for them.", min=2, key="executors")
    seconds: float = options.SECONDS(20.0, min=0.5)
    warm_up: float = options.WARM_UP(5.0)
    seed: int = options.SEED(1, help="For the amounts of work.")

    def measure(self, bench: Bench) -> DriverFigures:
        """Measure the CPU time of this process, once all executors are up."""
        halves = (self.executors - self.executors // 2, self.executors // 2)
        work = [StandInWork(count, self.seed + number) for number, count in enumerate(halves)]
        bench.say(f"starting stand-ins for {self.executors} executors")
        with notes() as folder, _Cluster(work) as cluster:
            began = _Reading.now(cluster)
            run = cluster.submit(
                _topology(halves),
                journal=folder / "journal.jsonl",
                start_timeout_s=_START_S,
                patience_s=_START_S,
            )
            started = _Reading.now(cluster)
            bench.say(f"measuring for {self.seconds:g} s, after {self.warm_up:g} s")
            # Sleeps, since whatever this process does meanwhile would count as the driver's.
            time.sleep(self.warm_up)
            before = _Reading.now(cluster)
            time.sleep(self.seconds)
            if run.phase != "running":
                raise BenchError("run", "go on", f"it is {run.phase}")
            after = _Reading.now(cluster)
            bench.machine.glance()
            plans = len(run.events("cores planned"))
            dropped = cluster.hub.mail.dropped
            measure_s = run.supervisor.tempo.measure_s
            run.cancel(_END_S)
        lasted = after.at - before.at
        threads = Counter(after.threads)
        threads.subtract(before.threads)
        return DriverFigures(
            cpu=(after.cpu_s - before.cpu_s) / lasted,
            threads={name: spent / lasted for name, spent in threads.most_common() if spent > 0},
            messages_s=(after.messages - before.messages) / lasted,
            measurements_due_s=self.executors / measure_s,
            measure_s=measure_s,
            plans=plans,
            start_s=started.at - began.at,
            start_cpu_s=started.cpu_s - began.cpu_s,
            dropped=dropped,
        )


def _topology(halves: tuple[int, int]) -> Topology:
    topology = Topology("driver")
    stream = topology.source("clicks", Generator(rate=1.0, keys=10), tasks=_SOURCES)
    parsed = topology.operator("parse", CountAndSum(), stream, key="key", executors=halves[0])
    counted = topology.operator("count", Count(), parsed, key="key", executors=halves[1])
    topology.sink("out", NoSink(), counted)
    return topology


@dataclass(frozen=True, slots=True)
class _Reading:
    """What this process has done so far."""

    at: float
    cpu_s: float
    messages: int
    threads: dict[str, float]

    @classmethod
    def now(cls, cluster: BaseCluster) -> _Reading:
        return cls(time.monotonic(), time.process_time(), cluster.hub.taken, _thread_times())


def _thread_times() -> dict[str, float]:
    """Seconds of CPU by thread, threads of one name together; empty where the system has none."""
    names = {thread.native_id: thread.name for thread in threading.enumerate()}
    spent: dict[str, float] = {}
    for folder in (PROC / "self" / "task").glob("[0-9]*"):
        with suppress(OSError):  # it has ended
            comm, fields = stat_of(folder)
            name = names.get(int(folder.name), comm)
            spent[name] = spent.get(name, 0.0) + cpu_s(fields)
    return spent


class _Cluster(BaseCluster):
    """A cluster whose nodes, executors, sources and sinks are stand-ins."""

    def __init__(self, work: Sequence[StandInWork]) -> None:
        self._work = tuple(work)
        self._hosts: list[BaseProcess] = []
        executors = sum(one.executors for one in work)
        nodes = max(_PROCESSES, round(executors * _SPARE / _CORES + 0.5))
        self._names = [f"n{number:03}" for number in range(nodes)]
        super().__init__(host="127.0.0.1", port=0, expected=nodes, start_timeout_s=_START_S)

    def _start_nodes(self, generation: int = 0) -> None:
        for first in range(_PROCESSES):
            self._start(be_nodes, self._names[first::_PROCESSES], _CORES)

    def _start_ends(self, supervisor: Supervisor, numbers: Sequence[int]) -> None:
        for number in numbers:
            self._start(be_ends, supervisor.run, number)

    def _start(self, target: Any, *which: Any) -> None:
        context = multiprocessing.get_context("spawn")
        process = context.Process(
            target=target, args=(self._bootstrap, self._work, *which), daemon=True
        )
        process.start()
        self._hosts.append(process)

    def _why_not(self) -> str:
        ended = [host for host in self._hosts if not host.is_alive()]
        return f"a process of stand-ins has ended with {ended[0].exitcode}" if ended else ""

    def _stop_hosts(self) -> None:
        until = time.monotonic() + _END_S
        for host in self._hosts:
            host.join(max(0.1, until - time.monotonic()))
            if host.is_alive():
                host.kill()
                host.join()
