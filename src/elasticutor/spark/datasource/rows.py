"""Rows of Python values to Arrow and back, by the rules that Spark has for data sources.

Arrow alone has other rules: to it, a naive time in a column with a time zone is in UTC and not in
local time, and a tuple is no struct.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from decimal import ROUND_HALF_EVEN, Context, Decimal
from functools import partial
from typing import Any, TypeAlias

import pyarrow as pa
from pyspark.sql import Row
from pyspark.sql.types import VariantVal

from elasticutor.spark.datasource.given import DataSourceError

Convert: TypeAlias = Callable[[Any], Any]
"""Turns a value that is not None into another; None in place of one that changes nothing."""

_CONVERTING = (pa.ArrowException, TypeError, ValueError, ArithmeticError, AttributeError)
"""What values that do not fit their column raise."""


class RowsToArrow:
    """Makes record batches of one schema from what a data source yields; errors name it `who`."""

    def __init__(self, who: str, schema: pa.Schema) -> None:
        self._who = who
        self._schema = schema
        self._names: list[str] = schema.names
        self._converts = [_to_arrow(field.type) for field in schema]

    def batch(self, rows: Sequence[Any]) -> pa.RecordBatch:
        """Tuples, lists or Rows as one batch; columns of named Rows are found by their names."""
        columns = zip(*map(self._values, rows), strict=True)
        arrays = [
            self._column(field, partial(_array, column, convert, field.type))
            for field, column, convert in zip(self._schema, columns, self._converts, strict=True)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def conform(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return a batch with the schema's order and types, cast where nothing is lost."""
        names = self._names
        if sorted(batch.schema.names) != sorted(names):
            who, must = f"record batch of {self._who}", f"have the columns {names}"
            raise DataSourceError(who, must, batch.schema.names)
        arrays = [
            self._column(field, partial(batch.column(field.name).cast, field.type))
            for field in self._schema
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _values(self, row: Any) -> Sequence[Any]:
        names = self._names
        if not isinstance(row, tuple | list):
            must = "be a tuple, list, Row or pyarrow.RecordBatch"
            raise DataSourceError(f"row of {self._who}", must, row)
        own = getattr(row, "__fields__", None)
        if isinstance(row, Row) and own is not None and list(own) != names:
            if sorted(own) != sorted(names):
                raise DataSourceError(f"row of {self._who}", f"have the columns {names}", own)
            return [row[name] for name in names]
        if len(row) != len(names):
            raise DataSourceError(f"row of {self._who}", f"have {len(names)} values", row)
        return row

    def _column(self, field: pa.Field, make: Callable[[], pa.Array]) -> pa.Array:
        who = f"column {field.name!r} of {self._who}"
        try:
            column = make()
        except _CONVERTING as error:
            raise DataSourceError(who, f"have values of type {field.type}", str(error)) from error
        if column.null_count and not field.nullable:
            raise DataSourceError(who, "have no null", None)
        return column


class ArrowToRows:
    """Makes Spark's Rows from record batches of one schema."""

    def __init__(self, schema: pa.Schema) -> None:
        self._row = Row(*schema.names)
        self._converts = [_from_arrow(field.type) for field in schema]

    def rows(self, batch: pa.RecordBatch) -> Iterator[Row]:
        """Yield the rows of a batch, one after the other."""
        columns = [
            _each(column.to_pylist(), convert)
            for column, convert in zip(batch.columns, self._converts, strict=True)
        ]
        return (self._row(*values) for values in zip(*columns, strict=True))


def _each(values: Sequence[Any], convert: Convert | None) -> Sequence[Any]:
    if convert is None:
        return values
    return [None if value is None else convert(value) for value in values]


def _array(values: Sequence[Any], convert: Convert | None, kind: pa.DataType) -> pa.Array:
    return pa.array(_each(values, convert), kind)


def _stepped(values: Iterable[Any], converts: Sequence[Convert | None]) -> Iterator[Any]:
    for value, convert in zip(values, converts, strict=True):
        yield value if convert is None or value is None else convert(value)


# To Arrow


def _to_arrow(kind: pa.DataType) -> Convert | None:
    """Return how values of a type go to Arrow, wherever Spark would not take them as they are."""
    if pa.types.is_struct(kind):
        return _struct_to_arrow(kind)
    if pa.types.is_map(kind):
        key, item = _to_arrow(kind.key_type), _to_arrow(kind.item_type)
        return lambda value: list(
            zip(_each(list(value.keys()), key), _each(list(value.values()), item), strict=True)
        )
    if pa.types.is_list(kind):
        element = _to_arrow(kind.value_type)
        return lambda value: _each(list(value), element)
    if pa.types.is_decimal(kind):
        return _decimal_to_arrow(kind)
    if pa.types.is_timestamp(kind):
        return _naive if kind.tz is None else lambda value: value.astimezone(UTC)
    return _text if pa.types.is_string(kind) else None


def _struct_to_arrow(kind: pa.StructType) -> Convert:
    names = [kind.field(place).name for place in range(kind.num_fields)]
    converts = [_to_arrow(kind.field(place).type) for place in range(kind.num_fields)]

    def convert(value: Any) -> dict[str, Any]:
        if isinstance(value, tuple):
            values = list(value)
        else:
            # Objects count as their attributes; so does a VariantVal, by its value and metadata.
            known = value if isinstance(value, dict) else vars(value)
            values = [known.get(name) for name in names]
        return dict(zip(names, _stepped(values, converts), strict=True))

    return convert


def _decimal_to_arrow(kind: pa.DataType) -> Convert:
    step = Decimal(1).scaleb(-kind.scale)
    context = Context(prec=kind.precision, rounding=ROUND_HALF_EVEN)

    def convert(value: Any) -> Any:
        if not isinstance(value, Decimal):
            return value
        return None if value.is_nan() else value.quantize(step, context=context)

    return convert


def _naive(value: datetime) -> datetime:
    # Arrow would shift it to UTC without a word.
    if value.tzinfo is not None:
        raise ValueError(f"{value} has a time zone, which timestamp_ntz has not")
    return value


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    # As the JVM writes them.
    return str(value).lower() if isinstance(value, bool) else str(value)


# From Arrow


def _from_arrow(kind: pa.DataType) -> Convert | None:
    """Return how values of a type come from Arrow, wherever Spark would give others."""
    if pa.types.is_struct(kind):
        return _struct_from_arrow(kind)
    if pa.types.is_map(kind):
        key, item = _from_arrow(kind.key_type), _from_arrow(kind.item_type)
        return lambda value: dict(
            zip(_each([k for k, _ in value], key), _each([v for _, v in value], item), strict=True)
        )
    if pa.types.is_list(kind):
        element = _from_arrow(kind.value_type)
        return None if element is None else lambda value: _each(value, element)
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        return lambda value: value.astimezone().replace(tzinfo=None)
    return None


def _struct_from_arrow(kind: pa.StructType) -> Convert:
    fields = [kind.field(place) for place in range(kind.num_fields)]
    if any((field.metadata or {}).get(b"variant") == b"true" for field in fields):
        return lambda value: VariantVal(value["value"], value["metadata"])
    row = Row(*(field.name for field in fields))
    converts = [_from_arrow(field.type) for field in fields]

    def convert(value: dict[str, Any]) -> Row:
        return row(*_stepped(value.values(), converts))

    return convert
