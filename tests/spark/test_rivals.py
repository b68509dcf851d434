"""The queries that are measured against each other compute the same counts."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

from elasticutor.core.run.phases import RunError
from elasticutor.lab.bench.structured.stage import FILES, Files, write_files
from elasticutor.lab.bench.work import Burning
from elasticutor.lab.spark.rivals import (
    RIVALS,
    file_stream,
    passthrough,
    run_to_nowhere,
    use_rocksdb,
)
from elasticutor.sources import Generator

KEYS = 12


@pytest.fixture(scope="module")
def session(spark: SparkSession) -> SparkSession:
    """With settings of its own: the others' stay as they are."""
    own = spark.newSession()
    use_rocksdb(own, 2)
    return own


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    folder = tmp_path_factory.mktemp("rivals") / "rows"
    generator = Generator(keys=KEYS, zipf=1.0, payload=0, seed=2)
    return write_files(folder, generator, rows=120, batch_rows=60, warm_up_rows=20)


def stream(session: SparkSession, files: Files) -> DataFrame:
    return file_stream(session, files.folder, files.schema, FILES)


def kept(frame: DataFrame, name: str, checkpoint: Path) -> list[Any]:
    """All that a query makes."""
    query = (
        frame.writeStream.format("memory")
        .queryName(name)
        .outputMode("update")
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return frame.sparkSession.table(name).collect()


@pytest.mark.parametrize("name", list(RIVALS))
def test_each_of_sparks_own_apis_answers_every_row_with_its_count(
    session: SparkSession, files: Files, tmp_path: Path, name: str
) -> None:
    pytest.importorskip("pandas")
    pytest.importorskip("google.protobuf")
    made = kept(RIVALS[name](stream(session, files), Burning(1e-6)), name, tmp_path / "checkpoint")
    counts = Counter(pq.read_table(files.folder).column("key").to_pylist())
    expected = [(key, n) for key, count in counts.items() for n in range(1, count + 1)]
    assert sorted((row["key"], row["count"]) for row in made) == sorted(expected)


def test_they_can_answer_once_per_key_and_batch(
    session: SparkSession, files: Files, tmp_path: Path
) -> None:
    pytest.importorskip("pandas")
    query = RIVALS["applyInPandasWithState"](stream(session, files), None, each=False)
    made = kept(query, "once", tmp_path / "checkpoint")
    keys = pq.read_table(files.folder).column("key").to_pylist()
    last: dict[int, int] = {}
    for row in made:
        last[row["key"]] = max(row["count"], last.get(row["key"], 0))
    assert last == Counter(keys)
    assert len(made) <= KEYS * (files.batches + 1) < len(keys)


def test_a_run_tells_the_rows_and_the_time_of_each_batch(
    session: SparkSession, files: Files, tmp_path: Path
) -> None:
    pytest.importorskip("pandas")
    done = run_to_nowhere(passthrough(stream(session, files)), tmp_path / "checkpoint")
    assert [rows for rows, _ in done] == [20, 60, 60]
    assert all(ms > 0 for _, ms in done)


def test_a_query_that_fails_is_no_measurement(
    session: SparkSession, files: Files, tmp_path: Path
) -> None:
    broken = stream(session, files).selectExpr("raise_error('out of order') AS key")
    with pytest.raises(RunError, match="out of order"):
        run_to_nowhere(broken, tmp_path / "checkpoint")
