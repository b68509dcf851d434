"""The live benchmarks' command line: what it takes, and the shape of what it prints.

The figures themselves are for a quiet machine, and not looked at here. Commands run on real
processes, but without Spark, which takes longer to start than all of them to run.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psutil
import pytest
from typer.testing import CliRunner, Result

from elasticutor.cli.app import app
from elasticutor.driver.cluster import BaseCluster
from elasticutor.driver.process_cluster import ProcessCluster
from elasticutor.driver.run import Run
from elasticutor.lab.bench import live

LIVE = ("throughput", "latency", "path", "width", "shuffle", "memory", "elastic", "scheduler")


def bench(*words: str) -> Result:
    return CliRunner().invoke(app, ["bench", *words])


@pytest.fixture(scope="module")
def processes() -> Iterator[BaseCluster]:
    """One cluster for all; at the end nothing of it may be left."""
    mine = set(psutil.Process().children(recursive=True))
    with ProcessCluster(nodes=1, cores=3, schedule_s=0) as cluster:
        yield cluster
        started = set(psutil.Process().children(recursive=True)) - mine
    assert started
    _, left = psutil.wait_procs(
        [process for process in started if "resource_tracker" not in _words(process)], timeout=20
    )
    assert left == []


def _words(process: psutil.Process) -> str:
    """A command line; of one that has ended, none."""
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return ""


@pytest.fixture
def without_spark(processes: BaseCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def cluster(cores: int, nodes: int = 1, **options: Any) -> Iterator[BaseCluster]:
        yield processes

    monkeypatch.setattr(live, "spark_cluster", cluster)


def figures(*words: str, repeat: int = 1) -> dict[str, Any]:
    result = bench(*words, "--repeat", str(repeat), "--json")
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    assert found["reference_us"] > 0
    assert set(found["machine"]) >= {"cores", "python", "pyarrow"}
    return found


@pytest.mark.parametrize("command", LIVE)
def test_help_reads_well(command: str) -> None:
    result = bench(command, "--help")
    assert result.exit_code == 0
    assert "Usage" in result.output
    assert "--json" in result.output


@pytest.mark.parametrize(
    "words",
    [
        ("throughput", "--rows", "0"),
        ("latency", "--load", "1.5"),
        ("latency", "--cost-ms", "0"),
        ("width", "--cores", "0"),
        ("shuffle", "--every", "0.1"),
        ("memory", "--repeat", "0"),
        ("scheduler", "--executors", "0"),
        ("scheduler", "--nodes", "0"),
        ("driver", "--executors", "1"),
    ],
    ids=" ".join,
)
def test_numbers_that_cannot_be_are_refused_by_name_before_anything_starts(
    words: tuple[str, ...],
) -> None:
    result = bench(*words)
    assert result.exit_code == 2
    assert words[1] in result.stderr


@pytest.mark.usefixtures("without_spark")
def test_throughput_has_a_rate_for_each_kind_of_operator() -> None:
    found = figures("throughput", "--rows", "3000", "--cores", "1")
    assert found["per_record_rows_s"] > 0
    assert found["vectorised_rows_s"] > 0
    assert found["rows"] == 3000


@pytest.mark.usefixtures("without_spark")
def test_latency_has_percentiles_that_rise_and_are_no_less_than_the_work() -> None:
    words = ("--seconds", "1", "--warm-up", "0.5", "--load", "0.1", "--cores", "1")
    found = figures("latency", *words)
    assert 1.0 <= found["p50_ms"] <= found["p90_ms"] <= found["p99_ms"] <= found["p999_ms"]
    assert found["offered_rows_s"] == 100
    assert found["rows_s"] > 0


@pytest.mark.usefixtures("without_spark")
def test_width_is_a_share_of_what_the_cores_could_do() -> None:
    found = figures("width", "--cores", "2", "--seconds", "1", "--warm-up", "0.5")
    assert found["ideal_rows_s"] == 2000
    assert 0 < found["share_of_ideal"] < 1.1
    assert found["rows_s"] == pytest.approx(2000 * found["share_of_ideal"], rel=0.01)
    assert 0 < found["chunks_s"] <= found["rows_s"] * 1.5


@pytest.mark.usefixtures("without_spark")
def test_shuffle_has_a_recovery_for_every_shuffle() -> None:
    found = figures("shuffle", "--cores", "3", "--shuffles", "2", "--every", "1")
    assert len(found["recoveries_s"]) == found["shuffles"] == 2
    assert all(0 <= recovery <= 1 for recovery in found["recoveries_s"])
    assert found["unrecovered"] == sum(recovery == 1 for recovery in found["recoveries_s"])


@pytest.mark.usefixtures("without_spark")
def test_memory_weighs_every_kind_of_process() -> None:
    found = figures("memory", "--cores", "2", "--rows", "1000")
    for kind in ("task", "main", "node", "source", "sink", "zygote"):
        assert found[f"{kind}_rss_mb"] >= found[f"{kind}_pss_mb"] >= found[f"{kind}_uss_mb"] > 0


_SMALL = ("--nodes", "1", "--cores", "2", "--cost", "sleep:2ms", "--warm-up", "0.5")


@pytest.mark.usefixtures("without_spark")
def test_elastic_tells_throughput_latency_and_a_timeline() -> None:
    words = (*_SMALL, "--load", "0.3", "--seconds", "3", "--omega", "60", "--paradigm", "rc")
    found = figures("elastic", *words)
    assert found["paradigm"] == "rc"
    assert found["ideal"] == 1000.0
    assert found["throughput"] > 0
    for name in ("latency_mean_ms", "latency_p50_ms", "latency_p99_ms", "recovery_s"):
        assert found[name] >= 0
    assert found["worst_second_p99_ms"] >= found["latency_p50_ms"]
    assert {"sync_ms_p50", "migration_ms_p50", "reassignments"} <= set(found)
    assert len(found["timeline"]) == 35
    assert set(found["timeline"][-1]) >= {"time", "throughput"}


@pytest.mark.usefixtures("without_spark")
def test_elastic_compares_paradigms_by_pairs() -> None:
    words = (*_SMALL, "--rate", "max", "--seconds", "2", "--paradigm", "elastic,static")
    found = figures("elastic", *words)
    assert [run["paradigm"] for run in found["runs"]] == ["elastic", "static"]
    low, high = found["throughput_elastic_over_static_ci95"]
    assert 0 < low <= found["throughput_elastic_over_static"] <= high


@pytest.mark.parametrize(
    "words",
    [
        ("--paradigm", "fast"),
        ("--paradigm", "rc,rc"),
        ("--cost", "1ms"),
        ("--cost", "sleep:0ms"),
        ("--rate", "fast"),
        ("--surge", "8:1"),
    ],
)
def test_elastic_refuses_what_cannot_be_before_it_starts(words: tuple[str, str]) -> None:
    result = bench("elastic", *words)
    assert result.exit_code == 2
    assert words[0] in result.output


def test_scheduler_tells_what_a_decision_takes() -> None:
    words = ("--nodes", "3", "--cores", "2", "--executors", "4", "--cases", "5", "--repeat", "3")
    found = json.loads(bench("scheduler", *words, "--json").stdout)
    assert found["median_ms"] > 0
    assert (found["nodes"], found["cores"], found["executors"]) == (3, 2, 4)
    assert 0 <= found["assignment"]["at_optimum"] <= 1
    assert "a decision, median" in bench("scheduler", *words).stdout


def test_scheduler_decides_about_more_executors_than_cores_too() -> None:
    words = ("--nodes", "2", "--cores", "3", "--executors", "8", "--cases", "5")
    found = figures("scheduler", *words, repeat=3)
    assert 0 < found["median_ms_p10"] <= found["median_ms"] <= found["median_ms_p90"]
    assert (found["executors"], found["repeat"]) == (8, 3)
    assert 0 <= found["plans"] <= 3
    assert 1 <= found["assignment"]["mean_ratio"] <= found["assignment"]["worst_ratio"]


def test_driver_tells_what_executors_cost_it() -> None:
    words = ("--executors", "6", "--seconds", "1", "--warm-up", "1.5")
    found = json.loads(bench("driver", *words, "--json").stdout)
    assert 0 < found["cpu"] < 2
    assert found["measure_s"] == 0.25
    assert found["messages_s"] > 0
    assert (found["executors"], found["dropped"]) == (6, 0)
    assert "elasticutor-hub" in found["threads"]


@pytest.mark.usefixtures("without_spark")
def test_without_json_a_table_is_printed_and_progress_stays_on_standard_error() -> None:
    result = bench("memory", "--cores", "1", "--rows", "100", "--repeat", "1")
    assert result.exit_code == 0
    assert "zygote" in result.stdout
    assert "run 1 of 1" in result.stderr
    assert "run 1 of 1" not in result.stdout


def test_an_interruption_stops_everything_and_ends_with_130(
    processes: BaseCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped = []

    @contextmanager
    def cluster(cores: int, nodes: int = 1, **options: Any) -> Iterator[BaseCluster]:
        try:
            yield processes
        finally:
            stopped.append(True)

    def interrupted(run: Run, timeout_s: float | None = None) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(live, "spark_cluster", cluster)
    monkeypatch.setattr(Run, "wait", interrupted)
    result = bench("memory", "--cores", "1")
    assert result.exit_code == 130
    assert "interrupted" in result.stderr
    assert stopped
    assert processes.free_cores == {"n0": 3}


def test_flush_tells_for_each_kind_of_state_what_an_epoch_costs() -> None:
    options = ("--states", "300", "--changed", "200", "--shards", "3", "--rounds", "2")
    figures = json.loads(bench("flush", *options, "--json").stdout)
    assert (figures["states"], figures["changed"]) == (300, 200)
    assert set(figures["kinds"]) == {"int", "bytes", "tuple", "list"}
    assert all(kind["us_per_state"] > 0 for kind in figures["kinds"].values())
    assert "set apart" in bench("flush", *options).stdout


def test_flush_refuses_to_change_more_states_than_there_are() -> None:
    result = bench("flush", "--states", "10", "--changed", "11")
    assert result.exit_code != 0
    assert "changed states must be 1 to 10; got 11" in str(result.exception) + result.output
