"""`elasticutor bench consistency`: shards move and cores change without pause; nothing goes wrong.

Several sources, whose key frequencies are shuffled now and then, feed an operator that chains a
hash for each key and source. Tuples of one key and one source keep one order all the way, so the
chain shows every tuple that is lost, doubled or swapped. Meanwhile random shards move to random
tasks, executors are given random cores on random nodes, and balancing is on. At the end the state
of every key, and every output, must be what a sequential program makes of the same tuples.

A link is `chain · M + word` modulo 2⁶³, so order matters to it. Millions are compared in seconds.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from elasticutor.core.run.phases import RunError
from elasticutor.driver.cluster import BaseCluster
from elasticutor.driver.run import Run
from elasticutor.errors import BadValueError
from elasticutor.lab.bench import options
from elasticutor.lab.bench.declare import Benchmark, Figures, figure
from elasticutor.lab.bench.live import OPERATOR, SINK, Bench
from elasticutor.lab.bench.record import Remade
from elasticutor.lab.options import option
from elasticutor.operator import Operator, State
from elasticutor.sinks import MemorySink
from elasticutor.sources import Generator
from elasticutor.topology import Topology

Ints: TypeAlias = npt.NDArray[np.int64]

EXECUTORS = 2
SHARDS = 64
CORES = 2
"""Of each executor to begin with, and the most that it is given on one node."""

_FACTOR = 0x9E3779B97F4A7C15
_MASK = (1 << 63) - 1
_MOVE_S, _CORES_S = 0.02, 0.3  # between two moves that are asked for, and two changes of cores
_SHOWN = 20
_DRAIN_S, _SETTLE_S = 120.0, 10.0

_ORIGIN = [
    pa.field("key", pa.int64(), False),
    pa.field("origin", pa.int32(), False),
    pa.field("sequence", pa.int64(), False),
]
NUMBERED = pa.schema([*_ORIGIN, pa.field("time", pa.int64(), False)])
"""A tuple: its key, which source it is from, its number there, and when it is due."""

LINKS = pa.schema([*_ORIGIN, pa.field("chain", pa.int64(), False)])
"""What comes of each tuple: the chain of its key and source, this tuple included."""


def numbered(generator: Generator, origin: int) -> Remade:
    """A generator whose tuples carry their origin and their number."""
    return Remade(generator, NUMBERED, partial(_numbered, origin))


def _numbered(origin: int, first: int, batch: pa.RecordBatch) -> list[Any]:
    rows = batch.num_rows
    origins = pa.array(np.full(rows, origin, np.int32))
    numbers = pa.array(np.arange(first, first + rows, dtype=np.int64))
    return [batch.column("key"), origins, numbers, batch.column("time")]


def linked(chain: int, sequence: int, time_us: int) -> int:
    """A chain, one tuple longer."""
    return (chain * _FACTOR + (sequence << 20 ^ time_us) + 1) & _MASK


class KeyedChain(Operator):
    """Chains a hash for each source of a key; the state is changed in place, and never set."""

    output: ClassVar[Any] = LINKS

    def process(self, key: Any, row: Any, state: State) -> Iterator[tuple[int, int, int, int]]:
        chains = state.get({})
        count, chain = chains.get(row.origin, (0, 0))
        chain = linked(chain, row.sequence, row.time)
        chains[row.origin] = count + 1, chain
        yield key, row.origin, row.sequence, chain


@dataclass(frozen=True, slots=True)
class ChainLinks:
    """All links of one origin: those of one key together, in their order."""

    keys: Ints
    sequences: Ints
    chains: Ints

    @classmethod
    def of_outputs(cls, outputs: pa.Table, origin: int) -> ChainLinks:
        """What came out, as it arrived."""
        mine = np.flatnonzero(outputs.column("origin").to_numpy() == origin)
        keys = outputs.column("key").to_numpy()[mine]
        mine = mine[np.argsort(keys, kind="stable")]
        names = ("key", "sequence", "chain")
        return cls(*(outputs.column(name).to_numpy()[mine] for name in names))

    @classmethod
    def of_source(cls, keys: Ints, times: Ints) -> ChainLinks:
        """What a sequential program makes of a source's tuples."""
        ends: dict[int, int] = {}
        chains = np.empty(len(keys), np.int64)
        for sequence, (key, time_us) in enumerate(zip(keys.tolist(), times.tolist(), strict=True)):
            ends[key] = chains[sequence] = linked(ends.get(key, 0), sequence, time_us)
        order = np.argsort(keys, kind="stable")
        return cls(keys[order], order, chains[order])

    def ends(self) -> dict[int, tuple[int, int]]:
        """How many links each key has, and where its chain ends."""
        keys, starts, counts = np.unique(self.keys, return_index=True, return_counts=True)
        ends = zip(counts.tolist(), self.chains[starts + counts - 1].tolist(), strict=True)
        return dict(zip(keys.tolist(), ends, strict=True))

    def differing(self, other: ChainLinks) -> list[int]:
        """The keys whose links are not the same, in rising order."""
        return [
            key
            for key in np.union1d(self.keys, other.keys).tolist()
            if not all(map(np.array_equal, self._of(key), other._of(key)))
        ]

    def _of(self, key: int) -> tuple[Ints, Ints]:
        first, last = np.searchsorted(self.keys, (key, key + 1))
        return self.sequences[first:last], self.chains[first:last]


def violations(
    expected: Mapping[int, ChainLinks], state: Mapping[int, Mapping[int, Any]], outputs: pa.Table
) -> list[str]:
    """Everything in which a run differs from the sequential fold: one sentence per key and source.

    The state has for every key and origin how many links there are, and where the chain ends;
    outputs are in the order of arrival.
    """
    found = []
    for origin, links in expected.items():
        ends = links.ends()
        for key in sorted({*ends, *(key for key, chains in state.items() if origin in chains)}):
            got, wanted = state.get(key, {}).get(origin), ends.get(key)
            if got != wanted:
                found.append(f"state: key {key} of source {origin}: {got} instead of {wanted}")
        came = ChainLinks.of_outputs(outputs, origin)
        for key in came.differing(links):
            got, wanted = ((of.keys == key).sum() for of in (came, links))
            how = f"{got} instead of {wanted}" if got != wanted else "not the ones expected"
            found.append(f"outputs: key {key} of source {origin}: {how}")
    strange = set(np.unique(outputs.column("origin").to_numpy()).tolist()) - set(expected)
    found += [f"outputs: of source {origin}, which there is not" for origin in sorted(strange)]
    return found


class ConsistencyFigures(Figures):
    """What was done, and what went wrong."""

    rows: int = figure("rows", ",")
    moves: int = figure("moves", ",")
    remote_moves: int = figure("remote moves", ",")
    core_changes: int = figure("core changes", ",")
    violations: int = figure("violations", ",", better="lower")
    seconds: float = figure("seconds", ",", digits=3)
    """From when the sources began to send to when all was processed."""
    first_violations: tuple[str, ...] = figure(default=())

    @property
    def failed(self) -> bool:
        return bool(self.violations)


class ConsistencyBench(Benchmark):
    """Move shards and change cores without pause, then compare with a sequential program.

    Two emulated nodes, two executors. The final state of every key and every output must be what a
    sequential fold of the same tuples gives. Exits with 1 if anything differs.
    """

    about = "consistency under moves"
    facts = ()

    seconds: float = options.SECONDS(300.0, help="How long the sources send.", key="")
    rate: float = option(20_000.0, "Tuples per second in all.", min=1)
    keys: int = options.KEYS(10_000)
    sources: int = option(3, "How many sources there are.", min=1, key="sources")
    omega: float = option(30.0, "Key shuffles per minute.", min=0)
    seed: int = options.SEED(1, help="For tuples, moves and cores.")

    def measure(self, bench: Bench) -> ConsistencyFigures:
        with bench.cluster(EXECUTORS * CORES, 2) as cluster:
            of_all = f"of {self.seconds:g} seconds"
            found = self.on(cluster, lambda elapsed: bench.tick(f"{elapsed:.0f} {of_all}"))
        for violation in found.first_violations:
            bench.note(violation)
        return found

    def on(
        self, cluster: BaseCluster, progress: Callable[[float], object] = lambda elapsed: None
    ) -> ConsistencyFigures:
        """Run under moves and changes of cores without pause, and compare with a sequential fold.

        `progress` is called again and again with the seconds since the start.
        """
        if min(cluster.nodes.values()) < EXECUTORS * CORES:
            raise BadValueError("nodes", f"have {EXECUTORS * CORES} cores each", cluster.nodes)
        generators = [
            Generator(
                rate=self.rate / self.sources,
                keys=self.keys,
                payload=0,
                omega=self.omega,
                seconds=self.seconds,
                seed=self.seed + n,
            )
            for n in range(self.sources)
        ]
        rows = sum(generator.count() or 0 for generator in generators)
        with cluster.submit(_topology(generators, rows), keep=True) as run:
            began = time.monotonic()
            granted = _core_changes(run)
            _disturb(run, random.Random(self.seed), sorted(cluster.nodes), progress)
            run.drain(_DRAIN_S)
            took = time.monotonic() - began
            moved = run.events("shard moved")
            changed = _core_changes(run) - granted
            state, outputs = _settled_state(run), run.collected(SINK)
        expected = {n: _expected(generator) for n, generator in enumerate(generators)}
        wrong = violations(expected, state, outputs)
        return ConsistencyFigures(
            rows=rows,
            moves=len(moved),
            remote_moves=sum(event["remote"] for event in moved),
            core_changes=changed,
            violations=len(wrong),
            seconds=took,
            first_violations=tuple(wrong[:_SHOWN]),
        )


def _topology(generators: list[Generator], rows: int) -> Topology:
    topology = Topology("consistency")
    streams = [
        topology.source(f"source-{n}", numbered(generator, n))
        for n, generator in enumerate(generators)
    ]
    links = topology.operator(
        OPERATOR, KeyedChain(), streams, key="key", executors=EXECUTORS, cores=CORES, shards=SHARDS
    )
    # Should tuples come twice, that is to be found and not to end the run.
    topology.sink(SINK, MemorySink(max_rows=2 * rows + 1), links)
    return topology


def _expected(generator: Generator) -> ChainLinks:
    tuples = generator.table(0, 1, 0, generator.count() or 0)
    return ChainLinks.of_source(tuples.column("key").to_numpy(), tuples.column("time").to_numpy())


def _core_changes(run: Run) -> int:
    return len(run.events("core granted")) + len(run.events("core taken"))


def _settled_state(run: Run) -> dict[int, dict[int, tuple[int, int]]]:
    """The final state, once no shard is on its way any more.

    Moves that were under way when the last tuple was processed go on, and nodes are read one after
    the other: a shard may leave one that is yet to be read for one that has been.
    """
    state, until = run.state(OPERATOR), time.monotonic() + _SETTLE_S
    while (again := run.state(OPERATOR)) != state and time.monotonic() < until:
        state = again
    return state


def _disturb(
    run: Run, rng: random.Random, nodes: list[str], progress: Callable[[float], object]
) -> None:
    """Move shards and change cores until the sources have sent everything."""
    began = cores_at = time.monotonic()
    while run.phase == "running":
        executor = rng.randrange(EXECUTORS)
        if time.monotonic() >= cores_at:
            cores_at += _CORES_S
            _change_cores(run, rng, executor, nodes)
        tasks = sorted(run.tasks(OPERATOR, executor))
        if tasks:
            run.move(OPERATOR, executor, rng.randrange(SHARDS), rng.choice(tasks))
        progress(time.monotonic() - began)
        try:
            run.wait(_MOVE_S)
        except TimeoutError:
            continue  # that was the pause between two moves


def _change_cores(run: Run, rng: random.Random, executor: int, nodes: list[str]) -> None:
    """Other cores, at least one; does not wait for it, so changes overtake each other too."""
    wanted = {node: rng.randint(0, CORES) for node in nodes}
    if not any(wanted.values()):
        wanted[rng.choice(nodes)] = 1
    try:
        run.set_cores(OPERATOR, executor, wanted, wait=False)
    except RunError:
        if run.phase == "running":
            raise
