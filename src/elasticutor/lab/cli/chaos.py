"""`elasticutor chaos`: processes of a live run are killed, and every tuple must count once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from elasticutor.cli.output import note, out, print_json, progress_bar

if TYPE_CHECKING:  # what runs live is imported when it is needed: it takes a moment
    from elasticutor.lab.chaos.result import ChaosResult
    from elasticutor.lab.chaos.setting import ChaosSetting

_INTERRUPTED = 130
_MOST_SHOWN = 10


def chaos(
    kills: Annotated[
        int, typer.Option("--kills", "-n", min=0, help="Processes to kill, drivers not counted.")
    ] = 200,
    driver_kills: Annotated[int, typer.Option(min=0, help="Drivers to kill, in the same run.")] = 0,
    seed: Annotated[int, typer.Option(min=0, help="The same seed, the same victims.")] = 1,
    nodes: Annotated[int, typer.Option(min=1, help="Nodes on this machine.")] = 2,
    cores: Annotated[int, typer.Option(min=1, help="Cores of each.")] = 3,
    rate: Annotated[float, typer.Option(min=1, help="Tuples per second.")] = 1_500,
    epoch_interval: Annotated[
        float, typer.Option(min=0.01, help="Seconds from one epoch to the next.")
    ] = 0.3,
    master: Annotated[
        str,
        typer.Option(
            help=r"local\[4] or local-cluster\[…]: have a Spark on this machine host the nodes.",
            show_default="plain processes",
        ),
    ] = "",
    timeout: Annotated[
        float, typer.Option(min=1, help="Seconds that a recovery may take before it is a hang.")
    ] = 60,
    keep: Annotated[
        bool,
        typer.Option("--keep", help="If something is violated, keep checkpoint, outputs and logs."),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print figures as JSON.")] = False,
) -> None:
    """Kill processes of a live run at random and at named points; every tuple must count once.

    A run on this machine reads an endless stream, chains hashes over it and writes Parquet, with
    shards and cores moving all the time. Tasks, main processes, nodes, sources, sinks and drivers
    are killed with [bold]kill -9[/bold], and the run must go on from its last epoch by itself. At
    the end its checkpoint and its outputs are compared with a sequential fold of the same tuples.
    Exits with 1 if they differ, if a run fails, hangs, or leaves anything behind.
    """
    from elasticutor.lab.chaos.setting import ChaosSetting

    setting = ChaosSetting(
        kills=kills,
        driver_kills=driver_kills,
        seed=seed,
        nodes=nodes,
        cores=cores,
        rate=rate,
        epoch_interval_s=epoch_interval,
        timeout_s=timeout,
        master=master,
        keep=keep,
    )
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
        raise typer.Exit(_INTERRUPTED)
    if result.violations:
        raise typer.Exit(1)


def _run(setting: ChaosSetting, as_json: bool) -> tuple[ChaosResult, bool]:
    """Run it, and say whether somebody ended it before its time."""
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
