from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

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
from elasticutor.sources import Generator, IterableSource
from elasticutor.topology import Topology

pytestmark = pytest.mark.live

ROWS = 20_000


def skewed_rows() -> pa.Table:
    keys = np.minimum(np.random.default_rng(1).zipf(1.3, ROWS), 500)
    return pa.table({"key": pa.array(keys, pa.int64()), "time": pa.array(range(ROWS), pa.int64())})


def chained(table: pa.Table, *, sources: int = 1, cores: int = 2) -> Topology:
    """Each source has keys of its own, so that the order within a key is known."""
    topology = Topology("chained")
    numbers = np.asarray(table["key"]) % sources
    streams = []
    for number in range(sources):
        batches = table.filter(pa.array(numbers == number)).to_batches(max_chunksize=100)
        streams.append(topology.source(f"rows-{number}", IterableSource(batches, table.schema)))
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
    scheduled_cluster: ProcessCluster,
) -> None:
    table = skewed_rows()
    rng = random.Random(7)
    topology = chained(table, sources=3)
    run = scheduled_cluster.submit(topology, paradigm="rc", keep=True)
    lead = run._supervisor.leads["chain"]

    def shake() -> bool:
        """Start a round if none is under way; says whether the run is over."""
        if run.phase == "running" and not lead.busy:
            lead.move({ShardId(shard): rng.randrange(4) for shard in rng.sample(range(32), 8)})
        return run.phase == "drained"

    wait_until(lambda: scheduled_cluster._hub.call(shake), "the end of the rows")
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
