"""Several SparkContexts in one JVM, one after the other: each with something wrong about it."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from tests.spark.rig import counting, generator, of_clusters, tell

from elasticutor.errors import ElasticutorError
from elasticutor.spark import Cluster
from elasticutor.spark.session import local_session


def refused(spark: SparkSession) -> dict[str, Any]:
    """How a cluster on this session is refused."""
    try:
        Cluster(spark, nodes=1, cores=1)
    except ElasticutorError as error:
        return {"kind": type(error).__name__, "text": str(error), "left": len(of_clusters())}
    return {"kind": "none"}


def stopped_under_a_run(spark: SparkSession, journal: Path) -> dict[str, Any]:
    """What a run comes to when the SparkContext is stopped in the midst of it."""
    cluster = Cluster(spark, nodes=2, cores=1)
    run = cluster.submit(counting(generator(None, rate=1_000)), journal=journal)
    processes = of_clusters()
    spark.stop()
    try:
        run.wait(60)
        failure = "none"
    except Exception as error:
        failure = f"{type(error).__name__}: {error}"
    try:
        cluster.submit(counting(generator()), journal=journal)
        again = "none"
    except Exception as error:
        again = f"{type(error).__name__}: {error}"
    cluster.stop()
    pids = [process.pid for process in processes]
    return {"cluster": cluster.id, "failure": failure, "again": again, "pids": pids}


def main(told: Path) -> None:
    good = sys.executable
    spark = local_session("local[1]")
    tell(told, "one_slot", refused(spark))
    spark.stop()
    tell(told, "stopped", refused(spark))

    os.environ["PYSPARK_PYTHON"] = str(bare_python(told, good))
    spark = local_session("local[2]")
    tell(told, "bare", refused(spark))
    spark.stop()

    os.environ["PYSPARK_PYTHON"] = good
    spark = local_session("local[2]")
    tell(told, "under_a_run", stopped_under_a_run(spark, told / "journal"))


def bare_python(directory: Path, python: str) -> Path:
    """This very Python without its packages; Spark itself sees to those of pyspark."""
    path = directory / "python"
    path.write_text(f'#!/bin/sh\nexec "{python}" -S "$@"\n', encoding="utf-8")
    path.chmod(0o700)
    return path


if __name__ == "__main__":
    main(Path(sys.argv[1]))
