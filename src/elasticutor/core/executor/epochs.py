"""Tracks where an executor stands among attempts and epochs.

```
markers from some upstreams → markers from all → ending: tasks write, then nodes persist → prepared
                                                 (the next epoch is open)
```

Tasks work on the next epoch while they write what they changed in the one that ends. An ending
epoch is *sealed* when its last chunk is answered: then all of its outputs are known.

*Prepared* is durable and can still be rolled back; it is committed when the coordinator says
so, or does what can only be done after the commit: end the next epoch, or begin an attempt that
starts from it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from elasticutor.core.protocol.ids import Attempt, Epoch, NodeId, Peer, TaskId
from elasticutor.errors import BadValueError, OutOfOrderError, StaleAttemptError


@dataclass(slots=True)
class Epochs:
    """Attempt, epochs, and the tasks and nodes that have yet to answer for the end of one."""

    attempt: Attempt = Attempt(0)
    committed: Epoch = Epoch(0)
    prepared: Epoch | None = None
    """The epoch that is durable and not known to be committed."""
    open: Epoch = Epoch(1)
    upstreams: frozenset[Peer] = frozenset()
    marked: set[Peer] = field(default_factory=set)
    """Upstreams that have ended the open epoch."""
    flushing: set[TaskId] | None = None
    """Tasks that have yet to write the ending epoch; None unless they were asked to."""
    persisting: set[NodeId] | None = None
    """Nodes that have yet to make the ending epoch durable; None unless they were asked to."""
    ending: Epoch | None = None
    """The epoch whose tuples are all handed out, and which is not durable yet."""
    unsealed: bool = False
    """Whether tasks may have yet to answer chunks of the ending epoch."""
    notes: list[Any] = field(default_factory=list)
    """What nodes said of the increments of the ending epoch."""
    marked_at: float = 0.0
    """When the first marker of the open epoch came."""
    flushing_at: float = 0.0
    """When the tasks were asked to flush."""
    pause_s: float = 0.0
    """The longest that the end of the epoch has kept a task from its tuples."""
    touched: bool = False
    """Whether anything of the open epoch was handed to a task."""

    def require_attempt(self, attempt: Attempt) -> None:
        """Refuse what does not belong to the current attempt."""
        if self.attempt == 0:  # this process has taken the place of one that was lost
            raise StaleAttemptError("attempt", "begin here first", attempt, "it was given up")
        if attempt < self.attempt:
            raise StaleAttemptError("attempt", f"be {self.attempt}", attempt, "it was given up")
        if attempt > self.attempt:
            raise OutOfOrderError("attempt", f"be {self.attempt}", attempt, "it has not begun")

    def require_next(self, attempt: Attempt, base: Epoch, epoch: Epoch) -> None:
        """Refuse an attempt that has begun or is over, or whose epochs cannot be."""
        if attempt == self.attempt:
            raise OutOfOrderError("attempt", f"be after {self.attempt}", attempt)
        if attempt < self.attempt:
            raise StaleAttemptError("attempt", f"be after {self.attempt}", attempt)
        if not 0 <= base < epoch:
            raise BadValueError("base", f"be 0 to {epoch - 1}", base)

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
        self.ending = None
        self.unsealed = False
        self.notes = []
        self.touched = False

    def continues(self, base: Epoch) -> bool:
        """Whether an attempt from this base can go on with what the tasks have cached."""
        ending = self.marked or self.ending is not None
        return base == self.prepared and not self.touched and not ending

    def require_marker(self, upstream: Peer, epoch: Epoch) -> None:
        """Refuse a marker that is not this upstream's next one."""
        if upstream in self.marked or epoch != self.open:
            expected = "wait" if upstream in self.marked else f"end epoch {self.open}"
            raise OutOfOrderError(f"marker from {upstream!r}", expected, epoch)
        if self.ending is not None:
            raise OutOfOrderError(
                f"marker from {upstream!r}", f"come after epoch {self.ending} is durable", epoch
            )

    @property
    def ends(self) -> bool:
        """Whether an epoch has begun to end: some upstream has marked it, or tasks still answer."""
        return self.unsealed or bool(self.marked)

    @property
    def still_to_flush(self) -> set[TaskId]:
        """Tasks that have yet to write the ending epoch."""
        return self.flushing or set()

    @property
    def all_marked(self) -> bool:
        """Whether every upstream has ended the open epoch."""
        return len(self.marked) == len(self.upstreams) > 0

    def end(self, tasks: set[TaskId], now: float) -> Epoch:
        """Open the next epoch, with all tuples of this one handed out: these tasks flush."""
        self.ending, self.unsealed = self.open, True
        self.flushing, self.flushing_at, self.pause_s = tasks, now, 0.0
        self.open = Epoch(self.open + 1)
        self.marked = set()
        self.touched = False
        return self.ending

    def seal(self) -> Epoch:
        """Take note that all chunks of the ending epoch are answered."""
        assert self.ending is not None  # only called while one is unsealed
        self.unsealed = False
        return self.ending

    def persist(self, nodes: set[NodeId]) -> Epoch:
        """Let these nodes make the epoch durable, which all tasks have written."""
        assert self.ending is not None  # only called while flushing
        self.flushing, self.persisting, self.notes = None, nodes, []
        return self.ending

    def prepare(self) -> Epoch:
        """Take note that the ending epoch is durable everywhere."""
        assert self.ending is not None  # only called while persisting
        self.prepared, self.ending, self.persisting = self.ending, None, None
        return self.prepared

    def commit(self) -> Epoch:
        """Take note that the prepared epoch is committed."""
        assert self.prepared is not None  # only called with one prepared
        self.committed, self.prepared = self.prepared, None
        return self.committed

    def waiting_for(self) -> list[str]:
        """What the end of an epoch waits for, in words."""
        tasks = [f"task {task} to flush" for task in sorted(self.flushing or ())]
        nodes = [f"node {node} to persist" for node in sorted(self.persisting or ())]
        return [*tasks, *nodes, f"markers from {sorted(self.upstreams - self.marked)}"]
