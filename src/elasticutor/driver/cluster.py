"""Clusters: nodes that offer cores, and the runs on them.

`BaseCluster` is all of a cluster but the start of its processes: `elasticutor.spark.Cluster` has
Spark host them, `elasticutor.driver.process_cluster.ProcessCluster` starts them on this machine.
"""

from __future__ import annotations

import logging
import math
import secrets
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import astuple, replace
from functools import partial
from pathlib import Path
from typing import Any, Self

from elasticutor.core.executor.config import BATCHES, LIVE, ExecutorConfig
from elasticutor.core.paradigm import Paradigm, ParadigmName
from elasticutor.core.protocol.ids import Peer
from elasticutor.core.run.phases import RunPhase, Terms
from elasticutor.core.scheduler.placement import place
from elasticutor.driver.blueprint import Blueprint, in_paradigm
from elasticutor.driver.checkpoints import keeping_of, opened, release
from elasticutor.driver.cores import free_cores
from elasticutor.driver.journal import Journal, path_of
from elasticutor.driver.loop import ClusterError, DriverLoop
from elasticutor.driver.queries.batch_driver import BatchDriver
from elasticutor.driver.queries.query_driver import QueryDriver
from elasticutor.driver.run import Run
from elasticutor.driver.scheduling import CoreScheduler
from elasticutor.driver.supervisor import Supervisor
from elasticutor.errors import BadValueError
from elasticutor.plan import Plan
from elasticutor.process.hosting.hosts import Bootstrap
from elasticutor.process.specs import Tempo
from elasticutor.state.checkpoint import Checkpoint
from elasticutor.topology import Topology
from elasticutor.transport.security import ClusterKeys

log = logging.getLogger(__name__)

START_TIMEOUT_S = 60.0

SCHEDULE_S = 1.0
"""How often the scheduler may make a change that can wait."""

EPOCH_INTERVAL_S = 2.0
"""From one epoch to the next, unless a run has its own."""

BALANCE_S, MEASURE_S, PATIENCE_S = astuple(Tempo())
"""How often executors balance and measure, and how long an answer may take."""

RESTARTS = 5
"""How often the same thing may fail without an epoch committed in between."""

LATENCY_TARGET_S = 0.1
"""The mean latency that the scheduler keeps unless a run has its own."""

_IN_A_QUERY = replace(BATCHES, chunk_s=0.1, window_s=0.2, moving_chunk_s=0.01, outputs="return")
"""How the executors of a query work. One that works row by row can be interrupted in any chunk; so
tiny ones while shards are about to leave cost CPU time (a chunk takes a millisecond of it in all
processes), and only let a move of an operator that takes chunks as a whole begin sooner."""

_LONG_S = 30.0
"""Nodes that have lasted this long are started again at once when all are lost."""


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
        self._hub = DriverLoop(self._keys, host, port)
        self._runs = 0
        self._generation = 0
        self._nodes_at = -math.inf  # when all nodes were last lost
        self._nodes_pause_s = 0.0
        self._stopped = False
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
        """Start hosts of the nodes, without waiting for them.

        Args:
            generation: How often all nodes were lost; each generation has names of its own.
        """

    @abstractmethod
    def _why_not(self) -> str:
        """Why no more nodes will come; empty as long as they may."""

    @abstractmethod
    def _start_ends(self, supervisor: Supervisor, numbers: Sequence[int]) -> None:
        """Start hosts of these numbers for a run's sources and sinks, without waiting for them."""

    @abstractmethod
    def _stop_hosts(self) -> None:
        """Wait for the hosts to end, and kill those that do not."""

    def _hosts_for(self, ends: int) -> int:
        """How many hosts this number of sources and sinks should have."""
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
            if not supervisor.is_over
        ]

    def submit(
        self,
        topology: Topology,
        *,
        latency_target: float | None = LATENCY_TARGET_S,
        paradigm: ParadigmName = "elastic",
        balance_s: float = BALANCE_S,
        measure_s: float = MEASURE_S,
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
            measure_s: How often all participants send measurements, in seconds; executors send them
                less often where there are more than 125, so that the driver keeps up.
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
            patience_s: How long any answer may take before the part that owes it counts as lost.
            start_timeout_s: How long it may take to start.

        Raises:
            BadValueError: The topology has a mistake, or wants more cores than are free and none
                are scheduled.
            CheckpointError: The checkpoint is damaged, does not fit the topology, or is in use.
            Exception: Whatever kept it from starting.
        """
        kind = Paradigm.named(paradigm)
        if latency_target is not None and not 0 < latency_target < math.inf:
            raise BadValueError("latency_target", "be seconds above 0, or None", latency_target)
        plan = in_paradigm(topology.plan(), kind)
        if balance_s < 0 or measure_s <= 0:
            raise BadValueError("intervals", "be positive", (balance_s, measure_s))
        for name, seconds in (("epoch_interval", epoch_interval), ("patience_s", patience_s)):
            if not 0 < seconds < math.inf:
                raise BadValueError(name, "be seconds above 0", seconds)
        if checkpoint is not None and kind.shares_stores:
            raise BadValueError(
                f"run in the paradigm {paradigm!r}",
                "have no checkpoint: its executors share their stores",
                str(checkpoint),
                "use another paradigm",
            )
        terms = Terms(
            paradigm=kind,
            latency_target=latency_target if kind.is_scheduled and self._scheduler else None,
            end_when_drained=not keep,
            start_timeout_s=start_timeout_s,
            epoch_interval_s=epoch_interval,
            patience_s=patience_s,
            restarts=restarts,
        )
        run = self._next_run()
        kept = None if checkpoint is None else opened(str(checkpoint), run, plan, epoch)
        ends = sum(source.tasks for source in plan.sources) + len(plan.sinks)

        return self._launch(
            run,
            plan,
            terms,
            Tempo(balance_s, measure_s, patience_s),
            config=config or LIVE,
            journal=journal,
            kept=kept,
            batches=None,
            hosts=self._hosts_for(ends),
        )

    def host(
        self,
        plan: Plan,
        *,
        count: Callable[[int], tuple[int, int, int | None]],
        checkpoint: str | None = None,
        owner: str = "",
        below: int = 1,
        goes_on: Callable[[], bool] = lambda: True,
        latency_target: float | None = None,
        balance_s: float = BALANCE_S,
    ) -> Run:
        """Start operators that a query feeds batch by batch; returns when they can be fed.

        The run's epochs are driven by `run.batches`, and it ends with whatever is lost: then the
        query runs its batch again, from another run's executors.

        Args:
            plan: Operators alone.
            count: Says of a stage how many tasks it runs, and of how many partitions its data is;
                called in a thread of its own.
            checkpoint: Where their state is made durable. None: every execution begins with none.
            owner: Whose checkpoint it is: no other owner may go on from it.
            below: The epoch that is to come next.
            goes_on: Says whether the query goes on. Another run that wants the checkpoint asks, in
                its own thread; if the query has ended, it waits for the end of this run.
            latency_target: As of `submit`.
            balance_s: As of `submit`.

        Raises:
            CheckpointError: The checkpoint is damaged, does not fit, or is in use.
            Exception: Whatever kept it from starting.
        """
        terms = Terms(
            paradigm=Paradigm.ELASTIC,
            latency_target=latency_target if self._scheduler else None,
            end_when_drained=True,
            start_timeout_s=START_TIMEOUT_S,
            epoch_interval_s=EPOCH_INTERVAL_S,
            patience_s=PATIENCE_S,
            restarts=0,
        )
        if not self._hub.nodes and not self._stopped:  # those that were lost may be on their way
            self._hub.await_nodes(1, START_TIMEOUT_S, self._why_not)
        run = self._next_run()
        plan = replace(plan, name=owner or plan.name)
        kept = None
        if checkpoint is not None:
            kept = opened(checkpoint, run, plan, below=below, goes_on=goes_on)
        tempo = Tempo(balance_s)
        credit = _IN_A_QUERY.min_credit_bytes

        def batches(supervisor: Supervisor) -> BatchDriver:
            return BatchDriver(self._hub, supervisor, count, kept, tempo, credit)

        return self._launch(
            run,
            plan,
            terms,
            tempo,
            config=_IN_A_QUERY,
            journal=None,
            kept=kept,
            batches=batches,
            hosts=0,
        )

    @property
    def hub(self) -> DriverLoop:
        """The driver's loop."""
        return self._hub

    @property
    def bootstrap(self) -> Bootstrap:
        """What a process needs to find it, keys included."""
        return self._bootstrap

    @property
    def stopped(self) -> bool:
        """Whether it was stopped."""
        return self._stopped

    @property
    def receptions(self) -> list[QueryDriver]:
        """Those that serve elastic DataFrames."""
        return list(self._hub.receptions.values())

    def metrics(self) -> dict[str, Any]:
        """The figures of the cluster and its runs, as plain values.

        `nodes` and `freeCores` by node; `runs`, each with its topology or query, what was measured
        lately, and the last batch of a query.
        """
        return {
            "nodes": self.nodes,
            "freeCores": self.free_cores,
            "runs": {run.id: run.as_dict() for run in self.runs},
        }

    def _next_run(self) -> str:
        if self._stopped:
            raise ClusterError("cluster", "be running", "a run after its end")
        if not self._hub.nodes:
            gone = "; ".join(f"{node}: {why}" for node, why in self._hub.gone.items())
            raise ClusterError("cluster", "have nodes", f"none. Lost are {gone}", "make a new one")
        self._runs += 1
        return f"{self.id}-{self._runs}"

    def _launch(
        self,
        run: str,
        plan: Plan,
        terms: Terms,
        tempo: Tempo,
        *,
        config: ExecutorConfig,
        journal: str | Path | None,
        kept: Checkpoint | None,
        batches: Callable[[Supervisor], BatchDriver] | None,
        hosts: int,
    ) -> Run:
        """Start all participants, and wait until they run."""
        wants = [(Peer(who), op.cores) for op in plan.operators for who in op.processes]
        path = Path(journal) if journal is not None else path_of(run)
        # Operators of a query make do with what there is, scheduled or not.
        share = terms.latency_target is not None or not hosts

        def make() -> Supervisor:
            free = free_cores(self._hub)
            placements = place(wants, free, first=self._runs - 1, share=share)
            keeping = None if kept is None else keeping_of(kept.location.uri, plan)
            supervisor = Supervisor(
                self._hub,
                run,
                plan,
                placements,
                terms,
                blueprint=Blueprint(self._hub, run, plan, config, tempo, terms.paradigm, keeping),
                journal=Journal(path),
                ends_hosts=hosts,
                checkpoint=kept,
                batches=batches,
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
            if hosts:
                self._start_ends(supervisor, range(hosts))
            _await_running(supervisor)
        except BaseException:
            started.cancel()
            raise
        return started

    def _all_nodes_lost(self, reason: str) -> None:
        """Drop all nodes, whose hosts have ended; start others if a run needs them.

        Called in any thread.
        """

        def lose() -> None:
            recoverable = self._hub.receptions or any(r.recovers for r in self._hub.runs.values())
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
        """Start hosts in a thread: the driver's loop does not wait for processes to start."""
        start = partial(self._start_ends, supervisor, numbers)
        threading.Thread(target=start, name="hosts of sources and sinks", daemon=True).start()

    def stop(self) -> None:
        """End all runs and nodes; idempotent."""
        if self._stopped:
            return
        self._stopped = True
        if self._scheduler is not None:
            self._scheduler.close()
        try:
            for run in self.runs:
                try:
                    run.cancel()
                except (TimeoutError, ClusterError) as error:
                    log.warning("a run did not end in time: %s", error)
        finally:
            try:
                self._hub.close()
            finally:
                self._stop_hosts()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        state = "stopped" if self._stopped else f"{self.nodes}"
        return f"<{type(self).__name__} {self.id}: {state}>"


def _await_running(supervisor: Supervisor) -> None:
    """Wait until a run is up; every phase has a time-out of its own, so this always ends."""
    with supervisor.changed:
        while supervisor.phase is RunPhase.STARTING:
            supervisor.changed.wait(0.2)
        while supervisor.phase is RunPhase.ENDING:
            supervisor.changed.wait(0.2)
    if supervisor.error is not None:
        raise supervisor.error
