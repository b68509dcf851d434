"""The checker itself: what it runs through, that it replays, and that it finds bugs."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys

import pytest

from elasticutor.errors import ElasticutorError
from elasticutor.lab.check.mutants import ALL
from elasticutor.lab.check.mutants.executor import ESSENTIAL
from elasticutor.lab.check.mutants.fencing import FENCING
from elasticutor.lab.check.mutants.mutant import Mutant, stored_seeds
from elasticutor.lab.check.runner import CheckResult, run_seed, run_seeds
from elasticutor.lab.check.scenario import draw, draw_habits
from elasticutor.lab.check.trace import Trace

_TELL = """
import hashlib, sys
from elasticutor.lab.check.runner import run_seed
from elasticutor.lab.check.trace import Trace
for seed in map(int, sys.argv[1:]):
    trace = Trace()
    run_seed(seed, trace)
    print(seed, len(trace.lines), hashlib.sha256("\\n".join(trace.lines).encode()).hexdigest())
"""


@pytest.fixture(scope="module")
def two_hundred() -> CheckResult:
    return run_seeds(range(200), processes=2)


def test_no_seed_goes_wrong(two_hundred: CheckResult) -> None:
    assert [(bad.seed, bad.violations) for bad in two_hundred.failures] == []
    assert two_hundred.seeds == 200


@pytest.mark.parametrize(
    ("what", "least"),
    [
        ("moves", 2000),
        ("moves_remote", 500),
        ("moves_at_epoch_end", 200),
        ("moves_with_returned_tuples", 400),
        ("partial_results", 150),
        ("relocations", 100),
        ("epochs", 500),
        ("aborts", 100),
        ("aborts_mid_move", 20),
        ("rollbacks_after_prepare", 20),
        ("lost_tasks", 40),
        ("lost_nodes", 10),
        ("lost_executors", 5),
        ("cores_granted", 100),
        ("cores_taken", 100),
        ("refused_StaleAttemptError", 100),
        ("executed_again", 40),
        ("went_back", 100),
        ("query_restarts", 100),
        ("copied_tasks", 40),
        ("late_tasks", 40),
        ("lost_feeders", 20),
        ("lost_outputs", 20),
        ("lost_outputs_of_jobs", 10),
        ("stages_in_part", 20),
        ("used_twice", 20),
        ("skipped_batches", 3),
    ],
)
def test_every_kind_of_trouble_happens_often(
    two_hundred: CheckResult, what: str, least: int
) -> None:
    assert two_hundred.counts[what] >= least


def test_processes_that_do_not_answer_are_given_up_and_none_is_left_behind() -> None:
    with pytest.raises(ElasticutorError, match=r"finish a seed within 0\.001 s; got 'no answer'"):
        run_seeds(range(100), processes=2, patience_s=0.001)
    assert multiprocessing.active_children() == []


def test_no_process_is_left_behind_when_all_seeds_are_done(two_hundred: CheckResult) -> None:
    assert two_hundred.seeds == 200
    assert multiprocessing.active_children() == []


def test_a_seed_has_a_thousand_tuples_on_average(two_hundred: CheckResult) -> None:
    assert two_hundred.counts["tuples"] / two_hundred.seeds >= 1000


def test_seeds_cover_both_ways_of_driving_epochs_and_every_style_of_state() -> None:
    scenarios = [draw(seed) for seed in range(60)]
    assert {scenario.batches for scenario in scenarios} == {True, False}
    styles = {operator.style for scenario in scenarios for operator in scenario.operators}
    assert styles == {"in place", "set", "clearing"}
    assert max(len(scenario.operators) for scenario in scenarios) == 4
    assert any(len(operator.downstream) == 2 for s in scenarios for operator in s.operators)


def test_queries_are_run_with_and_without_trouble_of_every_kind() -> None:
    habits = [draw_habits(scenario) for seed in range(100) if (scenario := draw(seed)).batches]
    assert {habit.calm for habit in habits} == {True, False}
    assert {habit.tries for habit in habits} == {1, 2, 4}
    for kind in ("copies", "deaths", "lost_outputs", "in_part", "twice", "skips"):
        assert any(getattr(habit, kind) for habit in habits), kind
        assert not any(getattr(habit, kind) for habit in habits if habit.calm), kind


def test_the_same_seed_is_the_same_run_in_every_process() -> None:
    seeds = ["0", "1", "2", "5"]
    stories = set()
    for hash_seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        told = subprocess.run(
            [sys.executable, "-c", _TELL, *seeds],
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        )
        stories.add(told.stdout)
    (story,) = stories
    assert len(story.splitlines()) == len(seeds)


def test_tracing_changes_nothing() -> None:
    for seed in (0, 1):
        assert run_seed(seed, Trace()).counts == run_seed(seed).counts


def test_a_trace_tells_who_was_told_what_and_what_came_of_it() -> None:
    trace = Trace()
    run_seed(0, trace)
    assert any("AttemptBegun attempt=1" in line for line in trace.lines)
    assert any("→ Dispatch task=" in line for line in trace.lines)
    assert any("ReportMove move=" in line for line in trace.lines)
    assert max(len(line) for line in trace.lines) < 1000


MOST_SEEDS = {mutant.name: 150 if mutant in FENCING else 300 for mutant in ALL}
"""Within how many seeds the checker has to find each of them."""


@pytest.mark.parametrize("mutant", ALL, ids=lambda mutant: mutant.name)
def test_a_planted_bug_is_found_by_its_stored_seed(mutant: Mutant) -> None:
    # Seeds are independent of each other: a search from 0 would find it there at the latest.
    most, seed = MOST_SEEDS[mutant.name], mutant.seed
    if seed is None:  # a new one: slow until `make seeds` has stored its seed
        seed = (mutant.found_after(most) or most + 1) - 1
    assert seed < most
    assert mutant.found_by(seed), "the protocol or the checker has changed: run `make seeds`"


def test_every_stored_seed_has_its_planted_bug() -> None:
    assert set(stored_seeds()) <= {mutant.name for mutant in ALL}


@pytest.mark.matrix
@pytest.mark.parametrize("mutant", ALL, ids=lambda mutant: mutant.name)
def test_a_search_from_the_first_seed_finds_a_planted_bug(mutant: Mutant) -> None:
    assert mutant.found_after(MOST_SEEDS[mutant.name]) is not None


def test_there_are_eight_essential_mutants() -> None:
    assert len({mutant.name for mutant in ESSENTIAL}) == 8
    assert len({mutant.name for mutant in ALL}) == len(ALL)


def test_a_mutant_leaves_no_trace_behind() -> None:
    before = run_seed(0)
    ESSENTIAL[0].found_after(1)
    after = run_seed(0)
    assert after.violations == before.violations == ()
    assert after.counts == before.counts
