"""`elasticutor bench …`: a command for each declared benchmark, made from its declaration.

Modules of benchmarks are imported when their commands are looked at: some need a second for that.
"""

from __future__ import annotations

import inspect
from importlib import import_module
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperGroup

from elasticutor.cli.output import INTERRUPTED, err, note, out, print_json, print_table
from elasticutor.lab.cli.declared import command_of

if TYPE_CHECKING:
    from elasticutor.lab.bench.declare import Benchmark, Figures
    from elasticutor.lab.bench.live import Bench

_PLACE = "elasticutor.lab.bench."
_BENCHMARKS = {
    "core": "alone.core.CoreBench",
    "scheduler": "alone.scheduler.SchedulerBench",
    "driver": "alone.driver.DriverBench",
    "flush": "alone.flush.FlushBench",
    "throughput": "throughput.ThroughputBench",
    "latency": "latency.LatencyBench",
    "path": "path.PathBench",
    "reassign": "moves.reassign.ReassignBench",
    "consistency": "moves.consistency.ConsistencyBench",
    "elastic": "load.elastic.ElasticBench",
    "width": "width.WidthBench",
    "shuffle": "load.shuffle.ShuffleBench",
    "memory": "memory.MemoryBench",
    "checkpoint": "checkpoint.bench.CheckpointBench",
    "structured": "structured.bench.StructuredBench",
}
"""By command, where each is declared."""


class _Benchmarks(TyperGroup):
    """Makes commands of benchmarks when they are asked for."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(_BENCHMARKS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in _BENCHMARKS:
            return None
        module, _, name = _BENCHMARKS[cmd_name].rpartition(".")
        benchmark: type[Benchmark] = getattr(import_module(_PLACE + module), name)
        alone = typer.Typer(add_completion=False, rich_markup_mode="rich")
        alone.command(cmd_name)(command_of(benchmark, _run, inspect.getdoc(benchmark)))
        return typer.main.get_command(alone)


app = typer.Typer(
    help="Measure; figures as a table, or with --json.", no_args_is_help=True, cls=_Benchmarks
)


@app.callback()
def _root() -> None:
    """Measure; figures as a table, or with --json."""


def _run(benchmark: Benchmark, as_json: bool) -> None:
    from elasticutor.lab.bench.live import Bench, InterruptedBenchError

    try:
        with err.status("starting") as status:
            bench = Bench(status.update if err.is_terminal else note, status.update, note)
            benchmark.check()
            found = benchmark.measure(bench)
    except InterruptedBenchError as interrupted:
        note(str(interrupted))
        _print(benchmark, interrupted.found, bench, as_json)
        raise typer.Exit(INTERRUPTED) from None
    except KeyboardInterrupt:
        note("interrupted; everything that was started has been stopped")
        raise typer.Exit(INTERRUPTED) from None
    _print(benchmark, found, bench, as_json)
    if found.failed:
        raise typer.Exit(1)


def _print(benchmark: Benchmark, found: Figures, bench: Bench, as_json: bool) -> None:
    if as_json:
        print_json(benchmark.as_dict(found, bench))
    else:
        for shown in found.tables(benchmark.title()):
            print_table(shown.title, shown.columns, shown.rows)
        for remark in found.remarks():
            out.print(remark)
        reference = bench.machine.as_dict()["reference_us"]
        out.print(f"sum(range(1000)) meanwhile took {reference:.1f} µs")
