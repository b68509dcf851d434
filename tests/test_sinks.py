"""Sinks: what is written arrives, and what goes wrong names the sink."""

from __future__ import annotations

import pickle

import cloudpickle
import pyarrow as pa
import pytest

from elasticutor.errors import BadValueError, ElasticutorError
from elasticutor.sinks import (
    CallableSink,
    EpochMemory,
    MemorySink,
    MemoryWriter,
    NoSink,
    Sink,
    SinkError,
    SinkRun,
    Writer,
    open_sink,
)
from elasticutor.sinks.spool import Spool

SCHEMA = pa.schema([("a", pa.int64())])


def batch(*values: int) -> pa.RecordBatch:
    return pa.record_batch([pa.array(values, pa.int64())], schema=SCHEMA)


def test_a_function_is_called_with_every_batch_in_order() -> None:
    seen: list[pa.RecordBatch] = []
    writer = open_sink("out", CallableSink(seen.append), 0, SCHEMA)
    writer.write(batch(1, 2))
    writer.write(batch(3))
    writer.flush()
    writer.close()
    assert [given.to_pydict()["a"] for given in seen] == [[1, 2], [3]]


def test_an_error_of_the_function_names_the_sink_the_error_and_the_place() -> None:
    def store(given: pa.RecordBatch) -> None:
        raise KeyError("no such table")

    writer = open_sink("out", CallableSink(store), 0, SCHEMA)
    with pytest.raises(SinkError) as refused:
        writer.write(batch(1))
    text = str(refused.value)
    assert text.startswith("sink 'out' must take what it is given; got ")
    assert "KeyError: 'no such table'" in text
    assert "raised in store, test_sinks.py line" in text
    assert isinstance(refused.value.__cause__, KeyError)


def test_a_sink_error_crosses_processes_whatever_was_behind_it() -> None:
    class UnpicklableError(Exception):
        def __init__(self, one: int, two: int) -> None:
            super().__init__("three")

    def store(given: pa.RecordBatch) -> None:
        raise UnpicklableError(1, 2)

    with pytest.raises(SinkError) as refused:
        open_sink("out", CallableSink(store), 0, SCHEMA).write(batch(1))
    twin = pickle.loads(pickle.dumps(refused.value))  # noqa: S301 (our own)
    assert type(twin) is SinkError
    assert str(twin) == str(refused.value)
    assert isinstance(twin, ElasticutorError)


class Fragile(Sink):
    """Breaks in one of its methods."""

    def __init__(self, where: str) -> None:
        self.where = where

    def open(self, task: int, schema: pa.Schema) -> Writer:
        if self.where == "open":
            raise OSError("disk full")
        return FragileWriter(self.where)


class FragileWriter(Writer):
    def __init__(self, where: str) -> None:
        self.where = where

    def write(self, batch: pa.RecordBatch) -> None:
        self._break("write")

    def flush(self) -> None:
        self._break("flush")

    def close(self) -> None:
        self._break("close")

    def _break(self, here: str) -> None:
        if here == self.where:
            raise OSError("disk full")


@pytest.mark.parametrize("where", ["open", "write", "flush", "close"])
def test_errors_of_every_method_of_a_users_sink_name_it(where: str) -> None:
    with pytest.raises(SinkError, match=r"sink 'files' must .* 'OSError: disk full'"):
        use("files", Fragile(where))


def use(name: str, sink: Sink) -> None:
    writer = open_sink(name, sink, 0, SCHEMA)
    writer.write(batch(1))
    writer.flush()
    writer.close()


def test_a_sink_that_opens_no_writer_is_refused_by_name() -> None:
    class Forgetful(Sink):
        def open(self, task: int, schema: pa.Schema) -> Writer:
            return None  # type: ignore[return-value]

    with pytest.raises(SinkError, match=r"sink 'out' .*Forgetful.open must return a Writer"):
        open_sink("out", Forgetful(), 0, SCHEMA)


def test_a_memory_sink_keeps_all_in_order_and_refuses_more_without_losing_any() -> None:
    sink = cloudpickle.loads(cloudpickle.dumps(MemorySink(max_rows=3)))
    assert sink.collects
    writer = sink.open(0, SCHEMA)
    assert isinstance(writer, MemoryWriter)
    assert writer.table().schema.equals(SCHEMA)
    writer.write(batch(1, 2))
    with pytest.raises(SinkError, match=r"at most 3 rows; got 4\. Hint: raise max_rows"):
        writer.write(batch(3, 4))
    writer.write(batch(5))
    assert writer.table().column("a").to_pylist() == [1, 2, 5]


def test_no_other_sink_wants_its_batches_on_the_driver() -> None:
    assert not NoSink().collects
    assert not CallableSink(print).collects
    use("out", NoSink())


@pytest.mark.parametrize("rows", [0, -1, 1.5, "many", True])
def test_a_memory_sink_that_could_keep_nothing_is_refused(rows: int) -> None:
    with pytest.raises(BadValueError, match="max_rows must be a whole number"):
        MemorySink(max_rows=rows)


def test_what_cannot_be_called_is_no_sink() -> None:
    with pytest.raises(BadValueError, match="must be callable"):
        CallableSink("print")  # type: ignore[arg-type]


def test_a_sink_that_wants_to_know_of_the_run_is_told() -> None:
    told: list[SinkRun] = []

    class Curious(NoSink):
        def open_in(self, run: SinkRun, task: int, schema: pa.Schema) -> Writer:
            told.append(run)
            return self.open(task, schema)

    run = SinkRun("out", "run-1", "file:///checkpoint", checkpointed=True)
    open_sink("out", Curious(), 0, SCHEMA, run)
    open_sink("out", Curious(), 0, SCHEMA)
    assert told == [run, SinkRun("out")]


def test_memory_by_epochs_shows_committed_rows_in_the_order_of_their_epochs() -> None:
    memory = EpochMemory(SCHEMA, max_rows=10)
    assert memory.table().schema.equals(SCHEMA)
    memory.begin(5)
    memory.write(5, 8, batch(1))
    memory.write(5, 9, batch(2))  # of the next epoch, before this one is committed
    memory.write(5, 8, batch(3))
    assert memory.table().num_rows == 0
    memory.commit(8)
    assert memory.table().column("a").to_pylist() == [1, 3]
    assert memory.table(committed_only=False).column("a").to_pylist() == [1, 3, 2]


def test_memory_by_epochs_forgets_an_attempt_and_takes_nothing_more_of_it() -> None:
    memory = EpochMemory(SCHEMA, max_rows=3)
    memory.begin(1)
    memory.write(1, 1, batch(1))
    memory.commit(1)
    memory.write(1, 2, batch(2, 2))
    memory.begin(2)
    assert memory.rows == 1
    memory.write(1, 2, batch(2, 2))  # it was under way
    memory.write(2, 2, batch(3))
    memory.write(2, 1, batch(9))  # of an epoch that is over
    memory.begin(2)  # told once more
    memory.commit(2)
    memory.commit(1)
    assert memory.table().column("a").to_pylist() == [1, 3]
    with pytest.raises(SinkError, match="at most 3 rows; got 4"):
        memory.write(2, 3, batch(4, 5))
    assert (memory.rows, memory.epoch) == (2, 2)


@pytest.mark.parametrize("memory_bytes", [0, 20, 10_000])
def test_a_spool_gives_batches_back_in_order_from_memory_and_from_its_file(
    memory_bytes: int,
) -> None:
    spool = Spool(SCHEMA, memory_bytes)
    for start in (0, 100):
        for n in range(start, start + 10):
            spool.append(batch(n, n))
            assert spool._bytes <= memory_bytes
        assert spool.spilled is (memory_bytes < 10_000)
        assert spool.rows == 20
        found = [row for part in spool.batches() for row in part.column("a").to_pylist()]
        assert found == [n for n in range(start, start + 10) for _ in range(2)]
        spool.clear()
        assert (spool.rows, spool.spilled, list(spool.batches())) == (0, False, [])
