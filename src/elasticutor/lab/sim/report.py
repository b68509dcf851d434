"""Reports a run on a simulated cluster: its figures, and how it recovered from shuffles."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from statistics import fmean, median
from typing import Any

from elasticutor.lab.sim.cluster import SimulatedCluster
from elasticutor.lab.sim.recorder import BIN_S, Bin
from elasticutor.lab.sim.surge import SurgeOutcome

RECOVERED = 0.95
"""The share of the steady throughput at which a shuffle has been recovered from …"""

HOLD_S = 2.0
"""… on average over this time, or half of the time until the next shuffle if that is less."""

STEADY_S = 2.0
"""The time before a shuffle that says what is steady."""

BEHIND_S = 0.1
BLOCKED_SHARE = 0.05
"""Sources that end further behind, or were blocked for longer, could not send what they had."""

_MB = 1e6
_TINY_S = 1e-6


@dataclass(frozen=True, slots=True)
class Report:
    """The figures of one run; times are simulated but for those of the wall."""

    paradigm: str
    seconds: float
    """Measured."""
    throughput: float
    """Tuples per second."""
    ideal: float
    """The same if all cores were busy all the time."""
    ratio: float
    """Throughput, of the ideal."""
    bound: float
    """The same if the hottest key's core were busy all the time, and all else followed it."""
    bound_ratio: float
    """The hottest key's bound, of the ideal."""
    saturated: bool
    """Whether sources had more than they could send."""
    latency_mean_ms: float
    latency_p50_ms: float
    latency_p90_ms: float
    latency_p99_ms: float
    cpu_beyond_ms: float
    """CPU time that messages cost, per tuple: of sources, main processes, tasks and sinks."""
    reassignments: int
    """Shards that have moved."""
    core_moves: int
    sync_ms_p50: float
    migration_ms_p50: float
    """Of moves to another node."""
    recovery_s: float
    """From a shuffle until throughput is normal again; the median, infinite if most were not."""
    recoveries_s: tuple[float, ...]
    """From each shuffle; NaN if it was not before the next."""
    state_migrated_mb_s: float
    remote_mb_s: float
    """Tuples and results to and from tasks on other nodes."""
    surge: SurgeOutcome | None
    timeline: tuple[Bin, ...]
    wall_s: float
    wall_s_per_simulated_s: float
    events: int
    seed: int

    def as_dict(self) -> dict[str, Any]:
        """Everything, for `--json`; null stands for what there is not."""
        figures: dict[str, Any] = {}
        for name in (field.name for field in fields(self)):
            figure = getattr(self, name)
            if name != "surge":
                figures[_RENAMED.get(name, name)] = _plain(figure, _DIGITS.get(name, 3))
            elif figure is not None:
                figures |= _plain(figure.as_dict(), 3)
        return figures


_RENAMED = {"cpu_beyond_ms": "cpu_beyond_ms_per_tuple"}
_FOUR_DIGITS = ("ratio", "bound_ratio", "cpu_beyond_ms", "wall_s_per_simulated_s")
_DIGITS = {**dict.fromkeys(_FOUR_DIGITS, 4), "recoveries_s": None}
"""3 of all others; None: as they are."""


def report(cluster: SimulatedCluster) -> Report:
    """Returns the figures of a run so far; after its end, of all of it."""
    experiment, recorder = cluster.experiment, cluster.recorder
    seconds = len(recorder.measured) * BIN_S
    moved = recorder.measured_moves
    far = [one for one in moved if one.remote]
    bound = 1.0 / experiment.cost_s / float(cluster.space.weights[0])
    shuffles = [at - experiment.warmup_s for at in cluster.shuffles]
    recovered = recoveries(shuffles, recorder.measured, min(experiment.ideal, bound))
    blocked = sum(upstream.blocked_s for upstream in cluster.upstreams)
    simulated = max(cluster.clock.now, BIN_S)
    throughput = _per(recorder.done, seconds)
    return Report(
        paradigm=experiment.paradigm,
        seconds=seconds,
        throughput=throughput,
        ideal=experiment.ideal,
        ratio=throughput / experiment.ideal,
        bound=bound,
        bound_ratio=bound / experiment.ideal,
        saturated=blocked > BLOCKED_SHARE * simulated * len(cluster.upstreams)
        or max(upstream.behind_s() for upstream in cluster.upstreams) > BEHIND_S,
        latency_mean_ms=recorder.latency.mean_s * 1e3,
        latency_p50_ms=recorder.latency.percentile_s(50) * 1e3,
        latency_p90_ms=recorder.latency.percentile_s(90) * 1e3,
        latency_p99_ms=recorder.latency.percentile_s(99) * 1e3,
        cpu_beyond_ms=_per(cluster.measured_path_s * 1e3, recorder.done),
        reassignments=sum(one.shards for one in moved),
        core_moves=recorder.core_moves,
        sync_ms_p50=_median(one.sync_s * 1e3 for one in moved),
        migration_ms_p50=_median(one.migration_s * 1e3 for one in far),
        recovery_s=_median(math.inf if math.isnan(s) else s for s in recovered),
        recoveries_s=tuple(recovered),
        state_migrated_mb_s=_per(sum(one.size for one in moved) / _MB, seconds),
        remote_mb_s=_per(recorder.remote_bytes / _MB, seconds),
        surge=cluster.surge.result() if cluster.surge else None,
        timeline=tuple(recorder.measured),
        wall_s=cluster.wall_s,
        wall_s_per_simulated_s=cluster.wall_s / simulated,
        events=cluster.clock.events,
        seed=experiment.seed,
    )


def recoveries(
    shuffles: Sequence[float], moments: Sequence[Bin], most: float = math.inf
) -> list[float]:
    """Returns how long after each shuffle throughput was normal; NaN if not before the next.

    Steady is the median of the two seconds before a shuffle, and of all shuffles the highest: after
    one that was never recovered from, what comes before the next is not steady. It is no more than
    what can last: queues that fill up may take more for a while. It is normal again at the first
    moment from which on the mean of two seconds is 95 % of that: a saturated cluster's throughput
    varies by a tenth from bin to bin, and often the dip comes later than the shuffle. A shuffle
    that costs nothing is recovered from at once.
    """
    end = moments[-1].time_s if moments else 0.0
    past = [at for at in shuffles if at < end]
    before = [
        [m.throughput for m in moments if -STEADY_S - _TINY_S < m.time_s - at <= _TINY_S]
        for at in past
    ]
    medians = [median(levels) for levels in before if levels]
    if not medians:
        return []
    enough = RECOVERED * min(max(medians), most)
    found = []
    for at, until in zip(past, [*past[1:], end], strict=True):
        after = [m for m in moments if at + _TINY_S < m.time_s <= until + _TINY_S]
        hold = max(1, min(round(HOLD_S / BIN_S), len(after) // 2))
        levels = [moment.throughput for moment in after]
        means = [fmean(levels[n : n + hold]) for n in range(len(levels) - hold + 1)]
        first = next((n for n, level in enumerate(means) if level >= enough), None)
        found.append(math.nan if first is None else max(0.0, after[first].time_s - BIN_S - at))
    return found


def _plain(figure: Any, digits: int | None) -> Any:
    """Returns a figure, or any number of them, as JSON has it."""
    match figure:
        case float():
            rounded = figure if digits is None else round(figure, digits)
            return rounded if math.isfinite(figure) else None
        case Bin():
            return _plain(asdict(figure), digits)
        case dict():
            return {name: _plain(one, digits) for name, one in figure.items()}
        case tuple():
            return [_plain(one, digits) for one in figure]
    return figure


def _per(amount: float, seconds: float) -> float:
    return amount / seconds if seconds > 0 else 0.0


def _median(numbers: Iterable[float]) -> float:
    found = list(numbers)
    return median(found) if found else math.nan
