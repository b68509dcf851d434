"""Values that Python operators see and make, inside of nested columns above all."""

from __future__ import annotations

import datetime as dt
from collections import namedtuple
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elasticutor.process.operator.rows import MisfitError, RowWriter, keys_of, values_of

NOW = dt.datetime(2024, 2, 29, 12, 30, 0, 5)
ZONED = NOW.replace(tzinfo=dt.UTC)
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
MOMENT = pa.timestamp("us", "UTC")
MONEY = pa.decimal128(10, 2)
POINT = pa.struct([("x", pa.int32()), ("at", MOMENT)])

LEAVES: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.int32(), st.integers(-(2**31), 2**31 - 1)),
    (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    (pa.float64(), st.floats(allow_nan=False)),
    (pa.bool_(), st.booleans()),
    (pa.string(), st.text(max_size=5)),
    (pa.binary(), st.binary(max_size=5)),
    (pa.binary(2), st.binary(min_size=2, max_size=2)),
    (pa.date32(), st.dates()),
    (pa.timestamp("us"), st.datetimes()),
    (MOMENT, st.datetimes(timezones=st.just(dt.UTC))),
    (pa.timestamp("s", "UTC"), st.integers(-(10**9), 10**9).map(lambda s: EPOCH + seconds(s))),
    (pa.duration("us"), st.timedeltas(dt.timedelta(-(10**6)), dt.timedelta(10**6))),
    (MONEY, st.decimals(-(10**7), 10**7, places=2)),
    (pa.null(), st.none()),
]


def seconds(number: int) -> dt.timedelta:
    return dt.timedelta(seconds=number)


@st.composite
def kinds(draw: st.DrawFn, depth: int = 2) -> tuple[pa.DataType, st.SearchStrategy[Any]]:
    """A type, and its values as an operator sees them."""
    shape = draw(st.sampled_from(["leaf", "leaf", "list", "map", "struct"] if depth else ["leaf"]))
    if shape == "list":
        kind, values = draw(kinds(depth - 1))
        return pa.list_(kind), st.lists(st.none() | values, max_size=3)
    if shape == "map":
        kind, values = draw(kinds(depth - 1))
        keys, key_values = draw(st.sampled_from(MAP_KEYS))
        return pa.map_(keys, kind), st.dictionaries(key_values, st.none() | values, max_size=3)
    if shape == "struct":
        inner = [draw(kinds(depth - 1)) for _ in range(draw(st.integers(0, 3)))]
        names = [f"f{place}" for place in range(len(inner))]
        fields = [pa.field(name, kind) for name, (kind, _) in zip(names, inner, strict=True)]
        rows = {name: st.none() | values for name, (_, values) in zip(names, inner, strict=True)}
        return pa.struct(fields), st.fixed_dictionaries(rows)
    leaf: tuple[pa.DataType, st.SearchStrategy[Any]] = draw(st.sampled_from(LEAVES))
    return leaf


MAP_KEYS: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.string(), st.text(max_size=3)),
    (pa.int64(), st.integers(0, 9)),
    (MOMENT, st.datetimes(timezones=st.just(dt.UTC))),
    (pa.struct([("a", pa.int64()), ("b", pa.string())]), st.tuples(st.integers(0, 3), st.text())),
    (pa.list_(pa.int64()), st.lists(st.integers(0, 3), max_size=2).map(tuple)),
]


@settings(max_examples=150, deadline=None)
@given(kinds(), st.data(), st.integers(0, 2))
def test_what_an_operator_sees_and_hands_on_is_what_was_there(
    kind_and_values: tuple[pa.DataType, st.SearchStrategy[Any]], data: st.DataObject, skipped: int
) -> None:
    kind, strategy = kind_and_values
    values = data.draw(st.lists(st.none() | strategy, max_size=6))
    schema = pa.schema([("c", kind)])
    batch = RowWriter(schema).batch([(value,) for value in values])
    batch.validate(full=True)
    assert batch.schema.equals(schema)
    assert values_of(batch.column(0)) == values
    # Of a slice too, and Arrow itself would have stored the same.
    part = batch.slice(skipped)
    assert values_of(part.column(0)) == values[skipped:]
    again = RowWriter(schema).batch([(value,) for value in values_of(part.column(0))])
    assert again.equals(part)


SEEN = [
    (
        pa.map_(pa.string(), pa.int64()),
        [[("a", 1), ("b", None)], None, []],
        [{"a": 1, "b": None}, None, {}],
    ),
    (
        pa.list_(pa.map_(pa.string(), MONEY)),
        [[[("a", Decimal("1.50"))]]],
        [[{"a": Decimal("1.50")}]],
    ),
    (
        pa.struct([("m", pa.map_(pa.int64(), POINT))]),
        [{"m": [(1, {"x": 2, "at": ZONED})]}],
        [{"m": {1: {"x": 2, "at": ZONED}}}],
    ),
    (pa.map_(POINT, pa.int64()), [[({"x": 1, "at": ZONED}, 5)]], [{(1, ZONED): 5}]),
    (pa.list_(MOMENT), [[ZONED, None], None], [[ZONED, None], None]),
    (pa.large_list(pa.date32()), [[NOW.date()]], [[NOW.date()]]),
]


@pytest.mark.parametrize(("kind", "stored", "seen"), SEEN, ids=lambda value: str(value)[:40])
def test_maps_are_dictionaries_and_moments_have_zones_wherever_they_are(
    kind: pa.DataType, stored: list[Any], seen: list[Any]
) -> None:
    assert values_of(pa.array(stored, kind)) == seen


def test_nested_moments_are_of_the_same_zone_as_others() -> None:
    (seen,) = values_of(pa.array([[ZONED]], pa.list_(MOMENT)))
    assert seen[0].tzinfo is values_of(pa.array([ZONED], MOMENT))[0].tzinfo is dt.UTC


def test_a_null_struct_as_a_key_is_none_and_not_a_tuple_of_them() -> None:
    column = pa.array([{"a": 1}, None], pa.struct([("a", pa.int64())]))
    assert keys_of([column]) == [(1,), None]


Pair = namedtuple("Pair", ["x", "at"])  # noqa: PYI024 - what users write


def some() -> Iterator[int]:
    yield from (1, 2)


MADE = [
    (POINT, (1, ZONED), {"x": 1, "at": ZONED}),
    (POINT, Pair(1, ZONED), {"x": 1, "at": ZONED}),
    (POINT, {"at": NOW}, {"x": None, "at": ZONED}),
    (pa.list_(pa.int32()), (1, 2), [1, 2]),
    (pa.list_(pa.int32()), {7}, [7]),
    (pa.list_(pa.int32()), some(), [1, 2]),
    (pa.list_(pa.float64()), np.array([1.5, 2.5]), [1.5, 2.5]),
    (pa.list_(pa.int64()), np.array([1, 2]), [1, 2]),
    (pa.map_(pa.string(), pa.int64()), [("a", 1)], {"a": 1}),
    (MONEY, 3, Decimal("3.00")),
    (MONEY, Decimal("1.5"), Decimal("1.50")),
]


@pytest.mark.parametrize(
    ("kind", "made", "stored"), MADE, ids=lambda value: str(value).partition(" at 0x")[0][:40]
)
def test_values_may_be_made_in_more_ways_than_they_are_seen(
    kind: pa.DataType, made: Any, stored: Any
) -> None:
    batch = RowWriter(pa.schema([("c", kind)])).batch([(made,), (None,)])
    batch.validate(full=True)
    assert values_of(batch.column(0)) == [stored, None]


REQUIRED = pa.struct([pa.field("a", pa.int64(), nullable=False)])
MISFITS = [
    (pa.list_(pa.int32()), [1.5], "make int32 for column 'c.element'", "1.5, a float"),
    (pa.list_(pa.int32()), [2**40], "make int32 for column 'c.element'", str(2**40)),
    (pa.list_(pa.string()), "ab", "make a list for column 'c'", "'ab', a str"),
    (pa.list_(pa.string()), 7, "make a list for column 'c'", "7, a int"),
    (pa.list_(pa.string()), {"a": 1}, "make a list for column 'c'", "a dict"),
    (POINT, {"x": 1, "y": 2}, "name fields of column 'c' (x, at)", "'y' in {"),
    (POINT, (1, 2, 3), "make a dictionary or a tuple of 2 for column 'c'", "(1, 2, 3)"),
    (POINT, {"x": "1"}, "make int32 for column 'c.x'", "'1', a str"),
    (pa.list_(POINT), [{"x": "1"}], "make int32 for column 'c.element.x'", "'1', a str"),
    (pa.map_(pa.string(), MONEY), {"a": 1.5}, "decimal128(10, 2) for column 'c.value'", "1.5"),
    (pa.map_(pa.string(), MONEY), {1: 1}, "make string, not null, for column 'c.key'", "1, a int"),
    (pa.map_(pa.string(), MONEY), {None: 1}, "make string, not null, for column 'c.key'", "None"),
    (pa.map_(pa.string(), MONEY), [1], "make a dictionary for column 'c'", "[1], a list"),
    (MONEY, Decimal("1.555"), "make decimal128(10, 2) for column 'c'", "Decimal('1.555')"),
    (MONEY, Decimal("NaN"), "make decimal128(10, 2) for column 'c'", "Decimal('NaN')"),
    (pa.timestamp("us"), ZONED, "make timestamp[us] for column 'c'", "tzinfo"),
    (pa.list_(pa.timestamp("us")), [ZONED], "for column 'c.element'", "tzinfo"),
    (REQUIRED, {}, "make int64, not null, for column 'c.a'", "None"),
    (pa.list_(pa.field("element", pa.int64(), nullable=False)), [None], "not null, ", "None"),
    (pa.list_(pa.field("element", POINT, nullable=False)), [None], "'c.element'", "None"),
]


@pytest.mark.parametrize(("kind", "made", "must", "got"), MISFITS, ids=lambda v: str(v)[:40])
@pytest.mark.parametrize("before", [[], [None], [None, None]])
def test_what_does_not_fit_is_named_with_the_way_to_it(
    kind: pa.DataType, made: Any, must: str, got: str, before: list[None]
) -> None:
    with pytest.raises(MisfitError) as misfit:
        RowWriter(pa.schema([("c", kind)])).batch([(value,) for value in [*before, made, None]])
    assert must in misfit.value.must
    assert got in misfit.value.got
    assert misfit.value.place == len(before)


def test_the_row_of_a_misfit_deep_inside_is_found() -> None:
    kind = pa.list_(pa.map_(pa.string(), pa.list_(pa.int64())))
    rows = [([],), ([{"a": [1]}, {}],), (None,), ([{"a": [1, 2], "b": [3]}, {"c": ["x"]}],)]
    with pytest.raises(MisfitError) as misfit:
        RowWriter(pa.schema([("c", kind)])).batch(rows)
    assert misfit.value.place == 3
    assert "'c.element.value.element'" in misfit.value.must


def test_a_field_that_must_be_there_may_be_missing_where_its_struct_is() -> None:
    batch = RowWriter(pa.schema([("c", REQUIRED)])).batch([(None,), ({"a": 1},)])
    assert values_of(batch.column(0)) == [None, {"a": 1}]
    with pytest.raises(MisfitError) as misfit:
        RowWriter(pa.schema([("c", REQUIRED)])).batch([(None,), ({"a": 1},), ({},)])
    assert misfit.value.place == 2
    needed = pa.schema([pa.field("c", REQUIRED, nullable=False)])
    with pytest.raises(MisfitError, match="not null, for column 'c'"):
        RowWriter(needed).batch([(None,)])


def test_moments_beyond_pythons_years_are_an_error_and_not_a_number() -> None:
    for zone in (None, "UTC"):
        with pytest.raises((OverflowError, ValueError)):
            values_of(pa.array([10**18], pa.timestamp("us", zone)))
