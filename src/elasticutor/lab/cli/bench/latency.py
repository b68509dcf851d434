"""`elasticutor bench latency` and `bench throughput`, also beside a peer and with shifting load."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from elasticutor.lab.cli.bench.options import (
    Cores,
    CostMs,
    Json,
    Load,
    Repeat,
    Seconds,
    WarmUp,
    Zipf,
    cells,
    live,
    new_table,
    print_result,
)

if TYPE_CHECKING:
    from rich.table import Table

    from elasticutor.lab.bench.peer.beside import Beside

_NODES, _NODE_CORES = 2, 4
"""With --shift: eight emulated cores, as `bench elastic` has them."""

BesidePeer: TypeAlias = Annotated[
    str, typer.Option("--beside", help="Run the same work in turns on a peer: bytewax.")
]
Checkpoint: TypeAlias = Annotated[
    bool,
    typer.Option("--checkpoint", help="Make state durable every 2 s meanwhile, on both sides."),
]


def register(app: typer.Typer) -> None:
    """Add the commands to `elasticutor bench`."""
    app.command("throughput")(throughput)
    app.command("latency")(latency)


def throughput(
    rows: Annotated[int, typer.Option(min=1, help="Tuples of each run.")] = 1_000_000,
    cores: Cores = 2,
    repeat: Repeat = 5,
    keys: Annotated[int, typer.Option(min=1, help="How many keys there are.")] = 10_000,
    zipf: Zipf = 0.5,
    beside: BesidePeer = "",
    checkpoint: Checkpoint = False,
    as_json: Json = False,
) -> None:
    """Rows per second from source to sink on a local Spark: per record, and vectorised."""
    from elasticutor.lab.bench.throughput import bench_throughput

    _require(beside)
    with live(cores) as (cluster, say):
        result = bench_throughput(
            cluster,
            rows=rows,
            cores=cores,
            repeat=repeat,
            keys=keys,
            zipf=zipf,
            checkpoint=checkpoint,
            beside=bool(beside),
            progress=say,
        )
    title = f"throughput: {rows:,} tuples of {keys:,} keys, {cores} tasks"
    table = new_table(title, "operator", "rows per second", "p10 – p90")
    table.add_row("per record", *cells(result.per_record, ",.0f"))
    table.add_row("vectorised", *cells(result.vectorised, ",.0f"))
    if result.beside is not None:
        _add_peer(table, result.beside, ",.0f")
    print_result(result, table, as_json)


def latency(
    cost_ms: CostMs = 1.0,
    load: Load = 0.6,
    cores: Cores = 2,
    seconds: Seconds = 20.0,
    warm_up: WarmUp = 5.0,
    repeat: Repeat = 3,
    beside: BesidePeer = "",
    checkpoint: Checkpoint = False,
    shift: Annotated[
        bool,
        typer.Option(
            "--shift",
            help="Instead: 8 emulated cores, and hot keys that change; elastic beside static.",
        ),
    ] = False,
    every: Annotated[
        float, typer.Option(min=0.5, help="With --shift: seconds until other keys are hot.")
    ] = 5.0,
    zipf: Annotated[float, typer.Option(min=0, help="With --shift: skew of the keys.")] = 1.0,
    as_json: Json = False,
) -> None:
    """How old tuples are when their outputs are with the sink; each burns real CPU time.

    With --beside, the peer gets the same tuples at the same times, and its settings are tried out
    first. With --shift, time is slept instead, so that eight cores fit on any machine.
    """
    from elasticutor.lab.bench.latency import bench_latency

    _require(beside)
    if shift:
        if checkpoint:
            raise typer.BadParameter("not together with --shift", None, None, "--checkpoint")
        _shift(cost_ms, load, seconds, warm_up, repeat, bool(beside), every, zipf, as_json)
        return
    with live(cores) as (cluster, say):
        result = bench_latency(
            cluster,
            cost_ms=cost_ms,
            load=load,
            cores=cores,
            seconds=seconds,
            warm_up_s=warm_up,
            repeat=repeat,
            checkpoint=checkpoint,
            beside=bool(beside),
            progress=say,
        )
    title = f"latency: {cost_ms:g} ms of CPU per tuple, {cores} tasks at {load:.0%}"
    table = new_table(title, "figure", "median", "p10 – p90")
    for name, spread in result.percentiles_ms.items():
        table.add_row(f"{name.removesuffix('_ms')}, ms", *cells(spread, ".2f"))
    table.add_row(
        f"rows per second, of {result.offered_rows_s:,.0f}", *cells(result.rows_s, ",.0f")
    )
    table.add_row("source behind at worst, s", f"{result.behind_s:.3f}", "")
    if result.beside is not None:
        _add_peer(table, result.beside, ".2f")
    print_result(result, table, as_json)


def _shift(
    cost_ms: float,
    load: float,
    seconds: float,
    warm_up: float,
    repeat: int,
    beside: bool,
    every: float,
    zipf: float,
    as_json: bool,
) -> None:
    from elasticutor.lab.bench.load.elastic import ElasticSetting
    from elasticutor.lab.bench.load.shift import FIGURES, bench_shift

    setting = ElasticSetting(
        nodes=_NODES,
        cores=_NODE_CORES,
        executors=_NODES,
        cost_s=cost_ms / 1e3,
        load=load,
        omega=60 / every,
        zipf=zipf,
        seconds=seconds,
        warm_up_s=warm_up,
    )
    with live(_NODE_CORES, _NODES, schedule_s=1.0) as (cluster, say):
        result = bench_shift(cluster, setting, repeat=repeat, beside=beside, progress=say)
    title = f"latency, hot keys change every {every:g} s: 8 emulated cores at {load:.0%}, ms"
    table = new_table(title, "figure", *(f"{side} (p10 – p90)" for side in result.sides))
    for figure in FIGURES:
        values = [cells(result.spread(side, figure), ",.1f") for side in result.sides]
        name = figure.removesuffix("_ms").replace("_", " ")
        table.add_row(name, *(f"{median} ({spread})" for median, spread in values))
    print_result(result, table, as_json)


def _require(beside: str) -> None:
    """Refuse a peer that cannot be run, before anything starts."""
    if not beside:
        return
    from elasticutor.lab.bench.peer.beside import PEER, require_peer

    if beside != PEER:
        raise typer.BadParameter(f"{beside!r} is not {PEER}", None, None, "--beside")
    require_peer(beside)


def _add_peer(table: Table, beside: Beside, form: str) -> None:
    from elasticutor.lab.bench.figures import Spread
    from elasticutor.lab.bench.peer.beside import PEER, described

    table.add_section()
    shown = set()
    for name, values in beside.theirs.items():
        if id(values) not in shown:  # one run of theirs may stand beside two of ours
            shown.add(id(values))
            table.add_row(f"{PEER}: {_plain(name)}", *cells(Spread.of(values), form))
    for name in beside.theirs:
        table.add_row(f"ours over theirs: {_plain(name)}", *cells(beside.ratio(name), ".2f"))
    table.caption = f"{PEER} at its best: {described(beside.setting)}"


def _plain(name: str) -> str:
    return name.removesuffix("_ms").removesuffix("_rows_s").replace("_", " ")
