import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.core.executor_rig import (
    COPIED_BYTES,
    REST_BYTES,
    S0,
    S1,
    S2,
    T0,
    T1,
    T2,
    A,
    B,
    Rig,
    U,
    V,
    act,
    kinds,
    move_of,
    of,
    of_any,
    rows_of,
)

from elasticutor.core.executor.config import ExecutorConfig
from elasticutor.core.executor.reassignment import MovePhase
from elasticutor.core.protocol import events as ev
from elasticutor.core.protocol import instructions as do
from elasticutor.core.protocol.ids import Epoch, NodeId, Peer, ShardId
from elasticutor.errors import OutOfOrderError

WINDOW_OF_TWO = ExecutorConfig(
    shards=4, first_chunk_rows=1, max_chunk_rows=1, window_s=1e-6, bulk_s=1e-6
)


def placed(
    other: NodeId = A,
    config: ExecutorConfig | None = None,
    row_s: dict[int, float] | None = None,
    upstreams: tuple[Peer, ...] = (U,),
) -> Rig:
    """Shards 0 and 1 are with task 0, shards 2 and 3 with task 1 on the other node."""
    rig = Rig(config, cores=(A, other), row_s=row_s, upstreams=upstreams)
    rig.place(t0=[0, 1], t1=[2, 3])
    return rig


# Within a node


def test_within_a_node_a_label_drains_the_shard_and_nothing_travels() -> None:
    rig = placed()
    out = rig.ask(S0, T1)
    move = move_of(rig, S0)
    assert out == [do.SendLabel(T0, move, S0)]
    assert rig.owner(S0) == T0
    (report,) = rig.answer(do.SendLabel)
    assert isinstance(report, do.ReportMove)
    assert (report.move, report.source, report.destination) == (move, T0, T1)
    assert rig.owner(S0) == T1
    assert rig.executor.moves == ()


def test_the_label_goes_behind_what_the_task_was_given_and_holds_the_rest() -> None:
    rig = placed(config=WINDOW_OF_TWO)
    rig.send(U, [0, 0, 1, 0])
    rig.ask(S0, T1)
    assert kinds(rig._channel(T0)) == ["Dispatch", "Dispatch", "SendLabel"]
    rig.send(U, [0, 2])
    # The held shard's tuples wait; those of the other shards of both tasks go on.
    rig.answer(do.Dispatch, times=1)
    given = [shard for chunk in rig.logged(do.Dispatch) for _, shard, _ in rows_of(chunk)]
    assert sorted(given) == [0, 0, 1, 2]
    assert rig.executor.waiting == 2
    rig.answer(do.Dispatch, times=1)
    assert rig.owner(S0) == T0


def test_held_tuples_are_released_to_the_new_owner_in_order() -> None:
    rig = placed(config=WINDOW_OF_TWO, upstreams=(U, V))
    for upstream in (U, V, U):
        rig.send(upstream, [0, 0, 0])
    rig.ask(S0, T1)
    rig.send(V, [0, 0])
    rig.answer(do.Dispatch)
    assert rig.executor.waiting == 9
    out = rig.answer(do.SendLabel)
    assert {chunk.task for chunk in of(do.Dispatch, out)} == {T1}
    rig.settle()
    rig.complete()


def test_routing_changes_with_the_answer_to_the_label_and_not_before() -> None:
    rig = placed()
    version = rig.executor.table.version
    rig.ask(S0, T1)
    rig.send(U, [0, 2])
    rig.answer(do.Dispatch)
    assert (rig.owner(S0), rig.executor.table.version) == (T0, version)
    rig.answer(do.SendLabel)
    assert (rig.owner(S0), rig.executor.table.version) == (T1, version + 1)


def test_a_shard_asked_to_where_it_is_stays_without_a_pause() -> None:
    rig = placed()
    assert rig.ask(S0, T0) == []
    assert rig.executor.moves == ()


# Written ahead of the pause


@pytest.mark.parametrize("other", [A, B], ids=["within a node", "to another"])
def test_the_source_task_writes_the_shard_before_it_is_held_or_copied(other: NodeId) -> None:
    rig = placed(other)
    rig.writes_at_once = False
    rig.ask(S0, T1)
    rig.answer(do.OpenShard)
    assert rig.unanswered(do.WriteShard) == [do.WriteShard(T0, move_of(rig, S0), S0)]
    assert not rig.executor.moves[0].holds
    assert [chunk.task for chunk in of(do.Dispatch, rig.send(U, [0]))] == [T0]
    rig.answer(do.Dispatch)
    (following,) = rig.answer(do.WriteShard)
    assert isinstance(following, do.SendLabel if other == A else do.CopyShard)
    rig.settle()
    rig.complete()


@pytest.mark.parametrize("other", [A, B], ids=["within a node", "to another"])
def test_the_source_task_hurries_from_the_beginning_of_a_move_to_its_label(other: NodeId) -> None:
    rig = placed(other)
    rig.writes_at_once = False
    rig.ask(S0, T1)
    rig.ask(S1, T1)
    rig.answer(do.OpenShard)
    assert rig.executor.tasks[T0].departures == 2
    rig.answer(do.WriteShard, times=1)
    rig.answer(do.CopyShard)
    rig.answer(do.SendLabel)
    assert rig.executor.tasks[T0].departures == 1
    rig.tell(ev.AttemptFailed(rig.attempt, "for a test"))
    assert rig.executor.tasks[T0].departures == 0


def test_an_epoch_ends_while_a_shard_is_written_ahead() -> None:
    rig = placed()
    rig.writes_at_once = False
    rig.ask(S0, T1)
    rig.send(U, [0])
    rig.mark()
    rig.settle(without=(do.WriteShard,))
    assert rig.executor.epochs.prepared == Epoch(1)
    rig.settle()
    assert rig.owner(S0) == T1


# Between two tuples


def interrupted(done: int) -> Rig:
    """Shard 0 leaves task 0, which has two chunks, when so many tuples of the first are done."""
    rig = placed(config=ExecutorConfig(shards=4, first_chunk_rows=4))
    rig.send(U, [0, 1, 0, 1])
    rig.send(U, [0, 0, 1, 0])
    rig.send(U, [0, 1])
    rig.ask(S0, T1)
    rig.log.clear()
    rig.interrupt(T0, done)
    return rig


@pytest.mark.parametrize("done", range(5))
def test_a_label_is_answered_between_any_two_tuples_and_what_is_not_begun_moves(done: int) -> None:
    rig = interrupted(done)
    assert rig.owner(S0) == T1
    assert rig.executor.inside_rows == 10 - (done or 0)
    moved = [row for chunk in rig.logged(do.Dispatch) for row in rows_of(chunk) if chunk.task == T1]
    begun = [0, 1, 1, 2, 2][done]
    assert [(shard, serial) for _, shard, serial in moved] == [
        (0, serial) for serial in [0, 2, 4, 5, 7, 8][begun:]
    ]
    rig.settle()
    rig.complete()


def test_returned_tuples_are_processed_before_those_that_were_held() -> None:
    rig = interrupted(1)
    rig.send(U, [0, 0, 1])
    rig.settle()
    rig.complete()


def test_a_chunk_of_which_everything_is_returned_is_not_waited_for() -> None:
    rig = placed()
    rig.send(U, [0, 0])
    rig.ask(S0, T1)
    rig.interrupt(T0)
    assert not rig.executor.tasks[T0].flights
    rig.settle()
    rig.complete()


def test_a_chunk_is_not_reported_in_part_for_a_shard_that_it_has_not_begun() -> None:
    rig = placed()
    rig.send(U, [1, 1, 0, 1])
    rig.ask(S0, T1)
    out = rig.interrupt(T0, done=2)
    assert rig.executor.inside_rows == 4
    assert [chunk.task for chunk in of(do.Dispatch, out)] == [T1]
    rig.settle()
    rig.complete()


def test_an_epoch_does_not_end_before_returned_tuples_are_processed() -> None:
    rig = placed()
    rig.send(U, [0, 0, 1])
    rig.ask(S0, T1)
    rig.mark()
    rig.interrupt(T0, done=1)
    assert kinds(rig._channel(T1)) == ["Dispatch", "FlushTask"]
    rig.settle()
    rig.complete()
    assert rig.executor.epochs.prepared == Epoch(1)


def test_credit_for_an_interrupted_chunk_is_given_back_once() -> None:
    rig = placed()
    rig.send(U, [0, 1, 0, 1], size=100)
    rig.ask(S0, T1)
    rig.interrupt(T0, done=2)
    assert rig.executor.inside_bytes(U) == 50
    rig.settle()
    assert rig.executor.inside_bytes(U) == 0


# To another node


def test_to_another_node_state_is_copied_ahead_and_only_the_rest_sent_during_the_pause() -> None:
    rig = placed(B)
    out = rig.ask(S0, T1)
    move = move_of(rig, S0)
    assert out == [do.OpenShard(B, move, S0)]
    assert rig.answer(do.OpenShard) == [do.CopyShard(A, move, S0, B)]
    assert rig.answer(do.CopyShard) == [do.SendLabel(T0, move, S0)]
    assert rig.answer(do.SendLabel) == [do.SendRest(A, move, S0, B)]
    assert (rig.owner(S0), rig.executor.homes[S0]) == (T0, A)
    drop, report = rig.answer(do.SendRest)
    assert drop == do.DropShard(A, S0)
    assert isinstance(report, do.ReportMove)
    assert (rig.owner(S0), rig.executor.homes[S0]) == (T1, B)
    assert rig.answer(do.DropShard) == []


def test_tuples_flow_to_the_old_owner_until_the_label_and_wait_from_then_on() -> None:
    rig = placed(B)
    rig.ask(S0, T1)
    for step in (do.OpenShard, do.CopyShard):
        assert [chunk.task for chunk in of(do.Dispatch, rig.send(U, [0]))] == [T0]
        rig.answer(do.Dispatch)
        rig.answer(step)
    for held in (do.SendLabel, do.SendRest):
        assert rig.send(U, [0, 0]) == []
        out = rig.answer(held)
    assert [chunk.task for chunk in of(do.Dispatch, out)] == [T1]
    rig.settle()
    rig.complete()


@pytest.mark.parametrize("other", [A, B], ids=["within a node", "to another"])
def test_a_move_is_timed_in_its_two_parts(other: NodeId) -> None:
    rig = placed(other)
    rig.ask(S0, T1)
    rig.answer(do.OpenShard, after=7.0)  # no part of the pause
    rig.answer(do.CopyShard, after=7.0)
    rig.answer(do.SendLabel, after=0.25)
    rig.answer(do.SendRest, after=0.5)
    (report,) = rig.logged(do.ReportMove)
    remote = other == B
    assert (report.shard, report.remote, report.sync_s) == (S0, remote, 0.25)
    expected = (0.5, COPIED_BYTES, REST_BYTES) if remote else (0.0, 0, 0)
    assert (report.migration_s, report.copied, report.migrated) == expected


def test_a_shard_does_not_go_back_while_its_old_copy_is_being_dropped() -> None:
    """The order to drop could otherwise overtake the new state."""
    rig = placed(B)
    rig.ask(S0, T1)
    rig.settle(without=(do.DropShard,))
    assert rig.owner(S0) == T1
    with pytest.raises(OutOfOrderError, match="old copy of shard 0 on 'a' must be dropped first"):
        rig.ask(S0, T0)
    rig.answer(do.DropShard)
    assert kinds(rig.ask(S0, T0)) == ["OpenShard"]


def test_a_shard_that_must_leave_goes_as_soon_as_its_old_copy_is_dropped() -> None:
    rig = placed(B)
    rig.ask(S0, T1)
    rig.settle(without=(do.DropShard,))
    rig.tell(ev.CoreTaken(T1))
    rig.settle(without=(do.DropShard,))
    assert rig.owned(T1) == (S0,)
    rig.answer(do.DropShard, times=1)
    assert [move.shard for move in rig.executor.moves] == [S0]
    rig.settle()
    assert rig.owner(S0) == T0
    assert T1 not in rig.executor.tasks


# Many at once


def test_many_shards_are_on_the_move_at_once_and_hold_only_their_own_tuples() -> None:
    rig = Rig(ExecutorConfig(shards=8), cores=(A, B, A))
    rig.place(t0=[0, 1, 2, 3, 4, 5], t1=[6], t2=[7])
    for shard in range(5):
        rig.ask(ShardId(shard), (T1, T2)[shard % 2])
    assert [move.shard for move in rig.executor.moves] == [0, 1, 2, 3, 4]
    rig.answer(do.OpenShard)
    rig.answer(do.CopyShard)
    rig.send(U, list(range(8)) * 3)
    assert rig.executor.waiting == 15
    rig.settle()
    assert [rig.owner(ShardId(shard)) for shard in range(8)] == [1, 2, 1, 2, 1, 0, 1, 2]
    rig.complete()


def test_moves_end_in_any_order() -> None:
    rig = placed()
    rig.ask(S0, T1)
    rig.ask(S1, T1)
    first, second = rig.unanswered(do.SendLabel)
    rig.pending.reverse()
    rig.tell(ev.LabelReached(T0, second.move, 0))
    assert (rig.owner(S0), rig.owner(S1)) == (T0, T1)
    rig.tell(ev.LabelReached(T0, first.move, 0))
    assert (rig.owner(S0), rig.owner(S1)) == (T1, T1)


def test_balancing_has_at_most_so_many_shards_on_the_move() -> None:
    config = ExecutorConfig(shards=16, max_moves=3)
    rig = Rig(config, cores=(A,))
    rig.send(U, list(range(16)))
    rig.settle()
    rig.tell(ev.CoreGranted(A))
    rig.answer(do.StartTask, after=0.1)
    assert len(rig.executor.moves) == 3


@pytest.mark.parametrize("other", [A, B], ids=["within a node", "to another"])
def test_no_upstream_hears_of_a_move(other: NodeId) -> None:
    rig = placed(other, row_s={0: 0.1, 1: 0.1})
    rig.send(U, [0, 0, 0, 1, 1])
    rig.settle()
    rig.log.clear()
    rig.tell(ev.BalanceDue(), after=0.1)
    rig.ask(S2, T0)
    rig.settle()
    rig.tell(ev.CoreTaken(T0))
    rig.settle()
    assert len(rig.logged(do.ReportMove)) >= 4
    assert of_any((do.GrantCredit, do.Emit, do.EmitMarker), rig.log) == []


# Balancing


def test_a_hot_key_is_balanced_away_at_once_by_its_useful_time() -> None:
    """Task 0 has a tenth of the tuples, and most of the work."""
    rig = placed(row_s={0: 0.02, 1: 0.02, 2: 1e-4, 3: 1e-4})
    rig.send(U, [0, 1] + [2, 3] * 10)
    rig.settle()
    out = rig.tell(ev.BalanceDue(), after=0.1)
    (label,) = of(do.SendLabel, out)
    assert label.task == T0
    rig.settle()
    assert {rig.owner(S0), rig.owner(S1)} == {T0, T1}
    assert kinds(rig.tell(ev.BalanceDue(), after=0.1)) == []


def test_a_backlog_counts_as_load_before_it_is_processed() -> None:
    """The hot keys' tuples are all still inside; what they cost is known from a few."""
    rig = placed(config=WINDOW_OF_TWO)
    rig.send(U, [0, 1, 2, 3])
    rig.settle()
    assert rig.tell(ev.BalanceDue(), after=0.1) == []
    rig.send(U, [0, 1] * 50)
    rig.tell(ev.BalanceDue(), after=0.001)
    (move,) = rig.executor.moves
    assert (move.source, move.destination) == (T0, T1)


def test_a_balanced_executor_is_left_alone() -> None:
    rig = placed()
    rig.send(U, [0, 1, 2, 3] * 4)
    rig.settle()
    assert rig.tell(ev.BalanceDue(), after=0.1) == []


def test_a_shard_that_fills_a_core_is_reported_by_name_until_it_cools_down() -> None:
    rig = placed(row_s={2: 0.2})
    rig.send(U, [2, 3])
    rig.settle()
    out = rig.tell(ev.BalanceDue(), after=0.1)
    assert of(do.ReportHotShards, out) == [do.ReportHotShards((S2,))]
    rig.send(U, [2, 3])
    rig.settle()
    assert of(do.ReportHotShards, rig.tell(ev.BalanceDue(), after=0.1)) == []
    assert of(do.ReportHotShards, rig.tell(ev.BalanceDue(), after=1.0)) == [do.ReportHotShards(())]


# While an epoch ends


def test_labels_wait_while_an_epoch_ends_and_copies_do_not() -> None:
    rig = placed(B, config=WINDOW_OF_TWO)
    rig.send(U, [2] * 4)
    rig.mark()
    assert rig.executor.waiting > 0
    assert rig.ask(S0, T1) == [do.OpenShard(B, move_of(rig, S0), S0)]
    assert kinds(rig.answer(do.OpenShard)) == ["CopyShard"]
    assert rig.answer(do.CopyShard) == []
    assert [move.phase for move in rig.executor.moves] == [MovePhase.WAITING]
    out = rig.answer(do.Dispatch)
    assert [kind for kind in kinds(out) if kind != "Dispatch"][:3] == [
        *("FlushTask", "FlushTask", "SendLabel")
    ]
    rig.settle()
    assert rig.owner(S0) == T1


def test_labels_do_not_wait_while_much_of_the_epoch_is_still_to_be_handed_out() -> None:
    rig = placed(config=WINDOW_OF_TWO, row_s={0: 0.05, 1: 0.05})
    rig.send(U, [0] * 10 + [1] * 10)
    rig.mark()
    rig.answer(do.Dispatch, times=1)  # what a tuple takes is known: there is half a second left
    assert of(do.SendLabel, rig.ask(S1, T1)) == [do.SendLabel(T0, move_of(rig, S1), S1)]
    rig.answer(do.Dispatch, times=2)
    rig.answer(do.SendLabel)
    assert rig.owner(S1) == T1
    while rig.executor.waiting * 0.05 / 2 > rig.executor.config.backlog_horizon_s:
        rig.answer(do.Dispatch, times=1)
    assert rig.ask(S0, T1) == []
    assert [move.phase for move in rig.executor.moves] == [MovePhase.WAITING]
    rig.settle()
    assert rig.owner(S0) == T1
    rig.complete()


def test_labels_that_wait_are_sent_when_what_is_left_turns_out_to_be_dear() -> None:
    rig = placed(config=WINDOW_OF_TWO, row_s={0: 1e-6, 1: 5.0})
    rig.send(U, [0, 1] + [1] * 20)
    rig.mark()
    rig.answer(do.Dispatch, times=1)
    assert rig.ask(S0, T1) == []
    assert [move.phase for move in rig.executor.moves] == [MovePhase.WAITING]
    assert rig.executor.overdue(now=rig.now + 1000.0, patience_s=60.0) == []
    out = rig.answer(do.Dispatch, times=1)
    assert of(do.SendLabel, out) == [do.SendLabel(T0, move_of(rig, S0), S0)]
    rig.settle()
    assert rig.owner(S0) == T1
    rig.complete()


def test_tuples_of_the_next_epoch_do_not_slip_in_behind_a_label_that_had_to_wait() -> None:
    rig = placed(upstreams=(U, V), config=WINDOW_OF_TWO)
    rig.mark(U)
    rig.send(U, [0, 1, 0])
    rig.send(V, [2] * 3)
    rig.mark(V)
    assert rig.ask(S0, T1) == []
    out = rig.answer(do.Dispatch, times=1)
    assert kinds(out) == ["Dispatch", "FlushTask", "FlushTask", "SendLabel", "Dispatch"]
    assert [shard for _, shard, _ in rows_of(of(do.Dispatch, out)[1])] == [1]
    assert rig.executor.waiting == 2
    rig.settle()
    rig.complete()


def test_a_move_past_its_label_is_waited_for() -> None:
    rig = placed(B)
    rig.ask(S0, T1)
    rig.answer(do.OpenShard)
    rig.answer(do.CopyShard)
    assert rig.mark() == []
    assert rig.answer(do.SendLabel) == [do.SendRest(A, move_of(rig, S0), S0, B)]
    out = rig.answer(do.SendRest)
    assert kinds(out) == ["DropShard", "ReportMove", "FlushTask", "FlushTask", "EmitMarker"]


def test_tuples_held_by_a_move_belong_to_the_epoch_that_waits_for_them() -> None:
    rig = placed()
    rig.ask(S0, T1)
    rig.send(U, [0, 0])
    assert rig.mark() == []
    out = rig.answer(do.SendLabel)
    assert kinds(out) == ["ReportMove", "Dispatch", "FlushTask", "FlushTask"]
    assert of(do.Dispatch, out)[0].epoch == 1
    rig.settle()
    rig.complete()


def test_moves_go_on_while_an_epoch_is_made_durable() -> None:
    rig = placed()
    rig.mark()
    rig.settle(without=(do.PersistIncrement,))
    rig.ask(S0, T1)
    rig.answer(do.SendLabel)
    assert rig.owner(S0) == T1
    assert rig.settle() == [do.ReportPrepared(rig.attempt, Epoch(1))]


# Any sequence


ACTS = ("send", "send", "answer", "answer", "interrupt", "ask", "ask", "balance")
histories = st.lists(
    st.tuples(st.sampled_from([*ACTS, "grant", "take", "mark"]), st.integers(0, 10**6)),
    min_size=30,
    max_size=100,
)


@settings(max_examples=100, deadline=None)
@given(histories)
def test_any_sequence_of_moves_cores_and_epochs_loses_doubles_and_overtakes_no_tuple(
    history: list[tuple[str, int]],
) -> None:
    config = ExecutorConfig(shards=6, first_chunk_rows=2, max_chunk_rows=3, max_moves=3)
    rig = Rig(config, cores=(A, B), upstreams=(U, V), row_s={0: 0.01, 3: 0.004})
    rig.writes_at_once = False
    for what, x in history:
        act(rig, what, x)
    rig.settle()
    if rig.executor.epochs.marked:
        rig.mark(*(set(rig.upstreams) - rig.executor.epochs.marked))
        rig.settle()
    rig.complete()
    assert rig.executor.moves == ()
    assert None not in rig.executor.table.owners
    assert all(task.staying for task in rig.executor.tasks.values())
    assert rig.logged(do.ReportFailure) == []
