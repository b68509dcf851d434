"""`elasticutor sim`: the paper's cluster of 32 × 8 cores under virtual time, by the real core."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import typer

from elasticutor.cli.output import INTERRUPTED, note, print_json, print_table, progress_bar
from elasticutor.cli.pictures import require_drawing
from elasticutor.core.paradigm import ParadigmName
from elasticutor.errors import BadValueError
from elasticutor.lab.cli.declared import command_of
from elasticutor.lab.options import BadOptionError, Options, option, read_option

if TYPE_CHECKING:  # what is simulated is imported when it is needed: it takes a moment
    from elasticutor.lab.sim.cluster import SimulatedCluster
    from elasticutor.lab.sim.experiment import Experiment
    from elasticutor.lab.sim.report import Report
    from elasticutor.lab.sim.surge import Surge


class SimOptions(Options):
    """What is simulated; see `Experiment`."""

    paradigm: ParadigmName = option("elastic", "Ours, or one of its rivals.")
    nodes: int = option(32, "Machines.", min=1)
    cores: int = option(8, "Cores of each.", min=1)
    executors: int = option(32, "Elastic executors; static and rc have one per core.", min=1)
    shards: int = option(256, "Shards of each elastic executor.", min=1)
    upstreams: int = option(32, "Source processes.", min=1)
    omega: float = option(2.0, "Key shuffles per minute.", min=0)
    keys: int = option(10_000, "How many keys there are.", min=1)
    zipf: float = option(0.5, "Skew of the keys.", min=0)
    cost_ms: float = option(1.0, "Work per tuple.", min=0.001)
    cost_dist: Literal["constant", "exponential"] = option(
        "constant", "Whether all tuples take as long."
    )
    tuple_bytes: int = option(128, "Size of a tuple.", min=1)
    state_kb: float = option(32.0, "State of a shard.", min=0)
    seconds: float = option(60.0, "Simulated time to measure.", min=0.1)
    warmup: float = option(5.0, "Simulated seconds before that.", min=0)
    rate: str = option("max", "Tuples per second in all, or max: as many as are taken.")
    arrivals: Literal["poisson", "even"] = option(
        "poisson", "With a rate: due at random, or evenly as a Generator's."
    )
    bandwidth_gbps: float = option(1.0, "Of a node's link.", min=0.001)
    latency_us: float = option(100.0, "From node to node.", min=0)
    path_cost: float = option(
        1.0, "What messages cost, times what was measured live; 0: nothing.", min=0
    )
    message_us: float | None = option(
        None, "What one costs a main process at work, if not 20.", min=0
    )
    shared_cpus: bool = option(False, "What messages cost is taken from the nodes' cores.")
    startup_ms: float = option(30.0, "Start of a task's process.", min=0)
    balance_s: float = option(0.1, "Between looks at a balance.", min=0.001)
    schedule_s: float = option(1.0, "Between rounds of the scheduler, or of rc.", min=0.001)
    latency_target_ms: float = option(50.0, "The latency that the scheduler is to keep.", min=0.001)
    inside_ms: float = option(64.0, "Work per core that may wait inside an executor.", min=0.001)
    surge: str | None = option(
        None, "Load of the first executor, in cores: 1:8@10 goes from 1 to 8 at 10 s."
    )
    seed: int = option(1, "The same seed, the same run.", min=0)
    plot: Path | None = option(None, "Draw throughput and latency (.svg, .png, .pdf).")

    def experiment(self) -> Experiment:
        """The same as an experiment has it."""
        from elasticutor.lab.sim.experiment import Experiment
        from elasticutor.lab.sim.model.costs import Costs
        from elasticutor.lab.sim.model.machines import Machines

        costs = Costs().times(self.path_cost)
        if self.message_us is not None:
            costs = replace(costs, main=replace(costs.main, message_s=self.message_us * 1e-6))
        return Experiment(
            machines=Machines(
                nodes=self.nodes,
                cores=self.cores,
                bandwidth=self.bandwidth_gbps * 1e9 / 8,
                latency_s=self.latency_us * 1e-6,
                costs=costs,
                shared_cpus=self.shared_cpus,
                startup_s=self.startup_ms * 1e-3,
            ),
            cost_s=self.cost_ms * 1e-3,
            exponential=self.cost_dist == "exponential",
            state_bytes=round(self.state_kb * 1024),
            rate=read_option("--rate", self.rate, _rate, "max, or a number above 0"),
            warmup_s=self.warmup,
            latency_target_s=self.latency_target_ms * 1e-3,
            inside_s=self.inside_ms * 1e-3,
            surge=_surge(self.surge),
            **{name: getattr(self, name) for name in _SAME},
        )


_SAME = (
    *("paradigm", "executors", "shards", "upstreams", "keys", "zipf", "omega", "tuple_bytes"),
    *("arrivals", "seconds", "balance_s", "schedule_s", "seed"),
)
"""Options that an experiment has under the same names."""


def _sim(options: SimOptions, as_json: bool) -> None:
    """Run the paper's micro-benchmark on a simulated cluster, with the real core in it.

    Cores, links and processes are simulated; every decision is made by the code that makes it
    live. The defaults are those of the paper's section 5.1.
    """
    from elasticutor.lab.sim.cluster import SimulatedCluster
    from elasticutor.lab.sim.report import report

    require_drawing(options.plot)
    experiment = options.experiment()
    cluster = SimulatedCluster(experiment)
    interrupted = _run(cluster, as_json)
    found = report(cluster)
    if as_json:
        print_json(found.as_dict())
    else:
        machines = experiment.machines
        offered = "max" if math.isinf(experiment.rate) else f"{experiment.rate:,.0f}/s"
        title = (
            f"{found.paradigm}: {machines.nodes} × {machines.cores} cores, "
            f"ω = {experiment.omega:g}, offered {offered}, {found.seconds:g} s"
        )
        print_table(title, ("figure", "value"), _rows(found))
    if interrupted:
        raise typer.Exit(INTERRUPTED)
    if options.plot is not None:
        from elasticutor.lab.sim.plot import draw

        draw(options.plot, [found])
        note(f"drawn: {options.plot}")


sim = command_of(SimOptions, _sim)


def _run(cluster: SimulatedCluster, as_json: bool) -> bool:
    """Run it, and return whether it was interrupted."""
    experiment, length = cluster.experiment, cluster.experiment.end_s
    machines = experiment.machines
    try:
        with progress_bar(hidden=as_json) as progress:
            bar = progress.add_task("simulated seconds", total=round(length))
            note(
                f"simulating {length:g} s of {machines.nodes} × {machines.cores} cores, "
                f"{experiment.paradigm}"
            )
            cluster.run(lambda simulated: progress.update(bar, completed=int(simulated)))
    except KeyboardInterrupt:
        done = max(0.0, cluster.clock.now)
        note(f"interrupted after {done:.1f} of {length:g} simulated seconds; so far:")
        return True
    return False


def _rate(given: str) -> float:
    rate = math.inf if given == "max" else float(given)
    if not rate > 0 or (math.isinf(rate) and given != "max"):
        raise ValueError
    return rate


def _surge(given: str | None) -> Surge | None:
    from elasticutor.lab.sim.surge import Surge

    try:
        return None if given is None else Surge.parse(given)
    except BadValueError as error:
        raise BadOptionError("--surge", str(error)) from None


def _rows(found: Report) -> Iterator[tuple[str, str]]:
    yield "tuples a second", f"{found.throughput:,.0f}"
    yield "share of ideal", f"{found.ratio:.1%}"
    yield "most that the hottest key allows", f"{found.bound_ratio:.1%}"
    yield "sources held up", "yes" if found.saturated else "no"
    for name, number in (
        ("latency, mean", found.latency_mean_ms),
        ("latency, p50", found.latency_p50_ms),
        ("latency, p90", found.latency_p90_ms),
        ("latency, p99", found.latency_p99_ms),
    ):
        yield name, _with(number, ".2f" if number < 10 else ".1f", "ms")
    yield "CPU per tuple beyond its work", _with(found.cpu_beyond_ms, ".3f", "ms")
    yield "shards moved", f"{found.reassignments:,}"
    yield "cores moved", f"{found.core_moves:,}"
    yield "synchronisation of a move, p50", _with(found.sync_ms_p50, ".2f", "ms")
    yield "migration to another node, p50", _with(found.migration_ms_p50, ".2f", "ms")
    yield "recovery from a shuffle, median", _with(found.recovery_s, ".2f", "s")
    yield "state migrated", f"{found.state_migrated_mb_s:.2f} MB/s"
    yield "to and from remote tasks", f"{found.remote_mb_s:.2f} MB/s"
    if found.surge is not None:
        rounds = found.surge.rounds
        yield "rounds until the surge had its cores", "–" if rounds is None else f"{rounds}"
        yield "seconds until then", _with(found.surge.cores_s, ".2f", "s")
        yield "seconds until its backlog was gone", _with(found.surge.seconds, ".2f", "s")
    yield "wall time per simulated second", f"{found.wall_s_per_simulated_s:.2f} s"
    yield "events", f"{found.events:,}"


def _with(number: float, form: str, unit: str) -> str:
    return "–" if math.isnan(number) else f"{number:{form}} {unit}"
