"""The levels of a store: what is committed, what is prepared, what is open.

Every record that is not committed yet belongs to the epoch that wrote it. With the epochs in
rising order, the oldest uncommitted one that is durable is the level *prepared*, and the newest is
*open*; but the store need not know where the line runs. It keeps one table per uncommitted epoch,
reads from the newest to the oldest and then the committed table, and so

- committing epoch b folds the tables up to b into the committed one,
- rolling back to b commits up to b and drops the tables after it,
- the increment of epoch b is just its table,
- a record that travels to another node carries its epoch, and falls into the right place there
  even when the two nodes have not heard of the same commits yet.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from elasticutor.core.ids import Attempt, Epoch, ShardId
from elasticutor.errors import OutOfOrderError, StaleAttemptError
from elasticutor.state.backend import MISSING, Backend, Value

_COMMITTED = "committed"
_CHANGED = "changed"  # keys written since the copy of a watched shard began
_FENCE, _UNCOMMITTED, _WATCHED = "fence", "uncommitted", "watched"


Cursor = tuple[int, bytes | None]
"""How far a copy has come: the level (its epoch, 0 for the committed one), the last key in it."""

START: Cursor = (0, None)


@dataclass(frozen=True, slots=True)
class Record:
    """A key's value as one epoch left it; `None` means that this epoch deleted the key."""

    key: bytes
    epoch: Epoch
    value: Value

    @property
    def size(self) -> int:
        """Bytes of key and value."""
        return len(self.key) + len(self.value or b"")


class Levels:
    """The state of one executor's shards on one node, with a level per uncommitted epoch.

    The node's keeper and every task there have one each, over the same backend; so nothing that
    one of them must know of another is kept anywhere but in the backend. Whatever changes the store
    is one transaction, and reads fence, levels and watched shards in it: a task of a past attempt
    is refused even if the attempt ended, in another process, a moment ago.

    Example:
        >>> from elasticutor.state.backend import MemoryBackend
        >>> store = Levels.create(MemoryBackend(), attempt=Attempt(1), committed=Epoch(0))
        >>> store.write(Attempt(1), Epoch(1), ShardId(0), [(b"k", b"one")])
        >>> store.write(Attempt(1), Epoch(2), ShardId(0), [(b"k", None)])
        >>> store.read(ShardId(0), b"k") is None
        True
        >>> store.roll_back(Attempt(2), Epoch(1), keep=[ShardId(0)])
        >>> store.read(ShardId(0), b"k")
        b'one'
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    @classmethod
    def create(cls, backend: Backend, *, attempt: Attempt, committed: Epoch) -> Levels:
        """An empty store."""
        backend.save(_FENCE, (attempt, committed))
        return cls(backend)

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
        return tuple(map(Epoch, self._backend.load(_UNCOMMITTED)))

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
        self,
        attempt: Attempt,
        epoch: Epoch,
        shard: ShardId,
        items: Collection[tuple[bytes, Value]],
    ) -> None:
        """Take over what a task changed in the epoch; refuses writers of a past attempt."""
        with self._backend.transaction():
            if attempt < self.attempt:
                raise StaleAttemptError("writer's attempt", f"be {self.attempt} or later", attempt)
            if epoch <= self.committed:
                raise OutOfOrderError("epoch written", f"be after {self.committed}", epoch)
            self._put(epoch, shard, items)
            self._note_changes(shard, items)

    def increment(self, epoch: Epoch, shard: ShardId) -> tuple[Record, ...]:
        """What the epoch changed in the shard, deletions included."""
        records = self._backend.scan(_table(epoch), shard)
        return tuple(Record(key, epoch, value) for key, value in records)

    def commit(self, epoch: Epoch) -> None:
        """Fold every level up to the epoch into the committed one."""
        with self._backend.transaction():
            for level in self.uncommitted:
                if level <= epoch:
                    self._fold(level)
            self._backend.save(_FENCE, (self.attempt, max(self.committed, epoch)))

    def roll_back(self, attempt: Attempt, base: Epoch, keep: Collection[ShardId]) -> None:
        """Return to the state of `base`; forget all shards but those to keep.

        A base before the newest commit is gone from here: then there is nothing to keep, and its
        state must come from elsewhere.
        """
        with self._backend.transaction():
            committed = self.committed
            if base < committed and keep:
                raise OutOfOrderError("base to keep shards of", f"be {committed} or later", base)
            self.commit(base)
            self._backend.save(_FENCE, (attempt, base))
            for level in self.uncommitted:
                for shard in self._backend.shards(_table(level)):
                    self._backend.drop(_table(level), shard)
            self._backend.save(_UNCOMMITTED, ())
            for shard in self.watched:
                self.unwatch(shard)
            for shard in self._backend.shards(_COMMITTED):
                if shard not in keep:
                    self._backend.drop(_COMMITTED, shard)

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

        Writes and commits may come between two calls. What they change in a watched shard is noted
        as changed, so it does not matter whether the copy has seen it.
        """
        reached, after = cursor
        with self._backend.reading():
            for epoch, table in self._tables():
                level = 0 if table == _COMMITTED else epoch
                if level < reached:
                    continue
                found = self._backend.scan(table, shard, after if level == reached else None, limit)
                if found:
                    records = tuple(Record(key, epoch, value) for key, value in found)
                    return records, (level, found[-1][0])
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
            for epoch, table in self._tables():
                for key in keys:
                    value = self._backend.get(table, shard, key)
                    if value is not MISSING:
                        found.append(Record(key, epoch, value))
                    elif table == _COMMITTED:
                        found.append(Record(key, epoch, None))
        return iter(found)

    def merge(self, shard: ShardId, records: Iterable[Record]) -> None:
        """Take records that came from another node or a checkpoint, oldest level first."""
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

    def shards(self) -> frozenset[ShardId]:
        """The shards with any record."""
        with self._backend.reading():
            return frozenset(
                shard for _, table in self._tables() for shard in self._backend.shards(table)
            )

    def contents(self) -> dict[bytes, bytes]:
        """The newest value of every key, over all shards."""
        newest: dict[tuple[ShardId, bytes], Value] = {}
        with self._backend.reading():
            for _, table in self._tables():
                for shard in self._backend.shards(table):
                    newest.update(((shard, key), v) for key, v in self._backend.scan(table, shard))
        return {key: value for (_, key), value in newest.items() if value is not None}

    def _newest(self, tables: Iterable[str], shard: ShardId, key: bytes) -> Value:
        for table in tables:
            value = self._backend.get(table, shard, key)
            if value is not MISSING:
                return value
        return None

    def _newest_first(self) -> list[str]:
        return [*map(_table, reversed(self._backend.load(_UNCOMMITTED))), _COMMITTED]

    def _tables(self) -> list[tuple[Epoch, str]]:
        return [(self.committed, _COMMITTED), *((e, _table(e)) for e in self.uncommitted)]

    def _put(self, epoch: Epoch, shard: ShardId, items: Collection[tuple[bytes, Value]]) -> None:
        if epoch > self.committed:
            if epoch not in self.uncommitted:
                self._backend.save(_UNCOMMITTED, tuple(sorted([*self.uncommitted, epoch])))
            self._backend.put(_table(epoch), shard, items)
        else:
            self._put_committed(shard, items)

    def _put_committed(self, shard: ShardId, items: Collection[tuple[bytes, Value]]) -> None:
        # Below the committed level there is nothing that a deletion would have to hide.
        self._backend.put(_COMMITTED, shard, [item for item in items if item[1] is not None])
        self._backend.remove(_COMMITTED, shard, [key for key, value in items if value is None])

    def _fold(self, level: Epoch) -> None:
        for shard in self._backend.shards(_table(level)):
            items = self._backend.scan(_table(level), shard)
            self._put_committed(shard, items)
            self._note_changes(shard, items)
            self._backend.drop(_table(level), shard)
        self._backend.save(_UNCOMMITTED, tuple(e for e in self.uncommitted if e != level))

    def _note_changes(self, shard: ShardId, items: Collection[tuple[bytes, Value]]) -> None:
        if shard in self.watched:
            self._backend.put(_CHANGED, shard, [(key, None) for key, _ in items])


def _table(epoch: int) -> str:
    return f"epoch-{epoch}"
