"""Who learns where whom is: all that it needs, nothing else, and each address once."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from elasticutor.core.run.introductions import Introductions

GROUPS = (
    (("s.0", "s.1"), ("a.0", "a.1", "a.2")),
    (("a.0", "a.1", "a.2"), ("s.0", "s.1", "b.0", "b.1")),
    (("b.0", "b.1"), ("a.0", "a.1", "a.2", "out")),
    (("out",), ("b.0", "b.1")),
)
NEEDS = {member: set(needed) for members, needed in GROUPS for member in members}
ALL = tuple(NEEDS)


def everybody() -> Introductions:
    introductions = Introductions(GROUPS)
    for who in ALL:
        introductions.came(who)
    return introductions


def test_each_group_is_told_with_one_message_of_those_it_needs() -> None:
    told = everybody().due()
    assert [(due.receivers, due.whom) for due in told] == list(GROUPS)


def test_what_was_told_is_not_told_again() -> None:
    introductions = everybody()
    introductions.due()
    assert introductions.due() == []


def test_a_successor_learns_all_and_the_others_learn_of_it_alone() -> None:
    introductions = everybody()
    introductions.due()
    introductions.left("b.1")
    introductions.came("b.1")
    told = {(due.receivers, due.whom) for due in introductions.due()}
    assert told == {
        (("a.0", "a.1", "a.2"), ("b.1",)),
        (("b.1",), ("a.0", "a.1", "a.2", "out")),
        (("out",), ("b.1",)),
    }


def test_one_that_is_gone_is_neither_told_nor_told_of() -> None:
    introductions = everybody()
    introductions.left("a.1")
    for due in introductions.due():
        assert "a.1" not in (*due.receivers, *due.whom)


@given(st.lists(st.tuples(st.sampled_from(["came", "left", "due"]), st.sampled_from(ALL))))
def test_after_each_round_everybody_knows_the_newest_address_of_those_it_needs(
    steps: list[tuple[str, str]],
) -> None:
    introductions = Introductions(GROUPS)
    lives: dict[str, int] = {}
    known: dict[str, dict[str, int]] = {}
    for number, (step, who) in enumerate([*steps, ("due", "")]):
        if step == "came":
            introductions.came(who)
            lives[who], known[who] = number, {}
        elif step == "left":
            introductions.left(who)
            lives.pop(who, None)
            known.pop(who, None)
        else:
            for due in introductions.due():
                for receiver in due.receivers:
                    for whom in due.whom:
                        assert known[receiver].get(whom) != lives[whom]  # otherwise told twice
                        known[receiver][whom] = lives[whom]
            for who_knows, book in known.items():
                needed = {peer: lives[peer] for peer in NEEDS[who_knows] if peer in lives}
                assert needed.items() <= book.items()
                assert book.keys() <= NEEDS[who_knows]
