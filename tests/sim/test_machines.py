"""Nodes and the links between them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticutor.errors import BadValueError
from elasticutor.lab.sim.clock import Clock
from elasticutor.lab.sim.model.machines import Machines, NetworkLinks

MB = 1_000_000


class Rig:
    """Links of 100 MB/s with 1 ms of latency, and a log of what arrived when."""

    def __init__(self, nodes: int = 4) -> None:
        self.clock = Clock()
        self.links = NetworkLinks(
            self.clock, Machines(nodes=nodes, bandwidth=100 * MB, latency_s=0.001)
        )
        self.log: list[tuple[str, float]] = []

    def send(self, what: str, source: int, to: int, size: int, at: float = 0.0) -> float:
        return self.links.send(at, source, to, size, self._arrive, what)

    def _arrive(self, what: str) -> None:
        self.log.append((what, round(self.clock.now, 9)))

    def arrivals(self) -> list[tuple[str, float]]:
        self.clock.run(until=1000.0)
        return self.log


def test_a_link_transfers_at_its_bandwidth() -> None:
    rig = Rig()
    for number in range(10):
        rig.send(f"{number}", 0, 1, 10 * MB)
    assert rig.arrivals()[-1] == ("9", 1.001)


def test_a_message_has_left_when_its_last_byte_has() -> None:
    assert Rig().send("a", 0, 1, 10 * MB) == pytest.approx(0.1)


def test_messages_to_different_nodes_share_the_link_out() -> None:
    rig = Rig()
    rig.send("a", 0, 1, 10 * MB)
    rig.send("b", 0, 2, 10 * MB)
    assert rig.arrivals() == [("a", 0.101), ("b", 0.201)]


def test_messages_from_different_nodes_share_the_link_in() -> None:
    rig = Rig()
    rig.send("a", 0, 3, 10 * MB)
    rig.send("b", 1, 3, 10 * MB)
    assert rig.arrivals() == [("a", 0.101), ("b", 0.201)]


def test_what_waits_for_a_busy_link_out_does_not_keep_the_link_in_from_others() -> None:
    rig = Rig()
    rig.send("large, to another", 0, 1, 100 * MB)
    rig.send("behind it", 0, 3, MB)
    rig.send("from elsewhere", 2, 3, MB)
    assert rig.arrivals()[0] == ("from elsewhere", 0.011)


def test_within_a_node_a_message_is_there_at_once_whatever_its_size() -> None:
    rig = Rig()
    rig.send("a", 0, 0, 100 * MB)
    assert rig.arrivals() == [("a", 0.0)]


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2), st.integers(0, 3 * MB))))
def test_between_two_nodes_messages_keep_their_order(sends: list[tuple[int, int, int]]) -> None:
    rig = Rig(nodes=3)
    for number, (source, to, size) in enumerate(sends):
        rig.send(f"{source}>{to} {number:03}", source, to, size, at=0.0)
    arrived = [what for what, _ in rig.arrivals()]
    assert len(arrived) == len(sends)
    for pair in {what[:3] for what in arrived}:
        mine = [what for what in arrived if what.startswith(pair)]
        assert mine == sorted(mine)


@pytest.mark.parametrize(
    "wrong",
    [{"nodes": 0}, {"cores": 0}, {"cores": 1.5}, {"bandwidth": 0.0}, {"latency_s": -1.0}],
)
def test_machines_that_cannot_be_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(BadValueError, match=next(iter(wrong))):
        Machines(**wrong)


def test_names_of_nodes_sort_as_their_numbers() -> None:
    names = Machines(nodes=12).names
    assert list(names) == sorted(names)
    assert len(set(names)) == 12
