"""Carries a plan out, step by step: cores are given up first, and granted when they are free.

The caller sends each executor the cores that it should have from now on, and counts what is in use:
a core is free only when the task on it is gone, which takes as long as its shards take to leave.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from typing import TypeAlias

from elasticutor.core.protocol.ids import NodeId, Peer

Cores: TypeAlias = Mapping[NodeId, int]

GRANT_S = 10.0
"""How long a plan may wait for cores to become free before it is given up, in seconds."""


class CoresInUse:
    """Counts the cores that executors use on every node, executor by executor.

    A core is in use from when it is promised until the task on it is gone. Only an executor that
    changes is counted again: a cluster has many, and tasks come and go all the time.

    Args:
        shared: Executors that have only a part of a core, and so keep no other from one.
    """

    def __init__(self, shared: Collection[Peer] = frozenset()) -> None:
        self._shared = frozenset(shared)
        self._counted: dict[Peer, dict[NodeId, int]] = {}
        self.by_node: Counter[NodeId] = Counter()

    def set(self, who: Peer, promised: Cores, occupied: Cores) -> bool:
        """Count what an executor uses now; returns whether it uses fewer cores on some node."""
        if who in self._shared:
            return False
        before = self._counted.get(who, {})
        now = {
            node: max(promised.get(node, 0), occupied.get(node, 0))
            for node in {*promised, *occupied}
        }
        self._counted[who] = now
        for node, count in now.items():
            self.by_node[node] += count - before.get(node, 0)
        for node in before.keys() - now.keys():
            self.by_node[node] -= before[node]
        return any(now.get(node, 0) < count for node, count in before.items())


class PlanExecution:
    """A plan on its way: the cores that some executors should have in the end."""

    def __init__(self, targets: Mapping[Peer, Cores]) -> None:
        self._left = {
            who: {node: count for node, count in cores.items() if count}
            for who, cores in targets.items()
        }

    @property
    def done(self) -> bool:
        """Whether every executor has the order for the cores that it should have."""
        return not self._left

    @property
    def waiting(self) -> tuple[Peer, ...]:
        """The executors that have yet to get cores."""
        return tuple(self._left)

    def forget(self, who: Peer) -> None:
        """Leave an executor as it is."""
        self._left.pop(who, None)

    def give_up(self, promised: Mapping[Peer, Cores]) -> dict[Peer, dict[NodeId, int]]:
        """The first step: who is to have fewer cores from now on, and which.

        One that changes all of its cores for others gets them at once, for it cannot do without:
        for a moment there is more than one task on a core.
        """
        orders: dict[Peer, dict[NodeId, int]] = {}
        for who, target in list(self._left.items()):
            has = promised[who]
            kept = {node: min(count, target.get(node, 0)) for node, count in has.items()}
            kept = {node: count for node, count in kept.items() if count}
            if not kept:
                orders[who] = self._left.pop(who)
            elif kept != has:
                orders[who] = kept
        return orders

    def grant(
        self, promised: Mapping[Peer, Cores], in_use: CoresInUse, nodes: Mapping[NodeId, int]
    ) -> dict[Peer, dict[NodeId, int]]:
        """Any later step: who is to have more cores from now on, and which.

        Args:
            promised: The cores that every executor of `waiting` was ordered to have.
            in_use: The cores that all executors of the cluster use; those granted now are not among
                them until they are counted.
            nodes: The cores of every node.
        """
        used = Counter(in_use.by_node)
        orders: dict[Peer, dict[NodeId, int]] = {}
        for who, target in list(self._left.items()):
            cores = dict(promised[who])
            for node, count in target.items():
                more = min(count - cores.get(node, 0), nodes.get(node, 0) - used[node])
                if more > 0:
                    cores[node] = cores.get(node, 0) + more
                    used[node] += more
            if cores != promised[who]:
                orders[who] = cores
            if cores == target:
                del self._left[who]
        return orders
