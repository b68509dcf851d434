"""The levels of a store: what is committed, what is prepared, what is open.

Every record that is not committed yet belongs to the epoch that wrote it. With the epochs in
rising order, the oldest uncommitted one that is durable is the level *prepared*, and the newest is
*open*; but the store need not know where the line runs. It keeps one table per uncommitted epoch,
reads from the newest to the oldest and then the committed table, and so

- committing epoch b is to say so: from then on the tables up to b count as committed,
- these are folded into the committed table in slices, since a long write would hold up the tasks,
- rolling back to b commits up to b and drops the tables after it,
- the increment of epoch b is just its table,
- a record that travels to another node carries its epoch, and falls into the right place there
  even when the two nodes have not heard of the same commits yet.

A fold cannot be seen. It goes from the oldest level to the newest, and a record comes into the
committed table in the same transaction in which it leaves its level; so a reader from the
newest level to the oldest finds the same value before, between and after any two slices. What
comes from elsewhere for the committed level is newer than what is still to be folded of the same
key, which is therefore removed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import repeat
from typing import Any, Final, overload

from elasticutor.core.protocol.ids import Attempt, Epoch, ShardId
from elasticutor.errors import OutOfOrderError, StaleAttemptError
from elasticutor.state.backend import MISSING, Backend, Held, Missing, Value

_COMMITTED = "committed"
_CHANGED = "changed"  # keys written since the copy of a watched shard began
_FENCE, _LEVELS, _WATCHED = "fence", "levels", "watched"
_SHARDS_AT_ONCE: Final = 32  # in one slice of a fold, for the first few records of each cost most


Cursor = tuple[int, bytes | None]
"""How far a copy has come: the level (its epoch, 0 for the committed one), the last key in it."""

START: Cursor = (0, None)


@dataclass(frozen=True, slots=True, init=False)
class Record:
    """A key's value as one epoch left it; `None` means that this epoch deleted the key."""

    key: bytes
    epoch: Epoch
    value: Value

    def __init__(self, key: bytes, epoch: Epoch, value: Value) -> None:
        # Like what a frozen dataclass has, in half of the time: there are very many of these.
        _set_key(self, key)
        _set_epoch(self, epoch)
        _set_value(self, value)

    @property
    def size(self) -> int:
        """Bytes of key and value."""
        return len(self.key) + len(self.value or b"")


_slots: dict[str, Any] = dict(vars(Record))
_set_key, _set_epoch, _set_value = (_slots[name].__set__ for name in ("key", "epoch", "value"))


@dataclass(frozen=True, slots=True)
class Records(Sequence[Record]):
    """Records of one epoch by columns; each is made when it is asked for."""

    epoch: Epoch
    keys: list[bytes]
    values: list[Value]

    def __len__(self) -> int:
        return len(self.keys)

    def __iter__(self) -> Iterator[Record]:
        return map(Record, self.keys, repeat(self.epoch), self.values)

    @overload
    def __getitem__(self, place: int) -> Record: ...
    @overload
    def __getitem__(self, place: slice) -> Records: ...
    def __getitem__(self, place: int | slice) -> Record | Records:
        if isinstance(place, slice):
            return Records(self.epoch, self.keys[place], self.values[place])
        return Record(self.keys[place], self.epoch, self.values[place])

    @property
    def size(self) -> int:
        """Bytes of keys and values."""
        return sum(map(len, self.keys)) + sum(map(len, filter(None, self.values)))


class Increment:
    """What an epoch changed in some shards, as of when it was asked for.

    It is read when it is needed, in any thread; until then it costs nothing but freed pages that
    the store cannot use again.
    """

    def __init__(self, epoch: Epoch, held: Held) -> None:
        self.epoch = epoch
        self.size = 0  # bytes of keys and values, once they are read
        self._held = held
        self._records: dict[ShardId, Records] | None = None

    def read(self) -> Mapping[ShardId, Records]:
        """The changes by shard, deletions included; without the shards that have none."""
        if self._records is None:
            found = self._held.read()
            self._records = {s: Records(self.epoch, *columns) for s, columns in found.items()}
            self.size = sum(records.size for records in self._records.values())
        return self._records

    def release(self) -> None:
        """Let go of what will not be read."""
        self._held.release()


class Levels:
    """The state of one executor's shards on one node, with a level per uncommitted epoch.

    The node's keeper and every task there have one each, over the same backend; so nothing that
    one of them must know of another is kept anywhere but in the backend. Whatever changes the store
    is one transaction, and reads fence, levels and watched shards in it: a task of a past attempt
    is refused even if the attempt ended, in another process, a moment ago.

    One call of `fold` or `drop_some` takes about `slice_records` records.
    """

    def __init__(self, backend: Backend, *, slice_records: int = 512) -> None:
        self._backend = backend
        self._slice_records = slice_records

    @classmethod
    def create(
        cls, backend: Backend, *, attempt: Attempt, committed: Epoch, slice_records: int = 512
    ) -> Levels:
        """An empty store."""
        backend.save(_FENCE, (attempt, committed))
        return cls(backend, slice_records=slice_records)

    @property
    def attempt(self) -> Attempt:
        """The attempt whose tasks may write; those of later ones may too, of earlier ones not."""
        return Attempt(self._backend.load(_FENCE)[0])

    @property
    def committed(self) -> Epoch:
        """The newest epoch that will not be rolled back."""
        return Epoch(self._backend.load(_FENCE)[1])

    @property
    def uncommitted(self) -> tuple[Epoch, ...]:
        """The epochs after it that have a level, in rising order."""
        committed = self.committed
        return tuple(level for level in self._levels() if level > committed)

    @property
    def folding(self) -> tuple[Epoch, ...]:
        """The committed epochs that still have a level, in rising order."""
        committed = self.committed
        return tuple(level for level in self._levels() if level <= committed)

    @property
    def watched(self) -> tuple[ShardId, ...]:
        """The shards whose changes are noted."""
        return tuple(map(ShardId, self._backend.load(_WATCHED)))

    def read(self, shard: ShardId, key: bytes) -> Value:
        """The newest value of a key, `None` if it has none."""
        with self._backend.reading():
            return self._newest(self._newest_first(), shard, key)

    def read_many(self, keys: Iterable[tuple[ShardId, bytes]]) -> list[Value]:
        """The newest value of each key, all as of one moment: to begin to read costs the most."""
        with self._backend.reading():
            tables = self._newest_first()
            return [self._newest(tables, shard, key) for shard, key in keys]

    def write(
        self, attempt: Attempt, epoch: Epoch, shard: ShardId, items: Collection[tuple[bytes, Value]]
    ) -> None:
        """Take over what a task changed in the epoch; refuses writers of a past attempt."""
        with self._backend.transaction():
            current, committed = self._backend.load(_FENCE)
            if attempt < current:
                raise StaleAttemptError("writer's attempt", f"be {current} or later", attempt)
            if epoch <= committed:
                raise OutOfOrderError("epoch written", f"be after {committed}", epoch)
            self._put(epoch, shard, items)
            self._note_changes(shard, items)

    def together(self) -> AbstractContextManager[object]:
        """Let all writes inside be one, which costs less than each by itself."""
        return self._backend.transaction()

    def increment(self, epoch: Epoch, shard: ShardId) -> tuple[Record, ...]:
        """What the epoch changed in the shard, deletions included; nothing once it is committed."""
        with self._backend.reading():
            if epoch <= self.committed:
                return ()
            return _records(self._backend.scan(_table(epoch), shard), epoch)

    def hold(self, epoch: Epoch, shards: Collection[ShardId]) -> Increment:
        """What the epoch has changed in these shards until now, to be read later."""
        named = shards if epoch > self.committed else ()
        return Increment(epoch, self._backend.hold(_table(epoch), named))

    def commit(self, epoch: Epoch) -> None:
        """Let every level up to the epoch count as committed; `fold` does the rest."""
        with self._backend.transaction():
            self._backend.save(_FENCE, (self.attempt, max(self.committed, epoch)))

    def fold(self) -> bool:
        """Move some records of committed epochs to the committed level; whether more are left."""
        with self._backend.transaction():
            levels = self.folding
            if not levels:
                return False
            self._fold(levels[0])
            return bool(self.folding)

    def roll_back(self, attempt: Attempt, base: Epoch, keep: Collection[ShardId]) -> None:
        """Return to the state of `base`; forget all shards but those to keep.

        A base before the newest commit is gone from here: then there is nothing to keep, and its
        state must come from elsewhere.
        """
        kept = frozenset(keep)
        with self._backend.transaction():
            committed = self.committed
            if base < committed and kept:
                raise OutOfOrderError("base to keep shards of", f"be {committed} or later", base)
            self._backend.save(_FENCE, (attempt, base))
            for shard in self.watched:
                self.unwatch(shard)
            for level in self._levels():
                self._drop_others(_table(level), kept if level <= base else ())
            left = tuple(level for level in self._levels() if self._has_records(level))
            self._backend.save(_LEVELS, left)
            self._drop_others(_COMMITTED, kept)

    # Moving a shard to another node

    def watch(self, shard: ShardId) -> None:
        """Note from now on which keys of the shard change."""
        with self._backend.transaction():
            self._backend.save(_WATCHED, tuple(sorted({*self.watched, shard})))

    def unwatch(self, shard: ShardId) -> None:
        """Stop noting them."""
        with self._backend.transaction():
            self._backend.save(_WATCHED, tuple(s for s in self.watched if s != shard))
            self._backend.drop(_CHANGED, shard)

    def copy(
        self, shard: ShardId, cursor: Cursor = START, limit: int = 256
    ) -> tuple[tuple[Record, ...], Cursor | None]:
        """Some records of a shard from the cursor on, oldest level first, and where to go on.

        Writes, commits and folds may come between two calls. What they change in a watched shard is
        noted as changed, so it does not matter whether the copy has seen it. What is still to be
        folded follows what it is to be folded into, as of the same epoch.
        """
        reached, after = cursor
        with self._backend.reading():
            committed = self.committed
            for level, table in self._tables():
                if level < reached:
                    continue
                found = self._backend.scan(table, shard, after if level == reached else None, limit)
                if found:
                    return _records(found, Epoch(max(level, committed))), (level, found[-1][0])
        return (), None

    def changed_records(self, shard: ShardId) -> Iterator[Record]:
        """Everything of those keys of a shard that changed since `watch`, oldest level first.

        A key that the committed level does not have is sent as deleted there: a deletion that was
        committed since the copy leaves no other trace, and the copy still has the old value.
        """
        # Read at once, and not as they are asked for: a read that lasts would keep old pages alive.
        found: list[Record] = []
        with self._backend.reading():
            keys = [key for key, _ in self._backend.scan(_CHANGED, shard)]
            committed = self.committed
            base = [*map(_table, reversed(self.folding)), _COMMITTED]
            found += [Record(key, committed, self._newest(base, shard, key)) for key in keys]
            for epoch in self.uncommitted:
                for key in keys:
                    value = self._backend.get(_table(epoch), shard, key)
                    if not isinstance(value, Missing):
                        found.append(Record(key, epoch, value))
        return iter(found)

    def merge(self, shard: ShardId, records: Iterable[Record]) -> None:
        """Take records that came from another node or a checkpoint, oldest level first."""
        if isinstance(records, Records):
            with self._backend.transaction():
                self._put(
                    records.epoch, shard, list(zip(records.keys, records.values, strict=True))
                )
            return
        by_epoch: dict[Epoch, dict[bytes, Value]] = {}
        for record in records:
            by_epoch.setdefault(record.epoch, {})[record.key] = record.value
        with self._backend.transaction():
            for epoch in sorted(by_epoch):
                self._put(epoch, shard, by_epoch[epoch].items())

    def drop(self, shard: ShardId) -> None:
        """Forget a shard on all levels."""
        with self._backend.transaction():
            self.unwatch(shard)
            for _, table in self._tables():
                self._backend.drop(table, shard)

    def drop_some(self, shard: ShardId) -> bool:
        """Forget some of a shard that is not used any more; returns whether there is more of it."""
        room = self._slice_records
        with self._backend.transaction():
            if shard in self.watched:
                self.unwatch(shard)
            for _, table in self._tables():
                room -= self._backend.drop(table, shard, room)
                if not room:
                    return True
        return False

    def shards(self) -> frozenset[ShardId]:
        """The shards with any record; a deletion that is committed is none."""
        with self._backend.reading():
            tables = [table for level, table in self._tables() if level <= self.committed]
            found = {s for e in self.uncommitted for s in self._backend.shards(_table(e))}
            for shard in {s for table in tables for s in self._backend.shards(table)} - found:
                newest = self._merged(tables, shard)
                if any(value is not None for value in newest.values()):
                    found.add(shard)
            return frozenset(found)

    def contents(self) -> dict[bytes, bytes]:
        """The newest value of every key, over all shards."""
        found: dict[bytes, bytes] = {}
        with self._backend.reading():
            tables = [table for _, table in self._tables()]
            for shard in sorted({s for table in tables for s in self._backend.shards(table)}):
                newest = self._merged(tables, shard)
                found.update((key, value) for key, value in newest.items() if value is not None)
        return found

    def _merged(self, tables: Iterable[str], shard: ShardId) -> dict[bytes, Value]:
        """The newest value of every key of a shard, deletions included, given the oldest first."""
        newest: dict[bytes, Value] = {}
        for table in tables:
            newest.update(self._backend.scan(table, shard))
        return newest

    def _newest(self, tables: Iterable[str], shard: ShardId, key: bytes) -> Value:
        for table in tables:
            value = self._backend.get(table, shard, key)
            if value is not MISSING:
                return value
        return None

    def _newest_first(self) -> list[str]:
        return [*map(_table, reversed(self._backend.load(_LEVELS))), _COMMITTED]

    def _levels(self) -> tuple[Epoch, ...]:
        return tuple(map(Epoch, self._backend.load(_LEVELS)))

    def _tables(self) -> list[tuple[int, str]]:
        """All levels and their tables, oldest first."""
        return [(0, _COMMITTED), *((level, _table(level)) for level in self._levels())]

    def _has_records(self, level: Epoch) -> bool:
        return bool(self._backend.shards(_table(level), 1))

    def _put(self, epoch: Epoch, shard: ShardId, items: Collection[tuple[bytes, Value]]) -> None:
        if epoch <= self.committed:
            self._put_committed(shard, items)
            return
        levels = self._levels()
        if epoch not in levels:
            self._backend.save(_LEVELS, tuple(sorted([*levels, epoch])))
        self._backend.put(_table(epoch), shard, items)

    def _put_committed(self, shard: ShardId, items: Collection[tuple[bytes, Value]]) -> None:
        # Below the committed level there is nothing that a deletion would have to hide.
        self._backend.put(_COMMITTED, shard, [item for item in items if item[1] is not None])
        self._backend.remove(_COMMITTED, shard, [key for key, value in items if value is None])
        # Above it there may be what is older and still to be folded: it would hide this.
        for level in self.folding:
            if self._backend.scan(_table(level), shard, None, 1):
                self._backend.remove(_table(level), shard, [key for key, _ in items])

    def _fold(self, level: Epoch) -> None:
        table, room, watched = _table(level), self._slice_records, self.watched
        for shard in self._backend.shards(table, _SHARDS_AT_ONCE):
            if shard in watched:
                self._note_changes(shard, self._backend.scan(table, shard, None, room))
            room -= self._backend.move(table, _COMMITTED, shard, room)
            if not room:
                break
        if not self._has_records(level):
            self._backend.save(_LEVELS, tuple(e for e in self._levels() if e != level))

    def _drop_others(self, table: str, keep: Collection[ShardId]) -> None:
        for shard in self._backend.shards(table):
            if shard not in keep:
                self._backend.drop(table, shard)

    def _note_changes(self, shard: ShardId, items: Collection[tuple[bytes, Value]]) -> None:
        if shard in self.watched:
            self._backend.put(_CHANGED, shard, [(key, None) for key, _ in items])


def _table(epoch: int) -> str:
    return f"epoch-{epoch}"


def _records(items: Collection[tuple[bytes, Value]], epoch: Epoch) -> tuple[Record, ...]:
    return tuple([Record(key, epoch, value) for key, value in items])
