"""The resource-centric rival (paper 5): executors of one core, and upstreams that hold the table.

Here a shard changes its *executor*, and every upstream must hear of it. A round goes

```
all upstreams pause ─▶ givers drain ─▶ givers flush ─▶ state crosses nodes ─▶ tables change, resume
```

and moves as many shards as the balancing asks for, by the same algorithm as inside an elastic
executor. Executors on one node share a store, so only what changes its node is sent. Nothing waits
for more than correctness needs: only executors that give shards drain, and an upstream goes on as
soon as it has the new table, since by then nothing of a moved shard is under way: no tuple, and no
output either, for those of the new owner go another way and might be there first.

`Repartitioner` is the side that decides, `PausableRoute` the side of an upstream; the side of
an executor is `core.protocol.giver`. All are pure; `lab.sim` and `driver` carry their messages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import numpy as np
import numpy.typing as npt

from elasticutor.core.executor.balancing import plan_reassignments
from elasticutor.core.measure.load import FloatArray
from elasticutor.core.message import Message
from elasticutor.core.protocol import events as ev
from elasticutor.core.protocol import instructions as do
from elasticutor.core.protocol.ids import MoveId, NodeId, Peer, ShardId, TaskId
from elasticutor.errors import BadValueError, OutOfOrderError, UnknownShardError

# From the repartitioner ---------------------------------------------------------------------------


class _WithUpstream(Message):
    upstream: Peer
    round: int


class _WithExecutor(Message):
    executor: Peer
    round: int


class PauseUpstream(_WithUpstream):
    """Send nothing more; answered by `UpstreamPaused`."""

    operator: str = ""
    """Whose table is to change, where an upstream has several."""


class DrainExecutor(_WithExecutor):
    """Process this many tuples since the start, and their outputs; by `ExecutorDrained`."""

    rows: int


class ReleaseShards(_WithExecutor):
    """Write the state of these shards to the node's store and forget it; by `ShardsReleased`."""

    shards: tuple[ShardId, ...]


class UpdateTable(_WithUpstream):
    """These shards belong to these executors from now on; go on sending. By `TableUpdated`."""

    owners: Mapping[ShardId, int]
    operator: str = ""


class ReportRound(Message):
    """For the record: a round is over."""

    round: int
    shards: int
    remote: int
    """How many of them changed their node."""
    pause_s: float
    """From the first pause until the last giver had drained and flushed: the sync time."""
    migration_s: float
    """From then until the state was where it belongs."""
    update_s: float
    """From then until the last upstream had its table."""
    size: int
    """Bytes of state sent between nodes."""


Order = (
    PauseUpstream
    | DrainExecutor
    | ReleaseShards
    | do.OpenShard
    | do.CopyShard
    | do.DropShard
    | UpdateTable
    | ReportRound
)
"""What is to be done; state goes from node to node by the instructions of an elastic executor."""

# From an executor that drains, to its destinations ------------------------------------------------


class ConfirmOutputs(Message):
    """Say that you have taken in all outputs before this, by `OutputsTaken`.

    It goes the way of the outputs, behind them.
    """

    destination: Peer
    executor: Peer
    round: int


# The answers --------------------------------------------------------------------------------------


class UpstreamPaused(_WithUpstream):
    """Nothing more comes from this upstream; how many tuples it has sent to each executor."""

    sent: tuple[int, ...]
    operator: str = ""


class ExecutorDrained(_WithExecutor):
    """All that was sent to the executor is processed, and its destinations have the outputs."""


class OutputsTaken(Message):
    """The destination has taken in whatever the executor had sent; for the executor itself."""

    destination: Peer
    round: int


class ShardsReleased(_WithExecutor):
    """The shards' state is in the node's store."""


class TableUpdated(_WithUpstream):
    """The upstream sends by the new table."""

    operator: str = ""


Event = (
    UpstreamPaused
    | ExecutorDrained
    | ShardsReleased
    | ev.ShardOpened
    | ev.CopyArrived
    | ev.ShardDropped
    | TableUpdated
)


class Step(Enum):
    """Where a round is."""

    IDLE = "no round"
    PAUSING = "upstreams pause"
    DRAINING = "executors drain"
    RELEASING = "executors flush"
    MIGRATING = "state is sent"
    UPDATING = "tables change"


@dataclass(frozen=True, slots=True)
class _Sending:
    shard: ShardId
    source: NodeId
    destination: NodeId


@dataclass(slots=True)
class _Round:
    number: int
    owners: dict[ShardId, int]
    since: float
    sent: list[int]
    released_at: float = 0.0
    migrated_at: float = 0.0
    size: int = 0
    remote: dict[MoveId, _Sending] = field(default_factory=dict)


class Repartitioner:
    """Decides when shards change their executors, and leads all participants through it."""

    def __init__(
        self,
        shards: int,
        homes: Sequence[tuple[Peer, NodeId]],
        upstreams: Sequence[Peer],
        *,
        operator: str = "",
        threshold: float = 1.2,
    ) -> None:
        if shards < 1 or not homes or not upstreams:
            got = (shards, len(homes), len(upstreams))
            raise BadValueError("shards, executors and upstreams", "be one or more each", got)
        self.executors = tuple(who for who, _ in homes)
        self._nodes = tuple(node for _, node in homes)
        self.upstreams = tuple(upstreams)
        self.table: list[int] = first_table(shards, len(homes)).tolist()
        """The executor of every shard, by number."""
        self.step = Step.IDLE
        self.operator = operator
        self._threshold = threshold
        self._round: _Round | None = None
        self._rounds = 0
        self._moves = 0
        self._waiting: set[Peer | MoveId] = set()
        self._opened: set[MoveId] = set()
        """Moves whose destination is ready."""

    @property
    def round(self) -> int | None:
        """The number of the round that is under way; None if there is none."""
        return None if self._round is None else self._round.number

    @property
    def missing(self) -> list[Peer]:
        """Participants that have yet to answer, but for nodes."""
        return [who for who in (*self.upstreams, *self.executors) if who in self._waiting]

    def waiting_for(self) -> list[str]:
        """What has yet to be answered, in words."""
        if self.step is Step.IDLE:
            return []
        return [
            f"round {self._rounds}, {self.step.value}: {who}"
            for who in sorted(map(str, self._waiting))
        ]

    def balance(self, loads: FloatArray, now: float) -> list[Order]:
        """Start a round if the loads of the shards, in cores, ask for one."""
        if self.step is not Step.IDLE:
            return []
        tasks = {TaskId(number): node for number, node in enumerate(self._nodes)}
        owners = [TaskId(number) for number in self.table]
        plan = plan_reassignments(loads, owners, tasks, threshold=self._threshold)
        return self.move({move.shard: move.destination for move in plan.moves}, now)

    def move(self, owners: Mapping[ShardId, int], now: float) -> list[Order]:
        """Start a round that gives these shards to these executors.

        Raises:
            OutOfOrderError: The last round is not over.
            UnknownShardError: There is no such shard.
            BadValueError: There is no such executor.
        """
        if self.step is not Step.IDLE:
            raise OutOfOrderError("repartitioning", "be idle", self.step.value)
        for shard, to in owners.items():
            if not 0 <= shard < len(self.table):
                raise UnknownShardError("shard", f"be 0 to {len(self.table) - 1}", shard)
            if not 0 <= to < len(self.executors):
                raise BadValueError("executor", f"be 0 to {len(self.executors) - 1}", to)
        changes = {shard: to for shard, to in owners.items() if self.table[shard] != to}
        if not changes:
            return []
        self._rounds += 1
        self._round = _Round(self._rounds, changes, now, [0] * len(self.executors))
        self.step = Step.PAUSING
        self._waiting = set(self.upstreams)
        return [PauseUpstream(upstream, self._rounds, self.operator) for upstream in self.upstreams]

    def handle(self, event: Event, now: float) -> list[Order]:
        """Take an answer in; returns what is to be done next.

        Raises:
            OutOfOrderError: It is not an answer that is waited for.
            BadValueError: It counts other executors than there are.
        """
        match event:
            case UpstreamPaused(upstream, number, sent):
                if len(sent) != len(self.executors):
                    must = f"be {len(self.executors)}, one for each executor"
                    raise BadValueError(f"counts of {upstream!r}", must, len(sent))
                current = self._answered(Step.PAUSING, number, upstream)
                current.sent = [a + b for a, b in zip(current.sent, sent, strict=True)]
                return [] if self._waiting else self._drain(current)
            case ExecutorDrained(executor, number):
                current = self._answered(Step.DRAINING, number, executor)
                return [] if self._waiting else self._release(current)
            case ShardsReleased(executor, number):
                current = self._answered(Step.RELEASING, number, executor)
                return [] if self._waiting else self._migrate(current, now)
            case ev.ShardOpened(move):
                way = self._sending(move, opened=False)
                self._opened.add(move)
                return [do.CopyShard(way.source, move, way.shard, way.destination)]
            case ev.CopyArrived(move, size):
                way = self._sending(move, opened=True)
                current = self._answered(Step.MIGRATING, self._rounds, move)
                current.size += size
                drop = do.DropShard(way.source, way.shard)
                return [drop] if self._waiting else [drop, *self._update(current, now)]
            case ev.ShardDropped():
                return []
            case TableUpdated(upstream, number):
                current = self._answered(Step.UPDATING, number, upstream)
                return [] if self._waiting else self._finish(current, now)

    def _sending(self, move: MoveId, *, opened: bool) -> _Sending:
        sent = None if self._round is None else self._round.remote.get(move)
        if sent is None or move not in self._waiting or opened is not (move in self._opened):
            raise OutOfOrderError(f"move {move}", "be one that is under way", self.step.value)
        return sent

    def _answered(self, step: Step, number: int, who: Peer | MoveId) -> _Round:
        current = self._round
        if current is None or self.step is not step or number != current.number:
            raise OutOfOrderError(f"answer of {who!r}", f"fit {self.step.value}", (step, number))
        if who not in self._waiting:
            raise OutOfOrderError(f"answer of {who!r}", "come once", number)
        self._waiting.discard(who)
        return current

    def _givers(self, current: _Round) -> dict[int, list[ShardId]]:
        givers: dict[int, list[ShardId]] = {}
        for shard in sorted(current.owners):
            givers.setdefault(self.table[shard], []).append(shard)
        return givers

    def _drain(self, current: _Round) -> list[Order]:
        self.step = Step.DRAINING
        givers = sorted(self._givers(current))
        self._waiting = {self.executors[number] for number in givers}
        return [
            DrainExecutor(self.executors[number], current.number, current.sent[number])
            for number in givers
        ]

    def _release(self, current: _Round) -> list[Order]:
        self.step = Step.RELEASING
        givers = sorted(self._givers(current).items())
        self._waiting = {self.executors[number] for number, _ in givers}
        return [
            ReleaseShards(self.executors[number], current.number, tuple(shards))
            for number, shards in givers
        ]

    def _migrate(self, current: _Round, now: float) -> list[Order]:
        current.released_at = now
        self.step = Step.MIGRATING
        for shard, to in sorted(current.owners.items()):
            source, destination = self._nodes[self.table[shard]], self._nodes[to]
            if source != destination:
                self._moves += 1
                current.remote[MoveId(self._moves)] = _Sending(shard, source, destination)
        self._waiting, self._opened = set(current.remote), set()
        opens: list[Order] = [
            do.OpenShard(sent.destination, move, sent.shard)
            for move, sent in current.remote.items()
        ]
        return opens or self._update(current, now)

    def _update(self, current: _Round, now: float) -> list[Order]:
        current.migrated_at = now
        self.step = Step.UPDATING
        for shard, to in current.owners.items():
            self.table[shard] = to
        self._waiting = set(self.upstreams)
        return [
            UpdateTable(peer, current.number, current.owners, self.operator)
            for peer in self.upstreams
        ]

    def _finish(self, current: _Round, now: float) -> list[Order]:
        self.step, self._round = Step.IDLE, None
        return [
            ReportRound(
                current.number,
                len(current.owners),
                len(current.remote),
                current.released_at - current.since,
                current.migrated_at - current.released_at,
                now - current.migrated_at,
                current.size,
            )
        ]


def first_table(shards: int, executors: int) -> npt.NDArray[np.intp]:
    """The table that all start with: shards dealt out in turn.

    Example:
        >>> first_table(5, 2).tolist()
        [0, 1, 0, 1, 0]
    """
    return np.arange(shards) % executors


class PausableRoute:
    """An upstream's side: the table, the pause, and what was sent to whom."""

    def __init__(self, upstream: Peer, *, shards: int, executors: int) -> None:
        self._upstream = upstream
        self._table = first_table(shards, executors)
        self._sent = [0] * executors
        self.paused = False

    def owners(self, shards: npt.NDArray[np.integer[Any]]) -> npt.NDArray[np.intp]:
        """The executor of each of these shards."""
        return self._table.take(shards)

    def sent(self, executor: int, rows: int) -> None:
        """Count tuples that are on their way to an executor."""
        self._sent[executor] += rows

    def pause(self, order: PauseUpstream) -> UpstreamPaused:
        """Send nothing from now on; what was cut by the old table must have been sent before."""
        self.paused = True
        return UpstreamPaused(self._upstream, order.round, tuple(self._sent), order.operator)

    def update(self, order: UpdateTable) -> TableUpdated:
        """Go on, by the new table."""
        for shard, executor in order.owners.items():
            self._table[shard] = executor
        self.paused = False
        return TableUpdated(self._upstream, order.round, order.operator)
