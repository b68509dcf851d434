"""What the driver sends to the participants of a run, and what these start from."""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest

from elasticutor.core.paradigm import Paradigm
from elasticutor.core.protocol.ids import NodeId, Peer
from elasticutor.core.run import run_instructions as do
from elasticutor.core.run.introductions import Introduction
from elasticutor.driver.blueprint import Blueprint, in_paradigm
from elasticutor.driver.connections import Connections, roles_of
from elasticutor.lab.bench.work import CountAndSum
from elasticutor.plan import Plan
from elasticutor.process.specs import Tempo
from elasticutor.sinks import NoSink
from elasticutor.sources import Generator
from elasticutor.topology import Topology
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
    """The connections of a run whose participants are all up."""

    def __init__(self) -> None:
        self.mail = Mail()
        nodes = {NodeId("n0"): SimpleNamespace(endpoint=Endpoint("n0", "", "tcp://n0:1"))}
        hub: Any = SimpleNamespace(mail=self.mail, nodes=nodes)
        ends = [("sink", "out", lambda site: None)]
        blueprint: Any = SimpleNamespace(ends=lambda: ends)
        self.connections = Connections(hub, "r", blueprint)
        self.roles = roles_of(plan(), hosts=2)
        for who in (*self.roles.executors, *self.roles.sources, *self.roles.sinks):
            endpoint = Endpoint("n0", "", f"tcp://{who}:1")
            self.connections.connect(who, say.Registered("r", who, endpoint, 1))


EXECUTORS = tuple(map(Peer, ("count.0", "count.1", "count.2")))
SOURCES = tuple(map(Peer, ("clicks.0", "clicks.1")))
OUT = Peer("out")


def test_every_stage_needs_those_it_receives_from_and_sends_to() -> None:
    roles = Rig().roles
    assert (roles.executors, roles.sources, roles.sinks) == (EXECUTORS, SOURCES, (OUT,))
    assert {who: set(needed) for who, needed in roles.groups} == {
        SOURCES: set(EXECUTORS),
        EXECUTORS: {*SOURCES, OUT},
        (OUT,): set(EXECUTORS),
    }
    assert len(roles.host_names) == 2


def test_an_introduction_is_one_message_for_all_that_it_is_for() -> None:
    rig = Rig()
    rig.connections.introduce(Introduction(EXECUTORS, (*SOURCES, OUT)))
    assert rig.mail.books() == [(EXECUTORS, {*SOURCES, OUT})]


def test_nodes_are_introduced_as_nodes_unless_they_are_gone_again() -> None:
    rig = Rig()
    rig.connections.introduce(do.IntroduceNodes(EXECUTORS[:1], (NodeId("n0"), NodeId("gone"))))
    assert rig.mail.books() == [(EXECUTORS[:1], {"node n0"})]


def test_nothing_is_sent_to_a_participant_that_is_not_up() -> None:
    rig = Rig()
    rig.connections.send(OUT, say.Finish())
    assert rig.mail.sent.pop() == ((OUT,), say.Finish())
    rig.connections.drop(do.DropLife(OUT, 0, None))
    rig.connections.send(OUT, say.Finish())
    assert not any(isinstance(message, say.Finish) for _, message in rig.mail.sent)


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
