from __future__ import annotations

import pytest

from elasticutor.errors import ElasticutorError
from elasticutor.process.hosting.hosts import Bootstrap, NodesWanted, home, host_ends, host_nodes
from elasticutor.transport.channels import Endpoint
from elasticutor.transport.security import ClusterKeys


def bootstrap(version: str) -> Bootstrap:
    nowhere = Endpoint("driver", "", "tcp://127.0.0.1:9")
    return Bootstrap("c", ClusterKeys.generate(), nowhere, ("127.0.0.1", 9), version)


def test_a_host_of_another_version_starts_nothing() -> None:
    other = bootstrap("0.0.1")
    with pytest.raises(ElasticutorError, match=r"be the driver's version, 0\.0\.1"):
        host_nodes(other, NodesWanted(("n0",), 1, False))
    with pytest.raises(ElasticutorError, match="install the same version everywhere"):
        host_ends(other, "run", 0)


def test_the_keys_of_a_cluster_are_not_shown() -> None:
    made = bootstrap("1")
    assert made.keys.secret.decode() not in repr(made)


def test_processes_of_one_machine_user_and_executor_have_one_home(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SPARK_EXECUTOR_DIRS", "a")
    one = home()
    assert home() == one
    monkeypatch.setenv("SPARK_EXECUTOR_DIRS", "b")
    assert home() != one
