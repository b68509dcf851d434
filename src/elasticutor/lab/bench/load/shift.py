"""`elasticutor bench latency --shift`: latency while the hot keys change, on emulated cores.

Eight cores that sleep for the time that their tuples take, keys after Zipf, and every few seconds
other keys are the hot ones. An elastic run beside a static one, whose keys stay where their hash
put them, and beside a peer with as many workers, which hashes them too; all get the same tuples at
the same due times, in turns. The figures: the median, the 99th percentile, and the worst second,
each over all tuples that were due after the warm-up, however late they came.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from elasticutor.core.paradigm import ParadigmName
from elasticutor.lab.bench.declare import Figures, Samples, figure, percentiles, ratios, samples
from elasticutor.lab.bench.live import Bench
from elasticutor.lab.bench.load.elastic import ElasticBench
from elasticutor.lab.bench.load.emulated import run_once
from elasticutor.lab.bench.peer import beside as peers
from elasticutor.lab.bench.record import Latency

_PARADIGMS: tuple[ParadigmName, ...] = ("elastic", "static")
_SHARES = ((1, 8), (2, 4), (8, 1))
"""How the peer's eight workers may be shared out: processes, and threads in each."""
_BATCHES = (1, 10)


class SideFigures(Figures):
    """What one side had, round by round."""

    p50_ms: Samples = samples("p50", ",.1f", better="lower")
    p99_ms: Samples = samples("p99", ",.1f", better="lower")
    worst_second_p50_ms: Samples = samples("worst second, p50", ",.1f", better="lower")
    worst_second_p99_ms: Samples = samples("worst second, p99", ",.1f", better="lower")

    def add(self, latency: Latency) -> None:
        for name, values in vars(self).items():
            values.append(getattr(latency, name))


class ShiftFigures(Figures):
    """Elastic, static, and the peer if there was one."""

    setting: ElasticBench
    sides: dict[str, SideFigures] = figure("side", default_factory=dict)
    peer: peers.Beside | None = None

    def as_dict(self) -> dict[str, Any]:
        found: dict[str, Any] = {side: figures.as_dict() for side, figures in self.sides.items()}
        elastic, *others = self.sides
        for other in others:
            for name, ours in vars(self.sides[elastic]).items():
                theirs = getattr(self.sides[other], name)
                found |= percentiles(f"{name}_{elastic}_over_{other}", ratios(ours, theirs))
        setting = self.setting
        if self.peer is not None:
            found["peer"] = peers.described(self.peer.setting)
            found["tried"] = self.peer.tried
        return {
            **found,
            "offered_rows_s": round(setting.offered or 0.0, 1),
            "load": setting.load,
            "emulated_cores": setting.nodes * setting.cores,
            "cost_ms": setting.cost_s * 1e3,
            "zipf": setting.zipf,
            "shuffle_every_s": 60 / setting.omega,
            "seconds": setting.seconds,
        }

    def remarks(self) -> Iterator[str]:
        if self.peer is not None:
            yield from self.peer.remarks()


def measure_shift(
    bench: Bench, setting: ElasticBench, repeat: int, *, with_peer: bool = False
) -> ShiftFigures:
    """Measure latency while hot keys change, in turns with the peer if there is to be one."""
    found = ShiftFigures(setting=setting, peer=_best(setting, bench) if with_peer else None)
    sides: tuple[Any, ...] = (*_PARADIGMS, peers.PEER) if with_peer else _PARADIGMS
    found.sides = {side: SideFigures() for side in sides}
    with bench.cluster(setting.cores, setting.nodes, schedule_s=1.0) as cluster:
        for number, side in bench.turns(repeat, sides):
            if found.peer is not None and side == peers.PEER:
                seen: Latency | None = _theirs(setting, found.peer.setting, number + 1)
            else:
                seen = run_once(cluster, setting, side, number + 1).latency
            assert seen is not None  # tuples say when they were due
            found.sides[side].add(seen)
    return found


def _best(setting: ElasticBench, bench: Bench) -> peers.Beside:
    trial = replace(setting, **peers.TRIAL)

    def latency(peer: peers.PeerSetting) -> float:
        found = _theirs(trial, peer, 1)
        return math.sqrt(found.p50_ms * found.p99_ms)

    settings = [
        peers.PeerSetting(processes, rows, threads)
        for processes, threads in _SHARES
        for rows in _BATCHES
    ]
    return peers.best_of(settings, latency, bench)


def _theirs(setting: ElasticBench, peer: peers.PeerSetting, seed: int) -> Latency:
    total_s = setting.warm_up + setting.seconds
    work = peers.PeerWork("sleep", setting.tuples(seed, total_s), setting.cost_s)
    return peers.run_peer(work, peer).latency(setting.warm_up, total_s)
