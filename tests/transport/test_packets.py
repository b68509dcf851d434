"""Packets: tuples come out as they went in, and corrupt Arrow is refused or can be read."""

from __future__ import annotations

import contextlib
import itertools
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elasticutor.errors import BadValueError
from elasticutor.transport.packets import (
    Births,
    Packet,
    born,
    join_births,
    open_batch,
    split_births,
)

ROWS = 12
COLUMNS = {
    "int": pa.array([*range(ROWS - 1), None], pa.int64()),
    "float": pa.array([0.5] * ROWS, pa.float32()),
    "bool": pa.array([True, None, False] * (ROWS // 3)),
    "text": pa.array(["ångström", None, "", "x" * 40] * (ROWS // 4)),
    "binary": pa.array([b"\0\xff", None, b""] * (ROWS // 3)),
    "large": pa.array(["abc", None] * (ROWS // 2), pa.large_string()),
    "fixed": pa.array([b"abcd"] * ROWS, pa.binary(4)),
    "decimal": pa.array([Decimal("1.50"), None] * (ROWS // 2), pa.decimal128(10, 2)),
    "when": pa.array([1_600_000_000_000_000] * ROWS, pa.timestamp("us", "UTC")),
    "day": pa.array([18_000] * ROWS, pa.date32()),
    "list": pa.array([[1, 2], None, []] * (ROWS // 3), pa.list_(pa.int32())),
    "struct": pa.array([{"a": 1, "b": "x"}, None] * (ROWS // 2)),
    "map": pa.array([[("k", 1)], []] * (ROWS // 2), pa.map_(pa.string(), pa.int64())),
    "void": pa.nulls(ROWS),
}
BATCH = pa.record_batch(COLUMNS)
TEXTS = pa.record_batch({"text": COLUMNS["text"], "list": COLUMNS["list"]})


def ages(births: Births) -> list[int]:
    """The birth of every tuple, one by one."""
    return [when for when, count in births.tolist() for _ in range(count)]


def rows_of(births: Births) -> int:
    return int(births[:, 1].sum())


some_births = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 5)), min_size=1, max_size=6).map(
    lambda runs: np.array(runs, np.int64)
)


def test_a_batch_of_all_types_comes_out_as_it_went_in() -> None:
    packet = Packet.of(BATCH, born(1.5, ROWS))
    assert packet.open(BATCH.schema).equals(BATCH)
    assert open_batch(bytes(packet.data), ROWS, BATCH.schema).equals(BATCH)


def test_a_slice_is_packed_without_the_rest() -> None:
    large = pa.record_batch({"n": pa.array(range(100_000))})
    packet = Packet.of(large.slice(50_000, 3), born(0.0, 3))
    assert packet.size < 2_000
    assert packet.open(large.schema)["n"].to_pylist() == [50_000, 50_001, 50_002]


def test_a_packet_is_opened_once() -> None:
    packet = Packet.of(BATCH, born(0.0, ROWS))
    assert packet.open(BATCH.schema) is packet.open(BATCH.schema)


def test_even_an_empty_packet_counts_against_a_credit() -> None:
    assert Packet(b"", 0, born(0.0, 0), np.empty(0, np.uint64)).size > 0


def test_a_packet_counts_its_hashes_too() -> None:
    bare = Packet.of(BATCH, born(0.0, ROWS))
    hashed = Packet.of(BATCH, born(0.0, ROWS), np.zeros(ROWS, np.uint64))
    assert hashed.size - bare.size == 8 * ROWS


@given(some_births, st.data())
def test_the_births_of_some_rows_are_those_of_these_rows(
    births: Births, data: st.DataObject
) -> None:
    total = rows_of(births)
    chosen = data.draw(st.sets(st.integers(0, total - 1)) if total else st.just(set[int]()))
    rows = np.array(sorted(chosen), np.intp)
    packet = Packet(b"", total, births, np.empty(0, np.uint64))
    picked = packet.births_of(rows)
    assert picked.dtype == np.int64
    assert ages(picked) == [ages(births)[row] for row in rows]


@given(st.lists(some_births, min_size=1, max_size=4))
def test_births_that_are_joined_keep_their_order(parts: list[Births]) -> None:
    joined = join_births(parts)
    assert ages(joined) == list(itertools.chain.from_iterable(map(ages, parts)))


@given(some_births)
def test_births_that_are_split_by_their_own_runs_are_the_same(births: Births) -> None:
    runs = np.repeat(np.arange(len(births)), births[:, 1])
    assert ages(split_births(births, runs)) == ages(births)


# What is no batch of ours -------------------------------------------------------------------------


def test_a_batch_of_another_length_is_refused() -> None:
    with pytest.raises(BadValueError, match=f"have the {ROWS + 1} rows"):
        open_batch(BATCH.serialize(), ROWS + 1, BATCH.schema)


@pytest.mark.parametrize(
    "data",
    [b"", b"\0" * 64, b"\xff\xff\xff\xff\0\0\0\0", BATCH.schema.serialize(), b"not Arrow at all"],
    ids=["nothing", "zeros", "end of a stream", "a schema", "text"],
)
def test_what_is_no_record_batch_is_refused(data: object) -> None:
    with pytest.raises(BadValueError, match="record batch"):
        open_batch(data, 1, BATCH.schema)


@pytest.mark.parametrize("cut", [1, 8, 64, 200])
def test_a_batch_that_is_cut_short_is_refused(cut: int) -> None:
    with pytest.raises(BadValueError):
        open_batch(bytes(BATCH.serialize())[:-cut], ROWS, BATCH.schema)


def test_more_columns_than_were_sent_are_refused() -> None:
    few = BATCH.select(["int", "text"])
    with pytest.raises(BadValueError):
        open_batch(few.serialize(), ROWS, BATCH.schema)


def with_offsets(batch: pa.RecordBatch, wrong: list[int]) -> bytes:
    """The batch of one column of texts, with other offsets in its buffer."""
    offsets = batch.column(0).buffers()[1]
    data = bytes(batch.serialize())
    at = data.index(bytes(offsets)[: 4 * (batch.num_rows + 1)])
    new = np.array(wrong, np.int32).tobytes()
    return data[:at] + new + data[at + len(new) :]


@pytest.mark.parametrize(
    "wrong",
    [[0, 2_000_000_000, 4, 6], [0, -5, 4, 6], [0, 5, 2, 6], [3, 2, 1, 6]],
    ids=["beyond", "before", "back", "falling"],
)
def test_offsets_that_point_elsewhere_are_refused_though_all_lengths_fit(wrong: list[int]) -> None:
    batch = pa.record_batch({"t": pa.array(["ab", "cd", "ef"])})
    assert open_batch(with_offsets(batch, [0, 1, 4, 6]), 3, batch.schema)["t"].to_pylist() == [
        *("a", "bcd", "ef")
    ]
    with pytest.raises(BadValueError, match="record batch"):
        open_batch(with_offsets(batch, wrong), 3, batch.schema)


def test_text_that_is_not_utf_8_is_refused() -> None:
    batch = pa.record_batch({"t": pa.array(["abcdefgh"])})
    data = bytes(batch.serialize()).replace(b"abcdefgh", b"abc\xff\xfefgh")
    with pytest.raises(BadValueError, match="UTF8"):
        open_batch(data, 1, batch.schema)


def read(batch: pa.RecordBatch) -> None:
    for column in batch.columns:
        with contextlib.suppress(ValueError, OverflowError, pa.ArrowException):
            column.to_pylist()  # there may be dates that Python has no name for


@settings(max_examples=300)
@given(
    st.sampled_from([BATCH, TEXTS]),
    st.lists(st.tuples(st.floats(0, 1), st.integers(1, 255)), min_size=1, max_size=4),
)
def test_a_damaged_batch_is_refused_or_can_be_read(
    batch: pa.RecordBatch, flips: list[tuple[float, int]]
) -> None:
    data = bytearray(batch.serialize())
    for place, bits in flips:
        data[min(len(data) - 1, int(place * len(data)))] ^= bits
    before = pa.total_allocated_bytes()
    try:
        opened = open_batch(bytes(data), ROWS, batch.schema)
    except BadValueError:
        return
    assert pa.total_allocated_bytes() - before < 1_000_000
    assert opened.num_rows == ROWS
    read(opened)
    read(opened.take(pa.array([0, ROWS - 1])))


@given(st.lists(st.integers(0, 5), min_size=1, max_size=60), st.data())
def test_parts_of_a_packet_are_the_rows_at_their_positions(
    slots: list[int], data: st.DataObject
) -> None:
    batch = pa.record_batch({"n": pa.array(range(len(slots)))})
    packet = Packet.of(batch, born(0.0, len(slots)))
    order = np.argsort(np.array(slots), kind="stable")
    parts = np.split(order, np.flatnonzero(np.diff(np.array(slots)[order])) + 1)
    parts += [part[: data.draw(st.integers(1, len(part)))] for part in parts]
    parts += [part.copy() for part in parts]  # of nobody's order
    for rows in data.draw(st.permutations(parts)):
        assert packet.pick(rows, batch.schema).column(0).to_pylist() == rows.tolist()
