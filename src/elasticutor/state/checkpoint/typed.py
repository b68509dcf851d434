"""State as typed columns, for operators that declare a `state_schema`.

A state is one of these, and comes back as the same:

- with a schema of one column, its value;
- a tuple, a list or a dictionary with all columns (the dictionary in the order of the schema);
- the bytes of one NumPy element, as `set_array` leaves them, with or without padding.

The same means of the same type: what Arrow would turn into something else is refused, an `int` in a
column of doubles as well as a double that a `float` cannot hold. Only a `Decimal` gets the scale of
its column, and what is in an element's padding is lost.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime, time
from decimal import Decimal
from operator import itemgetter
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from elasticutor.errors import BadValueError, Words
from elasticutor.state.codec import decode, decode_key, encode

# How a state looked, in the column `shape`; these numbers are on disk.
_DELETED, _BARE, _TUPLE, _LIST, _DICT, _PACKED, _ALIGNED, _NONE = range(8)
_ELEMENTS: Final = (_PACKED, _ALIGNED)
_PLAIN: Final = frozenset({int, str, bytes, bool, type(None)})
_UNFIT: Final = (TypeError, ValueError, OverflowError, pa.ArrowException)

Values = Sequence[bytes | None]
"""States as the codec has them; None where a key was deleted."""


class TypedValues:
    """Turns an operator's states into typed columns and back."""

    def __init__(self, operator: str, schema: pa.Schema) -> None:
        self._operator = operator
        self._names = tuple(schema.names)
        self._required = tuple(not field.nullable for field in schema)
        self._kinds = tuple(_storable(field.type) for field in schema)
        self.type = pa.struct([*map(pa.field, self._names, self._kinds)])  # of the column `value`
        self._bytes_are_bare = len(self._kinds) == 1 and _is_bytes(self._kinds[0])
        self._dtypes = _element_types(self._kinds)

    def columns(self, keys: Sequence[bytes], values: Values) -> tuple[pa.Array, pa.Array]:
        """The columns `value` and `shape`; refuses a state that does not fit."""
        shapes = np.zeros(len(values), np.int8)
        rows: list[tuple[Any, ...]] = []
        elements: list[bytes] = []
        nothing = (None,) * len(self._names)
        for place, data in enumerate(values):
            if data is None:
                rows.append(nothing)
                continue
            state = decode(data)
            shape, row = self._row(state)
            if shape is None:
                raise self._misfit(keys[place], state, self._wanted())
            shapes[place] = shape
            if row is None:
                elements.append(state)
            else:
                rows.append(row)
        is_element = np.isin(shapes, _ELEMENTS)
        fields = self._fields_of_rows(rows, np.flatnonzero(~is_element), shapes, keys)
        if elements:
            parts = self._fields_of_elements(elements, np.flatnonzero(is_element), shapes, keys)
            fields = _merged(fields, parts, is_element)
        empty = pa.array((shapes == _DELETED) | (shapes == _NONE))
        struct = pa.StructArray.from_arrays(fields, fields=list(self.type), mask=empty)
        return struct, pa.array(shapes)

    def states(self, column: pa.Array, shapes: pa.Array) -> list[bytes | None]:
        """The states that the columns were made of, as the codec has them."""
        codes = shapes.to_numpy()
        made: npt.NDArray[np.object_] = np.full(len(codes), None, object)
        for shape in np.unique(codes).tolist():
            if shape == _DELETED:
                continue
            where = np.flatnonzero(codes == shape)
            part = column if len(where) == len(codes) else column.take(pa.array(where))
            if shape in _ELEMENTS:
                found = self._elements(part, self._dtypes[shape - _PACKED])
            else:
                found = [encode(state) for state in self._objects(shape, part)]
            made[where] = found
        states: list[bytes | None] = made.tolist()
        return states

    def _row(self, state: Any) -> tuple[int | None, tuple[Any, ...] | None]:
        kind = type(state)
        width = len(self._names)
        if kind is bytes and not self._bytes_are_bare:
            for shape, dtype in zip(_ELEMENTS, self._dtypes, strict=False):
                if len(state) == dtype.itemsize:
                    return shape, None
            return None, None
        if width == 1:
            return _BARE, (state,)
        if state is None:
            return _NONE, (None,) * width
        if (kind is tuple or kind is list) and len(state) == width:
            return (_TUPLE if kind is tuple else _LIST), tuple(state)
        if kind is dict and state.keys() == set(self._names):
            return _DICT, tuple(map(state.__getitem__, self._names))
        return None, None

    def _fields_of_rows(
        self,
        rows: list[tuple[Any, ...]],
        places: npt.NDArray[np.intp],
        shapes: npt.NDArray[np.int8],
        keys: Sequence[bytes],
    ) -> list[pa.Array]:
        fields = []
        for number, kind in enumerate(self._kinds):
            values = list(map(itemgetter(number), rows))
            if self._required[number]:
                for value, place in zip(values, places.tolist(), strict=True):
                    if value is None and shapes[place] not in (_DELETED, _NONE):
                        must = f"have column {self._names[number]!r} of its state_schema, not null,"
                        raise self._misfit(keys[place], None, must)
            made = _exact(values, kind)
            if made is None:
                place = next(i for i, value in enumerate(values) if _exact([value], kind) is None)
                must = f"fit column {self._names[number]!r} of its state_schema, {kind},"
                raise self._misfit(keys[places[place]], values[place], must)
            fields.append(made)
        return fields

    def _fields_of_elements(
        self,
        elements: list[bytes],
        places: npt.NDArray[np.intp],
        shapes: npt.NDArray[np.int8],
        keys: Sequence[bytes],
    ) -> list[pa.Array]:
        # With and without padding at once only if it was changed between the two.
        codes = shapes[places]
        parts: list[list[pa.Array]] = []
        order: list[npt.NDArray[np.intp]] = []
        for shape in np.unique(codes).tolist():
            where = np.flatnonzero(codes == shape)
            order.append(where)
            joined = b"".join(elements[place] for place in where.tolist())
            array = np.frombuffer(joined, self._dtypes[shape - _PACKED])
            columns = [array[f"f{i}"] for i in range(len(self._kinds))]
            made = [_of_numpy(c, k) for c, k in zip(columns, self._kinds, strict=True)]
            if any(column is None for column in made):
                key = keys[places[where[0]]]
                raise self._misfit(key, elements[where[0]], self._wanted())
            parts.append(made)
        if len(parts) == 1:
            return parts[0]
        back = pa.array(np.argsort(np.concatenate(order)))
        return [pa.concat_arrays(column).take(back) for column in zip(*parts, strict=True)]

    def _elements(self, part: pa.Array, dtype: np.dtype[Any]) -> list[bytes]:
        array = np.zeros(len(part), dtype)
        for number in range(len(self._kinds)):
            array[f"f{number}"] = _to_numpy(part.field(number), dtype[f"f{number}"])
        raw: list[bytes] = array.view(f"V{dtype.itemsize}").tolist()
        return [b"b" + item for item in raw]

    def _objects(self, shape: int, part: pa.Array) -> Sequence[Any]:
        fields = [_python(part.field(number)) for number in range(len(self._kinds))]
        if shape == _BARE:
            return fields[0]
        if shape == _NONE:
            return [None] * len(part)
        rows = list(zip(*fields, strict=True))
        if shape == _TUPLE:
            return rows
        if shape == _LIST:
            return list(map(list, rows))
        return [dict(zip(self._names, row, strict=True)) for row in rows]

    def _wanted(self) -> str:
        if len(self._names) == 1:
            return f"be a {self._kinds[0]} as its state_schema says"
        return f"be a tuple, list or dictionary of {', '.join(self._names)} (its state_schema)"

    def _misfit(self, key: bytes, got: Any, must: str) -> BadValueError:
        who = f"state of operator {self._operator!r}, key {decode_key(key)!r},"
        hint = "fix the operator, or leave state_schema out: then anything can be kept"
        return BadValueError(who, must, Words(f"{got!r}, a {type(got).__name__}"), hint)


def _exact(values: list[Any], kind: pa.DataType) -> pa.Array | None:
    """The values as a column, if they all come back from it as they were."""
    try:
        column = pa.array(values, kind)
        back = _python(column)
    except _UNFIT:
        return None
    kinds = list(map(type, values))
    if _PLAIN.issuperset(kinds):
        return column if back == values and list(map(type, back)) == kinds else None
    return column if all(map(_same, values, back)) else None


def _same(one: Any, other: Any) -> bool:
    kind = type(one)
    if type(other) is not kind:
        return False
    if kind is float:
        if one != one:
            return bool(other != other)
        return bool(one == other) and math.copysign(1, one) == math.copysign(1, other)
    if kind is list or kind is tuple:
        return len(one) == len(other) and all(map(_same, one, other))
    if kind is dict:
        return bool(one.keys() == other.keys()) and all(_same(one[k], other[k]) for k in one)
    if kind is datetime and one == other:
        return bool(one.utcoffset() == other.utcoffset() and one.tzname() == other.tzname())
    if kind is Decimal:
        return bool(one == other) or (one.is_qnan() and bool(other.is_qnan()))
    if kind is time and one.tzinfo is not None:
        return False
    return bool(one == other)


def _python(column: pa.Array) -> list[Any]:
    values = python_of(column)
    if pa.types.is_timestamp(column.type) and column.type.tz == "UTC":
        return [value and value.replace(tzinfo=UTC) for value in values]
    return values


def python_of(column: pa.Array, *, lossy: bool = False) -> list[Any]:
    """The values as Python has them, which knows no nanoseconds: refused unless they may go."""
    kind = column.type
    if pa.types.is_timestamp(kind) and kind.unit == "ns":
        column = column.cast(pa.timestamp("us", kind.tz), safe=not lossy)
    elif pa.types.is_duration(kind) and kind.unit == "ns":
        column = column.cast(pa.duration("us"), safe=not lossy)
    values: list[Any] = column.to_pylist(maps_as_pydicts="lossy" if lossy else "strict")
    return values


def _storable(kind: pa.DataType) -> pa.DataType:
    """The type with nulls allowed everywhere: deleted keys have none of the values."""
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(f.name, _storable(f.type)) for f in kind])
    if pa.types.is_list(kind):
        return pa.list_(pa.field(kind.value_field.name, _storable(kind.value_type)))
    if pa.types.is_dictionary(kind):
        return kind.value_type
    return kind


def _is_bytes(kind: pa.DataType) -> bool:
    variable = pa.types.is_binary(kind) or pa.types.is_large_binary(kind)
    return bool(variable or pa.types.is_fixed_size_binary(kind))


# Elements of NumPy arrays ------------------------------------------------------------------------


def _element_types(kinds: Sequence[pa.DataType]) -> tuple[np.dtype[Any], ...]:
    """What `set_array` may have been given: a type without padding, and one with."""
    found = [_numpy_type(kind) for kind in kinds]
    if any(kind is None for kind in found):  # a NumPy type thinks that it equals None
        return ()
    fields = [(f"f{number}", kind) for number, kind in enumerate(found)]
    packed: np.dtype[Any] = np.dtype(fields)
    aligned: np.dtype[Any] = np.dtype(fields, align=True)
    return (packed,) if packed.itemsize == aligned.itemsize else (packed, aligned)


def _numpy_type(kind: pa.DataType) -> np.dtype[Any] | None:
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind):
        plain: np.dtype[Any] = np.dtype(kind.to_pandas_dtype())
        return plain
    if pa.types.is_timestamp(kind) or pa.types.is_duration(kind) or pa.types.is_time64(kind):
        return np.dtype(np.int64)
    if pa.types.is_date32(kind):
        return np.dtype(np.int64)  # as NumPy's datetime64[D]
    if pa.types.is_fixed_size_binary(kind):
        return np.dtype(f"V{kind.byte_width}")
    return None


def _of_numpy(column: npt.NDArray[Any], kind: pa.DataType) -> pa.Array | None:
    """The column, bit by bit; None if that cannot be."""
    column = np.ascontiguousarray(column)
    if pa.types.is_boolean(kind):
        if (column.view(np.uint8) > 1).any():
            return None
        return pa.array(column)
    if pa.types.is_date32(kind):
        days = column.astype(np.int32)
        if (days != column).any():
            return None
        column = days
    return pa.Array.from_buffers(kind, len(column), [None, pa.py_buffer(column)])


def _to_numpy(column: pa.Array, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    kind = column.type
    if pa.types.is_boolean(kind):
        values: npt.NDArray[Any] = column.to_numpy(zero_copy_only=False)
        return values
    stored = np.dtype(np.int32) if pa.types.is_date32(kind) else dtype
    start = column.offset * stored.itemsize
    return np.frombuffer(column.buffers()[1], stored, len(column), start)


def _merged(
    rows: list[pa.Array], elements: list[pa.Array], is_element: npt.NDArray[np.bool_]
) -> list[pa.Array]:
    if is_element.all():
        return elements
    places = np.where(
        is_element, np.cumsum(is_element) - 1 + len(rows[0]), np.cumsum(~is_element) - 1
    )
    order = pa.array(places)
    return [pa.concat_arrays(pair).take(order) for pair in zip(rows, elements, strict=True)]
