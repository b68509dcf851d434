"""The phases of a run's life, its terms, and its error."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from elasticutor.core.paradigm import Paradigm
from elasticutor.errors import ElasticutorError


class RunError(ElasticutorError, RuntimeError):
    """A run that ended by a failure: who failed, and how."""

    def __str__(self) -> str:
        said = f"{self.who} {self.got}"
        return f"{said}. Hint: {self.hint}" if self.hint else said


class RunPhase(Enum):
    """Where a run is in its life."""

    STARTING = "starting"
    RUNNING = "running"
    RECOVERING = "recovering"
    DRAINING = "draining"
    DRAINED = "drained"
    ENDING = "ending"
    ENDED = "ended"


OVER = (RunPhase.ENDING, RunPhase.ENDED)


@dataclass(frozen=True, slots=True)
class Terms:
    """What a run has to keep to."""

    paradigm: Paradigm
    latency_target: float | None
    """What the scheduler aims at, in seconds; None: it leaves the run alone."""
    end_when_drained: bool
    start_timeout_s: float
    epoch_interval_s: float
    patience_s: float
    """How long an answer may take."""
    restarts: int
    """How often the same thing may fail without an epoch committed in between."""
