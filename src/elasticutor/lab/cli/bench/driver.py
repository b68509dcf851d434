"""`elasticutor bench driver`: what the driver of a large run costs."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.table import Table

from elasticutor.cli.output import note, out, print_json


def register(app: typer.Typer) -> None:
    """Add the command to `elasticutor bench`."""
    app.command("driver")(driver)


def driver(
    executors: Annotated[int, typer.Option(min=2, help="Of the run; stand-ins for them.")] = 1000,
    seconds: Annotated[float, typer.Option(min=0.5, help="How long to measure.")] = 20.0,
    warm_up: Annotated[
        float, typer.Option("--warm-up", min=0, help="Seconds before that, which do not count.")
    ] = 5.0,
    seed: Annotated[int, typer.Option(min=0, help="For the amounts of work.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print figures as JSON.")] = False,
) -> None:
    """How much of a core the driver takes: hub, supervisor, scheduler and sockets are real."""
    from elasticutor.lab.bench.alone.driver import bench_driver

    result = bench_driver(
        executors=executors, seconds=seconds, warm_up_s=warm_up, seed=seed, progress=note
    )
    if as_json:
        print_json(result.as_dict())
        return
    table = Table("figure", "value", title=f"The driver of {executors} executors")
    table.columns[1].justify = "right"
    table.add_row("CPU", f"{result.cpu:.3f} of a core")
    for name, share in result.threads.items():
        table.add_row(f"  {name}", f"{share:.3f}")
    table.add_row("messages taken in", f"{result.messages_s:.0f} a second")
    table.add_row("measurements due", f"{result.due_s:.0f} a second")
    table.add_row("start", f"{result.start_s:.1f} s, {result.start_cpu_s:.1f} s of CPU")
    out.print(table)
