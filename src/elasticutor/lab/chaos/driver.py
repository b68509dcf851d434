"""The process that is a topology's driver, and is killed like any other.

Started by the runner with its orders as JSON; then both talk in JSON lines:

| command | answer |
|---|---|
| `{"do": "pids"}` | phase, and all process ids by kind and name |
| `{"do": "doom", …}` | the process id of the one that will die at a point; 0: none |
| `{"do": "drain"}` | when everything is processed and committed |
| `{"do": "explain"}` | what waits for what, in words |

Unasked, it says when its cluster is up, and when its run has failed. What happens in the run is in
its journal, which the runner reads along. When its standard input ends, so does it.
"""

from __future__ import annotations

import faulthandler
import json
import logging
import os
import queue
import random
import shutil
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import msgspec

from elasticutor.core.protocol.ids import NodeId, Peer, TaskId
from elasticutor.driver.cluster import BaseCluster
from elasticutor.driver.process_cluster import ProcessCluster
from elasticutor.driver.run import Run
from elasticutor.errors import ElasticutorError
from elasticutor.lab.chaos.doom import DieAt
from elasticutor.lab.chaos.processes import ancestors, command_line, directories_of
from elasticutor.lab.chaos.topology import SINK, ChaosLoad, Shape, topology_of

_GLANCE_S = 0.2
_MOVE_S = (0.005, 0.06)  # between two moves that are asked for: at least, at most
_CORES_S = 0.4  # between two changes of cores
_WATCHED = 0.7  # share of moves and changes that are of the executor that is watched
_MOST_CORES = 2  # of an executor on one node
_SPARK_EXECUTOR = "CoarseGrainedExecutorBackend"
NOWHERE = "nowhere"
"""A point that is never reached: it takes the place of another one."""


@dataclass(frozen=True, slots=True)
class Orders:
    """What a driver is to run."""

    folder: str
    """For the checkpoint, the outputs and what is left of a failure."""
    journal: str
    load: ChaosLoad
    shape: Shape
    nodes: int
    cores: int
    epoch_interval_s: float
    patience_s: float
    seed: int
    """For moves and cores."""
    master: str = ""
    """Spark's; empty: nodes are plain processes."""

    @property
    def checkpoint(self) -> Path:
        """Where the state is made durable."""
        return Path(self.folder) / "checkpoint"

    @property
    def out(self) -> Path:
        """Where the sink's files go."""
        return Path(self.folder) / "out"


class Mover(threading.Thread):
    """Moves shards and changes cores at random, as long as tuples flow."""

    def __init__(self, run: Run, cluster: BaseCluster, shape: Shape, seed: int) -> None:
        super().__init__(name="mover", daemon=True)
        self._run = run
        self._cluster = cluster
        self._shape = shape
        self._rng = random.Random(seed)
        self._over = threading.Event()
        self._watched = ""
        """An executor or a node that should have much to do; empty: none."""

    def run(self) -> None:
        """Until it is stopped."""
        cores_at = time.monotonic()
        while not self._over.wait(self._rng.uniform(*_MOVE_S)):
            if self._run.phase != "running":
                continue
            # Whatever is asked for may be gone by now: a task, a node, the run.
            with suppress(ElasticutorError, TimeoutError):
                operator, number, shards = self._any_executor()
                if time.monotonic() >= cores_at:
                    cores_at = time.monotonic() + _CORES_S
                    self._change_cores(operator, number)
                else:
                    self._move(operator, number, shards)

    def watch(self, name: str) -> None:
        """Move what is of an executor, or on a node, more often than the rest."""
        self._watched = name

    def stop(self) -> None:
        """Move nothing more."""
        self._over.set()
        self.join(_GLANCE_S * 10)

    def _any_executor(self) -> tuple[str, int, int]:
        executors = self._shape.executors
        watched = [one for one in executors if f"{one[0]}.{one[1]}" == self._watched]
        if watched and self._rng.random() < _WATCHED:
            return watched[0]
        return self._rng.choice(executors)

    def _change_cores(self, operator: str, number: int) -> None:
        """Any free cores, on several nodes if that can be."""
        room, own = Counter(self._cluster.free_cores), self._run.cores(operator, number)
        room.update({str(node): count for node, count in own.items()})
        nodes = sorted(node for node, count in room.items() if count > 0)
        if nodes:
            wanted = {node: self._rng.randint(0, min(_MOST_CORES, room[node])) for node in nodes}
            wanted[self._watched if self._watched in nodes else self._rng.choice(nodes)] = 1
            self._run.set_cores(operator, number, wanted, wait=False)

    def _move(self, operator: str, number: int, shards: int) -> None:
        tasks = sorted(self._run.tasks(operator, number))
        if tasks:
            self._run.move(operator, number, self._rng.randrange(shards), self._rng.choice(tasks))


class Driver:
    """Runs the topology, and answers commands."""

    def __init__(self, orders: Orders, cluster: BaseCluster, tell: TextIO) -> None:
        self._orders = orders
        self._cluster = cluster
        self._tell = tell
        self._commands: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        threading.Thread(target=self._listen, name="runner", daemon=True).start()

    def serve(self) -> None:
        """Until the run is drained, or has failed."""
        orders = self._orders
        self._say("cluster", cluster=self._cluster.id)
        run = self._cluster.submit(
            topology_of(orders.load, orders.shape, orders.out),
            checkpoint=orders.checkpoint,
            epoch_interval=orders.epoch_interval_s,
            patience_s=orders.patience_s,
            journal=orders.journal,
        )
        mover = Mover(run, self._cluster, orders.shape, orders.seed)
        mover.start()
        while True:
            try:
                command = self._commands.get(timeout=_GLANCE_S)
            except queue.Empty:
                if run.phase == "ended":
                    run.wait(0)
                    raise ElasticutorError(
                        "run", "go on", "its end, which was not asked for"
                    ) from None
                continue
            match command["do"]:
                case "pids":
                    self._say("pids", phase=run.phase, pids=self._pids(run))
                case "doom":
                    mover.watch(command["name"].partition("/")[0])
                    self._say("doom", pid=self._doom(run, command))
                case "explain":
                    self._say("explain", waits=list(run._explained()))
                case "drain":
                    mover.stop()
                    run.stop(command["timeout_s"])
                    self._say("drained")
                    return

    def _listen(self) -> None:
        for line in sys.stdin:
            self._commands.put(json.loads(line))
        os.kill(os.getpid(), signal.SIGKILL)  # the runner is gone

    def _say(self, kind: str, **facts: Any) -> None:
        self._tell.write(json.dumps({"kind": kind, **facts}) + "\n")
        self._tell.flush()

    def _pids(self, run: Run) -> dict[str, dict[str, int]]:
        """Processes that can be killed, by kind and name."""
        supervisor, hub = run._supervisor, self._cluster._hub
        sources = {who: supervisor.pids[who] for who in supervisor.sources}
        nodes = {str(node): seen.pid for node, seen in dict(hub.nodes).items()}
        tasks = {
            f"{operator}.{number}/{task}": seen.pid
            for operator, number, _ in self._orders.shape.executors
            for task, seen in run.tasks(operator, number).items()
            if seen.pid
        }
        return {
            "task": tasks,
            "main": {who: supervisor.pids[who] for who in supervisor.executors},
            "node": nodes,
            "source": {str(who): pid for who, pid in sources.items()},
            "sink": {SINK: supervisor.pids[SINK]},
            "host": _hosts([*sources.values(), supervisor.pids[SINK]], list(nodes.values())),
        }

    def _doom(self, run: Run, command: dict[str, Any]) -> int:
        """Let a process die at a point; returns its id, or 0 if it is not there."""
        supervisor, hub = run._supervisor, self._cluster._hub
        kind, name = command["kind"], command["name"]
        pid = self._pids(run)[kind].get(name, 0)
        if not pid:
            return 0
        point = DieAt(command["sends"], command["message"])
        if kind == "node":
            hub.call(lambda: hub.send_node(NodeId(name), point))
        elif kind == "task":
            who, _, task = name.partition("/")
            point = DieAt(command["sends"], command["message"], TaskId(int(task)))
            hub.call(lambda: supervisor.ask(Peer(who), point))
        else:
            hub.call(lambda: supervisor.ask(Peer(name), point))
        return pid


def _hosts(ends: Sequence[int], nodes: Sequence[int]) -> dict[str, int]:
    """The hosts of sources and sinks, and of nodes; and the Spark executors that these are in.

    A host starts a zygote, and that forks all others.
    """
    found: dict[str, int] = {}
    for what, pids in (("sources and sinks", ends), ("nodes", nodes)):
        for pid in pids:
            above = ancestors(pid)
            if os.getpid() not in above[1:]:
                continue  # it is gone, or one above it is
            above = above[1 : above.index(os.getpid())]
            found |= {f"of {what}, {host}": host for host in above[:1]}
            spark = [one for one in above[1:] if _SPARK_EXECUTOR in command_line(one)]
            found |= {f"Spark executor {one}": one for one in spark}
    return found


def cluster_of(orders: Orders) -> AbstractContextManager[BaseCluster]:
    """Nodes as plain processes, or on a local Spark."""
    if not orders.master:
        return ProcessCluster(orders.nodes, orders.cores, schedule_s=0.0)
    from elasticutor.lab.bench.live import spark_cluster

    name = "elasticutor chaos"
    return spark_cluster(orders.cores, orders.nodes, master=orders.master, name=name)


def save_logs(cluster: str, folder: Path) -> None:
    """Keep what the processes of a cluster have printed: its own copy is removed with it."""
    for directory in directories_of([cluster]):
        if (directory / "logs").is_dir():
            with suppress(OSError, shutil.Error):
                shutil.copytree(directory / "logs", folder / "logs" / directory.name)


def main() -> None:
    """Run as a process of its own."""
    # Standard output is the runner's; whatever others print goes where their complaints go.
    tell = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    faulthandler.register(signal.SIGUSR1)
    logging.basicConfig(
        level=logging.WARNING, format="%(asctime)s.%(msecs)03d %(message)s", datefmt="%H:%M:%S"
    )
    orders = msgspec.json.decode(sys.argv[1], type=Orders)
    with cluster_of(orders) as cluster:
        try:
            Driver(orders, cluster, tell).serve()
        except Exception as error:
            logging.exception("the run has failed")
            save_logs(cluster.id, Path(orders.folder))
            tell.write(json.dumps({"kind": "failed", "why": f"{error}"}) + "\n")
            tell.flush()
            os._exit(1)  # with all that it has started


if __name__ == "__main__":
    main()
