"""How near the assignment of cores comes to the best there is, in cases small enough to know it.

The exact solver goes through the executors one by one and remembers, for every number of cores that
may be left on each node, the least that the remaining ones can cost. That takes time and memory in
proportion to the product of all nodes' cores, so it is for a handful of nodes.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from elasticutor.core.protocol.ids import NodeId, Peer
from elasticutor.core.scheduler.assignment import DEFAULT_PHI, Holding, assign
from elasticutor.core.scheduler.migration_cost import migration_cost_bytes
from elasticutor.errors import BadValueError

_MOST_NODES, _MOST_EXECUTORS, _MOST_CORES = 3, 4, 8


def against_optimum(cases: int, seed: int) -> dict[str, Any]:
    """Assign cores in random small cases, and compare what it costs with the least it could.

    Both keep to the φ that the assignment settled on. Excess is what the assignment moves beyond
    the least, as a share of all state in the case; ratios leave out cases where the least is 0.
    """
    if cases < 1:
        raise BadValueError("cases", "be at least 1", cases)
    rng = random.Random(seed)
    costs, least, state, doubled = [], [], [], 0
    for _ in range(cases):
        holdings, nodes = random_case(rng)
        found = assign(holdings, nodes)
        costs.append(found.cost_bytes)
        least.append(least_cost_bytes(holdings, nodes, found.phi))
        state.append(sum(holding.state_bytes for holding in holdings) or 1)
        doubled += found.doubled > 0
    excesses = [(cost - best) / of for cost, best, of in zip(costs, least, state, strict=True)]
    ratios = [cost / best for cost, best in zip(costs, least, strict=True) if best > 0] or [1.0]
    return {
        "cases": cases,
        "seed": seed,
        "at_optimum": sum(excess < 1e-9 for excess in excesses) / cases,
        "mean_ratio": sum(ratios) / len(ratios),
        "worst_ratio": max(ratios),
        "total_ratio": sum(costs) / sum(least) if any(least) else 1.0,
        "mean_excess": sum(excesses) / cases,
        "worst_excess": max(excesses),
        "optimum_is_zero": least.count(0) / cases,
        "phi_doubled": doubled / cases,
    }


def least_cost_bytes(holdings: Sequence[Holding], nodes: Mapping[NodeId, int], phi: float) -> float:
    """The least that any assignment costs in which executors from φ on are at home, or inf."""
    names = sorted(nodes)
    choices = [_choices(holding, names, nodes, phi) for holding in holdings]

    @cache
    def least(j: int, left: tuple[int, ...]) -> float:
        if j == len(choices):
            return 0.0
        return min(
            (
                cost + least(j + 1, rest)
                for cost, split in choices[j]
                if min(rest := tuple(map(int.__sub__, left, split))) >= 0
            ),
            default=math.inf,
        )

    return least(0, tuple(nodes[name] for name in names))


def _choices(
    holding: Holding, names: Sequence[NodeId], nodes: Mapping[NodeId, int], phi: float
) -> list[tuple[float, tuple[int, ...]]]:
    """All ways to give one executor its cores, with their costs."""
    bound = holding.data_intensity >= phi and holding.home in nodes
    old = {node: count for node, count in holding.cores.items() if node in nodes}
    most = [0 if bound and name != holding.home else nodes[name] for name in names]
    return [
        (
            migration_cost_bytes(old, dict(zip(names, split, strict=True)), holding.state_bytes),
            split,
        )
        for split in _splits(holding.wanted, most)
    ]


def _splits(cores: int, most: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """All ways to write a number as a sum of terms that are at most so large."""
    if not most:
        if cores == 0:
            yield ()
        return
    for first in range(min(cores, most[0]) + 1):
        for rest in _splits(cores - first, most[1:]):
            yield (first, *rest)


def random_case(rng: random.Random) -> tuple[list[Holding], dict[NodeId, int]]:
    """Up to 4 executors on up to 3 nodes with up to 8 cores, which they use in part or fully.

    Homes go round the nodes, and cores are more often at home than not. Some executors are new,
    some have no state, and about three in eight are data-intensive.
    """
    names = [NodeId(f"n{number}") for number in range(rng.randint(2, _MOST_NODES))]
    total = rng.randint(len(names), _MOST_CORES)
    nodes = dict.fromkeys(names, 1)
    for name in rng.choices(names, k=total - len(names)):
        nodes[name] += 1
    executors = rng.randint(1, min(_MOST_EXECUTORS, total))
    free = [name for name, cores in nodes.items() for _ in range(cores)]
    rng.shuffle(free)
    wanted, present = (_shares(rng, executors, total) for _ in range(2))
    holdings: list[Holding] = []
    for number in range(executors):
        home = names[number % len(names)]
        cores: dict[NodeId, int] = {}
        for _ in range(present[number] if rng.random() < 0.9 else 0):
            node = home if home in free and rng.random() < 0.6 else free[-1]
            free.remove(node)
            cores[node] = cores.get(node, 0) + 1
        state_bytes = int(2 ** rng.uniform(10, 24)) if rng.random() < 0.9 else 0
        intensity = DEFAULT_PHI * 2 ** rng.uniform(-5, 3)
        holdings.append(
            Holding(Peer(f"e{number}"), home, cores, wanted[number], state_bytes, intensity)
        )
    return holdings, nodes


def _shares(rng: random.Random, executors: int, total: int) -> list[int]:
    """At least one core for each executor, and at most all there are together."""
    shares = [1] * executors
    for _ in range(rng.randint(0, total - executors)):
        shares[rng.randrange(executors)] += 1
    return shares
