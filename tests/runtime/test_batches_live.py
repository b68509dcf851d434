"""Operators that are fed batch by batch, live: whoever runs the batches is played here."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, count
from operator import itemgetter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.runtime.live import PATIENCE_S, Chain, Link, link, pid_of_node, started, wait_until

from elasticutor.core.protocol.batch_protocol import Ingress
from elasticutor.core.protocol.ids import Epoch
from elasticutor.driver.process_cluster import ProcessCluster
from elasticutor.driver.queries.batch_driver import BatchDriver
from elasticutor.driver.queries.query_driver import QueryDriver, QuerySeen, goes_on
from elasticutor.driver.run import Run
from elasticutor.errors import ElasticutorError
from elasticutor.operator import Operator, OperatorError, State
from elasticutor.plan import OperatorPlan, Plan
from elasticutor.process import ingress
from elasticutor.process.failures import BatchError
from elasticutor.process.ingress import Connection, Feed
from elasticutor.schemas import to_arrow
from elasticutor.state.checkpoint import MismatchError
from elasticutor.topology import pickled

pytestmark = pytest.mark.live

INPUT = pa.schema({"key": pa.int64(), "time": pa.int64()})
_frames = count()
_tasks = count(1)

Rows = list[tuple[int, ...]]
Given = Sequence[tuple[int, int]]


def planned(operators: dict[str, Operator], executors: int = 1, shards: int = 8) -> Plan:
    return Plan(
        "elastic",
        (),
        tuple(
            OperatorPlan(
                name=name,
                blob=pickled(name, operator),
                kind="record",
                key=("key",),
                input=INPUT,
                output=to_arrow(operator.output),
                executors=executors,
                shards=shards,
                cores=1,
                inputs=(),
                targets=(),
            )
            for name, operator in operators.items()
        ),
        (),
    )


class Spark:
    """What a reception asks whoever runs the queries."""

    def __init__(self, query: str) -> None:
        self._query = query
        self.run: str | None = "run 1"
        self.stage = 100

    def query(self, query: str) -> QuerySeen | None:
        return None if self.run is None else QuerySeen(self._query, self.run, "")

    def run_of(self, query: str) -> str | None:
        return self.run

    def active(self, stage: int) -> bool:
        return self.run is not None and stage >= self.stage


class Engine:
    """Runs batches as Spark would: executions, stages and tasks with numbers that rise."""

    def __init__(
        self,
        cluster: ProcessCluster,
        checkpoint: Path | None,
        *,
        operators: dict[str, Operator] | None = None,
        query: str = "q",
        ways: type[Spark] = Spark,
        **numbers: int,
    ) -> None:
        self.cluster = cluster
        self.spark = ways(query)
        self.before_start: Callable[[], None] = lambda: None
        self.size = (1, 1)
        """How many tasks a stage has, and how many partitions."""
        self._query = query if checkpoint is not None else ""
        plan = planned(operators or {"chain": Chain()}, **numbers)

        def start(seen: QuerySeen | None, epoch: int) -> Run:
            self.before_start()
            return cluster.host(
                plan,
                count=lambda _: (*self.size, None),
                checkpoint=None if seen is None else str(checkpoint),
                owner="" if seen is None else f"query {seen.id}",
                below=epoch,
                goes_on=lambda: goes_on(self.spark, seen),
            )

        frame = f"frame {next(_frames)}"
        self.reception = QueryDriver(cluster.hub, frame, self.spark, start)
        self.feed = Feed.of(cluster.bootstrap, frame, plan)

    def task(self, batch: int, partition: int = 0, *, new_stage: bool = True) -> Ingress:
        self.spark.stage += new_stage
        stage = self.spark.stage
        return Ingress(Epoch(batch + 1), stage, stage, partition, next(_tasks))

    def run(self, batch: int, rows: Given, task: Ingress | None = None) -> Rows:
        """A batch of one partition, or one task of a batch that has more."""
        made = self.outputs(task or self.task(batch), rows)
        return by_key([r for _, out in made for r in zip(*out.to_pydict().values(), strict=True)])

    def outputs(
        self, task: Ingress, rows: Given, group: str = ""
    ) -> Iterator[tuple[str, pa.RecordBatch]]:
        columns = list(zip(*rows, strict=True)) or [(), ()]
        arrays = [pa.array(column, pa.int64()) for column in columns]
        batch = pa.RecordBatch.from_arrays(arrays, schema=INPUT)
        return self.feed.run(task, [batch], query=self._query, group=group or self.spark.run or "")

    @property
    def live(self) -> Run:
        (run,) = self.reception.runs
        return run

    def end(self) -> None:
        """The query has ended."""
        self.spark.run = None
        self.cluster.hub.call(self.reception.close)
        wait_until(lambda: not self.reception.runs, "the end of the executors")


@pytest.fixture(autouse=True)
def station(shared_cluster: ProcessCluster) -> Iterator[None]:
    yield
    Connection.of(shared_cluster.bootstrap).close()


def by_key(rows: Rows) -> Rows:
    """Those of one key in their order; there is none between keys."""
    return sorted(rows, key=itemgetter(0))


def rows_of(seed: int, number: int = 40) -> list[tuple[int, int]]:
    return [((seed * 7 + n) % 5, seed * 100 + n) for n in range(number)]


def folded(batches: Sequence[Given]) -> list[Rows]:
    state: dict[int, Link] = {}
    made: list[Rows] = []
    for batch in batches:
        out: Rows = []
        for key, value in batch:
            state[key] = link(state.get(key, (0, 0)), value)
            out.append((key, value, *state[key]))
        made.append(by_key(out))
    return made


def test_state_goes_on_from_batch_to_batch(cluster: ProcessCluster, tmp_path: Path) -> None:
    engine = Engine(cluster, tmp_path)
    batches = [rows_of(seed) for seed in range(4)]
    made = [engine.run(number, rows) for number, rows in enumerate(batches)]
    assert made == folded(batches)
    engine.end()


def test_numbers_of_batches_may_have_gaps(cluster: ProcessCluster, tmp_path: Path) -> None:
    engine = Engine(cluster, tmp_path)
    batches = [rows_of(seed) for seed in range(3)]
    made = [engine.run(number, rows) for number, rows in zip((0, 3, 9), batches, strict=True)]
    assert made == folded(batches)
    engine.end()


def test_a_batch_that_is_executed_anew_is_applied_once(
    cluster: ProcessCluster, tmp_path: Path
) -> None:
    engine = Engine(cluster, tmp_path)
    batches = [rows_of(seed) for seed in range(3)]
    made = [[engine.run(number, rows) for _ in range(3)] for number, rows in enumerate(batches)]
    assert made == [[expected] * 3 for expected in folded(batches)]
    engine.end()


def test_a_query_goes_on_from_its_checkpoint_with_other_executors_and_shards(
    cluster: ProcessCluster, tmp_path: Path
) -> None:
    batches = [rows_of(seed) for seed in range(4)]
    expected = folded(batches)
    for number, (executors, shards) in enumerate([(1, 8), (3, 4), (2, 16), (1, 1)]):
        engine = Engine(cluster, tmp_path, executors=executors, shards=shards)
        made = engine.run(number, batches[number])
        assert made == expected[number]
        engine.end()


def test_a_batch_that_was_durable_and_not_committed_is_run_again_from_the_state_before_it(
    cluster: ProcessCluster, tmp_path: Path
) -> None:
    batches = [rows_of(seed) for seed in range(3)]
    engine = Engine(cluster, tmp_path)
    for number in range(2):
        engine.run(number, batches[number])
    engine.end()
    engine = Engine(cluster, tmp_path)
    made = [engine.run(number, batches[number]) for number in (1, 2)]
    assert made == folded(batches)[1:]
    engine.end()


def test_every_action_on_a_batch_frame_begins_with_nothing(cluster: ProcessCluster) -> None:
    engine = Engine(cluster, None)
    rows = rows_of(1)
    assert [engine.run(0, rows) for _ in range(3)] == folded([rows]) * 3
    engine.end()


def test_a_task_may_leave_before_others_of_its_stage_have_come(
    cluster: ProcessCluster, tmp_path: Path
) -> None:
    engine = Engine(cluster, tmp_path)
    engine.size = (3, 3)
    parts = [rows_of(seed, 10) for seed in range(3)]
    made = [
        engine.run(0, rows, engine.task(0, number, new_stage=number == 0))
        for number, rows in enumerate(parts)
    ]
    assert by_key([*chain(*made)]) == folded([[*chain(*parts)]])[0]
    assert [event["epoch"] for event in engine.live.events("epoch durable")] == [1]
    engine.end()


def test_all_operators_of_a_stream_get_all_of_its_rows(
    cluster: ProcessCluster, tmp_path: Path
) -> None:
    engine = Engine(cluster, tmp_path, operators={"a": Chain(), "b": Chain()})
    rows = rows_of(1)
    made: dict[str, Rows] = {"a": [], "b": []}
    for name, out in engine.outputs(engine.task(0), rows):
        made[name] += zip(*out.to_pydict().values(), strict=True)
    assert {n: by_key(out) for n, out in made.items()} == dict.fromkeys("ab", folded([rows])[0])
    (report,) = engine.reception.reports_of("q")
    assert {n: (r.rows_in, r.rows_out) for n, r in report.operators.items()} == {
        "a": (40, 40),
        "b": (40, 40),
    }
    engine.end()


def test_a_partition_that_is_run_twice_is_refused_and_the_batch_can_be_run_again(
    cluster: ProcessCluster, tmp_path: Path
) -> None:
    engine = Engine(cluster, tmp_path)
    engine.size = (2, 2)
    rows = rows_of(1)
    engine.run(0, rows, engine.task(0))
    with pytest.raises(BatchError, match="is run a second time"):
        engine.run(0, rows, engine.task(0, new_stage=False))
    engine.size = (1, 1)
    assert engine.run(0, rows) == folded([rows])[0]
    engine.end()


def test_a_stage_that_is_run_in_part_is_refused(cluster: ProcessCluster, tmp_path: Path) -> None:
    engine = Engine(cluster, tmp_path)
    engine.size = (1, 4)
    with pytest.raises(BatchError, match="run in part only"):
        engine.run(0, rows_of(1))
    engine.size = (1, 1)
    assert engine.run(0, rows_of(1)) == folded([rows_of(1)])[0]
    engine.end()


def test_a_lost_process_fails_the_task_and_the_next_run_goes_on_from_the_last_epoch(
    cluster: ProcessCluster, tmp_path: Path
) -> None:
    engine = Engine(cluster, tmp_path)
    batches = [rows_of(seed) for seed in range(3)]
    made = [engine.run(0, batches[0])]
    (task,) = engine.live.tasks("chain", 0).values()
    os.kill(task.pid, signal.SIGKILL)
    wait_until(lambda: not engine.reception.runs, "the end of the run")
    made += [engine.run(number, batches[number]) for number in (1, 2)]
    assert made == folded(batches)
    engine.end()


def test_a_node_that_joins_while_a_query_runs_can_have_its_tasks(tmp_path: Path) -> None:
    """The scheduler grants cores on whatever node is up; executors must know where that node is."""
    with started(nodes=2, cores=2) as cluster:
        engine = Engine(cluster, tmp_path)
        batches = [rows_of(seed) for seed in range(3)]
        made = [engine.run(0, batches[0])]
        run = engine.live
        (home,) = run.cores("chain", 0)
        (other,) = cluster.nodes.keys() - {home}
        os.kill(pid_of_node(cluster, other), signal.SIGKILL)
        joined = f"{other}.1"
        wait_until(lambda: joined in cluster.nodes, "another node in its place")
        run.set_cores("chain", 0, {joined: 2})
        assert {task.node for task in run.tasks("chain", 0).values()} == {joined}
        made += [engine.run(number, batches[number]) for number in (1, 2)]
        assert engine.live.id == run.id  # no other executors had to be started
        assert made == folded(batches)
        engine.end()
        Connection.of(cluster.bootstrap).close()


class Failing(Operator):
    """Does not like one number."""

    output = "key bigint"

    def process(self, key: Any, row: Any, state: State) -> Any:
        if row.time == 17:
            raise ZeroDivisionError("seventeen")
        yield (key,)


def test_what_an_operator_raises_comes_with_its_key_and_row(
    cluster: ProcessCluster, tmp_path: Path
) -> None:
    engine = Engine(cluster, tmp_path, operators={"failing": Failing()})
    with pytest.raises(OperatorError, match="ZeroDivisionError: seventeen") as caught:
        engine.run(0, [(3, 16), (4, 17)])
    assert (caught.value.key, caught.value.row) == ("4", "Row(key=4, time=17)")
    engine.end()


def test_a_checkpoint_of_another_query_is_refused_by_name(
    cluster: ProcessCluster, tmp_path: Path
) -> None:
    engine = Engine(cluster, tmp_path)
    engine.run(0, rows_of(1))
    engine.end()
    other = Engine(cluster, tmp_path, query="other")
    with pytest.raises(MismatchError, match="be of query other; got that of query q"):
        other.run(0, rows_of(1))
    other.end()


def test_a_batch_whose_executors_were_lost_cannot_be_skipped(
    cluster: ProcessCluster, tmp_path: Path
) -> None:
    engine = Engine(cluster, tmp_path)
    engine.size = (2, 2)
    first = engine.task(0)
    engine.run(0, rows_of(1), first)  # one of two partitions: the batch is not at its end
    (task,) = engine.live.tasks("chain", 0).values()
    os.kill(task.pid, signal.SIGKILL)
    wait_until(lambda: not engine.reception.runs, "the end of the run")
    with pytest.raises(ElasticutorError):
        engine.run(0, rows_of(2), engine.task(0, 1, new_stage=False))
    engine.size = (1, 1)
    with pytest.raises(BatchError, match="batch 0"):
        engine.run(1, rows_of(3))
    engine.end()


def test_executors_are_released_when_their_query_has_ended(
    cluster: ProcessCluster, tmp_path: Path
) -> None:
    engine = Engine(cluster, tmp_path)
    engine.run(0, rows_of(1))
    assert isinstance(engine.live.supervisor.epochs, BatchDriver)
    engine.spark.run = None
    wait_until(lambda: not engine.reception.runs, "the release of the executors")


def test_a_query_that_is_started_again_at_once_is_served_by_executors_of_its_own(
    cluster: ProcessCluster, tmp_path: Path
) -> None:
    engine = Engine(cluster, tmp_path)
    batches = [rows_of(seed) for seed in range(2)]
    made = [engine.run(0, batches[0])]
    before = engine.live.id
    engine.spark.run = "run 2"
    made.append(engine.run(1, batches[1]))
    assert made == folded(batches)
    assert engine.live.id != before
    engine.end()


class SeenTogether(Spark):
    """Its end is seen by the watcher of its executors only when another start asks as well."""

    def __init__(self, query: str) -> None:
        super().__init__(query)
        self._both = threading.Barrier(2)
        self._met = False

    def run_of(self, query: str) -> str | None:
        if self.run is None and not self._met:
            self._both.wait(PATIENCE_S)
            self._met = True
        return self.run


def test_a_query_in_the_place_of_one_that_was_stopped_and_deleted_is_served(
    cluster: ProcessCluster, tmp_path: Path
) -> None:
    old = Engine(cluster, tmp_path / "state", ways=SeenTogether)
    old.run(0, rows_of(1))
    old.spark.run = None
    (tmp_path / "state").rename(tmp_path / "deleted")
    new = Engine(cluster, tmp_path / "state", query="new")
    assert new.run(0, rows_of(2)) == folded([rows_of(2)])[0]
    assert not old.reception.runs
    new.end()


def test_a_task_takes_rows_in_while_it_waits_to_be_admitted_but_only_so_many(
    cluster: ProcessCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ingress, "_AHEAD_BYTES", 1)  # the first batch is more
    engine = Engine(cluster, tmp_path)
    taken = threading.Event()
    engine.before_start = lambda: require(taken.wait(30.0), "rows are taken in before")
    rows = rows_of(1)
    admitted: list[bool] = []

    def batches() -> Iterator[pa.RecordBatch]:
        for some in (rows[:20], rows[20:]):
            admitted.append(bool(engine.reception.runs))
            taken.set()
            keys, values = zip(*some, strict=True)
            yield pa.RecordBatch.from_arrays([pa.array(keys), pa.array(values)], schema=INPUT)

    made = engine.feed.run(engine.task(0), batches(), query="q", group=engine.spark.run or "")
    out = [row for _, part in made for row in zip(*part.to_pydict().values(), strict=True)]
    assert by_key(out) == folded([rows])[0]
    assert admitted == [False, True]
    engine.end()


def test_the_thread_that_asks_about_stages_ends_with_the_run(
    cluster: ProcessCluster, tmp_path: Path
) -> None:
    engine = Engine(cluster, tmp_path)
    engine.run(0, rows_of(0))
    name = f"stages of {engine.live.supervisor.run}"
    assert name in threads()
    engine.end()
    wait_until(lambda: name not in threads(), "the end of the thread")


def threads() -> set[str]:
    return {thread.name for thread in threading.enumerate()}


def require(is_so: bool, what: str) -> None:
    assert is_so, what


def test_tasks_wait_for_executors_that_take_long_to_start(
    cluster: ProcessCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ingress, "SILENCE_S", 1.0)
    engine = Engine(cluster, tmp_path)
    began = time.monotonic()
    engine.before_start = lambda: wait_until(
        lambda: time.monotonic() > began + 2.0, "a start that is slower than silence may last"
    )
    assert engine.run(0, rows_of(1)) == folded([rows_of(1)])[0]
    engine.end()


def test_a_query_that_is_started_again_while_its_executors_start_is_served(
    cluster: ProcessCluster, tmp_path: Path
) -> None:
    engine = Engine(cluster, tmp_path)

    def restart() -> None:
        engine.before_start = lambda: None
        engine.spark.run = "run 2"

    engine.before_start = restart  # the executors that come up are those of run 1
    made = engine.outputs(engine.task(0), rows_of(1), group="run 2")
    rows = [row for _, out in made for row in zip(*out.to_pydict().values(), strict=True)]
    assert by_key(rows) == folded([rows_of(1)])[0]
    engine.end()
