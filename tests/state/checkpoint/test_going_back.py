"""Whoever numbers the epochs itself may make the newest one anew, or begin below it."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.state.checkpoint.rig import Contents, Job, applied, contents, form, opened

from elasticutor.core.protocol.ids import Epoch
from elasticutor.errors import OutOfOrderError
from elasticutor.state.checkpoint import MismatchError, epochs_of

changes_of_an_epoch = st.dictionaries(st.integers(0, 9), st.none() | st.integers(0, 5), max_size=5)


def test_an_epoch_that_is_made_anew_is_what_was_committed_last(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.epoch({1: "a"})
    job.epoch({1: "b", 2: "b"})
    job.again()
    job.checkpoint.go_back(Epoch(1))
    assert job.checkpoint.committed == 1
    job.epoch({3: "c"})
    assert contents(tmp_path, form(), 2) == {1: "a", 3: "c"}


def test_until_it_is_made_anew_the_newest_epoch_still_counts(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.epoch({1: "a"})
    job.epoch({1: "b"})
    job.checkpoint.go_back(Epoch(1))
    job.checkpoint.release()
    assert opened(tmp_path).committed == 2


def test_going_back_to_the_newest_epoch_changes_nothing(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.epoch({1: "a"})
    job.checkpoint.go_back(Epoch(1))
    job.epoch({2: "b"})
    assert contents(tmp_path, form(), 2) == {1: "a", 2: "b"}


def test_only_the_epoch_before_the_newest_can_be_gone_back_to(tmp_path: Path) -> None:
    job = Job(tmp_path)
    for number in range(3):
        job.epoch({number: "x"})
    with pytest.raises(OutOfOrderError, match="be the one before 3"):
        job.checkpoint.go_back(Epoch(1))
    assert job.checkpoint.committed == 3


@given(st.lists(st.tuples(changes_of_an_epoch, st.integers(0, 3), st.booleans()), max_size=8))
@settings(max_examples=15, deadline=None)
def test_however_often_epochs_are_made_anew_the_last_two_can_be_restored(
    tmp_path_factory: pytest.TempPathFactory, epochs: list[tuple[Contents, int, bool]]
) -> None:
    where = tmp_path_factory.mktemp("checkpoint")
    job = Job(where)
    history: list[Contents] = [{}]
    for changes, times, tidies in epochs:
        base = job.checkpoint.committed
        for number in range(times):
            job.epoch({99: number})
            if tidies:
                job.checkpoint.tidy()
            job.again()
            job.checkpoint.go_back(base)
        job.epoch(changes)
        if tidies:
            job.checkpoint.tidy()
        history.append(applied(history[-1], changes))
    newest = len(history) - 1
    for epoch in range(max(1, newest - 1), newest + 1):
        assert contents(where, job.form, epoch) == history[epoch]


def test_who_goes_on_below_an_epoch_begins_with_the_newest_before_it(tmp_path: Path) -> None:
    job = Job(tmp_path)
    for epoch in (2, 5):
        job.checkpoint.commit(Epoch(epoch), job.attempt, job.increments(epoch, {epoch: "x"}), {})
    job.checkpoint.release()
    checkpoint = opened(tmp_path, below=5)
    assert checkpoint.committed == 2
    checkpoint.release()
    listed = {found.epoch for found in epochs_of(checkpoint.location) if found.current}
    assert 5 not in listed


def test_an_epoch_that_all_others_come_after_is_refused_by_name(tmp_path: Path) -> None:
    job = Job(tmp_path)
    for _ in range(6):
        job.epoch({1: "x"})
        job.checkpoint.tidy()
    job.checkpoint.release()
    with pytest.raises(MismatchError, match="have an epoch before 2, which is to come next"):
        opened(tmp_path, below=2)


def test_a_checkpoint_of_another_topology_is_refused_by_name(tmp_path: Path) -> None:
    Job(tmp_path).checkpoint.release()
    with pytest.raises(MismatchError, match="be of query b; got that of"):
        opened(tmp_path, below=1, topology="query b")
