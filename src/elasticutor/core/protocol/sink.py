"""A sink's side of the protocol: credits, epochs, and when output may be seen.

```
open ──markers of all upstreams──▶ preparing ──prepared──▶ open (the next epoch)
```

- An epoch ends when its markers have come from all upstreams. An upstream that has sent its marker
  may go on with the next epoch meanwhile: its tuples are *held*, so that every tuple is written in
  its own epoch. They earn no credit until they are written, so it cannot run away.
- Output is committed when its epoch is. Sources end an epoch only when the one before it is
  committed; so the last marker of an epoch proves that commit, though its message may be slower.
- An attempt begins with the output of its base, which is committed once more: the sink may have
  been lost before the message of the commit. Everything else that was written is aborted.

The host opens, writes and measures. It calls `arrive` before a message is written and `written`
after it; everything else happens a few times in each epoch.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from elasticutor.core.executor.credits import InputCredits
from elasticutor.core.message import Message
from elasticutor.core.protocol.coordinator import (
    BeginAttempt,
    CommitEpoch,
    ParticipantPrepared,
    ParticipantReady,
)
from elasticutor.core.protocol.ids import Attempt, Epoch, Peer
from elasticutor.core.protocol.instructions import GrantCredit
from elasticutor.core.protocol.repartition import ConfirmOutputs, OutputsTaken
from elasticutor.errors import OutOfOrderError


class WriteHeld(Message):
    """Write tuples that were held; followed by `SinkSide.written`, as for all others."""

    upstream: Peer
    attempt: Attempt
    size: int
    content: Any


class PrepareOutput(Message):
    """Make safe what is written in the epoch; answered by `SinkSide.prepared`."""

    attempt: Attempt
    epoch: Epoch


class CommitOutput(Message):
    """Show the output that this note is of; it may be seen already."""

    epoch: Epoch
    note: Any


class AbortOutput(Message):
    """Drop all output that was not committed, prepared or not."""


SinkOrder = (
    WriteHeld | PrepareOutput | CommitOutput | AbortOutput | ParticipantReady | ParticipantPrepared
)


class SinkSide:
    """One sink, as the other participants of a run see it.

    Args:
        who: Its name.
        upstreams: All that feed it.
        first: The bytes that each of them may send before it is granted more.
        limit: The bytes that may be inside from each of them.
    """

    def __init__(self, who: Peer, upstreams: Iterable[Peer], *, first: int, limit: int) -> None:
        self.who = who
        self.attempt = Attempt(0)
        self.epoch = Epoch(0)
        """The epoch whose tuples are written, and whose markers come next."""
        self._upstreams = frozenset(upstreams)
        self._first = first
        self._limit = limit
        self._credits = InputCredits([], first=0)
        self._marked: set[Peer] = set()
        self._held: list[WriteHeld] = []  # of the epoch after it
        self._prepared: tuple[Epoch, Any] | None = None  # and not known to be committed

    def begin(self, order: BeginAttempt) -> list[SinkOrder]:
        """Go back to the attempt's base."""
        if order.attempt <= self.attempt:
            return []
        self.attempt, self.epoch = order.attempt, order.epoch
        self._credits = InputCredits(self._upstreams, first=self._first)
        self._marked.clear()
        self._held.clear()
        self._prepared = None
        again = [] if order.note is None else [CommitOutput(order.base, order.note)]
        return [*again, AbortOutput(), ParticipantReady(self.who, order.attempt)]

    def arrive(self, upstream: Peer, attempt: Attempt, size: int, content: Any) -> bool:
        """Take tuples in; returns whether they are to be written now.

        Others are held, or of an attempt that was given up.

        Raises:
            UnknownPeerError: The attempt has no such upstream.
            CreditExceededError: It may not send.
        """
        if attempt != self.attempt:
            return False
        self._credits.require_credit(upstream)
        self._credits.spend(upstream, size)
        if upstream not in self._marked:
            return True
        self._held.append(WriteHeld(upstream, attempt, size, content))
        return False

    def written(self, upstream: Peer, attempt: Attempt, size: int) -> GrantCredit | None:
        """Count tuples as written; returns what the upstream may send, if that is worth saying."""
        if attempt != self.attempt:
            return None
        return self._credits.finish(upstream, size, attempt, self._limit)

    def mark(self, upstream: Peer, attempt: Attempt, epoch: Epoch) -> list[SinkOrder]:
        """Take note that an upstream has ended the epoch; the last one ends it here.

        Raises:
            UnknownPeerError: The attempt has no such upstream.
            OutOfOrderError: It has ended this epoch before, or the epoch is another one.
        """
        if attempt != self.attempt:
            return []
        self._credits.require(upstream)
        if epoch != self.epoch or upstream in self._marked:
            must = f"be of epoch {self.epoch}, and one from each upstream"
            raise OutOfOrderError(f"marker of {upstream!r}", must, epoch)
        self._marked.add(upstream)
        if len(self._marked) < len(self._upstreams):
            return []
        return [*self._commit(), PrepareOutput(attempt, epoch)]

    def prepared(self, attempt: Attempt, epoch: Epoch, note: Any) -> list[SinkOrder]:
        """Open the next epoch: what is written in this one can be committed, whatever happens."""
        if attempt != self.attempt:
            return []
        self._prepared = epoch, note
        self.epoch = Epoch(epoch + 1)
        self._marked.clear()
        held, self._held = self._held, []
        return [ParticipantPrepared(self.who, attempt, epoch, note), *held]

    def commit(self, order: CommitEpoch) -> list[SinkOrder]:
        """Show the epoch's output, unless the next epoch's markers have done so."""
        if order.attempt != self.attempt:
            return []
        if self._prepared is None or self._prepared[0] != order.epoch:
            return []
        return self._commit()

    def confirm(self, order: ConfirmOutputs) -> OutputsTaken:
        """Answer an executor that all of its outputs so far are written, or held in their place.

        Nothing that comes by another way from now on can be before them.
        """
        self._credits.require(order.executor)
        return OutputsTaken(self.who, order.round)

    def _commit(self) -> list[SinkOrder]:
        if self._prepared is None:
            return []
        (epoch, note), self._prepared = self._prepared, None
        return [] if note is None else [CommitOutput(epoch, note)]
