"""However a cluster on Spark ends, nothing of it is left; and its runs say why they ended."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from pyspark.sql import SparkSession
from tests.spark.rig import (
    Script,
    assert_gone,
    await_that,
    counting,
    directories,
    generator,
    of_clusters,
)

from elasticutor.core.run.phases import RunError
from elasticutor.driver.loop import ClusterError
from elasticutor.spark import Cluster


def test_nothing_survives_a_cluster_that_has_done_its_work(
    spark: SparkSession, tmp_path: Path
) -> None:
    with Cluster(spark, nodes=2, cores=1) as cluster:
        run = cluster.submit(counting(generator()), keep=True, journal=tmp_path / "j")
        run.wait(60)
        processes = of_clusters()
        assert {process.name() for process in processes} >= {"zygote", "n0", "n1"}
        assert directories(cluster.id)
    assert_gone(processes, cluster.id)


def test_nothing_survives_an_exception_in_the_midst_of_a_run(
    spark: SparkSession, tmp_path: Path
) -> None:
    cluster = Cluster(spark, nodes=2, cores=1)
    processes: list[psutil.Process] = []

    def use() -> None:
        with cluster:
            cluster.submit(counting(generator(None, rate=1_000)), journal=tmp_path / "j")
            processes.extend(of_clusters())
            raise LookupError("of the user")

    with pytest.raises(LookupError, match="of the user"):
        use()
    assert len(processes) > 4
    assert_gone(processes, cluster.id)


@pytest.mark.parametrize("everything", [False, True])
def test_a_run_whose_cluster_is_cancelled_by_spark_fails_and_says_so(
    spark: SparkSession, tmp_path: Path, everything: bool
) -> None:
    with Cluster(spark, nodes=2, cores=1) as cluster:
        run = cluster.submit(counting(generator(None, rate=1_000)), journal=tmp_path / "j")
        processes = of_clusters()
        if everything:
            spark.sparkContext.cancelAllJobs()
        else:
            spark.sparkContext.cancelJobGroup(f"elasticutor-{cluster.id}")
        with pytest.raises(RunError, match="cancelled"):
            run.wait(60)
        await_that(lambda: not cluster.nodes, "the nodes to be known as lost")
        with pytest.raises(ClusterError, match=r"have nodes.*cancelled"):
            cluster.submit(counting(generator()), journal=tmp_path / "again")
        assert_gone(processes, cluster.id)


def test_a_run_whose_sources_are_cancelled_by_spark_fails_and_its_cluster_goes_on(
    spark: SparkSession, tmp_path: Path
) -> None:
    with Cluster(spark, nodes=1, cores=2) as cluster:
        run = cluster.submit(counting(generator(None, rate=1_000)), journal=tmp_path / "j")
        spark.sparkContext.cancelJobGroup(f"elasticutor-{run.id}")
        with pytest.raises(RunError, match="cancelled"):
            run.wait(60)
        cluster.submit(counting(generator()), journal=tmp_path / "next").wait(60)
        processes = of_clusters()
    assert_gone(processes, cluster.id)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
@pytest.mark.jvm
def test_nothing_survives_a_driver_that_is_interrupted_or_killed(
    tmp_path: Path, number: signal.Signals
) -> None:
    with Script("endless", tmp_path) as script:
        cluster = script.told("running")["cluster"]
        processes = script.look()
        assert of_clusters(script.process.pid)
        assert directories(cluster)
        if number is signal.SIGINT:
            os.killpg(script.process.pid, number)  # as a terminal does it: to the whole group
        else:
            script.process.kill()
        assert script.ended() == -number
        assert_gone(processes, cluster)


@pytest.fixture(scope="module")
def contexts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Script]:
    with Script("contexts", tmp_path_factory.mktemp("contexts")) as script:
        yield script
        assert script.ended() == 0, script.said()


@pytest.mark.jvm
def test_a_local_master_with_one_slot_is_refused(contexts: Script) -> None:
    told = contexts.told("one_slot")
    assert told["kind"] == "BadValueError"
    assert "Spark (local[1]) must have 2 slots" in told["text"]
    assert "use local[2] or more" in told["text"]


@pytest.mark.jvm
def test_a_stopped_context_is_refused(contexts: Script) -> None:
    told = contexts.told("stopped")
    assert told["kind"] == "ClusterError"
    assert "make a new SparkSession" in told["text"]


@pytest.mark.jvm
def test_executors_without_the_package_are_refused_with_what_to_do_about_it(
    contexts: Script,
) -> None:
    told = contexts.told("bare")
    assert told["kind"] == "ClusterError"
    assert "No module named" in told["text"]
    assert "PYSPARK_PYTHON" in told["text"]
    assert told["left"] == 0


@pytest.mark.jvm
def test_a_run_whose_context_is_stopped_fails_and_says_so_and_nothing_survives(
    contexts: Script,
) -> None:
    told = contexts.told("under_a_run")
    assert told["failure"].startswith("RunError: ")
    assert "SparkContext was shut down" in told["failure"]
    assert told["again"].startswith("ClusterError: ")
    assert len(told["pids"]) > 4
    processes = [psutil.Process(pid) for pid in told["pids"] if psutil.pid_exists(pid)]
    assert_gone(processes, told["cluster"])
