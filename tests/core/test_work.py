import math
from collections import Counter
from itertools import chain

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticutor.core.executor.batch import Batch, Part
from elasticutor.core.measure.work import WorkDone, WorkLog, require_times
from elasticutor.core.protocol.ids import Peer, TaskId
from elasticutor.errors import BadValueError

SHARDS = 4

Chunk = tuple[int, list[list[int]], float, bool, float]

rows = st.lists(st.integers(0, SHARDS - 1), min_size=1, max_size=8)
seconds = st.floats(0, 10)
chunks = st.lists(
    st.tuples(
        st.integers(0, 2),  # task
        st.lists(rows, min_size=1, max_size=3),  # the shards of each part
        seconds,  # useful time
        st.booleans(),  # whether the time of each tuple is known
        st.floats(0, 50),  # when it arrived
    ),
    min_size=1,
    max_size=12,
)


def floats(*values: float) -> npt.NDArray[np.float64]:
    return np.array(values, dtype=np.float64)


def part(shards: list[int], arrived_at: float = 0.0) -> Part:
    batch = Batch(0, Peer("u"), None, len(shards), 100, arrived_at)
    return Part(batch, np.arange(len(shards)), np.array(shards, dtype=np.int32), len(shards))


def note(
    log: WorkLog,
    shards: list[int],
    useful_s: float,
    row_seconds: npt.NDArray[np.float64] | None = None,
    task: int = 0,
) -> None:
    log.add(TaskId(task), [part(shards)], len(shards), useful_s, row_seconds, 100, 50, 2, 1.0)


def taken(log: WorkLog) -> WorkDone:
    done = log.take()
    assert done is not None
    return done


@given(chunks)
def test_sums_are_those_of_adding_tuple_by_tuple(history: list[Chunk]) -> None:
    log = WorkLog(SHARDS)
    piles_s: dict[int, float] = dict.fromkeys(range(3), 0.0)
    pile_rows: dict[int, int] = dict.fromkeys(range(3), 0)
    for task, shards_of, useful_s, known, arrived_at in history:
        shards = [*chain.from_iterable(shards_of)]
        own = floats(*(useful_s * (row + 1) for row in range(len(shards)))) if known else None
        parts = [part(of, arrived_at) for of in shards_of]
        log.add(TaskId(task), parts, len(shards), useful_s, own, 10, 20, 3, now=50.0)
        piles_s[task] += 0.0 if known else useful_s
        pile_rows[task] += 0 if known else len(shards)
    done = taken(log)

    counts, times, waits = [0] * SHARDS, [0.0] * SHARDS, Counter[float]()
    for task, shards_of, useful_s, known, arrived_at in history:
        for row, shard in enumerate(chain.from_iterable(shards_of)):
            counts[shard] += 1
            times[shard] += useful_s * (row + 1) if known else piles_s[task] / pile_rows[task]
            waits[50.0 - arrived_at] += 1
    assert done.rows.tolist() == counts
    assert done.seconds.tolist() == pytest.approx(times)
    assert done.count == sum(counts)
    assert done.useful_s == pytest.approx(sum(useful_s for _, _, useful_s, _, _ in history))
    number = len(history)
    assert (done.bytes_in, done.bytes_out, done.rows_out) == (10 * number, 20 * number, 3 * number)
    measured = Counter[float]()
    for wait, count in zip(done.waits_s.tolist(), done.wait_counts.tolist(), strict=True):
        measured[wait] += count
    assert measured == waits


def test_time_is_divided_evenly_among_the_tuples_of_a_task_where_single_times_are_unknown() -> None:
    log = WorkLog(SHARDS)
    note(log, [0, 1], 0.2)
    note(log, [1, 1], 0.6)
    assert taken(log).seconds == pytest.approx(floats(0.2, 0.6, 0, 0))


def test_the_time_of_one_task_is_not_divided_among_the_tuples_of_another() -> None:
    log = WorkLog(SHARDS)
    note(log, [0], 1.0, task=0)
    note(log, [1, 2], 0.2, task=1)
    assert taken(log).seconds == pytest.approx(floats(1.0, 0.1, 0.1, 0))


def test_time_is_exact_where_single_times_are_known() -> None:
    log = WorkLog(SHARDS)
    note(log, [3, 0, 3], 9.0, floats(1, 2, 4))
    note(log, [3], 0.5)
    done = taken(log)
    assert done.seconds == pytest.approx(floats(2, 0, 0, 5.5))
    assert done.useful_s == 9.5


def test_nothing_is_counted_twice() -> None:
    log = WorkLog(SHARDS)
    assert log.take() is None
    note(log, [0], 1.0)
    note(log, [1], 1.0, floats(1))
    assert taken(log).count == 2
    assert log.take() is None
    note(log, [2], 0.25)
    done = taken(log)
    assert done.rows.tolist() == [0, 0, 1, 0]
    assert done.seconds.tolist() == [0, 0, 0.25, 0]
    assert (done.count, done.useful_s, done.bytes_in, done.bytes_out, done.rows_out) == (
        1,
        0.25,
        100,
        50,
        2,
    )


def test_it_is_time_to_sum_up_after_64_chunks() -> None:
    log = WorkLog(SHARDS)
    fullness = []
    for _ in range(64):
        fullness.append(log.full)
        note(log, [0], 1.0)
    log.take()
    assert [*fullness, log.full] == [False] * 65
    for _ in range(64):
        note(log, [0], 1.0)
    assert log.full


@pytest.mark.parametrize("useful_s", [-1e-9, math.nan, math.inf, -math.inf])
def test_useful_times_that_cannot_be_are_refused(useful_s: float) -> None:
    with pytest.raises(BadValueError, match="useful time"):
        require_times(useful_s, None, 1)


@pytest.mark.parametrize("times", [floats(), floats(1), floats(1, 2, 3), np.ones((2, 1))])
def test_there_is_one_time_for_each_row(times: npt.NDArray[np.float64]) -> None:
    with pytest.raises(BadValueError, match="time of each row must be an array of 2"):
        require_times(1.0, times, 2)


@pytest.mark.parametrize("wrong", [-1e-9, math.nan, math.inf])
def test_row_times_that_cannot_be_are_refused(wrong: float) -> None:
    with pytest.raises(BadValueError, match="time of each row"):
        require_times(1.0, floats(0.5, wrong), 2)


def test_times_that_can_be_are_taken() -> None:
    require_times(0.0, None, 3)
    require_times(1.0, floats(0.0, 1.0), 2)
