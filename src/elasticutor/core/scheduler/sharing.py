"""Who shares a core with others, where executors outnumber cores.

The least loaded executors have a task each on a node and share its cores there; the others have
whole cores of their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from heapq import heapify, heappop, heappush

from elasticutor.core.protocol.ids import NodeId, Peer


def seated(
    nodes: Mapping[NodeId, int],
    homes: Mapping[Peer, NodeId],
    need: Mapping[Peer, float],
    work: Mapping[Peer, float],
) -> tuple[dict[Peer, NodeId], dict[NodeId, int], dict[Peer, int]]:
    """Who shares cores and on which node, the cores left to the others, and their numbers.

    An executor shares on its own node, unless that has no core at all. Where too many would, those
    with the most to do get a core elsewhere, as long as there is one.

    Args:
        nodes: The cores of each node.
        homes: All executors, and their own nodes.
        need: How many cores each needs; less than one means to share.
        work: What each has to do, in cores.

    Example:
        >>> a, b, c, n = Peer("a"), Peer("b"), Peer("c"), NodeId("n")
        >>> need = {a: 1.0, b: 0.5, c: 0.4}
        >>> seated({n: 2}, {a: n, b: n, c: n}, need, need)
        ({'b': 'n', 'c': 'n'}, {'n': 1}, {'a': 1})
    """
    pools = _Pools(nodes)
    wholes: dict[Peer, int] = {}
    for who, home in homes.items():
        if need[who] < 1:
            pools.seat(who, home, need[who])
        else:
            wholes[who] = int(need[who])
    rich = [(work[who] / (count - 1), who) for who, count in wholes.items() if count > 1]
    heapify(rich)
    poor = sorted(wholes, key=lambda who: (-work[who], who))
    over = sum(wholes.values()) - pools.room
    while over > 0:
        if rich:  # who feels it least
            _, who = heappop(rich)
            wholes[who] -= 1
            if wholes[who] > 1:
                heappush(rich, (work[who] / (wholes[who] - 1), who))
        else:
            who = poor.pop()
            del wholes[who]
            pools.seat(who, homes[who], min(1.0, work[who]))
        over = sum(wholes.values()) - pools.room
    while over < 0 and (found := pools.relieve()) is not None:
        wholes[found] = 1
        over = sum(wholes.values()) - pools.room
    return pools.seats, pools.rooms(), wholes


class _Pools:
    """The cores of each node that executors share there."""

    def __init__(self, nodes: Mapping[NodeId, int]) -> None:
        self.seats: dict[Peer, NodeId] = {}
        self.room = sum(nodes.values())
        """How many cores are left on all nodes."""
        self._nodes = {node: cores for node, cores in nodes.items() if cores}
        self._parts: dict[NodeId, dict[Peer, float]] = {node: {} for node in self._nodes}
        self._sums = dict.fromkeys(self._nodes, 0.0)
        self._taken = dict.fromkeys(nodes, 0)

    def seat(self, who: Peer, home: NodeId, part: float) -> None:
        """One more shares, and should have this part of a core."""
        if home not in self._nodes:
            home = min(self._nodes, key=lambda node: (self._fullness(node), node))
        self.seats[who] = home
        self._parts[home][who] = part
        self._count(home, part)

    def relieve(self) -> Peer | None:
        """Unseat the one that should have most where cores are fewest for all; None: no need."""
        node = max(self._nodes, key=lambda node: (self._fullness(node), node))
        parts = self._parts[node]
        if self._fullness(node) <= 1 or len(parts) == 1:
            return None
        who = max(parts, key=lambda who: (parts[who], who))
        del self.seats[who]
        self._count(node, -parts.pop(who))
        return who

    def rooms(self) -> dict[NodeId, int]:
        """How many cores are left on each node."""
        return {node: self._nodes.get(node, 0) - taken for node, taken in self._taken.items()}

    def _fullness(self, node: NodeId) -> float:
        return self._sums[node] / self._nodes[node]

    def _count(self, node: NodeId, part: float) -> None:
        self._sums[node] += part
        taken = min(self._nodes[node], max(1, round(self._sums[node])))
        self.room -= taken - self._taken[node]
        self._taken[node] = taken
