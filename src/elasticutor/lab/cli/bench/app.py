"""`elasticutor bench …`: measurements, each with a place in docs/benchmarks.md."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.table import Table

from elasticutor.cli.output import out, print_json
from elasticutor.lab.bench.alone.core import WORKLOADS, Workload, bench_core
from elasticutor.lab.bench.figures import Spread
from elasticutor.lab.cli.bench import checkpoint as bench_checkpoint
from elasticutor.lab.cli.bench import driver as bench_driver
from elasticutor.lab.cli.bench import elastic as bench_elastic
from elasticutor.lab.cli.bench import flush as bench_flush
from elasticutor.lab.cli.bench import latency as bench_latency
from elasticutor.lab.cli.bench import moves as bench_moves
from elasticutor.lab.cli.bench import path as bench_path
from elasticutor.lab.cli.bench import scheduler as bench_scheduler
from elasticutor.lab.cli.bench import structured as bench_structured
from elasticutor.lab.cli.bench.options import (
    ChunkMs,
    Cores,
    CostMs,
    Emulated,
    Json,
    Load,
    Repeat,
    Seconds,
    WarmUp,
    Zipf,
    cells,
    live,
    new_table,
    print_result,
)

app = typer.Typer(help="Measure; figures as a table, or with --json.", no_args_is_help=True)
bench_flush.register(app)
bench_moves.register(app)
bench_latency.register(app)
bench_path.register(app)
bench_elastic.register(app)
bench_scheduler.register(app)
bench_driver.register(app)
bench_checkpoint.register(app)
bench_structured.register(app)


@app.callback()
def _root() -> None:
    """Measure; figures as a table, or with --json."""


@app.command("core")
def core(
    shards: Annotated[int, typer.Option(min=1, help="Shards of the executor.")] = 256,
    tasks: Annotated[int, typer.Option(min=1, help="Its cores.")] = 8,
    rounds: Annotated[int, typer.Option(min=1, help="Measurements per workload.")] = 30,
    row_us: Annotated[
        float | None,
        typer.Option(help="Only this workload: what a tuple takes, in µs.", show_default="four"),
    ] = None,
    batch_rows: Annotated[
        int, typer.Option(min=1, help="With --row-us: tuples per arriving batch.")
    ] = 1024,
    as_json: Json = False,
) -> None:
    """What the core's logic costs per chunk, in microseconds; no process, no socket."""
    workloads = WORKLOADS if row_us is None else (Workload(row_us, batch_rows),)
    result = bench_core(shards=shards, tasks=tasks, rounds=rounds, workloads=workloads)
    if as_json:
        print_json(result.as_dict())
        return
    table = Table(
        "workload",
        "tuples per chunk",
        "µs per chunk",
        "p10 – p90",
        "µs per balancing",
        title=f"core logic: {shards} shards, {tasks} tasks",
    )
    for figures in result.workloads:
        cost = figures.us_per_chunk
        table.add_row(
            f"{figures.workload.row_us:g} µs, batches of {figures.workload.batch_rows}",
            f"{figures.rows_per_chunk:.0f}",
            f"{cost.median:.1f}",
            f"{cost.low:.1f} – {cost.high:.1f}",
            f"{figures.us_per_balance.median:.0f}",
        )
    out.print(table)
    overall, reference = result.us_per_chunk, result.reference_us
    out.print(
        f"all workloads, {rounds} rounds each: {overall.median:.1f} µs per chunk "
        f"({overall.low:.1f} – {overall.high:.1f}); "
        f"sum(range(1000)) meanwhile took {reference.median:.1f} µs"
    )


@app.command("width")
def width(
    cores: Emulated = 16,
    cost_ms: CostMs = 1.0,
    chunk_ms: ChunkMs = 20.0,
    zipf: Zipf = 0.5,
    seconds: Seconds = 10.0,
    warm_up: WarmUp = 5.0,
    repeat: Repeat = 3,
    as_json: Json = False,
) -> None:
    """How near to ideal the throughput of one executor with many emulated cores is."""
    from elasticutor.lab.bench.width import bench_width

    with live(cores) as (cluster, say):
        result = bench_width(
            cluster,
            cores=cores,
            cost_ms=cost_ms,
            chunk_ms=chunk_ms,
            zipf=zipf,
            seconds=seconds,
            warm_up_s=warm_up,
            repeat=repeat,
            progress=say,
        )
    title = f"width: {cores} emulated cores, {cost_ms:g} ms per tuple"
    table = new_table(title, "figure", "median", "p10 – p90")
    table.add_row("share of ideal", *cells(result.share_of_ideal, ".1%"))
    table.add_row(f"rows per second, of {result.ideal_rows_s:,.0f}", *cells(result.rows_s, ",.0f"))
    table.add_row("chunks per second, in all", *cells(result.chunks_s, ",.0f"))
    print_result(result, table, as_json)


@app.command("shuffle")
def shuffle(
    cores: Emulated = 8,
    zipf: Zipf = 1.0,
    load: Load = 0.7,
    cost_ms: CostMs = 2.0,
    chunk_ms: ChunkMs = 10.0,
    every: Annotated[float, typer.Option(min=1, help="Seconds between two shuffles.")] = 4.0,
    shuffles: Annotated[int, typer.Option(min=1, help="Shuffles in each run.")] = 8,
    repeat: Repeat = 1,
    as_json: Json = False,
) -> None:
    """How soon an executor has recovered when the frequencies of its keys are shuffled."""
    from elasticutor.lab.bench.load.shuffle import bench_shuffle

    with live(cores) as (cluster, say):
        result = bench_shuffle(
            cluster,
            cores=cores,
            zipf=zipf,
            load=load,
            cost_ms=cost_ms,
            chunk_ms=chunk_ms,
            every_s=every,
            shuffles=shuffles,
            repeat=repeat,
            progress=say,
        )
    title = f"{len(result.recoveries)} shuffles: {cores} emulated cores at {load:.0%}"
    table = new_table(title, "figure", "median", "p10 – p90")
    found = result.recoveries
    for name, values, form in (
        ("recovered after, s", [one.seconds for one in found], ".2f"),
        ("throughput recovered after, s", [one.throughput_s for one in found], ".2f"),
        ("latency recovered after, s", [one.latency_s for one in found], ".2f"),
        ("p99 latency at worst, ms", [one.worst_ms for one in found], ".0f"),
    ):
        table.add_row(name, *cells(Spread.of(values), form))
    table.add_row("p99 latency when steady, ms", *cells(result.steady_ms, ".0f"))
    table.add_row("not recovered before the next", str(result.unrecovered), "")
    table.add_row("not steady before the shuffle", str(result.unsettled), "")
    table.add_row("shards moved", f"{result.moves:,}", "")
    print_result(result, table, as_json)


@app.command("memory")
def memory(
    cores: Cores = 4,
    rows: Annotated[int, typer.Option(min=1, help="Tuples worked through before.")] = 20_000,
    repeat: Repeat = 3,
    as_json: Json = False,
) -> None:
    """What the processes of a run weigh when they have nothing to do."""
    from elasticutor.lab.bench.memory import bench_memory

    with live(cores) as (cluster, say):
        result = bench_memory(cluster, cores=cores, rows=rows, repeat=repeat, progress=say)
    title = f"memory of idle processes, MB: {cores} tasks"
    table = new_table(title, "process", "resident", "share of it (PSS)", "its own (USS)")
    for kind, weight in result.kinds.items():
        numbers = (weight.rss_mb, weight.pss_mb, weight.uss_mb)
        table.add_row(kind, *(f"{number:.1f}" for number in numbers))
    print_result(result, table, as_json)
