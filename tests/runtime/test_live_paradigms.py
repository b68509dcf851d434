from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pyarrow as pa
import pytest
from tests.runtime.live import Chain, by_key, folded, started, wait_until

from elasticutor.core.paradigm import Paradigm, ParadigmName
from elasticutor.core.protocol.ids import ShardId
from elasticutor.driver.blueprint import in_paradigm
from elasticutor.driver.process_cluster import ProcessCluster
from elasticutor.driver.run import Run
from elasticutor.errors import BadValueError
from elasticutor.sinks import MemorySink, NoSink
from elasticutor.sources import Generator, IterableSource, Offer, Reader
from elasticutor.topology import Topology

pytestmark = pytest.mark.live

# The processes of a cluster cannot import this module, so its source travels as code.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

ROWS = 20_000


class Trickle(IterableSource):
    """Gives its rows out slowly, and the last ones only when a file is there."""

    def __init__(self, batches: list[pa.RecordBatch], schema: pa.Schema, gate: Path) -> None:
        super().__init__(batches, schema)
        self.gate = str(gate)

    def open(self, task: int, tasks: int, offset: Any | None) -> Reader:
        return _TrickleReader(super().open(task, tasks, offset), self.gate, len(self.batches) - 1)


class _TrickleReader(Reader):
    def __init__(self, rows: Reader, gate: str, last: int) -> None:
        self._rows, self._gate, self._last = rows, gate, last
        self._due = 0.0

    @property
    def offset(self) -> Any:
        return self._rows.offset

    @property
    def exhausted(self) -> bool:  # type: ignore[override]
        return self._rows.exhausted

    def poll(self, now: float, max_rows: int) -> Offer | None:
        if Path(self._gate).exists():
            return self._rows.poll(now, max_rows)
        if now < self._due or self._rows.offset[0] == self._last:
            return None
        self._due = now + 0.002
        return self._rows.poll(now, min(max_rows, 20))

    def wait_s(self, now: float) -> float:
        return max(0.002, self._due - now)


def skewed_rows() -> pa.Table:
    keys = np.minimum(np.random.default_rng(1).zipf(1.3, ROWS), 500)
    return pa.table({"key": pa.array(keys, pa.int64()), "time": pa.array(range(ROWS), pa.int64())})


def chained(
    table: pa.Table, *, sources: int = 1, cores: int = 2, gate: Path | None = None
) -> Topology:
    """Each source has keys of its own, so that the order within a key is known."""
    topology = Topology("chained")
    numbers = np.asarray(table["key"]) % sources
    streams = []
    for number in range(sources):
        batches = table.filter(pa.array(numbers == number)).to_batches(max_chunksize=100)
        source = IterableSource(batches, table.schema)
        if gate is not None:
            source = Trickle(batches, table.schema, gate)
        streams.append(topology.source(f"rows-{number}", source))
    made = topology.operator(
        "chain", Chain(), streams, key="key", executors=2, cores=cores, shards=16
    )
    topology.sink("out", MemorySink(), made)
    return topology


@pytest.fixture(scope="module")
def scheduled_cluster() -> Iterator[ProcessCluster]:
    with started(nodes=2, cores=3, schedule_s=0.25) as cluster:
        yield cluster


def assert_folded(run: Run, table: pa.Table) -> None:
    outputs, state = folded(table)
    assert by_key(run.collected("out")) == outputs
    assert run.state("chain") == state


@pytest.mark.parametrize("paradigm", ["elastic", "naive", "static", "rc"])
def test_every_paradigm_gives_what_a_sequential_fold_gives(
    scheduled_cluster: ProcessCluster, paradigm: ParadigmName
) -> None:
    table = skewed_rows()
    run = scheduled_cluster.submit(chained(table, sources=2), paradigm=paradigm, keep=True)
    run.wait(60)
    assert_folded(run, table)
    run.stop()


def test_shards_that_change_their_executor_time_and_again_lose_nothing(
    scheduled_cluster: ProcessCluster, tmp_path: Path
) -> None:
    table, gate = skewed_rows(), tmp_path / "enough"
    rng = random.Random(7)
    topology = chained(table, sources=3, gate=gate)
    run = scheduled_cluster.submit(topology, paradigm="rc", keep=True)
    lead = run._supervisor.leads["chain"]

    def shake() -> bool:
        """Start a round if none is under way; says whether the run is over."""
        if run.phase == "running" and not lead.busy:
            lead.move({ShardId(shard): rng.randrange(4) for shard in rng.sample(range(32), 8)})
        return run.phase == "drained"

    def over() -> bool:
        """Shake it, at least until there were enough rounds: then all rows may come."""
        rounds = run.events("shards repartitioned")
        if len(rounds) > 3 and sum(event["remote"] for event in rounds) > 3:
            gate.touch()
        return bool(scheduled_cluster._hub.call(shake))

    wait_until(over, "the end of the rows")
    assert_folded(run, table)
    rounds = run.events("shards repartitioned")
    assert len(rounds) > 3
    assert sum(event["remote"] for event in rounds) > 3
    assert any(event["bytes"] for event in rounds)
    run.stop()


def test_static_and_resource_centric_runs_have_an_executor_for_every_core() -> None:
    plan = chained(skewed_rows(), cores=3).plan()
    static, rc = (
        in_paradigm(plan, name).operators[0]
        for name in (Paradigm.STATIC, Paradigm.RESOURCE_CENTRIC)
    )
    assert (static.executors, static.cores, static.shards) == (6, 1, 16)
    assert (rc.executors, rc.cores, rc.shards) == (6, 1, 32)
    assert in_paradigm(plan, Paradigm.ELASTIC) is plan


def test_a_resource_centric_operator_that_another_feeds_is_refused() -> None:
    topology = Topology("two")
    stream = topology.source("gen", Generator(rate=10, payload=0))
    first = topology.operator("first", Chain(), stream, key="key")
    second = topology.operator("second", Chain(), first, key="key")
    topology.sink("out", NoSink(), second)
    with pytest.raises(BadValueError, match="'second' in the paradigm 'rc' must be fed by sources"):
        in_paradigm(topology.plan(), Paradigm.RESOURCE_CENTRIC)


def test_an_unknown_paradigm_and_an_impossible_target_are_refused(
    scheduled_cluster: ProcessCluster,
) -> None:
    topology = chained(skewed_rows())
    wrong: Any = "fast"
    with pytest.raises(BadValueError, match="paradigm must be one of"):
        scheduled_cluster.submit(topology, paradigm=wrong)
    with pytest.raises(BadValueError, match="latency_target must be seconds above 0"):
        scheduled_cluster.submit(topology, latency_target=0)


def test_cores_of_a_static_run_cannot_be_set(scheduled_cluster: ProcessCluster) -> None:
    topology = Topology("still")
    stream = topology.source("gen", Generator(rate=10, payload=0))
    topology.sink("out", NoSink(), topology.operator("chain", Chain(), stream, key="key"))
    run = scheduled_cluster.submit(topology, paradigm="static")
    with pytest.raises(BadValueError, match="must be elastic or naive"):
        run.set_cores("chain", 0, 2)
    run.cancel()
