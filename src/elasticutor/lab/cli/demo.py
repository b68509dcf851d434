"""`elasticutor demo`: cores that go where the load is, live on a local Spark, in the terminal."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.text import Text

from elasticutor.cli.output import err, note, out, print_json, print_table
from elasticutor.cli.pictures import require_drawing
from elasticutor.core.paradigm import ParadigmName
from elasticutor.lab.bench.live import spark_cluster
from elasticutor.lab.cli.declared import command_of
from elasticutor.lab.demo import demo as play
from elasticutor.lab.demo.demo import (
    ABSORBED_MS,
    CALM,
    CORES,
    HOT,
    NODES,
    ROW_S,
    RUSH,
    RUSH_S,
    TARGET_S,
    DemoStory,
    offered_rows_s,
)
from elasticutor.lab.options import Options, option

_BAR = 40
_SPARK = " ▁▂▃▄▅▆▇█"


class DemoOptions(Options):
    """How long and where to."""

    seconds: float = option(play.LENGTH_S, "Length of each of the two runs.", min=2)
    seed: int = option(1, "Another seed, other hot keys.", min=0)
    plot: Path | None = option(Path("rush.svg"), "Where the picture goes (.svg, .png, .pdf).")
    plain: bool = option(False, "No live view, only the results.")


def _demo(options: DemoOptions, as_json: bool) -> None:
    """Watch cores go where the load is: a rush of clicks, then one of orders; then the same static.

    Runs live on a local Spark, for about a minute. The cores are emulated: their work is slept.
    """
    require_drawing(options.plot)
    note("starting Spark …")
    stories = []
    paradigms: tuple[ParadigmName, ...] = ("elastic", "static")
    with spark_cluster(CORES, NODES, schedule_s=1.0) as cluster:
        for paradigm in paradigms:
            with _view(paradigm, hidden=options.plain or as_json) as watch:
                stories.append(play.tell(cluster, paradigm, options.seed, options.seconds, watch))
    if as_json:
        print_json({story.paradigm: story.as_dict() for story in stories})
    else:
        _compare(*stories)
    if options.plot is not None:
        from elasticutor.lab.demo.plot import draw

        draw(options.plot, *stories)
        note(f"drawn: {options.plot}")


demo = command_of(DemoOptions, _demo)


@contextmanager
def _view(paradigm: str, *, hidden: bool) -> Iterator[Callable[[DemoStory], None]]:
    if hidden or not err.is_terminal:
        note(f"running {paradigm} …")
        yield lambda story: None
        return
    with Live(Text("waiting for the first tuples …"), console=err, refresh_per_second=8) as live:
        yield lambda story: live.update(_picture(story))


def _picture(story: DemoStory) -> RenderableType:
    moment = story.moments[-1]
    offered = offered_rows_s(moment.time_s)
    lines = [
        Text(
            f"t = {moment.time_s:4.1f} s   {moment.rows_s:6.0f} tuples/s of {offered:.0f}   "
            f"moves {len(story.moves)}   core changes {story.plans}"
        ),
        Text(f"latency  p50 {moment.p50_ms:8.1f} ms   p99 {moment.p99_ms:8.1f} ms"),
        Text(f"p99      {_sparkline([m.p99_ms for m in story.moments])}", style="cyan"),
    ]
    for name, loads in moment.loads.items():
        lines.append(Text(f"{name}: {len(loads)} cores", style="bold"))
        lines += [_bar(load) for load in loads]
    return Panel(
        Group(*lines), title=story.paradigm, subtitle="a full bar is twice a core", expand=False
    )


def _bar(load: float) -> Text:
    filled = min(_BAR, round(load / 2 * _BAR))
    colour = "red" if load > 1.0 else "yellow" if load > 0.85 else "green"
    bar = Text("  ")
    bar.append("█" * filled, style=colour).append("·" * (_BAR - filled), style="dim")
    bar.append(f" {load:4.0%}")
    return bar


def _sparkline(values: list[float]) -> str:
    """The last values as little bars, on a logarithmic scale from 1 ms to 10 s."""
    bars = []
    for value in values[-60:]:
        share = math.log10(max(value, 1.0)) / 4.0 if value == value else 0.0
        bars.append(_SPARK[min(len(_SPARK) - 1, round(share * (len(_SPARK) - 1)))])
    return "".join(bars)


def _compare(elastic: DemoStory, static: DemoStory) -> None:
    out.print(
        f"Two operators on {NODES} nodes of {CORES} cores, {ROW_S * 1e3:g} ms of work per tuple; "
        f"a mean latency of {TARGET_S * 1e3:g} ms is asked for. "
        f"Each has {CALM:g} core's worth to do, and for {RUSH_S:g} s {CALM + RUSH:g} cores' worth: "
        f"first the one, then the other. {HOT.share:.0%} of a rush is one key, another every "
        f"{HOT.seconds:g} s."
    )
    lines: tuple[tuple[str, Callable[[DemoStory], str]], ...] = (
        ("tuples a second, mean", lambda s: f"{s.rows_s:.0f}"),
        ("latency p50", lambda s: f"{s.p50_ms:.1f} ms"),
        ("latency p99", lambda s: f"{s.p99_ms:.1f} ms"),
        (f"p99 below {ABSORBED_MS:g} ms again after the rushes' begin", _absorbed),
        ("most cores of an operator", _most),
        ("changes of an operator's cores", lambda s: f"{s.plans}"),
        ("shards moved", lambda s: f"{len(s.moves)}"),
        ("a moving shard's pause, median", _pause),
    )
    rows = [(name, figure(elastic), figure(static)) for name, figure in lines]
    print_table("", ("", elastic.paradigm, static.paradigm), rows)
    out.print("Each shard waits for its own move only; nothing upstream was paused or notified.")


def _absorbed(story: DemoStory) -> str:
    times = [
        "not before its end" if math.isinf(seconds) else f"{seconds:.1f} s"
        for seconds in story.absorbed_s
    ]
    return ", ".join(times) or "–"


def _most(story: DemoStory) -> str:
    counts = [count for moment in story.moments for count in moment.cores.values()]
    return str(max(counts, default=0))


def _pause(story: DemoStory) -> str:
    if not story.moves:
        return "–"
    pauses = [move["sync_ms"] + move["migration_ms"] for move in story.moves]
    return f"{statistics.median_high(pauses):.1f} ms"
