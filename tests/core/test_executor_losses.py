import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
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
    C,
    Rig,
    U,
    V,
    act,
    kinds,
    of,
)

from elasticutor.core.executor.config import ExecutorConfig
from elasticutor.core.executor.executor import Phase
from elasticutor.core.protocol import events as ev
from elasticutor.core.protocol import instructions as do
from elasticutor.core.protocol.ids import Attempt, Epoch, NodeId


def committed(*cores: NodeId) -> Rig:
    """One epoch is prepared; shards 0 and 1 are with task 0, shards 2 and 3 with task 1."""
    rig = Rig(cores=cores)
    rig.place(t0=[0, 1], t1=[2, 3], t2=[])
    rig.send(U, [0, 1, 2, 3])
    rig.end_epoch()
    rig.log.clear()
    return rig


def works(rig: Rig) -> None:
    """The executor takes tuples of all shards, and ends an epoch with them."""
    rig.send(U, [0, 1, 2, 3, 0])
    rig.end_epoch()
    rig.complete()


# A task


def test_a_lost_task_fails_the_attempt() -> None:
    rig = committed(A, A, A)
    rig.send(U, [0])
    out = rig.lose_task(T0)
    assert out == [do.ReportFailure(Attempt(1), "task 0 on node 'a' was lost")]
    assert rig.executor.phase is Phase.FAILED
    assert rig.executor.table.shards_of(None) == (S0, S1)


def test_a_failed_attempt_does_nothing_more() -> None:
    rig = committed(A, A, A)
    rig.ask(S2, T2)
    rig.send(U, [2, 2, 3])
    late = rig.unanswered(do.Dispatch)[0]
    rig.lose_task(T0)
    assert rig.tell(rig.batch(U, [0, 1, 2])) == []
    assert rig.tell(ev.ChunkProcessed(T1, rig.attempt, late.chunk, 0.1)) == []
    assert rig.mark() == []
    assert rig.tell(ev.TaskFlushed(T1, rig.attempt, Epoch(2))) == []
    assert rig.tell(ev.EpochCommitted(rig.attempt, Epoch(1))) == []
    assert rig.tell(ev.BalanceDue(), after=0.1) == []
    assert (rig.executor.waiting, rig.executor.moves) == (0, ())


def test_shards_of_a_lost_task_go_to_others_on_the_same_node_without_any_state_travelling() -> None:
    rig = committed(A, A, A)
    rig.lose_task(T0)
    rig.begin(1)
    assert rig.answer(do.ResetTask) == [do.RollBackStore(A, Attempt(2), Epoch(1), (S0, S1, S2, S3))]
    out = rig.answer(do.RollBackStore)
    assert kinds(out) == ["ReportReady", "ReportMove", "ReportMove"]
    assert {rig.owner(S0), rig.owner(S1)} <= {T1, T2}
    works(rig)


def test_shards_of_a_lost_task_rather_stay_on_the_node_with_their_state() -> None:
    rig = committed(A, A, B)
    rig.lose_task(T0)
    rig.begin(1)
    rig.settle()
    assert rig.owned(T1) == (S0, S1, S2, S3)
    assert rig.logged(do.OpenShard) == []


def test_state_whose_node_has_no_task_left_is_copied_to_another() -> None:
    rig = committed(A, B, B)
    rig.lose_task(T0)
    rig.now += 3.0
    rig.begin(1)
    rig.answer(do.ResetTask)
    out = rig.answer(do.RollBackStore)
    opened = of(do.OpenShard, out)
    assert [(one.node, one.shard) for one in opened] == [(B, S0), (B, S1)]
    assert kinds(rig.answer(do.OpenShard)) == ["CopyShard", "CopyShard"]
    # Nobody works on the shard: the rest follows the copy without a label.
    assert kinds(rig.answer(do.CopyShard)) == ["SendRest", "SendRest"]
    rig.send(U, [0, 1])
    assert rig.executor.waiting == 2
    out = rig.answer(do.SendRest, times=1, after=0.5)
    assert kinds(out) == ["DropShard", "ReportMove", "Dispatch"]
    (report,) = of(do.ReportMove, out)
    assert (report.source, report.remote, report.sync_s, report.migration_s) == (None, True, 0, 0.5)
    rig.settle()
    assert rig.logged(do.RestoreShard) == []
    assert rig.logged(do.SendLabel) == []
    works(rig)


def test_a_lost_task_that_had_not_started_is_no_failure() -> None:
    rig = committed(A, A, A)
    rig.tell(ev.CoreGranted(B))
    assert rig.lose_task(T3) == []
    works(rig)


def test_an_epoch_waits_until_every_shard_has_found_its_task_again() -> None:
    rig = committed(A, B, B)
    rig.lose_task(T0)
    rig.begin(1)
    rig.answer(do.ResetTask)
    rig.answer(do.RollBackStore)
    assert rig.mark() == []
    rig.answer(do.OpenShard)
    rig.answer(do.CopyShard)
    assert "FlushTask" not in kinds(rig.answer(do.SendRest, times=1))
    assert kinds(rig.answer(do.SendRest))[-3:] == ["FlushTask", "FlushTask", "EmitMarker"]


def test_an_epoch_waits_for_a_shard_that_waits_for_its_old_copy_to_be_dropped() -> None:
    rig = committed(A, B, B)
    rig.ask(S0, T1)
    rig.settle(without=(do.DropShard,))
    for task in (T1, T2):
        rig.lose_task(task)
    rig.begin(1)
    rig.settle(without=(do.DropShard,))
    assert rig.executor.table.shards_of(None) == (S0,)
    assert (rig.mark(), rig.executor.moves) == ([], ())
    rig.answer(do.DropShard, times=1)
    rig.settle()
    assert rig.logged(do.ReportPrepared) == [do.ReportPrepared(rig.attempt, Epoch(2))]


# A node


def test_shards_of_a_lost_node_are_restored_from_the_checkpoint() -> None:
    rig = committed(A, B, A)
    (failure,) = rig.lose_node(B)
    assert failure == do.ReportFailure(
        Attempt(1), "node 'b' was lost with 1 of the executor's tasks"
    )
    assert rig.executor.homes == (A, A, None, None)
    rig.begin(1)
    assert rig.answer(do.ResetTask) == [do.RollBackStore(A, Attempt(2), Epoch(1), (S0, S1))]
    restores = of(do.RestoreShard, rig.answer(do.RollBackStore))
    assert [(one.node, one.shard, one.epoch) for one in restores] == [(A, S2, 1), (A, S3, 1)]
    rig.settle()
    works(rig)


def test_a_lost_node_without_tasks_or_state_is_no_failure() -> None:
    rig = committed(A, A, B)
    rig.tell(ev.CoreTaken(T2))
    rig.settle()
    assert rig.lose_node(B) == []
    assert kinds(rig.tell(ev.CoreGranted(B))) == ["OpenStore", "StartTask"]
    rig.settle()
    works(rig)


@pytest.mark.parametrize("steps", [(), (do.OpenShard,), (do.OpenShard, do.CopyShard)])
def test_a_lost_node_that_a_shard_was_moving_to_fails_the_attempt(
    steps: tuple[type[do.Instruction], ...],
) -> None:
    rig = committed(A, A, B)
    rig.ask(S0, T2)
    for step in steps:
        rig.answer(step)
    assert kinds(rig.lose_node(B)) == ["ReportFailure"]
    rig.begin(1)
    rig.settle()
    assert rig.logged(do.RestoreShard) == []
    assert rig.owner(S0) == T0
    works(rig)


def test_a_lost_node_that_had_to_persist_fails_the_attempt() -> None:
    rig = committed(A, B, A)
    rig.mark()
    rig.answer(do.FlushTask)
    # Its shards have left meanwhile; what they changed in the epoch is not durable yet.
    rig.tell(ev.CoreTaken(T1))
    rig.settle(without=(do.PersistIncrement,))
    assert B not in rig.executor.homes
    assert kinds(rig.lose_node(B)) == ["ReportFailure"]
    rig.begin(1)
    rig.settle()
    works(rig)


def test_a_node_that_comes_back_starts_empty() -> None:
    rig = committed(A, B, A)
    rig.ask(S0, T1)
    rig.settle(without=(do.DropShard,))
    rig.lose_node(B)
    out = rig.tell(ev.CoreGranted(B))
    assert out[0] == do.OpenStore(B, rig.attempt, Epoch(0))
    rig.begin(1)
    rig.settle()
    works(rig)


def test_what_a_lost_node_had_to_drop_is_not_waited_for_when_it_comes_back() -> None:
    rig = committed(A, B, A)
    rig.ask(S2, T0)
    rig.settle(without=(do.DropShard,))
    rig.lose_node(B)
    rig.tell(ev.CoreGranted(B))
    rig.begin(1)
    rig.settle()
    assert kinds(rig.ask(S2, T3)) == ["OpenShard"]


def test_the_state_of_a_lost_node_is_not_counted_any_more() -> None:
    rig = committed(A, B, A)
    rig.tell(ev.StateMeasured(A, 100))
    rig.tell(ev.StateMeasured(B, 20))
    rig.lose_node(B)
    rig.tell(ev.StateMeasured(A, 50))
    assert rig.executor.measure(1.0).state_bytes == 50


# Something else


def test_an_attempt_that_the_host_gives_up_fails_and_the_next_one_goes_on_from_its_base() -> None:
    rig = committed(A, B, A)
    rig.send(U, [0, 2])
    rig.ask(S1, T2)
    rig.settle(without=(do.Dispatch, do.SendLabel))
    failure = ev.AttemptFailed(rig.attempt, "the disk is full")
    assert rig.tell(failure) == [do.ReportFailure(rig.attempt, "the disk is full")]
    assert rig.tell(failure) == []
    assert (rig.executor.phase, rig.executor.moves) == (Phase.FAILED, ())
    rig.begin(1)
    failed = rig.tell(ev.AttemptFailed(rig.attempt, "the store cannot be read"))
    assert failed == [do.ReportFailure(rig.attempt, "the store cannot be read")]
    assert rig.tell(ev.AttemptFailed(rig.attempt, "again")) == []
    rig.begin(1)
    rig.settle()
    assert rig.logged(do.RestoreShard) == []
    works(rig)


# While rolling back


def test_losing_a_task_while_rolling_back_costs_no_new_failure() -> None:
    rig = committed(A, A, A)
    rig.lose_task(T0)
    rig.begin(1)
    rig.log.clear()
    rig.answer(do.ResetTask, times=1)
    assert kinds(rig.lose_task(T2)) == ["RollBackStore"]
    rig.settle()
    assert rig.logged(do.ReportFailure) == []
    assert rig.owned(T1) == (S0, S1, S2, S3)
    works(rig)


def test_losing_a_node_while_rolling_back_costs_no_new_failure() -> None:
    rig = committed(A, B, C)
    rig.lose_task(T2)
    rig.begin(1)
    rig.log.clear()
    rig.answer(do.ResetTask)
    rig.answer(do.RollBackStore, times=1)
    rig.lose_node(B)
    rig.settle()
    assert rig.logged(do.ReportFailure) == []
    assert [one.shard for one in rig.logged(do.RestoreShard)] == [S2, S3]
    works(rig)


def test_the_last_store_to_roll_back_may_be_lost() -> None:
    rig = committed(A, B, A)
    rig.lose_task(T2)
    rig.begin(1)
    rig.answer(do.ResetTask)
    rig.answer(do.RollBackStore, times=1)
    assert "ReportReady" in kinds(rig.lose_node(B))


def test_without_any_task_left_the_executor_waits_for_a_core() -> None:
    rig = Rig(cores=(A,))
    rig.send(U, [0])
    rig.end_epoch()
    rig.lose_task(T0)
    rig.begin(1)
    rig.settle()
    assert rig.executor.phase is Phase.RUNNING
    rig.send(U, [0, 1, 2, 3])
    assert rig.executor.waiting == 4
    assert rig.mark() == []
    assert rig.tell(ev.BalanceDue(), after=0.1) == []
    assert "an owner for 4 shards" in rig.executor.waiting_for()
    rig.tell(ev.CoreGranted(A))
    rig.settle()
    assert rig.owned(T1) == (S0, S1, S2, S3)
    rig.complete()


def test_an_executor_may_begin_before_it_has_any_core() -> None:
    rig = Rig(cores=())
    rig.send(U, [0, 1])
    rig.tell(ev.CoreGranted(A))
    rig.settle()
    rig.complete()
    assert rig.executor.waiting == 0


# Any sequence

ACTS = ("send", "send", "answer", "answer", "answer", "answer", "ask", "balance", "mark", "mark")
LOSSES = ("lose task", "lose node", "begin", "begin", "grant", "take")
histories = st.lists(
    st.tuples(st.sampled_from([*ACTS, *LOSSES]), st.integers(0, 10**6)), min_size=30, max_size=100
)


@settings(max_examples=100, deadline=None)
@given(histories)
def test_after_any_losses_the_next_attempt_loses_doubles_and_overtakes_no_tuple(
    history: list[tuple[str, int]],
) -> None:
    config = ExecutorConfig(shards=6, first_chunk_rows=2, max_chunk_rows=3, max_moves=3)
    rig = Rig(config, cores=(A, B, C), upstreams=(U, V))
    for what, x in history:
        act(rig, what, x)
    if rig.executor.phase is Phase.FAILED:
        rig.begin(rig.executor.epochs.committed)
    rig.tell(ev.CoreGranted(A))
    rig.settle()
    rig.mark(*(set(rig.upstreams) - rig.executor.epochs.marked))
    rig.settle()
    rig.complete()
    assert rig.executor.moves == ()
    assert None not in rig.executor.table.owners
    assert rig.executor.epochs.prepared is not None
