"""`elasticutor bench scheduler`: how long a decision takes."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.table import Table

from elasticutor.cli.output import note, out, print_json


def register(app: typer.Typer) -> None:
    """Add the command to `elasticutor bench`."""
    app.command("scheduler")(scheduler)


def scheduler(
    nodes: Annotated[int, typer.Option(min=1, help="Of the cluster.")] = 32,
    cores: Annotated[int, typer.Option(min=1, help="Of each node.")] = 8,
    executors: Annotated[
        int, typer.Option(min=1, help="More than there are cores: some share.")
    ] = 384,
    repeat: Annotated[int, typer.Option(min=1, help="Decisions to time.")] = 50,
    cases: Annotated[
        int, typer.Option(min=1, help="Small assignments to compare with the best.")
    ] = 500,
    seed: Annotated[int, typer.Option(min=0, help="For loads, states and cases.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print figures as JSON.")] = False,
) -> None:
    """How long the scheduler takes from measurements to a plan, and how good its plans are."""
    from elasticutor.lab.bench.alone.scheduler import bench_scheduler

    result = bench_scheduler(
        nodes=nodes,
        cores=cores,
        executors=executors,
        repeat=repeat,
        cases=cases,
        seed=seed,
        progress=note,
    )
    if as_json:
        print_json(result.as_dict())
        return
    table = Table("figure", "value", title=f"{executors} executors on {nodes} × {cores} cores")
    table.columns[1].justify = "right"
    took, found = result.decide_ms, result.assignment
    table.add_row("a decision, median", f"{took.median:.2f} ms")
    table.add_row("p10 – p90", f"{took.low:.2f} – {took.high:.2f} ms")
    table.add_row("decisions that made a plan", f"{result.plans} of {repeat}")
    table.add_row("executors that a plan changes, median", f"{result.changes.median:g}")
    table.add_row("small assignments at the optimum", f"{found['at_optimum']:.1%}")
    table.add_row("cost over the optimum, mean", f"{found['mean_ratio']:.4f}")
    table.add_row("cost over the optimum, worst", f"{found['worst_ratio']:.2f}")
    out.print(table)
