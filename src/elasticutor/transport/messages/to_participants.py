"""Messages to participants of a run from the driver, and between a main process and its tasks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from elasticutor.core.protocol.ids import Attempt, NodeId, TaskId
from elasticutor.transport.channels import Endpoint

# From the driver ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Peers:
    """The addresses of other participants of the run."""

    book: Mapping[str, Endpoint]


@dataclass(frozen=True, slots=True)
class SetCores:
    """The cores that the executor should have, by node."""

    wanted: Mapping[NodeId, int]


@dataclass(frozen=True, slots=True)
class Rest:
    """Start no more moves; answer by `Rested` after the last one, or when all is published."""


@dataclass(frozen=True, slots=True)
class Explain:
    """Say why nothing happens; answered by `Recount`."""


@dataclass(frozen=True, slots=True)
class Finish:
    """The run is over: end."""


@dataclass(frozen=True, slots=True)
class StopSource:
    """Stop a source at the end of the current epoch."""


# Between a main process and its tasks -------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TaskUp:
    """A task's process runs, and takes chunks at this endpoint."""

    task: TaskId
    endpoint: Endpoint
    pid: int


@dataclass(frozen=True, slots=True)
class TaskFailed:
    """The task cannot go on: its operator raised, or its state has no room."""

    task: TaskId
    attempt: Attempt
    error: bytes
    text: str


@dataclass(frozen=True, slots=True)
class Close:
    """The task closes its operator and ends."""
