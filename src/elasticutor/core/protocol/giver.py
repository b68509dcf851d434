"""The side of an executor that gives shards away, in the resource-centric paradigm.

First it drains: it processes what it was sent, and sees its outputs taken in. Then it releases: its
task writes the state of the shards to the node's store. The whole round is in
`core.protocol.repartition`.
"""

from __future__ import annotations

from collections.abc import Iterable

from elasticutor.core.protocol import instructions as do
from elasticutor.core.protocol.ids import MoveId, Peer, TaskId
from elasticutor.core.protocol.repartition import (
    ConfirmOutputs,
    DrainExecutor,
    ExecutorDrained,
    OutputsTaken,
    ReleaseShards,
    ShardsReleased,
)
from elasticutor.errors import OutOfOrderError


class Drain:
    """Tells when all that was sent to an executor is processed, and the outputs are taken in.

    The new owner of a shard sends its outputs on another way. Those of the old one may still wait
    for credit, or lie unread at a slow destination; they would be overtaken. So when the last of
    them has been sent, every destination is asked to confirm, behind them on their own way.
    """

    def __init__(self, executor: Peer, destinations: Iterable[Peer] = ()) -> None:
        self._executor = executor
        self._destinations = tuple(destinations)
        self._processed = 0
        self._order: DrainExecutor | None = None
        self._untaken: set[Peer] = set()
        """Destinations that were asked, and have not answered."""

    def processed(self, rows: int) -> None:
        """Count tuples as processed."""
        self._processed += rows

    def begin(self, order: DrainExecutor) -> None:
        """Drain from now on."""
        self._order = order

    def proceed(self, *, sent: bool) -> list[ConfirmOutputs | ExecutorDrained]:
        """What is to be done next; `sent` says that no output waits for credit."""
        order = self._order
        if order is None or self._untaken or self._processed < order.rows or not sent:
            return []
        if not self._destinations:
            return [self._drained(order)]
        self._untaken = set(self._destinations)
        return [
            ConfirmOutputs(destination, self._executor, order.round)
            for destination in self._destinations
        ]

    def taken(self, answer: OutputsTaken) -> ExecutorDrained | None:
        """A destination has confirmed; returns what to report, if it was the last one.

        Raises:
            OutOfOrderError: It was not asked to, or has done so before.
        """
        order = self._order
        if order is None or order.round != answer.round or answer.destination not in self._untaken:
            must = "be one that is waited for"
            raise OutOfOrderError(f"confirmation of {answer.destination!r}", must, answer.round)
        self._untaken.discard(answer.destination)
        return None if self._untaken else self._drained(order)

    def waiting_for(self) -> list[str]:
        """What it waits for, in words."""
        order = self._order
        if order is None:
            return []
        if self._untaken:
            untaken = sorted(self._untaken)
            return [f"{who} to take outputs in, round {order.round}" for who in untaken]
        left = max(0, order.rows - self._processed)
        what = f"{left} tuples to be processed" if left else "credit for outputs"
        return [f"{what}, round {order.round}"]

    def _drained(self, order: DrainExecutor) -> ExecutorDrained:
        self._order = None
        return ExecutorDrained(self._executor, order.round)


class Release:
    """An executor's side: its only task writes the state of some shards and forgets it.

    Nothing of these shards is inside any more, so labels reach the task at once. They are none of
    the core's own moves: their numbers are negative.
    """

    def __init__(self, executor: Peer) -> None:
        self._executor = executor
        self._order: ReleaseShards | None = None
        self._left: set[MoveId] = set()

    def begin(self, order: ReleaseShards, task: TaskId) -> list[do.SendLabel]:
        """The labels to send."""
        self._order = order
        labels = [do.SendLabel(task, MoveId(-1 - shard), shard) for shard in order.shards]
        self._left = {label.move for label in labels}
        return labels

    def awaits(self, move: MoveId) -> bool:
        """Whether a label is one of these."""
        return move in self._left

    def reached(self, move: MoveId) -> ShardsReleased | None:
        """The task has reached a label; the answer, if it was the last one."""
        self._left.discard(move)
        order = self._order
        if order is None or self._left:
            return None
        self._order = None
        return ShardsReleased(self._executor, order.round)
