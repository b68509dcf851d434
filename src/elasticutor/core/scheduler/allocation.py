"""How many cores each executor should have (paper 4.1); which ones they are is decided elsewhere.

In the usual case this is the paper's greedy search: every executor starts with the fewest cores
that keep up with its arrivals, and cores are added one at a time, where E[T] of the topology falls
most, until it meets its target. E[T] of each executor is convex in its cores, so that no other
allocation of as many cores has a lower E[T], and none of fewer meets the target.

The paper leaves open what happens where this cannot be. Here is what is done:

- *Several topologies* compete for the same cores: a gain counts relative to the target of its
  topology, and one that meets its target gets no more while another misses it.
- *Overload*: where not even the fewest cores that keep up are there, all cores are shared in
  proportion to the work. Each next core goes where the work per core is largest (the method of
  highest averages), so that the largest work per core becomes as small as it can.
- *More executors than cores*: the least loaded ones share cores.
- *Sources that offer all they have at once*: E[T] means nothing, and cores are shared as in an
  overload, until none is left.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush, heapreplace
from itertools import accumulate

from elasticutor.core.protocol.ids import Peer
from elasticutor.core.scheduler.queueing import network_sojourn_s, sojourns_s
from elasticutor.errors import BadValueError

FULL = 0.99
"""How busy an executor counts at most that has all the cores it can use."""

TINY = 1e-9
"""A core that lowers E[T] by a smaller share of the target is not worth giving."""

EVENLY = 0.02
"""The share of the shared cores that is dealt out evenly, so that no executor is left with none."""

MOST_LOAD = 1e15
"""In cores. More than this is no measurement."""

_NOTHING: Iterator[float] = iter(())


@dataclass(frozen=True, slots=True)
class Demand:
    """What is asked of one executor.

    A rate that is not known may be NaN or infinite, a service rate also 0 or less: then the
    executor counts as one without work.
    """

    executor: Peer
    arrival_rate: float
    """λ_j: tuples per second that want in."""
    service_rate: float
    """μ_j: tuples per second and core."""
    most: int | None = None
    """More cores than this cannot help, as with a lone hot shard; None: there is no such limit."""

    def __post_init__(self) -> None:
        _require_rate(f"arrival rate of {self.executor!r}", self.arrival_rate)
        if self.most is not None and (type(self.most) is not int or self.most < 1):
            must = "be a whole number, at least 1, or None"
            raise BadValueError(f"most cores of {self.executor!r}", must, self.most)


@dataclass(frozen=True, slots=True)
class Job:
    """One topology: what is asked of its executors, and how fast it should be."""

    name: str
    demands: tuple[Demand, ...]
    entry_rate: float
    """λ_0: tuples per second that enter from its sources. If it is 0 or not known then E[T] means
    nothing, and the executors get the fewest cores that keep up."""
    target_s: float
    """T_max: what E[T] should be at most."""
    all_at_once: bool = False
    """Whether sources offer all they have (a replay, saturation), so that E[T] means nothing."""

    def __post_init__(self) -> None:
        _require_rate(f"entry rate of {self.name!r}", self.entry_rate)
        if not self.target_s > 0:
            raise BadValueError(f"target of {self.name!r}", "be above 0", self.target_s)


@dataclass(frozen=True, slots=True)
class Allocation:
    """How many cores each executor should have, and what that is good for."""

    cores: Mapping[Peer, float]
    """Whole numbers, at least 1, or a fraction below 1 for one that shares cores."""
    expected_s: Mapping[str, float]
    """E[T] by job; infinite where an executor cannot keep up, or where it means nothing."""
    reason: Mapping[str, str]
    """By job, in words."""


def allocate(jobs: Sequence[Job], cores: int) -> Allocation:
    """Find how many cores each executor should have.

    Cores that no job needs for its target stay free. Equal arguments give equal allocations; of
    equal executors the one whose name comes first is served first.

    An executor that has (next to) more work than its limit of cores can do gets that limit, and
    counts as if it were 99 % busy: nothing helps it, so it should neither attract cores nor make
    E[T] infinite, which would hide what cores do for the others.

    Jobs whose sources offer all at once and the others divide the cores in the ratio of the work of
    the former to the fewest cores with which the latter keep up. What one side cannot use, or does
    not need for its targets, goes to the other.

    An executor with a fraction of a core counts as one that has a core which is so much slower.

    Example:
        >>> first = Demand(Peer("parse"), arrival_rate=900.0, service_rate=1000.0)
        >>> second = Demand(Peer("count"), arrival_rate=900.0, service_rate=375.0)
        >>> job = Job("clicks", (first, second), entry_rate=900.0, target_s=0.010)
        >>> found = allocate([job], cores=8)
        >>> found.cores
        {'parse': 2, 'count': 3}
        >>> found.reason["clicks"]
        'E[T] 6.8 ms meets the target of 10 ms with 5 cores'
        >>> allocate([job], cores=3).reason["clicks"]
        'overloaded: 3 cores for the work of 3.3, where the fewest that keep up are 4'
    """
    _require_sane(jobs, cores)
    seats = [_Seat.of(demand, at) for at, job in enumerate(jobs) for demand in job.demands]
    by_name = sorted(seats, key=lambda seat: seat.demand.executor)
    if len(seats) > cores:
        _share(by_name, cores)
    else:
        _give(jobs, by_name, cores)
    given = {seat.demand.executor: seat.cores for seat in seats}
    spare = sum(given.values()) <= cores - 1
    expected_s, reason = {}, {}
    for job, own in zip(jobs, _by_job(jobs, seats), strict=True):
        expected_s[job.name] = _expected_s(job, own)
        reason[job.name] = _reason(job, own, expected_s[job.name], spare)
    return Allocation(given, expected_s, reason)


@dataclass(slots=True)
class _Seat:
    """One executor while cores are handed out."""

    demand: Demand
    job: int
    load: float
    """λ/μ: its work, in cores; 0 if it was not measured."""
    most: float
    need: int
    """The fewest cores that keep up, or as many as it can use."""
    cores: float = 0
    rate: float = 0.0
    """λ_j as far as it counts."""
    sojourn_s: float = math.nan
    """E[T_j] with its cores; NaN until it is settled."""
    next_s: float = math.nan
    """E[T_j] with one core more."""
    further_s: Iterator[float] = _NOTHING
    """E[T_j] with yet more cores, one at a time."""
    weight: float = 0.0
    """By how many targets E[T] of its job falls for each second that E[T_j] falls."""

    @classmethod
    def of(cls, demand: Demand, job: int) -> _Seat:
        rate, service_rate = demand.arrival_rate, demand.service_rate
        load = rate / service_rate if service_rate > 0 and 1 / service_rate < math.inf else 0.0
        if not load <= MOST_LOAD:  # NaN is not
            load = 0.0
        need = int(load) + 1
        if demand.most is None:
            return cls(demand, job, load, math.inf, need)
        return cls(demand, job, load, demand.most, min(need, demand.most))

    def is_full(self) -> bool:
        """Whether it has all the cores that it can use, and they are (as good as) not enough."""
        return self.cores == self.need == self.most and self.load > FULL * self.most

    def settle(self) -> None:
        """Find E[T_j] with the cores that it has."""
        if not self.load:
            self.sojourn_s = 0.0
            return
        demand = self.demand
        self.rate, service_rate, cores = demand.arrival_rate, demand.service_rate, self.cores
        if cores < 1:
            service_rate *= cores
        elif self.is_full():
            self.rate = FULL * cores * service_rate
        self.further_s = sojourns_s(self.rate, service_rate, int(cores) or 1)
        self.sojourn_s = next(self.further_s)


def _by_job(jobs: Sequence[Job], seats: Sequence[_Seat]) -> list[list[_Seat]]:
    own: list[list[_Seat]] = [[] for _ in jobs]
    for seat in seats:
        own[seat.job].append(seat)
    return own


def _give(jobs: Sequence[Job], seats: Sequence[_Seat], cores: int) -> None:
    """Give every executor whole cores; there are enough for one each."""
    steady = [seat for seat in seats if not jobs[seat.job].all_at_once]
    greedy = [seat for seat in seats if jobs[seat.job].all_at_once]
    need = sum(seat.need for seat in steady)
    work = sum(seat.load for seat in greedy)
    if steady:
        # Rounded down, and yet not below the need where need and work fit into the cores together.
        share = int(cores * need / (need + work) + TINY)
        useless = cores - sum(seat.most if seat.load else 1 for seat in greedy)
        ours = int(min(max(share, useless), cores - len(greedy)))
        if need > ours:
            _even_out(steady, ours)
        else:
            _meet_targets(jobs, steady, ours)
    _even_out(greedy, cores - int(sum(seat.cores for seat in steady)))


def _even_out(seats: Sequence[_Seat], cores: int) -> None:
    """Give each executor a core, and each further one to the one with the most work per core."""
    for seat in seats:
        seat.cores = 1
    heap = [(-seat.load, at) for at, seat in enumerate(seats) if seat.load and seat.most > 1]
    heapify(heap)
    for _ in range(cores - len(seats)):
        if not heap:
            return
        _give_to_first(heap, seats)


def _give_to_first(heap: list[tuple[float, int]], seats: Sequence[_Seat]) -> None:
    """Give a core to the seat with the most work per core."""
    at = heap[0][1]
    seat = seats[at]
    seat.cores += 1
    if seat.cores < seat.most:
        heapreplace(heap, (-seat.load / seat.cores, at))
    else:
        heappop(heap)


def _share(seats: Sequence[_Seat], cores: int) -> None:
    """Give whole cores to those with the most work; the others share what is left.

    At first all share one core. Each next one goes where the work per core is largest: to an
    executor with cores of its own, or to all that share. Of the latter, one that would get a whole
    core then takes it and leaves; that lowers the others' work per core, or keeps it. So with more
    cores none has less, and the largest work per core is as small as it can be; both but for the
    little that is dealt out evenly.
    """
    order = sorted(seats, key=lambda seat: -seat.load)
    work = [*accumulate((seat.load for seat in reversed(order)), initial=0.0)][::-1]
    shared, whole = 1, 0  # work[whole] is the work of those that share
    heap: list[tuple[float, int]] = []
    for _ in range(cores - 1):
        if heap and -heap[0][0] >= work[whole] / shared:
            _give_to_first(heap, order)
            continue
        shared += 1
        while shared > 1 and 0 < work[whole] <= order[whole].load * shared:
            order[whole].cores = 1
            if order[whole].most > 1:
                heappush(heap, (-order[whole].load, whole))
            shared -= 1
            whole += 1
    sharing = order[whole:]
    for seat in sharing:
        share = seat.load / work[whole] if work[whole] else 1 / len(sharing)
        share = (1 - EVENLY) * share + EVENLY / len(sharing)
        seat.cores = shared * share * (1 - TINY)  # so that no rounding makes them too many


class _Tally:
    """E[T] of one job while cores are handed out, in targets: 1 is the target."""

    def __init__(self, job: Job, seats: Sequence[_Seat]) -> None:
        self.job, self.seats = job, seats
        self.total = self.watch = math.inf
        self.is_met = False
        self.sum_up()

    def sum_up(self) -> None:
        """Find the total again, and when to do so next.

        Subtracting gains alone would leave nothing but rounding errors where a total has fallen by
        many orders of magnitude; so it is summed up each time that it has halved.
        """
        expected_s = _expected_s(self.job, self.seats)
        self.is_met = expected_s <= self.job.target_s
        self.total = expected_s / self.job.target_s
        self.watch = max(1.0, self.total / 2)


def _meet_targets(jobs: Sequence[Job], seats: Sequence[_Seat], cores: int) -> None:
    """Give what is needed to keep up, and then each core where it helps most (paper 4.1)."""
    for seat in seats:
        seat.cores = seat.need
    tallies = [_Tally(job, own) for job, own in zip(jobs, _by_job(jobs, seats), strict=True)]
    heap: list[tuple[float, int]] = []
    for at, seat in enumerate(seats):
        tally = tallies[seat.job]
        if not tally.is_met and tally.total < math.inf and (gain := _first_gain(tally.job, seat)):
            heap.append((-gain, at))
    heapify(heap)
    left = cores - sum(seat.need for seat in seats)
    while left and heap:
        gain, at = heap[0]
        seat = seats[at]
        tally = tallies[seat.job]
        if tally.is_met:
            heappop(heap)
            continue
        left -= 1
        seat.cores += 1
        seat.sojourn_s = now_s = seat.next_s
        tally.total += gain
        gain = 0.0
        if seat.cores < seat.most:
            seat.next_s = next_s = next(seat.further_s)
            gain = seat.weight * (now_s - next_s)
        if gain > TINY:
            heapreplace(heap, (-gain, at))
        else:
            heappop(heap)
        if tally.total <= tally.watch:
            tally.sum_up()


def _first_gain(job: Job, seat: _Seat) -> float:
    """By how many targets E[T] of the job falls with the executor's next core; 0 if by too few."""
    if not seat.load or seat.cores >= seat.most:
        return 0.0
    seat.weight = seat.rate / job.entry_rate / job.target_s
    seat.next_s = next(seat.further_s)
    gain = seat.weight * (seat.sojourn_s - seat.next_s)
    return gain if gain > TINY else 0.0


def _expected_s(job: Job, seats: Sequence[_Seat]) -> float:
    """E[T] of a job with the cores that its executors have."""
    if job.all_at_once:
        return math.inf
    for seat in seats:
        if math.isnan(seat.sojourn_s):
            seat.settle()
    entry_rate = job.entry_rate if job.entry_rate < math.inf else 0.0
    return network_sojourn_s([(seat.rate, seat.sojourn_s) for seat in seats], entry_rate)


def _reason(job: Job, seats: Sequence[_Seat], expected_s: float, spare: bool) -> str:
    given = sum(seat.cores for seat in seats)
    if job.all_at_once:
        reason = f"{_cores(given)} in proportion to the work: the sources offer all they have"
    elif expected_s < math.inf:
        verb = "meets" if expected_s <= job.target_s else "misses"
        target = _time(job.target_s)
        reason = f"E[T] {_time(expected_s)} {verb} the target of {target} with {_cores(given)}"
        if expected_s > job.target_s:
            reason += ": more would not help" if spare else ": no more are left"
    elif all(seat.sojourn_s < math.inf for seat in seats):
        reason = f"{_cores(given)} to keep up: without a rate of entry E[T] means nothing"
    else:
        work, need = sum(seat.load for seat in seats), sum(seat.need for seat in seats)
        reason = (
            f"overloaded: {_cores(given)} for the work of {work:.1f}, "
            f"where the fewest that keep up are {need}"
        )
    if sharing := sum(seat.cores < 1 for seat in seats):
        reason += f"; {sharing} of {len(seats)} executors share cores, there are too few for all"
    full = [seat.demand.executor for seat in seats if seat.is_full()]
    if full and not job.all_at_once:
        who = repr(full[0]) if len(full) == 1 else f"{len(full)} executors"
        reason += f"; {who} counted as {FULL:.0%} busy: at the limit of cores, and yet overloaded"
    return reason


def _cores(count: float) -> str:
    words = f"{count:.1f}".removesuffix(".0")
    return f"{words} core" if words == "1" else f"{words} cores"


def _time(seconds: float) -> str:
    """Three digits; in seconds from one second on."""
    value, unit = (seconds, "s") if seconds >= 1 else (seconds * 1e3, "ms")
    return f"{value:.0f} {unit}" if 1000 <= value < 1e9 else f"{value:.3g} {unit}"


def _require_rate(who: str, rate: float) -> None:
    if rate < 0:
        raise BadValueError(who, "be at least 0", rate)


def _require_sane(jobs: Sequence[Job], cores: int) -> None:
    if type(cores) is not int or cores < 1:
        raise BadValueError("cores", "be a whole number, at least 1", cores)
    jobs_named = Counter(job.name for job in jobs)
    executors_named = Counter(demand.executor for job in jobs for demand in job.demands)
    for what, names in (("jobs", jobs_named), ("executors", executors_named)):
        for name, times in names.items():
            if times > 1:
                raise BadValueError(what, "have a name each", f"{times} times {name!r}")
