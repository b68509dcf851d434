from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.state.checkpoint.rig import Job, contents, form

from elasticutor.errors import BadValueError
from elasticutor.schemas import to_arrow
from elasticutor.state.checkpoint.typed import TypedValues
from elasticutor.state.codec import decode, encode, encode_key

NOW = datetime(2026, 11, 16, 3, 2, 1, 123456)


def exactly(state: Any) -> Any:
    """What tells apart everything but the order of a dictionary."""
    if isinstance(state, dict):
        return dict, sorted((key, repr(value)) for key, value in state.items())
    return type(state), repr(state)


def through(schema: pa.Schema, states: Sequence[Any], *, deleted: bool = False) -> list[Any]:
    """The states, having been in typed columns in a Parquet file."""
    typed = TypedValues("counts", schema)
    data: list[bytes | None] = [encode(state) for state in states]
    place = len(data) // 2
    if deleted:
        data.insert(place, None)
    values, shapes = typed.columns([encode_key(i) for i in range(len(data))], data)
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"value": values, "shape": shapes}), sink)
    table = pq.read_table(pa.BufferReader(sink.getvalue())).combine_chunks()
    found = typed.states(table["value"].chunk(0), table["shape"].chunk(0))
    if deleted:
        assert found.pop(place) is None
    return [decode(state) for state in found if state is not None]


@pytest.mark.parametrize(
    ("ddl", "states"),
    [
        ("n bigint", [1, -5, None, 2**62]),
        ("x double", [1.5, math.inf, None, -1e300]),
        ("x float", [1.5, 0.25]),
        ("t string", ["ü", "", None]),
        ("b binary", [b"ab", b"", b"12345678"]),
        ("f boolean", [True, False, None]),
        ("d date", [date(2026, 1, 1), None]),
        ("t timestamp", [NOW.replace(tzinfo=UTC), None]),
        ("t timestamp_ntz", [NOW, None]),
        ("t time", [time(1, 2, 3, 4), None]),
        ("t interval day to second", [timedelta(days=1, microseconds=5)]),
        ("m decimal(10, 2)", [Decimal("1.25"), None]),
        ("a array<int>", [[1, None], [], None]),
        ("m map<string, int>", [{"a": 1}, {}, None]),
        ("s struct<a: int, b: string>", [{"a": 1, "b": None}, None]),
    ],
)
def test_a_schema_of_one_column_keeps_bare_values(ddl: str, states: list[Any]) -> None:
    found = through(to_arrow(ddl), states, deleted=True)
    assert found == states
    assert list(map(type, found)) == list(map(type, states))


def test_tuples_lists_dictionaries_and_none_come_back_as_they_were() -> None:
    schema = to_arrow("n bigint, name string")
    states = [(1, "a"), [2, None], {"n": None, "name": "b"}, None, (3, "c")]
    assert through(schema, states, deleted=True) == states


@pytest.mark.parametrize("align", [False, True])
def test_elements_of_structured_arrays_come_back_bit_by_bit(align: bool) -> None:
    dtype = np.dtype([("a", "i1"), ("b", "f8"), ("c", "?"), ("d", "i4")], align=align)
    array = np.zeros(4, dtype)
    array["a"], array["b"], array["c"] = [1, -1, 0, 7], [1.5, np.nan, -0.0, np.inf], [1, 0, 1, 0]
    states = array.view(f"V{dtype.itemsize}").tolist()
    schema = to_arrow("a tinyint, b double, c boolean, d int")
    assert through(schema, states, deleted=True) == states


@pytest.mark.parametrize(
    ("ddl", "kind"),
    [
        ("n bigint", "i8"),
        ("n smallint", "i2"),
        ("x double", "f8"),
        ("x float", "f4"),
        ("f boolean", "?"),
        ("d date", "M8[D]"),
        ("t timestamp_ntz", "M8[us]"),
    ],
)
def test_elements_of_plain_arrays_are_typed_numbers_on_disk(ddl: str, kind: str) -> None:
    array = np.array([0, 1, 0], np.int64).astype(kind)
    states = array.view(f"V{array.dtype.itemsize}").tolist()
    assert through(to_arrow(ddl), states) == states
    column, _ = TypedValues("o", to_arrow(ddl)).columns([b"N"] * 3, [encode(s) for s in states])
    assert column.field(0).to_pylist() == pa.array(array).to_pylist()


@given(
    st.lists(
        st.one_of(
            st.tuples(st.integers(-(2**63), 2**63 - 1), st.floats()),
            st.lists(st.none(), min_size=2, max_size=2),
            st.fixed_dictionaries({"n": st.integers(0, 9), "x": st.floats(width=32)}),
            st.binary(min_size=16, max_size=16),
        ),
        max_size=8,
    )
)
@settings(max_examples=50)
def test_any_mixture_comes_back(states: list[Any]) -> None:
    found = through(to_arrow("n bigint, x double"), states)
    assert list(map(exactly, found)) == list(map(exactly, states))


@pytest.mark.parametrize(
    ("ddl", "state"),
    [
        ("n bigint", True),
        ("n bigint", 1.0),
        ("n bigint", "1"),
        ("n bigint", 2**63),
        ("n int", 2**31),
        ("x double", 1),
        ("x float", 0.1),
        ("n bigint", np.int64(1)),
        ("n bigint", b"1234"),
        ("n bigint not null", None),
        ("n bigint, t string", (1,)),
        ("n bigint, t string", {"n": 1}),
        ("n bigint, t string", b"12345678"),
        ("n bigint not null, t string", (None, "a")),
        ("a array<int>", (1, 2)),
        ("t timestamp", NOW),
        ("t string", "\ud800"),
    ],
)
def test_state_that_does_not_fit_is_named_with_operator_and_key(ddl: str, state: Any) -> None:
    typed = TypedValues("counts", to_arrow(ddl))
    with pytest.raises(BadValueError) as caught:
        typed.columns([encode_key(("Oslo", 7))], [encode(state)])
    assert str(caught.value).startswith("state of operator 'counts', key ('Oslo', 7), must ")
    assert type(state).__name__ in str(caught.value) or "NoneType" in str(caught.value)


def test_state_in_a_checkpoint_is_in_typed_columns_and_comes_back(tmp_path: Path) -> None:
    kept = form(schema=to_arrow("n bigint, name string"))
    job = Job(tmp_path, kept)
    state = {key: (key, f"name {key}") for key in range(20)}
    job.epoch(state)
    job.epoch({3: None, 4: {"n": 4, "name": None}})
    expected = {key: value for key, value in state.items() if key != 3}
    expected[4] = {"n": 4, "name": None}  # type: ignore[assignment]
    assert contents(tmp_path, kept, 2) == expected
    path = next((tmp_path / "state").rglob("*.parquet"))
    assert pq.read_schema(path).field("value").type == pa.struct(
        {"n": pa.int64(), "name": pa.string()}
    )


def test_state_that_was_kept_as_anything_gets_typed_columns_when_a_schema_is_declared(
    tmp_path: Path,
) -> None:
    job = Job(tmp_path)
    state = {key: (key, f"name {key}") for key in range(20)}
    job.epoch(state)
    job.checkpoint.release()
    kept = form(schema=to_arrow("n bigint, name string"))
    Job(tmp_path, kept)
    assert contents(tmp_path, kept, 1) == state


def test_a_schema_that_no_file_can_have_is_refused_at_once(tmp_path: Path) -> None:
    schema = pa.schema({"n": pa.month_day_nano_interval()})
    with pytest.raises(BadValueError, match="state_schema of operator 'counts'"):
        Job(tmp_path, form(schema=schema))
