"""What benchmarks compute from what they have measured, on numbers made up."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from elasticutor.driver.metrics import Moment
from elasticutor.errors import BadValueError
from elasticutor.lab.bench.declare import percentiles, ratios, with_interval
from elasticutor.lab.bench.live import Bench, rate_between
from elasticutor.lab.bench.load.emulated import LoadRise, _backlog_gone_s
from elasticutor.lab.bench.load.shuffle import OutputTimes, hottest_share
from elasticutor.lab.bench.memory import Weight
from elasticutor.lab.bench.moves.consistency import ChainLinks, linked
from elasticutor.lab.bench.moves.reassign import ratio_of_p99
from elasticutor.lab.bench.moves.touches import Scene
from elasticutor.lab.bench.path import _arrival, per_tuple_ms
from elasticutor.lab.bench.peer.beside import PeerSetting, best_of, described
from elasticutor.lab.bench.record import Latency, Recording
from elasticutor.lab.demo.demo import FIRST_S, Frame, _absorbed, offered_rows_s
from elasticutor.sources import Generator


def test_percentiles_have_names_and_none_of_no_samples() -> None:
    found = percentiles("p50_ms", [1.0, 2.0, 3.0])
    assert found == {"p50_ms": 2.0, "p50_ms_p10": 1.2, "p50_ms_p90": 2.8}
    assert set(percentiles("p50_ms", []).values()) == {None}


def test_ratios_are_by_pairs_and_lie_in_their_interval() -> None:
    assert ratios([2.0, 3.0], [4.0, 3.0]) == [0.5, 1.0]
    assert with_interval([0.9, 1.0, 1.1]) == (1.0, 0.9, 1.1)


def test_the_rate_is_that_of_the_intervals_between_two_times() -> None:
    moments = [Moment(11.0, 1.0, 5, 1, 1), Moment(12.0, 1.0, 7, 1, 1)]
    assert rate_between(moments, 10.5, 12.0) == 7.0


def test_a_process_weighs_what_its_pages_do() -> None:
    weight = Weight()
    weight.read("Rss: 2048 kB\nPss: 1024 kB\nPrivate_Clean: 512 kB\nPrivate_Dirty: 256 kB\n")
    assert weight.as_dict() == {"rss_mb": 2.0, "pss_mb": 1.0, "uss_mb": 0.75}


def test_cpu_time_per_tuple_is_without_the_operators() -> None:
    before, after = {"main": 1.0, "task": 2.0}, {"main": 1.05, "task": 3.1}
    spent = per_tuple_ms(before, after, rows=1000, cost_ms=1.0)
    assert spent == pytest.approx({"main": 0.05, "task": 0.1})


@pytest.mark.parametrize(
    ("sent", "parts"),
    [
        pytest.param(1.0, (2.0, 2.0, 1.0), id="while the receiver was busy, until 3"),
        pytest.param(4.0, (0.0, 1.0, 1.0), id="while it was idle"),
        pytest.param(5.5, (0.5, 0.0, 0.0), id="after it was woken up, at 5"),
    ],
)
def test_a_message_queues_wakes_up_and_is_read(sent: float, parts: tuple[float, ...]) -> None:
    found = _arrival(sent, idle=3.0, woken=5.0, taken=6.0)
    assert found == dict(zip(("queue", "wake-up", "python"), parts, strict=True))


def test_the_worst_second_counts_by_due_times_within_what_is_measured() -> None:
    due = np.array([0.0, 1.2, 1.4, 2.1])
    late = np.array([9.0, 0.001, 0.003, 0.05])
    assert Latency.of(due, due + late, 1.0, 3.0).worst_second_p50_ms == 50.0


def test_the_peers_best_setting_has_the_smallest_figure() -> None:
    settings = [PeerSetting(2, rows) for rows in (1, 10, 100)]
    best = best_of(settings, lambda setting: abs(setting.batch_rows - 12.0), Bench())
    assert best.setting.batch_rows == 10
    assert [one["figure"] for one in best.tried] == [11.0, 2.0, 88.0]


def test_a_peers_setting_is_told_in_words() -> None:
    assert described(PeerSetting(2, 100)) == "2 processes, batches of 100"
    assert described(PeerSetting(1, 10, threads=8)) == "1 process of 8 workers, batches of 10"


def test_a_sequential_program_chains_the_tuples_of_each_key() -> None:
    links = ChainLinks.of_source(np.array([7, 3, 7]), np.array([0, 5, 9]))
    assert links.keys.tolist() == [3, 7, 7]
    assert links.sequences.tolist() == [1, 0, 2]
    first = linked(0, 0, 0)
    assert links.chains.tolist() == [linked(0, 1, 5), first, linked(first, 2, 9)]
    assert links.ends() == {3: (1, linked(0, 1, 5)), 7: (2, linked(first, 2, 9))}


def test_a_shuffle_is_recovered_from_when_rate_and_latency_are_normal_again() -> None:
    due = np.arange(0, 8, 0.001)
    # Those due in the first half second after the shuffle at 4 s come when that is over.
    arrived = np.where((due >= 4) & (due < 4.5), 4.5, due) + 0.01
    outputs = OutputTimes(Recording(0.0, arrived, np.ones(8000, int), due), 1000.0, 4.0)
    recovery = outputs.recovery(4.0)
    assert (recovery.seconds, recovery.settled, recovery.recovered) == (0.52, True, True)
    assert round(recovery.worst_ms) == 505


def test_the_hottest_shard_has_at_least_the_hottest_keys_share() -> None:
    assert round(hottest_share(Generator(keys=10_000, zipf=1.0, seed=0), 0), 2) == 0.11


def test_a_surges_backlog_is_gone_when_no_more_waits_than_has_just_fallen_due() -> None:
    rows = [10, 10, 10, 0, 30, 150, 150, 110, 80]  # of tenths of a second; 80 fall due
    moments = [Moment(k / 10, 0.1, n, 1, 1) for k, n in enumerate(rows, start=1)]
    assert _backlog_gone_s(moments, 0.0, LoadRise(1.0, 8.0, at_s=0.3), cost_s=0.01) == 0.3


def test_a_moved_shard_is_compared_by_the_p99_of_pairs_of_windows() -> None:
    ones = [np.ones(100)] * 9
    assert ratio_of_p99([2 * ages for ages in ones], ones, seed=0) == (2.0, 2.0, 2.0)


def test_moves_are_far_enough_apart_to_touch_a_tenth_of_the_keys() -> None:
    assert Scene(32, "local").interval_s == 0.25
    assert Scene(32768, "local").interval_s == pytest.approx(1.44, abs=0.01)


@pytest.mark.parametrize("bad", [{"state_kb": 0}, {"row_ms": 101}, {"load": 1.5}], ids=str)
def test_a_scene_that_cannot_be_is_refused_by_name(bad: dict[str, float]) -> None:
    scene: Any = {"state_kb": 1, "where": "local", **bad}
    with pytest.raises(BadValueError, match=next(iter(bad))):
        Scene(**scene)


def test_a_rush_is_absorbed_when_it_was_last_felt_for_two_intervals() -> None:
    slow = {3.25: 300.0, 3.5: 900.0, 3.75: 80.0, 5.0: 60.0}
    calm: Any = {"rows_s": 1.0, "p50_ms": 5.0, "cores": {}, "loads": {}, "moves": 0}
    times = [k / 4 for k in range(12, 44)]
    moments = [Frame(time_s=t, p99_ms=slow.get(t, 20.0), **calm) for t in times]
    assert _absorbed(moments, 3.0, 11.0) == 0.75
    assert _absorbed(moments[:3], 3.0, 11.0) == math.inf


def test_the_demo_is_offered_more_during_its_rushes() -> None:
    assert (offered_rows_s(0.0), offered_rows_s(FIRST_S + 1)) == (200.0, 1100.0)
