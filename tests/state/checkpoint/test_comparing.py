"""Two epochs compared: what became of each key."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.state.checkpoint.rig import Job, contents, form, some_epochs

from elasticutor.errors import BadValueError
from elasticutor.state.checkpoint import MismatchError
from elasticutor.state.inspection.comparing import difference
from elasticutor.state.inspection.reading import StateReader

CHANGES = st.dictionaries(st.integers(0, 12), st.none() | st.integers(0, 2), max_size=6)
SCHEMA = pa.schema({"n": pa.int64()})


@settings(max_examples=12)
@given(
    history=st.lists(CHANGES, min_size=2, max_size=5),
    reshaped=st.booleans(),
    schemas=st.tuples(*[st.sampled_from([None, SCHEMA])] * 2),
)
def test_a_difference_is_that_of_the_two_dictionaries(
    tmp_path_factory: pytest.TempPathFactory,
    history: list[dict[int, Any]],
    reshaped: bool,
    schemas: tuple[pa.Schema | None, pa.Schema | None],
) -> None:
    where = tmp_path_factory.mktemp("checkpoint")
    first, last = form(schema=schemas[0]), form(3 if reshaped else 2, schema=schemas[1])
    job = Job(where, first)
    job.epoch(history[0])
    before = contents(where, first, 1)
    job.epoch({})  # the next run writes this one again in its own form, and not the first
    job.checkpoint.release()
    job = Job(where, last)
    for changes in history[1:]:
        job.epoch(changes)
    newest = len(history) + 1
    after = contents(where, last, newest)
    found = difference(StateReader(where), "counts", 1, newest)
    assert (found.before, found.after) == (1, newest)
    added = {entry.key: entry.value for entry in found.added}
    removed = {entry.key: entry.value for entry in found.removed}
    changed = {new.key: (old.value, new.value) for old, new in found.changed}
    assert added == {key: after[key] for key in after.keys() - before.keys()}
    assert removed == {key: before[key] for key in before.keys() - after.keys()}
    assert changed == {
        key: (before[key], after[key])
        for key in before.keys() & after.keys()
        if before[key] != after[key]
    }


def test_by_default_the_newest_epoch_is_compared_with_the_one_before(tmp_path: Path) -> None:
    job = Job(tmp_path)
    for number in range(3):
        job.epoch({number: "x"})
    found = difference(StateReader(tmp_path), "counts")
    assert (found.before, found.after) == (2, 3)
    assert [entry.key for entry in found.added] == [2]
    assert not found.removed
    assert not found.changed


def test_the_first_epoch_has_none_before_it(tmp_path: Path) -> None:
    some_epochs(tmp_path)
    with pytest.raises(MismatchError, match="have an epoch before 0"):
        difference(StateReader(tmp_path), "counts", after=0)


def test_epochs_and_operators_that_are_not_there_are_named(tmp_path: Path) -> None:
    some_epochs(tmp_path)
    reader = StateReader(tmp_path)
    with pytest.raises(MismatchError, match="have epoch 8"):
        difference(reader, "counts", 8, 3)
    with pytest.raises(MismatchError, match="have epoch 9"):
        difference(reader, "counts", 1, 9)
    with pytest.raises(BadValueError, match="counts; got 'other'"):
        difference(reader, "other")
