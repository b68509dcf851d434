"""`read_state`: an operator's state at the end of an epoch, as a DataFrame."""

from __future__ import annotations

import base64
import os
import pickle
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its usual name
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

from elasticutor.errors import BadValueError
from elasticutor.schemas import to_arrow
from elasticutor.spark.arrow import cast, wider
from elasticutor.spark.progress import checkpoint_of
from elasticutor.spark.session import require_session
from elasticutor.state.checkpoint import Location, Manifest, StateFile, StateForm
from elasticutor.state.checkpoint.files import check, read_table
from elasticutor.state.inspection.reading import StateReader, key_of, type_of, value_of

_ROWS: Final = 1 << 14  # rows of a batch: their values must fit into 2 GB
_PLAN: Final = "plan"
_OURS: Final = ("executor", "shard", "value")
_TEXT: Final = pa.string()
_UNFIT: Final = (pa.ArrowException, TypeError, ValueError, OverflowError)


def read_state(
    spark: SparkSession,
    checkpoint: str | os.PathLike[str] | StreamingQuery,
    *,
    operator: str,
    epoch: int | None = None,
    unpickle: bool = False,
    eager: bool = True,
) -> DataFrame:
    """Return an operator's state as of an epoch, as a DataFrame.

    Its columns are `executor` and `shard`; then `key`, or if the operator's key has several columns
    each of those (as `key_…` if it is called like one of the others here); then `value`. That is
    the column, or a struct of the columns, of the operator's `state_schema`; without one, it is
    binary as `elasticutor.state.codec` has it, or with `unpickle` what Python's `repr` says. Types
    that Spark lacks become wider ones, or text.

    Each file is read by a task of its own, and compared with its checksum before it is used. The
    checkpoint is neither claimed nor changed.

    Args:
        spark: Your session; its executors must reach the checkpoint.
        checkpoint: The path or URI of `submit(…, checkpoint=…)` or `elastic(…, checkpoint=…)`; or
            a running query, for the state at the end of its last batch.
        operator: Its name in the topology, or in the query.
        epoch: The newest by default.
        unpickle: Unpickle values. That runs code which is in the checkpoint: only do it if you
            trust everyone who can write there.
        eager: Read the files now, into Spark's storage (`DataFrame.localCheckpoint`): a run that
            goes on removes them sooner or later. If not, they are read whenever the DataFrame is
            used, and must be there then.

    Raises:
        BadValueError: There is no such operator, or `spark` is not a session.
        CheckpointError: The checkpoint or the epoch is not there, or damaged.
    """
    session = require_session(spark)
    if isinstance(checkpoint, StreamingQuery):
        checkpoint = checkpoint_of(checkpoint, operator)
    reader = StateReader(checkpoint)
    if not eager:
        return _planned(session, reader, reader.manifest(epoch), operator, unpickle).frame

    def read(manifest: Manifest) -> DataFrame:
        planned = _planned(session, reader, manifest, operator, unpickle)
        try:
            return planned.frame.localCheckpoint(eager=True)
        except Exception:
            # What a task raised is text here; whatever is the matter with a file, is so still.
            for file in planned.files:
                check(reader.location, file)
            raise

    return reader.steadily(epoch, read)


@dataclass(frozen=True, slots=True)
class _Planned:
    frame: DataFrame
    files: Sequence[StateFile]


def _planned(
    spark: SparkSession, reader: StateReader, manifest: Manifest, operator: str, unpickle: bool
) -> _Planned:
    form = reader.form(manifest, operator)
    files = [file for file in manifest.files if file.operator == operator]
    read = _Files(reader.location, form, files, unpickle=unpickle)
    spark.dataSource.register(StateSource)
    rows = spark.read.format(StateSource.name()).option(_PLAN, read.as_text()).load()
    wanted = [f"c{place}" for place in range(len(read.names))]
    if _are_apart(files):
        rows = rows.where("NOT deleted")
    else:
        # Of each key the row of the newest file, as restoring has it.
        newest = F.max_by(F.struct(*wanted, "deleted"), "place").alias("newest")
        rows = rows.groupBy("c0", "data").agg(newest).where("NOT newest.deleted").select("newest.*")
    return _Planned(rows.select(*wanted).toDF(*read.names), files)


def _are_apart(files: Sequence[StateFile]) -> bool:
    """Return whether no two files share a key, as several snapshots of one executor do not."""
    several = len({file.executor for file in files}) < len(files)
    return not several or all(file.kind == "snapshot" for file in files)


class _Files:
    """Reads files of state in a Spark task, given their numbers."""

    def __init__(
        self, location: Location, form: StateForm, files: Sequence[StateFile], *, unpickle: bool
    ) -> None:
        self._location = location
        self._form = form
        self._files = tuple(files)
        self._unpickle = unpickle
        types = [type_of(kind) for _, kind in form.key]
        kinds = [_TEXT if kind is None else _spark_type(kind) for kind in types]
        self._keys = tuple(kinds)
        self._value = _value_type(form, unpickle)
        keys = [f"key_{name}" if name.lower() in _OURS else name for name, _ in form.key]
        self.names = ["executor", "shard", *(["key"] if len(keys) == 1 else keys), "value"]
        """Of the columns that are wanted; the others are there to find the newest rows."""
        shown = [pa.int32(), pa.int32(), *kinds, self._value]
        schema = pa.schema(
            [
                *((f"c{place}", kind) for place, kind in enumerate(shown)),
                ("data", pa.binary()),
                ("place", pa.int32()),
                ("deleted", pa.bool_()),
            ]
        )
        self.spark_schema: StructType = from_arrow_schema(schema, prefer_timestamp_ntz=True)
        """Of what comes out."""
        self._schema = to_arrow(self.spark_schema)

    def as_text(self) -> str:
        return base64.b64encode(pickle.dumps(self)).decode()

    @classmethod
    def from_text(cls, text: str) -> Self:
        """Return what `as_text` was made of: by the driver of this very session."""
        made: Self = pickle.loads(base64.b64decode(text))  # noqa: S301
        return made

    def __len__(self) -> int:
        return len(self._files)

    def batches(self, number: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a file, once it is known to be whole."""
        table = read_table(self._location, self._files[number])
        for begin in range(0, len(table), _ROWS):
            yield self._made(number, table.slice(begin, _ROWS))

    def _made(self, number: int, table: pa.Table) -> pa.RecordBatch:
        executor = self._form.number_of(self._files[number].executor)
        keys = _only(table["key"])
        arrays = [
            pa.array([executor] * len(table), pa.int32()),
            _only(table["shard"]),
            *self._key_columns([key_of(key) for key in keys.to_pylist()]),
            self._values(_only(table["value"])),
            keys.cast(pa.binary()),
            pa.array([number] * len(table), pa.int32()),
            _only(table["deleted"]),
        ]
        pairs = zip(arrays, self._schema, strict=True)
        fitting = [_cast(part, field.type) for part, field in pairs]
        return pa.RecordBatch.from_arrays(fitting, schema=self._schema)

    def _key_columns(self, keys: list[Any]) -> list[pa.Array]:
        parts = [keys] if len(self._keys) == 1 else zip(*keys, strict=True)
        try:
            return [_column(part, kind) for part, kind in zip(parts, self._keys, strict=True)]
        except _UNFIT as error:
            who = f"keys of operator {self._form.operator!r}"
            raise BadValueError(who, f"fit {list(map(str, self._keys))}", str(error)) from error

    def _values(self, column: pa.Array) -> pa.Array:
        if self._form.schema is not None:
            bare = len(self._form.schema) == 1
            return _cast(column.flatten()[0] if bare else column, self._value)
        if not self._unpickle:
            return column.cast(pa.binary())
        values = column.to_pylist()
        shown = [data and repr(value_of(data, unpickle=True)) for data in values]
        return _column(shown, _TEXT)


class StateSource(DataSource):
    """The files of an operator's state, for `read_state`."""

    @classmethod
    def name(cls) -> str:
        """As Spark knows it."""
        return "elasticutor_state"

    def schema(self) -> StructType:
        """Of all rows, those that later ones replace included."""
        return _Files.from_text(self.options[_PLAN]).spark_schema

    def reader(self, schema: StructType) -> DataSourceReader:
        """Reads the files."""
        return _Reader(_Files.from_text(self.options[_PLAN]))


class _Reader(DataSourceReader):
    def __init__(self, files: _Files) -> None:
        self._files = files

    def partitions(self) -> Sequence[InputPartition]:
        # At least one, because Spark has no DataFrame of none.
        return [InputPartition(number) for number in range(max(1, len(self._files)))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if partition.value < len(self._files):
            yield from self._files.batches(partition.value)


def _value_type(form: StateForm, unpickle: bool) -> pa.DataType:
    if form.schema is None:
        return _TEXT if unpickle else pa.binary()
    fields = [pa.field(field.name, _spark_type(field.type)) for field in form.schema]
    return fields[0].type if len(fields) == 1 else pa.struct(fields)


# Types -------------------------------------------------------------------------------------------


def _spark_type(kind: pa.DataType) -> pa.DataType:
    """Return the type in which Spark can have such values; text if there is no other."""
    try:
        wanted = wider(kind)
        from_arrow_schema(pa.schema([("column", wanted)]), prefer_timestamp_ntz=True)
        _cast(pa.nulls(0, kind), wanted)
    except (PySparkException, *_UNFIT):
        return _TEXT
    return wanted


def _cast(column: pa.Array, kind: pa.DataType) -> pa.Array:
    given = column.type
    if kind == _TEXT and not (pa.types.is_string(given) or pa.types.is_large_string(given)):
        return _column(column.to_pylist(), kind)
    return cast(column, kind)


def _column(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    if kind == _TEXT:
        values = [v if v is None or type(v) is str else str(v) for v in values]
    return pa.array(values, kind)


def _only(column: pa.ChunkedArray) -> pa.Array:
    return pa.concat_arrays(column.chunks)
