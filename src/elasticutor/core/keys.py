"""From a key to its executor and its shard: a stable hash over Arrow columns.

The hash of a key is 64 bits wide and the same in every process, on every machine and in every
version of Python, so that upstreams that never met agree where a key belongs. Equal *values* hash
alike, however they are stored:

| Key | Hashed as | So these hash alike |
|---|---|---|
| integer | the number, in 64 bits | all widths; 1 as `int8` and as `uint64` |
| float | the number, as a double | all widths; -0.0 and 0.0; all NaNs |
| boolean | 0 or 1 | |
| date | the day | `date32` and `date64` |
| timestamp | microseconds since 1970 in UTC | all units and time zones; no zone means UTC |
| time, duration | microseconds | all units |
| string, binary | the bytes (of UTF-8) | all layouts; a string and the binary of its bytes |
| decimal | the number | all widths and scales; 1.0 and 1.00 |
| struct, several columns | the hashes of the fields, in order | a struct and its fields |
| null | a constant | nulls of every type |

A dictionary-encoded column hashes like its plain form (and its whole dictionary is hashed, however
short the slice). What a timestamp, time or duration in nanoseconds has below the microsecond is
ignored: keys that differ only there share their hash, and thus their shard, no more. So do -1 and
2⁶⁴ - 1. Otherwise the rows of the table keep apart: the integer 1, the float 1.0, true and the
decimal 1 are four keys.

These numbers decide where state lives: to change any of them is to orphan every state on disk.
"""

from __future__ import annotations

import decimal
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache, reduce
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from xxhash import xxh3_64_intdigest

from elasticutor.errors import BadValueError, UnsupportedKeyError

Hashes: TypeAlias = npt.NDArray[np.uint64]
"""One 64-bit hash per row."""

KeyHasher: TypeAlias = Callable[[Sequence[Any]], int]
"""Takes the values of a key, one per column."""

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MOST = 2**31 - 1
_DAY_MS = 24 * 60 * 60 * 1000
_MICROSECONDS = {"s": 1_000_000, "ms": 1_000, "us": 1}
# By name, because older versions of pyarrow lack the views.
_BYTES = {"string", "large_string", "string_view", "binary", "large_binary", "binary_view"}
# Wide enough for 76 digits (decimal256) and any scale; the caller's own context is not consulted.
_EXACT = decimal.Context(
    prec=100, Emin=decimal.MIN_EMIN, Emax=decimal.MAX_EMAX, capitals=1, clamp=0, traps=[]
)


def key_hashes(*columns: pa.Array | pa.ChunkedArray) -> Hashes:
    """One 64-bit hash per row, for a key of one or more columns.

    The order of the columns matters. A struct column hashes like its fields given as columns, and
    a struct of one field like that field; a struct that is null is a null, not a struct of nulls.

    Raises:
        BadValueError: There is no column, one is no Arrow array, or they differ in length.
        UnsupportedKeyError: A column is of a type that cannot be a key: lists, maps, unions,
            extension types and the like.

    Example:
        >>> key_hashes(pa.array(["Oslo", "Rome"]), pa.array([1, 2])).tolist()
        [12783447562076673892, 9632411945984750661]
    """
    if len(columns) == 1 and type(columns[0]) in _FEW_BY_VALUE and len(columns[0]) <= _FEW:
        return _few_hashes(columns[0])
    if not columns:
        raise BadValueError("key", "have at least one column", 0)
    for column in columns:
        if not isinstance(column, pa.Array | pa.ChunkedArray):
            hint = "wrap values in pyarrow.array(…), and give the columns of a batch one by one"
            raise BadValueError("column of a key", "be an Arrow array", type(column), hint)
    lengths = [len(column) for column in columns]
    if len(set(lengths)) > 1:
        raise BadValueError("columns of a key", "have the same length", lengths)
    return _combined([_column_hashes(column) for column in columns])


def executors_of(hashes: Hashes, executors: int) -> npt.NDArray[np.int32]:
    """The static tier: which of the y executors each key belongs to, `hash(key) mod y`.

    Example:
        >>> executors_of(key_hashes(pa.array(["Oslo", "Rome", "Bern"])), 32)
        array([ 0, 10, 10], dtype=int32)
    """
    _require(hashes, "number of executors", executors)
    return _remainders(hashes, executors)


def shards_of(hashes: Hashes, shards: int) -> npt.NDArray[np.int32]:
    """The dynamic tier: which of its executor's z shards each key belongs to, `hash'(key) mod z`.

    `hash'` mixes the key's hash once more under a seed of its own, so that the shard says nothing
    about the executor. The paper's prototype uses one hash for both tiers: there, all keys of one
    of y = 32 executors agree modulo 32, and only 8 of its z = 256 shards ever see a key.

    Example:
        >>> shards_of(key_hashes(pa.array(["Oslo", "Rome", "Bern"])), 256)
        array([176, 251, 216], dtype=int32)
    """
    _require(hashes, "number of shards", shards)
    return _remainders(_mixed(hashes, "shard"), shards)


def key_hasher(*kinds: pa.DataType) -> KeyHasher | None:
    """A function that hashes one key at a time, given its values; as `key_hashes` does by columns.

    For few tuples: NumPy and Arrow cost a microsecond a call, however little they do, and many
    times that in a process that has just woken up. None if the values of a type can only be
    distinguished in columns.
    """
    hashers = [_value_hasher(kind) for kind in kinds]
    if not hashers or None in hashers:
        return None
    hash_first, *others = (hasher for hasher in hashers if hasher is not None)
    if not others:
        return lambda key: hash_first(key[0])
    count, golden, composite = len(kinds), int(_GOLDEN), int(_seed("composite"))

    def hashed(key: Sequence[Any]) -> int:
        whole = (hash_first(key[0]) + count) & _BITS
        for value, hasher in zip(key[1:], others, strict=True):
            whole = _mixed_one((whole * golden + hasher(value) & _BITS) ^ composite)
        return whole

    return hashed


def _value_hasher(kind: pa.DataType) -> Callable[[Any], int] | None:
    null = int(_NULL)
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        number = int(_seed("integer" if pa.types.is_integer(kind) else "boolean"))
        return lambda value: null if value is None else _mixed_one((value & _BITS) ^ number)
    text = int(_seed("bytes"))
    if str(kind) in ("string", "large_string"):
        return lambda value: null if value is None else xxh3_64_intdigest(value.encode(), text)
    if str(kind) in ("binary", "large_binary"):
        return lambda value: null if value is None else xxh3_64_intdigest(value, text)
    return None


def shard_hasher(shards: int) -> Callable[[Iterable[int]], list[int]]:
    """A function from few hashes to the shard of each; as `shards_of` does for arrays."""
    if not 1 <= shards <= _MOST:
        raise BadValueError("number of shards", f"be 1 to {_MOST}", shards)
    seed = int(_seed("shard"))
    return lambda hashes: [_mixed_one(one ^ seed) % shards for one in hashes]


def _require(hashes: Hashes, who: str, count: int) -> None:
    if not 1 <= count <= _MOST:
        raise BadValueError(who, f"be 1 to {_MOST}", count)
    dtype = getattr(hashes, "dtype", None)
    if dtype != np.uint64 or hashes.ndim != 1:
        got = f"{type(hashes).__name__} of {dtype}"
        raise BadValueError("hashes", "be a flat array of uint64", got, "call key_hashes first")


def _remainders(hashes: Hashes, count: int) -> npt.NDArray[np.int32]:
    """The hashes modulo a number; for a power of two that is a mask, and three times as fast."""
    if count & (count - 1):
        return (hashes % np.uint64(count)).astype(np.int32)
    return (hashes & np.uint64(count - 1)).astype(np.int32)


@lru_cache(maxsize=32)
def _seed(family: str) -> np.uint64:
    return np.uint64(xxh3_64_intdigest(family.encode()))


_NULL = _seed("null")
_30, _27, _31 = np.uint64(30), np.uint64(27), np.uint64(31)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_BITS = (1 << 64) - 1
_FEW = 4
"""Up to this many keys are hashed one by one."""
_FEW_BY_VALUE = frozenset({pa.Int64Array, pa.Int32Array, pa.StringArray})


def _mixed(bits: Hashes, family: str) -> Hashes:
    """SplitMix64's finaliser (Steele, Lea and Flood 2014; Stafford's Mix13), seeded per family.

    It is a bijection: within a family, different bits never share their hash.
    """
    if len(bits) <= _FEW:
        seed = int(_seed(family))
        return np.array([_mixed_one(one ^ seed) for one in bits.tolist()], np.uint64)
    z = bits ^ _seed(family)
    z ^= z >> _30
    z *= _FIRST
    z ^= z >> _27
    z *= _SECOND
    z ^= z >> _31
    return z


def _mixed_one(z: int) -> int:
    """The same of one number: NumPy takes a microsecond for each step, however few there are."""
    z = ((z ^ z >> 30) * 0xBF58476D1CE4E5B9) & _BITS
    z = ((z ^ z >> 27) * 0x94D049BB133111EB) & _BITS
    return z ^ z >> 31


def _few_hashes(column: Any) -> Hashes:
    """The hashes of few whole numbers or strings."""
    hashed = _value_hasher(column.type)
    assert hashed is not None  # these types have one
    return np.array([hashed(value) for value in column.to_pylist()], np.uint64)


def _combined(columns: Sequence[Hashes]) -> Hashes:
    """The hash of a composite key. One column stays as it is.

    The number of columns goes in as well, so that ((a, b), c) is not (a, b, c).
    """
    if len(columns) == 1:
        return columns[0]
    first, *others = columns
    return reduce(
        lambda left, right: _mixed(left * _GOLDEN + right, "composite"),
        others,
        first + np.uint64(len(columns)),
    )


def _column_hashes(column: pa.Array | pa.ChunkedArray) -> Hashes:
    if isinstance(column, pa.ChunkedArray):
        # Without chunks there is still a type, which may be one to refuse.
        chunks = column.chunks or [pa.nulls(0, column.type)]
        return np.concatenate([_column_hashes(chunk) for chunk in chunks])
    if pa.types.is_null(column.type):
        return np.full(len(column), _NULL)
    if pa.types.is_dictionary(column.type):  # nulls may be in the dictionary as well
        return _taken(_column_hashes(column.dictionary), column.indices)
    hashes = _value_hashes(column)
    if column.null_count:
        hashes[column.is_null().to_numpy(zero_copy_only=False)] = _NULL
    return hashes


def _value_hashes(array: pa.Array) -> Hashes:
    """A fresh array of hashes; where the array is null they may be anything."""
    kind = array.type
    if pa.types.is_struct(kind) and kind.num_fields > 0:
        return _combined([_column_hashes(array.field(i)) for i in range(kind.num_fields)])
    if str(kind) in _BYTES or pa.types.is_fixed_size_binary(kind):
        encoded = array.dictionary_encode()
        distinct = encoded.dictionary.cast(pa.large_binary()).to_numpy(zero_copy_only=False)
        return _taken(_bytes_hashes(distinct, "bytes"), encoded.indices)
    if pa.types.is_decimal(kind):
        # Narrower ones cannot be dictionary-encoded.
        wide = array if kind.bit_width >= 128 else array.cast(pa.decimal128(38, kind.scale))
        encoded = wide.dictionary_encode()
        texts = map(_decimal_text, encoded.dictionary.to_pylist())
        return _taken(_bytes_hashes(texts, "decimal"), encoded.indices)
    for family, (belongs, bits) in _FIXED_WIDTH.items():
        if belongs(kind):
            return _mixed(bits(array), family)
    hint = "key by its parts as columns, by the storage of an extension type, or cast to string"
    must = "be a number, boolean, string, binary, date, time, or a struct of these"
    raise UnsupportedKeyError("column of a key", must, str(kind), hint)


def _taken(distinct: Hashes, indices: pa.Array) -> Hashes:
    """The hashes at these places; at a null index, the hash of null."""
    places = pc.fill_null(indices.cast(pa.int64()), len(distinct))
    taken: Hashes = np.append(distinct, _NULL)[places.to_numpy()]
    return taken


def _bytes_hashes(values: Iterable[bytes], family: str) -> Hashes:
    seed = int(_seed(family))
    return np.fromiter((xxh3_64_intdigest(value, seed) for value in values), np.uint64)


def _decimal_text(number: decimal.Decimal) -> bytes:
    """The shortest form of a number: 1.00 and 1.0 give `1`, 10 gives `1E+1`."""
    return _EXACT.to_sci_string(_EXACT.normalize(number)).encode()


def _stored(array: pa.Array, kind: pa.DataType) -> npt.NDArray[np.generic]:
    """The values as they are in memory, nulls not looked at: without a copy, save for booleans."""
    buffers = [None, array.buffers()[1]]
    plain = pa.Array.from_buffers(kind, len(array), buffers, offset=array.offset)
    stored: npt.NDArray[np.generic] = plain.to_numpy(zero_copy_only=False)
    return stored


def _whole_bits(array: pa.Array) -> Hashes:
    return _stored(array, array.type).astype(np.uint64)


def _float_bits(array: pa.Array) -> Hashes:
    with np.errstate(invalid="ignore"):  # widening a signalling NaN is no accident here
        doubles = _stored(array, array.type).astype(np.float64) + 0.0  # turns -0.0 into 0.0
    bits = doubles.view(np.uint64)
    bits[np.isnan(doubles)] = 0x7FF8_0000_0000_0000
    return bits


def _ticks(array: pa.Array) -> npt.NDArray[np.int64]:
    kind = pa.int32() if array.type.bit_width == 32 else pa.int64()
    return _stored(array, kind).astype(np.int64)


def _day_bits(array: pa.Array) -> Hashes:
    days = _ticks(array) if pa.types.is_date32(array.type) else _ticks(array) // _DAY_MS
    return days.view(np.uint64)


def _microsecond_bits(array: pa.Array) -> Hashes:
    """Times too far away for 64 bits wrap around, and alike from seconds and milliseconds."""
    ticks, unit = _ticks(array), array.type.unit
    return (ticks // 1_000 if unit == "ns" else ticks * _MICROSECONDS[unit]).view(np.uint64)


_FIXED_WIDTH: dict[str, tuple[Callable[[pa.DataType], bool], Callable[[pa.Array], Hashes]]] = {
    "boolean": (pa.types.is_boolean, _whole_bits),
    "integer": (pa.types.is_integer, _whole_bits),
    "float": (pa.types.is_floating, _float_bits),
    "date": (pa.types.is_date, _day_bits),
    "timestamp": (pa.types.is_timestamp, _microsecond_bits),
    "time": (pa.types.is_time, _microsecond_bits),
    "duration": (pa.types.is_duration, _microsecond_bits),
}
"""Per family: does a type belong to it, and the 64 bits that equal values of it share."""
