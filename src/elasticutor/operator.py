"""Operators: user code that makes output rows of input rows and of per-key state.

An operator declares its output (`output`) and makes it either record by record with `process`, or a
batch at a time with `process_batch`. Only its state per key is moved, checkpointed and restored;
attributes and files are not, since its keys are spread over processes that come and go.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, ClassVar, Literal, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from elasticutor.errors import BadValueError, ElasticutorError, Words

Keys: TypeAlias = Sequence[Any] | npt.NDArray[Any]
"""Some keys of a batch: a list, a NumPy or an Arrow array."""


class State(Protocol):
    """The state of the key whose row is being processed; valid until `process` is done with it.

    `get` hands out the live object: changing it in place changes the state, and needs no `set`. A
    mutable default becomes the state, as with `dict.setdefault`. Call `get` again with the next
    row, and never share one object among keys: an epoch's changes are written while later rows are
    processed, and only `get` protects them from later changes.
    """

    def get(self, default: Any = None) -> Any:
        """Return the key's state; without one, the default, which becomes it if mutable."""

    def set(self, value: Any) -> None:
        """Set the key's state: anything that can be pickled."""

    def clear(self) -> None:
        """Remove the key's state."""

    def exists(self) -> bool:
        """Return whether the key has state."""


@dataclass(frozen=True)
class Groups:
    """The rows of a batch by their key.

    Example:
        >>> groups = Groups([5, 7], np.array([0, 2, 1]), np.array([0, 2]))  # of keys 5, 7, 5
        >>> groups.sizes.tolist(), groups.of_row.tolist()
        ([2, 1], [0, 1, 0])
    """

    distinct: list[Any] | npt.NDArray[Any]
    """The distinct keys, in no particular order: an array of whole numbers, or else a list."""
    order: npt.NDArray[np.int64]
    """Row numbers, those of one key together and in their order, the keys in theirs."""
    starts: npt.NDArray[np.int64]
    """Where in `order` the rows of each key begin."""

    @cached_property
    def keys(self) -> list[Any]:
        """The distinct keys, in the same order, as a list."""
        if isinstance(self.distinct, list):
            return self.distinct
        values: list[Any] = np.asarray(self.distinct).tolist()
        return values

    @cached_property
    def sizes(self) -> npt.NDArray[np.int64]:
        """How many rows each key has."""
        sizes = np.empty_like(self.starts)
        np.subtract(self.starts[1:], self.starts[:-1], out=sizes[:-1])
        sizes[-1:] = len(self.order) - self.starts[-1:]
        return sizes

    @cached_property
    def of_row(self) -> npt.NDArray[np.int64]:
        """Which of the keys each row has, as its place in `keys`."""
        places = np.empty_like(self.order)
        places[self.order] = np.repeat(np.arange(len(self.starts)), self.sizes)
        return places


class BatchState(Protocol):
    """The states of the keys of a batch: a mutable mapping from key to state.

    Only keys of the batch may be used, since any other may belong to another task.
    A key of several columns is a tuple; so is a struct. Iterating yields those keys of the batch
    that have state. Use a state only until `process_batch` is done.

    A vectorised operator should avoid one look-up per row: `groups` has the distinct keys and which
    rows are theirs; `get_many` and `set_many`, or `get_array` and `set_array`, take them
    all at once. They are fastest with `groups.keys` itself, and take other keys of the batch too.

    The fastest of all are operators that use nothing but `get_array` and `set_array`, with all keys
    (`groups.distinct` spares the list that is `groups.keys`), which are one column of whole
    numbers: then the states are never objects at all.
    """

    @property
    def groups(self) -> Groups:
        """The distinct keys of the batch, and which rows have them."""

    def __getitem__(self, key: Any) -> Any: ...
    def __setitem__(self, key: Any, value: Any) -> None: ...
    def __delitem__(self, key: Any) -> None: ...
    def __contains__(self, key: Any) -> bool: ...
    def __iter__(self) -> Iterator[Any]: ...
    def __len__(self) -> int: ...

    def get(self, key: Any, default: Any = None) -> Any:
        """Return a key's state; without one, the default, which becomes it if mutable."""

    def get_many(self, keys: Keys, default: Any = None) -> list[Any]:
        """Return the states of many keys; without one, the default, which must be immutable."""

    def set_many(self, keys: Keys, values: Sequence[Any]) -> None:
        """Set the states of many keys."""

    def get_array(self, keys: Keys, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """Return the states of many keys as a new array; zero where a key has none.

        For states that were set by `set_array` with the same type. They are kept as the bytes of
        one element, which is faster than any Python object for each.
        """

    def set_array(self, keys: Keys, values: npt.NDArray[Any]) -> None:
        """Set each element of the array, which may have fields, as the state of its key."""


@dataclass(frozen=True, slots=True)
class Context:
    """Where an operator runs: it has one instance per task."""

    operator: str
    """Its name in the topology."""
    executor: int
    """Number of the elastic executor, from 0."""
    task: int
    """Number of the task within the executor; never reused."""
    node: str
    """Name of the node that the task is on."""


class Operator:
    """Base class of all operators: override `process` or `process_batch`, and set `output`.

    Example:
        >>> class Count(Operator):
        ...     output = "key string, count bigint"
        ...
        ...     def process(self, key, row, state):
        ...         count = state.get(0) + 1
        ...         state.set(count)
        ...         yield key, count

        The same, a batch at a time:

        >>> import pyarrow as pa
        >>> class CountBatches(Operator):
        ...     output = pa.schema({"key": pa.string(), "count": pa.int64()})
        ...
        ...     def process_batch(self, batch, state):
        ...         groups = state.groups
        ...         counts = state.get_array(groups.keys, "int64") + groups.sizes
        ...         state.set_array(groups.keys, counts)
        ...         columns = [pa.array(groups.keys, pa.string()), pa.array(counts)]
        ...         return pa.RecordBatch.from_arrays(columns, schema=self.output)
        >>> kind_of(Count()), kind_of(CountBatches())
        ('record', 'batch')
    """

    output: ClassVar[Any]
    """Schema of the output: a Spark DDL string, a Spark `StructType` or a `pyarrow.Schema`."""

    state_schema: ClassVar[Any] = None
    """What a key's state is, in any form that `output` can have, if checkpoints should hold it in
    typed columns: with one column the state is that value, with several a dictionary or a tuple of
    them, and in either case it may be kept by `set_array`. None: any object, kept as bytes."""

    columns: ClassVar[Sequence[str] | None] = None
    """The input columns that it reads; others are not sent. None: all of them. Rows have them in
    the order of the input. The columns of the key always come; so do, in `elastic()`, those of
    other operators that the same call feeds."""

    def open(self, context: Context) -> None:
        """Called once in each task, before the first row: make here what cannot be pickled."""

    def close(self) -> None:
        """Called when the task ends in good order; a lost task does not call it."""

    def process(self, key: Any, row: Any, state: State) -> Iterable[Any] | None:
        """Process one row.

        Args:
            key: The value of the key column; of several columns, a tuple of their values.
            row: The row, as a named tuple. Columns whose names cannot be attributes are called
                `_0`, `_1`, … by their place.
            state: The state of the key.

        Returns:
            The rows made of it, by `yield` or as an iterable: each a tuple in the order of the
            output's columns, a named tuple, or a dictionary by column name (a column left out is
            null). None for no rows.
        """
        raise NotImplementedError

    def process_batch(self, batch: Any, state: BatchState) -> Any:
        """Process many rows at once.

        Args:
            batch: A `pyarrow.RecordBatch`. How many rows it has is not the operator's to choose.
            state: The states of the batch's keys.

        Returns:
            A `pyarrow.RecordBatch` or `Table` with the output's columns, or an iterable of such
            (by `yield` or otherwise), or None for no rows.
        """
        raise NotImplementedError


def kind_of(operator: Any) -> Literal["record", "batch"]:
    """Return whether an operator works record by record or a batch at a time.

    Raises:
        BadValueError: It is not an operator, or overrides neither or both of the two methods.
    """
    if not isinstance(operator, Operator):
        hint = "derive it from elasticutor.operator.Operator"
        if isinstance(operator, type) and issubclass(operator, Operator):
            hint = f"make one of it: {operator.__name__}()"
        raise BadValueError("operator", "be an instance of Operator", operator, hint)
    record = type(operator).process is not Operator.process
    batch = type(operator).process_batch is not Operator.process_batch
    if record != batch:
        return "record" if record else "batch"
    hint = "define process(self, key, row, state), which yields rows"
    if record:
        hint = "remove one: process for ease, process_batch for speed"
    raise BadValueError(
        f"operator {type(operator).__name__}",
        "override process or process_batch" + (", not both" if record else ""),
        Words("both of them" if record else "neither of them"),
        hint,
    )


class OperatorError(ElasticutorError, RuntimeError):
    """An operator raised, or its output does not fit its schema; as text, so that it travels."""

    def __init__(
        self,
        operator: str,
        must: str,
        got: str,
        hint: str = "",
        *,
        key: str = "",
        row: str = "",
        trace: str = "",
    ) -> None:
        super().__init__(f"operator {operator!r}", must, Words(got), hint)
        self.operator = operator
        self.key = key
        """The key in question, as it prints; empty where it is not known."""
        self.row = row
        """The input row in question, as it prints; empty where it is not known."""
        self.trace = trace
        """The traceback from the operator's own code on; empty where nothing was raised there."""

    def __str__(self) -> str:
        facts = [f"  {name}: {getattr(self, name)}" for name in ("key", "row") if vars(self)[name]]
        return "\n".join([super().__str__(), *facts, *([self.trace] if self.trace else [])])

    def __reduce__(self) -> tuple[Any, ...]:
        made = partial(OperatorError, key=self.key, row=self.row, trace=self.trace)
        return made, (self.operator, self.must, str(self.got), self.hint)
