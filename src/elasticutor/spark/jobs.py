"""Long-running Spark jobs: a job group of its own each, in a thread of its own on the driver."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

from pyspark import SparkContext, TaskContext
from pyspark.resource import ResourceProfileBuilder, TaskResourceRequests

from elasticutor.process.hosting.hosts import Bootstrap, NodesWanted, host_ends, host_nodes

log = logging.getLogger(__name__)

_RAISED = re.compile(r"^(?:[A-Za-z_][\w.]*(?:Error|Exception|Interrupt)): .*$", re.MULTILINE)
_THROWN = re.compile(r"^: [\w.$]+: (.*)$", re.MULTILINE)
"""Where Py4J names a Java exception: in its second line, behind a colon."""


class LongJob:
    """A Spark job that lasts: it is seen in Spark's UI, and ends when its tasks do."""

    def __init__(
        self,
        context: SparkContext,
        group: str,
        description: str,
        tasks: int,
        function: Callable[[int], None],
        *,
        cpus: int = 1,
        ended: Callable[[str], None] = lambda reason: None,
    ) -> None:
        self._context = context
        self.group = group
        self._ended = ended
        self.error = ""  # why it failed; empty unless it has
        self._cancelled = False
        self._thread = threading.Thread(
            target=self._run, args=(description, tasks, function, cpus), name=group, daemon=True
        )
        self._thread.start()

    @property
    def running(self) -> bool:
        """Whether any of its tasks may be running."""
        return self._thread.is_alive()

    def join(self, timeout_s: float) -> bool:
        """Wait for its end; says whether it has come."""
        self._thread.join(timeout_s)
        return not self.running

    def cancel(self) -> None:
        """Have Spark kill its tasks; does nothing if there is no Spark any more."""
        self._cancelled = True
        try:
            self._context.cancelJobGroup(self.group)
        except Exception as error:  # the context is stopped: that has ended the job, too
            log.debug("cannot cancel %s: %s", self.group, error)

    def _run(
        self, description: str, tasks: int, function: Callable[[int], None], cpus: int
    ) -> None:
        try:
            self._context.setJobGroup(self.group, description, interruptOnCancel=False)
            rdd = self._context.parallelize(range(tasks), tasks)
            if cpus > 1:
                profile: Any = ResourceProfileBuilder().require(TaskResourceRequests().cpus(cpus))
                rdd = rdd.withResources(profile.build)
            rdd.mapPartitionsWithIndex(partial(_for_its_effects, function)).collect()
        except Exception as error:
            self.error = "it was cancelled" if self._cancelled else told_by(_behind(error))
        self._ended(self.error)


def _behind(error: Exception) -> Exception:
    """Return what ended a job; with the context stopped, pyspark fails to report it."""
    first = error.__context__
    if isinstance(error, AttributeError) and isinstance(first, Exception):
        return first
    return error


def _for_its_effects(
    function: Callable[[int], None], index: int, rows: Iterable[Any]
) -> Iterator[int]:
    function(index)
    yield index


def told_by(error: Exception) -> str:
    r"""Return the useful part of a Spark exception: what Python raised, or Spark itself.

    Example:
        >>> told_by(Exception("Job aborted\n  File x\nModuleNotFoundError: No module named 'y'"))
        "ModuleNotFoundError: No module named 'y'"
        >>> told_by(Exception("An error occurred.\n: a.b.SparkException: Cancelled"))
        'Cancelled'
    """
    text = str(error).strip()
    for line in reversed(_RAISED.findall(text)):
        if "PythonException" not in line and "SparkException" not in line:
            return str(line)
    thrown = _THROWN.search(text)
    if thrown:
        return thrown.group(1)
    return text.splitlines()[0] if text else type(error).__name__


def nodes_task(bootstrap: Bootstrap, wanted: NodesWanted, one_each: bool, index: int) -> None:
    """In a Spark task, host the nodes of one partition until they end."""
    context = TaskContext.get()
    attempt = context.attemptNumber() if context else 0
    wanted = wanted.only(index) if one_each else wanted
    # A lost node's successor is another node, and must not be mistaken for it.
    host_nodes(bootstrap, wanted.renamed(f"r{attempt}" if attempt else ""))


def ends_task(bootstrap: Bootstrap, run: str, numbers: Sequence[int], index: int) -> None:
    """In a Spark task, host the share of sources and sinks of one partition until it ends."""
    host_ends(bootstrap, run, numbers[index])
