"""Drivers and whole Spark executors that are killed: the query goes on, if need be in another."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import psutil
import pytest
from tests.runtime.live import remove_journals
from tests.spark.rig import Script, assert_gone
from tests.spark.scripts.elastic_local_cluster import DOOMS
from tests.spark.test_local_cluster import spark_home

POINTS = {
    "CountTasks": "the batch before is committed by Spark, and nothing of this one has happened",
    "WriteManifest": "all is processed, and written but for the manifest",
    "durable": "the manifest is there, and nobody knows",
    "left": "the last task may leave, and the sink has not committed",
    "in the sink": "the sink has committed, and Spark has not noted so",
}
"""Where a driver is killed, in the order of a batch, and what is true there."""


def watched(script: Script) -> int:
    """Wait for the end of a script, and note who descends from it meanwhile."""
    until = time.monotonic() + 240
    while script.process.poll() is None:
        assert time.monotonic() < until, script.said()
        try:
            script.look()
        except psutil.NoSuchProcess:
            continue  # it has ended since
        time.sleep(0.1)
    return script.ended()


@pytest.mark.timeout(900)  # every driver has a JVM to start
def test_a_driver_that_is_killed_at_any_point_of_a_batch_has_a_successor_that_goes_on(
    tmp_path: Path,
) -> None:
    batches = len(POINTS) + 2
    for epoch, point in enumerate([*POINTS, "the end"], start=2):
        told = tmp_path / f"driver-{epoch}"
        told.mkdir()
        variables = {"DIE_AT": point, "DIE_IN": f"{epoch} {batches}"}
        with Script("elastic_driver", told, variables) as script:
            code = watched(script)
            assert code == (-signal.SIGKILL if point in POINTS else 0), (point, script.said())
            cluster = script.told("cluster")
            assert_gone(script.seen.values(), cluster)
            remove_journals(cluster)
    assert script.told("mistakes") == []


@pytest.mark.timeout(600)
def test_on_a_cluster_whoever_is_lost_a_whole_spark_executor_included_every_row_counts_once(
    tmp_path: Path,
) -> None:
    home = {"SPARK_HOME": str(spark_home(tmp_path / "home"))}
    with Script("elastic_local_cluster", tmp_path, home) as script:
        assert watched(script) == 0, script.said()
        cluster = script.told("cluster")
        assert_gone(script.seen.values(), cluster)
        remove_journals(cluster)
    assert script.told("met") == [f"{doom.who}: {doom.point}" for doom in DOOMS]
    assert script.told("mistakes") == []
