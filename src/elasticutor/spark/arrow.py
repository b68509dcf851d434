"""Conversion of record batches between Spark and the engine, whose Arrow types differ slightly.

The differences, as Spark 4 hands batches to a `mapInArrow` function and takes them back:

| | from Spark | engine | back to Spark |
|---|---|---|---|
| time zone of `timestamp` | `spark.sql.session.timeZone` | UTC | any |
| strings, binary | large, with `arrow.useLargeVarTypes` | plain | any |
| nullability | as the plan has it, also inside | all nullable | any, if there is no null |
| metadata of fields | some | none, but of variants | of variants |

Time zone, nullability and metadata are labels: the bytes are the same, and none is copied.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from elasticutor.errors import BadValueError
from elasticutor.schemas import closest

TAG: Final = "operator"
"""The column that says which of several operators made a row."""
_WIDER: Final[dict[Any, pa.DataType]] = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
    pa.float16(): pa.float32(),
    pa.date64(): pa.date32(),
    pa.large_string(): pa.string(),
    pa.large_binary(): pa.binary(),
}
# By name, because older versions of pyarrow lack them.
_VIEWS: Final = {"string_view": pa.string(), "binary_view": pa.binary()}
_UNFIT: Final = (pa.ArrowException, TypeError, ValueError)


class Incoming:
    """Converts the batches of a `mapInArrow` function to exactly the engine's schema.

    It can be pickled, and serves one task at a time.
    """

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._seen: pa.Schema | None = None
        self._casts: dict[int, pa.DataType] = {}
        self._labels = self._types = False

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the batch in the engine's schema; only large strings are copied."""
        if self._seen is None or not batch.schema.equals(self._seen, check_metadata=True):
            self._look_at(batch.schema)
        if self._casts:
            columns = batch.columns
            for place, kind in self._casts.items():
                columns[place] = columns[place].cast(kind)
            batch = pa.RecordBatch.from_arrays(columns, names=self._schema.names)
        if self._types:
            return pa.record_batch(_Relabelled(batch, self._schema))
        if self._labels:
            return pa.RecordBatch.from_arrays(batch.columns, schema=self._schema)
        return batch

    def _look_at(self, given: pa.Schema) -> None:
        """Find out once how to convert batches of a schema."""
        if given.names != self._schema.names:
            raise BadValueError("batch from Spark", f"have {self._schema.names}", given.names)
        casts: dict[int, pa.DataType] = {}
        types = False
        for place, (have, want) in enumerate(zip(given, self._schema, strict=True)):
            kind = have.type
            if _bare(kind) != _bare(want.type):
                kind = casts[place] = _without_large(kind)
                if _bare(kind) != _bare(want.type):
                    who = f"column {have.name!r} from Spark"
                    raise BadValueError(who, f"be {want.type}", str(have.type))
            types = types or not kind.equals(want.type, check_metadata=True)
        self._labels = bool(casts) or not given.equals(self._schema, check_metadata=True)
        self._seen, self._casts, self._types = given, casts, types


class Outgoing:
    """Converts the operators' outputs to what Spark takes back from a `mapInArrow` function.

    It can be pickled, and serves one task at a time.

    Args:
        outputs: Per operator, its output as `spark_schema` has it.
        hidden: Name of the first column, which has the part that a row belongs to; None: no such.
        tagged: Whether rows name their operator: then there is the column `operator`, and a
            struct for each operator, null where the row is another's.
    """

    def __init__(
        self, outputs: Mapping[str, pa.Schema], hidden: str | None, *, tagged: bool = False
    ) -> None:
        self._outputs = dict(outputs)
        self._tagged = tagged
        self._hides = hidden is not None
        fields = [] if hidden is None else [pa.field(hidden, pa.int32(), nullable=False)]
        if tagged:
            fields.append(pa.field(TAG, pa.string(), nullable=False))
            fields += (pa.field(name, pa.struct(list(one))) for name, one in self._outputs.items())
        else:
            (only,) = self._outputs.values()
            fields += only
        self.schema = pa.schema(fields)  # of all batches
        self._kept: dict[str, tuple[pa.Array, pa.Array]] = {}

    def __call__(self, operator: str, batch: pa.RecordBatch, part: int) -> pa.RecordBatch:
        """Return an operator's output in Spark's schema; `part` goes into the hidden column."""
        output = self._outputs.get(operator)
        if output is None:
            raise BadValueError("operator", "be known", operator, closest(operator, self._outputs))
        rows = batch.num_rows
        if not batch.schema.equals(output, check_metadata=True):
            batch = self._fitted(operator, batch, output)
        columns = [pa.array(np.full(rows, part, np.int32))] if self._hides else []
        if not self._tagged:
            return pa.RecordBatch.from_arrays([*columns, *batch.columns], schema=self.schema)
        columns.append(self._constants(operator, rows)[0])
        for name in self._outputs:
            if name == operator:
                columns.append(pa.StructArray.from_arrays(batch.columns, fields=list(output)))
            else:
                columns.append(self._constants(name, rows)[1])
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def _constants(self, operator: str, rows: int) -> tuple[pa.Array, pa.Array]:
        """Return columns of a length: an operator's name, and null in place of its output.

        They are slices of the longest so far, because these are expensive to make.
        """
        kept = self._kept.get(operator)
        if kept is None or len(kept[0]) < rows:
            nulls = pa.nulls(rows, self.schema.field(operator).type)
            kept = self._kept[operator] = pa.repeat(pa.scalar(operator), rows), nulls
        return kept[0].slice(0, rows), kept[1].slice(0, rows)

    def _fitted(self, operator: str, batch: pa.RecordBatch, output: pa.Schema) -> pa.RecordBatch:
        pairs = zip(batch.columns, output, strict=True)
        try:
            columns = [cast(column, field.type) for column, field in pairs]
            return pa.RecordBatch.from_arrays(columns, schema=output)
        except _UNFIT as error:
            raise BadValueError(
                f"output of operator {operator!r}", f"have the columns {output}", str(error)
            ) from error


def engine_schema(schema: pa.Schema) -> pa.Schema:
    """Return a schema as the engine takes it from Spark: all nullable, no metadata of columns.

    Whether Spark says that a column has no nulls depends on its optimizer, and on which source was
    read last. State on disk names the types of its keys and must not depend on it.
    """
    return pa.schema([pa.field(field.name, _nullable(field.type)) for field in schema])


def wider(kind: pa.DataType) -> pa.DataType:
    """Return the type in which Spark holds all values of a type, but nanoseconds, if it has one."""
    types = pa.types
    if types.is_dictionary(kind):
        return wider(kind.value_type)
    if types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return wider(pa.list_(kind.value_field))
    return _rebuilt(kind, _wider, lambda field: field)


def _wider(kind: pa.DataType) -> pa.DataType:
    types = pa.types
    if kind in _WIDER:
        return _WIDER[kind]
    if str(kind) in _VIEWS:
        return _VIEWS[str(kind)]
    if types.is_dictionary(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return wider(kind)
    if types.is_fixed_size_binary(kind):
        return pa.binary()
    if types.is_timestamp(kind):
        return pa.timestamp("us", None if kind.tz is None else "UTC")
    if types.is_duration(kind):
        return pa.duration("us")
    if types.is_time(kind):
        return pa.time64("ns")
    if types.is_decimal(kind):
        return pa.decimal128(kind.precision, kind.scale)
    return kind


def cast(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Cast a column to the type that `wider` gives."""
    if column.type == kind:
        return column
    if pa.types.is_struct(kind):
        parts = [cast(part, field.type) for part, field in zip(column.flatten(), kind, strict=True)]
        return pa.StructArray.from_arrays(parts, fields=list(kind), mask=pc.is_null(column))
    return column.cast(kind, safe=False)


class _Relabelled:
    """A batch under another schema of the same layout, by Arrow's C interface, without a copy.

    Arrow's casts change labels too, but take two to four times as long, and copy the offsets of
    lists and maps that are slices.
    """

    def __init__(self, batch: pa.RecordBatch, schema: pa.Schema) -> None:
        self._batch = batch
        self._schema = schema

    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[object, object]:
        _, array = self._batch.__arrow_c_array__()
        return self._schema.__arrow_c_schema__(), array


def _nullable(kind: pa.DataType) -> pa.DataType:
    return _rebuilt(kind, lambda leaf: leaf, lambda field: field.with_nullable(True))


def _bare(kind: pa.DataType) -> pa.DataType:
    """Return what is left of a type without labels: types of one such form have one layout."""

    def leaf(kind: pa.DataType) -> pa.DataType:
        return pa.timestamp(kind.unit) if pa.types.is_timestamp(kind) else kind

    return _rebuilt(kind, leaf, lambda field: pa.field(field.name, field.type))


def _without_large(kind: pa.DataType) -> pa.DataType:
    plain = {pa.large_string(): pa.string(), pa.large_binary(): pa.binary()}
    return _rebuilt(kind, lambda leaf: plain.get(leaf, leaf), lambda field: field)


def _rebuilt(
    kind: pa.DataType,
    leaf: Callable[[pa.DataType], pa.DataType],
    label: Callable[[pa.Field], pa.Field],
) -> pa.DataType:
    """Return a type with every plain type in it, and then every field around one, replaced."""

    def inner(field: pa.Field) -> pa.Field:
        return label(field.with_type(_rebuilt(field.type, leaf, label)))

    if pa.types.is_struct(kind):
        return pa.struct([inner(field) for field in kind])
    if pa.types.is_map(kind):
        # Keys are never null, whatever the label says.
        key, item = inner(kind.key_field), inner(kind.item_field)
        return pa.map_(key.with_name("key").with_nullable(False), item.with_name("value"))
    if pa.types.is_list(kind):
        return pa.list_(inner(kind.value_field).with_name("element"))
    return leaf(kind)
