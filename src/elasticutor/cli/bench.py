"""`elasticutor bench …`: measurements, each with a place in docs/benchmarks.md."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.table import Table

from elasticutor.bench.core import bench_core
from elasticutor.cli.output import out, print_json

app = typer.Typer(help="Measure; figures as a table, or with --json.", no_args_is_help=True)


@app.callback()
def _root() -> None:
    """Measure; figures as a table, or with --json."""


@app.command("core")
def core(
    shards: Annotated[int, typer.Option(min=1, help="Shards of the executor.")] = 256,
    tasks: Annotated[int, typer.Option(min=1, help="Its cores.")] = 8,
    rounds: Annotated[int, typer.Option(min=1, help="Measurements to take.")] = 30,
    batch_rows: Annotated[int, typer.Option(min=1, help="Tuples per arriving batch.")] = 1024,
    row_us: Annotated[float, typer.Option(help="What the operator takes per tuple, in µs.")] = 5.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print figures as JSON.")] = False,
) -> None:
    """What the core's logic costs per chunk, in microseconds; no process, no socket."""
    result = bench_core(
        shards=shards, tasks=tasks, rounds=rounds, batch_rows=batch_rows, row_us=row_us
    )
    if as_json:
        print_json(result.as_dict())
        return
    title = f"core logic: {shards} shards, {tasks} tasks, batches of {batch_rows}"
    table = Table("figure", "median", "p10", "p90", title=title)
    for name, spread in (
        ("µs per chunk", result.us_per_chunk),
        ("µs per balancing round", result.us_per_balance),
    ):
        table.add_row(name, f"{spread.median:.1f}", f"{spread.low:.1f}", f"{spread.high:.1f}")
    out.print(table)
    out.print(
        f"{result.rounds} rounds, {result.chunks:,} chunks of {result.rows_per_chunk:.0f} tuples"
    )
