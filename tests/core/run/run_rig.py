"""The life of a run and the smallest world that answers it: events by hand, time by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from elasticutor.core.paradigm import Paradigm
from elasticutor.core.protocol import coordinator as co
from elasticutor.core.protocol.ids import Attempt, Epoch, NodeId, Peer, TaskId
from elasticutor.core.run import run_events as ev
from elasticutor.core.run import run_instructions as do
from elasticutor.core.run.epoch_cycle import EpochBase
from elasticutor.core.run.lifecycle import RunLifecycle
from elasticutor.core.run.participants import Roles
from elasticutor.core.run.phases import RunPhase, Terms
from elasticutor.core.scheduler.placement import Placement
from elasticutor.lab.check.run_invariants import RunInvariants

A0, A1, S0, S1, OUT = map(Peer, ("a.0", "a.1", "s.0", "s.1", "out"))
N0, N1, N2 = map(NodeId, ("n0", "n1", "n2"))
ROLES = Roles(
    (A0, A1),
    (S0, S1),
    (OUT,),
    (((S0, S1), (A0, A1)), ((A0, A1), (S0, S1, OUT)), ((OUT,), (A0, A1))),
    ("host 0", "host 1"),
)
EVERYBODY = (A0, A1, S0, S1, OUT)
T = TypeVar("T")


class Rig:
    """A run with two executors, two sources and a sink, on two nodes and two hosts.

    Args:
        durable: Whether there is a checkpoint.
        keep: Whether its processes stay when it is drained.
        restarts: How often the same thing may fail without progress.
    """

    def __init__(
        self, *, durable: bool = True, keep: bool = False, restarts: int = 5, query: bool = False
    ) -> None:
        self.terms = Terms(Paradigm.ELASTIC, None, not keep, 30.0, 2.0, 10.0, restarts)
        self.nodes = {N0: 2, N1: 2}
        self.shards_move = False
        placements = {A0: Placement(N0, {N0: 1}), A1: Placement(N1, {N1: 1})}
        self.life = RunLifecycle(
            ROLES,
            placements,
            self.nodes,
            self.terms,
            None if query else EpochBase(durable),
            free_cores=self._free_cores,
            shards_move=lambda: self.shards_move,
        )
        self.violations: list[str] = []
        self.invariants = RunInvariants(
            ROLES, self.terms, self.violations.append, durable=durable and not query
        )
        self.now = 0.0
        self.orders: list[do.RunInstruction] = []
        """What the last event led to."""
        self.lives: dict[Peer, int] = {}
        """The life of each participant that was started last."""
        self.tell(ev.StartAsked())

    def _free_cores(self) -> dict[NodeId, int]:
        free = dict(self.nodes)
        for cores in self.life.participants.cores.values():
            for node, count in cores.items():
                if node in free:
                    free[node] -= count
        return free

    def phase(self) -> RunPhase:
        return self.life.phase

    @property
    def attempt(self) -> Attempt:
        assert self.life.epochs is not None
        return self.life.epochs.attempt

    def tell(self, event: ev.RunEvent, after_s: float = 0.0) -> list[do.RunInstruction]:
        self.now += after_s
        self.orders = self.life.handle(event, self.now)
        self.invariants.handled(event, self.orders)
        assert not self.violations, self.violations
        for order in self.orders:
            if isinstance(order, do.StartMain):
                self.lives[order.who] = order.life
            elif isinstance(order, do.StartOnHost):
                self.lives.update(order.ends)
        return self.orders

    def of(self, kind: type[T]) -> list[T]:
        """Those orders of the last event that are of a kind."""
        return [order for order in self.orders if isinstance(order, kind)]

    def started(self) -> list[tuple[Peer, int]]:
        """Who was started by the last event, and which life."""
        mains = [(order.who, order.life) for order in self.of(do.StartMain)]
        return mains + [end for order in self.of(do.StartOnHost) for end in order.ends]

    def begun(self) -> list[tuple[Peer, int]]:
        """Who was told to begin an attempt by the last event, and which."""
        return [(order.who, order.attempt) for order in self.of(co.BeginAttempt)]

    def journal(self, kind: str) -> list[dict[str, Any]]:
        return [dict(o.fields) for o in self.of(do.WriteJournal) if o.kind == kind]

    # What participants do

    def up(self, *whom: Peer) -> None:
        for who in whom:
            self.tell(ev.ParticipantUp(who, self.lives[who], f"{who} at {self.lives[who]}"))

    def hosts_up(self) -> None:
        self.tell(ev.HostUp(0))
        self.tell(ev.HostUp(1))

    def ready(self) -> None:
        for who in (A0, A1, OUT):
            self.tell(co.ParticipantReady(who, self.attempt))

    def running(self) -> Rig:
        """Everything up, and tuples flow."""
        self.hosts_up()
        self.up(*EVERYBODY)
        self.ready()
        assert self.phase() is RunPhase.RUNNING
        return self

    def prepare(self, epoch: int) -> None:
        for who in EVERYBODY:
            self.tell(co.ParticipantPrepared(who, self.attempt, Epoch(epoch)))

    def commit(self, epoch: int) -> None:
        """End an epoch, and have it stored."""
        self.tell(ev.Tick(), after_s=self.terms.epoch_interval_s)
        self.prepare(epoch)
        self.tell(ev.EpochStored(Epoch(epoch), self.attempt, 100))

    def lose(self, who: Peer, task: int | None = None, after_s: float = 0.0) -> None:
        number = None if task is None else TaskId(task)
        self.tell(co.ProcessLost(who, self.lives[who], number, "was lost: killed"), after_s)

    def leave(self, node: NodeId, after_s: float = 0.0) -> None:
        self.nodes.pop(node)
        self.tell(ev.NodeLeft(node, f"slot {node}", "killed"), after_s)

    def join(self, node: NodeId, cores: int = 2) -> None:
        self.nodes[node] = cores
        self.tell(ev.NodeJoined(node))

    def exhaust(self, *whom: Peer) -> None:
        for who in whom:
            self.tell(co.SourceExhausted(who, self.attempt))

    def rest(self, *whom: Peer) -> None:
        for who in whom:
            self.tell(co.ParticipantRested(who))

    def cleared(self, names: Sequence[str] = ()) -> None:
        for name in names or ("n0", "n1", "host 0", "host 1"):
            self.tell(co.PlaceCleared(name))
