"""Claims about waiting: closed forms, tables, high precision and a simulation."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elasticutor.core.scheduler.queueing import (
    network_sojourn_s,
    one_over_b,
    sojourn_s,
    sojourns_s,
)
from elasticutor.errors import BadValueError

loads = st.floats(0.001, 60.0)


def exact_b(servers: int, load: Fraction) -> Fraction:
    """Erlang's own formula, without any rounding."""
    terms = [Fraction(1)]
    for k in range(1, servers + 1):
        terms.append(terms[-1] * load / k)
    return terms[-1] / sum(terms)


def exact_c(servers: int, load: Fraction) -> Fraction:
    b = exact_b(servers, load)
    return servers * b / (servers - load * (1 - b))


def c_by_log_gamma(servers: int, load: float) -> float:
    """Erlang C from the logarithms of Poisson probabilities: nothing in common with a recursion."""

    def log_poisson(k: int) -> float:
        return k * math.log(load) - math.lgamma(k + 1)

    top = log_poisson(servers)
    below = math.fsum(math.exp(log_poisson(k) - top) for k in range(servers))
    queued = servers / (servers - load)
    return queued / (below + queued)


def erlang_b(servers: int, load: float) -> float:
    return 1.0 / one_over_b(servers, load)


def erlang_c(servers: int, load: float) -> float:
    return servers / ((servers - load) * one_over_b(servers, load) + load)


class TestErlang:
    @pytest.mark.parametrize(
        ("servers", "load", "blocked"),
        [(1, 0.5, 1 / 3), (2, 1.0, 0.2), (5, 3.0, 0.1101), (10, 5.0, 0.0184), (20, 12.0, 0.0098)],
    )
    def test_b_is_as_in_the_tables(self, servers: int, load: float, blocked: float) -> None:
        assert erlang_b(servers, load) == pytest.approx(blocked, abs=5e-5)

    @pytest.mark.parametrize(
        ("servers", "load", "waits"),
        [(1, 0.5, 0.5), (2, 1.0, 1 / 3), (5, 4.0, 0.5541), (10, 8.0, 0.4092), (20, 16.0, 0.2561)],
    )
    def test_c_is_as_in_the_tables(self, servers: int, load: float, waits: float) -> None:
        assert erlang_c(servers, load) == pytest.approx(waits, abs=5e-5)

    @given(st.integers(1, 80), loads)
    def test_both_are_as_without_rounding(self, servers: int, load: float) -> None:
        assert erlang_b(servers, load) == pytest.approx(
            float(exact_b(servers, Fraction(load))), rel=1e-12
        )
        if load < servers:
            exact = float(exact_c(servers, Fraction(load)))
            assert erlang_c(servers, load) == pytest.approx(exact, rel=1e-12)

    @pytest.mark.parametrize("utilisation", [0.9, 0.99, 0.999, 0.999999, 1 - 1e-12])
    def test_c_is_right_with_ten_thousand_servers(self, utilisation: float) -> None:
        load = 10_000 * utilisation
        assert erlang_c(10_000, load) == pytest.approx(c_by_log_gamma(10_000, load), rel=1e-8)

    def test_b_is_right_with_ten_thousand_servers(self) -> None:
        b = 1.0
        for k in range(1, 10_001):
            b = 9990.0 * b / (k + 9990.0 * b)
        assert erlang_b(10_000, 9990.0) == pytest.approx(b, rel=1e-11)

    def test_c_goes_to_one_with_the_load(self) -> None:
        assert 0.9999 < erlang_c(10_000, 9999.999) < 1.0

    def test_b_without_load_or_servers(self) -> None:
        assert erlang_b(3, 0.0) == 0.0
        assert erlang_b(0, 0.0) == erlang_b(0, 5.0) == 1.0

    def test_what_is_too_rare_for_a_float_is_zero(self) -> None:
        assert erlang_c(10_000, 10.0) == erlang_b(10_000, 10.0) == 0.0
        assert erlang_c(2, 5e-324) == 0.0


class TestSojourn:
    @given(st.floats(0.1, 1e6), st.floats(0.0, 0.9999))
    def test_one_server_has_the_closed_form(self, service_rate: float, busy: float) -> None:
        arrival_rate = busy * service_rate
        expected = 1 / (service_rate - arrival_rate)
        assert sojourn_s(arrival_rate, service_rate, 1) == pytest.approx(expected, rel=1e-9)

    @given(st.floats(0.1, 1e6), st.floats(0.0, 0.9999))
    def test_two_servers_have_the_closed_form(self, service_rate: float, busy: float) -> None:
        expected = 1 / (service_rate * (1 - busy**2))
        assert sojourn_s(2 * busy * service_rate, service_rate, 2) == pytest.approx(
            expected, rel=1e-9
        )

    @given(st.integers(1, 80), loads)
    def test_any_number_of_servers_is_as_without_rounding(self, servers: int, load: float) -> None:
        if load < servers:
            exact = 1 + exact_c(servers, Fraction(load)) / (servers - Fraction(load))
            assert sojourn_s(load, 1.0, servers) == pytest.approx(float(exact), rel=1e-12)

    def test_without_arrivals_there_is_only_service(self) -> None:
        assert sojourn_s(0.0, 4.0, 3) == 0.25

    @pytest.mark.parametrize("arrival_rate", [20.0, 20.1, 1e308])
    def test_a_load_that_is_not_below_the_servers_never_ends(self, arrival_rate: float) -> None:
        assert sojourn_s(arrival_rate, 10.0, 2) == math.inf
        assert sojourn_s(arrival_rate, 1e-300, 2) == math.inf

    @settings(max_examples=60)
    @given(st.floats(0.01, 300.0), st.integers(1, 300))
    def test_each_further_server_helps_and_ever_less(self, load: float, servers: int) -> None:
        found = sojourns_s(load * 10.0, 10.0, servers)
        finite = [t for t in itertools.islice(found, 40) if t < math.inf]
        falls = [before - after for before, after in itertools.pairwise(finite)]
        rounding = 1e-12 * max(finite, default=0.0)
        assert all(fall >= -rounding for fall in falls)
        assert all(later <= fall + rounding for fall, later in itertools.pairwise(falls))

    @settings(max_examples=60)
    @given(st.floats(0.01, 300.0), st.integers(1, 300))
    def test_one_more_at_a_time_is_the_same_as_each_by_itself(
        self, load: float, servers: int
    ) -> None:
        steps = itertools.islice(sojourns_s(load * 10.0, 10.0, servers), 30)
        for k, found in enumerate(steps, servers):
            assert found == pytest.approx(sojourn_s(load * 10.0, 10.0, k), rel=1e-12)

    def test_a_recursion_from_one_server_is_right_at_ten_thousand(self) -> None:
        *_, last = itertools.islice(sojourns_s(99_900.0, 10.0), 10_000)
        wait = c_by_log_gamma(10_000, 9990.0) / (100_000 - 99_900)
        assert last == pytest.approx(0.1 + wait, rel=1e-9)

    @pytest.mark.parametrize(("servers", "busy"), [(1, 0.7), (3, 0.8), (8, 0.9)])
    def test_a_simulated_queue_waits_as_long(self, servers: int, busy: float) -> None:
        assert simulated_sojourn_s(servers, busy, seed=7) == pytest.approx(
            sojourn_s(servers * busy, 1.0, servers), rel=0.05
        )

    @pytest.mark.parametrize("rate", [-1.0, math.nan, math.inf])
    def test_a_rate_that_cannot_be_is_refused_at_once(self, rate: float) -> None:
        with pytest.raises(BadValueError, match="arrival rate must be finite"):
            sojourns_s(rate, 1.0)
        with pytest.raises(BadValueError, match="service rate must be finite and above 0"):
            sojourns_s(1.0, rate)

    def test_a_station_that_cannot_serve_is_refused(self) -> None:
        with pytest.raises(BadValueError, match="service rate"):
            sojourn_s(0.0, 0.0, 1)
        for servers in (0, -1, 1.0, True):
            with pytest.raises(BadValueError, match="servers must be a whole number, at least 1"):
                sojourn_s(0.0, 1.0, servers)  # type: ignore[arg-type]


def simulated_sojourn_s(servers: int, busy: float, seed: int, tuples: int = 200_000) -> float:
    """Mean time in a first-come-first-served M/M/k with μ = 1, by playing it through."""
    rng = np.random.default_rng(seed)
    arrivals = np.cumsum(rng.exponential(1 / (servers * busy), tuples)).tolist()
    services = rng.exponential(1.0, tuples).tolist()
    free_at = [0.0] * servers
    total = 0.0
    for arrival, service in zip(arrivals, services, strict=True):
        first = min(free_at)
        end = max(arrival, first) + service
        free_at[free_at.index(first)] = end
        total += end - arrival
    return total / tuples


class TestNetwork:
    def test_is_the_first_equation_of_the_paper(self) -> None:
        stations = [(100.0, 0.02), (300.0, 0.01), (50.0, 0.2)]
        assert network_sojourn_s(stations, 100.0) == pytest.approx(0.02 + 0.03 + 0.1)

    def test_stations_in_a_row_add_up(self) -> None:
        row = [(8.0, sojourn_s(8.0, 10.0, 1)), (8.0, sojourn_s(8.0, 5.0, 2))]
        assert network_sojourn_s(iter(row), 8.0) == pytest.approx(sum(t for _, t in row))

    def test_one_station_that_never_ends_is_enough(self) -> None:
        assert network_sojourn_s([(1.0, 0.1), (1.0, math.inf)], 1.0) == math.inf

    def test_a_station_where_nothing_arrives_does_not_count(self) -> None:
        assert network_sojourn_s([(2.0, 0.1), (0.0, math.inf), (0.0, math.nan)], 2.0) == 0.1

    def test_where_nothing_enters_nothing_takes_time_unless_something_arrives(self) -> None:
        assert network_sojourn_s([], 0.0) == network_sojourn_s([(0.0, 3.0)], 0.0) == 0.0
        assert network_sojourn_s([(1.0, 3.0)], 0.0) == math.inf

    @pytest.mark.parametrize("rate", [-1.0, math.nan, math.inf])
    def test_an_entry_rate_that_cannot_be_is_refused(self, rate: float) -> None:
        with pytest.raises(BadValueError, match="entry rate"):
            network_sojourn_s([], rate)
