"""Which cores each executor gets (paper 4.2), once it is decided how many.

State moves when cores change nodes. By the paper's cost model an executor's state lies evenly over
its cores, so each node has a share of it, and a change moves out of every node what is beyond its
new share: C(X|X̃). Sought is the assignment that moves least, such that (a) every executor has the
number of cores it wants, (b) no node gives more than it has, and (c) data-intensive executors,
those with a data intensity of φ or more, have cores on their own node only.

`assign` is the paper's Algorithm 1. Executors short of cores are served in order of falling data
intensity, one core at a time. A data-intensive one takes the core on its own node whose loss costs
its owner least (C⁻); who loses one is served later. Others take, on any node, the core with the
least C⁻ + C⁺ from executors that have too many. Free cores cost nothing.

Where this module departs from the paper, or fills in what it leaves out:

- *Releasing.* Executors that have become data-intensive first release their remote cores, since
  otherwise (c) would not hold in the end. Cores that are left over in the end are released too.
- *φ is known before.* All data-intensive executors can be served just if on every node those at
  home there want no more cores than it has. So φ is doubled until that holds, and no attempt fails.
- *The last core.* C⁻ has no value for an executor's only core. It is taken only by a data-intensive
  executor (or because its node has shrunk), only where no other on that node has more than
  one, and its owner gets one elsewhere. Without this, one crowded node would double φ for all.
- *Trades.* Serving one by one can end far from the best: a small executor is in the only core
  near a large one, and has no core too many. So in the end executors trade cores, the only one of
  an executor too, while that saves bytes. One at rest is disturbed only if it saves clearly more
  than it costs.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

from elasticutor.core.protocol.ids import NodeId, Peer
from elasticutor.core.scheduler.migration_cost import (
    allocation_cost_bytes,
    deallocation_cost_bytes,
    migration_cost_bytes,
)
from elasticutor.errors import BadValueError

DEFAULT_PHI = 512 * 1024.0
"""Bytes per second and core, below which locality is worth nothing (paper 4.2)."""

DISTURBING_PAYS = 2.0
"""A trade must save this many times the bytes that it makes an executor move that was at rest."""

SWEEPS = 4
"""How often trading goes through all executors that have something to gain."""


@dataclass(frozen=True, slots=True)
class Holding:
    """One executor as the assignment sees it."""

    executor: Peer
    home: NodeId
    """The node of its main process: I(j)."""
    cores: Mapping[NodeId, int]
    """What it has now, without zeros: X̃_j. Cores on nodes that are gone count as lost."""
    wanted: int
    """How many it should have: k_j."""
    state_bytes: int
    """s_j."""
    data_intensity: float
    """Bytes per second and core, in and out."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """Who should have which cores. It is a target: how to get there is decided elsewhere."""

    cores: Mapping[Peer, Mapping[NodeId, int]]
    """X, without zeros."""
    phi: float
    """Executors of at least this data intensity have all their cores at home; inf if none could."""
    cost_bytes: float
    """C(X|X̃): the state that moves to get there."""
    doubled: int
    """How often φ had to be doubled."""


def assign(
    holdings: Sequence[Holding], nodes: Mapping[NodeId, int], *, phi: float = DEFAULT_PHI
) -> Assignment:
    """Choose cores for all, such that little state moves and data-intensive executors are at home.

    It always succeeds if there are as many cores as wanted. Equal arguments give equal assignments,
    in whatever order they come. Where none wants another number of cores, no core is lost and the
    data-intensive are at home, nothing changes. An executor whose home is not among the nodes is
    never held to be data-intensive. `phi` is the φ to begin with.

    Example:
        One core more for "hot", which is data-intensive: "cold" has to make room for it.

        >>> a, b = NodeId("a"), NodeId("b")
        >>> hot = Holding(Peer("hot"), a, {a: 1}, 2, state_bytes=0, data_intensity=1e6)
        >>> cold = Holding(Peer("cold"), a, {a: 1, b: 1}, 2, state_bytes=600, data_intensity=10.0)
        >>> found = assign([hot, cold], {a: 2, b: 2})
        >>> found.cores, found.cost_bytes
        ({'cold': {'b': 2}, 'hot': {'a': 2}}, 300.0)
    """
    if not phi > 0:
        raise BadValueError("φ", "be above 0", phi)
    _require_sane(holdings, nodes)
    phi, doubled = _feasible(holdings, nodes, phi)
    board = _Board(holdings, nodes, phi)
    _make_room(board)
    for j in board.short():
        if board.bound[j]:
            _serve_at_home(board, j)
    _serve_anywhere(board)
    for j in board.over():
        _shed(board, j)
    _trade(board)
    return board.assignment(phi, doubled)


def assign_naively(holdings: Sequence[Holding], nodes: Mapping[NodeId, int]) -> Assignment:
    """The same numbers of cores, without regard to state and homes (naive-EC, paper 5.4).

    Executors that have too many cores give up the first in order of nodes; then those that have too
    few are dealt free cores, one node after the other. No other is touched. φ is inf, since none
    is kept at home.
    """
    _require_sane(holdings, nodes)
    board = _Board(holdings, nodes, math.inf)
    for node, free in sorted(board.free.items()):
        for _ in range(-free):
            board.release(min(board.on[node]), node)
    for j in board.over():
        while board.total[j] > board.holdings[j].wanted:
            board.release(j, min(board.have[j]))
    turns = deque(sorted(node for node, free in board.free.items() if free > 0))
    for j in range(len(board.holdings)):
        while board.total[j] < board.holdings[j].wanted:
            node = turns.popleft()
            board.take(j, node)
            if board.free[node] > 0:
                turns.append(node)
    return board.assignment(math.inf, 0)


def _feasible(
    holdings: Sequence[Holding], nodes: Mapping[NodeId, int], phi: float
) -> tuple[float, int]:
    """The φ that can be kept, and how often it had to be doubled for that."""
    intense = [h for h in holdings if h.data_intensity >= phi and h.home in nodes]
    doubled = 0
    while intense:
        wanted: dict[NodeId, int] = {}
        for holding in intense:
            wanted[holding.home] = wanted.get(holding.home, 0) + holding.wanted
        if all(count <= nodes[home] for home, count in wanted.items()):
            return phi, doubled
        least = min(holding.data_intensity for holding in intense)
        while phi <= least:  # until one is data-intensive no more, nothing would be otherwise
            phi, doubled = 2 * phi, doubled + 1
        intense = [h for h in intense if h.data_intensity >= phi]
    return (math.inf if doubled else phi), doubled


class _Board:
    """The assignment while it is being made; executors go by their position in order of names."""

    def __init__(
        self, holdings: Sequence[Holding], nodes: Mapping[NodeId, int], phi: float
    ) -> None:
        self.holdings = sorted(holdings, key=lambda holding: holding.executor)
        self.free = dict(nodes)
        self.on: dict[NodeId, set[int]] = {node: set() for node in nodes}
        #: Whose cores all have to be at home, (c).
        self.bound: list[bool] = []
        #: X̃ without what is lost, and its sum.
        self.old: list[Mapping[NodeId, int]] = []
        self.old_total: list[int] = []
        #: X, without zeros, and its sum.
        self.have: list[dict[NodeId, int]] = []
        self.total: list[int] = []
        #: Whose cores may have changed: all others have X = X̃.
        self.touched: set[int] = set()
        for j, holding in enumerate(self.holdings):
            home, cores = holding.home, holding.cores
            old = cores
            if not cores.keys() <= nodes.keys():
                old = {node: count for node, count in cores.items() if node in nodes}
            have, bound = dict(old), False
            if holding.data_intensity >= phi and home in nodes:
                bound = True
                # What it has too many of at home costs nothing to give up: C⁻ is 0.
                count = min(cores.get(home, 0), holding.wanted)
                have = {home: count} if count else {}
                self.touched.add(j)
            self.bound.append(bound)
            self.old.append(old)
            self.old_total.append(sum(old.values()))
            self.have.append(have)
            self.total.append(sum(have.values()))
            for node, count in have.items():
                self.free[node] -= count
                self.on[node].add(j)

    def short(self) -> list[int]:
        """E⁺: who has fewer cores than wanted, by falling data intensity."""
        found = [j for j, h in enumerate(self.holdings) if self.total[j] < h.wanted]
        return sorted(found, key=lambda j: -self.holdings[j].data_intensity)

    def over(self) -> list[int]:
        """E⁻: who has more cores than wanted."""
        return [j for j, h in enumerate(self.holdings) if self.total[j] > h.wanted]

    def take(self, j: int, node: NodeId) -> None:
        """One free core for the executor."""
        have = self.have[j]
        have[node] = have.get(node, 0) + 1
        self.total[j] += 1
        self.free[node] -= 1
        self.on[node].add(j)
        self.touched.add(j)

    def release(self, j: int, node: NodeId) -> None:
        """One core of the executor is free."""
        have = self.have[j]
        have[node] -= 1
        if not have[node]:
            del have[node]
            self.on[node].discard(j)
        self.total[j] -= 1
        self.free[node] += 1
        self.touched.add(j)

    def release_cost(self, j: int, node: NodeId) -> float:
        """C⁻."""
        there = self.have[j][node]
        return deallocation_cost_bytes(self.holdings[j].state_bytes, self.total[j], there)

    def take_cost(self, j: int, node: NodeId) -> float:
        """C⁺."""
        there = self.have[j].get(node, 0)
        return allocation_cost_bytes(self.holdings[j].state_bytes, self.total[j], there)

    def shift_cost(self, j: int, source: NodeId, to: NodeId) -> float:
        """By how much C grows when one core of the executor goes from a node to another."""
        before, after, have, old = self.old_total[j], self.total[j], self.have[j], self.old[j]
        if not before:
            return 0.0
        beyond_source = old.get(source, 0) * after - have[source] * before
        beyond_to = old.get(to, 0) * after - have.get(to, 0) * before
        more = max(0, beyond_source + before) - max(0, beyond_source)
        less = max(0, beyond_to) - max(0, beyond_to - before)
        return self.holdings[j].state_bytes * (more - less) / (before * after)

    def assignment(self, phi: float, doubled: int) -> Assignment:
        """What has come of it."""
        cost = sum(
            migration_cost_bytes(self.old[j], self.have[j], self.holdings[j].state_bytes)
            for j in sorted(self.touched)
        )
        cores = {h.executor: have for h, have in zip(self.holdings, self.have, strict=True)}
        return Assignment(cores, phi, float(cost), doubled)


def _make_room(board: _Board) -> None:
    """Take back what nodes do not have any more."""
    for node, free in sorted(board.free.items()):
        for _ in range(-free):
            board.release(_cheapest_giver(board, node), node)


def _serve_at_home(board: _Board, j: int) -> None:
    """Give a data-intensive executor all it wants, on its own node."""
    home = board.holdings[j].home
    for _ in range(board.holdings[j].wanted - board.total[j]):
        if board.free[home] <= 0:
            board.release(_cheapest_giver(board, home), home)
        board.take(j, home)


def _cheapest_giver(board: _Board, node: NodeId) -> int:
    """Who can spare a core there with the least C⁻; only cores come last, the least state first.

    There is always one: the data-intensive alone never want more than the node has.
    """

    def cost(j: int) -> tuple[bool, float, int]:
        if board.total[j] == 1:
            return True, board.holdings[j].state_bytes, j
        return False, board.release_cost(j, node), j

    return min((j for j in board.on[node] if not board.bound[j]), key=cost)


def _serve_anywhere(board: _Board) -> None:
    """Give executors that are not data-intensive all they want.

    C⁺ is the same on all nodes where the executor has no core. So the best of all nodes is one
    where it has some, or its home, or the best for any executor, which `_Offers` knows.
    """
    offers = _Offers(board)
    for j in board.short():
        home, have = board.holdings[j].home, board.have[j]
        for _ in range(board.holdings[j].wanted - board.total[j]):
            found = [offers.best(), *(offers.best_on(node) for node in {*have, home})]
            _, _, _, node, giver = min(
                (cost + board.take_cost(j, node), node != home, node not in have, node, giver)
                for cost, node, giver in filter(None, found)
            )
            offers.accept(j, node, giver)


_FREE = -1
"""In place of an executor: the core is free."""

_NONE: frozenset[int] = frozenset()

_Offer = tuple[float, NodeId, int]
"""C⁻, the node, and who gives the core (or `_FREE`)."""


class _Offers:
    """The cores to be had: free ones, and those of executors that have too many."""

    def __init__(self, board: _Board) -> None:
        self._board = board
        over = board.over()
        self._over = set(over)
        #: Nodes with free cores, those with most first; stale if the number has changed.
        self._free = [(-free, node) for node, free in board.free.items() if free > 0]
        #: C⁻, node, giver and its cores at the time; stale if these have changed since.
        self._givers = [entry for j in over for entry in self._entries(j)]
        heapify(self._free)
        heapify(self._givers)

    def best(self) -> _Offer:
        """The cheapest core of all. There is one while an executor is short."""
        board = self._board
        while self._free:
            free, node = self._free[0]
            if board.free[node] == -free:
                return 0.0, node, _FREE
            heappop(self._free)
        while True:
            cost, node, giver, total = self._givers[0]
            if giver in self._over and board.total[giver] == total:
                return cost, node, giver
            heappop(self._givers)

    def best_on(self, node: NodeId) -> _Offer | None:
        """The cheapest core on a node, if there is any."""
        if self._board.free.get(node, 0) > 0:
            return 0.0, node, _FREE
        givers = self._board.on.get(node, _NONE) & self._over
        return min(((self._board.release_cost(j, node), node, j) for j in givers), default=None)

    def accept(self, taker: int, node: NodeId, giver: int) -> None:
        """The core goes to the taker."""
        board = self._board
        if giver != _FREE:
            board.release(giver, node)
            if board.total[giver] > board.holdings[giver].wanted:
                for entry in self._entries(giver):
                    heappush(self._givers, entry)
            else:
                self._over.discard(giver)
        board.take(taker, node)
        if board.free[node] > 0:
            heappush(self._free, (-board.free[node], node))

    def _entries(self, j: int) -> list[tuple[float, NodeId, int, int]]:
        board = self._board
        return [(board.release_cost(j, node), node, j, board.total[j]) for node in board.have[j]]


def _shed(board: _Board, j: int) -> None:
    """Release what the executor has too many of, the cheapest first; of equals, not the home's."""
    home = board.holdings[j].home
    while board.total[j] > board.holdings[j].wanted:
        board.release(j, min((board.release_cost(j, n), n == home, n) for n in board.have[j])[2])


def _trade(board: _Board) -> None:
    """Let executors trade cores while that saves bytes.

    Every trade saves some, so this would end by itself; the last sweeps would not be worth it.
    """
    for _ in range(SWEEPS):
        gainers = [j for j in sorted(board.touched) if not board.bound[j]]
        if not sum([_trade_one(board, j) for j in gainers]):
            return


def _trade_one(board: _Board, j: int) -> bool:
    """Bring one core of the executor back to where its state is, if that saves bytes."""
    before, after, have, old = board.old_total[j], board.total[j], board.have[j], board.old[j]
    lacking = [node for node in old if have.get(node, 0) * before < old[node] * after]
    if not lacking:
        return False
    spare = [node for node in have if have[node] * before > old.get(node, 0) * after]
    trades = [
        trade for to in lacking for source in spare for trade in _trades(board, j, source, to)
    ]
    cost, _, source, to, partner = min(trades, default=(0.0, 0, NodeId(""), NodeId(""), _FREE))
    if cost >= -1e-9 * board.holdings[j].state_bytes:  # nothing, or no more than rounding
        return False
    board.release(j, source)
    if partner != _FREE:
        board.release(partner, to)
        board.take(partner, source)
    board.take(j, to)
    return True


def _trades(
    board: _Board, j: int, source: NodeId, to: NodeId
) -> Iterator[tuple[float, int, NodeId, NodeId, int]]:
    """All ways to bring a core of the executor from a node to another, if it gains by that.

    Of equal ones that is first which brings the partner home, and that last which drives it away.
    """
    cost = board.shift_cost(j, source, to)
    if cost >= 0:
        return
    if board.free[to] > 0:
        yield cost, 0, source, to, _FREE
        return
    for g in board.on[to]:
        if g != j and not board.bound[g]:
            partner = board.holdings[g]
            if board.have[g] == board.old[g]:  # at rest: what is on one of its cores moves
                yielding = DISTURBING_PAYS * partner.state_bytes / board.total[g]
            else:
                yielding = board.shift_cost(g, to, source)
            estranged = (to == partner.home) - (source == partner.home)
            yield cost + yielding, estranged, source, to, g


def _require_sane(holdings: Sequence[Holding], nodes: Mapping[NodeId, int]) -> None:
    for node, count in nodes.items():
        if type(count) is not int or count < 0:
            raise BadValueError(f"cores of node {node!r}", "be a whole number, at least 0", count)
    for one in holdings:
        who, state, intensity = one.executor, one.state_bytes, one.data_intensity
        if type(one.wanted) is not int or one.wanted < 1:
            must = "be a whole number, at least 1"
            hint = "let executors that share a core take part as one"
            raise BadValueError(f"cores that {who!r} wants", must, one.wanted, hint)
        if min(one.cores.values(), default=1) < 1:
            raise BadValueError(f"cores of {who!r}", "be at least 1 on each node", dict(one.cores))
        if not 0 <= state < math.inf:
            raise BadValueError(f"state of {who!r}", "be 0 bytes or more", state)
        if not 0 <= intensity < math.inf:
            raise BadValueError(f"data intensity of {who!r}", "be finite and at least 0", intensity)
    if len({holding.executor for holding in holdings}) < len(holdings):
        twice, _ = Counter(holding.executor for holding in holdings).most_common(1)[0]
        raise BadValueError("executors", "have a name each", f"{twice!r} more than once")
    wanted, there = sum(holding.wanted for holding in holdings), sum(nodes.values())
    if wanted > there:
        must = f"be at most the {there} that {len(nodes)} nodes have"
        raise BadValueError("cores that executors want", must, wanted, "share the cores out again")
