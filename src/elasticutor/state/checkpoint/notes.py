"""Plain values as JSON, and back exactly as they were.

JSON has neither tuples nor sets nor bytes, only strings as keys, and no infinity. What it has not
is an object with one entry, whose name says what it is; a dictionary is such an object too, so that
nothing can be taken for something else.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from elasticutor.errors import BadValueError

_SAFE: Final = 2**53
_TYPES: Final = "None, bool, int, float, str, bytes, list, tuple, set, frozenset or dict"


def to_json(value: Any) -> Any:
    """A plain value as something that JSON has; a number of NumPy counts as one of Python."""
    if isinstance(value, np.bool_ | np.integer | np.floating):
        value = value.item()
    dump = _DUMPS.get(type(value))
    if dump is None:
        got = f"{value!r} of type {type(value).__name__}"
        hint = "convert it, or put it in bytes"
        raise BadValueError("note in a checkpoint", f"be made of {_TYPES}", got, hint)
    return dump(value)


def from_json(value: Any) -> Any:
    """The value that was given to `to_json`."""
    if type(value) is list:
        return [from_json(item) for item in value]
    if type(value) is dict:
        ((name, inner),) = value.items()
        return _LOADS[name](inner)
    return value


def _dump_int(value: int) -> Any:
    # Other readers of JSON take numbers for doubles, and Python none of thousands of digits.
    return value if -_SAFE <= value <= _SAFE else {"int": hex(value)}


def _dump_str(value: str) -> Any:
    try:
        value.encode()
    except UnicodeEncodeError:  # two surrogates apart would come back as the one that they make
        return {"str": _text(value.encode("utf-8", "surrogatepass"))}
    return value


def _dump_items(value: Any) -> list[Any]:
    return [to_json(item) for item in value]


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _load_items(items: list[Any]) -> list[Any]:
    return [from_json(item) for item in items]


_DUMPS: Final[dict[type, Callable[[Any], Any]]] = {
    type(None): lambda value: value,
    bool: lambda value: value,
    int: _dump_int,
    float: lambda value: value if math.isfinite(value) else {"float": repr(value)},
    str: _dump_str,
    bytes: lambda value: {"bytes": _text(value)},
    list: _dump_items,
    tuple: lambda value: {"tuple": _dump_items(value)},
    set: lambda value: {"set": _dump_items(sorted(value, key=repr))},
    frozenset: lambda value: {"frozenset": _dump_items(sorted(value, key=repr))},
    dict: lambda value: {"dict": [[to_json(k), to_json(v)] for k, v in value.items()]},
}

_LOADS: Final[dict[str, Callable[[Any], Any]]] = {
    "int": lambda text: int(text, 16),
    "float": float,
    "str": lambda text: base64.b64decode(text).decode("utf-8", "surrogatepass"),
    "bytes": base64.b64decode,
    "tuple": lambda items: tuple(_load_items(items)),
    "set": lambda items: set(_load_items(items)),
    "frozenset": lambda items: frozenset(_load_items(items)),
    "dict": lambda items: {from_json(key): from_json(value) for key, value in items},
}
