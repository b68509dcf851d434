"""Draws the demo's two runs side by side; needs matplotlib."""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

from elasticutor.lab.demo.demo import (
    CORES,
    FIRST_S,
    NODES,
    OPERATORS,
    RUSH_S,
    DemoStory,
    offered_rows_s,
)

_COLOURS = ("#1b6ca8", "#e0a030")
_ELASTIC, _STATIC = "#1b6ca8", "#b5485d"


def draw(path: Path, elastic: DemoStory, static: DemoStory) -> None:
    """Latency and throughput of both runs over time, and the cores of each operator."""
    mpl.rcParams["svg.hashsalt"] = "elasticutor"
    figure, axes = plt.subplots(2, 2, figsize=(10, 5.4), layout="constrained", sharex=True)
    (latency, cores), (throughput, loads) = axes
    for story, colour in ((static, _STATIC), (elastic, _ELASTIC)):
        times = [moment.time_s for moment in story.moments]
        name = story.paradigm
        latency.plot(times, [moment.p99_ms for moment in story.moments], color=colour, label=name)
        rates = [moment.rows_s for moment in story.moments]
        throughput.plot(times, rates, color=colour, label=name)
        busiest = [max((0.0, *sum(m.loads.values(), ()))) for m in story.moments]
        loads.plot(times, [min(load, 6.0) for load in busiest], color=colour, label=name)
    latency.set_yscale("log")
    latency.set_title("a rush of clicks, then one of orders: p99 latency [ms]", fontsize=10)
    latency.legend(frameon=False)
    times = [moment.time_s for moment in elastic.moments]
    offered = [offered_rows_s(time_s) for time_s in times]
    throughput.plot(times, offered, color="grey", linewidth=0.8)
    throughput.set_ylim(0, max(offered) * 1.3)
    throughput.set_title("tuples a second (grey: offered)", fontsize=10)
    loads.axhline(1.0, color="grey", linewidth=0.8)
    loads.set_title("the busiest core: work and backlog, in cores", fontsize=10)
    _cores(cores, elastic, static)
    for panel in axes.flat:
        _mark(panel, max(times))
    metadata = {"Date": None} if path.suffix == ".svg" else None
    figure.savefig(path, metadata=metadata, dpi=130)
    plt.close(figure)


def _cores(axes: Axes, elastic: DemoStory, static: DemoStory) -> None:
    times = [moment.time_s for moment in elastic.moments]
    for name, colour in zip(OPERATORS, _COLOURS, strict=True):
        counts = [moment.cores[name] for moment in elastic.moments]
        axes.step(times, counts, where="post", color=colour, label=name)
    axes.axhline(NODES * CORES / len(OPERATORS), color=_STATIC, linestyle="--", linewidth=0.8)
    axes.set_ylim(0, NODES * CORES)
    axes.set_title(f"cores of each operator, {elastic.paradigm} (dashed: {static.paradigm})")
    axes.title.set_fontsize(10)
    axes.legend(frameon=False, loc="upper right")


def _mark(axes: Axes, length_s: float) -> None:
    for number in range(len(OPERATORS) + 1):
        if (at := FIRST_S + number * RUSH_S) <= length_s:
            axes.axvline(at, color="grey", linestyle=":", linewidth=1)
    axes.set_xlabel("seconds")
    axes.spines[["top", "right"]].set_visible(False)
