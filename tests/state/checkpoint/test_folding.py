from __future__ import annotations

import random
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from tests.state.checkpoint.rig import Job, applied, contents, files_of, form

from elasticutor.state.checkpoint.folding import MOST_FILES, to_fold


@given(st.lists(st.integers(1, 10**6), max_size=40))
def test_what_is_folded_is_never_larger_than_all_that_is_newer(sizes: list[int]) -> None:
    begin = to_fold(sizes)
    if begin is None:
        return
    assert len(sizes) > MOST_FILES
    assert sizes[begin] <= sum(sizes[begin + 1 :])
    assert len(sizes) - begin >= 8


@given(st.integers(1, 400), st.integers(1, 50))
def test_bytes_written_grow_with_what_is_dirty_and_hardly_more(epochs: int, dirty: int) -> None:
    sizes = [1_000_000]  # a snapshot
    written = 0
    for _ in range(epochs):
        sizes.append(dirty)
        begin = to_fold(sizes)
        if begin is not None:
            assert begin > 0  # the snapshot is left alone
            sizes[begin:] = [sum(sizes[begin:])]
            written += sizes[-1]
    assert written <= epochs * dirty * epochs.bit_length()
    assert len(sizes) <= MOST_FILES + 1


def test_a_fold_keeps_deletions_while_something_older_is_left(tmp_path: Path) -> None:
    kept = form(1, 1)  # so that one node writes all of it
    job = Job(tmp_path, kept)
    rng = random.Random(3)
    state = {key: rng.randbytes(60) for key in range(4000)}
    job.epoch(state)
    snapshot = files_of(tmp_path / "state")
    folded = 0
    for epoch in range(20):
        changes = {epoch: None, epoch + 100: str(epoch)}
        job.epoch(changes)
        state = applied(state, changes)
        folded += job.checkpoint.tidy().folded
    assert folded
    assert set(snapshot) < set(files_of(tmp_path / "state"))  # too large to be written again
    assert contents(tmp_path, kept, job.checkpoint.committed) == state


def test_a_fold_of_everything_leaves_no_deletion_and_no_empty_file(tmp_path: Path) -> None:
    kept = form(1, 2)
    job = Job(tmp_path, kept)
    for epoch in range(24):
        job.epoch({7: None if epoch % 2 else "there"})
        job.checkpoint.tidy()
    assert contents(tmp_path, kept, job.checkpoint.committed) == {}
    assert len(files_of(tmp_path / "state")) <= MOST_FILES + 8
