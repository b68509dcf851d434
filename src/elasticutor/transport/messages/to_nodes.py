"""Messages to nodes, and to hosts of sources and sinks."""

from __future__ import annotations

from typing import Any

from elasticutor.core.message import Message
from elasticutor.core.protocol.ids import Peer
from elasticutor.core.protocol.keeper import SendSlice
from elasticutor.transport.channels import Endpoint

# To nodes -----------------------------------------------------------------------------------------


class _ForExecutor(Message):
    run: str
    who: Peer


class StartExecutor(_ForExecutor):
    """Start the main process of an elastic executor."""

    payload: bytes
    life: int = 0
    """Counted from 0: each successor of a lost executor is another life."""


class DropExecutor(_ForExecutor):
    """End the tasks and remove the store that earlier lives of an executor have left here."""

    life: int
    """The first life that stays."""


class ToNode(_ForExecutor):
    """An instruction of an executor to a node: for its store, or about a task's process."""

    reply: Endpoint
    order: Any
    """The instruction."""
    payload: bytes = b""
    """With `StartTask`: the specification of the task's process, pickled."""
    task: Endpoint | None = None
    """With `EndTask`: where the task is; None if it has not come up."""
    store: str = ""
    """The name of the store; empty: the executor's own."""
    life: int = 0


class ForStore(Message):
    """An instruction of the driver to a node, for a store that several executors share."""

    run: str
    store: Peer
    order: Any


class Slice(Message):
    """Some of a shard's state, from node to node."""

    run: str
    who: Peer
    life: int
    """The executor's life; moves of another life may have the same numbers."""
    piece: SendSlice


class ReadState(_ForExecutor):
    """Send all of an operator's state that is on this node to the driver."""

    ask: int


class EndRun(Message):
    """End every process of a run, after a grace period, and remove its state."""

    run: str
    grace_s: float


class Beat(Message):
    """The driver is alive; sent at intervals, and answered by `Alive`."""


class EndNode(Message):
    """The cluster is over."""


# To hosts of sources and sinks --------------------------------------------------------------------


class StartEnd(Message):
    """Start a task of a source, or a sink."""

    kind: str
    who: Peer
    life: int
    payload: bytes


class StartEnds(Message):
    """Start these sources and sinks."""

    ends: tuple[StartEnd, ...]


class KillEnd(Message):
    """Kill a source or sink that does not answer."""

    who: Peer
    life: int
