"""`elasticutor bench flush`: what the end of an epoch costs a task."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.table import Table

from elasticutor.cli.output import out, print_json


def register(app: typer.Typer) -> None:
    """Add the command to `elasticutor bench`."""
    app.command("flush")(flush)


def flush(
    states: Annotated[int, typer.Option(min=1, help="That a task has cached.")] = 100_000,
    changed: Annotated[int, typer.Option(min=1, help="Of these in every epoch.")] = 50_000,
    shards: Annotated[int, typer.Option(min=1, help="Of the task.")] = 256,
    rounds: Annotated[int, typer.Option(min=1, help="Epochs for each kind of state.")] = 5,
    as_json: Annotated[bool, typer.Option("--json", help="Print figures as JSON.")] = False,
) -> None:
    """What the end of an epoch costs a task, in CPU time; no other process."""
    from elasticutor.lab.bench.alone.flush import bench_flush

    result = bench_flush(states=states, changed=changed, shards=shards, rounds=rounds)
    if as_json:
        print_json(result.as_dict())
        return
    title = f"an epoch that changes {changed:,} of {states:,} states"
    table = Table("states", "set apart, ms", "µs per state written", "ms per slice", title=title)
    for kind, figures in result.kinds.items():
        table.add_row(
            kind,
            f"{figures.apart_ms.median:.2f}",
            f"{figures.us_per_state.median:.2f}",
            f"{figures.slice_ms.median:.2f}",
        )
    out.print(table)
