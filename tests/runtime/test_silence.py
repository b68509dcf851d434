"""Whoever does not answer is named, and in a run with a checkpoint replaced."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest
from tests.runtime.live import PATIENCE_S, pid_of, wait_until
from tests.runtime.test_recovery import (
    ENDLESS,
    chained,
    committed,
    require_fold_of_what_came,
    task_of,
)

from elasticutor.core.run.phases import RunError
from elasticutor.driver.process_cluster import ProcessCluster
from elasticutor.driver.run import Run

pytestmark = pytest.mark.live

SOON_S = 1.5


def submitted(cluster: ProcessCluster, folder: Path, **options: int) -> Run:
    return cluster.submit(
        chained(source=ENDLESS),
        checkpoint=folder,
        epoch_interval=0.2,
        keep=True,
        patience_s=SOON_S,
        **options,  # type: ignore[arg-type]
    )


@pytest.mark.parametrize(
    ("whom", "named"),
    [
        ("task", r"chain\.0 to prepare|task \d to answer move"),
        ("chain.1", r"chain\.1 to prepare"),
        ("out", "out to prepare"),
    ],
)
def test_somebody_who_falls_silent_is_named_and_replaced(
    nodes: ProcessCluster, tmp_path: Path, whom: str, named: str
) -> None:
    run = submitted(nodes, tmp_path)
    wait_until(lambda: committed(run) >= 2, "two epochs")
    pid = task_of(nodes, run) if whom == "task" else pid_of(run, whom)
    os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: run.events("recovered"), "another attempt")
    require_fold_of_what_came(run)
    assert re.search(named, run.events("lost")[0]["reason"])
    run.stop()


def test_silence_without_end_ends_the_run_with_who_did_not_answer(
    nodes: ProcessCluster, tmp_path: Path
) -> None:
    run = submitted(nodes, tmp_path, restarts=0)
    wait_until(lambda: committed(run) >= 2, "two epochs")
    os.kill(task_of(nodes, run), signal.SIGSTOP)
    with pytest.raises(RunError) as raised:
        run.wait(PATIENCE_S)
    assert re.search(r"chain\.0 to prepare|task \d to answer move", str(raised.value))
    assert "what is committed is kept" in str(raised.value)
