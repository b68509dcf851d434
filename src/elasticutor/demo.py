"""The demo: one executor, four cores, and a key that turns hot; with balancing and without.

It runs under virtual time, with the very core that `elasticutor check` proves: what is simulated is
the four cores and the wires, not the decisions.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from elasticutor.core import events as ev
from elasticutor.core import instructions as do
from elasticutor.core.config import ExecutorConfig
from elasticutor.core.ids import Attempt, Epoch, NodeId, Peer, ShardId
from elasticutor.core.keys import key_hashes, shards_of
from elasticutor.core.parts import ShardArray
from elasticutor.errors import ProtocolError
from elasticutor.sim.durable import Durable
from elasticutor.sim.hosts import Credit, ExecutorHost, Rows, TaskHost, World
from elasticutor.sim.kernel import Kernel
from elasticutor.sim.network import Address, Network
from elasticutor.sim.sender import Sender
from elasticutor.state.cache import Codec, StateCache

CORES = 4
SHARDS = 64
KEYS = 1000
ROW_S = 0.001
BASE_RATE = 2000.0
HOT_RATE = 800.0
HOT_FROM_S = 1.0
LENGTH_S = 3.0
BALANCE_S = 0.1
WINDOW_S = 0.1
"""Figures are gathered over this long."""

_EXECUTOR = Peer("count/0")
_SOURCE = Peer("clicks")
_NODE = NodeId("n0")
_ROW_BYTES = 128
_TICK_S = 0.002  # how often the source sends


@dataclass(frozen=True, slots=True)
class Moment:
    """What one window of time looked like."""

    time_s: float
    p50_ms: float
    p99_ms: float
    loads: tuple[float, ...]
    """Per core, the share of the time it worked."""
    moves: tuple[do.ReportMove, ...]


@dataclass(slots=True)
class Story:
    """A whole run."""

    balanced: bool
    hot_shard: int
    moments: list[Moment] = field(default_factory=list)

    def p99_ms(self, start_s: float, end_s: float) -> float:
        """The worst window's 99th percentile between two times."""
        return max(m.p99_ms for m in self.moments if start_s < m.time_s <= end_s)

    @property
    def moves(self) -> list[do.ReportMove]:
        """All moves, in order."""
        return [move for moment in self.moments for move in moment.moves]

    @property
    def recovery_s(self) -> float | None:
        """From the hot key until p99 stays below twice the worst before it; None: not in time."""
        limit = 2 * self.p99_ms(0.3, HOT_FROM_S)
        late = [m.time_s for m in self.moments if m.time_s > HOT_FROM_S and m.p99_ms > limit]
        if not late:
            return 0.0
        return None if late[-1] >= LENGTH_S - WINDOW_S else late[-1] - HOT_FROM_S


def tell(*, balanced: bool, seed: int = 1) -> Story:
    """Run the demo once.

    Example:
        >>> story = tell(balanced=True)
        >>> len(story.moves) > 0, story.recovery_s is not None
        (True, True)
    """
    return _Stage(balanced, seed).run()


class _CountClicks:
    """Counts per key, and notes how long each tuple was under way."""

    max_keys = 1_000_000

    def __init__(self, kernel: Kernel) -> None:
        self.codec = Codec(lambda key: str(key).encode())
        self.shard_of = shards_of(key_hashes(pa.array(range(KEYS))), SHARDS)
        self.latencies: list[float] = []
        self._kernel = kernel

    def shards_of(self, rows: Rows) -> ShardArray:
        """The shard of each tuple."""
        return self.shard_of.take([key for key, _ in rows])

    def process(self, cache: StateCache, shard: ShardId, row: Any, upstream: Peer) -> Rows:
        """Count one click."""
        key, created_at = row
        cache.set(shard, key, cache.get(shard, key, 0) + 1)
        self.latencies.append(self._kernel.now - created_at)
        return ()

    def size(self, rows: int) -> int:
        """The bytes of so many tuples."""
        return rows * _ROW_BYTES


class _Stage:
    """The world of the demo; also the surroundings of its processes."""

    def __init__(self, balanced: bool, seed: int) -> None:
        self._rng = random.Random(seed)
        self._kernel = Kernel()
        network = Network(self._kernel, self._rng, lambda: 0.0002)
        self._world = World(self._kernel, network, Durable(), self)
        self._operator = _CountClicks(self._kernel)
        hot = self._rng.randrange(KEYS)
        self._hot_key = hot
        self._story = Story(balanced, int(self._operator.shard_of[hot]))
        self._moves: list[do.ReportMove] = []
        self._busy: dict[int, float] = {}
        self._created = 0.0
        config = ExecutorConfig(shards=SHARDS)
        self._sender = Sender(self._world, _SOURCE, Address(_SOURCE), self._operator)
        self._sender.open(Attempt(1), [_EXECUTOR], first=config.min_credit_bytes, limit=1)
        network.join(Address(_SOURCE), self._credit)
        self._world.peers[_SOURCE] = Address(_SOURCE)
        self._host = ExecutorHost(self._world, _EXECUTOR, 0, _NODE, config, self._operator)

    def run(self) -> Story:
        """Play it."""
        for _ in range(CORES):
            self._host.tell(ev.CoreGranted(_NODE))
        self._host.tell(ev.AttemptBegun(Attempt(1), Epoch(0), Epoch(1), (_SOURCE,)))
        self._kernel.at(0.01, self._send)
        for number in range(1, int(LENGTH_S / WINDOW_S + 0.5) + 1):
            self._kernel.at(number * WINDOW_S, self._look)
        for number in range(1, int(LENGTH_S / BALANCE_S + 0.5) + 1 if self._story.balanced else 0):
            self._kernel.at(number * BALANCE_S, self._host.tell, ev.BalanceDue())
        while self._kernel.now < LENGTH_S and self._kernel.step():
            pass
        return self._story

    def _send(self) -> None:
        now = self._kernel.now
        rows = list(self._clicks(now))
        if rows:
            self._sender.put({_EXECUTOR: rows})
        self._kernel.after(_TICK_S, self._send)

    def _clicks(self, now: float) -> Iterator[tuple[int, float]]:
        rate = BASE_RATE + (HOT_RATE if now >= HOT_FROM_S else 0.0)
        while self._created < now:
            hot = now >= HOT_FROM_S and self._rng.random() < HOT_RATE / rate
            yield (self._hot_key if hot else self._rng.randrange(KEYS)), self._created
            self._created += self._rng.expovariate(rate)

    def _credit(self, sender: Address, message: Any) -> None:
        if isinstance(message, Credit):
            self._sender.credit(_EXECUTOR, message.total)

    def _look(self) -> None:
        latencies, self._operator.latencies = self._operator.latencies, []
        moves, self._moves = self._moves, []
        p50, p99 = np.percentile(latencies, (50, 99)) * 1e3 if latencies else (np.nan, np.nan)
        loads = tuple(self._busy.get(core, 0.0) / WINDOW_S for core in range(CORES))
        self._busy.clear()
        moment = Moment(self._kernel.now, float(p50), float(p99), loads, tuple(moves))
        self._story.moments.append(moment)

    # Surroundings of the simulated processes

    def startup_s(self) -> float:
        """Tasks are there at once."""
        return 0.0

    def service_s(self, host: TaskHost, rows: int) -> float:
        """Every tuple costs the same."""
        seconds = rows * ROW_S
        self._busy[host.core.id] = self._busy.get(host.core.id, 0.0) + seconds
        return seconds

    def storage_s(self) -> float:
        """Nothing is stored."""
        return 0.001

    def storage_fails(self) -> bool:
        """Nothing is stored."""
        return False

    def notice_s(self) -> float:
        """Nothing is lost."""
        return 0.001

    def handled(
        self, host: ExecutorHost, event: ev.Event, instructions: list[do.Instruction]
    ) -> None:
        """Keep the moves."""
        self._moves += [
            instruction
            for instruction in instructions
            if isinstance(instruction, do.ReportMove) and instruction.source is not None
        ]

    def refused(self, host: ExecutorHost, message: Any, error: ProtocolError) -> None:
        """Nothing is refused in a demo."""
        raise error
