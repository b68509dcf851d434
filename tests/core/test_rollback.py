from copy import copy
from typing import Any

import pytest

from elasticutor.core.executor.rollback import Rollback
from elasticutor.core.protocol.ids import Attempt, Epoch, NodeId, ShardId, TaskId
from elasticutor.core.protocol.instructions import Instruction, ResetTask, RollBackStore
from elasticutor.errors import OutOfOrderError

NORTH, SOUTH = NodeId("north"), NodeId("south")
T1, T2, T3 = TaskId(1), TaskId(2), TaskId(3)
A1, A2 = Attempt(1), Attempt(2)
BASE = Epoch(4)
HOMES = [NORTH, SOUTH, None, NORTH]
KEPT = {NORTH: (ShardId(0), ShardId(3)), SOUTH: (ShardId(1),)}


class Rig:
    """A rollback over two stores, and what it asked for."""

    def __init__(self) -> None:
        self.stores = {SOUTH, NORTH}
        self.out: list[Instruction] = []
        self.rollback = Rollback(self.stores, self.out.append)

    def take(self) -> list[Instruction]:
        out, self.out[:] = list(self.out), []
        return out

    def state(self) -> dict[str, Any]:
        return {name: copy(value) for name, value in vars(self.rollback).items()}


@pytest.fixture
def rig() -> Rig:
    return Rig()


def told(attempt: Attempt, *nodes: NodeId) -> list[Instruction]:
    return [RollBackStore(node, attempt, BASE, KEPT[node]) for node in nodes]


def test_first_all_tasks_forget_then_the_stores_go_back(rig: Rig) -> None:
    rig.rollback.begin(A1, BASE, [T2, T1])
    assert rig.take() == [ResetTask(T2, A1), ResetTask(T1, A1)]
    assert not rig.rollback.proceed(HOMES)
    rig.rollback.task_reset(T1)
    assert not rig.rollback.proceed(HOMES)
    assert rig.take() == []
    rig.rollback.task_reset(T2)
    assert not rig.rollback.proceed(HOMES)
    assert rig.take() == told(A1, NORTH, SOUTH)
    for node in (SOUTH, NORTH):
        assert not rig.rollback.proceed(HOMES)
        rig.rollback.store_rolled_back(node)
    assert rig.rollback.proceed(HOMES)
    assert rig.take() == []


def test_without_tasks_the_stores_go_back_at_once(rig: Rig) -> None:
    rig.rollback.begin(A1, BASE, [])
    assert not rig.rollback.proceed(HOMES)
    assert rig.take() == told(A1, NORTH, SOUTH)


def test_without_stores_there_is_nothing_left_when_the_tasks_have_forgotten(rig: Rig) -> None:
    rig.stores.clear()
    rig.rollback.begin(A1, BASE, [T1])
    assert not rig.rollback.proceed(HOMES)
    rig.rollback.task_reset(T1)
    assert rig.rollback.proceed(HOMES)


def test_stores_keep_the_shards_that_are_at_home_there_when_they_are_told(rig: Rig) -> None:
    rig.rollback.begin(A1, BASE, [T1])
    rig.rollback.proceed(HOMES)
    rig.rollback.task_reset(T1)
    rig.rollback.proceed([None, NORTH, NORTH])
    assert rig.take()[1:] == [
        RollBackStore(NORTH, A1, BASE, (ShardId(1), ShardId(2))),
        RollBackStore(SOUTH, A1, BASE, ()),
    ]


def test_a_task_lost_meanwhile_is_not_waited_for(rig: Rig) -> None:
    rig.rollback.begin(A1, BASE, [T1, T2])
    rig.rollback.task_reset(T1)
    rig.rollback.forget_task(T2)
    rig.rollback.forget_task(T3)
    rig.take()
    rig.rollback.proceed(HOMES)
    assert rig.take() == told(A1, NORTH, SOUTH)


def test_a_store_lost_meanwhile_is_not_waited_for(rig: Rig) -> None:
    rig.rollback.begin(A1, BASE, [])
    rig.rollback.proceed(HOMES)
    rig.rollback.store_rolled_back(NORTH)
    rig.stores.discard(SOUTH)
    rig.rollback.forget_node(SOUTH)
    assert rig.rollback.proceed(HOMES)


def test_a_store_lost_before_it_was_told_is_not_told(rig: Rig) -> None:
    rig.rollback.begin(A1, BASE, [T1])
    rig.stores.discard(SOUTH)
    rig.rollback.forget_node(SOUTH)
    rig.rollback.task_reset(T1)
    rig.take()
    rig.rollback.proceed(HOMES)
    assert rig.take() == told(A1, NORTH)
    rig.rollback.store_rolled_back(NORTH)
    assert rig.rollback.proceed(HOMES)


def test_a_store_opened_meanwhile_is_not_waited_for(rig: Rig) -> None:
    """It was opened empty at the base already."""
    rig.rollback.begin(A1, BASE, [])
    rig.rollback.proceed(HOMES)
    rig.take()
    rig.stores.add(NodeId("west"))
    rig.rollback.store_rolled_back(NORTH)
    rig.rollback.store_rolled_back(SOUTH)
    assert rig.rollback.proceed(HOMES)
    assert rig.take() == []


@pytest.mark.parametrize("stores_told", [False, True])
def test_a_second_rollback_starts_over(rig: Rig, stores_told: bool) -> None:
    rig.rollback.begin(A1, BASE, [T1, T2])
    rig.rollback.task_reset(T1)
    if stores_told:
        rig.rollback.task_reset(T2)
        rig.rollback.proceed(HOMES)
        rig.rollback.store_rolled_back(NORTH)
    rig.take()
    rig.rollback.begin(A2, BASE, [T1, T2])
    assert rig.take() == [ResetTask(T1, A2), ResetTask(T2, A2)]
    assert (rig.rollback.resetting, rig.rollback.restoring) == ({T1, T2}, set())
    assert not rig.rollback.proceed(HOMES)
    rig.rollback.task_reset(T2)
    rig.rollback.task_reset(T1)
    assert not rig.rollback.proceed(HOMES)
    assert rig.take() == told(A2, NORTH, SOUTH)
    rig.rollback.store_rolled_back(NORTH)
    rig.rollback.store_rolled_back(SOUTH)
    assert rig.rollback.proceed(HOMES)


def test_an_answer_that_nobody_waits_for_is_refused(rig: Rig) -> None:
    def refuse_task(task: TaskId) -> None:
        before = rig.state()
        with pytest.raises(OutOfOrderError, match=f"task {task} must have an order to reset"):
            rig.rollback.task_reset(task)
        assert rig.state() == before

    def refuse_store(node: NodeId) -> None:
        before = rig.state()
        with pytest.raises(OutOfOrderError, match="must have an order to roll back"):
            rig.rollback.store_rolled_back(node)
        assert rig.state() == before

    refuse_task(T1)
    refuse_store(NORTH)
    rig.rollback.begin(A1, BASE, [T1, T2])
    refuse_task(T3)
    refuse_store(NORTH)  # no store has an order yet
    rig.rollback.task_reset(T1)
    refuse_task(T1)
    rig.rollback.forget_task(T2)
    refuse_task(T2)
    rig.rollback.proceed(HOMES)
    refuse_store(NodeId("west"))
    rig.rollback.store_rolled_back(NORTH)
    refuse_store(NORTH)
    rig.rollback.forget_node(SOUTH)
    refuse_store(SOUTH)
    rig.rollback.begin(A2, BASE, [T1])
    refuse_store(NORTH)


def test_who_is_waited_for_can_be_seen(rig: Rig) -> None:
    rig.rollback.begin(A1, BASE, [T1, T2])
    assert (rig.rollback.resetting, rig.rollback.restoring) == ({T1, T2}, set())
    rig.rollback.task_reset(T1)
    rig.rollback.task_reset(T2)
    rig.rollback.proceed(HOMES)
    rig.rollback.store_rolled_back(SOUTH)
    assert (rig.rollback.resetting, rig.rollback.restoring) == (set(), {NORTH})
    rig.rollback.forget_node(NORTH)
    assert rig.stores == {NORTH, SOUTH}  # the set is its owner's
