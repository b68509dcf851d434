"""Moves shards between tasks (paper 3.3): who owns which shard, where its state is, what is moving.

```
within a node:              WRITING → [WAITING] → DRAINING → done
to another node:  OPENING → WRITING → COPYING → [WAITING] → DRAINING → MIGRATING → done
of a shard whose task is gone,
  with its state still on a node:      OPENING → COPYING → MIGRATING → done
  with its state in the checkpoint:                        RESTORING → done
```

The write and the copy come ahead of the paper's pause. Up to WAITING the source task goes on
working on the shard. From DRAINING on the shard is *held*: its tuples wait, and an epoch's end
waits for it too.

The reassigner knows nothing of loads, which decide what should move
(`elasticutor.core.executor.balancing`), and nothing of upstreams, which never learn of a move.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from enum import Enum

from elasticutor.core.executor.receiver import HELD, Receiver
from elasticutor.core.executor.routing import RoutingTable
from elasticutor.core.executor.tasks import TaskView
from elasticutor.core.protocol.events import LabelReached, ShardWritten
from elasticutor.core.protocol.ids import Epoch, MoveId, NodeId, ShardId, TaskId
from elasticutor.core.protocol.instructions import (
    Cause,
    CopyShard,
    DropShard,
    Instruction,
    OpenShard,
    ReportMove,
    RestoreShard,
    SendLabel,
    SendRest,
    WriteShard,
)
from elasticutor.errors import OutOfOrderError, StaleAttemptError


class MovePhase(Enum):
    """How far a move has come."""

    OPENING = "opening"
    """The destination's node makes ready."""
    WRITING = "writing"
    """The source task writes what it has changed; tuples still flow."""
    COPYING = "copying"
    """A first copy of the state travels; tuples still flow."""
    WAITING = "waiting"
    """Ready for the label, which is not sent while an epoch ends."""
    DRAINING = "draining"
    """The label is on its way to the source task, which gives back what it has not begun."""
    MIGRATING = "migrating"
    """What changed since the copy travels."""
    RESTORING = "restoring"
    """The state is fetched from the checkpoint."""


@dataclass(slots=True)
class Move:
    """One shard on its way from one task to another."""

    id: MoveId
    shard: ShardId
    source: TaskId | None
    """None: the shard has no owner, and is held from the start."""
    destination: TaskId
    origin: NodeId | None
    """The node with the shard's state; None: only the checkpoint has it."""
    target: NodeId
    phase: MovePhase
    cause: Cause
    started_at: float = 0.0
    labelled_at: float = 0.0
    drained_at: float = 0.0
    copied: int = 0

    @property
    def remote(self) -> bool:
        """Whether state has to travel."""
        return self.origin != self.target

    @property
    def holds(self) -> bool:
        """Whether the shard's tuples wait for this move."""
        return self.source is None or self.phase in (MovePhase.DRAINING, MovePhase.MIGRATING)

    @property
    def awaits(self) -> str:
        """The task or node that has to answer next, in words."""
        if self.phase in (MovePhase.WRITING, MovePhase.WAITING, MovePhase.DRAINING):
            return f"task {self.source}"
        if self.phase is MovePhase.COPYING:
            return f"nodes {self.origin!r} and {self.target!r}"
        return f"node {self.target!r}"

    def report(self, migrated: int, now: float) -> ReportMove:
        """Return what is kept of a finished move."""
        return ReportMove(
            move=self.id,
            shard=self.shard,
            source=self.source,
            destination=self.destination,
            remote=self.remote,
            cause=self.cause,
            sync_s=self.drained_at - self.labelled_at,
            migration_s=now - self.drained_at,
            copied=self.copied,
            migrated=migrated,
        )


class Reassigner:
    """The routing table of an executor and the moves that change it."""

    def __init__(
        self,
        shards: int,
        receiver: Receiver,
        tasks: dict[TaskId, TaskView],
        emit: Callable[[Instruction], None],
    ) -> None:
        self._receiver = receiver
        self._tasks = tasks
        self._emit = emit
        self._next_move = 0
        self._dropping: set[tuple[NodeId, ShardId]] = set()
        self._unheld: list[ShardId] = []  # labelled since the last `hold_labelled`
        self.table = RoutingTable.unplaced(shards)
        self.homes: list[NodeId | None] = [None] * shards
        """Per shard the node with its state; None: at most the checkpoint has any."""
        self.moves: dict[MoveId, Move] = {}
        self.labels_wait = False
        """Set when an epoch is about to end: a labelled shard would have to be waited for."""

    # What is asked for

    def start(
        self, shard: ShardId, destination: TaskId, cause: Cause, base: Epoch, now: float
    ) -> bool:
        """Begin to move a shard; False if it has to wait for an older copy to be dropped.

        The caller calls `hold_labelled` when all moves are started.
        """
        source = self.table.owner(shard)
        origin, target = self.homes[shard], self._tasks[destination].node
        if (target, shard) in self._dropping:
            return False
        move_id, phase = MoveId(self._next_move), MovePhase.OPENING
        move = Move(move_id, shard, source, destination, origin, target, phase, cause, now)
        self._next_move += 1
        self.moves[move.id] = move
        if source is None:
            move.labelled_at = move.drained_at = now  # nothing to drain
        if origin is None:
            self._restore(move, base)
        elif move.remote:
            self._emit(OpenShard(target, move.id, shard))
        elif source is None:
            self._complete(move, 0, now)
        else:
            self._write(move)
        return True

    def hold_labelled(self) -> None:
        """Hold the shards whose labels were just sent, all at once; before anything is fed."""
        if self._unheld:
            self._receiver.hold(self._unheld)
            self._unheld = []

    def send_waiting_labels(self, now: float) -> None:
        """Go on with moves that had to wait: the epoch has ended, or will not soon."""
        for move in [move for move in self.moves.values() if move.phase is MovePhase.WAITING]:
            self._ask_label(move, now)
        self.hold_labelled()

    # What is answered

    def require(self, move_id: MoveId, *phases: MovePhase) -> Move:
        """Return the move of this number, if it is in one of these phases."""
        move = self.moves.get(move_id)
        if move is None:
            if 0 <= move_id < self._next_move:
                raise StaleAttemptError("move", "be under way", move_id, "it was given up or done")
            raise OutOfOrderError("move", "have been started", move_id)
        if move.phase not in phases:
            expected = " or ".join(phase.value for phase in phases)
            raise OutOfOrderError(f"move {move_id}", f"be {expected}", move.phase.value)
        return move

    def require_from(self, event: ShardWritten | LabelReached, phase: MovePhase) -> Move:
        """Return the move that a task answers, if it is in this phase and from this task."""
        move = self.require(event.move, phase)
        if move.source != event.task:
            raise OutOfOrderError(
                f"order of move {move.id}", f"be answered by task {move.source}", event.task
            )
        return move

    def opened(self, move: Move) -> None:
        """Go on: the destination's node is ready."""
        if move.source is None:
            self._copy(move)
        else:
            self._write(move)

    def written(self, move: Move, now: float) -> None:
        """Go on: what the source task had changed so far is in its node's store."""
        if move.remote:
            self._copy(move)
        else:
            self._ask_label(move, now)
            self.hold_labelled()

    def copied(self, move: Move, size: int, now: float) -> None:
        """Go on: the first copy has arrived."""
        move.copied = size
        if move.source is None:
            self._send_rest(move)
        else:
            self._ask_label(move, now)
            self.hold_labelled()

    def drained(self, move: Move, now: float) -> None:
        """Go on: the source task is done with the shard, and its state is in the store.

        What it had not begun comes back before the shard's other tuples.
        """
        assert move.source is not None  # it was sent the label
        source = self._tasks[move.source]
        source.departures -= 1
        self._receiver.take_back(move.shard, source.give_back(move.shard))
        move.drained_at = now
        if move.remote:
            self._send_rest(move)
        else:
            self._complete(move, 0, now)

    def arrived(self, move: Move, size: int, now: float) -> None:
        """Complete the move: the destination's node has everything."""
        self._complete(move, size, now)

    def dropped(self, node: NodeId, shard: ShardId) -> None:
        """Take note that the old copy is gone."""
        if (node, shard) not in self._dropping:
            raise OutOfOrderError("shard dropped", "have an order to go", (node, shard))
        self._dropping.discard((node, shard))

    # What goes wrong

    def cancel(self) -> None:
        """Give up every move: each shard stays with the task that the routing table names."""
        self.moves.clear()
        self.labels_wait = False
        for task in self._tasks.values():
            task.departures = 0

    def settle(self) -> None:
        """Let the receiver route to the owners that the table names."""
        self._receiver.hold(self.table.shards_of(None))
        for shard, owner in enumerate(self.table.owners):
            if owner is not None:
                self._receiver.release(ShardId(shard), self._tasks[owner].slot)

    def unplace(self, shards: Collection[ShardId]) -> None:
        """Let these shards have no owner."""
        if shards:
            self.table = self.table.with_owners(dict.fromkeys(shards))
            self._receiver.hold(shards)

    def forget_node(self, node: NodeId) -> None:
        """Forget all that was in the store of a node that is gone."""
        self._dropping = {entry for entry in self._dropping if entry[0] != node}
        self.homes = [None if home == node else home for home in self.homes]

    # What others ask

    @property
    def holding(self) -> bool:
        """Whether any shard's tuples wait for a move."""
        return any(move.holds for move in self.moves.values())

    def involved(self, task: TaskId) -> bool:
        """Whether the task owns a shard, or is the source or destination of a move."""
        return task in self.table.owners or any(
            task in (move.source, move.destination) for move in self.moves.values()
        )

    def touching(self, node: NodeId) -> Iterable[Move]:
        """The moves that need this node."""
        return [move for move in self.moves.values() if node in (move.origin, move.target)]

    def waiting_for(self) -> list[str]:
        """The moves under way, and shards without an owner, in words."""
        unplaced = len(self.table.shards_of(None))
        moves = self.moves.values()
        return [
            *(f"move {move.id} of shard {move.shard} ({move.phase.value})" for move in moves),
            *[f"an owner for {unplaced} shards"] * bool(unplaced),
        ]

    def overdue(self, before: float) -> list[str]:
        """The moves that were begun or labelled before then, each with what has to answer."""
        return [
            f"{move.awaits} to answer move {move.id} of shard {move.shard} ({move.phase.value})"
            for move in self.moves.values()
            # A move that waits for an epoch to end has no answer due.
            if max(move.started_at, move.labelled_at) < before
            and move.phase is not MovePhase.WAITING
        ]

    def planned_owners(self) -> list[TaskId | None]:
        """The owners as they will be when all moves are done."""
        owners = list(self.table.owners)
        for move in self.moves.values():
            owners[move.shard] = move.destination
        return owners

    def _restore(self, move: Move, base: Epoch) -> None:
        if base == 0:  # before the first epoch there is no state anywhere
            del self.moves[move.id]
            self._hand_to(move)
        else:
            move.phase = MovePhase.RESTORING
            self._emit(RestoreShard(move.target, move.id, move.shard, base))

    def _write(self, move: Move) -> None:
        assert move.source is not None  # without one nothing is cached
        move.phase = MovePhase.WRITING
        self._tasks[move.source].departures += 1
        self._emit(WriteShard(move.source, move.id, move.shard))

    def _copy(self, move: Move) -> None:
        assert move.origin is not None  # a move without origin restores instead
        move.phase = MovePhase.COPYING
        self._emit(CopyShard(move.origin, move.id, move.shard, move.target))

    def _send_rest(self, move: Move) -> None:
        assert move.origin is not None  # it has been copied from there
        move.phase = MovePhase.MIGRATING
        self._emit(SendRest(move.origin, move.id, move.shard, move.target))

    def _ask_label(self, move: Move, now: float) -> None:
        if self.labels_wait:
            move.phase = MovePhase.WAITING
        else:
            self._label(move, now)

    def _label(self, move: Move, now: float) -> None:
        assert move.source is not None  # only an owned shard has tuples to drain
        move.phase = MovePhase.DRAINING
        move.labelled_at = now
        self._unheld.append(move.shard)
        self._emit(SendLabel(move.source, move.id, move.shard))

    def _complete(self, move: Move, migrated: int, now: float) -> None:
        del self.moves[move.id]
        self._hand_to(move)
        if move.remote and move.origin is not None:
            self._dropping.add((move.origin, move.shard))
            self._emit(DropShard(move.origin, move.shard))
        self._emit(move.report(migrated, now))

    def _hand_to(self, move: Move) -> None:
        self.table = self.table.with_owners({move.shard: move.destination})
        self.homes[move.shard] = move.target
        slot = self._tasks[move.destination].slot
        assert slot != HELD  # only a running task is a destination
        self._receiver.release(move.shard, slot)
