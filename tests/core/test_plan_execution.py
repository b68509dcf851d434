from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping

from hypothesis import given
from hypothesis import strategies as st

from elasticutor.core.protocol.ids import NodeId, Peer
from elasticutor.core.scheduler.plan_execution import CoresInUse, PlanExecution

A, B = Peer("a"), Peer("b")
N, M = NodeId("n"), NodeId("m")


def in_use(
    promised: Mapping[Peer, Mapping[NodeId, int]],
    occupied: Mapping[Peer, Mapping[NodeId, int]],
    shared: Collection[Peer] = (),
) -> CoresInUse:
    counted = CoresInUse(shared)
    for who in {*promised, *occupied}:
        counted.set(who, promised.get(who, {}), occupied.get(who, {}))
    return counted


def test_cores_are_given_up_before_anything_is_granted() -> None:
    execution = PlanExecution({A: {N: 3}, B: {N: 1}})
    has = {A: {N: 1}, B: {N: 3}}
    assert execution.give_up(has) == {B: {N: 1}}


def test_a_core_is_granted_only_when_the_task_on_it_is_gone() -> None:
    execution = PlanExecution({A: {N: 3}})
    promised = {A: {N: 1}, B: {N: 1}}
    assert execution.grant(promised, in_use(promised, {A: {N: 1}, B: {N: 3}}), {N: 4}) == {}
    assert execution.grant(promised, in_use(promised, {A: {N: 1}, B: {N: 2}}), {N: 4}) == {
        A: {N: 2}
    }
    promised[A] = {N: 2}
    assert not execution.done
    assert execution.waiting == (A,)
    assert execution.grant(promised, in_use(promised, {A: {N: 1}, B: {N: 1}}), {N: 4}) == {
        A: {N: 3}
    }
    assert execution.done


def test_what_is_promised_and_not_there_yet_is_not_granted_twice() -> None:
    execution = PlanExecution({A: {N: 2}, B: {N: 2}})
    promised = {A: {N: 1}, B: {N: 1}}
    there = {A: {N: 1}, B: {N: 1}}
    assert execution.grant(promised, in_use(promised, there), {N: 3}) == {A: {N: 2}}
    promised[A] = {N: 2}
    assert execution.grant(promised, in_use(promised, there), {N: 3}) == {}


def test_one_that_changes_its_only_core_for_another_gets_that_at_once() -> None:
    execution = PlanExecution({A: {M: 1}, B: {N: 1}})
    assert execution.give_up({A: {N: 1}, B: {M: 1}}) == {A: {M: 1}, B: {N: 1}}
    assert execution.done


def test_those_who_share_keep_nobody_from_a_core_of_its_own() -> None:
    has = {A: {N: 1}, B: {N: 1}, Peer("c"): {N: 1}}
    assert PlanExecution({A: {N: 2}}).grant(has, in_use(has, {}), {N: 3}) == {}
    shared = {B, Peer("c")}
    assert PlanExecution({A: {N: 2}}).grant(has, in_use(has, {}, shared), {N: 3}) == {A: {N: 2}}


def test_an_executor_that_is_forgotten_gets_nothing_more() -> None:
    execution = PlanExecution({A: {N: 2}})
    execution.forget(A)
    assert execution.done
    assert execution.grant({A: {N: 1}}, in_use({A: {N: 1}}, {}), {N: 8}) == {}


def test_cores_on_a_node_that_is_gone_are_never_granted() -> None:
    execution = PlanExecution({A: {N: 1, M: 1}})
    assert execution.grant({A: {N: 1}}, in_use({A: {N: 1}}, {A: {N: 1}}), {N: 4}) == {}
    assert not execution.done


cores = st.dictionaries(st.sampled_from([N, M, NodeId("o")]), st.integers(0, 3), min_size=1)
holdings = st.lists(st.tuples(cores, cores), min_size=1, max_size=4)


@given(holdings)
def test_every_plan_that_fits_is_carried_out_and_no_node_gives_more_than_it_has(
    changes: list[tuple[dict[NodeId, int], dict[NodeId, int]]],
) -> None:
    some = {NodeId("o"): 1}
    has = {
        Peer(str(k)): {n: c for n, c in old.items() if c} or some
        for k, (old, _) in enumerate(changes)
    }
    wants = {
        Peer(str(k)): {n: c for n, c in new.items() if c} or some
        for k, (_, new) in enumerate(changes)
    }
    nodes: Counter[NodeId] = Counter()
    for each in (has, wants):
        total: Counter[NodeId] = Counter()
        for mine in each.values():
            total.update(mine)
        nodes |= total
    execution = PlanExecution(wants)
    swapping = {who for who in has if not set(has[who]) & set(wants[who])}
    promised = {who: dict(mine) for who, mine in has.items()}
    promised |= execution.give_up(promised)
    there = dict(promised)  # everybody has left
    while not execution.done:
        orders = execution.grant(promised, in_use(promised, there), nodes)
        assert orders or execution.done
        promised |= orders
        used: Counter[NodeId] = Counter()
        for mine in promised.values():
            used.update(mine)
        assert swapping or all(used[node] <= nodes[node] for node in used)
        there = dict(promised)
    assert promised == wants


@given(st.lists(st.tuples(st.sampled_from([A, B, Peer("c")]), cores, cores), max_size=12))
def test_cores_counted_step_by_step_are_those_counted_at_once(
    steps: list[tuple[Peer, dict[NodeId, int], dict[NodeId, int]]],
) -> None:
    shared = {Peer("c")}
    counted = CoresInUse(shared)
    last: dict[Peer, tuple[dict[NodeId, int], dict[NodeId, int]]] = {}
    for who, promised, occupied in steps:
        before = Counter(counted.by_node)
        freed = counted.set(who, promised, occupied)
        assert freed == any(counted.by_node[node] < count for node, count in before.items())
        last[who] = promised, occupied
    expected: Counter[NodeId] = Counter()
    for who, (promised, occupied) in last.items():
        if who not in shared:
            expected.update(Counter(promised) | Counter(occupied))
    assert +counted.by_node == +expected
