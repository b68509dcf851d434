"""State for people: the same as nodes restore, without a claim, and without running code."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.state.checkpoint.rig import (
    Job,
    applied,
    contents,
    form,
    opened,
    places,
    some_epochs,
)
from tests.state.checkpoint.rig import files_of as all_files

from elasticutor.core.protocol.ids import Attempt, Epoch, ShardId
from elasticutor.errors import BadValueError
from elasticutor.state.checkpoint import (
    DamagedError,
    Manifest,
    MismatchError,
    StateForm,
    StorageError,
    write_increment,
)
from elasticutor.state.checkpoint.restoring import merged
from elasticutor.state.codec import encode, encode_key
from elasticutor.state.inspection.reading import (
    Entry,
    Pickled,
    StateReader,
    files_of,
    key_of,
    type_of,
    value_of,
)
from elasticutor.state.levels import Record

TYPED = pa.schema({"n": pa.int64(), "last": pa.string()})
CHANGES = st.dictionaries(st.integers(0, 20), st.none() | st.integers(-5, 5), max_size=8)


class Trap:
    """Something that runs code when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self._path,)


def as_dict(entries: tuple[Entry, ...]) -> dict[Any, Any]:
    assert len({entry.key for entry in entries}) == len(entries)
    return {entry.key: entry.value for entry in entries}


def facts(where: Path) -> dict[str, tuple[bytes, int]]:
    return {str(p): (p.read_bytes(), p.stat().st_mtime_ns) for p in all_files(where)}


@settings(max_examples=8)
@given(history=st.lists(CHANGES, min_size=1, max_size=12), data=st.data())
def test_what_is_shown_is_what_nodes_restore(
    tmp_path_factory: pytest.TempPathFactory, history: list[dict[int, Any]], data: st.DataObject
) -> None:
    where = tmp_path_factory.mktemp("checkpoint")
    job = Job(where)
    for changes in history:
        job.epoch(changes)
        if data.draw(st.booleans()):
            job.checkpoint.tidy()
    reader = StateReader(where)
    for epoch in {name.epoch for name in reader.names()}:
        shown = reader.show("counts", epoch=epoch)
        assert not shown.more
        assert as_dict(shown.entries) == contents(where, job.form, epoch)
        keys = [entry.key for entry in shown.entries]
        where_they_are = [(entry.executor, entry.shard) for entry in shown.entries]
        assert where_they_are == places(job.form, keys)
        for entry in shown.entries:
            assert reader.find("counts", [entry.key], epoch=epoch).entries == (entry,)


def test_typed_state_is_shown_by_its_columns(tmp_path: Path) -> None:
    job = Job(tmp_path, form(schema=TYPED))
    job.epoch({1: (3, "Oslo"), 2: {"n": 1, "last": None}, 3: None, 4: [0, "x"]})
    found = as_dict(StateReader(tmp_path).show("counts").entries)
    assert found == {
        1: {"n": 3, "last": "Oslo"},
        2: {"n": 1, "last": None},
        4: {"n": 0, "last": "x"},
    }


def test_typed_state_of_one_column_is_its_value(tmp_path: Path) -> None:
    moment = datetime(2024, 2, 29, 12, 0, 0, 5, tzinfo=UTC)
    job = Job(tmp_path, form(schema=pa.schema({"at": pa.timestamp("ns", "UTC")})))
    job.epoch({1: moment})
    assert as_dict(StateReader(tmp_path).show("counts").entries) == {1: moment}


def test_a_limit_leaves_the_rest_out_and_says_so(tmp_path: Path) -> None:
    Job(tmp_path).epoch(dict.fromkeys(range(10), "x"))
    reader = StateReader(tmp_path)
    for limit in range(1, 13):
        shown = reader.show("counts", limit=limit)
        assert len(shown.entries) == min(limit, 10)
        assert shown.more == (limit < 10)


def test_nothing_is_unpickled_unless_asked_for(tmp_path: Path) -> None:
    sprung = tmp_path / "sprung"
    Job(tmp_path / "checkpoint").epoch({1: Trap(sprung), 2: "plain", 3: [1, 2]})
    reader = StateReader(tmp_path / "checkpoint")
    found = as_dict(reader.show("counts").entries)
    assert isinstance(found[1], Pickled)
    assert found[2] == "plain"
    assert repr(found[3]) == f"<pickled, {len(encode([1, 2]))} bytes>"
    assert isinstance(reader.find("counts", [1]).entries[0].value, Pickled)
    assert not sprung.exists()
    assert as_dict(reader.show("counts", unpickle=True).entries)[3] == [1, 2]
    assert sprung.exists()


@pytest.mark.parametrize("tag", [b"*", b"p*", b"(" + (200).to_bytes(4, "big") + b"*"])
def test_no_key_is_ever_unpickled(tmp_path: Path, tag: bytes) -> None:
    sprung = tmp_path / "sprung"
    with pytest.raises(BadValueError, match="not be pickled"):
        key_of(tag + encode(Trap(sprung))[1:])
    assert not sprung.exists()


def test_a_value_that_only_looks_plain_is_not_unpickled(tmp_path: Path) -> None:
    sprung = tmp_path / "sprung"
    inner = encode(Trap(sprung))
    value = value_of(b"(" + len(inner).to_bytes(4, "big") + inner)
    assert isinstance(value, Pickled)
    assert not sprung.exists()


def test_a_value_that_cannot_be_unpickled_says_why() -> None:
    value = value_of(b"*cno_such_module\nThing\n.", unpickle=True)
    assert "ModuleNotFoundError" in repr(value)


def test_keys_of_several_columns_are_found(tmp_path: Path) -> None:
    kept = StateForm("counts", 2, 4, (("city", "string"), ("day", "date32[day]")))
    checkpoint = opened(tmp_path, kept)
    attempt = Attempt(checkpoint.first_attempt + 1)
    changes = {ShardId(0): [Record(encode_key(("Oslo", None)), Epoch(1), encode(5))]}
    files = [
        write_increment(checkpoint.location, kept, name, "n", attempt, Epoch(1), changes)
        for name in kept.executor_names
    ]
    checkpoint.commit(Epoch(1), attempt, [file for file in files if file], {})
    (entry,) = StateReader(tmp_path).find("counts", ["Oslo", ("Oslo", None)]).entries
    assert (entry.key, entry.value) == (("Oslo", None), 5)


def test_reading_changes_nothing(tmp_path: Path) -> None:
    some_epochs(tmp_path)
    before = facts(tmp_path)
    reader = StateReader(tmp_path)
    reader.show("counts")
    reader.show("counts", epoch=1)
    assert facts(tmp_path) == before


def test_a_run_that_has_the_checkpoint_is_not_disturbed(tmp_path: Path) -> None:
    job = Job(tmp_path)
    expected: dict[int, Any] = {}
    for epoch in range(1, 5):
        changes = {epoch: "new", epoch - 1: None}
        job.epoch(changes)
        expected = applied(expected, changes)
        shown = StateReader(tmp_path).show("counts")
        assert shown.epoch == epoch
        assert as_dict(shown.entries) == expected


# What is not there -------------------------------------------------------------------------------


def test_no_checkpoint_is_an_error_that_says_what_is_there(tmp_path: Path) -> None:
    with pytest.raises(MismatchError, match="nothing there"):
        StateReader(tmp_path / "nowhere").manifest()
    some_epochs(tmp_path / "job")
    with pytest.raises(MismatchError, match=r"did you mean .*/job\?"):
        StateReader(tmp_path).manifest()
    (tmp_path / "file").write_text("x")
    with pytest.raises(StorageError, match="file"):
        StateReader(tmp_path / "file").manifest()


def test_an_epoch_that_is_not_there_is_an_error_with_those_that_are(tmp_path: Path) -> None:
    some_epochs(tmp_path)
    with pytest.raises(MismatchError, match=r"have epoch 9; got those of \[3, 2, 1, 0\]"):
        StateReader(tmp_path).show("counts", epoch=9)


def test_a_void_epoch_is_refused_and_called_so(tmp_path: Path) -> None:
    some_epochs(tmp_path)
    stale = {p.name: p.read_bytes() for p in (tmp_path / "epochs").iterdir()}
    opened(tmp_path, epoch=1).release()
    for name, data in stale.items():
        (tmp_path / "epochs" / name).write_bytes(data)
    with pytest.raises(MismatchError, match="it is void"):
        StateReader(tmp_path).show("counts", epoch=3)
    assert StateReader(tmp_path).show("counts").epoch == 1


def test_an_operator_that_is_not_there_is_an_error_with_those_that_are(tmp_path: Path) -> None:
    some_epochs(tmp_path)
    with pytest.raises(BadValueError, match="counts; got 'cuonts'"):
        StateReader(tmp_path).show("cuonts")


def test_a_key_that_is_not_there_is_an_error_with_some_that_are(tmp_path: Path) -> None:
    Job(tmp_path).epoch({5: "x"})
    with pytest.raises(BadValueError, match=r"got 6\. Hint: keys are by user int64, such as 5"):
        StateReader(tmp_path).find("counts", [6, "6", [6]])
    job = Job(tmp_path / "empty")
    job.epoch({})
    with pytest.raises(BadValueError, match="it has none"):
        StateReader(tmp_path / "empty").find("counts", [6])


def test_a_damaged_manifest_is_named_with_the_other_epochs(tmp_path: Path) -> None:
    some_epochs(tmp_path)
    newest = max((tmp_path / "epochs").iterdir())
    newest.write_bytes(newest.read_bytes()[:-20])
    with pytest.raises(DamagedError, match=rf"{newest.name}.*there are epochs \[3, 2, 1, 0\]"):
        StateReader(tmp_path).show("counts")
    assert StateReader(tmp_path).show("counts", epoch=2).epoch == 2


def test_a_file_that_is_listed_and_not_there_is_named(tmp_path: Path) -> None:
    some_epochs(tmp_path, 1)
    file = next((tmp_path / "state").rglob("*.parquet"))
    file.unlink()
    with pytest.raises(DamagedError, match=file.name):
        StateReader(tmp_path).show("counts")


# A run that removes what is being read -----------------------------------------------------------


def hurry(job: Job, epochs: int = 15) -> None:
    """Go on until nothing is left of what there was."""
    for number in range(epochs):
        job.epoch(dict.fromkeys(range(8), number))
        job.checkpoint.tidy()


def test_an_epoch_removed_while_it_is_read_is_replaced_by_the_newest(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.epoch(dict.fromkeys(range(8), "old"))
    reader = StateReader(tmp_path)
    seen: list[Epoch] = []

    def read(manifest: Manifest) -> int:
        seen.append(manifest.epoch)
        if len(seen) == 1:
            hurry(job)
        return sum(
            len(merged(reader.location, job.form, files_of(manifest, executor)))
            for executor in job.form.executor_names
        )

    assert reader.steadily(None, read) == 8
    assert seen == [1, 16]


def test_an_epoch_asked_for_that_is_removed_meanwhile_is_an_error(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.epoch(dict.fromkeys(range(8), "old"))
    reader = StateReader(tmp_path)

    def read(manifest: Manifest) -> None:
        hurry(job)
        merged(reader.location, job.form, list(manifest.files))

    with pytest.raises(MismatchError, match=r"have epoch 1; got those of \[16, 15, 14\]"):
        reader.steadily(1, read)


def test_who_is_never_fast_enough_is_told_so(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.epoch(dict.fromkeys(range(8), "old"))
    reader = StateReader(tmp_path)

    def read(manifest: Manifest) -> None:
        hurry(job)
        merged(reader.location, job.form, list(manifest.files))

    with pytest.raises(DamagedError, match="faster than they can be read"):
        reader.steadily(None, read)


@pytest.mark.parametrize(
    "kind",
    [
        pa.int8(),
        pa.uint64(),
        pa.float16(),
        pa.float64(),
        pa.bool_(),
        pa.string(),
        pa.large_binary(),
        pa.binary(4),
        pa.date32(),
        pa.timestamp("ms"),
        pa.timestamp("us", "Europe/Oslo"),
        pa.time64("us"),
        pa.duration("s"),
        pa.decimal128(10, 2),
        pa.decimal256(50, -2),
    ],
    ids=str,
)
def test_types_of_keys_are_read_back_from_their_text(kind: pa.DataType) -> None:
    assert type_of(str(kind)) == kind


def test_dictionaries_are_their_values_and_other_types_are_unknown() -> None:
    assert type_of(str(pa.dictionary(pa.int32(), pa.string()))) == pa.string()
    assert type_of(str(pa.struct({"a": pa.int8()}))) is None
