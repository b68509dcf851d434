from tests.core.executor_rig import (
    S0,
    S1,
    S2,
    S3,
    T0,
    T1,
    A,
    B,
    D,
    E,
    Rig,
    U,
    V,
    back_to_sender,
    kinds,
    of,
)

from elasticutor.core.executor.config import ExecutorConfig
from elasticutor.core.executor.executor import Phase
from elasticutor.core.protocol import events as ev
from elasticutor.core.protocol import instructions as do
from elasticutor.core.protocol.ids import Attempt, Epoch

ONE = Attempt(1)


def two_nodes(**more: object) -> Rig:
    """Two upstreams; shards 0 and 1 with task 0, shards 2 and 3 with task 1 on another node."""
    rig = Rig(cores=(A, B), upstreams=(U, V), **more)  # type: ignore[arg-type]
    rig.place(t0=[0, 1], t1=[2, 3])
    return rig


def prepared(epochs: int = 1) -> Rig:
    """Some epochs with a tuple each are prepared; all but the last are committed."""
    rig = two_nodes()
    for _ in range(epochs):
        rig.send(U, [0])
        rig.end_epoch()
    rig.log.clear()
    return rig


# Ending an epoch


def test_an_epoch_ends_with_markers_then_flushes_then_increments_then_is_prepared() -> None:
    rig = two_nodes()
    rig.send(U, [0, 2])
    rig.settle()
    assert rig.mark(U) == []
    assert rig.mark(V) == [
        do.FlushTask(T0, ONE, Epoch(1)),
        do.FlushTask(T1, ONE, Epoch(1)),
        do.EmitMarker(D, ONE, Epoch(1)),
    ]
    assert rig.answer(do.FlushTask, times=1) == []
    assert rig.answer(do.FlushTask) == [
        do.PersistIncrement(A, ONE, Epoch(1), (S0, S1)),
        do.PersistIncrement(B, ONE, Epoch(1), (S2, S3)),
        do.ReportSealed(ONE, Epoch(1), align_s=0.0, flush_s=0.0),
    ]
    assert rig.answer(do.PersistIncrement, times=1) == []
    assert rig.answer(do.PersistIncrement) == [do.ReportPrepared(ONE, Epoch(1))]
    assert rig.executor.epochs.open == 2


def test_how_long_markers_and_flushes_took_is_told_when_all_is_written() -> None:
    rig = two_nodes()
    rig.mark(U)
    rig.now += 3.0
    rig.mark(V)
    rig.now += 0.5
    (sealed,) = of(do.ReportSealed, rig.answer(do.FlushTask))
    assert (sealed.epoch, sealed.align_s, sealed.flush_s) == (1, 3.0, 0.5)


def test_the_pause_of_an_epoch_is_the_longest_that_a_task_has_felt_of_its_end() -> None:
    rig = two_nodes()
    for pauses in ((0.25, 0.75), (0.125, 0.0)):
        epoch = rig.executor.epochs.open
        rig.mark()
        rig.pending.clear()
        rig.tell(ev.TaskFlushed(T1, ONE, epoch, pauses[0]))
        out = rig.tell(ev.TaskFlushed(T0, ONE, epoch, pauses[1]))
        assert [one.pause_s for one in of(do.ReportSealed, out)] == [max(pauses)]
        rig.settle()


def test_the_next_epoch_follows_a_flush_at_once_and_nobody_waits_for_what_is_written() -> None:
    rig = two_nodes()
    rig.send(U, [0, 2])
    rig.mark(U)
    rig.send(U, [0, 1])  # of the next epoch
    out = rig.mark(V)
    assert kinds(out) == ["FlushTask", "FlushTask", "Dispatch"]
    assert kinds(rig._channel(T0)) == ["Dispatch", "FlushTask", "Dispatch"]
    rig.answer(do.Dispatch, times=1)
    assert kinds(rig.send(V, [3])) == ["Dispatch"]
    rig.settle()
    rig.complete()


def test_outputs_of_the_next_epoch_wait_for_the_marker_and_then_follow_it_in_order() -> None:
    answers = lambda chunk: (ev.Output(D, chunk.chunk, 1),)  # noqa: E731
    rig = Rig(cores=(A, A), upstreams=(U, V), answers=answers)
    rig.place(t0=[0, 1], t1=[2, 3])
    slow, fast = of(do.Dispatch, rig.send(U, [0, 2]))
    rig.mark()
    (first,) = of(do.Dispatch, rig.send(U, [3]))
    assert of(do.Emit, rig.answer_of(fast)) == [do.Emit(D, ONE, fast.chunk, 1)]
    (second,) = of(do.Dispatch, rig.send(U, [2]))
    assert of(do.Emit, rig.answer_of(first)) == of(do.Emit, rig.answer_of(second)) == []
    assert rig.executor.buffered_bytes(U) == 2
    out = rig.answer_of(slow)
    assert [one for one in out if not isinstance(one, do.GrantCredit)] == [
        do.Emit(D, ONE, slow.chunk, 1),
        do.EmitMarker(D, ONE, Epoch(1)),
        do.Emit(D, ONE, first.chunk, 1),
        do.Emit(D, ONE, second.chunk, 1),
    ]
    rig.settle()
    rig.complete()


def test_outputs_that_wait_for_a_marker_count_as_waiting_and_stop_the_next_epoch() -> None:
    config = ExecutorConfig(
        shards=4, first_chunk_rows=1, max_chunk_rows=1, window_s=1e-6, output_bytes=10
    )
    rig = Rig(config, cores=(A, A), answers=lambda chunk: (ev.Output(D, chunk.chunk, 20),))
    rig.place(t0=[0, 1], t1=[2, 3])
    rig.send(U, [0])
    rig.mark()
    rig.send(U, [2] * 9)
    while task_1 := of(do.Dispatch, rig._channel(T1)):
        rig.answer_of(task_1[0])
    assert rig.executor.waiting > 0
    rig.settle()
    rig.complete()


def test_a_shard_that_moved_since_the_epoch_ended_is_persisted_where_it_is_now() -> None:
    rig = two_nodes()
    rig.mark()
    rig.ask(S0, T1)
    rig.settle(without=(do.FlushTask,))
    assert rig.owner(S0) == T1
    out = rig.answer(do.FlushTask)
    shards = {one.node: one.shards for one in of(do.PersistIncrement, out)}
    assert shards == {A: (S1,), B: (S0, S2, S3)}


def test_notes_of_increments_are_handed_on_when_the_epoch_is_prepared() -> None:
    rig = two_nodes()
    rig.mark()
    rig.settle(without=(do.PersistIncrement,))
    rig.tell(ev.IncrementPersisted(B, ONE, Epoch(1), 7, note="b's file"))
    out = rig.tell(ev.IncrementPersisted(A, ONE, Epoch(1), 7))
    assert out == [do.ReportPrepared(ONE, Epoch(1), ("b's file",))]


def test_tasks_flush_behind_the_last_tuple_of_the_epoch() -> None:
    rig = Rig(ExecutorConfig(shards=4, first_chunk_rows=1, max_chunk_rows=1), cores=(A,))
    rig.send(U, [0] * 6)
    assert rig.mark() == []  # some tuples still wait here
    rig.answer(do.Dispatch, times=1)
    rig.answer(do.Dispatch)
    assert rig.executor.waiting == 0
    assert kinds(rig._channel(T0)) == ["FlushTask"]
    rig.settle()
    rig.complete()


def test_a_flush_is_ordered_as_soon_as_everything_is_handed_out() -> None:
    rig = two_nodes()
    rig.send(U, [0, 0])
    rig.mark()
    assert kinds(rig._channel(T0)) == ["Dispatch", "FlushTask"]
    assert kinds(rig._channel(T1)) == ["FlushTask"]


def test_tuples_ahead_of_a_marker_wait_for_the_next_epoch_and_others_do_not() -> None:
    rig = two_nodes()
    rig.mark(U)
    assert rig.send(U, [0, 1]) == []
    assert rig.executor.waiting == 0
    (chunk,) = of(do.Dispatch, rig.send(V, [0]))
    assert chunk.epoch == 1
    rig.answer(do.Dispatch)
    out = rig.mark(V)
    assert kinds(out) == ["FlushTask", "FlushTask", "EmitMarker", "Dispatch"]
    assert [chunk.epoch for chunk in of(do.Dispatch, out)] == [2]
    rig.settle()
    rig.complete()


def test_work_on_the_next_epoch_goes_on_while_the_last_is_made_durable() -> None:
    rig = two_nodes()
    rig.mark()
    rig.settle(without=(do.PersistIncrement,))
    (chunk,) = of(do.Dispatch, rig.send(U, [3]))
    assert (chunk.task, chunk.epoch) == (T1, 2)
    assert rig.settle() == [do.ReportPrepared(ONE, Epoch(1))]


def test_a_marker_goes_to_every_destination_behind_the_outputs_of_its_epoch() -> None:
    config = ExecutorConfig(shards=4, min_credit_bytes=100)
    outputs = (ev.Output(D, "a", 100), ev.Output(D, "b", 1), ev.Output(E, "c", 1))
    rig = Rig(config, cores=(A,), destinations=(D, E), answers=lambda chunk: outputs)
    rig.send(U, [0])
    rig.mark()
    out = rig.settle()
    assert of(do.EmitMarker, out) == [do.EmitMarker(E, ONE, Epoch(1))]
    # Prepared is what is durable; that somebody does not take outputs is another matter.
    assert of(do.ReportPrepared, out) == [do.ReportPrepared(ONE, Epoch(1))]
    assert rig.tell(ev.CreditGranted(D, ONE, 101)) == [
        do.Emit(D, ONE, "b", 1),
        do.EmitMarker(D, ONE, Epoch(1)),
    ]


def test_returned_outputs_end_with_a_marker_to_each_upstream() -> None:
    rig = Rig(
        ExecutorConfig(shards=4, outputs="return"), upstreams=(U, V), answers=back_to_sender(5)
    )
    rig.send(V, [0])
    rig.end_epoch()
    to_v = [type(one) for one in rig.log if getattr(one, "destination", None) == V]
    assert to_v == [do.Emit, do.EmitMarker]
    assert {marker.destination for marker in rig.logged(do.EmitMarker)} == {U, V}


def test_an_epoch_waits_for_the_tuples_of_an_upstream_that_does_not_take_its_outputs() -> None:
    config = ExecutorConfig(
        shards=4,
        outputs="return",
        first_chunk_rows=1,
        max_chunk_rows=1,
        window_s=1e-6,
        min_credit_bytes=10,
        output_bytes=10,
    )
    rig = Rig(config, cores=(A,), upstreams=(U, V), answers=back_to_sender(20))
    rig.send(U, [0] * 9, size=5)
    rig.mark()
    rig.settle()
    assert rig.executor.waiting > 0
    assert rig.unanswered(do.FlushTask) == rig.logged(do.FlushTask) == []
    rig.tell(ev.CreditGranted(U, ONE, 1000))
    rig.settle()
    assert rig.logged(do.ReportPrepared) == [do.ReportPrepared(ONE, Epoch(1))]
    rig.complete()


def test_credit_for_outputs_lets_an_epoch_end_that_waited_for_it() -> None:
    config = ExecutorConfig(
        shards=4,
        first_chunk_rows=1,
        max_chunk_rows=1,
        window_s=1e-6,
        min_credit_bytes=10,
        output_bytes=10,
    )
    rig = Rig(config, cores=(A,), answers=lambda chunk: (ev.Output(D, "x", 20),))
    rig.send(U, [0] * 5, size=5)
    rig.mark()
    rig.settle()
    assert rig.executor.waiting == 2
    assert kinds(rig.tell(ev.CreditGranted(D, ONE, 100))) == [
        *("Emit", "Emit"),
        *("Dispatch", "Dispatch"),
        "FlushTask",
    ]


# Committing


def test_the_first_marker_of_the_next_epoch_commits() -> None:
    rig = prepared()
    assert rig.mark(U) == [do.CommitStore(A, Epoch(1)), do.CommitStore(B, Epoch(1))]
    assert (rig.executor.epochs.committed, rig.executor.epochs.prepared) == (1, None)
    assert kinds(rig.mark(V)) == ["FlushTask", "FlushTask", "EmitMarker"]


def test_an_epoch_is_committed_when_its_driver_says_so_and_only_once() -> None:
    rig = prepared()
    committed = ev.EpochCommitted(ONE, Epoch(1))
    assert rig.tell(committed) == [do.CommitStore(A, Epoch(1)), do.CommitStore(B, Epoch(1))]
    assert rig.tell(committed) == []
    assert rig.mark(U) == []


def test_epochs_follow_each_other() -> None:
    rig = prepared(3)
    epochs = rig.executor.epochs
    assert (epochs.committed, epochs.prepared, epochs.open) == (2, 3, 4)


# The next attempt


def test_an_attempt_from_the_prepared_epoch_goes_on_without_a_reset_and_commits() -> None:
    rig = prepared()
    out = rig.begin(1)
    two = Attempt(2)
    assert out == [
        do.CommitStore(A, Epoch(1)),
        do.CommitStore(B, Epoch(1)),
        do.ReportReady(two),
    ]
    (chunk,) = of(do.Dispatch, rig.send(U, [0]))
    assert (chunk.attempt, chunk.epoch) == (two, 2)
    rig.end_epoch()
    rig.complete()


def test_an_attempt_that_goes_on_has_fresh_credits_and_its_own_upstreams() -> None:
    rig = Rig(ExecutorConfig(shards=4, min_credit_bytes=100), cores=(A,))
    rig.send(U, [0], size=100)
    rig.end_epoch()
    rig.upstreams = (V,)
    assert kinds(rig.begin(1)) == ["CommitStore", "ReportReady"]
    rig.send(V, [0], size=100)
    assert rig.executor.inside_bytes(V) == 100
    rig.end_epoch()
    rig.complete()


def test_an_attempt_may_skip_epochs() -> None:
    """A batch without input for this operator is never seen here."""
    rig = prepared()
    rig.begin(1, epoch=5)
    rig.send(U, [0])
    rig.end_epoch()
    assert (rig.executor.epochs.committed, rig.executor.epochs.prepared) == (1, 5)


def test_moves_under_way_go_on_over_an_attempt_that_goes_on() -> None:
    rig = prepared()
    rig.ask(S0, T1)
    rig.answer(do.OpenShard)
    assert kinds(rig.begin(1)) == ["CommitStore", "CommitStore", "ReportReady"]
    rig.settle()
    assert rig.owner(S0) == T1


def test_what_was_handed_out_since_the_prepared_epoch_is_rolled_back() -> None:
    rig = prepared()
    rig.send(U, [0])
    assert kinds(rig.begin(1)) == ["ResetTask", "ResetTask"]
    assert rig.answer(do.Dispatch) == []  # comes late, and is refused as such
    assert rig.answer(do.ResetTask) == [
        do.RollBackStore(A, Attempt(2), Epoch(1), (S0, S1)),
        do.RollBackStore(B, Attempt(2), Epoch(1), (S2, S3)),
    ]
    assert rig.answer(do.RollBackStore) == [do.ReportReady(Attempt(2))]


def test_tuples_that_arrived_and_were_not_handed_out_do_not_count_and_are_given_up() -> None:
    rig = prepared()
    rig.ask(S0, T1)
    rig.answer(do.OpenShard)
    rig.answer(do.CopyShard)
    rig.send(U, [0])
    assert rig.executor.waiting == 1
    assert kinds(rig.begin(1)) == ["CommitStore", "CommitStore", "ReportReady"]
    assert rig.executor.waiting == 0
    rig.settle()
    rig.complete()


def test_an_end_of_epoch_that_had_begun_is_rolled_back() -> None:
    for answered in ((), (do.FlushTask,)):
        rig = prepared()
        rig.mark()
        rig.answer(*answered)
        base = rig.executor.epochs.committed
        assert kinds(rig.begin(base)) == ["ResetTask", "ResetTask"]
        rig.settle()
        assert rig.executor.phase is Phase.RUNNING
        rig.ask(S0, T1)
        rig.answer(do.OpenShard)
        assert kinds(rig.answer(do.CopyShard)) == ["SendLabel"]  # no epoch ends any more
        rig.settle()
        rig.end_epoch()


def test_a_prepared_epoch_can_still_be_rolled_back() -> None:
    rig = prepared(2)
    rig.begin(1)
    rig.settle()
    stores = rig.logged(do.RollBackStore)
    assert [(store.node, store.base, store.shards) for store in stores] == [
        (A, 1, (S0, S1)),
        (B, 1, (S2, S3)),
    ]
    epochs = rig.executor.epochs
    assert (epochs.committed, epochs.prepared, epochs.open) == (1, None, 2)
    rig.send(U, [0, 3])
    rig.end_epoch()
    rig.complete()


def test_shards_stay_with_their_owners_over_a_rollback_and_moves_are_given_up() -> None:
    rig = prepared()
    rig.ask(S0, T1)
    rig.answer(do.OpenShard)
    rig.answer(do.CopyShard)
    rig.send(U, [0, 0, 2])
    rig.begin(1)
    assert rig.executor.moves == ()
    rig.settle()  # the label's answer comes late, and is refused as such
    assert rig.owned(T0) == (S0, S1)
    rig.send(U, [0, 1, 2, 3])
    rig.settle()
    rig.complete()


def test_a_base_that_no_store_has_is_restored_from_the_checkpoint() -> None:
    rig = prepared(3)
    rig.begin(1)  # committed is 2, prepared is 3
    out = rig.answer(do.ResetTask)
    assert [store.shards for store in of(do.RollBackStore, out)] == [(), ()]
    out = rig.answer(do.RollBackStore)
    assert of(do.ReportReady, out) == [do.ReportReady(Attempt(2))]
    restores = of(do.RestoreShard, out)
    assert [(one.shard, one.epoch) for one in restores] == [(s, 1) for s in range(4)]
    rig.send(U, [0, 1, 2, 3])
    assert rig.executor.waiting == 4
    rig.answer(do.RestoreShard, times=1)
    assert rig.executor.waiting == 3
    rig.settle()
    assert rig.owner(restores[0].shard) is not None
    rig.end_epoch()
    rig.complete()


def test_an_executor_in_the_place_of_a_lost_one_restores_its_shards() -> None:
    rig = Rig(base=6)
    assert [(one.node, one.epoch) for one in rig.logged(do.RestoreShard)] == [(A, 6)] * 4
    assert None not in rig.executor.table.owners
    assert rig.executor.epochs.open == 7


def test_before_the_first_epoch_there_is_nothing_to_restore() -> None:
    rig = prepared(3)
    rig.begin(0)
    rig.settle()
    assert rig.logged(do.RestoreShard) == []
    assert None not in rig.executor.table.owners


def test_a_newer_attempt_begins_while_the_last_is_still_rolling_back() -> None:
    rig = prepared()
    rig.send(U, [0])
    rig.settle()
    rig.begin(1)
    rig.answer(do.ResetTask, times=1)
    rig.begin(1)
    assert kinds(rig._channel(T0)) == ["ResetTask"]
    assert kinds(rig._channel(T1)) == ["ResetTask", "ResetTask"]
    rig.settle()
    assert rig.logged(do.ReportReady) == [do.ReportReady(Attempt(3))]
