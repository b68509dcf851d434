"""What the driver tells the participants of a run about each other, and how often it writes it."""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest

from elasticutor.core.paradigm import Paradigm
from elasticutor.core.protocol.ids import NodeId, Peer
from elasticutor.core.scheduler.placement import Placement
from elasticutor.driver.blueprint import Blueprint, in_paradigm
from elasticutor.driver.life.participants import Participants
from elasticutor.lab.bench.operators import CountAndSum
from elasticutor.process.specs import Tempo
from elasticutor.sinks import NoSink
from elasticutor.sources import Generator
from elasticutor.topology import Plan, Topology
from elasticutor.transport import messages as say
from elasticutor.transport.channels import Endpoint


class Mail:
    """Notes what is sent, and to how many."""

    def __init__(self) -> None:
        self.sent: list[tuple[tuple[str, ...], Any]] = []

    def send(self, who: str, message: Any) -> None:
        self.send_all([who], message)

    def send_all(self, whom: Iterable[str], message: Any) -> None:
        self.sent.append((tuple(name.removeprefix("r ") for name in whom), message))

    def know(self, who: str, endpoint: Endpoint) -> None: ...

    def forget(self, who: str) -> None: ...

    def books(self) -> list[tuple[tuple[str, ...], set[str]]]:
        """Who was told of whom since the last time."""
        told = [(whom, set(m.book)) for whom, m in self.sent if isinstance(m, say.Peers)]
        self.sent.clear()
        return told


def plan(executors: int = 3) -> Plan:
    topology = Topology("t")
    stream = topology.source("clicks", Generator(rate=1.0, keys=10), tasks=2)
    counted = topology.operator("count", CountAndSum(), stream, key="key", executors=executors)
    topology.sink("out", NoSink(), counted)
    return topology.plan()


class Rig:
    def __init__(self) -> None:
        self.mail = Mail()
        self.nodes: dict[NodeId, Any] = {}
        self.join("n0")
        self.hub = SimpleNamespace(
            mail=self.mail,
            nodes=self.nodes,
            send_node=lambda node, message: None,
            send_nodes=lambda nodes, message: None,
        )
        blueprint: Any = SimpleNamespace(ends=list, executor=lambda *_: None)
        placed = {Peer(f"count.{n}"): Placement(NodeId("n0"), {NodeId("n0"): 1}) for n in range(3)}
        self.attendance = Participants(self.hub, "r", plan(), blueprint, placed, 1)  # type: ignore[arg-type]
        for who in self.attendance.executors:
            self.attendance.start_executor(who)

    def join(self, node: str) -> None:
        self.nodes[NodeId(node)] = SimpleNamespace(endpoint=Endpoint(node, "", f"tcp://{node}:1"))

    def up(self, who: str, life: int = 0) -> None:
        endpoint = Endpoint("n0", "", f"tcp://{who}:{life + 1}")
        assert self.attendance.registered(say.Registered("r", Peer(who), endpoint, 1, life))

    def all_up(self) -> None:
        for who in self.attendance.everybody:
            assert not self.attendance.complete
            self.up(who)
        assert self.attendance.complete
        self.attendance.introduce()


EXECUTORS = ("count.0", "count.1", "count.2")
SOURCES = ("clicks.0", "clicks.1")


def test_every_stage_is_told_once_of_those_it_receives_from_and_sends_to() -> None:
    rig = Rig()
    rig.all_up()
    assert sorted(rig.mail.books()) == [
        (SOURCES, set(EXECUTORS)),
        (EXECUTORS, {*SOURCES, "out"}),
        (("out",), set(EXECUTORS)),
    ]
    rig.attendance.introduce()
    assert rig.mail.books() == []


def test_of_a_successor_those_learn_that_need_it_and_it_learns_all() -> None:
    rig = Rig()
    rig.all_up()
    rig.mail.books()
    rig.attendance.lose(Peer("count.1"))
    assert not rig.attendance.complete
    rig.attendance.start_executor(Peer("count.1"))
    rig.up("count.1", life=1)
    rig.attendance.introduce()
    assert sorted(rig.mail.books()) == [
        (SOURCES, {"count.1"}),
        (("count.1",), {*SOURCES, "out"}),
        (("out",), {"count.1"}),
    ]


def test_executors_alone_learn_of_nodes_that_came_after_they_were_started() -> None:
    rig = Rig()
    rig.join("n1")
    rig.up("count.0")
    assert rig.mail.books() == [(("count.0",), {"node n1"})]
    rig.up("clicks.0")
    rig.up("count.1")
    rig.mail.books()
    rig.join("n2")
    rig.attendance.introduce_nodes()
    assert rig.mail.books() == [(("count.0", "count.1"), {"node n2"})]
    rig.attendance.introduce_nodes()
    assert rig.mail.books() == []


@pytest.mark.parametrize(("executors", "measure_s"), [(3, 0.25), (1000, 2.0)])
def test_many_executors_measure_less_often_and_sources_and_sinks_as_asked(
    executors: int, measure_s: float
) -> None:
    hub: Any = SimpleNamespace()
    config: Any = SimpleNamespace(min_credit_bytes=1, outputs="emit")
    blueprint = Blueprint(hub, "r", plan(executors), config, Tempo(), Paradigm.ELASTIC)
    assert blueprint.tempo == Tempo(measure_s=measure_s)
    site: Any = None
    assert {make(site).tempo for _, _, make in blueprint.ends()} == {Tempo()}


@pytest.mark.parametrize("paradigm", [Paradigm.ELASTIC, Paradigm.RESOURCE_CENTRIC])
def test_routes_name_the_columns_that_are_sent_unless_these_are_all(paradigm: Paradigm) -> None:
    class Reads(CountAndSum):
        def __init__(self, *columns: str) -> None:
            self.columns = columns  # type: ignore[misc]

    topology = Topology("t")
    stream = topology.source("clicks", Generator(rate=1.0, keys=10))  # key, time, payload
    takers = [
        topology.operator(name, Reads(*columns), stream, key="time", cores=2)
        for name, columns in (("few", ("key",)), ("every", ("payload", "time", "key")))
    ]
    topology.sink("out", NoSink(), takers)
    topology.sink("raw", NoSink(), stream)
    hub: Any = SimpleNamespace()
    site: Any = None
    config: Any = SimpleNamespace(min_credit_bytes=1, outputs="emit")
    made = in_paradigm(topology.plan(), paradigm)
    ((_, _, make), *_) = Blueprint(hub, "r", made, config, Tempo(), paradigm).ends()
    routes = make(site).routes
    assert {route.name: route.columns for route in routes} == {
        "few": ("key", "time"),
        "every": None,
        "raw": None,
    }


def test_where_balancing_is_a_report_to_the_driver_it_is_paced_too() -> None:
    hub: Any = SimpleNamespace()
    config: Any = SimpleNamespace(min_credit_bytes=1, outputs="emit")
    blueprint = Blueprint(hub, "r", plan(1000), config, Tempo(), Paradigm.RESOURCE_CENTRIC)
    assert blueprint.tempo.balance_s == 2.0
