"""`elasticutor bench reassign`: a shard handed over under load, again and again, with a stopwatch.

One executor with two tasks, on one node or on two. One of its shards is filled with values of 1 KB,
and goes back and forth between the tasks; the times are those of the executor's own reports, split
into *sync* (from the label to when the source task has written what is dirty) and *migration*.

Meanwhile tuples fall due by the clock (`touches`). How old those of other shards are when they
reach the sink says whether a move is felt by others: every interval is a pair of windows, one that
begins with the move and one, half an interval later, without any; the ratio of their 99th
percentiles comes with an interval from resampling the pairs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import Any, TypeAlias

import numpy as np

from elasticutor.driver.cluster import BaseCluster
from elasticutor.driver.run import Run
from elasticutor.errors import BadValueError, ElasticutorError
from elasticutor.lab.bench import options
from elasticutor.lab.bench.declare import P50_P99, Benchmark, Figures, Samples, figure, samples
from elasticutor.lab.bench.live import OPERATOR, Bench, InterruptedBenchError, notes, pipeline
from elasticutor.lab.bench.moves.touches import (
    MOVED,
    SHARDS,
    TOUCH_MS,
    Scene,
    Touch,
    TouchLoad,
    Where,
)
from elasticutor.lab.bench.record import Floats, NotingSink, NotingSource, Recording
from elasticutor.lab.options import option, read_numbers

_WINDOW_S = 0.1
_WARM_UP = 4  # moves that do not count: the first writes everything that was loaded
_MOVE_TIMEOUT_S, _ASK_S = 60.0, 2.0
_LOAD_TIMEOUT_S = 60.0
_BEHIND_S, _TOO_FAR_S = 0.25, 2.0  # how far the source may be behind at first, and at the end
_TOO_BUSY = "the machine is too busy for this load: try a smaller one"
_RESAMPLED = 2000

Window: TypeAlias = tuple[float, float]
Pair: TypeAlias = tuple[Window, Window]
"""With a move, and without."""


class Reassignment(Figures):
    """What was measured in one scene."""

    scene: Scene
    moves: int = figure(default=0)
    sync_ms: Samples = samples("sync ms (p99)", ".2f", shows=P50_P99, better="lower")
    migration_ms: Samples = samples("migr. ms (p99)", ".2f", shows=P50_P99, better="lower")
    bytes: int = figure(default=0)
    """State that travelled with a move, at the median; of it, those that tuples waited for:"""
    bytes_held: int = figure(default=0)
    bystander_p99_ms_steady: float = figure("others p99 ms", ".1f", digits=3, default=0.0)
    bystander_p99_ms_moving: float = figure("moving", ".1f", digits=3, default=0.0)
    bystander_p99_ratio: float = figure("ratio", ".2f", better="lower", default=1.0)
    """Of the two, with the bounds of its 95 % interval."""
    bystander_p99_ratio_low: float = figure("from", ".2f", default=1.0)
    bystander_p99_ratio_high: float = figure("to (95 %)", ".2f", default=1.0)

    def heading(self) -> str:
        return str(self.scene)

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self.scene), **super().as_dict()}

    def add(self, event: dict[str, Any]) -> None:
        """One more move, as the executor reports it."""
        self.moves += 1
        self.sync_ms.append(event["sync_ms"])
        self.migration_ms.append(event["migration_ms"] if event["remote"] else 0.0)

    def compare(self, moving: Sequence[Floats], steady: Sequence[Floats], seed: int) -> None:
        """Take the ages of bystanders in pairs of windows, with moves and without."""
        self.bystander_p99_ms_moving = _p99(moving) * 1e3
        self.bystander_p99_ms_steady = _p99(steady) * 1e3
        (
            self.bystander_p99_ratio,
            self.bystander_p99_ratio_low,
            self.bystander_p99_ratio_high,
        ) = ratio_of_p99(moving, steady, seed)


class ReassignFigures(Figures):
    """What was measured, scene by scene."""

    scenes: list[Reassignment] = figure("scene", default_factory=list)


class ReassignBench(Benchmark):
    """Hand a shard over under load: how long it waits, and whether the others notice.

    Both within a node and between two, unless one of --local and --remote is given alone. Nodes
    are emulated on this machine: directories and sockets of their own, encrypted TCP between them.
    """

    about = "hand-over of one shard under load, and the p99 of tuples of other shards"
    facts = ()

    state_kb: str = option(
        "0.1,32,1024,32768", "Sizes of the shard that moves, in KB, with commas between them."
    )
    local: bool = option(False, "Only within a node.")
    remote: bool = option(False, "Only between two nodes.")
    row_ms: str = option(
        f"{TOUCH_MS:g},1", "What a tuple of another shard costs; touches cost 0.1 ms."
    )
    load: float = option(0.5, "How busy each of the two tasks is.")
    moves: int = option(40, "Moves to time in each scene.", min=5)
    seed: int = options.SEED(1)

    def check(self) -> None:
        self.scenes()

    def scenes(self) -> list[Scene]:
        """What is measured, one after the other."""
        wheres: dict[Where, bool] = {"local": self.local, "remote": self.remote}
        both = self.local == self.remote
        return [
            Scene(size, where, cost, self.load)
            for size in read_numbers("--state-kb", self.state_kb)
            for where, asked in wheres.items()
            for cost in read_numbers("--row-ms", self.row_ms)
            if asked or both
        ]

    def as_dict(self, found: Figures, bench: Bench) -> Any:
        """A list of the scenes, for `--json`."""
        return found.as_dict()["scenes"]

    def measure(self, bench: Bench) -> ReassignFigures:
        found, scenes = ReassignFigures(), self.scenes()
        try:
            with bench.cluster(2, 2) as cluster:
                for scene in scenes:
                    bench.say(str(scene))
                    try:
                        found.scenes.append(self.on(cluster, scene, bench))
                    except ElasticutorError as error:  # the other scenes are none the worse for it
                        bench.note(f"  failed: {error}")
        except KeyboardInterrupt as interruption:
            reason = f"interrupted after {len(found.scenes)} of {len(scenes)} scenes; so far:"
            raise InterruptedBenchError(found, reason) from interruption
        return found

    def on(self, cluster: BaseCluster, scene: Scene, bench: Bench) -> Reassignment:
        """Move a shard back and forth under load: between two nodes, or on one with two cores.

        An `ElasticutorError` if a move does not come to its end, or the source cannot keep up.
        """
        if scene.where == "remote" and len(cluster.nodes) < 2:
            raise BadValueError("cluster", "have two nodes for a remote hand-over", cluster.nodes)
        found = Reassignment(scene=scene)
        with notes() as folder:
            source, sink = NotingSource(TouchLoad(scene, self.seed), folder), NotingSink(folder)
            work = Touch(scene.value_bytes)
            topology = pipeline("reassign", source, work, sink, cores=2, shards=SHARDS)
            with cluster.submit(topology, balance_s=0, keep=True) as run:
                if scene.where == "remote":
                    first, second, *_ = sorted(cluster.nodes)
                    run.set_cores(OPERATOR, 0, {first: 1, second: 1})
                moved = [*self._moved(run, scene, bench)][_WARM_UP:]
                behind = run.metrics().behind_s
                run.drain()
            if behind > _TOO_FAR_S:
                raise ElasticutorError("source", "keep up", f"{behind:.2f} s behind", _TOO_BUSY)
            ages = _ages_within(Recording.load(folder))
        for event, _ in moved:
            found.add(event)
        found.bytes, found.bytes_held = (
            int(np.median([event[name] for event, _ in moved])) for name in ("bytes", "bytes_held")
        )
        moving, steady = ([ages(pair[which]) for _, pair in moved] for which in (0, 1))
        found.compare(moving, steady, self.seed)
        return found

    def _moved(self, run: Run, scene: Scene, bench: Bench) -> Iterator[tuple[dict[str, Any], Pair]]:
        """Move the shard in every interval; yields each report, with its pair of windows."""
        _await_loaded(run, scene)
        one, two = sorted(run.tasks(OPERATOR, 0))
        if _move(run, two, timeout_s=10.0) is None and _move(run, one) is None:
            raise ElasticutorError("shard", "move", "no report of it")
        for number in range(1 - _WARM_UP, self.moves + 1):
            asked = time.time()
            target = one if run.events("shard moved")[-1]["destination"] == two else two
            event = _move(run, target)
            if event is None:
                within = f"end within {_MOVE_TIMEOUT_S:g} s"
                raise ElasticutorError("move", within, "no report of it")
            steady = max(asked + scene.interval_s / 2, event["time"] + 0.01)
            moving = asked, max(asked + _WINDOW_S, event["time"])
            yield event, (moving, (steady, steady + _WINDOW_S))
            bench.tick(f"{scene}: {max(0, number)} of {self.moves} moves")
            _pause_until(max(asked + scene.interval_s, steady + _WINDOW_S))


def _await_loaded(run: Run, scene: Scene) -> None:
    """Wait until the shard has its values, and the load is steady."""
    until = time.monotonic() + _LOAD_TIMEOUT_S
    enough = scene.keys + scene.touches_s
    while (seen := run.metrics()).rows_in < enough or seen.behind_s > _BEHIND_S:
        if time.monotonic() > until:
            got = f"{seen.rows_in} rows, {seen.behind_s:.2f} s behind"
            raise ElasticutorError(
                "source", f"keep up within {_LOAD_TIMEOUT_S:g} s", got, _TOO_BUSY
            )
        _pause_until(time.time() + 0.05)


def _pause_until(at: float) -> None:
    time.sleep(max(0.0, at - time.time()))


def _move(run: Run, task: int, timeout_s: float = _MOVE_TIMEOUT_S) -> dict[str, Any] | None:
    """Move the shard; returns the report, or None if there is none: the task may have it."""
    before = len(run.events("shard moved"))
    until, ask_at = time.monotonic() + timeout_s, 0.0
    while time.monotonic() < until:
        if time.monotonic() >= ask_at:
            # Again and again, for it is refused as long as the last move's old copy is there.
            ask_at = time.monotonic() + _ASK_S
            run.move(OPERATOR, 0, MOVED, task)
        for event in run.events("shard moved")[before:]:
            if event["destination"] == task:
                return event
        _pause_until(time.time() + 0.005)
    return None


def _ages_within(recording: Recording) -> Callable[[Window], Floats]:
    """How old the bystanders that were due in a window were at the sink."""
    order = np.argsort(recording.due_s, kind="stable")
    due_s = recording.due_s[order]
    ages = recording.began + recording.arrived_s[order] - due_s
    return lambda window: ages[slice(*np.searchsorted(due_s, window))]


def _p99(windows: Sequence[Floats]) -> float:
    return float(np.percentile(np.concatenate(windows), 99))


def ratio_of_p99(
    moving: Sequence[Floats], steady: Sequence[Floats], seed: int
) -> tuple[float, float, float]:
    """The ratio of two 99th percentiles, and its 95 % interval by resampling pairs of windows."""
    rng = np.random.default_rng(seed)
    pairs = len(moving)
    ratios = []
    for _ in range(_RESAMPLED):
        drawn = rng.integers(0, pairs, pairs)
        ratios.append(_p99([moving[n] for n in drawn]) / _p99([steady[n] for n in drawn]))
    low, high = np.percentile(ratios, (2.5, 97.5))
    middle = _p99(moving) / _p99(steady)
    return round(middle, 3), round(float(low), 3), round(float(high), 3)
