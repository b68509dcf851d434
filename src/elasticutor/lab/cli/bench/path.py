"""`elasticutor bench path`: where a tuple's time goes, hop by hop, and what it costs in CPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from elasticutor.cli.output import out
from elasticutor.lab.cli.bench.options import (
    Cores,
    CostMs,
    Json,
    Load,
    Repeat,
    Seconds,
    WarmUp,
    cells,
    live,
    new_table,
    print_result,
)

if TYPE_CHECKING:
    import typer


def register(app: typer.Typer) -> None:
    """Add the command to `elasticutor bench`."""
    app.command("path")(path)


def path(
    cost_ms: CostMs = 1.0,
    load: Load = 0.6,
    cores: Cores = 2,
    seconds: Seconds = 10.0,
    warm_up: WarmUp = 3.0,
    repeat: Repeat = 3,
    as_json: Json = False,
) -> None:
    """Where a tuple's time goes, hop by hop; and CPU time per tuple beyond the operator's own.

    CPU time is read from outside in usual runs; then a run is traced, and a sample of its tuples
    followed.
    """
    from elasticutor.lab.bench.path import bench_path

    with _traced() as folder, live(cores) as (cluster, say):
        result = bench_path(
            cluster,
            folder,
            cost_ms=cost_ms,
            load=load,
            cores=cores,
            seconds=seconds,
            warm_up_s=warm_up,
            repeat=repeat,
            progress=say,
        )
    title = f"CPU per tuple beyond its {cost_ms:g} ms, {cores} tasks at {load:.0%}, ms"
    table = new_table(title, "process", "median", "p10 – p90")
    for role, spread in sorted(result.roles_ms.items(), key=lambda item: -item[1].median):
        table.add_row(role, *cells(spread, ".3f"))
    table.add_row("all", *cells(result.beyond_ms, ".3f"))
    if not as_json:
        hops = new_table(
            f"the way of {result.sampled} tuples, µs", "hop", "part", "p50", "p10 – p90"
        )
        for hop, parts in result.hops_us.items():
            for part, spread in parts.items():
                hops.add_row(hop, part, *cells(spread, ",.0f"))
        out.print(hops)
    print_result(result, table, as_json)


@contextmanager
def _traced() -> Iterator[Path]:
    """A folder that processes started from now on know of, and take notes in when they are to."""
    from elasticutor.lab.bench.live import notes
    from elasticutor.lab.bench.tracing import traced

    with notes() as folder, traced(folder):
        yield folder
