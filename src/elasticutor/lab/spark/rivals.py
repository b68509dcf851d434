"""The same stateful query in `elastic()` and in Spark's own APIs, to be measured side by side.

Every query reads the same files and ends in Spark's `noop` sink, which takes all rows and keeps
none: the cheapest there is, and the same for all. Those with Spark's state use its RocksDB store.

All of them count the rows of each key, and answer every row with the count so far. Spark's own APIs
are given the rows of a key in one call per batch, so they could as well answer once: that can be
asked for, and is less than what `elastic()` does.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from elasticutor.core.run.phases import RunError
from elasticutor.driver.cluster import BaseCluster
from elasticutor.operator import Operator
from elasticutor.spark.session import local_session

Work: TypeAlias = Callable[[int], None]
"""Does the work of a number of rows."""

_OUTPUT = "key bigint, count bigint"
_STATE = "count bigint"
_ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
_GLANCE_S = 0.25


def rivals_session(master: str, partitions: int) -> SparkSession:
    """A quiet session whose state is in RocksDB, with this many partitions after an exchange."""
    spark = local_session(master, "elasticutor bench")
    use_rocksdb(spark, partitions)
    return spark


def use_rocksdb(spark: SparkSession, partitions: int) -> None:
    """Keep the state of a session's queries in RocksDB, with this many partitions to exchange."""
    spark.conf.set("spark.sql.streaming.stateStore.providerClass", _ROCKSDB)
    spark.conf.set("spark.sql.shuffle.partitions", str(partitions))
    spark.conf.set("spark.sql.streaming.numRecentProgressUpdates", "10000")


def file_stream(spark: SparkSession, folder: Path, schema: str, files: int) -> DataFrame:
    """The Parquet files of a folder by their age, a number of them in each batch."""
    reader = spark.readStream.schema(schema).option("maxFilesPerTrigger", files)
    return reader.parquet(str(folder))


# The queries --------------------------------------------------------------------------------------


def passthrough(frame: DataFrame) -> DataFrame:
    """Rows through Python as Arrow and back, and nothing else."""
    return frame.mapInArrow(lambda batches: batches, frame.schema)


def elastic_frame(
    frame: DataFrame,
    operator: Operator,
    *,
    cluster: BaseCluster | None = None,
    balance: bool = True,
    exchange: bool = False,
) -> DataFrame:
    """The elastic operator by `key`, with balancing or not; an exchange follows if asked for.

    Its state is beside the query's checkpoint.
    """
    from elasticutor import elastic

    hidden: dict[str, Any] = {} if balance else {"_balance_s": 0.0}
    return elastic(
        frame, operator, key="key", name="count", cluster=cluster, exchange=exchange, **hidden
    )


def _transform_with_state(
    frame: DataFrame, work: Work | None = None, *, each: bool = True
) -> DataFrame:
    counting = _CountRows(work, each)  # rows are Python objects
    return frame.groupBy("key").transformWithState(counting, _OUTPUT, "Update", "None")


def _transform_with_state_in_pandas(
    frame: DataFrame, work: Work | None = None, *, each: bool = True
) -> DataFrame:
    counting = _CountFrames(work, each)  # the rows of a key are pandas frames
    return frame.groupBy("key").transformWithStateInPandas(counting, _OUTPUT, "Update", "None")


def _apply_in_pandas_with_state(
    frame: DataFrame, work: Work | None = None, *, each: bool = True
) -> DataFrame:
    counting = partial(_count_in_pandas, work, each)  # the older of Spark's APIs
    by_key = frame.groupBy("key")
    return by_key.applyInPandasWithState(counting, _OUTPUT, _STATE, "update", "NoTimeout")


RIVALS: dict[str, Callable[..., DataFrame]] = {
    "transformWithState": _transform_with_state,
    "transformWithStateInPandas": _transform_with_state_in_pandas,
    "applyInPandasWithState": _apply_in_pandas_with_state,
}
"""Spark's own APIs for state per key in Python, by name: of a frame, the work for each row, and
whether each row is answered, or each key once per batch."""


class _CountRows(StatefulProcessor):
    def __init__(self, work: Work | None, each: bool) -> None:
        self._work = work
        self._each = each

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._count = handle.getValueState("count", _STATE)

    def handleInputRows(  # noqa: N802 - Spark's name
        self,
        key: Any,
        rows: Iterator[Any],
        timerValues: Any,  # noqa: N803 - Spark's name
    ) -> Iterator[Any]:
        before = self._count.get()
        count = before[0] if before is not None else 0
        sizes = self._sizes(rows)
        count = yield from _counted(key[0], count, sizes, self._work, self._each, self._answer)
        self._count.update((count,))

    def _sizes(self, rows: Iterator[Any]) -> Iterator[int]:
        return (1 for _ in rows)

    def _answer(self, key: int, before: int, size: int) -> Any:
        return Row(key=key, count=before + 1)

    def close(self) -> None:
        pass


class _CountFrames(_CountRows):
    def _sizes(self, rows: Iterator[Any]) -> Iterator[int]:
        return (len(frame) for frame in rows)

    def _answer(self, key: int, before: int, size: int) -> Any:
        return _as_frame(key, before, size)


def _count_in_pandas(
    work: Work | None, each: bool, key: Any, frames: Iterable[Any], state: Any
) -> Iterator[Any]:
    count = state.get[0] if state.exists else 0
    sizes = (len(frame) for frame in frames)
    count = yield from _counted(key[0], count, sizes, work, each, _as_frame)
    state.update((count,))


def _counted(
    key: int,
    count: int,
    sizes: Iterable[int],
    work: Work | None,
    each: bool,
    answer: Callable[[int, int, int], Any],
) -> Generator[Any, None, int]:
    """Work on more rows of a key, and answer; returns how many there are then."""
    for size in sizes:
        if work is not None:
            work(size)
        if each:
            yield answer(key, count, size)
        count += size
    if not each:
        yield answer(key, count - 1, 1)
    return count


def _as_frame(key: int, before: int, size: int) -> Any:
    """The counts of some rows of a key."""
    import pandas as pd  # type: ignore[import-untyped]

    return pd.DataFrame({"key": [key] * size, "count": range(before + 1, before + size + 1)})


# Running them -------------------------------------------------------------------------------------


def run_to_nowhere(
    frame: DataFrame,
    checkpoint: Path,
    *,
    mode: str = "append",
    most_s: float = math.inf,
    ended: threading.Event | None = None,
) -> list[tuple[int, float]]:
    """Run a query over all that there is now, without keeping its output.

    It ends early when `ended` is set, or when its batches, the first one not counted, have taken
    `most_s`; but not before there is one. Returns the rows and milliseconds of each batch, the
    first one included.
    """
    query: Any = (
        frame.writeStream.format("noop")
        .outputMode(mode)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    try:
        while not query.awaitTermination(_GLANCE_S):
            if ended is not None and ended.is_set():
                break
            if most_s < math.inf and sum(ms for _, ms in _batches(query)[1:]) >= most_s * 1e3:
                break
    except StreamingQueryException as error:
        raise RunError("query", "not fail", str(error)) from error
    finally:
        query.stop()
    return _batches(query)


def _batches(query: Any) -> list[tuple[int, float]]:
    """What a query's progress tells of the batches that had rows."""
    return [
        (progress.numInputRows, float(progress.durationMs["triggerExecution"]))
        for progress in query.recentProgress
        if progress.numInputRows
    ]
