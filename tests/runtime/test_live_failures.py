"""Whatever fails or is lost is named, and then nothing of the run is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import cloudpickle
import psutil
import pyarrow as pa
import pytest
from tests.runtime.live import (
    PATIENCE_S,
    Chain,
    by_key,
    chain_of,
    descendants,
    directories_of,
    folded,
    pid_of,
    pid_of_node,
    processes_of,
    remove_journals,
    running,
    started,
    wait_until,
    wait_until_gone,
)

from elasticutor.core.protocol.ids import TaskId
from elasticutor.core.run.phases import RunError
from elasticutor.driver.loop import ClusterError
from elasticutor.driver.process_cluster import ProcessCluster
from elasticutor.driver.run import Run
from elasticutor.errors import ElasticutorError, StateFullError
from elasticutor.operator import Context, Operator, OperatorError, State
from elasticutor.sinks import CallableSink, MemorySink, Sink, SinkError, Writer
from elasticutor.sources import Generator, Reader, Source
from elasticutor.topology import Topology

pytestmark = pytest.mark.live

cloudpickle.register_pickle_by_value(sys.modules[__name__])

FLOWING = Generator(rate=1_000, keys=40, payload=0, seed=2)


def chained(
    operator: Operator | None = None,
    *,
    source: Source = FLOWING,
    sink: Sink | None = None,
    cores: int = 1,
    executors: int = 1,
) -> Topology:
    return chain_of(source, operator, sink=sink, executors=executors, cores=cores)


# What fails by itself


class Picky(Chain):
    def process(self, key: Any, row: Any, state: State) -> Iterable[Any]:
        if row.time == 100_000:
            raise ValueError("a hundred milliseconds")
        return super().process(key, row, state)


class Sloppy(Chain):
    def process(self, key: Any, row: Any, state: State) -> Iterable[Any]:
        yield key, "noon", 1, 2


class Homesick(Chain):
    """Comes to life where it was made, and nowhere else."""

    def __init__(self) -> None:
        self.home = os.getpid()

    def __setstate__(self, state: dict[str, int]) -> None:
        if state["home"] != os.getpid():
            raise LookupError("not at home")
        self.__dict__.update(state)


def refuse(batch: pa.RecordBatch) -> None:
    raise OSError("the disk is on fire")


class Dry(Source):
    """Has nothing to give, and says so by an error."""

    schema = FLOWING.schema

    def open(self, task: int, tasks: int, offset: Any | None) -> Reader:
        raise ConnectionError("no water")


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: chained(Sloppy()), OperatorError, ["operator 'chain'", "'time'", "noon"]),
        (lambda: chained(Homesick()), RunError, ["chain.0, task 0", "LookupError: not at home"]),
        (
            lambda: chained(sink=CallableSink(refuse)),
            SinkError,
            ["sink 'out'", "OSError: the disk is on fire", "raised in refuse"],
        ),
        (lambda: chained(source=Dry()), RunError, ["rows.0", "ConnectionError: no water"]),
        (lambda: chained(sink=MemorySink(max_rows=50)), SinkError, ["MemorySink", "50 rows"]),
    ],
    ids=["output", "unpicklable", "sink", "source", "memory sink"],
)
def test_what_fails_is_named_with_its_reason_and_nothing_of_the_run_is_left(
    cluster: ProcessCluster,
    make: Callable[[], Topology],
    error: type[ElasticutorError],
    words: list[str],
) -> None:
    with pytest.raises(error) as raised:
        cluster.submit(make()).wait(PATIENCE_S)
    assert [word for word in words if word not in str(raised.value)] == []


def test_an_operators_error_has_the_key_the_row_and_the_traceback(cluster: ProcessCluster) -> None:
    run = cluster.submit(chained(Picky()))
    with pytest.raises(OperatorError) as raised:
        run.wait(PATIENCE_S)
    failed = raised.value
    assert failed.operator == "chain"
    key = FLOWING.table(0, 1, 100, 101)["key"].to_pylist()[0]
    assert failed.key == str(key)
    assert f"key={key}, time=100000" in failed.row
    assert 'raise ValueError("a hundred milliseconds")' in failed.trace
    assert [event["reason"] for event in run.events("failure")] == [str(failed)]
    with pytest.raises(OperatorError):
        run.stop()
    run.cancel()


# What is killed


def kill_task(run: Run) -> str:
    task = TaskId(0)
    os.kill(run.tasks("chain", 0)[task].pid, signal.SIGKILL)
    return "chain.0, task 0"


def kill_participant(who: str) -> Callable[[Run], str]:
    def kill(run: Run) -> str:
        os.kill(pid_of(run, who), signal.SIGKILL)
        return who

    return kill


@pytest.mark.parametrize(
    "kill",
    [kill_task, *map(kill_participant, ("chain.0", "rows.0", "out"))],
    ids=["task", "main process", "source", "sink"],
)
def test_a_process_that_is_killed_ends_the_run_with_its_name(
    cluster: ProcessCluster, kill: Callable[[Run], str]
) -> None:
    before = processes_of(cluster)
    run = cluster.submit(chained())
    own = processes_of(cluster) - before
    wait_until(lambda: run.collected("out").num_rows, "the first output")
    who = kill(run)
    with pytest.raises(RunError, match=rf"^{who} was lost: .*SIGKILL") as raised:
        run.wait(PATIENCE_S)
    assert raised.value.who == who
    wait_until_gone(own)
    assert len(cluster.nodes) == 2


def test_a_node_that_is_killed_ends_its_runs_and_another_takes_its_place() -> None:
    with started(nodes=2, cores=1) as cluster:
        run = cluster.submit(chained(executors=2))
        wait_until(lambda: run.collected("out").num_rows, "the first output")
        os.kill(pid_of_node(cluster, "n1"), signal.SIGKILL)
        with pytest.raises(RunError, match=r"node 'n1' was lost: its process ended \(SIGKILL\)"):
            run.wait(PATIENCE_S)
        wait_until(lambda: cluster.nodes == {"n0": 1, "n1.1": 1}, "another node")
        assert cluster.free_cores == cluster.nodes
        some = Generator(keys=40, rows=1_000, payload=0)
        another = cluster.submit(chained(source=some, executors=2))
        another.wait(PATIENCE_S)
        assert by_key(another.collected("out")) == folded(some.table(0, 1, 0, 1_000))[0]


@pytest.mark.parametrize("whom", ["zygote", "host"])
def test_when_what_all_nodes_hang_on_is_killed_the_run_ends_and_the_cluster_takes_no_other(
    whom: str,
) -> None:
    with started(nodes=1, cores=1) as cluster:
        run = cluster.submit(chained())
        everybody = processes_of(cluster)
        host = cluster._hosts[0].pid
        assert host is not None
        (zygote,) = psutil.Process(host).children()
        os.kill(zygote.pid if whom == "zygote" else host, signal.SIGKILL)
        with pytest.raises(RunError, match=r"was lost: .*'n0'|'n0' was lost: "):
            run.wait(PATIENCE_S)
        wait_until_gone(everybody)
        assert cluster.nodes == {}
        with pytest.raises(ClusterError, match=r"must have nodes.*Lost are n0: .*(host|zygote)"):
            cluster.submit(chained())


def test_a_host_of_sources_and_sinks_that_is_killed_ends_its_run(cluster: ProcessCluster) -> None:
    run = cluster.submit(chained())
    host = cluster._hosts[-1].pid
    assert host is not None
    os.kill(host, signal.SIGKILL)
    with pytest.raises(RunError, match=r"host 0 of sources and sinks was lost: .*SIGKILL"):
        run.wait(PATIENCE_S)


# What does not fit, or does not come


class Hoard(Operator):
    output = "key bigint"

    def process(self, key: Any, row: Any, state: State) -> None:
        state.set(os.urandom(20_000))


def test_state_that_has_no_room_is_told_with_its_executor_and_what_to_do() -> None:
    hoard = Generator(keys=1_000, rows=20_000, payload=0)
    with started(nodes=1, cores=1, map_bytes=1024 * 1024) as cluster:
        run = cluster.submit(chained(Hoard(), source=hoard), keep=True)
        with pytest.raises(StateFullError, match=r"chain\.0.*Hint: "):
            run.wait(PATIENCE_S)


class Slow(Chain):
    def open(self, context: Context) -> None:
        signal.pause()


def test_who_does_not_start_in_time_is_named(cluster: ProcessCluster) -> None:
    with pytest.raises(RunError, match=r"did not start in time: no word from chain\.0"):
        cluster.submit(chained(Slow()), start_timeout_s=2.0)


# The end


def test_a_run_that_is_stopped_has_processed_all_it_was_sent_and_stopping_again_does_nothing(
    cluster: ProcessCluster,
) -> None:
    run = cluster.submit(chained())
    wait_until(lambda: run.collected("out").num_rows > 100, "some outputs")
    run.stop(PATIENCE_S)
    rows = run.collected("out").num_rows
    assert by_key(run.collected("out")) == folded(FLOWING.table(0, 1, 0, rows))[0]
    assert [event["kind"] for event in run.events()[-2:]] == ["run drained", "run ended"]
    run.stop()
    run.cancel()
    run.wait(1)
    assert run.phase == "ended"
    assert [event["kind"] for event in run.events()[-2:]] == ["run drained", "run ended"]


class Stuck:
    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def __call__(self, batch: pa.RecordBatch) -> None:
        with Path(self.path).open("rb") as pipe:
            pipe.read()


class Unclosable(Sink):
    def open(self, task: int, schema: pa.Schema) -> Writer:
        return _Unclosable()


class _Unclosable(Writer):
    def write(self, batch: pa.RecordBatch) -> None:
        pass

    def close(self) -> None:
        raise OSError("the last page was torn")


def test_a_sink_that_cannot_close_after_the_drain_is_no_success(cluster: ProcessCluster) -> None:
    source = Generator(rate=None, keys=40, payload=0, rows=500)
    run = cluster.submit(chained(source=source, sink=Unclosable()))
    with pytest.raises(SinkError, match="the last page was torn"):
        run.wait(PATIENCE_S)


def test_a_run_that_is_cancelled_ends_without_waiting_for_a_sink_that_is_stuck(
    cluster: ProcessCluster, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "never")
    run = cluster.submit(chained(sink=CallableSink(Stuck(tmp_path / "never"))))
    wait_until(lambda: run.metrics().rows_in > 100, "the sink to be stuck")
    with pytest.raises(TimeoutError, match=r"drained; draining[^$]*out"):
        run.drain(0.5)
    sink = pid_of(run, "out")
    assert running(sink)
    run.cancel()
    assert run.phase == "ended"
    assert not running(sink)
    assert not run.events("run drained")
    assert run.metrics().rows_out == 0


def test_a_cluster_that_was_stopped_ends_its_runs_and_says_so() -> None:
    with started(nodes=1, cores=2) as cluster:
        run = cluster.submit(chained())
        everybody = processes_of(cluster)
        cluster.stop()
        cluster.stop()
        wait_until_gone(everybody)
        assert directories_of(cluster.id) == []
        assert run.phase == "ended"
        with pytest.raises(ClusterError, match="cluster must be running"):
            cluster.submit(chained())
        with pytest.raises(ElasticutorError, match="cluster must be running"):
            run.set_cores("chain", 0, 1)
        run.stop()


_SCRIPT = """
import sys
from elasticutor.operator import Operator
from elasticutor.driver.process_cluster import ProcessCluster
from elasticutor.sinks import NoSink
from elasticutor.sources import Generator
from elasticutor.topology import Topology


class Pass(Operator):
    output = "key bigint"

    def process(self, key, row, state):
        yield (key,)


if __name__ == "__main__":
    topology = Topology("script")
    rows = topology.source("rows", Generator(rate=100, payload=0))
    topology.sink("out", NoSink(), topology.operator("pass", Pass(), rows, key="key"))
    with ProcessCluster(nodes=1, cores=1, schedule_s=0) as cluster:
        run = cluster.submit(topology)
        print(cluster.id, flush=True)
        run.wait()
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=["Ctrl-C", "killed"])
def test_a_script_that_is_ended_from_outside_leaves_nothing(
    tmp_path: Path, number: signal.Signals
) -> None:
    path = tmp_path / "script.py"
    path.write_text(_SCRIPT)
    with subprocess.Popen(
        [sys.executable, str(path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        text=True,
    ) as script:
        assert script.stdout is not None
        cluster = script.stdout.readline().strip()
        everybody = descendants(script.pid)
        try:
            assert len(everybody) >= 7  # two hosts, their zygotes, a node, a main process, a task …
            assert directories_of(cluster)
            if number == signal.SIGINT:
                os.killpg(script.pid, number)  # as a terminal does it: to the whole group
            else:
                os.kill(script.pid, number)
            _, printed = script.communicate(timeout=PATIENCE_S)
        finally:
            script.kill()
    wait_until_gone({script.pid, *everybody})
    wait_until(lambda: directories_of(cluster) == [], "the directories to be removed")
    remove_journals(cluster)
    if number == signal.SIGINT:
        assert printed.rstrip().endswith("KeyboardInterrupt")
        assert printed.count("Traceback") == 1
