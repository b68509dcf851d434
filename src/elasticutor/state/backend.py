"""Where a node keeps bytes: tables of shards of keys, without any notion of epochs."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from contextlib import AbstractContextManager, nullcontext
from enum import Enum
from itertools import islice
from typing import Protocol

from elasticutor.core.protocol.ids import ShardId


class Missing(Enum):
    """Says that a table has no record of a key; `None` says that the key was deleted."""

    MISSING = "missing"


MISSING = Missing.MISSING

Value = bytes | None
"""A record's value: bytes, or `None` for "deleted here"."""


Columns = tuple[list[bytes], list[Value]]
"""Keys and their values: many records take less time and memory so than one by one."""


class Held(Protocol):
    """Some shards of a table as they were at one moment, to be read later and in any thread."""

    def read(self) -> dict[ShardId, Columns]:
        """The records of each shard that has any, in the order of their keys; only once."""

    def release(self) -> None:
        """Let go of what will not be read; nothing happens if it was read already."""


class Backend(Protocol):
    """A key-value store with named tables, each divided into shards.

    Several processes may have one open at once. Each call is a transaction of its own, unless it
    is made within `transaction` or `reading`.
    """

    def transaction(self) -> AbstractContextManager[object]:
        """Let everything inside be one write: all of it is kept, or after an exception nothing.

        Nothing else is written meanwhile, so what is read inside still holds when it is done. One
        within another joins it.
        """

    def reading(self) -> AbstractContextManager[object]:
        """Let everything inside be read as it was at one moment; nothing may be written inside.

        One within another joins it, and one within a `transaction` sees what that has written.
        """

    def get(self, table: str, shard: ShardId, key: bytes) -> Value | Missing:
        """The record of the key in this table, if there is one."""

    def put(self, table: str, shard: ShardId, items: Iterable[tuple[bytes, Value]]) -> None:
        """Write records, over those of the same keys."""

    def remove(self, table: str, shard: ShardId, keys: Iterable[bytes]) -> None:
        """Take the records of these keys out of the table."""

    def scan(
        self, table: str, shard: ShardId, after: bytes | None = None, limit: int | None = None
    ) -> list[tuple[bytes, Value]]:
        """Records of a shard in the order of their keys: those after a key, up to a number.

        The order is that of the bytes; a backend may order keys that are too long for it in a way
        of its own, as long as a scan that goes on after any key, present or not, follows it too.
        """

    def shards(self, table: str, limit: int | None = None) -> tuple[ShardId, ...]:
        """The shards with at least one record in this table, or some of them."""

    def drop(self, table: str, shard: ShardId, limit: int | None = None) -> int:
        """Remove all or some records of a shard from this table; returns how many."""

    def move(self, source: str, target: str, shard: ShardId, limit: int) -> int:
        """Let the first records of a shard go to another table, over those of the same keys.

        What is deleted in the one table is missing in the other. Returns how many went.
        """

    def hold(self, table: str, shards: Collection[ShardId]) -> Held:
        """Some shards of a table as they are now, to be read later."""

    def load(self, name: str) -> tuple[int, ...]:
        """Numbers that any process saved last under a name; empty if none did."""

    def save(self, name: str, numbers: tuple[int, ...]) -> None:
        """Keep some numbers under a name."""


_ALONE: AbstractContextManager[object] = nullcontext()


class _Copied:
    def __init__(self, found: dict[ShardId, Columns]) -> None:
        self._found = found

    def read(self) -> dict[ShardId, Columns]:
        return self._found

    def release(self) -> None:
        self._found = {}


class MemoryBackend:
    """A backend of dictionaries: for simulations and tests.

    It belongs to one process, so no other can come between two of its calls: `transaction` and
    `reading` have nothing to do, and an exception within a transaction undoes nothing.
    """

    def __init__(self) -> None:
        self._tables: dict[str, dict[ShardId, dict[bytes, Value]]] = {}
        self._numbers: dict[str, tuple[int, ...]] = {}

    def transaction(self) -> AbstractContextManager[object]:
        """Do nothing: no other process can come between."""
        return _ALONE

    def reading(self) -> AbstractContextManager[object]:
        """Do nothing: no other process can come between."""
        return _ALONE

    def get(self, table: str, shard: ShardId, key: bytes) -> Value | Missing:
        """The record of the key in this table, if there is one."""
        return self._tables.get(table, {}).get(shard, {}).get(key, MISSING)

    def put(self, table: str, shard: ShardId, items: Iterable[tuple[bytes, Value]]) -> None:
        """Write records, over those of the same keys."""
        self._tables.setdefault(table, {}).setdefault(shard, {}).update(items)

    def remove(self, table: str, shard: ShardId, keys: Iterable[bytes]) -> None:
        """Take the records of these keys out of the table."""
        records = self._tables.get(table, {}).get(shard, {})
        for key in keys:
            records.pop(key, None)

    def scan(
        self, table: str, shard: ShardId, after: bytes | None = None, limit: int | None = None
    ) -> list[tuple[bytes, Value]]:
        """Records of a shard in the order of their keys: those after a key, up to a number."""
        records = self._tables.get(table, {}).get(shard, {})
        keys = sorted(key for key in records if after is None or key > after)
        return [(key, records[key]) for key in keys[:limit]]

    def shards(self, table: str, limit: int | None = None) -> tuple[ShardId, ...]:
        """The shards with at least one record in this table, or some of them."""
        found = (shard for shard, records in self._tables.get(table, {}).items() if records)
        return tuple(islice(found, limit))

    def drop(self, table: str, shard: ShardId, limit: int | None = None) -> int:
        """Remove all or some records of a shard from this table; returns how many."""
        gone = self.scan(table, shard, None, limit)
        self.remove(table, shard, [key for key, _ in gone])
        return len(gone)

    def move(self, source: str, target: str, shard: ShardId, limit: int) -> int:
        """Let the first records of a shard go to another table, over those of the same keys."""
        items = self.scan(source, shard, None, limit)
        self.put(target, shard, [item for item in items if item[1] is not None])
        self.remove(target, shard, [key for key, value in items if value is None])
        self.remove(source, shard, [key for key, _ in items])
        return len(items)

    def hold(self, table: str, shards: Collection[ShardId]) -> Held:
        """Some shards of a table as they are now: a copy, made at once."""
        found: dict[ShardId, Columns] = {}
        for shard in shards:
            if items := self.scan(table, shard):
                found[shard] = [key for key, _ in items], [value for _, value in items]
        return _Copied(found)

    def load(self, name: str) -> tuple[int, ...]:
        """Numbers that were saved under a name; empty if none were."""
        return self._numbers.get(name, ())

    def save(self, name: str, numbers: tuple[int, ...]) -> None:
        """Keep some numbers under a name."""
        self._numbers[name] = numbers
