"""Printing: figures to standard output, everything else to standard error."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

INTERRUPTED = 130
"""The exit code after Ctrl-C."""

out = Console(highlight=False)
err = Console(stderr=True, highlight=False)


def note(text: str) -> None:
    """Print a message that is not a result."""
    err.print(text, markup=False)


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table; all columns but the first are numbers, and so aligned to the right."""
    table = Table(*columns, title=title)
    for column in table.columns[1:]:
        column.justify = "right"
    for row in rows:
        table.add_row(*row)
    out.print(table)


def print_json(figures: Any) -> None:
    """Print figures for programs."""
    typer.echo(json.dumps(figures, indent=2))


@contextmanager
def progress_bar(*, hidden: bool) -> Iterator[Progress]:
    """Show a bar on standard error if that is a terminal; remove it at the end."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    disable = hidden or not err.is_terminal
    with Progress(*columns, console=err, transient=True, disable=disable) as progress:
        yield progress
