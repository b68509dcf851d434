"""What the scheduler goes by: everything that was measured of the cluster in one interval."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from elasticutor.core.measure.metrics import ExecutorMetrics
from elasticutor.core.protocol.ids import NodeId, Peer


@dataclass(frozen=True, slots=True)
class SourceSeen:
    """A source task, over the interval."""

    name: str
    """The source's name in the topology; its tasks share it."""
    seconds: float
    rows: int
    """What it sent."""
    blocked_share: float
    """Share of the time in which it could not send for want of credit."""
    behind_s: float = 0.0
    """How far what it sends now is behind the time at which it was due."""
    rate: float | None = None
    """What it would send per second if nothing blocked it, where it knows that itself."""
    routed: Mapping[Peer, int] = field(default_factory=dict)
    """How many of its rows are for which executor; sent or not, so no backlog hides them."""


@dataclass(frozen=True, slots=True)
class ExecutorSeen:
    """An elastic executor, over the interval and at its end."""

    name: Peer
    operator: str
    home: NodeId
    cores: Mapping[NodeId, int]
    """What it has at the end of the interval, or has been promised."""
    metrics: ExecutorMetrics
    fixed: bool = False
    """Whether its cores are not to be changed, and are none of those to be dealt out."""


@dataclass(frozen=True, slots=True)
class TopologySeen:
    """A topology at work."""

    name: str
    sources: tuple[SourceSeen, ...]
    executors: tuple[ExecutorSeen, ...]
    feeds: Mapping[str, tuple[str, ...]]
    """The sources and operators that feed each operator, by name."""
    target_s: float
    """The latency that its user wants kept, on average."""
