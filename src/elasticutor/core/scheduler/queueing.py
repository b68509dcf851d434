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
from dataclasses import dataclass

from elasticutor.errors import BadValueError

NEGLIGIBLE = 2.0**-60
"""A term of a sum that is a smaller share of it is not worth adding, nor are those behind it."""


@dataclass(frozen=True, slots=True)
class Variation:
    """How irregular a station is: squared coefficients of variation, (deviation / mean)².

    Both are 1 in M/M/k; a service that takes always the same time has 0.
    """

    arrivals: float = 1.0
    """Of the times between arrivals."""

    service: float = 1.0
    """Of the service times."""

    def __post_init__(self) -> None:
        for who, value in (("arrivals", self.arrivals), ("service", self.service)):
            if not 0 <= value < math.inf:
                raise BadValueError(f"variation of {who}", "be finite and at least 0", value)


def erlang_b(servers: int, load: float) -> float:
    """The probability that an arrival finds all servers busy, where none waits.

    Example:
        >>> round(erlang_b(10, 5.0), 4)
        0.0184
    """
    _require_servers(servers, least=0)
    _require_rate("load", load)
    return 1.0 / _one_over_b(servers, load)


def erlang_c(servers: int, load: float) -> float:
    """The probability that an arrival has to wait, where all wait; 1 if there is no end of it.

    Example:
        >>> round(erlang_c(10, 8.0), 4)
        0.4092
        >>> erlang_c(10, 10.0)
        1.0
    """
    _require_servers(servers, least=0)
    _require_rate("load", load)
    spare = servers - load
    if spare <= 0:
        return 1.0 if load else 0.0
    return servers / (spare * _one_over_b(servers, load) + load)


def sojourn_s(
    arrival_rate: float, service_rate: float, servers: int, variation: Variation | None = None
) -> float:
    """E[T] of an M/M/k station: the mean time from arrival to end of service, in seconds.

    Args:
        arrival_rate: λ, per second. If it is 0 then E[T] is the service time alone.
        service_rate: μ, per second and server.
        servers: k.
        variation: If given, waiting is corrected by Allen and Cunneen's factor, the mean of the
            two; without, arrivals and service are as in M/M/k.

    Returns:
        Seconds; infinite if the load is as large as the servers, or larger.

    Example:
        >>> round(sojourn_s(8.0, 10.0, 1), 6)
        0.5
        >>> round(sojourn_s(8.0, 10.0, 1, Variation(service=0.0)), 6)
        0.3
        >>> sojourn_s(10.0, 10.0, 1)
        inf
    """
    return next(sojourns_s(arrival_rate, service_rate, servers, variation))


def sojourns_s(
    arrival_rate: float, service_rate: float, servers: int = 1, variation: Variation | None = None
) -> Iterator[float]:
    """E[T] with this number of servers, with one more, with two more, and so on without end.

    Each but the first takes one step of the recursion. Each is at most as large as the one before,
    and they fall ever less (E[T] of a stable M/M/k is convex in k).

    Args:
        arrival_rate: As for `sojourn_s`.
        service_rate: As for `sojourn_s`.
        servers: With how many to begin.
        variation: As for `sojourn_s`.

    Example:
        >>> [round(t, 3) for t in itertools.islice(sojourns_s(15.0, 10.0), 4)]
        [inf, 0.229, 0.116, 0.103]
    """
    _require_rate("arrival rate", arrival_rate)
    _require_servers(servers, least=1)
    if not 0 < service_rate < math.inf:
        raise BadValueError("service rate", "be finite and above 0", service_rate)
    factor = 1.0 if variation is None else (variation.arrivals + variation.service) / 2
    load = arrival_rate / service_rate
    if load in (0.0, math.inf):
        return itertools.repeat(load or 1.0 / service_rate)
    return _sojourns_s(load, 1.0 / service_rate, servers, factor)


def network_sojourn_s(stations: Iterable[tuple[float, float]], entry_rate: float) -> float:
    """E[T] of a network (paper, Eq. 1): how long what an entering tuple causes is under way.

    Args:
        stations: Arrival rate and E[T] of each. Where nothing arrives, E[T] does not matter.
        entry_rate: λ_0: how many tuples per second come from outside.

    Returns:
        Seconds; infinite if a station is unstable, or if tuples arrive though none enter.

    Example:
        >>> network_sojourn_s([(100.0, 0.02), (50.0, 0.06)], entry_rate=100.0)
        0.05
    """
    _require_rate("entry rate", entry_rate)
    total = math.fsum(rate * sojourn for rate, sojourn in stations if rate)
    if total == 0:
        return 0.0
    return total / entry_rate if entry_rate else math.inf


def _sojourns_s(load: float, service_s: float, servers: int, factor: float) -> Iterator[float]:
    one_over_b = _one_over_b(servers, load)
    while True:
        spare = servers - load
        if spare > 0:
            wait = servers / (spare * one_over_b + load) / spare  # in service times
            yield service_s * (1.0 + factor * wait)
        else:
            yield math.inf
        servers += 1
        one_over_b = 1.0 + servers / load * one_over_b


def _one_over_b(servers: int, load: float) -> float:
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


def _require_servers(servers: int, least: int) -> None:
    if type(servers) is not int or servers < least:
        raise BadValueError("servers", f"be a whole number, at least {least}", servers)


def _require_rate(who: str, value: float) -> None:
    if not 0 <= value < math.inf:
        raise BadValueError(who, "be finite and at least 0", value)
