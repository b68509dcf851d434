"""Opening a sink so that every error in it names it."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from elasticutor.sinks.base import EpochWriter, Sink, SinkError, SinkRun, Writer

_PLAIN = (bool, int, float, str, bytes, type(None))


def open_sink(
    name: str, sink: Sink, task: int, schema: pa.Schema, run: SinkRun | None = None
) -> Writer:
    """Open a sink so that its errors name it; without a `run`, for one without a checkpoint.

    The writer is an `EpochWriter` if the sink's own is one. All that its methods raise is a
    `SinkError` with the sink's name, what was raised and where. It can be pickled, whatever the
    error behind it was.
    """
    with _named(name, "open"):
        writer: Any = sink.open_in(run or SinkRun(name), task, schema)
        if not isinstance(writer, Writer):
            raise SinkError(f"{type(sink).__name__}.open", "return a Writer", writer)
    if isinstance(writer, EpochWriter):
        return _NamedEpochs(name, writer)
    return _Named(name, writer)


class _Named(Writer):
    """Another writer, with the sink's name on all that it raises."""

    def __init__(self, name: str, writer: Writer) -> None:
        self._name = name
        self.inner = writer

    def write(self, batch: pa.RecordBatch) -> None:
        with _named(self._name, "take what it is given"):
            self.inner.write(batch)

    def flush(self) -> None:
        with _named(self._name, "flush"):
            self.inner.flush()

    def tick(self) -> None:
        with _named(self._name, "go on"):
            self.inner.tick()

    def close(self) -> None:
        with _named(self._name, "close"):
            self.inner.close()


class _NamedEpochs(_Named, EpochWriter):
    """A named writer that publishes by epochs."""

    inner: EpochWriter

    def prepare(self, epoch: int) -> Any:
        with _named(self._name, f"prepare epoch {epoch}"):
            message = self.inner.prepare(epoch)
            _require_plain(type(self.inner).__name__, message)
            return message

    def commit(self, epoch: int, message: Any) -> None:
        with _named(self._name, f"commit epoch {epoch}"):
            self.inner.commit(epoch, message)

    def abort(self) -> None:
        with _named(self._name, "give up what is not committed"):
            self.inner.abort()


def _require_plain(who: str, value: Any) -> None:
    """Refuse a message that could not travel; here its maker can still be named."""
    kind = type(value)
    if kind in (list, tuple):
        for part in value:
            _require_plain(who, part)
    elif kind is dict:
        for key, part in value.items():
            _require_plain(who, key)
            _require_plain(who, part)
    elif kind not in _PLAIN:
        must = "return numbers, text, bytes, None, and lists, tuples and dictionaries of them"
        hint = "pickle it, and return the bytes"
        raise SinkError(f"{who}.prepare", must, f"{value!r:.100}, a {kind.__qualname__}", hint)


@contextmanager
def _named(name: str, must: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        # As text, because errors of users' libraries often do not survive pickling.
        got = f"{type(error).__name__}: {error}"
        frame = traceback.extract_tb(error.__traceback__)[-1]
        hint = f"raised in {frame.name}, {Path(frame.filename).name} line {frame.lineno}"
        raise SinkError(f"sink {name!r}", must, got, hint) from error
