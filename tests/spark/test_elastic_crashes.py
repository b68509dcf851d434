"""Whoever is killed, whenever: a query that is started again has every row once, and its state."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.runtime.live import remove_journals
from tests.spark.dooms import Counting, Doom, Reaper
from tests.spark.rig import assert_gone, of_clusters

from elasticutor.spark import Cluster

POINTS = {
    "task": [
        *("take Chunk", "send Result", "take FlushTask", "send TaskFlushed"),
        *("unwritten", "durable", "left", "in the sink"),
    ],
    "main": [
        *("take BeginBatch", "take Tuples", "send FlushTask", "take TaskFlushed"),
        *("take IncrementPersisted", "send ReportPrepared"),
        *("unwritten", "durable", "left", "in the sink"),
    ],
    "node": [
        *("take CommitStore", "take PersistIncrement", "send IncrementPersisted"),
        *("unwritten", "durable", "left", "in the sink"),
    ],
    "worker": ["take Admitted", "send PartitionDone", "take Left"],
}
"""In the order of an epoch. A batch begins when the one before it is committed by Spark."""


@pytest.fixture(scope="module")
def nodes(spark: SparkSession) -> Iterator[Cluster]:
    """Two nodes, of which nothing may be left at the end."""
    before = {process.pid for process in of_clusters()}
    with Cluster(spark, nodes=2, cores=2, schedule_s=0) as cluster:
        yield cluster
        processes = [process for process in of_clusters() if process.pid not in before]
    assert_gone(processes, cluster.id)
    remove_journals(cluster.id)


@pytest.mark.parametrize("who", POINTS)
def test_whoever_is_killed_at_any_point_of_an_epoch_every_row_counts_once(
    spark: SparkSession, nodes: Cluster, tmp_path: Path, who: str
) -> None:
    points = POINTS[who]
    counting = Counting(spark, tmp_path, len(points) + 2, cluster=nodes)
    counting.write_input()
    reaper = Reaper(
        counting, [Doom(who, point, epoch) for epoch, point in enumerate(points, start=2)]
    )
    with reaper.at_work():
        ends = counting.to_the_end(most=len(points))
    assert [doom.point for doom in reaper.met] == points
    assert counting.mistakes() == []
    # Whoever is lost when all has left is replaced, if the next batch comes late enough.
    assert len(ends) >= len(points) - 1
