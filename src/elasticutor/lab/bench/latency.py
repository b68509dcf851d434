"""`elasticutor bench latency`: how old a tuple is when its output is with the sink.

Every tuple burns CPU time, as the paper's do (1 ms); tuples fall due by the clock, at a share of
what the tasks could do at most. Latency counts from when a tuple was due, whether or not there was
time to send it then. Beside a peer, runs of both take turns, with the same keys, costs and due
times. Load that shifts: `lab.bench.load.shift`.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from elasticutor.driver.cluster import BaseCluster
from elasticutor.lab.bench import options
from elasticutor.lab.bench.declare import Benchmark, Figures, Samples, figure, samples
from elasticutor.lab.bench.live import Bench, measured, notes, pipeline
from elasticutor.lab.bench.load.elastic import ElasticBench
from elasticutor.lab.bench.load.shift import measure_shift
from elasticutor.lab.bench.peer import beside as peers
from elasticutor.lab.bench.record import Latency
from elasticutor.lab.bench.work import Burn
from elasticutor.lab.options import BadOptionError, option
from elasticutor.sinks import NoSink
from elasticutor.sources import Generator

PERCENTILES = ("p50_ms", "p90_ms", "p99_ms", "p999_ms")
"""What the figures have of a latency, as `Latency` calls them."""

_BATCHES = (1, 10, 100)
_ABOUT_SHIFT = "latency, hot keys change every {every:g} s: 8 emulated cores at {load:.0%}, ms"


class LatencyFigures(Figures):
    """What was measured, over all runs."""

    p50_ms: Samples = samples("p50, ms", ".2f", better="lower")
    p90_ms: Samples = samples("p90, ms", ".2f", better="lower")
    p99_ms: Samples = samples("p99, ms", ".2f", better="lower")
    p999_ms: Samples = samples("p99.9, ms", ".2f", better="lower")
    rows_s: Samples = samples("rows per second", ",.0f")
    offered_rows_s: float = figure("rows per second, offered", ",.0f", digits=3)
    behind_s: float = figure("source behind at worst, s", ".3f", digits=4, default=0.0)
    beside: peers.Beside | None = figure("peer", omit_none=True, default=None)


class LatencyBench(Benchmark):
    """How old tuples are when their outputs are with the sink; each burns real CPU time.

    With --beside, the peer gets the same tuples at the same times, and its settings are tried out
    first. With --shift, time is slept instead, so that eight cores fit on any machine.
    """

    about = "latency: {cost_ms:g} ms of CPU per tuple, {cores} tasks at {load:.0%}"

    cost_ms: float = options.COST_MS(1.0)
    load: float = options.LOAD(0.6)
    cores: int = options.CORES(2)
    seconds: float = options.SECONDS(20.0)
    warm_up: float = options.WARM_UP(5.0)
    repeat: int = options.REPEAT(3)
    beside: str = options.BESIDE("")
    checkpoint: bool = options.CHECKPOINT(False)
    shift: bool = option(
        False, "Instead: 8 emulated cores, and hot keys that change; elastic beside static."
    )
    every: float = option(5.0, "With --shift: seconds until other keys are hot.", min=0.5)
    zipf: float = option(1.0, "With --shift: skew of the keys.", min=0)

    def title(self) -> str:
        return (_ABOUT_SHIFT if self.shift else self.about).format(**vars(self))

    def check(self) -> None:
        peers.require_peer(self.beside)
        if self.shift and self.checkpoint:
            raise BadOptionError("--checkpoint", "not together with --shift")

    def given(self) -> dict[str, Any]:
        """The options; with --shift, the figures have their own."""
        return {} if self.shift else super().given()

    def measure(self, bench: Bench) -> Figures:
        if self.shift:
            return measure_shift(bench, self.shifting(), self.repeat, with_peer=bool(self.beside))
        found = LatencyFigures(offered_rows_s=self.load * self.cores / (self.cost_ms / 1e3))
        peer = found.beside = self._best(bench) if self.beside else None
        with bench.cluster(self.cores) as cluster:
            sides = ("ours", peers.PEER) if self.beside else ("ours",)
            for number, side in bench.turns(self.repeat, sides):
                if side == "ours":
                    self._run(cluster, number, found)
                elif peer is not None:
                    theirs = self._run_peer(peer.setting, number)
                    for name in PERCENTILES:
                        peer.theirs.setdefault(name, []).append(getattr(theirs, name))
        if peer is not None:
            peer.ours = {name: getattr(found, name) for name in PERCENTILES}
        return found

    def shifting(self) -> ElasticBench:
        """With --shift: what is run on eight emulated cores."""
        return ElasticBench(
            nodes=2,
            cores=4,
            cost=f"sleep:{self.cost_ms:f}ms",
            load=self.load,
            omega=60 / self.every,
            zipf=self.zipf,
            seconds=self.seconds,
            warm_up=self.warm_up,
        )

    def _tuples(self, seed: int, seconds: float | None = None) -> Generator:
        rate = self.load * self.cores / (self.cost_ms / 1e3)
        return Generator(rate=rate, seed=seed, seconds=seconds)

    def _run(self, cluster: BaseCluster, seed: int, found: LatencyFigures) -> None:
        work = Burn(self.cost_ms / 1e3)
        topology = pipeline("latency", self._tuples(seed), work, NoSink(), cores=self.cores)
        with notes() as folder:
            durable = folder / "checkpoint" if self.checkpoint else None
            with cluster.submit(topology, checkpoint=durable, epoch_interval=peers.EPOCH_S) as run:
                seen = measured(run, self.warm_up, self.seconds)
                run.cancel()
        found.behind_s = max(found.behind_s, seen.behind_s)
        found.rows_s.append(seen.rows_s)
        for name, percent in zip(PERCENTILES, (50, 90, 99, 99.9), strict=True):
            getattr(found, name).append(seen.metrics.latency.percentile_s(percent) * 1e3)

    def _best(self, bench: Bench) -> peers.Beside:
        """The peer's setting with the lowest latency: p50 and p99 count alike."""
        trial = replace(self, **peers.TRIAL)

        def latency(setting: peers.PeerSetting) -> float:
            found = trial._run_peer(setting, 0)
            return math.sqrt(found.p50_ms * found.p99_ms)

        settings = peers.settings_of(self.cores, _BATCHES, self.checkpoint)
        return peers.best_of(settings, latency, bench)

    def _run_peer(self, setting: peers.PeerSetting, seed: int) -> Latency:
        total_s = self.warm_up + self.seconds
        work = peers.PeerWork("burn", self._tuples(seed, total_s), self.cost_ms / 1e3)
        return peers.run_peer(work, setting).latency(self.warm_up, total_s)
