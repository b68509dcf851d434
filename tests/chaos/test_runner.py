"""Chaos itself: what it takes for calm, and short runs of it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from elasticutor.errors import BadValueError
from elasticutor.lab.chaos.child import DriverStory
from elasticutor.lab.chaos.oracle import Verdict
from elasticutor.lab.chaos.processes import MARK, marked
from elasticutor.lab.chaos.result import ChaosResult
from elasticutor.lab.chaos.runner import run_chaos
from elasticutor.lab.chaos.setting import ChaosSetting

COMMITTED = "epoch committed"


def told(folder: Path, *events: tuple[str, float]) -> DriverStory:
    path = folder / "journal.jsonl"
    lines = [json.dumps({"kind": kind, "time": time}) + "\n" for kind, time in events]
    path.write_text("".join(lines))
    story = DriverStory(path)
    story.read()
    return story


@pytest.mark.parametrize(
    ("calm", "events"),
    [
        (False, []),
        (False, [(COMMITTED, 11)]),  # may have been under way when the kill came
        (True, [(COMMITTED, 11), (COMMITTED, 12)]),
        (False, [(COMMITTED, 8), (COMMITTED, 9), (COMMITTED, 11)]),
        (False, [("lost", 11), (COMMITTED, 12), (COMMITTED, 13)]),
        (False, [(COMMITTED, 11), ("lost", 11), (COMMITTED, 12), ("recovered", 13)]),
        (False, [("lost", 11), ("recovered", 13), (COMMITTED, 14)]),
        (True, [("lost", 11), ("recovered", 13), (COMMITTED, 14), (COMMITTED, 15)]),
        (False, [("lost", 11), ("recovered", 13), *[(COMMITTED, 14)] * 2, ("lost", 15)]),
        # A task that nobody needed any more: nothing had to be done about it.
        (True, [("lost", 11), *[(COMMITTED, 12)] * 3]),
    ],
)
def test_all_is_well_when_epochs_are_committed_after_the_last_recovery(
    calm: bool, events: list[tuple[str, float]], tmp_path: Path
) -> None:
    assert told(tmp_path, *events).settled(since=10.0) is calm


def test_a_line_that_is_being_written_is_read_when_it_is_whole(tmp_path: Path) -> None:
    story = told(tmp_path, ("lost", 1.0))
    with story.path.open("a") as file:
        file.write('{"kind": "recovered", "ti')
        file.flush()
        story.read()
        assert story.times("recovered") == []
        file.write('me": 2.0}\n')
    story.read()
    assert story.times("recovered") == [2.0]
    assert story.counts == {"lost": 1, "recovered": 1}


def folders() -> set[Path]:
    return set(Path(tempfile.gettempdir()).glob("elasticutor-chaos-*"))


@pytest.mark.live
@pytest.mark.parametrize(
    ("kills", "driver_kills", "seed"),
    [
        (6, 1, 11),
        pytest.param(25, 2, 12, marks=pytest.mark.matrix),
        pytest.param(25, 2, 13, marks=pytest.mark.matrix),
    ],
)
def test_killed_again_and_again_a_run_counts_every_tuple_once_and_leaves_nothing(
    kills: int, driver_kills: int, seed: int
) -> None:
    before = folders()
    setting = ChaosSetting(
        kills=kills, driver_kills=driver_kills, seed=seed, epoch_interval_s=0.2, keep=True
    )
    seen: list[int] = []
    result = run_chaos(setting, lambda result: seen.append(result.kills))
    assert result.violated == []
    assert result.kills >= kills
    assert result.driver_kills == driver_kills
    # Where the driver was killed too, there is no recovery of its own.
    with_driver = result.kills_by_point["driver during a recovery"]
    assert len(result.recoveries_s) + result.unnoticed + with_driver >= result.kills
    assert min(result.recoveries_s) > 0
    assert len(result.driver_recoveries_s) == result.driver_kills
    assert result.rows > 0
    assert result.moves > 0
    assert result.core_changes > 0
    assert sum(result.kills_by_kind.values()) == result.kills
    assert seen == sorted(seen)
    assert folders() == before


@pytest.mark.live
def test_a_violation_is_counted_and_its_folder_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    before = folders()
    wrong = Verdict(10, 2, ["state: chain: key 3: nothing instead of (1, 2, 3, 4)"])
    monkeypatch.setattr("elasticutor.lab.chaos.runner.judged", lambda *given: wrong)
    result = run_chaos(ChaosSetting(kills=0, keep=True))
    assert result.violations == 1
    (kept,) = folders() - before
    assert result.folder == str(kept)
    assert list(kept.glob("out/*.parquet"))
    assert "run drained" in (kept / "journal-001.jsonl").read_text()
    subprocess.run(["/bin/rm", "-r", str(kept)], check=True)


@pytest.mark.live
def test_a_run_that_hangs_is_a_violation_that_says_so_and_leaves_nothing() -> None:
    before = folders()
    # No second epoch ever ends within the time that is given.
    result = run_chaos(ChaosSetting(kills=1, epoch_interval_s=1_000.0, timeout_s=2.0))
    assert result.kills == 0
    assert any(": not within 2 s" in words for words in result.violated)
    assert any("given up" in words for words in result.violated)
    assert folders() == before


@pytest.mark.live
def test_an_interrupted_run_leaves_neither_processes_nor_files() -> None:
    before = folders()
    with subprocess.Popen(
        [sys.executable, "-m", "elasticutor", "chaos", "--kills", "500", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as command:
        assert command.stderr is not None
        assert "killing 500" in command.stderr.readline()
        (folder,) = wait_for_new_folder(before)
        wait_until_running(folder)
        mark = mark_below(command.pid)
        command.send_signal(signal.SIGINT)
        out, _ = command.communicate(timeout=60)
    assert command.returncode == 130
    assert json.loads(out)["violations"] == 0
    assert marked(mark) == set()
    assert folders() == before


def wait_for_new_folder(before: set[Path]) -> set[Path]:
    from tests.runtime.live import wait_until

    wait_until(lambda: folders() - before, "a folder")
    return folders() - before


def wait_until_running(folder: Path) -> None:
    from tests.runtime.live import wait_until

    def running() -> bool:
        journal = folder / "journal-001.jsonl"
        return journal.exists() and "run running" in journal.read_text()

    wait_until(running, "a run")


def mark_below(pid: int) -> str:
    import psutil

    for process in psutil.Process(pid).children(recursive=True):
        found = process.environ().get(MARK)
        if found:
            return str(found)
    raise AssertionError(f"nobody below {pid} has a mark")


@pytest.mark.parametrize(
    "wrong",
    [
        {"kills": -1},
        {"nodes": 0},
        {"nodes": 1, "cores": 3},
        {"master": "yarn"},
        {"epoch_interval_s": 0.0},
        {"timeout_s": float("nan")},
        {"rate": 1e9},
    ],
    ids=str,
)
def test_settings_that_cannot_be_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(BadValueError):
        ChaosSetting(**wrong)  # type: ignore[arg-type]


def test_the_slowest_recovery_of_others_does_not_count_that_of_drivers() -> None:
    result = ChaosResult(recoveries_s=[0.5, 1.5, 0.7], driver_recoveries_s=[6.0])
    assert result.as_dict()["slowest_recovery_s"] == 1.5
    assert result.as_dict()["median_recovery_s"] == 0.7
    assert result.as_dict()["slowest_driver_recovery_s"] == 6.0
