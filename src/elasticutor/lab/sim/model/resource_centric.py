"""The resource-centric rival on the simulated cluster: one core each, upstreams with tables.

The protocol is `core.protocol.repartition`. Executors on a node share a store, so state crosses the
links only when a shard changes its node. The lead is a process like any other: it takes one message
at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from elasticutor.core.executor.batch import Part, ShardArray
from elasticutor.core.measure.load import ShardLoads
from elasticutor.core.protocol import events as ev
from elasticutor.core.protocol import instructions as do
from elasticutor.core.protocol import repartition as rc
from elasticutor.core.protocol.giver import Drain, Release
from elasticutor.core.protocol.ids import Peer
from elasticutor.lab.sim.model.elastic import ElasticHost
from elasticutor.lab.sim.model.machines import HEADER_BYTES
from elasticutor.lab.sim.model.processes import SimulatedWorld, StoreOwner
from elasticutor.lab.sim.model.upstreams import Routes, Upstream
from elasticutor.lab.sim.recorder import Moved
from elasticutor.lab.sim.workload import FloatArray, IntArray

_LOAD_BYTES = 12
"""Of a shard that has any load, in what an executor tells the lead: its number, and the load."""

_ENTRY_BYTES = 8
"""Of a shard in the change of a table: its number, and that of its executor."""

_LEAD_NODE = 0


class TableRoutes(Routes):
    """An upstream's table of all shards, which changes while it pauses."""

    def __init__(self, route: rc.PausableRoute, shards: ShardArray) -> None:
        super().__init__(np.zeros(0, dtype=np.int32), shards)
        self.route = route

    def owners(self, keys: IntArray) -> IntArray:
        """The executor of each of these keys; small numbers, so that sorting them is quick."""
        return self.route.owners(self.shard_of.take(keys)).astype(np.uint16)

    def shards(self, keys: IntArray) -> ShardArray:
        """All the same: an executor of one core has nothing to divide."""
        return np.zeros(len(keys), dtype=np.int32)


class RcUpstream(Upstream):
    """A source that holds the table, and pauses while it changes."""

    lead: SimulatedLead

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        assert isinstance(self._routes, TableRoutes)
        self._route = self._routes.route

    @property
    def _stopped(self) -> bool:
        return self._route.paused or super()._stopped

    def _was_cut(self, executor: int, rows: int) -> None:
        super()._was_cut(executor, rows)
        self._route.sent(executor, rows)

    def take(self, order: rc.PauseUpstream | rc.UpdateTable) -> None:
        """An order of the lead."""
        if isinstance(order, rc.PauseUpstream):
            # What is cut already counts as sent: it goes out as its executors grant credit.
            self._answer(self._route.pause(order))
        else:
            self._answer(self._route.update(order))
        self._go_on()

    def _answer(self, answer: rc.Event) -> None:
        world, size = self.world, HEADER_BYTES
        if isinstance(answer, rc.UpstreamPaused):
            size += _ENTRY_BYTES * len(answer.sent)
        world.links.send(world.clock.now, self.node, self.lead.node, size, self.lead.take, answer)


@dataclass(frozen=True, slots=True)
class ShardsMeasured:
    """What an executor had to do with every shard of the operator, since it last said so."""

    executor: Peer
    arrived: IntArray
    done: IntArray
    seconds: FloatArray


class RcHost(ElasticHost):
    """The main process of an executor of one core; it counts work by the operator's shards.

    To its core it has one shard: nothing moves within an executor of one core.
    """

    lead: SimulatedLead

    def __init__(self, *args: Any, shard_of_key: ShardArray, shards: int) -> None:
        super().__init__(*args)
        self._shard_of_key = shard_of_key
        self._shards = shards
        self._drain = Drain(self.name)  # of tuples alone: there are no outputs here
        self._release = Release(self.name)
        self._keys_in: list[IntArray] = []  # keys of tuples, since they were last counted
        self._keys_done: list[IntArray] = []
        self._useful_s = 0.0

    def handle(self, event: Any) -> None:
        """Let the core handle an event, or take an order of the lead."""
        kind = type(event)
        if kind is ev.TuplesArrived:
            self._keys_in.append(event.batch.keys)
        elif kind is ev.ChunkProcessed:
            self._useful_s += event.useful_s
        elif kind is rc.DrainExecutor:
            self._drain.begin(event)
            self._go_on_draining()
            return
        elif kind is rc.ReleaseShards:
            self._begin_release(event)
            return
        elif kind is ev.LabelReached:
            self._report(self._release.reached(event.move))
            return
        super().handle(event)

    def tell_loads(self) -> None:
        """Say what was done for each shard, and what has come for it."""
        arrived, done = self._counted(self._keys_in), self._counted(self._keys_done)
        seconds: FloatArray = done * np.float64(self._useful_s / max(1, int(done.sum())))
        self._keys_in, self._keys_done, self._useful_s = [], [], 0.0
        size = HEADER_BYTES + _LOAD_BYTES * int(np.count_nonzero(arrived + done))
        self._free_at = max(self._free_at, self._clock.now)
        self.send(self.lead, ShardsMeasured(self.name, arrived, done, seconds), size)

    def _counted(self, keys: list[IntArray]) -> IntArray:
        if not keys:
            return np.zeros(self._shards, dtype=np.intp)
        shards = self._shard_of_key.take(np.concatenate(keys))
        return np.bincount(shards, minlength=self._shards)

    def _note_result(self, parts: list[Part]) -> None:
        super()._note_result(parts)
        for part in parts:
            self._keys_done.append(part.batch.content.keys.take(part.rows))
        self._drain.processed(sum(part.count for part in parts))
        self._go_on_draining()

    def _go_on_draining(self) -> None:
        for step in self._drain.proceed(sent=self.core.outputs_sent):
            assert isinstance(step, rc.ExecutorDrained)
            self._report(step)

    def _begin_release(self, order: rc.ReleaseShards) -> None:
        (task,) = self._tasks
        for label in self._release.begin(order, task):
            self.to_task(label)

    def _report(self, answer: rc.Event | None) -> None:
        if answer is not None:
            self.send(self.lead, answer)


class SimulatedLead(StoreOwner):
    """Leads the operator's shards from executor to executor.

    `over_s` is the time that loads are measured over, and that a backlog should be gone in.
    """

    def __init__(
        self,
        world: SimulatedWorld,
        shards: int,
        hosts: Sequence[RcHost],
        upstreams: Sequence[RcUpstream],
        over_s: float,
    ) -> None:
        super().__init__(world, _LEAD_NODE)
        homes = [(host.name, host.home) for host in hosts]
        self.core = rc.Repartitioner(shards, homes, [upstream.name for upstream in upstreams])
        self._hosts = {host.name: host for host in hosts}
        self._upstreams = {upstream.name: upstream for upstream in upstreams}
        self._over_s = over_s
        self._inside = np.zeros(shards, dtype=np.int64)
        self._loads = ShardLoads(shards, over_s, self._clock.now)
        self._heard: set[Peer] = set()
        for host in hosts:
            host.lead = self
        for upstream in upstreams:
            upstream.lead = self

    @property
    def busy(self) -> bool:
        """Whether a round is under way."""
        return self.core.step is not rc.Step.IDLE

    def balance(self) -> None:
        """Start a round if one is needed, by what the executors said; then ask them again."""
        if self.busy:
            return
        if len(self._heard) == len(self._hosts):
            loads = self._loads.loads(self._inside, self._over_s)
            self._free_at = max(self._free_at, self._clock.now)
            self._enact(self.core.balance(loads, self._clock.now))
        self._heard.clear()

    def _measured(self, message: ShardsMeasured) -> None:
        self._inside += message.arrived - message.done
        self._loads.add(message.done, message.seconds)
        self._heard.add(message.executor)
        if len(self._heard) == len(self._hosts):
            self._loads.update(self._clock.now)

    def handle(self, message: Any) -> None:
        """Take an answer of a source, an executor or a node."""
        if isinstance(message, ShardsMeasured):
            self._measured(message)
        else:
            self._enact(self.core.handle(message, self._clock.now))

    def _enact(self, orders: Sequence[rc.Order]) -> None:
        for order in orders:
            match order:
                case rc.PauseUpstream(upstream=who):
                    self._to_upstream(who, order, HEADER_BYTES)
                case rc.UpdateTable(upstream=who, owners=owners):
                    self._to_upstream(who, order, HEADER_BYTES + _ENTRY_BYTES * len(owners))
                case rc.DrainExecutor(executor=who):
                    self.send(self._hosts[who], order)
                case rc.ReleaseShards(executor=who, shards=shards):
                    size = HEADER_BYTES + _ENTRY_BYTES * len(shards)
                    self.send(self._hosts[who], order, size)
                case do.OpenShard(node=node) | do.CopyShard(node=node):
                    self._to_node(node, self._at_store, order, self.world.shard_bytes)
                case do.DropShard():
                    pass  # the store's own business: no process waits for it
                case rc.ReportRound():
                    self._over(order)

    def _to_upstream(self, who: Peer, order: Any, size: int) -> None:
        upstream = self._upstreams[who]
        self.world.links.send(self._free_at, self.node, upstream.node, size, upstream.take, order)

    def _over(self, done: rc.ReportRound) -> None:
        sync_s = done.pause_s + done.update_s
        now = self._clock.now
        moved = Moved(now, done.shards, done.remote, sync_s, done.migration_s, done.size)
        self.world.recorder.moved.append(moved)
        # What was measured during the pause says nothing of what comes now.
        self._loads = ShardLoads(len(self._inside), self._over_s, now)
