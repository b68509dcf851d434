import pytest
from tests.core.executor_rig import (
    S0,
    S1,
    S2,
    S3,
    T0,
    T1,
    T2,
    T3,
    A,
    B,
    Rig,
    U,
    kinds,
    of,
)

from elasticutor.core.executor.config import ExecutorConfig
from elasticutor.core.executor.tasks import TaskStatus
from elasticutor.core.protocol import events as ev
from elasticutor.core.protocol import instructions as do
from elasticutor.core.protocol.ids import Epoch, ShardId, TaskId


def placed() -> Rig:
    """Shards 0 and 1 are with task 0, shards 2 and 3 with task 1, all on one node."""
    rig = Rig()
    rig.place(t0=[0, 1], t1=[2, 3])
    return rig


# Granted


def test_the_first_core_on_a_node_opens_a_store_there() -> None:
    rig = Rig(cores=(A,))
    assert rig.tell(ev.CoreGranted(A)) == [do.StartTask(A, T1)]
    assert rig.tell(ev.CoreGranted(B)) == [
        do.OpenStore(B, rig.attempt, Epoch(0)),
        do.StartTask(B, T2),
    ]
    assert rig.tell(ev.CoreGranted(B)) == [do.StartTask(B, T3)]


def test_a_store_is_opened_at_the_committed_epoch() -> None:
    rig = Rig(cores=(A,), base=7)
    assert rig.tell(ev.CoreGranted(B))[0] == do.OpenStore(B, rig.attempt, Epoch(7))


def test_a_task_gets_nothing_before_it_has_started() -> None:
    rig = Rig(cores=(A,))
    rig.tell(ev.CoreGranted(A))
    rig.send(U, [0, 1, 2, 3])
    rig.settle(without=(do.StartTask,))
    assert rig.tell(ev.BalanceDue(), after=0.1) == []
    assert rig.owned(T1) == ()


def test_a_core_is_put_to_use_as_soon_as_it_has_started() -> None:
    rig = Rig(cores=(A,))
    rig.send(U, [0, 1, 2, 3])
    rig.settle()
    rig.tell(ev.CoreGranted(A))
    rig.answer(do.StartTask, after=0.1)
    rig.settle()
    assert (len(rig.owned(T0)), len(rig.owned(T1))) == (2, 2)


def test_a_new_core_among_many_is_used_though_the_imbalance_is_below_the_threshold() -> None:
    """Six even tasks and an idle one: δ = 7/6, which is less than θ = 1.2."""
    rig = Rig(ExecutorConfig(shards=42), cores=(A,) * 6)
    rig.send(U, list(range(42)))
    rig.settle()
    assert rig.tell(ev.BalanceDue(), after=0.1) == []
    rig.tell(ev.CoreGranted(A))
    rig.settle()
    assert [len(rig.owned(TaskId(task))) for task in range(7)] == [6] * 7


def test_the_number_of_a_task_is_never_used_again() -> None:
    rig = placed()
    rig.tell(ev.CoreTaken(T1))
    rig.settle()
    assert rig.tell(ev.CoreGranted(A)) == [do.StartTask(A, T2)]


def test_cores_are_counted_from_grant_to_end() -> None:
    rig = Rig(cores=(A,))
    rig.executor.measure(0.0)
    rig.tell(ev.CoreGranted(A), after=1.0)
    rig.answer(do.StartTask, after=1.0)
    rig.tell(ev.CoreTaken(T0), after=1.0)
    rig.settle()
    assert rig.executor.measure(4.0).core_seconds == pytest.approx(1 + 2 * 2 + 1)


# Taken


def test_all_shards_leave_a_task_whose_core_is_taken_and_then_it_ends() -> None:
    rig = placed()
    out = rig.tell(ev.CoreTaken(T0))
    assert [(label.task, label.shard) for label in of(do.SendLabel, out)] == [(T0, S0), (T0, S1)]
    assert kinds(rig.answer(do.SendLabel, times=1)) == ["ReportMove"]
    assert kinds(rig.answer(do.SendLabel)) == ["ReportMove", "EndTask"]
    assert rig.log[-1] == do.EndTask(A, T0)
    assert rig.owned(T1) == (S0, S1, S2, S3)
    assert list(rig.executor.tasks) == [T1]


def test_a_leaving_task_works_until_its_last_shard_has_left() -> None:
    rig = Rig(cores=(A, B))
    rig.place(t0=[0, 1], t1=[2, 3])
    rig.tell(ev.CoreTaken(T1))
    out = rig.send(U, [2, 3, 0])
    assert {chunk.task for chunk in of(do.Dispatch, out)} == {T0, T1}
    rig.settle()
    assert list(rig.executor.tasks) == [T0]
    rig.complete()


def test_a_task_without_shards_ends_at_once() -> None:
    rig = placed()
    rig.ask(S2, T0)
    rig.ask(S3, T0)
    rig.settle()
    assert rig.tell(ev.CoreTaken(T1)) == [do.EndTask(A, T1)]


def test_a_core_taken_while_its_task_starts_ends_at_once() -> None:
    rig = placed()
    rig.tell(ev.CoreGranted(B))
    assert rig.tell(ev.CoreTaken(T2)) == [do.EndTask(B, T2)]
    assert T2 not in rig.executor.tasks


def test_the_last_task_that_runs_may_go_when_another_has_started() -> None:
    rig = Rig(cores=(A,))
    rig.tell(ev.CoreGranted(B))
    assert rig.tell(ev.CoreTaken(T0)) == []
    rig.send(U, [0, 1])
    rig.settle()
    assert rig.owned(T1) == (S0, S1, S2, S3)
    assert list(rig.executor.tasks) == [T1]
    rig.complete()


def test_more_shards_than_may_move_at_once_leave_one_after_the_other() -> None:
    rig = Rig(ExecutorConfig(shards=8, max_moves=2))
    rig.tell(ev.CoreTaken(T0))
    for _ in range(4):
        assert len(rig.executor.moves) <= 2
        rig.answer(do.SendLabel, times=1)
    assert rig.owned(T0) == ()
    assert rig.log[-1] == do.EndTask(A, T0)


def test_no_shard_goes_to_a_task_that_is_leaving() -> None:
    rig = Rig(cores=(A, A, A))
    rig.place(t0=[0, 1], t1=[2], t2=[3])
    rig.tell(ev.CoreTaken(T2))
    assert rig.executor.tasks[T2].status is TaskStatus.LEAVING
    rig.tell(ev.CoreTaken(T1))
    rig.settle()
    assert rig.owned(T0) == (S0, S1, S2, S3)


def test_a_shard_that_was_on_its_way_to_a_leaving_task_moves_on() -> None:
    rig = placed()
    rig.ask(S2, T0)
    rig.tell(ev.CoreTaken(T0))
    rig.settle()
    assert list(rig.executor.tasks) == [T1]
    assert rig.owned(T1) == (S0, S1, S2, S3)


def test_a_task_that_has_to_flush_stays_until_the_epoch_is_sealed() -> None:
    rig = placed()
    rig.ask(S2, T0)
    rig.ask(S3, T0)
    rig.settle()
    rig.mark()
    assert rig.tell(ev.CoreTaken(T1)) == []
    assert "EndTask" not in kinds(rig.answer(do.FlushTask, times=1))
    assert rig.answer(do.FlushTask)[-1] == do.EndTask(A, T1)


def test_a_core_taken_while_rolling_back_leaves_when_the_executor_is_ready() -> None:
    rig = placed()
    rig.send(U, [0])
    rig.begin(0)
    assert rig.tell(ev.CoreTaken(T0)) == []
    rig.settle()
    assert list(rig.executor.tasks) == [T1]
    rig.send(U, [0, 1, 2, 3])
    rig.settle()
    rig.complete()


def test_a_task_without_shards_that_is_taken_while_it_resets_ends_when_all_are_ready() -> None:
    rig = placed()
    rig.ask(S2, T0)
    rig.ask(S3, T0)
    rig.settle()
    rig.begin(0)
    assert rig.tell(ev.CoreTaken(T1)) == []
    assert "EndTask" not in kinds(rig.answer(do.ResetTask))
    assert kinds(rig.answer(do.RollBackStore)) == ["ReportReady", "EndTask"]


def test_the_queue_of_a_task_that_has_ended_serves_the_next() -> None:
    rig = placed()
    slot = rig.executor.tasks[T1].slot
    rig.tell(ev.CoreTaken(T1))
    rig.settle()
    rig.tell(ev.CoreGranted(A))
    rig.settle()
    assert rig.executor.tasks[T2].slot == slot
    rig.ask(S0, T2)
    rig.send(U, [0, 1, 0])
    rig.settle()
    rig.complete()


def test_moves_of_a_leaving_task_prefer_the_node_where_the_state_is() -> None:
    rig = Rig(cores=(A, A, B))
    rig.place(t0=[0, 1], t1=[2], t2=[3])
    rig.tell(ev.CoreTaken(T0))
    rig.settle()
    assert rig.owned(T1) == (S0, S1, S2)


def test_tuples_of_many_shards_follow_their_shards_through_coming_and_going_cores() -> None:
    rig = Rig(ExecutorConfig(shards=16), cores=(A,))
    for round_ in range(1, 6):
        rig.tell(ev.CoreGranted((A, B)[round_ % 2]))
        rig.send(U, [(round_ * 3 + row) % 16 for row in range(40)])
        rig.settle(without=(do.DropShard,))
        rig.tell(ev.CoreTaken(TaskId(round_ - 1)))
        rig.send(U, [(round_ * 5 + row) % 16 for row in range(40)])
        rig.settle()
        assert list(rig.executor.tasks) == [TaskId(round_)]
        assert rig.owned(TaskId(round_)) == tuple(map(ShardId, range(16)))
    rig.complete()
