"""Claims about how many cores each executor gets (paper 4.1)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from operator import truediv

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from elasticutor.core.protocol.ids import Peer
from elasticutor.core.scheduler.allocation import EVENLY, FULL, Allocation, Demand, Job, allocate
from elasticutor.core.scheduler.queueing import network_sojourn_s, sojourn_s
from elasticutor.errors import BadValueError

NEVER = 1e-6
"""A target that nothing meets: shorter than any service."""


def demand(name: str, load: float, service_rate: float = 10.0, most: int | None = None) -> Demand:
    return Demand(Peer(name), load * service_rate, service_rate, most)


def job(
    *demands: Demand, name: str = "job", target_s: float = NEVER, all_at_once: bool = False
) -> Job:
    """A job whose executors are all fed by its sources, so that all that enters goes to one."""
    rate = sum(one.arrival_rate for one in demands)
    return Job(name, demands, rate, target_s, all_at_once)


def loads(*given: float, most: int | None = None, prefix: str = "e") -> list[Demand]:
    return [demand(f"{prefix}{at}", load, most=most) for at, load in enumerate(given)]


def cores_of(found: Allocation) -> list[float]:
    return list(found.cores.values())


def by_name(found: Allocation) -> dict[str, float]:
    return {str(name): cores for name, cores in found.cores.items()}


def expected_s(of: Job, cores: Sequence[int]) -> float:
    """E[T] by the public formulas; it knows nothing of limits."""
    return network_sojourn_s(
        (
            (one.arrival_rate, sojourn_s(one.arrival_rate, one.service_rate, k))
            for one, k in zip(of.demands, cores, strict=True)
        ),
        of.entry_rate,
    )


def every_way(executors: int, cores: int) -> Iterator[tuple[int, ...]]:
    """All ways to give so many executors at least one core each, and at most so many in all."""
    if executors == 0:
        yield ()
        return
    for first in range(1, cores - executors + 2):
        for rest in every_way(executors - 1, cores - first):
            yield (first, *rest)


@st.composite
def small_jobs(draw: st.DrawFn, name: str = "job", limits: bool = False) -> Job:
    most = st.none() | st.integers(1, 4) if limits else st.none()
    demands = []
    for at in range(draw(st.integers(2, 4))):
        rate = draw(st.sampled_from([0.5, 10.0, 300.0]) | st.floats(0.5, 500.0))
        load = draw(st.just(0.0) | st.floats(0.01, 2.5))
        who = Peer(f"{name}{at}")
        demands.append(Demand(who, load * rate, rate, draw(most)))
    return Job(name, tuple(demands), draw(st.floats(1.0, 100.0)), draw(st.floats(0.001, 10.0)))


class TestMeetingTheTarget:
    def test_the_start_is_the_fewest_cores_that_keep_up(self) -> None:
        found = allocate([job(*loads(0.0, 0.3, 1.0, 2.7, 5.999), target_s=1e6)], 100)
        assert cores_of(found) == [1, 1, 2, 3, 6]

    def test_cores_that_the_target_does_not_need_stay_free(self) -> None:
        found = allocate([job(*loads(0.5), target_s=0.2)], 1000)
        assert cores_of(found) == [1]
        assert found.expected_s == {"job": pytest.approx(0.2)}

    def test_a_core_is_added_when_the_target_is_only_just_missed(self) -> None:
        found = allocate([job(*loads(0.5), target_s=0.1999)], 1000)
        assert cores_of(found) == [2]

    @settings(max_examples=80, deadline=None)
    @given(small_jobs(), st.integers(4, 10))
    def test_no_other_allocation_is_better_and_none_of_fewer_cores_meets_the_target(
        self, given: Job, cores: int
    ) -> None:
        ways = {way: expected_s(given, way) for way in every_way(len(given.demands), cores)}
        best = min(ways.values())
        assume(best < math.inf)
        # What is within rounding of the target may fall on either side.
        assume(all(abs(t - given.target_s) > 1e-7 * given.target_s for t in ways.values()))
        found = allocate([given], cores)
        own = ways[tuple(int(k) for k in cores_of(found))]
        assert found.expected_s["job"] == pytest.approx(own, rel=1e-12)
        if best > given.target_s:
            assert own <= best + 1e-8 * given.target_s
        else:
            fewest = min(sum(way) for way, t in ways.items() if t <= given.target_s)
            assert sum(cores_of(found)) == fewest
            assert own <= given.target_s

    def test_each_core_goes_where_the_latency_falls_most_not_where_the_load_is_largest(
        self,
    ) -> None:
        slow = demand("slow", 0.9, service_rate=1.0)
        fast = demand("fast", 1.8, service_rate=1000.0)
        assert allocate([job(slow, fast)], 4).cores == {"slow": 2, "fast": 2}
        assert by_name(allocate([job(replace(slow, arrival_rate=0.2), fast)], 4))["fast"] == 3

    def test_an_executor_that_nearly_fails_to_keep_up_hides_nothing_of_the_others(self) -> None:
        """E[T] starts at years; what is left of it after one core must still be exact."""
        given = job(*loads(math.nextafter(2.0, 0.0), 0.5, 0.5))
        assert expected_s(given, (2, 1, 1)) > 1e12
        reached = expected_s(given, (3, 1, 1))
        above, below = (
            allocate([replace(given, target_s=reached * (1 + margin))], 50)
            for margin in (1e-6, -1e-6)
        )
        assert cores_of(above) == [3, 1, 1]
        assert above.expected_s["job"] == pytest.approx(reached, rel=1e-12)
        assert sum(cores_of(below)) == 6

    def test_cores_that_help_nobody_stay_free(self) -> None:
        found = allocate([job(*loads(0.5, 0.0))], 1000)
        assert cores_of(found)[1] == 1
        assert sum(cores_of(found)) < 20
        assert found.reason["job"].endswith("more would not help")

    def test_of_equal_executors_the_first_by_name_is_served_first(self) -> None:
        b, a, c = demand("b", 0.5), demand("a", 0.5), demand("c", 0.5)
        found = allocate([job(b, a, c)], 5)
        assert found.cores == {"b": 2, "a": 2, "c": 1}
        assert list(found.cores) == ["b", "a", "c"]

    def test_the_reason_says_what_is_expected(self) -> None:
        [one] = loads(0.5)
        assert allocate([job(one, target_s=0.25)], 1).reason == {
            "job": "E[T] 200 ms meets the target of 250 ms with 1 core"
        }
        assert allocate([job(one, target_s=0.0125)], 2).reason == {
            "job": "E[T] 107 ms misses the target of 12.5 ms with 2 cores: no more are left"
        }
        assert allocate([job(demand("e", 0.5, 1e-4), target_s=2.0)], 1).reason == {
            "job": "E[T] 20000 s misses the target of 2 s with 1 core: no more are left"
        }


class TestLimits:
    def test_an_executor_gets_no_more_than_can_help_it(self) -> None:
        free, limited = demand("free", 1.5), demand("limited", 1.5, most=3)
        found = allocate([job(free, limited)], 12)
        assert found.cores == {"free": 9, "limited": 3}

    def test_a_lone_hot_shard_attracts_no_cores_and_hides_nothing_of_the_others(self) -> None:
        hot, one = demand("hot", 4.0, most=1), demand("one", 0.5)
        alone = allocate([job(one, target_s=0.12)], 10)
        both = Job("job", (hot, one), 5.0, 0.12)
        found = allocate([both], 10)
        assert by_name(found)["hot"] == 1
        assert by_name(found)["one"] > by_name(alone)["one"]
        full = FULL * 10.0
        assert found.expected_s["job"] == pytest.approx(
            (full * sojourn_s(full, 10.0, 1) + 5.0 * sojourn_s(5.0, 10.0, 9)) / 5.0
        )
        assert "'hot' counted as 99% busy" in found.reason["job"]

    def test_what_is_expected_does_not_leap_where_a_limit_is_reached(self) -> None:
        def expected(load: float) -> float:
            return allocate([Job("job", (demand("hot", load, most=3),), 30.0, 0.1)], 8).expected_s[
                "job"
            ]

        assert expected(2.9699) == pytest.approx(expected(2.9701), rel=0.02)
        assert expected(2.9701) == expected(2.9999) == expected(3.0) == expected(300.0)

    def test_a_limit_above_what_is_given_changes_nothing(self) -> None:
        plain, limited = loads(1.5, 2.5), loads(1.5, 2.5, most=50)
        assert allocate([job(*plain)], 12).cores == allocate([job(*limited)], 12).cores

    def test_several_at_their_limits_are_counted(self) -> None:
        found = allocate([job(*loads(4.0, 5.0, most=2))], 9)
        assert cores_of(found) == [2, 2]
        assert "2 executors counted as 99% busy" in found.reason["job"]

    def test_below_its_limit_an_overloaded_executor_counts_as_it_is(self) -> None:
        given = Job("job", (demand("hot", 300.0, most=200), demand("b", 0.1)), 10.0, 1.0)
        assert allocate([given], 200).expected_s["job"] == math.inf
        assert allocate([given], 201).expected_s["job"] < math.inf


class TestSeveralJobs:
    def test_a_job_that_meets_its_target_gets_no_more_while_another_misses_it(self) -> None:
        easy = job(*loads(0.5, 0.5, prefix="a"), name="easy", target_s=0.2)
        hard = job(*loads(0.5, 0.5, prefix="b"), name="hard")
        found = allocate([easy, hard], 12)
        assert by_name(found)["a0"] == by_name(found)["a1"] == 1
        assert by_name(found)["b0"] + by_name(found)["b1"] == 10

    def test_a_job_gets_what_it_would_get_alone_where_there_is_enough(self) -> None:
        one = job(*loads(0.9, 2.5, prefix="a"), name="one", target_s=0.11)
        other = job(*loads(3.9, 0.2, prefix="b"), name="other", target_s=0.105)
        found = allocate([one, other], 100)
        assert found.cores == {**allocate([one], 50).cores, **allocate([other], 50).cores}

    def test_the_nearer_target_counts_more(self) -> None:
        lax = job(*loads(1.9, prefix="a"), name="lax", target_s=0.02)
        strict = job(*loads(1.9, prefix="b"), name="strict", target_s=0.002)
        assert allocate([lax, strict], 5).cores == {"a0": 2, "b0": 3}
        swapped = [replace(lax, target_s=0.002), replace(strict, target_s=0.02)]
        assert allocate(swapped, 5).cores == {"a0": 3, "b0": 2}

    def test_each_job_has_its_own_words(self) -> None:
        one = job(*loads(0.5, prefix="a"), name="one", target_s=1.0)
        other = job(*loads(0.5, prefix="b"), name="other")
        found = allocate([one, other], 2)
        assert "meets" in found.reason["one"]
        assert "misses" in found.reason["other"]

    def test_the_order_of_jobs_and_executors_does_not_matter(self) -> None:
        one = job(*loads(0.9, 2.5, 0.9, prefix="a"), name="one", target_s=0.05)
        other = job(*loads(2.5, 0.9, prefix="b"), name="other", target_s=0.05)
        turned = [replace(one, demands=one.demands[::-1]) for one in (other, one)]
        for cores in (3, 5, 8, 12, 20):
            found, again = allocate([one, other], cores), allocate(turned, cores)
            assert (found.cores, found.expected_s) == (again.cores, again.expected_s)


def largest_work_per_core(of: Sequence[Demand], cores: Mapping[Peer, float]) -> float:
    return max(
        one.arrival_rate / one.service_rate / cores[one.executor]
        for one in of
        if one.most is None or cores[one.executor] < one.most
    )


class TestOverload:
    def test_all_cores_are_shared_in_proportion_to_the_work(self) -> None:
        found = allocate([job(*loads(4.0, 8.0, 12.0))], 12)
        assert cores_of(found) == [2, 4, 6]
        assert found.expected_s == {"job": math.inf}
        assert found.reason["job"] == (
            "overloaded: 12 cores for the work of 24.0, where the fewest that keep up are 27"
        )

    def test_everybody_keeps_a_core(self) -> None:
        assert cores_of(allocate([job(*loads(100.0, 0.001, 0.0))], 10)) == [8, 1, 1]

    @settings(max_examples=60, deadline=None)
    @given(st.lists(st.floats(0.0, 20.0), min_size=2, max_size=4), st.integers(4, 10))
    def test_the_largest_work_per_core_is_as_small_as_it_can_be(
        self, given: list[float], cores: int
    ) -> None:
        assume(sum(math.floor(load) + 1 for load in given) > cores)
        demands = loads(*given)
        found = allocate([job(*demands)], cores)
        least = min(
            max(load / k for load, k in zip(given, way, strict=True))
            for way in every_way(len(given), cores)
        )
        assert sum(cores_of(found)) == cores
        assert largest_work_per_core(demands, found.cores) == pytest.approx(least)

    def test_limits_hold(self) -> None:
        [one, other] = [demand("one", 50.0, most=3), demand("other", 20.0)]
        assert cores_of(allocate([job(one, other)], 12)) == [3, 9]

    def test_a_job_that_keeps_up_all_the_same_has_its_expectation(self) -> None:
        small = job(*loads(0.5, prefix="a"), name="small", target_s=1.0)
        large = job(*loads(50.0, prefix="b"), name="large", target_s=1.0)
        found = allocate([small, large], 10)
        assert found.cores == {"a0": 1, "b0": 9}
        assert found.expected_s == {"small": pytest.approx(0.2), "large": math.inf}
        assert "meets" in found.reason["small"]


class TestAllAtOnce:
    def test_all_cores_are_handed_out_in_proportion_to_the_work(self) -> None:
        found = allocate([job(*loads(0.1, 0.2, 0.3), target_s=1e6, all_at_once=True)], 60)
        assert cores_of(found) == [10, 20, 30]
        assert found.expected_s == {"job": math.inf}
        assert found.reason["job"] == (
            "60 cores in proportion to the work: the sources offer all they have"
        )

    def test_limits_hold_and_everybody_gets_a_core(self) -> None:
        demands = (demand("a", 9.0, most=2), demand("b", 1.0), demand("c", 0.0))
        found = allocate([job(*demands, all_at_once=True)], 12)
        assert cores_of(found) == [2, 9, 1]
        assert "busy" not in found.reason["job"]

    def test_where_nothing_was_measured_everybody_has_one_core(self) -> None:
        assert cores_of(allocate([job(*loads(0.0, 0.0), all_at_once=True)], 12)) == [1, 1]

    def test_scarce_cores_are_divided_by_work_and_need(self) -> None:
        steady = job(*loads(2.5, prefix="a"), name="steady")
        replay = job(*loads(4.0, 5.0, prefix="b"), name="replay", all_at_once=True)
        found = allocate([steady, replay], 12)
        assert found.cores == {"a0": 3, "b0": 4, "b1": 5}
        assert allocate([steady, replay], 6).cores == {"a0": 1, "b0": 2, "b1": 3}
        assert sum(allocate([steady, replay], 24).cores.values()) == 24
        assert by_name(allocate([steady, replay], 24))["a0"] == 6

    def test_what_the_others_do_not_need_is_handed_out_too(self) -> None:
        steady = job(*loads(2.5, prefix="a"), name="steady", target_s=1.0)
        replay = job(*loads(4.0, 5.0, prefix="b"), name="replay", all_at_once=True)
        found = allocate([steady, replay], 24)
        assert by_name(found)["a0"] == 3
        assert sum(cores_of(found)) == 24

    def test_what_cannot_be_used_is_left_to_the_others(self) -> None:
        steady = job(*loads(0.9, prefix="a"), name="steady")
        replay = job(*loads(40.0, prefix="b", most=2), name="replay", all_at_once=True)
        assert allocate([steady, replay], 8).cores == {"a0": 6, "b0": 2}

    def test_however_much_there_is_to_replay_the_others_keep_a_core_each(self) -> None:
        steady = job(*loads(2.5, 0.1, prefix="a"), name="steady")
        replay = job(*loads(1e6, prefix="b"), name="replay", all_at_once=True)
        assert allocate([steady, replay], 8).cores == {"a0": 1, "a1": 1, "b0": 6}

    @pytest.mark.parametrize("load", [0.0, 1e-6])
    def test_however_little_there_is_to_replay_each_has_a_core(self, load: float) -> None:
        steady = job(*loads(2.5, prefix="a"), name="steady")
        replay = job(*loads(load, load, prefix="b"), name="replay", all_at_once=True)
        assert allocate([steady, replay], 8).cores == {"a0": 6, "b0": 1, "b1": 1}

    def test_rounding_takes_no_core_from_those_that_just_keep_up(self) -> None:
        steady = job(*loads(2.5, prefix="a"), name="steady", target_s=1.0)
        replay = job(*loads(2.6, 2.7, 2.8, 2.9, prefix="b"), name="replay", all_at_once=True)
        assert 2.6 + 2.7 + 2.8 + 2.9 > 11.0  # by rounding
        assert by_name(allocate([steady, replay], 14))["a0"] == 3


class TestMoreExecutorsThanCores:
    def test_the_least_loaded_share_and_the_others_have_whole_cores(self) -> None:
        found = allocate([job(*loads(3.0, 1.0, 0.2, 0.1, 0.1, 0.1))], 5)
        assert cores_of(found)[:2] == [3, 1]
        assert all(0 < share < 1 for share in cores_of(found)[2:])
        assert sum(cores_of(found)[2:]) == pytest.approx(1.0)
        assert "4 of 6 executors share cores" in found.reason["job"]

    def test_shares_are_in_proportion_to_the_work(self) -> None:
        found = cores_of(allocate([job(*loads(0.4, 0.2, 0.2))], 1))
        assert found[0] / found[1] == pytest.approx(2.0, rel=0.05)
        assert found[1] == found[2]

    def test_nobody_gets_nothing(self) -> None:
        found = cores_of(allocate([job(*loads(5.0, 0.0, 0.0, 0.0))], 1))
        assert all(share > 0.004 for share in found)
        assert found[0] > 0.95

    def test_where_nothing_was_measured_all_share_alike(self) -> None:
        found = cores_of(allocate([job(*loads(*[0.0] * 8))], 4))
        assert found == [pytest.approx(0.5)] * 8

    def test_a_lone_executor_with_work_leaves_the_rest_a_core(self) -> None:
        assert cores_of(allocate([job(*loads(9.0, 0.0, 0.0, 0.0, 0.0))], 4))[0] == 3

    def test_limits_hold_and_leave_the_cores_to_the_others(self) -> None:
        demands = (demand("hot", 9.0, most=1), *loads(*[0.3] * 9))
        found = cores_of(allocate([job(*demands)], 6))
        assert found[0] == 1
        assert found[1:] == [pytest.approx(5 / 9)] * 9

    def test_cores_that_nobody_with_work_can_use_are_shared_by_those_without(self) -> None:
        demands = (*loads(5.0, 4.0, 3.0, most=1), *loads(*[0.0] * 7, prefix="idle"))
        found = cores_of(allocate([job(*demands)], 5))
        assert found == [1, 1, 1, *[pytest.approx(2 / 7)] * 7]

    def test_a_fraction_counts_as_a_slower_core(self) -> None:
        found = allocate([job(*loads(0.3, 0.3))], 1)
        share = cores_of(found)[0]
        assert found.expected_s["job"] == pytest.approx(1 / (share * 10.0 - 3.0))
        overloaded = allocate([job(*loads(0.6, 0.6))], 1)
        assert overloaded.expected_s["job"] == math.inf
        assert overloaded.reason["job"].startswith("overloaded: 1 core for the work of 1.2")

    @settings(max_examples=60, deadline=None)
    @given(st.lists(st.floats(0.01, 20.0), min_size=2, max_size=6), st.data())
    def test_the_largest_work_per_core_is_as_small_as_it_can_be(
        self, given: list[float], data: st.DataObject
    ) -> None:
        cores = data.draw(st.integers(1, len(given) - 1))
        demands = loads(*given)
        found = allocate([job(*demands)], cores).cores
        ordered = sorted(given, reverse=True)
        least = min(
            max(sum(ordered[len(own) :]) / shared, *map(truediv, ordered, own), 0.0)
            for whole in range(cores)
            for *own, shared in every_way(whole + 1, cores)
            if shared == 1 or ordered[whole] * shared < sum(ordered[whole:])  # all below 1
        )
        # What is dealt out evenly is lost to those with more work.
        assert largest_work_per_core(demands, found) <= least / (1 - EVENLY) * (1 + 1e-6)

    @settings(max_examples=60, deadline=None)
    @given(st.lists(st.floats(0.0, 9.0), min_size=3, max_size=12))
    def test_with_more_cores_to_share_nobody_has_less(self, given: list[float]) -> None:
        demands = loads(*given)
        by_cores = [cores_of(allocate([job(*demands)], n)) for n in range(1, len(given))]
        for fewer, more in itertools.pairwise(by_cores):
            assert all(after > before - EVENLY for before, after in zip(fewer, more, strict=True))

    def test_all_jobs_share(self) -> None:
        steady = job(*loads(0.2, 0.2, prefix="a"), name="steady", target_s=10.0)
        replay = job(*loads(0.2, 0.2, prefix="b"), name="replay", all_at_once=True)
        found = allocate([steady, replay], 3)
        assert cores_of(found) == [pytest.approx(0.75)] * 4
        assert found.expected_s["replay"] == math.inf


class TestWhatIsNotKnown:
    @pytest.mark.parametrize(
        ("arrival_rate", "service_rate"),
        [
            (0.0, 10.0),
            (5.0, 0.0),
            (5.0, -1.0),
            (5.0, math.nan),
            (5.0, math.inf),
            (math.nan, 10.0),
            (math.inf, 10.0),
            (math.inf, math.inf),
            (1e300, 1e-300),
            (5e-324, 5e-324),
        ],
    )
    def test_an_executor_without_known_work_has_one_core(
        self, arrival_rate: float, service_rate: float
    ) -> None:
        unknown = Demand(Peer("unknown"), arrival_rate, service_rate)
        for at_once in (False, True):
            given = Job("job", (unknown, demand("known", 0.5)), 5.0, 0.11, at_once)
            assert by_name(allocate([given], 8))["unknown"] == 1
            assert 0 < by_name(allocate([given], 1))["unknown"] < 0.1
        alone = Job("job", (demand("known", 0.5),), 5.0, 0.11)
        given = replace(given, all_at_once=False)
        assert allocate([given], 8).expected_s == allocate([alone], 7).expected_s

    @pytest.mark.parametrize("rate", [0.0, math.nan, math.inf])
    def test_without_a_known_rate_of_entry_the_executors_keep_up_and_no_more(
        self, rate: float
    ) -> None:
        found = allocate([Job("job", tuple(loads(2.5, 0.5)), rate, NEVER)], 50)
        assert cores_of(found) == [3, 1]
        assert found.expected_s == {"job": math.inf}
        assert found.reason["job"].startswith("4 cores to keep up: without a rate of entry")

    def test_an_idle_job_meets_its_target(self) -> None:
        found = allocate([Job("job", tuple(loads(0.0, 0.0)), 0.0, NEVER)], 50)
        assert cores_of(found) == [1, 1]
        assert found.expected_s == {"job": 0.0}

    def test_nothing_to_do_needs_nothing(self) -> None:
        assert allocate([], 4) == Allocation({}, {}, {})
        assert allocate([Job("job", (), 1.0, 1.0)], 4).cores == {}


class TestAlways:
    @settings(max_examples=150, deadline=None)
    @given(
        st.tuples(small_jobs("a", limits=True), small_jobs("b", limits=True)),
        st.tuples(st.booleans(), st.booleans()),
        st.integers(1, 40),
    )
    def test_everybody_has_something_and_no_more_is_given_than_there_is(
        self, pair: tuple[Job, Job], at_once: tuple[bool, bool], cores: int
    ) -> None:
        jobs = [replace(one, all_at_once=a) for one, a in zip(pair, at_once, strict=True)]
        found = allocate(jobs, cores)
        demands = [one for each in jobs for one in each.demands]
        assert list(found.cores) == [one.executor for one in demands]
        assert sum(cores_of(found)) <= cores
        for one in demands:
            given = found.cores[one.executor]
            assert 0 < given < 1 or (type(given) is int and given >= 1)
            assert given <= (one.most or cores)
            if len(demands) <= cores:
                assert given >= 1
        assert found.expected_s.keys() == found.reason.keys() == {"a", "b"}
        assert not any(math.isnan(t) for t in found.expected_s.values())
        assert allocate(jobs, cores) == found

    @settings(max_examples=60, deadline=None)
    @given(
        st.tuples(small_jobs("a", limits=True), small_jobs("b", limits=True)),
        st.booleans(),
    )
    def test_with_more_cores_no_expectation_rises(
        self, pair: tuple[Job, Job], at_once: bool
    ) -> None:
        """From one core for each executor on: where they share, a job can be better off."""
        jobs = [pair[0], replace(pair[1], all_at_once=at_once)]
        executors = sum(len(one.demands) for one in jobs)
        found = [allocate(jobs, cores).expected_s for cores in range(executors, executors + 20)]
        for fewer, more in itertools.pairwise(found):
            for name in fewer:
                assert more[name] <= fewer[name] * (1 + 1e-12)

    @settings(max_examples=40, deadline=None)
    @given(small_jobs(), st.integers(4, 30))
    def test_the_reason_agrees_with_the_numbers(self, given: Job, cores: int) -> None:
        found = allocate([given], cores)
        expected, words = found.expected_s["job"], found.reason["job"]
        assert ("meets" in words) == (expected <= given.target_s)
        assert ("misses" in words) == (given.target_s < expected < math.inf)
        assert words.startswith("overloaded") == (expected == math.inf)


class TestRefusals:
    @pytest.mark.parametrize("cores", [0, -1, 1.5])
    def test_there_must_be_a_core(self, cores: int) -> None:
        with pytest.raises(BadValueError, match="cores must be a whole number, at least 1"):
            allocate([], cores)

    def test_executors_have_a_name_each_over_all_jobs(self) -> None:
        one, other = (job(*loads(0.5), name=name) for name in "ab")
        with pytest.raises(BadValueError, match=r"executors must have a name each.*2 times 'e0'"):
            allocate([one, other], 4)

    def test_jobs_have_a_name_each(self) -> None:
        one, other = (job(*loads(0.5, prefix=name)) for name in "ab")
        with pytest.raises(BadValueError, match="jobs must have a name each"):
            allocate([one, other], 4)

    def test_rates_are_not_negative(self) -> None:
        with pytest.raises(BadValueError, match="arrival rate of 'e' must be at least 0"):
            Demand(Peer("e"), -1.0, 10.0)
        with pytest.raises(BadValueError, match="entry rate of 'job' must be at least 0"):
            Job("job", (), -1.0, 1.0)

    @pytest.mark.parametrize("target_s", [0.0, -1.0, math.nan])
    def test_a_target_is_above_zero(self, target_s: float) -> None:
        with pytest.raises(BadValueError, match="target of 'job' must be above 0"):
            Job("job", (), 1.0, target_s)

    @pytest.mark.parametrize("most", [0, -1, 1.5])
    def test_a_limit_leaves_a_core(self, most: int) -> None:
        with pytest.raises(BadValueError, match="most cores of 'e' must be a whole number"):
            Demand(Peer("e"), 1.0, 10.0, most)
