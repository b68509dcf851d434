"""Control messages as bytes: pickled, in a dialect that can say nothing but these messages.

A control message is one of the dataclasses of `elasticutor.core.{events,instructions,coordinator,
repartition,batch_protocol}` or `elasticutor.transport.messages`, holding numbers, text, bytes,
None, and lists, tuples, sets and dictionaries of them, NumPy arrays of numbers, and what else is in
`_REDUCERS`. Measurements and lists of addresses, which come often or are long, are written in
binary instead (`elasticutor.transport.compact`). Anything else is refused where it is sent, by
name: dropped where it arrives, nobody would learn why all wait.

Pickle as such lets the sender call whatever it can name, give attributes to whatever it gets hold
of, and have a table of any size made for a message of twelve bytes. This dialect has

- no memory of values (`Pickler.fast`), so no table, and nothing that is shared or refers to itself;
- a fixed list of names, none of which is ever imported: message classes, made by their own
  constructors, and the five functions below;
- none of the other opcodes, `BUILD`, `NEWOBJ` and `INST` among them. Leaving opcodes out is only
  possible in the standard library's reader in Python, which takes three times as long as the one
  in C; without the opcodes for memory it has half as many to read, though, and slices of state
  travel by columns. Measured: 256 records of state take 35 µs to write and 0.5 ms to read (plain
  pickle 1.4 ms and 1 ms), small messages 5 and 10 µs.

The types of a message's fields are its sender's word; who sends is authenticated.
"""

from __future__ import annotations

import io
import pickle
import struct
from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass
from types import ModuleType
from typing import Any, ClassVar, Final

import numpy as np
import numpy.typing as npt

from elasticutor.core.measure.latency import LatencyHistogram
from elasticutor.core.measure.metrics import ExecutorMetrics
from elasticutor.core.protocol import batch_protocol, coordinator, events, instructions, repartition
from elasticutor.core.protocol.ids import Epoch, MoveId, NodeId, ShardId
from elasticutor.core.protocol.keeper import SendSlice
from elasticutor.errors import BadValueError
from elasticutor.state.levels import Record
from elasticutor.transport import compact, messages
from elasticutor.transport.channels import Endpoint

_Parts = tuple[Callable[..., Any], tuple[Any, ...]]
"""What makes a value, and of what: pickle's reduction."""


def dumps(message: Any) -> bytes:
    """A control message as bytes.

    Raises:
        BadValueError: It is no control message, or holds something that may not travel.

    Example:
        >>> loads(dumps(messages.SetCores({NodeId("n0"): 2})))
        SetCores(wanted={'n0': 2})
    """
    if type(message) not in _MESSAGES:
        raise BadValueError("message", "be one of the control messages", type(message))
    packed = compact.pack(message)
    if packed is not None:
        return packed
    stream = io.BytesIO()
    pickler = _Pickler(stream, pickle.HIGHEST_PROTOCOL)
    pickler.fast = True
    try:
        pickler.dump(message)
    except BadValueError:
        raise
    except Exception as error:  # a value that holds itself, or is nested too deeply
        raise BadValueError("message", "be made of plain values", str(error)) from error
    return stream.getvalue()


def loads(body: Any) -> Any:
    """The control message that `dumps` wrote.

    Raises:
        Exception: Any, if the bytes are not such a message; nothing has happened then.
    """
    view = memoryview(body)
    if view[0] != compact.PICKLED:
        return compact.unpack(view)
    stream = io.BytesIO(view)
    message = _Unpickler(stream).load()
    if type(message) not in _MESSAGES or stream.read(1):
        raise BadValueError("bytes", "be one control message", type(message))
    return message


# What messages are made of ------------------------------------------------------------------------


def _number(value: complex) -> complex:
    """A number of NumPy, as Python has it."""
    return value


def _array(kind: str, shape: tuple[int, ...], data: bytes) -> npt.NDArray[Any]:
    """An array of numbers; like all that was received, it cannot be written to."""
    dtype = np.dtype(kind)
    if dtype.kind not in "biuf":
        raise BadValueError("array", "be of numbers", kind)
    return np.frombuffer(data, dtype).reshape(shape)


def _array_parts(array: npt.NDArray[Any]) -> _Parts:
    if array.dtype.kind not in "biuf":
        raise BadValueError("array in a message", "be of numbers", array.dtype)
    return _array, (array.dtype.str, array.shape, array.tobytes())


def _histogram(buckets: bytes, counts: bytes) -> LatencyHistogram:
    """Latencies, by the buckets that are not empty."""
    return LatencyHistogram.of_filled(np.frombuffer(buckets, "<u2"), np.frombuffer(counts, "<i8"))


def _histogram_parts(latency: LatencyHistogram) -> _Parts:
    buckets, counts = latency.filled()
    return _histogram, (buckets.astype("<u2").tobytes(), counts.astype("<i8").tobytes())


def _metrics(*values: Any) -> ExecutorMetrics:
    return ExecutorMetrics(**dict(zip(_METRICS, values, strict=True)))


def _metrics_parts(metrics: ExecutorMetrics) -> _Parts:
    return _metrics, tuple([getattr(metrics, name) for name in _METRICS])


_METRICS: Final = tuple(field.name for field in fields(ExecutorMetrics))


def _slice(
    node: NodeId,
    move: MoveId,
    shard: ShardId,
    last: bool,
    rest: bool,
    keys: Sequence[bytes],
    epochs: Sequence[Epoch],
    values: Sequence[bytes | None],
) -> SendSlice:
    """Some of a shard's state; by columns, since record by record it takes far longer."""
    records = tuple(Record(*record) for record in zip(keys, epochs, values, strict=True))
    return SendSlice(node, move, shard, records, last, rest)


def _slice_parts(piece: SendSlice) -> _Parts:
    keys = [record.key for record in piece.records]
    epochs = [record.epoch for record in piece.records]
    values = [record.value for record in piece.records]
    return _slice, (
        piece.node,
        piece.move,
        piece.shard,
        piece.last,
        piece.rest,
        keys,
        epochs,
        values,
    )


def _dataclass_parts(kind: type) -> Callable[[Any], _Parts]:
    assert all(field.init and not field.kw_only for field in fields(kind))
    names = tuple(field.name for field in fields(kind))
    return lambda value: (kind, tuple([getattr(value, name) for name in names]))


def _dataclasses(module: ModuleType) -> set[type]:
    return {
        found
        for found in vars(module).values()
        if isinstance(found, type)
        and is_dataclass(found)
        and found.__module__ == module.__name__
        and not found.__name__.startswith("_")
    }


_MESSAGES: Final = frozenset[type]().union(
    *map(_dataclasses, (events, instructions, batch_protocol, coordinator, repartition, messages))
)
_REDUCERS: Final[dict[type, Callable[[Any], _Parts]]] = {
    **{kind: _dataclass_parts(kind) for kind in (*_MESSAGES, Endpoint, Record)},
    SendSlice: _slice_parts,
    ExecutorMetrics: _metrics_parts,
    LatencyHistogram: _histogram_parts,
    np.ndarray: _array_parts,
}
_FUNCTIONS: Final[tuple[Any, ...]] = (_array, _histogram, _metrics, _number, _slice)
_MAKERS: Final[dict[tuple[str, str], Callable[..., Any]]] = {
    (maker.__module__, maker.__qualname__): maker
    for maker in (*_MESSAGES, Endpoint, Record, *_FUNCTIONS)
}


# The dialect --------------------------------------------------------------------------------------


class _Pickler(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        """How a value is taken apart, if it is no plain one."""
        parts = _REDUCERS.get(type(value))
        if parts is not None:
            return parts(value)
        if isinstance(value, np.bool_ | np.integer | np.floating):
            return _number, (value.item(),)
        if _MAKERS.get(_name(value)) is value:
            return NotImplemented  # by its name, then
        raise BadValueError(
            "value in a message",
            "be a number, text, bytes, None, or a list, tuple, set or dictionary of them",
            f"{value!r:.100}, a {type(value).__qualname__}",
            "so must be the offset of a source's reader, for instance",
        )


def _name(value: Any) -> tuple[str, str]:
    return getattr(value, "__module__", ""), getattr(value, "__qualname__", "")


_OPCODES: Final = (
    *(pickle.PROTO, pickle.FRAME, pickle.STOP, pickle.MARK),
    *(pickle.NONE, pickle.NEWTRUE, pickle.NEWFALSE, pickle.BINFLOAT),
    *(pickle.BININT, pickle.BININT1, pickle.BININT2, pickle.LONG1, pickle.LONG4),
    *(pickle.SHORT_BINUNICODE, pickle.BINUNICODE, pickle.BINUNICODE8),
    *(pickle.SHORT_BINBYTES, pickle.BINBYTES, pickle.BINBYTES8),
    *(pickle.EMPTY_TUPLE, pickle.TUPLE1, pickle.TUPLE2, pickle.TUPLE3, pickle.TUPLE),
    *(pickle.EMPTY_LIST, pickle.APPEND, pickle.APPENDS),
    *(pickle.EMPTY_DICT, pickle.SETITEM, pickle.SETITEMS),
    *(pickle.EMPTY_SET, pickle.ADDITEMS, pickle.FROZENSET),
    *(pickle.STACK_GLOBAL, pickle.REDUCE),
)
_SCALARS: Final = frozenset({type(None), bool, int, float, str, bytes})


class _Unpickler(pickle._Unpickler):
    dispatch: ClassVar = {code[0]: pickle._Unpickler.dispatch[code[0]] for code in _OPCODES}

    def find_class(self, module: str, name: str) -> Any:
        """What makes a value, by its name; nothing is imported for it."""
        maker = _MAKERS.get((module, name))
        if maker is None:
            raise BadValueError("message", "name our own classes only", f"{module}.{name}"[:200])
        return maker


def _is_key(value: Any, depth: int = 8) -> bool:
    return type(value) in _SCALARS or (
        type(value) is tuple and depth > 0 and all(_is_key(part, depth - 1) for part in value)
    )


def _with_plain_keys(load: Callable[[Any], None], keys: slice) -> Callable[[Any], None]:
    """Refuse keys that are deeply nested before anything hashes them.

    Python hashes tuples within tuples on the machine's own stack, without a limit: a message of a
    few hundred kilobytes could end the process.
    """

    def checked(unpickler: Any) -> None:
        for key in unpickler.stack[keys]:
            if not _is_key(key):
                raise BadValueError("key or member", "be a plain value", type(key))
        load(unpickler)

    return checked


def _load_bytearray(unpickler: Any) -> None:
    """As the library does, but for making room before it has seen the bytes."""
    (size,) = struct.unpack("<Q", unpickler.read(8))
    unpickler.append(bytearray(unpickler.read(size)))


for _code, _keys in (
    (pickle.SETITEM, slice(-2, -1)),
    (pickle.SETITEMS, slice(None, None, 2)),
    (pickle.ADDITEMS, slice(None)),
    (pickle.FROZENSET, slice(None)),
):
    _Unpickler.dispatch[_code[0]] = _with_plain_keys(_Unpickler.dispatch[_code[0]], _keys)
_Unpickler.dispatch[pickle.BYTEARRAY8[0]] = _load_bytearray
