"""How a benchmark is declared: a dataclass whose fields are the options of its command.

The docstring of the class is the help of the command; `measure` does the work and returns
`Figures`. What is measured on (clusters, progress, facts about the machine) is a `Bench`. The
command line, tables and JSON are made from these by `elasticutor.lab.cli.bench`.

Example:
    >>> from elasticutor.lab.options import option
    >>> class Nap(Benchmark):
    ...     about = "naps of {ms:g} ms"
    ...     ms: float = option(1.0, "How long to sleep.", min=0, key="ms")
    ...
    ...     def measure(self, bench: Bench) -> Figures:
    ...         return Figures()
    >>> Nap(ms=2).title(), Nap(ms=2).given()
    ('naps of 2 ms', {'ms': 2})
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, TypeVar

from elasticutor.lab.bench.figures import Figures
from elasticutor.lab.bench.live import BadOptionError, Bench
from elasticutor.lab.options import Options

Value = TypeVar("Value")


class Benchmark(Options, ABC):
    """A benchmark with the options it is run with."""

    about: ClassVar[str]
    """The title of the tables, with options in braces."""
    facts: ClassVar[tuple[str, ...]] = ("reference_us", "machine")
    """What JSON has of the machine."""

    def check(self) -> None:
        """Refuse options that do not go together (`BadOptionError`), before anything starts."""

    @abstractmethod
    def measure(self, bench: Bench) -> Figures:
        """Run it."""

    def title(self) -> str:
        """Of the tables."""
        return self.about.format(**vars(self))

    def as_dict(self, found: Figures, bench: Bench) -> Any:
        """Figures, options and facts about the machine, for `--json`."""
        facts = bench.machine.as_dict()
        asked = {key: one for key, one in facts.items() if key.startswith(self.facts)}
        return {**found.as_dict(), **self.given(), **asked}


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
