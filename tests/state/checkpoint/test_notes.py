from __future__ import annotations

import json
import math
from collections import namedtuple
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticutor.errors import BadValueError
from elasticutor.state.checkpoint.notes import from_json, to_json

Point = namedtuple("Point", "x y")  # noqa: PYI024 (what users write)

texts = st.text(st.characters(), max_size=5)  # lone surrogates too
keys = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), texts)
    | st.binary(max_size=4),
    lambda items: st.lists(items, max_size=2).map(tuple) | st.frozensets(items, max_size=2),
    max_leaves=3,
)
plain = st.recursive(
    keys | st.floats(),
    lambda items: st.one_of(
        st.lists(items, max_size=3),
        st.lists(items, max_size=3).map(tuple),
        st.sets(keys, max_size=3),
        st.dictionaries(keys, items, max_size=3),
    ),
    max_leaves=8,
)


def exactly(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return type(value), [exactly(item) for item in value]
    if isinstance(value, set | frozenset):
        return type(value), sorted((exactly(item) for item in value), key=repr)
    if isinstance(value, dict):
        return dict, [(exactly(key), exactly(item)) for key, item in value.items()]
    return type(value), repr(value)


@given(plain)
def test_plain_values_come_back_exactly_through_json(value: Any) -> None:
    text = json.dumps(to_json(value), allow_nan=False)
    assert exactly(from_json(json.loads(text))) == exactly(value)


def test_what_json_lacks_comes_back() -> None:
    value = {
        1: (math.inf, -0.0),
        (2, "a"): {b"\xff"},
        "int": {"tuple": [10**30]},
        "": "\ud83d\ude00",
    }
    assert from_json(json.loads(json.dumps(to_json(value)))) == value


@pytest.mark.parametrize("value", [Point(1, 2), np.array([1]), object(), [bytearray(b"x")]])
def test_what_is_not_plain_is_refused_and_named(value: Any) -> None:
    with pytest.raises(BadValueError, match="note in a checkpoint must be made of None, bool"):
        to_json(value)


@pytest.mark.parametrize("value", [np.int64(1), np.float64(0.5), np.bool_(True)])
def test_a_number_of_numpy_counts_as_one_of_python(value: Any) -> None:
    made = to_json(value)
    assert (made, type(made)) == (value.item(), type(value.item()))
