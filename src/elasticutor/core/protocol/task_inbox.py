"""What a task has been sent and has not done: in order, and interrupted by labels alone.

A label does not wait behind the task's chunks. The task looks at its mail between two tuples, takes
the tuples of the label's shard that it has not begun out of its chunks, and answers. Everything
else keeps its place; so do the tuples of all other shards.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
import numpy.typing as npt

from elasticutor.core.executor.batch import ShardArray
from elasticutor.core.protocol import instructions as do
from elasticutor.core.protocol.ids import ChunkId, ShardId


class Work:
    """A chunk as its task has it: the tuples that are left, and those done but not reported."""

    __slots__ = ("_done", "chunk", "content", "left", "shards")

    def __init__(self, chunk: ChunkId, shards: ShardArray, content: Any = None) -> None:
        self.chunk = chunk
        self.shards = shards
        """Of each tuple of the chunk."""
        self.content = content
        """Opaque: the tuples."""
        self.left: npt.NDArray[np.intp] = np.arange(len(shards))
        """The positions of the tuples that are not begun."""
        self._done: list[npt.NDArray[np.intp]] = []

    def begin(self, count: int) -> npt.NDArray[np.intp]:
        """Count the next tuples as begun; returns their positions."""
        begun, self.left = self.left[:count], self.left[count:]
        self._done.append(begun)
        return begun

    def leave_out(self, shard: ShardId) -> int:
        """Take the shard's tuples that are not begun out; returns their number."""
        stays = self.shards[self.left] != shard
        count = len(self.left)
        self.left = self.left[stays]
        return count - len(self.left)

    @property
    def unreported(self) -> int:
        """How many tuples are done that no answer has covered."""
        return sum(map(len, self._done))

    def owes(self, shard: ShardId) -> bool:
        """Whether any of those is of the shard."""
        return any(bool((self.shards[begun] == shard).any()) for begun in self._done)

    def report(self) -> int:
        """Count all that is done as reported; returns how many tuples that are."""
        count = self.unreported
        self._done.clear()
        return count


class SingleWork(Work):
    """A chunk of few tuples: the same with lists, since NumPy costs much for few."""

    __slots__ = ()

    shards: list[int]  # type: ignore[assignment]
    left: list[int]  # type: ignore[assignment]
    _done: list[list[int]]  # type: ignore[assignment]

    def __init__(self, chunk: ChunkId, shards: list[int], content: Any = None) -> None:
        self.chunk = chunk
        self.shards = shards
        self.content = content
        self.left = list(range(len(shards)))
        self._done = []

    def leave_out(self, shard: ShardId) -> int:
        """Take the shard's tuples that are not begun out; returns their number."""
        count = len(self.left)
        self.left = [place for place in self.left if self.shards[place] != shard]
        return count - len(self.left)

    def owes(self, shard: ShardId) -> bool:
        """Whether any that is done and unreported is of the shard."""
        return any(self.shards[place] == shard for begun in self._done for place in begun)


class TaskInbox:
    """The messages that a task has not acted on yet."""

    def __init__(self) -> None:
        self._waiting: deque[Any] = deque()
        self._labels: deque[do.SendLabel] = deque()

    def __len__(self) -> int:
        return len(self._waiting) + len(self._labels)

    def put(self, message: Any) -> None:
        """Take a message in; a label is put before chunks, but never before anything else."""
        if isinstance(message, do.SendLabel) and all(
            isinstance(waiting, Work) for waiting in self._waiting
        ):
            self._labels.append(message)
        else:
            self._waiting.append(message)

    @property
    def interrupted(self) -> bool:
        """Whether a label waits to be answered before the next tuple."""
        return bool(self._labels) or self._label_is_next

    def next_label(self) -> do.SendLabel | None:
        """The label to answer now, if there is one."""
        if self._labels:
            return self._labels.popleft()
        label: do.SendLabel | None = self._waiting.popleft() if self._label_is_next else None
        return label

    @property
    def _label_is_next(self) -> bool:
        return bool(self._waiting) and isinstance(self._waiting[0], do.SendLabel)

    def leave_out(self, shard: ShardId) -> int:
        """Take the shard's tuples out of all chunks; returns their number.

        A chunk of which nothing is left is gone: there is nothing to answer.
        """
        count = 0
        for message in self._waiting:
            if isinstance(message, Work):
                count += message.leave_out(shard)
        if count:
            self._waiting = deque(
                message
                for message in self._waiting
                if not isinstance(message, Work) or len(message.left)
            )
        return count

    def pop(self) -> Any:
        """The next message; only when no label waits."""
        return self._waiting.popleft()
