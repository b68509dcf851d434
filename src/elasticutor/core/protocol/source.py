"""A source's side of the protocol: attempts, epochs, credits, and offsets.

```
StartSource ──▶ reading ──EndEpoch──▶ reading ──EndEpoch, draining──▶ silent
                   ▲                                                    │
                   └──────────────── StartSource of a later attempt ────┘
```

- An attempt reads from the offset that its base's manifest names. Nothing of the attempt before it
  counts: neither what waited for credit, nor credits, nor offsets.
- The offset of an epoch is where the source stood when it sent the epoch's marker. Readers that
  keep what they have read learn of it when the epoch is committed, and not before.
- A source that drains is silent after its next marker. One that has read everything says so once
  in each attempt.

The host reads and cuts, and puts what it has cut into `outputs` itself: that is the hot path, and
takes no further call. It asks `outputs.blocked` whether it may go on.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from elasticutor.core.executor.emitter import Emitter
from elasticutor.core.message import Message
from elasticutor.core.protocol.coordinator import (
    CommitEpoch,
    EndEpoch,
    ParticipantPrepared,
    SourceExhausted,
    StartSource,
)
from elasticutor.core.protocol.ids import Attempt, Epoch, Peer
from elasticutor.core.protocol.instructions import Emit, EmitMarker


class ReadFrom(Message):
    """Forget the reader and all that it has read; greet the destinations, and read from here."""

    offset: Any
    """None: from the beginning."""


class CommitOffset(Message):
    """Tell the reader that it is never asked again for what is before this offset."""

    offset: Any


SourceOrder = Emit | EmitMarker | ParticipantPrepared | ReadFrom | CommitOffset | SourceExhausted


class SourceSide:
    """One source task, as the other participants of a run see it.

    Args:
        who: Its name.
        destinations: The executors that it feeds.
        first: The bytes that it may send each of them before it is granted more.
        limit: The bytes that may wait for credit before it stops reading.
        checkpointed: Whether epochs become durable, so that readers may forget what is committed.
    """

    def __init__(
        self,
        who: Peer,
        destinations: Iterable[Peer],
        *,
        first: int,
        limit: int,
        checkpointed: bool = True,
    ) -> None:
        self.who = who
        self.attempt = Attempt(0)
        self.outputs = Emitter([], first=0, limit=0, returned=False)
        """What is cut, as far as it is not sent."""
        self.silent = True
        """Whether nothing may be read: no attempt has begun, or the last marker is sent."""
        self.credit_step = 0
        """By how much the last credit was above the one before, for all destinations together."""
        self._destinations = tuple(dict.fromkeys(destinations))
        self._first = first
        self._limit = limit
        self._checkpointed = checkpointed
        self._offsets: dict[Epoch, Any] = {}  # of epochs that have ended and are not committed
        self._draining = False
        self._exhausted = False  # and has said so

    def start(self, order: StartSource) -> list[SourceOrder]:
        """Begin an attempt, with nothing left of the one before."""
        if order.attempt <= self.attempt:
            return []
        self.attempt = order.attempt
        self.outputs = Emitter(
            self._destinations, first=self._first, limit=self._limit, returned=False
        )
        self.silent = False
        self.credit_step = 0
        self._offsets.clear()
        self._draining = False  # a run that is still draining says so again
        self._exhausted = False
        return [ReadFrom(order.offset)]

    def end_epoch(self, order: EndEpoch, offset: Any) -> list[SourceOrder]:
        """Send the epoch's marker behind all that is cut, and report where the reader stands."""
        if order.attempt != self.attempt:
            return []
        self.outputs.end_epoch(order.epoch)
        orders: list[SourceOrder] = []
        for destination in self._destinations:
            orders += self.outputs.send(destination, order.attempt)
        self.silent = self._draining
        if self._checkpointed:
            self._offsets[order.epoch] = offset
        return [*orders, ParticipantPrepared(self.who, order.attempt, order.epoch, offset)]

    def commit(self, order: CommitEpoch) -> list[SourceOrder]:
        """Let the reader forget what is before the epoch's end; once, however often it is said."""
        if order.attempt != self.attempt:
            return []
        offset = self._offsets.pop(order.epoch, None)
        return [] if offset is None else [CommitOffset(offset)]

    def credit(self, destination: Peer, attempt: Attempt, total: int) -> list[Emit | EmitMarker]:
        """Send what an executor takes from now on.

        Raises:
            UnknownPeerError: The source does not feed it.
            OutOfOrderError: It has granted more before.
        """
        if attempt != self.attempt:
            return []
        outputs = self.outputs
        outputs.require(destination)
        self.credit_step = outputs.require_rising(destination, total) * len(self._destinations)
        outputs.credit(destination, total)
        return outputs.send(destination, attempt)

    def drain(self) -> None:
        """Be silent after the next marker of this attempt."""
        self._draining = True

    def exhaust(self) -> list[SourceOrder]:
        """Report that the reader has come to its end; once in each attempt."""
        if self._exhausted:
            return []
        self._exhausted = True
        return [SourceExhausted(self.who, self.attempt)]
