"""Drivers and whole Spark executors that are killed: the query goes on, if need be in another."""

from __future__ import annotations

import signal
import time
from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest
from tests.runtime.live import remove_journals
from tests.spark.rig import Script, assert_gone
from tests.spark.scripts.elastic_local_cluster import DOOMS
from tests.spark.test_local_cluster import spark_home

pytestmark = pytest.mark.jvm

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


def require_successor(folder: Path, points: Sequence[str]) -> None:
    """Kill a driver at each of these points, one in each batch; the last one comes to the end."""
    batches = len(points) + 2
    for epoch, point in enumerate([*points, "the end"], start=2):
        told = folder / f"driver-{epoch}"
        told.mkdir()
        variables = {"DIE_AT": point, "DIE_IN": f"{epoch} {batches}"}
        with Script("elastic_driver", told, variables) as script:
            code = watched(script)
            assert code == (-signal.SIGKILL if point in points else 0), (point, script.said())
            cluster = script.told("cluster")
            assert_gone(script.seen.values(), cluster)
            remove_journals(cluster)
    assert script.told("mistakes") == []


def test_a_driver_killed_when_a_batch_is_durable_has_a_successor_that_goes_on(
    tmp_path: Path,
) -> None:
    require_successor(tmp_path, ["durable"])


@pytest.mark.matrix
@pytest.mark.timeout(900)  # every driver has a JVM to start
def test_a_driver_that_is_killed_at_any_point_of_a_batch_has_a_successor_that_goes_on(
    tmp_path: Path,
) -> None:
    require_successor(tmp_path, list(POINTS))


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "dooms",
    [
        pytest.param("0", id="a Spark executor"),
        pytest.param("0 1 2 3 4", id="any process", marks=pytest.mark.matrix),
    ],
)
def test_on_a_cluster_a_spark_executor_or_any_process_is_lost_and_every_row_counts_once(
    tmp_path: Path, dooms: str
) -> None:
    variables = {"SPARK_HOME": str(spark_home(tmp_path / "home")), "DOOMS": dooms}
    with Script("elastic_local_cluster", tmp_path, variables) as script:
        assert watched(script) == 0, script.said()
        cluster = script.told("cluster")
        assert_gone(script.seen.values(), cluster)
        remove_journals(cluster)
    met = [DOOMS[int(number)] for number in dooms.split()]
    assert script.told("met") == [f"{doom.who}: {doom.point}" for doom in met]
    assert script.told("mistakes") == []
