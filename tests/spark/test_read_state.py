"""State as a DataFrame: the same as nodes restore."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.state.checkpoint.rig import Job, contents, form, opened, places, some_epochs

from elasticutor import read_state
from elasticutor.core.protocol.ids import Attempt, Epoch, ShardId
from elasticutor.errors import BadValueError
from elasticutor.state.checkpoint import DamagedError, MismatchError, StateForm, write_increment
from elasticutor.state.codec import decode, encode, encode_key
from elasticutor.state.inspection.reading import StateReader
from elasticutor.state.levels import Record


def rows(frame: DataFrame) -> dict[Any, Any]:
    found = frame.collect()
    assert len({row["key"] for row in found}) == len(found)
    return {row["key"]: row["value"] for row in found}


def test_a_dataframe_has_what_nodes_restore(spark: SparkSession, tmp_path: Path) -> None:
    """Increments with deletions on top of a snapshot, and an older epoch beside the newest."""
    job = Job(tmp_path)
    for number in range(10):
        job.epoch({key: None if key % 5 == number % 5 else f"{key} {number}" for key in range(20)})
        job.checkpoint.tidy()
    frame = read_state(spark, tmp_path, operator="counts")
    assert frame.dtypes == [
        ("executor", "int"),
        ("shard", "int"),
        ("key", "bigint"),
        ("value", "binary"),
    ]
    found = {key: decode(bytes(value)) for key, value in rows(frame).items()}
    assert found == contents(tmp_path, job.form, 10)
    for row in frame.collect():
        assert [(row["executor"], row["shard"])] == places(job.form, [row["key"]])
    older = read_state(spark, tmp_path, operator="counts", epoch=9, unpickle=True)
    expected = contents(tmp_path, job.form, 9)
    assert rows(older) == {key: repr(value) for key, value in expected.items()}


def test_a_run_that_goes_on_does_not_take_the_rows_away(
    spark: SparkSession, tmp_path: Path
) -> None:
    job = Job(tmp_path)
    job.epoch(dict.fromkeys(range(8), "old"))
    frame = read_state(spark, tmp_path, operator="counts", unpickle=True)
    for number in range(15):
        job.epoch(dict.fromkeys(range(8), number))
        job.checkpoint.tidy()
    assert rows(frame) == dict.fromkeys(range(8), "'old'")


VALUES: dict[str, tuple[pa.DataType, Any, Any]] = {
    "whole": (pa.int32(), 5, 5),
    "large": (pa.uint64(), 2**64 - 1, Decimal(2**64 - 1)),
    "half": (pa.float16(), 0.5, 0.5),
    "flag": (pa.bool_(), True, True),
    "text": (pa.large_string(), "å", "å"),
    "raw": (pa.binary(2), b"ab", b"ab"),
    "price": (pa.decimal128(10, 2), Decimal("1.50"), Decimal("1.50")),
    "huge": (pa.decimal256(50, 0), Decimal(10**45), str(10**45)),
    "day": (pa.date32(), date(2024, 2, 29), date(2024, 2, 29)),
    "wall": (pa.timestamp("us"), datetime(2024, 2, 29, 1), datetime(2024, 2, 29, 1)),
    "span": (pa.duration("s"), timedelta(minutes=1), timedelta(minutes=1)),
    "many": (pa.list_(pa.uint8()), [1, None], [1, None]),
    "named": (pa.map_(pa.string(), pa.int64()), {"a": 1}, {"a": 1}),
}


def test_typed_state_is_typed_in_spark_too(spark: SparkSession, tmp_path: Path) -> None:
    schema = pa.schema([(name, kind) for name, (kind, _, _) in VALUES.items()])
    job = Job(tmp_path, form(schema=schema))
    job.epoch({1: {name: value for name, (_, value, _) in VALUES.items()}, 2: None})
    job.epoch({3: dict.fromkeys(VALUES)})
    found = rows(read_state(spark, tmp_path, operator="counts"))
    assert found.keys() == {1, 3}
    assert found[1].asDict() == {name: wanted for name, (_, _, wanted) in VALUES.items()}
    assert set(found[3].asDict().values()) == {None}


def test_typed_state_of_one_column_is_that_column(spark: SparkSession, tmp_path: Path) -> None:
    job = Job(tmp_path, form(schema=pa.schema({"n": pa.int64()})))
    job.epoch({1: 7, 2: 8})
    frame = read_state(spark, tmp_path, operator="counts")
    assert frame.schema["value"].dataType.simpleString() == "bigint"
    assert rows(frame) == {1: 7, 2: 8}


def test_keys_of_several_columns_are_columns(spark: SparkSession, tmp_path: Path) -> None:
    columns = {
        "city.name": (pa.dictionary(pa.int32(), pa.string()), "Oslo", "Oslo"),
        "shard": (pa.uint8(), 200, 200),
        "price": (pa.decimal128(10, 2), Decimal("1.5"), Decimal("1.50")),
        "wall": (pa.timestamp("ms"), datetime(2024, 2, 29, 1), datetime(2024, 2, 29, 1)),
        "pair": (pa.struct({"a": pa.int8(), "b": pa.string()}), (1, "x"), "(1, 'x')"),
        "gone": (pa.timestamp("us", "UTC"), None, None),
    }
    key = tuple((name, str(kind)) for name, (kind, _, _) in columns.items())
    kept = StateForm("counts", 1, 1, key)
    checkpoint = opened(tmp_path, kept)
    attempt = Attempt(checkpoint.first_attempt + 1)
    data = encode_key(tuple(value for _, value, _ in columns.values()))
    changes = {ShardId(0): [Record(data, Epoch(1), encode(1))]}
    file = write_increment(checkpoint.location, kept, "counts.0", "n", attempt, Epoch(1), changes)
    assert file is not None
    checkpoint.commit(Epoch(1), attempt, [file], {})
    (row,) = read_state(spark, tmp_path, operator="counts", unpickle=True).collect()
    assert row.asDict() == {
        "executor": 0,
        "shard": 0,
        **{"key_shard" if n == "shard" else n: wanted for n, (_, _, wanted) in columns.items()},
        "value": "1",
    }


def test_moments_are_moments(spark: SparkSession, tmp_path: Path) -> None:
    moment = datetime(2024, 2, 29, 1, 2, 3, 4, tzinfo=UTC)
    job = Job(tmp_path, form(schema=pa.schema({"at": pa.timestamp("ns", "Europe/Oslo")})))
    job.epoch({1: None})
    kept = form(schema=pa.schema({"at": pa.timestamp("us", "UTC")}))
    Job(tmp_path / "utc", kept).epoch({1: moment})
    assert read_state(spark, tmp_path, operator="counts").count() == 0
    frame = read_state(spark, tmp_path / "utc", operator="counts")
    assert frame.schema["value"].dataType.simpleString() == "timestamp"
    micros = frame.selectExpr("unix_micros(value) AS us").first()
    assert micros is not None
    assert micros["us"] == (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def test_an_epoch_without_state_is_an_empty_dataframe(spark: SparkSession, tmp_path: Path) -> None:
    some_epochs(tmp_path)
    assert read_state(spark, tmp_path, operator="counts", epoch=0).collect() == []


def test_state_that_was_written_anew_for_other_numbers_is_the_same(
    spark: SparkSession, tmp_path: Path
) -> None:
    history = some_epochs(tmp_path)
    opened(tmp_path, form(3, 8)).release()
    found = rows(read_state(spark, tmp_path, operator="counts", unpickle=True))
    assert found == {key: repr(value) for key, value in history[-1].items()}


@pytest.mark.parametrize("eager", [True, False])
def test_a_damaged_file_is_found_and_named(
    spark: SparkSession, tmp_path: Path, eager: bool
) -> None:
    some_epochs(tmp_path)
    path = next((tmp_path / "state").rglob("*-000000000002-*.parquet"))
    data = bytearray(path.read_bytes())
    data[50] ^= 1
    path.write_bytes(data)
    expected = DamagedError if eager else Exception
    with pytest.raises(expected, match=path.name):
        read_state(spark, tmp_path, operator="counts", eager=eager).collect()
    assert read_state(spark, tmp_path, operator="counts", epoch=1).count() > 0


def test_what_is_not_there_is_named_before_spark_is_asked(
    spark: SparkSession, tmp_path: Path
) -> None:
    some_epochs(tmp_path)
    with pytest.raises(BadValueError, match="counts; got 'other'"):
        read_state(spark, tmp_path, operator="other")
    with pytest.raises(MismatchError, match=r"\[3, 2, 1, 0\]"):
        read_state(spark, tmp_path, operator="counts", epoch=9)
    with pytest.raises(MismatchError, match="nothing there"):
        read_state(spark, tmp_path / "nowhere", operator="counts")
    nobody: Any = None
    with pytest.raises(BadValueError, match="SparkSession"):
        read_state(nobody, tmp_path, operator="counts")


def test_an_epoch_removed_while_spark_reads_is_replaced_by_the_newest(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Job(tmp_path)
    job.epoch(dict.fromkeys(range(8), "old"))
    manifest = StateReader.manifest
    asked: list[int] = []

    def slow(reader: StateReader, epoch: int | None = None) -> object:
        found = manifest(reader, epoch)
        asked.append(found.epoch)
        for number in range(15 if len(asked) == 1 else 0):
            job.epoch(dict.fromkeys(range(8), number))
            job.checkpoint.tidy()
        return found

    monkeypatch.setattr(StateReader, "manifest", slow)
    frame = read_state(spark, tmp_path, operator="counts", unpickle=True)
    assert rows(frame) == dict.fromkeys(range(8), "14")
    assert asked == [1, 16]
