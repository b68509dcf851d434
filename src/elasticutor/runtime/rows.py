"""From columns to Python values and from rows to columns, as fast as Python goes.

Nanoseconds per value, with pyarrow 26, decide how: `to_pylist` is the fastest for numbers, strings
and bytes (20 to 30), and by far the slowest for bytes of fixed size (580), dates (900) and
timestamps (1,200; 4,000 with a zone), for which NumPy takes 20 to 60.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from datetime import UTC
from operator import index, itemgetter
from typing import Any, Final

import numpy as np
import pyarrow as pa

_WHOLE: Final[dict[Any, str]] = {
    pa.int8(): "b",
    pa.int16(): "h",
    pa.int32(): "i",
    pa.int64(): "q",
    pa.uint8(): "B",
    pa.uint16(): "H",
    pa.uint32(): "I",
    pa.uint64(): "Q",
}
_UNFIT: Final = (TypeError, ValueError, OverflowError, pa.ArrowException)
_UTC_NAMES: Final = frozenset({"UTC", "utc", "Etc/UTC", "+00:00"})


def values_of(column: pa.Array) -> list[Any]:
    """The values of a column as Python has them; nulls are None.

    Example:
        >>> values_of(pa.array([b"ab", None], pa.binary(2)))
        [b'ab', None]
    """
    kind = column.type
    if pa.types.is_fixed_size_binary(kind):
        return _by_numpy(column)
    if pa.types.is_date32(kind) or (pa.types.is_timestamp(kind) and kind.unit != "ns"):
        return _moments(column, kind)
    values: list[Any] = column.to_pylist()
    return values


def keys_of(columns: Sequence[pa.Array]) -> list[Any]:
    """The key of each row: the value of the one column, or a tuple of several.

    Keys that hash alike by value are equal here: 0.0 is also -0.0, and NaN is one object, as a
    dictionary needs it. A struct, which as a dictionary could not be a key, is a tuple.

    Example:
        >>> keys_of([pa.array([1, 2])])
        [1, 2]
        >>> keys_of([pa.array([1, 2]), pa.array(["a", None])])
        [(1, 'a'), (2, None)]
    """
    parts = [_key_values(column) for column in columns]
    return parts[0] if len(parts) == 1 else list(zip(*parts, strict=True))


class MisfitError(Exception):
    """A row that does not fit the output: which, and in words why."""

    def __init__(self, place: int, must: str, got: str, hint: str = "") -> None:
        super().__init__(place, must, got, hint)
        self.place = place
        self.must = must
        self.got = got
        self.hint = hint


class RowWriter:
    """Makes a record batch of rows, or says which of them does not fit and why.

    Example:
        >>> writer = RowWriter(pa.schema({"key": pa.string(), "count": pa.int64()}))
        >>> writer.batch([("a", 1), {"count": 2}]).to_pylist()
        [{'key': 'a', 'count': 1}, {'key': None, 'count': 2}]
    """

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._names = tuple(schema.names)
        self._known = frozenset(self._names)

    def batch(self, rows: Sequence[Any]) -> pa.RecordBatch:
        """The rows as one batch of exactly the schema.

        Raises:
            MisfitError: One of them does not fit.
        """
        if set(map(type, rows)) != {tuple}:
            rows = [self._as_tuple(place, row) for place, row in enumerate(rows)]
        if not set(map(len, rows)) <= {len(self._names)}:
            self._refuse_length(rows)
        columns = [
            _column(list(map(itemgetter(place), rows)), field)
            for place, field in enumerate(self._schema)
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def _as_tuple(self, place: int, row: Any) -> tuple[Any, ...]:
        if isinstance(row, tuple):
            return row
        if not isinstance(row, dict):
            hint = "yield each row, or return a list of rows"
            raise MisfitError(place, "make rows that are tuples or dictionaries", repr(row), hint)
        if not row.keys() <= self._known:
            unknown = next(name for name in row if name not in self._known)
            must = f"name columns of its output ({', '.join(self._names)})"
            raise MisfitError(place, must, f"{unknown!r} in {row!r}")
        return tuple(map(row.get, self._names))

    def _refuse_length(self, rows: Sequence[tuple[Any, ...]]) -> None:
        width = len(self._names)
        place, row = next((i, row) for i, row in enumerate(rows) if len(row) != width)
        must = f"make rows of {width} values ({', '.join(self._names)})"
        raise MisfitError(place, must, f"{len(row)}: {row!r}")


def _by_numpy(column: pa.Array) -> list[Any]:
    values: list[Any] = column.to_numpy(zero_copy_only=False).tolist()
    return values


def _moments(column: pa.Array, kind: pa.DataType) -> list[Any]:
    zone = getattr(kind, "tz", None)
    if zone is not None and zone not in _UTC_NAMES:
        elsewhere: list[Any] = column.to_pylist()
        return elsewhere
    values = _by_numpy(column)
    if int in set(map(type, values)):  # NumPy's answer for what Python has no date for
        beyond: list[Any] = column.to_pylist()
        return beyond
    if zone is None:
        return values
    return [value and value.replace(tzinfo=UTC) for value in values]


def _key_values(column: pa.Array) -> list[Any]:
    if pa.types.is_floating(column.type):
        # Adding 0.0 turns -0.0 into it.
        return [
            value if value is None else math.nan if value != value else value + 0.0
            for value in column.to_pylist()
        ]
    if pa.types.is_struct(column.type):
        keys = list(zip(*map(_key_values, column.flatten()), strict=True))
        if column.null_count:
            valid = column.is_valid().to_pylist()
            return [key if there else None for key, there in zip(keys, valid, strict=True)]
        return keys
    return values_of(column)


def _column(values: list[Any], field: pa.Field) -> pa.Array:
    code = _WHOLE.get(field.type)
    try:
        if code is not None:
            # As fast as pyarrow, which besides would make 1 of 1.5 without a word.
            whole = pa.py_buffer(array(code, values))
            return pa.Array.from_buffers(field.type, len(values), [None, whole])
        return _checked(values, field)
    except _UNFIT:
        return _column_with_care(values, field)


def _column_with_care(values: list[Any], field: pa.Field) -> pa.Array:
    """The column, if nulls were all that was the matter; else the first value that is."""
    must = f"make {field.type}{'' if field.nullable else ', not null,'} for column {field.name!r}"
    try:
        return _checked(values, field)
    except _UNFIT as whole:
        for place, value in enumerate(values):
            try:
                _checked([value], field)
            except _UNFIT as error:
                got = f"{value!r}, a {type(value).__name__}"
                raise MisfitError(place, must, got) from error
        raise MisfitError(0, must, f"values that together do not fit: {whole}") from whole


def _checked(values: list[Any], field: pa.Field) -> pa.Array:
    if field.type in _WHOLE:
        values = [None if value is None else index(value) for value in values]
    elif pa.types.is_temporal(field.type):
        for kind in set(map(type, values)):
            if issubclass(kind, float | np.floating):
                raise TypeError(kind)
    column = pa.array(values, field.type)
    if column.null_count and not field.nullable:
        raise ValueError(field.name)
    return column
