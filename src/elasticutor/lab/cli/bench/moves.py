"""`elasticutor bench reassign` and `bench consistency`: shards on the move, live on Spark."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.table import Table

from elasticutor.cli.output import note, out, print_json, progress_bar
from elasticutor.errors import ElasticutorError
from elasticutor.lab.bench.moves.consistency import CORES, EXECUTORS, Consistency, bench_consistency
from elasticutor.lab.bench.moves.reassign import TOUCH_MS, Reassignment, Scene, bench_reassign

if TYPE_CHECKING:
    from elasticutor.spark.cluster import Cluster

_INTERRUPTED = 130


def register(app: typer.Typer) -> None:
    """Add the commands to `elasticutor bench`."""
    app.command("reassign")(reassign)
    app.command("consistency")(consistency)


def reassign(
    state_kb: Annotated[
        str, typer.Option(help="Sizes of the shard that moves, in KB, with commas between them.")
    ] = "0.1,32,1024,32768",
    local: Annotated[bool, typer.Option("--local", help="Only within a node.")] = False,
    remote: Annotated[bool, typer.Option("--remote", help="Only between two nodes.")] = False,
    row_ms: Annotated[
        str, typer.Option(help="What a tuple of another shard costs; touches cost 0.1 ms.")
    ] = f"{TOUCH_MS:g},1",
    load: Annotated[float, typer.Option(help="How busy each of the two tasks is.")] = 0.5,
    moves: Annotated[int, typer.Option(min=5, help="Moves to time in each scene.")] = 40,
    seed: Annotated[int, typer.Option(min=0, help="For the tuples.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print figures as JSON.")] = False,
) -> None:
    """Hand a shard over under load: how long it waits, and whether the others notice.

    Both within a node and between two, unless one of --local and --remote is given alone. Nodes
    are emulated on this machine: directories and sockets of their own, encrypted TCP between them.
    """
    wheres: list[Literal["local", "remote"]] = []
    if local or not remote:
        wheres.append("local")
    if remote or not local:
        wheres.append("remote")
    scenes = [
        Scene(size, where, cost, load)
        for size in _numbers("--state-kb", state_kb)
        for where in wheres
        for cost in _numbers("--row-ms", row_ms)
    ]
    results: list[Reassignment] = []
    try:
        _measure(scenes, moves, seed, results, as_json)
    except KeyboardInterrupt:
        note(f"interrupted after {len(results)} of {len(scenes)} scenes; so far:")
        _print_reassign(results, as_json)
        raise typer.Exit(_INTERRUPTED) from None
    _print_reassign(results, as_json)


def consistency(
    seconds: Annotated[float, typer.Option(min=1, help="How long the sources send.")] = 300,
    rate: Annotated[float, typer.Option(min=1, help="Tuples per second in all.")] = 20_000,
    keys: Annotated[int, typer.Option(min=1, help="How many keys there are.")] = 10_000,
    sources: Annotated[int, typer.Option(min=1, help="How many sources there are.")] = 3,
    omega: Annotated[float, typer.Option(min=0, help="Key shuffles per minute.")] = 30,
    seed: Annotated[int, typer.Option(min=0, help="For tuples, moves and cores.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print figures as JSON.")] = False,
) -> None:
    """Move shards and change cores without pause, then compare with a sequential program.

    Two emulated nodes, two executors. The final state of every key and every output must be what a
    sequential fold of the same tuples gives. Exits with 1 if anything differs.
    """
    try:
        with _cluster(EXECUTORS * CORES) as cluster, progress_bar(hidden=as_json) as progress:
            bar = progress.add_task("seconds", total=round(seconds))
            result = bench_consistency(
                cluster,
                seconds=seconds,
                rate=rate,
                keys=keys,
                sources=sources,
                omega=omega,
                seed=seed,
                progress=lambda elapsed: progress.update(bar, completed=int(elapsed)),
            )
    except KeyboardInterrupt:
        note("interrupted: nothing was compared")
        raise typer.Exit(_INTERRUPTED) from None
    _print_consistency(result, as_json)
    if result.violations:
        raise typer.Exit(1)


@contextmanager
def _cluster(cores: int) -> Iterator[Cluster]:
    """Two nodes of so many cores, hosted by a local Spark of our own."""
    from elasticutor.spark.cluster import Cluster
    from elasticutor.spark.session import local_session

    note("starting Spark")
    spark = local_session("local[2]", "elasticutor bench")
    try:
        with Cluster(spark, nodes=2, cores=cores, schedule_s=0) as cluster:
            yield cluster
    finally:
        spark.stop()


def _measure(
    scenes: list[Scene], moves: int, seed: int, results: list[Reassignment], as_json: bool
) -> None:
    with _cluster(2) as cluster, progress_bar(hidden=as_json) as progress:
        bar = progress.add_task("moves", total=len(scenes) * moves)

        def show(done: int) -> None:
            progress.update(bar, completed=len(results) * moves + done)

        for scene in scenes:
            note(f"{_size(scene)}, {scene.where}, {scene.row_ms:g} ms tuples beside it")
            try:
                result = bench_reassign(cluster, scene, moves=moves, seed=seed, progress=show)
            except ElasticutorError as error:  # the other scenes are none the worse for it
                note(f"  failed: {error}")
            else:
                results.append(result)


def _numbers(option: str, given: str) -> list[float]:
    try:
        numbers = [float(part) for part in given.split(",")]
    except ValueError:
        raise typer.BadParameter(
            f"{given!r} is not numbers with commas between them", None, None, option
        ) from None
    return numbers


def _size(scene: Scene) -> str:
    kb = scene.state_kb
    return f"{kb / 1024:g} MB" if kb >= 1024 else f"{kb:g} KB"


def _print_reassign(results: list[Reassignment], as_json: bool) -> None:
    if as_json:
        print_json([result.as_dict() for result in results])
        return
    table = Table(
        "state",
        "where",
        "beside it",
        "sync ms (p99)",
        "migr. ms (p99)",
        "others p99 ms",
        "moving",
        "ratio (95 %)",
        title="hand-over of one shard under load, and the p99 of tuples of other shards",
    )
    for result in results:
        ratio, low, high = result.ratio
        table.add_row(
            _size(result.scene),
            result.scene.where,
            f"{result.scene.row_ms:g} ms",
            f"{result.sync_ms[0]:.2f} ({result.sync_ms[1]:.1f})",
            f"{result.migration_ms[0]:.2f} ({result.migration_ms[1]:.1f})",
            f"{result.steady_p99_ms:.1f}",
            f"{result.moving_p99_ms:.1f}",
            f"{ratio:.2f} ({low:.2f} – {high:.2f})",
        )
    out.print(table)


def _print_consistency(result: Consistency, as_json: bool) -> None:
    if as_json:
        print_json(result.as_dict())
    else:
        table = Table("what happened", "count", title="consistency under moves")
        table.columns[1].justify = "right"
        for name, count in result.as_dict().items():
            if isinstance(count, (int, float)):
                table.add_row(name.replace("_", " "), f"{count:,}")
        out.print(table)
    for violation in result.first_violations:
        note(violation)
