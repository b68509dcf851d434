"""`elastic`: stateful operators on elastic executors, inside a DataFrame query.

Spark reads, Spark writes, Spark commits; the executors of a `Cluster` hold the state. A query's
tasks are their upstreams: an ordinary `mapInArrow` that sends rows and takes outputs back. An
exchange of its own follows it, so that its stage always has all of its tasks, and none of another
operator. Without it (`exchange=False`) the sink ensures that.
"""

from __future__ import annotations

import atexit
import logging
import secrets
import threading
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession

from elasticutor.driver.checkpoints import ENDING
from elasticutor.driver.cluster import LATENCY_TARGET_S, BaseCluster
from elasticutor.driver.queries.query_driver import QueryDriver, QuerySeen, goes_on
from elasticutor.driver.run import Run
from elasticutor.errors import BadValueError, Words
from elasticutor.operator import Operator
from elasticutor.process.ingress import Feed
from elasticutor.spark.cluster import Cluster
from elasticutor.spark.frames import prepare
from elasticutor.spark.ingest import Ingest
from elasticutor.spark.progress import served_by
from elasticutor.spark.queries import SparkWays
from elasticutor.spark.session import require_session
from elasticutor.state.checkpoint import InUseError, Location, MismatchError
from elasticutor.topology import require_name

log = logging.getLogger(__name__)

_HIDDEN = "_elastic_part"
_APART = (
    "state has one query and one place in it: give operators of one query different names "
    "(name=…), and queries different checkpoints, or stop the other one"
)


def elastic(
    df: DataFrame,
    operator: Operator | Mapping[str, Operator],
    *,
    key: str | Column | list[str | Column] | tuple[str | Column, ...],
    name: str | None = None,
    executors: int | None = None,
    shards: int = 256,
    checkpoint: str | None = None,
    latency_target: float | None = None,
    exchange: bool = True,
    cluster: BaseCluster | None = None,
    _balance_s: float = 0.1,
) -> DataFrame:
    """Return a DataFrame of what a stateful operator makes of another's rows, elastically.

    On a streaming DataFrame state goes on from batch to batch and is exactly once; on a batch
    DataFrame every action begins with none.

    Args:
        df: The rows; streaming or not.
        operator: The operator, or several by name that all get the same rows; the result then has
            a column `operator` and, for each of them, a struct of its output.
        key: The key of a row's state: a column, a `Column`, an expression in SQL, or several of
            these.
        name: The state's name in the checkpoint; default: the operator's class. Operators of one
            query need different names.
        executors: Elastic executors of each operator; default: one per node.
        shards: Shards of each executor.
        checkpoint: Where state becomes durable: a directory, or a URI that `pyarrow.fs` knows.
            Default: the folder `elasticutor/<name>` in the query's own checkpoint.
        latency_target: The scheduler's aim, in seconds, where it can choose.
        exchange: Whether Spark exchanges the outputs before it goes on. Without it batches are
            shorter. Only for a streaming query whose one elastic operator goes straight into
            a sink that runs every partition once (files, Kafka, `noop`; not `foreachBatch`), with
            nothing but `select`, `filter` and the like between them; any other is refused. The
            price: Spark cannot run a task again whose sink has failed; the batch fails, and
            is run again when the query is started again.
        cluster: Where executors run; default: one on the DataFrame's session, started when it is
            first needed.

    Raises:
        BadValueError: An argument is impossible; the message says which, and what to do.
        ClusterError: The cluster does not start.

    Example:
        Clicks per user, as a stream of changes:

        ```
        class CountClicks(Operator):
            output = "user_id bigint, clicks bigint"

            def process(self, key, row, state):
                state.set(state.get(0) + 1)
                yield key, state.get()

        counts = elastic(clicks, CountClicks(), key="user_id")
        counts.writeStream.format("parquet").option("checkpointLocation", …).start(out)
        ```
    """
    operators, name = _named(operator, name)
    if latency_target is not None and not 0 < latency_target < float("inf"):
        raise BadValueError("latency_target", "be seconds above 0, or None", latency_target)
    if executors is not None and (type(executors) is not int or executors < 1):
        raise BadValueError("executors", "be a whole number, at least 1, or None", executors)
    if not exchange and not df.isStreaming:
        hint = "an action may use any part of a batch DataFrame, as often as it likes"
        raise BadValueError("exchange", "be True for a batch DataFrame", exchange, hint)
    if checkpoint is not None:
        checkpoint = str(checkpoint)
    tagged = not isinstance(operator, Operator)
    # Refuse whatever can be refused before a cluster starts.
    prepared = prepare(
        df, operators, key, executors=executors or 1, shards=shards, cores=1, tagged=tagged
    )
    spark = require_session(df.sparkSession)
    home = cluster or session_cluster(spark)
    if home.stopped:
        raise BadValueError("cluster", "be running", home, "make a new one, or leave it out")
    count = executors or max(1, len(home.nodes))
    cores = max(1, sum(home.nodes.values()) // (count * len(operators)))
    sized = [replace(one, executors=count, cores=cores) for one in prepared.plan.operators]
    plan = replace(prepared.plan, operators=tuple(sized))
    frame = f"{name}-{secrets.token_hex(4)}"
    ways = SparkWays(spark, direct=not exchange)

    def start(query: QuerySeen | None, epoch: int) -> Run:
        if query is not None:
            _require_state(query, name, epoch, checkpoint)
        try:
            return home.host(
                plan,
                count=ways.count,
                checkpoint=None if query is None else _place(query, checkpoint, name),
                owner="" if query is None else f"query {query.id}",
                below=epoch,
                goes_on=lambda: goes_on(ways, query),
                latency_target=latency_target or LATENCY_TARGET_S,
                balance_s=_balance_s,
            )
        except InUseError as error:
            hint = ENDING if error.hint == ENDING else _APART
            raise InUseError(error.who, error.must, error.got, hint) from None

    served_by(home)
    QueryDriver(home.hub, frame, ways, start)
    feed = Feed.of(home.bootstrap, frame, plan)
    hidden = _HIDDEN if exchange else None
    ingest = Ingest(
        feed, prepared.incoming(), prepared.outgoing(hidden), name, streaming=df.isStreaming
    )
    made = prepared.frame.mapInArrow(ingest, prepared.declared(hidden))
    if not exchange:
        return made
    # At most as many partitions as can be processed at once.
    wanted = int(spark.conf.get("spark.sql.shuffle.partitions") or 1)
    partitions = max(1, min(wanted, spark.sparkContext.defaultParallelism))
    return made.repartition(partitions, _HIDDEN).drop(_HIDDEN)


def _named(operator: Any, name: str | None) -> tuple[dict[str, Operator], str]:
    """Return the operators by name, and the name of the state of all of them."""
    if isinstance(operator, Mapping):
        operators = dict(operator)
        if not operators:
            raise BadValueError("operators", "be at least one, by name", operators)
        for own in operators:
            require_name("operator", own)
        name = name or "-".join(sorted(operators))[:40]
    else:
        name = name or type(operator).__name__
        operators = {name: operator}
    require_name("operator", name)
    return operators, name


def _place(query: QuerySeen, checkpoint: str | None, name: str) -> str:
    if checkpoint is not None:
        return checkpoint
    if not query.folder:
        hint = "the query's own checkpoint location is not known"
        raise BadValueError("checkpoint", "be given", None, hint)
    return f"{query.folder.rstrip('/')}/elasticutor/{name}"


def _require_state(query: QuerySeen, name: str, epoch: int, checkpoint: str | None) -> None:
    """Refuse to begin without state where the state seems to have another name.

    A new query begins with epoch 1; `checkpoint` is the location that the user gave, if any.
    """
    if epoch == 1 or Location.at(_place(query, checkpoint, name)).names(""):
        return
    others: list[str] = []
    if checkpoint is None and name in query.operators:  # unless Spark shows plans differently
        there = set(Location.at(f"{query.folder.rstrip('/')}/elasticutor").names(""))
        others = sorted(there - query.operators)
    if others:
        raise MismatchError(
            f"checkpoint of query {query.id}",
            f"have state of {name!r}, since it has run {epoch - 1} batches",
            Words(f"that of {', '.join(map(repr, others))}"),
            f"if the operator was renamed, give it its old name: name={others[0]!r}; if it is new, "
            "give it a checkpoint of its own: checkpoint=…",
        )
    log.warning("%r begins with no state at batch %d of query %s", name, epoch - 1, query.id)


_CLUSTERS: dict[str, Cluster] = {}
_STARTING = threading.Lock()


def session_cluster(spark: SparkSession) -> Cluster:
    """Return the cluster of a session: its present one, or a new one.

    It takes one slot of each Spark executor, and ends with the session or the program.
    """
    with _STARTING:
        app = spark.sparkContext.applicationId
        for other in [known for known in _CLUSTERS if known != app]:
            _CLUSTERS.pop(other).stop()  # its SparkContext is gone, since there is only ever one
        found = _CLUSTERS.get(app)
        if found is None or found.stopped:
            if not _CLUSTERS:
                atexit.register(_stop_all)
            found = _CLUSTERS[app] = Cluster(spark)
        return found


def _stop_all() -> None:
    with _STARTING:
        while _CLUSTERS:
            _CLUSTERS.popitem()[1].stop()
