"""Small types for small identifiers, so that no signature reads `int, int, int, int`."""

from __future__ import annotations

from typing import NewType

NodeId = NewType("NodeId", str)
"""A machine that offers cores."""

TaskId = NewType("TaskId", int)
"""The data-processing loop on one core; never used again within an executor."""

ShardId = NewType("ShardId", int)
"""Unit of routing, moving and checkpointing: 0 … z-1 within an executor."""

Peer = NewType("Peer", str)
"""The other end of a data channel: an upstream, or a destination of outputs."""

ChunkId = NewType("ChunkId", int)
"""One hand-over of tuples to a task; counts up within an executor."""

MoveId = NewType("MoveId", int)
"""One reassignment of one shard; counts up within an executor."""

Epoch = NewType("Epoch", int)
"""What is committed as one. Epoch 0 is the empty state before the first."""

Attempt = NewType("Attempt", int)
"""One try at going on from a committed epoch; numbered, and stale ones are refused."""
