"""The settings of the scheduler."""

from __future__ import annotations

import math
from dataclasses import dataclass

from elasticutor.core.scheduler.demand import HORIZON_S
from elasticutor.errors import BadValueError


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """How a scheduler behaves; every default is meant to be left alone."""

    interval_s: float = 1.0
    """How often it may make a change that can wait."""
    cooldown_s: float = 10.0
    """How long an executor whose cores have changed is left alone."""
    margin: float = 0.1
    """The gain below which nothing is changed, as a share."""
    urgent: float = 0.15
    """The gain from which a change waits neither for the next round nor for a cool-down."""
    settle_s: float = 1.5
    """How long after a plan nothing is urgent: shards on the move disturb what is measured."""
    reserve: float = 0.2
    """The share of its demand that an executor may keep cores for."""
    horizon_s: float = HORIZON_S
    """How soon a backlog should be gone."""
    phi: float = 512 * 1024.0
    """Bytes per second and core from which an executor counts as data-intensive (paper 4.2)."""
    gives_back: bool = False
    """Whether executors give up cores that no other executor needs, as the paper has it.

    Here a core that is given up stays idle, and giving it up moves shards for nothing.
    """
    naive: bool = False
    """Whether migration costs and locality are ignored (the paper's naive-EC)."""

    def __post_init__(self) -> None:
        for name in ("interval_s", "cooldown_s", "margin", "urgent", "settle_s", "reserve"):
            if not 0 <= getattr(self, name) < math.inf:
                raise BadValueError(name, "be finite and at least 0", getattr(self, name))
        for name in ("horizon_s", "phi"):
            if not getattr(self, name) > 0:
                raise BadValueError(name, "be more than 0", getattr(self, name))
