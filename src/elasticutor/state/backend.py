"""Where a node keeps bytes: tables of shards of keys, without any notion of epochs."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import Protocol

from elasticutor.core.ids import ShardId


class Missing(Enum):
    """Says that a table has no record of a key; `None` says that the key was deleted."""

    MISSING = "missing"


MISSING = Missing.MISSING

Value = bytes | None
"""A record's value: bytes, or `None` for "deleted here"."""


class Backend(Protocol):
    """A key-value store with named tables, each divided into shards."""

    def get(self, table: str, shard: ShardId, key: bytes) -> Value | Missing:
        """The record of the key in this table, if there is one."""

    def put(self, table: str, shard: ShardId, items: Iterable[tuple[bytes, Value]]) -> None:
        """Write records, over those of the same keys."""

    def remove(self, table: str, shard: ShardId, keys: Iterable[bytes]) -> None:
        """Take the records of these keys out of the table."""

    def scan(
        self, table: str, shard: ShardId, after: bytes | None = None, limit: int | None = None
    ) -> list[tuple[bytes, Value]]:
        """Records of a shard in the order of their keys: those after a key, up to a number."""

    def shards(self, table: str) -> tuple[ShardId, ...]:
        """The shards with at least one record in this table."""

    def drop(self, table: str, shard: ShardId) -> None:
        """Remove all records of a shard from this table."""

    def load(self, name: str) -> tuple[int, ...]:
        """Some numbers that were saved under a name; empty if none were.

        Every process that has the backend open sees what the last one saved.
        """

    def save(self, name: str, numbers: tuple[int, ...]) -> None:
        """Keep some numbers under a name."""


class MemoryBackend:
    """A backend of dictionaries: for simulations and tests.

    Example:
        >>> backend = MemoryBackend()
        >>> backend.put("committed", ShardId(3), [(b"k", b"1"), (b"gone", None)])
        >>> backend.get("committed", ShardId(3), b"k"), backend.get("committed", ShardId(3), b"x")
        (b'1', <Missing.MISSING: 'missing'>)
    """

    def __init__(self) -> None:
        self._tables: dict[str, dict[ShardId, dict[bytes, Value]]] = {}
        self._numbers: dict[str, tuple[int, ...]] = {}

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

    def shards(self, table: str) -> tuple[ShardId, ...]:
        """The shards with at least one record in this table."""
        return tuple(shard for shard, records in self._tables.get(table, {}).items() if records)

    def drop(self, table: str, shard: ShardId) -> None:
        """Remove all records of a shard from this table."""
        self._tables.get(table, {}).pop(shard, None)

    def load(self, name: str) -> tuple[int, ...]:
        """Some numbers that were saved under a name; empty if none were."""
        return self._numbers.get(name, ())

    def save(self, name: str, numbers: tuple[int, ...]) -> None:
        """Keep some numbers under a name."""
        self._numbers[name] = numbers
