"""`elasticutor sim`: the paper's cluster of 32 × 8 cores under virtual time, by the real core."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from elasticutor.cli.output import note, out, print_json, progress_bar
from elasticutor.cli.pictures import require_drawing
from elasticutor.errors import BadValueError

if TYPE_CHECKING:  # what is simulated is imported when it is needed: it takes a moment
    from elasticutor.lab.sim.cluster import SimulatedCluster
    from elasticutor.lab.sim.experiment import Experiment
    from elasticutor.lab.sim.model.costs import Costs
    from elasticutor.lab.sim.report import Report
    from elasticutor.lab.sim.surge import Surge

_INTERRUPTED = 130


class ParadigmName(StrEnum):
    """Who decides where tuples go, and what can change."""

    ELASTIC = "elastic"
    STATIC = "static"
    RC = "rc"
    NAIVE = "naive"


class CostName(StrEnum):
    """How the work of tuples is distributed."""

    CONSTANT = "constant"
    EXPONENTIAL = "exponential"


class SpacingName(StrEnum):
    """How tuples fall due."""

    POISSON = "poisson"
    EVEN = "even"


def sim(
    paradigm: Annotated[
        ParadigmName, typer.Option(help="Ours, or one of its rivals.")
    ] = ParadigmName.ELASTIC,
    nodes: Annotated[int, typer.Option(min=1, help="Machines.")] = 32,
    cores: Annotated[int, typer.Option(min=1, help="Cores of each.")] = 8,
    executors: Annotated[
        int, typer.Option(min=1, help="Elastic executors; static and rc have one per core.")
    ] = 32,
    shards: Annotated[int, typer.Option(min=1, help="Shards of each elastic executor.")] = 256,
    upstreams: Annotated[int, typer.Option(min=1, help="Source processes.")] = 32,
    omega: Annotated[float, typer.Option(min=0, help="Key shuffles per minute.")] = 2.0,
    keys: Annotated[int, typer.Option(min=1, help="How many keys there are.")] = 10_000,
    zipf: Annotated[float, typer.Option(min=0, help="Skew of the keys.")] = 0.5,
    cost_ms: Annotated[float, typer.Option(min=0.001, help="Work per tuple.")] = 1.0,
    cost_dist: Annotated[
        CostName, typer.Option(help="Whether all tuples take as long.")
    ] = CostName.CONSTANT,
    tuple_bytes: Annotated[int, typer.Option(min=1, help="Size of a tuple.")] = 128,
    state_kb: Annotated[float, typer.Option(min=0, help="State of a shard.")] = 32.0,
    seconds: Annotated[float, typer.Option(min=0.1, help="Simulated time to measure.")] = 60.0,
    warmup: Annotated[float, typer.Option(min=0, help="Simulated seconds before that.")] = 5.0,
    rate: Annotated[
        str, typer.Option(help="Tuples per second in all, or max: as many as are taken.")
    ] = "max",
    arrivals: Annotated[
        SpacingName, typer.Option(help="With a rate: due at random, or evenly as a Generator's.")
    ] = SpacingName.POISSON,
    bandwidth_gbps: Annotated[float, typer.Option(min=0.001, help="Of a node's link.")] = 1.0,
    latency_us: Annotated[float, typer.Option(min=0, help="From node to node.")] = 100.0,
    path_cost: Annotated[
        float,
        typer.Option(min=0, help="What messages cost, times what was measured live; 0: nothing."),
    ] = 1.0,
    message_us: Annotated[
        float | None,
        typer.Option(min=0, help="What one costs a main process at work, if not 20."),
    ] = None,
    shared_cpus: Annotated[
        bool,
        typer.Option("--shared-cpus", help="What messages cost is taken from the nodes' cores."),
    ] = False,
    startup_ms: Annotated[float, typer.Option(min=0, help="Start of a task's process.")] = 30.0,
    balance_s: Annotated[float, typer.Option(min=0.001, help="Between looks at a balance.")] = 0.1,
    schedule_s: Annotated[
        float, typer.Option(min=0.001, help="Between rounds of the scheduler, or of rc.")
    ] = 1.0,
    latency_target_ms: Annotated[
        float, typer.Option(min=0.001, help="The latency that the scheduler is to keep.")
    ] = 50.0,
    inside_ms: Annotated[
        float, typer.Option(min=0.001, help="Work per core that may wait inside an executor.")
    ] = 64.0,
    surge: Annotated[
        str | None,
        typer.Option(help="Load of the first executor, in cores: 1:8@10 goes from 1 to 8 at 10 s."),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="The same seed, the same run.")] = 1,
    plot: Annotated[
        Path | None, typer.Option(help="Draw throughput and latency (.svg, .png, .pdf).")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print figures as JSON.")] = False,
) -> None:
    """Run the paper's micro-benchmark on a simulated cluster, with the real core in it.

    Cores, links and processes are simulated; every decision is made by the code that makes it
    live. The defaults are those of the paper's section 5.1.
    """
    from elasticutor.lab.sim.cluster import SimulatedCluster
    from elasticutor.lab.sim.experiment import Experiment
    from elasticutor.lab.sim.model.machines import Machines
    from elasticutor.lab.sim.report import report

    require_drawing(plot)
    experiment = Experiment(
        paradigm=paradigm.value,
        machines=Machines(
            nodes=nodes,
            cores=cores,
            bandwidth=bandwidth_gbps * 1e9 / 8,
            latency_s=latency_us * 1e-6,
            costs=_costs(path_cost, message_us),
            shared_cpus=shared_cpus,
            startup_s=startup_ms * 1e-3,
        ),
        executors=executors,
        shards=shards,
        upstreams=upstreams,
        keys=keys,
        zipf=zipf,
        omega=omega,
        cost_s=cost_ms * 1e-3,
        exponential=cost_dist is CostName.EXPONENTIAL,
        tuple_bytes=tuple_bytes,
        state_bytes=round(state_kb * 1024),
        rate=_rate(rate),
        arrivals=arrivals.value,
        seconds=seconds,
        warmup_s=warmup,
        balance_s=balance_s,
        schedule_s=schedule_s,
        latency_target_s=latency_target_ms * 1e-3,
        inside_s=inside_ms * 1e-3,
        surge=_surge(surge),
        seed=seed,
    )
    cluster = SimulatedCluster(experiment)
    interrupted = _run(cluster, as_json)
    found = report(cluster)
    if as_json:
        print_json(found.as_dict())
    else:
        _print(experiment, found)
    if interrupted:
        raise typer.Exit(_INTERRUPTED)
    if plot is not None:
        _draw(plot, found)


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


def _costs(times: float, message_us: float | None) -> Costs:
    from elasticutor.lab.sim.model.costs import Costs

    costs = Costs().times(times)
    if message_us is None:
        return costs
    return replace(costs, main=replace(costs.main, message_s=message_us * 1e-6))


def _rate(given: str) -> float:
    if given == "max":
        return math.inf
    try:
        rate = float(given)
    except ValueError:
        rate = math.nan
    if not 0 < rate < math.inf:
        raise typer.BadParameter(
            f"{given!r} is neither max nor a number above 0", None, None, "--rate"
        )
    return rate


def _surge(given: str | None) -> Surge | None:
    from elasticutor.lab.sim.surge import Surge

    if given is None:
        return None
    try:
        return Surge.parse(given)
    except BadValueError as error:
        raise typer.BadParameter(str(error), None, None, "--surge") from None


def _print(experiment: Experiment, found: Report) -> None:
    machines = experiment.machines
    offered = "max" if math.isinf(experiment.rate) else f"{experiment.rate:,.0f}/s"
    table = Table(
        "figure",
        "value",
        title=f"{found.paradigm}: {machines.nodes} × {machines.cores} cores, "
        f"ω = {experiment.omega:g}, offered {offered}, {found.seconds:g} s",
    )
    table.columns[1].justify = "right"
    for name, text in _rows(found):
        table.add_row(name, text)
    out.print(table)


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


def _draw(path: Path, found: Report) -> None:
    from elasticutor.lab.sim.plot import draw

    draw(path, [found])
    note(f"drawn: {path}")
