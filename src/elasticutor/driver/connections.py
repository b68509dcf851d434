"""Where the processes of one run are, and what the driver sends to them."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from elasticutor.core.protocol.ids import NodeId, Peer
from elasticutor.core.run import run_instructions as do
from elasticutor.core.run.introductions import Introduction
from elasticutor.core.run.participants import Roles
from elasticutor.driver.blueprint import Blueprint
from elasticutor.plan import Plan, StagePlan
from elasticutor.process.hosting.hosts import ends_name
from elasticutor.transport import messages as say
from elasticutor.transport.channels import Endpoint

if TYPE_CHECKING:
    from elasticutor.driver.loop import DriverLoop


def roles_of(plan: Plan, hosts: int) -> Roles:
    """Who takes part in a run."""
    groups = []
    for stage in plan.stages:
        processes = stage.processes
        if processes:
            first = processes[0]
            needed = (*plan.upstreams_of(first), *plan.downstreams_of(first))
            groups.append((tuple(processes), needed))
    return Roles(
        _processes(plan.operators),
        _processes(plan.sources),
        _processes(plan.sinks),
        tuple(groups),
        tuple(map(ends_name, range(hosts))),
    )


class Connections:
    """The addresses of one run's processes. Lives in the loop's thread.

    Messages to a participant that is not up are dropped: its successor learns what it needs later.
    """

    def __init__(self, hub: DriverLoop, run: str, blueprint: Blueprint) -> None:
        self._hub = hub
        self._run = run
        self._blueprint = blueprint
        self._ends = {
            Peer(who): (number, kind, make)
            for number, (kind, who, make) in enumerate(blueprint.ends())
        }
        self.book: dict[str, Endpoint] = {}
        """Where participants are that are up."""
        self.pids: dict[str, int] = {}
        self.hosts: dict[int, say.EndsHostUp] = {}
        """The newest host of each number that sources and sinks have had."""

    # Participants

    def send(self, who: str, message: Any) -> None:
        """Send to a participant."""
        if who in self.book:
            self._hub.mail.send(self._name(who), message)

    def send_all(self, message: Any) -> None:
        """Send to all participants that are up."""
        self._send_each(self.book, message)

    def _send_each(self, whom: Iterable[str], message: Any) -> None:
        self._hub.mail.send_all(map(self._name, whom), message)

    def connect(self, who: Peer, up: say.Registered) -> None:
        """Take in where a participant is."""
        self.book[who] = up.endpoint
        self.pids[who] = up.pid
        self._hub.mail.know(self._name(who), up.endpoint)

    def introduce(self, order: Introduction | do.IntroduceNodes) -> None:
        """Tell some participants where others are, or nodes."""
        if isinstance(order, Introduction):
            book = {str(who): self.book[who] for who in order.whom}
        else:
            nodes = self._hub.nodes
            book = {f"node {node}": nodes[node].endpoint for node in order.nodes if node in nodes}
        self._send_each(order.receivers, say.Peers(book))

    # Processes

    def start_main(self, order: do.StartMain) -> None:
        """Have a main process started."""
        message = self._blueprint.executor(order.who, order.placed, order.life)
        self._hub.send_node(order.placed.node, message)

    def start_on_host(self, order: do.StartOnHost) -> None:
        """Have sources and sinks started."""
        host = self.hosts[order.number]
        ends = tuple(self._end(who, life, host) for who, life in order.ends)
        self.send_host(order.number, say.StartEnds(ends))

    def drop(self, order: do.DropLife) -> None:
        """End what is left of a participant, and forget where it was."""
        who, life = order.who, order.life
        self.book.pop(who, None)
        self._hub.mail.forget(self._name(who))
        if who not in self._ends:
            message = say.DropExecutor(self._run, who, life + 1)
            self._hub.send_nodes(self._hub.nodes, message)
        elif order.host is not None:
            self.send_host(order.host, say.KillEnd(who, life))

    def end(self, order: do.EndProcesses) -> None:
        """Let everything end."""
        self.send_all(say.Finish())
        self._hub.send_nodes(self._hub.nodes, say.EndRun(self._run, order.node_grace_s))
        for number in order.hosts:
            self.send_host(number, say.EndRun(self._run, order.host_grace_s))

    def close(self) -> None:
        """Forget all addresses."""
        for name in (*self.book, *map(ends_name, self.hosts)):
            self._hub.mail.forget(self._name(name))

    # Hosts of sources and sinks

    def know_host(self, host: say.EndsHostUp) -> None:
        """Take in where a host is."""
        self.hosts[host.number] = host
        self._hub.mail.know(self._name(ends_name(host.number)), host.endpoint)

    def send_host(self, number: int, message: Any) -> None:
        """Send to a host of sources and sinks."""
        self._hub.mail.send(self._name(ends_name(number)), message)

    def near(self, number: int) -> str:
        """Beside which nodes a host is, in words."""
        host = self.hosts.get(number)
        nodes = [f"node {node!r}" for node in self._beside(host)] if host else []
        return f", beside {' and '.join(nodes)}," if nodes else ""

    def _beside(self, host: say.EndsHostUp) -> list[NodeId]:
        return [n for n, seen in sorted(self._hub.nodes.items()) if seen.home == host.home]

    def _end(self, who: Peer, life: int, host: say.EndsHostUp) -> say.StartEnd:
        number, kind, make = self._ends[who]
        near = self._beside(host)
        if near:
            site = self._blueprint.site(near[number % len(near)], life)
        else:
            site = self._blueprint.site_elsewhere(host, life)
        payload = pickle.dumps(make(site), pickle.HIGHEST_PROTOCOL)
        return say.StartEnd(kind, who, life, payload)

    def _name(self, who: str) -> str:
        return f"{self._run} {who}"


def _processes(stages: Sequence[StagePlan]) -> tuple[Peer, ...]:
    return tuple(Peer(process) for stage in stages for process in stage.processes)
