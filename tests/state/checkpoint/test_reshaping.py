from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.state.checkpoint.rig import Job, contents, form

from elasticutor.core.keys import key_hashes
from elasticutor.process.operator.rows import keys_of
from elasticutor.state.checkpoint.reshaping import hashes_of
from elasticutor.state.codec import decode_key, encode_key

NOW = datetime(2026, 11, 16, 3, 2, 1, 123456)
STRUCT = pa.struct({"a": pa.int32(), "b": pa.struct({"c": pa.string()})})
COLUMNS = [
    *(
        pa.array([0, 1, 127, None], kind)
        for kind in (pa.int8(), pa.int16(), pa.int32(), pa.int64())
    ),
    *(pa.array([0, 255, None], k) for k in (pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64())),
    pa.array([-1, -(2**63), 2**63 - 1, None], pa.int64()),
    pa.array([2**64 - 1, 2**63, 1, None], pa.uint64()),
    *(pa.array(np.array([0.0, -0.0, 1.5, np.nan, np.inf], k)) for k in ("f2", "f4", "f8")),
    pa.array([0.1, None], pa.float32()),
    pa.array([True, False, None]),
    *(pa.array(["Oslo", "", "ü", None], k) for k in (pa.string(), pa.large_string())),
    *(pa.array([b"ab", b"\xff\x00", None], k) for k in (pa.binary(), pa.large_binary())),
    pa.array([b"ab", None], pa.binary(2)),
    pa.array(["a", None, "a"]).dictionary_encode(),
    *(pa.array([date(1, 1, 1), date(2026, 1, 1), None], k) for k in (pa.date32(), pa.date64())),
    *(pa.array([NOW.replace(microsecond=0), None], pa.timestamp(u)) for u in ("s", "ms", "us")),
    pa.array([NOW, datetime(1, 1, 1), datetime(9999, 12, 31), None], pa.timestamp("us")),
    pa.array([NOW.replace(tzinfo=UTC), None], pa.timestamp("us", "UTC")),
    pa.array([NOW.replace(tzinfo=UTC), None], pa.timestamp("ms", "Europe/Berlin")),
    *(pa.array([time(1, 2, 3), None], k) for k in (pa.time32("s"), pa.time32("ms"))),
    *(pa.array([time(1, 2, 3, 4), None], k) for k in (pa.time64("us"), pa.time64("ns"))),
    *(pa.array([timedelta(days=-1), None], pa.duration(u)) for u in ("s", "ms", "us")),
    pa.array([10**13, None], pa.duration("s")),
    pa.array([Decimal("1.10"), Decimal("-0.01"), Decimal(0), None], pa.decimal128(10, 2)),
    pa.array([Decimal(10) ** 70, Decimal(-1), None], pa.decimal256(76, 0)),
    pa.array([Decimal(12000), None], pa.decimal128(5, -3)),
    pa.array([None, None], pa.string()),
    pa.nulls(2),
    pa.array([{"a": 1, "b": {"c": "x"}}, {"a": None, "b": None}, None], STRUCT),
    pa.array([{"a": 1}, {"a": None}, None], pa.struct({"a": pa.int8()})),
]


def restored(columns: list[pa.Array]) -> list[Any]:
    """The keys of some columns, having been in a checkpoint."""
    return [decode_key(encode_key(key)) for key in keys_of(columns)]


@pytest.mark.parametrize("column", COLUMNS, ids=lambda column: str(column.type))
def test_keys_from_a_checkpoint_hash_as_their_column_does(column: pa.Array) -> None:
    assert hashes_of(restored([column])).tolist() == key_hashes(column).tolist()


@pytest.mark.parametrize("column", COLUMNS, ids=lambda column: str(column.type))
def test_keys_of_several_columns_hash_as_these_do(column: pa.Array) -> None:
    columns = [column, pa.array(range(len(column))), pa.array(["x", None] * 3)[: len(column)]]
    assert hashes_of(restored(columns)).tolist() == key_hashes(*columns).tolist()


@given(
    st.lists(
        st.tuples(
            st.none() | st.integers(-(2**63), 2**63 - 1),
            st.none() | st.floats(),
            st.none() | st.text(max_size=4),
            st.none() | st.datetimes(),
            st.none() | st.decimals(-(10**6), 10**6, places=3),
        ),
        min_size=1,
        max_size=6,
    )
)
@settings(max_examples=50)
def test_any_keys_of_several_columns_hash_as_these_do(rows: list[tuple[Any, ...]]) -> None:
    kinds = [pa.int64(), pa.float64(), pa.string(), pa.timestamp("us"), pa.decimal128(20, 3)]
    values = zip(*rows, strict=True)
    columns = [pa.array(column, kind) for column, kind in zip(values, kinds, strict=True)]
    assert hashes_of(restored(columns)).tolist() == key_hashes(*columns).tolist()
    for column in columns:
        assert hashes_of(restored([column])).tolist() == key_hashes(column).tolist()


@given(st.data())
@settings(max_examples=15)
def test_every_key_is_found_with_any_numbers_of_executors_and_shards(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    where: Path = tmp_path_factory.mktemp("checkpoint")
    sizes = st.tuples(st.integers(1, 5), st.integers(1, 9))
    state: dict[int, str] = {}
    for executors, shards in data.draw(st.lists(sizes, min_size=2, max_size=4)):
        kept = form(executors, shards)
        job = Job(where, kept)
        epoch = job.checkpoint.committed
        assert contents(where, kept, epoch) == state
        changes = dict.fromkeys(data.draw(st.sets(st.integers(0, 50))), f"of {epoch + 1}")
        job.epoch(changes)
        state |= changes
        assert contents(where, kept, epoch + 1) == state
        job.checkpoint.tidy()
        job.checkpoint.release()
    kept = form(1, 1)
    job = Job(where, kept)
    assert contents(where, kept, job.checkpoint.committed) == state


def test_the_form_before_can_still_be_gone_back_to(tmp_path: Path) -> None:
    job = Job(tmp_path, form(2, 4))
    job.epoch({1: "a"})
    job.epoch({2: "b"})
    job.checkpoint.release()
    Job(tmp_path, form(3, 8)).checkpoint.release()
    job = Job(tmp_path, form(5, 2), epoch=1)
    assert contents(tmp_path, form(5, 2), 1) == {1: "a"}
