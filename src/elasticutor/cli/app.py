"""The commands of `elasticutor`, loaded when they are used, and how errors print."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from elasticutor import __version__
from elasticutor.cli.output import note
from elasticutor.errors import ElasticutorError

_HELP = "Elastic, stateful, real-time stream processing for Python people on Spark."


@dataclass(frozen=True, slots=True)
class _Command:
    """Where a command is defined, and under which heading the help lists it."""

    panel: str
    module: str
    attribute: str

    def load(self, name: str) -> Any:
        """Import the command and build it as `typer` builds any other."""
        found = getattr(import_module(self.module), self.attribute)
        parent = typer.Typer(add_completion=False, rich_markup_mode="rich")
        if isinstance(found, typer.Typer):
            parent.add_typer(found, name=name, rich_help_panel=self.panel)
        else:
            parent.command(name, rich_help_panel=self.panel)(found)
        return typer.main.get_group(parent).commands[name]


COMMANDS = {
    "demo": _Command("Run", "elasticutor.lab.cli.demo", "demo"),
    "state": _Command("Look", "elasticutor.cli.state", "app"),
    "bench": _Command("Laboratory", "elasticutor.lab.cli.bench", "app"),
    "chaos": _Command("Laboratory", "elasticutor.lab.cli.chaos", "chaos"),
    "check": _Command("Laboratory", "elasticutor.lab.cli.check", "check"),
    "sim": _Command("Laboratory", "elasticutor.lab.cli.sim", "sim"),
}
"""All commands, in the order of the help. No other module outside `lab` names a module of `lab`."""


class _LazyGroup(TyperGroup):
    """Loads a command when it is called, or when the help describes it."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name in COMMANDS and cmd_name not in self.commands:
            self.commands[cmd_name] = COMMANDS[cmd_name].load(cmd_name)
        return self.commands.get(cmd_name)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] not in COMMANDS:  # a misspelt one: suggest from all of them
            for name in COMMANDS:
                self.get_command(ctx, name)
        return super().resolve_command(ctx, args)


app = typer.Typer(
    name="elasticutor",
    cls=_LazyGroup,
    help=_HELP,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"elasticutor {__version__}")
        raise typer.Exit


@app.callback(help=_HELP)
def _root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version, and exit."
        ),
    ] = False,
) -> None:
    """Take the options that stand before a command."""


def main() -> None:
    """Run the command line; an error of ours prints one sentence instead of a traceback."""
    try:
        app()
    except ElasticutorError as error:
        note(f"error: {error}")
        sys.exit(2)
