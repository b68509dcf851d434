"""Draws the demo's two runs side by side; needs matplotlib."""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

from elasticutor.demo import CORES, HOT_S, RATE, Story

_COLOURS = ("#1b6ca8", "#3aa17e", "#e0a030", "#b5485d")
_BALANCED, _NOT = "#1b6ca8", "#b5485d"


def draw(path: Path, with_it: Story, without: Story) -> None:
    """Latency and throughput of both runs over time, and the load of each core in each."""
    mpl.rcParams["svg.hashsalt"] = "elasticutor"
    figure, axes = plt.subplots(2, 2, figsize=(10, 5.4), layout="constrained", sharex=True)
    (latency, ours), (throughput, theirs) = axes
    for story, colour, name in ((without, _NOT, "not balanced"), (with_it, _BALANCED, "balanced")):
        times = [moment.time_s for moment in story.moments]
        latency.plot(times, [moment.p99_ms for moment in story.moments], color=colour, label=name)
        rates = [moment.rows_s for moment in story.moments]
        throughput.plot(times, rates, color=colour, label=name)
    latency.set_yscale("log")
    latency.set_title("another key turns hot every 5 s: p99 latency [ms]", fontsize=10)
    latency.legend(frameon=False)
    throughput.axhline(RATE, color="grey", linewidth=0.8)
    throughput.set_ylim(0, RATE * 1.3)
    throughput.set_title("tuples a second (grey: offered)", fontsize=10)
    _loads(ours, with_it, "load per core, balanced")
    _loads(theirs, without, "load per core, not balanced")
    for panel in axes.flat:
        _mark(panel, max(moment.time_s for moment in with_it.moments))
    metadata = {"Date": None} if path.suffix == ".svg" else None
    figure.savefig(path, metadata=metadata, dpi=130)
    plt.close(figure)


def _loads(axes: Axes, story: Story, title: str) -> None:
    moments = [moment for moment in story.moments if len(moment.loads) == CORES]
    times = [moment.time_s for moment in moments]
    for core in range(CORES):
        loads = [min(moment.loads[core], 3.0) for moment in moments]
        axes.plot(times, loads, color=_COLOURS[core], label=f"core {core}")
    axes.axhline(1.0, color="grey", linewidth=0.8)
    axes.set_ylim(0, 3.0)
    axes.set_title(title + " (work and backlog)", fontsize=10)


def _mark(axes: Axes, length_s: float) -> None:
    for number in range(1, int(length_s / HOT_S) + 1):
        axes.axvline(number * HOT_S, color="grey", linestyle=":", linewidth=1)
    axes.set_xlabel("seconds")
    axes.spines[["top", "right"]].set_visible(False)
