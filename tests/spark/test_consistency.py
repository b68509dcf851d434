from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import uuid
from pathlib import Path

import psutil
import pytest

# Held in `make test` by the live consistency test, and on two executors by test_local_cluster.
pytestmark = [pytest.mark.jvm, pytest.mark.matrix]

pytest.importorskip("pyspark")

MARK = "ELASTICUTOR_TEST"

SCRIPT = """
import json
import sys
from pathlib import Path
from elasticutor.lab.bench.moves.consistency import ConsistencyBench
from elasticutor.spark.cluster import Cluster
from elasticutor.spark.session import local_session

if __name__ == "__main__":
    # On each Spark executor one node of four cores, and a slot for sources and sinks.
    spark = local_session("local-cluster[2,5,1024]")
    try:
        with Cluster(spark, nodes=2, cores=4, schedule_s=0) as cluster:
            bench = ConsistencyBench(seconds=4, rate=2000, keys=300, omega=120)
            result = bench.on(cluster)
        Path(sys.argv[1]).write_text(json.dumps(result.as_dict()))
    finally:
        spark.stop()
"""


def test_nothing_is_lost_doubled_or_swapped_on_two_spark_executors(tmp_path: Path) -> None:
    # In a process of its own, because there can be one SparkContext in each only.
    mark, result, log = uuid.uuid4().hex, tmp_path / "result.json", tmp_path / "log"
    with log.open("w") as printed:
        ran = subprocess.run(
            [sys.executable, "-c", SCRIPT, str(result)],
            stdout=printed,
            stderr=subprocess.STDOUT,
            cwd=tmp_path,
            env={**os.environ, MARK: mark},
            timeout=240,
            check=False,
        )
    assert ran.returncode == 0, log.read_text()
    seen = json.loads(result.read_text())
    assert seen["first_violations"] == []
    assert seen["violations"] == 0
    assert seen["rows"] == 8_001  # a third of it in each source, rounded up
    assert seen["moves"] > 0
    assert seen["core_changes"] > 0
    assert left_behind(mark) == []


def left_behind(mark: str) -> list[str]:
    """What still runs of all that inherited the mark, after a while."""
    until = time.monotonic() + 20
    while (found := _marked(mark)) and time.monotonic() < until:
        psutil.wait_procs(found, timeout=0.5)
    return [" ".join(process.cmdline()) for process in found]


def _marked(mark: str) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == mark and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue  # gone meanwhile, or not ours
    return found
