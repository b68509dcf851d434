"""Options of a command, declared once: a dataclass that `lab.cli.declared` makes the command of."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar, dataclass_transform

Value = TypeVar("Value")


class BadOptionError(ValueError):
    """An option that cannot be, or not together with the others."""

    def __init__(self, option: str, reason: str) -> None:
        super().__init__(reason)
        self.option = option


@dataclass(frozen=True, slots=True)
class Option:
    """An option, but for its default: call it with that to declare a field.

    Args:
        help: What it says in the help of the command.
        min: The least value.
        max: The largest.
        key: What it is called in JSON; empty: it is not there.
        shows: What the help has instead of the default.
        names: On the command line, if not the field's: `--field-name`.
    """

    help: str
    min: float | None = None
    max: float | None = None
    key: str = ""
    shows: str = ""
    names: tuple[str, ...] = ()

    def __call__(self, default: Any, **changes: Any) -> Any:
        """A field of some `Options`; `changes` are made to the option first."""
        option = dataclasses.replace(self, **changes)
        return dataclasses.field(default=default, metadata={"option": option})


def option(default: Any, help: str, **more: Any) -> Any:  # noqa: A002 - as in `Option`
    """Declare an option of one command alone."""
    return Option(help, **more)(default)


@dataclass_transform(frozen_default=True, kw_only_default=True)
class Options:
    """The options of a command: each subclass is a dataclass of them."""

    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]

    def __init_subclass__(cls) -> None:
        dataclass(frozen=True, kw_only=True)(cls)

    def given(self) -> dict[str, Any]:
        """The options, as far as they are in JSON."""
        fields = dataclasses.fields(self)
        return {
            option.key: getattr(self, field.name)
            for field in fields
            if (option := field.metadata["option"]).key
        }


def read_option(name: str, given: str, read: Callable[[str], Value], like: str) -> Value:
    """Read the text of an option, which should be `like` this; else it is a `BadOptionError`."""
    try:
        return read(given)
    except ValueError:
        raise BadOptionError(name, f"{given!r} is not {like}") from None


def read_numbers(name: str, given: str) -> list[float]:
    """Numbers with commas between them."""
    like = "numbers with commas between them"
    return read_option(name, given, lambda text: [*map(float, text.split(","))], like)
