from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.state.checkpoint.rig import Job, contents, form, opened

from elasticutor.state.checkpoint import InUseError, Location
from elasticutor.state.checkpoint.claims import Claim, Holder, Lease

LEASE_S = 0.2


def taken(location: Location, run: str = "b", lease_s: float = LEASE_S, **options: float) -> Lease:
    said: list[str] = []
    return Lease.take(
        location,
        run,
        lease_s=lease_s,
        timeout_s=options.get("timeout_s", 10.0),
        least=0,
        say=said.append,
    )


@pytest.fixture
def location(tmp_path: Path) -> Location:
    return Location.at(tmp_path)


def by_another_host(location: Location, number: int = 1) -> Claim:
    holder = Holder("a", "elsewhere", "1", 7, "1")
    claim = Claim(number, "00000000", holder, LEASE_S)
    location.write(claim.path, claim.as_bytes())
    return claim


@pytest.fixture
def alive() -> Iterator[subprocess.Popen[str]]:
    """Another process of this machine."""
    code = "import sys; print('up', flush=True); sys.stdin.read()"
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    process.stdout.readline()
    yield process
    process.kill()
    process.communicate()


def of_process(location: Location, pid: int) -> Claim:
    stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    claim = Claim(1, "00000000", replace(Holder.here("a"), pid=pid, born=stat[19]), LEASE_S)
    location.write(claim.path, claim.as_bytes())
    return claim


def test_claims_are_numbered(location: Location) -> None:
    numbers = []
    for run in "abc":
        lease = taken(location, run)
        numbers.append(lease.number)
        lease.release()
    assert numbers == [1, 2, 3]


def test_a_claim_of_another_host_is_taken_over_when_it_is_no_longer_renewed(
    location: Location,
) -> None:
    by_another_host(location)
    said: list[str] = []
    lease = Lease.take(location, "b", lease_s=LEASE_S, timeout_s=10, least=0, say=said.append)
    assert lease.number == 2
    assert "run 'a' on elsewhere, process 7" in said[0]
    assert "taking it over" in said[1]


def test_a_claim_that_is_renewed_meanwhile_is_in_use(location: Location) -> None:
    claim = by_another_host(location)
    renewed = replace(claim, renewed=1)

    def renew(words: str) -> None:
        location.write(renewed.path, renewed.as_bytes())

    with pytest.raises(InUseError, match="run 'a' on elsewhere, process 7"):
        Lease.take(location, "b", lease_s=60, timeout_s=60, least=0, say=renew)


def test_a_claim_that_is_released_meanwhile_is_not_waited_for(location: Location) -> None:
    claim = replace(by_another_host(location), released=True)
    lease = Lease.take(
        location,
        "b",
        lease_s=60,
        timeout_s=60,
        least=0,
        say=lambda _: location.write(claim.path, claim.as_bytes()),
    )
    assert lease.number == 2


def test_waiting_ends_with_the_timeout(location: Location) -> None:
    by_another_host(location)
    with pytest.raises(InUseError, match="elsewhere"):
        taken(location, lease_s=60, timeout_s=0.1)


def test_a_process_of_this_machine_is_waited_for_while_it_lives(
    location: Location, alive: subprocess.Popen[str]
) -> None:
    of_process(location, alive.pid)
    with pytest.raises(InUseError, match=f"process {alive.pid}"):
        taken(location, lease_s=60, timeout_s=0.1)


def test_a_process_of_this_machine_that_has_died_is_not_waited_for(
    location: Location, alive: subprocess.Popen[str]
) -> None:
    of_process(location, alive.pid)
    alive.kill()
    alive.wait()
    assert taken(location, lease_s=60, timeout_s=0.1).number == 2


def test_a_process_number_that_was_used_again_is_another_process(
    location: Location, alive: subprocess.Popen[str]
) -> None:
    claim = of_process(location, alive.pid)
    other = replace(claim, holder=replace(claim.holder, born="1"))
    location.write(other.path, other.as_bytes())
    assert taken(location, lease_s=60, timeout_s=0.1).number == 2


def test_this_very_process_takes_over_from_itself_and_the_earlier_run_learns_so(
    location: Location,
) -> None:
    first = taken(location, "a")
    second = taken(location, "b", lease_s=60)
    for act in (first.require, first.renew):
        with pytest.raises(InUseError, match="taken over by run 'b'"):
            act()
    second.renew()
    second.require()


def test_a_damaged_claim_is_waited_for_and_then_taken_over(location: Location) -> None:
    claim = by_another_host(location)
    location.write(claim.path, b'{"layout"')
    assert taken(location).number == 2


def test_of_many_who_want_it_at_once_no_two_get_the_same_number(tmp_path: Path) -> None:
    numbers: list[int] = []
    start = threading.Barrier(5)

    def want(run: str) -> None:
        location = Location.at(tmp_path)
        start.wait()
        numbers.append(taken(location, run).number)

    threads = [threading.Thread(target=want, args=(f"run {i}",)) for i in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(numbers)) == 5


def test_a_claim_is_readable_json(location: Location, tmp_path: Path) -> None:
    taken(location, "mine")
    (path,) = (tmp_path / "claims").iterdir()
    facts = json.loads(path.read_text())["content"]
    assert facts["run"] == "mine"
    assert facts["released"] is False


def test_a_checkpoint_has_one_run_at_a_time(tmp_path: Path) -> None:
    first = Job(tmp_path)
    first.epoch({1: "a"})
    second = Job(tmp_path)
    with pytest.raises(InUseError, match="taken over by run 'run'"):
        first.epoch({2: "b"})
    assert not list((tmp_path / "epochs").glob("*2-1000000001.json"))
    with pytest.raises(InUseError):
        first.checkpoint.tidy()
    second.epoch({3: "c"})
    assert contents(tmp_path, form(), 2) == {1: "a", 3: "c"}


def test_a_manifest_that_an_earlier_run_still_writes_is_void(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It had looked for later claims before, and is told after; nothing of it is published."""
    first = Job(tmp_path)
    first.epoch({1: "a"})
    files = first.increments(2, {2: "zombie"})
    taken_over: list[Job] = []
    write = first.checkpoint._write

    def write_late(manifest: object) -> None:
        taken_over.append(Job(tmp_path))
        write(manifest)  # type: ignore[arg-type]

    monkeypatch.setattr(first.checkpoint, "_write", write_late)
    with pytest.raises(InUseError):
        first.checkpoint.commit(
            first.checkpoint.committed + 1,  # type: ignore[arg-type]
            first.attempt,
            files,
            {},
        )
    (second,) = taken_over
    assert second.checkpoint.committed == 1
    assert opened(tmp_path).committed == 1
    assert contents(tmp_path, form(), 1) == {1: "a"}
