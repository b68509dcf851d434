"""The cores of a cluster that no executor has."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING

from elasticutor.core.protocol.ids import NodeId, Peer
from elasticutor.errors import BadValueError

if TYPE_CHECKING:
    from elasticutor.driver.loop import DriverLoop


def free_cores(hub: DriverLoop, without: tuple[str, Peer] | None = None) -> dict[NodeId, int]:
    """The cores of every node that no executor has; those of one executor may count as free."""
    used: Counter[NodeId] = Counter()
    for name, supervisor in hub.runs.items():
        if not supervisor.is_over:
            for who, cores in supervisor.cores.items():
                if (name, who) != without:
                    used.update(cores)
    return {node: seen.cores - used[node] for node, seen in hub.nodes.items()}


def spread_cores(cores: int, home: NodeId, free: Mapping[NodeId, int]) -> dict[NodeId, int]:
    """This number of cores: from the executor's own node first, then from where most are free.

    Example:
        >>> a, b, c = NodeId("a"), NodeId("b"), NodeId("c")
        >>> spread_cores(3, a, {a: 1, b: 2, c: 3})
        {'a': 1, 'c': 1, 'b': 1}
    """
    if type(cores) is not int or cores < 0:
        raise BadValueError("cores", "be a whole number, or one for each node", cores)
    left, wanted = Counter(dict(free)), Counter[NodeId]()
    if cores > sum(free.values()):
        raise BadValueError(
            "cores", f"be at most the {sum(free.values())} that no other executor has", cores
        )
    for _ in range(cores):
        node = home if left[home] > 0 else max(sorted(left), key=lambda name: left[name])
        wanted[node] += 1
        left[node] -= 1
    return dict(wanted)
