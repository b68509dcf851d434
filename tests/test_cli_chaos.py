"""`elasticutor chaos` as a person or a script meets it."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner, Result

from elasticutor.cli.app import app
from elasticutor.lab.chaos.result import ChaosResult
from elasticutor.lab.chaos.setting import ChaosSetting

WRONG = "outputs: key 3 of source task 0: 5 instead of 6"


def chaos(*words: str) -> Result:
    return CliRunner().invoke(app, ["chaos", *words])


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[ChaosSetting]:
    """What is asked for; the runs themselves are made up, and the one of seed 9 goes wrong."""
    settings: list[ChaosSetting] = []

    def run(setting: ChaosSetting, progress: object) -> ChaosResult:
        settings.append(setting)
        result = ChaosResult(seed=setting.seed, kills=setting.kills, recoveries_s=[0.5, 0.25])
        result.kills_by_kind["task"] = setting.kills
        result.kills_by_point["node takes CopyShard"] = 1
        if setting.seed == 9:
            result.violated = [WRONG] * 30
            result.folder = "/tmp/kept"  # noqa: S108 - a name
        return result

    monkeypatch.setattr("elasticutor.lab.chaos.runner.run_chaos", run)
    return settings


def test_help_reads_well() -> None:
    result = chaos("--help")
    assert result.exit_code == 0
    assert "Usage" in result.output
    for flag in ("--kills", "--driver-kills", "--seed", "--json", "--keep", "local[4]"):
        assert flag in result.output


def test_figures_are_printed_as_json(asked: list[ChaosSetting]) -> None:
    result = chaos("--kills", "7", "--driver-kills", "2", "--json")
    assert result.exit_code == 0
    figures = json.loads(result.stdout)
    assert figures["kills"] == 7
    assert figures["violations"] == 0
    assert figures["slowest_recovery_s"] == 0.5
    assert figures["kills_by_kind"] == {"task": 7}
    assert asked == [ChaosSetting(kills=7, driver_kills=2)]


def test_flags_reach_the_run(asked: list[ChaosSetting]) -> None:
    words = "--seed 4 --nodes 3 --cores 2 --rate 900 --epoch-interval 0.5 --timeout 20 --keep"
    assert chaos(*words.split(), "--master", "local[4]").exit_code == 0
    (setting,) = asked
    assert (setting.seed, setting.nodes, setting.cores, setting.rate) == (4, 3, 2, 900)
    assert (setting.epoch_interval_s, setting.timeout_s, setting.keep) == (0.5, 20, True)
    assert setting.master == "local[4]"


@pytest.mark.usefixtures("asked")
def test_figures_are_printed_as_a_table() -> None:
    result = chaos("--kills", "7")
    assert result.exit_code == 0
    assert "slowest recovery s" in result.stdout
    assert "node takes CopyShard" in result.stdout


@pytest.mark.usefixtures("asked")
def test_a_violation_is_told_and_the_exit_code_is_1() -> None:
    result = chaos("--seed", "9", "--json")
    assert result.exit_code == 1
    assert json.loads(result.stdout)["violations"] == 30
    assert WRONG in " ".join(result.stderr.split())
    assert "20 more" in result.stderr
    assert "/tmp/kept" in result.stderr  # noqa: S108 - a name


@pytest.mark.parametrize(
    "words",
    [
        ("--kills", "-1"),
        ("--driver-kills", "x"),
        ("--nodes", "0"),
        ("--rate", "0"),
        ("--epoch-interval", "0"),
        ("--timeout", "0"),
    ],
    ids=" ".join,
)
def test_numbers_that_cannot_be_are_refused_by_name(words: tuple[str, ...]) -> None:
    result = chaos(*words)
    assert result.exit_code == 2
    assert words[0] in result.stderr


def test_too_few_cores_and_a_master_elsewhere_are_refused_before_anything_starts() -> None:
    assert "4 cores" in str(chaos("--nodes", "1", "--cores", "3").exception)
    assert "local" in str(chaos("--master", "yarn").exception)
