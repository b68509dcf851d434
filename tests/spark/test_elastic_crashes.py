"""A process killed at any point of an epoch: the query started again has every row once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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


EARLY_AND_LATE = (
    *(("task", "take Chunk"), ("main", "take Tuples"), ("node", "send IncrementPersisted")),
    *(
        ("worker", "send PartitionDone"),
        ("node", "unwritten"),
        ("main", "durable"),
        ("task", "left"),
    ),
    ("main", "in the sink"),
)
"""Each process once while rows flow and once later, and each of the later points once."""


def require_every_row_once(
    spark: SparkSession, nodes: Cluster, folder: Path, deaths: Sequence[tuple[str, str]]
) -> None:
    """Run a query in which one process dies in each batch; it is started again until its end."""
    counting = Counting(spark, folder, len(deaths) + 2, cluster=nodes)
    counting.write_input()
    dooms = [Doom(who, point, epoch) for epoch, (who, point) in enumerate(deaths, start=2)]
    reaper = Reaper(counting, dooms)
    with reaper.at_work():
        ends = counting.to_the_end(most=len(deaths))
    assert [(doom.who, doom.point) for doom in reaper.met] == list(deaths)
    assert counting.mistakes() == []
    # A process lost when all has left is replaced, if the next batch comes late enough. At every
    # other point the query ends: one that never came, under an old name say, would show here.
    assert len(ends) >= sum(point != "left" for _, point in deaths)


def test_with_any_process_killed_early_or_late_in_an_epoch_every_row_counts_once(
    spark: SparkSession, nodes: Cluster, tmp_path: Path
) -> None:
    require_every_row_once(spark, nodes, tmp_path, EARLY_AND_LATE)


@pytest.mark.matrix
@pytest.mark.parametrize("who", POINTS)
def test_with_a_process_killed_at_any_point_of_an_epoch_every_row_counts_once(
    spark: SparkSession, nodes: Cluster, tmp_path: Path, who: str
) -> None:
    require_every_row_once(spark, nodes, tmp_path, [(who, point) for point in POINTS[who]])
