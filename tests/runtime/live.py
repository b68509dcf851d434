"""What the tests of live runs share: operators whose results can be folded by hand, and pids."""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import cloudpickle
import psutil
import pyarrow as pa

from elasticutor.driver.process_cluster import ProcessCluster
from elasticutor.driver.run import Run
from elasticutor.operator import BatchState, Operator, State
from elasticutor.process.hosting.directories import SHARED_MEMORY
from elasticutor.sinks import MemorySink, Sink
from elasticutor.sources import Source
from elasticutor.topology import Topology

# The processes of a cluster cannot import tests, so classes travel with their code.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

PATIENCE_S = 60.0

Link = tuple[int, int]
"""How many rows a key has had, and a number that depends on all of them and on their order."""


def link(before: Link, value: int) -> Link:
    return before[0] + 1, (before[1] * 1_000_003 + value + 1) % (2**61 - 1)


class Chain(Operator):
    """Tells for every row of a key how the key's chain goes on; record by record."""

    output = "key bigint, time bigint, count bigint, chain bigint"
    columns = ("time",)

    def process(self, key: Any, row: Any, state: State) -> Iterable[Any]:
        after = link(state.get((0, 0)), row.time)
        state.set(after)
        yield key, row.time, *after


class ChainBatches(Operator):
    """The same a batch at a time."""

    output = pa.schema(
        {"key": pa.int64(), "time": pa.int64(), "count": pa.int64(), "chain": pa.int64()}
    )

    def process_batch(self, batch: Any, state: BatchState) -> Any:
        rows = []
        for key, value in zip(batch["key"].to_pylist(), batch["time"].to_pylist(), strict=True):
            after = link(state.get(key, (0, 0)), value)
            state[key] = after
            rows.append({"key": key, "time": value, "count": after[0], "chain": after[1]})
        return pa.RecordBatch.from_pylist(rows, schema=self.output)


def chain_of(
    source: Source,
    operator: Operator | None = None,
    *,
    sink: Sink | None = None,
    executors: int = 1,
    cores: int = 1,
    shards: int = 8,
) -> Topology:
    """Rows of a source, chained by key, into a sink."""
    topology = Topology("chained")
    chain = topology.operator(
        "chain",
        operator or Chain(),
        topology.source("rows", source),
        key="key",
        cores=cores,
        executors=executors,
        shards=shards,
    )
    topology.sink("out", sink or MemorySink(), chain)
    return topology


def folded(table: Any) -> tuple[dict[int, list[tuple[int, ...]]], dict[int, Link]]:
    """What a chain makes of rows taken in order: outputs by key in order, and the final state."""
    outputs: dict[int, list[tuple[int, ...]]] = {}
    state: dict[int, Link] = {}
    for key, value in zip(table["key"].to_pylist(), table["time"].to_pylist(), strict=True):
        state[key] = link(state.get(key, (0, 0)), value)
        outputs.setdefault(key, []).append((value, *state[key]))
    return outputs, state


def by_key(table: pa.Table) -> dict[int, list[tuple[int, ...]]]:
    """The rows of a table by their first column, in the order in which they are there."""
    found: dict[int, list[tuple[int, ...]]] = {}
    for key, *rest in zip(*(column.to_pylist() for column in table.columns), strict=True):
        found.setdefault(key, []).append(tuple(rest))
    return found


def wait_until(condition: Callable[[], object], what: str, timeout_s: float = PATIENCE_S) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not within {timeout_s} s"
        time.sleep(0.005)


def running(pid: int) -> bool:
    # One that nobody has reaped has ended all the same.
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def descendants(pid: int) -> set[int]:
    try:
        children = psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return set()
    return {child.pid for child in children if running(child.pid)}


def processes_of(cluster: ProcessCluster) -> set[int]:
    """Every process that belongs to a cluster: hosts, zygotes, nodes, and those of its runs."""
    hosts = {host.pid for host in cluster._hosts if host.running and host.pid is not None}
    return hosts.union(*(descendants(host) for host in hosts))


def directories_of(cluster: str) -> list[Path]:
    """What a cluster of this id has in shared memory and in the directory for temporary files."""
    bases = {SHARED_MEMORY, tempfile.gettempdir()}
    return [path for base in bases for path in Path(base).glob(f"elasticutor-*-{cluster}-*")]


def remove_journals(cluster: str) -> None:
    for path in Path(tempfile.gettempdir()).glob(f"elasticutor-journals-*/{cluster}-*.jsonl"):
        path.unlink()


@contextmanager
def started(**options: Any) -> Iterator[ProcessCluster]:
    """A cluster of which nothing is left at the end, whatever was done to it."""
    with ProcessCluster(**{"schedule_s": 0.0} | options) as cluster:
        everybody = processes_of(cluster)
        assert directories_of(cluster.id)
        yield cluster
        everybody |= processes_of(cluster)
    wait_until_gone(everybody)
    assert directories_of(cluster.id) == []
    remove_journals(cluster.id)


def wait_until_gone(pids: set[int]) -> None:
    assert pids
    wait_until(lambda: not any(map(running, pids)), f"the end of {pids}")


def pid_of(run: Run, who: str) -> int:
    """Of a source's task, a main process or a sink."""
    return run._supervisor.pids[who]


def pid_of_node(cluster: ProcessCluster, node: str) -> int:
    return next(seen.pid for name, seen in cluster._hub.nodes.items() if name == node)
