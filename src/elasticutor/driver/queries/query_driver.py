"""Serves the tasks of an elastic DataFrame: starts executors, and releases them in the end.

The first task of a query, or of an action on a batch DataFrame, starts the operators' executors;
all others join it there. When the query is over, its executors are released.

| | state belongs to | begins with | is released |
|---|---|---|---|
| streaming | the query | the newest epoch below the batch | when the query has ended |
| batch | the stage of one action | nothing | some seconds after the last action |
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from elasticutor.core.protocol.batch_attempt import BatchPhase
from elasticutor.core.protocol.succession import Succession
from elasticutor.core.run.phases import OVER
from elasticutor.core.run.run_events import EndAsked
from elasticutor.driver.loop import DriverLoop
from elasticutor.driver.queries.batch_driver import BatchDriver
from elasticutor.driver.queries.reports import BatchReport
from elasticutor.driver.run import Run
from elasticutor.errors import ElasticutorError
from elasticutor.process.failures import AGAIN, BatchError, described
from elasticutor.transport import messages as say

log = logging.getLogger(__name__)

_LOOK_S = 0.25
"""How often to see whether queries go on."""
_LINGER_S = 5.0
"""How long executors of an action are kept for the next one."""
_KEPT = 100
"""Reports that are kept of a query."""
_REMEMBERED = 1000
"""Lost executors whose stages are remembered: Spark tries tasks again for some time."""
_QUERIES = 16
"""Queries that have ended, and of which reports are kept."""


_TOO_LATE = BatchError(
    "elastic operators",
    "go on",
    "the executors that other tasks of this stage have fed are gone, and with them the batch",
    AGAIN,
)


@dataclass(frozen=True, slots=True)
class QuerySeen:
    """A streaming query, as the engine that runs it sees it."""

    id: str
    run: str
    """Of this start: each start has another one."""
    folder: str
    """Where it keeps its checkpoint; empty if that is not known."""
    refused: str = ""
    """Why it cannot be served, in words; empty if it can."""
    operators: frozenset[str] = frozenset()
    """The names under which its elastic operators keep state, as far as is known."""


class Ways(Protocol):
    """What only the engine that runs the queries knows; answers may take a while."""

    def query(self, query: str) -> QuerySeen | None:
        """A streaming query that is active; None if it is not."""

    def run_of(self, query: str) -> str | None:
        """The run of a query that is active; None if it is not. Asked again and again."""

    def active(self, stage: int) -> bool:
        """Whether a stage has tasks that run, or will."""


def goes_on(ways: Ways, query: QuerySeen | None, stage: int = 0) -> bool:
    """Whether a start of a query is still active, or without a query the stage of an action."""
    try:
        return ways.active(stage) if query is None else ways.run_of(query.id) == query.run
    except Exception as error:  # nothing is left that runs the queries
        log.debug("%s cannot be asked for: %s", query or f"stage {stage}", error)
        return False


Start = Callable[[QuerySeen | None, int], Run]
"""Starts the executors for a query, or for an action, and waits until they can be fed; given the
epoch that is to come."""


@dataclass(slots=True, eq=False)
class _Executors:
    """The executors of one query, or of one action."""

    key: tuple[object, ...]
    query: QuerySeen | None = None
    run: Run | None = None
    """None while it starts."""
    waiting: list[say.Arrive] = field(default_factory=list)
    stage: int = 0
    """The newest one that fed them."""

    @property
    def driver(self) -> BatchDriver:
        assert self.run is not None  # the caller has looked
        driver = self.run.supervisor.epochs
        assert isinstance(driver, BatchDriver)
        return driver

    @property
    def over(self) -> bool:
        return self.run is not None and self.run.supervisor.phase in OVER


class QueryDriver:
    """Serves the tasks of one elastic DataFrame."""

    def __init__(self, hub: DriverLoop, frame: str, ways: Ways, start: Start) -> None:
        self._hub = hub
        self.frame = frame
        self._ways = ways
        self._start = start
        self._active: dict[tuple[object, ...], _Executors] = {}
        self._idle: list[_Executors] = []
        self._successions: dict[tuple[object, ...], Succession] = {}
        """Of keys whose executors are gone, or not there yet."""
        self._past: dict[str, list[BatchReport]] = {}
        """Of queries that have ended, or were started again."""
        self._watching = False
        self._closed = False
        hub.receptions[frame] = self

    @property
    def runs(self) -> list[Run]:
        """The runs that serve queries and actions now."""
        every = [*self._active.values(), *self._idle]
        return [one.run for one in every if one.run is not None and not one.over]

    def run_of(self, query: str) -> Run | None:
        """The run that serves a query."""
        one = self._active.get((query,))
        return None if one is None or one.over else one.run

    def checkpoint_of(self, query: str, operator: str) -> str | None:
        """Where the state of an operator of a query is durable, if it is served here now."""
        run = self.run_of(query)
        if run is None:
            return None
        names = {planned.name for planned in run.supervisor.plan.operators}
        epochs = run.supervisor.epochs
        return epochs.checkpoint if operator in names and isinstance(epochs, BatchDriver) else None

    def reports_of(self, query: str) -> list[BatchReport]:
        """The reports of the last batches of a query, the newest last."""
        one = self._active.get((query,))
        now = [] if one is None or one.run is None else list(one.driver.reporter.reports)
        return [*self._past.get(query, ()), *now][-_KEPT:]

    # In the hub's thread

    def take(self, message: say.Arrive) -> None:
        """Hand a task to the executors of its query or action; start them if there are none."""
        task = message.task
        key = (message.query,) if message.query else (task.execution, task.stage)
        one = self._active.get(key)
        if one is not None and one.over:
            self._release(one)
            one = None
        if one is None:
            if not self._succession(key).may_begin(task):
                self._refuse(message, _TOO_LATE)
                return
            one = self._executors_for(key, message)
        if one.run is None:
            self._hub.mail.know(self._name(message), message.endpoint)
            one.waiting.append(message)
        elif one.query is not None and message.group != one.query.run:
            self._in_thread(lambda: self._see_whether_same(one, message))
        else:
            self._hand_over(one, message)

    def _hand_over(self, one: _Executors, message: say.Arrive) -> None:
        """Hand a task to the run that is there."""
        one.stage = max(one.stage, message.task.stage)
        self._succession(one.key).saw(message.task)
        one.driver.arrive(message)

    def _executors_for(self, key: tuple[object, ...], message: say.Arrive) -> _Executors:
        self._idle = [one for one in self._idle if not one.over]
        one = self._idle.pop() if self._idle and not message.query else _Executors(key)
        one.key = key
        self._active[key] = one
        if one.run is None:
            self._in_thread(lambda: self._begin(one, message))
        if not self._watching:
            self._watching = True
            self._in_thread(self._watch)
        return one

    def _begun(self, one: _Executors, run: Run) -> None:
        one.run = run
        self._succession(one.key).bequeath(one.driver.batches)
        if self._closed or self._active.get(one.key) is not one:
            self._release(one)
        waiting, one.waiting = one.waiting, []
        for message in waiting:
            self._hub.mail.forget(self._name(message))
            if one.over:
                one.driver.arrive(message)  # which says why
            else:
                self.take(message)  # it may be of a later start of the query

    def _failed(self, one: _Executors, error: Exception) -> None:
        if self._active.get(one.key) is one:
            del self._active[one.key]
        for message in one.waiting:
            self._succession(one.key).owes(message.task.epoch)
            self._refuse(message, error)

    def _succession(self, key: tuple[object, ...]) -> Succession:
        if key not in self._successions:
            self._successions[key] = Succession()
            if len(self._successions) > _REMEMBERED:
                self._successions.pop(next(iter(self._successions)))
        return self._successions[key]

    def _name(self, message: say.Arrive) -> str:
        return f"{self.frame} task {message.task.task}"

    def _refuse(self, message: say.Arrive, error: Exception) -> None:
        name = self._name(message)
        self._hub.mail.know(name, message.endpoint)
        self._hub.mail.send(name, say.Refused(message.task.task, *described(error)))
        self._hub.mail.forget(name)

    def _release(self, one: _Executors) -> None:
        if self._active.get(one.key) is one:
            del self._active[one.key]
        if one in self._idle:
            self._idle.remove(one)
        if one.run is not None:
            self._succession(one.key).owes(one.driver.batches.owed)
            one.run.supervisor.decide(EndAsked())
            if one.query is not None:
                past = [*self._past.pop(one.query.id, ()), *one.driver.reporter.reports]
                self._past[one.query.id] = past[-_KEPT:]
                if len(self._past) > _QUERIES:
                    self._past.pop(next(iter(self._past)))

    def _replace(self, one: _Executors, message: say.Arrive) -> None:
        """Serve a query that was started again before its end was noticed."""
        self._release(one)
        self.take(message)

    def _end_earlier(self, query: QuerySeen) -> bool:
        """Release the executors of an earlier start of a query, for all DataFrames.

        A query may start again before its end is noticed, and then it needs its checkpoint.

        Returns:
            Whether no executors of such a start are still starting.
        """
        settled = True
        for other in self._hub.receptions.values():
            one = other._active.get((query.id,))
            if one is not None and one.query is not None and one.query.run != query.run:
                if one.run is None:
                    settled = False
                else:
                    other._release(one)
        return settled

    # In threads of their own: the engine may take a while to answer

    def _in_thread(self, what: Callable[[], None]) -> None:
        threading.Thread(target=what, name=f"queries of {self.frame}", daemon=True).start()

    def _begin(self, one: _Executors, message: say.Arrive) -> None:
        try:
            if message.query:
                one.query = seen = self._seen(message.query)
                while not self._hub.call(lambda: self._end_earlier(seen)):
                    time.sleep(_LOOK_S)
            run = self._start(one.query, message.task.epoch)
        except Exception as error:
            reason = error  # `error` is gone when the other thread looks
            if not isinstance(error, ElasticutorError):
                log.exception("executors of %s could not be started", self.frame)
            self._hub.post(lambda: self._failed(one, reason))
        else:
            self._hub.post(lambda: self._begun(one, run))

    def _seen(self, query: str) -> QuerySeen:
        seen = self._ways.query(query)
        if seen is None:
            raise BatchError("query", "be active", f"query {query} is not active any more")
        if seen.refused:
            raise BatchError("query", "be one that can be served", seen.refused)
        return seen

    def _see_whether_same(self, one: _Executors, message: say.Arrive) -> None:
        try:
            seen = self._seen(message.query)
        except Exception as error:
            reason = error
            self._hub.post(lambda: self._refuse(message, reason))
            return
        assert one.query is not None
        if seen.run == one.query.run:  # its jobs were given another group
            self._hub.post(lambda: self._hand_over(one, message))
        else:
            self._hub.post(lambda: self._replace(one, message))

    def _watch(self) -> None:
        """Release executors that no query needs any more; ends when there are none."""
        while not self._hub.over:
            time.sleep(_LOOK_S)
            try:
                active = self._hub.call(lambda: [e for e in self._active.values() if e.run])
                over = [e for e in active if not goes_on(self._ways, e.query, e.stage)]
                if self._hub.call(partial(self._settle, over)):
                    return
            except ElasticutorError:
                return  # the cluster is over

    def _settle(self, over: list[_Executors]) -> bool:
        """Release what no query needs any more; returns whether nothing is left."""
        for one in over:
            if self._active.get(one.key) is not one:
                continue  # released meanwhile
            if one.query is None and not one.over and one.driver.batches.idle:
                del self._active[one.key]
                if one.driver.batches.phase is BatchPhase.DURABLE:
                    self._successions.pop(one.key, None)  # what is run again is run as a whole
                one.driver.idle_since = time.monotonic()
                self._idle.append(one)
            else:  # the query has ended, or the action was cancelled
                self._release(one)
        for one in self._active.values():
            for message in one.waiting:  # executors may take a while to start
                self._hub.mail.send(self._name(message), say.Beat())
        now = time.monotonic()
        for one in list(self._idle):
            if one.over or now - one.driver.idle_since > _LINGER_S:
                self._release(one)
        if self._active or self._idle:
            return False
        self._watching = False
        return True

    def close(self) -> None:
        """Release everything; in the hub's thread."""
        self._closed = True
        self._hub.receptions.pop(self.frame, None)
        for one in [*self._active.values(), *self._idle]:
            self._release(one)
