"""Keys and values as bytes: a tag, then what the tag says.

Values come back exactly as they were, type included: `True` is not `1`, and `1` is not `1.0`. The
simple ones have a form of their own, all others are pickled (tuples too: that is faster than any
form made in Python).

Keys are *never* pickled, because pickle writes down which of two equal strings are one object, and
equal keys must be equal bytes: in every process, on every machine, in every version of Python.
(`marshal` does so too from its version 3 on, and takes a `bytearray` for `bytes` in all versions.)
Equal here means equal and of the same type, as in the table of `elasticutor.core.keys`:

- `0.0` and `-0.0` are one key, and so are all NaNs;
- a `Decimal` is its number: `1.0` and `1.00` are one key;
- a `datetime` with a time zone is its moment, and comes back in UTC; one without is another key.

These forms are what state on disk is found by: to change one is to orphan it.
"""

from __future__ import annotations

import math
import pickle
import struct
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from itertools import repeat
from typing import Any, Final

import cloudpickle

from elasticutor.errors import BadValueError, UnsupportedKeyError

_NONE, _TRUE, _FALSE = b"N", b"T", b"F"
_INT, _BIG, _FLOAT, _STR, _BYTES, _TUPLE, _INTS = b"i", b"I", b"f", b"s", b"b", b"(", b"j"
_DATE, _MOMENT, _WALL, _TIME, _SPAN, _DECIMAL = b"d", b"m", b"w", b"t", b"p", b"D"
_PICKLED: Final = b"*"

_TAGGED_INT: Final = struct.Struct(">cq")
_TAGGED_FLOAT: Final = struct.Struct(">cd")
_SIZE: Final = struct.Struct(">I")
_ONLY_INT: Final = {int}
_PROTOCOL: Final = 5  # of pickle; fixed, so that what is on disk depends on no version
_NAN: Final = _TAGGED_FLOAT.pack(_FLOAT, math.nan)
_EPOCH: Final = datetime(1970, 1, 1)  # wall time has no zone
_EPOCH_UTC: Final = datetime(1970, 1, 1, tzinfo=UTC)
_TICK: Final = timedelta(microseconds=1)

Dump = Callable[[Any], bytes]


@dataclass(frozen=True, slots=True)
class Codec:
    """How keys and values become bytes."""

    dump_key: Callable[[Any], bytes]
    dump: Callable[[Any], bytes] = lambda value: pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
    # Nothing is loaded that this executor's own tasks have not written.
    load: Callable[[bytes], Any] = pickle.loads
    dump_keys: Callable[[Collection[Any]], list[bytes]] | None = None
    """As `dump_key`, of many in less time."""
    dump_all: Callable[[Collection[Any]], list[bytes]] | None = None
    """As `dump`, of many in less time."""

    def all_keys(self, keys: Collection[Any]) -> list[bytes]:
        """Keys as bytes."""
        return list(map(self.dump_key, keys)) if self.dump_keys is None else self.dump_keys(keys)

    def all_values(self, values: Collection[Any]) -> list[bytes]:
        """Values as bytes."""
        return list(map(self.dump, values)) if self.dump_all is None else self.dump_all(values)


def encode(value: Any) -> bytes:
    """A value of state as bytes."""
    return _SCALARS.get(type(value), _dump_pickle)(value)


def encode_all(values: Collection[Any]) -> list[bytes]:
    """Many values as bytes; if they are of one simple type, in less time than one by one."""
    kinds = set(map(type, values))
    if len(kinds) == 1:
        several = _OF_ONE_KIND.get(*kinds)
        if several is not None:
            try:
                return list(several(values))
            except (struct.error, UnicodeEncodeError):
                pass  # one of them needs another form
    return list(map(encode, values))


def encode_keys(keys: Collection[Any]) -> list[bytes]:
    """Many keys as bytes, as `encode_key` has them; numbers and strings in less time."""
    kinds = set(map(type, keys))
    if kinds == {int} or kinds == {str} or kinds == {bytes}:
        return encode_all(keys)
    return list(map(encode_key, keys))


def decode(data: bytes) -> Any:
    """The value that was encoded. It can run code: only for what this executor's tasks wrote."""
    return _LOADERS[data[0]](data)


def encode_key(key: Any) -> bytes:
    """A key as bytes: equal keys of one type are equal bytes, everywhere."""
    dump = _OF_KEYS.get(type(key))
    if dump is None:
        raise _unsupported(key)
    return dump(key)


def decode_key(data: bytes) -> Any:
    """A key that is equal to the one that was encoded, and of the same type."""
    if data[:1] == _PICKLED:
        raise BadValueError("key", "not be pickled", data[:20])
    return decode(data)


def _unsupported(key: Any) -> UnsupportedKeyError:
    must = (
        "be a number, string, bytes, bool, None, Decimal, date, datetime, time, timedelta, or a "
        "tuple of these"
    )
    hint = "not of a subclass either: convert it, for example with int(…), str(…) or tuple(…)"
    return UnsupportedKeyError("key", must, f"{key!r} of type {type(key).__name__}", hint)


# Forms of values and keys -----------------------------------------------------------------------


def _dump_int(value: int) -> bytes:
    try:
        return _TAGGED_INT.pack(_INT, value)
    except struct.error:
        return _BIG + value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True)


def _dump_pickle(value: Any) -> bytes:
    try:
        return _PICKLED + pickle.dumps(value, _PROTOCOL)
    except Exception:  # the many ways of failing to find a class by its name
        return _dump_by_value(value)


def _dump_by_value(value: Any) -> bytes:
    # A class that was defined in a notebook or a script has no module that a task could import.
    try:
        return _PICKLED + bytes(cloudpickle.dumps(value, _PROTOCOL))
    except Exception as error:
        hint = f"keep what it is made from instead ({error})"
        raise BadValueError("value of state", "be picklable", type(value), hint) from error


_SCALARS: Final[Mapping[type, Dump]] = {
    int: _dump_int,
    str: lambda value: _STR + value.encode("utf-8", "surrogatepass"),
    float: lambda value: _TAGGED_FLOAT.pack(_FLOAT, value),
    bytes: _BYTES.__add__,
    bool: lambda value: _TRUE if value else _FALSE,
    type(None): lambda value: _NONE,
}


_OF_ONE_KIND: Final[Mapping[type, Callable[[Iterable[Any]], Iterable[bytes]]]] = {
    int: lambda values: map(_TAGGED_INT.pack, repeat(_INT), values),
    float: lambda values: map(_TAGGED_FLOAT.pack, repeat(_FLOAT), values),
    str: lambda values: map(_STR.__add__, map(str.encode, values)),
    bytes: lambda values: map(_BYTES.__add__, values),
}
"""The same for many of one type."""


# Forms of keys only -----------------------------------------------------------------------------


def _dump_float_key(key: float) -> bytes:
    # To add 0.0 makes 0.0 of -0.0, and leaves everything else as it is.
    return _TAGGED_FLOAT.pack(_FLOAT, key + 0.0) if key == key else _NAN


def _dump_tuple_key(key: tuple[Any, ...]) -> bytes:
    if set(map(type, key)) == _ONLY_INT:
        try:
            return struct.pack(f">c{len(key)}q", _INTS, *key)
        except struct.error:
            pass  # some are too big, and then all are written one by one
    parts = [_TUPLE]
    for item in key:
        data = encode_key(item)
        parts += (_SIZE.pack(len(data)), data)
    return b"".join(parts)


def _dump_datetime_key(key: datetime) -> bytes:
    if key.utcoffset() is None:
        ticks = (key.replace(tzinfo=None) - _EPOCH) // _TICK
        return _TAGGED_INT.pack(_WALL, ticks)
    return _TAGGED_INT.pack(_MOMENT, (key - _EPOCH_UTC) // _TICK)


def _dump_time_key(key: time) -> bytes:
    if key.tzinfo is not None:
        raise _unsupported(key)  # whether two are equal depends on a day that they do not have
    seconds = (key.hour * 60 + key.minute) * 60 + key.second
    return _TAGGED_INT.pack(_TIME, seconds * 1_000_000 + key.microsecond)


def _dump_decimal_key(key: Decimal) -> bytes:
    sign, digits, exponent = key.as_tuple()
    if not isinstance(exponent, int):
        if key.is_snan():
            raise _unsupported(key)  # it cannot even be hashed
        return _DECIMAL + (b"nan" if key.is_nan() else b"-inf" if sign else b"inf")
    number = "".join(map(str, digits)).lstrip("0")
    if not number:
        return _DECIMAL + b"0"
    significant = number.rstrip("0")
    exponent += len(number) - len(significant)
    return _DECIMAL + f"{'-' if sign else ''}{significant}e{exponent}".encode()


_OF_KEYS: Final[Mapping[type, Dump]] = {
    **_SCALARS,
    float: _dump_float_key,
    tuple: _dump_tuple_key,
    date: lambda key: _DATE + _SIZE.pack(key.toordinal()),
    datetime: _dump_datetime_key,
    time: _dump_time_key,
    timedelta: lambda key: _SPAN + _dump_int(key // _TICK),  # may have more than 64 bits
    Decimal: _dump_decimal_key,
}


# And back ---------------------------------------------------------------------------------------


def _load_tuple(data: bytes) -> tuple[Any, ...]:
    items = []
    begin, end, size_of = 1, len(data), _SIZE.unpack_from
    while begin < end:
        stop = begin + 4 + size_of(data, begin)[0]
        items.append(decode_key(data[begin + 4 : stop]))  # only keys are written so
        begin = stop
    return tuple(items)


def _load_ticks(data: bytes) -> timedelta:
    return _TICK * int(_TAGGED_INT.unpack(data)[1])


_LOADERS: Final[Mapping[int, Callable[[bytes], Any]]] = {
    _NONE[0]: lambda data: None,
    _TRUE[0]: lambda data: True,
    _FALSE[0]: lambda data: False,
    _INT[0]: lambda data: _TAGGED_INT.unpack(data)[1],
    _BIG[0]: lambda data: int.from_bytes(data[1:], "big", signed=True),
    _FLOAT[0]: lambda data: _TAGGED_FLOAT.unpack(data)[1],
    _STR[0]: lambda data: data[1:].decode("utf-8", "surrogatepass"),
    _BYTES[0]: lambda data: data[1:],
    _TUPLE[0]: _load_tuple,
    _INTS[0]: lambda data: struct.unpack_from(f">{len(data) // 8}q", data, 1),
    _DATE[0]: lambda data: date.fromordinal(_SIZE.unpack_from(data, 1)[0]),
    _MOMENT[0]: lambda data: _EPOCH_UTC + _load_ticks(data),
    _WALL[0]: lambda data: _EPOCH + _load_ticks(data),
    _TIME[0]: lambda data: (_EPOCH + _load_ticks(data)).time(),
    _SPAN[0]: lambda data: _TICK * decode_key(data[1:]),
    _DECIMAL[0]: lambda data: Decimal(data[1:].decode()),
    # Nothing is loaded that this executor's own tasks have not written.
    _PICKLED[0]: lambda data: pickle.loads(memoryview(data)[1:]),  # noqa: S301
}


CODEC: Final = Codec(
    dump_key=encode_key, dump=encode, load=decode, dump_keys=encode_keys, dump_all=encode_all
)
"""How the state of an operator is kept."""
