"""Batches between Spark and the engine, without Spark."""

from __future__ import annotations

import pickle
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elasticutor.errors import BadValueError
from elasticutor.spark.arrow import Incoming, Outgoing, cast, engine_schema, wider

ZONES = ["UTC", "Europe/Berlin", "+03:00", "America/New_York"]
LEAVES: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.int32(), st.integers(-(2**31), 2**31 - 1)),
    (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    (pa.float64(), st.floats(allow_nan=False)),
    (pa.bool_(), st.booleans()),
    (pa.string(), st.text(max_size=5)),
    (pa.binary(), st.binary(max_size=5)),
    (pa.timestamp("us", "UTC"), st.integers(-(2**50), 2**50)),
    (pa.timestamp("us"), st.integers(-(2**50), 2**50)),
    (pa.date32(), st.integers(-10_000, 10_000)),
    (pa.duration("us"), st.integers(-(2**50), 2**50)),
    (pa.decimal128(10, 2), st.decimals(-(10**7), 10**7, places=2)),
]


@st.composite
def kinds(draw: st.DrawFn, depth: int = 2) -> tuple[pa.DataType, st.SearchStrategy[Any]]:
    """A type as the engine has it, and its values."""
    shape = draw(st.sampled_from(["leaf", "leaf", "list", "map", "struct"] if depth else ["leaf"]))
    if shape == "list":
        kind, values = draw(kinds(depth - 1))
        return pa.list_(pa.field("element", kind)), st.lists(st.none() | values, max_size=3)
    if shape == "map":
        kind, values = draw(kinds(depth - 1))
        pairs = st.dictionaries(st.text(max_size=3), st.none() | values, max_size=3)
        return pa.map_(pa.string(), pa.field("value", kind)), pairs.map(lambda d: list(d.items()))
    if shape == "struct":
        inner = [draw(kinds(depth - 1)) for _ in range(draw(st.integers(1, 3)))]
        fields = [pa.field(f"f{place}", kind) for place, (kind, _) in enumerate(inner)]
        rows = st.fixed_dictionaries(
            {f"f{place}": st.none() | values for place, (_, values) in enumerate(inner)}
        )
        return pa.struct(fields), rows
    leaf: tuple[pa.DataType, st.SearchStrategy[Any]] = draw(st.sampled_from(LEAVES))
    return leaf


@st.composite
def batches(draw: st.DrawFn) -> pa.RecordBatch:
    rows = draw(st.integers(0, 5))
    columns = {}
    for place in range(draw(st.integers(1, 3))):
        kind, values = draw(kinds())
        some = draw(st.lists(st.none() | values, min_size=rows, max_size=rows))
        columns[f"c{place}"] = pa.array(some, kind)
    return pa.record_batch(columns)


def as_from_spark(kind: pa.DataType, zone: str, large: bool) -> pa.DataType:
    """How Spark would send it, with a session in this zone."""
    if pa.types.is_struct(kind):
        return pa.struct([f.with_type(as_from_spark(f.type, zone, large)) for f in kind])
    if pa.types.is_list(kind):
        return pa.list_(pa.field("element", as_from_spark(kind.value_type, zone, large)))
    if pa.types.is_map(kind):
        key = as_from_spark(kind.key_type, zone, large)
        return pa.map_(key, pa.field("value", as_from_spark(kind.item_type, zone, large)))
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        return pa.timestamp("us", zone)
    if large and pa.types.is_string(kind):
        return pa.large_string()
    return pa.large_binary() if large and pa.types.is_binary(kind) else kind


@settings(max_examples=60, deadline=None)
@given(batches(), st.sampled_from(ZONES), st.booleans(), st.booleans())
def test_whatever_zone_and_strings_spark_has_the_engine_has_its_own(
    batch: pa.RecordBatch, zone: str, large: bool, sliced: bool
) -> None:
    columns = [c.cast(as_from_spark(c.type, zone, large)) for c in batch.columns]
    fields = [
        pa.field(name, c.type, nullable=bool(c.null_count), metadata={"some": "thing"})
        for name, c in zip(batch.schema.names, columns, strict=True)
    ]
    spark = pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))
    if sliced:
        spark, batch = spark.slice(1), batch.slice(1)
    incoming = pickle.loads(pickle.dumps(Incoming(engine_schema(batch.schema))))  # noqa: S301
    for _ in range(2):
        made = incoming(spark)
        made.validate(full=True)
        assert made.schema.equals(engine_schema(batch.schema), check_metadata=True)
        assert made.equals(batch)


@settings(max_examples=40, deadline=None)
@given(st.lists(batches(), min_size=1, max_size=3), st.integers(0, 500))
def test_outputs_come_back_with_their_part_and_under_the_name_of_their_operator(
    made: list[pa.RecordBatch], part: int
) -> None:
    outputs = {f"op{place}": batch.schema for place, batch in enumerate(made)}
    outgoing = Outgoing(outputs, "_part", tagged=True)
    for place, batch in [*enumerate(made), *enumerate(made)]:
        back = outgoing(f"op{place}", batch, part)
        back.validate(full=True)
        assert back.schema.names == ["_part", "operator", *outputs]
        for row, values in zip(back.to_pylist(), batch.to_pylist(), strict=True):
            others = {name: None for name in outputs if name != f"op{place}"}
            assert row == {"_part": part, "operator": f"op{place}", f"op{place}": values} | others
        plain = Outgoing({"only": batch.schema}, None)("only", batch, part)
        assert plain.equals(batch)
        alone = Outgoing({"only": batch.schema}, "_part")("only", batch, part)
        assert alone.drop_columns("_part").equals(batch)
        assert alone.column("_part").to_pylist() == [part] * len(batch)


def address(batch: pa.RecordBatch, column: str) -> list[int]:
    return [buffer.address for buffer in batch.column(column).buffers() if buffer is not None]


def test_what_fits_already_is_handed_on_as_it_is() -> None:
    batch = pa.record_batch({"a": [1, 2], "b": ["x", "y"]})
    assert Incoming(batch.schema)(batch) is batch


def test_labels_are_changed_without_a_copy() -> None:
    tokyo = pa.timestamp("us", "Asia/Tokyo")
    moments = pa.list_(pa.field("element", tokyo, nullable=False))
    spark = pa.record_batch(
        [
            pa.array([1, 2, 3]),
            pa.array([[1], [2, 3], [4]], moments),
            pa.array([[("a", 1)]] * 3, pa.map_(pa.string(), tokyo)),
        ],
        schema=pa.schema(
            [
                pa.field("a", pa.int64(), nullable=False),
                ("t", moments),
                ("m", pa.map_(pa.string(), tokyo)),
            ]
        ),
    ).slice(1)
    utc = pa.timestamp("us", "UTC")
    wanted = pa.schema({"a": pa.int64(), "t": pa.list_(utc), "m": pa.map_(pa.string(), utc)})
    made = Incoming(engine_schema(wanted))(spark)
    assert made.schema.field("t").type.value_type == pa.timestamp("us", "UTC")
    assert made.schema.field("t").type.value_field.nullable
    assert [address(made, name) for name in "atm"] == [address(spark, name) for name in "atm"]
    back = Outgoing({"op": made.schema}, "_part")("op", made, 1)
    assert [address(back, name) for name in "atm"] == [address(spark, name) for name in "atm"]


def test_a_stream_whose_batches_change_their_labels_is_followed() -> None:
    incoming = Incoming(pa.schema({"t": pa.timestamp("us", "UTC")}))
    for zone in ["UTC", "Asia/Tokyo", "UTC"]:
        spark = pa.record_batch({"t": pa.array([5], pa.timestamp("us", zone))})
        assert incoming(spark).column(0).cast(pa.int64()).to_pylist() == [5]
        assert incoming(spark).schema.field("t").type.tz == "UTC"


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"b": pa.array([1])}, "batch from Spark must have ['a']"),
        ({"a": pa.array(["x"])}, "column 'a' from Spark must be int64; got 'string'"),
        ({"a": pa.array([1], pa.int32())}, "column 'a' from Spark must be int64; got 'int32'"),
    ],
)
def test_other_columns_than_those_that_were_planned_are_refused(
    columns: dict[str, pa.Array], said: str
) -> None:
    with pytest.raises(BadValueError) as refused:
        Incoming(pa.schema({"a": pa.int64()}))(pa.record_batch(columns))
    assert said in str(refused.value)


def test_an_unknown_operator_and_an_output_that_is_not_its_own_are_refused() -> None:
    outgoing = Outgoing({"counts": pa.schema({"n": pa.int64()})}, "_part")
    with pytest.raises(BadValueError, match="did you mean 'counts'"):
        outgoing("count", pa.record_batch({"n": [1]}), 0)
    with pytest.raises(BadValueError, match="output of operator 'counts'"):
        outgoing("counts", pa.record_batch({"n": ["x"]}), 0)
    with pytest.raises(BadValueError, match="output of operator 'counts'"):
        outgoing("counts", pa.record_batch({"n": [1], "m": [1]}), 0)


LACKING = [
    (pa.uint64(), [2**64 - 1, None], pa.decimal128(20, 0)),
    (pa.float16(), [0.5, None], pa.float32()),
    (pa.binary(2), [b"ab", None], pa.binary()),
    (pa.large_list(pa.uint8()), [[255], None], pa.list_(pa.field("element", pa.int16()))),
    (pa.list_(pa.int8(), 2), [[1, 2], None], pa.list_(pa.field("element", pa.int8()))),
    (pa.struct({"a": pa.large_string()}), [{"a": "x"}, None], pa.struct({"a": pa.string()})),
    (pa.dictionary(pa.int8(), pa.string()), ["x", None], pa.string()),
    (pa.map_(pa.string(), pa.uint16()), [[("a", 1)], None], pa.map_(pa.string(), pa.int32())),
]


@pytest.mark.parametrize(("kind", "values", "spark"), LACKING, ids=lambda value: str(value)[:30])
def test_types_that_spark_lacks_become_wider_ones(
    kind: pa.DataType, values: list[Any], spark: pa.DataType
) -> None:
    assert wider(kind) == spark
    batch = pa.record_batch({"c": pa.array(values, kind)})
    back = Outgoing({"op": pa.schema({"c": wider(kind)})}, "_part")("op", batch, 0)
    assert back.column("c").type == spark
    assert back.column("c").to_pylist() == values
    assert cast(batch.column("c"), spark).null_count == 1
