"""`elasticutor bench checkpoint`: what epochs cost, live on Spark."""

from __future__ import annotations

from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from elasticutor.cli.output import note, out, print_json

if TYPE_CHECKING:
    from elasticutor.driver.cluster import BaseCluster
    from elasticutor.lab.bench.checkpoint.dirty import Dirty
    from elasticutor.lab.bench.checkpoint.overhead import OverheadBench, OverheadSetting
    from elasticutor.lab.bench.checkpoint.restore import Restore

_INTERRUPTED = 130


class CheckpointPart(StrEnum):
    """What to measure."""

    THROUGHPUT = "throughput"
    DIRTY = "dirty"
    RESTORE = "restore"
    ALL = "all"


def register(app: typer.Typer) -> None:
    """Add the command to `elasticutor bench`."""
    app.command("checkpoint")(checkpoint)


def checkpoint(
    part: Annotated[
        CheckpointPart, typer.Option(help="What to measure.")
    ] = CheckpointPart.THROUGHPUT,
    pairs: Annotated[int, typer.Option(min=1, help="Pairs of runs, with and without.")] = 5,
    seconds: Annotated[float, typer.Option(min=0.5, help="How long each run is measured.")] = 8,
    warm_up: Annotated[float, typer.Option(min=0, help="Seconds before that.")] = 2.5,
    interval: Annotated[
        float, typer.Option(min=0.05, help="Seconds from one epoch's end to the next.")
    ] = 2.0,
    keys: Annotated[int, typer.Option(min=1, help="Keys, for the throughput.")] = 10_000,
    cores: Annotated[int, typer.Option(min=1, help="Cores of the executor: its tasks.")] = 2,
    state_keys: Annotated[
        int, typer.Option(min=100, help="Keys, for what is dirty and for restores.")
    ] = 1_000_000,
    epochs: Annotated[int, typer.Option(min=1, help="Epochs for each share of dirty keys.")] = 20,
    repeat: Annotated[int, typer.Option(min=1, help="Restores to time.")] = 3,
    folder: Annotated[
        Path | None,
        typer.Option(help="Where to make the checkpoints.", show_default="temporary files"),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print figures as JSON.")] = False,
) -> None:
    """What checkpoints cost: throughput, pauses and bytes; and how soon state is back.

    Throughput: pairs of runs with a checkpoint and without, as fast as tuples are taken. Dirty:
    what epochs write that change 1 % and 10 % of much state. Restore: how soon a run goes on from
    a checkpoint with much state.
    """
    from elasticutor.lab.bench.checkpoint.overhead import OverheadSetting, scratch
    from elasticutor.lab.bench.live import spark_cluster

    if seconds <= interval:
        raise typer.BadParameter(
            f"{seconds:g} is not more than an epoch's {interval:g} s", None, None, "--seconds"
        )
    setting = OverheadSetting(
        keys=keys,
        cores=cores,
        interval_s=interval,
        pairs=pairs,
        seconds=seconds,
        warm_up_s=warm_up,
    )
    note("starting Spark")
    try:
        # The folder outlives the cluster, whose processes write into it.
        with scratch(folder) as place, spark_cluster(cores) as cluster:
            results = _measure(cluster, place, setting, part, state_keys, epochs, repeat)
    except KeyboardInterrupt:
        note("interrupted; everything that was started has been stopped")
        raise typer.Exit(_INTERRUPTED) from None
    if as_json:
        print_json(_as_dict(*results))
    else:
        _print(*results)


Results = tuple["OverheadBench | None", "Dirty | None", "Restore | None", dict[str, Any]]


def _measure(
    cluster: BaseCluster,
    place: Path,
    setting: OverheadSetting,
    part: CheckpointPart,
    state_keys: int,
    epochs: int,
    repeat: int,
) -> Results:
    from elasticutor.lab.bench.checkpoint.dirty import bench_dirty
    from elasticutor.lab.bench.checkpoint.overhead import bench_overhead
    from elasticutor.lab.bench.checkpoint.restore import bench_restore
    from elasticutor.lab.bench.checkpoint.state import PATIENCE_S, filled
    from elasticutor.lab.bench.live import Machine

    overhead, dirty, restore = None, None, None
    machine = Machine()
    machine.glance()
    if part in (CheckpointPart.THROUGHPUT, CheckpointPart.ALL):
        overhead = bench_overhead(cluster, place, setting, progress=note)
    fill = partial(filled, cluster, keys=state_keys, cores=setting.cores, progress=note)
    if part in (CheckpointPart.RESTORE, CheckpointPart.ALL):
        store = fill(place / "restore", interval_s=setting.interval_s)
        restore = bench_restore(cluster, store, place, repeat=repeat, progress=note)
        machine.glance()
    if part in (CheckpointPart.DIRTY, CheckpointPart.ALL):
        # In one epoch, so that all is in one file: what is folded later is of later epochs.
        store = fill(place / "dirty", interval_s=PATIENCE_S)
        dirty = bench_dirty(
            cluster, store, epochs=epochs, interval_s=setting.interval_s, progress=note
        )
        machine.glance()
    return overhead, dirty, restore, machine.as_dict()


def _as_dict(
    overhead: OverheadBench | None,
    dirty: Dirty | None,
    restore: Restore | None,
    machine: dict[str, Any],
) -> dict[str, Any]:
    return {
        **({} if overhead is None else overhead.as_dict()),
        **({} if dirty is None else {"dirty": dirty.as_dict()}),
        **({} if restore is None else {"restore": restore.as_dict()}),
        **(machine if overhead is None else {}),
    }


def _print(
    overhead: OverheadBench | None,
    dirty: Dirty | None,
    restore: Restore | None,
    machine: dict[str, Any],
) -> None:
    if overhead is not None:
        _print_overhead(overhead)
    if dirty is not None:
        _print_dirty(dirty)
    if restore is not None:
        _print_restore(restore)
    reference = overhead.machine.as_dict() if overhead is not None else machine
    out.print(f"sum(range(1000)) meanwhile took {reference['reference_us']:.1f} µs")


def _print_overhead(result: OverheadBench) -> None:
    setting = result.setting
    table = _table(
        f"{setting.pairs} pairs: an epoch every {setting.interval_s:g} s, {setting.keys:,} keys",
        "operator",
        "with / without",
        "p10 – p90",
        "pause ms (p99)",
        "epoch s",
        "KB per epoch",
    )
    for kind, figures in result.kinds.items():
        ratio = figures.ratio
        table.add_row(
            kind.replace("_", " "),
            f"{ratio.median:.3f}",
            f"{ratio.low:.3f} – {ratio.high:.3f}",
            f"{figures.pause_ms(50):.1f} ({figures.pause_ms(99):.1f})",
            f"{figures.epoch_s.median:.3f}",
            f"{figures.bytes_per_epoch / 1e3:,.0f}",
        )
    out.print(table)


def _print_dirty(result: Dirty) -> None:
    table = _table(
        f"what epochs write of {result.store.keys:,} keys ({result.whole / 1e6:,.1f} MB in all)",
        "share",
        "dirty keys",
        "KB per epoch",
        "bytes per dirty key",
        "folded KB per epoch",
        "pause ms",
    )
    for written in result.runs:
        figures = written.as_dict()
        table.add_row(
            f"{written.share:.1%}",
            f"{figures['dirty_keys_per_epoch']:,}",
            f"{figures['bytes_per_epoch'] / 1e3:,.0f}",
            f"{figures['bytes_per_dirty_key']:.1f}",
            f"{figures['folded_bytes_per_epoch'] / 1e3:,.0f}",
            f"{figures['pause_ms_p50']:.1f}",
        )
    out.print(table)


def _print_restore(result: Restore) -> None:
    figures = result.as_dict()
    table = _table(
        f"restore of {result.store.keys:,} keys of {result.store.size} bytes",
        "seconds until",
        "restored",
        "empty",
    )
    for name, seconds in figures["until"].items():
        table.add_row(name.removesuffix("_s"), f"{seconds:.2f}", f"{figures['empty'][name]:.2f}")
    for name, seconds in figures["steps_alone"].items():
        table.add_row(f"{name.removesuffix('_s')}, alone", f"{seconds:.2f}", "")
    out.print(table)


def _table(title: str, *columns: str) -> Table:
    table = Table(*columns, title=title)
    for column in table.columns[1:]:
        column.justify = "right"
    return table
