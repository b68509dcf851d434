"""Batches as they arrive, and the parts of them that go to different tasks.

The core never looks into a batch: it knows how many tuples it has, of which shards, and its bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from elasticutor.core.protocol.ids import Peer

ShardArray = npt.NDArray[np.int32]
"""Shard numbers, one per tuple."""

MOST_SINGLES = 64
"""Tuples up to this number may arrive with a list of shards, and then are parts of their own."""

PLACES = tuple(np.array([place]) for place in range(MOST_SINGLES))
"""The place of each of few tuples in its batch, as a part has it."""
for _place in PLACES:
    _place.setflags(write=False)


class Batch(msgspec.Struct, eq=False):
    """A batch as it arrived, and how much of it is done."""

    number: int
    upstream: Peer
    content: Any
    """Opaque: whatever the host handed in; None once all of it is processed."""
    rows: int
    size: int
    arrived_at: float
    done: int = 0

    def finish(self, rows: int) -> int:
        """Count tuples as processed; returns the bytes that go with them, exactly in the sum."""
        before = self.size * self.done // self.rows
        self.done += rows
        if self.done == self.rows:
            self.content = None  # a part that is kept for its numbers keeps no tuples
        return self.size * self.done // self.rows - before


class Part(msgspec.Struct, eq=False):
    """Some tuples of one batch, in their order. Not changed once it is made."""

    batch: Batch
    rows: npt.NDArray[np.intp]
    """Their positions in the batch."""
    shards: ShardArray
    """Their shards, one per position."""
    count: int
    """How many tuples."""

    def pick(self, which: npt.NDArray[Any]) -> Part:
        """Those tuples that an index array or a mask names."""
        rows = self.rows[which]
        return Part(self.batch, rows, self.shards[which], len(rows))

    def split(self, count: int) -> tuple[Part, Part]:
        """Return the first `count` tuples, and the others."""
        return (
            Part(self.batch, self.rows[:count], self.shards[:count], count),
            Part(self.batch, self.rows[count:], self.shards[count:], self.count - count),
        )

    def __repr__(self) -> str:
        return f"Part({self.count} of batch {self.batch.number} from {self.batch.upstream})"


def divided(parts: Sequence[Part], count: int) -> tuple[list[Part], list[Part]]:
    """Return the first `count` tuples of some parts, and the others."""
    first: list[Part] = []
    for number, part in enumerate(parts):
        if part.count > count:
            head, tail = part.split(count)
            return [*first, head] if count else first, [tail, *parts[number + 1 :]]
        first.append(part)
        count -= part.count
    return first, []
