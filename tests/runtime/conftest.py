"""A cluster that many tests use one after the other, because starting one takes seconds."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.runtime.live import processes_of, started, wait_until

from elasticutor.driver.process_cluster import ProcessCluster


@pytest.fixture(scope="module")
def shared_cluster() -> Iterator[ProcessCluster]:
    """Two nodes of two cores; nothing of it is left at the end."""
    with started(nodes=2, cores=2) as cluster:
        yield cluster


@pytest.fixture
def cluster(shared_cluster: ProcessCluster) -> Iterator[ProcessCluster]:
    """The same cluster; no process and no core of the test's runs may be left behind."""
    before = processes_of(shared_cluster)
    earlier = {run.id for run in shared_cluster.runs}
    free = shared_cluster.free_cores
    yield shared_cluster
    for run in shared_cluster.runs:
        if run.id not in earlier:
            run.cancel()
    wait_until(lambda: processes_of(shared_cluster) <= before, "the end of the test's processes")
    assert shared_cluster.free_cores == free
