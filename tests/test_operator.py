from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from elasticutor.errors import BadValueError, ElasticutorError
from elasticutor.operator import BatchState, Groups, Operator, OperatorError, State, kind_of


class ByRecord(Operator):
    def process(self, key: Any, row: Any, state: State) -> Iterator[Any]:
        yield key


class ByBatch(Operator):
    def process_batch(self, batch: Any, state: BatchState) -> Any:
        return batch


class Both(ByRecord, ByBatch):
    pass


class Neither(Operator):
    pass


def test_an_operator_works_by_record_or_by_batch() -> None:
    assert kind_of(ByRecord()) == "record"
    assert kind_of(ByBatch()) == "batch"


@pytest.mark.parametrize(("operator", "got"), [(Both(), "both"), (Neither(), "neither")])
def test_an_operator_overrides_exactly_one_of_the_two(operator: Operator, got: str) -> None:
    with pytest.raises(
        BadValueError, match=f"{type(operator).__name__} must override.*; got {got} of them"
    ):
        kind_of(operator)


def test_a_class_is_not_yet_an_operator() -> None:
    with pytest.raises(BadValueError, match=r"make one of it: ByRecord\(\)"):
        kind_of(ByRecord)
    with pytest.raises(BadValueError, match="derive it"):
        kind_of(len)


def test_an_operator_error_says_everything_and_still_does_after_pickling() -> None:
    error = OperatorError(
        "counts", "not fail", "KeyError: 5", "look", key="'k'", row="Row(a=1)", trace="File x"
    )
    again = pickle.loads(pickle.dumps(error))  # noqa: S301
    assert str(again) == str(error)
    assert str(error).splitlines() == [
        "operator 'counts' must not fail; got KeyError: 5. Hint: look",
        "  key: 'k'",
        "  row: Row(a=1)",
        "File x",
    ]
    facts = (again.operator, again.key, again.row, again.trace, again.hint)
    assert facts == ("counts", "'k'", "Row(a=1)", "File x", "look")
    assert isinstance(again, ElasticutorError)
    assert isinstance(again, RuntimeError)


def test_groups_say_which_key_each_row_has() -> None:
    keys = [7, 5, 7, 9, 5, 7]
    groups = Groups([9, 7, 5], np.array([3, 0, 2, 5, 1, 4]), np.array([0, 1, 4]))
    assert groups.sizes.tolist() == [1, 3, 2]
    assert [groups.keys[place] for place in groups.of_row] == keys


def test_writing_an_operator_needs_neither_spark_nor_pyarrow() -> None:
    code = (
        "import sys, elasticutor.operator; "
        "print([m for m in ('pyspark', 'pyarrow', 'zmq') if m in sys.modules])"
    )
    told = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert told.stdout.strip() == "[]"
