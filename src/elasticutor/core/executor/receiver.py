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
from collections.abc import Collection, Iterable
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt

from elasticutor.core.executor.batch import PLACES, Batch, Part, ShardArray
from elasticutor.core.protocol.ids import Peer, ShardId

HELD = 0
"""The slot of shards that no task may work on now; tasks have the slots from 1 on."""

_COUNTED = 64
"""Parts of a queue that are looked at to see how long it is."""
_FIRST: npt.NDArray[np.intp] = np.zeros(1, np.intp)
_FIRST.setflags(write=False)


class Receiver:
    """The waiting tuples of an elastic executor."""

    def __init__(self, shards: int) -> None:
        # Small numbers, so that a stable sort is a radix sort.
        self._slot_of: npt.NDArray[np.integer[Any]] = np.zeros(shards, dtype=np.uint8)
        self._ones = [np.array([shard], np.int32) for shard in range(shards)]  # for single tuples
        for one in self._ones:
            one.setflags(write=False)
        self._queues: list[deque[Part]] = [deque()]
        self._free_slots: list[int] = []
        self._held: dict[ShardId, list[Part]] = {}
        self._parked: dict[Peer, list[Part]] = {}
        self._ahead: dict[Peer, list[Part]] = {}
        self._arrivals = 0
        self._routed = 0  # tuples queued, held or parked

    # Arriving

    def slots(self, shards: ShardArray) -> npt.NDArray[np.integer[Any]]:
        """Where tuples of these shards go now; IndexError for a shard that is too large."""
        return self._slot_of.take(shards)

    def arrive(
        self,
        upstream: Peer,
        content: Any,
        shards: ShardArray,
        size: int,
        now: float,
        slots: npt.NDArray[np.integer[Any]] | None = None,
    ) -> None:
        """Take a batch in; `slots` says where its tuples go now, if that is known already."""
        batch = Batch(self._arrivals, upstream, content, len(shards), size, now)
        self._arrivals += 1
        ahead = self._ahead.get(upstream)
        if ahead is not None:
            ahead.append(Part(batch, np.arange(batch.rows), shards, batch.rows))
        else:
            self._routed += batch.rows
            if upstream in self._parked:
                self._parked[upstream].append(
                    Part(batch, np.arange(batch.rows), shards, batch.rows)
                )
            else:
                known = self.slots(shards) if slots is None else slots
                self._distribute(batch, None, shards, known)

    def arrive_singly(
        self, upstream: Peer, content: Any, shards: list[int], size: int, now: float
    ) -> None:
        """Take a batch of few tuples in: as `arrive`, and each becomes a part by itself."""
        batch = Batch(self._arrivals, upstream, content, len(shards), size, now)
        self._arrivals += 1
        ones = self._ones
        places = zip(PLACES, shards)  # noqa: B905 - there are places enough
        parts = [Part(batch, place, ones[shard], 1) for place, shard in places]
        ahead = self._ahead.get(upstream)
        if ahead is not None:
            ahead += parts
            return
        self._routed += len(parts)
        parked = self._parked.get(upstream)
        if parked is not None:
            parked += parts
            return
        slot_of, queues = self._slot_of.item, self._queues
        for shard, part in zip(shards, parts, strict=True):
            slot = slot_of(shard)
            if slot == HELD:
                self._hold_back(part)
            else:
                queues[slot].append(part)

    def wait_ahead(self, upstream: Peer) -> None:
        """Let what this upstream sends from now on wait for the next epoch."""
        self._ahead[upstream] = []

    def next_epoch(self) -> None:
        """Take in what has been waiting for this epoch."""
        ahead, self._ahead = self._ahead, {}
        # In the order of arrival, also between upstreams.
        parts = sorted(_chain(ahead.values()), key=_by_arrival)
        for part in parts:
            self._routed += part.count
            self._place(part)

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
        slot = len(self._queues) - 1
        if slot > np.iinfo(self._slot_of.dtype).max:
            self._slot_of = self._slot_of.astype(np.uint16)
        return slot

    def free_slot(self, slot: int) -> None:
        """Give a slot back whose task has no shards any more."""
        self._free_slots.append(slot)

    def queued(self, slot: int) -> bool:
        """Whether any tuple waits for the task of this slot."""
        return bool(self._queues[slot])

    def backlog(self, slot: int) -> int:
        """How many tuples wait for the task of this slot; no more are counted than matter."""
        queue = self._queues[slot]
        if len(queue) == 1:
            return queue[0].count
        return sum(part.count for part in islice(queue, _COUNTED))

    def take(self, slot: int, rows: int, *, one_upstream: bool) -> tuple[list[Part], int]:
        """Take about `rows` tuples out of a task's queue, the oldest first; and count them.

        Parts are what all work is done on, and to join or to split them is to copy tuples. So up to
        a quarter more is taken, or as little as half, rather than a part split; and one that must
        be is split evenly.
        """
        queue = self._queues[slot]
        taken: list[Part] = []
        left, slack = rows, rows // 4
        while queue and left > 0:
            part = queue[0]
            if one_upstream and taken and part.batch.upstream != taken[0].batch.upstream:
                break
            if part.count <= left + slack:
                queue.popleft()
            elif 2 * left <= rows:
                break
            else:
                pieces = -(-part.count // left)
                part, queue[0] = part.split(-(-part.count // pieces))
            taken.append(part)
            left -= part.count
        self._routed -= rows - left
        return taken, rows - left

    # Shards

    def hold(self, shards: Collection[ShardId]) -> None:
        """Keep these shards' tuples back, those waiting in their tasks' queues included.

        Every queue is looked through once, however many shards are held.
        """
        slots = {int(self._slot_of[shard]) for shard in shards} - {HELD}
        self._slot_of[list(shards)] = HELD
        for slot in sorted(slots):
            if self._queues[slot]:
                self._pull_held(slot)

    def _pull_held(self, slot: int) -> None:
        """Take tuples of held shards out of a queue, in their order."""
        queue = self._queues[slot]
        held = self._slot_of.take(np.concatenate([part.shards for part in queue])) == HELD
        starts = np.cumsum([0, *(part.count for part in queue)])
        counts = np.add.reduceat(held, starts[:-1], dtype=np.intp).tolist()
        left: deque[Part] = deque()
        for part, start, count in zip(queue, starts.tolist(), counts, strict=False):
            if not count:
                left.append(part)
            elif count == part.count:
                self._hold_back(part)
            else:
                mine = held[start : start + part.count]
                self._hold_back(part.pick(mine))
                left.append(part.pick(~mine))
        self._queues[slot] = left

    def release(self, shard: ShardId, slot: int) -> None:
        """Let the shard's tuples go to the task of this slot."""
        self._slot_of[shard] = slot
        self._queues[slot].extend(self._held.pop(shard, ()))

    def take_back(self, shard: ShardId, parts: Iterable[Part]) -> None:
        """Put a held shard's tuples that a task was given and has not begun before all others."""
        by_upstream: dict[Peer, list[Part]] = {}
        for part in parts:
            self._routed += part.count
            by_upstream.setdefault(part.batch.upstream, []).append(part)
        front: list[Part] = []
        for upstream, mine in by_upstream.items():
            if upstream in self._parked:
                # Of one batch, those that come back came before those that wait: sorting keeps it.
                self._parked[upstream] = sorted([*mine, *self._parked[upstream]], key=_by_arrival)
            else:
                front += mine
        if front:
            self._held[shard] = [*front, *self._held.get(shard, ())]

    # Upstreams

    def park(self, upstream: Peer) -> None:
        """Keep the upstream's tuples back, wherever they are waiting now."""
        if upstream in self._parked:
            return
        parked: list[Part] = []
        for slot, queue in enumerate(self._queues):
            parked.extend(part for part in queue if part.batch.upstream == upstream)
            self._queues[slot] = deque(s for s in queue if s.batch.upstream != upstream)
        for shard, held in list(self._held.items()):
            parked.extend(part for part in held if part.batch.upstream == upstream)
            self._held[shard] = [s for s in held if s.batch.upstream != upstream]
        # Tuples of one shard were all in one place, in order; so the arrival restores it.
        self._parked[upstream] = sorted(parked, key=_by_arrival)

    def unpark(self, upstream: Peer) -> None:
        """Let the upstream's tuples go where they belong now."""
        for part in self._parked.pop(upstream):
            self._place(part)

    def parked(self, upstream: Peer) -> bool:
        """Whether the upstream's tuples are kept back."""
        return upstream in self._parked

    def _place(self, part: Part) -> None:
        parked = self._parked.get(part.batch.upstream)
        if parked is not None:
            parked.append(part)
        else:
            self._distribute(part.batch, part.rows, part.shards, self.slots(part.shards))

    def _distribute(
        self,
        batch: Batch,
        rows: npt.NDArray[np.intp] | None,
        shards: ShardArray,
        slots: npt.NDArray[np.integer[Any]],
    ) -> None:
        """Queue tuples for the tasks that own their shards; without `rows`, the whole batch."""
        if len(slots) == 1:  # by far the most common when latency counts, and by far cheaper
            self._queue_at(int(slots[0]), Part(batch, _FIRST if rows is None else rows, shards, 1))
            return
        order = slots.argsort(kind="stable")
        rows = order if rows is None else rows.take(order)
        shards = shards.take(order)
        start = 0
        for slot, end in enumerate(np.bincount(slots).cumsum().tolist()):
            if end > start:
                self._queue_at(slot, Part(batch, rows[start:end], shards[start:end], end - start))
                start = end

    def _queue_at(self, slot: int, part: Part) -> None:
        if slot == HELD:
            self._hold_back(part)
        else:
            self._queues[slot].append(part)

    def _hold_back(self, part: Part) -> None:
        shards = set(part.shards.tolist())
        for shard in sorted(shards):
            mine = part if len(shards) == 1 else part.pick(part.shards == shard)
            self._held.setdefault(ShardId(shard), []).append(mine)


def _by_arrival(part: Part) -> int:
    return part.batch.number


def _chain(lists: Iterable[list[Part]]) -> list[Part]:
    return [part for parts in lists for part in parts]
