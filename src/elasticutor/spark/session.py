"""What a SparkSession offers: its slots and executors, and whether they suffice."""

from __future__ import annotations

import os
import re
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyspark
from pyspark.sql import SparkSession

from elasticutor.driver.loop import ClusterError
from elasticutor.errors import BadValueError

OLDEST = (4, 0)
_LOCAL = re.compile(r"local(\[[^\]]*\])?$")
_LOCAL_CLUSTER = re.compile(r"local-cluster\[\s*(\d+)\s*,\s*(\d+)\s*,\s*\d+\s*\]$")
_REGISTER_S = 60.0
"""How long the first executors may take to start: a cluster manager has to find them room."""


@dataclass(frozen=True, slots=True)
class SparkResources:
    """What Spark has to offer now."""

    master: str
    local: bool  # driver and executor are one process
    slots: int  # tasks that can run at once
    executors: int
    host: str  # the address under which executors reach the driver

    @property
    def slots_per_executor(self) -> int:
        """At least one."""
        return max(1, self.slots // max(1, self.executors))


def require_session(spark: Any) -> SparkSession:
    """Refuse what cannot host a cluster: an old pyspark, Spark Connect, a stopped session."""
    version = tuple(int(part) for part in re.findall(r"\d+", pyspark.__version__)[:2])
    if version < OLDEST:
        wanted = ".".join(map(str, OLDEST))
        hint = f"pip install 'pyspark>={wanted}'"
        raise BadValueError("pyspark", f"be {wanted} or newer", pyspark.__version__, hint)
    if type(spark).__module__.startswith("pyspark.sql.connect"):
        hint = "start it with SparkSession.builder.master(…), without .remote(…)"
        must = "be a classic one, with a SparkContext"
        raise BadValueError("SparkSession", must, "one of Spark Connect", hint)
    if not isinstance(spark, SparkSession):
        raise BadValueError("spark", "be a SparkSession", type(spark).__name__)
    if spark.sparkContext._jsc is None or spark.sparkContext._jsc.sc().isStopped():
        raise ClusterError("SparkContext", "be running", "a stopped one", "make a new SparkSession")
    return spark


def local_session(master: str = "local[4]", name: str = "elasticutor") -> SparkSession:
    """Return a small, quiet session on this machine, or the one that is there already.

    Its Python workers use this very Python, unless `PYSPARK_PYTHON` names another.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_CONF_DIR", str(Path(__file__).parent / "conf"))
    return (
        SparkSession.builder.master(master)
        .appName(name)
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )


def offer_of(spark: SparkSession) -> SparkResources:
    """Return what this session has now; waits a moment for its first executor."""
    context = spark.sparkContext
    master = str(context.master)
    local = bool(_LOCAL.match(master))
    found = _LOCAL_CLUSTER.match(master)
    host = "127.0.0.1" if local or found else context.getConf().get("spark.driver.host")
    wanted = int(found.group(1)) if found else 1
    until = time.monotonic() + _REGISTER_S
    executors = 1 if local else _executors(context)
    while executors < wanted and time.monotonic() < until:
        time.sleep(0.1)
        executors = _executors(context)
    if not executors:
        must = f"have an executor within {_REGISTER_S:g} s"
        raise ClusterError("Spark", must, "none", "is the cluster full?")
    scala: Any = context._jsc.sc()
    profile = scala.resourceProfileManager().defaultResourceProfile()
    slots = int(scala.maxNumConcurrentTasks(profile))
    return SparkResources(master, local, slots, executors, host or "127.0.0.1")


def _executors(context: Any) -> int:
    """Executors that have registered, the driver not counted."""
    return int(context._jsc.sc().getExecutorMemoryStatus().size()) - 1
