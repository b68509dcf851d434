"""How much a source reads at once."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from elasticutor.runtime.source import batch_rows

row_bytes = st.floats(1.0, 1e9)


@given(row_bytes, st.integers(0, 2**40))
def test_a_batch_has_at_least_one_row_and_is_bounded(size: float, step: int) -> None:
    rows = batch_rows(size, step)
    assert 1 <= rows <= 16_384
    assert rows == 1 or rows * size <= 2.5 * 1024 * 1024


@given(row_bytes, st.integers(0, 2**40), st.integers(0, 2**40))
def test_more_credit_never_means_smaller_batches(size: float, one: int, other: int) -> None:
    less, more = sorted((one, other))
    assert batch_rows(size, less) <= batch_rows(size, more)


@given(row_bytes, st.integers(0, 1024 * 1024))
def test_batches_for_a_small_window_are_not_enlarged(size: float, step: int) -> None:
    assert batch_rows(size, step) == batch_rows(size, 0) <= 8192
