"""`elasticutor demo`: a hot key that moves, live on a local Spark, in the terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from elasticutor import demo as play
from elasticutor.bench.live import spark_cluster
from elasticutor.cli.output import err, note, out, print_json
from elasticutor.demo import CORES, HOT_S, HOT_SHARE, LENGTH_S, RATE, ROW_S, SHARDS, Story
from elasticutor.errors import BadValueError

_BAR = 40
_SPARK = " ▁▂▃▄▅▆▇█"


def demo(
    seconds: Annotated[float, typer.Option(min=2, help="Length of each of the two runs.")] = (
        LENGTH_S
    ),
    seed: Annotated[int, typer.Option(min=0, help="Another seed, other hot keys.")] = 1,
    plot: Annotated[
        Path | None, typer.Option(help="Where the picture goes (.svg, .png, .pdf).")
    ] = Path("hot-key.svg"),
    plain: Annotated[bool, typer.Option("--plain", help="No live view, only the results.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print figures as JSON.")] = False,
) -> None:
    """Watch one executor with four cores absorb a hot key that moves; then the same unbalanced.

    Runs live on a local Spark, for about a minute. The cores are emulated: their work is slept.
    """
    _require_drawing(plot)
    note("starting Spark …")
    stories = []
    with spark_cluster(CORES) as cluster:
        for balanced in (True, False):
            with _view(balanced, hidden=plain or as_json) as watch:
                story = play.tell(
                    cluster, balanced=balanced, seed=seed, seconds=seconds, watch=watch
                )
            stories.append(story)
    with_it, without = stories
    if as_json:
        print_json({"balanced": with_it.as_dict(), "not_balanced": without.as_dict()})
    else:
        _compare(with_it, without)
    if plot is not None:
        _draw(plot, with_it, without)


@contextmanager
def _view(balanced: bool, *, hidden: bool) -> Iterator[Callable[[Story], None]]:
    name = "balanced" if balanced else "not balanced"
    if hidden or not err.is_terminal:
        note(f"running {name} …")
        yield lambda story: None
        return
    with Live(Text("waiting for the first tuples …"), console=err, refresh_per_second=8) as live:
        yield lambda story: live.update(_picture(story))


def _picture(story: Story) -> RenderableType:
    moment = story.moments[-1]
    hot = int(moment.time_s // HOT_S) + 1
    lines = [
        Text(
            f"t = {moment.time_s:4.1f} s   hot key no. {hot}   "
            f"{moment.rows_s:6.0f} tuples/s of {RATE:.0f}   moves {len(story.moves)}"
        ),
        Text(f"latency  p50 {moment.p50_ms:8.1f} ms   p99 {moment.p99_ms:8.1f} ms"),
        Text(f"p99      {_sparkline([m.p99_ms for m in story.moments])}", style="cyan"),
    ]
    for core, load in enumerate(moment.loads):
        filled = min(_BAR, round(load / 2 * _BAR))
        colour = "red" if load > 1.0 else "yellow" if load > 0.85 else "green"
        bar = Text(f"core {core}   ")
        bar.append("█" * filled, style=colour).append("·" * (_BAR - filled), style="dim")
        bar.append(f" {load:4.0%}")
        lines.append(bar)
    title = "balanced" if story.balanced else "not balanced"
    return Panel(Group(*lines), title=title, subtitle="a full bar is twice a core", expand=False)


def _sparkline(values: list[float]) -> str:
    """The last values as little bars, on a logarithmic scale from 1 ms to 10 s."""
    import math

    bars = []
    for value in values[-60:]:
        share = math.log10(max(value, 1.0)) / 4.0 if value == value else 0.0
        bars.append(_SPARK[min(len(_SPARK) - 1, round(share * (len(_SPARK) - 1)))])
    return "".join(bars)


def _compare(with_it: Story, without: Story) -> None:
    out.print(
        f"One elastic executor, {CORES} cores, {SHARDS} shards, {ROW_S * 1e3:g} ms of work per "
        f"tuple. Every {HOT_S:g} s another key brings {HOT_SHARE:.0%} of all tuples: "
        f"{HOT_SHARE * RATE * ROW_S:.2f} cores' worth."
    )
    table = Table("", "balanced", "not balanced")
    for name, figure in (
        ("tuples a second (offered: " + f"{RATE:.0f})", lambda s: f"{s.rows_s:.0f}"),
        ("latency p50", lambda s: f"{s.p50_ms:.1f} ms"),
        ("latency p99", lambda s: f"{s.p99_ms:.1f} ms"),
        ("shards moved", lambda s: f"{len(s.moves)}"),
        ("a moving shard's pause, median", _pause),
    ):
        table.add_row(name, figure(with_it), figure(without))
    out.print(table)
    out.print("Each shard waits for its own move only; nobody upstream was paused or told.")


def _pause(story: Story) -> str:
    if not story.moves:
        return "–"
    pauses = sorted(move["sync_ms"] + move["migration_ms"] for move in story.moves)
    return f"{pauses[len(pauses) // 2]:.1f} ms"


def _require_drawing(path: Path | None) -> None:
    """Say what is wrong with the picture before a minute has passed, not after."""
    if path is None:
        return
    if path.suffix not in (".svg", ".png", ".pdf"):
        raise BadValueError("--plot", "end in .svg, .png or .pdf", path.name)
    if not path.absolute().parent.is_dir():
        raise BadValueError("--plot", "be in a directory that exists", str(path))
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        note("drawing needs matplotlib: pip install 'elasticutor[plot]'")
        raise typer.Exit(2) from None


def _draw(path: Path, with_it: Story, without: Story) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from elasticutor.demo_plot import draw

    draw(path, with_it, without)
    note(f"drawn: {path}")
