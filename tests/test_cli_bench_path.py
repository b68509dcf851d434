"""`elasticutor bench path`: CPU time from /proc, hops from notes, and what is printed."""

from __future__ import annotations

import json
import os
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from elasticutor.cli.app import app
from elasticutor.lab.bench import live, path
from elasticutor.lab.bench.declare import median
from elasticutor.lab.bench.live import OPERATOR, BenchError
from elasticutor.lab.bench.path import PathBench, PathFigures, hops_of, processes, read_notes
from elasticutor.lab.bench.tracing import TRACE
from elasticutor.transport.mailbox import FACTORY

BIRTH = 1_000_000_000
"""A tuple that was due at second 1000."""


def process(proc: Path, pid: int, parent: int, name: str, ticks: int) -> None:
    (proc / str(pid)).mkdir()
    fields = f"S {parent} " + "0 " * 9 + f"{ticks} {ticks} 0 0"
    (proc / str(pid) / "stat").write_text(f"{pid} ({name}) {fields}\n")


def test_cpu_time_is_that_of_a_process_and_of_all_that_descend_from_it(tmp_path: Path) -> None:
    process(tmp_path, 1, 0, "init", 1)
    process(tmp_path, 10, 1, "driver", 100)
    process(tmp_path, 11, 10, "a (strange) name", 200)
    process(tmp_path, 12, 11, "java", 300)
    process(tmp_path, 13, 1, "a stranger", 400)
    found = {pid: (name, seconds) for pid, name, seconds in processes(10, tmp_path)}
    ticks_s = found[10][1] / 200
    assert found == {
        10: ("driver", 200 * ticks_s),
        11: ("a (strange) name", 400 * ticks_s),
        12: ("java", 600 * ticks_s),
    }


def write_way(folder: Path, birth: int, *, task: bool = True) -> None:
    """What all processes note of a tuple that spends a millisecond on every step."""

    def line(what: str, kind: str, *ms: float) -> str:
        return " ".join([what, kind, str(birth), *(f"{birth / 1e6 + t / 1e3:.6f}" for t in ms)])

    notes = {
        "tuples.0.7": [line("sent", "Tuples", 1, 2)],
        f"{OPERATOR}.0.8": [
            line("taken", "Tuples", 0, 3, 4, 6),
            line("sent", "Chunk", 5, 6),
            line("taken", "Result", 9, 10, 11, 13),
            line("sent", "Tuples", 12, 13),
        ],
        f"{OPERATOR}.0-t1.9": [
            line("taken", "Chunk", 7, 7.5, 8, 9.5),
            f"{line('sent', 'Result', 9, 9.5)} 0.001",
        ],
        "out.10": [line("taken", "Tuples", 0, 14, 15, 16)],
    }
    if not task:
        del notes[f"{OPERATOR}.0-t1.9"]
    for name, lines in notes.items():
        with (folder / name).open("a") as file:
            file.writelines(f"{text}\n" for text in lines)


def test_a_tuple_is_followed_from_its_due_time_to_the_sink(tmp_path: Path) -> None:
    (tmp_path / "on").touch()
    write_way(tmp_path, BIRTH)
    write_way(tmp_path, BIRTH + 3_000_000, task=False)  # not the first of its chunk
    hops, sampled = hops_of(read_notes(tmp_path), since=0.0)
    assert sampled == 1
    medians = {hop: {part: median(us) for part, us in parts.items()} for hop, parts in hops.items()}
    assert medians["source"] == {"send": 1000.0, "work": 1000.0}
    assert medians["main, in"] == {
        "queue": 0.0,
        "wake-up": 2000.0,
        "python": 1000.0,
        "send": 1000.0,
        "work": 1000.0,
    }
    assert medians["task"]["queue"] == 2000.0
    assert (medians["task"]["operator"], medians["task"]["work"]) == (1000.0, 0.0)
    assert medians["main, out"]["wake-up"] == 1000.0
    assert medians["sink"] == {"queue": 0.0, "wake-up": 2000.0, "python": 1000.0, "work": 1000.0}
    on_its_way = sum(
        us for hop, parts in medians.items() for part, us in parts.items() if part != "send"
    )
    assert medians["in all"] == {"total": 16_000.0}
    assert on_its_way == 2 * 16_000.0  # with the total


def test_what_was_due_before_the_warm_up_ended_does_not_count(tmp_path: Path) -> None:
    write_way(tmp_path, BIRTH)
    with pytest.raises(BenchError, match="seen on every hop"):
        hops_of(read_notes(tmp_path), since=1001.0)


@pytest.mark.parametrize("as_json", [False, True])
def test_the_command_prints_cpu_time_by_role_and_the_hops(
    monkeypatch: pytest.MonkeyPatch, as_json: bool
) -> None:
    told: list[str] = []

    def read_cpu(setting: PathBench, cluster: Any, run: Any, found: PathFigures) -> None:
        assert FACTORY in os.environ
        told.append(os.environ[TRACE])
        if not list(Path(os.environ[TRACE]).iterdir()):
            write_way(Path(os.environ[TRACE]), BIRTH)
        found.roles_ms.setdefault("main", []).append(0.25)
        found.cpu_beyond_ms_per_tuple.append(0.25)

    run: Any = nullcontext(SimpleNamespace(stop=lambda patience_s: None))
    cluster = SimpleNamespace(submit=lambda topology: run)
    monkeypatch.delenv(TRACE, raising=False)
    monkeypatch.delenv(FACTORY, raising=False)
    monkeypatch.setattr(live, "spark_cluster", lambda *a, **k: nullcontext(cluster))
    monkeypatch.setattr(PathBench, "_read_cpu", read_cpu)
    monkeypatch.setattr(path, "watch", lambda run, seconds: 0.0)
    monkeypatch.setattr(path, "hops_of", lambda seen, since: hops_of(seen, 0.0))
    result = CliRunner().invoke(app, ["bench", "path", *(["--json"] if as_json else [])])
    assert result.exit_code == 0, result.output
    assert told
    assert TRACE not in os.environ
    assert FACTORY not in os.environ
    if as_json:
        figures = json.loads(result.stdout)
        assert figures["cpu_beyond_ms_per_tuple"] == 0.25
        assert figures["cpu_beyond_ms_by_role"] == {"main": 0.25}
        assert figures["hops_us"]["sink"]["wake-up"]["p50"] == 2000.0
    else:
        assert "main, out" in result.stdout
        assert "0.250" in result.stdout
