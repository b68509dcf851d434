"""Few tuples packed one by one: they are those of the batch, and what does not fit is refused."""

from __future__ import annotations

import datetime as dt
import enum
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticutor.errors import BadValueError
from elasticutor.transport.row_packets import RowFormat, RowPacket

KINDS: dict[pa.DataType, st.SearchStrategy[Any]] = {
    **{
        pa.type_for_alias(f"int{bits}"): st.integers(-(1 << bits - 1), (1 << bits - 1) - 1)
        for bits in (8, 16, 32, 64)
    },
    **{
        pa.type_for_alias(f"uint{bits}"): st.integers(0, (1 << bits) - 1)
        for bits in (8, 16, 32, 64)
    },
    pa.float64(): st.floats(),
    pa.bool_(): st.booleans(),
    pa.string(): st.text(max_size=9),
    pa.large_string(): st.text(max_size=9),
    pa.binary(): st.binary(max_size=9),
    pa.large_binary(): st.binary(max_size=9),
    pa.binary(3): st.binary(min_size=3, max_size=3),
}


class Colour(enum.IntEnum):
    RED = 1


class Point(NamedTuple):
    x: int
    y: int


@st.composite
def tables(draw: st.DrawFn) -> tuple[pa.Schema, list[tuple[Any, ...]]]:
    """A schema of simple types, and rows of it."""
    kinds = draw(st.lists(st.sampled_from([*KINDS]), min_size=1, max_size=4))
    nullable = [draw(st.booleans()) for _ in kinds]
    schema = pa.schema([pa.field(f"c{n}", kind, nullable[n]) for n, kind in enumerate(kinds)])
    values = [
        st.none() | KINDS[kind] if null else KINDS[kind]
        for kind, null in zip(kinds, nullable, strict=True)
    ]
    return schema, draw(st.lists(st.tuples(*values), min_size=1, max_size=5))


def form(schema: pa.Schema) -> RowFormat:
    found = RowFormat.of(schema)
    assert found is not None
    return found


def one(kind: pa.DataType, *, nullable: bool = True) -> RowFormat:
    return form(pa.schema([pa.field("c", kind, nullable)]))


@given(tables())
def test_rows_come_back_as_they_were_and_make_the_batch_that_arrow_makes(
    table: tuple[pa.Schema, list[tuple[Any, ...]]],
) -> None:
    schema, rows = table
    rows_of = form(schema)
    packed = [rows_of.pack(row) for row in rows]
    assert None not in packed
    back = [rows_of.unpack(one or b"") for one in packed]
    assert repr(back) == repr(rows)  # NaN is not equal to itself
    columns = [
        pa.array(values, field.type)
        for values, field in zip(zip(*rows, strict=True), schema, strict=True)
    ]
    batch = pa.RecordBatch.from_arrays(columns, schema=schema)
    made = RowPacket([0] * len(rows), [], [one for one in packed if one]).open(schema)
    assert made.schema == schema
    assert repr(made.to_pylist()) == repr(batch.to_pylist())


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pa.int8(), 128),
        (pa.int64(), 2**63),
        (pa.uint64(), 2**64),
        (pa.uint8(), -1),
        (pa.int64(), True),
        (pa.int64(), 1.0),
        (pa.int64(), np.int64(1)),
        (pa.int64(), Colour.RED),
        (pa.float64(), 1),
        (pa.float64(), np.float64(1)),
        (pa.string(), "\ud800"),
        (pa.string(), b"a"),
        (pa.binary(), bytearray(b"a")),
        (pa.binary(3), b"ab"),
        (pa.bool_(), 1),
    ],
    ids=str,
)
def test_what_is_not_exactly_of_the_schema_is_left_to_arrow(kind: pa.DataType, value: Any) -> None:
    assert one(kind).pack((value,)) is None


def test_a_null_is_packed_only_where_there_may_be_one() -> None:
    assert one(pa.int64()).pack((None,)) is not None
    assert one(pa.int64(), nullable=False).pack((None,)) is None


@pytest.mark.parametrize("row", [(), (1, 2)])
def test_a_row_of_another_length_is_not_packed(row: tuple[int, ...]) -> None:
    assert one(pa.int64()).pack(row) is None


@pytest.mark.parametrize(
    "row", [{"a": "x", "b": "y"}, "xy", ["x", "y"], {"x", "y"}, None, 7, b"xy"], ids=str
)
def test_what_is_no_tuple_is_not_packed_though_its_parts_would_fit(row: Any) -> None:
    assert form(pa.schema([("a", pa.string()), ("b", pa.string())])).pack(row) is None


def test_a_named_tuple_is_packed_as_the_tuple_that_it_is() -> None:
    rows = form(pa.schema([("a", pa.int64()), ("b", pa.int64())]))
    assert rows.unpack(rows.pack(Point(1, 2)) or b"") == (1, 2)


def test_combinations_of_nulls_are_not_remembered_without_end() -> None:
    rows = form(pa.schema([(f"c{n}", pa.int64()) for n in range(12)]))
    for number in range(4096):
        row = tuple(1 if number >> bit & 1 else None for bit in range(12))
        assert rows.unpack(rows.pack(row) or b"") == row
    assert len(rows._fit) <= 1024


@pytest.mark.parametrize(
    "kind",
    [pa.float32(), pa.timestamp("us"), pa.date32(), pa.list_(pa.int8()), pa.struct([]), pa.null()],
)
def test_columns_that_are_not_simple_have_no_row_format(kind: pa.DataType) -> None:
    assert RowFormat.of(pa.schema([("a", pa.int64()), ("b", kind)])) is None
    assert RowFormat.of(pa.schema([])) is None


@pytest.mark.parametrize(
    "packed",
    [
        b"",
        b"\xc1",
        msgspec.msgpack.encode((1, 2)),
        msgspec.msgpack.encode(("a",)),
        msgspec.msgpack.encode((dt.date(2024, 1, 1),)),
        msgspec.msgpack.encode((2**63,)),
    ],
)
def test_packed_rows_of_another_schema_are_refused(packed: bytes) -> None:
    schema = pa.schema([("n", pa.int64())])
    with pytest.raises(BadValueError, match="packed row"):
        RowPacket([0], [], [packed]).open(schema)


def test_a_packet_of_rows_is_not_opened_with_a_schema_that_has_none() -> None:
    with pytest.raises(BadValueError, match="simple types"):
        RowPacket([0], [], [b"x"]).open(pa.schema([("d", pa.date32())]))


def test_a_packet_of_rows_has_a_birth_for_each_and_counts_more_than_its_values() -> None:
    packed = [form(pa.schema([("n", pa.int64())])).pack((number,)) or b"" for number in range(3)]
    packet = RowPacket([0, 10, 20], [], packed)
    assert packet.births.tolist() == [[0, 1], [10, 1], [20, 1]]
    assert packet.size > sum(map(len, packed))


def test_a_packed_text_that_is_no_text_is_refused() -> None:
    schema = pa.schema([("a", pa.string())])
    with pytest.raises(BadValueError, match="packed row"):
        RowPacket([0], [], [b"\x91\xa1\xff"]).open(schema)
