"""Sources: replayable, on schedule, and distributed as they say."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

import cloudpickle
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elasticutor.errors import BadValueError
from elasticutor.sources import BLOCK_ROWS, Generator, HotKey, IterableSource, Offer, Reader

START = 1_700_000_000.0


def offered(reader: Reader, sizes: Sequence[int], now: float = START) -> list[Offer]:
    """All offers until the reader is exhausted, asked for in these sizes, over and over."""
    offers: list[Offer] = []
    while not reader.exhausted:
        offer = reader.poll(now, sizes[len(offers) % len(sizes)])
        assert offer is not None
        assert 0 < offer.batch.num_rows <= sizes[len(offers) % len(sizes)]
        offers.append(offer)
    return offers


def joined(offers: Sequence[Offer]) -> pa.Table:
    return pa.Table.from_batches([offer.batch for offer in offers]).combine_chunks()


def keys_of(generator: Generator, stop: int, start: int = 0) -> np.ndarray[Any, Any]:
    keys: np.ndarray[Any, Any] = generator.table(0, 1, start, stop).column("key").to_numpy()
    return keys


@settings(max_examples=25)
@given(
    sizes=st.lists(st.integers(1, 3 * BLOCK_ROWS), min_size=1, max_size=4),
    stops=st.integers(0, 5),
    tasks=st.integers(1, 3),
    payload=st.sampled_from([0, 5, 3000]),
    shuffle_rows=st.sampled_from([None, 1_000]),
    hot=st.sampled_from([None, HotKey(0.3, 0.004)]),
)
def test_a_replay_gives_the_same_tuples_however_they_are_asked_for(
    sizes: list[int],
    stops: int,
    tasks: int,
    payload: int,
    shuffle_rows: int | None,
    hot: HotKey | None,
) -> None:
    rows = 2 * BLOCK_ROWS + 17
    generator = Generator(
        keys=50, payload=payload, rows=rows, shuffle_rows=shuffle_rows, hot=hot, seed=3
    )
    task = tasks - 1
    expected = generator.table(task, tasks, 0, rows)
    assert expected.num_rows == generator.count(task, tasks)
    reader = generator.open(task, tasks, None)
    given_out = []
    for size in sizes[:stops]:
        if not reader.exhausted:
            offer = reader.poll(START, size)
            assert offer is not None
            given_out.append(offer)
    again = generator.open(task, tasks, pickle.loads(pickle.dumps(reader.offset)))  # noqa: S301
    given_out += offered(again, [*sizes, 5_000])
    assert joined(given_out).to_batches() == [expected]


def test_any_part_of_a_stream_can_be_asked_for_by_itself() -> None:
    generator = Generator(keys=10, payload=4, shuffle_rows=700)
    whole = generator.table(1, 2, 0, 3 * BLOCK_ROWS)
    for start, stop in ((0, 1), (5, 900), (BLOCK_ROWS - 1, BLOCK_ROWS + 1), (17, 2 * BLOCK_ROWS)):
        part = generator.table(1, 2, start, stop)
        assert part.equals(whole.slice(start, stop - start))
    assert generator.table(0, 1, 7, 7).num_rows == 0
    assert Generator(rows=5).table(0, 1, 3, 99).num_rows == 2


def test_streams_of_other_seeds_tasks_and_blocks_are_others() -> None:
    streams = [keys_of(Generator(seed=seed), 1000).tolist() for seed in (0, 1)]
    streams.append(Generator().table(1, 2, 0, 1000).column("key").to_pylist())
    streams.append(keys_of(Generator(), BLOCK_ROWS + 1000, BLOCK_ROWS).tolist())
    for one, stream in enumerate(streams):
        assert all(stream != other for other in streams[:one])


def test_the_tuples_of_a_seed_never_change() -> None:
    # Benchmarks of different versions are compared under the same load.
    generator = Generator(rate=1000, keys=100, payload=2, omega=60_000, seed=7)
    rows = generator.table(0, 1, 0, 3).to_pylist()
    shown = [(row["key"], row["time"], row["payload"].hex()) for row in rows]
    assert shown == [(69, 0, "1cb2"), (48, 1000, "0448"), (78, 2000, "770f")]


@pytest.mark.parametrize("zipf", [0.0, 0.5, 1.0, 2.5])
@pytest.mark.parametrize("keys", [1, 7, 1000])
def test_keys_are_as_frequent_as_zipf_says(zipf: float, keys: int) -> None:
    rows = 200_000
    generator = Generator(keys=keys, zipf=zipf, payload=0, seed=1)
    counts = np.bincount(keys_of(generator, rows), minlength=keys)[generator.ranking()]
    weights = np.arange(1, keys + 1) ** -zipf
    expected = rows * weights / weights.sum()
    # Rare ranks are taken together, ten or more expected in each group, for Pearson's test.
    groups = np.minimum(np.cumsum(expected) // 10, np.sum(expected) // 10 - 1).astype(int)
    seen, due = np.bincount(groups, counts), np.bincount(groups, expected)
    seen, due = seen[due > 0], due[due > 0]
    freedom = max(1, len(due) - 1)
    assert np.sum((seen - due) ** 2 / due) < freedom + 5 * np.sqrt(2 * freedom)


@pytest.mark.parametrize(("zipf", "keys"), [(0.0, 3), (0.5, 10_000), (3.0, 5_000)])
def test_the_fast_way_to_a_rank_is_the_binary_search_to_the_bit(zipf: float, keys: int) -> None:
    from elasticutor.sources.generating import _Ranks

    ranks = _Ranks(keys, zipf)
    edges = ranks._upto[:-1]
    hard = np.concatenate([edges, np.nextafter(edges, 0), np.nextafter(edges, 1)])
    uniform = np.concatenate([hard[hard < 1], [0.0, np.nextafter(1, 0)], np.arange(999) / 999])
    assert np.array_equal(ranks.at(uniform), np.searchsorted(ranks._upto, uniform, side="right"))
    assert ranks.at(uniform).max() == keys - 1


def test_a_shuffle_deals_the_frequencies_out_anew_when_its_time_has_come() -> None:
    # Two shuffles per minute at 100 tuples per second: one every 3,000 tuples.
    generator = Generator(rate=100, keys=1000, zipf=8.0, payload=0, omega=2)
    keys = keys_of(generator, 9_000).reshape(3, 3_000)
    for shuffle in range(3):
        values, counts = np.unique(keys[shuffle], return_counts=True)
        assert values[counts.argmax()] == generator.ranking(shuffle)[0]
        assert counts.max() > 2_900
    assert sorted(generator.ranking(1)) == list(range(1000))
    assert len({int(generator.ranking(shuffle)[0]) for shuffle in range(3)}) == 3


def test_all_tasks_shuffle_together_by_rows_where_there_is_no_rate() -> None:
    generator = Generator(keys=1000, zipf=30.0, payload=0, shuffle_rows=100)
    for task in range(2):
        keys = generator.table(task, 2, 0, 100).column("key").to_pylist()
        assert keys[:50] == [generator.ranking(0)[0]] * 50
        assert keys[50:] == [generator.ranking(1)[0]] * 50


def test_a_hot_key_takes_its_share_and_then_another_does() -> None:
    generator = Generator(rate=1000, keys=200, zipf=0.0, payload=0, hot=HotKey(0.5, seconds=20))
    hottest = []
    for period in keys_of(generator, 60_000).reshape(3, 20_000):
        values, counts = np.unique(period, return_counts=True)
        hottest.append(int(values[counts.argmax()]))
        assert abs(counts.max() / 20_000 - 0.5) < 0.02
        assert len(values) == 200, "all others are drawn as before"
        assert np.sort(counts)[-2] < 100
    assert len(set(hottest)) == 3
    only = Generator(keys=10, payload=0, hot=HotKey(1, seconds=1))
    assert len(set(keys_of(only, 1000).tolist())) == 1


def test_columns_are_as_declared() -> None:
    batch = Generator(payload=16).table(0, 1, 0, 100)
    assert batch.schema.equals(Generator(payload=16).schema)
    assert batch.schema.field("payload").type == pa.binary(16)
    batch.validate(full=True)
    assert len(set(batch.column("payload").to_pylist())) == 100
    assert Generator(payload=0).schema.names == ["key", "time"]


def test_payloads_are_not_copied() -> None:
    generator = Generator(payload=64)
    reader = generator.open(0, 1, None)
    offers = [reader.poll(START, 100) for _ in range(2)]
    buffers = [offer.batch.column("payload").buffers()[1] for offer in offers if offer]
    assert buffers[0].address == buffers[1].address


def test_tuples_fall_due_by_the_clock_and_say_since_when() -> None:
    reader = Generator(rate=4, payload=0).open(0, 1, None)
    first = reader.poll(START, 100)
    assert first is not None
    assert (first.batch.num_rows, first.born) == (1, START)
    assert reader.poll(START + 0.2, 100) is None
    assert reader.wait_s(START + 0.125) == 0.125
    # Nobody asked for two seconds: seven tuples wait, the oldest since START + 0.25.
    assert reader.wait_s(START + 1.75) == 0
    late = reader.poll(START + 1.75, 3)
    assert late is not None
    assert (late.batch.num_rows, late.born) == (3, START + 0.25)
    rest = reader.poll(START + 1.75, 100)
    assert rest is not None
    assert (rest.batch.num_rows, rest.born) == (4, START + 1.0)
    assert rest.batch.column("time").to_pylist() == [1_000_000, 1_250_000, 1_500_000, 1_750_000]
    assert reader.poll(START, 100) is None, "the clock was set back"


def test_tasks_share_the_rate_and_take_turns() -> None:
    generator = Generator(rate=4, payload=0, rows=9)
    readers = [generator.open(task, 2, None) for task in range(2)]
    assert [reader.poll(START, 9) is not None for reader in readers] == [True, False]
    assert readers[1].wait_s(START) == 0.25
    for reader in readers:
        while not reader.exhausted:
            assert reader.poll(START + 100, 9) is not None
    assert [generator.count(task, 2) for task in range(2)] == [5, 4]
    assert [reader.poll(START + 200, 9) for reader in readers] == [None, None]


@given(rate=st.floats(0.01, 1e7), moments=st.lists(st.floats(0, 1e5), min_size=1, max_size=5))
def test_whatever_is_due_is_offered_and_nothing_sooner(rate: float, moments: list[float]) -> None:
    reader = Generator(rate=rate, keys=2, payload=0).open(0, 1, None)
    reader.poll(0.0, 1)
    for now in sorted(moments):
        due = reader.wait_s(now) == 0
        offer = reader.poll(now, 10)
        assert (offer is not None) == due
        assert offer is None or offer.born <= now


@given(rate=st.floats(0.01, 1e6), number=st.integers(1, 10**6))
def test_a_tuple_is_due_at_its_very_moment_and_not_before(rate: float, number: int) -> None:
    reader = Generator(rate=rate, keys=2, payload=0).open(0, 1, (number, 0.0))
    moment = reader.wait_s(0.0)
    assert reader.poll(float(np.nextafter(moment, 0)), 5) is None
    offer = reader.poll(moment, 5)
    assert offer is not None
    assert (offer.batch.num_rows, offer.born) == (1, moment)


def test_a_stream_goes_by_its_schedule_after_a_recovery() -> None:
    generator = Generator(rate=8, payload=0)
    reader = generator.open(0, 1, None)
    reader.poll(START, 1)
    offset = pickle.loads(pickle.dumps(reader.offset))  # noqa: S301 (our own)
    late = generator.open(0, 1, offset).poll(START + 1, 100)
    assert late is not None
    assert (late.batch.num_rows, late.born) == (8, START + 0.125)

    patient = Generator(rate=8, payload=0, catch_up=False).open(0, 1, offset)
    on_time = patient.poll(START + 1, 100)
    assert on_time is not None
    assert (on_time.batch.num_rows, on_time.born) == (1, START + 1)
    assert on_time.batch.column("time").to_pylist() == [125_000]


def test_without_a_rate_all_is_due_at_once() -> None:
    reader = Generator(payload=0, rows=100).open(0, 1, None)
    assert reader.wait_s(START) == 0
    offer = reader.poll(START, 1000)
    assert offer is not None
    assert (offer.batch.num_rows, offer.born) == (100, START)
    assert offer.batch.column("time").to_pylist() == list(range(100))
    assert reader.exhausted


def test_a_stream_ends_after_its_seconds_or_rows_whichever_is_sooner() -> None:
    assert Generator(rate=100, seconds=0.07).count() == 7
    assert Generator(rate=30, seconds=0.11).count() == 4
    assert Generator(rate=30, seconds=10, rows=7).count() == 7
    assert Generator(rate=30).count() is None
    assert Generator(rows=1).count(task=1, tasks=3) == 0
    assert Generator(rows=1).open(1, 3, None).exhausted


def test_a_generator_survives_pickling() -> None:
    generator = Generator(rate=5, hot=HotKey(0.1, 3))
    twin = cloudpickle.loads(cloudpickle.dumps(generator))
    assert twin == generator
    assert twin.table(0, 1, 0, 50).equals(generator.table(0, 1, 0, 50))


@pytest.mark.parametrize(
    "wrong",
    [
        {"rate": 0},
        {"rate": -1.0},
        {"rate": float("nan")},
        {"rate": float("inf")},
        {"rate": "fast"},
        {"keys": 0},
        {"keys": 1.5},
        {"zipf": -0.1},
        {"zipf": float("nan")},
        {"payload": -1},
        {"omega": -1, "rate": 1},
        {"omega": 2},
        {"omega": 2, "rate": 1, "shuffle_rows": 5},
        {"shuffle_rows": 0},
        {"rows": 0},
        {"rows": True},
        {"seconds": 0, "rate": 1},
        {"seconds": 5},
        {"seed": -1},
        {"hot": 0.5},
    ],
    ids=str,
)
def test_a_load_that_cannot_be_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(BadValueError, match=next(iter(wrong))):
        Generator(**wrong)


@pytest.mark.parametrize(("share", "seconds"), [(-0.1, 1), (1.1, 1), (0.5, 0), (0.5, -1)])
def test_a_hot_key_that_cannot_be_is_refused(share: float, seconds: float) -> None:
    with pytest.raises(BadValueError, match="of a hot key"):
        HotKey(share, seconds)


SCHEMA = pa.schema([pa.field("a", pa.int32(), nullable=False), ("b", pa.string())])


def batch(*values: int) -> pa.RecordBatch:
    return pa.record_batch(
        [pa.array(values, pa.int32()), pa.nulls(len(values), pa.string())], SCHEMA
    )


def test_batches_are_given_out_one_by_one_and_again_from_an_offset() -> None:
    source = cloudpickle.loads(
        cloudpickle.dumps(IterableSource([batch(1, 2), batch(), batch(3), batch(4, 5, 6)], SCHEMA))
    )
    reader = source.open(0, 1, None)
    offers = [reader.poll(START, 10), reader.poll(START + 1, 10)]
    assert [offer.batch.column("a").to_pylist() for offer in offers if offer] == [[1, 2], [3]]
    assert [offer.born for offer in offers if offer] == [START, START + 1]
    assert not reader.exhausted
    piece = reader.poll(START, 2)
    assert piece.batch.column("a").to_pylist() == [4, 5]
    for offset in (reader.offset, pickle.loads(pickle.dumps(reader.offset))):  # noqa: S301
        again = source.open(0, 1, offset)
        assert joined(offered(again, [9])).column("a").to_pylist() == [6]
        assert again.poll(START, 9) is None


def test_tasks_take_turns_at_the_batches() -> None:
    source = IterableSource([batch(n) for n in range(7)], SCHEMA, tasks=3)
    assert source.tasks == 3
    parts = [
        joined(offered(source.open(task, 3, None), [9])).column("a").to_pylist()
        for task in range(3)
    ]
    assert parts == [[0, 3, 6], [1, 4], [2, 5]]


def test_rows_become_batches() -> None:
    rows = iter([(1, "x"), {"a": 2}, [3, None], {"b": "y", "a": 4}])
    source = IterableSource(rows, "a int NOT NULL, b string", batch_rows=3)
    assert [given.num_rows for given in source.batches] == [3, 1]
    assert joined(offered(source.open(0, 1, None), [9])).to_pylist() == [
        {"a": 1, "b": "x"},
        {"a": 2, "b": None},
        {"a": 3, "b": None},
        {"a": 4, "b": "y"},
    ]
    assert IterableSource([], SCHEMA).open(0, 1, None).exhausted


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ([(1, "x"), (2,)], r"row 1 must have 2 values; got \(2,\)"),
        ([{"a": 1, "c": 2}], r"row 0 must have columns among .*; got \['c'\]"),
        ([(1, "x"), ("two", "y")], "rows 0 to 1 must have values of type int32 in column 'a'"),
        ([(2**31, "x")], "values of type int32 in column 'a'"),
        ([{"b": "x"}], "rows 0 to 0 must have no null in column 'a'"),
        ([7], "row 0 must be a tuple or a dictionary"),
        ([batch(1), (1, "x")], "row 0 must be a tuple or a dictionary"),
        ([pa.record_batch({"a": [1]})], "batch 0 must have the schema a int32, b string"),
    ],
)
def test_what_does_not_fit_the_schema_is_refused_at_once(rows: list[Any], says: str) -> None:
    with pytest.raises(BadValueError, match=says):
        IterableSource(rows, SCHEMA)


def test_an_iterable_source_has_at_least_one_task_and_row_per_batch() -> None:
    with pytest.raises(BadValueError, match="tasks must"):
        IterableSource([], SCHEMA, tasks=0)
    with pytest.raises(BadValueError, match="batch_rows must"):
        IterableSource([], SCHEMA, batch_rows=0)


def test_a_reader_of_ones_own_needs_poll_only() -> None:
    class Ticks(Reader):
        def poll(self, now: float, max_rows: int) -> Offer | None:
            return None

    ticks = Ticks()
    assert not ticks.exhausted
    assert ticks.offset is None
    assert 0 < ticks.wait_s(START) < 1
    ticks.close()


def test_few_tuples_that_are_due_come_as_rows_with_the_time_of_each() -> None:
    generator = Generator(rate=1000, keys=9, payload=3, rows=2000, seed=5)
    as_rows, as_batches = (generator.open(0, 1, None) for _ in range(2))
    now, due = START, 0
    while not as_rows.exhausted:
        few = as_rows.poll_rows(now, 4)
        offer = as_batches.poll(now, 4)
        assert offer is not None
        assert few is not None
        assert few.rows == [tuple(row.values()) for row in offer.batch.to_pylist()]
        assert few.due_us[0] == round(offer.born * 1e6)
        assert few.due_us == sorted(few.due_us)
        assert as_rows.offset == as_batches.offset
        due += len(few.rows)
        now += 0.003
    assert due == 2000


def test_more_rows_than_were_asked_for_do_not_come_singly() -> None:
    reader = Generator(rate=1000, keys=9, seed=5).open(0, 1, None)
    assert reader.poll_rows(START, 4) is not None
    assert reader.poll_rows(START + 1.0, 4) is None
    assert reader.poll_rows(START, 4) is None  # nothing is due
    assert IterableSource([{"n": 1}], schema="n long").open(0, 1, None).poll_rows(START, 4) is None
