"""What `elasticutor` offers, and how its errors and interruptions look."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from elasticutor import __version__
from elasticutor.cli import state
from elasticutor.cli.output import note
from elasticutor.errors import ElasticutorError
from elasticutor.lab.cli import chaos, check, demo, sim
from elasticutor.lab.cli.bench import app as bench

app = typer.Typer(
    name="elasticutor",
    help="Elastic, stateful, real-time stream processing for Python people on Spark.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)
app.command("chaos")(chaos.chaos)
app.command("check")(check.check)
app.command("demo")(demo.demo)
app.command("sim")(sim.sim)
app.add_typer(bench.app, name="bench")
app.add_typer(state.app, name="state")


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"elasticutor {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version, and exit."
        ),
    ] = False,
) -> None:
    """Elastic, stateful, real-time stream processing for Python people on Spark."""


def main() -> None:
    """Run the command line; errors of ours are one sentence, not a traceback."""
    try:
        app()
    except ElasticutorError as error:
        note(f"error: {error}")
        sys.exit(2)
