"""Which run of this process has a checkpoint, and when the next one gets it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tests.runtime.live import chain_of

from elasticutor.driver import checkpoints as keeping
from elasticutor.driver.checkpoints import opened, release
from elasticutor.sources import IterableSource
from elasticutor.state.checkpoint import (
    Checkpoint,
    DamagedError,
    InUseError,
    LayoutError,
    MismatchError,
)

PLAN = chain_of(IterableSource([], "key bigint, time bigint")).plan()


def by_query(
    where: Path, run: str, query: str = "q", goes_on: Callable[[], bool] = lambda: True
) -> Checkpoint:
    return opened(str(where), run, replace(PLAN, name=f"query {query}"), None, 1, goes_on)


def files_of(where: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in where.rglob("*") if path.is_file()}


def test_a_run_whose_query_goes_on_keeps_its_checkpoint(tmp_path: Path) -> None:
    first = by_query(tmp_path, "first")
    with pytest.raises(InUseError, match=r"run first, of this process.*stop that run"):
        by_query(tmp_path, "second")
    release(first)
    release(by_query(tmp_path, "second"))


def test_a_run_whose_query_has_ended_is_waited_for(tmp_path: Path) -> None:
    """Its end comes when the next run has already asked for the checkpoint."""

    def has_ended() -> bool:
        threading.Thread(target=release, args=(first,)).start()
        return False

    first = by_query(tmp_path, "first", goes_on=has_ended)
    second = by_query(tmp_path, "second")
    assert second.first_attempt > first.first_attempt
    release(second)


def test_a_start_that_fails_after_its_query_has_ended_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opening, asked = threading.Event(), threading.Event()

    def fail(*args: object, **options: object) -> None:
        opening.set()
        assert asked.wait(30)
        raise LayoutError("manifest", "be of layout 1", 9)

    def has_ended() -> bool:
        asked.set()
        return False

    def start() -> None:
        with pytest.raises(LayoutError):
            by_query(tmp_path, "first", goes_on=has_ended)

    with monkeypatch.context() as patched:
        patched.setattr(Checkpoint, "open", fail)
        starting = threading.Thread(target=start)
        starting.start()
        assert opening.wait(30)
    release(by_query(tmp_path, "second"))
    starting.join(30)


def test_a_run_that_does_not_end_in_time_is_named_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeping, "_RELEASE_S", 0.05)
    first = by_query(tmp_path, "first", goes_on=lambda: False)
    said = r"run first, of this process, which has been ending for 0\.05 s.*start again when"
    with pytest.raises(InUseError, match=said):
        by_query(tmp_path, "second")
    release(first)
    release(by_query(tmp_path, "second"))


@pytest.mark.parametrize("live", [True, False])
def test_a_checkpoint_of_another_query_is_refused_without_a_claim(
    tmp_path: Path, live: bool
) -> None:
    first = by_query(tmp_path, "first")
    if not live:
        release(first)
    before = files_of(tmp_path)
    with pytest.raises(MismatchError, match="be of query r; got that of query q"):
        by_query(tmp_path, "second", query="r")
    assert files_of(tmp_path) == before
    if live:
        first.renew()
        release(first)


def test_a_checkpoint_whose_owner_cannot_be_read_is_refused_for_that(tmp_path: Path) -> None:
    release(by_query(tmp_path, "first"))
    (manifest,) = (tmp_path / "epochs").iterdir()
    manifest.write_bytes(b"{}")
    with pytest.raises(DamagedError, match=manifest.name):
        by_query(tmp_path, "second", query="r")
