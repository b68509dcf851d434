"""A driver that kills itself at a named point of a batch; started again, it goes on from there."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from tests.spark.dooms import Counting, Doom, Reaper
from tests.spark.rig import await_that, tell

from elasticutor.core.protocol import batch_protocol as ba
from elasticutor.driver.queries.batch_driver import BatchDriver
from elasticutor.spark.elastic import session_cluster
from elasticutor.spark.session import local_session


def die(*_: Any) -> None:
    """As if the power had gone."""
    os.kill(os.getpid(), signal.SIGKILL)


class Suicide(Reaper):
    """The same points, and some more, but it is the driver itself that dies there."""

    def _before(self, driver: BatchDriver, order: ba.BatchOrder) -> None:
        doom = self._due.get(driver.batches.epoch)
        if doom is not None and type(order).__name__ == doom.point:
            die()

    def _later(self, driver: BatchDriver, point: str) -> bool:
        doom = self._due.get(driver.batches.epoch)
        if doom is None or doom.point != "in the sink" or point != "left":
            return super()._later(driver, point)
        self.counting.obstruct(doom.epoch - 1)
        self._due.clear()  # Spark says when
        return False


def main(told: Path, point: str, epoch: int, batches: int) -> None:
    spark = local_session("local[3]")
    counting = Counting(spark, told.parent, batches)
    if not (told.parent / "in").exists():
        counting.write_input()
    tell(told, "cluster", session_cluster(spark).id)
    with Suicide(counting, [Doom("driver", point, epoch)], kill=die).at_work():
        query = counting.start()
        if point == "in the sink":
            noted = told.parent / "out" / "_spark_metadata" / str(epoch - 1)
            await_that(noted.exists, "the sink to have committed")
            die()
        query.awaitTermination()
    tell(told, "mistakes", counting.mistakes())
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), os.environ["DIE_AT"], *map(int, os.environ["DIE_IN"].split()))
