"""`elasticutor bench checkpoint`: what it takes, the shape of what it prints, and what it refuses.

The figures themselves are for a quiet machine, and not looked at here. It runs on real processes,
but without Spark, which takes longer to start than all of this to run.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner, Result

from elasticutor.cli.app import app
from elasticutor.driver.cluster import BaseCluster
from elasticutor.driver.process_cluster import ProcessCluster
from elasticutor.driver.run import Run
from elasticutor.errors import BadValueError
from elasticutor.lab.bench import live
from elasticutor.lab.bench.checkpoint.bench import (
    CheckpointBench,
    CheckpointFigures,
    EndedEpoch,
    Overhead,
    ended_between,
)
from elasticutor.lab.bench.checkpoint.dirty import DirtyFigures, Written
from elasticutor.lab.bench.checkpoint.restore import RestoreFigures, Started, Steps, measure_restore
from elasticutor.lab.bench.checkpoint.state import Store, filled, sweep
from elasticutor.lab.bench.live import Bench, BenchError, scratch
from elasticutor.lab.options import BadOptionError

PATIENCE_S = 60.0
QUICK = ("--interval", "0.2", "--seconds", "0.8", "--warm-up", "0.3", "--pairs", "1")
SMALL = (*QUICK, "--keys", "500", "--cores", "1", "--state-keys", "2000")


def bench(*words: str) -> Result:
    return CliRunner().invoke(app, ["bench", "checkpoint", *words])


def on(cluster: BaseCluster) -> Callable[..., AbstractContextManager[BaseCluster]]:
    """A stand-in for `spark_cluster`."""

    @contextmanager
    def stand_in(cores: int, nodes: int = 1, **options: Any) -> Iterator[BaseCluster]:
        yield cluster

    return stand_in


@pytest.fixture(scope="module")
def processes() -> Iterator[BaseCluster]:
    with ProcessCluster(nodes=1, cores=2, schedule_s=0) as cluster:
        yield cluster


@pytest.fixture
def without_spark(processes: BaseCluster, monkeypatch: pytest.MonkeyPatch) -> BaseCluster:
    monkeypatch.setattr(live, "spark_cluster", on(processes))
    return processes


# The command


def test_help_reads_well() -> None:
    result = bench("--help")
    assert result.exit_code == 0
    for word in ("--part", "--pairs", "--seconds", "--json"):
        assert word in result.output


@pytest.mark.parametrize(
    "words",
    [
        ("--part", "speed"),
        ("--pairs", "0"),
        ("--seconds", "0"),
        ("--seconds", "1.5"),  # less than an epoch
        ("--interval", "0"),
        ("--state-keys", "1"),
        ("--epochs", "0"),
        ("--repeat", "0"),
    ],
    ids=" ".join,
)
def test_what_cannot_be_is_refused_by_name_before_anything_starts(words: tuple[str, str]) -> None:
    result = bench(*words)
    assert result.exit_code == 2
    assert words[0] in result.stderr


def measure_until_an_epoch_ends(patch: pytest.MonkeyPatch) -> None:
    """Let a measurement last until an epoch is committed in it, however busy the machine is."""
    kept: set[str] = set()
    submit, watch = ProcessCluster.submit, live.watch

    def submitted(cluster: ProcessCluster, topology: Any, **options: Any) -> Run:
        run = submit(cluster, topology, **options)
        if options.get("checkpoint"):
            kept.add(run.id)
        return run

    def watched(run: Run, seconds: float) -> float:
        before, until = len(run.events("epoch committed")), time.monotonic() + PATIENCE_S
        behind_s = watch(run, seconds)
        while run.id in kept and len(run.events("epoch committed")) == before:
            assert time.monotonic() < until, "no epoch was committed"
            behind_s = max(behind_s, watch(run, 0.05))
        return behind_s

    patch.setattr(ProcessCluster, "submit", submitted)
    patch.setattr(live, "watch", watched)


@pytest.fixture(scope="module")
def all_parts(processes: BaseCluster, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Everything measured once, in a folder in which nothing is left."""
    folder = tmp_path_factory.mktemp("checkpoints")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(live, "spark_cluster", on(processes))
        measure_until_an_epoch_ends(patch)
        result = bench(
            "--part",
            "all",
            *SMALL,
            "--epochs",
            "2",
            "--repeat",
            "1",
            "--folder",
            str(folder),
            "--json",
        )
    assert result.exit_code == 0, result.output
    assert "pair 1 of 1" in result.stderr
    assert list(folder.iterdir()) == []
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_throughput_has_a_ratio_pauses_and_bytes_for_each_kind_of_operator(
    all_parts: dict[str, Any],
) -> None:
    for kind in (all_parts, all_parts["vectorised"]):
        assert len(kind["ratios"]) == 1
        assert kind["ratio"] == pytest.approx(kind["ratios"][0], abs=1e-3)
        assert kind["ratio_p10"] <= kind["ratio"] <= kind["ratio_p90"]
        assert 0 < kind["pause_ms_p50"] <= kind["pause_ms_p99"]
        assert kind["bytes_per_epoch"] > 0
        assert kind["epoch_s"] > 0
        assert kind["epochs"] > 0
    assert (all_parts["keys"], all_parts["interval_s"]) == (500, 0.2)
    assert all_parts["reference_us"] > 0
    assert set(all_parts["machine"]) >= {"cores", "python", "pyarrow"}


def test_dirty_counts_what_every_epoch_changes_and_writes(all_parts: dict[str, Any]) -> None:
    found = all_parts["dirty"]
    one, ten = found["shares"]
    assert (one["share"], ten["share"]) == (0.01, 0.1)
    for share in (one, ten):
        assert share["epochs"] == 2
        # How long an epoch is depends on the machine; that each key is dirty once does not.
        assert 0 < share["dirty_keys_per_epoch"] <= found["keys"] == 2000
        assert share["bytes_per_epoch"] >= 100 * share["dirty_keys_per_epoch"]
    assert found["bytes_of_all"] > 2000 * 100
    ratio = ten["bytes_per_dirty_key"] / one["bytes_per_dirty_key"]
    assert found["proportion"] == pytest.approx(ratio, rel=0.01)


def test_restore_tells_when_all_is_back_and_what_each_step_takes(all_parts: dict[str, Any]) -> None:
    found = all_parts["restore"]
    assert (found["keys"], found["bytes_per_key"]) == (2000, 100)
    assert found["file_bytes"] > 2000 * 100
    until = found["until"]
    assert 0 < until["opened_s"] <= until["running_s"] <= until["flowing_s"] <= found["seconds"]
    assert found["seconds"] == max(until["restored_s"], until["flowing_s"])
    assert set(found["empty"]) == set(until)
    assert all(seconds > 0 for seconds in found["steps_alone"].values())


@pytest.mark.usefixtures("without_spark")
def test_without_json_every_part_has_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(Path("somewhere"), 2000, 100, 1)
    overhead = Overhead()
    overhead.add(1000.0, 910.0, (EndedEpoch(12.5, 0.1, 64_000),))
    written = Written(share=0.01, dirty_keys_per_epoch=[20], bytes_per_dirty_key=105.0)
    start = Started(opened_s=[0.25], running_s=[3.5], restored_s=[4.5], flowing_s=[4.75])
    steps = Steps(open_s=[0.125], load_s=[0.5], store_s=[2.0])
    results = CheckpointFigures(
        kinds={"per_record": overhead},
        dirty=DirtyFigures(store=store, shares=[written, written], bytes_of_all=210_000),
        restore=RestoreFigures(
            store=store, file_bytes=210_000, until=start, empty=start, steps_alone=steps
        ),
    )
    monkeypatch.setattr(CheckpointBench, "measure", lambda *_: results)
    result = bench("--part", "all")
    assert result.exit_code == 0, result.output
    for words in ("5 pairs", "0.910", "1.0%", "105.0", "restore of", "4.75", "sum(range"):
        assert words in result.stdout


def test_an_interruption_leaves_nothing_behind_and_ends_with_130(
    without_spark: BaseCluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def interrupted(run: Run, timeout_s: float | None = None) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Run, "wait", interrupted)
    result = bench("--part", "restore", *SMALL, "--folder", str(tmp_path))
    assert result.exit_code == 130
    assert "interrupted" in result.stderr
    assert without_spark.free_cores == {"n0": 2}
    assert list(tmp_path.iterdir()) == []


# What it measures with


def test_a_restore_that_lacks_a_key_is_no_restore(processes: BaseCluster, tmp_path: Path) -> None:
    store = filled(processes, tmp_path / "state", keys=200, size=10, cores=1, bench=Bench())
    with pytest.raises(BenchError, match="have every key"):
        measure_restore(Bench(), processes, replace(store, keys=400), tmp_path, repeat=1)


@settings(max_examples=50, deadline=None)
@given(
    st.integers(1, 50),
    st.lists(st.tuples(st.integers(1, 70_000), st.booleans()), min_size=1, max_size=6),
)
def test_a_sweep_gives_keys_in_turn_however_it_is_asked_and_wherever_it_goes_on(
    keys: int, polls: list[tuple[int, bool]]
) -> None:
    source = sweep(keys, rows=150_000, size=4)
    reader = source.open(0, 1, None)
    given_out: list[int] = []
    for most, lost in polls:
        if lost:
            reader = source.open(0, 1, reader.offset)
        offer = reader.poll(0.0, most)
        if offer is not None:
            assert offer.batch.num_rows <= most
            given_out += offer.batch.column("key").to_pylist()
    assert given_out == [number % keys for number in range(len(given_out))]
    assert reader.offset[0] == len(given_out)


def test_a_sweep_with_a_rate_gives_what_is_due_and_goes_on_at_another_rate() -> None:
    reader = sweep(keys=10, rate=100).open(0, 1, None)
    first = reader.poll(50.0, 1000)
    assert first is not None
    assert first.batch.column("key").to_pylist() == [0]
    assert 0 < reader.wait_s(50.0) <= 0.01
    offer = reader.poll(50.1, 1000)
    assert offer is not None
    assert offer.batch.num_rows == 10
    assert offer.born == pytest.approx(50.01)
    later = sweep(keys=10, rate=20).open(0, 1, reader.offset)
    offers = [later.poll(now, 1000) for now in (90.0, 91.01)]
    keys = [key for one in offers if one for key in one.batch.column("key").to_pylist()]
    assert keys == [number % 10 for number in range(11, 32)]


def test_a_sweep_ends_with_its_last_row() -> None:
    reader = sweep(keys=10, rows=3).open(0, 1, None)
    offer = reader.poll(0.0, 1000)
    assert offer is not None
    assert offer.batch.num_rows == 3
    assert reader.exhausted
    assert reader.poll(0.0, 1000) is None


def test_a_sweep_is_read_by_one_task_at_a_rate_above_0() -> None:
    with pytest.raises(BadValueError, match="tasks of a remade source must be 1"):
        sweep(keys=1).open(0, 2, None)
    with pytest.raises(BadValueError, match="rate must be above 0"):
        sweep(keys=1, rate=0)


class _Told:
    """A run, as far as its journal."""

    def __init__(self, *events: dict[str, Any]) -> None:
        self._events = events

    def events(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self._events if event["kind"] == kind]


def told(*events: dict[str, Any]) -> Run:
    return cast("Run", _Told(*events))


def sealed(epoch: int, executor: str, pause_ms: float) -> dict[str, Any]:
    return {"kind": "epoch sealed", "epoch": epoch, "executor": executor, "pause_ms": pause_ms}


def committed(epoch: int, time: float) -> dict[str, Any]:
    return {"kind": "epoch committed", "epoch": epoch, "time": time, "seconds": 0.1, "bytes": 9}


def test_an_epoch_pauses_as_long_as_its_slowest_executor_and_counts_if_committed_in_time() -> None:
    run = told(
        sealed(1, "count.0", 9.0),
        committed(1, 99.0),
        sealed(2, "count.0", 3.0),
        sealed(2, "count.1", 4.0),
        committed(2, 101.0),
        sealed(3, "count.0", 5.0),
        committed(3, 103.0),
    )
    assert ended_between(run, 100.0, 102.0) == (EndedEpoch(4.0, 0.1, 9),)


def test_a_run_without_epochs_or_with_a_loss_is_not_measured() -> None:
    with pytest.raises(BenchError, match="be committed while it is measured"):
        ended_between(told(committed(1, 50.0), sealed(1, "count.0", 1.0)), 60.0, 70.0)
    with pytest.raises(BenchError, match="lose nothing"):
        ended_between(told({"kind": "lost", "reason": "n0 is gone"}), 60.0, 70.0)


def test_a_measurement_lasts_longer_than_an_epoch() -> None:
    with pytest.raises(BadOptionError, match="not more than an epoch's"):
        CheckpointBench(seconds=2.0, interval=2.0).check()


def test_ratios_are_taken_by_pairs() -> None:
    epochs = (EndedEpoch(10.0, 0.2, 100), EndedEpoch(20.0, 0.4, 300))
    overhead = Overhead()
    overhead.add(100.0, 90.0, epochs)
    overhead.add(1000.0, 1000.0, epochs)
    found = overhead.as_dict()
    assert found["ratios"] == [0.9, 1.0]
    assert found["ratio"] == 0.95
    assert (found["pause_ms_p50"], found["bytes_per_epoch"]) == (15.0, 200)


def test_the_folder_for_checkpoints_is_gone_whatever_happens(tmp_path: Path) -> None:
    def fail() -> None:
        with scratch(tmp_path / "new") as folder:
            (folder / "state").mkdir()
            (folder / "state" / "file").write_text("x")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert list((tmp_path / "new").iterdir()) == []
