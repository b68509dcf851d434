"""Draws the demo's two runs side by side; needs matplotlib."""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

from elasticutor.demo import CORES, HOT_FROM_S, Story

_COLOURS = ("#1b6ca8", "#3aa17e", "#e0a030", "#b5485d")


def draw(path: Path, with_it: Story, without: Story) -> None:
    """Latency of both runs over time, and the load of each core in each."""
    # Same run, same bytes: identifiers and dates would change with every drawing.
    mpl.rcParams["svg.hashsalt"] = "elasticutor"
    figure, (latency, ours, theirs) = plt.subplots(
        1, 3, figsize=(11, 3.2), layout="constrained", width_ratios=(1.3, 1, 1)
    )
    _latency(latency, with_it, without)
    _loads(ours, with_it, "load per core, balanced")
    _loads(theirs, without, "load per core, not balanced")
    metadata = {"Date": None} if path.suffix == ".svg" else None
    figure.savefig(path, metadata=metadata, dpi=130)
    plt.close(figure)


def _latency(axes: Axes, with_it: Story, without: Story) -> None:
    for story, colour, name in (
        (without, "#b5485d", "not balanced"),
        (with_it, "#1b6ca8", "elastic"),
    ):
        times = [moment.time_s for moment in story.moments]
        axes.plot(times, [moment.p99_ms for moment in story.moments], color=colour, label=name)
    axes.set_yscale("log")
    axes.set_title("a key turns hot: p99 latency [ms]", fontsize=10)
    axes.legend(frameon=False)
    _mark(axes)


def _loads(axes: Axes, story: Story, title: str) -> None:
    times = [moment.time_s for moment in story.moments]
    for core in range(CORES):
        loads = [moment.loads[core] for moment in story.moments]
        axes.plot(times, loads, color=_COLOURS[core], label=f"core {core}")
    axes.set_ylim(0, 1.1)
    axes.set_title(title, fontsize=10)
    _mark(axes)


def _mark(axes: Axes) -> None:
    axes.axvline(HOT_FROM_S, color="grey", linestyle=":", linewidth=1)
    axes.set_xlabel("virtual time [s]")
    axes.spines[["top", "right"]].set_visible(False)
