"""`elasticutor demo`: a hot key appears and is absorbed, step by step, in the terminal."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from elasticutor import demo as play
from elasticutor.cli.output import note, out, print_json
from elasticutor.demo import CORES, HOT_FROM_S, HOT_RATE, LENGTH_S, Moment, Story

_BAR = 40


def demo(
    seed: Annotated[int, typer.Option(min=0, help="Another seed, another hot key.")] = 1,
    plot: Annotated[
        Path | None, typer.Option(help="Draw latency and load into this file (.svg, .png, .pdf).")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Only draw.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print figures as JSON.")] = False,
) -> None:
    """Watch one executor with four cores absorb a hot key, and what happens without balancing.

    The cores and the wires are simulated, in virtual time; the decisions are the real core's.
    """
    with_it, without = play.tell(balanced=True, seed=seed), play.tell(balanced=False, seed=seed)
    if as_json:
        print_json({"balanced": _figures(with_it), "static": _figures(without)})
    elif not quiet:
        _tell(with_it, without)
    if plot is not None:
        _draw(plot, with_it, without)


def _tell(with_it: Story, without: Story) -> None:
    before, hit = _at(with_it, HOT_FROM_S), _at(with_it, HOT_FROM_S + 0.1)
    out.rule("1  steady load")
    out.print(f"One elastic executor, {CORES} cores, {play.SHARDS} shards, 1 ms of work per tuple.")
    _show(before)
    out.rule(f"2  t = {HOT_FROM_S:.1f} s: one key turns hot")
    out.print(
        f"{HOT_RATE:.0f} more tuples a second, all of one key, in shard {with_it.hot_shard}: "
        f"{HOT_RATE * play.ROW_S:.1f} cores' worth."
    )
    _show(hit)
    out.rule("3  its shard and its neighbours part")
    _show_moves(with_it)
    out.rule(f"4  t = {LENGTH_S:.1f} s: absorbed")
    _show(_at(with_it, LENGTH_S))
    out.rule("5  the same without balancing")
    _show(_at(without, LENGTH_S))
    _compare(with_it, without)


def _show(moment: Moment) -> None:
    for core, load in enumerate(moment.loads):
        filled = round(min(load, 1.0) * _BAR)
        colour = "red" if load > 0.95 else "yellow" if load > 0.8 else "green"
        bar = f"[{colour}]{'█' * filled}[/{colour}]{'·' * (_BAR - filled)}"
        out.print(f"  core {core} {bar} {load:4.0%}")
    out.print(f"  latency: p50 {moment.p50_ms:.1f} ms, p99 {moment.p99_ms:.1f} ms")


def _show_moves(story: Story) -> None:
    table = Table("t", "shard", "from core", "to core", "paused for")
    for moment in story.moments:
        for move in moment.moves:
            if moment.time_s > HOT_FROM_S:
                table.add_row(
                    f"{moment.time_s:.1f} s",
                    str(move.shard),
                    str(move.source),
                    str(move.destination),
                    f"{(move.sync_s + move.migration_s) * 1e3:.1f} ms",
                )
    out.print(table)
    out.print("Each shard waits for its own move only; nobody upstream was paused or told.")


def _compare(with_it: Story, without: Story) -> None:
    table = Table("p99 latency, worst 100 ms", "balanced", "not balanced", title="side by side")
    for name, start, end in (
        ("before the hot key", 0.3, HOT_FROM_S),
        ("in its first second", HOT_FROM_S, HOT_FROM_S + 1.0),
        ("in its second second", HOT_FROM_S + 1.0, LENGTH_S),
    ):
        ours, theirs = with_it.p99_ms(start, end), without.p99_ms(start, end)
        table.add_row(name, f"{ours:.1f} ms", f"{theirs:.1f} ms")
    out.print(table)
    recovered = with_it.recovery_s
    if recovered is not None:
        out.print(
            f"Balanced, p99 is back below twice its old worst {recovered:.1f} s after the hit."
        )


def _figures(story: Story) -> dict[str, Any]:
    return {
        "hot_shard": story.hot_shard,
        "moves": len(story.moves),
        "recovery_s": story.recovery_s,
        "p99_ms_before": round(story.p99_ms(0.3, HOT_FROM_S), 2),
        "p99_ms_first_second": round(story.p99_ms(HOT_FROM_S, HOT_FROM_S + 1.0), 2),
        "p99_ms_second_second": round(story.p99_ms(HOT_FROM_S + 1.0, LENGTH_S), 2),
        "timeline": [
            {
                "time_s": round(moment.time_s, 3),
                "p50_ms": round(moment.p50_ms, 2),
                "p99_ms": round(moment.p99_ms, 2),
                "loads": [round(load, 3) for load in moment.loads],
                "moves": len(moment.moves),
            }
            for moment in story.moments
        ],
    }


def _at(story: Story, time_s: float) -> Moment:
    return min(story.moments, key=lambda moment: abs(moment.time_s - time_s))


def _draw(path: Path, with_it: Story, without: Story) -> None:
    try:
        import matplotlib as mpl
    except ImportError:
        note("drawing needs matplotlib: pip install 'elasticutor[plot]'")
        raise typer.Exit(2) from None
    mpl.use("Agg")
    from elasticutor.demo_plot import draw

    draw(path, with_it, without)
    note(f"drawn: {path}")
