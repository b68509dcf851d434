"""Simulates sources: they cut tuples into batches per executor, within credit.

They keep to their credits as the live source does: a source whose buffered tuples exceed its limit
stops as a whole. With a fixed rate tuples are due at their times, whether the
source is stopped or not: it looks when one is due, and at least `core.measure.pacing`'s gap after
its last packets. Without a rate, a source sends whenever it may.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from elasticutor.core.executor.batch import ShardArray
from elasticutor.core.executor.emitter import Emitter
from elasticutor.core.measure.measurements import SourceSeen
from elasticutor.core.protocol import instructions as do
from elasticutor.core.protocol.events import Output, TuplesArrived
from elasticutor.core.protocol.ids import Attempt, Peer
from elasticutor.lab.sim.model.elastic import ElasticHost
from elasticutor.lab.sim.model.machines import HEADER_BYTES
from elasticutor.lab.sim.model.processes import Content, SimulatedWorld, Turns
from elasticutor.lab.sim.workload import Arrivals, FloatArray, IntArray, KeyStream

ATTEMPT = Attempt(1)
_MOST_ROWS = 8192


@dataclass(slots=True, eq=False)
class Routes:
    """Which executor each key goes to, and to which of its shards: here that never changes."""

    owner_of: IntArray
    """Of every key, by number."""
    shard_of: ShardArray

    def owners(self, keys: IntArray) -> IntArray:
        """The executor of each of these keys."""
        return self.owner_of.take(keys)

    def shards(self, keys: IntArray) -> ShardArray:
        """The shard of each of these keys."""
        return self.shard_of.take(keys)


@dataclass(frozen=True, slots=True)
class Flow:
    """Some of what a source sends."""

    keys: KeyStream
    arrivals: Arrivals | None = None
    """When tuples are due; None: whenever they may be sent."""

    def rate(self, now: float) -> float:
        """Tuples per second that are due now."""
        return math.inf if self.arrivals is None else self.arrivals.rate_at(now)


class Upstream:
    """One source process.

    Args:
        world: Where it is.
        name: Its name, which executors know it by.
        node: The number of its node.
        flows: What it sends; all with arrivals, or one without.
        message_rows: What a message carries, on average, if it sends whenever it may. As many
            tuples are the first credit, and as many may wait for credit before it stops.
        routes: Of keys to executors.
        hosts: The executors, in the order of their numbers.
    """

    def __init__(
        self,
        world: SimulatedWorld,
        name: Peer,
        node: int,
        flows: Sequence[Flow],
        message_rows: int,
        routes: Routes,
        hosts: Sequence[ElasticHost],
    ) -> None:
        self.name = name
        self.node = node
        self.world = world
        self.cut = [0] * len(hosts)
        """Tuples for each executor: sent, or waiting for credit."""
        self._cut_before = list(self.cut)
        self._flows = flows
        self._routes = routes
        self._hosts = hosts
        self._by_name = {host.name: host for host in hosts}
        peers = [host.name for host in hosts]
        credit_bytes = message_rows * world.tuple_bytes
        self._outputs = Emitter(peers, first=credit_bytes, limit=credit_bytes, returned=False)
        self._message_rows = message_rows
        self._meter = _Meter(world.clock.now)
        self._cpus = world.cpus[node]
        self._turns = Turns(self._cpus, world.machines.costs.source)
        self._looks_again = False
        world.grants[name] = (node, self.credit)

    @property
    def rate(self) -> float:
        """Tuples per second that it has to send now; infinite, if as many as it may."""
        return sum(flow.rate(self.world.clock.now) for flow in self._flows)

    @property
    def unlimited(self) -> bool:
        """Whether it sends as fast as it may."""
        return self._flows[0].arrivals is None

    @property
    def blocked_s(self) -> float:
        """All time, up to now, in which it could not send for want of credit."""
        self._meter.note(self._meter.blocked, self.world.clock.now)
        return self._meter.total_s

    def behind_s(self) -> float:
        """How long the oldest tuple that was not sent has been due."""
        if self.unlimited:
            return 0.0
        return max(0.0, self.world.clock.now - self._due_s())

    def _due_s(self) -> float:
        """When the next tuple is due, or the oldest that was not sent; infinity after the last."""
        return min(flow.arrivals.next_s() for flow in self._flows if flow.arrivals)

    def start(self, delay_s: float) -> None:
        """Begin to send, a little later than others did."""
        self._looks_again = True
        self.world.clock.after(delay_s, self._look)

    def credit(self, executor: Peer, total: int) -> None:
        """Send what an executor takes more."""
        self._outputs.credit(executor, total)
        self._flush(executor)
        if not (self._looks_again or self._stopped):
            self._go_on()

    def seen(self) -> SourceSeen:
        """Returns what it did since the last call."""
        seconds, rows, share = self._meter.take(self.world.clock.now)
        routed = {
            host.name: cut - before
            for host, cut, before in zip(self._hosts, self.cut, self._cut_before, strict=True)
        }
        self._cut_before = list(self.cut)
        return SourceSeen("source", seconds, rows, share, self.behind_s(), self.rate, routed)

    def _look(self) -> None:
        self._looks_again = False
        self._go_on()

    def _go_on(self) -> None:
        """Send what is due, and look again when there will be more to send."""
        self._read()
        stopped = self._stopped
        self._meter.note(stopped, self.world.clock.now)
        if not (stopped or self._looks_again or self.unlimited):
            due_s = self._due_s()
            if due_s < math.inf:
                self._looks_again = True
                rested_s = self._turns.free_at + self._cpus.gap_s
                self.world.clock.at(max(rested_s, due_s, self.world.clock.now), self._look)

    def _read(self) -> None:
        """Send what is due, as far as it may."""
        now = self.world.clock.now
        while True:
            blocked = self._stopped
            self._meter.note(blocked, now)
            if blocked or not self._send_due(now):
                return

    @property
    def _stopped(self) -> bool:
        return self._outputs.blocked(self.name)

    def _send_due(self, now: float) -> bool:
        """Send one lot; returns whether there may be more."""
        if self.unlimited:
            keys = self._flows[0].keys.draw(self._message_rows * len(self._hosts))
            self._send(keys, now)
            return True
        lots = []
        for flow in self._flows:
            assert flow.arrivals is not None  # as all have them, or the only one has not
            births = flow.arrivals.due(now, _MOST_ROWS)
            if len(births):
                lots.append((flow.keys.draw(len(births)), births))
        if not lots:
            return False
        if len(lots) == 1:
            self._send(*lots[0])
        else:
            births = np.concatenate([births for _, births in lots])
            order = births.argsort(kind="stable")
            self._send(np.concatenate([keys for keys, _ in lots]).take(order), births.take(order))
        return any(len(births) == _MOST_ROWS for _, births in lots)

    def _send(self, keys: IntArray, births: FloatArray | float) -> None:
        """Cut tuples into a batch for each executor, in their order, and send what may be sent."""
        owners = self._routes.owners(keys)
        order = owners.argsort(kind="stable")
        keys = keys.take(order)
        if not isinstance(births, float):
            births = births.take(order)
        shards = self._routes.shards(keys)
        self._meter.rows += len(keys)
        tuple_bytes, outputs, start = self.world.tuple_bytes, self._outputs, 0
        for number, end in enumerate(np.bincount(owners).cumsum().tolist()):
            if end > start:
                peer = self._hosts[number].name
                size = (end - start) * tuple_bytes
                mine = births if isinstance(births, float) else births[start:end]
                content = Content(mine, keys[start:end])
                batch = TuplesArrived(self.name, ATTEMPT, content, shards[start:end], size)
                outputs.add(Output(peer, batch, size, end - start))
                self._was_cut(number, end - start)
                self._flush(peer)
                start = end

    def _flush(self, executor: Peer) -> None:
        world, host = self.world, self._by_name[executor]
        for order in self._outputs.send(executor, ATTEMPT):
            assert isinstance(order, do.Emit)  # no epoch ends here
            size = order.size + HEADER_BYTES
            sent = self._turns.take(world.clock.now)
            world.links.send(sent, self.node, host.node, size, host.take, order.batch)

    def _was_cut(self, executor: int, rows: int) -> None:
        """Count tuples that are on their way to an executor, or wait for its credit."""
        self.cut[executor] += rows


class _Meter:
    """How much was sent, and for how long nothing could be."""

    def __init__(self, now: float) -> None:
        self.rows = 0
        self.blocked = False
        self.total_s = 0.0
        self._since = self._noted = now
        self._blocked_s = 0.0

    def note(self, blocked: bool, now: float) -> None:
        """Note whether it is blocked from now on."""
        if self.blocked:
            self._blocked_s += now - self._noted
            self.total_s += now - self._noted
        self._noted, self.blocked = now, blocked

    def take(self, now: float) -> tuple[float, int, float]:
        """Returns seconds, rows, and the share of time blocked, and starts over."""
        self.note(self.blocked, now)
        seconds = max(now - self._since, 1e-9)
        taken = seconds, self.rows, min(1.0, self._blocked_s / seconds)
        self._since, self.rows, self._blocked_s = now, 0, 0.0
        return taken
