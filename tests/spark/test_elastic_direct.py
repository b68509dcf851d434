"""`elastic(exchange=False)`: outputs straight into the sink, or a clear refusal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from tests.spark.elastic_rig import Files, Tally, ended, require_tally

from elasticutor import elastic
from elasticutor.errors import BadValueError

pytestmark = pytest.mark.usefixtures("own_cluster")


@pytest.fixture
def files(spark: SparkSession, tmp_path: Path) -> Iterator[Files]:
    yield Files(spark, tmp_path)
    for query in spark.streams.active:
        query.stop()


def exchanges(frame: DataFrame) -> int:
    """How many exchanges were asked for in a plan."""
    plan = str(frame._jdf.queryExecution().analyzed().toString())
    return plan.count("Repartition")


def test_outputs_go_straight_into_the_sink_and_state_goes_on_with_and_without_an_exchange(
    files: Files,
) -> None:
    files.give(40, 30, 1, 25)
    direct = files.tally(2, exchange=False)
    assert (exchanges(direct), exchanges(files.tally(2))) == (0, 1)
    files.run(direct)
    files.require_state()
    files.give(20, 20)
    files.run(files.tally(2))
    files.give(10)
    files.run(files.tally(2, exchange=False))
    require_tally(files.out(), files.given)
    files.require_state()


def test_rows_may_be_chosen_and_columns_changed_on_the_way_to_the_sink(files: Files) -> None:
    files.give(40, 30)
    direct = files.tally(1, exchange=False)
    files.run(direct.where("n > 0").select("k", "n", "id").withColumn("one", direct.n * 0 + 1))
    assert {row["one"] for row in files.out()} == {1}
    require_tally(files.out(), files.given)
    files.require_state()


@pytest.mark.parametrize(
    ("beyond", "said"),
    [
        (lambda tally: tally.union(tally), "Union is between"),
        (lambda tally: tally.coalesce(1), "Repartition is between"),
        (lambda tally: tally.dropDuplicates(["id"]), "Deduplicate is between"),
        (lambda tally: elastic(tally, Tally(), key="k", name="next"), "is between"),
    ],
    ids=["union", "coalesce", "duplicates", "another elastic operator behind"],
)
def test_what_changes_partitions_on_the_way_to_the_sink_is_refused(
    files: Files, beyond: Callable[[DataFrame], DataFrame], said: str
) -> None:
    files.give(40)
    with pytest.raises(StreamingQueryException, match=rf"{said}.*leave out exchange=False"):
        files.run(beyond(files.tally(exchange=False)))


def test_another_elastic_operator_in_front_is_refused(files: Files) -> None:
    files.give(40)
    second = elastic(files.tally(), Tally(), key="k", name="next", exchange=False)
    with pytest.raises(StreamingQueryException, match="another elastic operator"):
        files.run(second)


def test_a_function_of_batches_is_refused(files: Files) -> None:
    files.give(40)
    with pytest.raises(StreamingQueryException, match=r"foreachBatch.*leave out exchange=False"):
        files.each(files.tally(exchange=False), lambda frame, number: frame.count())


def test_other_sinks_run_every_partition_once_as_well(files: Files) -> None:
    files.give(40, 30)
    writer = files.tally(1, exchange=False).writeStream.format("memory").queryName("direct")
    checkpoint = str(files.checkpoint)
    ended(writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start())
    require_tally(files.spark.table("direct").collect(), files.given)
    files.require_state()


def test_a_batch_frame_is_refused_before_anything_runs(spark: SparkSession) -> None:
    frame = spark.createDataFrame([(1, 2)], "id bigint, k bigint")
    with pytest.raises(BadValueError, match="exchange must be True for a batch DataFrame"):
        elastic(frame, Tally(), key="k", exchange=False)
