from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticutor.core.executor.tasks import core_changes
from elasticutor.core.protocol.events import CoreGranted, CoreTaken
from elasticutor.core.protocol.ids import NodeId, TaskId
from elasticutor.errors import BadValueError, LastCoreError

NODES = [NodeId("a"), NodeId("b"), NodeId("c")]
tasks = st.dictionaries(st.integers(0, 20).map(TaskId), st.sampled_from(NODES))
wanted = st.dictionaries(st.sampled_from(NODES), st.integers(0, 5))


@given(tasks, wanted.filter(lambda w: sum(w.values()) > 0))
def test_afterwards_every_node_has_just_what_is_wanted(
    tasks: dict[TaskId, NodeId], wanted: dict[NodeId, int]
) -> None:
    left = dict(tasks)
    counts = dict.fromkeys(NODES, 0)
    for change in core_changes(tasks, {}, wanted):
        if isinstance(change, CoreGranted):
            counts[change.node] += 1
        else:
            del left[change.task]
    for node in left.values():
        counts[node] += 1
    assert counts == {node: wanted.get(node, 0) for node in NODES}


@given(tasks, wanted.filter(lambda w: sum(w.values()) > 0))
def test_no_node_is_both_given_to_and_taken_from(
    tasks: dict[TaskId, NodeId], wanted: dict[NodeId, int]
) -> None:
    changes = core_changes(tasks, {}, wanted)
    granted = {change.node for change in changes if isinstance(change, CoreGranted)}
    taken = {tasks[change.task] for change in changes if isinstance(change, CoreTaken)}
    assert not granted & taken


def test_grants_come_before_takings_so_that_a_core_is_kept_all_the_time() -> None:
    changes = core_changes({TaskId(0): NODES[0]}, {}, {NODES[1]: 1})
    assert changes == [CoreGranted(NODES[1]), CoreTaken(TaskId(0))]


def test_the_least_loaded_task_goes_and_the_newest_of_equals() -> None:
    three = {TaskId(n): NODES[0] for n in range(3)}
    loads = {TaskId(0): 0.1, TaskId(1): 0.5, TaskId(2): 0.9}
    assert core_changes(three, loads, {NODES[0]: 2}) == [CoreTaken(TaskId(0))]
    assert core_changes(three, {}, {NODES[0]: 2}) == [CoreTaken(TaskId(2))]


@pytest.mark.parametrize("count", [-1, 1.5, True, "2"])
def test_a_number_of_cores_that_cannot_be_is_refused(count: object) -> None:
    with pytest.raises(BadValueError, match="whole number"):
        core_changes({}, {}, {NODES[0]: count})  # type: ignore[dict-item]


def test_no_core_at_all_is_refused() -> None:
    with pytest.raises(LastCoreError):
        core_changes({TaskId(0): NODES[0]}, {}, {NODES[0]: 0})
