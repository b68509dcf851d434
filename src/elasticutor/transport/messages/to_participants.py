"""Messages to participants of a run from the driver, and between a main process and its tasks."""

from __future__ import annotations

from collections.abc import Mapping

from elasticutor.core.message import Message
from elasticutor.core.protocol.ids import Attempt, TaskId
from elasticutor.transport.channels import Endpoint

# From the driver ----------------------------------------------------------------------------------


class Peers(Message):
    """The addresses of other participants of the run."""

    book: Mapping[str, Endpoint]


class Finish(Message):
    """The run is over: end."""


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
