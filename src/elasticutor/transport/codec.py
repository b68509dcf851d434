"""Encode and decode messages between processes as frames.

The messages of the data path (tuples, credits, chunks, results) have binary headers and carry
Arrow, or, if they have few tuples, are MessagePack as a whole (`transport.row_packets`); a label
or a marker travels behind them on the same socket. Everything else is one of the dataclasses of
`core.protocol` or `transport.messages`, as MessagePack (`transport.control`).

Only messages of authenticated peers arrive here. Even so, one that does not decode is refused with
`WireError`, whatever its bytes, and takes memory in proportion to its size: the receiver counts it,
logs it and goes on (`Mailbox`). The Arrow in it is checked when it is opened
(`transport.packets.open_batch`).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Annotated, Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from elasticutor.core.protocol.events import Output
from elasticutor.core.protocol.ids import Attempt, ChunkId, Epoch, Peer, TaskId
from elasticutor.errors import BadValueError
from elasticutor.transport import control
from elasticutor.transport.packets import NO_HASHES, Births, Buffer, Packet
from elasticutor.transport.row_packets import Int64, RowPacket

Frames = list[Buffer]

MAGIC: Final = 0xE1
VERSION: Final = 1
MOST_OUTPUTS: Final = 65_536
MOST_ROWS: Final = 2**31 - 1
"""Of a packet; so that no sum of theirs overflows."""
_LONGEST_REASON: Final = 300  # a message may be long, and what is wrong with it goes to a log
_HEAD = struct.Struct("<BBB")
_CREDIT = struct.Struct("<qq")
_TUPLES = struct.Struct("<qqq")
_CHUNK = struct.Struct("<qqqq")
_RESULT = struct.Struct("<qqqqdq")
_OUTPUT = struct.Struct("<qq")
_BIRTH = struct.Struct("<qq")
_NATURAL = msgspec.Meta(ge=0, le=2**63 - 1)


class WireError(BadValueError):
    """Frames that are no message."""


class Kind(IntEnum):
    """The third byte of every message."""

    CONTROL = 0
    TUPLES = 1
    CREDIT = 2
    CHUNK = 3
    RESULT = 4
    ROWS = 5
    """Few tuples: which of their messages it is stands in its tag."""


class Tuples(msgspec.Struct, eq=False):
    """Tuples from an upstream to an executor or a sink."""

    sender: Peer
    attempt: Attempt
    size: int
    packet: Packet


class RowTuples(msgspec.Struct, tag=1, array_like=True, forbid_unknown_fields=True, eq=False):
    """Few tuples from an upstream to an executor or a sink, each packed by itself."""

    sender: Peer
    attempt: Annotated[Attempt, _NATURAL]
    size: Annotated[int, _NATURAL]
    packet: RowPacket


def tuples(
    sender: Peer, attempt: Attempt, size: int, packet: Packet | RowPacket
) -> Tuples | RowTuples:
    """A packet on its way from an upstream, in the message of its kind."""
    if type(packet) is RowPacket:
        return RowTuples(sender, attempt, size, packet)
    assert type(packet) is Packet  # there are these two
    return Tuples(sender, attempt, size, packet)


@dataclass(frozen=True, slots=True)
class Credit:
    """What the sender of this lets the other side send, in bytes from the attempt's start."""

    sender: Peer
    attempt: Attempt
    total: int


class Chunk(msgspec.Struct, eq=False):
    """Tuples handed to a task, as a batch."""

    attempt: Attempt
    epoch: Epoch
    chunk: ChunkId
    rows: int
    births: Births
    shards: npt.NDArray[np.int32]
    data: Buffer


class RowChunk(msgspec.Struct, tag=2, array_like=True, forbid_unknown_fields=True, eq=False):
    """Few tuples handed to a task, each packed by itself."""

    attempt: Annotated[Attempt, _NATURAL]
    epoch: Annotated[Epoch, _NATURAL]
    chunk: Annotated[ChunkId, _NATURAL]
    born_us: list[Int64]
    shards: list[Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]]
    packed: list[bytes]


class Result(msgspec.Struct, eq=False):
    """What came of a chunk, or of the first rows that were left of it; outputs are batches."""

    task: TaskId
    attempt: Attempt
    chunk: ChunkId
    useful_s: float
    row_seconds: npt.NDArray[np.float64] | list[float] | None
    outputs: Sequence[Output]
    rows: int = 0
    """How many rows, if others are still left; 0: all."""


class RowOutput(Output, array_like=True, forbid_unknown_fields=True):
    """Few outputs of a chunk for one destination, each packed by itself."""

    destination: Peer
    batch: RowPacket
    size: Annotated[int, _NATURAL]
    rows: int


class RowResult(msgspec.Struct, tag=3, array_like=True, forbid_unknown_fields=True, eq=False):
    """As `Result`, of a chunk with few outputs."""

    task: Annotated[TaskId, _NATURAL]
    attempt: Annotated[Attempt, _NATURAL]
    chunk: Annotated[ChunkId, _NATURAL]
    useful_s: float
    row_seconds: list[float] | None
    outputs: Sequence[RowOutput]
    rows: Annotated[int, _NATURAL]


def encode(message: Any) -> Frames:
    """The frames of a message.

    Arrays may be slices of others, or have another type of integer: they are copied then, and only
    then.

    Example:
        >>> decode(encode(Credit(Peer("counts.0"), Attempt(1), 4096)))
        Credit(sender='counts.0', attempt=1, total=4096)
    """
    encoder = _ENCODERS.get(type(message))
    if encoder is not None:
        return encoder(message)
    try:
        return [_head(Kind.CONTROL) + control.dumps(message)]
    except BadValueError as error:
        raise WireError(error.who, error.must, error.got, error.hint) from error


def decode(frames: Sequence[Buffer]) -> Any:
    """The message of some frames."""
    try:
        first = memoryview(frames[0])
        if len(frames) == 1 and first[: _HEAD.size] == _ROWS_HEAD:
            return _whole(_unpack(first[_HEAD.size :]))
        views = [memoryview(frame) for frame in frames]
        magic, version, kind = _HEAD.unpack_from(views[0])
        if magic != MAGIC or version != VERSION:
            raise WireError("message", f"begin with {MAGIC:#x} {VERSION}", f"{magic:#x} {version}")
        return _DECODERS[kind](views)
    except WireError:
        raise
    except Exception as error:  # whatever the bytes lead to: it was no message
        what = f"{type(error).__name__}: {error}"[:_LONGEST_REASON]
        raise WireError("message", "be one of ours", what) from error


def _head(kind: Kind) -> bytes:
    return _HEADS[kind]


_HEADS = {kind: _HEAD.pack(MAGIC, VERSION, kind) for kind in Kind}


def _require(condition: bool, what: str) -> None:
    if not condition:
        raise WireError("message", "fit together", what)


# Packets ------------------------------------------------------------------------------------------


def _packet_frames(packet: Packet) -> Frames:
    hashes = np.ascontiguousarray(packet.hashes, np.uint64)
    return [np.ascontiguousarray(packet.births, np.int64), hashes, packet.data]


def _packet(views: Sequence[memoryview], rows: int) -> Packet:
    births_view, hashes_view, data = views
    hashes = np.frombuffer(hashes_view, np.uint64) if hashes_view.nbytes else NO_HASHES
    _require(len(hashes) in (0, rows), f"{rows} rows, {len(hashes)} hashes")
    return Packet(data, rows, _births(births_view, rows), hashes)


def _births(view: memoryview, rows: int) -> Births:
    if view.nbytes == _BIRTH.size:  # by far the most common, and by far cheaper
        _require(0 <= rows <= MOST_ROWS and _BIRTH.unpack(view)[1] == rows, f"{rows} rows")
        return np.frombuffer(view, np.int64).reshape(1, 2)
    births = np.frombuffer(view, np.int64) if view.nbytes else np.empty(0, np.int64)
    births = births.reshape(-1, 2)
    counts = births[:, 1]
    _require(0 <= rows <= MOST_ROWS, f"{rows} rows")
    fit = not len(counts) or (counts.min() >= 0 and counts.max() <= rows)
    _require(bool(fit) and int(counts.sum()) == rows, f"{rows} rows, other births")
    return births


def _tail(head: memoryview, start: int) -> Peer:
    return Peer(bytes(head[start:]).decode())


# Tuples and credits -------------------------------------------------------------------------------


def _encode_tuples(message: Tuples) -> Frames:
    packet = message.packet
    head = _head(Kind.TUPLES) + _TUPLES.pack(message.attempt, packet.rows, message.size)
    return [head + message.sender.encode(), *_packet_frames(packet)]


def _decode_tuples(views: Sequence[memoryview]) -> Tuples:
    head, *packet = views
    attempt, rows, size = _TUPLES.unpack_from(head, _HEAD.size)
    _require(size >= 0 and len(packet) == 3, "tuples without a packet")
    sender = _tail(head, _HEAD.size + _TUPLES.size)
    return Tuples(sender, Attempt(attempt), size, _packet(packet, rows))


def _encode_credit(message: Credit) -> Frames:
    head = _head(Kind.CREDIT) + _CREDIT.pack(message.attempt, message.total)
    return [head + message.sender.encode()]


def _decode_credit(views: Sequence[memoryview]) -> Credit:
    (head,) = views
    attempt, total = _CREDIT.unpack_from(head, _HEAD.size)
    return Credit(_tail(head, _HEAD.size + _CREDIT.size), Attempt(attempt), total)


# Chunks and results -------------------------------------------------------------------------------


def _encode_chunk(message: Chunk) -> Frames:
    head = _CHUNK.pack(message.attempt, message.epoch, message.chunk, message.rows)
    births = np.ascontiguousarray(message.births, np.int64)
    shards = np.ascontiguousarray(message.shards, np.int32)
    return [_head(Kind.CHUNK) + head, births, shards, message.data]


def _decode_chunk(views: Sequence[memoryview]) -> Chunk:
    head, births_view, shards_view, data = views
    attempt, epoch, chunk, rows = _CHUNK.unpack(head[_HEAD.size :])
    shards = np.frombuffer(shards_view, np.int32)
    _require(len(shards) == rows > 0, f"{rows} rows, {len(shards)} shards")
    births = _births(births_view, rows)
    return Chunk(Attempt(attempt), Epoch(epoch), ChunkId(chunk), rows, births, shards, data)


def _encode_result(message: Result) -> Frames:
    head = _RESULT.pack(
        message.task,
        message.attempt,
        message.chunk,
        message.rows,
        message.useful_s,
        len(message.outputs),
    )
    frames: Frames = [_head(Kind.RESULT) + head, b""]
    if message.row_seconds is not None:
        frames[1] = np.ascontiguousarray(message.row_seconds, np.float64)
    for output in message.outputs:
        numbers = _OUTPUT.pack(output.rows, output.size)
        frames.append(numbers + output.destination.encode())
        frames += _packet_frames(output.batch)
    return frames


def _decode_result(views: Sequence[memoryview]) -> Result:
    head, seconds, *rest = views
    task, attempt, chunk, rows, useful_s, outputs = _RESULT.unpack(head[_HEAD.size :])
    _require(0 <= outputs <= MOST_OUTPUTS and len(rest) == 4 * outputs, f"{outputs} outputs")
    return Result(
        TaskId(task),
        Attempt(attempt),
        ChunkId(chunk),
        useful_s,
        np.frombuffer(seconds, np.float64) if seconds.nbytes else None,
        [_output(rest[4 * number : 4 * number + 4]) for number in range(outputs)],
        rows,
    )


def _output(views: Sequence[memoryview]) -> Output:
    head, *packet = views
    rows, size = _OUTPUT.unpack_from(head)
    _require(size >= 0, "an output of negative size")
    return Output(_tail(head, _OUTPUT.size), _packet(packet, rows), size, rows)


# Few tuples ---------------------------------------------------------------------------------------
# The structs travel as they are: they are written, read, checked and made without a call of Python.
# In a process that has just woken up that takes half as long as a decoder in Python.

_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder(RowTuples | RowChunk | RowResult).decode
_ROWS_HEAD = _HEADS[Kind.ROWS]


def _encode_rows(message: RowTuples | RowChunk | RowResult) -> Frames:
    return [_ROWS_HEAD + _pack(message)]


def _whole(message: RowTuples | RowChunk | RowResult) -> RowTuples | RowChunk | RowResult:
    """The message, if its lists are of one length."""
    if type(message) is RowTuples:
        _require_whole(message.packet)
    elif type(message) is RowChunk:
        rows = len(message.packed)
        _require(len(message.born_us) == len(message.shards) == rows > 0, f"{rows} packed rows")
    else:
        assert type(message) is RowResult  # there are these three
        for output in message.outputs:
            _require(output.rows == len(output.batch.packed), f"{output.rows} rows of an output")
            _require_whole(output.batch)
    return message


def _require_whole(packet: RowPacket) -> None:
    rows, hashes = len(packet.packed), packet.hashes
    if not len(packet.born_us) == rows > 0 or (hashes and len(hashes) != rows):
        raise WireError("message", "fit together", f"{rows} packed rows")


# Everything else ----------------------------------------------------------------------------------


def _decode_control(views: Sequence[memoryview]) -> Any:
    (whole,) = views
    return control.loads(whole[_HEAD.size :])


_ENCODERS: dict[type, Callable[[Any], Frames]] = {
    Tuples: _encode_tuples,
    Credit: _encode_credit,
    Chunk: _encode_chunk,
    Result: _encode_result,
    RowTuples: _encode_rows,
    RowChunk: _encode_rows,
    RowResult: _encode_rows,
}
_DECODERS: dict[int, Callable[[Sequence[memoryview]], Any]] = {
    Kind.CONTROL: _decode_control,
    Kind.TUPLES: _decode_tuples,
    Kind.CREDIT: _decode_credit,
    Kind.CHUNK: _decode_chunk,
    Kind.RESULT: _decode_result,
}
