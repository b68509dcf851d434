"""Clusters: nodes that offer cores, and the runs on them.

`BaseCluster` is all of a cluster but how its processes come to be: `elasticutor.spark.Cluster` has
Spark host them, `ProcessCluster` starts them on this machine.
"""

from __future__ import annotations

import getpass
import logging
import math
import multiprocessing
import os
import secrets
import signal
import tempfile
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from elasticutor.core.config import LIVE, ExecutorConfig
from elasticutor.core.ids import NodeId, Peer
from elasticutor.core.paradigm import PARADIGMS, Paradigm
from elasticutor.core.placement import place
from elasticutor.errors import BadValueError
from elasticutor.runtime.blueprint import Blueprint, in_paradigm
from elasticutor.runtime.failures import described_end
from elasticutor.runtime.hosts import Bootstrap, NodesWanted, host_ends, host_nodes
from elasticutor.runtime.hub import ClusterError, Hub
from elasticutor.runtime.journal import Journal
from elasticutor.runtime.keeping import keeping_of, opened, release
from elasticutor.runtime.phases import RunPhase, Terms
from elasticutor.runtime.run import Run
from elasticutor.runtime.scheduling import CoreScheduler
from elasticutor.runtime.security import ClusterKeys
from elasticutor.runtime.specs import Tempo
from elasticutor.runtime.supervisor import Supervisor
from elasticutor.topology import Topology

log = logging.getLogger(__name__)

START_TIMEOUT_S = 60.0

SCHEDULE_S = 1.0
"""How often the scheduler may make a change that can wait."""

EPOCH_INTERVAL_S = 2.0
"""From one epoch to the next, unless a run has its own."""

PATIENCE_S = 60.0
"""How long an answer may take."""

RESTARTS = 5
"""How often the same thing may fail without an epoch committed in between."""

LATENCY_TARGET_S = 0.1
"""The mean latency that the scheduler keeps unless a run has its own."""

_LONG_S = 30.0
"""Nodes that have lasted so long are started again at once when all are lost."""

_END_S = 15.0
"""How long a host may take to end by itself."""


def free_cores(hub: Hub, without: tuple[str, Peer] | None = None) -> dict[NodeId, int]:
    """The cores of every node that no executor has; those of one executor may count as free."""
    used: Counter[NodeId] = Counter()
    for name, supervisor in hub.runs.items():
        if supervisor.phase is not RunPhase.ENDED:
            for who, cores in supervisor.cores.items():
                if (name, who) != without:
                    used.update(cores)
    return {node: seen.cores - used[node] for node, seen in hub.nodes.items()}


def spread_cores(cores: int, home: NodeId, free: Mapping[NodeId, int]) -> dict[NodeId, int]:
    """So many cores: from the executor's own node first, then from where most are free."""
    if type(cores) is not int or cores < 0:
        raise BadValueError("cores", "be a whole number, or one for each node", cores)
    left, wanted = Counter(dict(free)), Counter[NodeId]()
    if cores > sum(free.values()):
        raise BadValueError(
            "cores", f"be at most the {sum(free.values())} that no other executor has", cores
        )
    for _ in range(cores):
        node = home if left[home] > 0 else max(sorted(left), key=lambda name: left[name])
        wanted[node] += 1
        left[node] -= 1
    return dict(wanted)


class BaseCluster(ABC):
    """Nodes with cores, and the runs on them; a context manager."""

    def __init__(
        self,
        *,
        host: str,
        port: int,
        expected: int,
        start_timeout_s: float,
        schedule_s: float = SCHEDULE_S,
    ) -> None:
        if not 0 <= schedule_s < math.inf:
            raise BadValueError("schedule_s", "be finite and at least 0", schedule_s, "0: never")
        self.id = secrets.token_hex(4)
        self._keys = ClusterKeys.generate()
        self._hub = Hub(self._keys, host, port)
        self._runs = 0
        self._generation = 0
        self._nodes_at = -math.inf  # when all nodes were last lost
        self._nodes_pause_s = 0.0
        self._stopped = False
        self._schedule_s = schedule_s
        self._scheduler: CoreScheduler | None = None
        address = self._hub.endpoint.tcp.rpartition(":")
        self._bootstrap = Bootstrap(
            self.id, self._keys, self._hub.endpoint, (host, int(address[2]))
        )
        try:
            self._start_nodes()
            self._hub.await_nodes(expected, start_timeout_s, self._why_not)
            if schedule_s:
                self._scheduler = CoreScheduler(self._hub, schedule_s)
        except BaseException:
            self.stop()
            raise

    # How processes come to be

    @abstractmethod
    def _start_nodes(self, generation: int = 0) -> None:
        """Have the nodes hosted; does not wait for them.

        Args:
            generation: How often they have all been lost: then others take their places.
        """

    @abstractmethod
    def _why_not(self) -> str:
        """Why no more nodes will come; empty as long as they may."""

    @abstractmethod
    def _start_ends(self, supervisor: Supervisor, numbers: Sequence[int]) -> None:
        """Have hosts of these numbers for a run's sources and sinks; does not wait for them."""

    @abstractmethod
    def _stop_hosts(self) -> None:
        """Wait for the hosts to end, or make them; nothing may be left."""

    def _hosts_for(self, ends: int) -> int:
        """How many hosts there should be for so many sources and sinks."""
        return 1

    # What a user does

    @property
    def nodes(self) -> dict[str, int]:
        """The nodes that are up, and the cores of each."""
        return {node: seen.cores for node, seen in sorted(self._hub.nodes.items())}

    @property
    def free_cores(self) -> dict[str, int]:
        """The cores of each node that no executor has."""
        return {str(node): n for node, n in self._hub.call(lambda: free_cores(self._hub)).items()}

    @property
    def runs(self) -> list[Run]:
        """The runs that have not ended."""
        return [
            Run(self._hub, supervisor)
            for supervisor in list(self._hub.runs.values())
            if supervisor.phase is not RunPhase.ENDED
        ]

    def submit(
        self,
        topology: Topology,
        *,
        latency_target: float | None = LATENCY_TARGET_S,
        paradigm: Paradigm = "elastic",
        balance_s: float = 0.1,
        measure_s: float = 0.25,
        config: ExecutorConfig | None = None,
        journal: str | Path | None = None,
        keep: bool = False,
        checkpoint: str | Path | None = None,
        epoch_interval: float = EPOCH_INTERVAL_S,
        epoch: int | None = None,
        restarts: int = RESTARTS,
        patience_s: float = PATIENCE_S,
        start_timeout_s: float = START_TIMEOUT_S,
    ) -> Run:
        """Start a topology, and return when its sources send.

        Args:
            topology: What to run.
            latency_target: The mean latency that the scheduler should keep, in seconds, by giving
                executors more or fewer cores; None: they keep the cores that they start with.
            paradigm: "elastic"; or one of its rivals: "naive" (elastic, but cores are chosen
                without regard to where state is), "static" (one core per executor, and nothing ever
                moves) or "rc" (resource-centric: one core per executor, and shards move between
                executors while all sources pause). In the last two an operator with `executors=e`
                and `cores=c` has e * c executors.
            balance_s: How often each executor looks at the balance of its tasks; 0: never.
            measure_s: How often everybody sends measurements.
            config: Settings of the executors, but for their number of shards.
            journal: The file for events; default: one in the directory for temporary files.
            keep: Keep the processes when the run is drained, so that state can be read.
            checkpoint: Where state, offsets and what sinks have published are made durable: a
                directory, or any URI that `pyarrow.fs` knows (`hdfs://`, `s3://`, `gs://`). If
                something is there, the run goes on from it; whatever is lost meanwhile, it goes
                on from the last epoch. None: a loss ends the run.
            epoch_interval: Seconds from the end of one epoch to that of the next.
            epoch: The epoch to go on from, if not the newest: after damage.
            restarts: How often the same part may be lost without an epoch committed in between.
            patience_s: How long any answer may take before whoever owes it counts as lost.
            start_timeout_s: How long it may take to start.

        Raises:
            BadValueError: The topology has a mistake, or wants more cores than are free and nobody
                schedules them.
            CheckpointError: The checkpoint is damaged, does not fit the topology, or is in use.
            Exception: Whatever kept it from starting.
        """
        if paradigm not in PARADIGMS:
            raise BadValueError("paradigm", f"be one of {list(PARADIGMS)}", paradigm)
        if latency_target is not None and not 0 < latency_target < math.inf:
            raise BadValueError("latency_target", "be seconds above 0, or None", latency_target)
        plan = in_paradigm(topology.plan(), paradigm)
        if self._stopped:
            raise ClusterError("cluster", "be running", "a run after its end")
        if not self._hub.nodes:
            gone = "; ".join(f"{node}: {why}" for node, why in self._hub.gone.items())
            raise ClusterError("cluster", "have nodes", f"none. Lost are {gone}", "make a new one")
        if balance_s < 0 or measure_s <= 0:
            raise BadValueError("intervals", "be positive", (balance_s, measure_s))
        for name, seconds in (("epoch_interval", epoch_interval), ("patience_s", patience_s)):
            if not 0 < seconds < math.inf:
                raise BadValueError(name, "be seconds above 0", seconds)
        if checkpoint is not None and paradigm == "rc":
            raise BadValueError(
                "run in the paradigm 'rc'",
                "have no checkpoint: its executors share their stores",
                str(checkpoint),
                "use another paradigm",
            )
        self._runs += 1
        run = f"{self.id}-{self._runs}"
        wants = [(Peer(who), op.cores) for op in plan.operators for who in op.processes]
        ends = sum(source.tasks for source in plan.sources) + len(plan.sinks)
        hosts = self._hosts_for(ends)
        path = Path(journal) if journal is not None else _journal_path(run)

        scheduled = paradigm in ("elastic", "naive") and self._scheduler is not None
        target = latency_target if scheduled else None
        tempo = Tempo(0.0 if paradigm == "static" else balance_s, measure_s, patience_s)
        terms = Terms(
            paradigm=paradigm,
            latency_target=target,
            end_when_drained=not keep,
            start_timeout_s=start_timeout_s,
            epoch_interval_s=epoch_interval,
            patience_s=patience_s,
            restarts=restarts,
        )
        kept = None if checkpoint is None else opened(str(checkpoint), run, plan, epoch)

        def make() -> Supervisor:
            free = free_cores(self._hub)
            placements = place(wants, free, first=self._runs - 1, share=target is not None)
            keeping = None if checkpoint is None else keeping_of(str(checkpoint), plan)
            supervisor = Supervisor(
                self._hub,
                run,
                plan,
                placements,
                terms,
                blueprint=Blueprint(self._hub, run, plan, config or LIVE, tempo, paradigm, keeping),
                journal=Journal(path),
                ends_hosts=hosts,
                checkpoint=kept,
                free_cores=lambda: free_cores(self._hub),
                restart_hosts=self._restart_ends,
            )
            self._hub.runs[run] = supervisor
            supervisor.start()
            return supervisor

        try:
            supervisor = self._hub.call(make)
        except BaseException:
            if kept is not None:
                release(kept)
            raise
        started = Run(self._hub, supervisor)
        try:
            self._start_ends(supervisor, range(hosts))
            _await_running(supervisor)
        except BaseException:
            started.cancel()
            raise
        return started

    def _all_nodes_lost(self, reason: str) -> None:
        """Whatever hosts the nodes has ended; others take their places, if a run needs them.

        Called in any thread.
        """

        def lose() -> None:
            recoverable = [run for run in self._hub.runs.values() if run.recovers]
            for node in list(self._hub.nodes):
                self._hub.lose_node(node, reason)
            if recoverable and not self._stopped:
                self._generation += 1
                now = time.monotonic()
                soon = now - self._nodes_at < _LONG_S  # whatever it is, it may pass
                self._nodes_pause_s = min(5.0, 2 * self._nodes_pause_s + 0.1) if soon else 0.0
                self._nodes_at = now
                start = partial(self._start_nodes, self._generation)
                thread = threading.Thread(target=start, name="hosts of nodes", daemon=True)
                self._hub.after(self._nodes_pause_s, thread.start)

        if not self._stopped:
            self._hub.post(lose)

    def _restart_ends(self, supervisor: Supervisor, numbers: Sequence[int]) -> None:
        """From the hub's thread, which must not wait for processes to start."""
        start = partial(self._start_ends, supervisor, numbers)
        threading.Thread(target=start, name="hosts of sources and sinks", daemon=True).start()

    def stop(self) -> None:
        """End all runs and nodes; once more does nothing."""
        if self._stopped:
            return
        self._stopped = True
        if self._scheduler is not None:
            self._scheduler.close()
        try:
            for run in self.runs:
                self._cancel(run)
        finally:
            try:
                self._hub.close()
            finally:
                self._stop_hosts()

    def _cancel(self, run: Run) -> None:
        try:
            run.cancel()
        except (TimeoutError, ClusterError) as error:
            log.warning("a run did not end in time: %s", error)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def __repr__(self) -> str:
        state = "stopped" if self._stopped else f"{self.nodes}"
        return f"<{type(self).__name__} {self.id}: {state}>"


def _await_running(supervisor: Supervisor) -> None:
    """Every phase has its own time-out in the supervisor, so this one always ends."""
    with supervisor.changed:
        while supervisor.phase is RunPhase.STARTING:
            supervisor.changed.wait(0.2)
        while supervisor.phase is RunPhase.ENDING:
            supervisor.changed.wait(0.2)
    if supervisor.error is not None:
        raise supervisor.error


def _journal_path(run: str) -> Path:
    base = Path(tempfile.gettempdir()) / f"elasticutor-journals-{getpass.getuser()}"
    base.mkdir(mode=0o700, exist_ok=True)
    return base / f"{run}.jsonl"


class ProcessCluster(BaseCluster):
    """Nodes as processes of this machine, without Spark: for tests, and for trying things out.

    Args:
        nodes: How many; each has its own directory and sockets, and TCP between them.
        cores: Of each node.
        schedule_s: How often the scheduler may change cores; 0: never.
        options: Further fields of `NodesWanted`.
    """

    def __init__(
        self,
        nodes: int = 1,
        cores: int = 2,
        *,
        schedule_s: float = SCHEDULE_S,
        start_timeout_s: float = START_TIMEOUT_S,
        **options: Any,
    ) -> None:
        names = tuple(f"n{number}" for number in range(nodes))
        self._wanted = NodesWanted(names, cores, options.pop("pin", False), **options)
        self._hosts: list[_Host] = []
        super().__init__(
            host="127.0.0.1",
            port=0,
            expected=nodes,
            start_timeout_s=start_timeout_s,
            schedule_s=schedule_s,
        )

    def _start_nodes(self, generation: int = 0) -> None:
        wanted = self._wanted.renamed(f"g{generation}" if generation else "")
        self._hosts.append(_Host(self._nodes_ended, host_nodes, self._bootstrap, wanted))

    def _nodes_ended(self, how: str) -> None:
        self._all_nodes_lost(f"the host of the nodes has ended ({how})")

    def _start_ends(self, supervisor: Supervisor, numbers: Sequence[int]) -> None:
        for number in numbers:

            def ended(how: str, number: int = number) -> None:
                self._hub.post(lambda: supervisor.ends_host_lost(number, how))

            host = _Host(ended, host_ends, self._bootstrap, supervisor.run, number)
            supervisor.on_ended(host.finish)
            self._hosts = [other for other in self._hosts if other.running] + [host]

    def _why_not(self) -> str:
        ended = [host.how for host in self._hosts if not host.running]
        return f"their host has ended ({ended[0]})" if ended else ""

    def _stop_hosts(self) -> None:
        until = time.monotonic() + _END_S
        for host in self._hosts:
            if not host.join(until - time.monotonic()):
                host.kill()
                host.join(10.0)


class _Host:
    """A host as a process of this machine, and a thread that waits for its end.

    Args:
        ended: Told how it ended, in words; called in that thread.
        target: What it does there, with
        args: these arguments.
    """

    def __init__(self, ended: Callable[[str], None], target: Any, *args: Any) -> None:
        self.how = ""
        """How it ended; empty as long as it has not."""
        context = multiprocessing.get_context("spawn")
        self._process: BaseProcess = context.Process(
            target=_be_host, args=(target, *args), daemon=True
        )
        self._ended = ended
        self._process.start()
        self._thread = threading.Thread(target=self._wait, name="host's end", daemon=True)
        self._thread.start()

    @property
    def running(self) -> bool:
        """Whether it has not ended, as far as is known."""
        return not self.how

    @property
    def pid(self) -> int | None:
        """Its process id."""
        return self._process.pid

    def join(self, timeout_s: float) -> bool:
        """Wait for its end; says whether it has come."""
        self._thread.join(max(0.1, timeout_s))
        return not self._thread.is_alive()

    def finish(self) -> None:
        """It should end by itself now; should it not, it is killed. Returns at once."""

        def see_to_it() -> None:
            if not self.join(_END_S):
                self.kill()

        threading.Thread(target=see_to_it, name="end of host", daemon=True).start()

    def kill(self) -> None:
        """End it at once; its zygote sees that, and ends all others."""
        self._process.kill()

    def _wait(self) -> None:
        self._process.join()
        self.how = described_end(self._process.exitcode or 0)
        self._ended(self.how)


def _be_host(target: Callable[..., None], *args: Any) -> None:
    """Run in a host's process: Ctrl-C is for the driver, which then says what to do.

    If the driver ends without a word, so does the host.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_die_with_driver, name="driver's end", daemon=True).start()
    target(*args)


def _die_with_driver() -> None:
    driver = multiprocessing.parent_process()
    if driver is not None:
        driver.join()
        os.kill(os.getpid(), signal.SIGKILL)
