"""A task's process: rows and batches come to the same, for operators of either kind."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import cloudpickle
import numpy as np
import pyarrow as pa
import pytest
from tests.process.sink_rig import Mail

from elasticutor.core.protocol import instructions as do
from elasticutor.core.protocol.ids import (
    Attempt,
    ChunkId,
    Epoch,
    MoveId,
    NodeId,
    Peer,
    ShardId,
    TaskId,
)
from elasticutor.lab.bench.work import COUNTS_AND_SUMS, CountAndSum, CountAndSumBatch
from elasticutor.operator import Operator
from elasticutor.process.specs import OperatorSpec, Route, Site, TaskSpec
from elasticutor.process.task import TaskProcess
from elasticutor.state.levels import Levels
from elasticutor.state.lmdb_backend import LmdbBackend
from elasticutor.transport.codec import Chunk, Result, RowChunk, RowResult
from elasticutor.transport.packets import Packet, born_at
from elasticutor.transport.row_packets import RowFormat

SCHEMA = pa.schema([("key", pa.int64()), ("time", pa.int64())])
ROWS = [(7, 1), (3, 10), (7, 100)]
BORN_US = [1_000_000, 1_000_200, 1_000_400]
SHARDS = [5, 2, 5]


class QuietMail(Mail):
    """Nobody sends anything while a chunk is under way, and all is sent at once."""

    def receive(self) -> Iterator[Any]:
        return iter(())

    def gather(self) -> None:
        pass

    def send_gathered(self) -> None:
        pass


class TaskRig:
    """A task's process, without a process."""

    def __init__(
        self,
        operator: Operator,
        folder: Path,
        columns: tuple[str, ...] | None = None,
        output: pa.Schema = COUNTS_AND_SUMS,
    ) -> None:
        with LmdbBackend.create(str(folder), map_size=2**24) as backend:
            Levels.create(backend, attempt=Attempt(1), committed=Epoch(0))
        none = cast("Any", None)
        spec = TaskSpec(
            Site("run-1", NodeId("n0"), "", "", none, none),
            Peer("count.0"),
            0,
            TaskId(0),
            OperatorSpec(
                "count",
                cloudpickle.dumps(operator),
                ("key",),
                SCHEMA,
                output,
                (Route("out", (), (Peer("out"),), columns=columns),),
            ),
            none,
            str(folder),
        )
        self.mail = QuietMail()
        self.process = TaskProcess(spec, cast("Any", self.mail))
        self.take(do.ResetTask(TaskId(0), Attempt(1)))
        self.mail.sent.clear()

    def take(self, message: Any) -> None:
        self.process.take(message)
        self.process.work()

    def take_rows(self, rows: list[Any], chunk: int = 0) -> None:
        packed = [cast("bytes", ROW_FORMAT.pack(row)) for row in rows]
        ids = Attempt(1), Epoch(1), ChunkId(chunk)
        self.take(RowChunk(*ids, BORN_US[: len(rows)], SHARDS[: len(rows)], packed))

    def take_batch(self, rows: list[Any]) -> None:
        batch = pa.RecordBatch.from_pylist([dict(zip(SCHEMA.names, r, strict=True)) for r in rows])
        births = born_at(np.array(BORN_US, np.int64))
        shards = np.array(SHARDS, np.int32)
        ids = Attempt(1), Epoch(1), ChunkId(0), len(rows)
        self.take(Chunk(*ids, births, shards, Packet.of(batch, births).data))

    def answer(self) -> Any:
        ((_, answer),) = self.mail.sent
        return answer

    def close(self) -> None:
        self.process._cache._store._backend.close()  # type: ignore[attr-defined]


ROW_FORMAT = cast("RowFormat", RowFormat.of(SCHEMA))


@pytest.fixture(params=[CountAndSum, CountAndSumBatch], ids=["record", "vectorised"])
def rig(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[TaskRig]:
    rig = TaskRig(request.param(), tmp_path)
    yield rig
    rig.close()


@pytest.mark.parametrize("travels", ["rows", "batch"])
def test_few_tuples_give_few_outputs_as_rows_each_with_its_birth(
    rig: TaskRig, travels: str
) -> None:
    rig.take_rows(ROWS) if travels == "rows" else rig.take_batch(ROWS)
    answer = rig.answer()
    assert isinstance(answer, RowResult)
    (output,) = answer.outputs
    assert output.destination == "out"
    assert output.batch.born_us == BORN_US
    rows = [tuple(row.values()) for row in output.batch.open(COUNTS_AND_SUMS).to_pylist()]
    assert rows == [(7, 1, 1), (3, 1, 10), (7, 2, 101)]


def test_a_row_that_is_none_is_dropped_and_said(rig: TaskRig) -> None:
    ids = Attempt(1), Epoch(1), ChunkId(0)
    rig.take(RowChunk(*ids, BORN_US[:1], SHARDS[:1], [b"\xc0"]))
    assert not rig.mail.sent
    assert "row" in rig.mail.dropped[0]


def test_many_outputs_travel_as_a_batch(tmp_path: Path) -> None:
    class Many(CountAndSum):
        def process(self, key: Any, row: Any, state: Any) -> Any:
            return [(key, at, 0) for at in range(40)]

    rig = TaskRig(Many(), tmp_path)
    rig.take_batch(ROWS)
    answer = rig.answer()
    assert isinstance(answer, Result)
    (output,) = answer.outputs
    assert output.batch.rows == 120
    rig.close()


@pytest.mark.parametrize("travels", ["rows", "batch"])
@pytest.mark.parametrize("operator", [CountAndSum, CountAndSumBatch])
def test_outputs_have_the_columns_that_their_destination_takes(
    operator: type[Operator], travels: str, tmp_path: Path
) -> None:
    first, _, last = COUNTS_AND_SUMS.names
    rig = TaskRig(operator(), tmp_path, (first, last))
    rig.take_rows(ROWS) if travels == "rows" else rig.take_batch(ROWS)
    answer = rig.answer()
    assert isinstance(answer, RowResult)
    (output,) = answer.outputs
    taken = pa.schema([COUNTS_AND_SUMS.field(first), COUNTS_AND_SUMS.field(last)])
    rows = [tuple(row.values()) for row in output.batch.open(taken).to_pylist()]
    assert rows == [(7, 1), (3, 10), (7, 101)]
    rig.close()


def test_few_outputs_travel_as_rows_whatever_is_in_a_column_that_nobody_takes(
    tmp_path: Path,
) -> None:
    class Listed(Operator):
        output = pa.schema([("n", pa.int64()), ("all", pa.list_(pa.int64()))])

        def process_batch(self, batch: Any, state: Any) -> Any:
            everything = pa.array([batch["time"].to_pylist()] * batch.num_rows)
            return pa.RecordBatch.from_arrays([batch["time"], everything], schema=self.output)

    rig = TaskRig(Listed(), tmp_path, ("n",), Listed.output)
    rig.take_batch(ROWS)
    answer = rig.answer()
    assert isinstance(answer, RowResult)
    (output,) = answer.outputs
    assert output.batch.open(pa.schema([("n", pa.int64())]))["n"].to_pylist() == [1, 10, 100]
    rig.close()


def test_tuples_that_a_label_takes_back_are_left_out_of_a_chunk_of_rows(rig: TaskRig) -> None:
    packed = [cast("bytes", ROW_FORMAT.pack(row)) for row in ROWS]
    chunk = RowChunk(Attempt(1), Epoch(1), ChunkId(0), BORN_US, SHARDS, packed)
    rig.process.take(chunk)
    rig.process.take(do.SendLabel(TaskId(0), MoveId(4), ShardId(5)))
    rig.process.work()
    (_, reached), (_, answer) = rig.mail.sent
    assert (reached.move, reached.returned) == (4, 2)
    (output,) = answer.outputs
    assert output.batch.born_us == [BORN_US[1]]
    rows = [tuple(row.values()) for row in output.batch.open(COUNTS_AND_SUMS).to_pylist()]
    assert rows == [(3, 1, 10)]


def test_times_of_many_tuples_with_few_outputs_stay_an_array(tmp_path: Path) -> None:
    class Silent(CountAndSum):
        def process(self, key: Any, row: Any, state: Any) -> Any:
            return None

    rig = TaskRig(Silent(), tmp_path)
    rows = 40
    batch = pa.record_batch([range(rows), range(rows)], schema=SCHEMA)
    births = born_at(np.zeros(rows, np.int64))
    ids = Attempt(1), Epoch(1), ChunkId(0), rows
    rig.take(Chunk(*ids, births, np.zeros(rows, np.int32), Packet.of(batch, births).data))
    answer = rig.answer()
    assert isinstance(answer, Result)
    assert isinstance(answer.row_seconds, np.ndarray)
    rig.close()


def test_a_chunk_of_rows_for_an_operator_of_other_columns_is_dropped(rig: TaskRig) -> None:
    rig.process._row_format = None
    rig.take_rows(ROWS)
    assert not rig.mail.sent
    assert rig.mail.dropped
