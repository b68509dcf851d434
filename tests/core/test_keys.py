from __future__ import annotations

import datetime as dt
import decimal
import os
import subprocess
import sys
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from elasticutor.core.keys import (
    executors_of,
    key_hasher,
    key_hashes,
    shard_hasher,
    shards_of,
)
from elasticutor.errors import BadValueError, UnsupportedKeyError

NULL = 13224177006683112673

INTEGERS = [1, 0, 100, None]
NEGATIVES = [-1, -128, None]
FLOATS = [0.0, 1.5, -2.0, float("inf"), float("nan"), None]
DAYS = [dt.date(1970, 1, 1), dt.date(2024, 2, 29), dt.date(1969, 12, 31), None]
INSTANTS = [dt.datetime(2024, 2, 29, 12, 30, 1), dt.datetime(1969, 12, 31, 23, 59, 59), None]
TIMES = [dt.time(0), dt.time(23, 59, 59), None]
DURATIONS = [dt.timedelta(0), dt.timedelta(days=-1), None]
TEXTS = ["", "Oslo", "Zürich", None]
WORDS = ["Oslo", "Rome", None]
DECIMALS = [Decimal("0.0"), Decimal("1.5"), Decimal("-20.0"), Decimal("100.0"), None]
CITIES = [{"city": "Oslo", "zone": 1}, {"city": None, "zone": None}, None]
NESTED = [
    {"place": {"city": "Oslo", "zone": 1}, "day": True},
    {"place": None, "day": True},
    None,
]


def encoded(texts: list[str | None]) -> list[bytes | None]:
    return [None if text is None else text.encode() for text in texts]


def of(values: list[Any], *kinds: pa.DataType) -> dict[str, pa.Array]:
    return {str(kind): pa.array(values, kind) for kind in kinds}


CITY = pa.struct([("city", pa.string()), ("zone", pa.int8())])
SIGNED = [pa.int8(), pa.int16(), pa.int32(), pa.int64()]
UNSIGNED = [pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()]
FLOATING = [pa.float16(), pa.float32(), pa.float64()]
STRINGS = [pa.string(), pa.large_string(), pa.string_view()]
BINARIES = [pa.binary(), pa.large_binary(), pa.binary_view()]
UNITS = ["s", "ms", "us", "ns"]
DECIMAL_KINDS = [
    *(pa.decimal32(9, 1), pa.decimal64(18, 2), pa.decimal128(38, 1), pa.decimal128(38, 7)),
    *(pa.decimal256(76, 1), pa.decimal256(76, 20)),
]

# Per family: columns of the same values in every storage, and the hashes that they shall have in
# all eternity.
KNOWN: dict[str, tuple[dict[str, pa.Array], list[int]]] = {
    "null": (of([None], pa.null()), [NULL]),
    "boolean": (
        of([False, True, None], pa.bool_()),
        [12943279395829728304, 9764562815262675604, NULL],
    ),
    "integer": (
        of(INTEGERS, *SIGNED, *UNSIGNED),
        [3711644533292855816, 10503150801267020863, 15617786392088228157, NULL],
    ),
    "negative": (of(NEGATIVES, *SIGNED), [17907792403683276067, 7672911910761038912, NULL]),
    "float": (
        of(FLOATS, *FLOATING),
        [
            4052650533890093426,
            14332207105067756756,
            9918587460758174733,
            17177639225134474739,
            4493620470206390185,
            NULL,
        ],
    ),
    "date": (
        of(DAYS, pa.date32(), pa.date64()),
        [2049305471839742603, 3817591582562561950, 5769490789905300838, NULL],
    ),
    "timestamp": (
        of(INSTANTS, *map(pa.timestamp, UNITS), *(pa.timestamp(u, "Asia/Tokyo") for u in UNITS)),
        [2748488719910007122, 5518580655782789243, NULL],
    ),
    "time": (
        of(TIMES, pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns")),
        [14489384677346119245, 1986539146325236258, NULL],
    ),
    "duration": (
        of(DURATIONS, *map(pa.duration, UNITS)),
        [14879068923031667802, 8546022329248519488, NULL],
    ),
    "text": (
        of(TEXTS, *STRINGS) | of(encoded(TEXTS), *BINARIES),
        [807267342737682820, 7671389018855594272, 589216167326241392, NULL],
    ),
    "fixed": (
        of(encoded(WORDS), pa.binary(4), pa.binary()) | of(WORDS, pa.string()),
        [7671389018855594272, 2998197557480187210, NULL],
    ),
    "decimal": (
        of(DECIMALS, *DECIMAL_KINDS),
        [3549218645894283111, 9758849501987903327, 17508988817858353184, 714404746306355356, NULL],
    ),
    "struct": (of(CITIES, CITY), [12783447562076673892, 1205446912470458995, NULL]),
    "nested": (
        of(NESTED, pa.struct([("place", CITY), ("day", pa.bool_())])),
        [1576657140247049548, 9520088373071450650, NULL],
    ),
}
STORED = {
    f"{family} as {kind}": (column, hashes)
    for family, (columns, hashes) in KNOWN.items()
    for kind, column in columns.items()
}
EVERY_STORAGE = pytest.mark.parametrize("name", STORED)


def hashes_of(*columns: pa.Array | pa.ChunkedArray) -> list[int]:
    hashes = key_hashes(*columns)
    assert hashes.dtype == np.uint64
    return [int(value) for value in hashes]


def some(values: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
    return st.lists(st.none() | values, max_size=20)


# --- Known answers ---------------------------------------------------------------------------


@EVERY_STORAGE
def test_hashes_never_change(name: str) -> None:
    column, hashes = STORED[name]
    assert hashes_of(column) == hashes


def test_several_columns_have_hashes_that_never_change() -> None:
    assert hashes_of(pa.array(WORDS), pa.array([1, None, 3]), pa.array([True] * 3)) == [
        14914960081481192949,
        12225365353271963605,
        6180861755149570464,
    ]


def test_tiers_never_change() -> None:
    hashes = key_hashes(pa.array(range(6)))
    assert executors_of(hashes, 32).tolist() == [31, 8, 11, 11, 23, 0]
    assert executors_of(hashes, 7).tolist() == [1, 6, 5, 3, 0, 2]
    assert shards_of(hashes, 256).tolist() == [199, 104, 106, 97, 165, 131]
    assert shards_of(hashes, 7).tolist() == [0, 3, 2, 0, 1, 3]


def test_integers_are_mixed_by_the_published_splitmix64() -> None:
    """SplitMix64 seeded with 1234567 starts with 6457827717110365317 (a widely used vector)."""
    state = 1234567 + 0x9E3779B97F4A7C15
    key = state ^ xxhash.xxh3_64_intdigest(b"integer")
    assert hashes_of(pa.array([key], pa.uint64())) == [6457827717110365317]


@pytest.mark.parametrize("seed", ["1", "2"])
def test_another_process_with_another_hash_seed_gives_the_same_hashes(seed: str) -> None:
    script = """if True:
        import pyarrow as pa
        from elasticutor.core.keys import key_hashes
        print(key_hashes(pa.array(["Oslo", "Rome", None]), pa.array([1.5, 2.5, 3.5])).tolist())
        """
    run = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONHASHSEED": seed},
        capture_output=True,
        text=True,
        check=True,
    )
    assert run.stdout.strip() == str(hashes_of(pa.array(WORDS), pa.array([1.5, 2.5, 3.5])))


# --- Equal values hash alike -----------------------------------------------------------------


@given(some(st.integers(-128, 127)))
def test_integers_hash_alike_in_every_signed_width(numbers: list[int | None]) -> None:
    first, *others = (hashes_of(pa.array(numbers, kind)) for kind in SIGNED)
    assert all(other == first for other in others)


@given(some(st.integers(0, 127)))
def test_integers_hash_alike_signed_and_unsigned(numbers: list[int | None]) -> None:
    first, *others = (hashes_of(pa.array(numbers, kind)) for kind in SIGNED + UNSIGNED)
    assert all(other == first for other in others)


@given(some(st.integers(0, 2**63 - 1)))
def test_large_integers_hash_alike_signed_and_unsigned(numbers: list[int | None]) -> None:
    assert hashes_of(pa.array(numbers, pa.int64())) == hashes_of(pa.array(numbers, pa.uint64()))


@given(some(st.floats(width=16)))
def test_floats_hash_alike_in_every_width(numbers: list[float | None]) -> None:
    first, *others = (hashes_of(pa.array(numbers, kind)) for kind in FLOATING)
    assert all(other == first for other in others)


def test_minus_zero_is_zero() -> None:
    minus, plus = hashes_of(pa.array([-0.0, 0.0]))
    assert minus == plus


@pytest.mark.parametrize(
    ("bits", "as_float"),
    [
        (np.array([0x7E00, 0xFE00, 0x7D00], np.uint16), np.float16),
        (np.array([0x7FC00000, 0xFFC00001, 0x7FA00000], np.uint32), np.float32),
        (np.array([0x7FF8 << 48, 0xFFF8 << 48, (0x7FF0 << 48) + 1], np.uint64), np.float64),
    ],
)
def test_all_nans_are_one_key_signalling_ones_too(
    bits: npt.NDArray[Any], as_float: type[Any]
) -> None:
    nan = STORED["float as double"][1][4]
    assert hashes_of(pa.array(bits.view(as_float))) == [nan] * 3


@given(some(st.dates()))
def test_a_day_hashes_alike_as_date32_and_date64(days: list[dt.date | None]) -> None:
    assert hashes_of(pa.array(days, pa.date32())) == hashes_of(pa.array(days, pa.date64()))


def test_a_date64_within_a_day_is_that_day_before_1970_too() -> None:
    midnight, noon = (pa.array([ms], pa.int64()) for ms in (-86_400_000, -43_200_000))
    assert hashes_of(noon.view(pa.date64())) == hashes_of(midnight.view(pa.date64()))


@given(some(st.integers(-(2**33), 2**33)), st.sampled_from([None, "UTC", "Asia/Tokyo"]))
def test_an_instant_hashes_alike_in_every_unit_and_zone(
    seconds: list[int | None], zone: str | None
) -> None:
    plain = pa.array(seconds, pa.timestamp("s"))
    for unit in UNITS:
        assert hashes_of(plain.cast(pa.timestamp(unit, zone))) == hashes_of(plain)


@given(some(st.integers(-(2**33), 2**33)))
def test_a_duration_hashes_alike_in_every_unit(seconds: list[int | None]) -> None:
    plain = pa.array(seconds, pa.duration("s"))
    for unit in UNITS:
        assert hashes_of(plain.cast(pa.duration(unit))) == hashes_of(plain)


@given(some(st.integers(0, 86_399)))
def test_a_time_of_day_hashes_alike_in_every_unit(seconds: list[int | None]) -> None:
    plain = pa.array(seconds, pa.int32()).view(pa.time32("s"))
    for kind in (pa.time32("ms"), pa.time64("us"), pa.time64("ns")):
        assert hashes_of(plain.cast(kind)) == hashes_of(plain)


@given(st.integers(-(2**50), 2**50), st.integers(0, 999))
def test_nanoseconds_below_the_microsecond_are_ignored(microseconds: int, rest: int) -> None:
    fine = pa.array([microseconds * 1_000 + rest], pa.timestamp("ns"))
    assert hashes_of(fine) == hashes_of(pa.array([microseconds], pa.timestamp("us")))


def test_far_away_instants_hash_alike_in_seconds_and_milliseconds() -> None:
    seconds = pa.array([2**52], pa.timestamp("s"))
    assert hashes_of(seconds) == hashes_of(seconds.cast(pa.timestamp("ms")))


@given(some(st.text(max_size=30)))
def test_texts_hash_alike_in_every_layout_and_as_bytes(texts: list[str | None]) -> None:
    plain = hashes_of(pa.array(texts, pa.string()))
    assert all(hashes_of(pa.array(texts, kind)) == plain for kind in STRINGS)
    assert all(hashes_of(pa.array(encoded(texts), kind)) == plain for kind in BINARIES)


@given(some(st.binary(min_size=3, max_size=3)))
def test_bytes_hash_alike_at_fixed_size(values: list[bytes | None]) -> None:
    assert hashes_of(pa.array(values, pa.binary(3))) == hashes_of(pa.array(values, pa.binary()))


@given(some(st.decimals(-99_999_999, 99_999_999, places=1)))
def test_decimals_hash_alike_in_every_width_and_scale(numbers: list[Decimal | None]) -> None:
    first, *others = (hashes_of(pa.array(numbers, kind)) for kind in DECIMAL_KINDS)
    assert all(other == first for other in others)


def test_decimals_hash_alike_at_a_negative_scale() -> None:
    thousands = pa.array([Decimal(5_000)], pa.decimal128(5, -3))
    assert hashes_of(thousands) == hashes_of(pa.array([Decimal(5_000)], pa.decimal128(5, 0)))


def test_decimals_of_76_digits_keep_their_last_digit() -> None:
    numbers = [Decimal("1" * 75 + "1"), Decimal("1" * 75 + "2")]
    assert len(set(hashes_of(pa.array(numbers, pa.decimal256(76, 0))))) == 2


def test_the_decimal_context_of_the_caller_does_not_matter() -> None:
    column, hashes = STORED["decimal as decimal128(38, 7)"]
    with decimal.localcontext() as context:
        context.prec, context.capitals, context.traps[decimal.Inexact] = 1, 0, True
        assert hashes_of(column) == hashes


@EVERY_STORAGE
def test_a_dictionary_hashes_like_its_plain_form(name: str) -> None:
    column, hashes = STORED[name]
    rows = len(column)
    indices = pa.array([*range(rows), None, *range(rows)], pa.int8())
    twice = pa.DictionaryArray.from_arrays(indices, column)
    assert hashes_of(twice) == [*hashes, NULL, *hashes]
    assert hashes_of(twice.slice(rows - 1, 1)) == hashes[-1:]


def test_a_dictionary_of_nulls_is_null() -> None:
    assert hashes_of(pa.DictionaryArray.from_arrays(pa.array([0, None]), pa.nulls(1))) == [NULL] * 2


def test_a_dictionary_may_be_as_large_as_its_index_type_allows() -> None:
    texts = pa.array([str(i) for i in range(128)])
    full = pa.DictionaryArray.from_arrays(pa.array([*range(128), None], pa.int8()), texts)
    assert hashes_of(full) == [*hashes_of(texts), NULL]


# --- Nulls -----------------------------------------------------------------------------------


def under_nulls(kind: pa.DataType, *stored: int) -> pa.Array:
    """A column of nulls only, in whose memory there are other numbers."""
    data = np.array(stored, kind.to_pandas_dtype())
    return pa.Array.from_buffers(kind, len(data), [pa.py_buffer(b"\0"), pa.py_buffer(data)])


@pytest.mark.parametrize("kind", [pa.int8(), pa.uint64(), pa.float32()], ids=str)
def test_what_is_stored_under_a_null_does_not_matter(kind: pa.DataType) -> None:
    assert hashes_of(under_nulls(kind, 7, 100)) == [NULL, NULL]


def test_an_index_stored_under_a_null_does_not_matter() -> None:
    indices = under_nulls(pa.int8(), 7, 100)
    assert hashes_of(pa.DictionaryArray.from_arrays(indices, pa.array(["a"]))) == [NULL, NULL]
    empty = pa.DictionaryArray.from_arrays(indices, pa.array([], pa.string()))
    assert hashes_of(empty) == [NULL, NULL]


def test_a_null_struct_is_a_null_and_not_a_struct_of_nulls() -> None:
    fields = [pa.array([None, None], pa.int8()), pa.array([None, None], pa.string())]
    mask = pa.array([True, False])
    null, of_nulls = hashes_of(pa.StructArray.from_arrays(fields, ["a", "b"], mask=mask))
    assert null == NULL
    assert of_nulls != NULL


def test_fields_of_a_null_struct_do_not_matter() -> None:
    fields = [pa.array([1, 2]), pa.array(["a", "b"])]
    mask = pa.array([True, True])
    assert hashes_of(pa.StructArray.from_arrays(fields, ["a", "b"], mask=mask)) == [NULL, NULL]


# --- Composite keys --------------------------------------------------------------------------

PAIRS = st.lists(st.tuples(st.none() | st.integers(-9, 9), st.none() | st.text(max_size=2)))


@given(PAIRS, st.integers(0, 5))
def test_a_struct_hashes_like_its_fields_as_columns(pairs: list[Any], start: int) -> None:
    numbers = pa.array([number for number, _ in pairs], pa.int8())
    texts = pa.array([text for _, text in pairs], pa.string()).dictionary_encode()
    struct = pa.StructArray.from_arrays([numbers, texts], ["a", "b"])
    assert hashes_of(struct) == hashes_of(numbers, texts)
    assert hashes_of(struct.slice(start)) == hashes_of(numbers, texts)[start:]


def test_a_struct_of_one_field_hashes_like_the_field() -> None:
    field = pa.array([1, None, 3])
    assert hashes_of(pa.StructArray.from_arrays([field], ["a"])) == hashes_of(field)


def test_the_order_of_columns_matters() -> None:
    a, b = pa.array([1, 2, 3]), pa.array([4, 5, 6])
    assert not set(hashes_of(a, b)) & set(hashes_of(b, a))


def test_nesting_matters() -> None:
    a, b, c = pa.array([1]), pa.array([2]), pa.array([3])

    def pair(left: pa.Array, right: pa.Array) -> pa.Array:
        return pa.StructArray.from_arrays([left, right], ["left", "right"])

    shapes = [hashes_of(a, b, c), hashes_of(pair(a, b), c), hashes_of(a, pair(b, c))]
    assert len({hashes[0] for hashes in shapes}) == 3


def test_a_grid_of_small_numbers_has_no_collisions() -> None:
    left, right = np.divmod(np.arange(100_000), 300)
    assert len(np.unique(key_hashes(pa.array(left), pa.array(right)))) == 100_000


def test_families_do_not_collide() -> None:
    ones = [
        pa.array([1], pa.int64()),
        pa.array([True]),
        pa.array([1.0]),
        pa.array([1], pa.int32()).view(pa.date32()),
        *(pa.array([1], pa.int64()).view(k) for k in (pa.timestamp("us"), pa.time64("us"))),
        pa.array([1], pa.int64()).view(pa.duration("us")),
        pa.array(["1"]),
        pa.array([Decimal(1)], pa.decimal128(1, 0)),
        pa.array([None]),
    ]
    assert len({hashes_of(one)[0] for one in ones}) == len(ones)


# --- Slices, chunks, nothing at all ----------------------------------------------------------


@given(st.data(), st.sampled_from(sorted(STORED)))
def test_slicing_and_chunking_do_not_matter(data: st.DataObject, name: str) -> None:
    column, hashes = STORED[name]
    picks = data.draw(st.lists(st.integers(0, len(column) - 1), max_size=70))
    rows = pa.concat_arrays([column.slice(pick, 1) for pick in picks] or [column.slice(0, 0)])
    expected = [hashes[pick] for pick in picks]

    start, stop = sorted(data.draw(st.tuples(*[st.integers(0, len(picks))] * 2)))
    assert hashes_of(rows.slice(start, stop - start)) == expected[start:stop]

    chunks = [rows.slice(0, start), rows.slice(start, stop - start), rows.slice(stop)]
    assert hashes_of(pa.chunked_array(chunks)) == expected
    assert hashes_of(rows, pa.chunked_array(chunks)) == hashes_of(rows, rows)


@EVERY_STORAGE
def test_nothing_hashes_to_nothing(name: str) -> None:
    column, _ = STORED[name]
    assert hashes_of(column.slice(0, 0)) == []
    assert hashes_of(pa.array([], column.type)) == []
    assert hashes_of(pa.chunked_array([], column.type)) == []


def test_hashing_leaves_the_column_as_it_was() -> None:
    numbers = np.array([-0.0, np.nan, 1.0])
    before = numbers.tobytes()
    key_hashes(pa.array(numbers))
    assert numbers.tobytes() == before


# --- Tiers -----------------------------------------------------------------------------------

MANY = {
    "sequential": pa.array(range(100_000)),
    "multiples of 1024": pa.array(range(0, 102_400_000, 1024)),
    "whole floats": pa.array([float(i) for i in range(100_000)]),
    "strings": pa.array([f"user-{i}" for i in range(100_000)]),
}
MANY_KEYS = pytest.mark.parametrize("keys", MANY.values(), ids=MANY)


@MANY_KEYS
def test_every_shard_of_every_executor_is_used(keys: pa.Array) -> None:
    """With one hash for both tiers, as in the paper's prototype, 8 of 256 shards would be."""
    hashes = key_hashes(keys)
    cells = executors_of(hashes, 32) * 256 + shards_of(hashes, 256)
    assert len(np.unique(cells)) == 32 * 256


@MANY_KEYS
@pytest.mark.parametrize("tier", [executors_of, shards_of])
def test_keys_spread_as_if_thrown_at_random(
    keys: pa.Array, tier: Callable[..., npt.NDArray[np.int32]]
) -> None:
    """Chi-square of 256 cells is 255 ± 23: neither lumps nor a suspicious regularity."""
    counts = np.bincount(tier(key_hashes(keys), 256), minlength=256)
    mean = len(keys) / 256
    assert 140 < np.sum((counts - mean) ** 2) / mean < 400


@given(st.lists(st.integers(0, 2**64 - 1)), st.integers(1, 2**31 - 1))
def test_tiers_stay_in_range(values: list[int], count: int) -> None:
    hashes = np.array(values, np.uint64)
    for tier in (executors_of, shards_of):
        places = tier(hashes, count)
        assert places.dtype == np.int32
        assert all(0 <= place < count for place in places.tolist())


@given(st.lists(st.integers(0, 2**64 - 1)), st.integers(1, 1000))
def test_the_static_tier_is_the_hash_modulo_the_executors(values: list[int], count: int) -> None:
    places = executors_of(np.array(values, np.uint64), count)
    assert places.tolist() == [value % count for value in values]


# --- Refusals --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kind",
    [
        *(pa.list_(pa.int8()), pa.large_list(pa.int8()), pa.list_(pa.int8(), 2)),
        *(pa.list_view(pa.int8()), pa.map_(pa.int8(), pa.int8())),
        *(pa.dense_union([pa.field("a", pa.int8())]), pa.sparse_union([pa.field("a", pa.int8())])),
        *(pa.uuid(), pa.run_end_encoded(pa.int32(), pa.int8()), pa.month_day_nano_interval()),
        pa.struct([]),
    ],
    ids=str,
)
def test_unsupported_types_are_refused_by_name_even_when_empty(kind: pa.DataType) -> None:
    plain = pa.nulls(0, kind)
    struct = pa.StructArray.from_arrays([plain], ["a"])
    for column in (pa.nulls(2, kind), plain, pa.chunked_array([], kind), struct):
        with pytest.raises(UnsupportedKeyError, match="Hint") as caught:
            key_hashes(pa.nulls(len(column)), column)
        assert caught.value.got == str(kind)


def test_a_key_without_columns_is_refused() -> None:
    with pytest.raises(BadValueError, match="at least one column"):
        key_hashes()


def test_columns_of_different_lengths_are_refused() -> None:
    with pytest.raises(BadValueError, match=r"same length; got \[2, 1\]"):
        key_hashes(pa.array([1, 2]), pa.array([1]))


@pytest.mark.parametrize("column", [[1], np.array([1]), pa.record_batch({"a": [1]})])
def test_what_is_no_arrow_array_is_refused(column: object) -> None:
    with pytest.raises(BadValueError, match="be an Arrow array"):
        key_hashes(column)


@pytest.mark.parametrize("tier", [executors_of, shards_of])
@pytest.mark.parametrize("count", [0, -1, 2**31])
def test_impossible_numbers_of_places_are_refused(
    tier: Callable[..., npt.NDArray[np.int32]], count: int
) -> None:
    with pytest.raises(BadValueError, match="be 1 to 2147483647"):
        tier(np.array([1], np.uint64), count)


@pytest.mark.parametrize("tier", [executors_of, shards_of])
@pytest.mark.parametrize(
    "hashes", [np.array([1]), np.array([1.0]), np.uint64(1), np.ones((2, 2), np.uint64), [1]]
)
def test_hashes_of_the_wrong_type_are_refused(
    tier: Callable[..., npt.NDArray[np.int32]], hashes: object
) -> None:
    with pytest.raises(BadValueError, match="flat array of uint64"):
        tier(hashes, 2)


# --- One key at a time -----------------------------------------------------------------------

ONE_BY_ONE: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.int8(): st.integers(-128, 127),
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.uint64(): st.integers(0, 2**64 - 1),
    pa.bool_(): st.booleans(),
    pa.string(): st.text(max_size=8),
    pa.large_string(): st.text(max_size=8),
    pa.binary(): st.binary(max_size=8),
}
any_kind = st.sampled_from([*ONE_BY_ONE])


@given(st.data(), st.lists(any_kind, min_size=1, max_size=3))
def test_a_key_by_itself_hashes_as_it_does_in_columns(
    data: st.DataObject, kinds: list[pa.DataType]
) -> None:
    key = [data.draw(st.none() | ONE_BY_ONE[kind]) for kind in kinds]
    columns = [pa.array([value], kind) for value, kind in zip(key, kinds, strict=True)]
    hashed = key_hasher(*kinds)
    assert hashed is not None
    assert [hashed(key)] == hashes_of(*columns)


@pytest.mark.parametrize(
    "kind", [pa.float64(), pa.timestamp("us"), pa.decimal128(9, 2), CITY, pa.list_(pa.int8())]
)
def test_keys_whose_values_only_columns_tell_apart_are_not_hashed_singly(kind: pa.DataType) -> None:
    assert key_hasher(kind) is None
    assert key_hasher(pa.int64(), kind) is None
    assert key_hasher() is None


@given(st.lists(st.integers(0, 2**64 - 1), max_size=20), st.sampled_from([1, 2, 3, 100, 256]))
def test_few_hashes_have_the_shards_that_arrays_have(hashes: list[int], shards: int) -> None:
    assert shard_hasher(shards)(hashes) == shards_of(np.array(hashes, np.uint64), shards).tolist()


@pytest.mark.parametrize("shards", [0, -1, 2**31])
def test_a_number_of_shards_that_cannot_be_is_refused(shards: int) -> None:
    with pytest.raises(BadValueError, match="number of shards"):
        shard_hasher(shards)
