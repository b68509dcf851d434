"""Where tuples wait in the main process: the single entrance of an elastic executor (paper 3.2).

A tuple that has arrived and has not been handed to a task is in exactly one of these places:

- *queued* for the task that owns its shard,
- *held* with its shard, which is on the move or has no owner,
- *parked* with its upstream, which does not take its outputs,
- *ahead*, when its upstream has ended the epoch and others have not.

So what holds one shard or one upstream never stands in the way of another. Wherever tuples of one
upstream and one shard wait, they wait in the order in which they came.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from elasticutor.core.events import ShardArray
from elasticutor.core.ids import Peer, ShardId

HELD = 0
"""The slot of shards that no task may work on now; tasks have the slots from 1 on."""


class Batch:
    """A batch as it arrived, and how much of it is done."""

    __slots__ = ("arrived_at", "content", "done", "number", "rows", "size", "upstream")

    def __init__(
        self, number: int, upstream: Peer, content: Any, rows: int, size: int, arrived_at: float
    ) -> None:
        self.number = number
        self.upstream = upstream
        self.content = content
        self.rows = rows
        self.size = size
        self.arrived_at = arrived_at
        self.done = 0

    def finish(self, rows: int) -> int:
        """Count tuples as processed; returns the bytes that go with them, exactly in the sum."""
        before = self.size * self.done // self.rows
        self.done += rows
        return self.size * self.done // self.rows - before


class Segment:
    """Some tuples of one batch, in their order."""

    __slots__ = ("batch", "count", "rows", "shards")

    def __init__(self, batch: Batch, rows: npt.NDArray[np.intp], shards: ShardArray) -> None:
        self.batch = batch
        self.rows = rows
        self.shards = shards
        self.count = len(rows)

    def pick(self, which: npt.NDArray[Any]) -> Segment:
        """Those tuples that an index array or a mask names."""
        return Segment(self.batch, self.rows[which], self.shards[which])

    def split(self, count: int) -> tuple[Segment, Segment]:
        """The first so many tuples, and the others."""
        return (
            Segment(self.batch, self.rows[:count], self.shards[:count]),
            Segment(self.batch, self.rows[count:], self.shards[count:]),
        )


class Receiver:
    """The waiting tuples of an elastic executor."""

    def __init__(self, shards: int) -> None:
        self._slot_of: npt.NDArray[np.int16] = np.zeros(shards, dtype=np.int16)
        self._queues: list[deque[Segment]] = [deque()]
        self._free_slots: list[int] = []
        self._held: dict[ShardId, list[Segment]] = {}
        self._parked: dict[Peer, list[Segment]] = {}
        self._ahead: dict[Peer, list[Segment]] = {}
        self._arrivals = 0
        self._routed = 0  # tuples queued, held or parked

    # Arriving

    def arrive(
        self, upstream: Peer, content: Any, shards: ShardArray, size: int, now: float
    ) -> None:
        """Take a batch in."""
        rows = len(shards)
        batch = Batch(self._arrivals, upstream, content, rows, size, now)
        self._arrivals += 1
        segment = Segment(batch, np.arange(rows), shards)
        ahead = self._ahead.get(upstream)
        if ahead is not None:
            ahead.append(segment)
        else:
            self._routed += rows
            self._place(segment)

    def wait_ahead(self, upstream: Peer) -> None:
        """Let what this upstream sends from now on wait for the next epoch."""
        self._ahead[upstream] = []

    def next_epoch(self) -> None:
        """Take in what has been waiting for this epoch."""
        ahead, self._ahead = self._ahead, {}
        # In the order of arrival, also between upstreams.
        segments = sorted(_chain(ahead.values()), key=_by_arrival)
        for segment in segments:
            self._routed += segment.count
            self._place(segment)

    @property
    def empty(self) -> bool:
        """Whether no tuple of the open epoch waits here."""
        return self._routed == 0

    @property
    def waiting(self) -> int:
        """How many tuples of the open epoch wait here."""
        return self._routed

    def clear(self) -> None:
        """Forget all tuples; the shards stay where they are."""
        for queue in self._queues:
            queue.clear()
        self._held.clear()
        self._parked.clear()
        self._ahead.clear()
        self._routed = 0

    # Handing out

    def add_slot(self) -> int:
        """A queue for one more task; returns its slot."""
        if self._free_slots:
            return self._free_slots.pop()
        self._queues.append(deque())
        return len(self._queues) - 1

    def free_slot(self, slot: int) -> None:
        """Give a slot back whose task has no shards any more."""
        self._free_slots.append(slot)

    def queued(self, slot: int) -> bool:
        """Whether any tuple waits for the task of this slot."""
        return bool(self._queues[slot])

    def take(self, slot: int, rows: int, *, one_upstream: bool) -> tuple[list[Segment], int]:
        """Take up to so many tuples out of a task's queue, the oldest first; and count them."""
        queue = self._queues[slot]
        taken: list[Segment] = []
        left = rows
        while queue and left > 0:
            segment = queue[0]
            if one_upstream and taken and segment.batch.upstream != taken[0].batch.upstream:
                break
            if segment.count <= left:
                queue.popleft()
            else:
                segment, queue[0] = segment.split(left)
            taken.append(segment)
            left -= segment.count
        self._routed -= rows - left
        return taken, rows - left

    # Shards

    def hold(self, shard: ShardId) -> None:
        """Keep the shard's tuples back, those waiting in its task's queue included."""
        slot = self._slot_of[shard]
        self._slot_of[shard] = HELD
        if slot != HELD:
            pulled, self._queues[slot] = _pull(self._queues[slot], shard)
            if pulled:
                self._held.setdefault(shard, []).extend(pulled)

    def release(self, shard: ShardId, slot: int) -> None:
        """Let the shard's tuples go to the task of this slot."""
        self._slot_of[shard] = slot
        self._queues[slot].extend(self._held.pop(shard, ()))

    # Upstreams

    def park(self, upstream: Peer) -> None:
        """Keep the upstream's tuples back, wherever they are waiting now."""
        if upstream in self._parked:
            return
        parked: list[Segment] = []
        for slot, queue in enumerate(self._queues):
            parked.extend(segment for segment in queue if segment.batch.upstream == upstream)
            self._queues[slot] = deque(s for s in queue if s.batch.upstream != upstream)
        for shard, held in list(self._held.items()):
            parked.extend(segment for segment in held if segment.batch.upstream == upstream)
            self._held[shard] = [s for s in held if s.batch.upstream != upstream]
        # Tuples of one shard were all in one place, in order; so the arrival restores it.
        self._parked[upstream] = sorted(parked, key=_by_arrival)

    def unpark(self, upstream: Peer) -> None:
        """Let the upstream's tuples go where they belong now."""
        for segment in self._parked.pop(upstream):
            self._place(segment)

    def parked(self, upstream: Peer) -> bool:
        """Whether the upstream's tuples are kept back."""
        return upstream in self._parked

    def _place(self, segment: Segment) -> None:
        parked = self._parked.get(segment.batch.upstream)
        if parked is not None:
            parked.append(segment)
            return
        slots = self._slot_of[segment.shards]
        order = slots.argsort(kind="stable")  # of 16 bits: a radix sort
        rows, shards = segment.rows[order], segment.shards[order]
        start = 0
        for slot, end in enumerate(np.bincount(slots).cumsum().tolist()):
            if end > start:
                picked = Segment(segment.batch, rows[start:end], shards[start:end])
                if slot == HELD:
                    self._hold_back(picked)
                else:
                    self._queues[slot].append(picked)
                start = end

    def _hold_back(self, segment: Segment) -> None:
        for shard in np.unique(segment.shards).tolist():
            mine = segment.pick(segment.shards == shard)
            self._held.setdefault(ShardId(shard), []).append(mine)


def _pull(queue: Iterable[Segment], shard: ShardId) -> tuple[list[Segment], deque[Segment]]:
    """Separate a shard's tuples from the others in a queue."""
    pulled: list[Segment] = []
    left: deque[Segment] = deque()
    for segment in queue:
        mask = segment.shards == shard
        if not mask.any():
            left.append(segment)
        elif mask.all():
            pulled.append(segment)
        else:
            pulled.append(segment.pick(mask))
            left.append(segment.pick(~mask))
    return pulled, left


def _by_arrival(segment: Segment) -> int:
    return segment.batch.number


def _chain(lists: Iterable[list[Segment]]) -> list[Segment]:
    return [segment for segments in lists for segment in segments]
