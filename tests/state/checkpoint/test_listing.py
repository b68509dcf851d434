"""What a checkpoint has, whose it is, and whether it is whole."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from tests.state.checkpoint.rig import Job, form, opened, some_epochs

from elasticutor.state.checkpoint import DamagedError, Location, MismatchError, StateFile
from elasticutor.state.checkpoint.claims import Claim, Holder
from elasticutor.state.checkpoint.files import check
from elasticutor.state.inspection import listing
from elasticutor.state.inspection.listing import Checked, check_files, claimed_by, epochs_kept
from elasticutor.state.inspection.reading import StateReader


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def test_epochs_are_listed_with_what_they_have(tmp_path: Path) -> None:
    began = datetime.now(UTC) - timedelta(seconds=5)
    job = Job(tmp_path)
    job.epoch({1: "a", 2: "b"}, {"clicks.0": 10, "out": ("file", 3)})
    job.epoch({1: None}, {"clicks.0": 20, "out": None})
    epochs = epochs_kept(StateReader(tmp_path))
    assert [epoch.epoch for epoch in epochs] == [2, 1, 0]
    newest, before, first = epochs
    assert (newest.run, newest.topology, newest.current) == ("run", "demo", True)
    assert newest.attempt == job.attempt
    assert newest.written is not None
    assert newest.written > began
    assert (newest.sources, newest.sinks) == ({"clicks.0": 20}, {"out": None})
    assert before.sinks == {"out": ("file", 3)}
    (kept,) = newest.operators
    assert (kept.form, kept.rows, kept.keys) == (form(), 3, None)
    assert kept.files == len(job.checkpoint._manifest.files)
    assert kept.size == sum(f.stat().st_size for f in (tmp_path / "state").rglob("*.parquet"))
    assert first.operators[0].keys == 0


def test_keys_are_counted_where_all_files_are_snapshots(tmp_path: Path) -> None:
    history = some_epochs(tmp_path)
    opened(tmp_path, form(3)).release()
    newest = epochs_kept(StateReader(tmp_path))[0]
    assert newest.operators[0].keys == len(history[-1])


def test_void_and_damaged_epochs_are_listed_as_such(tmp_path: Path) -> None:
    some_epochs(tmp_path)
    stale = {path.name: path.read_bytes() for path in (tmp_path / "epochs").iterdir()}
    opened(tmp_path, epoch=2).release()
    for name, data in stale.items():
        (tmp_path / "epochs" / name).write_bytes(data)
    flip(tmp_path / "epochs" / "000000000001-1000000001.json")
    found = {(int(one.epoch), int(one.attempt)): one for one in epochs_kept(StateReader(tmp_path))}
    assert not found[3, 1000000001].current
    assert found[2, 2000000000].current
    assert isinstance(found[1, 1000000001].error, DamagedError)
    assert found[1, 1000000001].operators == ()


def test_manifests_that_are_removed_meanwhile_are_not_called_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One while they are read, and another while they are read again because of that."""
    some_epochs(tmp_path)
    doomed = ["epochs/000000000000-1000000000.json", "epochs/000000000001-1000000001.json"]
    read = Location.read

    def removing(location: Location, path: str) -> object:
        if path == doomed[0]:
            location.remove(path)
            doomed.append(doomed.pop(0))
        return read(location, path)

    monkeypatch.setattr(Location, "read", removing)
    epochs = epochs_kept(StateReader(tmp_path))
    assert [epoch.epoch for epoch in epochs] == [3, 2]
    assert all(epoch.error is None for epoch in epochs)


def test_no_checkpoint_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(MismatchError, match="nothing there"):
        epochs_kept(StateReader(tmp_path))
    assert claimed_by(Location.at(tmp_path)) is None


# Claims ------------------------------------------------------------------------------------------


def claim_by(where: Path, holder: Holder) -> None:
    claim = Claim(9, "0123abcd", holder, 10.0)
    Location.at(where).write(claim.path, claim.as_bytes())


def test_a_claim_of_this_process_is_live_until_it_is_released(tmp_path: Path) -> None:
    checkpoint = opened(tmp_path)
    claim = claimed_by(Location.at(tmp_path))
    assert claim is not None
    assert (claim.number, claim.liveness, claim.lease_s) == (1, "live", 10.0)
    assert claim.holder == Holder.here("run")
    checkpoint.release()
    claim = claimed_by(Location.at(tmp_path))
    assert claim is not None
    assert claim.liveness == "released"


def test_a_claim_of_a_process_is_live_as_long_as_that_is(tmp_path: Path) -> None:
    code = "from elasticutor.state.checkpoint.claims import Holder as H; import sys\n"
    code += "h = H.here('other'); print(h.pid, h.born, flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        pid, born = other.stdout.readline().split()
        claim_by(tmp_path, replace(Holder.here("other"), pid=int(pid), born=born))
        claim = claimed_by(Location.at(tmp_path))
        assert claim is not None
        assert claim.liveness == "live"
    claim = claimed_by(Location.at(tmp_path))
    assert claim is not None
    assert claim.liveness == "dead"


def test_of_a_claim_from_elsewhere_or_a_damaged_one_nobody_can_tell(tmp_path: Path) -> None:
    claim_by(tmp_path, replace(Holder.here("other"), host="elsewhere"))
    claim = claimed_by(Location.at(tmp_path))
    assert claim is not None
    assert claim.liveness == "unknown"
    flip(next((tmp_path / "claims").iterdir()))
    claim = claimed_by(Location.at(tmp_path))
    assert claim is not None
    assert (claim.number, claim.liveness, claim.holder) == (9, "unknown", None)


# Whether it is whole -----------------------------------------------------------------------------


def test_a_whole_checkpoint_has_no_faults(tmp_path: Path) -> None:
    some_epochs(tmp_path)
    told: list[tuple[int, int]] = []
    result = check_files(StateReader(tmp_path), lambda so_far, n: told.append((so_far.files, n)))
    files = list((tmp_path / "state").rglob("*.parquet"))
    size = sum(path.stat().st_size for path in files)
    assert result == Checked(4, len(files), size)
    assert told == [(n, len(files)) for n in range(len(files) + 1)]


@pytest.mark.parametrize("how", [flip, Path.unlink], ids=["flipped", "missing"])
def test_a_damaged_file_is_named_with_all_epochs_that_need_it(tmp_path: Path, how: object) -> None:
    some_epochs(tmp_path)
    path = next((tmp_path / "state").rglob("*-000000000002-*.parquet"))
    assert callable(how)
    how(path)
    (fault,) = check_files(StateReader(tmp_path)).faults
    assert fault.path == str(path.relative_to(tmp_path))
    assert fault.epochs == (3, 2)
    assert isinstance(fault.error, DamagedError)


def test_a_damaged_manifest_is_a_fault_of_its_epoch(tmp_path: Path) -> None:
    some_epochs(tmp_path)
    flip(tmp_path / "epochs" / "000000000002-1000000001.json")
    (fault,) = check_files(StateReader(tmp_path)).faults
    assert (fault.path, fault.epochs) == ("epochs/000000000002-1000000001.json", (2,))


def test_what_only_void_epochs_need_is_not_looked_at(tmp_path: Path) -> None:
    some_epochs(tmp_path)
    stale = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    opened(tmp_path, epoch=2).release()
    for path, data in stale.items():
        path.write_bytes(data)
    flip(next((tmp_path / "state").rglob("*-000000000003-*.parquet")))
    result = check_files(StateReader(tmp_path))
    assert (result.epochs, result.faults) == (3, ())


def test_files_that_a_run_removes_meanwhile_are_no_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Job(tmp_path)
    job.epoch(dict.fromkeys(range(8), "old"))
    gone = False

    def late(location: Location, file: StateFile) -> object:
        nonlocal gone
        if not gone:
            gone = True
            for number in range(15):
                job.epoch(dict.fromkeys(range(8), number))
                job.checkpoint.tidy()
        return check(location, file)

    monkeypatch.setattr(listing, "check", late)
    monkeypatch.setattr(listing, "_THREADS", 1)
    assert check_files(StateReader(tmp_path)).faults == ()


def test_an_interruption_stops_the_reading(tmp_path: Path) -> None:
    some_epochs(tmp_path)

    def interrupt(so_far: Checked, total: int) -> None:
        if so_far.files == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        check_files(StateReader(tmp_path), interrupt)
