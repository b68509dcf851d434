"""The command line, as a person or a script meets it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from elasticutor import __version__
from elasticutor.cli.app import app
from elasticutor.errors import BadValueError
from elasticutor.lab.check.mutants.executor import ESSENTIAL
from elasticutor.lab.cli import demo as demo_command
from elasticutor.lab.demo.demo import DemoStory, Frame


def run(*words: str) -> Result:
    return CliRunner().invoke(app, list(words))


def test_version_is_printed() -> None:
    assert run("--version").output.strip() == f"elasticutor {__version__}"


@pytest.mark.parametrize("words", [(), ("check",), ("bench",), ("bench", "core"), ("demo",)])
def test_help_reads_well(words: tuple[str, ...]) -> None:
    result = run(*words, "--help")
    assert result.exit_code == 0
    assert "Usage" in result.output
    assert "Traceback" not in result.output


def test_commands_are_grouped_by_what_they_are_for() -> None:
    printed = run("--help").output
    order = ["Run", "demo", "Look", "state", "Laboratory", "bench", "chaos", "check", "sim"]
    places = [printed.index(f" {word} ") for word in order]
    assert places == sorted(places)


def test_a_misspelt_command_is_refused_with_the_nearest_one() -> None:
    result = run("demoo")
    assert result.exit_code == 2
    assert "Did you mean 'demo'?" in result.stderr


def test_looking_into_a_checkpoint_does_not_load_the_laboratory(tmp_path: Path) -> None:
    code = (
        "import sys; from elasticutor.cli import main; sys.argv[1:] = ['state', 'ls', '.']\n"
        "try: main()\n"
        "except SystemExit: print('elasticutor.state.inspection' in sys.modules)\n"
        "print([name for name in sys.modules if name.startswith('elasticutor.lab')])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, cwd=tmp_path
    )
    assert done.stdout.split() == ["True", "[]"]


@pytest.mark.parametrize("missing", ["typer", "rich"])
def test_without_its_libraries_the_command_line_says_what_to_install(missing: str) -> None:
    code = f"import sys; sys.modules[{missing!r}] = None\nfrom elasticutor.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert f"needs {missing}: pip install 'elasticutor[cli]'" in done.stderr


def test_check_prints_figures_as_json() -> None:
    result = run("check", "--seeds", "6", "--processes", "1", "--json")
    assert result.exit_code == 0
    figures = json.loads(result.stdout)
    assert figures["seeds"] == 6
    assert figures["violations"] == 0
    assert figures["moves"] > 0


def test_check_runs_one_seed_and_tells_its_story() -> None:
    result = run("check", "--seed", "3", "--trace")
    assert result.exit_code == 0
    assert "AttemptBegun" in result.stdout


def test_check_story_does_not_mix_with_json() -> None:
    result = run("check", "--seed", "3", "--trace", "--json")
    assert json.loads(result.stdout)["seeds"] == 1


def test_check_fails_with_1_and_says_how_to_replay() -> None:
    with ESSENTIAL[0].injected():
        result = run("check", "--seeds", "4", "--processes", "1")
    assert result.exit_code == 1
    assert "elasticutor check --seed" in result.stderr


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("check", "--seeds", "0"), "--seeds"),
        (("check", "--trace"), "--seed K"),
        (("bench", "core", "--tasks", "0"), "--tasks"),
        (("demo", "--seed", "-1"), "--seed"),
    ],
)
def test_bad_options_are_refused_with_2(words: tuple[str, ...], complaint: str) -> None:
    result = run(*words)
    assert result.exit_code == 2
    assert complaint in result.stderr


def test_bench_core_prints_figures_as_json() -> None:
    result = run("bench", "core", "--rounds", "1", "--shards", "16", "--tasks", "2", "--json")
    assert result.exit_code == 0
    figures = json.loads(result.stdout)
    assert figures["us_per_chunk"] > 0
    assert figures["shards"] == 16


@pytest.mark.jvm
def test_demo_runs_live_and_prints_figures_and_a_picture(tmp_path: Path) -> None:
    picture = tmp_path / "hot.svg"
    words = ["demo", "--seconds", "2", "--json", "--plot", str(picture)]
    told = subprocess.run(
        [sys.executable, "-m", "elasticutor", *words],
        capture_output=True,
        text=True,
        timeout=200,
        check=True,
    )
    figures = json.loads(told.stdout)
    assert figures["elastic"]["paradigm"] == "elastic"
    assert figures["static"]["moves"] == 0
    assert figures["static"]["core_changes"] == 0
    for story in figures.values():
        assert any(moment["rows_s"] > 0 for moment in story["timeline"])
        assert set(story["timeline"][-1]["cores"]) == {"clicks", "orders"}
    assert figures["static"]["timeline"][-1]["cores"] == {"clicks": 4, "orders": 4}
    assert picture.read_text().startswith("<?xml")


def test_demo_compares_what_it_has_seen(capsys: pytest.CaptureFixture[str]) -> None:
    moved = {"sync_ms": 2.0, "migration_ms": 0.5}
    loads = {"clicks": (0.5,) * 6, "orders": (0.5, 0.5)}
    moment = Frame(
        time_s=2.0,
        rows_s=1200.0,
        p50_ms=5.0,
        p99_ms=20.0,
        cores={"clicks": 6, "orders": 2},
        loads=loads,
        moves=1,
    )
    elastic = DemoStory(
        paradigm="elastic", moments=[moment], moves=[moved], p50_ms=5.0, p99_ms=20.0
    )
    static = DemoStory(paradigm="static", moments=[moment], p50_ms=700.0, p99_ms=2000.0)
    demo_command._compare(elastic, static)
    printed = capsys.readouterr().out
    for word in ("20.0 ms", "2000.0 ms", "2.5 ms", "shards moved"):
        assert word in printed


@pytest.mark.parametrize("plot", ["picture.gif", "nowhere/picture.svg"])
def test_demo_refuses_a_picture_that_cannot_be_before_it_starts(plot: str) -> None:
    result = run("demo", "--plot", plot)
    assert isinstance(result.exception, BadValueError)
    assert "--plot must" in str(result.exception)


def test_ctrl_c_ends_a_check_cleanly_with_what_was_found() -> None:
    words = [sys.executable, "-m", "elasticutor", "check", "--seeds", "100000", "--json"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        assert "checking seeds 0 to 99999" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        # Ends only when every process that holds the pipes has ended, so the workers too.
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait(timeout=60)
    assert process.returncode == 130
    assert "interrupted after" in err
    assert "Traceback" not in err
    assert json.loads(out)["violations"] == 0
