"""A node's side of the protocol: it keeps one executor's store, and moves shards in and out of it.

Instructions of the executor's main process reach a keeper in order; slices of state come from
other keepers at any time, and those of a move that was given up are refused.

What takes long is done in slices of about a millisecond, with whatever else there is to do between
them: copies, folds of committed epochs, and the removal of shards that have moved away.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from elasticutor.core.message import Message
from elasticutor.core.protocol import events as ev
from elasticutor.core.protocol import instructions as do
from elasticutor.core.protocol.ids import Attempt, Epoch, MoveId, NodeId, ShardId
from elasticutor.errors import BadValueError, StaleAttemptError
from elasticutor.state.levels import START, Cursor, Increment, Levels, Record, Records


class SendSlice(Message):
    """Send some of a shard's state to another node's keeper."""

    node: NodeId
    """Where to."""
    move: MoveId
    shard: ShardId
    records: tuple[Record, ...]
    last: bool
    """Whether these are the last of the copy, or of the rest."""
    rest: bool
    """Whether the shard is held meanwhile."""


class CopyOn(Message):
    """Go on with a copy by `Keeper.copy_on`, when what else there is to do has been done."""

    move: MoveId


class FoldOn(Message):
    """Go on with folding what is committed by `Keeper.fold_on`, in the same way."""

    epoch: Epoch
    """The newest that was committed."""


class DropOn(Message):
    """Go on with the removal of a shard by `Keeper.drop_on`, in the same way."""

    shard: ShardId


class WriteIncrement(Message):
    """Make an epoch's changes durable, then call `Keeper.written`.

    The changes are those of the moment at which this was asked for, and are read from the store
    when they are needed: soon, and in the thread that writes them, for it takes its time.
    """

    attempt: Attempt
    epoch: Epoch
    increment: Increment

    @property
    def shards(self) -> Mapping[ShardId, Records]:
        """The changes of every shard that has any."""
        return self.increment.read()


class ReadShard(Message):
    """Fetch a shard's state of the epoch from the checkpoint, then call `Keeper.restored`."""

    move: MoveId
    shard: ShardId
    epoch: Epoch


Errand = SendSlice | CopyOn | FoldOn | DropOn | WriteIncrement | ReadShard | ev.Event
"""What a keeper asks its host to do; an event is to be sent to the main process."""


@dataclass(slots=True)
class _Copy:
    order: do.CopyShard
    cursor: Cursor = START


class Keeper:
    """Keeps the store of one executor on one node."""

    def __init__(self, node: NodeId, store: Levels, *, slice_records: int = 256) -> None:
        self.node = node
        self.store = store
        self._slice_records = slice_records
        self._incoming: dict[MoveId, int] = {}  # bytes that came with the current phase
        self._outgoing: dict[MoveId, _Copy] = {}
        self._dropping: dict[ShardId, None] = {}  # in the order in which they are to go
        self._folds = False  # whether a `FoldOn` is under way

    @property
    def moves_under_way(self) -> tuple[MoveId, ...]:
        """Moves that bring state here or take it away, and are not done."""
        return (*self._incoming, *self._outgoing)

    def handle(self, order: Any) -> list[Errand]:
        """Carry an instruction of the main process out, in the order in which they come."""
        handler = _HANDLERS.get(type(order))
        if handler is None:
            raise BadValueError("instruction", "be one for a keeper", order)
        return list(handler(self, order))

    def receive(self, piece: SendSlice) -> list[Errand]:
        """Take a slice of state in that another keeper has sent."""
        self._require_incoming(piece.move)
        self.store.merge(piece.shard, piece.records)
        self._incoming[piece.move] += sum(record.size for record in piece.records)
        if not piece.last:
            return []
        size = self._incoming[piece.move]
        if piece.rest:
            del self._incoming[piece.move]
            return [ev.StateArrived(piece.move, size)]
        self._incoming[piece.move] = 0
        return [ev.CopyArrived(piece.move, size)]

    def go_on(self, errand: CopyOn | FoldOn | DropOn) -> list[Errand]:
        """Do the next slice of something; nothing, if it is no longer wanted."""
        match errand:
            case CopyOn(move):
                return self.copy_on(move)
            case FoldOn(epoch):
                return self.fold_on(epoch)
            case DropOn(shard):
                return self.drop_on(shard)

    def copy_on(self, move: MoveId) -> list[Errand]:
        """Send the next slice of a copy; nothing, if the move was given up meanwhile."""
        copy = self._outgoing.get(move)
        if copy is None:
            return []
        order = copy.order
        records, cursor = self.store.copy(order.shard, copy.cursor, self._slice_records)
        last = cursor is None
        piece = SendSlice(order.destination, move, order.shard, records, last, rest=False)
        if cursor is None:
            del self._outgoing[move]
            return [piece]
        copy.cursor = cursor
        return [piece, CopyOn(move)]

    def fold_on(self, epoch: Epoch) -> list[Errand]:
        """Fold the next slice of what is committed, of this epoch and any other."""
        self._folds = self.store.fold()
        return [FoldOn(epoch)] if self._folds else []

    def drop_on(self, shard: ShardId) -> list[Errand]:
        """Remove the next slice of a shard; nothing, if it is gone already."""
        if shard not in self._dropping:
            return []
        if self.store.drop_some(shard):
            return [DropOn(shard)]
        del self._dropping[shard]
        return [ev.ShardDropped(self.node, shard)]

    def written(self, errand: WriteIncrement, note: Any = None) -> list[Errand]:
        """The increment is durable, or need not be; the note is for the manifest."""
        errand.increment.release()
        size = errand.increment.size
        return [ev.IncrementPersisted(self.node, errand.attempt, errand.epoch, size, note)]

    def restored(self, read: ReadShard, records: Iterable[Record]) -> list[Errand]:
        """The shard's state has come from the checkpoint."""
        self._require_incoming(read.move)
        del self._incoming[read.move]
        found = records if isinstance(records, Records) else tuple(records)
        self.store.merge(read.shard, found)
        size = found.size if isinstance(found, Records) else sum(r.size for r in found)
        return [ev.StateArrived(read.move, size)]

    def _require_incoming(self, move: MoveId) -> None:
        if move not in self._incoming:
            raise StaleAttemptError("move of a slice", f"be one of {list(self._incoming)}", move)

    def _open_shard(self, order: do.OpenShard) -> Iterator[Errand]:
        yield from self._drop_now(order.shard)
        self._incoming[order.move] = 0
        yield ev.ShardOpened(order.move)

    def _copy_shard(self, order: do.CopyShard) -> Iterator[Errand]:
        self.store.watch(order.shard)
        self._outgoing[order.move] = _Copy(order)
        yield from self.copy_on(order.move)

    def _send_rest(self, order: do.SendRest) -> Iterator[Errand]:
        records = tuple(self.store.changed_records(order.shard))
        size = self._slice_records
        pieces = [records[start : start + size] for start in range(0, len(records), size)] or [()]
        for number, piece in enumerate(pieces, start=1):
            last = number == len(pieces)
            yield SendSlice(order.destination, order.move, order.shard, piece, last, rest=True)

    def _drop_shard(self, order: do.DropShard) -> Iterator[Errand]:
        self._dropping[order.shard] = None
        yield from self.drop_on(order.shard)

    def _restore_shard(self, order: do.RestoreShard) -> Iterator[Errand]:
        yield from self._drop_now(order.shard)
        self._incoming[order.move] = 0
        yield ReadShard(order.move, order.shard, order.epoch)

    def _persist(self, order: do.PersistIncrement) -> Iterator[Errand]:
        increment = self.store.hold(order.epoch, order.shards)
        yield WriteIncrement(order.attempt, order.epoch, increment)

    def _commit(self, order: do.CommitStore) -> Iterator[Errand]:
        self.store.commit(order.epoch)
        yield from self._begin_to_fold()

    def _roll_back(self, order: do.RollBackStore) -> Iterator[Errand]:
        self._incoming.clear()
        self._outgoing.clear()
        # Or a shard that is to go, and is kept, would be kept in part.
        for shard in tuple(self._dropping):
            yield from self._drop_now(shard)
        self.store.roll_back(order.attempt, order.base, order.shards)
        yield ev.StoreRolledBack(self.node, order.attempt)
        yield from self._begin_to_fold()

    def _drop_now(self, shard: ShardId) -> Iterator[Errand]:
        self.store.drop(shard)
        if shard in self._dropping:
            del self._dropping[shard]
            yield ev.ShardDropped(self.node, shard)

    def _begin_to_fold(self) -> Iterator[Errand]:
        if not self._folds and self.store.folding:
            self._folds = True
            yield FoldOn(self.store.committed)


_HANDLERS: dict[type, Callable[[Keeper, Any], Iterator[Errand]]] = {
    do.OpenShard: Keeper._open_shard,
    do.CopyShard: Keeper._copy_shard,
    do.SendRest: Keeper._send_rest,
    do.DropShard: Keeper._drop_shard,
    do.RestoreShard: Keeper._restore_shard,
    do.PersistIncrement: Keeper._persist,
    do.CommitStore: Keeper._commit,
    do.RollBackStore: Keeper._roll_back,
}
