"""`supervise`: restarts a streaming query that ended because a process was lost."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from typing import Any, Final

from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.query import StreamingQuery

from elasticutor.core.run.restart_policy import RestartPolicy
from elasticutor.errors import BadValueError

log = logging.getLogger(__name__)

_LOST: Final = (
    "elasticutor.supervise",  # what elastic operators say when running the batch again helps
    "Python worker exited unexpectedly",
    "Python worker failed to connect back",
    "ExecutorLostFailure",
    "FetchFailed",
    "Lost executor",
)
"""Texts by which Spark and we report a lost process; other failures would repeat themselves."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 10.0
_LOOK_S = 1.0


def supervise(
    start: Callable[[], StreamingQuery],
    max_restarts: int = 3,
    *,
    timeout_s: float | None = None,
    on_restart: Callable[[int, str], None] | None = None,
) -> StreamingQuery:
    """Run a query, and restart it when it ends because a process was lost.

    Waits until the query ends by itself (as with `availableNow`), is stopped, or fails for a reason
    that a restart cannot cure: an error in an operator, for instance.

    Args:
        start: Starts the query, each time from the same checkpoint location.
        max_restarts: How often in a row, without a batch committed in between.
        timeout_s: How long it may run in all; None: without limit.
        on_restart: Called with each restart: its number in a row, and the reason.

    Returns:
        The query that ended.

    Raises:
        StreamingQueryException: It failed for another reason, or too often.
        TimeoutError: It has not ended in time; it was stopped.
    """
    patience = RestartPolicy(max_restarts)
    until = math.inf if timeout_s is None else time.monotonic() + timeout_s
    while True:
        query = _started(start)
        first = _batch(query)
        try:
            _wait(query, until)
            return query
        except StreamingQueryException as error:
            reason = str(error)
            if _batch(query) > first:
                patience.progressed()
            if not is_lost(reason) or not patience.failed("query"):
                raise
            again = patience.failures
            log.warning("the query ended by a lost process, and is started again: %s", reason)
            if on_restart is not None:
                on_restart(again, reason)
            time.sleep(min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2**again))
        except BaseException:  # Ctrl-C, or the time is up: leave nothing behind
            query.stop()
            raise


def is_lost(reason: str) -> bool:
    """Return whether a failure reports a lost process, so that another try may succeed."""
    return any(words in reason for words in _LOST)


def _started(start: Callable[[], StreamingQuery]) -> StreamingQuery:
    query: Any = start()
    if not isinstance(query, StreamingQuery):
        hint = "… .writeStream.start()"
        raise BadValueError("start", "return a StreamingQuery", type(query).__name__, hint)
    return query


def _wait(query: StreamingQuery, until: float) -> None:
    while True:
        # Fractions of a second are fine, whatever the annotation says.
        left_s: Any = max(0.001, min(_LOOK_S, until - time.monotonic()))
        if query.awaitTermination(left_s):
            return
        if time.monotonic() >= until:
            raise TimeoutError(f"query {query.id} has not ended in time, and was stopped")


def _batch(query: StreamingQuery) -> int:
    newest: Any = query.lastProgress
    return -1 if newest is None else int(newest["batchId"])
