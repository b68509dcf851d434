import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticutor.core.config import ExecutorConfig
from elasticutor.core.ids import ChunkId, NodeId, TaskId
from elasticutor.core.tasks import TaskStatus, TaskView

CONFIG = ExecutorConfig(
    window_s=0.004, chunk_s=0.002, min_chunks=2, first_chunk_rows=16, max_chunk_rows=1000
)


def new_task(row_s: float | None = None) -> TaskView:
    return TaskView(TaskId(0), NodeId("a"), TaskStatus.ACTIVE, slot=1, row_s=row_s)


def hand_over(task: TaskView, rows: int, number: int = 0) -> None:
    task.hand_over(ChunkId(number), [], rows, 0.0)


def filled(task: TaskView, config: ExecutorConfig = CONFIG) -> list[int]:
    """The chunks that fill the task's window when there is no lack of tuples."""
    sizes: list[int] = []
    while rows := task.room(config):
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
    assert new_task(row_s).room(CONFIG) == CONFIG.max_chunk_rows


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
    assert task.room(CONFIG) == 0
    task.answered(0.002)
    assert task.room(CONFIG) == 2


def test_cost_per_tuple_is_measured_at_first_and_smoothed_later() -> None:
    task = new_task()
    hand_over(task, 10)
    task.answered(0.1)
    assert task.row_s == pytest.approx(0.01)
    hand_over(task, 4)
    task.answered(0.08)
    assert task.row_s == pytest.approx(0.01 + 0.3 * (0.02 - 0.01))


def test_chunks_follow_the_measured_cost() -> None:
    task = new_task()
    hand_over(task, 16)
    task.answered(16 * 1e-5)
    assert task.room(CONFIG) == 200
    for _ in range(40):
        hand_over(task, 1)
        task.answered(1e-3)
    assert task.room(CONFIG) == 2


def test_flights_are_answered_in_the_order_of_their_hand_over() -> None:
    task = new_task(1e-3)
    for number, rows in enumerate((3, 5, 7)):
        hand_over(task, rows, number)
    assert task.in_flight_s == pytest.approx(0.015)
    assert [task.answered(0.001 * rows).chunk for rows in (3, 5, 7)] == [0, 1, 2]
    assert (task.in_flight_s, len(task.flights)) == (0.0, 0)


def test_work_in_flight_counts_as_it_was_estimated_at_its_hand_over() -> None:
    task = new_task(1e-3)
    hand_over(task, 1)
    hand_over(task, 3)
    task.answered(0.1)  # dearer than estimated
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
