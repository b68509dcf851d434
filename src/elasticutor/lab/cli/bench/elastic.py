"""`elasticutor bench elastic`: paradigms compared, live on Spark with emulated cores."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, cast

import typer
from rich.table import Table

from elasticutor.cli.output import note, out, print_json

if TYPE_CHECKING:
    from elasticutor.core.paradigm import ParadigmName
    from elasticutor.lab.bench.load.elastic import ElasticBench
    from elasticutor.lab.bench.load.surge import SurgeBench

_INTERRUPTED = 130
_COST = re.compile(r"sleep:([0-9.]+)(us|ms|s)")
_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}


def register(app: typer.Typer) -> None:
    """Add the command to `elasticutor bench`."""
    app.command("elastic")(elastic)


def elastic(
    paradigm: Annotated[
        str,
        typer.Option(help="elastic, static, rc or naive; several, with commas, run in turn."),
    ] = "elastic",
    nodes: Annotated[int, typer.Option(min=1, help="Emulated nodes.")] = 2,
    cores: Annotated[int, typer.Option(min=1, help="Emulated cores of each.")] = 4,
    executors: Annotated[
        int | None, typer.Option(min=1, help="Elastic executors.", show_default="one per node")
    ] = None,
    shards: Annotated[int, typer.Option(min=1, help="Shards of each.")] = 256,
    omega: Annotated[float, typer.Option(min=0, help="Key shuffles per minute.")] = 0.0,
    zipf: Annotated[float, typer.Option(min=0, help="Skew of the keys.")] = 1.0,
    keys: Annotated[int, typer.Option(min=1, help="How many keys there are.")] = 10_000,
    cost: Annotated[str, typer.Option(help="What a tuple takes: sleep:1ms, sleep:200us.")] = (
        "sleep:1ms"
    ),
    load: Annotated[
        float, typer.Option(min=0.01, help="Offered rate, as a share of what all cores can do.")
    ] = 0.7,
    rate: Annotated[
        str, typer.Option(help="max: as fast as tuples are taken; or tuples per second.")
    ] = "",
    seconds: Annotated[float, typer.Option(min=1, help="How long to measure.")] = 30,
    warm_up: Annotated[float, typer.Option(min=0, help="Seconds before that.")] = 5,
    seed: Annotated[int, typer.Option(min=0, help="The first seed.")] = 1,
    repeat: Annotated[int, typer.Option(min=1, help="So many seeds.")] = 1,
    surge: Annotated[
        str, typer.Option(help="Instead: let the load rise, e.g. 1:8 cores' worth.")
    ] = "",
    latency_target_ms: Annotated[
        float, typer.Option(min=0.1, help="What the scheduler aims at.")
    ] = 100,
    chunk_ms: Annotated[float, typer.Option(min=0.1, help="Work handed over at once.")] = 10,
    tick_ms: Annotated[float, typer.Option(min=1, help="Tuples are sent every so often.")] = 5,
    as_json: Annotated[bool, typer.Option("--json", help="Print figures as JSON.")] = False,
) -> None:
    """Throughput and latency of a paradigm, and how soon it has recovered from key shuffles.

    The cores are emulated: a task sleeps for the time that its tuples take. With --surge the
    operator starts with one core per executor, and the figure is when its backlog is gone.
    """
    from elasticutor.lab.bench.live import spark_cluster
    from elasticutor.lab.bench.load.elastic import ElasticSetting, bench_elastic
    from elasticutor.lab.bench.load.surge import bench_surge

    paradigms = _paradigms(paradigm)
    cost_s = _cost(cost)
    setting = ElasticSetting(
        nodes=nodes,
        cores=cores,
        executors=executors or nodes,
        shards=shards,
        cost_s=cost_s,
        load=_load(rate, load, nodes * cores / cost_s),
        omega=omega,
        zipf=zipf,
        keys=keys,
        seconds=seconds,
        warm_up_s=warm_up,
        chunk_s=chunk_ms / 1e3,
        tick_s=tick_ms / 1e3,
        latency_target_s=latency_target_ms / 1e3,
    )
    rise = _surge(surge) if surge else None
    seeds = range(seed, seed + repeat)
    note("starting Spark")
    try:
        with spark_cluster(cores, nodes, schedule_s=1.0) as cluster:
            if rise is None:
                result = bench_elastic(cluster, setting, paradigms, seeds=seeds, progress=note)
            else:
                result = bench_surge(
                    cluster, setting, rise, paradigms[0], seeds=seeds, progress=note
                )
    except KeyboardInterrupt:
        note("interrupted")
        raise typer.Exit(_INTERRUPTED) from None
    if as_json:
        print_json(result.as_dict())
    else:
        _print(result)


def _paradigms(given: str) -> list[ParadigmName]:
    from elasticutor.core.paradigm import PARADIGMS

    names = given.split(",")
    for name in names:
        if name not in PARADIGMS:
            known = ", ".join(PARADIGMS)
            raise typer.BadParameter(f"{name!r} is not one of {known}", None, None, "--paradigm")
    if len(set(names)) < len(names):
        raise typer.BadParameter(f"{given!r} names one twice", None, None, "--paradigm")
    return cast("list[ParadigmName]", names)


def _cost(given: str) -> float:
    found = _COST.fullmatch(given)
    try:
        seconds = float(found[1]) * _UNITS[found[2]] if found else 0.0
    except ValueError:
        seconds = 0.0
    if seconds <= 0:
        raise typer.BadParameter(
            f"{given!r} is not like sleep:1ms (or us, or s)", None, None, "--cost"
        )
    return seconds


def _load(rate: str, load: float, ideal: float) -> float | None:
    if not rate:
        return load
    if rate == "max":
        return None
    try:
        return float(rate) / ideal
    except ValueError:
        raise typer.BadParameter(
            f"{rate!r} is neither max nor tuples per second", None, None, "--rate"
        ) from None


def _surge(given: str) -> SurgeBench:
    from elasticutor.lab.bench.load.surge import SurgeBench

    try:
        before, after = map(float, given.split(":"))
    except ValueError:
        before, after = 0.0, 0.0
    if not 0 < before < after:
        raise typer.BadParameter(f"{given!r} is not like 1:8", None, None, "--surge")
    return SurgeBench(before, after)


def _print(result: ElasticBench) -> None:
    setting = result.setting
    table = Table(
        "paradigm",
        "seed",
        "tuples/s",
        "of ideal",
        "mean ms",
        "p50 ms",
        "p99 ms",
        "recovery s",
        "moves",
        "core changes",
        title=f"{setting.nodes} nodes of {setting.cores} emulated cores, ω = {setting.omega:g}, "
        f"Zipf {setting.zipf:g}",
    )
    for run in result.runs:
        figures = run.as_dict()
        recovery = run.surge_s if run.surge_s is not None else figures["recovery_s"]
        table.add_row(
            run.paradigm + (" (saturated)" if run.saturated else ""),
            str(run.seed),
            f"{run.throughput:,.0f}",
            f"{run.throughput / setting.ideal:.2f}",
            f"{run.latency_mean_ms:,.1f}",
            f"{run.latency_p50_ms:,.1f}",
            f"{run.latency_p99_ms:,.1f}",
            "" if recovery is None else f"{recovery:.2f}",
            str(figures["reassignments"]),
            str(run.core_changes),
        )
    out.print(table)
    summary = result.as_dict()
    for name, value in summary.items():
        if "_over_" in name and not name.endswith("_ci95"):
            low, high = summary[f"{name}_ci95"]
            out.print(f"{name.replace('_', ' ')}: {value:.3f} (95 %: {low:.3f} – {high:.3f})")
