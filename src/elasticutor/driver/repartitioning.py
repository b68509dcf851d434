"""Leads an operator's shards from executor to executor, in the resource-centric paradigm.

The protocol is `core.protocol.repartition`; this carries its messages, between the driver, the
sources, the executors and the nodes that keep the operator's shared stores.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from elasticutor.core.protocol import events as ev
from elasticutor.core.protocol import instructions as do
from elasticutor.core.protocol import repartition as rc
from elasticutor.core.protocol.ids import NodeId, Peer, ShardId
from elasticutor.core.run.run_events import ShardsSettled
from elasticutor.core.run.timeouts import Timeouts
from elasticutor.transport import messages as say

if TYPE_CHECKING:
    from elasticutor.driver.supervisor import Supervisor

ROUND_S = 30.0
"""How long a round may take before executors are asked why, and the run is given up."""

ANSWERS = (
    rc.UpstreamPaused,
    rc.ExecutorDrained,
    rc.ShardsReleased,
    rc.TableUpdated,
    ev.ShardOpened,
    ev.CopyArrived,
    ev.ShardDropped,
)


class Lead:
    """Leads one operator's shards."""

    def __init__(
        self,
        run: Supervisor,
        operator: str,
        shards: int,
        homes: Sequence[tuple[Peer, NodeId]],
        upstreams: Sequence[Peer],
        *,
        send_node: Callable[[NodeId, Any], None],
        send: Callable[[str, Any], None],
    ) -> None:
        self._run = run
        self.operator = operator
        self._core = rc.Repartitioner(shards, homes, upstreams, operator=operator)
        self._loads: dict[Peer, Any] = {}
        self._lateness = Timeouts(ROUND_S)
        self._send_node = send_node
        self._send = send

    @property
    def busy(self) -> bool:
        """Whether a round is under way."""
        return self._core.step is not rc.Step.IDLE

    def loads(self, message: say.ShardLoadsMeasured) -> None:
        """Note how much each shard of an executor has to do."""
        self._loads[message.who] = message.loads

    def tick(self, *, may_begin: bool) -> None:
        """Start a round if one is needed and may be; ask why if one takes too long."""
        now = time.monotonic()
        core = self._core
        late = self._lateness.look(now, core.round, lambda: core.missing, self._waiting_for)
        if late is not None:
            self._run.decide(late)
        if may_begin and not self.busy and len(self._loads) == len(self._core.executors):
            loads = np.sum(list(self._loads.values()), axis=0)
            self._enact(self._core.balance(loads, now))

    def move(self, owners: Mapping[ShardId, int]) -> None:
        """Give shards to executors, by number."""
        self._enact(self._core.move(owners, time.monotonic()))

    def _waiting_for(self) -> list[str]:
        return [f"shards of {self.operator}, {words}" for words in self._core.waiting_for()]

    def take(self, what: Any) -> None:
        """Take an answer of a source, an executor or a node."""
        self._enact(self._core.handle(what, time.monotonic()))

    def _enact(self, orders: Sequence[rc.Order]) -> None:
        for order in orders:
            match order:
                case rc.PauseUpstream(upstream=who) | rc.UpdateTable(upstream=who):
                    self._send(who, order)
                case rc.DrainExecutor(executor=who) | rc.ReleaseShards(executor=who):
                    self._send(who, order)
                case do.OpenShard() | do.CopyShard() | do.DropShard():
                    self._to_store(order.node, order)
                case rc.ReportRound():
                    self._journal(order)
                    if not self._run.leads.busy:
                        self._run.decide(ShardsSettled())

    def _to_store(self, node: NodeId, order: Any) -> None:
        self._send_node(node, say.ForStore(self._run.run, Peer(self.operator), order))

    def _journal(self, done: rc.ReportRound) -> None:
        self._run.journal.write(
            "shards repartitioned",
            operator=self.operator,
            shards=done.shards,
            remote=done.remote,
            cause="balance",
            sync_ms=round(done.pause_s * 1e3, 4),
            migration_ms=round(done.migration_s * 1e3, 4),
            update_ms=round(done.update_s * 1e3, 4),
            bytes=done.size,
        )


class Leads:
    """The leads of all operators of a run; none, unless it is in the resource-centric paradigm."""

    def __init__(
        self,
        run: Supervisor,
        send: Callable[[str, Any], None],
        send_node: Callable[[NodeId, Any], None],
    ) -> None:
        operators = run.plan.operators if run.paradigm.holds_tables_upstream else ()
        self._leads = {
            operator.name: Lead(
                run,
                operator.name,
                operator.shards,
                [(Peer(who), run.home(Peer(who))) for who in operator.processes],
                [Peer(who) for who in run.plan.upstreams_of(operator.processes[0])],
                send_node=send_node,
                send=send,
            )
            for operator in operators
        }

    def __getitem__(self, operator: str) -> Lead:
        return self._leads[operator]

    @property
    def busy(self) -> bool:
        """Whether a round of any operator is under way."""
        return any(lead.busy for lead in self._leads.values())

    def tick(self, *, may_begin: bool) -> None:
        """Let each lead look at the clock."""
        for lead in self._leads.values():
            lead.tick(may_begin=may_begin)

    def loads(self, message: say.ShardLoadsMeasured) -> None:
        """Note how much each shard of an executor has to do."""
        self._leads[message.who.rpartition(".")[0]].loads(message)

    def take(self, who: Peer, what: Any) -> None:
        """Hand an answer of a source, an executor or a node to the lead of its operator."""
        named = getattr(what, "operator", "") or who
        lead = self._leads.get(named) or self._leads[who.rpartition(".")[0]]
        lead.take(what)
