"""How records lie in an LMDB environment.

All tables live in LMDB's one unnamed database, whose keys are kept in the order of their bytes:

    length and name of table | shard, 4 bytes | key                       → value, or marker | value
    length and name of table | shard, 4 bytes | long key's start | digest → marker | key | value
    0 | name                                                              → numbers

So the records of a shard lie beside each other, in the order of their keys. LMDB takes keys of up
to 511 bytes; of a longer one its first 400 bytes and a digest stand in the key, and the whole of it
in the value. Long keys are therefore in the order of their first 400 bytes and then of the digest:
an order like any other, which a scan follows and can be resumed in.
"""

from __future__ import annotations

import hashlib
import struct
from functools import lru_cache
from itertools import islice, takewhile
from typing import Final

import lmdb

from elasticutor.core.protocol.ids import ShardId
from elasticutor.errors import BadValueError
from elasticutor.state.backend import Columns, Value

# A value is stored as it is, if it is as great as this: copying each one to put a marker before it
# costs an eighth of a large write. The others, empty or with a small first byte, have one.
UNMARKED: Final = b"\2"
PRESENT: Final = b"\1"
_DELETED: Final = b"\0"
LONGEST: Final = 400  # what LMDB's 511 bytes leave beside table, shard and digest, and some room
_DIGEST_BYTES: Final = 32
LENGTH: Final = struct.Struct(">I")
_FIRST_READ: Final = 16  # records


@lru_cache(maxsize=1024)
def tag_of(table: str) -> bytes:
    """What every key of a table begins with."""
    name = table.encode()
    if not 0 < len(name) <= 64:
        raise BadValueError("name of a table", "have 1 to 64 bytes", table)
    return bytes([len(name)]) + name


def prefix_of(table: str, shard: ShardId) -> bytes:
    """What every key of a shard in a table begins with."""
    return tag_of(table) + LENGTH.pack(shard)


def stored_key(key: bytes) -> bytes:
    """What stands for a key behind the prefix."""
    if len(key) <= LONGEST:
        return key
    # Longer than any short key, so the two kinds cannot be mistaken for each other.
    return key[:LONGEST] + hashlib.blake2b(key, digest_size=_DIGEST_BYTES).digest()


def long_record(prefix: bytes, key: bytes, value: Value) -> tuple[bytes, bytes]:
    """A record as it is stored, if its key is too long for LMDB."""
    marker = _DELETED if value is None else PRESENT
    return prefix + stored_key(key), marker + LENGTH.pack(len(key)) + key + (value or b"")


def long_item(data: bytes) -> tuple[bytes, Value]:
    """Key and value of such a record, from what is stored under its key."""
    begin = 1 + LENGTH.size
    end = begin + int(LENGTH.unpack_from(data, 1)[0])
    return data[begin:end], data[end:] if data.startswith(PRESENT) else None


def marked(value: Value) -> bytes:
    """A value as it is stored, if it cannot be stored as it is."""
    return _DELETED if value is None else PRESENT + value


def value_of(data: bytes) -> Value:
    """The value that is stored so, under a key that is not too long."""
    if data >= UNMARKED:
        return data
    return data[1:] if data.startswith(PRESENT) else None


def items_of(records: list[tuple[bytes, bytes]], prefix: bytes) -> list[tuple[bytes, Value]]:
    """Keys and values of records of one shard."""
    begin, longest = len(prefix), len(prefix) + LONGEST
    return [
        (place[begin:], data if data >= UNMARKED else value_of(data))
        if len(place) <= longest
        else long_item(data)
        for place, data in records
    ]


def columns_of(records: list[tuple[bytes, bytes]], prefix: bytes) -> Columns:
    """The same by columns."""
    begin, longest = len(prefix), len(prefix) + LONGEST
    if any(len(place) > longest for place, _ in records):
        items = items_of(records, prefix)
        return [key for key, _ in items], [value for _, value in items]
    keys = [place[begin:] for place, _ in records]
    return keys, [data if data >= UNMARKED else value_of(data) for _, data in records]


def records_within(
    cursor: lmdb.Cursor[bytes], prefix: bytes, start: bytes, limit: int | None
) -> list[tuple[bytes, bytes]]:
    """What is stored from a place on, as long as it begins with the prefix."""
    found: list[tuple[bytes, bytes]] = []
    if not cursor.set_range(start):
        return found
    # Some at a time, ever more: only the last ones of each time are looked at.
    records, size = cursor.iternext(), _FIRST_READ
    while limit is None or len(found) < limit:
        most = size if limit is None else min(size, limit - len(found))
        some = list(islice(records, most))
        if some and not some[-1][0].startswith(prefix):
            found += takewhile(lambda record: record[0].startswith(prefix), some)
            break
        found += some
        if len(some) < most:
            break
        size *= 2
    return found
