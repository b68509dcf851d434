"""The paper's model of what a change of cores costs (4.2): the state that moves.

An executor's state lies evenly over its cores, so each node has a share of it, and a change moves
out of every node what is beyond its new share.
"""

from __future__ import annotations

from collections.abc import Mapping

from elasticutor.core.protocol.ids import NodeId


def allocation_cost_bytes(state_bytes: int, total: int, there: int) -> float:
    """C⁺: what moves when an executor gets one core more, on a node where it has some or none.

    One without cores has its state nowhere yet: nothing moves.

    Example:
        Of 600 bytes on two cores elsewhere, a third goes to the new core.

        >>> allocation_cost_bytes(600, 2, 0), allocation_cost_bytes(600, 2, 2)
        (200.0, 0.0)
    """
    return state_bytes * (total - there) / (total * (total + 1)) if total else 0.0


def deallocation_cost_bytes(state_bytes: int, total: int, there: int) -> float:
    """C⁻: what moves when an executor with two cores or more loses one of those on a node.

    Example:
        >>> deallocation_cost_bytes(600, 3, 1), deallocation_cost_bytes(600, 3, 3)
        (200.0, 0.0)
    """
    return state_bytes * (total - there) / (total * (total - 1))


def migration_cost_bytes(
    old: Mapping[NodeId, int], new: Mapping[NodeId, int], state_bytes: int
) -> float:
    """C(X|X̃) of one executor: the state that its nodes have now, beyond what they shall have.

    An executor without cores has its state nowhere, so giving it some moves nothing.

    Example:
        The share of node a falls from all to two thirds.

        >>> a, b = NodeId("a"), NodeId("b")
        >>> migration_cost_bytes({a: 2}, {a: 2, b: 1}, 600)
        200.0
    """
    before, after = sum(old.values()), sum(new.values())
    if not before or not after:
        return float(state_bytes) if before else 0.0
    # In whole numbers up to the division, so that what stays where it is costs exactly nothing.
    moved = sum(max(0, n * after - new.get(node, 0) * before) for node, n in old.items())
    return state_bytes * moved / (before * after)
