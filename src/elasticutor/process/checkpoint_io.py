"""Writes increments and reads shards of checkpoints, beside a node's event loop.

Whatever takes long happens in threads; what they have done is handed back to the node's own thread,
which is woken up for it.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import deque
from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache, partial
from typing import Any, TypeVar

from elasticutor.core.protocol.ids import Epoch, NodeId, ShardId
from elasticutor.core.protocol.keeper import ReadShard, WriteIncrement
from elasticutor.process.slices import ask_for_short_slices
from elasticutor.process.specs import Keeping
from elasticutor.state.checkpoint import (
    Location,
    Restorer,
    StateFile,
    StateForm,
    StorageError,
    write_increment,
)
from elasticutor.state.levels import Records

T = TypeVar("T")

_THREADS = 4
_MOST_INLINE = 16 << 10
"""The largest increment in bytes that travels with the manifest: one durable write, not two."""
_ALL_INLINE = 64 << 10
"""The most that those of all executors of an operator may be together."""
_PAUSES_S = (0.1, 0.5, 2.0)
"""Before each further try where storage refuses."""


def with_patience(work: Callable[[], T]) -> T:
    """Do some work, up to four times if storage refuses it; for threads that may wait.

    Raises:
        StorageError: It has refused each time.

    Example:
        >>> with_patience(lambda: "written")
        'written'
    """
    for pause_s in _PAUSES_S:
        try:
            return work()
        except StorageError:
            time.sleep(pause_s)
    return work()


@lru_cache(maxsize=16)
def _location(uri: str) -> Location:
    return Location.at(uri)


class CheckpointIo:
    """Writes and reads checkpoints for one node. All but the work itself is done by one thread."""

    def __init__(self, node: NodeId) -> None:
        ask_for_short_slices()  # the end of an epoch waits for this thread, and those it starts
        self._node = node
        self._pool: ThreadPoolExecutor | None = None
        self._reading, self._writing = os.pipe()
        os.set_blocking(self._reading, False)
        self._done: deque[tuple[Callable[[Any], None], Future[Any]]] = deque()
        self._restorers: dict[Hashable, _Restoring] = {}
        self._ready: deque[_Restoring] = deque()

    def fileno(self) -> int:
        """For multiplexing: readable when something was done."""
        return self._reading

    @property
    def busy(self) -> bool:
        """Whether there are shards to hand out."""
        return bool(self._ready)

    def write(
        self,
        keeping: Keeping,
        who: str,
        increment: WriteIncrement,
        then: Callable[[StateFile | Exception | None], None],
    ) -> None:
        """Make an increment durable, then pass its file, or the error, to `then`."""
        self._do(partial(self._written, keeping, who, increment), then)

    def _written(self, keeping: Keeping, who: str, increment: WriteIncrement) -> StateFile | None:
        return with_patience(
            lambda: write_increment(
                _location(keeping.uri),
                keeping.form,
                who,
                str(self._node),
                increment.attempt,
                increment.epoch,
                increment.shards,
                inline=_inline_bytes(keeping.form),
            )
        )

    def read(
        self,
        store: Hashable,
        keeping: Keeping,
        who: str,
        read: ReadShard,
        then: Callable[[ReadShard, Records | Exception], None],
    ) -> None:
        """Fetch a shard as of an epoch; all shards of one epoch are read at once."""
        key = (store, read.epoch)
        restoring = self._restorers.get(key)
        if restoring is None:
            restoring = self._restorers[key] = _Restoring(key, then)
            load = partial(self._loaded, keeping, who, read.epoch)
            self._do(load, partial(self._on_loaded, restoring))
        restoring.wanted.append(read)
        if restoring.found is not None and restoring not in self._ready:
            self._ready.append(restoring)

    def _loaded(self, keeping: Keeping, who: str, epoch: Epoch) -> Restorer:
        load = partial(Restorer.load, _location(keeping.uri), keeping.form, who, epoch)
        return with_patience(load)

    def _on_loaded(self, restoring: _Restoring, found: Restorer | Exception) -> None:
        if self._restorers.get(restoring.key) is restoring:  # it is still wanted
            restoring.found = found
            self._ready.append(restoring)

    def hand_out(self) -> None:
        """Hand out the next shard that was read; one at a time, since each takes its time."""
        restoring = self._ready.popleft()
        assert restoring.found is not None  # only then it is ready
        read = restoring.wanted.popleft()
        if restoring.wanted:
            self._ready.append(restoring)
        else:
            del self._restorers[restoring.key]
        found = restoring.found
        if not isinstance(found, Exception):
            try:
                restoring.then(read, found.records(ShardId(read.shard)))
                return
            except Exception as error:
                found = error
        restoring.then(read, found)

    def forget(self, store: Hashable) -> None:
        """Drop what was to be read for this store."""
        for key in [key for key in self._restorers if key[0] == store]:  # type: ignore[index]
            gone = self._restorers.pop(key)
            if gone in self._ready:
                self._ready.remove(gone)

    def _do(self, work: Callable[[], T], then: Callable[[T | Exception], None]) -> None:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="archive")
        future = self._pool.submit(work)
        future.add_done_callback(partial(self._note, then))

    def _note(self, then: Callable[[Any], None], future: Future[Any]) -> None:
        self._done.append((then, future))
        with contextlib.suppress(OSError):  # the node has ended
            os.write(self._writing, b"!")

    def take(self) -> None:
        """Hand back all that was done, in the calling thread."""
        with contextlib.suppress(BlockingIOError):
            os.read(self._reading, 4096)
        while self._done:
            then, future = self._done.popleft()
            error = future.exception()
            if error is not None and not isinstance(error, Exception):
                raise error
            then(error if error is not None else future.result())


def _inline_bytes(form: StateForm) -> int:
    """How large an increment of an executor may be to travel with the manifest.

    Every manifest repeats what is not folded yet, so all executors of an operator share a limit.
    """
    return min(_MOST_INLINE, _ALL_INLINE // form.executors)


class _Restoring:
    """An executor's state as of an epoch, on its way from the checkpoint."""

    def __init__(
        self, key: Hashable, then: Callable[[ReadShard, Records | Exception], None]
    ) -> None:
        self.key = key
        self.then = then
        self.wanted: deque[ReadShard] = deque()
        self.found: Restorer | Exception | None = None
