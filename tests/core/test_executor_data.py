from collections.abc import Sequence
from typing import Literal

import numpy as np
import pytest
from tests.core.executor_rig import (
    S1,
    S2,
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
    move_of,
    of,
    processed,
    rows_of,
)

from elasticutor.core.executor.config import ExecutorConfig
from elasticutor.core.executor.executor import Phase
from elasticutor.core.protocol import events as ev
from elasticutor.core.protocol import instructions as do
from elasticutor.core.protocol.ids import Epoch, ShardId

SMALL = ExecutorConfig(shards=4, first_chunk_rows=2, min_credit_bytes=100, max_credit_bytes=100)


def shards_of(chunk: do.Dispatch) -> list[int]:
    return [shard for _, shard, _ in rows_of(chunk)]


def emitted(out: Sequence[do.Instruction]) -> list[tuple[str, object]]:
    return [(one.destination, one.batch) for one in of(do.Emit, out)]


# Beginning


def test_an_executor_is_ready_when_its_tasks_have_forgotten_and_its_stores_gone_back() -> None:
    rig = Rig(cores=(A, B), begin=False)
    assert rig.begin(0) == [do.ResetTask(T0, rig.attempt), do.ResetTask(T1, rig.attempt)]
    assert rig.answer(do.ResetTask, times=1) == []
    assert rig.answer(do.ResetTask) == [
        do.RollBackStore(node, rig.attempt, Epoch(0), ()) for node in (A, B)
    ]
    assert rig.answer(do.RollBackStore, times=1) == []
    assert rig.answer(do.RollBackStore) == [do.ReportReady(rig.attempt)]
    assert rig.executor.phase is Phase.RUNNING


@pytest.mark.parametrize("cores", [1, 2, 3])
def test_at_the_start_shards_are_dealt_out_evenly(cores: int) -> None:
    rig = Rig(ExecutorConfig(shards=12), cores=(A,) * cores)
    assert [len(rig.owned(task)) for task in rig.executor.tasks] == [12 // cores] * cores


def test_what_comes_before_the_executor_is_ready_is_not_taken_in() -> None:
    rig = Rig(begin=False)
    rig.begin(0)
    assert rig.tell(rig.batch(U, [0, 1])) == []
    assert rig.executor.inside_bytes(U) == 0
    rig.settle()
    rig.complete()


# From upstreams to tasks


def test_tuples_go_to_the_owners_of_their_shards_in_order() -> None:
    rig = Rig()
    rig.place(t0=[0, 1], t1=[2, 3])
    out = rig.send(U, [3, 0, 2, 3, 1, 0])
    assert kinds(out) == ["Dispatch", "Dispatch"]
    one, other = of(do.Dispatch, out)
    assert (one.task, shards_of(one)) == (T0, [0, 1, 0])
    assert (other.task, shards_of(other)) == (T1, [3, 2, 3])
    assert [serial for _, _, serial in rows_of(one)] == [1, 4, 5]
    rig.settle()
    rig.complete()


def test_the_batch_is_handed_on_as_it_is() -> None:
    rig = Rig(cores=(A,))
    content = object()
    shards = np.array([2, 1], dtype=np.int32)
    (chunk,) = of(do.Dispatch, rig.tell(ev.TuplesArrived(U, rig.attempt, content, shards, size=10)))
    assert chunk.parts[0].batch.content is content
    assert chunk.parts[0].rows.tolist() == [0, 1]


def test_only_a_small_window_is_handed_to_a_task_and_the_rest_waits() -> None:
    """Binding is late: what waits here can still be routed elsewhere."""
    rig = Rig(SMALL, cores=(A,))
    out = rig.send(U, [0] * 9)
    assert [shards_of(chunk) for chunk in of(do.Dispatch, out)] == [[0, 0], [0, 0]]
    assert rig.executor.waiting == 5
    rig.answer(do.Dispatch, times=1)  # 1 ms for each tuple: 4 ms of work may be ahead of time
    assert [len(rows_of(chunk)) for chunk in rig.unanswered(do.Dispatch)] == [2, 2, 2]
    rig.settle()
    rig.complete()


def test_an_answer_refills_the_window_with_chunks_of_the_measured_size() -> None:
    rig = Rig(
        ExecutorConfig(shards=4, first_chunk_rows=2, bulk_s=1e-3), cores=(A,), row_s={0: 1e-4}
    )
    rig.send(U, [0] * 400)
    out = rig.answer(do.Dispatch, times=1)
    assert [len(rows_of(chunk)) for chunk in of(do.Dispatch, out)] == [20, 20]


def test_tuples_of_different_upstreams_share_chunks_where_outputs_are_forwarded() -> None:
    rig = Rig(SMALL, cores=(A,), upstreams=(U, V))
    rig.send(U, [0] * 4)
    rig.send(U, [0])
    rig.send(V, [0])
    (chunk,) = of(do.Dispatch, rig.answer(do.Dispatch, times=1))
    assert [upstream for upstream, _, _ in rows_of(chunk)] == [U, V]


def test_a_chunk_is_of_one_upstream_where_outputs_are_returned() -> None:
    config = ExecutorConfig(shards=4, first_chunk_rows=2, outputs="return")
    rig = Rig(config, cores=(A,), upstreams=(U, V))
    rig.send(U, [0] * 4)
    rig.send(U, [0])
    rig.send(V, [0])
    rig.answer(do.Dispatch, times=2)
    chunks = rig.unanswered(do.Dispatch)
    assert [[upstream for upstream, _, _ in rows_of(chunk)] for chunk in chunks] == [[U], [V]]


# Credit


def test_what_is_processed_is_given_back_as_credit() -> None:
    rig = Rig(SMALL, cores=(A,))
    rig.send(U, [0] * 4, size=100)
    assert rig.executor.inside_bytes(U) == 100
    assert of(do.GrantCredit, rig.answer(do.Dispatch, times=1)) == [
        do.GrantCredit(U, rig.attempt, 150)
    ]
    assert rig.executor.inside_bytes(U) == 50
    assert of(do.GrantCredit, rig.settle()) == [do.GrantCredit(U, rig.attempt, 200)]
    assert rig.executor.inside_bytes(U) == 0


def test_credit_goes_to_the_upstream_whose_tuples_were_processed() -> None:
    rig = Rig(SMALL, cores=(A,), upstreams=(U, V))
    rig.send(U, [0], size=60)
    rig.send(V, [0], size=90)
    assert of(do.GrantCredit, rig.settle()) == [
        do.GrantCredit(U, rig.attempt, 160),
        do.GrantCredit(V, rig.attempt, 190),
    ]


def test_bytes_of_a_batch_come_back_exactly_however_it_is_cut() -> None:
    rig = Rig(ExecutorConfig(shards=4, first_chunk_rows=2, max_chunk_rows=2))
    rig.send(U, [0, 1, 2, 3, 3, 1, 0], size=1001)
    rig.settle()
    assert rig.executor.inside_bytes(U) == 0
    assert rig.executor.measure(rig.now).bytes_in == 1001


@pytest.mark.parametrize(
    ("row_s", "limit"),
    [
        (1e-3, 8_000),  # 20 ms for each of two cores: 40 tuples of 200 bytes
        (1e-6, 50_000),
        (1.0, 500),
    ],
)
def test_credit_is_so_much_time_of_work_for_each_core_within_bounds(
    row_s: float, limit: int
) -> None:
    config = ExecutorConfig(shards=4, min_credit_bytes=500, max_credit_bytes=50_000)
    rig = Rig(config, row_s={0: row_s})
    rig.send(U, [0] * 16, size=16 * 200)
    (grant,) = of(do.GrantCredit, rig.settle())
    assert grant.total == pytest.approx(16 * 200 + limit, abs=1)


def test_a_batch_without_tuples_costs_no_credit() -> None:
    rig = Rig(SMALL)
    assert rig.send(U, [], size=80) == [do.GrantCredit(U, rig.attempt, 180)]
    assert rig.executor.inside_bytes(U) == 0


# Outputs


def outputs_of(*outputs: ev.Output) -> Rig:
    """A rig whose every chunk puts these out."""
    config = ExecutorConfig(
        shards=4,
        first_chunk_rows=1,
        max_chunk_rows=1,
        window_s=0.001,
        min_credit_bytes=100,
        output_bytes=100,
    )
    return Rig(config, cores=(A,), destinations=(D, E), answers=lambda chunk: outputs)


def test_outputs_are_sent_on_in_order() -> None:
    rig = outputs_of(ev.Output(D, "first", 10), ev.Output(E, "other", 10), ev.Output(D, "next", 10))
    rig.send(U, [0])
    out = rig.settle()
    assert emitted(out) == [("d", "first"), ("d", "next"), ("e", "other")]
    assert of(do.Emit, out)[0] == do.Emit(D, rig.attempt, "first", 10)


def test_outputs_wait_for_credit() -> None:
    rig = outputs_of(ev.Output(D, "big", 100), ev.Output(E, "small", 1))
    rig.send(U, [0])
    assert emitted(rig.settle()) == [("d", "big"), ("e", "small")]
    rig.send(U, [0])
    assert emitted(rig.settle()) == [("e", "small")]
    assert rig.executor.buffered_bytes(U) == 100
    assert rig.tell(ev.CreditGranted(D, rig.attempt, 100)) == []
    assert emitted(rig.tell(ev.CreditGranted(D, rig.attempt, 101))) == [("d", "big")]
    assert rig.executor.buffered_bytes(U) == 0


def test_too_much_waiting_to_be_sent_on_stops_processing_until_it_is_taken() -> None:
    rig = outputs_of(ev.Output(D, "x", 60))
    rig.send(U, [0] * 20)
    rig.settle()
    # Two were sent by the first credit of 100; two more fill the buffer of 100, and what was in
    # the window by then still comes out.
    waiting = rig.executor.waiting
    assert waiting > 10
    assert rig.executor.buffered_bytes(U) == 180
    out = rig.tell(ev.CreditGranted(D, rig.attempt, 121))
    assert emitted(out) == [("d", "x")]
    assert rig.executor.waiting == waiting  # 120 wait, still more than 100
    out = rig.tell(ev.CreditGranted(D, rig.attempt, 10**6))
    assert kinds(out)[:3] == ["Emit", "Emit", "Dispatch"]
    rig.settle()
    rig.complete()


def test_an_upstream_that_does_not_take_its_outputs_does_not_stop_another() -> None:
    config = ExecutorConfig(
        shards=4,
        outputs="return",
        first_chunk_rows=1,
        max_chunk_rows=1,
        window_s=0.001,
        min_credit_bytes=100,
        output_bytes=100,
    )
    rig = Rig(config, cores=(A,), upstreams=(U, V), answers=back_to_sender(30))
    rig.send(U, [0] * 20)
    rig.settle()
    stuck = rig.executor.waiting
    assert stuck > 10
    assert rig.executor.buffered_bytes(U) > 100
    assert rig.executor.buffered_bytes(V) == 0

    rig.send(V, [0, 0])
    assert [destination for destination, _ in emitted(rig.settle())] == ["v", "v"]
    rig.send(U, [0])
    assert rig.executor.waiting == stuck + 1

    # It goes on when half of the limit is reached, and not before.
    for total, left in ((121, 120), (151, 90), (181, 60)):
        assert kinds(rig.tell(ev.CreditGranted(U, rig.attempt, total))) == ["Emit"]
        assert rig.executor.buffered_bytes(U) == left
    out = rig.tell(ev.CreditGranted(U, rig.attempt, 211))
    assert kinds(out) == ["Emit", "Dispatch", "Dispatch"]
    assert rig.executor.buffered_bytes(U) == 30
    rig.tell(ev.CreditGranted(U, rig.attempt, 10**6))
    rig.settle()
    rig.complete()


def test_returned_outputs_go_to_the_upstream_that_caused_them() -> None:
    config = ExecutorConfig(shards=4, outputs="return")
    rig = Rig(config, upstreams=(U, V), destinations=(), answers=back_to_sender(5))
    rig.send(U, [0])
    rig.send(V, [1])
    rig.send(U, [2])
    assert sorted(destination for destination, _ in emitted(rig.settle())) == ["u", "u", "v"]


# Measurements


def test_rates_costs_and_latency_come_out_of_measure() -> None:
    rig = Rig()
    rig.place(t0=[0, 1], t1=[2, 3])
    rig.executor.measure(0.0)
    out = rig.send(U, [0, 0, 1, 3], size=400, after=1.0)
    one, other = of(do.Dispatch, out)
    rig.tell(processed(one, 0.3, (ev.Output(D, "x", 50, rows=2),)), after=0.5)
    rig.tell(processed(other, 0.7, (), np.array([0.7])), after=0.5)
    rig.tell(ev.StateMeasured(A, 1234))
    metrics = rig.executor.measure(4.0)

    assert (metrics.seconds, metrics.cores) == (4.0, 2.0)
    assert (metrics.rows_arrived, metrics.bytes_arrived, metrics.rows_processed) == (4, 400, 4)
    assert metrics.arrival_rate == 1.0
    assert metrics.service_rate == pytest.approx(4 / 1.0)
    assert (metrics.rows_out, metrics.bytes_in, metrics.bytes_out) == (2, 400, 50)
    assert metrics.state_bytes == 1234
    assert metrics.shard_rows.tolist() == [2, 1, 0, 1]
    assert metrics.shard_seconds.tolist() == pytest.approx([0.2, 0.1, 0, 0.7])
    assert metrics.latency.count == 4
    assert metrics.latency.percentile_s(50) == pytest.approx(0.5, rel=0.01)
    assert metrics.latency.percentile_s(99) == pytest.approx(1.0, rel=0.01)


def test_what_was_measured_is_not_measured_again() -> None:
    rig = Rig(row_s={0: 0.1})
    rig.send(U, [0])
    rig.settle()
    assert rig.executor.measure(1.0).rows_processed == 1
    again = rig.executor.measure(2.0)
    assert (again.seconds, again.rows_arrived, again.rows_processed, again.useful_s) == (1, 0, 0, 0)
    assert again.latency.count == 0


def test_a_backlog_is_what_has_arrived_and_is_not_processed() -> None:
    """What waits, what tasks have been handed, and what an upstream has sent ahead."""
    rig = Rig(SMALL, cores=(A,), upstreams=(U, V))
    assert rig.executor.inside_rows == 0
    rig.send(U, [0] * 9)
    assert (rig.executor.waiting, rig.executor.inside_rows) == (5, 9)
    assert rig.executor.measure(0.0).backlog_rows == 9
    rig.answer(do.Dispatch, times=1, after=0.1)
    assert rig.executor.inside_rows == 7
    assert rig.executor.measure(rig.now).backlog_rows == 7
    rig.mark(V)
    rig.send(V, [1, 2])
    assert rig.executor.inside_rows == 7  # of the open epoch
    assert rig.executor.measure(rig.now).backlog_rows == 9
    rig.mark(U)
    rig.settle()
    assert rig.executor.inside_rows == 0
    assert rig.executor.measure(rig.now).backlog_rows == 0


def test_a_new_attempt_begins_without_a_backlog() -> None:
    rig = Rig(SMALL, cores=(A,))
    rig.send(U, [0] * 9)
    rig.begin(0)
    assert rig.executor.inside_rows == 0
    assert rig.executor.measure(1.0).backlog_rows == 0


def test_the_load_of_every_shard_is_its_work_and_its_backlog_and_tasks_have_their_sum() -> None:
    config = ExecutorConfig(shards=4, first_chunk_rows=1, max_chunk_rows=1, window_s=0.001)
    rig = Rig(config, row_s={0: 0.02, 3: 0.01})
    rig.place(t0=[0, 1], t1=[2, 3])
    assert rig.executor.shard_loads().tolist() == [0.0] * 4
    rig.send(U, [0, 0, 3])
    rig.settle()
    rig.now = 0.1
    rig.executor.measure(rig.now)  # ends the interval
    assert rig.executor.shard_loads() == pytest.approx([0.4, 0, 0, 0.1])
    rig.send(U, [3] * 5)
    waiting = 5 * 0.01 / config.backlog_horizon_s
    loads = rig.executor.shard_loads()
    assert loads == pytest.approx([0.4, 0, 0, 0.1 + waiting])
    tasks = rig.executor.task_loads()
    assert [tasks[T0], tasks[T1]] == pytest.approx([loads[0], loads[3]])


def test_work_is_summed_up_every_so_often_without_being_asked_for() -> None:
    rig = Rig(ExecutorConfig(shards=4, first_chunk_rows=1, max_chunk_rows=1))
    rig.send(U, [0, 1, 2, 3] * 50)
    rig.settle()
    assert not rig.executor._data._work.full
    assert rig.executor.measure(1.0).shard_rows.tolist() == [50, 50, 50, 50]


def test_state_is_summed_over_the_nodes() -> None:
    rig = Rig(cores=(A, B))
    rig.tell(ev.StateMeasured(A, 100))
    rig.tell(ev.StateMeasured(B, 20))
    rig.tell(ev.StateMeasured(A, 50))
    assert rig.executor.measure(1.0).state_bytes == 70


def test_the_executor_says_what_it_waits_for() -> None:
    rig = Rig()
    rig.place(t0=[0, 1], t1=[2, 3])
    rig.send(U, [0])
    rig.ask(S2, T0)
    words = rig.executor.waiting_for()
    assert words[0] == "running, attempt 1, epoch 1"
    assert "1 chunks from task 0" in words
    assert f"move {move_of(rig, S2)} of shard 2 (draining)" in words
    assert words[-1] == "markers from ['u']"


def test_chunks_shrink_when_no_more_of_the_epoch_comes_and_not_before() -> None:
    config = ExecutorConfig(
        shards=2, outputs="return", chunk_s=0.1, window_s=0.001, first_chunk_rows=4, min_chunks=1
    )
    rig = Rig(config, cores=(A, A), row_s={0: 1e-3, 1: 1e-3})

    def sizes() -> list[int]:
        chunks = rig.logged(do.Dispatch)
        return [sum(part.count for part in chunk.parts) for chunk in chunks]

    rig.send(U, [0] * 504 + [1] * 504)
    rig.answer(do.Dispatch, times=2)  # now it is known what a tuple costs
    assert sizes() == [4, 4, 100, 100]
    rig.mark()
    rig.settle()
    later = sizes()[4:]
    assert later[0] == 100
    assert all(earlier >= size for earlier, size in zip(later, later[4:], strict=False))
    assert later[-1] <= 2
    assert sum(sizes()) == 1008


def test_near_the_end_of_a_batch_little_is_handed_out_ahead() -> None:
    config = ExecutorConfig(
        shards=2, outputs="return", chunk_s=0.05, window_s=0.1, first_chunk_rows=4
    )
    rig = Rig(config, cores=(A, A), row_s={0: 1e-3, 1: 1e-3})
    rig.send(U, [0] * 1000 + [1] * 1000)
    rig.answer(do.Dispatch, times=4)
    rig.mark()
    while rig.executor.waiting:
        left = rig.executor.waiting
        rig.answer(do.Dispatch, times=1)
        for task in rig.executor.tasks.values():
            # Two chunks of half of a task's share, or what was handed out before.
            assert len(task.flights) <= 2 or task.in_flight_s <= max(0.004, left * 1e-3 / 2)
    assert {len(task.flights) for task in rig.executor.tasks.values()} <= {0, 1, 2}


UNEVEN = {0: 500, 1: 60, 2: 450, 3: 10}  # 560 against 460: 10 % above the mean, below θ


def uneven_end(outputs: Literal["forward", "return"], *, marked: bool) -> Rig:
    """Two tasks whose shards have so many tuples of 1 ms left."""
    config = ExecutorConfig(shards=4, outputs=outputs, first_chunk_rows=4, min_credit_bytes=1 << 20)
    rig = Rig(config, cores=(A, A), row_s=dict.fromkeys(range(4), 1e-3))
    rig.place(t0=[0, 1], t1=[2, 3])
    rig.send(U, [shard for shard, rows in UNEVEN.items() for _ in range(rows)])
    rig.answer(do.Dispatch, times=4)
    if marked:
        rig.mark()
    rig.tell(ev.BalanceDue(), after=0.1)
    return rig


def rig_moves(rig: Rig) -> list[ShardId]:
    return [move.shard for move in rig.executor.moves]


def test_what_is_left_of_a_batch_is_evened_out_so_that_all_tasks_end_together() -> None:
    rig = uneven_end("return", marked=True)
    assert rig_moves(rig) == [S1]
    rig.settle()
    assert rig.executor.waiting == 0


@pytest.mark.parametrize(("outputs", "marked"), [("return", False), ("forward", True)])
def test_where_more_comes_a_load_below_the_threshold_stays_as_it_is(
    outputs: Literal["forward", "return"], marked: bool
) -> None:
    assert not rig_moves(uneven_end(outputs, marked=marked))
