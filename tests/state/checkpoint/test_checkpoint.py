from __future__ import annotations

import math
import pickle
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.state.checkpoint.rig import (
    Contents,
    Job,
    applied,
    contents,
    files_of,
    form,
    opened,
    some_epochs,
)

from elasticutor.core.protocol.ids import Attempt, Epoch, ShardId
from elasticutor.errors import BadValueError, OutOfOrderError
from elasticutor.state.checkpoint import (
    Location,
    MismatchError,
    Restorer,
    StateFile,
    StateForm,
    StorageError,
    UncertainError,
    epochs_of,
    write_increment,
)
from elasticutor.state.levels import Record

changes_of_an_epoch = st.dictionaries(
    st.integers(0, 30), st.none() | st.integers(0, 5) | st.text(max_size=3), max_size=8
)


@given(
    st.lists(
        st.one_of(
            changes_of_an_epoch.map(lambda changes: ("commit", changes)),
            changes_of_an_epoch.map(lambda changes: ("give up", changes)),
            st.just(("tidy", {})),
            st.just(("crash", {})),
            st.integers(0, 3).map(lambda back: ("go back", {0: back})),
        ),
        max_size=25,
    ),
    st.integers(2, 4),
    st.sampled_from([0, 1700, 1 << 20]),
)
@example(  # epoch 1 is gone when the run goes back to 2
    [("commit", {}), ("commit", {}), ("commit", {}), ("tidy", {}), ("go back", {0: 1})], 2, 0
)
@example(  # and epoch 0 is gone, but to begin again is always possible
    [("commit", {1: 1}), ("commit", {}), ("tidy", {}), ("go back", {0: 3}), ("commit", {})], 2, 0
)
@settings(max_examples=25)
def test_every_kept_epoch_is_a_fold_of_what_was_committed(
    tmp_path_factory: pytest.TempPathFactory,
    steps: list[tuple[str, Contents]],
    keep: int,
    inline: int,
) -> None:
    where = tmp_path_factory.mktemp("checkpoint")
    job = Job(where, keep=keep, inline=inline)
    history: list[Contents] = [{}]
    kept = [0]
    """Exactly the epochs that can be gone back to; what was removed never comes back."""
    for step, changes in steps:
        match step:
            case "commit":
                kept.append(job.epoch(changes))
                history.append(applied(history[-1], changes))
            case "give up":  # an attempt has written its increments, and then fails
                job.increments(job.checkpoint.committed + 1, changes)
                job.again()
            case "tidy":
                job.checkpoint.tidy()
                kept = kept[-keep:]
            case "crash":
                job = Job(where, keep=keep, inline=inline)
                kept = kept[-keep:]
            case "go back":
                epoch = max(0, job.checkpoint.committed - changes[0])
                if epoch in kept or epoch == 0:
                    del history[epoch + 1 :]
                    job = Job(where, keep=keep, inline=inline, epoch=epoch)
                    kept = [one for one in kept if one <= epoch][-keep:] or [0]
        listed = epochs_of(job.checkpoint.location)
        assert {one.epoch for one in listed if one.current} == set(kept)
        assert job.checkpoint.committed == kept[-1] == len(history) - 1
    for epoch in kept:
        assert contents(where, job.form, epoch) == history[epoch]


@given(st.lists(changes_of_an_epoch, min_size=20, max_size=30))
@settings(max_examples=4)
def test_folding_changes_nothing_that_can_be_restored(
    tmp_path_factory: pytest.TempPathFactory, epochs: list[Contents]
) -> None:
    where = tmp_path_factory.mktemp("checkpoint")
    job = Job(where, form(1, 3))
    state: Contents = {}
    before: Contents = {}
    folded = 0
    for changes in epochs:
        epoch = job.epoch({**changes, 99: "always"})
        before, state = state, applied(state, {**changes, 99: "always"})
        folded += job.checkpoint.tidy().folded
        assert contents(where, job.form, epoch) == state
        assert contents(where, job.form, epoch - 1) == before
    job.checkpoint.release()
    assert contents(where, job.form, opened(where, job.form).committed) == state
    assert folded


def test_a_new_checkpoint_is_at_epoch_0_without_state_or_notes(tmp_path: Path) -> None:
    checkpoint = opened(tmp_path / "new")
    assert (checkpoint.committed, checkpoint.notes) == (0, {})
    assert checkpoint.first_attempt == 1_000_000_000
    assert contents(tmp_path / "new", form(), 0) == {}


def test_notes_come_back_exactly(tmp_path: Path) -> None:
    notes: dict[str, Any] = {"clicks.0": (1, {2: b"\xff"}), "out": [math.inf, {None}], "x": None}
    job = Job(tmp_path)
    job.epoch({1: "a"}, notes)
    assert opened(tmp_path).notes == notes


def test_attempts_rise_from_run_to_run(tmp_path: Path) -> None:
    firsts = [opened(tmp_path).first_attempt for _ in range(3)]
    assert firsts == [1_000_000_000, 2_000_000_000, 3_000_000_000]


def test_claims_that_were_deleted_are_not_numbered_again(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.epoch({1: "a"})
    for path in files_of(tmp_path / "claims"):
        path.unlink()
    assert opened(tmp_path).first_attempt == 2_000_000_000


def test_epochs_may_have_gaps_but_never_go_back(tmp_path: Path) -> None:
    job = Job(tmp_path)
    attempt = job.attempt
    job.checkpoint.commit(Epoch(5), attempt, job.increments(5, {1: "a"}), {})
    with pytest.raises(OutOfOrderError, match="epoch to commit must be after 5"):
        job.checkpoint.commit(Epoch(5), attempt, [], {})
    with pytest.raises(OutOfOrderError, match="attempt must be after"):
        job.checkpoint.commit(Epoch(6), job.checkpoint.first_attempt, [], {})
    assert opened(tmp_path).committed == 5


def test_an_increment_of_another_epoch_or_attempt_is_refused(tmp_path: Path) -> None:
    job = Job(tmp_path)
    files = job.increments(1, {1: "a"})
    with pytest.raises(BadValueError, match="be of epoch 2"):
        job.checkpoint.commit(Epoch(2), job.attempt, files, {})
    with pytest.raises(BadValueError, match="attempt 1000000002"):
        job.checkpoint.commit(Epoch(1), Attempt(job.attempt + 1), files, {})


def test_of_two_attempts_at_an_epoch_the_later_one_counts(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.increments(1, {1: "given up", 2: "given up"})
    job.again()
    job.epoch({1: "kept"})
    assert contents(tmp_path, form(), 1) == {1: "kept"}
    removed = job.checkpoint.tidy().removed
    assert removed
    assert all("1000000001" in path for path in removed)
    assert contents(tmp_path, form(), 1) == {1: "kept"}


def test_a_file_of_an_epoch_that_may_be_under_way_is_left_alone(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.epoch({1: "a"})
    files = job.increments(2, {2: "b"})
    assert job.checkpoint.tidy().removed == ()
    job.checkpoint.commit(Epoch(2), job.attempt, files, {})
    assert contents(tmp_path, form(), 2) == {1: "a", 2: "b"}


def test_what_a_run_left_behind_that_died_is_removed_by_the_next(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.epoch({1: "a"})
    job.increments(2, {2: "b"})
    folder = next(path for path in (tmp_path / "state").rglob("0") if path.is_dir())
    name = "counts-0-000000000002-000000000002-1000000001-node-0.parquet"
    (folder / f".{name}.0123456789ab.tmp").write_bytes(b"half")
    (folder / "notes.txt").write_text("somebody's own")
    before = {path for path in files_of(tmp_path / "state") if "0002-1" not in path.name}
    opened(tmp_path)
    assert set(files_of(tmp_path / "state")) == before
    assert contents(tmp_path, form(), 1) == {1: "a"}


def test_old_epochs_are_removed_and_at_least_two_stay(tmp_path: Path) -> None:
    with pytest.raises(BadValueError, match="epochs to keep must be at least 2"):
        opened(tmp_path, keep=1)
    job = Job(tmp_path, keep=2)
    for epoch in range(1, 31):
        job.epoch({epoch % 3: epoch})
        job.checkpoint.tidy()
    assert [listed.epoch for listed in epochs_of(job.checkpoint.location)] == [30, 29]
    assert len(files_of(tmp_path / "state")) < 60
    assert contents(tmp_path, form(), 29) == {0: 27, 1: 28, 2: 29}


def test_going_back_to_an_earlier_epoch_makes_later_ones_void(tmp_path: Path) -> None:
    history = some_epochs(tmp_path)
    assert opened(tmp_path, epoch=2).committed == 2
    assert opened(tmp_path).committed == 2
    assert contents(tmp_path, form(), 2) == history[2]
    job = Job(tmp_path)
    job.epoch({1: "other"})
    assert contents(tmp_path, form(), 3) == applied(history[2], {1: "other"})


def test_going_back_to_the_very_beginning_is_possible(tmp_path: Path) -> None:
    some_epochs(tmp_path, 6)
    job = Job(tmp_path, epoch=0)
    assert (job.checkpoint.committed, job.checkpoint.notes) == (0, {})
    job.epoch({1: "anew"})
    assert contents(tmp_path, form(), 1) == {1: "anew"}
    assert opened(tmp_path).committed == 1


def test_an_epoch_that_is_not_there_is_refused_with_those_that_are(tmp_path: Path) -> None:
    some_epochs(tmp_path)
    with pytest.raises(MismatchError, match=r"must have epoch 7; got those of \[3, 2, 1, 0\]"):
        opened(tmp_path, epoch=7)
    assert opened(tmp_path).committed == 3


def misfits() -> list[tuple[dict[str, Any], str]]:
    other_key = StateForm("counts", 2, 4, (("user", "string"),))
    renamed = StateForm("clicks", 2, 4, (("user", "int64"),))
    return [
        ({"forms": [renamed]}, "call it 'counts' again"),
        ({"forms": []}, "call it 'counts' again"),
        ({"forms": [other_key]}, "partition by the same columns as before"),
        ({"sources": {"clicks": 2}}, "give 'clicks' tasks=1 as before"),
        ({"sources": {}}, "give 'clicks' tasks=1 as before"),
    ]


@pytest.mark.parametrize(("options", "hint"), misfits())
def test_what_does_not_fit_the_topology_is_refused_with_what_to_do(
    tmp_path: Path, options: dict[str, Any], hint: str
) -> None:
    history = some_epochs(tmp_path)
    with pytest.raises(MismatchError, match=hint):
        opened(tmp_path, **options)
    opened(tmp_path, lease_s=60)  # the claim was given back
    assert contents(tmp_path, form(), 3) == history[3]


def test_a_new_operator_a_new_source_and_a_wider_key_fit(tmp_path: Path) -> None:
    history = some_epochs(tmp_path)
    wider = StateForm("counts", 2, 4, (("user", "int32"),))
    more = StateForm("more", 1, 2, (("user", "string"),))
    checkpoint = opened(tmp_path, forms=[wider, more], sources={"clicks": 1, "views": 3})
    assert contents(tmp_path, wider, 3) == history[3]
    restorer = Restorer.load(checkpoint.location, more, "more.0", Epoch(3))
    assert [list(restorer.records(ShardId(shard))) for shard in range(2)] == [[], []]


def test_nodes_that_expect_another_form_are_refused(tmp_path: Path) -> None:
    some_epochs(tmp_path)
    with pytest.raises(MismatchError, match="must have 3 executors × 4 shards of 'counts'"):
        Restorer.load(Location.at(tmp_path), form(3, 4), "counts.0", Epoch(3))
    with pytest.raises(BadValueError, match="executor must be one of the 2"):
        Restorer.load(Location.at(tmp_path), form(), "counts.2", Epoch(3))


def test_an_epoch_without_changes_writes_no_file(tmp_path: Path) -> None:
    location = Location.at(tmp_path)
    nothing: list[dict[ShardId, list[Record]]] = [{}, {ShardId(0): []}]
    for changes in nothing:
        made = write_increment(location, form(), "counts.0", "n", Attempt(1), Epoch(1), changes)
        assert made is None
    assert files_of(tmp_path) == []


def test_a_shard_that_is_not_there_is_refused(tmp_path: Path) -> None:
    changes = {ShardId(4): [Record(b"N", Epoch(1), b"N")]}
    with pytest.raises(BadValueError, match=r"be 0 to 3; got \[4\]"):
        write_increment(
            Location.at(tmp_path), form(), "counts.0", "n", Attempt(1), Epoch(1), changes
        )


def test_two_nodes_never_write_the_same_file(tmp_path: Path) -> None:
    changes = {ShardId(0): [Record(b"N", Epoch(1), b"N")]}
    writers = ["a", "a/b", "a%2f%b", "a b", "a_b", "ä", ""]
    made = [
        write_increment(
            Location.at(tmp_path), form(), "counts.0", writer, Attempt(1), Epoch(1), changes
        )
        for writer in writers
    ]
    assert len({file.path for file in made if file}) == len(writers)
    assert len(files_of(tmp_path)) == len(writers)


def test_notes_of_files_travel_as_plain_values() -> None:
    file = StateFile("p", "counts.1", Epoch(1), Epoch(2), Attempt(3), 4, 5, "6", "increment")
    note = file.as_note()
    assert {type(value) for value in note.values()} == {str, int}
    assert StateFile.from_note(note) == file
    with pytest.raises(BadValueError, match="note of a state file"):
        StateFile.from_note({**note, "rows": "4"})
    assert pickle.loads(pickle.dumps(form())) == form()  # noqa: S301 (our own)


def test_a_manifest_whose_answer_was_lost_is_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Job(tmp_path)
    location = job.checkpoint.location
    write = Location.write

    def write_and_fail(self: Location, path: str, data: bytes) -> None:
        write(self, path, data)
        if path.startswith("epochs/"):
            raise StorageError(path, "be written", "no answer")

    monkeypatch.setattr(Location, "write", write_and_fail)
    job.epoch({1: "a"})
    assert job.checkpoint.committed == 1
    assert contents(location, form(), 1) == {1: "a"}


def test_a_manifest_that_is_not_there_is_not_committed_and_can_be_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Job(tmp_path)
    with monkeypatch.context() as patch:

        def fail(self: Location, path: str, data: bytes) -> None:
            raise StorageError(path, "be written", "disk full")

        files = job.increments(1, {1: "a"})
        patch.setattr(Location, "write", fail)
        with pytest.raises(StorageError, match="disk full"):
            job.checkpoint.commit(Epoch(1), job.attempt, files, {})
    assert job.checkpoint.committed == 0
    job.again()
    job.epoch({1: "b"})
    assert contents(tmp_path, form(), 1) == {1: "b"}


def test_where_nobody_can_tell_the_error_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Job(tmp_path)
    files = job.increments(1, {1: "a"})
    names = Location.names

    def fail(self: Location, path: str, data: bytes) -> None:
        raise StorageError(path, "be written", "network down")

    def fail_too(self: Location, folder: str) -> list[str]:
        if folder == "epochs":
            raise StorageError(folder, "be readable", "network down")
        return names(self, folder)

    monkeypatch.setattr(Location, "write", fail)
    monkeypatch.setattr(Location, "names", fail_too)
    with pytest.raises(UncertainError, match="must be there or not"):
        job.checkpoint.commit(Epoch(1), job.attempt, files, {})


def test_folding_beside_commits_loses_nothing(tmp_path: Path) -> None:
    job = Job(tmp_path, form(1, 4), keep=2)
    state: Contents = {}
    done = threading.Event()
    faults: list[BaseException] = []
    folded = [0]

    def tidy() -> None:
        try:
            while not done.is_set():
                folded[0] += job.checkpoint.tidy().folded
        except BaseException as fault:
            faults.append(fault)

    thread = threading.Thread(target=tidy)
    thread.start()
    try:
        for epoch in range(40):
            changes = {epoch % 7: None if epoch % 3 else epoch, epoch: epoch}
            job.epoch(changes)
            state = applied(state, changes)
            assert contents(tmp_path, job.form, epoch + 1) == state
    finally:
        done.set()
        thread.join()
    assert faults == []
    assert folded[0]
    job.checkpoint.tidy()
    for listed in epochs_of(job.checkpoint.location):
        contents(tmp_path, job.form, listed.epoch)
    job.checkpoint.release()
    assert contents(tmp_path, job.form, opened(tmp_path, job.form).committed) == state


def test_all_epochs_are_listed_newest_first(tmp_path: Path) -> None:
    some_epochs(tmp_path)
    (tmp_path / "epochs/000000000002-1000000001.json").write_text("torn")
    listed = epochs_of(Location.at(tmp_path))
    assert [item.epoch for item in listed] == [3, 2, 1, 0]
    assert [item.error is None for item in listed] == [True, False, True, True]
    manifest = listed[0].manifest
    assert manifest is not None
    assert manifest.predecessor == "epochs/000000000002-1000000001.json"
