"""Who takes part in a run, which life of theirs it is, and where they are.

Participants are source tasks, executors' main processes and sinks. One that was lost has a
successor of the same name: another *life*, at another address. Whatever comes from an earlier life
is late.
"""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from elasticutor.core.protocol.ids import NodeId, Peer
from elasticutor.core.run.introductions import Introductions
from elasticutor.core.scheduler.placement import Placement
from elasticutor.driver.blueprint import Blueprint
from elasticutor.process.hosting.hosts import ends_name
from elasticutor.topology import Plan, StagePlan
from elasticutor.transport import messages as say
from elasticutor.transport.channels import Endpoint

if TYPE_CHECKING:
    from elasticutor.driver.loop import DriverLoop


class Participants:
    """The participants of one run. Lives in the hub's thread."""

    def __init__(
        self,
        hub: DriverLoop,
        run: str,
        plan: Plan,
        blueprint: Blueprint,
        placements: dict[Peer, Placement],
        ends_hosts: int,
    ) -> None:
        self._hub = hub
        self._run = run
        self._blueprint = blueprint
        self.placements = placements
        self.ends_hosts = ends_hosts
        self.executors = _processes(plan.operators)
        self.sources = _processes(plan.sources)
        self.sinks = _processes(plan.sinks)
        self.everybody = (*self.executors, *self.sources, *self.sinks)
        self._are_executors = frozenset(self.executors)
        self._absent = set(self.everybody)
        self._introductions = Introductions(_groups(plan))
        self.book: dict[str, Endpoint] = {}
        """Where those are that are up."""
        self.pids: dict[str, int] = {}
        self.lives: Counter[str] = Counter()
        self.hosts: dict[int, say.EndsHostUp] = {}
        """The hosts of sources and sinks that are up."""
        self._begun: dict[Peer, int] = {}
        """The last life of a source task or sink that its host was told to start."""
        self._ends = {Peer(who): (kind, make) for kind, who, make in blueprint.ends()}
        self._end_numbers = {who: number for number, who in enumerate(self._ends)}
        self._nodes_known: dict[Peer, dict[str, Endpoint]] = {}
        """By executor, the nodes that it was started with or told of."""

    @property
    def complete(self) -> bool:
        """Whether everybody is up."""
        return not self._absent

    def is_executor(self, who: str) -> bool:
        """Whether it is an executor, not a source task or a sink."""
        return who in self._are_executors

    def send(self, who: str, message: Any) -> None:
        """Send to a participant, or to a host of sources and sinks."""
        self._hub.mail.send(self._name(who), message)

    def send_all(self, message: Any) -> None:
        """Send to everybody who is up."""
        self._send_each(self.book, message)

    def _send_each(self, whom: Iterable[str], message: Any) -> None:
        self._hub.mail.send_all(map(self._name, whom), message)

    def introduce(self) -> None:
        """Let everybody who is up know where those are whom it needs, as far as it does not."""
        self.introduce_nodes()
        for due in self._introductions.due():
            book = {str(who): self.book[who] for who in due.whom}
            self._send_each(due.receivers, say.Peers(book))

    def introduce_nodes(self) -> None:
        """Let every executor that is up know of the nodes that it does not."""
        nodes = self._nodes()
        ignorant: dict[tuple[str, ...], list[Peer]] = {}
        for who in self.executors:
            if who in self.book:
                new = self._new_nodes(who, nodes)
                if new:
                    ignorant.setdefault(tuple(new), []).append(who)
        for names, whom in ignorant.items():
            self._send_each(whom, say.Peers({name: nodes[name] for name in names}))

    def _new_nodes(self, who: Peer, nodes: dict[str, Endpoint]) -> list[str]:
        """The nodes that an executor does not know; from now on it does."""
        known = self._nodes_known.get(who, {})
        if known == nodes:
            return []
        self._nodes_known[who] = nodes
        return [name for name, endpoint in nodes.items() if known.get(name) != endpoint]

    def _nodes(self) -> dict[str, Endpoint]:
        return {f"node {node}": seen.endpoint for node, seen in self._hub.nodes.items()}

    def start_executor(self, who: Peer) -> None:
        """Have an executor's main process started, on the node that it is placed on."""
        placed = self.placements[who]
        self._nodes_known[who] = self._nodes()
        order = self._blueprint.executor(who, placed, self.lives[who])
        self._hub.send_node(placed.node, order)

    def lose(self, who: Peer) -> None:
        """A participant is gone: the next one of its name is another life."""
        self.lives[who] += 1
        self.book.pop(who, None)
        self._absent.add(who)
        self._introductions.left(who)
        self._hub.mail.forget(self._name(who))
        if self.is_executor(who):
            order = say.DropExecutor(self._run, who, self.lives[who])
            self._hub.send_nodes(self._hub.nodes, order)
        elif self._host_of(who) in self.hosts:
            self.send(ends_name(self._host_of(who)), say.KillEnd(who, self.lives[who] - 1))

    def start_end(self, who: Peer) -> None:
        """Have a source task or a sink started, as soon as its host is up; each life once."""
        host = self.hosts.get(self._host_of(who))
        if host is not None and self._begun.get(who) != self.lives[who]:
            self.send(ends_name(host.number), say.StartEnds((self._end(who, host),)))

    def host_up(self, host: say.EndsHostUp) -> None:
        """A host of sources and sinks is up: give it its share of them."""
        self.hosts[host.number] = host
        self._hub.mail.know(self._name(ends_name(host.number)), host.endpoint)
        mine = [who for who in self.ends_on(host.number) if self._begun.get(who) != self.lives[who]]
        ends = tuple(self._end(who, host) for who in mine)
        self.send(ends_name(host.number), say.StartEnds(ends))

    def ends_on(self, number: int) -> list[Peer]:
        """The sources and sinks that a host has."""
        return [who for who in self._ends if self._host_of(who) == number]

    def registered(self, message: say.Registered) -> bool:
        """A participant is up; False if that is an earlier life of it."""
        if message.life != self.lives[message.who]:
            return False
        self.book[message.who] = message.endpoint
        self.pids[message.who] = message.pid
        self._absent.discard(message.who)
        self._introductions.came(message.who)
        self._hub.mail.know(self._name(message.who), message.endpoint)
        if self.is_executor(message.who):
            nodes = self._nodes()
            new = self._new_nodes(message.who, nodes)  # some may have come since it was started
            if new:
                self.send(message.who, say.Peers({name: nodes[name] for name in new}))
        return True

    def beat(self) -> None:
        """Let the hosts know that the driver is alive."""
        for number in self.hosts:
            self.send(ends_name(number), say.Beat())

    def near(self, number: int) -> str:
        """Beside which nodes a host is, in words."""
        nodes = [f"node {node!r}" for node in self._beside(self.hosts[number])]
        return f", beside {' and '.join(nodes)}," if nodes else ""

    def missing(self) -> str:
        """Who has yet to come up, in words; empty if nobody."""
        absent = [who for who in self.everybody if who not in self.book]
        if not absent:
            return ""
        words = f"no word from {', '.join(absent)}"
        hosts = set(range(self.ends_hosts)) - self.hosts.keys()
        if hosts:
            words += (
                f"; the Spark job for sources and sinks has not started {len(hosts)} of its "
                f"{self.ends_hosts} tasks: are there free slots?"
            )
        return words

    def close(self) -> None:
        """Send nothing to anybody any more."""
        for who in self.book:
            self._hub.mail.forget(self._name(who))
        for number in self.hosts:
            self._hub.mail.forget(self._name(ends_name(number)))

    def _name(self, who: str) -> str:
        return f"{self._run} {who}"

    def _host_of(self, who: Peer) -> int:
        return self._end_numbers[who] % self.ends_hosts

    def _beside(self, host: say.EndsHostUp) -> list[NodeId]:
        return [n for n, seen in sorted(self._hub.nodes.items()) if seen.home == host.home]

    def _end(self, who: Peer, host: say.EndsHostUp) -> say.StartEnd:
        kind, make = self._ends[who]
        self._begun[who] = self.lives[who]
        life, near = self.lives[who], self._beside(host)
        if near:
            site = self._blueprint.site(near[self._end_numbers[who] % len(near)], life)
        else:
            site = self._blueprint.site_elsewhere(host, life)
        payload = pickle.dumps(make(site), pickle.HIGHEST_PROTOCOL)
        return say.StartEnd(kind, who, life, payload)


def _groups(plan: Plan) -> Iterator[tuple[tuple[str, ...], tuple[str, ...]]]:
    """The processes of each stage, and those that they receive from and send to."""
    for stage in plan.stages:
        processes = stage.processes
        if processes:
            first = processes[0]
            yield processes, (*plan.upstreams_of(first), *plan.downstreams_of(first))


def _processes(stages: Sequence[StagePlan]) -> tuple[Peer, ...]:
    return tuple(Peer(process) for stage in stages for process in stage.processes)
