import json
import math
import pickle
from dataclasses import FrozenInstanceError, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.core.work_rig import done

from elasticutor.core.measure.latency import LatencyHistogram
from elasticutor.core.measure.metrics import ExecutorMetrics, Meter
from elasticutor.errors import BadValueError

SHARDS = 3
COUNTS = ("rows_arrived", "bytes_arrived", "rows_processed", "rows_out", "bytes_in", "bytes_out")
TIMES = ("core_seconds", "useful_s")
AT_THE_END = ("state_bytes", "backlog_rows")


def ints(*values: int) -> npt.NDArray[np.int64]:
    return np.array(values, dtype=np.int64)


def floats(*values: float) -> npt.NDArray[np.float64]:
    return np.array(values, dtype=np.float64)


lengths_s = st.floats(1e-3, 1e4)
any_length_s = st.just(0.0) | lengths_s


@st.composite
def metrics(draw: st.DrawFn, seconds: st.SearchStrategy[float] = any_length_s) -> ExecutorMetrics:
    amounts, times = st.integers(0, 2**40), st.floats(0, 1e6)
    latency = LatencyHistogram()
    for latency_s in draw(st.lists(st.floats(0, 100), max_size=3)):
        latency.record(latency_s)
    numbers: dict[str, Any] = {name: draw(amounts) for name in (*COUNTS, *AT_THE_END)}
    numbers |= {name: draw(times) for name in TIMES}
    return ExecutorMetrics(
        seconds=draw(seconds),
        shard_rows=ints(*draw(st.tuples(*[amounts] * SHARDS))),
        shard_seconds=floats(*draw(st.tuples(*[times] * SHARDS))),
        latency=latency,
        **numbers,
    )


def assert_same(one: ExecutorMetrics, two: ExecutorMetrics) -> None:
    """Counts exactly; floats but for the order of summing."""
    for name in (*COUNTS, *AT_THE_END):
        assert getattr(one, name) == getattr(two, name), name
    for name in (*TIMES, "seconds", "shard_seconds"):
        assert getattr(one, name) == pytest.approx(getattr(two, name)), name
    assert one.shard_rows.tolist() == two.shard_rows.tolist()
    assert one.latency == two.latency


def nothing(shards: int = SHARDS, **changes: Any) -> ExecutorMetrics:
    amounts = dict.fromkeys((*COUNTS, *TIMES, *AT_THE_END, "seconds"), 0) | changes
    rows, seconds = np.zeros(shards, dtype=np.int64), np.zeros(shards)
    latency = LatencyHistogram()
    return ExecutorMetrics(shard_rows=rows, shard_seconds=seconds, latency=latency, **amounts)


def measured(**changes: Any) -> ExecutorMetrics:
    """Two seconds on three cores: ten rows, each taking 0.3 s, mostly of shard 0."""
    latency = LatencyHistogram()
    latency.record(0.004, 10)
    example = ExecutorMetrics(
        seconds=2.0,
        core_seconds=6.0,
        rows_arrived=12,
        bytes_arrived=1200,
        rows_processed=10,
        rows_out=5,
        useful_s=3.0,
        bytes_in=1000,
        bytes_out=200,
        state_bytes=4096,
        shard_rows=ints(8, 2, 0),
        shard_seconds=floats(2.0, 1.0, 0.0),
        latency=latency,
    )
    return replace(example, **changes)


# What the scheduler reads


def test_rates_are_what_the_paper_defines() -> None:
    example = measured()
    assert example.cores == 3.0
    assert example.arrival_rate == 6.0
    assert example.service_rate == pytest.approx(10 / 3)
    assert example.utilisation == 0.5
    assert example.selectivity == 0.5
    assert example.data_intensity == 200.0
    assert example.state_bytes == 4096


def test_service_rate_does_not_fall_when_cores_are_blocked() -> None:
    """Back-pressure: the same work in twice the time. The cores are as fast as before."""
    blocked = measured(seconds=4.0, core_seconds=12.0)
    assert blocked.service_rate == measured().service_rate
    assert blocked.utilisation == measured().utilisation / 2


def test_where_nothing_happened_rates_are_zero_or_unknown() -> None:
    rates = ("cores", "arrival_rate", "utilisation", "data_intensity")
    assert [getattr(nothing(), rate) for rate in rates] == [0.0] * 4
    assert all(math.isnan(x) for x in (nothing().service_rate, nothing().selectivity))


def test_a_row_that_took_no_measurable_time_says_nothing_about_the_service_rate() -> None:
    assert math.isnan(measured(useful_s=0.0).service_rate)
    assert math.isnan(measured(useful_s=1e-320).service_rate)


def test_useful_time_without_a_row_says_nothing_about_the_service_rate() -> None:
    assert math.isnan(measured(rows_processed=0).service_rate)


def test_the_shortest_interval_makes_no_infinite_load() -> None:
    brief = measured(seconds=5e-324, core_seconds=5e-324)
    assert (brief.arrival_rate, brief.utilisation) == (0.0, 0.0)


def test_as_dict_is_plain_json() -> None:
    told = json.loads(json.dumps(measured().as_dict(), allow_nan=False))
    assert (told["rows_processed"], told["state_bytes"], told["utilisation"]) == (10, 4096, 0.5)
    for name in ("latency_p50_ms", "latency_p99_ms", "latency_p999_ms", "latency_mean_ms"):
        assert told[name] == pytest.approx(4.0, rel=0.01)
    assert told["latency_count"] == 10


def test_as_dict_tells_three_percentiles_apart() -> None:
    latency = LatencyHistogram()
    for seconds, count in ((0.001, 9800), (0.01, 180), (0.1, 20)):
        latency.record(seconds, count)
    told = measured(latency=latency).as_dict()
    percentiles = [told[f"latency_{p}_ms"] for p in ("p50", "p99", "p999")]
    assert percentiles == pytest.approx([1.0, 10.0, 100.0], rel=0.01)


def test_as_dict_says_none_for_what_is_unknown() -> None:
    told = json.loads(json.dumps(nothing().as_dict(), allow_nan=False))
    assert {name for name, number in told.items() if number is None} == {
        "service_rate",
        "selectivity",
        "latency_mean_ms",
        "latency_p50_ms",
        "latency_p99_ms",
        "latency_p999_ms",
    }


# A value


def test_metrics_cannot_be_changed_not_even_after_pickling() -> None:
    mine = ints(8, 2, 0)
    example = measured(shard_rows=mine)
    mine[0] = 99
    for twin in (example, pickle.loads(pickle.dumps(example))):  # noqa: S301  our own bytes
        assert_same(twin, measured())
        with pytest.raises(FrozenInstanceError):
            twin.seconds = 5.0  # type: ignore[misc]
        for array in (twin.shard_rows, twin.shard_seconds):
            with pytest.raises(ValueError, match="read-only"):
                array[0] = 1


@pytest.mark.parametrize("name", [*COUNTS, *TIMES, *AT_THE_END, "seconds"])
@pytest.mark.parametrize("bad", [-1, math.nan, math.inf])
def test_impossible_amounts_are_refused(name: str, bad: float) -> None:
    with pytest.raises(BadValueError, match=f"{name} must be finite and at least 0"):
        measured(**{name: bad})


@pytest.mark.parametrize(
    "arrays",
    [
        {"shard_rows": ints(1, 2)},
        {"shard_seconds": floats(1, 2)},
        {"shard_rows": ints(1, 2, -3)},
        {"shard_seconds": floats(1, 2, math.nan)},
        {"shard_rows": np.ones((3, 1), dtype=np.int64), "shard_seconds": np.ones((3, 1))},
    ],
)
def test_impossible_shards_are_refused(arrays: dict[str, Any]) -> None:
    with pytest.raises(BadValueError, match="shard_"):
        measured(**arrays)


# Adding up


@given(metrics(), metrics(), metrics())
@settings(deadline=None)
def test_joining_successive_intervals_is_associative(
    a: ExecutorMetrics, b: ExecutorMetrics, c: ExecutorMetrics
) -> None:
    assert_same(a.then(b).then(c), a.then(b.then(c)))
    assert_same(a.then(b).then(c), a.then(b, c))


@given(metrics(lengths_s))
@settings(deadline=None)
def test_empty_metrics_change_nothing(a: ExecutorMetrics) -> None:
    for joined in (a.then(nothing()), nothing().then(a)):
        assert_same(joined, a)


@given(metrics(), metrics())
@settings(deadline=None)
def test_every_count_adds_up(a: ExecutorMetrics, b: ExecutorMetrics) -> None:
    joined = a.then(b)
    for name in COUNTS:
        assert getattr(joined, name) == getattr(a, name) + getattr(b, name)
    for name in TIMES:
        assert getattr(joined, name) == pytest.approx(getattr(a, name) + getattr(b, name))
    assert joined.shard_rows.tolist() == (a.shard_rows + b.shard_rows).tolist()
    assert joined.shard_seconds == pytest.approx(a.shard_seconds + b.shard_seconds)
    assert joined.latency.count == a.latency.count + b.latency.count


def test_successive_intervals_add_time_and_keep_the_last_state() -> None:
    later = measured(seconds=1.0, core_seconds=9.0, useful_s=8.0, state_bytes=1)
    joined = measured().then(later)
    assert (joined.seconds, joined.state_bytes) == (3.0, 1)
    # 3 s of useful time on 6 core-seconds, then 8 on 9: weighted by cores, not averaged.
    assert joined.utilisation == pytest.approx(11 / 15)
    assert joined.cores == 5.0


def test_a_backlog_is_that_of_the_end() -> None:
    one, two = measured(backlog_rows=7), measured(backlog_rows=5)
    assert one.then(two).backlog_rows == 5
    assert one.then(nothing()).backlog_rows == 7
    assert nothing().backlog_rows == 0
    assert one.as_dict()["backlog_rows"] == 7


def test_joining_leaves_both_sides_as_they_were() -> None:
    one, two = measured(), measured()
    one.then(two)
    assert_same(one, measured())
    assert_same(two, measured())


def test_measurements_of_different_shards_are_not_joined() -> None:
    with pytest.raises(BadValueError, match="number of shards must be 3 in all of them; got 4"):
        measured().then(measured(), nothing(SHARDS + 1))


# The meter


def test_the_meter_counts_each_thing_where_it_belongs() -> None:
    meter = Meter(SHARDS, now=100.0, cores=3)
    meter.arrived(12, 1200)
    waits: dict[str, Any] = {"waits_s": [0.004], "wait_counts": [8]}
    meter.add_work(done([8, 0, 0], 2.0, bytes_in=800, bytes_out=150, rows_out=4, **waits))
    waits["wait_counts"] = [2]
    meter.add_work(done([0, 2, 0], 1.0, bytes_in=200, bytes_out=50, rows_out=1, **waits))
    meter.state_bytes(4096)
    assert_same(meter.snapshot(102.0), measured())


def test_a_snapshot_has_the_backlog_that_the_meter_is_told() -> None:
    meter = Meter(SHARDS, now=0.0)
    assert meter.snapshot(1.0).backlog_rows == 0
    told = meter.snapshot(1.0, backlog_rows=np.int8(100)).backlog_rows  # type: ignore[arg-type]
    assert (type(told), told) == (int, 100)
    with pytest.raises(BadValueError, match="backlog_rows must be finite and at least 0"):
        meter.snapshot(1.0, backlog_rows=-1)


def test_cores_count_for_as_long_as_they_are_there() -> None:
    meter = Meter(SHARDS, now=10.0, cores=1)
    meter.set_cores(4, now=11.0)
    meter.set_cores(0.5, now=13.0)
    assert meter.snapshot(15.0).core_seconds == pytest.approx(1 + 2 * 4 + 2 * 0.5)
    meter.reset(15.0)
    assert meter.snapshot(16.0).core_seconds == pytest.approx(0.5)


def test_a_snapshot_does_not_change_when_counting_goes_on() -> None:
    meter = Meter(SHARDS, now=0.0)
    before = meter.snapshot(1.0)
    meter.add_work(done([1, 0, 0], 1.0, waits_s=[1.0]))
    assert (before.shard_rows.tolist(), before.latency.count) == ([0, 0, 0], 0)
    after = meter.snapshot(1.0)
    assert (after.shard_rows.tolist(), after.latency.count) == ([1, 0, 0], 1)


def test_reset_counts_from_zero_and_keeps_state_size_and_cores() -> None:
    meter = Meter(SHARDS, now=0.0, cores=2)
    meter.arrived(1, 1)
    meter.add_work(done([1, 0, 0], 1.0, bytes_in=1, bytes_out=1, rows_out=1, waits_s=[1.0]))
    meter.state_bytes(7)
    meter.reset(5.0)
    kept = nothing(seconds=1.0, core_seconds=2.0, state_bytes=7)
    assert_same(meter.snapshot(6.0), kept)


events = st.lists(
    st.tuples(st.integers(0, SHARDS - 1), st.floats(0, 5), st.integers(0, 9)), max_size=20
)


@given(events, st.integers(0, 20))
@settings(deadline=None)
def test_intervals_joined_are_the_interval_measured_at_once(
    happened: list[tuple[int, float, int]], cut: int
) -> None:
    whole, parts = Meter(SHARDS, now=0.0, cores=2), Meter(SHARDS, now=0.0, cores=2)
    first = nothing()
    for time, (shard, useful_s, number) in enumerate(happened, start=1):
        for meter in (whole, parts):
            meter.arrived(number, 3 * number)
            rows = [2 * (shard == one) for one in range(SHARDS)]
            work = done(rows, useful_s, waits_s=[useful_s], bytes_in=number, rows_out=number)
            meter.add_work(work)
            meter.state_bytes(number)
        if time == cut:
            first = parts.snapshot(time)
            parts.reset(time)
    assert_same(first.then(parts.snapshot(30.0)), whole.snapshot(30.0))


def test_small_numpy_integers_do_not_overflow_the_sums() -> None:
    meter = Meter(SHARDS, now=0.0)
    for _ in range(3):
        meter.arrived(np.int8(100), np.int8(100))  # type: ignore[arg-type]
    counted = meter.snapshot(1.0)
    assert (counted.rows_arrived, counted.bytes_arrived) == (300, 300)
    json.dumps(counted.as_dict())


def test_refusals_leave_the_meter_as_it_was() -> None:
    meter = Meter(SHARDS, now=10.0)
    meter.add_work(done([1, 1, 0], 0.5))
    meter.set_cores(2, now=11.0)
    before = meter.snapshot(12.0)

    for bad in (-1, math.nan, math.inf):
        for call in (meter.arrived, meter.state_bytes):
            with pytest.raises(BadValueError):
                call(bad)  # type: ignore[arg-type]
        with pytest.raises(BadValueError, match="arrived bytes"):
            meter.arrived(1, bad)  # type: ignore[arg-type]
        with pytest.raises(BadValueError, match="cores"):
            meter.set_cores(bad, now=12.0)
    for past in (10.5, math.nan, math.inf):
        for back in (meter.snapshot, meter.reset, lambda now: meter.set_cores(1, now)):
            with pytest.raises(BadValueError, match="now must be finite and not before 11"):
                back(past)

    assert_same(meter.snapshot(12.0), before)


@pytest.mark.parametrize(
    ("shards", "now", "cores"), [(0, 0.0, 1), (1, math.nan, 1), (1, 0.0, -1), (1, 0.0, math.nan)]
)
def test_impossible_meters_are_refused(shards: int, now: float, cores: float) -> None:
    with pytest.raises(BadValueError):
        Meter(shards, now, cores)
