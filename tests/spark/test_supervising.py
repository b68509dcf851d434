from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from tests.runtime.live import wait_until
from tests.spark.elastic_rig import Files, Tally, require_tally

from elasticutor import elastic, progress, read_state, supervise
from elasticutor.errors import BadValueError
from elasticutor.spark import Cluster
from elasticutor.spark.progress import ElasticListener, ElasticProgress
from elasticutor.spark.supervising import is_lost


@pytest.fixture
def files(spark: SparkSession, own_cluster: Cluster, tmp_path: Path) -> Files:
    return Files(spark, tmp_path)


class Lethal(Tally):
    """Kills its own task at a row, once."""

    def __init__(self, at: int, folder: Path) -> None:
        self._at = at
        self._done = str(folder / "killed")

    def process(self, key: Any, row: Any, state: Any) -> Iterator[Any]:
        if row.id == self._at and not Path(self._done).exists():
            Path(self._done).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().process(key, row, state)


class Wrong(Tally):
    """Fails at every row."""

    def process(self, key: Any, row: Any, state: Any) -> Iterator[Any]:
        raise ZeroDivisionError(row.id)


def test_a_query_that_lost_a_process_is_started_again_and_every_row_counts_once(
    files: Files,
) -> None:
    files.give(20, 20, 20)
    frame = elastic(files.stream(1), Lethal(30, files.folder), key="k", name="Tally")
    told: list[tuple[int, str]] = []
    query = supervise(
        lambda: files.start(frame), timeout_s=90, on_restart=lambda n, why: told.append((n, why))
    )
    assert not query.isActive
    assert [number for number, _ in told] == [1]
    assert "was lost" in told[0][1]
    require_tally(files.out(), files.given)
    files.require_state()


def test_an_operators_mistake_is_not_tried_again(files: Files) -> None:
    files.give(5)
    frame = elastic(files.stream(), Wrong(), key="k")
    starts: list[StreamingQuery] = []

    def start() -> StreamingQuery:
        starts.append(files.start(frame))
        return starts[-1]

    with pytest.raises(StreamingQueryException, match="ZeroDivisionError"):
        supervise(start, timeout_s=90)
    assert len(starts) == 1


def test_whoever_is_lost_too_often_in_a_row_is_given_up(files: Files) -> None:
    files.give(5)

    class Hopeless(Tally):
        def process(self, key: Any, row: Any, state: Any) -> Iterator[Any]:
            os.kill(os.getpid(), signal.SIGKILL)
            return super().process(key, row, state)

    frame = elastic(files.stream(), Hopeless(), key="k")
    told: list[int] = []
    with pytest.raises(StreamingQueryException, match="was lost"):
        supervise(
            lambda: files.start(frame),
            max_restarts=1,
            timeout_s=90,
            on_restart=lambda number, _: told.append(number),
        )
    assert told == [1]


def test_a_query_that_does_not_end_in_time_is_stopped(files: Files) -> None:
    files.give(5)
    frame = files.tally()
    started: list[StreamingQuery] = []

    def start() -> StreamingQuery:
        started.append(files.start(frame, processingTime="1 hour"))
        return started[-1]

    with pytest.raises(TimeoutError, match="has not ended in time"):
        supervise(start, timeout_s=0.5)
    assert not started[0].isActive


def test_what_starts_no_query_is_refused() -> None:
    with pytest.raises(BadValueError, match="return a StreamingQuery; got 'int'"):
        supervise(lambda: 5)  # type: ignore[arg-type, return-value]


@pytest.mark.parametrize(
    ("reason", "lost"),
    [
        ("Python worker exited unexpectedly (crashed)", True),
        ("ExecutorLostFailure (executor 1 exited)", True),
        ("Hint: start the query again …, or let elasticutor.supervise do so", True),
        ("operator 'a' must not fail; got ValueError: 5", False),
        ("checkpoint /x must be of query a; got that of query b", False),
    ],
)
def test_only_what_another_try_may_mend_counts_as_lost(reason: str, lost: bool) -> None:
    assert is_lost(reason) is lost


# Progress


def test_every_batch_has_a_report_of_its_operators(files: Files, own_cluster: Cluster) -> None:
    files.give(20, 30)
    heard: list[ElasticProgress] = []

    class Listener(ElasticListener):
        def onElasticProgress(self, event: ElasticProgress) -> None:  # noqa: N802
            heard.append(event)

    listener = Listener()
    files.spark.streams.addListener(listener)
    try:
        query = files.start(files.tally(1), processingTime="0 seconds")
        query.processAllAvailable()
        (run,) = own_cluster.metrics()["runs"].values()
        assert run["name"] == f"query {query.id}"
        assert run["lastBatch"]["operators"]["Tally"]["rowsIn"] == 30
        live = {r["key"]: r["value"] for r in _state(files, query)}
        query.stop()
        wait_until(lambda: len(heard) == 2, "both batches to be heard of")
    finally:
        files.spark.streams.removeListener(listener)
    assert live == files.state()
    told = progress(query)
    assert heard == told
    assert [(done.batchId, done.operators["Tally"]["rowsOut"]) for done in told] == [
        (0, 20),
        (1, 30),
    ]
    first = told[0].operators["Tally"]
    assert first["executors"] == 1
    assert first["cores"] >= 1
    assert first["latencyMs"]["p99"] >= first["latencyMs"]["p50"] > 0
    assert first["stateBytesWritten"] > 0
    assert '"batchId": 0' in told[0].json


def _state(files: Files, query: StreamingQuery) -> list[Any]:
    frame = read_state(files.spark, query, operator="Tally", unpickle=True)
    return [{"key": row["key"], "value": int(row["value"])} for row in frame.collect()]


def test_the_state_of_a_query_that_does_not_run_is_asked_for_by_its_place(files: Files) -> None:
    files.give(5)
    query = files.run(files.tally())
    with pytest.raises(BadValueError, match="read_state takes the path"):
        read_state(files.spark, query, operator="Other")
