"""`elasticutor sim`, as a person or a script meets it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from elasticutor.cli.app import app
from elasticutor.errors import BadValueError

_SMALL = "--nodes 2 --cores 2 --executors 2 --upstreams 2 --shards 16 --keys 200 --warmup 0.5"
SMALL = _SMALL.split()
FIELDS = {
    "paradigm",
    "throughput",
    "ideal",
    "ratio",
    "bound",
    "bound_ratio",
    "saturated",
    "latency_mean_ms",
    "latency_p50_ms",
    "latency_p90_ms",
    "latency_p99_ms",
    "cpu_beyond_ms_per_tuple",
    "reassignments",
    "core_moves",
    "sync_ms_p50",
    "migration_ms_p50",
    "recovery_s",
    "state_migrated_mb_s",
    "remote_mb_s",
    "timeline",
    "wall_s",
    "wall_s_per_simulated_s",
    "events",
    "seed",
}


def sim(*words: str) -> Result:
    return CliRunner().invoke(app, ["sim", *SMALL, *words])


def test_help_reads_well() -> None:
    result = sim("--help")
    assert result.exit_code == 0
    assert "Usage" in result.output
    assert "--paradigm" in result.output


@pytest.mark.parametrize("paradigm", ["elastic", "static", "rc", "naive"])
def test_figures_are_printed_as_json(paradigm: str) -> None:
    result = sim("--paradigm", paradigm, "--seconds", "1", "--json")
    assert result.exit_code == 0, result.output
    figures = json.loads(result.stdout)
    assert set(figures) >= FIELDS
    assert figures["paradigm"] == paradigm
    assert figures["ideal"] == 4000
    assert 0.5 < figures["ratio"] < 1.05
    assert len(figures["timeline"]) == 10
    assert set(figures["timeline"][0]) == {
        "time_s",
        "throughput",
        "mean_ms",
        "p50_ms",
        "cores",
        "moves",
    }


def test_figures_are_printed_as_a_table() -> None:
    result = sim("--seconds", "0.5", "--rate", "1000")
    assert result.exit_code == 0
    for word in ("tuples a second", "share of ideal", "latency, p99", "sources held up"):
        assert word in result.stdout


def test_a_surge_is_reported() -> None:
    result = sim("--seconds", "2", "--rate", "800", "--surge", "0.5:1.5@0.5", "--json")
    assert result.exit_code == 0, result.output
    assert set(json.loads(result.stdout)) > {"surge_rounds", "surge_s"}


def test_a_picture_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    picture = tmp_path / "run.svg"
    result = sim("--seconds", "1", "--plot", str(picture))
    assert result.exit_code == 0, result.output
    assert picture.read_text().startswith("<?xml")


def figures_of(*words: str) -> dict[str, float]:
    result = sim("--seconds", "2", "--rate", "400", "--json", *words)
    assert result.exit_code == 0, result.output
    figures: dict[str, float] = json.loads(result.stdout)
    return figures


def test_what_messages_cost_can_be_set() -> None:
    usual, free, slow = figures_of(), figures_of("--path-cost", "0"), figures_of("--path-cost", "3")
    assert free["cpu_beyond_ms_per_tuple"] == 0
    assert slow["cpu_beyond_ms_per_tuple"] > 2 * usual["cpu_beyond_ms_per_tuple"] > 0
    assert free["latency_p50_ms"] < usual["latency_p50_ms"] < slow["latency_p50_ms"]


def test_what_a_message_costs_a_main_process_can_be_set_apart() -> None:
    usual, slow = figures_of(), figures_of("--message-us", "1020")
    assert slow["latency_p50_ms"] - usual["latency_p50_ms"] > 1.99  # it takes two of a tuple
    assert figures_of("--message-us", "20")["latency_mean_ms"] == usual["latency_mean_ms"]


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("--paradigm", "magic"), "--paradigm"),
        (("--rate", "fast"), "--rate"),
        (("--rate", "-3"), "--rate"),
        (("--surge", "soon", "--rate", "100"), "--surge"),
        (("--nodes", "0"), "--nodes"),
        (("--arrivals", "soon"), "--arrivals"),
        (("--path-cost", "-1"), "--path-cost"),
        (("--seconds", "0"), "--seconds"),
    ],
)
def test_bad_options_are_refused_with_2(words: tuple[str, ...], complaint: str) -> None:
    result = sim(*words)
    assert result.exit_code == 2
    assert complaint in result.stderr


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("--executors", "5"), "executors must be at most 4"),
        (("--surge", "1:8@10"), "rate must be a number when there is a surge"),
        (("--plot", "run.gif"), "--plot must end in"),
        (("--plot", "nowhere/run.svg"), "--plot must be in a directory"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(
    words: tuple[str, ...], complaint: str
) -> None:
    result = sim(*words)
    assert isinstance(result.exception, BadValueError)
    assert complaint in str(result.exception)


def test_ctrl_c_ends_a_run_cleanly_with_what_was_found() -> None:
    words = [sys.executable, "-m", "elasticutor", "sim", *SMALL, "--seconds", "100000", "--json"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        assert "simulating 100000 s" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait(timeout=60)
    assert process.returncode == 130
    assert "interrupted after" in err
    assert "Traceback" not in err
    assert set(json.loads(out)) >= FIELDS
