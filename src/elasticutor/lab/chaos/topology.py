"""What runs while processes are killed: everything in it can be folded by a plain loop.

```
rows (2 tasks) ──▶ chain, by key ──▶ tally, by bucket (key % 17) ──▶ out, Parquet
```

Tuples of one key and one source task (its *lane*) keep one order all the way, so both operators
chain a hash for each of them: a tuple that is lost, doubled or swapped changes the chain for good.
`chain` works record by record, and its state is a tuple in typed columns; `tally` works on batches,
and its state is a dictionary that is changed in place and kept as bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa

from elasticutor.errors import BadValueError
from elasticutor.operator import BatchState, Operator, State
from elasticutor.sinks import ParquetSink
from elasticutor.sources import Generator
from elasticutor.topology import Topology

SOURCE, CHAIN, TALLY, SINK = "rows", "chain", "tally", "out"
LANES = 2
"""Tasks of the source."""
BUCKETS = 17

_FACTOR = 1_000_003
_PRIME = 2**61 - 1
_MICROSECONDS = 1_000_000
_OMEGA = 12.0  # shuffles of the key frequencies per minute


def _integers(*names: str) -> pa.Schema:
    return pa.schema([pa.field(name, pa.int64(), False) for name in names])


LINKS = _integers("bucket", "key", "lane", "time", "count", "chain")
"""What `chain` makes of a tuple: how many its key and lane have had, and their chain so far."""

SEALS = _integers("key", "lane", "time", "count", "chain", "seal")
"""What `tally` makes of that: the same, and the chain of chains."""

Ends = tuple[int, ...]
"""The state of a key in `chain`: how many tuples, and their chain; for each lane."""


def linked(chain: int, word: int) -> int:
    """A chain, one word longer: it depends on all words and on their order.

    Example:
        >>> linked(linked(0, 1), 2) == linked(linked(0, 2), 1)
        False
    """
    return (chain * _FACTOR + word + 1) % _PRIME


def sealed(held: dict[Any, int], key: int, lane: int, count: int, chain: int) -> int:
    """Take an output of `chain` into a bucket's state, and return the key's and lane's seal.

    The number and the sum of all do not depend on any order; the seals do.
    """
    held["rows"] = held.get("rows", 0) + 1
    held["sum"] = (held.get("sum", 0) + chain) % _PRIME
    seal = held[key, lane] = linked(held.get((key, lane), 0), chain ^ count)
    return seal


@dataclass(frozen=True, slots=True)
class ChaosLoad:
    """The tuples."""

    rate: float = 1_500.0
    """Per second, of all tasks together."""
    keys: int = 300
    seed: int = 1

    def __post_init__(self) -> None:
        # Above, the time of a tuple does not say which one it is.
        if not 0 < self.rate <= _MICROSECONDS / 4:
            raise BadValueError("rate", f"be above 0 and at most {_MICROSECONDS // 4}", self.rate)

    @property
    def generator(self) -> Generator:
        """Where they come from, without an end."""
        return Generator(
            rate=self.rate, keys=self.keys, zipf=0.8, payload=0, omega=_OMEGA, seed=self.seed
        )

    def lane(self, time: int) -> int:
        """Which source task a tuple is from."""
        return round(time * self.rate / _MICROSECONDS) % LANES


class Chain(Operator):
    """Chains the tuples of a key, each lane apart."""

    output: ClassVar[Any] = LINKS
    state_schema: ClassVar[Any] = _integers(
        *(f"{what}_{lane}" for lane in range(LANES) for what in ("count", "chain"))
    )

    def __init__(self, load: ChaosLoad) -> None:
        self._load = load

    def process(self, key: Any, row: Any, state: State) -> Iterator[tuple[int, ...]]:
        """One more link."""
        lane = self._load.lane(row.time)
        ends = list(state.get((0, 0) * LANES))
        at = 2 * lane
        ends[at : at + 2] = count, chain = ends[at] + 1, linked(ends[at + 1], row.time)
        state.set(tuple(ends))
        yield key % BUCKETS, key, lane, row.time, count, chain


class Tally(Operator):
    """Counts and sums what is in a bucket, and chains the chains of its keys."""

    output: ClassVar[Any] = SEALS

    def process_batch(self, batch: Any, state: BatchState) -> Any:
        """All of a batch, row by row: the order is what counts."""
        columns = [column.to_pylist() for column in batch.columns]
        seals = [
            sealed(state.get(bucket, {}), key, lane, count, chain)
            for bucket, key, lane, _, count, chain in zip(*columns, strict=True)
        ]
        return pa.RecordBatch.from_arrays([*batch.columns[1:], pa.array(seals)], schema=SEALS)


@dataclass(frozen=True, slots=True)
class Shape:
    """How the work is divided; another driver may divide it otherwise."""

    chains: int = 2
    """Executors of `chain`."""
    chain_shards: int = 16
    tallies: int = 1
    """Executors of `tally`."""
    tally_shards: int = 8

    @property
    def executors(self) -> tuple[tuple[str, int, int], ...]:
        """Every executor: its operator, its number there, and how many shards it has."""
        return (
            *((CHAIN, number, self.chain_shards) for number in range(self.chains)),
            *((TALLY, number, self.tally_shards) for number in range(self.tallies)),
        )


def topology_of(load: ChaosLoad, shape: Shape, out: Path) -> Topology:
    """The whole of it, with `out` as the sink's folder."""
    topology = Topology("chaos")
    rows = topology.source(SOURCE, load.generator, tasks=LANES)
    links = topology.operator(
        CHAIN, Chain(load), rows, key="key", executors=shape.chains, shards=shape.chain_shards
    )
    seals = topology.operator(
        TALLY, Tally(), links, key="bucket", executors=shape.tallies, shards=shape.tally_shards
    )
    topology.sink(SINK, ParquetSink(out), seals)
    return topology
