"""`elasticutor bench structured`: `elastic()` beside Spark's own APIs, live on Spark."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from elasticutor.cli.output import note, out, print_json

if TYPE_CHECKING:
    from elasticutor.lab.bench.structured.bench import StructuredBench
    from elasticutor.lab.bench.structured.figures import Compared, Uniform

_INTERRUPTED = 130


class StructuredPart(StrEnum):
    """What to measure."""

    COUNT = "count"
    SKEWED = "skewed"
    UNIFORM = "uniform"
    ALL = "all"


class AnswersOption(StrEnum):
    """What is answered."""

    ROW = "row"
    KEY = "key"


def register(app: typer.Typer) -> None:
    """Add the command to `elasticutor bench`."""
    app.command("structured")(structured)


def structured(
    part: Annotated[StructuredPart, typer.Option(help="What to measure.")] = StructuredPart.ALL,
    rows: Annotated[int, typer.Option(min=1, help="Rows to count.")] = 1_000_000,
    batch_rows: Annotated[int, typer.Option(min=2, help="Rows of a batch of them.")] = 100_000,
    keys: Annotated[int, typer.Option(min=1, help="How many keys there are.")] = 10_000,
    payload: Annotated[int, typer.Option(min=0, help="Bytes carried along in each row.")] = 0,
    seconds: Annotated[
        float, typer.Option(min=0.1, help="End a query that counts after so long.")
    ] = 20.0,
    dear_rows: Annotated[
        int, typer.Option(min=1, help="Rows that take CPU time, for the skewed part.")
    ] = 80_000,
    dear_batch_rows: Annotated[
        list[int] | None,
        typer.Option(min=2, help="Rows of a batch of them.", show_default="10000 and 40000"),
    ] = None,
    cost_ms: Annotated[
        float, typer.Option(min=0.001, help="CPU time that each of them takes, in ms.")
    ] = 1.0,
    shuffle: Annotated[
        float, typer.Option(min=0.1, help="Seconds of work between two shuffles of the keys.")
    ] = 10.0,
    pairs: Annotated[
        int, typer.Option(min=1, help="Pairs of runs with and without balancing.")
    ] = 10,
    repeat: Annotated[
        int, typer.Option(min=1, help="Rounds of the other parts; figures are medians.")
    ] = 1,
    cores: Annotated[
        int, typer.Option(min=1, help="Of the elastic operator; partitions of the others.")
    ] = 2,
    answers: Annotated[
        AnswersOption,
        typer.Option(help="What Spark's own APIs answer: each row as elastic() does, or each key."),
    ] = AnswersOption.ROW,
    exchange: Annotated[
        bool, typer.Option("--exchange", help="Let an exchange follow the elastic operator.")
    ] = False,
    folder: Annotated[
        Path | None,
        typer.Option(help="For files and checkpoints.", show_default="temporary files"),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print figures as JSON.")] = False,
) -> None:
    """How elastic() compares with Spark's own APIs for state per key, on the same rows.

    Count: counts per key, with rows that only pass through beside them, and elastic()'s own share
    of a batch with few rows. Skewed: rows that take CPU
    time, with keys whose frequencies change. Uniform: pairs of runs with balancing and without,
    where there is nothing to balance.
    """
    from elasticutor.lab.bench.checkpoint.overhead import scratch
    from elasticutor.lab.bench.structured.bench import (
        StructuredSetting,
        bench_structured,
        require_packages,
        spark_stage,
    )

    sizes = tuple(dear_batch_rows) if dear_batch_rows else StructuredSetting().dear_batch_rows
    parts = [one for one in StructuredPart if part in (one, StructuredPart.ALL)]
    if StructuredPart.SKEWED in parts and dear_rows < max(sizes):
        raise typer.BadParameter(
            f"{dear_rows:,} do not fill a batch of {max(sizes):,}", None, None, "--dear-rows"
        )
    if {StructuredPart.COUNT, StructuredPart.UNIFORM} & set(parts) and rows < batch_rows:
        raise typer.BadParameter(
            f"{rows:,} do not fill a batch of {batch_rows:,}", None, None, "--rows"
        )
    setting = StructuredSetting(
        rows=rows,
        batch_rows=batch_rows,
        keys=keys,
        payload=payload,
        seconds=seconds,
        dear_rows=dear_rows,
        dear_batch_rows=sizes,
        cost_s=cost_ms / 1e3,
        shuffle_s=shuffle,
        cores=cores,
        slots=cores + 2,
        repeat=repeat,
        pairs=pairs,
        exchange=exchange,
        answers="row" if answers is AnswersOption.ROW else "key",
    )
    require_packages()
    note("starting Spark")
    try:
        # The folder outlives Spark, whose processes write into it.
        with scratch(folder) as place, spark_stage(setting, place) as stage:
            result = bench_structured(
                stage,
                place,
                setting,
                count=StructuredPart.COUNT in parts,
                skewed=StructuredPart.SKEWED in parts,
                uniform=StructuredPart.UNIFORM in parts,
                progress=note,
            )
    except KeyboardInterrupt:
        note("interrupted; everything that was started has been stopped")
        raise typer.Exit(_INTERRUPTED) from None
    if as_json:
        print_json(result.as_dict())
    else:
        _print(result)


def _print(result: StructuredBench) -> None:
    setting = result.setting
    if result.count is not None:
        title = f"counts of {setting.keys:,} keys, batches of {result.count.batch_rows:,} rows"
        _print_compared(result.count, title)
    if result.small is not None:
        own, rows = result.small.own_ms, result.small.batch_rows
        out.print(
            f"batches of {rows} rows: {own.median:.0f} ms longer than those that pass through"
        )
    for compared in result.skewed or ():
        title = f"{setting.cost_s * 1e3:g} ms of CPU per row, batches of {compared.batch_rows:,}"
        _print_compared(compared, title)
    if result.uniform is not None:
        _print_uniform(result.uniform)
    reference = result.machine.reference_us
    out.print(f"sum(range(1000)) meanwhile took {reference.median:.1f} µs")


def _print_compared(compared: Compared, title: str) -> None:
    best = compared.runs[compared.best_rival].rows_s.median
    table = Table("query", "rows per second", "of the best rival", "batch p99 ms", title=title)
    for column in table.columns[1:]:
        column.justify = "right"
    for name, runs in compared.runs.items():
        rows_s = runs.rows_s.median
        cells = f"{rows_s:,.0f}", f"{rows_s / best:.2f}", f"{runs.batch_p99_ms:,.0f}"
        table.add_row(name, *cells)
    out.print(table)


def _print_uniform(uniform: Uniform) -> None:
    figures = uniform.as_dict()
    low, high = figures["uniform_ratio_ci95"]
    out.print(
        f"uniform keys, {len(uniform.pairs)} pairs: with balancing "
        f"{figures['uniform_ratio']:.3f} of the rows per second without "
        f"(95 %: {low:.3f} – {high:.3f})"
    )
