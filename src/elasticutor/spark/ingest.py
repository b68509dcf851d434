"""The Spark task that feeds elastic operators.

It is loaded in every Python worker of a query, so it loads as little as it can.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa
from pyspark import TaskContext

from elasticutor.core.protocol.batch_protocol import Ingress
from elasticutor.core.protocol.ids import Epoch
from elasticutor.errors import ElasticutorError
from elasticutor.process.failures import BatchError
from elasticutor.process.ingress import Feed
from elasticutor.spark.arrow import Incoming, Outgoing

_QUERY = "sql.streaming.queryId"
_BATCH = "streaming.sql.batchId"
_EXECUTION = "spark.sql.execution.id"
_GROUP = "spark.jobGroup.id"

PREFIX = "elastic"
"""In plans the function is called `elastic[name]`."""


class Ingest:
    """The function of `mapInArrow`: runs in each task of the query."""

    def __init__(
        self, feed: Feed, incoming: Incoming, outgoing: Outgoing, name: str, *, streaming: bool
    ) -> None:
        self._feed = feed
        self._incoming = incoming
        self._outgoing = outgoing
        self.__name__ = f"{PREFIX}[{name}]"
        self._name = name
        self._streaming = streaming

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Feed the operators with one partition, and yield what they make."""
        context = TaskContext.get()
        assert context is not None  # Spark calls this in a task
        query, epoch = "", Epoch(1)
        if self._streaming:
            query, epoch = self._batch_of(context)
        task = Ingress(
            epoch,
            int(context.getLocalProperty(_EXECUTION) or 0),
            context.stageId(),
            context.partitionId(),
            context.taskAttemptId(),
        )
        group = context.getLocalProperty(_GROUP) or ""
        given = map(self._incoming, batches)
        fed = self._feed.run(task, given, query=query, group=group)
        try:
            # From its own number on, so that tasks with few outputs fill different partitions.
            for part, (operator, made) in enumerate(fed, task.partition):
                yield self._outgoing(operator, made, part)
        except ElasticutorError as error:
            # The message says what has happened; the traceback would only show our own code.
            raise error.with_traceback(None) from None

    def _batch_of(self, context: TaskContext) -> tuple[str, Epoch]:
        query = context.getLocalProperty(_QUERY)
        batch = context.getLocalProperty(_BATCH)
        if query is None or batch is None:
            got = (
                "a streaming DataFrame is used where Spark does not say which batch it is of, as "
                "in another thread of foreachBatch"
            )
            hint = "start that thread as pyspark.InheritableThread, which takes the batch along"
            raise BatchError(f"elastic operator {self._name!r}", "know its batch", got, hint)
        return query, Epoch(int(batch) + 1)
