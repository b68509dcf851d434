"""What is wanted, found from what was measured."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core.scheduler_rig import SERVICE_RATE, SHARDS, executor, measured, source, topology

from elasticutor.core.measure.measurements import SourceSeen
from elasticutor.core.protocol.ids import Peer
from elasticutor.core.scheduler.demand import (
    HORIZON_S,
    Load,
    entry_rate,
    job_of,
    loads_of,
    offered_rate,
)
from elasticutor.errors import BadValueError

E, F = Peer("e"), Peer("f")


def load(rate: float, work: float, shards: int = SHARDS) -> Load:
    return Load(rate, SERVICE_RATE, work, shards, work)


# What sources offer


@pytest.mark.parametrize(
    ("blocked_share", "scale"), [(0.0, 1), (0.5, 2), (0.9, 10), (0.99, 100), (0.999, 100), (1, 100)]
)
def test_a_blocked_source_is_scaled_up_a_hundredfold_at_most(
    blocked_share: float, scale: float
) -> None:
    seen = SourceSeen("s", seconds=2.0, rows=100, blocked_share=blocked_share)
    assert offered_rate(seen) == pytest.approx(50 * scale)


def test_a_known_rate_is_taken_as_it_is() -> None:
    for blocked_share in (0.0, 0.7, 1.0):
        assert offered_rate(source(800.0, rows=3, blocked_share=blocked_share)) == 800.0
    assert offered_rate(SourceSeen("s", seconds=0.0, rows=0, blocked_share=0.0, rate=5.0)) == 5.0


def test_a_source_that_offers_all_at_once_counts_with_what_it_sent() -> None:
    assert offered_rate(source(math.inf, rows=700, blocked_share=0.9)) == 700.0


def test_what_a_source_is_behind_with_is_to_be_made_up_for_within_the_horizon() -> None:
    assert offered_rate(source(100.0, behind_s=3.0)) == pytest.approx(400.0)
    assert offered_rate(source(None, rows=100, behind_s=3.0)) == pytest.approx(400.0)
    assert offered_rate(source(100.0, behind_s=3.0), horizon_s=6.0) == pytest.approx(150.0)


def test_a_source_that_was_not_measured_offers_nothing() -> None:
    assert offered_rate(SourceSeen("s", seconds=0.0, rows=0, blocked_share=0.0)) == 0.0
    assert offered_rate(SourceSeen("s", seconds=5e-324, rows=1, blocked_share=0.0)) == 0.0


@pytest.mark.parametrize(
    "bad",
    [
        SourceSeen("s", seconds=math.nan, rows=1, blocked_share=0.0),
        SourceSeen("s", seconds=1.0, rows=-1, blocked_share=0.0),
        SourceSeen("s", seconds=1.0, rows=1, blocked_share=1.5),
        SourceSeen("s", seconds=1.0, rows=1, blocked_share=math.nan),
        SourceSeen("s", seconds=1.0, rows=1, blocked_share=0.0, behind_s=-1.0),
        SourceSeen("s", seconds=1.0, rows=1, blocked_share=0.0, behind_s=math.inf),
        SourceSeen("s", seconds=1.0, rows=1, blocked_share=0.0, rate=-1.0),
        SourceSeen("s", seconds=1.0, rows=1, blocked_share=0.0, rate=math.nan),
    ],
    ids=str,
)
def test_what_a_source_cannot_have_measured_is_refused_by_its_name(bad: SourceSeen) -> None:
    with pytest.raises(BadValueError, match="of source 's'"):
        offered_rate(bad)


# Through the topology


def test_tasks_of_one_source_add_up() -> None:
    seen = topology(executor("e", measured(arrived=9)), sources=[source(100.0), source(300.0)])
    assert loads_of(seen)[E].arrival_rate == pytest.approx(400.0)
    assert entry_rate(seen) == pytest.approx(400.0)


def test_rates_go_through_a_chain_by_measured_selectivities() -> None:
    seen = topology(
        executor("e", measured(arrived=50, processed=40, out=20), operator="parse"),
        executor("f", measured(arrived=20, out=60), operator="count"),
        executor("g", measured(arrived=60), operator="sum"),
        sources=[source(1000.0)],
        feeds={"sum": ("count",), "count": ("parse",), "parse": ("s",)},
    )
    rates = {who: load.arrival_rate for who, load in loads_of(seen).items()}
    assert rates == {"e": 1000.0, "f": pytest.approx(500.0), "g": pytest.approx(1500.0)}


def test_each_of_two_takers_of_one_stream_gets_all_rows() -> None:
    seen = topology(
        executor("e", measured(arrived=100), operator="parse"),
        # 100 rows in, 100 rows made, and each counted for both takers.
        executor("f", measured(arrived=100, out=200), operator="split"),
        executor("g", measured(arrived=100), operator="one"),
        executor("h", measured(arrived=100), operator="other"),
        sources=[source(1000.0)],
        feeds={"parse": ("s",), "split": ("s",), "one": ("split",), "other": ("split",)},
    )
    rates = [load.arrival_rate for load in loads_of(seen).values()]
    assert rates == [1000.0, 1000.0, pytest.approx(1000.0), pytest.approx(1000.0)]


def test_streams_that_come_together_add_up() -> None:
    seen = topology(
        executor("e", measured(arrived=10, out=5), operator="parse"),
        executor("f", measured(arrived=10), operator="join"),
        sources=[source(1000.0), source(30.0, name="r")],
        feeds={"parse": ("s",), "join": ("parse", "r")},
    )
    assert loads_of(seen)[F].arrival_rate == pytest.approx(530.0)


def test_an_operator_that_was_not_measured_passes_rows_on_one_by_one() -> None:
    seen = topology(
        executor("e", measured(arrived=0), operator="parse"),
        executor("f", measured(arrived=7), operator="count"),
        sources=[source(400.0)],
        feeds={"parse": ("s",), "count": ("parse",)},
    )
    assert loads_of(seen)[F].arrival_rate == pytest.approx(400.0)


def test_executors_share_by_what_has_arrived() -> None:
    seen = topology(
        executor("e", measured(arrived=300)),
        executor("f", measured(arrived=100)),
        sources=[source(4000.0)],
    )
    assert [one.arrival_rate for one in loads_of(seen).values()] == [3000.0, 1000.0]


def test_where_nothing_has_arrived_shares_are_equal() -> None:
    seen = topology(executor("e"), executor("f"), sources=[source(4000.0)])
    assert [one.arrival_rate for one in loads_of(seen).values()] == [2000.0, 2000.0]


def test_what_sources_say_about_their_rows_goes_before_what_has_arrived() -> None:
    """Back-pressure: as much arrives at both, and what waits in the source is all for one."""
    seen = topology(
        executor("e", measured(arrived=100)),
        executor("f", measured(arrived=100)),
        sources=[
            source(1500.0, routed={E: 80, F: 10}),
            source(500.0, routed={E: 10, Peer("of another operator"): 900}),
        ],
    )
    assert [one.arrival_rate for one in loads_of(seen).values()] == pytest.approx([1800.0, 200.0])


def test_sources_that_say_nothing_about_their_rows_count_by_arrivals_beside_those_that_do() -> None:
    seen = topology(
        executor("e", measured(arrived=100)),
        executor("f", measured(arrived=300)),
        sources=[source(1000.0, routed={E: 5, F: 5}), source(400.0, name="r")],
        feeds={"count": ("s", "r")},
    )
    assert [one.arrival_rate for one in loads_of(seen).values()] == pytest.approx([600.0, 800.0])


def test_a_backlog_is_to_be_gone_within_the_horizon() -> None:
    seen = topology(executor("e", measured(arrived=10, backlog_rows=500)), sources=[source(100.0)])
    assert HORIZON_S == 1.0
    assert loads_of(seen)[E].arrival_rate == pytest.approx(600.0)
    assert loads_of(seen, horizon_s=0.5)[E].arrival_rate == pytest.approx(1100.0)


@pytest.mark.parametrize(
    "feeds",
    [
        {"parse": ("count",), "count": ("parse",)},
        {"parse": ("parse", "s"), "count": ("s",)},
        {"parse": ("s",), "count": ("nobody",)},
        {"parse": ("s",)},
    ],
)
def test_a_ring_and_an_unknown_feeder_are_refused(feeds: dict[str, tuple[str, ...]]) -> None:
    seen = topology(
        executor("e", operator="parse"),
        executor("f", operator="count"),
        sources=[source(1.0)],
        feeds=feeds,
    )
    with pytest.raises(BadValueError, match="be fed by sources and other operators"):
        loads_of(seen)


# What cores can do about it


def test_work_is_rate_over_the_measured_service_rate() -> None:
    metrics = measured(arrived=100, service_rate=250.0)
    found = loads_of(topology(executor("e", metrics), sources=[source(1000.0)]))[E]
    assert found.service_rate == pytest.approx(250.0)
    assert found.useful_work == pytest.approx(4.0)


def test_a_lone_hot_shard_counts_for_one_core_only() -> None:
    lone = executor("e", measured(arrived=100, shards=(1, 0, 0, 0)))
    found = loads_of(topology(lone, sources=[source(3000.0)]))[E]
    assert found.useful_work == pytest.approx(1.0)
    assert found.shards == 1


def test_a_hot_shard_among_others_is_cut_and_the_others_are_not() -> None:
    metrics = measured(arrived=100, shards=(8, 1, 1, 0))
    found = loads_of(topology(executor("e", metrics), sources=[source(5000.0)]))[E]
    assert found.useful_work == pytest.approx(1.0 + 0.5 + 0.5)  # of 4 + 0.5 + 0.5
    assert found.shards == 3


def test_every_executor_is_cut_by_its_own_shards() -> None:
    seen = topology(
        executor("e", measured(arrived=100, shards=(1, 0))),
        executor("f", measured(arrived=100, shards=(1, 1, 1, 1, 1))),
        executor("g", measured(arrived=100, shards=(0, 1, 1))),
        sources=[source(9000.0)],
    )
    loads = loads_of(seen).values()
    assert [one.useful_work for one in loads] == pytest.approx([1.0, 3.0, 2.0])
    assert [one.shards for one in loads] == [1, 5, 2]


def test_shards_seen_once_stand_for_all_of_them() -> None:
    """Three tuples that take a second each say little about which shards have anything to do."""
    metrics = measured(arrived=3, service_rate=1.0, shards=(1, 1, 1, *(0,) * 61))
    found = loads_of(topology(executor("e", metrics), sources=[source(8.0)]))[E]
    assert found.useful_work == pytest.approx(8.0)
    assert found.shards == 64


def test_more_executors_than_are_summed_up_at_once_are_all_right() -> None:
    many = [executor(f"e{at}", measured(arrived=10, shards=(1, 0))) for at in range(200)]
    loads = loads_of(topology(*many, sources=[source(400_000.0)]))
    assert [one.useful_work for one in loads.values()] == pytest.approx([1.0] * 200)


def test_an_executor_that_was_not_measured_takes_its_operators_mean() -> None:
    seen = topology(
        executor("e", measured(arrived=100, processed=0)),
        executor("f", measured(arrived=100, service_rate=100.0)),
        executor("g", measured(arrived=100, service_rate=300.0)),
        sources=[source(450.0)],
    )
    found = loads_of(seen)[E]
    assert found.service_rate == pytest.approx(150.0)  # 200 rows in 1.33 s
    assert found.useful_work == pytest.approx(1.0)
    assert found.shards == SHARDS


def test_where_nobody_was_measured_there_is_no_work() -> None:
    seen = topology(executor("e", measured(arrived=100, processed=0)), sources=[source(450.0)])
    found = loads_of(seen)[E]
    assert math.isnan(found.service_rate)
    assert (found.arrival_rate, found.useful_work, found.certain_work) == (450.0, 0.0, 0.0)


def test_few_arrivals_may_be_chance_and_a_backlog_is_none() -> None:
    many = executor("e", measured(arrived=10_000))
    few = executor("f", measured(arrived=16))
    one = executor("g", measured(arrived=1))
    waits = executor("h", measured(arrived=4, backlog_rows=500))
    shares = [
        loads_of(topology(seen, sources=[source(500.0)]))[seen.name]
        for seen in (many, few, one, waits)
    ]
    certain = [load.certain_work / load.useful_work for load in shares]
    assert certain == pytest.approx([0.98, 0.5, 0.0, 0.5])


# As the allocation sees it


def test_a_job_has_the_useful_work_and_the_busy_shards_of_everybody() -> None:
    seen = topology(
        executor("e"), executor("f"), sources=[source(100.0)], target_s=0.2, name="jobs"
    )
    loads = {E: load(9000.0, 2.5, shards=7), F: load(100.0, 0.0, shards=0)}
    job = job_of(seen, loads, entry_rate(seen))
    assert (job.name, job.target_s, job.entry_rate, job.all_at_once) == ("jobs", 0.2, 100.0, False)
    one, other = job.demands
    assert (one.executor, one.arrival_rate, one.service_rate, one.most) == ("e", 2500.0, 1000.0, 7)
    assert (other.executor, other.arrival_rate, other.service_rate, other.most) == ("f", 0, 0, 1)


def test_a_source_that_offers_all_it_has_makes_the_job_one_of_saturation() -> None:
    seen = topology(executor("e"), sources=[source(5.0), source(math.inf, rows=70)])
    job = job_of(seen, loads_of(seen), entry_rate(seen))
    assert job.all_at_once
    assert job.entry_rate == pytest.approx(75.0)


amounts = st.integers(0, 10**6)


@given(
    st.lists(st.tuples(amounts, amounts, amounts, st.lists(amounts, max_size=5)), min_size=1),
    st.floats(0, 1e9),
    st.floats(0, 1),
)
def test_whatever_was_measured_loads_are_finite_and_no_more_than_shards_can_use(
    happened: list[tuple[int, int, int, list[int]]], rate: float, blocked_share: float
) -> None:
    executors = [
        executor(
            f"e{at}",
            measured(arrived=arrived, processed=processed, backlog_rows=backlog, shards=shards)
            if sum(shards)
            else measured(arrived=arrived, processed=0, backlog_rows=backlog, shards=shards),
        )
        for at, (arrived, processed, backlog, shards) in enumerate(happened)
    ]
    for offered in (source(rate), source(None, rows=int(rate), blocked_share=blocked_share)):
        loads = loads_of(topology(*executors, sources=[offered]))
        assert list(loads) == [one.name for one in executors]
        for one in executors:
            found = loads[one.name]
            assert 0 <= found.certain_work <= found.useful_work * 1.000001 < math.inf
            assert found.useful_work <= found.arrival_rate / SERVICE_RATE * 1.000001 + 1e-300
            alone = one.metrics.shard_rows != 1
            if one.metrics.shard_seconds.any() and alone.all():
                assert found.useful_work <= found.shards * 1.000001
