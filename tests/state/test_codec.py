from __future__ import annotations

import math
import pickle
import struct
import subprocess
import sys
from collections import Counter, OrderedDict, namedtuple
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import IntEnum
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticutor.core.protocol.ids import Attempt, Epoch, ShardId
from elasticutor.errors import BadValueError, UnsupportedKeyError
from elasticutor.state.backend import MemoryBackend
from elasticutor.state.cache import StateCache
from elasticutor.state.codec import (
    CODEC,
    decode,
    decode_key,
    encode,
    encode_all,
    encode_key,
    encode_keys,
)
from elasticutor.state.levels import Levels


class Colour(IntEnum):
    RED = 1


Point = namedtuple("Point", "x y")  # noqa: PYI024 (what users write)


def exactly(value: Any) -> Any:
    """What tells apart everything that a round trip must: types, signs, kinds of NaN."""
    if type(value) is float:
        return struct.pack(">d", value)
    if isinstance(value, list | tuple):
        return type(value), [exactly(item) for item in value]
    if isinstance(value, dict):
        return type(value), [(exactly(key), exactly(item)) for key, item in value.items()]
    return type(value), value


texts = st.text(st.characters(), max_size=8)  # lone surrogates too
simple = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), texts, st.binary(max_size=20)
)
tuples = st.recursive(simple, lambda items: st.lists(items, max_size=4).map(tuple), max_leaves=8)
anything = st.recursive(
    simple | st.decimals(allow_nan=False) | st.datetimes(),
    lambda items: st.one_of(
        st.lists(items, max_size=4),
        st.lists(items, max_size=12).map(tuple),
        st.dictionaries(texts, items, max_size=3),
    ),
    max_leaves=10,
)

moments = st.datetimes(
    min_value=datetime(2, 1, 1),
    max_value=datetime(9998, 1, 1),
    timezones=st.sampled_from(
        [UTC, timezone(timedelta(hours=5, minutes=45)), ZoneInfo("Europe/Berlin")]
    ),
)
times_of_day = st.times()
keys = st.recursive(
    st.one_of(
        simple,
        st.dates(),
        st.datetimes(),
        moments,
        st.timedeltas(),
        times_of_day,
        st.decimals(allow_nan=False),
    ),
    lambda items: st.lists(items, max_size=3).map(tuple),
    max_leaves=6,
)


def has_nan(key: Any) -> bool:
    return key != key or (isinstance(key, tuple) and any(map(has_nan, key)))


def in_utc(key: Any) -> Any:
    """The same moments; a time that a clock shows twice is not equal to itself in another zone."""
    if isinstance(key, tuple):
        return tuple(map(in_utc, key))
    return key.astimezone(UTC) if isinstance(key, datetime) and key.tzinfo else key


def apart(key: Any) -> Any:
    """An equal key, of the same types, that shares no object with it."""
    if isinstance(key, tuple):
        return tuple([apart(item) for item in key])
    if isinstance(key, str):
        return "".join(list(key))
    if isinstance(key, bytes):
        return bytes(bytearray(key))
    return pickle.loads(pickle.dumps(key))  # noqa: S301 (our own)


@given(anything)
def test_a_value_comes_back_exactly_as_it_was(value: Any) -> None:
    assert exactly(decode(encode(value))) == exactly(value)


@pytest.mark.parametrize(
    "value",
    [
        *(0, -1, 127, 128, -128, -129, 2**63 - 1, 2**63, -(2**63), -(2**63) - 1),
        *(10**400, -(10**400), True, False, 1.0, -0.0, math.inf, -math.inf, math.nan, None),
        *("", b"", (), "\ud800", "é\0", (1, 2**63), ((1,), [2]), tuple(range(100))),
        *(Point(1, 2), Colour.RED, bytearray(b"x"), (bytearray(b"x"), b"x"), (True, 1, 1.0)),
        *(Counter("aab"), OrderedDict(b=1, a=2), Decimal("1.00")),
        datetime(2024, 2, 29, tzinfo=ZoneInfo("Europe/Berlin")),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_values_that_are_easily_mistaken_for_others_are_not(value: Any) -> None:
    assert exactly(decode(encode(value))) == exactly(value)


def test_an_object_of_a_class_without_a_module_is_still_of_that_class() -> None:
    class Seen:
        def __init__(self, count: int) -> None:
            self.count = count

    back = decode(encode({"k": Seen(3)}))["k"]
    assert (type(back), back.count) == (Seen, 3)


def test_what_cannot_be_pickled_is_refused_by_name() -> None:
    with pytest.raises(BadValueError, match=r"value of state must be picklable; got .*generator"):
        encode(number for number in range(3))


@given(keys)
def test_a_key_comes_back_equal_and_of_the_same_type(key: Any) -> None:
    back = decode_key(encode_key(key))
    assert type(back) is type(key)
    assert encode_key(back) == encode_key(key)
    if not has_nan(key):
        assert in_utc(back) == in_utc(key)


@given(keys)
def test_equal_keys_are_equal_bytes_whichever_objects_they_are_made_of(key: Any) -> None:
    assert encode_key(apart(key)) == encode_key(key)
    assert encode_key((key, key)) == encode_key((key, apart(key)))


@given(tuples, tuples)
def test_keys_are_equal_bytes_only_if_they_are_equal_and_of_equal_types(a: Any, b: Any) -> None:
    def meaning(key: Any) -> Any:
        if isinstance(key, tuple):
            return tuple, tuple(map(meaning, key))
        return type(key), "nan" if key != key else key

    assert (encode_key(a) == encode_key(b)) == (meaning(a) == meaning(b))


@given(st.lists(keys, max_size=4), st.lists(keys, max_size=4))
def test_neighbours_in_a_tuple_do_not_run_into_each_other(a: list[Any], b: list[Any]) -> None:
    whole, halves = (*a, *b), (tuple(a), tuple(b))
    assert encode_key(whole) != encode_key(halves)
    assert len(decode_key(encode_key(whole))) == len(a) + len(b)
    assert len(decode_key(encode_key(halves))) == 2


MIDNIGHT = datetime(2024, 7, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (0.0, -0.0),
        ((1, 0.0), (1, -0.0)),
        (math.nan, -math.nan),
        (math.nan, struct.unpack(">d", bytes.fromhex("7ff8000000000001"))[0]),
        (Decimal("1.0"), Decimal("1.00")),
        (Decimal("1E+3"), Decimal(1000)),
        (Decimal("0.00"), Decimal("-0")),
        (Decimal("NaN"), Decimal("-NaN123")),
        (MIDNIGHT, MIDNIGHT.astimezone(ZoneInfo("Asia/Tokyo"))),
        (timedelta(days=1), timedelta(hours=24)),
        (datetime(2024, 10, 27, 2, 30), datetime(2024, 10, 27, 2, 30, fold=1)),
    ],
    ids=repr,
)
def test_equal_keys_that_look_different_are_one_key(one: Any, other: Any) -> None:
    assert encode_key(one) == encode_key(other)


def test_keys_of_different_types_are_different_keys() -> None:
    alike = [1, True, 1.0, Decimal(1), "1", b"1", (1,), ((1,),), timedelta(microseconds=1)]
    alike += [date.fromordinal(1), time(microsecond=1), MIDNIGHT, MIDNIGHT.replace(tzinfo=None)]
    alike += [None, (), (None,), "", b"", 0, False, 0.0, Decimal(0), 2**64, -(2**64)]
    assert len({encode_key(key) for key in alike}) == len(alike)


def test_huge_and_tiny_numbers_are_not_rounded() -> None:
    assert decode_key(encode_key(timedelta.max)) == timedelta.max
    for text in ("1." + "1" * 80, "1E+999999", "-1E-999999", "123456789" * 9, "-Infinity"):
        assert decode_key(encode_key(Decimal(text))) == Decimal(text)


@pytest.mark.parametrize(
    "key",
    [
        *([1], {"a": 1}, {1}, frozenset({1}), bytearray(b"x"), object(), 1j, Point(1, 2)),
        *(Colour.RED, np.int64(1), (1, [2]), ((1, {}),), time(1, tzinfo=UTC), Decimal("sNaN")),
    ],
    ids=lambda key: repr(key).partition(" at 0x")[0][:30],
)
def test_what_has_no_form_that_is_the_same_everywhere_is_no_key(key: Any) -> None:
    with pytest.raises(UnsupportedKeyError, match=r"key must be a number, string, .* Hint: "):
        encode_key(key)


def test_a_pickled_value_is_not_taken_for_a_key() -> None:
    with pytest.raises(BadValueError, match="not be pickled"):
        decode_key(encode([1]))


def test_a_pickled_value_within_a_key_is_not_unpickled_either() -> None:
    pickled = encode([1])
    within = b"(" + len(pickled).to_bytes(4, "big") + pickled
    for data in (within, b"p" + pickled):
        with pytest.raises(BadValueError, match="not be pickled"):
            decode_key(data)


def test_the_bytes_of_keys_stay_what_they_are() -> None:
    """State on disk is found by them, in another version of Python too."""
    forms = {
        None: "4e",
        True: "54",
        7: "690000000000000007",
        2**64: "49010000000000000000",
        1.5: "663ff8000000000000",
        "ü": "73c3bc",
        b"\0": "6200",
        (1, -1): "6a0000000000000001ffffffffffffffff",
        ("a", 1): "28000000027361" + "00000009690000000000000001",
        (): "28",
        date(2024, 2, 29): "64000b4681",
        datetime(2024, 2, 29, tzinfo=UTC): "6d00061279f0c44000",
        datetime(2024, 2, 29): "7700061279f0c44000",
        time(1): "7400000000d693a400",
        timedelta(seconds=-1): "7069fffffffffff0bdc0",
        Decimal("-12.50"): "442d313235652d31",
    }
    assert {key: encode_key(key).hex() for key in forms} == forms


def test_another_process_makes_the_same_bytes() -> None:
    key = ("Oslo", 7, ("Oslo", b"x", None), 2.5)
    code = f"from elasticutor.state.codec import encode_key; print(encode_key({key!r}).hex())"
    told = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert told.stdout.strip() == encode_key(key).hex()


def test_a_cache_keeps_its_objects_by_this_codec() -> None:
    store = Levels.create(MemoryBackend(), attempt=Attempt(1), committed=Epoch(0))
    cache = StateCache(store, CODEC, Attempt(1), Epoch(1))
    cache.get(ShardId(0), ("user", 1), []).append("click")
    cache.set(ShardId(0), 2, 2.5)
    cache.flush()
    other = StateCache(store, CODEC, Attempt(1), Epoch(1))
    assert (other.get(ShardId(0), ("user", 1)), other.get(ShardId(0), 2)) == (["click"], 2.5)


_KINDS = [
    st.integers(-(2**70), 2**70),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(),
    st.text(st.characters()),
    st.binary(max_size=5),
    st.booleans(),
    st.none(),
    st.tuples(st.integers(), st.text(max_size=2)),
]


@given(st.one_of(*(st.lists(kind, max_size=5) for kind in [*_KINDS, st.one_of(*_KINDS)])))
def test_many_at_once_are_the_same_bytes_as_one_by_one(values: list[Any]) -> None:
    assert encode_all(values) == list(map(encode, values))
    assert encode_keys(values) == list(map(encode_key, values))


def test_a_key_of_many_that_has_no_form_is_refused_as_one_alone() -> None:
    with pytest.raises(UnsupportedKeyError):
        encode_keys([1, [2]])
