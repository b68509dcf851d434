"""Draws runs on the simulated cluster over time; needs matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
from matplotlib import pyplot as plt

from elasticutor.lab.sim.recorder import Bin
from elasticutor.lab.sim.report import Report

_COLOURS = {"elastic": "#1b6ca8", "static": "#b5485d", "rc": "#e0a030", "naive": "#3aa17e"}
_WINDOW = 10
"""Tenths of a second that throughput is averaged over, as in the paper's figure 7."""


def draw(path: Path, reports: Sequence[Report]) -> None:
    """Draw throughput, latency, cores and moves of runs over time, one below the other."""
    mpl.rcParams["svg.hashsalt"] = "elasticutor"
    figure, axes = plt.subplots(4, 1, figsize=(9, 8), layout="constrained", sharex=True)
    throughput, latency, cores, moves = axes
    for report in reports:
        colour = _COLOURS.get(report.paradigm)
        times = [moment.time_s for moment in report.timeline]
        rates = _smooth([moment.throughput / 1e3 for moment in report.timeline])
        throughput.plot(times, rates, color=colour, label=report.paradigm)
        latency.plot(times, [moment.mean_ms for moment in report.timeline], color=colour)
        cores.plot(times, [moment.cores for moment in report.timeline], color=colour)
        moves.plot(times, _rising(report.timeline), color=colour)
    ideal, bound = max(r.ideal for r in reports), min(r.bound for r in reports)
    throughput.axhline(min(ideal, bound) / 1e3, color="grey", linewidth=0.8)
    throughput.set_ylim(bottom=0)
    throughput.set_title("thousand tuples a second (grey: the most that is possible)", fontsize=10)
    throughput.legend(frameon=False)
    latency.set_yscale("log")
    latency.set_title("mean latency [ms]", fontsize=10)
    cores.set_ylim(bottom=0)
    cores.set_title("cores that executors have", fontsize=10)
    moves.set_title("shards moved, in all", fontsize=10)
    moves.set_xlabel("simulated seconds")
    for panel in axes:
        panel.spines[["top", "right"]].set_visible(False)
    metadata = {"Date": None} if path.suffix == ".svg" else None
    figure.savefig(path, metadata=metadata, dpi=130)
    plt.close(figure)


def _smooth(values: Sequence[float]) -> list[float]:
    """Each value as the mean of itself and those of the second before."""
    return [
        sum(values[max(0, end - _WINDOW) : end]) / min(end, _WINDOW)
        for end in range(1, len(values) + 1)
    ]


def _rising(moments: Sequence[Bin]) -> list[int]:
    total, sums = 0, []
    for moment in moments:
        total += moment.moves
        sums.append(total)
    return sums
