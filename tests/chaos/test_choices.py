"""A seed decides everything, and everything comes up."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from elasticutor.core.protocol import coordinator, events, instructions
from elasticutor.lab.chaos.choices import MOMENTS, Choices
from elasticutor.lab.chaos.kill_points import KINDS, POINTS
from elasticutor.transport import messages

BLOWS = 600


def test_the_same_seed_makes_the_same_decisions() -> None:
    def decisions(seed: int) -> list[object]:
        dice = Choices(seed, nodes=2, cores=3)
        return [(dice.blow(), dice.shape(), dice.moment(), dice.seed()) for _ in range(50)]

    assert decisions(3) == decisions(3)
    assert decisions(3) != decisions(4)


def test_every_point_comes_up_and_half_of_all_blows_are_at_none() -> None:
    dice = Choices(1, nodes=2, cores=3)
    blows = [dice.blow() for _ in range(BLOWS)]
    assert {blow.point for blow in blows} == {*POINTS, None}
    assert 0.4 < sum(blow.point is None for blow in blows) / BLOWS < 0.6
    seconds = [blow.second_s for blow in blows if blow.second_s is not None]
    assert 0.25 < len(seconds) / BLOWS < 0.42
    assert all(0 <= second <= 0.3 for second in seconds)


def test_every_kind_is_killed_tasks_most_often() -> None:
    dice = Choices(1, nodes=2, cores=3)
    killed = Counter(dice.kind({kind: ["a"] for kind in KINDS}) for _ in range(BLOWS))
    assert set(killed) == set(KINDS)
    assert killed.most_common(1)[0][0] == "task"
    assert dice.kind({"node": [], "sink": ["out"]}) == "sink"
    assert dice.kind({"node": []}) is None


def test_every_moment_of_a_driver_comes_in_turn() -> None:
    dice = Choices(1, nodes=2, cores=3)
    assert {dice.moment() for _ in MOMENTS} == set(MOMENTS)


@given(st.integers(0, 10_000), st.integers(1, 4), st.integers(1, 4))
def test_any_division_of_the_work_has_a_core_for_every_executor(
    seed: int, nodes: int, cores: int
) -> None:
    shape, on, each = Choices(seed, nodes, max(cores, -(-4 // nodes))).shape()
    assert abs(on - nodes) <= 1 <= on
    assert shape.chains + shape.tallies + 1 <= on * each


def test_every_point_names_a_message_that_there_is() -> None:
    modules = (coordinator, events, instructions, messages)
    for point in POINTS:
        assert any(hasattr(module, point.message) for module in modules), point
    assert len(set(POINTS)) == len(POINTS)
