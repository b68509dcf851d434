"""What Spark tells about its queries and stages, to whoever serves their tasks."""

from __future__ import annotations

import re
import time
from typing import Any

from pyspark.sql import SparkSession

from elasticutor.errors import BadValueError
from elasticutor.runtime.reception import QuerySeen
from elasticutor.spark.ingest import PREFIX

_REFUSED = {
    "ContinuousExecution": "continuous processing has no batches",
    "AsyncProgressTrackingMicroBatchExecution": "with asyncProgressTrackingEnabled batches are "
    "committed later than the next ones begin, and state could not be exactly once",
}
_TRIES = 20
_PAUSE_S = 0.05


class SparkWays:
    """Asks a session; safe for several threads.

    Some of this is not in PySpark's public interface, and is asked of the JVM. Each of these names
    is used in one place, here.
    """

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._context = spark.sparkContext

    def query(self, query: str) -> QuerySeen | None:
        """A streaming query that is active; None if it is not."""
        found = self._spark.streams.get(query)
        if found is None or not found.isActive:
            return None
        execution = found._jsq.streamingQuery()
        kind = str(execution.getClass().getSimpleName())
        refused = _REFUSED.get(kind, "")
        if str(execution.trigger().getClass().getSimpleName()).startswith("RealTime"):
            refused = "real-time mode has no batches of the usual kind"
        if refused:
            refused += ": use trigger(processingTime=…), availableNow or none"
        folder = plain_uri(str(execution.resolvedCheckpointRoot() or ""))
        plan = str(execution.logicalPlan().toString())
        operators = frozenset(re.findall(rf"{PREFIX}\[([\w.-]+)\]", plan))
        return QuerySeen(query, str(found.runId), folder, refused, operators)

    def run_of(self, query: str) -> str | None:
        """The run of a query that is active; None if it is not."""
        found = self._spark.streams.get(query)
        return None if found is None or not found.isActive else str(found.runId)

    def active(self, stage: int) -> bool:
        """Whether a job is active that needs the stage."""
        return bool(self._stage(stage).isDefined())

    def count(self, stage: int) -> tuple[int, int, int | None]:
        """How many tasks a stage runs now, of how many partitions, and its exchange, if any."""
        for _ in range(_TRIES):  # the scheduler changes its tables while they are read
            found = self._stage(stage)
            if found.isDefined():
                seen = found.get()
                info = seen.latestInfo()
                exchange = info.shuffleDepId()
                output = int(exchange.get()) if exchange.isDefined() else None
                return int(info.numTasks()), int(seen.numPartitions()), output
            time.sleep(_PAUSE_S)
        raise BadValueError("stage", "be one that Spark runs", stage)

    def _stage(self, stage: int) -> Any:
        return self._context._jsc.sc().dagScheduler().stageIdToStage().get(stage)


def plain_uri(uri: str) -> str:
    """A location of Hadoop's as `pyarrow.fs` calls it.

    Example:
        >>> plain_uri("file:/tmp/checkpoint"), plain_uri("s3a://bucket/checkpoint")
        ('/tmp/checkpoint', 's3://bucket/checkpoint')
    """
    if uri.startswith("file:"):
        return "/" + uri.removeprefix("file:").lstrip("/")
    if uri.startswith(("s3a://", "s3n://")):
        return "s3://" + uri[6:]
    return uri
