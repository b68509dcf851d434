"""`elasticutor check`: seeded runs of the core with faults, against a sequential fold."""

from __future__ import annotations

import typer

from elasticutor.cli.output import INTERRUPTED, err, note, print_json, print_table, progress_bar
from elasticutor.lab.check.mutants import ALL
from elasticutor.lab.check.runner import CheckResult, run_seed, run_seeds
from elasticutor.lab.check.trace import Trace
from elasticutor.lab.cli.declared import command_of
from elasticutor.lab.options import BadOptionError, Options, option

_MOST_SHOWN = 5  # failing seeds that are explained at once
_MUTANT_SEEDS = 300


class CheckOptions(Options):
    """Which seeds are run, and how."""

    seeds: int = option(
        100, "How many seeds to run, from --first on.", min=1, names=("--seeds", "-n")
    )
    first: int = option(0, "The first seed.", min=0)
    seed: int | None = option(None, "Run this one seed only: the same run every time.", min=0)
    trace: bool = option(False, "Print the story of the run, event by event.")
    processes: int | None = option(None, "Processes to use.", min=1, shows="one per core")
    mutants: bool = option(False, "Check the checker: put known bugs in, one by one.")


def _check(options: CheckOptions, as_json: bool) -> None:
    """Prove the protocol: seeded runs with delays, moves, losses, aborts and rollbacks.

    Every run drives the real core under virtual time, and compares its final state and outputs
    with a sequential fold of the input. Exits with 1 if any run goes wrong; that seed can then be
    replayed with [bold]--seed K --trace[/bold].
    """
    if options.trace and options.seed is None:
        raise BadOptionError("--trace", "needs --seed K: a trace is the story of one run")
    if options.mutants:
        _check_mutants(as_json)
    elif options.seed is not None:
        _check_one(options.seed, options.trace, as_json)
    else:
        seeds = range(options.first, options.first + options.seeds)
        _check_many(seeds, options.processes, as_json)


check = command_of(CheckOptions, _check)


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
            raise typer.Exit(INTERRUPTED) from None
    _report(latest, as_json)


def _report(result: CheckResult, as_json: bool) -> None:
    _print(result, as_json)
    if result.failures:
        raise typer.Exit(1)


def _print(result: CheckResult, as_json: bool) -> None:
    if as_json:
        print_json(result.as_dict())
    else:
        counts = ((n, c) for n, c in result.as_dict().items() if isinstance(c, (int, float)))
        rows = ((name.replace("_", " "), f"{count:,}") for name, count in counts)
        print_table(f"{result.seeds} seeds", ("what happened", "count"), rows)
    for failure in result.failures[:_MOST_SHOWN]:
        err.rule(f"seed {failure.seed}")
        for violation in failure.violations:
            note(violation)
        note(f"replay it with: elasticutor check --seed {failure.seed} --trace")
    hidden = len(result.failures) - _MOST_SHOWN
    if hidden > 0:
        note(f"… and {hidden} more failing seeds")


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
        rows = (
            (name, "not found" if after is None else str(after)) for name, after in found.items()
        )
        print_table("the checker checked", ("bug put in", "found after seeds"), rows)
    if None in found.values():
        raise typer.Exit(1)
