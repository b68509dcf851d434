"""Messages to participants of a run from the driver, and between a main process and its tasks."""

from __future__ import annotations

from collections.abc import Mapping

from elasticutor.core.message import Message
from elasticutor.core.protocol.ids import Attempt, NodeId, TaskId
from elasticutor.transport.channels import Endpoint

# From the driver ----------------------------------------------------------------------------------


class Peers(Message):
    """The addresses of other participants of the run."""

    book: Mapping[str, Endpoint]


class SetCores(Message):
    """The cores that the executor should have, by node."""

    wanted: Mapping[NodeId, int]


class Rest(Message):
    """Start no more moves; answer by `Rested` after the last one, or when all is published."""


class Explain(Message):
    """Say why nothing happens; answered by `Recount`."""


class Finish(Message):
    """The run is over: end."""


class StopSource(Message):
    """Stop a source at the end of the current epoch."""


# Between a main process and its tasks -------------------------------------------------------------


class TaskUp(Message):
    """A task's process runs, and takes chunks at this endpoint."""

    task: TaskId
    endpoint: Endpoint
    pid: int


class TaskFailed(Message):
    """The task cannot go on: its operator raised, or its state has no room."""

    task: TaskId
    attempt: Attempt
    error: bytes
    text: str


class Close(Message):
    """The task closes its operator and ends."""
