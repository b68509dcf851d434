import dataclasses
import math
from typing import Any

import pytest

from elasticutor.core.executor.config import ExecutorConfig
from elasticutor.errors import BadValueError

COUNTS = (
    "shards",
    "min_chunks",
    "max_chunks",
    "first_chunk_rows",
    "max_chunk_rows",
    "min_credit_bytes",
    "max_credit_bytes",
    "output_bytes",
    "max_moves",
    "bulk_rows",
)
TIMES = (
    "window_s",
    "chunk_s",
    "bulk_s",
    "moving_chunk_s",
    "credit_s",
    "load_half_life_s",
    "steady_half_life_s",
    "backlog_horizon_s",
)
OTHERS = ("outputs", "balance_threshold", "chance")

NONSENSE: list[tuple[str, Any]] = [
    *((name, value) for name in COUNTS for value in (0, -1)),
    # An endless `min_chunks` is more than `max_chunks`, and refused in that name.
    *((name, bad) for name in COUNTS if name != "min_chunks" for bad in (math.nan, math.inf)),
    *((name, value) for name in TIMES for value in (0.0, 1e-7, -1.0, math.nan, math.inf)),
    *(("balance_threshold", value) for value in (0.0, 0.99, -1.2, math.nan, math.inf)),
    *(("chance", value) for value in (-0.1, math.nan, math.inf)),
    ("outputs", "drop"),
    ("outputs", ""),
    ("max_credit_bytes", 64 * 1024 - 1),
    ("max_chunks", 1),
]


def test_every_setting_is_tried_with_nonsense() -> None:
    assert {name for name, _ in NONSENSE} == {f.name for f in dataclasses.fields(ExecutorConfig)}
    assert {*COUNTS, *TIMES, *OTHERS} == {name for name, _ in NONSENSE}


@pytest.mark.parametrize(("name", "value"), NONSENSE)
def test_nonsense_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(BadValueError) as caught:
        ExecutorConfig(**{name: value})
    assert caught.value.who == name
    assert caught.value.got is value


@pytest.mark.parametrize("value", [math.nan, math.inf, 33])
def test_the_least_number_of_chunks_is_not_more_than_the_most(value: Any) -> None:
    with pytest.raises(BadValueError):
        ExecutorConfig(min_chunks=value)


@pytest.mark.parametrize(
    "settings",
    [
        dict.fromkeys(COUNTS, 1),
        dict.fromkeys(TIMES, 1e-6),
        {"balance_threshold": 1.0},
        {"outputs": "return"},
        {"min_credit_bytes": 10**9, "max_credit_bytes": 10**9},
    ],
)
def test_the_least_sensible_values_are_taken(settings: dict[str, Any]) -> None:
    config = ExecutorConfig(**settings)
    assert {name: getattr(config, name) for name in settings} == settings


def test_settings_cannot_be_changed() -> None:
    config = ExecutorConfig()
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.shards = 1  # type: ignore[misc]
    assert config == ExecutorConfig()


def test_the_defaults_are_those_of_the_paper_where_it_names_them() -> None:
    config = ExecutorConfig()
    assert (config.shards, config.balance_threshold) == (256, 1.2)


@pytest.mark.parametrize("name", COUNTS)
@pytest.mark.parametrize("value", [2.5, math.nan, math.inf, "4"])
def test_counts_are_whole_numbers_and_the_error_names_the_right_one(name: str, value: Any) -> None:
    with pytest.raises(BadValueError) as caught:
        ExecutorConfig(**{name: value})
    assert caught.value.who == name
