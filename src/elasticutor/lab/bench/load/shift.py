"""`elasticutor bench latency --shift`: latency while the hot keys change, on emulated cores.

Eight cores that sleep for the time that their tuples take, keys after Zipf, and every few seconds
other keys are the hot ones. An elastic run beside a static one, whose keys stay where their hash
put them, and beside a peer with as many workers, which hashes them too; all get the same tuples at
the same due times, in turns. The figures: the median, the 99th percentile, and the worst second,
each over all tuples that were due after the warm-up, however late they came.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from elasticutor.driver.cluster import BaseCluster
from elasticutor.lab.bench.figures import Spread
from elasticutor.lab.bench.live import Machine, Progress, silent, spread_as_dict
from elasticutor.lab.bench.load.elastic import ElasticSetting, run_once
from elasticutor.lab.bench.peer.beside import (
    PEER,
    PeerSetting,
    PeerWork,
    best_of,
    described,
    run_peer,
)

FIGURES = ("p50_ms", "p99_ms", "worst_second_p50_ms", "worst_second_p99_ms")
"""What the figures have of each side."""

_TRIAL_S = 4.0
_TRIAL_WARM_UP_S = 1.0
_SHARES = ((1, 8), (2, 4), (8, 1))
"""How the peer's eight workers may be shared out: processes, and threads in each."""
_BATCHES = (1, 10)


@dataclass(frozen=True, slots=True)
class ShiftBench:
    """What was measured."""

    measured: dict[str, dict[str, list[float]]]
    """By side (elastic, static, and the peer if there was one) and figure: round by round."""
    setting: ElasticSetting
    machine: Machine
    peer: PeerSetting | None = None
    """The peer's best."""
    tried: tuple[dict[str, Any], ...] = ()

    @property
    def sides(self) -> list[str]:
        """Who was measured; elastic first."""
        return list(self.measured)

    def spread(self, side: str, figure: str) -> Spread:
        """A figure over the rounds."""
        return Spread.of(self.measured[side][figure])

    def ratio(self, other: str, figure: str) -> Spread:
        """Elastic over another side, by pairs of the same round."""
        pairs = zip(self.measured["elastic"][figure], self.measured[other][figure], strict=True)
        return Spread.of([ours / max(theirs, 1e-9) for ours, theirs in pairs])

    def as_dict(self) -> dict[str, Any]:
        """Everything, for `--json`."""
        figures: dict[str, Any] = {}
        for side in self.sides:
            figures[side] = {}
            for figure in FIGURES:
                figures[side] |= spread_as_dict(figure, self.spread(side, figure))
            if side != "elastic":
                for figure in FIGURES:
                    figures |= spread_as_dict(
                        f"{figure}_elastic_over_{side}", self.ratio(side, figure)
                    )
        setting = self.setting
        return {
            **figures,
            "offered_rows_s": round((setting.load or 0.0) * setting.ideal, 1),
            "load": setting.load,
            "emulated_cores": setting.nodes * setting.cores,
            "cost_ms": setting.cost_s * 1e3,
            "zipf": setting.zipf,
            "shuffle_every_s": 60 / setting.omega,
            "seconds": setting.seconds,
            **({} if self.peer is None else {"peer": described(self.peer)}),
            **({"tried": list(self.tried)} if self.tried else {}),
            **self.machine.as_dict(),
        }


def bench_shift(
    cluster: BaseCluster,
    setting: ElasticSetting,
    *,
    repeat: int = 3,
    beside: bool = False,
    progress: Progress = silent,
) -> ShiftBench:
    """Measure latency while hot keys change.

    Args:
        cluster: Where: all of its cores must be free, and its scheduler on.
        setting: What is run; `omega` says how often the hot keys change.
        repeat: How often, each time with processes and keys of its own.
        beside: Run the same on the peer, in turns.
        progress: Told about each run.
    """
    machine = Machine()
    peer, tried = _best(setting, progress) if beside else (None, [])

    def elastic(seed: int) -> dict[str, float]:
        return _ours(cluster, setting, "elastic", seed)

    def static(seed: int) -> dict[str, float]:
        return _ours(cluster, setting, "static", seed)

    sides: dict[str, Callable[[int], dict[str, float]]] = {"elastic": elastic, "static": static}
    if peer is not None:
        best = peer
        sides[PEER] = lambda seed: _theirs(setting, best, seed)
    measured: dict[str, dict[str, list[float]]] = {
        side: {figure: [] for figure in FIGURES} for side in sides
    }
    for number in range(repeat):
        turn = list(sides) if number % 2 == 0 else list(reversed(sides))
        for side in turn:
            progress(f"{side}, run {number + 1} of {repeat}")
            machine.glance()
            for figure, value in sides[side](number + 1).items():
                measured[side][figure].append(value)
    return ShiftBench(measured, setting, machine, peer, tuple(tried))


def _ours(
    cluster: BaseCluster, setting: ElasticSetting, paradigm: Any, seed: int
) -> dict[str, float]:
    run = run_once(cluster, setting, paradigm, seed)
    assert run.worst_second_p50_ms is not None
    assert run.worst_second_p99_ms is not None  # it has a rate
    found = (run.latency_p50_ms, run.latency_p99_ms, run.worst_second_p50_ms)
    return dict(zip(FIGURES, (*found, run.worst_second_p99_ms), strict=True))


def _best(setting: ElasticSetting, progress: Progress) -> tuple[PeerSetting, list[dict[str, Any]]]:
    trial = replace(setting, seconds=_TRIAL_S, warm_up_s=_TRIAL_WARM_UP_S)

    def latency(peer: PeerSetting) -> float:
        found = _theirs(trial, peer, 1)
        return math.sqrt(found["p50_ms"] * found["p99_ms"])

    workers = setting.nodes * setting.cores
    shares = _SHARES if workers == 8 else ((1, workers), (workers, 1))
    settings = [
        PeerSetting(processes, rows, threads) for processes, threads in shares for rows in _BATCHES
    ]
    return best_of(settings, latency, progress)


def _theirs(setting: ElasticSetting, peer: PeerSetting, seed: int) -> dict[str, float]:
    assert setting.load is not None
    total_s = setting.warm_up_s + setting.seconds
    work = PeerWork(
        "sleep",
        setting.cost_s,
        setting.keys,
        setting.zipf,
        seed,
        rate=setting.load * setting.ideal,
        seconds=total_s,
        payload=0,
        omega=setting.omega,
    )
    latency = run_peer(work, peer).latency(setting.warm_up_s, total_s)
    found = (latency.p50_ms, latency.p99_ms, latency.worst_p50_ms, latency.worst_p99_ms)
    return dict(zip(FIGURES, found, strict=True))
