"""Makes a command of declared options."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Annotated, Any, TypeVar, get_type_hints

import typer

from elasticutor.lab.options import BadOptionError, Options

Given = TypeVar("Given", bound=Options)


def command_of(
    options: type[Given], run: Callable[[Given, bool], None], about: str | None = None
) -> Callable[..., None]:
    """A function whose signature typer makes a command of, with `--json` beside the options.

    `run` takes the options, and whether JSON is asked for; its docstring is the help, unless there
    is an `about`.
    """

    def command(as_json: bool, **given: Any) -> None:
        try:
            run(options(**given), as_json)
        except BadOptionError as error:
            raise typer.BadParameter(str(error), None, None, error.option) from None

    types = get_type_hints(options)
    keyword = partial(inspect.Parameter, kind=inspect.Parameter.KEYWORD_ONLY)
    parameters = [
        keyword(field.name, default=field.default, annotation=_annotated(types, field))
        for field in dataclasses.fields(options)
    ]
    as_json = typer.Option("--json", help="Print figures as JSON.")
    parameters.append(keyword("as_json", default=False, annotation=Annotated[bool, as_json]))
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {one.name: one.annotation for one in parameters}
    command.__doc__ = inspect.getdoc(run) if about is None else about
    return command


def _annotated(types: Mapping[str, Any], field: dataclasses.Field[Any]) -> Any:
    kind, option = types[field.name], field.metadata["option"]
    names = option.names or ((f"--{field.name.replace('_', '-')}",) if kind is bool else ())
    shows = option.shows or True
    return Annotated[
        kind,
        typer.Option(*names, help=option.help, min=option.min, max=option.max, show_default=shows),
    ]
