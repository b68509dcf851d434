"""`elasticutor bench consistency`: shards move and cores change without pause; nothing goes wrong.

Several sources, whose key frequencies are shuffled now and then, feed an operator that chains a
hash for each key and source. Tuples of one key and one source keep one order all the way, so the
chain shows every tuple that is lost, doubled or swapped. Meanwhile random shards move to random
tasks, executors are given random cores on random nodes, and balancing is on. At the end the state
of every key, and every output, must be what a sequential program makes of the same tuples.

A link is `chain · M + word` modulo 2⁶³: order matters to it, and a whole stream can be folded with
a few NumPy operations, so that millions of tuples are checked in seconds.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from elasticutor.core.run.phases import RunError
from elasticutor.driver.cluster import BaseCluster
from elasticutor.driver.run import Run
from elasticutor.errors import BadValueError
from elasticutor.lab.bench import options
from elasticutor.lab.bench.declare import Benchmark
from elasticutor.lab.bench.figures import Figures, figure
from elasticutor.lab.bench.live import OPERATOR, SINK, Bench
from elasticutor.lab.bench.record import WrappedReader
from elasticutor.lab.options import option
from elasticutor.operator import Operator, State
from elasticutor.sinks import MemorySink
from elasticutor.sources import Generator, Offer, Reader, Source
from elasticutor.topology import Topology

Ints: TypeAlias = npt.NDArray[np.int64]

EXECUTORS = 2
SHARDS = 64
CORES = 2
"""Of each executor to begin with, and the most that it is given on one node."""

_FACTOR = 0x9E3779B97F4A7C15  # odd, so that it has an inverse
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


@dataclass(frozen=True)
class Numbered(Source):
    """A generator whose tuples carry their origin and their number."""

    generator: Generator
    origin: int
    schema: Any = field(default=NUMBERED, init=False)

    def open(self, task: int, tasks: int, offset: Any | None) -> Reader:
        """A reader; there must be one task only, for the numbers are its own."""
        if tasks != 1:
            raise BadValueError("tasks of a numbered source", "be 1", tasks)
        return _NumberedReader(self.origin, self.generator.open(task, tasks, offset))


class _NumberedReader(WrappedReader):
    def __init__(self, origin: int, reader: Reader) -> None:
        super().__init__(reader)
        self._origin = origin

    def poll(self, now: float, max_rows: int) -> Offer | None:
        first = self._reader.offset[0]
        offer = self._reader.poll(now, max_rows)
        if offer is None:
            return None
        rows = offer.batch.num_rows
        columns = [
            offer.batch.column("key"),
            pa.array(np.full(rows, self._origin, np.int32)),
            pa.array(np.arange(first, first + rows, dtype=np.int64)),
            offer.batch.column("time"),
        ]
        return Offer(pa.RecordBatch.from_arrays(columns, schema=NUMBERED), offer.born)


class KeyedChain(Operator):
    """Chains a hash for each source of a key; the state is changed in place, and never set."""

    output: ClassVar[Any] = LINKS

    def process(self, key: Any, row: Any, state: State) -> Iterator[tuple[int, int, int, int]]:
        """One more link."""
        chains = state.get({})
        count, chain = chains.get(row.origin, (0, 0))
        chain = (chain * _FACTOR + (row.sequence << 20 ^ row.time) + 1) & _MASK
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
        """What a sequential program makes of a source's tuples.

        Example:
            >>> links = ChainLinks.of_source(np.array([7, 3, 7]), np.array([0, 0, 0]))
            >>> links.keys.tolist(), links.sequences.tolist()
            ([3, 7, 7], [1, 0, 2])
            >>> expected = (1 * _FACTOR + (2 << 20) + 1) & _MASK
            >>> links.chains.tolist() == [(1 << 20) + 1, 1, expected]
            True
        """
        sequences = np.argsort(keys, kind="stable")
        keys = keys[sequences]
        words = (sequences << 20 ^ times[sequences]).astype(np.uint64) + np.uint64(1)
        starts, counts = _groups(keys)
        place = np.arange(len(keys)) - np.repeat(starts, counts)
        most = int(counts.max(initial=0))
        # chain_i = Σ word_j · M^(i-j) = M^i · Σ word_j · M^-j, all of it modulo 2⁶⁴.
        heaped = np.cumsum(words * _powers(pow(_FACTOR, -1, 1 << 64), most)[place])
        before = np.where(starts > 0, heaped[starts - 1], np.uint64(0))
        sums = heaped - np.repeat(before, counts)
        chains = (sums * _powers(_FACTOR, most)[place] & np.uint64(_MASK)).astype(np.int64)
        return cls(keys, sequences, chains)

    def ends(self) -> dict[int, tuple[int, int]]:
        """How many links each key has, and where its chain ends."""
        starts, counts = _groups(self.keys)
        last = self.chains[starts + counts - 1]
        ends = zip(counts.tolist(), last.tolist(), strict=True)
        return dict(zip(self.keys[starts].tolist(), ends, strict=True))

    def differing(self, other: ChainLinks) -> list[int]:
        """The keys whose links are not the same, in rising order."""
        counts, others = (dict(zip(*_counted(links.keys), strict=True)) for links in (self, other))
        odd = {key for key in {*counts, *others} if counts.get(key) != others.get(key)}
        one, two = self._without(odd), other._without(odd)
        wrong = (one.sequences != two.sequences) | (one.chains != two.chains)
        return sorted({*odd, *one.keys[wrong].tolist()})

    def _without(self, odd: set[int]) -> ChainLinks:
        kept = ~np.isin(self.keys, list(odd))
        return ChainLinks(self.keys[kept], self.sequences[kept], self.chains[kept])


def _groups(keys: Ints) -> tuple[Ints, Ints]:
    """Where each key begins in sorted keys, and how often it is there."""
    _, starts, counts = np.unique(keys, return_index=True, return_counts=True)
    return starts, counts


def _counted(keys: Ints) -> tuple[list[int], list[int]]:
    distinct, counts = np.unique(keys, return_counts=True)
    return distinct.tolist(), counts.tolist()


def _powers(base: int, count: int) -> npt.NDArray[np.uint64]:
    """base⁰ to base^(count-1), modulo 2⁶⁴."""
    powers = np.full(max(count, 1), base, np.uint64)
    powers[0] = 1
    return np.cumprod(powers)


def violations(
    expected: Mapping[int, ChainLinks], state: Mapping[int, Mapping[int, Any]], outputs: pa.Table
) -> list[str]:
    """Everything in which a run differs from the sequential fold: one sentence per key and source.

    Args:
        expected: The links of each origin.
        state: The final state of every key: per origin, how many links and where the chain ends.
        outputs: All that the sink took, in the order of arrival.
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
        """Whether anything differs."""
        return bool(self.violations)


class ConsistencyBench(Benchmark):
    """Move shards and change cores without pause, then compare with a sequential program.

    Two emulated nodes, two executors. The final state of every key and every output must be what a
    sequential fold of the same tuples gives. Exits with 1 if anything differs.
    """

    about = "consistency under moves"

    facts: ClassVar[tuple[str, ...]] = ()

    seconds: float = options.SECONDS(300.0, help="How long the sources send.", key="")
    rate: float = option(20_000.0, "Tuples per second in all.", min=1)
    keys: int = options.KEYS(10_000)
    sources: int = option(3, "How many sources there are.", min=1, key="sources")
    omega: float = option(30.0, "Key shuffles per minute.", min=0)
    seed: int = options.SEED(1, help="For tuples, moves and cores.")

    def measure(self, bench: Bench) -> ConsistencyFigures:
        """Run on two nodes, and show the first differences."""
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

        Args:
            cluster: With twice the cores that one executor may have, on every node.
            progress: Called again and again with the seconds since the start.

        Raises:
            BadValueError: Too few cores.
            Exception: Whatever made the run fail.
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
        topology.source(f"source-{n}", Numbered(generator, n))
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
