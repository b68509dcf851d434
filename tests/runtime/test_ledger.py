"""The driver's sums: totals, the last moments, and a timeline."""

from __future__ import annotations

import json
import math
import threading
from types import SimpleNamespace

import numpy as np
import pytest
from tests.core.work_rig import done

from elasticutor.core.measure.latency import LatencyHistogram
from elasticutor.core.measure.metrics import ExecutorMetrics, Meter
from elasticutor.core.protocol.ids import NodeId, Peer, TaskId
from elasticutor.driver import metrics as module
from elasticutor.driver.metrics import RunLedger
from elasticutor.transport import messages as say

SEEN = {TaskId(1): say.TaskSeen(NodeId("n0"), "running", 0.5, 8, 99)}


class Clock:
    """A clock that stands still until it is told."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        clocks = SimpleNamespace(monotonic=lambda: self.now, time=lambda: 1e9 + self.now)
        monkeypatch.setattr(module, "time", clocks)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def latency(seconds: float, count: int) -> LatencyHistogram:
    made = LatencyHistogram()
    made.record(seconds, count)
    return made


def sink(
    rows: int, seconds: float = 0.25, age_s: float = 0.01, who: str = "out"
) -> say.SinkMeasured:
    return say.SinkMeasured("r", Peer(who), seconds, rows, latency(age_s, rows))


def source(rows: int, behind_s: float = 0.0, who: str = "clicks.0") -> say.SourceMeasured:
    return say.SourceMeasured("r", Peer(who), 0.25, rows, 0.0, behind_s)


def worked(rows: int) -> ExecutorMetrics:
    meter = Meter(shards=4, now=0.0)
    meter.arrived(rows, 8 * rows)
    meter.add_work(done(np.bincount(np.arange(rows) % 4, minlength=4), 0.1))
    return meter.snapshot(now=0.25)


def measured(rows: int, who: str = "counts.0", dropped: int = 0) -> say.Measured:
    return say.Measured("r", Peer(who), worked(rows), SEEN, dropped)


def test_nothing_measured_is_nothing_and_fits_json(clock: Clock) -> None:
    metrics = RunLedger().metrics()
    assert (metrics.rows_in, metrics.rows_out, metrics.rows_in_s, metrics.behind_s) == (0, 0, 0, 0)
    assert metrics.latency.count == 0
    plain = json.loads(json.dumps(metrics.as_dict(), allow_nan=False))
    assert plain["latency_ms"] == {"p50": None, "p90": None, "p99": None, "p99.9": None}


def test_rows_and_latencies_of_all_participants_add_up(clock: Clock) -> None:
    ledger = RunLedger()
    for rows in (10, 20):
        ledger.source(source(rows))
        ledger.source(source(2 * rows, who="clicks.1"))
        ledger.sink(sink(rows))
        ledger.sink(sink(rows, who="other"))
    metrics = ledger.metrics()
    assert (metrics.rows_in, metrics.rows_out, metrics.latency.count) == (90, 60, 60)
    assert metrics.rows_in_s == pytest.approx(90 / 0.5)
    assert metrics.rows_out_s == pytest.approx(60 / 0.5)


def test_rates_and_recent_latencies_are_of_about_the_last_second(clock: Clock) -> None:
    ledger = RunLedger()
    for rows, age_s in ((1000, 5.0), (10, 0.01), (10, 0.01), (10, 0.01), (10, 0.01)):
        ledger.source(source(rows))
        ledger.sink(sink(rows, age_s=age_s))
        clock.now += 0.3
    metrics = ledger.metrics()
    assert metrics.rows_in_s == metrics.rows_out_s == pytest.approx(40.0)
    assert metrics.recent_latency.count == 40
    assert metrics.recent_latency.percentile_s(100) == pytest.approx(0.01, rel=0.02)
    assert metrics.latency.count == 1040  # in all, the old ones count
    assert metrics.latency.percentile_s(99) == pytest.approx(5.0, rel=0.02)


def test_the_last_interval_counts_however_long_it_was(clock: Clock) -> None:
    ledger = RunLedger()
    for rows in (10, 60):
        clock.now += 30.0
        ledger.sink(sink(rows, seconds=30.0))
    assert ledger.metrics().rows_out_s == pytest.approx(2.0)


def test_an_interval_without_length_has_no_rate(clock: Clock) -> None:
    ledger = RunLedger()
    ledger.sink(sink(5, seconds=0.0))
    assert ledger.metrics().rows_out_s == 0.0


def test_the_most_delayed_source_says_how_far_all_are_behind_now(clock: Clock) -> None:
    ledger = RunLedger()
    for behind_s in (9.0, 0.5):
        ledger.source(source(1, behind_s))
        ledger.source(source(1, behind_s / 2, who="clicks.1"))
    assert ledger.metrics().behind_s == 0.5


def test_executors_have_their_last_interval_and_their_total(clock: Clock) -> None:
    ledger = RunLedger()
    for rows in (8, 16):
        ledger.executor(measured(rows))
        ledger.executor(measured(4, who="counts.1"))
    metrics = ledger.metrics()
    assert metrics.executors[Peer("counts.0")].rows_arrived == 16
    assert metrics.totals[Peer("counts.0")].rows_arrived == 24
    assert metrics.totals[Peer("counts.0")].seconds == 0.5
    assert metrics.totals[Peer("counts.0")].shard_rows.tolist() == [6, 6, 6, 6]
    assert metrics.totals[Peer("counts.1")].rows_arrived == 8
    json.dumps(metrics.as_dict(), allow_nan=False)


def test_totals_have_every_interval_whenever_they_are_read(clock: Clock) -> None:
    ledger, sent = RunLedger(), 0
    for rows in range(1, 40):
        ledger.executor(measured(rows))
        sent += rows
        if rows % 7 == 0 or rows in (1, 2, 39):
            assert ledger.metrics().totals[Peer("counts.0")].rows_arrived == sent
    ledger.reset()
    ledger.executor(measured(5))
    assert ledger.metrics().totals[Peer("counts.0")].rows_arrived == 5


def test_messages_that_were_dropped_are_counted_once(clock: Clock) -> None:
    ledger = RunLedger()
    for dropped in (1, 3):  # each tells all since it started
        ledger.executor(measured(1, dropped=dropped))
        ledger.executor(measured(1, who="counts.1", dropped=10))
    assert ledger.metrics().dropped == 13


def test_tasks_are_those_that_were_told_last(clock: Clock) -> None:
    ledger = RunLedger()
    who = Peer("counts.0")
    assert ledger.tasks(who) == {}
    ledger.executor(measured(1))
    assert ledger.tasks(who) == SEEN
    assert ledger.metrics().as_dict()["executors"][who]["tasks"] == {
        "1": {"node": "n0", "status": "running", "load": 0.5}
    }
    ledger.staff(say.Staff("r", who, {}, "task 1 ended"))
    assert ledger.tasks(who) == {}


def test_a_reset_begins_the_totals_anew(clock: Clock) -> None:
    ledger = RunLedger()
    ledger.source(source(10, behind_s=3.0))
    ledger.sink(sink(10))
    ledger.executor(measured(8))
    clock.now += 5.0
    assert ledger.metrics().seconds == 5.0
    ledger.reset()
    metrics = ledger.metrics()
    assert (metrics.seconds, metrics.rows_in, metrics.rows_out, metrics.behind_s) == (0, 0, 0, 0)
    assert metrics.latency.count == metrics.recent_latency.count == 0
    assert metrics.totals == {}
    assert metrics.tasks[Peer("counts.0")] == SEEN  # they are still there
    ledger.executor(measured(4))
    assert ledger.metrics().totals[Peer("counts.0")].rows_arrived == 4


def test_the_timeline_has_every_interval_of_the_sinks(clock: Clock) -> None:
    ledger = RunLedger()
    ledger.sink(sink(10, age_s=0.02))
    clock.now += 0.25
    ledger.sink(say.SinkMeasured("r", Peer("out"), 0.25, 0, LatencyHistogram()))
    first, second = ledger.timeline
    assert (first.rows, first.seconds, second.time - first.time) == (10, 0.25, 0.25)
    assert first.p50_ms == pytest.approx(20, rel=0.02)
    assert math.isnan(second.p99_ms)


def test_what_was_handed_out_does_not_change_any_more(clock: Clock) -> None:
    ledger = RunLedger()
    ledger.sink(sink(10))
    ledger.executor(measured(8))
    before = ledger.metrics()
    ledger.sink(sink(10))
    ledger.executor(measured(8, who="counts.1"))
    assert before.latency.count == before.recent_latency.count == 10
    assert set(before.executors) == set(before.totals) == {"counts.0"}


def test_two_threads_lose_nothing_while_a_third_reads() -> None:
    ledger = RunLedger()
    rounds = 150
    barrier = threading.Barrier(3)
    wrong: list[str] = []

    def write(name: str) -> None:
        barrier.wait(10)
        for _ in range(rounds):
            ledger.source(source(3, who=name))
            ledger.sink(sink(2, who=name))

    def read() -> None:
        barrier.wait(10)
        for _ in range(20):
            metrics = ledger.metrics()
            if metrics.latency.count != metrics.rows_out:
                wrong.append(f"{metrics.latency.count} latencies of {metrics.rows_out} rows")

    threads = [threading.Thread(target=write, args=(name,)) for name in "ab"]
    threads.append(threading.Thread(target=read))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    metrics = ledger.metrics()
    assert not wrong
    assert (metrics.rows_in, metrics.rows_out, metrics.latency.count) == (
        *(6 * rounds, 4 * rounds, 4 * rounds),
    )
    assert len(ledger.timeline) == 2 * rounds
