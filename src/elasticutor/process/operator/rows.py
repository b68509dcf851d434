"""From columns to Python values and from rows to columns, as fast as Python goes.

Nanoseconds per value, with pyarrow 26, decide how: `to_pylist` is the fastest for numbers, strings
and bytes (20 to 30), and by far the slowest for bytes of fixed size (580), dates (900) and
timestamps (1,200; 4,000 with a zone), for which NumPy takes 20 to 60. So nested columns are taken
apart and put together here, and what holds for a column holds inside of one too.

| Column | an operator sees | and may make |
|---|---|---|
| struct | a dictionary | the same (a field left out is null), or a tuple of all fields |
| array | a list | any iterable but a string |
| map | a dictionary; keys that are structs or arrays are tuples | the same, or pairs |
| timestamp with a zone | a datetime with a zone | the same; one without is in UTC |
| timestamp without | a datetime without | the same |
| decimal | a `Decimal` | the same, if no digit is lost; or an int |
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from itertools import accumulate, chain, pairwise
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
_LISTS: Final = {list, tuple, type(None)}
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_UTC_NAMES: Final = frozenset({"UTC", "utc", "Etc/UTC", "+00:00"})


def values_of(column: pa.Array) -> list[Any]:
    """The values of a column as Python has them; nulls are None.

    Example:
        >>> values_of(pa.array([b"ab", None], pa.binary(2)))
        [b'ab', None]
        >>> values_of(pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64())))
        [{'a': 1}]
    """
    read = _READERS.get(column.type.id)
    if read is not None:
        return read(column)
    values: list[Any] = column.to_pylist()
    return values


def rows_of(batch: pa.RecordBatch, columns: Sequence[str] | None = None) -> list[tuple[Any, ...]]:
    """The rows of a batch, as tuples; only of these columns, if any are named.

    Example:
        >>> rows_of(pa.record_batch({"a": [1, 2], "b": ["x", None]}))
        [(1, 'x'), (2, None)]
    """
    read = batch.columns if columns is None else map(batch.column, columns)
    return list(zip(*map(values_of, read), strict=True))


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
            _column(list(map(itemgetter(place), rows)), field, field.name)
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


# From columns -------------------------------------------------------------------------------------


def _by_numpy(column: pa.Array) -> list[Any]:
    values: list[Any] = column.to_numpy(zero_copy_only=False).tolist()
    return values


def _moments(column: pa.Array) -> list[Any]:
    kind = column.type
    zone, unit = getattr(kind, "tz", None), getattr(kind, "unit", "D")
    if unit != "ns" and (zone is None or zone in _UTC_NAMES):
        try:
            return _by_numpy_moments(column, unit, zone)
        except (OverflowError, TypeError):
            pass  # Python has no date for one of them
    elsewhere: list[Any] = column.to_pylist()
    return elsewhere


def _by_numpy_moments(column: pa.Array, unit: str, zone: str | None) -> list[Any]:
    stored = column.to_numpy(zero_copy_only=False)
    if zone is None:
        values: list[Any] = stored.tolist()
        if int in set(map(type, values)):  # NumPy's answer for what Python has no date for
            raise OverflowError
        return values
    # To add is twenty times as fast as `datetime.replace`.
    since = stored.view(f"m8[{unit}]").tolist()
    return [None if moment is None else _EPOCH + moment for moment in since]


def _structs(column: pa.Array) -> list[Any]:
    kind = column.type
    if _is_plain(kind):
        plain: list[Any] = column.to_pylist()
        return plain
    # Each row is as long as there are names; to have it checked would double the time.
    names = [field.name for field in kind]
    rows = zip(*map(values_of, column.flatten()))  # noqa: B905
    return _masked([dict(zip(names, row)) for row in rows], column)  # noqa: B905


def _lists(column: pa.Array, read: Callable[[pa.Array], list[Any]] = values_of) -> list[Any]:
    if read is values_of and _is_plain(column.type):
        plain: list[Any] = column.to_pylist()
        return plain
    ends = column.offsets.to_pylist()
    first = ends[0]
    values = read(column.values.slice(first, ends[-1] - first))
    if first:
        ends = [end - first for end in ends]
    return _masked([values[begin:end] for begin, end in pairwise(ends)], column)


def _maps(column: pa.Array) -> list[Any]:
    kind = column.type
    if _is_plain(kind.key_type) and _is_plain(kind.item_type) and not _is_nested(kind.key_type):
        return [pairs if pairs is None else dict(pairs) for pairs in column.to_pylist()]
    ends = column.offsets.to_pylist()
    first, length = ends[0], ends[-1] - ends[0]
    keys = _hashables(column.keys.slice(first, length))
    items = values_of(column.items.slice(first, length))
    pairs = list(zip(keys, items, strict=True))
    made = [dict(pairs[begin - first : end - first]) for begin, end in pairwise(ends)]
    return _masked(made, column)


def _is_nested(kind: pa.DataType) -> bool:
    return bool(pa.types.is_nested(kind))


def _is_plain(kind: pa.DataType) -> bool:
    """Whether `to_pylist` will do for all that is inside."""
    if pa.types.is_struct(kind):
        return all(_is_plain(field.type) for field in kind)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _is_plain(kind.value_type)
    return kind.id not in _READERS


def _hashables(column: pa.Array) -> list[Any]:
    """The values of a column in a form that a dictionary takes as its keys."""
    kind = column.type
    if pa.types.is_struct(kind):
        return _masked(_tuples(column, _hashables), column)
    if pa.types.is_list(kind):
        return [value if value is None else tuple(value) for value in _lists(column, _hashables)]
    return values_of(column)


def _tuples(column: pa.Array, read: Callable[[pa.Array], list[Any]]) -> list[Any]:
    if not column.type.num_fields:
        return [()] * len(column)
    return list(zip(*map(read, column.flatten()), strict=True))


def _masked(values: list[Any], column: pa.Array) -> list[Any]:
    """The values, None where the column is null."""
    if not column.null_count:
        return values
    valid = column.is_valid().to_pylist()
    return [value if there else None for value, there in zip(values, valid, strict=True)]


_READERS: Final[dict[int, Callable[[pa.Array], list[Any]]]] = {
    pa.binary(1).id: _by_numpy,
    pa.date32().id: _moments,
    pa.timestamp("us").id: _moments,
    pa.struct([]).id: _structs,
    pa.list_(pa.int8()).id: _lists,
    pa.large_list(pa.int8()).id: _lists,
    pa.map_(pa.int8(), pa.int8()).id: _maps,
}
"""By the number of a type: how its values are read, if not by `to_pylist`."""


def _key_values(column: pa.Array) -> list[Any]:
    if pa.types.is_floating(column.type):
        # Adding 0.0 turns -0.0 into it.
        return [
            value if value is None else math.nan if value != value else value + 0.0
            for value in column.to_pylist()
        ]
    if pa.types.is_struct(column.type):
        return _masked(_tuples(column, _key_values), column)
    return values_of(column)


# To columns ---------------------------------------------------------------------------------------


def _column(values: list[Any], field: pa.Field, path: str) -> pa.Array:
    """The values as a column.

    Args:
        values: Of all rows.
        field: Type and nullability.
        path: What errors call the column; it leads into nested ones.
    """
    write = _WRITERS.get(field.type.id)
    if write is not None:
        return _with_nulls(write(values, field.type, path), values, field, path)
    code = _WHOLE.get(field.type)
    try:
        if code is not None:
            # As fast as pyarrow, which besides would make 1 of 1.5 without a word.
            whole = pa.py_buffer(array(code, values))
            return pa.Array.from_buffers(field.type, len(values), [None, whole])
        return _checked(values, field)
    except _UNFIT:
        return _column_with_care(values, field, path)


def _column_with_care(values: list[Any], field: pa.Field, path: str) -> pa.Array:
    """The column, if nulls were all that was the matter; else the first value that is."""
    must = _must(field, path)
    try:
        return _checked(values, field)
    except _UNFIT as whole:
        for place, value in enumerate(values):
            try:
                _checked([value], field)
            except _UNFIT as error:
                raise MisfitError(place, must, _got(value)) from error
        raise MisfitError(0, must, f"values that together do not fit: {whole}") from whole


def _checked(values: list[Any], field: pa.Field) -> pa.Array:
    if field.type in _WHOLE:
        values = [None if value is None else index(value) for value in values]
    elif pa.types.is_temporal(field.type):
        for kind in set(map(type, values)):
            if issubclass(kind, float | np.floating):
                raise TypeError(kind)
        naive = pa.types.is_timestamp(field.type) and field.type.tz is None
        # Arrow would shift those with a zone to UTC without a word.
        if naive and any(getattr(value, "tzinfo", None) is not None for value in values):
            raise ValueError(field.name)
    column = pa.array(values, field.type)
    if column.null_count and not field.nullable:
        raise ValueError(field.name)
    return column


def _must(field: pa.Field, path: str) -> str:
    return f"make {field.type}{'' if field.nullable else ', not null,'} for column {path!r}"


def _got(value: Any) -> str:
    return f"{value!r}, a {type(value).__name__}"


def _with_nulls(column: pa.Array, values: list[Any], field: pa.Field, path: str) -> pa.Array:
    if column.null_count and not field.nullable:
        raise MisfitError(values.index(None), _must(field, path), _got(None))
    return column


def _validity(values: list[Any]) -> pa.Buffer | None:
    """Arrow's bits for what is not None."""
    if None not in values:
        return None
    there = np.fromiter((value is not None for value in values), bool, len(values))
    return pa.py_buffer(np.packbits(there, bitorder="little"))


def _write_structs(values: list[Any], kind: pa.DataType, path: str) -> pa.Array:
    fields = list(kind)
    names = [field.name for field in fields]
    if set(map(type, values)) == {dict} and set(names).issuperset(chain.from_iterable(values)):
        parts = [[row.get(name) for row in values] for name in names]
    else:
        rows = [_struct_row(place, value, names, path) for place, value in enumerate(values)]
        parts = [[row[place] for row in rows] for place in range(len(names))]
    some = None in values
    children = []
    for field, part in zip(fields, parts, strict=True):
        inner = f"{path}.{field.name}"
        inside = field
        if some and not field.nullable:
            # Within a struct that is null anything may be; else it must be there.
            for place, (row, value) in enumerate(zip(values, part, strict=True)):
                if row is not None and value is None:
                    raise MisfitError(place, _must(field, inner), _got(None))
            inside = field.with_nullable(True)
        children.append(_column(part, inside, inner))
    return pa.Array.from_buffers(kind, len(values), [_validity(values)], children=children)


def _struct_row(place: int, value: Any, names: list[str], path: str) -> tuple[Any, ...]:
    if value is None:
        return (None,) * len(names)
    if isinstance(value, tuple) and len(value) == len(names):
        return value
    if isinstance(value, Mapping):
        if all(name in names for name in value):
            return tuple(map(value.get, names))
        unknown = next(name for name in value if name not in names)
        must = f"name fields of column {path!r} ({', '.join(names)})"
        raise MisfitError(place, must, f"{unknown!r} in {value!r}")
    must = f"make a dictionary or a tuple of {len(names)} for column {path!r} ({', '.join(names)})"
    raise MisfitError(place, must, _got(value))


def _write_lists(values: list[Any], kind: pa.DataType, path: str) -> pa.Array:
    if not set(map(type, values)) <= _LISTS:
        values = [_as_list(place, value, path) for place, value in enumerate(values)]
    flat = [*chain.from_iterable(filter(None, values))]
    ends = [*accumulate([0 if value is None else len(value) for value in values], initial=0)]
    element = _inner(flat, kind.value_field, f"{path}.element", ends)
    return _with_offsets(values, kind, ends, element)


def _as_list(place: int, value: Any, path: str) -> Any:
    if value is None or isinstance(value, list | tuple):
        return value
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        raise MisfitError(place, f"make a list for column {path!r}", _got(value))
    return list(value)


def _write_maps(values: list[Any], kind: pa.DataType, path: str) -> pa.Array:
    if set(map(type, values)) != {dict}:
        values = [_as_dict(place, value, path) for place, value in enumerate(values)]
    there = [value for value in values if value]
    keys = [*chain.from_iterable(there)]
    items = [*chain.from_iterable(map(dict.values, there))]
    ends = [*accumulate([0 if value is None else len(value) for value in values], initial=0)]
    children = [
        _inner(keys, kind.key_field, f"{path}.key", ends),
        _inner(items, kind.item_field, f"{path}.value", ends),
    ]
    entries = kind.field(0).type
    inside = pa.Array.from_buffers(entries, len(keys), [None], children=children)
    return _with_offsets(values, kind, ends, inside)


def _as_dict(place: int, value: Any, path: str) -> dict[Any, Any] | None:
    if value is None or type(value) is dict:
        return value
    try:
        return dict(value)
    except (TypeError, ValueError):
        must = f"make a dictionary for column {path!r}"
        raise MisfitError(place, must, _got(value)) from None


def _inner(flat: list[Any], field: pa.Field, path: str, ends: list[int]) -> pa.Array:
    """What is inside of many lists, as one column; a misfit is that of the list around it."""
    try:
        return _column(flat, field, path)
    except MisfitError as misfit:
        row = bisect_right(ends, misfit.place) - 1
        raise MisfitError(row, misfit.must, misfit.got, misfit.hint) from misfit


def _with_offsets(
    values: list[Any], kind: pa.DataType, ends: list[int], inside: pa.Array
) -> pa.Array:
    offsets = pa.py_buffer(np.array(ends, np.int32))
    buffers = [_validity(values), offsets]
    return pa.Array.from_buffers(kind, len(values), buffers, children=[inside])


_WRITERS: Final[dict[int, Callable[[list[Any], pa.DataType, str], pa.Array]]] = {
    pa.struct([]).id: _write_structs,
    pa.list_(pa.int8()).id: _write_lists,
    pa.map_(pa.int8(), pa.int8()).id: _write_maps,
}
"""By the number of a type: how columns are made that have others inside."""
