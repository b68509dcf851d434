"""Where main processes and their first cores go, and what they get after a loss.

Main processes are placed round-robin over the nodes and stay (paper 5). Cores come from the
executor's own node first, and then from wherever most are free. When a node is lost, those whose
home it was get another, and all who had cores there get others as far as there are any.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from elasticutor.core.protocol.ids import NodeId, Peer
from elasticutor.errors import BadValueError


@dataclass(frozen=True, slots=True)
class Placement:
    """Where an executor is, and which cores it starts with."""

    node: NodeId
    cores: Mapping[NodeId, int]


def place(
    executors: Sequence[tuple[Peer, int]],
    free: Mapping[NodeId, int],
    first: int = 0,
    share: bool = False,
) -> dict[Peer, Placement]:
    """Give every executor a node and the cores that it wants.

    Args:
        executors: Their names, and how many cores each wants.
        free: The free cores of every node; one that is overdrawn has none.
        first: The node to begin with, by number; so that several runs do not all begin alike.
        share: Whether to make do with fewer cores than wanted: each gets one, on its own
            node if there are not even that many, and shares it with others there.
    """
    _require_executors(executors)
    if executors and not free:
        raise BadValueError("nodes", "be there", "none", "wait for them, or make a new cluster")
    left = Counter({node: max(0, cores) for node, cores in free.items()})
    wanted, there = sum(cores for _, cores in executors), left.total()
    if wanted > there and share:
        executors = _fewer(executors, there)
        wanted = sum(cores for _, cores in executors)
    if wanted > there and not share:
        raise BadValueError(
            "cores of the topology's executors",
            f"be at most the {there} that are free on {len(free)} nodes",
            wanted,
            "give operators fewer executors or cores, or the cluster more",
        )
    nodes = sorted(free)
    homes = {who: nodes[(first + number) % len(nodes)] for number, (who, _) in enumerate(executors)}
    given = {who: Counter[NodeId]() for who, _ in executors}
    for who, cores in executors:  # each executor's own node first, before others take its cores
        node = homes[who]
        own = min(cores, left[node])
        given[who][node] += own
        left[node] -= own
    for who, cores in executors:
        while given[who].total() < cores:
            if not left.total():
                given[who][homes[who]] += 1
                break
            node = max(nodes, key=lambda name: left[name])
            given[who][node] += 1
            left[node] -= 1
    return {
        who: Placement(homes[who], {node: n for node, n in given[who].items() if n})
        for who, _ in executors
    }


def rehouse(
    placed: Placement, wanted: int, free: Mapping[NodeId, int], who: Peer
) -> Placement | None:
    """Where to start an executor again whose main process was lost.

    The same place, without cores of nodes that are gone, if any of it is left; otherwise
    another one, shared if need be. None while there is no node at all.

    Args:
        placed: Where it was, and the cores that it should have.
        wanted: How many it should have in all, if those are gone.
        free: The free cores of every node that is there, its own ones among them.
        who: The executor.
    """
    if not free:
        return None
    left = {node: cores for node, cores in placed.cores.items() if node in free and cores}
    if placed.node in free and left:
        return Placement(placed.node, left)
    found = place([(who, wanted)], free, share=True)[who]
    return Placement(placed.node if placed.node in free else found.node, found.cores)


def make_up(placed: Placement, wanted: int, free: Mapping[NodeId, int]) -> dict[NodeId, int]:
    """The cores of an executor that has lost some: others instead, as far as there are any.

    Args:
        placed: Where it is, and the cores that it should have.
        wanted: How many it should have in all.
        free: The free cores of every node that is there, its own ones not among them.
    """
    cores = Counter({node: n for node, n in placed.cores.items() if node in free and n})
    left = Counter({node: max(0, n) for node, n in free.items()})
    while cores.total() < wanted and left.total():
        node = max(sorted(left), key=lambda name: left[name])
        cores[node] += 1
        left[node] -= 1
    if not cores.total() and free:
        cores[placed.node if placed.node in free else min(free)] += 1
    return dict(cores)


def _fewer(executors: Sequence[tuple[Peer, int]], there: int) -> list[tuple[Peer, int]]:
    """One core each, and the rest in turn as far as it goes."""
    given = {who: 1 for who, _ in executors}
    left = there - len(given)
    while left > 0:
        for who, cores in executors:
            if given[who] < cores and left > 0:
                given[who] += 1
                left -= 1
    return list(given.items())


def _require_executors(executors: Sequence[tuple[Peer, int]]) -> None:
    names = Counter(who for who, _ in executors)
    for who, cores in executors:
        if cores < 1:
            raise BadValueError(f"cores of {who!r}", "be at least 1", cores)
        if names[who] > 1:
            raise BadValueError("executors", "have a name each", f"{names[who]} times {who!r}")
