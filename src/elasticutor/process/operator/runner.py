"""Runs an operator over chunks: a task's hot path.

A chunk's columns become Python values once, column by column; its rows' outputs become columns the
same way. What remains for each row is the operator itself, and a handle on its key's state that is
given the key. Whatever goes wrong in the operator, or does not fit its output, comes out as an
`OperatorError` that names the row.
"""

from __future__ import annotations

import traceback
from bisect import bisect_right
from collections import namedtuple
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import pairwise
from time import perf_counter
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from elasticutor.core.protocol.ids import ChunkId, ShardId
from elasticutor.core.protocol.task_inbox import Work
from elasticutor.errors import BadValueError, ElasticutorError
from elasticutor.operator import Operator, OperatorError, kind_of
from elasticutor.process.operator.chunk_run import (
    BatchRun,
    ChunkDone,
    ChunkRun,
    IntArray,
    RecordRun,
    Turns,
)
from elasticutor.process.operator.chunk_state import ChunkState
from elasticutor.process.operator.rows import MisfitError, RowWriter, keys_of
from elasticutor.state.cache import KeyState, StateCache

_WORTH_TIMING_S = 10e-6
"""From this mean cost of a row on every row is timed: the clock is then a hundredth of it."""
_SAMPLED = 16
"""Of cheaper rows, one chunk in this number is timed."""
_LOOK_S = 200e-6
"""How long rows are processed between two looks for a label: a look costs about 2 µs."""
_MOST_AT_ONCE = 16_384
_SHOWN = 1_000
_TRACE_SHOWN = 10_000


class OperatorRunner:
    """Runs one task's operator over its chunks.

    Args:
        operator: The operator, which has been opened.
        name: The operator's name in the topology, for errors.
        input: Schema of the chunks.
        key: Names of the key's columns.
        output: What the operator's `output` has been resolved to.
        cache: The task's state.

    Raises:
        BadValueError: The operator is none, or a key column is not in the input.

    Example:
        >>> from elasticutor.core.protocol.ids import Attempt, Epoch
        >>> from elasticutor.state.backend import MemoryBackend
        >>> from elasticutor.state.cache import Codec
        >>> from elasticutor.state.levels import Levels
        >>> class Count(Operator):
        ...     def process(self, key, row, state):
        ...         state.set(state.get(0) + 1)
        ...         yield key, state.get()
        >>> store = Levels.create(MemoryBackend(), attempt=Attempt(1), committed=Epoch(0))
        >>> runner = OperatorRunner(
        ...     Count(),
        ...     name="count",
        ...     input=pa.schema({"user": pa.string()}),
        ...     key=("user",),
        ...     output=pa.schema({"user": pa.string(), "count": pa.int64()}),
        ...     cache=StateCache(store, Codec(str.encode), Attempt(1), Epoch(1)),
        ... )
        >>> chunk = pa.record_batch({"user": ["ann", "bob", "ann"]})
        >>> done = runner.run(chunk, np.array([7, 3, 7], np.int32), [1, 2])
        >>> done.output.to_pydict(), done.part_rows_out
        ({'user': ['ann', 'bob', 'ann'], 'count': [1, 1, 2]}, [1, 2])
    """

    def __init__(
        self,
        operator: Operator,
        *,
        name: str,
        input: pa.Schema,  # noqa: A002 - what a topology calls it
        key: tuple[str, ...],
        output: pa.Schema,
        cache: StateCache,
    ) -> None:
        self._kind = kind_of(operator)
        self._operator = operator
        self._name = name
        self._input = input
        self._key_places = [_place_of(column, input) for column in key]
        self._output = output
        self._writer = RowWriter(output)
        self._cache = cache
        self._handles = _Handles(cache)
        row_type = namedtuple("Row", input.names, rename=True)  # type: ignore[misc]  # noqa: PYI024
        # `Row._make` without its frame and its check of the length.
        self._make_row = partial(tuple.__new__, row_type)
        self._chunks = 0
        self._row_cost_s = 0.0
        self.rows_at_once = 1
        """How many rows are processed between two looks for something more urgent."""

    def run(
        self, batch: pa.RecordBatch, shards: npt.NDArray[np.int32], part_rows: Sequence[int]
    ) -> ChunkDone:
        """Run the operator over a whole chunk; arguments and errors as in `begin`."""
        run = self.begin(batch, Work(ChunkId(0), shards), part_rows)
        run.advance(lambda: False)
        return run.report()

    def begin(self, batch: pa.RecordBatch, work: Work, part_rows: Sequence[int]) -> ChunkRun:
        """Begin with a chunk, as far as any of it is left.

        Args:
            batch: The chunk's rows.
            work: Which of them are to be processed, and the shard of each.
            part_rows: How many rows each of the chunk's parts has, one part after the other.

        Raises:
            OperatorError: Here or as the chunk runs: the operator failed, or made what does not
                fit its output. The state is then as the operator left it: the attempt is over.
            BadValueError: The chunk is not what the operator takes, or does not hold together.
        """
        self._check(batch, work.shards, part_rows)
        if self._kind == "batch":
            return BatchRun(self, batch, work, part_rows)
        return RecordRun(self, batch, work, part_rows)

    def pace(self, rows: int, spent_s: float) -> None:
        """Have as many rows at once as take about `_LOOK_S`, given what these took."""
        if spent_s > 2 * _LOOK_S:
            self.rows_at_once = max(1, rows // 2)
        elif rows == self.rows_at_once and 2 * spent_s < _LOOK_S and rows < _MOST_AT_ONCE:
            self.rows_at_once = 2 * rows

    def count(self, rows: int, useful_s: float) -> None:
        """Count the time that some rows took."""
        self._chunks += 1
        self._row_cost_s += (useful_s / rows - self._row_cost_s) / 2

    def _check(
        self, batch: pa.RecordBatch, shards: npt.NDArray[np.int32], part_rows: Sequence[int]
    ) -> None:
        if not batch.schema.equals(self._input):
            raise BadValueError("chunk", f"have the columns {self._input}", batch.schema)
        if not len(shards) == batch.num_rows == sum(part_rows):
            sizes = (batch.num_rows, len(shards), sum(part_rows))
            raise BadValueError("rows, shards and rows of all parts", "be the same number", sizes)

    # Record by record -----------------------------------------------------------------------------

    @property
    def times_rows(self) -> bool:
        """Whether the rows of the next chunk are to be timed."""
        return self._row_cost_s >= _WORTH_TIMING_S or self._chunks % _SAMPLED == 0

    def turns(self, keys: list[Any], columns: list[list[Any]], shards: list[ShardId]) -> Turns:
        """The arguments of the operator, row by row."""
        # An iterator: each row is gone before the next is made, and the allocator stays warm.
        rows = map(self._make_row, zip(*columns, strict=True))
        return zip(keys, rows, map(self._handles.__getitem__, shards), strict=True)

    def turns_of(self, rows: list[tuple[Any, ...]], shards: list[int]) -> Turns:
        """The arguments of the operator, of tuples of the input's values."""
        places = self._key_places
        if len(places) == 1:
            place = places[0]
            keys = [row[place] for row in rows]
        else:
            keys = [tuple([row[place] for place in places]) for row in rows]
        handles: Iterator[KeyState] = map(self._handles.__getitem__, shards)  # type: ignore[arg-type]
        return zip(keys, map(self._make_row, rows), handles, strict=True)

    def keys(self, batch: pa.RecordBatch, columns: list[list[Any]]) -> list[Any]:
        """The key of each row."""
        if len(self._key_places) == 1:
            place = self._key_places[0]
            kind = batch.schema.field(place).type
            if not (pa.types.is_floating(kind) or pa.types.is_struct(kind)):
                return columns[place]
        return keys_of([batch.column(place) for place in self._key_places])

    def process(self, turns: Turns, rows_out: list[Any], ends: list[int]) -> None:
        """Process some rows, and note after each how many outputs there are."""
        process, extend, end = self._operator.process, rows_out.extend, ends.append
        key = row = made = None
        try:
            for key, row, state in turns:
                state.key = key
                made = process(key, row, state)
                if made is not None:
                    extend(made)
                end(len(rows_out))
        except Exception as error:
            raise self._blamed(error, key, row) from error

    def process_timed(self, turns: Turns, rows_out: list[Any], ends: list[int]) -> list[float]:
        """The same; returns how long each row took."""
        process, extend, end = self._operator.process, rows_out.extend, ends.append
        stamps = [perf_counter()]
        stamp = stamps.append
        key = row = made = None
        try:
            for key, row, state in turns:
                state.key = key
                made = process(key, row, state)
                if made is not None:
                    extend(made)
                end(len(rows_out))
                stamp(perf_counter())
        except Exception as error:
            raise self._blamed(error, key, row) from error
        return [end - start for start, end in pairwise(stamps)]

    def written(
        self,
        rows_out: list[Any],
        ends: list[int],
        batch: pa.RecordBatch,
        keys: list[Any],
        places: IntArray,
    ) -> pa.RecordBatch:
        """The outputs of the rows at these places, as columns."""
        try:
            return self._writer.batch(rows_out)
        except MisfitError as misfit:
            place = int(places[bisect_right(ends, misfit.place)])
            row = self._make_row([column[0].as_py() for column in batch.slice(place, 1).columns])
            raise self._misfit(misfit, keys[place], row) from misfit

    def written_of(
        self, rows_out: list[Any], ends: list[int], rows: Sequence[tuple[Any, ...]]
    ) -> pa.RecordBatch:
        """The outputs of these rows, as columns."""
        try:
            return self._writer.batch(rows_out)
        except MisfitError as misfit:
            row = rows[bisect_right(ends, misfit.place)]
            ((key, shown, _),) = self.turns_of([row], [0])
            raise self._misfit(misfit, key, shown) from misfit

    def _misfit(self, misfit: MisfitError, key: Any, row: Any) -> OperatorError:
        return OperatorError(
            self._name,
            misfit.must,
            _shown(misfit.got),
            misfit.hint,
            key=_printed(key),
            row=_printed(row),
        )

    # A batch at a time ----------------------------------------------------------------------------

    def process_batch(
        self, batch: pa.RecordBatch, shards: npt.NDArray[np.int32]
    ) -> pa.RecordBatch | None:
        """Process some rows at once; returns the outputs."""
        state = ChunkState(self._cache, [batch.column(p) for p in self._key_places], shards)
        try:
            made = list(_tables(self._operator.process_batch(batch, state)))
        except Exception as error:
            raise self._blamed(error) from error
        batches = [self._fitted(table) for table in made if table.num_rows]
        if len(batches) < 2:
            return batches[0] if batches else None
        whole: pa.RecordBatch = pa.Table.from_batches(batches).combine_chunks().to_batches()[0]
        return whole

    def _fitted(self, made: pa.RecordBatch) -> pa.RecordBatch:
        if made.schema.equals(self._output) and not any(
            column.null_count for column in made.columns
        ):
            return made
        names = self._output.names
        if sorted(made.schema.names) != sorted(names):
            must = f"make batches with the columns {', '.join(names)}"
            raise OperatorError(self._name, must, ", ".join(made.schema.names))
        columns = [self._fitted_column(made.column(field.name), field) for field in self._output]
        return pa.RecordBatch.from_arrays(columns, schema=self._output)

    def _fitted_column(self, column: pa.Array, field: pa.Field) -> pa.Array:
        who = f"for column {field.name!r}"
        if column.type != field.type:
            if not _is_alike(column.type, field.type):
                raise OperatorError(self._name, f"make {field.type} {who}", str(column.type))
            try:
                column = column.cast(field.type)
            except pa.ArrowException as error:
                must = f"make what is safely {field.type} {who}"
                raise OperatorError(self._name, must, f"{column.type}: {error}") from error
        if column.null_count and not field.nullable:
            raise OperatorError(self._name, f"make no nulls {who}", f"{column.null_count} of them")
        return column

    # Errors ---------------------------------------------------------------------------------------

    def _blamed(self, error: Exception, key: Any = None, row: Any = None) -> Exception:
        """The error to raise in its place: the operator's, unless it is the engine's."""
        if isinstance(error, ElasticutorError) and not isinstance(error, BadValueError):
            return error
        trace = _operators_part(error.__traceback__)
        where = {} if row is None else {"key": _printed(key), "row": _printed(row)}
        got = _shown(f"{type(error).__name__}: {error}")
        if trace is None:
            what = "process" if self._kind == "record" else "process_batch"
            hint = "yield rows, or return an iterable of them, or None"
            return OperatorError(self._name, f"take and give what {what} does", got, hint, **where)
        text = "".join(traceback.format_exception(type(error), error, trace)).rstrip()
        if len(text) > _TRACE_SHOWN:  # the end of it says the most
            text = "…" + text[-_TRACE_SHOWN:]
        return OperatorError(self._name, "not fail", got, trace=text, **where)


class _Handles(dict[ShardId, KeyState]):
    """A handle on each shard's states, made when it is first wanted."""

    def __init__(self, cache: StateCache) -> None:
        super().__init__()
        self._cache = cache

    def __missing__(self, shard: ShardId) -> KeyState:
        handle = self[shard] = self._cache.handle(shard)
        return handle


def _place_of(column: str, schema: pa.Schema) -> int:
    place: int = schema.get_field_index(column)
    if place < 0:
        raise BadValueError("key", f"name columns of the input ({', '.join(schema.names)})", column)
    return place


def _tables(made: Any) -> Iterator[pa.RecordBatch]:
    if made is None:
        return
    if isinstance(made, pa.RecordBatch):
        yield made
    elif isinstance(made, pa.Table):
        yield from made.to_batches()
    else:
        for table in made:
            if table is not None and not isinstance(table, pa.RecordBatch | pa.Table):
                raise BadValueError(
                    "what process_batch makes", "be RecordBatch, Table or None", type(table)
                )
            yield from _tables(table)


def _is_alike(given: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether a checked cast from one to the other is what users expect."""
    is_ = pa.types
    return bool(
        is_.is_null(given)
        or (is_.is_integer(given) and is_.is_integer(wanted))
        or (is_.is_floating(given) and is_.is_floating(wanted))
        or (is_.is_dictionary(given) and given.value_type == wanted)
        or (is_.is_timestamp(given) and is_.is_timestamp(wanted) and given.tz == wanted.tz)
        or {given, wanted} <= {pa.string(), pa.large_string()}
        or {given, wanted} <= {pa.binary(), pa.large_binary()}
    )


def _operators_part(trace: TracebackType | None) -> TracebackType | None:
    """The traceback without the frames of this module that it begins with."""
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    return trace


def _printed(value: Any) -> str:
    try:
        return _shown(repr(value))
    except Exception as error:
        return f"<{type(value).__name__} that cannot be printed: {type(error).__name__}>"


def _shown(text: str) -> str:
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "…"
