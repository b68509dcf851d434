import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticutor.core.executor.batch import Batch, Part
from elasticutor.core.executor.config import ExecutorConfig
from elasticutor.core.executor.tasks import TaskStatus, TaskView
from elasticutor.core.protocol.ids import ChunkId, NodeId, Peer, ShardId, TaskId

CONFIG = ExecutorConfig(
    window_s=0.004, chunk_s=0.002, min_chunks=2, first_chunk_rows=16, max_chunk_rows=1000
)


def room(task: TaskView, config: ExecutorConfig, share: int | None = None, backlog: int = 0) -> int:
    """How many tuples it is given now."""
    return 0 if task.full(config) else task.next_rows(config, share, backlog)


def new_task(row_s: float | None = None) -> TaskView:
    return TaskView(TaskId(0), NodeId("a"), TaskStatus.ACTIVE, slot=1, row_s=row_s)


def hand_over(task: TaskView, rows: int, number: int = 0) -> None:
    task.hand_over(ChunkId(number), [], rows, 0.0)


def answered(task: TaskView, useful_s: float) -> None:
    """All that is left of the oldest chunk is processed."""
    task.answered(task.flights[0].rows, useful_s)


def filled(task: TaskView, config: ExecutorConfig = CONFIG) -> list[int]:
    """The chunks that fill the task's window when there is no lack of tuples."""
    sizes: list[int] = []
    while rows := room(task, config):
        hand_over(task, rows, len(sizes))
        sizes.append(rows)
    return sizes


def test_before_anything_is_measured_a_task_gets_the_least_number_of_first_chunks() -> None:
    assert filled(new_task()) == [16, 16]


def test_first_chunks_are_not_larger_than_the_largest() -> None:
    assert filled(new_task(), ExecutorConfig(first_chunk_rows=50, max_chunk_rows=20)) == [20, 20]


@pytest.mark.parametrize(
    ("row_s", "sizes"),
    [
        (1e-5, [200, 200]),
        (1e-3, [2, 2]),
        (0.002, [1, 1]),
        (0.5, [1, 1]),  # dear, and still two ahead of time
    ],
)
def test_chunks_are_big_when_work_is_cheap_and_small_when_it_is_dear(
    row_s: float, sizes: list[int]
) -> None:
    assert filled(new_task(row_s)) == sizes


@pytest.mark.parametrize("row_s", [0.0, 5e-324, 1e-7, 2e-6])
def test_chunks_of_next_to_no_work_are_as_big_as_they_may_be(row_s: float) -> None:
    assert room(new_task(row_s), CONFIG) == CONFIG.max_chunk_rows


@given(st.floats(1e-5, 10), st.integers(1, 5))
def test_the_window_is_a_few_milliseconds_of_work_and_never_fewer_than_the_least_chunks(
    row_s: float, min_chunks: int
) -> None:
    config = ExecutorConfig(min_chunks=min_chunks, max_chunk_rows=1000)
    task = new_task(row_s)
    sizes = filled(task, config)
    assert len(sizes) >= min_chunks
    before_last = sum(sizes[:-1]) * row_s
    assert len(sizes) == min_chunks or before_last < config.window_s
    assert sum(sizes) * row_s == pytest.approx(task.in_flight_s)
    assert task.full(config)
    assert all(rows == 1 or rows * row_s <= config.chunk_s * 1.0000001 for rows in sizes)


@pytest.mark.parametrize("row_s", [0.0, 1e-9])
def test_next_to_no_work_is_bounded_in_chunks_where_time_does_not_bound_it(row_s: float) -> None:
    config = ExecutorConfig(max_chunks=5, max_chunk_rows=1000)
    assert filled(new_task(row_s), config) == [1000] * 5


def test_an_answer_makes_room_for_the_next_chunk() -> None:
    task = new_task(1e-3)
    filled(task)
    assert room(task, CONFIG) == 0
    answered(task, 0.002)
    assert room(task, CONFIG) == 2


def test_cost_per_tuple_is_measured_at_first_and_smoothed_later() -> None:
    task = new_task()
    hand_over(task, 10)
    answered(task, 0.1)
    assert task.row_s == pytest.approx(0.01)
    hand_over(task, 4)
    answered(task, 0.08)
    assert task.row_s == pytest.approx(0.01 + 0.3 * (0.02 - 0.01))


def test_chunks_follow_the_measured_cost() -> None:
    task = new_task()
    hand_over(task, 16)
    answered(task, 16 * 1e-5)
    assert room(task, CONFIG) == 200
    for _ in range(40):
        hand_over(task, 1)
        answered(task, 1e-3)
    assert room(task, CONFIG) == 2


def test_flights_are_answered_in_the_order_of_their_hand_over() -> None:
    task = new_task(1e-3)
    for number, rows in enumerate((3, 5, 7)):
        hand_over(task, rows, number)
    assert task.in_flight_s == pytest.approx(0.015)
    for number, rows in enumerate((3, 5, 7)):
        assert task.flights[0].chunk == number
        answered(task, 0.001 * rows)
    assert (task.in_flight_s, len(task.flights)) == (0.0, 0)


def test_work_in_flight_counts_as_it_was_estimated_at_its_hand_over() -> None:
    task = new_task(1e-3)
    hand_over(task, 1)
    hand_over(task, 3)
    answered(task, 0.1)  # dearer than estimated
    assert task.in_flight_s == pytest.approx(0.003)


def test_forgotten_flights_leave_the_window_empty_and_the_measured_cost_as_it_was() -> None:
    task = new_task(1e-3)
    filled(task)
    task.forget_flights()
    assert (len(task.flights), task.in_flight_s, task.row_s) == (0, 0.0, 1e-3)


@pytest.mark.parametrize(
    ("status", "running", "staying"),
    [
        (TaskStatus.STARTING, False, False),
        (TaskStatus.ACTIVE, True, True),
        (TaskStatus.LEAVING, True, False),
    ],
)
def test_a_leaving_task_runs_and_does_not_stay(
    status: TaskStatus, running: bool, staying: bool
) -> None:
    task = TaskView(TaskId(0), NodeId("a"), status)
    assert (task.running, task.staying) == (running, staying)


def test_the_first_tuples_of_a_chunk_can_be_answered_before_the_others() -> None:
    task = new_task(1e-3)
    batch = Batch(0, Peer("u"), None, 5, 50, 0.0)
    parts = [part_of(batch, [0, 1, 2], [7, 8, 7]), part_of(batch, [3, 4], [8, 7])]
    task.hand_over(ChunkId(0), parts, 5, 0.0)
    first = task.answered(4, 0.004)
    assert [part.rows.tolist() for part in first] == [[0, 1, 2], [3]]
    (flight,) = task.flights
    assert ([part.rows.tolist() for part in flight.parts], flight.rows) == ([[4]], 1)
    assert task.in_flight_s == pytest.approx(0.001)
    assert [part.rows.tolist() for part in task.answered(1, 0.001)] == [[4]]
    assert (len(task.flights), task.in_flight_s) == (0, 0.0)


def test_a_shard_is_given_back_out_of_all_chunks_in_order_and_the_others_stay() -> None:
    task = new_task(1e-3)
    batch = Batch(0, Peer("u"), None, 6, 60, 0.0)
    chunks = [([0, 1], [7, 8]), ([2, 3], [7, 7]), ([4, 5], [8, 8])]
    for number, (rows, shards) in enumerate(chunks):
        task.hand_over(ChunkId(number), [part_of(batch, rows, shards)], 2, 0.0)
    assert task.unanswered(ShardId(7)) == 3
    assert [part.rows.tolist() for part in task.give_back(ShardId(7))] == [[0], [2, 3]]
    assert [(flight.chunk, flight.rows) for flight in task.flights] == [(0, 1), (2, 2)]
    assert task.in_flight_s == pytest.approx(0.003)
    assert task.unanswered(ShardId(7)) == 0


def part_of(batch: Batch, rows: list[int], shards: list[int]) -> Part:
    return Part(batch, np.array(rows), np.array(shards, np.int32), len(rows))


def test_chunks_of_cheap_tuples_are_larger_and_so_is_their_window() -> None:
    config = ExecutorConfig(chunk_s=0.001, window_s=0.002, bulk_s=0.004, bulk_rows=64)
    dear, cheap = new_task(0.001 / 63), new_task(0.001 / 64)
    assert room(dear, config) == 63
    assert room(cheap, config) == 256
    assert dear.window_s(config) == 0.002
    assert cheap.window_s(config) == 0.008


def test_chunks_of_cheap_tuples_are_never_smaller_than_others() -> None:
    config = ExecutorConfig(chunk_s=0.01, window_s=0.02, bulk_s=0.001)
    assert room(new_task(1e-4), config) == 100
    assert new_task(1e-4).window_s(config) == 0.02


def test_chunks_shrink_to_a_share_of_what_is_left_of_an_epoch() -> None:
    task = new_task(1e-3)
    config = ExecutorConfig(chunk_s=0.05, window_s=0.1)
    assert room(task, config) == 50
    assert room(task, config, 1000) == 50
    assert room(task, config, 20) == 20


def test_chunks_never_shrink_below_what_a_chunk_itself_costs() -> None:
    config = ExecutorConfig(chunk_s=0.05, window_s=0.1)
    assert room(new_task(1e-3), config, 1) == 2
    assert room(new_task(1e-6), config, 100) == 2000
    assert room(new_task(0.5), config, 1) == 1
    assert room(new_task(1e-3), ExecutorConfig(chunk_s=0.001, window_s=0.1), 1) == 1


def test_chunks_are_short_while_a_shard_is_about_to_leave() -> None:
    config = ExecutorConfig(chunk_s=0.05, window_s=0.1, moving_chunk_s=0.001)
    task = new_task(1e-4)
    assert room(task, config) == 500
    task.departures = 1
    assert room(task, config) == 10


def test_chunks_grow_with_a_backlog_and_shrink_with_it() -> None:
    config = ExecutorConfig(chunk_s=0.001, window_s=0.002, bulk_s=0.004)
    task = new_task(0.001)
    assert [room(task, config, backlog=rows) for rows in (1, 4, 5, 12, 1000)] == [1, 1, 1, 3, 8]


def test_chunks_do_not_grow_while_a_shard_is_about_to_leave() -> None:
    config = ExecutorConfig(chunk_s=0.001, window_s=0.002, bulk_s=0.004)
    task = new_task(0.001)
    task.departures = 1
    assert room(task, config, backlog=1000) == 1
