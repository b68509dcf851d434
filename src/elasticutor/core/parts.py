"""Batches as they arrive, and the parts of them that go to different tasks.

The core never looks into a batch: it knows how many tuples it has, of which shards, and its bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from elasticutor.core.ids import Peer

ShardArray = npt.NDArray[np.int32]
"""Shard numbers, one per tuple."""

MOST_SINGLES = 64
"""Tuples up to this number may arrive with a list of shards, and then are parts of their own."""

PLACES = tuple(np.array([place]) for place in range(MOST_SINGLES))
"""The place of each of few tuples in its batch, as a part has it."""
for _place in PLACES:
    _place.setflags(write=False)


class Batch:
    """A batch as it arrived, and how much of it is done."""

    __slots__ = ("arrived_at", "content", "done", "number", "rows", "size", "upstream")

    def __init__(
        self, number: int, upstream: Peer, content: Any, rows: int, size: int, arrived_at: float
    ) -> None:
        self.number = number
        self.upstream = upstream
        self.content = content
        """Opaque: whatever the host handed in; None once all of it is processed."""
        self.rows = rows
        self.size = size
        self.arrived_at = arrived_at
        self.done = 0

    def finish(self, rows: int) -> int:
        """Count tuples as processed; returns the bytes that go with them, exactly in the sum."""
        before = self.size * self.done // self.rows
        self.done += rows
        if self.done == self.rows:
            self.content = None  # a part that is kept for its numbers keeps no tuples
        return self.size * self.done // self.rows - before


class Part:
    """Some tuples of one batch, in their order. Not changed once it is made."""

    __slots__ = ("batch", "count", "rows", "shards")

    def __init__(self, batch: Batch, rows: npt.NDArray[np.intp], shards: ShardArray) -> None:
        self.batch = batch
        self.rows = rows
        """Their positions in the batch."""
        self.shards = shards
        """Their shards, one per position."""
        self.count = len(rows)

    def pick(self, which: npt.NDArray[Any]) -> Part:
        """Those tuples that an index array or a mask names."""
        return Part(self.batch, self.rows[which], self.shards[which])

    def split(self, count: int) -> tuple[Part, Part]:
        """The first so many tuples, and the others."""
        return (
            Part(self.batch, self.rows[:count], self.shards[:count]),
            Part(self.batch, self.rows[count:], self.shards[count:]),
        )

    def __repr__(self) -> str:
        return f"Part({self.count} of batch {self.batch.number} from {self.batch.upstream})"


def divided(parts: Sequence[Part], count: int) -> tuple[list[Part], list[Part]]:
    """The first so many tuples of some parts, and the others."""
    first: list[Part] = []
    for number, part in enumerate(parts):
        if part.count > count:
            head, tail = part.split(count)
            return [*first, head] if count else first, [tail, *parts[number + 1 :]]
        first.append(part)
        count -= part.count
    return first, []
