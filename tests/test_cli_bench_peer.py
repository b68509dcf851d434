"""Benchmarks beside a peer: what is refused, what is compared, and the shape of what is printed.

The peer itself need not be installed: its runs are recorded ones here.
"""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from elasticutor.cli.app import app
from elasticutor.core.paradigm import ParadigmName
from elasticutor.driver.cluster import BaseCluster
from elasticutor.lab.bench import latency as latency_bench
from elasticutor.lab.bench import live
from elasticutor.lab.bench.declare import percentiles, ratios
from elasticutor.lab.bench.latency import LatencyBench, LatencyFigures
from elasticutor.lab.bench.live import Bench, BenchError
from elasticutor.lab.bench.load import shift as shift_bench
from elasticutor.lab.bench.load.elastic import ElasticBench
from elasticutor.lab.bench.load.emulated import ElasticRun
from elasticutor.lab.bench.peer import beside as peer_bench
from elasticutor.lab.bench.peer.beside import PeerSetting, PeerWork
from elasticutor.lab.bench.record import Latency, Recording
from elasticutor.lab.bench.throughput import ThroughputBench
from elasticutor.lab.bench.work import CountAndSum
from elasticutor.operator import Operator
from elasticutor.sources import Generator


@pytest.fixture
def nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cluster on which nothing runs."""
    monkeypatch.setattr(live, "spark_cluster", lambda *_, **__: nullcontext())


def recorded(work: PeerWork, setting: PeerSetting) -> Recording:
    """A peer that takes 2 ms, and 10 ms more with batches that are not of ten; 5,000 rows/s."""
    tuples = work.tuples
    rows = tuples.rows or round((tuples.rate or 0.0) * (tuples.seconds or 0.0))
    due_s = np.arange(rows) / (tuples.rate or 5_000.0)
    slow_s = 0.002 + 0.010 * (setting.batch_rows % 10 != 0 or setting.batch_rows == 100)
    return Recording(0.0, due_s + slow_s, np.ones(rows, np.int64), due_s)


def test_a_peer_that_is_not_installed_is_refused_with_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(peer_bench, "version_of", lambda package: None)
    for command in ("latency", "throughput"):
        result = CliRunner().invoke(app, ["bench", command, "--beside", "bytewax"])
        assert isinstance(result.exception, BenchError)
        assert "pip install bytewax" in str(result.exception)


def test_an_unknown_peer_is_refused_by_name() -> None:
    result = CliRunner().invoke(app, ["bench", "latency", "--beside", "flank"])
    assert result.exit_code == 2
    assert "--beside" in result.stderr


def test_shifting_load_has_no_checkpoint() -> None:
    result = CliRunner().invoke(app, ["bench", "latency", "--shift", "--checkpoint"])
    assert result.exit_code == 2
    assert "--checkpoint" in result.stderr


@pytest.mark.usefixtures("nowhere")
def test_latency_is_paired_with_the_peers_best_setting_round_by_round(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ours = iter((1.0, 2.0, 3.0))
    order: list[str] = []

    def run(setting: LatencyBench, cluster: BaseCluster, seed: int, found: LatencyFigures) -> None:
        order.append(f"ours {seed}")
        value = next(ours)
        for name in latency_bench.PERCENTILES:
            getattr(found, name).append(value)

    def peer(work: PeerWork, setting: PeerSetting) -> Recording:
        order.append(f"theirs {work.tuples.seed}")
        return recorded(work, setting)

    monkeypatch.setattr(LatencyBench, "_run", run)
    monkeypatch.setattr(peer_bench, "run_peer", peer)
    bench, setting = (
        Bench(),
        LatencyBench(seconds=2.0, warm_up=1.0, repeat=3, beside="bytewax", checkpoint=True),
    )
    result: Any = setting.measure(bench)
    tried = 6
    assert order[tried:] == ["ours 0", "theirs 0", "theirs 1", "ours 1", "ours 2", "theirs 2"]
    assert result.beside is not None
    assert result.beside.setting == PeerSetting(2, 10, checkpoint=True)
    found = ratios(result.beside.ours["p50_ms"], result.beside.theirs["p50_ms"])
    spread = percentiles("ratio", found)
    expected = {"ratio": 1.0, "ratio_p10": 0.6, "ratio_p90": 1.4}
    assert spread == pytest.approx(expected, abs=0.01)
    told = json.loads(json.dumps(setting.as_dict(result, bench)))
    assert told["beside"]["theirs_p50_ms"] == pytest.approx(2.0)
    assert told["beside"]["rounds"]["ours"]["p99_ms"] == [1.0, 2.0, 3.0]
    assert len(told["beside"]["tried"]) == tried
    assert told["checkpoint"] is True


@pytest.mark.usefixtures("nowhere")
def test_throughput_is_paired_with_the_peer_that_has_one_kind_of_operator(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def run(
        setting: ThroughputBench, cluster: BaseCluster, source: Generator, operator: Operator
    ) -> float:
        return 10_000.0 if isinstance(operator, CountAndSum) else 20_000.0

    monkeypatch.setattr(ThroughputBench, "_run", run)
    monkeypatch.setattr(peer_bench, "run_peer", recorded)
    result = ThroughputBench(rows=1000, repeat=2, beside="bytewax").measure(Bench())
    assert result.beside is not None
    told = result.as_dict()["beside"]
    assert told["ratio_per_record_rows_s"] == pytest.approx(1.99, rel=0.1)
    assert told["ratio_vectorised_rows_s"] == pytest.approx(3.98, rel=0.1)
    assert told["ratio_per_record_rows_s_p90"] > 0


@pytest.mark.usefixtures("nowhere")
def test_shifting_load_is_compared_with_static_and_with_the_peer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def run(
        cluster: BaseCluster, setting: ElasticBench, paradigm: ParadigmName, seed: int
    ) -> ElasticRun:
        ms = 1.0 if paradigm == "elastic" else 4.0
        latency = Latency(0.0, ms, 0.0, 2 * ms, 0.0, 3 * ms, 4 * ms)
        return ElasticRun(paradigm=paradigm, seed=seed, latency=latency)

    monkeypatch.setattr(shift_bench, "run_once", run)
    monkeypatch.setattr(peer_bench, "run_peer", recorded)
    setting = ElasticBench(load=0.5, omega=12, seconds=3, warm_up=1)
    result = shift_bench.measure_shift(Bench(), setting, 2, with_peer=True)
    told = json.loads(json.dumps(result.as_dict()))
    assert list(result.sides) == ["elastic", "static", "bytewax"]
    assert told["elastic"]["worst_second_p99_ms"] == 4.0
    assert told["p99_ms_elastic_over_static"] == 0.25
    assert told["p50_ms_elastic_over_bytewax"] == pytest.approx(0.5)
    assert told["shuffle_every_s"] == 5.0
    assert told["emulated_cores"] == 8


# Processes of the peer, played by a few lines of Python.

_PLAYED = """
import json, sys, time
import numpy as np
from pathlib import Path
spec, number = json.loads(sys.argv[1]), int(sys.argv[2])
{body}
folder = Path(spec["folder"])
(folder / "began").write_text("100.0")
np.savez(folder / f"sink-{{number}}.npz", arrivals=np.array([101.0 + number]),
         rows=np.array([2]), times=np.array([500_000, 750_000]))
"""


def play(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, body: str) -> list[Any]:
    """Let this stand for the peer; returns the processes started."""
    script = tmp_path / "played.py"
    script.write_text(_PLAYED.format(body=body))
    started: list[Any] = []
    begin = subprocess.Popen

    def popen(command: list[str], **options: Any) -> Any:
        assert command[:3] == [sys.executable, "-m", "elasticutor.lab.bench.peer.bytewax_worker"]
        process = begin([sys.executable, str(script), *command[3:]], **options)
        started.append(process)
        return process

    monkeypatch.setattr(subprocess, "Popen", popen)
    return started


WORK = PeerWork("count", Generator(keys=10, seed=1, rows=4))


def test_what_all_processes_of_a_peer_noted_is_put_together_by_arrival(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    play(monkeypatch, tmp_path, "")
    run = peer_bench.run_peer(WORK, PeerSetting(2, 1))
    assert run.arrived_s.tolist() == [1.0, 1.0, 2.0, 2.0]
    assert run.due_s.tolist() == [0.5, 0.75, 0.5, 0.75]
    assert run.rows_s == 2.0
    assert run.latency(0.0, 1.0).p50_ms == 875.0


def test_a_process_that_fails_ends_the_others_and_its_words_are_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    body = "if number: sys.exit('no such luck')\ntime.sleep(600)"
    started = play(monkeypatch, tmp_path, body)
    with pytest.raises(BenchError, match="no such luck"):
        peer_bench.run_peer(WORK, PeerSetting(2, 1))
    assert len(started) == 2
    assert all(process.poll() is not None for process in started)


def test_a_peer_that_does_not_end_is_ended(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(peer_bench, "_PATIENCE_S", 0.0)
    started = play(monkeypatch, tmp_path, "time.sleep(600)")
    with pytest.raises(BenchError, match="end in time"):
        peer_bench.run_peer(WORK, PeerSetting(2, 1))
    assert all(process.poll() is not None for process in started)


def test_the_peer_itself_gets_our_tuples_and_counts_each_once(tmp_path: Path) -> None:
    pytest.importorskip("bytewax")
    tuples = Generator(keys=10, zipf=0.5, seed=3, rows=50, payload=4)
    run = peer_bench.run_peer(PeerWork("count", tuples), PeerSetting(1, 7))
    expected = tuples.table(0, 1, 0, 50)
    times = [time_us / 1e6 for time_us in expected.column("time").to_pylist()]
    assert sorted(run.due_s.tolist()) == pytest.approx(times)
