"""Drives the epochs of a continuous topology: starts them, commits them, gives them up.

```
beginning ──all executors ready──▶ running ──epoch due──▶ ending ──all prepared──▶ writing
    ▲                                 ▲                      │                        │
    └──────── a failure, anywhere ────┼──────────────────────┘                        │
                                      └────────────── manifest written ───────────────┘
```

An epoch is committed at the moment when its manifest is written. A failure meanwhile waits for the
write to end one way or the other, since only then is it known what to go back to.

At most one epoch is between its first marker and its manifest. Sources start only when every
executor and sink is ready, so no participant meets an attempt that it has not heard of.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from typing import Any

from elasticutor.core.message import Message
from elasticutor.core.protocol.ids import Attempt, Epoch, NodeId, Peer, TaskId
from elasticutor.errors import BadValueError, OutOfOrderError, StaleAttemptError

# Events ------------------------------------------------------------------------------------------


class EpochDue(Message):
    """The epoch interval has passed; ignored unless the coordinator is running."""


class ParticipantReady(Message):
    """An executor or a sink is back at the attempt's base, and takes tuples."""

    who: Peer
    attempt: Attempt


class ParticipantPrepared(Message):
    """An executor, source or sink can commit the epoch, whatever happens to it."""

    who: Peer
    attempt: Attempt
    epoch: Epoch
    note: Any = None
    """Kept in the manifest: the offset of a source, the commit message of a sink, or what an
    executor's nodes said of the increments that they wrote."""


class ParticipantFailed(Message):
    """A participant cannot go on with the attempt."""

    who: Peer
    attempt: Attempt
    reason: str


class ParticipantLost(Message):
    """The process of a participant is gone; the one in its place knows of no attempt yet."""

    who: Peer
    reason: str


class ManifestWritten(Message):
    """The epoch's manifest is durable."""

    epoch: Epoch


class ManifestFailed(Message):
    """The epoch's manifest could not be written, and is not there."""

    epoch: Epoch
    reason: str


CoordinatorEvent = (
    EpochDue
    | ParticipantReady
    | ParticipantPrepared
    | ParticipantFailed
    | ParticipantLost
    | ManifestWritten
    | ManifestFailed
)


# Orders ------------------------------------------------------------------------------------------


class BeginAttempt(Message):
    """Tell an executor or a sink to go back to the base; it answers when it is ready."""

    who: Peer
    attempt: Attempt
    base: Epoch
    epoch: Epoch
    note: Any = None
    """What the base's manifest says of a sink, which commits that once more."""


class StartSource(Message):
    """Let a source send from where the base's manifest says; None: from its beginning."""

    who: Peer
    attempt: Attempt
    epoch: Epoch
    offset: Any


class EndEpoch(Message):
    """Let a source send the epoch's marker, and say at which offset it stood."""

    who: Peer
    attempt: Attempt
    epoch: Epoch


class WriteManifest(Message):
    """Commit the epoch: the increments that this attempt has written for it."""

    epoch: Epoch
    attempt: Attempt
    predecessor: Epoch
    notes: Mapping[Peer, Any]


class CommitEpoch(Message):
    """Tell a participant that the epoch is committed."""

    who: Peer
    attempt: Attempt
    epoch: Epoch


Order = BeginAttempt | StartSource | EndEpoch | WriteManifest | CommitEpoch


# Besides epochs ----------------------------------------------------------------------------------


class AssignCores(Message):
    """The cores that an executor should have from now on."""

    who: Peer
    cores: Mapping[NodeId, int]


class StopSending(Message):
    """Let a source send nothing more after its next marker."""

    who: Peer


class SourceExhausted(Message):
    """A source has sent everything that it will ever have."""

    who: Peer
    attempt: Attempt


class AskToRest(Message):
    """Let a participant start no more moves, and say when nothing of it is under way."""

    who: Peer


class ParticipantRested(Message):
    """Nothing of a participant is under way: no move of an executor, no publishing of a sink."""

    who: Peer


class AskWhy(Message):
    """Let an executor say why nothing happens."""

    who: Peer


class WaitExplained(Message):
    """Why an executor waits, in words."""

    who: Peer
    waits: tuple[str, ...]


class ProcessLost(Message):
    """A process has ended that should not have: of a participant, or of one of its tasks."""

    who: Peer
    life: int
    task: TaskId | None
    reason: str


class PlaceCleared(Message):
    """Nothing of the run is left on a node or in a host."""

    name: str


class CoordinatorPhase(Enum):
    """What the coordinator is waiting for."""

    IDLE = "idle"
    BEGINNING = "beginning"
    RUNNING = "running"
    ENDING = "ending"
    WRITING = "writing"


class Coordinator:
    """Drives the epochs of one topology.

    Example:
        >>> coordinator = Coordinator(executors=["count"], sources=["clicks"], sinks=[])
        >>> coordinator.start()
        [BeginAttempt(who='count', attempt=1, base=0, epoch=1, note=None)]
        >>> coordinator.handle(ParticipantReady("count", 1))
        [StartSource(who='clicks', attempt=1, epoch=1, offset=None)]
        >>> coordinator.handle(EpochDue())
        [EndEpoch(who='clicks', attempt=1, epoch=1)]
        >>> coordinator.handle(ParticipantPrepared("clicks", 1, 1, note=42))
        []
        >>> coordinator.handle(ParticipantPrepared("count", 1, 1))
        [WriteManifest(epoch=1, attempt=1, predecessor=0, notes={'clicks': 42, 'count': None})]
        >>> [order.who for order in coordinator.handle(ManifestWritten(1))]  # each CommitEpoch(…)
        ['count', 'clicks']
    """

    def __init__(
        self, executors: Iterable[str], sources: Iterable[str], sinks: Iterable[str]
    ) -> None:
        self._executors = tuple(Peer(name) for name in executors)
        self._sources = tuple(Peer(name) for name in sources)
        self._sinks = tuple(Peer(name) for name in sinks)
        self._participants = (*self._sources, *self._executors, *self._sinks)
        self._known = frozenset(self._participants)
        if len(set(self._participants)) != len(self._participants):
            raise BadValueError("names of participants", "differ", self._participants)
        if not self._executors or not self._sources:
            raise BadValueError("topology", "have a source and an executor", self._participants)
        self.phase = CoordinatorPhase.IDLE
        self.attempt = Attempt(0)
        self.committed = Epoch(0)
        self.epoch = Epoch(1)
        self._notes: Mapping[Peer, Any] = {}  # of the committed epoch
        self._prepared: dict[Peer, Any] = {}  # of the epoch that is ending
        self._unready: set[Peer] = set()
        self._failure: str | None = None  # not None iff one waits for the manifest

    def start(
        self,
        committed: Epoch = Epoch(0),
        notes: Mapping[Peer, Any] | None = None,
        attempt: Attempt = Attempt(0),
    ) -> list[Order]:
        """Begin; after an earlier coordinator, from its newest manifest.

        Args:
            committed: The epoch of the newest manifest.
            notes: What that says of sources and sinks.
            attempt: At least the last attempt that the earlier one has begun: what it left behind
                must not be taken for this one's.
        """
        if self.phase is not CoordinatorPhase.IDLE:
            raise OutOfOrderError("coordinator", "be idle", self.phase.value)
        self.committed = committed
        self.attempt = attempt
        self._notes = dict(notes or {})
        return self._begin()

    def handle(self, event: CoordinatorEvent) -> list[Order]:
        """Return the orders that an event leads to, in order."""
        handler = _HANDLERS.get(type(event))
        if handler is None:
            raise BadValueError("event", "be one for a coordinator", event)
        return handler(self, event)

    def waiting_for(self) -> list[str]:
        """What it waits for, in words."""
        do = "be ready" if self.phase is CoordinatorPhase.BEGINNING else "prepare"
        missing = [f"{who} to {do}" for who in self.missing()]
        return [f"{self.phase.value}, attempt {self.attempt}, epoch {self.epoch}", *missing]

    def missing(self) -> list[Peer]:
        """Participants that have yet to be ready, or to prepare."""
        if self.phase is CoordinatorPhase.BEGINNING:
            return sorted(self._unready)
        if self.phase is CoordinatorPhase.ENDING:
            return [who for who in self._participants if who not in self._prepared]
        return []

    def _begin(self) -> list[Order]:
        self.phase = CoordinatorPhase.BEGINNING
        self.attempt = Attempt(self.attempt + 1)
        self.epoch = Epoch(self.committed + 1)
        receivers = (*self._executors, *self._sinks)
        self._unready = set(receivers)
        self._prepared = {}
        self._failure = None
        notes = {sink: self._notes.get(sink) for sink in self._sinks}
        return [
            BeginAttempt(who, self.attempt, self.committed, self.epoch, notes.get(who))
            for who in receivers
        ]

    def _on_ready(self, event: ParticipantReady) -> list[Order]:
        self._require_attempt(event.attempt)
        if self.phase is not CoordinatorPhase.BEGINNING or event.who not in self._unready:
            raise OutOfOrderError(event.who, "have an order to begin", event.attempt)
        self._unready.discard(event.who)
        if self._unready:
            return []
        self.phase = CoordinatorPhase.RUNNING
        return [
            StartSource(who, self.attempt, self.epoch, self._notes.get(who))
            for who in self._sources
        ]

    def _on_due(self, event: EpochDue) -> list[Order]:
        if self.phase is not CoordinatorPhase.RUNNING:
            return []
        self.phase = CoordinatorPhase.ENDING
        return [EndEpoch(who, self.attempt, self.epoch) for who in self._sources]

    def _on_prepared(self, event: ParticipantPrepared) -> list[Order]:
        self._require_attempt(event.attempt)
        expected = self.phase is CoordinatorPhase.ENDING and event.epoch == self.epoch
        if not expected or event.who in self._prepared or event.who not in self._known:
            raise OutOfOrderError(event.who, f"prepare epoch {self.epoch} once", event.epoch)
        self._prepared[event.who] = event.note
        if len(self._prepared) < len(self._participants):
            return []
        self.phase = CoordinatorPhase.WRITING
        return [WriteManifest(self.epoch, self.attempt, self.committed, dict(self._prepared))]

    def _on_failed(self, event: ParticipantFailed) -> list[Order]:
        self._require_attempt(event.attempt)
        return self._give_up(event.who, event.reason)

    def _on_lost(self, event: ParticipantLost) -> list[Order]:
        return self._give_up(event.who, event.reason)

    def _give_up(self, who: Peer, reason: str) -> list[Order]:
        if self.phase is CoordinatorPhase.IDLE or who not in self._known:
            raise OutOfOrderError(who, f"be one of {self._participants}, started", reason)
        if self.phase is CoordinatorPhase.WRITING:
            self._failure = self._failure or reason
            return []
        return self._begin()

    def _on_written(self, event: ManifestWritten) -> list[Order]:
        self._require_writing(event.epoch)
        self.committed = self.epoch
        self._notes = self._prepared
        to_sources = self._commits(self._sources)
        if self._failure is not None:
            return [*self._begin(), *to_sources]  # they have not started the next attempt yet
        self._prepared = {}
        self.epoch = Epoch(self.epoch + 1)
        self.phase = CoordinatorPhase.RUNNING
        return [*self._commits((*self._executors, *self._sinks)), *to_sources]

    def _commits(self, receivers: Iterable[Peer]) -> list[Order]:
        return [CommitEpoch(who, self.attempt, self.committed) for who in receivers]

    def _on_manifest_failed(self, event: ManifestFailed) -> list[Order]:
        self._require_writing(event.epoch)
        return self._begin()

    def _require_attempt(self, attempt: Attempt) -> None:
        if attempt < self.attempt:
            raise StaleAttemptError("attempt", f"be {self.attempt}", attempt, "it was given up")
        if attempt > self.attempt:
            raise OutOfOrderError("attempt", f"be {self.attempt}", attempt)

    def _require_writing(self, epoch: Epoch) -> None:
        if self.phase is not CoordinatorPhase.WRITING or epoch != self.epoch:
            raise OutOfOrderError("manifest", "be the one being written", epoch)


_HANDLERS: dict[type, Callable[[Coordinator, Any], list[Order]]] = {
    EpochDue: Coordinator._on_due,
    ParticipantReady: Coordinator._on_ready,
    ParticipantPrepared: Coordinator._on_prepared,
    ParticipantFailed: Coordinator._on_failed,
    ParticipantLost: Coordinator._on_lost,
    ManifestWritten: Coordinator._on_written,
    ManifestFailed: Coordinator._on_manifest_failed,
}
