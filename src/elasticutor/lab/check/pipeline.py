"""The operators of checked runs, and what they must come to: a sequential fold of the input.

A tuple is `(key, origin, sequence, payload)`. The origin names the stream it belongs to: its
source, its key there, and the path it has taken since. Tuples of one origin keep one order all the
way, so a hash chained over their sequence numbers and payloads tells every loss, doubling and swap.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from elasticutor.core.executor.batch import ShardArray
from elasticutor.core.keys import executors_of, key_hashes, shards_of
from elasticutor.core.protocol.ids import Peer, ShardId
from elasticutor.state.cache import Codec, StateCache

Row = tuple[int, int, int, int]
"""Key, origin, sequence, payload."""

Style = Literal["in place", "set", "clearing"]
"""How an operator keeps its state: changes it in place without `set`, sets it, or clears it too."""

ROW_BYTES = 16
SINK = Peer("sink")
_EDGES = 4  # more than any operator has downstream


class PlainState:
    """State in one dictionary, as a sequential program would have it."""

    def __init__(self) -> None:
        self.values: dict[Hashable, Any] = {}

    def get(self, shard: ShardId, key: Hashable, default: Any = None) -> Any:
        """The key's state, live; the default where it has none."""
        if key not in self.values and default is not None:
            self.values[key] = default
        return self.values.get(key)

    def set(self, shard: ShardId, key: Hashable, value: Any) -> None:
        """Make this the key's state."""
        self.values[key] = value

    def clear(self, shard: ShardId, key: Hashable) -> None:
        """Let the key have no state."""
        self.values.pop(key, None)


def _dump_key(key: Hashable) -> bytes:
    return repr(key).encode()


@dataclass(slots=True)
class ChainOperator:
    """Chains a hash per origin, and passes every tuple on."""

    name: str
    keys: int
    executors: int
    shards: int
    style: Style
    copies: int = 1
    """How many tuples come out of one, for each destination."""
    returns: bool = False
    """Whether outputs go back to the upstream, as in a Structured Streaming query."""
    max_keys: int = 1_000_000
    downstream: list[ChainOperator] = field(default_factory=list)
    complain: Callable[[str], None] = lambda text: None
    codec: Codec = field(default_factory=lambda: Codec(_dump_key))
    _executor_of: list[Peer] = field(init=False)
    _shard_of: ShardArray = field(init=False)

    def __post_init__(self) -> None:
        hashes = key_hashes(pa.array(range(self.keys)))
        places = executors_of(hashes, self.executors).tolist()
        names = self.executor_names
        self._executor_of = [names[place] for place in places]
        self._shard_of = shards_of(hashes, self.shards)

    @property
    def executor_names(self) -> list[Peer]:
        """All executors of this operator."""
        return [Peer(f"{self.name}/{index}") for index in range(self.executors)]

    def executor_of(self, key: int) -> Peer:
        """The executor that owns a key."""
        return self._executor_of[key]

    def by_executor(self, rows: Iterable[Row]) -> dict[Peer, list[Row]]:
        """Tuples divided among the executors that own their keys, in their order."""
        batches: dict[Peer, list[Row]] = {}
        for row in rows:
            batches.setdefault(self._executor_of[row[0]], []).append(row)
        return batches

    def shards_of(self, rows: Any) -> ShardArray:
        """The shard of each tuple."""
        return self._shard_of[np.fromiter((row[0] for row in rows), np.intp, len(rows))]

    def size(self, rows: int) -> int:
        """The bytes of this number of tuples."""
        return rows * ROW_BYTES

    def process(
        self, state: StateCache | PlainState, shard: ShardId, row: Row, upstream: Peer
    ) -> list[tuple[Peer, Row]]:
        """Apply one tuple to the state; returns what goes where."""
        end = upstream if self.returns else SINK
        made = self.apply(state, shard, row)
        return [(end if to is None else to.executor_of(out[0]), out) for to, out in made]

    def apply(
        self, state: StateCache | PlainState, shard: ShardId, row: Row
    ) -> list[tuple[ChainOperator | None, Row]]:
        """Apply one tuple to the state; returns which operator gets what, None at the end."""
        self._chain(state, shard, row)
        key, origin, sequence, payload = row
        numbers = range(sequence * self.copies, (sequence + 1) * self.copies)
        if self.returns or not self.downstream:
            return [(None, (key, origin, number, payload)) for number in numbers]
        return [
            (operator, (operator.key_from(key), origin * _EDGES + edge, number, payload))
            for edge, operator in enumerate(self.downstream, start=1)
            for number in numbers
        ]

    def key_from(self, key: int) -> int:
        """This operator's key for a tuple that had another key upstream."""
        return (key * 7 + len(self.name)) % self.keys

    def _chain(self, state: StateCache | PlainState, shard: ShardId, row: Row) -> None:
        key, origin, _, payload = row
        if self.style == "in place":
            chains = state.get(shard, key, {})
            chains[origin] = self._link(chains.get(origin), row)
        elif self.style == "set":
            state.set(shard, (key, origin), self._link(state.get(shard, (key, origin)), row))
        else:
            chain = state.get(shard, (key, origin), [])
            chain[:] = self._link(tuple(chain) or None, row)
            if payload % 13 == 0:
                state.clear(shard, (key, origin))
                if payload % 2:
                    state.get(shard, (key, origin), [])  # becomes state, and empty it stays

    def _link(self, last: tuple[int, int] | None, row: Row) -> tuple[int, int]:
        key, origin, sequence, payload = row
        chain, previous = last or (0, -1)
        if sequence <= previous:
            self.complain(
                f"order: {self.name} key {key} origin {origin}: {sequence} came after {previous}"
            )
        return hash((chain, sequence, payload)), sequence


class Expected:
    """The final states and outputs of a sequential run."""

    def __init__(self) -> None:
        self.states: defaultdict[str, PlainState] = defaultdict(PlainState)
        """By operator."""
        self.outputs: dict[int, list[Row]] = {}
        """By origin."""

    def take(self, operator: ChainOperator, row: Row) -> None:
        """Let one tuple run through, to the end."""
        for following, output in operator.apply(self.states[operator.name], ShardId(0), row):
            if following is None:
                self.outputs.setdefault(output[1], []).append(output)
            else:
                self.take(following, output)

    def state(self, operator: ChainOperator) -> dict[bytes, Any]:
        """An operator's final state, by the bytes of its keys."""
        values = self.states[operator.name].values
        return {operator.codec.dump_key(key): value for key, value in values.items()}


def by_origin(rows: Iterable[Row]) -> dict[int, list[Row]]:
    """Tuples divided by their origins, in their order."""
    found: dict[int, list[Row]] = {}
    for row in rows:
        found.setdefault(row[1], []).append(row)
    return found


def generate(rng: random.Random, source: int, keys: int, count: int, skew: float) -> list[Row]:
    """Returns one source's tuples: skewed keys whose popularity changes now and then."""
    weights = [1.0 / (rank + 1) ** skew for rank in range(keys)]
    order = list(range(keys))
    sequences = [0] * keys
    rows: list[Row] = []
    while len(rows) < count:
        rng.shuffle(order)
        for key in rng.choices(order, weights, k=min(count - len(rows), rng.randint(60, 400))):
            origin = (source + 1) * keys + key
            rows.append((key, origin, sequences[key], rng.getrandbits(30)))
            sequences[key] += 1
    return rows
