"""`elasticutor state` as a person or a script meets it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.state.checkpoint.rig import Job, form, some_epochs
from typer.testing import CliRunner, Result

from elasticutor.cli.app import app
from elasticutor.cli.state import keys_meant
from elasticutor.errors import BadValueError, ElasticutorError
from elasticutor.state.checkpoint import MismatchError, StateForm
from elasticutor.state.inspection.reading import StateReader

TYPED = pa.schema({"n": pa.int64(), "last": pa.string()})


def state(*words: str | Path) -> Result:
    return CliRunner().invoke(app, ["state", *map(str, words)])


def told(*words: str | Path) -> Any:
    result = state(*words, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


@pytest.mark.parametrize("words", [(), ("ls",), ("show",), ("diff",), ("check",)])
def test_help_reads_well(words: tuple[str, ...]) -> None:
    result = state(*words, "--help")
    assert result.exit_code == 0
    assert "Usage" in result.output
    if words in (("show",), ("diff",)):
        assert "runs code" in " ".join(result.output.replace("│", " ").split())


def test_epochs_are_listed_for_people_and_for_programs(tmp_path: Path) -> None:
    some_epochs(tmp_path)
    result = state("ls", tmp_path)
    assert result.exit_code == 0
    for word in ("released", "current", "counts", "2 × 4", "offset of clicks.0 in epoch 3: 3"):
        assert word in result.stdout
    figures = told("ls", tmp_path)
    assert figures["claim"]["liveness"] == "released"
    assert [epoch["epoch"] for epoch in figures["epochs"]] == [3, 2, 1, 0]
    newest = figures["epochs"][0]
    assert newest["sources"] == {"clicks.0": 3}
    assert newest["operators"]["counts"]["executors"] == 2
    assert newest["operators"]["counts"]["rows"] == 36
    assert newest["current"] is True
    assert newest["error"] is None


def test_a_damaged_epoch_is_listed_with_its_error(tmp_path: Path) -> None:
    some_epochs(tmp_path)
    path = tmp_path / "epochs" / "000000000002-1000000001.json"
    path.write_bytes(b"{")
    result = state("ls", tmp_path)
    assert result.exit_code == 0
    assert "damaged" in result.stdout
    assert path.name in result.stderr.replace("\n", "")
    assert "whole JSON" in told("ls", tmp_path)["epochs"][1]["error"]


def test_keys_and_values_are_shown(tmp_path: Path) -> None:
    Job(tmp_path, form(schema=TYPED)).epoch({1: (3, "[red]Oslo"), 2: (4, None)})
    result = state("show", tmp_path, "counts")
    assert result.exit_code == 0
    for word in ("user", "n", "last", "'[red]Oslo'"):
        assert word in result.stdout
    entries = told("show", tmp_path, "counts")["entries"]
    assert {entry["key"]: entry["value"] for entry in entries} == {
        1: {"n": 3, "last": "[red]Oslo"},
        2: {"n": 4, "last": None},
    }


def test_one_key_of_one_epoch_can_be_asked_for(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.epoch({1: "then", 2: "other"})
    job.epoch({1: "now"})
    (entry,) = told("show", tmp_path, "counts", "--key", "1", "--epoch", "1")["entries"]
    assert (entry["key"], entry["value"]) == (1, "then")
    assert told("show", tmp_path, "counts", "--key", "1")["entries"][0]["value"] == "now"


def test_a_limit_is_kept_and_the_rest_mentioned(tmp_path: Path) -> None:
    Job(tmp_path).epoch(dict.fromkeys(range(9), "x"))
    result = state("show", tmp_path, "counts", "--limit", "2")
    assert "there are more" in result.stderr
    shown = told("show", tmp_path, "counts", "--limit", "2")
    assert len(shown["entries"]) == 2
    assert shown["more"] is True


def test_pickles_are_opened_on_request_only(tmp_path: Path) -> None:
    Job(tmp_path).epoch({1: {"a": (1, 2.5, b"x", float("inf"))}})
    assert "<pickled, " in state("show", tmp_path, "counts").stdout
    assert told("show", tmp_path, "counts")["entries"][0]["value"].startswith("<pickled, ")
    (entry,) = told("show", tmp_path, "counts", "--unpickle")["entries"]
    assert entry["value"] == {"a": [1, 2.5, {"bytes": "eA=="}, "inf"]}


def test_epochs_are_compared(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.epoch({1: "a", 2: "b", 3: "c"})
    job.epoch({1: None, 2: "B", 4: "d"})
    words = ("diff", tmp_path, "counts", "--from", "1", "--to", "2")
    assert "1 added, 1 removed, 1 changed" in state(*words).stdout
    found = told(*words)
    assert found["counts"] == {"added": 1, "removed": 1, "changed": 1}
    assert [entry["key"] for entry in found["added"]] == [4]
    assert [entry["value"] for entry in found["removed"]] == ["a"]
    assert found["changed"] == [{"key": 2, "was": "b", "is": "B"}]


def test_a_whole_checkpoint_is_told_so_with_0(tmp_path: Path) -> None:
    some_epochs(tmp_path)
    result = state("check", tmp_path)
    assert result.exit_code == 0
    assert "4 epochs" in result.stdout
    assert "whole" in result.stdout
    assert told("check", tmp_path)["damaged"] == []


def test_a_damaged_checkpoint_is_told_with_1_and_the_names(tmp_path: Path) -> None:
    some_epochs(tmp_path)
    path = next((tmp_path / "state").rglob("*-000000000003-*.parquet"))
    path.write_bytes(path.read_bytes()[:-1])
    result = state("check", tmp_path)
    assert result.exit_code == 1
    assert path.name in result.stderr.replace("\n", "")
    result = state("check", tmp_path, "--json")
    assert result.exit_code == 1
    (fault,) = json.loads(result.stdout)["damaged"]
    assert fault["path"] == str(path.relative_to(tmp_path))
    assert (fault["epochs"], fault["kind"]) == ([3], "DamagedError")


def test_an_interrupted_check_tells_what_it_has_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    some_epochs(tmp_path)
    names = StateReader.names

    def interrupted(reader: StateReader) -> object:
        names(reader)
        raise KeyboardInterrupt

    monkeypatch.setattr(StateReader, "names", interrupted)
    result = state("check", tmp_path)
    assert result.exit_code == 128 + signal.SIGINT
    assert "interrupted after 0 files" in result.stderr


@pytest.mark.parametrize(
    ("words", "kind", "complaint"),
    [
        (("ls", "{}/nowhere"), MismatchError, "nothing there"),
        (("show", "{}", "other"), BadValueError, "counts; got 'other'"),
        (("show", "{}", "counts", "--epoch", "7"), MismatchError, "[3, 2, 1, 0]"),
        (("show", "{}", "counts", "--key", "x"), BadValueError, "keys are by user int64"),
        (("diff", "{}", "counts", "--from", "8"), MismatchError, "have epoch 8"),
        (("check", "{}/nowhere"), MismatchError, "nothing there"),
    ],
)
def test_what_is_not_there_is_named_with_what_is(
    tmp_path: Path, words: tuple[str, ...], kind: type[ElasticutorError], complaint: str
) -> None:
    some_epochs(tmp_path)
    result = state(*(word.format(tmp_path) for word in words))
    assert isinstance(result.exception, kind)
    assert complaint in str(result.exception)


def test_errors_are_one_sentence_and_2(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "elasticutor", "state", "ls", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("error: checkpoint ")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("text", "kinds", "key"),
    [
        ("7", ("int64",), 7),
        ("7", ("string",), "7"),
        ("'7'", ("string",), "7"),
        ("7", ("double",), 7.0),
        ("Oslo", ("string",), "Oslo"),
        ("None", ("int64",), None),
        ("b'x'", ("binary",), b"x"),
        ("('Oslo', 7)", ("string", "int32"), ("Oslo", 7)),
        ("('Oslo', 7)", ("string", "double"), ("Oslo", 7.0)),
    ],
)
def test_a_key_may_be_meant_in_several_ways(text: str, kinds: tuple[str, ...], key: Any) -> None:
    columns = tuple((f"k{place}", kind) for place, kind in enumerate(kinds))
    meant = keys_meant(text, StateForm("counts", 1, 1, columns))
    assert any(type(one) is type(key) and repr(one) == repr(key) for one in meant)
