"""The public face is what it says it is."""

from __future__ import annotations

import inspect
import subprocess
import sys
from typing import Any

import pytest

import elasticutor


@pytest.mark.parametrize("name", elasticutor.__all__)
def test_every_exported_name_is_there(name: str) -> None:
    assert getattr(elasticutor, name) is not None


def test_exported_names_are_documented_where_they_are_listed() -> None:
    told = elasticutor.__doc__ or ""
    quiet = {"__version__", "CheckpointError", "OperatorError", "RunError", "SinkError", "Stream"}
    assert [
        name for name in elasticutor.__all__ if name not in quiet and f"`{name}`" not in told
    ] == []


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Topolgy'"):
        elasticutor.Topolgy  # noqa: B018


def test_describing_a_job_loads_neither_pyspark_nor_zmq() -> None:
    code = (
        "import sys\n"
        "from elasticutor import Topology, Operator, Generator, NoSink\n"
        "print([m for m in ('pyspark', 'zmq', 'typer', 'rich') if m in sys.modules])"
    )
    told = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert told.stdout.strip() == "[]"


def test_submit_takes_the_options_of_a_cluster_and_hands_them_on() -> None:
    class Recorder:
        def submit(self, topology: str, **options: object) -> tuple[str, dict[str, object]]:
            return topology, options

    mine = inspect.signature(elasticutor.submit).parameters
    its = inspect.signature(elasticutor.Cluster.submit).parameters
    assert list(mine) == ["topology", "cluster", *list(its)[2:]]
    assert [mine[name] for name in list(its)[1:]] == list(its.values())[1:]
    cluster: Any = Recorder()
    made: Any = elasticutor.submit("job", cluster, keep=True, epoch=3)  # type: ignore[arg-type]
    assert made == ("job", {"keep": True, "epoch": 3})
