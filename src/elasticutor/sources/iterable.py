"""A source of batches or rows in memory."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

import pyarrow as pa

from elasticutor.checks import require_whole
from elasticutor.errors import BadValueError
from elasticutor.schemas import SchemaLike, to_arrow
from elasticutor.sources.base import Offer, Reader, Source


class IterableSource(Source):
    """Reads batches or rows from memory, as fast as possible; for tests and small inputs.

    All of it is kept and travels with the source. With several tasks, task k has the batches k,
    k + tasks, and so on. An offset is how many batches of its own a task has given out, and how
    many rows of the next one.

    Args:
        batches_or_rows: Record batches of exactly that schema; or rows, as tuples or dictionaries.
        schema: In any form that `elasticutor.schemas.to_arrow` takes.
        tasks: How many processes read it, unless the topology says otherwise.
        batch_rows: How many rows make a batch, if they are rows.

    Example:
        >>> rows = [("ann", 1), {"user": "bob", "clicks": 2}]
        >>> reader = IterableSource(rows, "user string, clicks int").open(0, 1, None)
        >>> reader.poll(0.0, 100).batch.to_pylist()
        [{'user': 'ann', 'clicks': 1}, {'user': 'bob', 'clicks': 2}]
    """

    def __init__(
        self,
        batches_or_rows: Iterable[Any],
        schema: SchemaLike,
        tasks: int = 1,
        *,
        batch_rows: int = 1024,
    ) -> None:
        require_whole("tasks", tasks, least=1)
        require_whole("batch_rows", batch_rows, least=1)
        self.schema = to_arrow(schema)
        self.tasks = tasks
        given = list(batches_or_rows)
        if given and all(isinstance(item, pa.RecordBatch) for item in given):
            self.batches = tuple(_checked(self.schema, k, batch) for k, batch in enumerate(given))
        else:
            self.batches = tuple(_batches(self.schema, given, batch_rows))

    def open(self, task: int, tasks: int, offset: Any | None) -> Reader:
        """Return a reader of every tasks-th batch."""
        mine = tuple(batch for batch in self.batches[task::tasks] if batch.num_rows)
        return _BatchReader(mine, offset)


class _BatchReader(Reader):
    rate = math.inf

    def __init__(self, batches: Sequence[pa.RecordBatch], offset: Any | None) -> None:
        self._batches = batches
        self.offset: tuple[int, int] = (0, 0) if offset is None else offset

    @property
    def exhausted(self) -> bool:  # type: ignore[override]
        return self.offset[0] >= len(self._batches)

    def poll(self, now: float, max_rows: int) -> Offer | None:
        if self.exhausted:
            return None
        given, row = self.offset
        piece = self._batches[given].slice(row, max_rows)
        ended = row + piece.num_rows == self._batches[given].num_rows
        self.offset = (given + 1, 0) if ended else (given, row + piece.num_rows)
        return Offer(piece, now)

    def wait_s(self, now: float) -> float:
        return 0.0


def _checked(schema: pa.Schema, number: int, batch: pa.RecordBatch) -> pa.RecordBatch:
    if not batch.schema.equals(schema):
        must = f"have the schema {_shown(schema)}"
        raise BadValueError(f"batch {number}", must, _shown(batch.schema), "cast it first")
    _require_no_nulls(f"batch {number}", batch)
    return batch


def _batches(schema: pa.Schema, rows: list[Any], size: int) -> Iterable[pa.RecordBatch]:
    numbered = iter(enumerate(rows))
    while some := list(islice(numbered, size)):
        values = [_row(schema, number, row) for number, row in some]
        who = f"rows {some[0][0]} to {some[-1][0]}"
        columns = [
            _column(who, field, [row[place] for row in values])
            for place, field in enumerate(schema)
        ]
        batch = pa.RecordBatch.from_arrays(columns, schema=schema)
        _require_no_nulls(who, batch)
        yield batch


def _row(schema: pa.Schema, number: int, row: Any) -> Sequence[Any]:
    """One value per column; dictionaries may leave out what is null."""
    if isinstance(row, Mapping):
        if unknown := [name for name in row if name not in schema.names]:
            must = f"have columns among {schema.names}"
            raise BadValueError(f"row {number}", must, unknown)
        return [row.get(name) for name in schema.names]
    if not isinstance(row, tuple | list):
        hint = "or give record batches only"
        raise BadValueError(f"row {number}", "be a tuple or a dictionary", type(row), hint)
    if len(row) != len(schema):
        raise BadValueError(f"row {number}", f"have {len(schema)} values", row)
    return row


def _column(who: str, field: pa.Field, values: list[Any]) -> pa.Array:
    try:
        return pa.array(values, field.type)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        must = f"have values of type {field.type} in column {field.name!r}"
        raise BadValueError(who, must, str(error)) from error


def _require_no_nulls(who: str, batch: pa.RecordBatch) -> None:
    for field, column in zip(batch.schema, batch.columns, strict=True):
        if column.null_count and not field.nullable:
            raise BadValueError(who, f"have no null in column {field.name!r}", None)


def _shown(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)
