"""What is made of a run's notes."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from elasticutor.core.paradigm import PARADIGMS
from elasticutor.errors import BadValueError
from elasticutor.lab.sim.cluster import SimulatedCluster
from elasticutor.lab.sim.experiment import Experiment
from elasticutor.lab.sim.model.machines import Machines
from elasticutor.lab.sim.recorder import Bin, Recorder
from elasticutor.lab.sim.report import recoveries, report
from elasticutor.lab.sim.surge import Surge


def moments(levels: list[float]) -> list[Bin]:
    return [Bin(round((i + 1) / 10, 6), level, 1.0, 1.0, 1, 0) for i, level in enumerate(levels)]


def recovered(levels: list[float], *shuffles: float) -> list[float]:
    return [round(seconds, 3) for seconds in recoveries(shuffles, moments(levels))]


# Recovery -----------------------------------------------------------------------------------------


def test_a_shuffle_that_nobody_notices_is_recovered_from_at_once() -> None:
    assert recovered([100.0] * 60, 2.0) == [0.0]


def test_noise_is_no_dip() -> None:
    noise = 100 + 10 * np.random.default_rng(1).standard_normal(100)
    assert recovered(noise.tolist(), 3.0) == [0.0]


def test_a_dip_lasts_until_two_seconds_are_good_on_average() -> None:
    assert recovered([100.0] * 20 + [10.0] * 15 + [100.0] * 45, 2.0) == [1.4]


def test_a_dip_that_comes_late_counts_too() -> None:
    assert recovered([100.0] * 20 + [100.0] * 5 + [0.0] * 10 + [100.0] * 45, 2.0) == [1.4]


def test_what_is_not_recovered_from_before_the_next_is_not_recovered_from() -> None:
    found = recovered([100.0] * 20 + [10.0] * 40 + [100.0] * 40, 2.0, 6.0)
    assert math.isnan(found[0])
    assert found[1] == 0.0


def test_more_than_can_last_is_not_expected_again() -> None:
    levels = [130.0] * 20 + [100.0] * 40
    assert math.isnan(recovered(levels, 2.0)[0])
    assert recoveries([2.0], moments(levels), most=100.0) == [0.0]


def test_without_shuffles_or_time_there_is_nothing_to_recover_from() -> None:
    assert recoveries([], moments([1.0])) == []
    assert recoveries([1.0], []) == []


# Notes --------------------------------------------------------------------------------------------


def test_a_bin_has_its_tuples_its_latencies_and_its_moves() -> None:
    recorder = Recorder(warmup_s=0.1, cores=lambda: 7)
    for time, births in ((0.05, [0.01, 0.02]), (0.15, [0.1, 0.12, 0.13])):
        recorder.results.append((time, np.array(births), len(births)))
        recorder.close_bin(0.1 if time < 0.1 else 0.2)
    recorder.close_bin(0.3)
    first, second, third = recorder.moments
    assert (first.throughput, second.throughput, third.throughput) == (20, 30, 0)
    assert second.mean_ms == pytest.approx(100 / 3)
    assert second.p50_ms == pytest.approx(30)
    assert math.isnan(third.mean_ms)
    assert second.cores == 7
    assert (recorder.done, recorder.latency.count) == (3, 3)
    assert recorder.measured == [second, third]


def test_tuples_of_one_birth_may_be_noted_together() -> None:
    recorder = Recorder(warmup_s=0.0)
    recorder.results += [(0.05, 0.01, 3), (0.06, 0.04, 1)]
    recorder.close_bin(0.1)
    assert recorder.moments[0].throughput == 40
    assert recorder.moments[0].p50_ms == pytest.approx(40)


def test_a_report_of_nothing_is_a_report() -> None:
    """As when a run is interrupted that has hardly begun."""
    cluster = SimulatedCluster(Experiment(machines=Machines(nodes=2, cores=2), executors=2))
    figures = report(cluster).as_dict()
    assert figures["throughput"] == 0
    assert figures["latency_p50_ms"] is None
    json.dumps(figures, allow_nan=False)


# Settings -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong",
    [
        {"paradigm": "magic"},
        {"executors": 0},
        {"executors": 257},
        {"shards": 0},
        {"cost_s": 0.0},
        {"seconds": math.inf},
        {"rate": 0.0},
        {"rate": math.nan},
        {"omega": -1.0},
        {"seed": -1},
        {"surge": Surge(1, 8, 10)},
        {"surge": Surge(1, 8, 100), "rate": 1000.0},
    ],
)
def test_experiments_that_cannot_be_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(BadValueError):
        Experiment(**wrong)


@pytest.mark.parametrize("text", ["", "8", "1:8", "1-8@3", "1:8@x", "0:8@3", "1:inf@3"])
def test_surges_that_cannot_be_are_refused(text: str) -> None:
    with pytest.raises(BadValueError, match="surge"):
        Surge.parse(text)


def test_the_default_is_the_papers_cluster() -> None:
    elastic, rc = Experiment(), Experiment(paradigm="rc")
    assert (round(elastic.ideal), elastic.executor_count, elastic.shard_count) == (256_000, 32, 256)
    assert (rc.executor_count, rc.shard_count) == (256, 32 * 256)


@pytest.mark.parametrize("paradigm", PARADIGMS)
def test_credits_bound_what_is_inside_in_time(paradigm: Any) -> None:
    experiment = Experiment(paradigm=paradigm)
    config = experiment.config
    rows = config.min_credit_bytes / experiment.tuple_bytes
    cores = experiment.machines.total / experiment.executor_count
    inside_s = rows * experiment.upstreams * experiment.cost_s / cores
    assert inside_s <= 2 * experiment.inside_s
    assert config.chunk_s == 0.004
    assert replace(experiment, cost_s=1.0).message_rows == 4
