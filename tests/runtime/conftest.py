"""Clusters that many tests use one after the other, because starting one takes seconds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from tests.runtime.live import processes_of, started, wait_until

from elasticutor.driver.process_cluster import ProcessCluster
from elasticutor.lab.chaos.doom import MAILBOX
from elasticutor.transport.mailbox import FACTORY


@pytest.fixture(scope="session")
def shared_cluster() -> Iterator[ProcessCluster]:
    """Two nodes of two cores; nothing of it is left at the end."""
    with started(nodes=2, cores=2) as cluster:
        yield cluster


@pytest.fixture
def cluster(shared_cluster: ProcessCluster) -> Iterator[ProcessCluster]:
    """The same cluster; no process and no core of the test's runs may be left behind."""
    before = processes_of(shared_cluster)
    free = shared_cluster.free_cores
    with runs_cancelled(shared_cluster):
        yield shared_cluster
    wait_until(lambda: processes_of(shared_cluster) <= before, "the end of the test's processes")
    assert shared_cluster.free_cores == free


@pytest.fixture(scope="session")
def shared_nodes() -> Iterator[ProcessCluster]:
    """Two nodes of three cores, which tests may kill, at named points too.

    Nothing of them is left at the end.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(FACTORY, MAILBOX)
        with started(nodes=2, cores=3) as cluster:
            patch.undo()  # `nodes` sets it for hosts that are started again
            yield cluster


@pytest.fixture
def nodes(
    shared_nodes: ProcessCluster, monkeypatch: pytest.MonkeyPatch
) -> Iterator[ProcessCluster]:
    """The same nodes: after a test, others are in the places of those that it has killed.

    As many processes as before may be left behind, and all cores have to be free.
    """
    monkeypatch.setenv(FACTORY, MAILBOX)
    before = len(processes_of(shared_nodes))
    with runs_cancelled(shared_nodes):
        yield shared_nodes
    wait_until(lambda: sorted(shared_nodes.free_cores.values()) == [3, 3], "two nodes, all free")
    wait_until(lambda: len(processes_of(shared_nodes)) == before, "the end of the test's processes")


@contextmanager
def runs_cancelled(cluster: ProcessCluster) -> Iterator[None]:
    """Cancel the runs that a test has left."""
    earlier = {run.id for run in cluster.runs}
    yield
    for run in cluster.runs:
        if run.id not in earlier:
            run.cancel()
