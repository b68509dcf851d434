"""Questions to Spark about its queries and stages, for the driver that serves their tasks."""

from __future__ import annotations

import re
import time
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from elasticutor.driver.queries.query_driver import QuerySeen
from elasticutor.errors import BadValueError
from elasticutor.spark.ingest import PREFIX

_REFUSED = {
    "ContinuousExecution": "continuous processing has no batches",
    "AsyncProgressTrackingMicroBatchExecution": "with asyncProgressTrackingEnabled batches are "
    "committed later than the next ones begin, and state could not be exactly once",
}
# Nodes of a plan that leave the partitions of their input as they are.
_ROW_BY_ROW = re.compile(
    "CollectMetrics|EventTimeWatermark|Filter|MapInArrow|MapInPandas|Project|PythonMapInArrow"
    "|SubqueryAlias"
)
_SINKS = ("WriteToMicroBatchDataSource", "WriteToStream")
_WIDTH = 100
_DIRECT = "leave out exchange=False"
_NUMBER = re.compile(r"\d+")
_TRIES = 20
_PAUSE_S = 0.05


class SparkWays:
    """Asks a session; safe for several threads.

    Some of this is not in PySpark's public interface, and is asked of the JVM. Each of these names
    is used in one place, here. `direct`: outputs go straight into the sink, without an exchange.
    """

    def __init__(self, spark: SparkSession, *, direct: bool = False) -> None:
        self._spark = spark
        self._direct = direct
        self._stages: Any = None
        self._seen: dict[str, tuple[StreamingQuery, str]] = {}
        """Of each query the start that was active last, and its run."""
        self._context = spark.sparkContext

    def query(self, query: str) -> QuerySeen | None:
        """Return a streaming query that is active; None if it is not."""
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
        if not refused and self._direct:
            refused = _why_not_direct(execution)
        folder = plain_uri(str(execution.resolvedCheckpointRoot() or ""))
        plan = str(execution.logicalPlan().toString())
        operators = frozenset(re.findall(rf"{PREFIX}\[([\w.-]+)\]", plan))
        return QuerySeen(query, str(found.runId), folder, refused, operators)

    def run_of(self, query: str) -> str | None:
        """Return the run of a query that is active; None if it is not."""
        seen = self._seen.get(query)
        if seen is not None and seen[0].isActive:
            return seen[1]  # with one call to the JVM, since this is asked several times a second
        found = self._spark.streams.get(query)
        if found is None or not found.isActive:
            self._seen.pop(query, None)
            return None
        run = str(found.runId)
        self._seen[query] = found, run
        return run

    def active(self, stage: int) -> bool:
        """Return whether a job is active that needs the stage."""
        return bool(self._stage(stage).isDefined())

    def count(self, stage: int) -> tuple[int, int, int | None]:
        """Return how many tasks a stage runs, of how many partitions, and its exchange, if any."""
        for _ in range(_TRIES):  # the scheduler changes its tables while they are read
            found = self._stage(stage)
            if found.isDefined():
                # A batch waits for this, and every call goes to the JVM.
                seen = found.get()
                info = seen.latestInfo()
                wanted = "" if self._direct else info.shuffleDepId().toString()
                written = _NUMBER.search(wanted)
                output = None if written is None else int(written[0])
                return int(info.numTasks()), int(seen.numPartitions()), output
            time.sleep(_PAUSE_S)
        raise BadValueError("stage", "be one that Spark runs", stage)

    def _stage(self, stage: int) -> Any:
        if self._stages is None:
            self._stages = self._context._jsc.sc().dagScheduler().stageIdToStage()
        return self._stages.get(stage)


def _why_not_direct(execution: Any) -> str:
    """Return why outputs of a query's elastic operator cannot go straight into its sink."""
    if str(execution.sink().getClass().getSimpleName()) == "ForeachBatchSink":
        return f"foreachBatch may use any part of a batch, as often as it likes: {_DIRECT}"
    node = execution.logicalPlan()
    while True:
        name = str(node.nodeName())
        if f"{PREFIX}[" in str(node.simpleString(_WIDTH)):
            break
        passes = name.startswith(_SINKS) or _ROW_BY_ROW.fullmatch(name)
        if not passes or node.children().size() != 1:
            return f"{name} is between the elastic operator and the sink: {_DIRECT}"
        node = node.children().head()
    if f"{PREFIX}[" in str(node.child().toString()):
        return f"it has another elastic operator: {_DIRECT}"
    return ""


def plain_uri(uri: str) -> str:
    """Return a location of Hadoop's as `pyarrow.fs` calls it.

    Example:
        >>> plain_uri("file:/tmp/checkpoint"), plain_uri("s3a://bucket/checkpoint")
        ('/tmp/checkpoint', 's3://bucket/checkpoint')
    """
    if uri.startswith("file:"):
        return "/" + uri.removeprefix("file:").lstrip("/")
    if uri.startswith(("s3a://", "s3n://")):
        return "s3://" + uri[6:]
    return uri
