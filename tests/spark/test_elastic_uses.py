"""What people do to a DataFrame, done to an elastic one: the right result, or a clear refusal.

Whatever is refused, the state is still right: the query goes on from it without the mistake, and
comes to what a fold over the whole input comes to.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from pyspark import InheritableThread
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from tests.spark.elastic_rig import (
    KEYS,
    Files,
    Patient,
    Tally,
    ended,
    folded,
    lose_shuffle_files,
    require_tally,
    state_at,
)
from tests.spark.rig import Script, await_that

from elasticutor import Cluster, Run, elastic
from elasticutor.driver.queries.batch_driver import BatchDriver
from elasticutor.process.failures import BatchError
from elasticutor.process.ingress import Connection
from elasticutor.spark.supervising import is_lost

STATELESS_AQE = "spark.sql.adaptive.streaming.stateless.enabled"

pytestmark = pytest.mark.usefixtures("own_cluster")


@pytest.fixture
def files(spark: SparkSession, tmp_path: Path) -> Iterator[Files]:
    yield Files(spark, tmp_path)
    for query in spark.streams.active:
        query.stop()


@pytest.fixture(params=["planned at once", "planned when used"])
def planning(spark: SparkSession, request: pytest.FixtureRequest) -> Iterator[str]:
    """With adaptive planning operators run before foreachBatch does; without, in its first use."""
    spark.conf.set(STATELESS_AQE, str(request.param == "planned at once").lower())
    yield request.param
    spark.conf.unset(STATELESS_AQE)


def require_next(files: Files) -> None:
    """Without the mistake the query goes on, and its state is what it should be."""
    files.give(20)
    files.run(files.tally(), "next")
    files.require_state()


# Twice in one query -------------------------------------------------------------------------------


def test_a_stream_in_union_with_itself_is_worked_on_once_and_written_twice(files: Files) -> None:
    files.give(40, 30)
    tally = files.tally(1)
    files.run(tally.union(tally))
    require_tally(files.out(), files.given, times=2)
    files.require_state()


def test_a_stream_in_union_with_itself_filtered_is_refused(files: Files) -> None:
    files.give(40, 30)
    tally = files.tally(1)
    with pytest.raises(StreamingQueryException, match="used twice in one execution"):
        files.run(tally.union(tally.filter("n > 3")))
    tally = files.tally(1)
    files.run(tally.union(tally), "right")  # Spark wants as many sources as before
    require_tally(files.out("right"), files.given, times=2)
    files.require_state()


def test_two_elastic_streams_in_one_query_have_a_state_each(files: Files) -> None:
    files.give(40, 30)
    both = files.tally(1, name="one").union(files.tally(1, name="other"))
    files.run(both)
    require_tally(files.out(), files.given, times=2)
    files.require_state("one")
    files.require_state("other")


def test_two_elastic_streams_of_one_name_in_one_query_are_refused(files: Files) -> None:
    files.give(40)
    with pytest.raises(StreamingQueryException, match=r"different names \(name=…\)"):
        files.run(files.tally().union(files.tally()))
    files.run(files.tally().union(files.tally(name="other")), "right")
    require_tally(files.out("right"), files.given, times=2)
    files.require_state()
    files.require_state("other")


# Several queries ----------------------------------------------------------------------------------


def test_one_elastic_stream_started_as_two_queries_has_a_state_in_each(
    files: Files, tmp_path: Path
) -> None:
    files.give(40, 30)
    tally = files.tally(1)
    other = Files(files.spark, tmp_path / "other", files.given)
    queries = [files.start(tally), other.start(tally)]
    for query in queries:
        ended(query)
    for each in (files, other):
        require_tally(each.out(), files.given)
        each.require_state()


def test_one_explicit_checkpoint_for_two_queries_is_refused(files: Files, tmp_path: Path) -> None:
    files.give(40)
    where = tmp_path / "state"
    tally = files.tally(checkpoint=str(where))
    first = files.start(tally, processingTime="0 seconds")
    first.processAllAvailable()
    other = Files(files.spark, tmp_path / "other", files.given)
    with pytest.raises(StreamingQueryException, match="every query needs a location of its own"):
        other.run(tally)
    files.give(30)
    first.processAllAvailable()
    first.stop()
    with pytest.raises(StreamingQueryException, match="every query needs a location of its own"):
        other.run(tally)
    require_tally(files.out(), files.given)
    files.require_state(where=where)


# foreachBatch -------------------------------------------------------------------------------------


@pytest.mark.parametrize("cached", [False, True])
def test_a_batch_may_be_looked_at_counted_and_written_twice(
    files: Files, tmp_path: Path, planning: str, cached: bool
) -> None:
    files.give(40, 30)
    seen: list[tuple[bool, int, int]] = []

    def each(batch: DataFrame, number: int) -> None:
        if cached:
            batch.persist()
        counted = batch.isEmpty(), batch.count(), batch.filter("n > 3").count()
        seen.append(counted)
        for name in ("a", "b"):
            batch.write.mode("append").parquet(str(tmp_path / name))
        batch.union(batch.filter("n > 3")).write.mode("append").parquet(str(tmp_path / "c"))
        if cached:
            batch.unpersist()

    files.each(files.tally(1), each)
    assert [(empty, count) for empty, count, _ in seen] == [(False, 40), (False, 30)]
    for name in ("a", "b"):
        require_tally(files.out(name), files.given)
    require_tally({row["id"]: row for row in files.out("c")}.values(), files.given)
    assert len(files.out("c")) == 70 + sum(many for _, _, many in seen)
    require_next(files)


def test_a_batch_that_nobody_looks_at_is_skipped_or_counted_as_spark_plans_it(
    files: Files, planning: str
) -> None:
    files.give(40)
    files.each(files.tally(), lambda batch, number: None)
    worked = planning == "planned at once"
    assert (files.checkpoint / "elasticutor").exists() == worked
    if worked:
        require_next(files)


def in_thread(kind: Callable[..., Any], what: Callable[[], Any]) -> Any:
    """What it returns there, or raises."""
    got: list[Any] = []

    def run() -> None:
        try:
            got.append(what())
        except Exception as error:
            got.append(error)

    thread = kind(target=run)
    thread.start()
    thread.join()
    if isinstance(got[0], Exception):
        raise got[0]
    return got[0]


def test_threads_that_take_the_batch_along_may_use_it(files: Files, planning: str) -> None:
    files.give(40, 30)
    seen: list[int] = []

    def each(batch: DataFrame, number: int) -> None:
        seen.append(in_thread(InheritableThread, batch.count))
        seen.append(batch.count())

    files.each(files.tally(1), each)
    assert seen == [40, 40, 30, 30]
    require_next(files)


def test_a_thread_that_does_not_is_refused_where_it_would_be_the_first(
    files: Files, planning: str
) -> None:
    files.give(40)
    seen: list[int] = []

    def each(batch: DataFrame, number: int) -> None:
        seen.append(in_thread(threading.Thread, batch.count))

    if planning == "planned at once":
        files.each(files.tally(), each)
        assert seen == [40]
    else:
        with pytest.raises(StreamingQueryException, match=r"pyspark\.InheritableThread"):
            files.each(files.tally(), each)
        assert seen == []
    require_next(files)


def test_partitions_and_rdds_of_a_batch_are_its_own(files: Files, planning: str) -> None:
    files.give(40, 30)
    seen: list[int] = []

    def each(batch: DataFrame, number: int) -> None:
        seen.extend((batch.rdd.count(), batch.rdd.count()))
        batch.foreachPartition(lambda rows: list(rows).clear())
        seen.append(len(batch.take(3)))

    files.each(files.tally(1), each)
    assert seen == [40, 40, 3, 30, 30, 3]
    require_next(files)


class Picky(Tally):
    """Fails at one row."""

    def process(self, key: Any, row: Any, state: Any) -> Iterator[Any]:
        if row.id == 7:
            raise ValueError("not this one")
        return super().process(key, row, state)


def test_a_function_that_swallows_a_failure_does_not_lose_rows_unseen(
    files: Files, planning: str
) -> None:
    files.give(40, 30)
    refused: list[str] = []

    def each(batch: DataFrame, number: int) -> None:
        try:
            batch.count()
        except Exception as error:
            refused.append(str(error))

    picky = elastic(files.stream(1), Picky(), key="k")
    if planning == "planned at once":  # then Spark itself sees it, before the function does
        with pytest.raises(StreamingQueryException, match="not this one"):
            files.each(picky, each)
    else:
        files.each(picky, each)
        assert "not this one" in refused[0]
        assert ["batch 0 is not in the state" in why for why in refused[1:]] == [True]


# Empty -------------------------------------------------------------------------------------------


def test_filters_that_leave_no_rows_leave_no_state(files: Files) -> None:
    files.give(40)
    nothing = elastic(files.stream(1).filter("id < 0"), Tally(), key="k")
    files.run(nothing)
    assert files.out() == []
    assert files.state() == {}
    files.give(30)
    files.run(files.tally(1), "next")
    files.given = files.given[40:]
    files.require_state()
    require_tally(files.out("next"), files.given)


def test_filters_of_outputs_that_leave_no_rows_leave_the_state(files: Files) -> None:
    files.give(40)
    files.run(files.tally(1).filter("n < 0"))
    assert files.out() == []
    files.give(30)
    files.run(files.tally(1).filter(F.lit(False)))
    assert files.out() == []
    files.require_state()


def test_an_exhausted_source_in_a_union_stays_as_it_is(files: Files, tmp_path: Path) -> None:
    files.give(40)
    other = Files(files.spark, tmp_path / "other")
    other.give(10, 10, 10)

    def below() -> DataFrame:
        return elastic(files.stream(1).union(other.stream(1)), Tally(), key="k", name="below")

    def beside() -> DataFrame:
        return below().union(files.tally(1, name="a")).union(other.tally(1, name="b"))

    files.run(beside())
    other.give(10)
    files.run(beside())
    files.require_state("a")
    assert state_at(files.checkpoint / "elasticutor" / "b", "b") == folded(other.given)
    whole = [*files.given, *other.given]
    assert state_at(files.checkpoint / "elasticutor" / "below", "below") == folded(whole)
    files.give(25)  # the exhausted one has gaps between its batches
    files.run(beside())
    files.require_state("a")


# Run again ----------------------------------------------------------------------------------------


def test_a_second_copy_of_a_task_ends_the_batch_and_its_rows_count_once(
    files: Files, tmp_path: Path, own_cluster: Cluster
) -> None:
    """As speculation has it: a copy runs on another machine while the first is still there."""
    files.give(40, 30)
    patient = Patient(tmp_path)
    query = files.start(elastic(files.stream(), patient, key="k", name="Tally"))
    await_that(patient.has_begun, "rows to arrive")
    frame, run = served(own_cluster, query.id)
    driver = run.supervisor.epochs
    assert isinstance(driver, BatchDriver)
    copy = replace(driver.batches.present[0], task=10**9)
    connection = Connection.of(own_cluster.bootstrap)
    connection.ask(frame, query.id, query.runId, copy)
    with pytest.raises(BatchError, match="is run a second time"):
        connection.await_admission(copy)
    with pytest.raises(StreamingQueryException, match="is run a second time"):
        ended(query)
    files.run(files.tally(), "right")
    require_tally(files.out("right"), files.given)
    files.require_state()


def served(cluster: Cluster, query: str) -> tuple[str, Run]:
    """The elastic DataFrame of a query, and the run that serves it."""
    for reception in cluster.receptions:
        run = reception.run_of(query)
        if run is not None:
            return reception.frame, run
    raise AssertionError(f"nobody serves {query}")


INDETERMINATE = "shuffle map stage with indeterminate output was failed and retried"


def given_up_by_spark(action: Callable[[], object]) -> bool:
    """Whether Spark itself refuses, as it does where some outputs that are lost have been used."""
    try:
        action()
    except Exception as error:
        if INDETERMINATE not in str(error):
            raise
        return True
    return False


def test_outputs_that_are_lost_between_two_uses_of_a_batch_are_made_again(
    files: Files, planning: str
) -> None:
    files.give(40, 30)
    seen: list[int] = []

    def each(batch: DataFrame, number: int) -> None:
        seen.append(batch.count())
        assert lose_shuffle_files()
        seen.append(batch.count())

    if given_up_by_spark(lambda: files.each(files.tally(1), each)):
        files.run(files.tally(1))
    else:
        assert seen == [40, 40, 30, 30]
    require_next(files)


def test_a_stage_of_which_a_part_is_run_again_is_refused(files: Files, tmp_path: Path) -> None:
    files.give(90)
    patient = Patient(tmp_path)
    many = files.stream().repartition(12)
    query = files.start(elastic(many, patient, key="k", name="Tally"))
    await_that(patient.has_begun, "rows to arrive")
    assert lose_shuffle_files()  # what those of the second wave would read
    patient.go_on()
    with pytest.raises(StreamingQueryException, match=r"is run a second time|run in part only"):
        ended(query)
    files.run(elastic(files.stream().repartition(12), Tally(), key="k"), "right")
    require_tally(files.out("right"), files.given)
    files.require_state()


def test_output_that_is_lost_when_its_stage_is_done_ends_the_query_and_it_can_be_started_again(
    files: Files, tmp_path: Path, spark: SparkSession
) -> None:
    """Spark makes it anew under another number, as it does with a second use of the DataFrame."""
    files.give(90)
    disk, lost = Path(os.environ["SPARK_LOCAL_DIRS"]), tmp_path / "lost"

    def lose(batches: Iterable[Any]) -> Iterator[Any]:
        if not lost.exists():
            for path in disk.rglob("shuffle_*"):
                path.unlink(missing_ok=True)
            lost.touch()
        yield from batches

    partitions = spark.conf.get("spark.sql.shuffle.partitions")
    spark.conf.set("spark.sql.shuffle.partitions", 4)  # one more than there are slots
    try:
        tally = files.tally()
        with pytest.raises(
            StreamingQueryException, match=r"output of the stage .* was lost"
        ) as seen:
            files.run(tally.mapInArrow(lose, tally.schema), "wrong")
    finally:
        spark.conf.set("spark.sql.shuffle.partitions", str(partitions))
    assert is_lost(str(seen.value))
    files.run(files.tally(), "right")
    require_tally(files.out("right"), files.given)
    files.require_state()


def test_outputs_of_a_batch_frame_that_are_lost_are_made_again(spark: SparkSession) -> None:
    tally = elastic(batch(spark), Tally(), key="k")
    require_tally(tally.collect(), given())
    assert lose_shuffle_files()
    seen: list[Any] = []
    if given_up_by_spark(lambda: seen.extend(tally.collect())):
        seen = tally.select("*").collect()
    require_tally(seen, given())


@pytest.mark.jvm
def test_tasks_that_spark_tries_again_are_refused_and_their_rows_count_once(
    tmp_path: Path,
) -> None:
    """Needs a session of its own: others give up at the first failure."""
    with Script("elastic_retries", tmp_path) as script:
        assert "is run a second time" in script.told("stream")
        assert script.told("stream again") is True
        assert "is run a second time" in script.told("batch")
        assert script.told("batch again") is True
        assert script.ended() == 0


# Batch DataFrames ---------------------------------------------------------------------------------


def batch(spark: SparkSession, rows: int = 60, partitions: int = 5) -> DataFrame:
    return spark.range(rows, numPartitions=partitions).selectExpr("id", f"id % {KEYS} AS k")


def given(rows: int = 60) -> list[tuple[int, int]]:
    return [(number, number % KEYS) for number in range(rows)]


def test_every_action_on_a_batch_frame_begins_with_nothing(
    spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    tally = elastic(batch(spark), Tally(), key="k")
    require_tally(tally.collect(), given())
    require_tally(tally.collect(), given())
    assert tally.count() == tally.count() == 60
    assert not tally.isEmpty()
    assert len(tally.take(7)) == len(tally.limit(7).collect()) == 7
    tally.show(3)
    assert "only showing top 3 rows" in capsys.readouterr().out
    assert tally.agg(F.max("n")).first()[0] == 60 // KEYS  # type: ignore[index]
    require_tally(tally.toLocalIterator(), given())
    assert tally.rdd.count() == 60
    assert tally.filter("n < 0").count() == 0
    assert tally.filter(F.lit(False)).count() == 0


def test_a_batch_frame_may_be_used_as_often_as_one_likes(spark: SparkSession) -> None:
    tally = elastic(batch(spark), Tally(), key="k")
    require_tally(tally.union(tally).collect(), given(), times=2)
    assert tally.union(tally.filter("n > 3")).count() == 60 + 60 - 3 * KEYS
    assert tally.join(tally, "id").count() == 60
    assert tally.orderBy("n", "k").first()["n"] == 1  # type: ignore[index]
    cached = tally.persist()
    assert cached.isEmpty() is False
    require_tally(cached.collect(), given())
    cached.unpersist()


def test_empty_frames_and_empty_partitions_are_no_trouble(spark: SparkSession) -> None:
    assert elastic(batch(spark, 0), Tally(), key="k").collect() == []
    few = elastic(batch(spark, 3, 20), Tally(), key="k")
    require_tally(few.collect(), given(3))
    none = batch(spark).filter("rand() > 2")  # not known to be empty before it runs
    assert elastic(none, Tally(), key="k").collect() == []
