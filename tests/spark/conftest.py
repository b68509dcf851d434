"""One Spark session for all tests that can share it: a JVM takes its time to start."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from elasticutor.lab.chaos.doom import MAILBOX
from elasticutor.spark import Cluster
from elasticutor.spark.elastic import session_cluster
from elasticutor.spark.session import local_session
from elasticutor.transport.mailbox import FACTORY


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARK_LOCAL_DIRS", str(tmp_path_factory.mktemp("spark")))
        patch.setenv(FACTORY, MAILBOX)  # the tests of crashes let processes die at named points
        session = local_session("local[4]")
        yield session
        session.stop()


@pytest.fixture(scope="module")
def own_cluster(spark: SparkSession) -> Iterator[Cluster]:
    """The session's own, on which `elastic` runs by default; other modules have its slot back."""
    with session_cluster(spark) as cluster:
        yield cluster
