"""The journal: everything in order, readable by anybody, while it is written."""

from __future__ import annotations

import json
import math
import threading
import time
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elasticutor.driver.journal import Journal


def lines(path: Path) -> list[dict[str, Any]]:
    """What a strict reader of JSON finds in the file."""

    def refuse(word: str) -> None:
        raise ValueError(word)

    return [
        json.loads(line, parse_constant=refuse)
        for line in path.read_text(encoding="utf-8").splitlines()
    ]


class Cause(Enum):
    LOST = "lost"


def test_events_are_kept_in_order_and_by_kind() -> None:
    journal = Journal(None)
    before = time.time()
    for number in range(4):
        journal.write("even" if number % 2 == 0 else "odd", number=number)
    after = time.time()
    assert [event["number"] for event in journal.events()] == [0, 1, 2, 3]
    assert [event["number"] for event in journal.events(kind="odd")] == [1, 3]
    assert journal.events(kind="other") == []
    assert all(before - 1e-3 <= event["time"] <= after + 1e-3 for event in journal.events())


def test_the_list_of_events_is_the_readers_own() -> None:
    journal = Journal(None)
    journal.write("a")
    journal.events().clear()
    assert len(journal.events()) == 1


def test_every_event_can_be_read_as_soon_as_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "runs" / "run.jsonl"
    journal = Journal(path)
    for number in range(3):
        journal.write("step", number=number, text="ångström\nline")
        assert lines(path) == journal.events()
    journal.close()
    assert journal.path == path


def test_a_journal_goes_on_where_the_file_ends(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    for number in range(2):
        journal = Journal(path)
        journal.write("opened", number=number)
        journal.close()
    assert [event["number"] for event in lines(path)] == [0, 1]


def test_after_the_end_events_are_kept_in_memory_only(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "run.jsonl")
    journal.write("one")
    journal.close()
    journal.close()
    journal.write("two")
    assert [event["kind"] for event in journal.events()] == ["one", "two"]
    assert [event["kind"] for event in lines(tmp_path / "run.jsonl")] == ["one"]


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (math.nan, "nan"),
        (-math.inf, "-inf"),
        (np.int32(3), 3),
        (np.float64(0.5), 0.5),
        (np.float32("nan"), "nan"),
        (np.array([1, 2]), [1, 2]),
        (np.array(7), 7),
        ((1, [2, (3,)]), [1, [2, [3]]]),
        ({4}, [4]),
        ({("n0", 1): {2: math.nan}}, {"('n0', 1)": {"2": "nan"}}),
        ({np.int64(5): 1, None: 2}, {"5": 1, "None": 2}),
        (Path("a/b"), "a/b"),
        (Cause.LOST, "Cause.LOST"),
        (Decimal("1.5"), "1.5"),
        (b"raw", "b'raw'"),
        (ValueError("why"), "why"),
        ("\ud800", "\ud800"),
        (2**80, 2**80),
        (True, True),
        (None, None),
    ],
    ids=repr,
)
def test_what_json_does_not_know_is_written_so_that_it_can_be_read(
    tmp_path: Path, value: object, written: object
) -> None:
    journal = Journal(tmp_path / "run.jsonl")
    journal.write("fact", value=value)
    journal.close()
    (event,) = lines(tmp_path / "run.jsonl")
    assert event["value"] == written
    assert type(event["value"]) is type(written)


@settings(max_examples=60)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
        lambda inner: (
            st.lists(inner) | st.dictionaries(st.integers() | st.text() | st.none(), inner)
        ),
        max_leaves=10,
    )
)
def test_no_plain_value_makes_a_line_that_cannot_be_read(
    tmp_path_factory: pytest.TempPathFactory, value: object
) -> None:
    path = tmp_path_factory.mktemp("journal") / "run.jsonl"
    journal = Journal(path)
    journal.write("fact", value=value)
    journal.write("next")
    journal.close()
    assert [event["kind"] for event in lines(path)] == ["fact", "next"]


def test_two_threads_write_whole_lines_in_one_order(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    journal = Journal(path)
    barrier = threading.Barrier(2)

    def write(name: str) -> None:
        barrier.wait(10)
        for number in range(200):
            journal.write(name, number=number, filling="x" * 200)

    threads = [threading.Thread(target=write, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()
    journal.close()
    events = lines(path)
    assert events == journal.events()
    for name in "ab":
        assert [event["number"] for event in events if event["kind"] == name] == list(range(200))
    times = [event["time"] for event in events]
    assert times == sorted(times)


def test_a_file_that_cannot_be_written_any_more_ends_nothing_but_the_file(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.jsonl")
    journal.write("run started")

    class Full:
        def write(self, text: str) -> None:
            raise OSError(28, "No space left on device")

    assert journal._file is not None
    journal._file.close()
    journal._file = Full()  # type: ignore[assignment]
    journal.write("epoch committed", epoch=1)
    journal.write("epoch committed", epoch=2)
    assert [event["epoch"] for event in journal.events("epoch committed")] == [1, 2]
    journal.close()
