"""`elasticutor bench …`: measurements, each with a place in docs/benchmarks.md."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.table import Table

from elasticutor.bench.core import WORKLOADS, Workload, bench_core
from elasticutor.cli.output import out, print_json

app = typer.Typer(help="Measure; figures as a table, or with --json.", no_args_is_help=True)


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
    as_json: Annotated[bool, typer.Option("--json", help="Print figures as JSON.")] = False,
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
