"""Adds up what a run measures: the last moments, the totals, and a timeline."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from elasticutor.core.measure.latency import LatencyHistogram
from elasticutor.core.measure.metrics import ExecutorMetrics
from elasticutor.core.protocol.ids import Peer, TaskId
from elasticutor.transport import messages as say

WINDOW_S = 1.0
"""What "now" means in `RunMetrics`: the measurements of about this long."""

_TIMELINE = 20_000
_FRESH = 8
"""Measurements of an executor that are added to its total at once."""


@dataclass(frozen=True, slots=True)
class Moment:
    """One interval of a sink, in a timeline."""

    time: float
    seconds: float
    rows: int
    p50_ms: float
    p99_ms: float


@dataclass(frozen=True, slots=True)
class RunMetrics:
    """The figures of a run: over the last second or so, and in all."""

    seconds: float
    """Since the run began, or since the totals were last reset."""
    rows_in: int
    """Rows that the sources have sent."""
    rows_out: int
    """Rows that the sinks have taken."""
    rows_in_s: float
    """The same per second, lately."""
    rows_out_s: float
    latency: LatencyHistogram
    """From when a tuple was due at its source to when its output was with a sink; all of them."""
    recent_latency: LatencyHistogram
    """The same, lately."""
    behind_s: float
    """How far the most delayed source is behind its schedule."""
    executors: Mapping[Peer, ExecutorMetrics]
    """Each over its last interval."""
    totals: Mapping[Peer, ExecutorMetrics]
    """Each over the whole time."""
    tasks: Mapping[Peer, Mapping[TaskId, say.TaskSeen]]
    """The tasks of each: their nodes, loads and numbers of shards."""
    dropped: int
    """Messages that were malformed or out of place."""

    def as_dict(self) -> dict[str, Any]:
        """Plain numbers, for JSON; None stands for what is not measured yet."""
        return {
            "seconds": self.seconds,
            "rows_in": self.rows_in,
            "rows_out": self.rows_out,
            "rows_in_s": self.rows_in_s,
            "rows_out_s": self.rows_out_s,
            "behind_s": self.behind_s,
            "latency_ms": _percentiles(self.latency),
            "recent_latency_ms": _percentiles(self.recent_latency),
            "dropped": self.dropped,
            "executors": {
                who: {
                    **metrics.as_dict(),
                    "tasks": {
                        str(task): {"node": seen.node, "status": seen.status, "load": seen.load}
                        for task, seen in self.tasks.get(who, {}).items()
                    },
                }
                for who, metrics in self.executors.items()
            },
        }


def _percentiles(latency: LatencyHistogram) -> dict[str, float | None]:
    numbers = {f"p{p:g}": latency.percentile_s(p) * 1e3 for p in (50, 90, 99, 99.9)}
    return {name: None if math.isnan(number) else number for name, number in numbers.items()}


@dataclass(slots=True)
class _Recent:
    """The last intervals of one participant."""

    intervals: deque[tuple[float, float, int, Any]] = field(default_factory=deque)

    def add(self, seconds: float, rows: int, more: Any) -> None:
        now = time.monotonic()
        self.intervals.append((now, seconds, rows, more))
        while now - self.intervals[0][0] > WINDOW_S:  # never the one just added
            self.intervals.popleft()

    def rate(self) -> float:
        seconds = sum(interval[1] for interval in self.intervals)
        rows = sum(interval[2] for interval in self.intervals)
        return rows / seconds if seconds > 0 else 0.0


class RunLedger:
    """Adds up what participants measure. Safe for several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tasks: dict[Peer, Mapping[TaskId, say.TaskSeen]] = {}
        self._last: dict[Peer, ExecutorMetrics] = {}
        self._dropped: dict[Peer, int] = {}
        self.timeline: deque[Moment] = deque(maxlen=_TIMELINE)
        self._start()

    def _start(self) -> None:
        self._since = time.monotonic()
        self._totals: dict[Peer, ExecutorMetrics] = {}
        self._fresh: dict[Peer, list[ExecutorMetrics]] = {}
        """What is not in the totals yet: many at once cost hardly more to add than one."""
        self._rows_in = self._rows_out = 0
        self._latency = LatencyHistogram()
        self._sources: dict[Peer, _Recent] = {}
        self._sinks: dict[Peer, _Recent] = {}

    def reset(self) -> None:
        """Reset the totals, after a warm-up for instance."""
        with self._lock:
            self._start()

    def executor(self, message: say.Measured) -> None:
        """Add an executor's interval."""
        with self._lock:
            who = message.who
            self._last[who] = message.metrics
            if who not in self._totals:
                self._totals[who] = message.metrics
            else:
                fresh = self._fresh.setdefault(who, [])
                fresh.append(message.metrics)
                if len(fresh) >= _FRESH:
                    self._add_up(who)
            self._tasks[who] = message.tasks
            self._dropped[who] = message.dropped

    def _add_up(self, who: Peer) -> None:
        """Add to an executor's total what has come since it was last added up."""
        self._totals[who] = self._totals[who].then(*self._fresh.pop(who))

    def staff(self, message: say.Staff) -> None:
        """Note that an executor's tasks have changed."""
        with self._lock:
            self._tasks[message.who] = message.tasks

    def source(self, message: say.SourceMeasured) -> None:
        """Add a source's interval."""
        with self._lock:
            self._rows_in += message.rows
            recent = self._sources.setdefault(message.who, _Recent())
            recent.add(message.seconds, message.rows, message.behind_s)

    def sink(self, message: say.SinkMeasured) -> None:
        """Add a sink's interval."""
        with self._lock:
            self._rows_out += message.rows
            self._latency.merge(message.latency)
            recent = self._sinks.setdefault(message.who, _Recent())
            recent.add(message.seconds, message.rows, message.latency)
            p50, p99 = (message.latency.percentile_s(p) * 1e3 for p in (50, 99))
            self.timeline.append(Moment(time.time(), message.seconds, message.rows, p50, p99))

    def tasks(self, who: Peer) -> Mapping[TaskId, say.TaskSeen]:
        """The tasks of an executor by its last report."""
        with self._lock:
            return self._tasks.get(who, {})

    def metrics(self) -> RunMetrics:
        """The figures as of now."""
        with self._lock:
            for who in tuple(self._fresh):
                self._add_up(who)
            latency, recent = LatencyHistogram(), LatencyHistogram()
            latency.merge(self._latency)
            for sink in self._sinks.values():
                for *_, interval in sink.intervals:
                    recent.merge(interval)
            behind = [source.intervals[-1][3] for source in self._sources.values()]
            return RunMetrics(
                seconds=time.monotonic() - self._since,
                rows_in=self._rows_in,
                rows_out=self._rows_out,
                rows_in_s=sum(source.rate() for source in self._sources.values()),
                rows_out_s=sum(sink.rate() for sink in self._sinks.values()),
                latency=latency,
                recent_latency=recent,
                behind_s=max(behind, default=0.0),
                executors=dict(self._last),
                totals=dict(self._totals),
                tasks=dict(self._tasks),
                dropped=sum(self._dropped.values()),
            )
