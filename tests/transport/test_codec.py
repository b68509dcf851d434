"""Messages as frames: every kind comes back as it was, and no bytes lead to anything else."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest
import zmq
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tests.transport.wire_rig import as_shipped, control_head, controls, integers, same

from elasticutor.core.protocol.events import Output
from elasticutor.core.protocol.ids import Attempt, Peer
from elasticutor.transport import control
from elasticutor.transport.codec import (
    MOST_ROWS,
    Chunk,
    Credit,
    Kind,
    Result,
    RowChunk,
    RowOutput,
    RowResult,
    RowTuples,
    Tuples,
    WireError,
    decode,
    encode,
)
from elasticutor.transport.packets import NO_HASHES, Packet, born
from elasticutor.transport.row_packets import RowPacket

# Messages of every kind ---------------------------------------------------------------------------

peers = st.text(max_size=12).map(Peer)


@st.composite
def births_of(draw: st.DrawFn, rows: int) -> Any:
    """The births of so many rows, as a view into something larger."""
    cuts = sorted(draw(st.lists(st.integers(0, rows), max_size=4)))
    counts = np.diff([0, *cuts, rows])
    whole = np.zeros((len(counts), 4), np.int64)
    whole[:, 1] = draw(st.integers(0, 2**60))
    whole[:, 3] = counts
    return whole[:, 1::2]


@st.composite
def packets(draw: st.DrawFn, least: int = 0) -> Packet:
    rows = draw(st.integers(least, 6))
    batch = pa.record_batch({"n": pa.array(range(rows), pa.int64()), "t": pa.array(["é"] * rows)})
    hashes = np.arange(rows * 3, dtype=np.uint64)[::3] if draw(st.booleans()) else NO_HASHES
    return Packet.of(batch, draw(births_of(rows)), hashes)


positive = st.integers(0, 2**63 - 1)


@st.composite
def row_packets(draw: st.DrawFn) -> RowPacket:
    packed = draw(st.lists(st.binary(max_size=9), min_size=1, max_size=5))
    hashes = [draw(st.integers(0, 2**64 - 1)) for _ in packed] if draw(st.booleans()) else []
    return RowPacket([draw(integers) for _ in packed], hashes, packed)


@st.composite
def row_chunks(draw: st.DrawFn) -> RowChunk:
    packet = draw(row_packets())
    shards = [draw(st.integers(0, 2**31 - 1)) for _ in packet.packed]
    ids: Any = [draw(positive) for _ in range(3)]
    made: Any = RowChunk
    chunk: RowChunk = made(*ids, packet.born_us, shards, packet.packed)
    return chunk


@st.composite
def row_outputs(draw: st.DrawFn) -> RowOutput:
    packet = draw(row_packets())
    return RowOutput(draw(peers), packet, draw(positive), packet.rows)


tuples = st.builds(Tuples, peers, integers, st.integers(0, 2**62), packets())
row_tuples = st.builds(RowTuples, peers, positive, positive, row_packets())
row_results = st.builds(
    RowResult,
    positive,
    positive,
    positive,
    st.floats(0, 1e9),
    st.none() | st.lists(st.floats(0, 1e9), min_size=1, max_size=4),
    st.lists(row_outputs(), max_size=3),
    positive,
)
grants = st.builds(Credit, peers, integers, integers)


@st.composite
def chunks(draw: st.DrawFn) -> Chunk:
    packet = draw(packets(least=1))
    shards = np.arange(packet.rows * 2, dtype=np.int64)[::2]  # neither its type nor in one piece
    made: Any = Chunk
    ids = [draw(integers) for _ in range(3)]
    chunk: Chunk = made(*ids, packet.rows, packet.births, shards, packet.data)
    return chunk


@st.composite
def outputs_of(draw: st.DrawFn) -> Output:
    packet = draw(packets())
    return Output(draw(peers), packet, draw(st.integers(0, 2**62)), packet.rows)


results = st.builds(
    Result,
    integers,
    integers,
    integers,
    st.floats(0, 1e9),
    st.none() | st.integers(1, 5).map(lambda rows: np.linspace(0, 1, rows * 2)[::2]),
    st.lists(outputs_of(), max_size=3),
)
row_messages = row_tuples | row_chunks() | row_results
data_messages = tuples | grants | chunks() | results | row_messages
any_message = data_messages | controls


# Round trips --------------------------------------------------------------------------------------


@settings(max_examples=60)
@given(tuples | grants)
def test_tuples_and_credits_come_back_as_they_were(message: Any) -> None:
    assert same(message, decode(as_shipped(encode(message))))


@settings(max_examples=100)
@given(row_messages)
def test_messages_of_few_tuples_come_back_as_they_were_in_one_frame(message: Any) -> None:
    frames = encode(message)
    assert len(frames) == 1
    assert same(message, decode(as_shipped(frames)))


@settings(max_examples=60)
@given(chunks())
def test_a_chunk_comes_back_with_shards_of_32_bits_whatever_they_were(message: Chunk) -> None:
    back = decode(as_shipped(encode(message)))
    assert back.shards.dtype == np.int32
    assert back.shards.tolist() == message.shards.tolist()
    message.shards = back.shards
    assert same(message, back)


@settings(max_examples=60)
@given(results)
def test_a_result_comes_back_with_all_its_outputs(message: Result) -> None:
    assert same(message, decode(as_shipped(encode(message))))


@pytest.fixture(scope="module")
def wire() -> Iterator[Callable[[list[Any]], list[Any]]]:
    """Sends frames through a pair of real sockets; large ones without a copy."""
    with zmq.Context() as context:
        one, other = context.socket(zmq.PAIR), context.socket(zmq.PAIR)
        one.bind("inproc://wire")
        other.connect("inproc://wire")
        one.copy_threshold = 0

        def ship(frames: list[Any]) -> list[Any]:
            one.send_multipart(frames, copy=False)
            assert other.poll(20_000)
            return other.recv_multipart(copy=False)

        yield ship
        one.close(0)
        other.close(0)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(message=any_message)
def test_a_message_survives_real_sockets_that_copy_nothing(
    wire: Callable[[list[Any]], list[Any]], message: Any
) -> None:
    back = decode(wire(encode(message)))
    if isinstance(message, Chunk):
        message.shards = message.shards.astype(np.int32)
    assert same(message, back)


def test_arrays_in_one_piece_are_sent_without_a_copy() -> None:
    births, hashes = born(1.0, 3), np.arange(3, dtype=np.uint64)
    _, *frames = encode(Tuples(Peer("a"), Attempt(1), 9, Packet(b"data", 3, births, hashes)))
    assert np.shares_memory(frames[0], births)
    assert np.shares_memory(frames[1], hashes)
    assert frames[2] == b"data"


def head(kind: Kind, layout: str, *numbers: float, name: bytes = b"") -> bytes:
    return bytes([0xE1, 1, kind]) + struct.pack("<" + layout, *numbers) + name


def rows(tag: int, *fields: Any) -> bytes:
    """A message of few tuples, as the codec writes one."""
    return head(Kind.ROWS, "") + msgspec.msgpack.encode([tag, *fields])


def pairs(*births: tuple[int, int]) -> bytes:
    return np.array(births, np.int64).tobytes()


WHOLE = 2**63 - 1


@pytest.mark.parametrize(
    "frames",
    [
        [],
        [b""],
        [b"\xe1"],
        [bytes([0xE1, 2, 2]) + bytes(16)],
        [bytes([0xE0, 1, 2]) + bytes(16)],
        [bytes([0xE1, 1, 9])],
        [head(Kind.CREDIT, "qq", 1, 2, name=b"\xff")],
        [head(Kind.CREDIT, "qq", 1, 2, name=b"a"), b""],
        [head(Kind.TUPLES, "qqq", 1, 1, 5), pairs((0, 1)), b"", b"", b""],
        [head(Kind.TUPLES, "qqq", 1, 1, -5), pairs((0, 1)), b"", b""],
        [head(Kind.TUPLES, "qqq", 1, -1, 5), pairs((0, -1)), b"", b""],
        [head(Kind.TUPLES, "qqq", 1, 1, 5), pairs((0, 2)), b"", b""],
        [head(Kind.TUPLES, "qqq", 1, 1, 5), pairs((0, 2), (0, -1)), b"", b""],
        [head(Kind.TUPLES, "qqq", 1, 1, 5), pairs((0, WHOLE), (0, WHOLE), (0, 3)), b"", b""],
        [head(Kind.TUPLES, "qqq", 1, 2, 5), pairs((0, 2), (0, 1), (0, -1)), b"", b""],
        [head(Kind.TUPLES, "qqq", 1, 2, 5), pairs((0, 2)), bytes(8), b""],
        [head(Kind.TUPLES, "qqq", 1, 1, 5), pairs((0, 1))[1:], b"", b""],
        [head(Kind.TUPLES, "qqq", 1, MOST_ROWS + 1, 5), pairs((0, MOST_ROWS + 1)), b"", b""],
        [rows(1, "s", 1, 9, [[0], [], [b"a"], []])],
        [rows(1, "s", 1, 9, [[0], [], [b"a"]], 7)],
        [rows(1, "s", 1, 9, [[], [], []])],
        [rows(1, "s", 1, 9, [[0], [5, 5], [b"a"]])],
        [rows(1, "s", 1, -9, [[0], [], [b"a"]])],
        [rows(2, 1, 1, 1, [0], [5, 5], [b"a"])],
        [rows(2, 1, 1, 1, [0], [-5], [b"a"])],
        [rows(3, 1, 1, 1, 0.5, None, [["out", [[0], [], [b"a"]], 9, 2]], 0)],
        [rows(4, 1, 1, 1)],
        [rows(1, "s", 1, 9, [[0], [], [b"a"]]), b""],
        [head(Kind.CHUNK, "qqqq", 1, 1, 1, 0), b"", b"", b""],
        [head(Kind.CHUNK, "qqqq", 1, 1, 1, 1), pairs((0, 2), (0, -1)), bytes(4), b""],
        [head(Kind.CHUNK, "qqqq", 1, 1, 1, 1, name=b"x"), pairs((0, 1)), bytes(4), b""],
        [head(Kind.CHUNK, "qqqq", 1, 1, 1, 2), pairs((0, 2)), bytes(4), b""],
        [head(Kind.RESULT, "qqqdq", 1, 1, 1, 0.5, 2**40), b""],
        [head(Kind.RESULT, "qqqdq", 1, 1, 1, 0.5, -1), b""],
        [head(Kind.RESULT, "qqqdq", 1, 1, 1, 0.5, 0), bytes(7)],
        [head(Kind.RESULT, "qqqdq", 1, 1, 1, 0.5, 1), b"", bytes(3), b"", b"", b""],
    ],
    ids=range(36),
)
def test_frames_that_do_not_fit_together_are_refused(frames: list[bytes]) -> None:
    with pytest.raises(WireError):
        decode(frames)


def test_the_reason_of_a_refusal_is_short_enough_for_a_log() -> None:
    long = msgspec.msgpack.encode({"name": {"x" * 10**6: 1}})
    for frame in (control_head("PlaceCleared") + long, control_head("x" * 255)):
        with pytest.raises(WireError) as refusal:
            decode([frame])
        assert len(str(refusal.value)) < 500


# Fuzzing ------------------------------------------------------------------------------------------


@st.composite
def damaged(draw: st.DrawFn) -> list[bytes]:
    """The frames of a real message, with something done to them."""
    frames = as_shipped(encode(draw(any_message)))
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(frames) - 1)) if frames else 0
        hurt = draw(st.sampled_from(["flip", "drop", "twice", "swap", "cut", "grow", "number"]))
        if not frames:
            break
        frame = bytearray(frames[at])
        place = draw(st.integers(0, max(0, len(frame) - 1)))
        if hurt == "flip" and frame:
            frame[place] ^= draw(st.integers(1, 255))
        elif hurt == "cut":
            del frame[place:]
        elif hurt == "grow":
            frame[place:place] = draw(st.binary(min_size=1, max_size=16))
        elif hurt == "number":
            frame[place : place + 8] = struct.pack("<q", draw(integers))
        frames[at] = bytes(frame)
        if hurt == "drop":
            del frames[at]
        elif hurt == "twice":
            frames.insert(at, frames[at])
        elif hurt == "swap":
            frames.append(frames.pop(at))
    return frames


def require_whole(message: Any) -> None:
    """Whether what came out is a message whose arrays fit together."""
    ours = {Tuples, Credit, Chunk, Result, RowTuples, RowChunk, RowResult}
    assert type(message) in ours | set(control._FORMS)
    if isinstance(message, RowChunk):
        assert len(message.shards) == len(message.born_us) == len(message.packed) > 0
    if isinstance(message, Chunk):
        assert len(message.shards) == message.births[:, 1].sum() == message.rows > 0
    if isinstance(message, Result | RowResult):
        assert all(output.rows == output.batch.rows for output in message.outputs)
        require_whole_packets([output.batch for output in message.outputs])
    if isinstance(message, Tuples | RowTuples):
        require_whole_packets([message.packet])


def require_whole_packets(packets: list[Any]) -> None:
    for packet in packets:
        assert len(packet.hashes) in (0, packet.rows)
        assert packet.births.shape[1] == 2
        assert (packet.births[:, 1] >= 0).all()
        assert packet.births[:, 1].sum() == packet.rows <= MOST_ROWS


@settings(max_examples=200, suppress_health_check=list(HealthCheck))
@given(damaged())
def test_a_damaged_message_is_refused_or_is_a_whole_one(frames: list[bytes]) -> None:
    try:
        message = decode(frames)
    except WireError:
        return
    require_whole(message)


@settings(max_examples=150)
@given(
    st.sampled_from(Kind),
    st.lists(st.binary(max_size=80), max_size=6),
    st.binary(max_size=60),
)
@example(Kind.CONTROL, [], b"")
@example(Kind.CONTROL, [b""], b"")
def test_random_frames_are_refused_or_are_a_whole_message(
    kind: Kind, frames: list[bytes], rest: bytes
) -> None:
    try:
        message = decode([bytes([0xE1, 1, kind]) + rest, *frames])
    except WireError:
        return
    require_whole(message)
