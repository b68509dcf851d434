"""Progress of a streaming query's elastic operators, beside Spark's own."""

from __future__ import annotations

import json
import weakref
from dataclasses import dataclass
from typing import Any

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)
from pyspark.sql.streaming.query import StreamingQuery

from elasticutor.driver.cluster import BaseCluster
from elasticutor.errors import BadValueError

_CLUSTERS: weakref.WeakSet[BaseCluster] = weakref.WeakSet()
"""Clusters that have served an elastic DataFrame."""


def served_by(cluster: BaseCluster) -> None:
    """Remember a cluster that serves elastic DataFrames."""
    _CLUSTERS.add(cluster)


@dataclass(frozen=True, slots=True)
class ElasticProgress:
    """The work of a query's elastic operators in one batch."""

    id: str
    """Of the query; the same over restarts."""
    batchId: int  # noqa: N815 - as Spark's own progress calls it
    operators: dict[str, dict[str, Any]]
    """By name: rowsIn, rowsOut, latencyMs, executors, cores, moves, hotShards, durationMs, tasks,
    stateBytesWritten."""

    @property
    def json(self) -> str:
        """JSON on one line."""
        return json.dumps(self.as_dict())

    @property
    def prettyJson(self) -> str:  # noqa: N802 - as Spark's own progress calls it
        """JSON with indents."""
        return json.dumps(self.as_dict(), indent=2)

    def as_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {"id": self.id, "batchId": self.batchId, "operators": self.operators}


def progress(query: StreamingQuery | str) -> list[ElasticProgress]:
    """Return the progress of a query's elastic operators in its last batches, the newest last.

    Takes the query or its id; it may have ended. Returns up to a hundred, and none for a query
    without elastic operators.
    """
    wanted = query if isinstance(query, str) else str(query.id)
    batches: dict[int, dict[str, dict[str, Any]]] = {}
    receptions = [one for cluster in list(_CLUSTERS) for one in cluster.receptions]
    for report in (report for one in receptions for report in one.reports_of(wanted)):
        whole = report.as_dict()
        of_batch = {key: whole[key] for key in ("durationMs", "tasks", "stateBytesWritten")}
        for name, operator in whole["operators"].items():
            batches.setdefault(report.batch, {})[name] = {**operator, **of_batch}
    return [ElasticProgress(wanted, batch, made) for batch, made in sorted(batches.items())]


def checkpoint_of(query: StreamingQuery, operator: str) -> str:
    """Return the checkpoint of an operator of a query that runs here and has run a batch of it."""
    for cluster in list(_CLUSTERS):
        for reception in cluster.receptions:
            found = reception.checkpoint_of(str(query.id), operator)
            if found is not None:
                return found
    must, got = f"run an elastic operator {operator!r}", "none, or none that has run a batch yet"
    hint = "once it has ended, read_state takes the path of the checkpoint"
    raise BadValueError(f"query {query.id}", must, got, hint)


class ElasticListener(StreamingQueryListener):
    """A `StreamingQueryListener` that also gets the progress of elastic operators.

    Override `onElasticProgress`, and what else of a listener you need (calling `super()` in
    `onQueryProgress`); then `spark.streams.addListener(…)`.
    """

    def onElasticProgress(self, event: ElasticProgress) -> None:  # noqa: N802
        """Called after a batch, with the work of the query's elastic operators in it."""

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802
        """A query was started."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        """Call `onElasticProgress` if elastic operators took part in the batch."""
        batch = event.progress.batchId
        for done in progress(str(event.progress.id)):
            if done.batchId == batch:
                self.onElasticProgress(done)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        """A query has nothing to do."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        """A query has ended."""
