"""What each paradigm of the paper is, as far as the engine has to know."""

from __future__ import annotations

import pytest

from elasticutor.core.paradigm import PARADIGMS, Paradigm
from elasticutor.errors import BadValueError

PROPERTIES = (
    "is_scheduled",
    "assigns_naively",
    "balances",
    "holds_tables_upstream",
    "shares_stores",
)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("elastic", {"is_scheduled", "balances"}),
        ("naive", {"is_scheduled", "assigns_naively", "balances"}),
        ("static", set()),
        ("rc", {"balances", "holds_tables_upstream", "shares_stores"}),
    ],
)
def test_a_paradigm_knows_what_it_does(name: str, expected: set[str]) -> None:
    paradigm = Paradigm.named(name)
    assert {which for which in PROPERTIES if getattr(paradigm, which)} == expected
    assert str(paradigm) == name  # in journals and in JSON


def test_every_name_is_one_of_a_paradigm() -> None:
    assert [paradigm.value for paradigm in Paradigm] == list(PARADIGMS)


def test_another_name_is_refused() -> None:
    with pytest.raises(BadValueError, match=r"paradigm must be one of \['elastic'.*; got 'magic'"):
        Paradigm.named("magic")
