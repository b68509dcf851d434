"""Runs seeds: one, to be replayed, or many, on all cores."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from elasticutor.errors import ElasticutorError
from elasticutor.lab.check.batches import QueryRun
from elasticutor.lab.check.scenario import draw
from elasticutor.lab.check.stream import TopologyRun
from elasticutor.lab.check.trace import Trace

# Shown first and always, in this order; others follow in the order of the alphabet.
_COUNTS = (
    "tuples",
    "moves",
    "moves_remote",
    "moves_at_epoch_end",
    "moves_during_flush",
    "moves_with_returned_tuples",
    "returned_tuples",
    "partial_results",
    "relocations",
    "epochs",
    "aborts",
    "aborts_mid_move",
    "rollbacks_after_prepare",
    "lost_tasks",
    "suspected_tasks",
    "lost_nodes",
    "lost_executors",
    "lost_drivers",
    "failures",
    "failed_writes",
    "cores_granted",
    "cores_taken",
    "chunks",
)


@dataclass(frozen=True, slots=True)
class SeedResult:
    """What one run came to."""

    seed: int
    violations: tuple[str, ...]
    counts: Counter[str]


@dataclass(slots=True)
class CheckResult:
    """What any number of runs came to."""

    seeds: int = 0
    failures: list[SeedResult] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0

    def add(self, result: SeedResult) -> None:
        """Count one run in."""
        self.seeds += 1
        self.counts += result.counts
        if result.violations:
            self.failures.append(result)

    @property
    def violations(self) -> int:
        """How many runs went wrong."""
        return len(self.failures)

    def as_dict(self) -> dict[str, Any]:
        """Everything, for `--json`."""
        known = {name: self.counts[name] for name in _COUNTS}
        others = {name: n for name, n in sorted(self.counts.items()) if name not in known}
        return {
            "seeds": self.seeds,
            "violations": self.violations,
            "failing_seeds": sorted(failure.seed for failure in self.failures),
            "seconds": round(self.seconds, 1),
            "tuples_per_seed": round(self.counts["tuples"] / max(1, self.seeds), 1),
            **known,
            **others,
        }


def run_seed(seed: int, trace: Trace | None = None) -> SeedResult:
    """Run one seed; the same seed always gives the same run."""
    scenario = draw(seed)
    run = (QueryRun if scenario.batches else TopologyRun)(scenario, trace)
    run.execute()
    counts = run.oracle.counts + Counter(tuples=scenario.tuples)
    return SeedResult(seed, tuple(run.oracle.violations), counts)


def run_seeds(
    seeds: Iterable[int],
    *,
    processes: int | None = None,
    until_failure: bool = False,
    patience_s: float = 300.0,
    progress: Callable[[CheckResult], None] = lambda result: None,
) -> CheckResult:
    """Run many seeds, and count what happened in them.

    Args:
        seeds: Which ones.
        processes: How many to use; 1 runs them in this one. Default: one per core.
        until_failure: Stop at the first seed that goes wrong.
        patience_s: How long to wait for the next result of another process. A seed takes a
            fraction of a second; but a process that is killed from outside never answers.
        progress: Called after every seed.
    """
    started = time.monotonic()
    result = CheckResult()
    for outcome in _outcomes(seeds, processes or os.cpu_count() or 1, patience_s):
        result.add(outcome)
        result.seconds = time.monotonic() - started
        progress(result)
        if until_failure and result.failures:
            break
    return result


def _outcomes(seeds: Iterable[int], processes: int, patience_s: float) -> Iterator[SeedResult]:
    if processes == 1:
        yield from map(run_seed, seeds)
        return
    pool = multiprocessing.get_context("spawn").Pool(processes, _ignore_interrupt)
    try:
        # Handed out in eights, by ourselves: results of the pool's own chunks have no time-out.
        left = iter(seeds)
        eights = iter(lambda: list(islice(left, 8)), [])
        results = pool.imap_unordered(_run_some, eights)
        while True:
            try:
                yield from results.next(timeout=patience_s)
            except StopIteration:
                return
            except multiprocessing.TimeoutError:
                raise ElasticutorError(
                    "checking processes",
                    f"finish a seed within {patience_s:g} s",
                    "no answer",
                    "one may have been killed, for want of memory say; try --processes 1",
                ) from None
    finally:
        pool.terminate()
        pool.join()


def _run_some(seeds: list[int]) -> list[SeedResult]:
    return [run_seed(seed) for seed in seeds]


def _ignore_interrupt() -> None:
    """Leave Ctrl-C to the parent, which ends the pool."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
