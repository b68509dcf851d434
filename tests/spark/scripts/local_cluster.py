"""Two Spark executors, each a JVM of its own: a run, a loss, and what is told of them."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.spark.rig import await_that, counting, folded, generator, rows_of, steps, tell

from elasticutor.core.protocol.ids import NodeId
from elasticutor.driver.run import Run
from elasticutor.spark import Cluster
from elasticutor.spark.session import local_session


def moved_about(cluster: Cluster, journal: Path) -> dict[str, Any]:
    """A run whose first executor gets a core on the other node, and a shard there."""
    source = generator(None, rate=2_000)
    run = cluster.submit(counting(source, collect=True), keep=True, balance_s=0, journal=journal)
    await_that(lambda: run.collected("out").num_rows > 1_000, "state to move")
    (home,) = run.cores("count", 0)
    other = next(NodeId(node) for node in cluster.nodes if node != home)
    run.set_cores("count", 0, {home: 1, other: 1})
    tasks = run.tasks("count", 0)
    remote = next(task for task, seen in tasks.items() if seen.node == other)
    await_that(lambda: _moved_on_request(run, remote), "a move")
    run.set_cores("count", 0, {other: 1})
    run.drain()
    collected = run.collected("out")
    sent = replace(source, rows=collected.num_rows)
    told = {
        "nodes": cluster.nodes,
        "homes": sorted({seen.home for seen in cluster._hub.nodes.values()}),
        "move": _asked(run)[0],
        "nodes_at_the_end": sorted({seen.node for seen in run.tasks("count", 0).values()}),
        "other": other,
        "bytes": sum(event["bytes"] for event in run.events("shard moved")),
        "state_is_right": run.state("count") == folded(sent),
        "output_is_right": rows_of(collected) == steps(sent),
    }
    run.stop()
    return told


def _moved_on_request(run: Run, task: int) -> bool:
    """Ask for a shard that this task does not have; one that moves already is refused."""
    if not _asked(run):
        moves = run.events("shard moved")
        taken = {event["shard"] for event in moves if event["destination"] == task}
        left = [shard for shard in range(8) if shard not in taken]
        run.move("count", 0, left[0], task)
    return bool(_asked(run))


def _asked(run: Run) -> list[dict[str, Any]]:
    return [event for event in run.events("shard moved") if event["cause"] == "asked"]


def survived(cluster: Cluster, told: Path) -> dict[str, Any]:
    """A run with a checkpoint, of which a whole Spark executor is killed from outside."""
    source = generator(None, rate=1_000)
    topology = counting(source, collect=True)
    run = cluster.submit(topology, checkpoint=told / "kept", epoch_interval=0.3, keep=True)
    await_that(lambda: len(run.events("epoch committed")) > 1, "two epochs")
    before = set(cluster.nodes)
    tell(told, "kept", {node: seen.pid for node, seen in cluster._hub.nodes.items()})
    await_that(lambda: run.events("recovered"), "the run to go on", 120.0)
    await_that(lambda: len(cluster.nodes) == 2 and set(cluster.nodes) != before, "a node", 120.0)
    epochs = len(run.events("epoch committed"))
    await_that(lambda: len(run.events("epoch committed")) > epochs + 1, "two more epochs")
    run.drain()
    collected = run.collected("out")
    sent = replace(source, rows=collected.num_rows)
    result = {
        "before": sorted(before),
        "after": sorted(cluster.nodes),
        "rows": collected.num_rows,
        "state_is_right": run.state("count") == folded(sent),
        "output_is_right": rows_of(collected) == steps(sent),
    }
    run.stop()
    return result


def main(told: Path) -> None:
    spark = local_session("local-cluster[2,3,1024]")
    with Cluster(spark, nodes=2, cores=2, schedule_s=0) as cluster:
        tell(told, "cluster", {"cluster": cluster.id})
        tell(told, "moved", moved_about(cluster, told / "journal"))
        tell(told, "survived", survived(cluster, told))
        run = cluster.submit(counting(generator(None, rate=1_000)), journal=told / "endless")
        pids = {node: seen.pid for node, seen in cluster._hub.nodes.items()}
        tell(told, "running", pids)
        try:
            run.wait(120)
        except Exception as error:
            tell(told, "failed", f"{type(error).__name__}: {error}")
    tell(told, "over", None)
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
