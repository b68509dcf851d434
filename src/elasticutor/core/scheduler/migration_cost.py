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
    """
    return state_bytes * (total - there) / (total * (total + 1)) if total else 0.0


def deallocation_cost_bytes(state_bytes: int, total: int, there: int) -> float:
    """C⁻: what moves when an executor with two cores or more loses one of those on a node."""
    return state_bytes * (total - there) / (total * (total - 1))


def migration_cost_bytes(
    old: Mapping[NodeId, int], new: Mapping[NodeId, int], state_bytes: int
) -> float:
    """C(X|X̃) of one executor: the state that its nodes have now, beyond what they shall have.

    An executor without cores has its state nowhere, so giving it some moves nothing.
    """
    before, after = sum(old.values()), sum(new.values())
    if not before or not after:
        return float(state_bytes) if before else 0.0
    # In whole numbers up to the division, so that what stays where it is costs exactly nothing.
    moved = sum(max(0, n * after - new.get(node, 0) * before) for node, n in old.items())
    return state_bytes * moved / (before * after)
