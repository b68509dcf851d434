"""State for other numbers of executors and shards: every key is hashed again.

The hash of a key depends on its value and on what kind of value it is, and not on how wide the
column was (`elasticutor.core.keys`). The key that was kept has both, so columns can be made of keys
that hash exactly as the upstream's do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from elasticutor.core.keys import Hashes, executors_of, key_hashes, shards_of
from elasticutor.core.protocol.ids import Attempt, Epoch
from elasticutor.errors import BadValueError
from elasticutor.state.checkpoint.files import in_shard_order, rows_of, table_of, write_table
from elasticutor.state.checkpoint.forms import FileName, StateFile, StateForm
from elasticutor.state.checkpoint.location import Location
from elasticutor.state.checkpoint.restoring import merged
from elasticutor.state.codec import decode_key

_BITS: Final = 2**64 - 1
_TICK: Final = timedelta(microseconds=1)
_EPOCH: Final = datetime(1970, 1, 1)
_EPOCH_UTC: Final = datetime(1970, 1, 1, tzinfo=UTC)


def hashes_of(keys: Sequence[Any]) -> Hashes:
    """The hashes of keys, as `elasticutor.core.keys.key_hashes` has them for their columns.

    Keys are as operators see them, those of one operator: values of one type, or None.
    """
    return key_hashes(_column(keys))


def reshape(
    location: Location,
    old: StateForm,
    new: StateForm,
    files: Sequence[StateFile],
    *,
    epoch: Epoch,
    attempt: Attempt,
) -> Iterator[StateFile]:
    """Rewrite an operator's state in another form, one old executor after another."""
    for number, executor in enumerate(old.executor_names):
        table = merged(location, old, [file for file in files if file.executor == executor])
        if not len(table):
            continue
        keys = [decode_key(key) for key in table["key"].to_pylist()]
        hashes = hashes_of(keys)
        shards = pa.array(shards_of(hashes, new.shards))
        if new.same_schema(old):
            table = table.set_column(table.schema.get_field_index("shard"), "shard", shards)
        else:
            table = table_of(new, shards.to_numpy(), *rows_of(old, table))
        owners = executors_of(hashes, new.executors)
        for owner in np.unique(owners).tolist():
            part = in_shard_order(table.take(pa.array(np.flatnonzero(owners == owner))))
            heir = new.executor_names[owner]
            name = FileName.of(new, heir, Epoch(0), epoch, attempt, f"from-{number}")
            yield write_table(location, heir, name, part, "snapshot")


def _column(values: Sequence[Any]) -> pa.Array:
    kinds = set(map(type, values)) - {type(None)}
    if not kinds:
        return pa.nulls(len(values))
    if len(kinds) > 1:
        names = sorted(kind.__name__ for kind in kinds)
        raise BadValueError("keys of one operator", "be of one type", names)
    kind = kinds.pop()
    if kind is tuple:
        return _struct(values)
    make = _MAKERS.get(kind)
    if make is None:
        raise BadValueError("key in a checkpoint", "be of a type that can be hashed", kind)
    return make(values)


def _struct(values: Sequence[Any]) -> pa.Array:
    width = next(len(value) for value in values if value is not None)
    nothing = (None,) * width
    rows = [nothing if value is None else value for value in values]
    fields = [_column(part) for part in zip(*rows, strict=True)]
    names = [str(number) for number in range(width)]
    absent = pa.array([value is None for value in values])
    return pa.StructArray.from_arrays(fields, names, mask=absent)


def _whole(values: Sequence[int | None]) -> pa.Array:
    # Negative ones and those beyond 63 bits hash by their 64 bits.
    bits = [0 if value is None else value & _BITS for value in values]
    return pa.array(np.array(bits, np.uint64), mask=_mask(values))


def _ticks(
    kind: pa.DataType, ticks_of: Callable[[Any], int]
) -> Callable[[Sequence[Any]], pa.Array]:
    def make(values: Sequence[Any]) -> pa.Array:
        bits = [0 if value is None else ticks_of(value) & _BITS for value in values]
        numbers = np.array(bits, np.uint64).view(np.int64)
        return pa.array(numbers, mask=_mask(values)).view(kind)

    return make


def _mask(values: Sequence[Any]) -> npt.NDArray[np.bool_]:
    return np.array([value is None for value in values], np.bool_)


def _plain(kind: pa.DataType | None) -> Callable[[Sequence[Any]], pa.Array]:
    return lambda values: pa.array(values, kind)


def _moment(value: datetime) -> int:
    return (value - (_EPOCH if value.tzinfo is None else _EPOCH_UTC)) // _TICK


def _time_of_day(value: time) -> int:
    seconds = (value.hour * 60 + value.minute) * 60 + value.second
    return seconds * 1_000_000 + value.microsecond


_MAKERS: Final[dict[type, Callable[[Sequence[Any]], pa.Array]]] = {
    bool: _plain(pa.bool_()),
    int: _whole,
    float: _plain(pa.float64()),
    str: _plain(pa.large_string()),
    bytes: _plain(pa.large_binary()),
    Decimal: _plain(None),
    date: _plain(pa.date32()),
    datetime: _ticks(pa.timestamp("us"), _moment),
    time: _ticks(pa.time64("us"), _time_of_day),
    timedelta: _ticks(pa.duration("us"), lambda value: value // _TICK),
}
