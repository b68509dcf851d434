"""What the tests of crashes share: a query with a known result, and who dies in it when."""

from __future__ import annotations

import contextlib
import os
import signal
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from tests.spark.rig import Count

from elasticutor import elastic, read_state
from elasticutor.core.protocol import batch_protocol as ba
from elasticutor.core.protocol.batch_attempt import BatchPhase
from elasticutor.core.protocol.coordinator import WriteManifest
from elasticutor.driver.cluster import BaseCluster
from elasticutor.driver.queries.batch_driver import BatchDriver
from elasticutor.lab.chaos.doom import DieAt
from elasticutor.transport import messages as say

KEYS = 7
ROWS = 150
FILES = 2
"""Of a batch, and so of a partition each."""
PATIENCE_S = 240


def write_file(folder: Path, number: int, table: pa.Table) -> None:
    """Let a file appear at once; those of greater numbers are newer."""
    draft = folder.parent / f"draft-{number}"
    pq.write_table(table, draft)
    when = 1_700_000_000 + number
    os.utime(draft, (when, when))
    folder.mkdir(exist_ok=True)
    draft.rename(folder / f"{number:04}.parquet")


@dataclass
class Counting:
    """A query that counts keys, some files a batch, into Parquet files; state is beside its own.

    Args:
        spark: The session.
        folder: For everything that it reads and writes.
        batches: How many it has.
        cluster: Where the executors are; default: the session's.
        executors: How many.
    """

    spark: SparkSession
    folder: Path
    batches: int
    cluster: BaseCluster | None = None
    executors: int = 2

    def keys(self, number: int) -> list[int]:
        """Of the rows of a file."""
        return [(number + row * row) % KEYS for row in range(ROWS)]

    def write_input(self) -> None:
        """All files, at once."""
        for number in range(self.batches * FILES):
            write_file(self.folder / "in", number, pa.table({"key": self.keys(number)}))

    def start(self) -> StreamingQuery:
        """For the first time, or as after a crash."""
        self.clear_the_way()
        files = self.spark.readStream.schema("key bigint").option("maxFilesPerTrigger", FILES)
        counts = elastic(
            files.parquet(str(self.folder / "in")),
            Count(),
            key="key",
            name="count",
            executors=self.executors,
            shards=8,
            cluster=self.cluster,
        )
        return (
            counts.writeStream.format("parquet")
            .option("checkpointLocation", str(self.folder / "checkpoint"))
            .trigger(availableNow=True)
            .start(str(self.folder / "out"))
        )

    def to_the_end(self, most: int) -> list[str]:
        """Start it until it comes to its end; what it ended by before, at most so often."""
        ends: list[str] = []
        while True:
            query = self.start()
            try:
                assert query.awaitTermination(PATIENCE_S), f"still at {query.lastProgress}"
            except StreamingQueryException as error:
                ends.append(str(error))
                assert len(ends) <= most, ends
            else:
                return ends
            finally:
                query.stop()

    def obstruct(self, batch: int) -> None:
        """Keep Spark from noting that a batch is committed: then the query fails there."""
        (self.folder / "checkpoint" / "commits" / str(batch)).mkdir()

    def clear_the_way(self) -> None:
        """Let that be noted again."""
        for path in (self.folder / "checkpoint" / "commits").glob("*"):
            if path.is_dir():
                path.rmdir()

    def mistakes(self) -> list[str]:
        """How outputs and state differ from what they must be."""
        found = []
        keys = Counter(key for number in range(self.batches * FILES) for key in self.keys(number))
        wanted = Counter((key, n) for key, total in keys.items() for n in range(1, total + 1))
        out = self.spark.read.schema("key bigint, n bigint").parquet(str(self.folder / "out"))
        made = Counter((row.key, row.n) for row in out.collect())
        if made != wanted:
            found.append(f"lost: {wanted - made}, too many: {made - wanted}")
        place = self.folder / "checkpoint" / "elasticutor" / "count"
        state = read_state(self.spark, place, operator="count", unpickle=True)
        kept = {row.key: int(row.value) for row in state.collect()}
        if kept != dict(keys):
            found.append(f"state: {kept}, must be: {dict(keys)}")
        return found


# Who dies when ------------------------------------------------------------------------------------

LATER = ("unwritten", "durable", "left", "in the sink")


@dataclass(frozen=True)
class Doom:
    """Somebody who dies in the batch of an epoch.

    At a point that is called "take …" or "send …" it kills itself, just before it takes in or sends
    such a message. The others come later:

    - unwritten: all tasks wait to be told that they may leave, and the manifest is not there.
    - durable: the manifest is written, and nobody has been told so.
    - left: the last of the query's tasks has been told that it may leave.
    - in the sink: its sink has committed the batch, but Spark has not noted so.
    """

    who: str
    point: str
    epoch: int


def kill_process(driver: BatchDriver, who: str) -> None:
    """Kill a process of the first executor, or the node that it is on, or that one's host."""
    supervisor = driver._supervisor
    first = supervisor.executors[0]
    match who:
        case "task":
            pid = next(iter(supervisor.ledger.tasks(first).values())).pid
        case "main":
            pid = supervisor.pids[first]
        case "node":
            pid = driver._hub.nodes[supervisor.home(first)].pid
        case "Spark executor":
            node = psutil.Process(driver._hub.nodes[supervisor.home(first)].pid)
            pid = next(parent.pid for parent in node.parents() if "java" in parent.name())
        case _:
            raise ValueError(who)
    os.kill(pid, signal.SIGKILL)


def _last(driver: BatchDriver) -> ba.Ingress | None:
    """The last task of a batch, if it waits to be told that it may leave."""
    return None if driver.batches._try is None else driver.batches._try.last


@dataclass
class Reaper:
    """Sees to it that whoever is doomed dies, once: it stands between the driver and its orders."""

    counting: Counting
    dooms: Iterable[Doom]
    kill: Callable[[BatchDriver, str], None] = kill_process
    met: list[Doom] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._due = {doom.epoch: doom for doom in self.dooms}

    @contextlib.contextmanager
    def at_work(self) -> Iterator[None]:
        """While this lasts."""
        enact, written, done = BatchDriver._enact, BatchDriver._written, BatchDriver.done

        def enacted(driver: BatchDriver, order: ba.BatchOrder) -> None:
            if isinstance(order, WriteManifest) and self._withholds(driver):
                return
            self._before(driver, order)
            enact(driver, order)
            if isinstance(order, ba.Leave) and driver.batches.idle:
                self._later(driver, "left")
                self._ahead(driver)

        def was_written(driver: BatchDriver, order: Any, size: int, error: Any) -> None:
            if not self._later(driver, "durable"):
                written(driver, order, size, error)

        def was_done(driver: BatchDriver, message: say.PartitionDone) -> None:
            done(driver, message)
            self._withholds(driver)

        with (
            mock.patch.object(BatchDriver, "_enact", enacted),
            mock.patch.object(BatchDriver, "done", was_done),
            mock.patch.object(BatchDriver, "_written", was_written),
        ):
            yield

    def _withholds(self, driver: BatchDriver) -> bool:
        doom = self._due.get(driver.batches.epoch)
        if doom is None or doom.point != "unwritten":
            return False
        # Whoever comes first, the last of the tasks or the order: both have to be there.
        if driver.batches.phase is BatchPhase.WRITING and _last(driver):
            self._later(driver, "unwritten")
        return True

    def _before(self, driver: BatchDriver, order: ba.BatchOrder) -> None:
        doom = self._due.get(driver.batches.epoch)
        if doom is None or doom.point in LATER:
            return
        verb, _, kind = doom.point.partition(" ")
        point = DieAt(verb == "send", kind)
        supervisor = driver._supervisor
        match order, doom.who:
            case ba.Admit(task), "worker":
                driver._hub.mail.send(driver._name(task), point)
            case ba.BeginBatch(who), "main":
                supervisor.ask(who, point)
            case ba.BeginBatch(who), "task":
                task_id = max(supervisor.ledger.tasks(who))
                supervisor.ask(who, DieAt(point.sends, kind, task_id))
            case ba.BeginBatch(who), "node":
                driver._hub.send_node(supervisor.home(who), point)
            case ba.Admit(), "Spark executor":
                self.kill(driver, doom.who)
            case _:
                return
        self.met.append(self._due.pop(doom.epoch))

    def _ahead(self, driver: BatchDriver) -> None:
        """Tell a node before the next batch begins: its first message there could be quicker."""
        doom = self._due.get(driver.batches.epoch + 1)
        if doom is not None and (doom.who, doom.point) == ("node", "take CommitStore"):
            supervisor = driver._supervisor
            home = supervisor.home(supervisor.executors[0])
            driver._hub.send_node(home, DieAt(False, "CommitStore"))
            self.met.append(self._due.pop(doom.epoch))

    def _later(self, driver: BatchDriver, point: str) -> bool:
        doom = self._due.get(driver.batches.epoch)
        if doom is None or point != ("left" if doom.point == "in the sink" else doom.point):
            return False
        if doom.point == "in the sink":
            self.counting.obstruct(doom.epoch - 1)
        self.met.append(self._due.pop(doom.epoch))
        self.kill(driver, doom.who)
        return True
