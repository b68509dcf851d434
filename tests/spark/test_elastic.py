"""`elastic` in queries of all kinds: state is what a sequential fold comes to."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
from pyspark.errors import PythonException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from tests.spark.elastic_rig import (
    KEYS,
    Files,
    Tally,
    ended,
    folded,
    require_tally,
    state_at,
)
from tests.spark.rig import await_that, of_clusters

from elasticutor import Cluster, Operator, elastic
from elasticutor.driver.queries import query_driver
from elasticutor.errors import BadValueError
from elasticutor.spark.elastic import session_cluster

pytestmark = pytest.mark.usefixtures("own_cluster")


@pytest.fixture
def files(spark: SparkSession, tmp_path: Path) -> Iterator[Files]:
    yield Files(spark, tmp_path)
    for query in spark.streams.active:
        query.stop()


def batch(spark: SparkSession, rows: int = 60, partitions: int = 4) -> DataFrame:
    return spark.range(rows, numPartitions=partitions).selectExpr("id", f"id % {KEYS} AS k")


def given(rows: int = 60) -> list[tuple[int, int]]:
    return [(number, number % KEYS) for number in range(rows)]


class Largest(Operator):
    """The largest number of each key so far, whenever it grows."""

    output: ClassVar[Any] = "key string, largest bigint"

    def __init__(self, column: str) -> None:
        self.columns = [column]  # type: ignore[misc]
        self._column = column

    def process(self, key: Any, row: Any, state: Any) -> Iterator[Any]:
        value = getattr(row, self._column)
        if value > state.get(-1):
            state.set(value)
            yield str(key), value


def largest(made: list[Any]) -> dict[str, int]:
    """What `Largest` has said at last."""
    last: dict[str, int] = {}
    for row in made:
        last[row["key"]] = max(row["largest"], last.get(row["key"], -1))
    return last


# Keys and operators -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "of"),
    [
        ("k", lambda number: number % KEYS),
        (["k", "odd"], lambda number: (number % KEYS, number % 2)),
        ("id % 3", lambda number: number % 3),
        ("'all'", lambda number: "all"),
    ],
    ids=["column", "columns", "expression", "constant"],
)
def test_keys_are_columns_or_expressions(spark: SparkSession, key: Any, of: Any) -> None:
    frame = batch(spark).withColumn("odd", F.expr("id % 2"))
    made = elastic(frame, Largest("id"), key=key).collect()
    assert largest(made) == {str(of(number)): number for number in range(60)}


def test_several_operators_are_fed_with_one_stream(files: Files) -> None:
    files.give(40, 30)
    operators = {"tally": Tally(), "top": Largest("id")}
    both = elastic(files.stream(1), operators, key="k")
    assert both.columns == ["operator", "tally", "top"]
    files.run(both)
    made = files.out()
    require_tally([row["tally"] for row in made if row["operator"] == "tally"], files.given)
    tops = largest([row["top"] for row in made if row["operator"] == "top"])
    assert tops == {str(k): 65 + k for k in range(KEYS)}
    assert all((row["tally"] is None) == (row["operator"] == "top") for row in made)
    where = files.checkpoint / "elasticutor" / "tally-top"
    assert state_at(where, "tally") == folded(files.given)
    assert state_at(where, "top") == {k: 65 + k for k in range(KEYS)}


def test_elastic_operators_follow_one_another_and_anything_else(files: Files) -> None:
    files.give(40, 30)

    def chained(rows: DataFrame) -> DataFrame:
        once = elastic(rows, Tally(), key="k").filter("n > 1")
        return elastic(once.withColumn("m", F.expr("n * 10")), Largest("m"), key="n % 2")

    expected = {"0": 140, "1": 130}
    files.run(chained(files.stream(1)))
    assert largest(files.out()) == expected
    files.require_state()
    assert files.state("Largest") == {int(key): value for key, value in expected.items()}
    assert largest(chained(batch(files.spark, 70)).collect()) == expected


# Queries ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("trigger", "sink"),
    [
        ({}, "memory"),
        ({"processingTime": "100 milliseconds"}, "foreachBatch"),
        ({"availableNow": True}, "parquet"),
        ({"once": True}, "noop"),
    ],
)
def test_triggers_and_sinks_are_sparks(files: Files, trigger: dict[str, Any], sink: str) -> None:
    files.give(40, 30)
    made: list[Any] = []
    writer = files.tally(1 if "once" not in trigger else 2).writeStream
    writer = writer.option("checkpointLocation", str(files.checkpoint))
    if trigger:
        writer = writer.trigger(**trigger)
    if sink == "memory":
        writer = writer.format(sink).queryName("tallied")
    elif sink == "foreachBatch":
        writer = writer.foreachBatch(lambda rows, number: made.extend(rows.collect()))
    else:
        writer = writer.format(sink).option("path", str(files.folder / "out"))
    query = writer.start()
    if "availableNow" in trigger or "once" in trigger:
        ended(query)
    else:
        query.processAllAvailable()
        query.stop()
    files.require_state()
    if sink == "memory":
        made = files.spark.table("tallied").collect()
    elif sink == "parquet":
        made = files.out()
    if sink != "noop":
        require_tally(made, files.given)


def test_several_queries_share_a_cluster(files: Files, own_cluster: Cluster) -> None:
    files.give(40, 30)
    others = [Files(files.spark, files.folder / name, files.given) for name in "abc"]
    frames = [
        files.tally(1),
        files.tally(2, executors=2, name="pair"),
        elastic(files.stream(1), Largest("id"), key="k", executors=3),
    ]
    queries = [one.start(frame) for one, frame in zip(others, frames, strict=True)]
    for query in queries:
        ended(query)
    require_tally(others[0].out(), files.given)
    require_tally(others[1].out(), files.given)
    others[0].require_state()
    others[1].require_state("pair")
    assert others[2].state("Largest") == {k: 65 + k for k in range(KEYS)}
    await_that(lambda: not own_cluster.runs, "executors of queries that have ended to go")


def test_more_partitions_than_slots_come_in_waves(files: Files) -> None:
    files.give(90, 3)
    many = elastic(files.stream(1).repartition(20), Tally(), key="k", executors=2)
    files.run(many)
    require_tally(files.out(), files.given)
    files.require_state()
    require_tally(elastic(batch(files.spark, 90, 20), Tally(), key="k").collect(), given(90))


def test_a_stream_may_begin_with_nothing(files: Files) -> None:
    files.give(0)
    files.run(files.tally())
    assert files.out() == []
    files.give(10)
    files.run(files.tally())
    require_tally(files.out(), files.given)
    files.require_state()


# Sources ------------------------------------------------------------------------------------------


def test_rates_are_a_source(files: Files) -> None:
    rate = files.spark.readStream.format("rate").option("rowsPerSecond", 50).load()
    rows = rate.selectExpr("value AS id", f"value % {KEYS} AS k")
    query = files.start(elastic(rows, Tally(), key="k"), processingTime="0 seconds")
    await_that(lambda: len(query.recentProgress) > 2 and len(files.out()) > 50, "some seconds")
    query.stop()
    made = files.out()
    # What was stopped in the midst of a batch may be in the state, and not yet written.
    assert Counter(row["id"] for row in made) == dict.fromkeys(range(len(made)), 1)
    rerun = files.start(elastic(rows, Tally(), key="k"), processingTime="0 seconds")
    before = len(made)
    await_that(lambda: len(files.out()) > before, "one more batch")
    rerun.stop()
    made = files.out()
    require_tally(made, given(len(made)))


def test_sockets_are_a_source(files: Files) -> None:
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        accepted: list[socket.socket] = []

        def serve() -> None:
            accepted.append(server.accept()[0])
            accepted[0].sendall("".join(f"{number}\n" for number in range(60)).encode())

        thread = threading.Thread(target=serve)
        thread.start()
        lines = files.spark.readStream.format("socket").option("host", "127.0.0.1")
        lines = lines.option("port", server.getsockname()[1])
        ids = lines.load().selectExpr("CAST(value AS bigint) AS id")
        rows = ids.withColumn("k", F.expr(f"id % {KEYS}"))
        query = files.start(elastic(rows, Tally(), key="k"), processingTime="0 seconds")
        await_that(lambda: len(files.out()) == 60, "all lines to be written")
        query.stop()
        thread.join(10)
        stack.callback(accepted[0].close)
    require_tally(files.out(), given())
    files.given = given()
    files.require_state()


class Numbers(DataSource):
    """Ten numbers in each of two partitions of every batch, up to 60."""

    @classmethod
    def name(cls) -> str:
        return "numbers"

    def schema(self) -> str:
        return "id bigint, k bigint"

    def streamReader(self, schema: Any) -> DataSourceStreamReader:  # noqa: N802 - pyspark's name
        return NumbersReader()


class NumbersReader(DataSourceStreamReader):
    def __init__(self) -> None:
        self._at = 0

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - pyspark's name
        return {"at": 0}

    def latestOffset(self, *_: Any) -> dict[str, int]:  # noqa: N802 - pyspark's name
        self._at = min(60, self._at + 20)
        return {"at": self._at}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        return [InputPartition((at, at + 10)) for at in range(start["at"], end["at"], 10)]

    def read(self, partition: InputPartition) -> Iterator[tuple[int, int]]:
        return iter([(number, number % KEYS) for number in range(*partition.value)])


def test_python_data_sources_are_a_source(files: Files) -> None:
    files.spark.dataSource.register(Numbers)
    rows = files.spark.readStream.format("numbers").load()
    query = files.start(elastic(rows, Tally(), key="k"), processingTime="0 seconds")
    await_that(lambda: len(files.out()) == 60, "all numbers to be written")
    query.stop()
    require_tally(files.out(), given())
    files.given = given()
    files.require_state()


# Restarts -----------------------------------------------------------------------------------------


def test_executors_and_shards_may_be_others_at_every_start(files: Files) -> None:
    for executors, shards in ((1, 256), (3, 8), (2, 1)):
        files.give(40)
        files.run(files.tally(executors=executors, shards=shards))
        files.require_state()
    require_tally(files.out(), files.given)


def test_a_query_that_is_started_again_at_once_goes_on(files: Files) -> None:
    files.give(10)
    tally = files.tally()
    for number in range(3):
        files.give(10)
        query = files.start(tally if number < 2 else files.tally(), processingTime="0 seconds")
        query.processAllAvailable()
        query.stop()
    require_tally(files.out(), files.given)
    files.require_state()


def test_a_checkpoint_that_does_not_fit_is_refused_with_what_to_do(
    files: Files, tmp_path: Path
) -> None:
    where = tmp_path / "state"
    files.give(40)
    files.run(files.tally(checkpoint=str(where)))
    files.give(30)
    other = Files(files.spark, tmp_path / "other", files.given)
    with pytest.raises(StreamingQueryException, match="every query needs a location of its own"):
        other.run(files.tally(checkpoint=str(where)))
    with pytest.raises(StreamingQueryException, match="call it 'Tally' again"):
        files.run(files.tally(checkpoint=str(where), name="renamed"))
    with pytest.raises(StreamingQueryException, match="partition by the same columns as before"):
        files.run(
            elastic(files.stream(), Tally(), key=["k", "id"], checkpoint=str(where), name="Tally")
        )
    files.run(files.tally(checkpoint=str(where)))
    require_tally(files.out(), files.given)
    files.require_state(where=where)


def test_a_query_whose_folders_were_deleted_begins_again_at_once(
    files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(query_driver, "_LOOK_S", 2.0)  # longer than the next start takes
    for number in range(2):
        files.give(40)
        files.run(files.tally())
        require_tally(files.out(), files.given)
        files.require_state()
        for folder in (files.checkpoint, files.folder / "out"):
            folder.rename(tmp_path / f"{folder.name} {number}")


def test_the_state_of_an_operator_that_was_renamed_is_not_forgotten_unseen(files: Files) -> None:
    files.give(40)
    files.run(files.tally())
    files.give(30)
    with pytest.raises(StreamingQueryException, match="name='Tally'"):
        files.run(files.tally(name="renamed"))
    files.run(files.tally())
    require_tally(files.out(), files.given)
    files.require_state()


# Errors -------------------------------------------------------------------------------------------


class Picky(Tally):
    def process(self, key: Any, row: Any, state: Any) -> Iterator[Any]:
        yield from super().process(key, row, state)
        if row.id == 47:
            refuse(row)


def refuse(row: Any) -> None:
    raise ValueError(f"not number {row.id}")


def require_told(message: str) -> None:
    assert "ValueError: not number 47" in message
    assert "key: 2" in message
    assert "row: Row(id=47, k=2)" in message
    assert "in refuse" in message
    assert 'raise ValueError(f"not number {row.id}")' in message
    for ours in ("ingress.py", "channels.py", "batch_driver.py", "zmq"):
        assert ours not in message


def test_an_operators_error_is_the_querys_with_its_traceback_key_and_row(files: Files) -> None:
    files.give(40, 30)
    with pytest.raises(StreamingQueryException) as caught:
        files.run(elastic(files.stream(1), Picky(), key="k", name="Tally"))
    require_told(str(caught.value))
    files.run(files.tally(1))
    require_tally(files.out(), files.given)
    files.require_state()


def test_an_operators_error_ends_an_action_on_a_batch_frame_in_the_same_words(
    spark: SparkSession,
) -> None:
    picky = elastic(batch(spark), Picky(), key="k")
    for _ in range(2):
        with pytest.raises(PythonException) as caught:
            picky.collect()
        require_told(str(caught.value))
    require_tally(elastic(batch(spark), Tally(), key="k").collect(), given())


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"executors": 0}, "executors must be a whole number"),
        ({"shards": 0}, "shards"),
        ({"latency_target": 0.0}, "latency_target must be seconds above 0"),
        ({"name": "a/b"}, "name of a operator must be"),
        ({"operator": {}}, "operators must be at least one"),
        ({"key": "nobody"}, "nobody"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_runs(
    spark: SparkSession, options: dict[str, Any], said: str
) -> None:
    options = {"operator": Tally(), "key": "k", **options}
    with pytest.raises(BadValueError, match=said):
        elastic(batch(spark), **options)


# The end ------------------------------------------------------------------------------------------


def test_nothing_is_left_when_all_is_over(spark: SparkSession) -> None:
    cluster = session_cluster(spark)
    assert elastic(batch(spark), Tally(), key="k").count() == 60
    await_that(lambda: not cluster.runs, "executors that nobody needs to go")
    cluster.stop()
    assert not of_clusters()
