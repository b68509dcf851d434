"""Tasks that fail in the midst of their rows, on a session that tries each of them three times."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame
from tests.spark.elastic_rig import KEYS, Files, Patient, require_tally
from tests.spark.rig import tell

from elasticutor import elastic
from elasticutor.spark.session import local_session

SCHEMA = "id bigint, k bigint"
ROWS, ENOUGH = 1_200, 1_000
"""So many that they do not all wait in a buffer on their way to the operator."""


def failing_once(mark: Path, begun: Path) -> Callable[..., Iterator[pa.RecordBatch]]:
    """Passes rows on one by one, and fails once, when the operator has had some of them."""
    failed, has_begun = str(mark), str(begun)

    def pass_on(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        passed = 0
        for batch in batches:
            for row in range(batch.num_rows):
                if passed == ENOUGH and not Path(failed).exists():
                    while not Path(has_begun).exists():
                        time.sleep(0.01)
                    Path(failed).touch()
                    raise OSError("once")
                yield batch.slice(row, 1)
                passed += 1

    return pass_on


def refused(action: Callable[[], object]) -> str:
    try:
        action()
    except Exception as error:
        return str(error)
    return "not refused"


def main(told: Path) -> None:
    spark = local_session("local[4,3]")
    spark.sparkContext.setLogLevel("OFF")
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", 1)
    files = Files(spark, told / "stream")
    files.give(ROWS)

    def frame(rows: DataFrame, name: str) -> DataFrame:
        folder = told / name
        folder.mkdir(exist_ok=True)
        tally = Patient(folder)
        tally.go_on()
        once = rows.mapInArrow(failing_once(folder / "failed", folder / "begun"), SCHEMA)
        return elastic(once, tally, key="k", name="Tally")

    tell(told, "stream", refused(lambda: files.run(frame(files.stream(), "a"))))
    files.run(frame(files.stream(), "a"))
    require_tally(files.out(), files.given)
    files.require_state()
    tell(told, "stream again", True)

    tally = frame(spark.range(ROWS, numPartitions=1).selectExpr("id", f"id % {KEYS} AS k"), "b")
    tell(told, "batch", refused(tally.collect))
    require_tally(tally.select("*").collect(), files.given)  # Spark keeps what a plan failed for
    tell(told, "batch again", True)
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
