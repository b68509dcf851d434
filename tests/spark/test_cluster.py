"""A cluster that Spark hosts: what it does, and what it refuses."""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path
from typing import Any

import pyspark
import pytest
from pyspark.sql import SparkSession
from tests.spark.rig import await_that, counting, folded, generator, of_clusters, rows_of, steps

from elasticutor.driver.loop import ClusterError
from elasticutor.errors import BadValueError
from elasticutor.spark import Cluster, submit


def ours() -> list[str]:
    """The threads of clusters on this driver."""
    return [t.name for t in threading.enumerate() if t.name.startswith("elasticutor-")]


def test_a_topology_on_spark_comes_to_what_a_fold_comes_to_and_so_does_the_next_one(
    spark: SparkSession, tmp_path: Path
) -> None:
    source = generator()
    with Cluster(spark, nodes=2, cores=2) as cluster:
        assert cluster.nodes == {"n0": 2, "n1": 2}
        for number in range(2):
            run = submit(counting(source), cluster, keep=True, journal=tmp_path / f"{number}")
            run.wait(60)
            assert run.state("count") == folded(source)
            assert rows_of(run.collected("out")) == steps(source)
            run.stop()
            assert cluster.runs == []
            assert cluster.free_cores == {"n0": 2, "n1": 2}


def test_the_jobs_of_a_cluster_and_of_a_run_are_job_groups_of_their_own(
    spark: SparkSession, tmp_path: Path
) -> None:
    tracker = spark.sparkContext.statusTracker()
    with Cluster(spark, nodes=1, cores=1) as cluster:
        run = cluster.submit(
            counting(generator(None, rate=500), executors=1), journal=tmp_path / "j"
        )
        (nodes,) = tracker.getJobIdsForGroup(f"elasticutor-{cluster.id}")
        (ends,) = tracker.getJobIdsForGroup(f"elasticutor-{run.id}")
        assert {nodes, ends} <= set(tracker.getActiveJobsIds())
        run.stop()
        await_that(lambda: ends not in tracker.getActiveJobsIds(), "the job of the ends to end")
    await_that(lambda: nodes not in tracker.getActiveJobsIds(), "the job of the nodes to end")


def test_spark_does_its_own_work_beside_a_cluster_and_waits_for_a_slot_beside_a_run(
    spark: SparkSession, tmp_path: Path
) -> None:
    tracker = spark.sparkContext.statusTracker()
    counted: list[int] = []
    with contextlib.ExitStack() as stack:
        for _ in range(spark.sparkContext.defaultParallelism - 2):  # each takes a slot
            stack.enter_context(Cluster(spark, nodes=1, cores=1))
        cluster = stack.enter_context(Cluster(spark, nodes=1, cores=1))
        assert spark.range(1_000).count() == 1_000
        run = cluster.submit(
            counting(generator(None, rate=500), executors=1), journal=tmp_path / "j"
        )
        active = len(tracker.getActiveJobsIds())
        counter = threading.Thread(target=lambda: counted.append(spark.range(10).count()))
        counter.start()
        await_that(lambda: len(tracker.getActiveJobsIds()) > active, "Spark's own job to be there")
        assert not counted  # the last two are taken: one by the nodes, one by source and sink
        run.stop()
        counter.join(60)
        assert counted == [10]


def pipes() -> int:
    """How many pipes this driver has open."""
    return sum(file.is_fifo() for file in Path("/dev/fd").iterdir())


def test_to_stop_a_cluster_twice_is_to_stop_it_once_and_nothing_is_left_of_it(
    spark: SparkSession,
) -> None:
    before, threads = pipes(), ours()
    cluster = Cluster(spark, nodes=1, cores=1)
    assert ours() != threads
    cluster.stop()
    cluster.stop()
    assert ours() == threads
    assert not of_clusters()
    assert pipes() == before
    assert "stopped" in repr(cluster)
    with pytest.raises(ClusterError, match="cluster must be running"):
        cluster.submit(counting(generator()))


@pytest.mark.parametrize("number", [0, -1, 1.5, True, "2"])
@pytest.mark.parametrize("name", ["nodes", "cores"])
def test_numbers_of_nodes_and_cores_that_cannot_be_are_refused(
    spark: SparkSession, name: str, number: Any
) -> None:
    threads = ours()
    with pytest.raises(BadValueError, match=f"^{name} must be a whole number, at least 1"):
        Cluster(spark, **{name: number})
    assert ours() == threads


def test_a_session_of_spark_connect_is_refused_by_name() -> None:
    remote: Any = type("SparkSession", (), {"__module__": "pyspark.sql.connect.session"})()
    with pytest.raises(BadValueError, match=r"one of Spark Connect.*without \.remote"):
        Cluster(remote)


def test_what_is_no_session_is_refused() -> None:
    with pytest.raises(BadValueError, match="spark must be a SparkSession; got 'str'"):
        Cluster("local[2]")


def test_an_old_pyspark_is_refused_with_what_to_install(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pyspark, "__version__", "3.5.4")
    with pytest.raises(BadValueError, match=r"4\.0 or newer; got '3\.5\.4'.*pip install"):
        Cluster(spark)
