"""Control messages as MessagePack, written and read by `msgspec` by their classes.

A control message is a `core.message.Message` of `elasticutor.core.protocol` or of
`transport.messages`. On the wire it is the name of its class, then its fields by name. The class
says of what type each field is, and what does not fit is refused as it is read: a name that is not
in the list, a text where a number belongs, an array of anything but numbers.

A field of type `Any` holds another message (`Said.what`, `ToNode.order`) or a note: the offset of a
source's reader, the commit message of a sink, a file for the manifest. Notes are plain values, in
the form in which the manifest keeps them (`state.checkpoint.notes`), so tuples stay tuples. What is
none of these is refused where it is sent, with its name: the receiver could only drop it.

Pickles travel as `bytes` inside messages (errors of operators, specifications of processes), and
reading a message does not open them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any, Final, get_type_hints

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from elasticutor.core.measure.latency import LatencyHistogram
from elasticutor.core.message import Message
from elasticutor.core.protocol import batch_protocol, coordinator, events, instructions, repartition
from elasticutor.core.protocol.ids import Peer
from elasticutor.errors import BadValueError
from elasticutor.state.checkpoint.notes import from_json, to_json
from elasticutor.transport.messages import queries, to_driver, to_nodes, to_participants, tuples

_Change = Callable[[Any], Any]


def dumps(message: Message) -> bytes:
    """A control message as bytes."""
    form = _FORMS.get(type(message))
    if form is None:
        raise BadValueError("message", "be one of the control messages", type(message))
    try:
        try:
            return form.head + _encode(form.written(message))
        except UnicodeEncodeError:
            return form.head + _encode(form.written(_escaped(message)))
    except BadValueError:
        raise
    except Exception as error:  # too large a number, a value that holds itself
        raise BadValueError("message", "be made of plain values", str(error)) from error


def loads(body: memoryview) -> Any:
    """The control message that `dumps` wrote."""
    start = 1 + body[0]
    form = _BY_NAME[str(body[1:start], "ascii")]
    return form.read(form.decode(body[start:]))


def admit(kind: type[Message]) -> None:
    """Let messages of another class travel: the laboratory has some of its own.

    Both sides need it. A name that is taken is refused.
    """
    form = _Form(kind)
    if form.name in _BY_NAME:
        raise BadValueError("message", "have a name of its own", form.name)
    _FORMS[kind] = _BY_NAME[form.name] = form


# Values that MessagePack does not have -----------------------------------------------------------

_DTYPES: Final = {kind.str: kind for kind in map(np.dtype, "?bhilqBHILQfd")}
_NARROW: Final = ((1 << 16, np.dtype("<u2")), (1 << 32, np.dtype("<u4")))


def _write_other(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return _array_parts(value)
    if type(value) is LatencyHistogram:
        buckets, counts = value.filled()
        return buckets.astype("<u2").tobytes(), counts.astype("<i8").tobytes()
    if isinstance(value, np.bool_ | np.integer | np.floating):
        return value.item()
    raise BadValueError("value in a message", "be of its field's type", f"{value!r:.100}")


def _read_other(kind: Any, value: Any) -> Any:
    if kind is LatencyHistogram:
        buckets, counts = value
        return LatencyHistogram.of_filled(_numbers("<u2", buckets), _numbers("<i8", counts))
    dtype, data = value
    return _numbers(dtype, data)


def _array_parts(array: npt.NDArray[Any]) -> tuple[str, bytes]:
    """An array's type and bytes; integers of 64 bits travel in as few as hold them."""
    if array.dtype.str not in _DTYPES or array.ndim != 1:
        must = "be of numbers, and have one dimension"
        raise BadValueError("array in a message", must, (array.dtype, array.ndim))
    if array.dtype == np.int64 and len(array) and array.min() >= 0:
        most = array.max()
        array = array.astype(next((kind for end, kind in _NARROW if most < end), np.int64))
    return array.dtype.str, array.tobytes()


def _numbers(kind: str, data: bytes) -> npt.NDArray[Any]:
    """An array of numbers; like all that was received, it cannot be written to."""
    return np.frombuffer(data, _DTYPES[kind]) if data else np.empty(0, _DTYPES[kind])


# Notes, and messages inside messages -------------------------------------------------------------


def _write_value(value: Any) -> Any:
    form = _FORMS.get(type(value))
    if form is not None:
        return {form.name: form.written(value)}
    try:
        return to_json(value)
    except BadValueError as error:
        hint = "so must be the offset of a source's reader, for instance"
        raise BadValueError("value in a message", error.must, error.got, hint) from error


def _read_value(value: Any) -> Any:
    if type(value) is dict and len(value) == 1:
        ((name, inner),) = value.items()
        form = _BY_NAME.get(name)
        if form is not None:
            return form.read(msgspec.convert(inner, form.kind, dec_hook=_read_other))
    return from_json(value)


_INSIDE: Final[dict[Any, Callable[[_Change, Any], Any]]] = {
    Any: lambda change, value: change(value),
    tuple[Any, ...]: lambda change, value: tuple(map(change, value)),
    Mapping[Peer, Any]: lambda change, value: {who: change(one) for who, one in value.items()},
}
"""How to change the values in a field that may hold anything, by the field's type."""


class _Form:
    """How the messages of one class are written and read."""

    def __init__(self, kind: type[Message]) -> None:
        self.kind = kind
        self.name = kind.__name__
        self.head = bytes([len(self.name)]) + self.name.encode("ascii")
        decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(kind, dec_hook=_read_other)
        self.decode = decoder.decode
        hints = get_type_hints(kind)
        self._names = kind.__struct_fields__
        self._open = {name: _INSIDE[hint] for name, hint in hints.items() if hint in _INSIDE}

    def written(self, message: Any) -> Any:
        """The message as `msgspec` can write it."""
        if not self._open:
            return message
        values = {name: getattr(message, name) for name in self._names}
        return values | {name: f(_write_value, values[name]) for name, f in self._open.items()}

    def read(self, message: Any) -> Any:
        """The message whose fields of type `Any` are as `written` has made them."""
        if not self._open:
            return message
        changed = {
            name: change(_read_value, getattr(message, name)) for name, change in self._open.items()
        }
        return replace(message, **changed)


def _escaped(message: Any) -> Any:
    """The message with its texts in Unicode: a reason may quote what is none."""
    changed: dict[str, Any] = {}
    for name in message.__struct_fields__:
        value = getattr(message, name)
        if type(value) is str:
            changed[name] = value.encode("utf-8", "backslashreplace").decode()
        elif type(value) in _FORMS:
            changed[name] = _escaped(value)
    return replace(message, **changed)


def _messages(module: ModuleType) -> list[type[Message]]:
    return [
        found
        for found in vars(module).values()
        if isinstance(found, type)
        and issubclass(found, Message)
        and found.__module__ == module.__name__
        and not found.__name__.startswith("_")
    ]


_MODULES: Final = (
    *(events, instructions, batch_protocol, coordinator, repartition),
    *(queries, to_driver, to_nodes, to_participants, tuples),
)
_encode: Final = msgspec.msgpack.Encoder(enc_hook=_write_other).encode
_FORMS: Final = {kind: _Form(kind) for module in _MODULES for kind in _messages(module)}
_BY_NAME: Final = {form.name: form for form in _FORMS.values()}
