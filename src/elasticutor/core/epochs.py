"""Where an executor stands among attempts and epochs.

```
markers from some upstreams → markers from all → tasks flushing → sealed, persisting → prepared
                                                                  (the next epoch is open)
```

*Prepared* is durable and can still be rolled back; it is committed when whoever drives the epochs
says so, or does what can only be done after the commit: end the next epoch, or begin an attempt
that starts from it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from elasticutor.core.ids import Attempt, Epoch, NodeId, Peer, TaskId
from elasticutor.errors import OutOfOrderError, StaleAttemptError


@dataclass(slots=True)
class Epochs:
    """Attempt, epochs, and who has yet to answer for the end of one."""

    attempt: Attempt = Attempt(0)
    committed: Epoch = Epoch(0)
    prepared: Epoch | None = None
    """The epoch that is durable and not known to be committed."""
    open: Epoch = Epoch(1)
    upstreams: frozenset[Peer] = frozenset()
    marked: set[Peer] = field(default_factory=set)
    """Upstreams that have ended the open epoch."""
    flushing: set[TaskId] | None = None
    """Tasks that have yet to flush; None unless they were told to."""
    persisting: set[NodeId] | None = None
    """Nodes that have yet to make the sealed epoch durable; None unless they were told to."""
    sealed: Epoch | None = None
    """The epoch being made durable; not None iff `persisting` is not None."""
    notes: list[Any] = field(default_factory=list)
    """What nodes said of the increments of the sealed epoch."""
    marked_at: float = 0.0
    """When the first marker of the open epoch came."""
    flushing_at: float = 0.0
    """When the tasks were told to flush."""
    touched: bool = False
    """Whether anything of the open epoch was handed to a task."""

    def require_attempt(self, attempt: Attempt) -> None:
        """Refuse whatever does not belong to the current attempt."""
        if self.attempt == 0:  # this process has taken the place of one that was lost
            raise StaleAttemptError("attempt", "begin here first", attempt, "it was given up")
        if attempt < self.attempt:
            raise StaleAttemptError("attempt", f"be {self.attempt}", attempt, "it was given up")
        if attempt > self.attempt:
            raise OutOfOrderError("attempt", f"be {self.attempt}", attempt, "it has not begun")

    def begin(
        self, attempt: Attempt, base: Epoch, epoch: Epoch, upstreams: frozenset[Peer]
    ) -> None:
        """Start over from the base."""
        self.attempt = attempt
        self.committed = base
        self.prepared = None
        self.open = epoch
        self.upstreams = upstreams
        self.marked = set()
        self.flushing = None
        self.persisting = None
        self.sealed = None
        self.notes = []
        self.touched = False

    def continues(self, base: Epoch) -> bool:
        """Whether an attempt from this base can go on with what the tasks have cached."""
        ending = self.marked or self.flushing is not None or self.persisting is not None
        return base == self.prepared and not self.touched and not ending

    def require_marker(self, upstream: Peer, epoch: Epoch) -> None:
        """Refuse a marker that is not this upstream's next one."""
        if upstream in self.marked or epoch != self.open:
            expected = "wait" if upstream in self.marked else f"end epoch {self.open}"
            raise OutOfOrderError(f"marker from {upstream!r}", expected, epoch)
        if self.persisting is not None:
            raise OutOfOrderError(
                f"marker from {upstream!r}", f"come after epoch {self.sealed} is durable", epoch
            )

    @property
    def still_to_flush(self) -> set[TaskId]:
        """Tasks that have yet to flush behind the open epoch."""
        return self.flushing or set()

    @property
    def all_marked(self) -> bool:
        """Whether every upstream has ended the open epoch."""
        return len(self.marked) == len(self.upstreams) > 0

    def seal(self, nodes: set[NodeId]) -> Epoch:
        """All tasks have flushed: the epoch is closed, the next one open."""
        self.sealed = self.open
        self.persisting = nodes
        self.notes = []
        self.open = Epoch(self.open + 1)
        self.marked = set()
        self.flushing = None
        self.touched = False
        return self.sealed

    def prepare(self) -> Epoch:
        """The sealed epoch is durable everywhere."""
        assert self.sealed is not None  # only called while persisting
        self.prepared, self.sealed, self.persisting = self.sealed, None, None
        return self.prepared

    def commit(self) -> Epoch:
        """The prepared epoch is committed."""
        assert self.prepared is not None  # only called with one prepared
        self.committed, self.prepared = self.prepared, None
        return self.committed
