"""Intra-executor load balancing (paper 3.1): which shards should change their task, and to which.

First, what has no task, or whose task is leaving, is placed: heaviest first, each on the least
loaded task, like First-Fit-Decreasing. Then come the paper's rounds: while the imbalance δ is not
below θ, one shard goes from the most to the least loaded task, the one that lowers δ the most. (If
none helps there, none helps on another task either: the least loaded has the most room.)

Where the rounds get stuck above θ, this module departs from the paper:

- *Swaps.* Single moves alone can end more than 10 % above the best: with {4, 3} against {2, 2} no
  move helps, yet 3 for 2 makes 6 of 7. So a shard of the most loaded task may be exchanged for a
  lighter one of another task, if that pays for two pauses.
- *Re-packing.* Where swaps do not help either, a bounded search looks for a clearly better packing
  that keeps shards where they are as far as it can. With few shards it is exhaustive.
- *Tasks that cannot get lighter* (a lone hot shard, or nothing but pinned ones) are set aside, and
  the others are balanced among themselves: one hot key must not leave all others uneven.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from elasticutor.core.protocol.ids import NodeId, ShardId, TaskId
from elasticutor.errors import BadValueError, UnknownShardError, UnknownTaskError

UNITS = 2**50
"""All loads together, in the whole numbers that planning counts in; so sums and ties are exact."""

TINY = 2**20
"""A load, or a gain, of fewer units (a billionth of all) counts as none: mere rounding or decay."""

SWAP_PAYS = 0.01
"""A swap must lower the load of the most loaded task by this share, to be worth two pauses."""

REPACKING_PAYS = 0.08
"""The same for a re-packing that does not reach θ. It bounds how far from the best a plan ends."""

PATIENCE = 500
"""Steps that the search for a packing may take beyond one per shard: a few milliseconds."""


@dataclass(frozen=True, slots=True)
class ShardReassignment:
    """One shard gets another task."""

    shard: ShardId
    source: TaskId | None
    """The task that has it now; None while the shard is unplaced and gets its first owner."""
    destination: TaskId


@dataclass(frozen=True, slots=True)
class ShardReassignmentPlan:
    """What should move, and what that is good for."""

    moves: tuple[ShardReassignment, ...]
    """In rising order of shards, each at most once: every move is a pause of its shard."""
    imbalance_before: float
    """δ of all tasks as they are, those leaving included; unplaced shards count nowhere."""
    imbalance_after: float
    """δ of the staying tasks when all moves are done."""
    hot: tuple[ShardId, ...]
    """Shards that fill a core by themselves, hottest first: no further core can help them."""


def imbalance(task_loads: npt.ArrayLike) -> float:
    """The paper's δ: the largest load of a task / the mean of all; 1 if there is no load."""
    loads: list[float] = np.asarray(task_loads, dtype=np.float64).tolist()
    total = _sum_of("task loads", loads)
    return max(1.0, max(loads) / total * len(loads)) if total > 0 else 1.0


def plan_reassignments(
    loads: npt.NDArray[np.float64],
    owners: Sequence[TaskId | None],
    nodes: Mapping[TaskId, NodeId],
    *,
    threshold: float = 1.2,
    leaving: Collection[TaskId] = (),
    pinned: Collection[ShardId] = (),
    homes: Sequence[NodeId | None] | None = None,
) -> ShardReassignmentPlan:
    """Plan the moves that bring the imbalance below the threshold, or as near as they can.

    Equal arguments give equal plans. Among (nearly) equal destinations the plan prefers one on the
    node where the shard's state is; nearly means within a quarter of what the threshold leaves. A
    shard without load moves only if it has no task, or its task is leaving. A task just added to
    six or more balanced ones leaves δ below 1.2, and gets nothing, as in the paper; ask with a
    lower threshold to have it used at once.

    Args:
        loads: Load of each shard in cores, that is, seconds of work per second.
        owners: The task of each shard, or None. A task that is not in `nodes` was lost: its shards
            are unplaced.
        nodes: All usable tasks and where they run, those leaving included.
        threshold: θ; balanced means δ < θ.
        leaving: Tasks whose core is being taken: all their shards must go.
        pinned: Shards that cannot move now. `owners` names where they will be; they are load there.
        homes: Where the state of each shard is; its owner's node if not given.

    Example:
        A second task comes; the shard without load stays where it is.

        >>> nodes = {TaskId(0): NodeId("a"), TaskId(1): NodeId("a")}
        >>> plan_reassignments(np.array([0.5, 0.0, 0.2, 0.2]), [TaskId(0)] * 4, nodes).moves
        (ShardReassignment(shard=0, source=0, destination=1),)
    """
    loads = np.asarray(loads, dtype=np.float64)
    _require_sane(loads, owners, nodes, threshold, leaving, pinned, homes)
    staying = sorted(nodes.keys() - set(leaving))
    tasks = [*staying, *sorted(set(leaving)), None]
    position = {task: i for i, task in enumerate(tasks[:-1])}
    owner = np.array([position.get(task, -1) for task in owners], dtype=np.intp)
    is_pinned = np.zeros(len(loads), dtype=np.bool_)
    is_pinned[list(pinned)] = True
    astray = ((owner < 0) | (owner >= len(staying))) & ~is_pinned

    before = _imbalance_of(len(position), loads, owner)
    after = _imbalance_of(len(staying), loads, owner) if leaving else before
    moves: list[ShardReassignment] = []
    if astray.any() or after >= threshold:
        if homes is None:
            homes = [None if task is None else nodes.get(task) for task in owners]
        board = _Board(loads, owner, is_pinned, [nodes[task] for task in staying], homes)
        _place(board, np.flatnonzero(astray).tolist(), threshold)
        _balance(board, threshold)
        _deal_out(board, owner)
        after = _imbalance_of(len(staying), loads, np.array(board.owner, dtype=np.intp))
        moves = [
            ShardReassignment(ShardId(shard), tasks[source], staying[to])
            for shard, (source, to) in enumerate(zip(owner.tolist(), board.owner, strict=True))
            if source != to and not is_pinned[shard]
        ]
    hot = sorted(np.flatnonzero(loads >= 1.0).tolist(), key=lambda shard: (-loads[shard], shard))
    return ShardReassignmentPlan(tuple(moves), before, after, tuple(map(ShardId, hot)))


def _imbalance_of(tasks: int, loads: npt.NDArray[np.float64], owner: npt.NDArray[np.intp]) -> float:
    """δ of the first tasks; shards without a task (-1) count nowhere."""
    return imbalance(np.bincount(owner + 1, weights=loads, minlength=tasks + 1)[1 : tasks + 1])


class _Board:
    """The staying tasks, by position, with what each has to do: where a plan is tried out."""

    def __init__(
        self,
        loads: npt.NDArray[np.float64],
        owner: npt.NDArray[np.intp],
        is_pinned: npt.NDArray[np.bool_],
        nodes: Sequence[NodeId],
        homes: Sequence[NodeId | None],
    ) -> None:
        total = sum(loads.tolist()) or 1.0
        units = np.rint(loads / total * UNITS).astype(np.int64)
        #: Per shard, in `UNITS`; 0 iff the shard has no load to speak of.
        self.work: list[int] = np.where(units < TINY, 0, units).tolist()
        #: Per shard; -1 while it has none of the staying tasks.
        self.owner: list[int] = np.where(owner < len(nodes), owner, -1).tolist()
        self.homes, self.tasks = homes, range(len(nodes))
        self.tasks_on: dict[NodeId | None, list[int]] = {node: [] for node in nodes}
        for task, node in enumerate(nodes):
            self.tasks_on[node].append(task)
        #: Per task: number of shards, work of the pinned ones, work of all.
        self.counts, self.fixed, self.totals = ([0] * len(nodes) for _ in range(3))
        #: Per task: (work, shard) of each loaded shard that may move, in rising order.
        self.bags: list[list[tuple[int, int]]] = [[] for _ in nodes]
        for shard, (task, work) in enumerate(zip(self.owner, self.work, strict=True)):
            if task >= 0:
                self.counts[task] += 1
                self.totals[task] += work
                if is_pinned[shard]:
                    self.fixed[task] += work
                elif work:
                    self.bags[task].append((work, shard))
        for bag in self.bags:
            bag.sort()

    def move(self, shard: int, to: int) -> None:
        """Give a shard, which is not pinned, to another task."""
        work, source = self.work[shard], self.owner[shard]
        if source >= 0:
            self.bags[source].pop(bisect_left(self.bags[source], (work, shard)))
            self.totals[source] -= work
            self.counts[source] -= 1
        if work:
            insort(self.bags[to], (work, shard))
        self.owner[shard] = to
        self.totals[to] += work
        self.counts[to] += 1

    def is_as_light_as_can_be(self, task: int) -> bool:
        """Whether the task has a lone shard, or none that may move: no plan has a lower maximum."""
        return len(self.bags[task]) < (2 if self.fixed[task] == 0 else 1)

    def destination(self, shard: int, measure: Sequence[int], at_most: float) -> int:
        """The least task by a measure; one on the shard's home node if that has at most so much."""
        near = [t for t in self.tasks_on.get(self.homes[shard], ()) if measure[t] <= at_most]
        return min(near, key=measure.__getitem__) if near else measure.index(min(measure))


def _place(board: _Board, shards: Sequence[int], threshold: float) -> None:
    """Find a task for each of the shards, heaviest first; those without load go by number."""
    nearly = _nearly(sum(board.work) / len(board.tasks), threshold)
    for shard in sorted(shards, key=lambda shard: (-board.work[shard], shard)):
        if board.work[shard]:
            to = board.destination(shard, board.totals, min(board.totals) + nearly)
        else:
            to = board.destination(shard, board.counts, math.inf)
        board.move(shard, to)


def _nearly(mean: float, threshold: float) -> float:
    """How much more a task may have and still count as nearly as little loaded as another."""
    return mean * min(threshold - 1.0, 0.2) / 4


def _balance(board: _Board, threshold: float) -> None:
    """Lower the most loaded task, until δ < θ or nothing helps.

    This ends: every step puts in place of some tasks' loads, the largest of all among them, others
    that are smaller than it. So the loads in falling order get smaller in the lexicographic sense,
    in whole numbers, and no assignment comes twice. (Of several tasks that share the maximum, each
    step lowers one; δ falls with the last.) A task set aside is never taken in again.
    """
    active, totals, total = list(board.tasks), board.totals, sum(board.totals)
    while len(active) > 1:
        top = max(active, key=totals.__getitem__)
        if total == 0 or totals[top] * len(active) < threshold * total:
            return
        if board.is_as_light_as_can_be(top):
            active.remove(top)
            total -= totals[top]
        elif not (
            _move_one(board, top, _nearly(total / len(active), threshold))
            or _swap(board, active, top)
            or _repack(board, active, threshold * total / len(active))
        ):
            return


def _move_one(board: _Board, top: int, nearly: float) -> bool:
    """The paper's round: move the best shard of the most loaded task to the least loaded."""
    bag, peak, least = board.bags[top], board.totals[top], min(board.totals)
    gap = peak - least
    half = bisect_left(bag, (gap / 2, -1))
    nearest = [work for work, _ in bag[max(half - 1, 0) : half + 1] if work <= gap - TINY]
    if not nearest:
        return False
    # Of shards with equal work the bag has the smallest number first.
    equals = [bag[bisect_left(bag, (work, -1))] for work in nearest]
    work, shard = min(equals, key=lambda item: (max(gap - item[0], item[0]), item[1]))
    at_most = min(least + nearly, peak - work - TINY)
    board.move(shard, board.destination(shard, board.totals, at_most))
    return True


def _swap(board: _Board, active: Sequence[int], top: int) -> bool:
    """Exchange a shard of the most loaded task for a lighter one of another task, if that pays."""
    peak = board.totals[top]
    gain = max(TINY, int(peak * SWAP_PAYS))
    give = np.array([work for work, _ in board.bags[top]])
    for other in sorted((t for t in active if board.bags[t]), key=board.totals.__getitem__):
        gap = peak - board.totals[other]
        if gap < 2 * gain:  # the best swap makes two equal loads; all that follow gain less
            break
        take = np.array([work for work, _ in board.bags[other]])
        right = np.searchsorted(take, give - gap // 2)
        taken = np.stack([right - 1, right]).clip(0, len(take) - 1)
        shift = give - take[taken]
        rest = np.maximum(gap - shift, shift)
        side, given = divmod(int(rest.argmin()), len(give))
        if rest[side, given] <= gap - gain:
            swapped = board.bags[top][given], board.bags[other][taken[side, given]]
            for (_, shard), to in zip(swapped, (other, top), strict=True):
                board.move(shard, to)
            return True
    return False


def _repack(board: _Board, active: Sequence[int], allowed: float) -> bool:
    """Pack all that may move again, if that gets below what is allowed, or clearly below now."""
    peak = max(board.totals[task] for task in active)
    goal = max(math.ceil(allowed) - 1, int(peak * (1 - REPACKING_PAYS)))
    items = [item for task in active for item in board.bags[task]]
    items.sort(key=lambda item: (-item[0], item[1]))
    # Of the heaviest shards, one more than there are tasks, some two must share a task.
    crowd = [work for work, _ in items[len(active) - 1 : len(active) + 1]]
    if (len(crowd) == 2 and sum(crowd) > goal) or max(board.fixed[t] for t in active) > goal:
        return False
    packing = _packing(board, active, items, goal)
    for (_, shard), to in zip(items, packing, strict=False):
        if board.owner[shard] != to:
            board.move(shard, to)
    return bool(packing)


def _packing(
    board: _Board, active: Sequence[int], items: Sequence[tuple[int, int]], goal: int
) -> list[int]:
    """A task for each (work, shard) so that none exceeds the goal; empty if none was found.

    Depth first, the present owner before the others, and those by rising load (Korf's complete
    greedy search), until patience is lost.
    """
    totals = {task: board.fixed[task] for task in active}

    def choices(work: int, shard: int) -> Iterator[int]:
        owner = board.owner[shard]
        tried = {totals[owner]}  # of equally loaded tasks, one is as good as another
        if totals[owner] + work <= goal:
            yield owner
        for task in sorted(active, key=totals.__getitem__):
            if totals[task] + work <= goal and totals[task] not in tried:
                tried.add(totals[task])
                yield task

    placed: list[int] = []
    levels = [choices(*items[0])]
    for _ in range(len(items) + PATIENCE):
        to = next(levels[-1], None)
        if to is not None:
            totals[to] += items[len(placed)][0]
            placed.append(to)
            if len(placed) == len(items):
                return placed
            levels.append(choices(*items[len(placed)]))
        elif placed:  # a dead end: take back the shard before
            levels.pop()
            totals[placed.pop()] -= items[len(levels) - 1][0]
        else:
            break
    return []


def _deal_out(board: _Board, owner: npt.NDArray[np.intp]) -> None:
    """Let tasks trade all their loaded shards if fewer of them have moved then."""
    tasks, now = len(board.tasks), np.array(board.owner, dtype=np.intp)
    known = (np.array(board.work) > 0) & (owner >= 0) & (owner < tasks)
    flat = np.bincount(owner[known] * tasks + now[known], minlength=tasks * tasks)
    shards = flat.reshape(tasks, tasks)  # how many from a task (row) are on a task (column)
    bound = np.array(board.fixed) > 0
    while True:
        gain = shards + shards.T - shards.diagonal()[:, None] - shards.diagonal()
        gain[bound, :] = gain[:, bound] = 0
        one, other = divmod(int(gain.argmax()), tasks)
        if gain[one, other] <= 0:
            return
        shards[:, [one, other]] = shards[:, [other, one]]
        ours, theirs = ([shard for _, shard in board.bags[task]] for task in (one, other))
        for shard in ours + theirs:
            board.move(shard, one if board.owner[shard] == other else other)


def _sum_of(who: str, loads: Sequence[float]) -> float:
    total = sum(loads)
    if not math.isfinite(total) or min(loads, default=0.0) < 0:
        raise BadValueError(who, "be finite and at least 0, and so must be their sum", loads)
    return total


def _require_sane(
    loads: npt.NDArray[np.float64],
    owners: Sequence[TaskId | None],
    nodes: Mapping[TaskId, NodeId],
    threshold: float,
    leaving: Collection[TaskId],
    pinned: Collection[ShardId],
    homes: Sequence[NodeId | None] | None,
) -> None:
    for given in (owners, owners if homes is None else homes):
        if loads.shape != (len(given),):
            raise BadValueError("loads", f"be {len(given)}, one for each shard", loads.shape)
    _sum_of("loads", loads.tolist())
    if not threshold >= 1:
        raise BadValueError("threshold θ", "be at least 1", threshold)
    if unknown := set(leaving) - nodes.keys():
        raise UnknownTaskError("leaving tasks", "be among the executor's", sorted(unknown))
    if not nodes.keys() - set(leaving):
        raise BadValueError("tasks", "have one that stays", sorted(nodes), "keep a core")
    if pinned and not 0 <= min(pinned) <= max(pinned) < len(loads):
        raise UnknownShardError("pinned shards", f"be 0 to {len(loads) - 1}", sorted(pinned))
