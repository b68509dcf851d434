"""What the commands of live benchmarks share: options, a cluster to run on, tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Protocol, TypeAlias

import typer
from rich.table import Table

from elasticutor.cli.output import err, note, out, print_json
from elasticutor.lab.bench.figures import Spread

if TYPE_CHECKING:  # what runs live is imported by the commands that need it: it takes a second
    from elasticutor.driver.cluster import BaseCluster
    from elasticutor.lab.bench.live import Machine

Json: TypeAlias = Annotated[bool, typer.Option("--json", help="Print figures as JSON.")]
Repeat: TypeAlias = Annotated[
    int, typer.Option(min=1, help="How often; figures are medians of these.")
]
Cores: TypeAlias = Annotated[int, typer.Option(min=1, help="Cores of the executor: its tasks.")]
Emulated: TypeAlias = Annotated[
    int, typer.Option(min=1, help="Cores of the executor, which sleep instead of working.")
]
CostMs: TypeAlias = Annotated[float, typer.Option(min=0.001, help="What a tuple takes, in ms.")]
ChunkMs: TypeAlias = Annotated[
    float, typer.Option(min=0.1, help="Work that a task is handed at once, in ms.")
]
Load: TypeAlias = Annotated[
    float, typer.Option(min=0.01, max=0.99, help="Offered rate, as a share of the possible.")
]
Zipf: TypeAlias = Annotated[float, typer.Option(min=0, help="Skew of the keys.")]
Seconds: TypeAlias = Annotated[float, typer.Option(min=1, help="How long to measure each time.")]
WarmUp: TypeAlias = Annotated[
    float, typer.Option("--warm-up", min=0, help="Seconds before that, which do not count.")
]


class BenchResult(Protocol):
    """What a live benchmark returns."""

    @property
    def machine(self) -> Machine:
        """How fast the machine was meanwhile."""

    def as_dict(self) -> dict[str, Any]:
        """Everything, for `--json`."""


@contextmanager
def live(
    cores: int, nodes: int = 1, *, schedule_s: float = 0.0
) -> Iterator[tuple[BaseCluster, Callable[[str], None]]]:
    """A cluster on a local Spark, whose nodes have these cores; and a way to say what is done."""
    from elasticutor.lab.bench.live import spark_cluster

    status = err.status("starting Spark")

    def say(what: str) -> None:
        if err.is_terminal:
            status.update(what)
        else:
            note(what)

    try:
        with status, spark_cluster(cores, nodes, schedule_s=schedule_s) as cluster:
            yield cluster, say
            status.update("stopping")
    except KeyboardInterrupt:
        note("interrupted; everything that was started has been stopped")
        raise typer.Exit(130) from None


def new_table(title: str, *columns: str) -> Table:
    """A table whose figures are aligned."""
    table = Table(*columns, title=title)
    for column in table.columns[1:]:
        column.justify = "right"
    return table


def cells(spread: Spread, form: str) -> tuple[str, str]:
    """A median and its spread, as two cells of a row."""
    return f"{spread.median:{form}}", f"{spread.low:{form}} – {spread.high:{form}}"


def print_result(result: BenchResult, table: Table, as_json: bool) -> None:
    """Print the figures: for programs, or the table and how fast the machine was."""
    if as_json:
        print_json(result.as_dict())
        return
    out.print(table)
    reference = result.machine.reference_us
    out.print(f"sum(range(1000)) meanwhile took {reference.median:.1f} µs")
