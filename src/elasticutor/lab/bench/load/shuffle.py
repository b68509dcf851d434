"""`elasticutor bench shuffle`: how soon an executor has recovered from a shuffle of its keys.

Every few seconds the frequencies are shuffled among the keys, as in the paper's experiments (ω).
The load is a share of what can be done at all: by all emulated cores, and by the one core that the
hottest shard may have.

Recovery is the time from the shuffle to the first moment from which on, for a quarter of a second,
outputs come at no less than 95 % of the offered rate and their 99th percentile of latency is no
more than twice the steady one. Steady is the calmest second half of all periods: were it the one
before each shuffle, an executor that never recovers from the first would seem to recover at once
from the second. A shuffle that is not recovered from before the next counts as the whole period.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from elasticutor.core.keys import key_hashes, shards_of
from elasticutor.driver.cluster import BaseCluster
from elasticutor.lab.bench import options
from elasticutor.lab.bench.declare import Benchmark, Figures, Samples, figure, samples
from elasticutor.lab.bench.live import Bench, BenchError, chunks_of, notes, pipeline
from elasticutor.lab.bench.record import NotingSink, NotingSource, Recording
from elasticutor.lab.bench.work import Emulate
from elasticutor.lab.options import option
from elasticutor.sources import Generator

_SHARDS = 256
_TICK_S = 0.01
_STEP_S = 0.01
_HOLD_S = 0.25
_RATE_SHARE = 0.95
_LATENCY_FACTOR = 2.0


@dataclass(frozen=True, slots=True)
class ShuffleRecovery:
    """What followed one shuffle; times in seconds after it."""

    seconds: float
    """Until throughput and latency were normal; the whole period if they never were."""
    throughput_s: float
    latency_s: float
    worst_ms: float
    """The highest 99th percentile of latency of any quarter of a second."""
    settled: bool
    """Whether it was normal just before the shuffle; if not, the time is not this shuffle's own."""
    recovered: bool
    """Whether it was normal again before the next."""


class ShuffleFigures(Figures):
    """What was measured, over all shuffles."""

    recovery_s: Samples = samples("recovered after, s", ".2f", better="lower")
    throughput_recovery_s: Samples = samples("throughput recovered after, s", ".2f")
    latency_recovery_s: Samples = samples("latency recovered after, s", ".2f")
    worst_p99_ms: Samples = samples("p99 latency at worst, ms", ".0f", better="lower")
    steady_p99_ms: Samples = samples("p99 latency when steady, ms", ".0f")
    """In the calmest half period of each run."""
    unsettled: int = figure("not steady before the shuffle", default=0)
    unrecovered: int = figure("not recovered before the next", default=0)
    sync_ms: Samples = samples("shard held by a move, ms", ".1f")
    """Of each move: until its task had drained it."""
    moves: int = figure("shards moved", ",", default=0)
    offered_rows_s: float = figure("rows per second, offered", ",.0f", digits=3, default=0.0)

    recoveries_s: list[float] = figure(default_factory=list)
    shuffles: int = figure(default=0)

    def add(self, recovery: ShuffleRecovery) -> None:
        self.recovery_s.append(recovery.seconds)
        self.recoveries_s.append(round(recovery.seconds, 3))
        self.throughput_recovery_s.append(recovery.throughput_s)
        self.latency_recovery_s.append(recovery.latency_s)
        self.worst_p99_ms.append(recovery.worst_ms)
        self.shuffles += 1
        self.unsettled += not recovery.settled
        self.unrecovered += not recovery.recovered


class ShuffleBench(Benchmark):
    """How soon an executor has recovered when the frequencies of its keys are shuffled."""

    about = "shuffles of keys: {cores} emulated cores at {load:.0%}"

    cores: int = options.EMULATED(8)
    zipf: float = options.ZIPF(1.0)
    load: float = options.LOAD(0.7)
    cost_ms: float = options.COST_MS(2.0)
    chunk_ms: float = options.CHUNK_MS(10.0)
    every: float = option(4.0, "Seconds between two shuffles.", min=1, key="every_s")
    shuffles: int = option(8, "Shuffles in each run.", min=1)
    repeat: int = options.REPEAT(1)

    def measure(self, bench: Bench) -> ShuffleFigures:
        found = ShuffleFigures()
        with bench.cluster(self.cores) as cluster:
            for number in bench.runs(self.repeat, f"{self.shuffles} shuffles"):
                source = self._source(number)
                assert source.rate is not None
                found.offered_rows_s += source.rate / self.repeat
                recording = self._run(cluster, source, found)
                outputs = OutputTimes(recording, source.rate, self.every)
                found.steady_p99_ms.append(outputs.steady_s * 1e3)
                for shuffle in range(self.shuffles):
                    found.add(outputs.recovery((shuffle + 1) * self.every))
        found.sync_ms = found.sync_ms or [0.0]
        return found

    def _source(self, seed: int) -> Generator:
        """Tuples at the load's share of what can be done at all, after any shuffle."""
        seconds = (self.shuffles + 1) * self.every
        keys = Generator(rate=1.0, zipf=self.zipf, seed=seed)
        hottest = max(hottest_share(keys, shuffle) for shuffle in range(self.shuffles + 1))
        rate = self.load * min(self.cores, 1 / hottest) / (self.cost_ms / 1e3)
        omega = 60 / self.every
        return Generator(rate=rate, zipf=self.zipf, seed=seed, omega=omega, seconds=seconds)

    def _run(self, cluster: BaseCluster, source: Generator, found: ShuffleFigures) -> Recording:
        """What arrived when; notes how long each move held its shard."""
        work, cores = Emulate(self.cost_ms / 1e3), self.cores
        with notes() as folder:
            noting, sink = NotingSource(source, folder, _TICK_S), NotingSink(folder)
            topology = pipeline("shuffle", noting, work, sink, cores=cores, shards=_SHARDS)
            with cluster.submit(topology, config=chunks_of(self.chunk_ms / 1e3)) as run:
                run.wait(2 * (source.seconds or 0.0) + 60)
            recording = Recording.load(folder)
        expected = source.count()
        if recording.total != expected:
            raise BenchError("sink", f"have taken {expected} rows", recording.total)
        moved = run.events("shard moved")
        found.moves += len(moved)
        found.sync_ms += [event["sync_ms"] for event in moved]
        return recording


def hottest_share(generator: Generator, shuffle: int, shards: int = _SHARDS) -> float:
    """The share of all tuples that the hottest shard has after a number of shuffles."""
    weights = np.arange(1, generator.keys + 1, dtype=np.float64) ** -generator.zipf
    owners = shards_of(key_hashes(pa.array(generator.ranking(shuffle))), shards)
    return float(np.bincount(owners, weights / weights.sum()).max())


class OutputTimes:
    """What arrived when, and how old it was, of `rate` tuples due per second.

    The first shuffle is one period, `every_s`, after the start.
    """

    def __init__(self, recording: Recording, rate: float, every_s: float) -> None:
        arrived = recording.arrived_s
        # Outputs reach the sink in almost the order of the clock; windows want exactly it.
        order = np.argsort(arrived, kind="stable")
        self._arrived = arrived[order]
        self._latency = (arrived - recording.due_s)[order]
        self._rate = rate
        self._every_s = every_s
        half = every_s / 2
        ends = np.arange(1, int(recording.due_s.max() / every_s + 0.5) + 1) * every_s
        tails = [self._tail_s(end - half, end) for end in ends]
        self.steady_s = min(tails, default=np.inf)
        """The 99th percentile of latency in the calmest second half of a period."""

    def recovery(self, shuffle: float) -> ShuffleRecovery:
        """What followed a shuffle at a time."""
        every = self._every_s
        after = np.arange(0.0, every - _HOLD_S, _STEP_S)
        flows = np.array([self._flows(shuffle + start) for start in after])
        tails = np.array([self._tail_s(shuffle + t, shuffle + t + _HOLD_S) for t in after])
        calm = tails <= _LATENCY_FACTOR * self.steady_s
        good = flows & calm
        return ShuffleRecovery(
            seconds=_first(after, good, every),
            throughput_s=_first(after, flows, every),
            latency_s=_first(after, calm, every),
            worst_ms=float(tails[np.isfinite(tails)].max(initial=0.0)) * 1e3,
            settled=self._flows(shuffle - _HOLD_S)
            and self._tail_s(shuffle - _HOLD_S, shuffle) <= _LATENCY_FACTOR * self.steady_s,
            recovered=bool(good.any()),
        )

    def _flows(self, start: float) -> bool:
        first, last = self._places(start, start + _HOLD_S)
        return last - first >= _RATE_SHARE * self._rate * _HOLD_S

    def _tail_s(self, start: float, end: float) -> float:
        """The 99th percentile of latency of what arrived between two times."""
        first, last = self._places(start, end)
        return float(np.percentile(self._latency[first:last], 99)) if last > first else np.inf

    def _places(self, start: float, end: float) -> tuple[int, int]:
        first, last = np.searchsorted(self._arrived, (start, end))
        return int(first), int(last)


def _first(times: npt.NDArray[np.float64], good: npt.NDArray[np.bool_], otherwise: float) -> float:
    """The first time at which it is good; the whole period if it never is."""
    places = np.flatnonzero(good)
    return round(float(times[places[0]]), 6) if len(places) else otherwise
