"""A driver with a run that has no end, until somebody ends the driver."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.spark.rig import counting, generator, tell

from elasticutor.spark import Cluster
from elasticutor.spark.session import local_session


def main(told: Path) -> None:
    spark = local_session("local[2]")
    with Cluster(spark, nodes=2, cores=2) as cluster:
        run = cluster.submit(counting(generator(None, rate=1_000)), journal=told / "journal")
        tell(told, "running", {"cluster": cluster.id})
        run.wait()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
