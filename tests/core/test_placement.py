"""Where executors and their first cores go."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from elasticutor.core.protocol.ids import NodeId, Peer
from elasticutor.core.scheduler.placement import Placement, make_up, place, rehouse
from elasticutor.errors import BadValueError

wants = st.lists(st.integers(1, 6), max_size=8).map(
    lambda cores: [(Peer(f"e{number}"), count) for number, count in enumerate(cores)]
)
frees = st.lists(st.integers(-2, 9), min_size=1, max_size=6).map(
    lambda cores: {NodeId(f"n{number}"): count for number, count in enumerate(cores)}
)


@given(wants, frees, st.integers(0, 20))
def test_all_get_what_they_want_and_no_node_gives_more_than_it_has(
    executors: list[tuple[Peer, int]], free: dict[NodeId, int], first: int
) -> None:
    there = sum(max(0, cores) for cores in free.values())
    assume(sum(cores for _, cores in executors) <= there)
    placed = place(executors, free, first)
    assert list(placed) == [who for who, _ in executors]
    given_away: Counter[NodeId] = Counter()
    for who, cores in executors:
        assert sum(placed[who].cores.values()) == cores
        assert all(count > 0 for count in placed[who].cores.values())
        given_away.update(placed[who].cores)
    assert all(count <= free[node] for node, count in given_away.items())


@given(wants, frees, st.integers(0, 20))
def test_main_processes_go_round_the_nodes(
    executors: list[tuple[Peer, int]], free: dict[NodeId, int], first: int
) -> None:
    assume(sum(cores for _, cores in executors) <= sum(max(0, n) for n in free.values()))
    nodes = sorted(free)
    homes = [placed.node for placed in place(executors, free, first).values()]
    assert homes == [nodes[(first + number) % len(nodes)] for number in range(len(homes))]


@given(wants, frees, st.integers(0, 20))
def test_a_core_elsewhere_is_taken_only_when_those_at_home_are_given_to_its_own(
    executors: list[tuple[Peer, int]], free: dict[NodeId, int], first: int
) -> None:
    assume(sum(cores for _, cores in executors) <= sum(max(0, n) for n in free.values()))
    placed = place(executors, free, first)
    for who, cores in executors:
        home = placed[who].node
        if placed[who].cores.get(home, 0) < cores:
            own = sum(p.cores.get(home, 0) for p in placed.values() if p.node == home)
            assert own == max(0, free[home])


def test_cores_elsewhere_come_from_where_most_are_free() -> None:
    free = {NodeId("a"): 1, NodeId("b"): 2, NodeId("c"): 5}
    assert place([(Peer("e"), 3)], free)[Peer("e")].cores == {"a": 1, "c": 2}


def test_more_than_there_is_is_refused_with_a_hint() -> None:
    with pytest.raises(BadValueError, match=r"at most the 2 that are free.*got 3.*Hint"):
        place([(Peer("a"), 3)], {NodeId("n0"): 1, NodeId("n1"): 1, NodeId("n2"): -4})


@pytest.mark.parametrize("cores", [0, -1])
def test_an_executor_without_cores_is_refused(cores: int) -> None:
    with pytest.raises(BadValueError, match="cores of 'a' must be at least 1"):
        place([(Peer("a"), cores)], {NodeId("n0"): 4})


def test_two_executors_of_one_name_are_refused() -> None:
    with pytest.raises(BadValueError, match="name each"):
        place([(Peer("a"), 1), (Peer("a"), 1)], {NodeId("n0"): 4})


# Fewer cores than wanted


@given(wants, frees, st.integers(0, 20))
def test_who_shares_gets_a_core_whatever_is_free(
    executors: list[tuple[Peer, int]], free: dict[NodeId, int], first: int
) -> None:
    placed = place(executors, free, first, share=True)
    nodes = sorted(free)
    there = sum(max(0, cores) for cores in free.values())
    own: Counter[NodeId] = Counter()
    for number, (who, cores) in enumerate(executors):
        mine = placed[who]
        assert mine.node == nodes[(first + number) % len(nodes)]
        assert 1 <= sum(mine.cores.values()) <= cores
        own.update(mine.cores)
    over = {node: count - max(0, free[node]) for node, count in own.items() if count > free[node]}
    if len(executors) <= there:
        assert not over
        assert own.total() == min(there, sum(cores for _, cores in executors))
    else:
        assert sum(over.values()) == len(executors) - there
        for node in over:
            sharing = [p for p in placed.values() if p.cores == {node: 1} and p.node == node]
            assert len(sharing) >= over[node]


@given(wants, frees, st.integers(0, 20))
def test_sharing_changes_nothing_where_there_is_enough_for_all(
    executors: list[tuple[Peer, int]], free: dict[NodeId, int], first: int
) -> None:
    assume(sum(cores for _, cores in executors) <= sum(max(0, n) for n in free.values()))
    assert place(executors, free, first, share=True) == place(executors, free, first)


def test_what_is_short_is_dealt_out_in_turn() -> None:
    wanted = [(Peer("a"), 4), (Peer("b"), 1), (Peer("c"), 4)]
    placed = place(wanted, {NodeId("n0"): 6}, share=True)
    assert [p.cores for p in placed.values()] == [{"n0": 3}, {"n0": 1}, {"n0": 2}]


def test_without_even_one_core_each_the_last_share_those_of_their_own_nodes() -> None:
    wanted = [(Peer(name), 2) for name in "abcd"]
    placed = place(wanted, {NodeId("n0"): 1, NodeId("n1"): 2}, share=True)
    assert [p.cores for p in placed.values()] == [{"n0": 1}, {"n1": 1}, {"n0": 1}, {"n1": 1}]


@pytest.mark.parametrize("share", [True, False])
def test_nowhere_to_be_is_an_error(share: bool) -> None:
    with pytest.raises(BadValueError, match="nodes must be there"):
        place([(Peer("a"), 1)], {}, share=share)
    assert place([], {}, share=share) == {}


# After a loss

homes = st.sampled_from([NodeId(f"n{number}") for number in range(8)])
havings = st.dictionaries(homes, st.integers(0, 4))
"""Cores that an executor has; some of its nodes may be gone."""


@given(homes, havings, st.integers(1, 6), frees)
def test_an_executor_is_started_again_where_it_was_if_anything_of_that_is_left(
    home: NodeId, cores: dict[NodeId, int], wanted: int, free: dict[NodeId, int]
) -> None:
    found = rehouse(Placement(home, cores), wanted, free, Peer("e"))
    assert found is not None
    left = {node: count for node, count in cores.items() if node in free and count}
    assert found.node == home or home not in free
    if home in free and left:
        assert found == Placement(home, left)
    assert found.node in free
    assert set(found.cores) <= set(free)
    assert sum(found.cores.values()) >= 1
    assert all(count > 0 for count in found.cores.values())


@given(homes, havings, st.integers(1, 6))
def test_without_a_node_it_has_to_wait(home: NodeId, cores: dict[NodeId, int], wanted: int) -> None:
    assert rehouse(Placement(home, cores), wanted, {}, Peer("e")) is None
    assert make_up(Placement(home, cores), wanted, {}) == {}


@given(homes, havings, st.integers(1, 6), frees)
def test_lost_cores_are_made_up_for_as_far_as_others_are_free(
    home: NodeId, cores: dict[NodeId, int], wanted: int, free: dict[NodeId, int]
) -> None:
    kept = {node: count for node, count in cores.items() if node in free and count}
    found = make_up(Placement(home, cores), wanted, free)
    more = Counter(found) - Counter(kept)
    assert all(found[node] >= count for node, count in kept.items())  # nothing is taken
    there = sum(max(0, count) for count in free.values())
    lacking = max(0, wanted - sum(kept.values()))
    if kept or there:
        assert more.total() == min(lacking, there)
        assert all(count <= max(0, free[node]) for node, count in more.items())
    else:
        assert found == {home if home in free else min(free): 1}  # shared
