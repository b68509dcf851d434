"""How a benchmark is declared: its options, and the figures that it measures.

A `Benchmark` is a dataclass whose fields are the options of its command; its docstring is the help
of the command; `measure` does the work and returns `Figures`. What is measured on (clusters,
progress, facts about the machine) is a `Bench`.

`Figures` are a dataclass too. Each field is declared with `figure` (one value) or `samples`
(repeated measurements, of which the median and the spread are shown). A field that holds other
figures, by name or in a list, is a table of its own with a row for each. The command line, tables
and JSON are made from these declarations by `elasticutor.lab.cli.bench`.

Example:
    >>> from elasticutor.lab.bench.live import Bench
    >>> from elasticutor.lab.options import option
    >>> class Found(Figures):
    ...     naps_s: Samples = samples("naps per second", ",.0f", better="higher")
    ...     dreams: int = figure()
    >>> class Nap(Benchmark):
    ...     about = "naps of {ms:g} ms"
    ...     ms: float = option(1.0, "How long to sleep.", min=0, key="ms")
    ...
    ...     def measure(self, bench: Bench) -> Found:
    ...         return Found(naps_s=[1000.0, 2000.0, 3000.0], dreams=7)
    >>> nap = Nap(ms=2)
    >>> found = nap.measure(Bench())
    >>> nap.title(), nap.given(), found.as_dict()["naps_s_p90"]
    ('naps of 2 ms', {'ms': 2}, 2800.0)
    >>> [table.rows for table in found.tables("naps")]
    [[('naps per second ↑', '2,000', '1,200 – 2,800')]]
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias, dataclass_transform

import numpy as np

from elasticutor.lab.options import Options

if TYPE_CHECKING:
    from elasticutor.lab.bench.live import Bench

Samples: TypeAlias = list[float]
"""Repeated measurements of one figure."""
Better: TypeAlias = Literal["", "lower", "higher"]

SPREAD = {"": 50, "_p10": 10, "_p90": 90}
MEDIAN = {"": 50}
P50 = {"_p50": 50}
P50_P99 = {"_p50": 50, "_p99": 99}
"""Percentiles of samples to show, by what their names end with in JSON."""

_ARROWS = {"": "", "lower": " ↓", "higher": " ↑"}


@dataclass(frozen=True, slots=True)
class _Declared:
    """How a field is shown; see `figure`."""

    label: str
    form: str
    key: str | None
    digits: int | None
    shows: Mapping[str, int] | None
    omit_none: bool

    def cells(self, value: Any) -> tuple[str, str]:
        """A value, and for samples the other percentiles, as they are written in a table."""
        if self.shows is not None:
            return cells(value, self.form, self.shows)
        return ("" if value is None else f"{value:{self.form}}"), ""


def figure(
    label: str = "",
    form: str = "",
    *,
    key: str | None = None,
    digits: int | None = None,
    better: Better = "",
    shows: Mapping[str, int] | None = None,
    omit_none: bool = False,
    **default: Any,
) -> Any:
    """Declare a field of one value, or of other figures.

    Args:
        label: In tables; none: it is in JSON alone. Of other figures: the head of their column.
        form: Format of the value in tables.
        key: In JSON, if not the field's name; empty: it is in tables alone.
        digits: To round to, in JSON.
        better: Which way is better; an arrow beside the label.
        shows: Of samples: which percentiles.
        omit_none: Leave it out of JSON if it is None.
        default: Of the field: `default` or `default_factory`.
    """
    declared = _Declared(label + _ARROWS[better], form, key, digits, shows, omit_none)
    return dataclasses.field(metadata={"figure": declared}, **default)


def samples(
    label: str = "",
    form: str = "",
    *,
    digits: int | None = 3,
    shows: Mapping[str, int] = SPREAD,
    **more: Any,
) -> Any:
    """Declare a field of repeated measurements, empty to begin with; the rest as for `figure`."""
    return figure(label, form, digits=digits, shows=shows, default_factory=list, **more)


@dataclass(frozen=True, slots=True)
class Table:
    """Lines and columns of text."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass_transform(kw_only_default=True, field_specifiers=(dataclasses.field, figure))
class Figures:
    """What was measured: each subclass is a dataclass, whose declared fields are shown.

    Fields without a declaration are there for derived figures alone.
    """

    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]

    def __init_subclass__(cls) -> None:
        dataclass(kw_only=True)(cls)

    @property
    def failed(self) -> bool:
        """Whether the command has to exit with an error."""
        return False

    def as_dict(self) -> Any:
        """Everything, for `--json`."""
        found: dict[str, Any] = {}
        for name, declared, value in self._declared():
            key = name if declared.key is None else declared.key
            if not key or (value is None and declared.omit_none):
                continue
            if declared.shows is not None:
                found |= percentiles(key, value, declared.shows, declared.digits)
            else:
                found[key] = _as_json(value, declared.digits)
        return found

    def heading(self) -> str:
        """What its row is called in a table of several."""
        return ""

    def lines(self) -> Iterator[Sequence[str]]:
        """Each labelled figure: label, value, spread; parts by name below their label."""
        for _, declared, value in self._declared():
            if not declared.label or _are_figures(value):
                continue
            if isinstance(value, Figures):
                yield from value.lines()
            elif isinstance(value, Mapping):
                yield declared.label, "", ""
                for part, one in value.items():
                    yield f"  {part}", *declared.cells(one)
            elif value is not None:
                yield declared.label, *declared.cells(value)

    def tables(self, title: str) -> Iterator[Table]:
        """A table of the figures, and one for each field that holds others."""
        rows = list(self.lines())
        if any(others for *_, others in rows):
            yield Table(title, ("figure", "median", "p10 – p90"), rows)
        elif rows:
            yield Table(title, ("figure", "value"), [row[:2] for row in rows])
        for _, declared, value in self._declared():
            if declared.label and _are_figures(value):
                yield grid(title, declared.label, value)

    def remarks(self) -> Iterable[str]:
        """Lines below the tables."""
        for _, _, value in self._declared():
            if isinstance(value, Figures):
                yield from value.remarks()

    def _declared(self) -> Iterator[tuple[str, _Declared, Any]]:
        for field in dataclasses.fields(self):
            if "figure" in field.metadata:
                yield field.name, field.metadata["figure"], getattr(self, field.name)

    def cells(self) -> Iterator[tuple[str, str]]:
        """Label and cell of each labelled figure, for a row of a table of several."""
        for _, declared, value in self._declared():
            if declared.label:
                median, others = declared.cells(value)
                yield declared.label, f"{median} ({others})" if others else median


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


def grid(title: str, head: str, rows: Mapping[str, Figures] | Sequence[Figures]) -> Table:
    """A table with a row for each of several figures of one kind, and a column for each figure."""
    named = rows.items() if isinstance(rows, Mapping) else [(one.heading(), one) for one in rows]
    lines = [(name, [*figures.cells()]) for name, figures in named]
    columns = [label for label, _ in lines[0][1]] if lines else []
    return Table(title, (head, *columns), [(name, *(c for _, c in cells)) for name, cells in lines])


def cells(
    measured: Sequence[float], form: str, shows: Mapping[str, int] = SPREAD
) -> tuple[str, str]:
    """The median of samples and the other percentiles, as they are written in a table."""
    if not len(measured):
        return "", ""
    found = np.percentile(np.asarray(measured, float), list(shows.values()))
    median, *others = (f"{float(one):{form}}" for one in found)
    return median, " – ".join(others)


def percentiles(
    key: str, measured: Sequence[float], shows: Mapping[str, int] = SPREAD, digits: int | None = 3
) -> dict[str, float | None]:
    """Some percentiles of samples under their names, for `--json`; None of no samples."""
    if not len(measured):
        return dict.fromkeys((key + end for end in shows), None)
    found = np.percentile(np.asarray(measured, float), list(shows.values()))
    return {key + end: round(float(one), digits) for end, one in zip(shows, found, strict=True)}


def median(measured: Sequence[float], digits: int = 3) -> float:
    """The median of samples, rounded."""
    return round(float(np.median(measured)), digits)


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> Samples:
    """One figure over another, by pairs of the same round."""
    return [one / max(other, 1e-9) for one, other in zip(ours, theirs, strict=True)]


def with_interval(measured: Sequence[float]) -> tuple[float, float, float]:
    """The median of some ratios, and where it lies with 95 % by resampling them."""
    found = np.array(measured, dtype=float)
    drawn = np.random.default_rng(0).choice(found, (2000, len(found)))
    low, high = np.percentile(np.median(drawn, axis=1), (2.5, 97.5))
    return float(np.median(found)), float(low), float(high)


def interval_as_dict(key: str, measured: Sequence[float]) -> dict[str, Any]:
    """The median and its 95 % interval under two names, for `--json`."""
    median, low, high = with_interval(measured)
    return {key: round(median, 4), f"{key}_ci95": [round(low, 4), round(high, 4)]}


def _are_figures(value: Any) -> bool:
    parts = value.values() if isinstance(value, Mapping) else value
    return isinstance(parts, Iterable) and any(isinstance(part, Figures) for part in parts)


def _as_json(value: Any, digits: int | None) -> Any:
    if isinstance(value, Figures):
        return value.as_dict()
    if isinstance(value, Mapping):
        return {key: _as_json(one, digits) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_as_json(one, digits) for one in value]
    return round(value, digits) if digits is not None and isinstance(value, float) else value
