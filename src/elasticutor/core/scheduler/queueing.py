"""Queueing theory: how long a tuple is under way (paper 4.1).

Every executor is an M/M/k station, with its cores as the servers, and a topology is a Jackson
network of them. *Load* is arrival rate / service rate, in servers (Erlangs); a station is stable
iff its load is less than its servers.

Everything rests on Erlang B, the probability that all servers are busy where none waits. Its
recursion over the number of servers is stable if it is written for the reciprocal,
1/B(k) = 1 + k/load · 1/B(k-1): all terms are positive, and what is too large for a float is an
infinity, which stands for a probability of 0.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator

from elasticutor.errors import BadValueError

NEGLIGIBLE = 2.0**-60
"""A term of a sum that is a smaller share of it is not worth adding, nor are those behind it."""


def sojourn_s(arrival_rate: float, service_rate: float, servers: int) -> float:
    """E[T] of an M/M/k station: the mean seconds from arrival to end of service.

    It is infinite if the load is as large as the servers, or larger.

    Args:
        arrival_rate: λ, per second. If it is 0 then E[T] is the service time alone.
        service_rate: μ, per second and server.
        servers: k.
    """
    return next(sojourns_s(arrival_rate, service_rate, servers))


def sojourns_s(arrival_rate: float, service_rate: float, servers: int = 1) -> Iterator[float]:
    """E[T] with this number of servers, with one more, with two more, and so on without end.

    Each but the first takes one step of the recursion. Each is at most as large as the one before,
    and they fall ever less (E[T] of a stable M/M/k is convex in k).
    """
    _require_rate("arrival rate", arrival_rate)
    if type(servers) is not int or servers < 1:
        raise BadValueError("servers", "be a whole number, at least 1", servers)
    if not 0 < service_rate < math.inf:
        raise BadValueError("service rate", "be finite and above 0", service_rate)
    load = arrival_rate / service_rate
    if load in (0.0, math.inf):
        return itertools.repeat(load or 1.0 / service_rate)
    return _sojourns_s(load, 1.0 / service_rate, servers)


def network_sojourn_s(stations: Iterable[tuple[float, float]], entry_rate: float) -> float:
    """E[T] of a network (paper, Eq. 1): how long what an entering tuple causes is under way.

    It is infinite if a station is unstable, or if tuples arrive though none enter.

    Args:
        stations: Arrival rate and E[T] of each. Where nothing arrives, E[T] does not matter.
        entry_rate: λ_0: how many tuples per second come from outside.
    """
    _require_rate("entry rate", entry_rate)
    total = math.fsum(rate * sojourn for rate, sojourn in stations if rate)
    if total == 0:
        return 0.0
    return total / entry_rate if entry_rate else math.inf


def _sojourns_s(load: float, service_s: float, servers: int) -> Iterator[float]:
    reciprocal = one_over_b(servers, load)
    while True:
        spare = servers - load
        if spare > 0:
            wait = servers / (spare * reciprocal + load) / spare  # in service times
            yield service_s * (1.0 + wait)
        else:
            yield math.inf
        servers += 1
        reciprocal = 1.0 + servers / load * reciprocal


def one_over_b(servers: int, load: float) -> float:
    """1/B: the recursion written out as a sum, 1 + k/load + k(k-1)/load² + …, as far as it matters.

    Once the terms fall they fall ever faster, so that with a load of 10,000 and as many servers
    900 of them will do.
    """
    total = term = 1.0
    if load == 0:
        return math.inf if servers else total
    for left in range(servers, 0, -1):
        term *= left / load
        total += term
        if term < total * NEGLIGIBLE:
            break
    return total


def _require_rate(who: str, value: float) -> None:
    if not 0 <= value < math.inf:
        raise BadValueError(who, "be finite and at least 0", value)
