"""`elasticutor check`: seeded runs of the core with faults, against a sequential fold."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.table import Table

from elasticutor.cli.output import err, note, out, print_json, progress_bar
from elasticutor.lab.check.mutants import ALL
from elasticutor.lab.check.runner import CheckResult, SeedResult, run_seed, run_seeds
from elasticutor.lab.check.trace import Trace

_MOST_SHOWN = 5  # failing seeds that are explained at once
_MUTANT_SEEDS = 300


def check(
    seeds: Annotated[
        int, typer.Option("--seeds", "-n", min=1, help="How many seeds to run, from --first on.")
    ] = 100,
    first: Annotated[int, typer.Option(min=0, help="The first seed.")] = 0,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Run this one seed only: the same run every time.")
    ] = None,
    trace: Annotated[
        bool, typer.Option("--trace", help="Print the story of the run, event by event.")
    ] = False,
    processes: Annotated[
        int | None, typer.Option(min=1, help="Processes to use.", show_default="one per core")
    ] = None,
    mutants: Annotated[
        bool, typer.Option("--mutants", help="Check the checker: put known bugs in, one by one.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print figures as JSON.")] = False,
) -> None:
    """Prove the protocol: seeded runs with delays, moves, losses, aborts and rollbacks.

    Every run drives the real core under virtual time, and compares its final state and outputs
    with a sequential fold of the input. Exits with 1 if any run goes wrong; that seed can then be
    replayed with [bold]--seed K --trace[/bold].
    """
    if trace and seed is None:
        raise typer.BadParameter(
            "needs --seed K: a trace is the story of one run", None, None, "--trace"
        )
    if mutants:
        _check_mutants(as_json)
    elif seed is not None:
        _check_one(seed, trace, as_json)
    else:
        _check_many(range(first, first + seeds), processes, as_json)


def _check_one(seed: int, trace: bool, as_json: bool) -> None:
    story = Trace() if trace else None
    outcome = run_seed(seed, story)
    for line in story.lines if story else ():
        typer.echo(line, err=as_json)
    result = CheckResult()
    result.add(outcome)
    _report(result, as_json)


def _check_many(seeds: range, processes: int | None, as_json: bool) -> None:
    latest = CheckResult()

    with progress_bar(hidden=as_json) as progress:
        bar = progress.add_task("checking", total=len(seeds))

        def show(result: CheckResult) -> None:
            nonlocal latest
            latest = result
            text = f"checking, {result.violations} wrong" if result.violations else "checking"
            progress.update(bar, completed=result.seeds, description=text)

        try:
            note(f"checking seeds {seeds.start} to {seeds.stop - 1}")
            run_seeds(seeds, processes=processes, progress=show)
        except KeyboardInterrupt:
            progress.stop()
            note(f"interrupted after {latest.seeds} of {len(seeds)} seeds; so far:")
            _print(latest, as_json)
            raise typer.Exit(130) from None
    _report(latest, as_json)


def _report(result: CheckResult, as_json: bool) -> None:
    _print(result, as_json)
    if result.failures:
        raise typer.Exit(1)


def _print(result: CheckResult, as_json: bool) -> None:
    if as_json:
        print_json(result.as_dict())
    else:
        table = Table("what happened", "count", title=f"{result.seeds} seeds")
        table.columns[1].justify = "right"
        for name, count in result.as_dict().items():
            if isinstance(count, (int, float)):
                table.add_row(name.replace("_", " "), f"{count:,}")
        out.print(table)
    for failure in result.failures[:_MOST_SHOWN]:
        _explain(failure)
    hidden = len(result.failures) - _MOST_SHOWN
    if hidden > 0:
        note(f"… and {hidden} more failing seeds")


def _explain(failure: SeedResult) -> None:
    err.rule(f"seed {failure.seed}")
    for violation in failure.violations:
        note(violation)
    note(f"replay it with: elasticutor check --seed {failure.seed} --trace")


def _check_mutants(as_json: bool) -> None:
    found: dict[str, int | None] = {}
    with progress_bar(hidden=as_json) as progress:
        bar = progress.add_task("bugs put in", total=len(ALL))
        for mutant in ALL:
            found[mutant.name] = mutant.found_after(_MUTANT_SEEDS)
            progress.advance(bar)
    if as_json:
        seeds = {name: None if after is None else after - 1 for name, after in found.items()}
        print_json({"most_seeds": _MUTANT_SEEDS, "found_after": found, "seeds": seeds})
    else:
        table = Table("bug put in", "found after seeds", title="the checker checked")
        table.columns[1].justify = "right"
        for name, after in found.items():
            table.add_row(name, "not found" if after is None else str(after))
        out.print(table)
    if None in found.values():
        raise typer.Exit(1)
