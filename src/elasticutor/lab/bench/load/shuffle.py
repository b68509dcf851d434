"""`elasticutor bench shuffle`: how soon an executor has recovered from a shuffle of its keys.

Every few seconds the frequencies are dealt out among the keys anew, as in the paper's experiments
(ω), so that what was balanced is not any more. The load is a share of what can be done at all: by
all cores, and by the one core that the hottest shard may have. The cores are emulated.

Recovery is the time from the shuffle to the first moment from which on, for a quarter of a second,
outputs come at no less than 95 % of the offered rate and their 99th percentile of latency is no
more than twice the steady one. Steady is the calmest second half of all periods: were it the one
before each shuffle, an executor that never recovers from the first would seem to recover at once
from the second. A shuffle that is not recovered from before the next counts as the whole period.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from elasticutor.core.keys import key_hashes, shards_of
from elasticutor.driver.cluster import BaseCluster
from elasticutor.errors import BadValueError
from elasticutor.lab.bench.figures import Spread
from elasticutor.lab.bench.live import BenchError, Machine, Progress, notes, silent, spread_as_dict
from elasticutor.lab.bench.record import NotingSink, NotingSource, Recording
from elasticutor.lab.bench.width import chunks_of
from elasticutor.lab.bench.work import Emulate
from elasticutor.sources import Generator
from elasticutor.topology import Topology

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
    """Until throughput and latency were normal."""
    throughput_s: float
    """Until throughput was."""
    latency_s: float
    """Until latency was."""
    worst_ms: float
    """The highest 99th percentile of latency of any quarter of a second."""
    settled: bool
    """Whether it was normal just before the shuffle; if not, the time is not this shuffle's own."""
    recovered: bool
    """Whether it was normal again before the next."""


@dataclass(frozen=True, slots=True)
class ShuffleBench:
    """What was measured."""

    recoveries: tuple[ShuffleRecovery, ...]
    steady_ms: Spread
    """The 99th percentile of latency in the calmest half period, of each run."""
    moves: int
    """Shards moved, in all runs."""
    sync_ms: Spread
    """Of each move: how long the shard was held until its task had drained it."""
    rate: float
    """Tuples per second offered."""
    load: float
    cores: int
    cost_ms: float
    chunk_ms: float
    zipf: float
    every_s: float
    machine: Machine

    @property
    def recovery_s(self) -> Spread:
        """Over all shuffles."""
        return Spread.of([recovery.seconds for recovery in self.recoveries])

    @property
    def unsettled(self) -> int:
        """Shuffles that came when it was not normal."""
        return sum(not recovery.settled for recovery in self.recoveries)

    @property
    def unrecovered(self) -> int:
        """Shuffles after which it was not normal again before the next."""
        return sum(not recovery.recovered for recovery in self.recoveries)

    def as_dict(self) -> dict[str, Any]:
        """Everything, for `--json`."""
        figures: dict[str, Any] = spread_as_dict("recovery_s", self.recovery_s)
        for name, figure in (
            ("throughput_s", "throughput_recovery_s"),
            ("latency_s", "latency_recovery_s"),
            ("worst_ms", "worst_p99_ms"),
        ):
            found = Spread.of([getattr(recovery, name) for recovery in self.recoveries])
            figures |= spread_as_dict(figure, found)
        figures |= spread_as_dict("steady_p99_ms", self.steady_ms)
        return {
            **figures,
            "recoveries_s": [round(recovery.seconds, 3) for recovery in self.recoveries],
            "shuffles": len(self.recoveries),
            "unsettled": self.unsettled,
            "unrecovered": self.unrecovered,
            "moves": self.moves,
            **spread_as_dict("sync_ms", self.sync_ms),
            "offered_rows_s": round(self.rate, 3),
            "load": self.load,
            "emulated_cores": self.cores,
            "cost_ms": self.cost_ms,
            "chunk_ms": self.chunk_ms,
            "zipf": self.zipf,
            "every_s": self.every_s,
            **self.machine.as_dict(),
        }


def bench_shuffle(
    cluster: BaseCluster,
    *,
    cores: int = 8,
    zipf: float = 1.0,
    load: float = 0.7,
    cost_ms: float = 2.0,
    chunk_ms: float = 10.0,
    every_s: float = 4.0,
    shuffles: int = 8,
    repeat: int = 1,
    progress: Progress = silent,
) -> ShuffleBench:
    """Measure how soon an executor has recovered from shuffles of its keys.

    Args:
        cluster: Where; it needs so many free cores.
        cores: Emulated cores of the executor.
        zipf: Skew of the keys, of which there are ten thousand.
        load: Offered rate over what the cores, or the hottest shard's core, could do at most.
        cost_ms: Time that a tuple takes.
        chunk_ms: Work that is handed to a task at once.
        every_s: Time between two shuffles.
        shuffles: How many of them in a run.
        repeat: How often, each time with processes of its own and other keys.
        progress: Told about each run.
    """
    if not 0 < load < 1:
        raise BadValueError("load", "be above 0 and below 1", load, "nothing recovers beyond")
    if every_s < 4 * _HOLD_S:
        raise BadValueError("every_s", f"be at least {4 * _HOLD_S:g} s", every_s)
    machine = Machine()
    recoveries: list[ShuffleRecovery] = []
    steadies: list[float] = []
    syncs: list[float] = []
    rates: list[float] = []
    for number in range(repeat):
        source = _source(number, zipf, cores, load, cost_ms / 1e3, every_s, shuffles)
        assert source.rate is not None
        rates.append(source.rate)
        progress(
            f"{shuffles} shuffles of {source.rate:,.0f} tuples/s, run {number + 1} of {repeat}"
        )
        machine.glance()
        recording, moved = _run(cluster, source, Emulate(cost_ms / 1e3), cores, chunk_ms / 1e3)
        syncs += moved
        outputs = OutputTimes(recording, source.rate, every_s)
        steadies.append(outputs.steady_s * 1e3)
        recoveries += [outputs.recovery((k + 1) * every_s) for k in range(shuffles)]
    return ShuffleBench(
        recoveries=tuple(recoveries),
        steady_ms=Spread.of(steadies),
        moves=len(syncs),
        sync_ms=Spread.of(syncs or [0.0]),
        rate=sum(rates) / repeat,
        load=load,
        cores=cores,
        cost_ms=cost_ms,
        chunk_ms=chunk_ms,
        zipf=zipf,
        every_s=every_s,
        machine=machine,
    )


def _source(
    seed: int,
    zipf: float,
    cores: int,
    load: float,
    cost_s: float,
    every_s: float,
    shuffles: int,
) -> Generator:
    """Tuples whose rate is the load's share of what can be done at all, whatever the shuffle."""
    seconds = (shuffles + 1) * every_s
    keys = Generator(rate=1.0, zipf=zipf, seed=seed)
    hottest = max(hottest_share(keys, shuffle) for shuffle in range(shuffles + 1))
    rate = load * min(cores, 1 / hottest) / cost_s
    omega = 60 / every_s
    return Generator(rate=rate, zipf=zipf, seed=seed, omega=omega, seconds=seconds)


def hottest_share(generator: Generator, shuffle: int, shards: int = _SHARDS) -> float:
    """The share of all tuples that the hottest shard has after so many shuffles.

    Example:
        >>> round(hottest_share(Generator(keys=10_000, zipf=1.0, seed=0), 0), 2)
        0.11
    """
    weights = np.arange(1, generator.keys + 1, dtype=np.float64) ** -generator.zipf
    owners = shards_of(key_hashes(pa.array(generator.ranking(shuffle))), shards)
    return float(np.bincount(owners, weights / weights.sum()).max())


def _run(
    cluster: BaseCluster, source: Generator, operator: Emulate, cores: int, chunk_s: float
) -> tuple[Recording, list[float]]:
    """What arrived when, and how long each move held its shard, in milliseconds."""
    assert source.seconds is not None
    with notes() as folder:
        topology = Topology("shuffle")
        stream = topology.source("tuples", NotingSource(source, folder, _TICK_S))
        worked = topology.operator("work", operator, stream, key="key", cores=cores, shards=_SHARDS)
        topology.sink("out", NotingSink(folder), worked)
        with cluster.submit(topology, config=chunks_of(chunk_s)) as run:
            run.wait(2 * source.seconds + 60)
        recording = Recording.load(folder)
    expected = source.count()
    if recording.total != expected:
        raise BenchError("sink", f"have taken {expected} rows", recording.total)
    return recording, [event["sync_ms"] for event in run.events("shard moved")]


class OutputTimes:
    """What arrived when, and how old it was.

    Args:
        recording: Of a run; each row says when it was due.
        rate: Tuples per second that were due.
        every_s: The period of the shuffles, the first of which is one period after the start.

    Example:
        Tuples due every millisecond; those due in the first half second after the shuffle at 4 s
        come when that half second is over.

        >>> due = np.arange(0, 8, 0.001)
        >>> arrived = np.where((due >= 4) & (due < 4.5), 4.5, due) + 0.01
        >>> outputs = OutputTimes(Recording(0.0, arrived, np.ones(8000, int), due), 1000.0, 4.0)
        >>> recovery = outputs.recovery(4.0)
        >>> recovery.seconds, recovery.settled, recovery.recovered, round(recovery.worst_ms)
        (0.52, True, True, 505)
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
            settled=self._normal(shuffle - _HOLD_S),
            recovered=bool(good.any()),
        )

    def _normal(self, start: float) -> bool:
        tail_s = self._tail_s(start, start + _HOLD_S)
        return self._flows(start) and bool(tail_s <= _LATENCY_FACTOR * self.steady_s)

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
