"""Control messages that come often or are long, in binary: measurements, and who is where.

A driver of a thousand executors reads hundreds of measurements a second, and each of those
executors reads a list of hundreds of addresses. Pickle takes an opcode for every number and name,
which the reader in Python feels (`elasticutor.transport.control`); here numbers are one `struct`,
arrays are their own bytes, and names are one text.

What does not fit in (a number of more than 64 bits, a name with a NUL) is no mistake: it travels as
any other control message does. The first byte tells the two apart.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from elasticutor.core.measure.latency import LatencyHistogram
from elasticutor.core.measure.metrics import ExecutorMetrics
from elasticutor.core.protocol.ids import NodeId, Peer, TaskId
from elasticutor.errors import BadValueError
from elasticutor.transport import messages as say
from elasticutor.transport.channels import Endpoint

_MEASURED, _SOURCE, _SINK, _PEERS = 1, 2, 3, 4
PICKLED: Final = 0x80
"""What no compact message begins with, and every pickled one does."""

_NUL: Final = "\0"
# kind; width of shard rows; numbers of shards, filled buckets and tasks; length of texts
_MEASURED_HEAD: Final = struct.Struct("<BBIIII q ddd 8q")
_TASK: Final = struct.Struct("<qdqq")
_SOURCE_HEAD: Final = struct.Struct("<BBII dqddd")
_SINK_HEAD: Final = struct.Struct("<BII dq")
_PEERS_HEAD: Final = struct.Struct("<BII")
_WIDTHS: Final[dict[int, np.dtype[Any]]] = {
    2: np.dtype("<u2"),
    4: np.dtype("<u4"),
    8: np.dtype("<i8"),
}
_BUCKET, _COUNT, _SECONDS = np.dtype("<u2"), np.dtype("<i8"), np.dtype("<f8")
_UNFIT: Final = (struct.error, UnicodeEncodeError, TypeError, OverflowError)


def pack(message: Any) -> bytes | None:
    """The message in binary; None if it has no such form, or does not fit in."""
    packer = _PACKERS.get(type(message))
    if packer is None:
        return None
    try:
        return packer(message)
    except _UNFIT:
        return None


def unpack(body: memoryview) -> Any:
    """The message that `pack` wrote.

    Raises:
        Exception: Any, if the bytes are not such a message.
    """
    return _UNPACKERS[body[0]](body)


class _Reader:
    """Takes one part of a message after the other, and refuses one that is longer or shorter."""

    def __init__(self, body: memoryview, at: int) -> None:
        self._body = body
        self._at = at

    def array(self, kind: np.dtype[Any], count: int) -> npt.NDArray[Any]:
        taken = np.frombuffer(self._body, kind, count, self._at) if count else np.empty(0, kind)
        self._at += taken.nbytes
        return taken

    def numbers(self, layout: struct.Struct, count: int) -> list[tuple[Any, ...]]:
        start, self._at = self._at, self._at + layout.size * count
        if self._at > len(self._body):
            raise BadValueError("message", f"have {self._at} bytes or more", len(self._body))
        return list(layout.iter_unpack(self._body[start : self._at]))

    def texts(self, size: int, count: int) -> list[str]:
        if self._at + size != len(self._body):
            raise BadValueError("message", f"have {self._at + size} bytes", len(self._body))
        texts = str(self._body[self._at :], "utf-8").split(_NUL) if count else []
        if len(texts) != count or (not count and size):
            raise BadValueError("names in a message", f"be {count}", len(texts))
        return texts


def _texts(texts: Sequence[str]) -> bytes:
    joined = _NUL.join(texts)
    if joined.count(_NUL) != max(0, len(texts) - 1):
        raise OverflowError  # a name has one itself
    return joined.encode()


# An executor's measurement ------------------------------------------------------------------------


def _pack_measured(message: say.Measured) -> bytes:
    metrics, tasks = message.metrics, message.tasks
    rows = metrics.shard_rows
    most = int(rows.max()) if len(rows) else 0
    width = 2 if most < 1 << 16 else 4 if most < 1 << 32 else 8
    buckets, counts = metrics.latency.filled()
    seen = tasks.values()
    texts = _texts(
        [message.run, message.who, *(one.node for one in seen), *(one.status for one in seen)]
    )
    head = _MEASURED_HEAD.pack(
        _MEASURED,
        width,
        len(rows),
        len(buckets),
        len(tasks),
        len(texts),
        message.dropped,
        metrics.seconds,
        metrics.core_seconds,
        metrics.useful_s,
        metrics.rows_arrived,
        metrics.bytes_arrived,
        metrics.rows_processed,
        metrics.rows_out,
        metrics.bytes_in,
        metrics.bytes_out,
        metrics.state_bytes,
        metrics.backlog_rows,
    )
    return b"".join(
        (
            head,
            rows.astype(_WIDTHS[width]).tobytes(),
            metrics.shard_seconds.astype(_SECONDS, copy=False).tobytes(),
            *_latency_bytes(buckets, counts),
            *(_TASK.pack(task, one.load, one.shards, one.pid) for task, one in tasks.items()),
            texts,
        )
    )


def _unpack_measured(body: memoryview) -> say.Measured:
    head = _MEASURED_HEAD.unpack_from(body)
    _, width, shards, buckets, tasks, size, dropped, seconds, core_seconds, useful_s = head[:10]
    reader = _Reader(body, _MEASURED_HEAD.size)
    metrics = ExecutorMetrics(
        seconds=seconds,
        core_seconds=core_seconds,
        useful_s=useful_s,
        rows_arrived=head[10],
        bytes_arrived=head[11],
        rows_processed=head[12],
        rows_out=head[13],
        bytes_in=head[14],
        bytes_out=head[15],
        state_bytes=head[16],
        backlog_rows=head[17],
        shard_rows=reader.array(_WIDTHS[width], shards),
        shard_seconds=reader.array(_SECONDS, shards),
        latency=_latency(reader, buckets),
    )
    numbers = reader.numbers(_TASK, tasks)
    run, who, *rest = reader.texts(size, 2 + 2 * tasks)
    seen = {
        TaskId(task): say.TaskSeen(NodeId(node), status, load, count, pid)
        for (task, load, count, pid), node, status in zip(
            numbers, rest[:tasks], rest[tasks:], strict=True
        )
    }
    return say.Measured(run, Peer(who), metrics, seen, dropped)


def _latency_bytes(
    buckets: npt.NDArray[np.intp], counts: npt.NDArray[np.int64]
) -> tuple[bytes, bytes]:
    return buckets.astype(_BUCKET).tobytes(), counts.astype(_COUNT, copy=False).tobytes()


def _latency(reader: _Reader, buckets: int) -> LatencyHistogram:
    return LatencyHistogram.of_filled(reader.array(_BUCKET, buckets), reader.array(_COUNT, buckets))


# A source's, and a sink's -------------------------------------------------------------------------


def _pack_source(message: say.SourceMeasured) -> bytes:
    routed = message.routed
    texts = _texts([message.run, message.who, *routed])
    head = _SOURCE_HEAD.pack(
        _SOURCE,
        message.rate is not None,
        len(routed),
        len(texts),
        message.seconds,
        message.rows,
        message.blocked_share,
        message.behind_s,
        0.0 if message.rate is None else message.rate,
    )
    return head + np.array([*routed.values()], _COUNT).tobytes() + texts


def _unpack_source(body: memoryview) -> say.SourceMeasured:
    _, rated, count, size, seconds, rows, blocked, behind, rate = _SOURCE_HEAD.unpack_from(body)
    reader = _Reader(body, _SOURCE_HEAD.size)
    counts = reader.array(_COUNT, count).tolist()
    run, who, *peers = reader.texts(size, 2 + count)
    routed = dict(zip(map(Peer, peers), counts, strict=True))
    known = rate if rated else None
    return say.SourceMeasured(run, Peer(who), seconds, rows, blocked, behind, known, routed)


def _pack_sink(message: say.SinkMeasured) -> bytes:
    buckets, counts = message.latency.filled()
    texts = _texts([message.run, message.who])
    head = _SINK_HEAD.pack(_SINK, len(buckets), len(texts), message.seconds, message.rows)
    return b"".join((head, *_latency_bytes(buckets, counts), texts))


def _unpack_sink(body: memoryview) -> say.SinkMeasured:
    _, buckets, size, seconds, rows = _SINK_HEAD.unpack_from(body)
    reader = _Reader(body, _SINK_HEAD.size)
    latency = _latency(reader, buckets)
    run, who = reader.texts(size, 2)
    return say.SinkMeasured(run, Peer(who), seconds, rows, latency)


# Who is where -------------------------------------------------------------------------------------


def _pack_peers(message: say.Peers) -> bytes:
    where = message.book.values()
    columns = (
        message.book,
        (endpoint.node for endpoint in where),
        (endpoint.ipc for endpoint in where),
        (endpoint.tcp for endpoint in where),
    )
    texts = _texts([text for column in columns for text in column])
    return _PEERS_HEAD.pack(_PEERS, len(message.book), len(texts)) + texts


def _unpack_peers(body: memoryview) -> say.Peers:
    _, count, size = _PEERS_HEAD.unpack_from(body)
    texts = _Reader(body, _PEERS_HEAD.size).texts(size, 4 * count)
    columns = (texts[start : start + count] for start in range(0, 4 * count, max(1, count)))
    rows = zip(*columns, strict=True)
    return say.Peers({name: Endpoint(node, ipc, tcp) for name, node, ipc, tcp in rows})


_PACKERS: Final[dict[type, Callable[[Any], bytes]]] = {
    say.Measured: _pack_measured,
    say.SourceMeasured: _pack_source,
    say.SinkMeasured: _pack_sink,
    say.Peers: _pack_peers,
}
_UNPACKERS: Final[dict[int, Callable[[memoryview], Any]]] = {
    _MEASURED: _unpack_measured,
    _SOURCE: _unpack_source,
    _SINK: _unpack_sink,
    _PEERS: _unpack_peers,
}
