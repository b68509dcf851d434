"""The run's life in the checker: what is lost in it, and that planted bugs of it are found."""

from __future__ import annotations

from collections import Counter

import pytest

from elasticutor.lab.check.mutants.life import LIFE
from elasticutor.lab.check.mutants.mutant import Mutant
from elasticutor.lab.check.runner import run_seeds

pytestmark = pytest.mark.seeds


@pytest.mark.parametrize("mutant", LIFE, ids=lambda mutant: mutant.name)
def test_a_bug_of_the_run_is_found_within_40_seeds(mutant: Mutant) -> None:
    assert mutant.found_after(40) is not None


def test_every_part_of_a_run_is_lost_now_and_then() -> None:
    counts: Counter[str] = run_seeds(range(100), processes=2).counts
    assert counts["lost_sources"] >= 3
    assert counts["lost_sinks"] >= 3
    assert counts["lost_hosts"] >= 1
    assert counts["lost_drivers"] >= 1
    assert counts["hanging"] >= 2, "no process falls silent"
    assert counts["failed_runs"] >= 4, "no run fails and is submitted again"
