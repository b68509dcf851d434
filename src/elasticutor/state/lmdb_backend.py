"""A node's state in shared memory: one LMDB environment, open in every process that needs it.

Nothing is ever synced: what must survive the machine is in a checkpoint. What LMDB promises without
is all that is needed here: a process that is killed at any point, even within a write, leaves the
others with every transaction whole or not at all.
"""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Collection, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from operator import itemgetter
from pathlib import Path
from threading import Lock
from typing import Final, Self

import lmdb

from elasticutor.core.protocol.ids import ShardId
from elasticutor.errors import BadValueError, OutOfOrderError, ProtocolError, StateFullError
from elasticutor.state.backend import MISSING, Columns, Held, Missing, Value
from elasticutor.state.lmdb_form import (
    LENGTH,
    LONGEST,
    PRESENT,
    UNMARKED,
    columns_of,
    items_of,
    long_item,
    long_record,
    marked,
    prefix_of,
    records_within,
    stored_key,
    tag_of,
    value_of,
)

_SMALLEST_MAP: Final = 64 * 1024
_READERS: Final = 512
_LOCK_BYTES: Final = 64 * _READERS + 4096  # a reader has a cache line of its own
# A write that the disk takes only a part of is reported by LMDB as EIO.
_NO_ROOM: Final = frozenset({errno.EIO, errno.ENOSPC, errno.EFBIG, errno.EDQUOT})
_KEY: Final = itemgetter(0)
_JOINED: AbstractContextManager[object] = nullcontext()


class LmdbBackend:
    """A backend that several processes of one machine share.

    Each process has one of its own for a directory, made or attached after any fork, and uses it
    from one thread at a time; only what it has on `hold` may be read in another.
    """

    def __init__(self, environment: lmdb.Environment) -> None:
        self._environment = environment
        self._pid = os.getpid()
        self._transaction: lmdb.Transaction[bytes] | None = None
        self._writes = False  # whether that is a write transaction
        self._spoilt = False  # whether something inside it has failed
        self._snapshot = _Snapshot(self)
        self._inner = _Inner(self)
        self._open = _Open()

    @classmethod
    def create(cls, path: str, *, map_size: int) -> Self:
        """A new, empty environment in a directory that exists; in shared memory it is fast.

        `map_size` is the most bytes that it may grow to: address space, not memory, so what is not
        used costs nothing.
        """
        if map_size < _SMALLEST_MAP:
            raise BadValueError("map size of a store", f"be at least {_SMALLEST_MAP}", map_size)
        _allocate_lock_file(path)
        return cls(_open(path, map_size=map_size))

    @classmethod
    def attach(cls, path: str) -> Self:
        """The environment that another process has created in the directory, with its map size."""
        if not Path(path, "data.mdb").is_file():
            hint = "let the node's keeper create it first"
            raise BadValueError("store", "have been created", path, hint)
        return cls(_open(path, map_size=0))  # 0: as it was created

    def close(self) -> None:
        """Let go of the environment; its files stay.

        A process that came of a fork closes what it inherited before it attaches. Readers in
        other threads are waited for, but only to the end of the shard that they are at.
        """
        if os.getpid() != self._pid:  # the lock may be another thread's that did not come along
            self._environment.close()
            return
        with self._open.lock:
            self._open.still = False
            self._environment.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @property
    def path(self) -> str:
        """The directory of the environment."""
        return self._environment.path()

    @property
    def map_size(self) -> int:
        """The most bytes that the environment may grow to."""
        return self._environment.info()["map_size"]

    def used_bytes(self) -> int:
        """Bytes of the map that hold records now, in whole pages; freed pages are used again."""
        stat = self._environment.stat()
        pages = stat["branch_pages"] + stat["leaf_pages"] + stat["overflow_pages"]
        return pages * stat["psize"]

    def check_readers(self) -> int:
        """Free the pages that killed processes were reading; return how many processes."""
        return self._environment.reader_check()

    # Transactions

    def transaction(self) -> AbstractContextManager[object]:
        """Let everything inside be one write: all of it is kept, or after an exception nothing.

        Raises:
            StateFullError: There is no room; the store stays usable.
            ProtocolError: It is within a `reading`, a part had failed, or the process has forked.
        """
        if self._transaction is None:
            return self._outermost()
        if not self._writes:
            raise OutOfOrderError("write to a store", "not come within a reading", self.path)
        return self._inner

    @contextmanager
    def _outermost(self) -> Iterator[None]:
        self._transaction = self._begin(write=True)
        self._writes, self._spoilt = True, False
        try:
            yield
            if self._spoilt:
                hint = "let the exception reach the end of the outermost transaction"
                raise ProtocolError(
                    "transaction", "be given up once a part failed", self.path, hint
                )
            self._transaction.commit()
        except lmdb.Error as error:
            self._transaction.abort()
            if full := self._fullness(error):
                raise full from error
            raise
        except BaseException:
            self._transaction.abort()
            raise
        finally:
            self._transaction, self._writes = None, False

    def reading(self) -> AbstractContextManager[object]:
        """Let everything inside be read as it was at one moment; nothing may be written inside.

        Keep it short: what others write meanwhile is not seen, and costs them fresh pages.
        """
        return self._snapshot if self._transaction is None else _JOINED

    def _begin(self, *, write: bool) -> lmdb.Transaction[bytes]:
        if os.getpid() != self._pid:
            hint = "close it in the new process, then LmdbBackend.attach there"
            got = f"process {os.getpid()}, which came of a fork of {self._pid}"
            raise ProtocolError("store", "be used by the process that opened it", got, hint)
        return self._environment.begin(write=write)

    def _fullness(self, error: lmdb.Error) -> StateFullError | None:
        who, used = f"state in {self.path}", self.used_bytes()
        if isinstance(error, lmdb.MapFullError):
            must = "fit into its map"
            hint = "raise the map size, or spread the state over more nodes"
        elif error.code in _NO_ROOM:
            must = "fit on its disk or shared memory"
            hint = "give more shared memory (in a container: --shm-size), or keep state on disk"
        else:
            return None
        return StateFullError(who, must, f"{used} bytes used of {self.map_size}", hint)

    # Records

    def get(self, table: str, shard: ShardId, key: bytes) -> Value | Missing:
        """The record of the key in this table, if there is one."""
        place = prefix_of(table, shard) + stored_key(key)
        data = self._look_up(place)
        if data is None:
            return MISSING
        return value_of(data) if len(key) <= LONGEST else long_item(data)[1]

    def put(self, table: str, shard: ShardId, items: Iterable[tuple[bytes, Value]]) -> None:
        """Write records, over those of the same keys."""
        prefix = prefix_of(table, shard)
        # In order, because neighbours share pages; one by one, because the bytes that are made for
        # LMDB are then freed as soon as they are copied, and the next ones find warm memory.
        records = (
            (prefix + key, value if value is not None and value >= UNMARKED else marked(value))
            if len(key) <= LONGEST
            else long_record(prefix, key, value)
            for key, value in sorted(items, key=_KEY)
        )
        with self.transaction(), self._current.cursor() as cursor:
            cursor.putmulti(records, overwrite=True, append=False)

    def remove(self, table: str, shard: ShardId, keys: Iterable[bytes]) -> None:
        """Take the records of these keys out of the table."""
        prefix = prefix_of(table, shard)
        with self.transaction():
            for key in keys:
                self._current.delete(prefix + stored_key(key))

    def scan(
        self, table: str, shard: ShardId, after: bytes | None = None, limit: int | None = None
    ) -> list[tuple[bytes, Value]]:
        """Records of a shard in the order of their keys: those after a key, up to a number.

        Keys of more than 400 bytes are in the order of their first 400, then of their digest.
        """
        prefix = prefix_of(table, shard)
        start = prefix if after is None else prefix + stored_key(after) + b"\0"
        with self.reading(), self._current.cursor() as cursor:
            return items_of(records_within(cursor, prefix, start, limit), prefix)

    def shards(self, table: str, limit: int | None = None) -> tuple[ShardId, ...]:
        """The shards with at least one record in this table, or the first of them."""
        tag = tag_of(table)
        found: list[ShardId] = []
        with self.reading(), self._current.cursor() as cursor:
            there = cursor.set_range(tag)
            while there and len(found) != limit and (key := cursor.key()).startswith(tag):
                (shard,) = LENGTH.unpack_from(key, len(tag))
                found.append(ShardId(shard))
                there = cursor.set_range(prefix_of(table, ShardId(shard + 1)))
        return tuple(found)

    def drop(self, table: str, shard: ShardId, limit: int | None = None) -> int:
        """Remove all or the first records of a shard from this table; returns how many."""
        prefix = prefix_of(table, shard)
        count = 0
        with self.transaction(), self._current.cursor() as cursor:
            there = cursor.set_range(prefix)
            while there and count != limit and cursor.key().startswith(prefix):
                there = cursor.delete()
                count += 1
        return count

    def move(self, source: str, target: str, shard: ShardId, limit: int) -> int:
        """Let the first records of a shard go to another table, over those of the same keys."""
        old, new = prefix_of(source, shard), prefix_of(target, shard)
        size = len(old)
        with self.transaction(), self._current.cursor() as cursor:
            found = records_within(cursor, old, old, limit)
            # As they are: what a record is stored as does not depend on its table.
            present = [(new + place[size:], data) for place, data in found if data >= PRESENT]
            cursor.putmulti(present, overwrite=True, append=False)
            if len(present) < len(found):
                for place, data in found:
                    if data < PRESENT:
                        self._current.delete(new + place[size:])
            cursor.set_range(old)
            for _ in found:
                cursor.delete()  # and come to the next one
        return len(found)

    def hold(self, table: str, shards: Collection[ShardId]) -> Held:
        """Some shards as they are now, to be read soon: until then LMDB reuses no freed page."""
        return _Held(self._open, self._begin(write=False), table, shards)

    def load(self, name: str) -> tuple[int, ...]:
        """Some numbers that were saved under a name; empty if none were."""
        data = self._look_up(b"\0" + name.encode())
        return struct.unpack(f">{len(data) // 8}q", data) if data else ()

    def save(self, name: str, numbers: tuple[int, ...]) -> None:
        """Keep some numbers under a name."""
        with self.transaction():
            self._current.put(b"\0" + name.encode(), struct.pack(f">{len(numbers)}q", *numbers))

    def _look_up(self, place: bytes) -> bytes | None:
        transaction = self._transaction
        if transaction is not None:  # cheaper than to join a reading, and this is often called
            return transaction.get(place)
        with self._snapshot:
            return self._current.get(place)

    @property
    def _current(self) -> lmdb.Transaction[bytes]:
        assert self._transaction is not None
        return self._transaction


class _Snapshot:
    """The outermost `reading` of a backend, begun again each time: an old one sees old pages."""

    def __init__(self, backend: LmdbBackend) -> None:
        self._backend = backend

    def __enter__(self) -> None:
        self._backend._transaction = self._backend._begin(write=False)

    def __exit__(self, *exception: object) -> None:
        transaction, self._backend._transaction = self._backend._transaction, None
        if transaction is not None:
            transaction.abort()


class _Inner:
    """A transaction within another: if it fails, so does the other."""

    def __init__(self, backend: LmdbBackend) -> None:
        self._backend = backend

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, *details: object) -> None:
        if kind is not None:
            self._backend._spoilt = True


class _Open:
    """Whether a backend is; who reads in another thread has the lock meanwhile."""

    def __init__(self) -> None:
        self.lock = Lock()
        self.still = True


class _Held:
    """A read transaction that stays as it is; LMDB lets another thread go on with one of these."""

    def __init__(
        self,
        backend: _Open,
        transaction: lmdb.Transaction[bytes],
        table: str,
        shards: Collection[ShardId],
    ) -> None:
        self._backend = backend
        self._transaction = transaction
        self._table = table
        self._shards = shards

    def read(self) -> dict[ShardId, Columns]:
        found: dict[ShardId, Columns] = {}
        try:
            for shard in self._shards:
                prefix = prefix_of(self._table, shard)
                with self._backend.lock:
                    if not self._backend.still:
                        got = "one that was closed"
                        raise ProtocolError("store", "be open while it is read", got)
                    with self._transaction.cursor() as cursor:
                        records = records_within(cursor, prefix, prefix, None)
                if records:
                    found[shard] = columns_of(records, prefix)
        finally:
            self.release()
        return found

    def release(self) -> None:
        with self._backend.lock:
            if self._backend.still:
                self._transaction.abort()


def _open(path: str, *, map_size: int) -> lmdb.Environment:
    return lmdb.open(
        path,
        map_size=map_size,
        create=False,  # the directory, that is
        mode=0o600,
        sync=False,
        metasync=False,
        readahead=False,
        # With a map that is written to, a full tmpfs is a SIGBUS; without, it is an error code.
        writemap=False,
        meminit=False,
        max_readers=_READERS,
        # A cached reader would be taken from the parent by a forked child that closes it.
        max_spare_txns=0,
    )


def _allocate_lock_file(path: str) -> None:
    """Give the lock file its pages: LMDB maps it, and a page without room would be a SIGBUS."""
    lock = Path(path, "lock.mdb")
    try:
        lock.touch(mode=0o600, exist_ok=False)
    except FileExistsError as error:
        hint = "attach to it, or take an empty directory"
        raise BadValueError("directory of a new store", "have none yet", path, hint) from error
    lock.write_bytes(bytes(_LOCK_BYTES))
