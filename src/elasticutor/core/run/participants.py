"""Who takes part in a run, which life of theirs it is, and who is up.

Participants are source tasks, executors' main processes and sinks. One that was lost has a
successor of the same name: another *life*, at another address. Whatever comes from an earlier life
is late.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from elasticutor.core.protocol.ids import NodeId, Peer
from elasticutor.core.run import run_instructions as do
from elasticutor.core.run.introductions import Introductions
from elasticutor.core.scheduler.placement import Placement


@dataclass(frozen=True, slots=True)
class Roles:
    """Who takes part in a run."""

    executors: tuple[Peer, ...]
    sources: tuple[Peer, ...]
    """Tasks of sources, one by one."""
    sinks: tuple[Peer, ...]
    groups: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = ()
    """Who needs whose address, as of `Introductions`."""
    host_names: tuple[str, ...] = ("host 0",)
    """The hosts of sources and sinks, which these take in turn."""


class Participants:
    """The participants of one run."""

    def __init__(
        self,
        emit: do.EmitInstruction,
        roles: Roles,
        placements: Mapping[Peer, Placement],
        nodes: Iterable[NodeId],
    ) -> None:
        self._emit = emit
        self.executors, self.sources, self.sinks = roles.executors, roles.sources, roles.sinks
        self.everybody = (*self.executors, *self.sources, *self.sinks)
        self.placements = dict(placements)
        self.cores = {who: dict(placed.cores) for who, placed in placements.items()}
        """The cores that every executor should have, by node."""
        self.lives: Counter[Peer] = Counter()
        """Of each participant, the life that counts."""
        self.up: set[Peer] = set()
        self.newcomers: set[Peer] = set()
        """Those that are up and know of no attempt yet."""
        self.hosts: set[int] = set()
        """The hosts of sources and sinks that are up."""
        self.host_names = roles.host_names
        self._are_executors = frozenset(self.executors)
        self._ends = (*self.sources, *self.sinks)
        self._end_numbers = {who: number for number, who in enumerate(self._ends)}
        self._begun: dict[Peer, int] = {}  # the last life that a host was to start
        self._introductions = Introductions(roles.groups)
        self._nodes: dict[NodeId, int] = {}
        """When each node came, counted in arrivals."""
        self._arrivals = 0
        self._nodes_known: dict[Peer, int] = {}
        """By executor, the arrivals that it was started with or has learnt of."""
        for node in nodes:
            self._arrive(node)

    @property
    def complete(self) -> bool:
        """Whether all are up."""
        return len(self.up) == len(self.everybody)

    @property
    def nodes(self) -> frozenset[NodeId]:
        """The nodes that are up."""
        return frozenset(self._nodes)

    def is_executor(self, who: str) -> bool:
        """Whether it is an executor, not a source task or a sink."""
        return who in self._are_executors

    def uses(self, node: NodeId) -> bool:
        """Whether an executor is on a node, or should have cores there."""
        homes = {placed.node for placed in self.placements.values()}
        return node in homes or any(cores.get(node) for cores in self.cores.values())

    def missing(self) -> str:
        """Who has yet to come up, in words; empty if all are there."""
        absent = [who for who in self.everybody if who not in self.up]
        if not absent:
            return ""
        words = f"no word from {', '.join(absent)}"
        hosts = len(self.host_names) - len(self.hosts)
        if hosts:
            words += (
                f"; the Spark job for sources and sinks has not started {hosts} of its "
                f"{len(self.host_names)} tasks: are there free slots?"
            )
        return words

    # Lives

    def start_main(self, who: Peer) -> None:
        """Have an executor's main process started, on the node that it is placed on."""
        self._nodes_known[who] = self._arrivals
        self._emit(do.StartMain(who, self.lives[who], self.placements[who]))

    def start_end(self, who: Peer) -> None:
        """Have a source task or a sink started, as soon as its host is up; each life once."""
        number = self._host_of(who)
        if number in self.hosts and self._begun.get(who) != self.lives[who]:
            self._start_on(number, [who])

    def registered(self, who: Peer, life: int, address: Any) -> bool:
        """Take in that a participant is up; False if that is an earlier life of it."""
        if life != self.lives[who]:
            return False
        self.up.add(who)
        self.newcomers.add(who)
        self._introductions.came(who)
        self._emit(do.Connect(who, address))
        if self.is_executor(who):
            self._introduce_nodes([who])  # some may have come since it was started
        return True

    def lose(self, who: Peer) -> None:
        """Give up a participant: the next one of its name is another life."""
        lost = self.lives[who]
        self.lives[who] += 1
        self.up.discard(who)
        self.newcomers.discard(who)
        self._introductions.left(who)
        host = None if self.is_executor(who) else self._host_of(who)
        self._emit(do.DropLife(who, lost, host if host in self.hosts else None))

    # Hosts of sources and sinks

    def host_up(self, number: int) -> None:
        """Give a host of sources and sinks its share of them."""
        self.hosts.add(number)
        mine = [who for who in self.ends_on(number) if self._begun.get(who) != self.lives[who]]
        self._start_on(number, mine)

    def host_lost(self, number: int) -> None:
        """Take in that a host of sources and sinks is gone."""
        self.hosts.discard(number)

    def ends_on(self, number: int) -> list[Peer]:
        """The sources and sinks that a host has."""
        return [who for who in self._ends if self._host_of(who) == number]

    def _start_on(self, number: int, whom: Sequence[Peer]) -> None:
        for who in whom:
            self._begun[who] = self.lives[who]
        self._emit(do.StartOnHost(number, tuple((who, self.lives[who]) for who in whom)))

    def _host_of(self, who: Peer) -> int:
        return self._end_numbers[who] % len(self.host_names)

    # Nodes

    def node_joined(self, node: NodeId) -> None:
        """Take in that a node is up, and introduce it to the executors."""
        self._arrive(node)
        self._introduce_nodes(self.executors)

    def node_left(self, node: NodeId) -> None:
        """Take in that a node is gone."""
        self._nodes.pop(node, None)

    def _arrive(self, node: NodeId) -> None:
        self._arrivals += 1
        self._nodes[node] = self._arrivals

    # Introductions

    def introduce(self) -> None:
        """Let all that are up know the addresses that they need, as far as they do not."""
        self._introduce_nodes(self.executors)
        for due in self._introductions.due():
            self._emit(due)

    def _introduce_nodes(self, executors: Iterable[Peer]) -> None:
        ignorant: dict[tuple[NodeId, ...], list[Peer]] = {}
        for who in executors:
            if who in self.up:
                known = self._nodes_known.get(who, 0)
                self._nodes_known[who] = self._arrivals
                if new := tuple(node for node, came in self._nodes.items() if came > known):
                    ignorant.setdefault(new, []).append(who)
        for nodes, whom in ignorant.items():
            self._emit(do.IntroduceNodes(tuple(whom), nodes))
