"""Files of state: written once, and checked each time before anything in them is used."""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from elasticutor.core.protocol.ids import Attempt, Epoch, ShardId
from elasticutor.errors import BadValueError, Words
from elasticutor.state.checkpoint.errors import (
    AbsentError,
    DamagedError,
    LayoutError,
    MismatchError,
)
from elasticutor.state.checkpoint.forms import LAYOUT, FileName, Kind, StateFile, StateForm
from elasticutor.state.checkpoint.location import Location
from elasticutor.state.checkpoint.typed import TypedValues
from elasticutor.state.levels import Record, Records

# Bytes are kept with 64-bit offsets, because an executor's keys and values may exceed 2 GB.
_BYTES: Final = pa.large_binary()
_ROW_GROUP: Final = 1 << 17
_UNTIL_WHOLE: Final = "be as it was written"


def write_increment(
    location: Location,
    form: StateForm,
    executor: str,
    writer: str,
    attempt: Attempt,
    epoch: Epoch,
    changes: Mapping[ShardId, Sequence[Record]],
    *,
    inline: int = 0,
) -> StateFile | None:
    """Make durable what some shards of an executor changed in an epoch: one record for each key.

    `writer` is the node: nodes write different shards of the executor. Up to `inline` bytes,
    nothing is written here: the manifest has them inside, and is durable or not as a whole.
    Returns what the manifest must list; None if nothing has changed.
    """
    beyond = [shard for shard in changes if not 0 <= shard < form.shards]
    if beyond:
        raise BadValueError(f"shards of {executor!r}", f"be 0 to {form.shards - 1}", beyond)
    table = _table_of(form, changes)
    if not len(table):
        return None
    name = FileName.of(form, executor, epoch, epoch, attempt, writer)
    return write_table(location, executor, name, table, "increment", inline=inline)


def write_table(
    location: Location,
    executor: str,
    name: FileName,
    table: pa.Table,
    kind: Kind,
    *,
    inline: int = 0,
) -> StateFile:
    """Write a table of state, with rows in the order of their shards; a small one only inline."""
    data = _as_parquet(table, name)
    digest = hashlib.sha256(data).hexdigest()
    content = ""
    if data.size <= inline:
        content = base64.b64encode(data).decode()
    else:
        location.write(name.path, data)
    return StateFile(
        name.path,
        executor,
        name.first,
        name.last,
        name.attempt,
        len(table),
        data.size,
        digest,
        kind,
        content,
    )


def check(location: Location, file: StateFile) -> pa.Buffer:
    """The content of a file; raises `DamagedError` if it is not what the manifest says."""
    where = location.full(file.path)
    if file.inline:
        try:
            data = pa.py_buffer(base64.b64decode(file.content, validate=True))
        except binascii.Error as error:
            raise DamagedError(where, _UNTIL_WHOLE, Words(f"no base64: {error}")) from error
    else:
        try:
            data = location.read(file.path)
        except AbsentError as error:
            raise DamagedError(where, "be there", Words("no such file")) from error
    if data.size != file.size:
        raise DamagedError(where, f"have {file.size} bytes", data.size)
    if hashlib.sha256(data).hexdigest() != file.sha256:
        raise DamagedError(where, _UNTIL_WHOLE, Words("content with another checksum"))
    return data


def read_table(location: Location, file: StateFile) -> pa.Table:
    """The rows of a file: `shard`, `key`, `value`, `deleted`, and `shape` of typed values."""
    where = location.full(file.path)
    data = check(location, file)
    try:
        parquet = pq.ParquetFile(pa.BufferReader(data))
        metadata = parquet.schema_arrow.metadata or {}
        names = [name for name in parquet.schema_arrow.names if name != "operator"]
        table = parquet.read(columns=names)
    except (pa.ArrowException, OSError) as error:
        raise DamagedError(where, "be a Parquet file", Words(str(error))) from error
    layout = metadata.get(b"elasticutor.layout", b"none").decode()
    if layout != str(LAYOUT):
        hint = "read it with the version of elasticutor that wrote it"
        raise LayoutError(where, f"be of layout {LAYOUT}", Words(f"layout {layout}"), hint)
    return table.replace_schema_metadata(None)


def newest(tables: Sequence[pa.Table], *, drop_deleted: bool) -> pa.Table:
    """The newest row of each key of several tables, oldest first; in the order of the shards.

    Deletions are left out on request: only if nothing older is left that they would have to hide.
    """
    first, *others = tables
    if others:
        rest = _last_of_each_key(pa.concat_tables(others))
        if len(first) < len(rest):
            table = _last_of_each_key(pa.concat_tables([first, rest]))
        else:
            # Most often a large snapshot with a little on top: look the little up in the large.
            hidden = pc.is_in(first["key"], value_set=_combined(rest["key"]))
            table = pa.concat_tables([first.filter(pc.invert(hidden)), rest])
    else:
        table = first
    if drop_deleted and pc.any(table["deleted"]).as_py():
        table = table.filter(pc.invert(table["deleted"]))
    return in_shard_order(table)


def in_shard_order(table: pa.Table) -> pa.Table:
    """The rows in the order of their shards."""
    shards = table["shard"].to_numpy()
    if len(shards) == 0 or bool((shards[1:] >= shards[:-1]).all()):
        return table
    # To take from one chunk is several times faster than from many.
    return table.combine_chunks().take(pa.array(np.argsort(shards, kind="stable")))


def rows_of(form: StateForm, table: pa.Table) -> tuple[list[bytes], list[bytes | None]]:
    """Keys and values as the codec has them; None for the value of a deleted key."""
    keys: list[bytes] = table["key"].to_pylist()
    if form.schema is None:
        values: list[bytes | None] = table["value"].to_pylist()
        return keys, values
    typed = TypedValues(form.operator, form.schema)
    column, shapes = _combined(table["value"]), _combined(table["shape"])
    return keys, typed.states(column, shapes)


def table_of(
    form: StateForm,
    shards: npt.NDArray[np.int32],
    keys: Sequence[bytes] | pa.Array,
    values: Sequence[bytes | None],
) -> pa.Table:
    """Rows as the files have them."""
    columns: dict[str, Any] = {"shard": pa.array(shards, pa.int32()), "key": pa.array(keys, _BYTES)}
    if form.schema is None:
        columns["value"] = pa.array(values, _BYTES)
        columns["deleted"] = columns["value"].is_null()
    else:
        made = TypedValues(form.operator, form.schema).columns(list(keys), values)
        columns["value"], columns["shape"] = made
        columns["deleted"] = pc.equal(made[1], 0)
    return pa.table(columns)


def empty_table(form: StateForm) -> pa.Table:
    """No rows."""
    return table_of(form, np.empty(0, np.int32), [], [])


def require_storable(form: StateForm) -> None:
    """Refuse a `state_schema` with columns that no file can have."""
    if form.schema is None:
        return
    if not len(form.schema):
        raise BadValueError(f"state_schema of operator {form.operator!r}", "have a column", 0)
    name = FileName(form.operator, 0, Epoch(0), Epoch(0), Attempt(0), "none")
    try:
        data = _as_parquet(empty_table(form), name)
        pq.ParquetFile(pa.BufferReader(data)).read()
    except pa.ArrowException as error:
        who = f"state_schema of operator {form.operator!r}"
        hint = "leave state_schema out: then anything can be kept"
        raise BadValueError(who, "be of types that Parquet has", Words(str(error)), hint) from error


def require_form(form: StateForm, kept: StateForm | None, where: str) -> None:
    """Refuse to read state that is kept in another way; `Checkpoint.open` makes it fit."""
    same = kept is not None and kept.same_schema(form)
    if not same or kept is None or (kept.executors, kept.shards) != (form.executors, form.shards):
        got = "nothing" if kept is None else f"{kept.executors} × {kept.shards}"
        must = f"have {form.executors} executors × {form.shards} shards of {form.operator!r}"
        raise MismatchError(where, must, Words(got), "the driver must open the checkpoint first")


def _table_of(form: StateForm, changes: Mapping[ShardId, Sequence[Record]]) -> pa.Table:
    some = [(shard, records) for shard, records in sorted(changes.items()) if records]
    counts = [len(part) for _, part in some]
    shards = np.repeat(np.array([shard for shard, _ in some], np.int32), counts)
    keys: list[bytes] = []
    values: list[bytes | None] = []
    for _, part in some:
        if isinstance(part, Records):  # by columns: no object for each
            keys += part.keys
            values += part.values
        else:
            keys += [record.key for record in part]
            values += [record.value for record in part]
    return table_of(form, shards, keys, values)


def _as_parquet(table: pa.Table, name: FileName) -> pa.Buffer:
    operator = pa.DictionaryArray.from_arrays(
        pa.array(np.zeros(len(table), np.int32)), pa.array([name.operator])
    )
    facts = {
        "elasticutor.layout": str(LAYOUT),
        "elasticutor.operator": name.operator,
        "elasticutor.executor": str(name.executor),
        "elasticutor.epochs": f"{name.first}-{name.last}",
    }
    whole = table.add_column(0, "operator", operator).replace_schema_metadata(facts)
    sink = pa.BufferOutputStream()
    pq.write_table(
        whole,
        sink,
        compression="zstd",
        use_dictionary=["operator"],
        write_statistics=["shard"],
        row_group_size=_ROW_GROUP,
    )
    return sink.getvalue()


def _last_of_each_key(table: pa.Table) -> pa.Table:
    codes = pc.dictionary_encode(_combined(table["key"])).indices.to_numpy()
    if len(codes) == 0 or codes[-1] == len(codes) - 1:
        return table  # every key was new
    last = np.zeros(int(codes.max()) + 1, np.int64)
    last[codes] = np.arange(len(codes))  # of several, the last one stays
    last.sort()
    return table.take(pa.array(last))


def _combined(column: pa.ChunkedArray) -> pa.Array:
    if column.num_chunks == 1:
        return column.chunk(0)
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.nulls(0, column.type)


def by_executor(files: Iterable[StateFile]) -> dict[str, list[StateFile]]:
    """The files of each executor, in their order."""
    found: dict[str, list[StateFile]] = {}
    for file in files:
        found.setdefault(file.executor, []).append(file)
    return found
