"""From the cores that an executor should have to the grants and takings that get it there."""

from __future__ import annotations

from collections.abc import Mapping

from elasticutor.core.protocol.events import CoreGranted, CoreTaken
from elasticutor.core.protocol.ids import NodeId, TaskId
from elasticutor.errors import BadValueError, LastCoreError


def core_changes(
    tasks: Mapping[TaskId, NodeId],
    loads: Mapping[TaskId, float],
    wanted: Mapping[NodeId, int],
) -> list[CoreGranted | CoreTaken]:
    """The fewest changes after which the executor has just the wanted cores on each node.

    Grants come first, so that an executor that changes its only core for another keeps one all the
    time. Where a node has too many, the least loaded tasks go: their shards are the cheapest to
    move, and the newest of equals goes first.

    Args:
        tasks: The tasks that the executor has and that are not leaving, with their nodes.
        loads: Their loads, in cores; a task that is missing here counts as idle.
        wanted: How many cores it should have on each node; none on those not named.

    Raises:
        BadValueError: A number of cores is not a whole number, or negative.
        LastCoreError: No core at all is wanted.

    Example:
        >>> tasks = {TaskId(0): NodeId("a"), TaskId(1): NodeId("a")}
        >>> core_changes(tasks, {TaskId(0): 0.9, TaskId(1): 0.2}, {NodeId("a"): 1, NodeId("b"): 1})
        [CoreGranted(node='b'), CoreTaken(task=1)]
    """
    for node, count in wanted.items():
        if type(count) is not int or count < 0:
            raise BadValueError(f"cores on node {node!r}", "be a whole number, at least 0", count)
    if not sum(wanted.values()):
        raise LastCoreError("executor", "keep at least one core", 0, "ask for one or more")
    granted: list[CoreGranted | CoreTaken] = []
    taken: list[CoreGranted | CoreTaken] = []
    for node in sorted({*tasks.values(), *wanted}):
        there = [task for task, home in tasks.items() if home == node]
        missing = wanted.get(node, 0) - len(there)
        granted += [CoreGranted(node)] * missing
        there.sort(key=lambda task: (loads.get(task, 0.0), -task))
        taken += [CoreTaken(task) for task in there[: max(0, -missing)]]
    return [*granted, *taken]
