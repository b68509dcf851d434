"""`Cluster`: nodes as long-running Spark tasks."""

from __future__ import annotations

import inspect
import logging
import threading
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Concatenate, ParamSpec, cast

from pyspark.sql import SparkSession

from elasticutor.checks import require_whole
from elasticutor.core.run.phases import RunError
from elasticutor.core.run.run_events import HostsLost
from elasticutor.driver.cluster import SCHEDULE_S, START_TIMEOUT_S, BaseCluster
from elasticutor.driver.run import Run
from elasticutor.driver.supervisor import Supervisor
from elasticutor.errors import BadValueError
from elasticutor.process.hosting.hosts import GIB, NodesWanted
from elasticutor.spark.jobs import LongJob, ends_task, nodes_task
from elasticutor.spark.session import SparkResources, offer_of, require_session
from elasticutor.topology import Topology

log = logging.getLogger(__name__)

_Options = ParamSpec("_Options")

_CLUSTERS: weakref.WeakSet[Cluster] = weakref.WeakSet()  # all clusters that were started

_END_S = 10.0  # how long hosts have to end by themselves before Spark kills them


class Cluster(BaseCluster):
    """Nodes that Spark hosts, ready to run topologies.

    On a cluster of machines every node is one Spark task on one Spark executor, and reserves its
    cores there. With a `local[…]` master all nodes are emulated in one Spark task: each with its
    own directory and sockets, and TCP between them, so that remote traffic has its real cost.

    Args:
        spark: The session; not one of Spark Connect.
        nodes: Number of nodes; default: one per Spark executor, and one with a local master.
        cores: Cores of each node; default: all of a Spark executor's but one, which is left for
            sources and sinks; with a local master, as many as it has slots.
        pin: Pin tasks to CPUs; default: where the machine has more CPUs than its nodes have cores.
        state_bytes: Limit of one executor's state on one node; space is used as needed.
        port: The driver's port; default: any free one.
        schedule_s: How often the scheduler may change executors' cores; 0: never.
        start_timeout_s: How long the nodes may take to start.

    Raises:
        BadValueError: Impossible numbers, too few slots, an old pyspark, or Spark Connect.
        ClusterError: The nodes do not start; says why.
    """

    def __init__(
        self,
        spark: Any,
        *,
        nodes: int | None = None,
        cores: int | None = None,
        pin: bool | None = None,
        state_bytes: int = 64 * GIB,
        port: int = 0,
        schedule_s: float = SCHEDULE_S,
        start_timeout_s: float = START_TIMEOUT_S,
    ) -> None:
        self._spark = require_session(spark)
        for name, number in (("nodes", nodes), ("cores", cores)):
            if number is not None:
                require_whole(name, number)
        offer = offer_of(self._spark)
        self._offer = offer
        count = nodes or (1 if offer.local else offer.executors)
        own = offer.slots if offer.local else max(1, offer.slots_per_executor - 1)
        self._wanted = NodesWanted(
            tuple(f"n{number}" for number in range(count)),
            cores or own,
            pin if pin is not None or not (offer.local and count > 1) else False,
            map_bytes=state_bytes,
        )
        taken = sum(other.slots for other in _CLUSTERS if other.is_on(self._spark))
        _require_slots(offer, count, self._wanted.cores, taken)
        self._job: LongJob | None = None
        self._ends: dict[str, LongJob] = {}
        super().__init__(
            host=offer.host,
            port=port,
            expected=count,
            start_timeout_s=start_timeout_s,
            schedule_s=schedule_s,
        )

        _CLUSTERS.add(self)

    @property
    def slots(self) -> int:
        """Return how many of Spark's slots its nodes take."""
        return 1 if self._offer.local else len(self._wanted.names) * self._wanted.cores

    def is_on(self, spark: SparkSession) -> bool:
        """Return whether it takes slots of this session's Spark."""
        return not self.stopped and self._spark.sparkContext is spark.sparkContext

    def _start_nodes(self, generation: int = 0) -> None:
        local = self._offer.local
        wanted = self._wanted.renamed(f"g{generation}" if generation else "")
        names = ", ".join(wanted.names)
        self._job = LongJob(
            self._spark.sparkContext,
            f"elasticutor-{self.id}",
            f"elasticutor: nodes {names} of {self._wanted.cores} cores each",
            1 if local else len(wanted.names),
            partial(nodes_task, self._bootstrap, wanted, not local),
            cpus=1 if local else wanted.cores,
            ended=self._nodes_ended,
        )

    def _nodes_ended(self, reason: str) -> None:
        """Handle the end of the nodes' job: they are lost, unless we have ended it."""
        self._all_nodes_lost(reason or "the Spark job that hosts the nodes has ended")

    def _why_not(self) -> str:
        if self._job is None or self._job.running:
            return ""
        error = self._job.error or "without an error"
        why = f"the Spark job that hosts them has ended: {error}"
        if "No module named" in error:
            python = self._spark.sparkContext.pythonExec
            why += (
                f". Install elasticutor and its dependencies for the Python of Spark's executors "
                f"({python!r}), or set PYSPARK_PYTHON to one that has them"
            )
        return why

    def _hosts_for(self, ends: int) -> int:
        if self._offer.local:
            return 1
        taken = len(self._wanted.names) * self._wanted.cores
        running = sum(1 for job in self._ends.values() if job.running)
        return max(1, min(ends, self._offer.slots - taken - running))

    def _start_ends(self, supervisor: Supervisor, numbers: Sequence[int]) -> None:
        run = supervisor.run

        def ended(reason: str) -> None:
            if reason:
                error = RunError("Spark job of sources and sinks", "go on", f"has ended: {reason}")
                self._hub.post(lambda: supervisor.decide(HostsLost(tuple(numbers), error)))

        job = LongJob(
            self._spark.sparkContext,
            f"elasticutor-{run}",
            f"elasticutor: sources and sinks of {supervisor.plan.name}",
            len(numbers),
            partial(ends_task, self._bootstrap, run, tuple(numbers)),
            ended=ended,
        )
        self._ends[run] = job

        def finish() -> None:
            if not job.join(_END_S):  # they end by themselves, or else Spark kills them
                job.cancel()

        thread = threading.Thread(target=finish, name=f"end of {job.group}", daemon=True)
        supervisor.on_ended(thread.start)

    def _stop_hosts(self) -> None:
        for job in [*self._ends.values(), self._job]:
            if job is not None and not job.join(_END_S):
                job.cancel()
                if not job.join(_END_S):
                    log.warning("Spark has not ended the job group %s", job.group)


def _on_cluster(
    method: Callable[Concatenate[BaseCluster, Topology, _Options], Run],
) -> Callable[Concatenate[Topology, BaseCluster, _Options], Run]:
    """`BaseCluster.submit` as a function, with the options that are listed there."""

    def submit(topology: Topology, cluster: BaseCluster, **options: Any) -> Run:
        """Start a topology on a cluster; see `Cluster.submit`."""
        return cluster.submit(topology, **options)

    signature = inspect.signature(method)
    own, taken, *options = signature.parameters.values()
    order = [taken, own.replace(name="cluster", annotation="BaseCluster"), *options]
    vars(submit)["__signature__"] = signature.replace(parameters=order)
    return cast("Callable[Concatenate[Topology, BaseCluster, _Options], Run]", submit)


submit = _on_cluster(BaseCluster.submit)


def _require_slots(offer: SparkResources, nodes: int, cores: int, taken: int) -> None:
    """Refuse a demand that Spark would wait for without end."""
    if offer.local:
        needed, why = 2, "one for the nodes, one for sources and sinks or a query"
    else:
        needed = nodes * cores + 1
        why = f"{nodes} nodes of {cores} cores, and one for sources and sinks or a query"
    if taken:
        needed += taken
        why += f", besides the {taken} that other clusters have"
    if offer.slots < needed:
        hint = f"use local[{needed}] or more" if offer.local else "ask for fewer nodes or cores"
        if taken:
            hint += ", or stop the other clusters"
        must = f"have {needed} slots: {why}"
        raise BadValueError(f"Spark ({offer.master})", must, offer.slots, hint)
