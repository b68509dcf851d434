"""Few tuples as they travel: each packed by itself, so that no process on their way opens a batch.

Arrow and NumPy are made for many rows. For few they cost a microsecond a call, and in a process
that has just woken up several times that: their code is large, and has left the caches. So few
tuples of simple types travel as MessagePack, a value of bytes each. The main process divides and
joins such packets as lists; only the operator, or a sink that writes, looks inside.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Annotated, Any, Final

import msgspec
import numpy as np
import pyarrow as pa

from elasticutor.errors import BadValueError
from elasticutor.transport.packets import Births

MOST_ROWS: Final = 32
"""Up to this number, tuples are packed one by one; more are cheaper as a batch."""

MOST_BYTES: Final = 32 * 1024
"""The same in bytes of tuples: larger values are copied less often as a batch."""

UNREADABLE: Final = (msgspec.MsgspecError, UnicodeDecodeError)
"""What reading a row raises that is none of the schema's."""

Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
Natural = Annotated[int, msgspec.Meta(ge=0)]

_MOST_KNOWN: Final = 1024
"""Combinations of types that are remembered: with nulls, columns have many."""
_ROW_BYTES: Final = 16
"""What a tuple costs besides its values, as it counts against a credit: its birth and its hash."""


def _whole(bits: int) -> Any:
    return Annotated[int, msgspec.Meta(ge=-(1 << bits - 1), le=(1 << bits - 1) - 1)]


def _natural(bits: int) -> Any:
    # What is above 64 bits is no MessagePack at all.
    most = msgspec.Meta(ge=0) if bits == 64 else msgspec.Meta(ge=0, le=(1 << bits) - 1)
    return Annotated[int, most]


_KINDS: Final[dict[Any, tuple[type, Any]]] = {
    **{pa.type_for_alias(f"int{bits}"): (int, _whole(bits)) for bits in (8, 16, 32, 64)},
    **{pa.type_for_alias(f"uint{bits}"): (int, _natural(bits)) for bits in (8, 16, 32, 64)},
    pa.float64(): (float, float),
    pa.bool_(): (bool, bool),
    pa.string(): (str, str),
    pa.large_string(): (str, str),
    pa.binary(): (bytes, bytes),
    pa.large_binary(): (bytes, bytes),
}
"""By type of column: the Python type of its values, and what a packed value must be."""


def _kind(type_: pa.DataType) -> tuple[type, Any] | None:
    """What a packed value of a column is, if the column is of a simple type."""
    if pa.types.is_fixed_size_binary(type_):
        width = msgspec.Meta(min_length=type_.byte_width, max_length=type_.byte_width)
        return bytes, Annotated[bytes, width]
    return _KINDS.get(type_)


class RowFormat:
    """Packs and unpacks the rows of one schema. Made by `RowFormat.of`.

    Example:
        >>> rows = RowFormat.of(pa.schema({"key": pa.string(), "count": pa.int64()}))
        >>> rows.unpack(rows.pack(("a", 1)))
        ('a', 1)
        >>> rows.pack(("a", "one")) is None
        True
    """

    def __init__(self, schema: pa.Schema, kinds: Sequence[tuple[type, Any]]) -> None:
        self.schema = schema
        self._types, packed = [], []
        for (kind, value), field in zip(kinds, schema, strict=True):
            self._types.append({kind, type(None)} if field.nullable else {kind})
            packed.append(value | None if field.nullable else value)
        self.unpack = msgspec.msgpack.Decoder(tuple[tuple(packed)]).decode  # type: ignore[misc]
        """The row that was packed; one of `UNREADABLE` if it is none of the schema's."""
        self._pack = msgspec.msgpack.Encoder().encode
        self._fit: dict[tuple[type, ...], bool] = {}  # by the types of a row's values
        self._bounded = any(kind not in (bool, float, str, bytes) for _, kind in kinds)

    @classmethod
    def of(cls, schema: pa.Schema) -> RowFormat | None:
        """The format of a schema; None if it has no columns, or one that is of no simple type."""
        kinds = [kind for field in schema if (kind := _kind(field.type)) is not None]
        return cls(schema, kinds) if len(kinds) == len(schema) > 0 else None

    def pack(self, row: Any) -> bytes | None:
        """The row as bytes; None if it is no tuple, or its values are not exactly of the schema.

        What could be converted, as an integer for a floating-point column, counts as not fitting:
        `RowWriter` converts, and says what is wrong.
        """
        if not isinstance(row, tuple):  # a dictionary, or a text: they would be packed as such
            return None
        types = tuple(map(type, row))
        fits = self._fit.get(types)
        if fits is None:
            if len(self._fit) >= _MOST_KNOWN:
                self._fit.clear()
            fits = self._fit[types] = len(types) == len(self._types) and all(
                kind in known for kind, known in zip(types, self._types, strict=True)
            )
        if not fits:
            return None
        try:
            packed = self._pack(row)
            if self._bounded:
                self.unpack(packed)  # refuses what does not fit into its column
        except (OverflowError, UnicodeEncodeError, *UNREADABLE):
            return None
        return packed

    def pack_parts(self, parts: Iterable[tuple[Any, ...]]) -> list[bytes]:
        """Some of the values of rows that `pack` has taken, as bytes; not looked at once more."""
        return list(map(self._pack, parts))

    def batch(self, packed: Sequence[bytes]) -> pa.RecordBatch:
        """The rows as a record batch."""
        try:
            rows = list(map(self.unpack, packed))
        except UNREADABLE as error:
            raise BadValueError("packed row", f"be of {self.schema}", str(error)) from error
        columns = zip(*rows, strict=True) if rows else [()] * len(self.schema)
        arrays = map(pa.array, columns, self.schema.types)
        return pa.RecordBatch.from_arrays(list(arrays), schema=self.schema)


@lru_cache(maxsize=16)
def _format_of(schema: pa.Schema) -> RowFormat | None:
    """The format of a schema, kept: to make one takes longer than to open a packet."""
    return RowFormat.of(schema)


class RowPacket(msgspec.Struct, array_like=True, forbid_unknown_fields=True, eq=False):
    """Few tuples, each packed by itself, ready to be sent or just received.

    It stands beside `Packet`; either gives a batch by `open`.
    """

    born_us: list[Int64]
    """When each tuple was due, in microseconds since 1970."""
    hashes: list[Natural]
    """Of each tuple's key; empty on the way to a sink."""
    packed: list[bytes]

    @property
    def rows(self) -> int:
        """How many tuples."""
        return len(self.packed)

    @property
    def size(self) -> int:
        """Bytes, as they count against a credit; never 0."""
        return sum(map(len, self.packed)) + _ROW_BYTES * len(self.packed) + 1

    @property
    def births(self) -> Births:
        """As `Packet.births`."""
        return born_one_by_one(self.born_us)

    def open(self, schema: pa.Schema) -> pa.RecordBatch:
        """The tuples as a record batch; refused if they are not of this schema."""
        rows = _format_of(schema)
        if rows is None:
            raise BadValueError("packet of rows", "have columns of simple types", str(schema))
        return rows.batch(self.packed)


def born_one_by_one(born_us: Sequence[int]) -> Births:
    """The births of tuples, each a run of its own."""
    return np.array([(born, 1) for born in born_us], np.int64).reshape(-1, 2)
