"""Two Spark executors, each a JVM of its own: processes die there, and the query goes on."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tests.spark.dooms import Counting, Doom, Reaper
from tests.spark.rig import tell

from elasticutor.lab.chaos.doom import MAILBOX
from elasticutor.spark.elastic import session_cluster
from elasticutor.spark.session import local_session
from elasticutor.transport.mailbox import FACTORY

DOOMS = [
    Doom("Spark executor", "send rows", 2),
    Doom("worker", "send PartitionDone", 3),
    Doom("node", "send IncrementPersisted", 4),
    Doom("Spark executor", "durable", 5),
    Doom("task", "left", 6),
]


def main(told: Path) -> None:
    os.environ[FACTORY] = MAILBOX
    spark = local_session("local-cluster[2,2,1024]")
    cluster = session_cluster(spark)
    tell(told, "cluster", cluster.id)
    dooms = [DOOMS[int(number)] for number in os.environ["DOOMS"].split()]
    counting = Counting(spark, told, batches=len(dooms) + 2)
    counting.write_input()
    reaper = Reaper(counting, dooms)
    with reaper.at_work():
        tell(told, "ends", counting.to_the_end(most=4 * len(dooms)))
    tell(told, "met", [f"{doom.who}: {doom.point}" for doom in reaper.met])
    tell(told, "mistakes", counting.mistakes())
    cluster.stop()
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
