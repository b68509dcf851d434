"""`elasticutor chaos`: processes of a live run are killed, and every tuple must count once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer
from rich.table import Table

from elasticutor.cli.output import INTERRUPTED, note, out, print_json, progress_bar
from elasticutor.lab.chaos.setting import ChaosSetting
from elasticutor.lab.cli.declared import command_of

if TYPE_CHECKING:  # what runs live is imported when it is needed: it takes a moment
    from elasticutor.lab.chaos.result import ChaosResult

_MOST_SHOWN = 10


def _chaos(setting: ChaosSetting, as_json: bool) -> None:
    """Kill processes of a live run at random and at named points; every tuple must count once.

    A run on this machine reads an endless stream, chains hashes over it and writes Parquet, with
    shards and cores moving all the time. Tasks, main processes, nodes, sources, sinks and drivers
    are killed with [bold]kill -9[/bold], and the run must go on from its last epoch by itself. At
    the end its checkpoint and its outputs are compared with a sequential fold of the same tuples.
    Exits with 1 if they differ, if a run fails, hangs, or leaves anything behind.
    """
    result, interrupted = _run(setting, as_json)
    if as_json:
        print_json(result.as_dict())
    else:
        _print(result)
    for violation in result.violated[:_MOST_SHOWN]:
        note(f"violated: {violation}")
    if result.violations > _MOST_SHOWN:
        note(f"… and {result.violations - _MOST_SHOWN} more")
    if result.folder:
        note(f"kept: {result.folder}")
    if interrupted:
        raise typer.Exit(INTERRUPTED)
    if result.violations:
        raise typer.Exit(1)


chaos = command_of(ChaosSetting, _chaos)


def _run(setting: ChaosSetting, as_json: bool) -> tuple[ChaosResult, bool]:
    """Run it, and say whether it was interrupted."""
    from elasticutor.lab.chaos.result import ChaosResult
    from elasticutor.lab.chaos.runner import run_chaos

    latest = ChaosResult(seed=setting.seed)
    total = setting.kills + setting.driver_kills
    try:
        with progress_bar(hidden=as_json) as progress:
            bar = progress.add_task("killing", total=total)

            def show(result: ChaosResult) -> None:
                nonlocal latest
                latest = result
                text = f"killing, {result.violations} wrong" if result.violations else "killing"
                done = min(total, result.kills + result.driver_kills)
                progress.update(bar, completed=done, description=text)

            note(f"killing {setting.kills} processes and {setting.driver_kills} drivers")
            return run_chaos(setting, show), False
    except KeyboardInterrupt:
        done = latest.kills + latest.driver_kills
        note(f"interrupted after {done} of {total} kills, before anything was compared; so far:")
        return latest, True


def _print(result: ChaosResult) -> None:
    table = Table("what happened", "figure", title=f"chaos, seed {result.seed}")
    table.columns[1].justify = "right"
    for name, figure in result.as_dict().items():
        if isinstance(figure, (int, float)) and name != "seed":
            table.add_row(name.replace("_", " "), f"{figure:,}")
    for name in ("kills_by_kind", "kills_by_point"):
        table.add_section()
        for what, times in result.as_dict()[name].items():
            table.add_row(what, f"{times:,}")
    out.print(table)
