"""A benchmark is declared once: its command, its table and its JSON follow from the declaration."""

from __future__ import annotations

import json
from importlib import import_module

import pytest
import typer
from typer.testing import CliRunner, Result

from elasticutor.cli.app import app
from elasticutor.lab.bench.declare import P50_P99, Benchmark, Figures, Samples, figure, samples
from elasticutor.lab.bench.live import Bench, InterruptedBenchError
from elasticutor.lab.cli import bench as commands
from elasticutor.lab.cli.declared import command_of
from elasticutor.lab.options import BadOptionError, option, read_numbers


class Part(Figures):
    """One of several."""

    size: float = figure("size", ".1f", digits=1)


class TinyFigures(Figures):
    """What was measured."""

    took_ms: Samples = samples("took, ms", ".1f", better="lower")
    pause_ms: Samples = samples("pause, ms", ".1f", shows=P50_P99)
    shown_kb: Samples = samples("in the table alone, KB", ".1f", key="")
    parts: dict[str, Part] = figure("part", default_factory=dict)
    wrong: int = figure(default=0)
    peer: Part | None = figure(omit_none=True, default=None)

    @property
    def failed(self) -> bool:
        """Whether anything is wrong."""
        return self.wrong > 0


class Tiny(Benchmark):
    """Measures nothing to speak of."""

    about = "{rows:,} rows"

    rows: int = option(1000, "How many rows.", min=1, key="rows")
    sizes: str = option("1,2", "Sizes of the parts.")
    fail: bool = option(False, "Let something be wrong.")
    stop: bool = option(False, "Be interrupted.")

    def check(self) -> None:
        """Refuse what is no number."""
        read_numbers("--sizes", self.sizes)
        if self.fail and self.stop:
            raise BadOptionError("--stop", "not together with --fail")

    def measure(self, bench: Bench) -> TinyFigures:
        """Make it up."""
        found = TinyFigures(pause_ms=[1.0, 2.0, 3.0], shown_kb=[7.5], wrong=int(self.fail))
        for number in bench.runs(3, "making it up"):
            found.took_ms.append(float(number + 1))
        sizes = read_numbers("--sizes", self.sizes)
        found.parts = {f"part {size:g}": Part(size=size) for size in sizes}
        if self.stop:
            raise InterruptedBenchError(found, "interrupted; so far:")
        return found


def bench(*words: str) -> Result:
    tiny = typer.Typer()
    tiny.command("tiny")(command_of(Tiny, commands._run))
    return CliRunner().invoke(tiny, list(words))


def test_json_has_figures_options_and_facts_about_the_machine() -> None:
    result = bench("--rows", "7", "--sizes", "3", "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert set(found.pop("machine")) >= {"cores", "python"}
    assert all(found.pop(name) > 0 for name in list(found) if name.startswith("reference_us"))
    assert found == {
        "took_ms": 2.0,
        "took_ms_p10": 1.2,
        "took_ms_p90": 2.8,
        "pause_ms_p50": 2.0,
        "pause_ms_p99": 2.98,
        "parts": {"part 3": {"size": 3.0}},
        "wrong": 0,
        "rows": 7,
    }


def test_without_json_there_are_tables_and_progress_on_standard_error() -> None:
    result = bench()
    assert "making it up, run 3 of 3" in result.stderr
    assert "1,000 rows" in result.stdout
    assert "took, ms ↓" in result.stdout
    assert "1.2 – 2.8" in result.stdout
    assert "7.5" in result.stdout
    assert "part 2" in result.stdout
    assert "sum(range(1000)) meanwhile took" in result.stdout


@pytest.mark.parametrize(
    "words", [("--rows", "0"), ("--sizes", "one"), ("--stop", "--fail")], ids=" ".join
)
def test_options_that_cannot_be_are_refused_by_name(words: tuple[str, ...]) -> None:
    result = bench(*words)
    assert result.exit_code == 2
    assert words[0] in result.stderr


def test_figures_that_failed_exit_with_1_and_interrupted_ones_with_130() -> None:
    failed, stopped = bench("--fail", "--json"), bench("--stop", "--json")
    assert (failed.exit_code, json.loads(failed.stdout)["wrong"]) == (1, 1)
    assert (stopped.exit_code, json.loads(stopped.stdout)["took_ms"]) == (130, 2.0)
    assert "interrupted; so far:" in stopped.stderr


def test_sides_take_turns_and_every_other_round_goes_the_other_way_round() -> None:
    said: list[str] = []
    turns = list(Bench(said.append).turns(3, "ab", "{side}, pair"))
    assert turns == [(0, "a"), (0, "b"), (1, "b"), (1, "a"), (2, "a"), (2, "b")]
    assert said[:3] == ["a, pair 1 of 3", "b, pair 1 of 3", "b, pair 2 of 3"]


def declared(name: str) -> type[Benchmark]:
    module, _, kind = commands._BENCHMARKS[name].rpartition(".")
    found: type[Benchmark] = getattr(import_module(commands._PLACE + module), kind)
    return found


OPTIONS_IN_JSON = {
    "core": "shards tasks rounds",
    "scheduler": "nodes cores executors repeat",
    "driver": "executors seconds",
    "flush": "states changed shards rounds",
    "throughput": "rows tasks keys zipf checkpoint",
    "latency": "cost_ms load tasks seconds checkpoint",
    "path": "cost_ms load tasks",
    "reassign": "",
    "consistency": "keys sources",
    "elastic": "nodes cores executors shards omega zipf seconds chunk_ms tick_ms load cost_ms "
    "ideal offered",
    "width": "emulated_cores cost_ms chunk_ms zipf seconds",
    "shuffle": "emulated_cores zipf load cost_ms chunk_ms every_s",
    "memory": "tasks repeat",
    "checkpoint": "seconds interval_s keys tasks zipf",
    "structured": "keys rounds tasks answers exchange slots",
}


@pytest.mark.parametrize(("name", "keys"), OPTIONS_IN_JSON.items(), ids=list(OPTIONS_IN_JSON))
def test_options_that_scripts_read_keep_their_names(name: str, keys: str) -> None:
    assert set(declared(name)().given()) == set(keys.split())


def test_every_benchmark_has_its_command() -> None:
    assert set(commands._BENCHMARKS) == set(OPTIONS_IN_JSON)
    listed = CliRunner().invoke(app, ["bench", "--help"]).output
    assert all(f" {name} " in listed for name in OPTIONS_IN_JSON)
