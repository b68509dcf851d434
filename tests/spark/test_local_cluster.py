"""A cluster whose nodes are on Spark executors of their own: two JVMs, as on two machines."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psutil
import pyspark
import pytest
from tests.spark.rig import Script, assert_gone

pytestmark = pytest.mark.jvm


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Script]:
    told = tmp_path_factory.mktemp("local_cluster")
    with Script("local_cluster", told, {"SPARK_HOME": str(spark_home(told / "home"))}) as script:
        yield script


def spark_home(path: Path) -> Path:
    """Spark as it is installed, but for the files that its workers write there."""
    path.mkdir()
    for part in Path(pyspark.__file__).parent.iterdir():
        if part.name != "work":
            (path / part.name).symlink_to(part)
    return path


def test_a_run_over_two_spark_executors_moves_state_between_them_and_comes_to_the_fold(
    script: Script,
) -> None:
    told = script.told("moved")
    assert told["nodes"] == {"n0": 2, "n1": 2}
    assert len(told["homes"]) == 2, "each node is on a Spark executor of its own"
    assert told["move"]["remote"]
    assert told["move"]["cause"] == "asked"
    assert told["bytes"] > 0
    assert told["nodes_at_the_end"] == [told["other"]]
    assert told["state_is_right"]
    assert told["output_is_right"]


def test_a_run_with_a_checkpoint_outlives_a_spark_executor_whose_successor_joins_as_a_new_node(
    script: Script,
) -> None:
    node, pid = max(script.told("kept").items())
    script.look()
    executor = next(parent for parent in psutil.Process(pid).parents() if "java" in parent.name())
    executor.kill()
    told = script.told("survived")
    assert told["before"] == ["n0", "n1"]
    assert node not in told["after"]
    assert len(told["after"]) == 2
    assert told["rows"] > 0
    assert told["state_is_right"]
    assert told["output_is_right"]


def test_a_spark_executor_that_is_killed_fails_the_run_by_the_name_of_its_node_and_leaves_nothing(
    script: Script,
) -> None:
    node, pid = max(script.told("running").items())
    processes = script.look()
    executor = next(parent for parent in psutil.Process(pid).parents() if "java" in parent.name())
    executor.kill()
    failure = script.told("failed")
    assert failure.startswith("RunError: ")
    assert f"node '{node}'" in failure
    assert "was lost" in failure
    script.look()
    assert script.ended(120) == 0, script.said()
    assert_gone([*processes, *script.seen.values()], script.told("cluster")["cluster"])
