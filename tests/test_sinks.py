"""Sinks: what is written arrives, and what goes wrong names the sink."""

from __future__ import annotations

import pickle

import cloudpickle
import pyarrow as pa
import pytest

from elasticutor.errors import BadValueError, ElasticutorError
from elasticutor.sinks import (
    CallableSink,
    MemorySink,
    MemoryWriter,
    NoSink,
    Sink,
    SinkError,
    Writer,
    open_sink,
)

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
