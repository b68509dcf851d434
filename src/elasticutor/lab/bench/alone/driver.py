"""`elasticutor bench driver`: what the driver of a large run costs, in shares of a core.

The driver is the real one: its hub, a supervisor, the scheduler and its thread, and real sockets.
The executors, sources and sinks are stand-ins (`lab.bench.alone.stand_ins`): a few processes that
send, over as many connections as there are executors, what these would send and as often. What is
measured is the CPU time of this process, which is the driver and nothing else.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar

from elasticutor.driver.cluster import BaseCluster
from elasticutor.driver.run import Run
from elasticutor.driver.supervisor import Supervisor
from elasticutor.errors import BadValueError
from elasticutor.lab.bench.alone.stand_ins import StandInWork, be_ends, be_nodes
from elasticutor.lab.bench.live import BenchError, Machine, Progress, silent
from elasticutor.lab.bench.operators import COUNTS_AND_SUMS, CountAndSum
from elasticutor.operator import Operator, State
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


@dataclass(frozen=True, slots=True)
class DriverBench:
    """What was measured."""

    cpu: float
    """CPU time of the driver per second: its share of a core."""
    threads: dict[str, float]
    """The same by thread, those first that have the most."""
    messages_s: float
    """Messages that it took in per second."""
    due_s: float
    """Measurements that were due per second; if it takes in fewer, it cannot keep up."""
    measure_s: float
    """Between two measurements of an executor."""
    plans: int
    """Executors whose cores the scheduler planned to change."""
    start_s: float
    """From the submission until all participants were up, and sources would send."""
    start_cpu_s: float
    """CPU time of the driver until then."""
    dropped: int
    executors: int
    seconds: float
    machine: Machine

    def as_dict(self) -> dict[str, Any]:
        """Everything, for `--json`."""
        return {
            "cpu": round(self.cpu, 4),
            "threads": {name: round(share, 4) for name, share in self.threads.items()},
            "messages_s": round(self.messages_s, 1),
            "measurements_due_s": round(self.due_s, 1),
            "measure_s": self.measure_s,
            "plans": self.plans,
            "start_s": round(self.start_s, 3),
            "start_cpu_s": round(self.start_cpu_s, 3),
            "dropped": self.dropped,
            "executors": self.executors,
            "seconds": self.seconds,
            **self.machine.as_dict(),
        }


def bench_driver(
    *,
    executors: int = 1000,
    seconds: float = 20.0,
    warm_up_s: float = 5.0,
    seed: int = 1,
    progress: Progress = silent,
) -> DriverBench:
    """Measure the CPU time of a driver.

    Args:
        executors: Of two operators, half of them each; at least 2.
        seconds: How long to measure.
        warm_up_s: How long to wait before that, from when all are up.
        seed: For the amounts of work.
        progress: Told what is being done.
    """
    if executors < 2:
        raise BadValueError("executors", "be at least 2", executors)
    machine = Machine()
    machine.glance()
    halves = (executors - executors // 2, executors // 2)
    work = [StandInWork(count, seed + number) for number, count in enumerate(halves)]
    progress(f"starting stand-ins for {executors} executors")
    with TemporaryDirectory(prefix="elasticutor-bench-") as folder, _Cluster(work) as cluster:
        began, cpu_before = time.monotonic(), time.process_time()
        run = cluster.submit(
            _topology(halves),
            journal=Path(folder) / "journal.jsonl",
            start_timeout_s=_START_S,
            patience_s=_START_S,
        )
        start_s, start_cpu_s = time.monotonic() - began, time.process_time() - cpu_before
        progress(f"measuring for {seconds:g} s, after {warm_up_s:g} s")
        _let_pass(run, warm_up_s)
        before = _Reading.now(cluster)
        _let_pass(run, seconds)
        after = _Reading.now(cluster)
        machine.glance()
        plans = len(run.events("cores planned"))
        dropped = cluster.hub.mail.dropped
        tempo = run.supervisor.tempo
        run.cancel(_END_S)
    lasted = after.at - before.at
    threads = Counter(after.threads)
    threads.subtract(before.threads)
    return DriverBench(
        cpu=(after.cpu_s - before.cpu_s) / lasted,
        threads={name: spent / lasted for name, spent in threads.most_common() if spent > 0},
        messages_s=(after.messages - before.messages) / lasted,
        due_s=executors / tempo.measure_s,
        measure_s=tempo.measure_s,
        plans=plans,
        start_s=start_s,
        start_cpu_s=start_cpu_s,
        dropped=dropped,
        executors=executors,
        seconds=seconds,
        machine=machine,
    )


def _topology(halves: tuple[int, int]) -> Topology:
    topology = Topology("driver")
    stream = topology.source("clicks", Generator(rate=1.0, keys=10), tasks=_SOURCES)
    parsed = topology.operator("parse", CountAndSum(), stream, key="key", executors=halves[0])
    counted = topology.operator("count", _Keep(), parsed, key="key", executors=halves[1])
    topology.sink("out", NoSink(), counted)
    return topology


class _Keep(Operator):
    """Hands rows on; never called, since its executors are stand-ins."""

    output: ClassVar[Any] = COUNTS_AND_SUMS

    def process(self, key: Any, row: Any, state: State) -> Iterator[Any]:
        """The row as it is."""
        yield row


def _let_pass(run: Run, seconds: float) -> None:
    """Sleep: whatever this process does meanwhile would count as the driver's."""
    time.sleep(seconds)
    if run.phase != "running":
        raise BenchError("run", "go on", f"it is {run.phase}")


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
    tick_s = 1.0 / os.sysconf("SC_CLK_TCK")
    spent: Counter[str] = Counter()
    for folder in Path("/proc/self/task").glob("[0-9]*"):
        try:
            told = (folder / "stat").read_text()
        except OSError:  # it has ended
            continue
        comm, _, rest = told.partition("(")[2].rpartition(")")
        fields = rest.split()
        name = names.get(int(folder.name), comm)
        spent[name] += (int(fields[11]) + int(fields[12])) * tick_s  # type: ignore[assignment]
    return dict(spent)


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
            names = self._names[first::_PROCESSES]
            self._start(be_nodes, self._bootstrap, names, _CORES, self._work)

    def _start_ends(self, supervisor: Supervisor, numbers: Sequence[int]) -> None:
        for number in numbers:
            self._start(be_ends, self._bootstrap, supervisor.run, number, self._work)

    def _start(self, target: Any, *args: Any) -> None:
        process = multiprocessing.get_context("spawn").Process(
            target=target, args=args, daemon=True
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
