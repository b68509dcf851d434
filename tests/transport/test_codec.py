"""Messages as frames: every kind comes back as it was, and no bytes lead to anything else."""

from __future__ import annotations

import contextlib
import copyreg
import dataclasses
import functools
import io
import math
import os
import pickle
import pickletools
import struct
import subprocess
import sys
import tracemalloc
import zlib
from collections.abc import Callable, Iterator, Mapping
from datetime import date
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import msgspec
import numpy as np
import pyarrow as pa
import pytest
import zmq
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from elasticutor.core.measure.latency import LatencyHistogram
from elasticutor.core.measure.metrics import ExecutorMetrics, Meter
from elasticutor.core.protocol import coordinator as co
from elasticutor.core.protocol import events as ev
from elasticutor.core.protocol import instructions as do
from elasticutor.core.protocol.events import Output
from elasticutor.core.protocol.ids import Attempt, Epoch, NodeId, Peer, TaskId
from elasticutor.core.protocol.keeper import SendSlice
from elasticutor.driver import journal
from elasticutor.state.levels import Record
from elasticutor.transport import control
from elasticutor.transport import messages as say
from elasticutor.transport.channels import Endpoint, Links
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

SMALL = 2 * 1024 * 1024
"""What a small message may take at most, in bytes."""

# Messages of every kind ---------------------------------------------------------------------------

integers = st.integers(-(2**63), 2**63 - 1)
scalars = st.none() | st.booleans() | integers | st.floats() | st.text(max_size=8) | st.binary()
plain_values = st.recursive(
    scalars | st.integers(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(scalars | st.tuples(scalars, scalars), inner, max_size=3)
        | st.frozensets(scalars, max_size=3)
        | st.sets(scalars, max_size=3)
    ),
    max_leaves=8,
)


@st.composite
def histograms(draw: st.DrawFn) -> LatencyHistogram:
    made = LatencyHistogram()
    for seconds in draw(st.lists(st.floats(0, 5000), max_size=4)):
        made.record(seconds, draw(st.integers(1, 10**9)))
    return made


@st.composite
def measurements(draw: st.DrawFn) -> ExecutorMetrics:
    meter = Meter(shards=draw(st.integers(1, 20)), now=0.0)
    meter.arrived(draw(st.integers(0, 10**12)), 7)
    meter.processed(np.zeros(3, np.int64), draw(st.floats(0, 10)))
    meter.latency(draw(st.floats(0, 10)), 3)
    return meter.snapshot(draw(st.floats(0.1, 10)))


arrays = st.sampled_from(["<i8", "<f8", "<i4", "<u8", "|b1"]).flatmap(
    lambda kind: st.integers(0, 5).map(lambda size: np.arange(size * 2)[::2].astype(kind))
)
orders = st.sampled_from(
    [do.SendLabel(TaskId(1), *(2, 3)), ev.BalanceDue(), do.OpenStore(NodeId("n"), *(1, 2))]  # type: ignore[arg-type]
)

CONTROL = sorted(control._MESSAGES, key=lambda kind: kind.__qualname__)


@functools.cache
def messages_of(kind: type) -> st.SearchStrategy[Any]:
    return st.builds(kind, **{name: of(hint) for name, hint in get_type_hints(kind).items()})


def of(hint: Any) -> st.SearchStrategy[Any]:
    """Values of a field's type."""
    if hint is Any:
        return plain_values | orders
    if hint is LatencyHistogram:
        return histograms()
    if hint is ExecutorMetrics:
        return measurements()
    if "ndarray" in str(hint):
        return arrays if "None" not in str(hint) else arrays | st.none()
    if dataclasses.is_dataclass(hint):
        return messages_of(hint)  # type: ignore[arg-type]
    origin: Any = get_origin(hint)
    args: tuple[Any, ...] = get_args(hint)
    if origin is Mapping:
        return st.dictionaries(of(args[0]), of(args[1]), max_size=3)
    if origin is tuple:
        if args[-1] is ...:
            return st.lists(of(args[0]), max_size=3).map(tuple)
        return st.tuples(*map(of, args))
    return st.from_type(hint)


controls = st.sampled_from(CONTROL).flatmap(messages_of)
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


def same(one: Any, other: Any) -> bool:
    """Whether two messages say the same, where `==` does not look or NaN is in the way."""
    if isinstance(one, np.ndarray):
        return np.array_equal(one, other) and (one.ndim == 2 or one.dtype == other.dtype)
    if isinstance(one, pa.Buffer | memoryview):
        return bytes(one) == bytes(other)
    if type(one) is not type(other):
        return False
    if isinstance(one, float):
        return struct.pack("d", one) == struct.pack("d", other)
    if isinstance(one, Packet):
        return all(same(getattr(one, n), getattr(other, n)) for n in ("births", "hashes", "data"))
    if isinstance(one, msgspec.Struct):
        return all(same(getattr(one, n), getattr(other, n)) for n in one.__struct_fields__)
    if dataclasses.is_dataclass(one):
        names = [field.name for field in dataclasses.fields(one)]
        return all(same(getattr(one, name), getattr(other, name)) for name in names)
    if isinstance(one, tuple | list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return same(list(one.values()), list(other.values())) and repr([*one]) == repr([*other])
    return bool(one == other) or repr(one) == repr(other)


def as_shipped(frames: list[Any]) -> list[bytes]:
    return [bytes(memoryview(frame)) for frame in frames]


# Round trips --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", CONTROL, ids=lambda kind: kind.__qualname__)
@settings(max_examples=6, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_every_control_message_comes_back_as_it_was(kind: type, data: st.DataObject) -> None:
    message = data.draw(messages_of(kind))
    assert same(message, decode(as_shipped(encode(message))))


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


def test_numbers_of_numpy_arrive_as_numbers_of_python() -> None:
    seen = say.TaskSeen(NodeId("n"), "busy", np.float64(0.5), np.int32(3), np.int64(7))  # type: ignore[arg-type]
    back = decode(as_shipped(encode(seen)))
    assert back == say.TaskSeen(NodeId("n"), "busy", 0.5, 3, 7)
    assert [type(value) for value in (back.load, back.shards, back.pid)] == [float, int, int]


def test_large_payloads_and_slices_of_many_records_come_back() -> None:
    payload = os.urandom(1_000_000)
    assert decode(encode(say.StartExecutor("r", Peer("a"), payload))).payload == payload
    records = tuple(Record(b"%d" % n, Epoch(n), None if n % 3 else bytes(n)) for n in range(1000))
    piece = SendSlice(NodeId("n"), *(1, 2), records, True, False)  # type: ignore[arg-type]
    slices = say.Slice("r", Peer("a"), 3, piece)
    assert decode(encode(slices)) == slices


# What is refused where it is sent -----------------------------------------------------------------


class Holder(dict[str, int]):
    """A subclass of something plain."""


@pytest.mark.parametrize(
    "note",
    [date(2024, 1, 1), Holder(), Kind.CREDIT, print, object(), int, Path("x"), 1j],
    ids=lambda note: repr(note).partition(" at 0x")[0],
)
def test_a_value_that_the_receiver_would_refuse_is_refused_by_the_sender(note: object) -> None:
    with pytest.raises(WireError, match="offset of a source"):
        encode(co.ParticipantPrepared(Peer("a"), Attempt(1), Epoch(1), [note]))


def test_what_is_no_message_is_not_sent() -> None:
    for thing in (None, 3, {"a": 1}, object(), Endpoint("", "", ""), say.Beat):
        with pytest.raises(WireError, match="control messages"):
            encode(thing)


def test_an_array_of_objects_is_not_sent() -> None:
    with pytest.raises(WireError, match="be of numbers"):
        encode(co.ParticipantPrepared(Peer("a"), Attempt(1), Epoch(1), np.array([print])))


def test_a_value_that_holds_itself_is_not_sent() -> None:
    ring: list[Any] = []
    ring.append(ring)
    with pytest.raises(WireError):
        encode(co.ParticipantPrepared(Peer("a"), Attempt(1), Epoch(1), ring))


# What is refused where it arrives -----------------------------------------------------------------


def refused(body: bytes) -> None:
    with pytest.raises(WireError):
        decode([bytes([0xE1, 1, Kind.CONTROL]), body])


class Calls:
    """Pickles into a call of something."""

    def __init__(self, what: Any, *args: Any) -> None:
        self.what = what, args

    def __reduce__(self) -> Any:
        return self.what


class Kin(say.Finish):
    """A subclass of a message."""


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_nothing_is_called_by_unpickling(protocol: int, tmp_path: Path) -> None:
    mark = tmp_path / "called"
    calls = [
        Calls(os.mkdir, str(mark)),
        Calls(eval, f"__import__('os').mkdir({str(mark)!r})"),
        Calls(exec, f"import os; os.mkdir({str(mark)!r})"),
        Calls(getattr, os, "mkdir"),
        Calls(subprocess.Popen, ["mkdir", str(mark)]),
        Calls(functools.partial(os.mkdir, str(mark))),
        Calls(functools.partial, say.Beat),
        Calls(journal.Journal, mark),
        Calls(Links, "n", None),
        Calls(Path, str(mark)),
        Calls(copyreg._reconstructor, say.Beat, object, None),  # type: ignore[attr-defined]
        Calls(say.Said.__init__, say.Beat(), 1, 2, 3),
        Calls(LatencyHistogram),
        np.array([Calls(os.mkdir, str(mark))], object),
        Kin(),
        WireError("a", "b", "c"),
    ]
    for call in calls:
        for message in (call, say.Said("r", Peer("a"), call)):
            try:
                body = pickle.dumps(message, protocol)
            except (pickle.PicklingError, TypeError):
                continue  # nor can it be sent
            refused(body)
    assert not mark.exists()


def named(module: str, name: str) -> bytes:
    text = [b"\x8c" + bytes([len(part)]) + part.encode() for part in (module, name)]
    return b"".join(text) + pickle.STACK_GLOBAL


BEAT = named("elasticutor.transport.messages", "Beat")


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("os", "system"),
        ("builtins", "eval"),
        ("builtins", "getattr"),
        ("functools", "partial"),
        ("elasticutor.transport.channels", "Links"),
        ("elasticutor.transport.channels", "Path"),
        ("elasticutor.driver.journal", "Journal"),
        ("elasticutor.process.hosting.zygote", "ZygoteClient"),
        ("elasticutor.transport.control", "pickle.loads"),
        ("elasticutor.transport.control", "dumps"),
        ("elasticutor.transport.messages", "dataclass"),
        ("elasticutor.transport.messages", "Endpoint"),
        ("elasticutor.transport.messages", "Beat.__class__"),
        ("elasticutor.core.protocol.coordinator", "Coordinator"),
        ("elasticutor.core.measure.metrics", "partial"),
        ("numpy", "ndarray"),
        ("numpy", "dtype"),
    ],
)
def test_no_other_name_is_looked_up(module: str, name: str) -> None:
    loaded = set(sys.modules)
    refused(b"\x80\x05" + named(module, name) + b").")
    refused(b"\x80\x05" + named(module, name) + b")R.")
    refused(prepared(named(module, name)))
    assert set(sys.modules) == loaded


def test_a_class_in_the_place_of_a_message_is_no_message() -> None:
    refused(b"\x80\x05" + BEAT + b".")
    assert decode([bytes([0xE1, 1, 0]), b"\x80\x05" + BEAT + b")R."]) == say.Beat()


@pytest.mark.parametrize(
    "opcode",
    [
        *("BUILD", "NEWOBJ", "NEWOBJ_EX", "INST", "OBJ", "GLOBAL", "EXT1", "EXT2", "EXT4"),
        *("PERSID", "BINPERSID", "NEXT_BUFFER", "READONLY_BUFFER", "POP", "POP_MARK", "DUP"),
        *("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE", "GET", "BINGET", "LONG_BINGET"),
        *("INT", "LONG", "FLOAT", "STRING", "BINSTRING", "SHORT_BINSTRING", "UNICODE"),
        *("LIST", "DICT"),
    ],
)
def test_opcodes_that_no_message_needs_are_unknown(opcode: str) -> None:
    code = next(op.code for op in pickletools.opcodes if op.name == opcode).encode("latin-1")
    assert code[0] not in control._Unpickler.dispatch
    refused(b"\x80\x05" + BEAT + b")R" + code + b"\0\0\0\0.")


def test_every_opcode_is_either_known_to_be_needed_or_unknown() -> None:
    needed = {code[0] for code in (*control._OPCODES, pickle.BYTEARRAY8)}
    assert set(control._Unpickler.dispatch) == needed


def test_a_class_cannot_be_changed() -> None:
    state = b"N}\x8c\x04nodeK\x01s\x86"  # (None, {"node": 1})
    refused(b"\x80\x05" + named("elasticutor.transport.channels", "Endpoint") + state + b"b.")
    assert Endpoint("n", "", "").node == "n"


def prepared(note: bytes) -> bytes:
    """A message with a pickled value of the attacker's choice inside."""
    kind = named("elasticutor.core.protocol.coordinator", "ParticipantPrepared")
    return b"\x80\x05" + kind + b"(\x8c\x01aK\x01K\x01" + note + b"tR."


@pytest.mark.parametrize("key", [b"s", b"u", b"\x90", b"\x91"], ids=["item", "items", "set", "f"])
def test_deeply_nested_keys_are_refused_before_they_are_hashed(key: bytes) -> None:
    nested = b")" + pickle.TUPLE1 * 150_000
    hashed = {
        b"s": b"}" + nested + b"Ns",
        b"u": b"}(" + nested + b"Nu",
        b"\x90": b"\x8f(" + nested + b"\x90",
        b"\x91": b"(" + nested + b"\x91",
    }[key]
    refused(prepared(hashed))


def huge_histogram() -> bytes:
    payload = bytearray(zlib.decompress(LatencyHistogram().to_bytes()))
    payload[12:16] = struct.pack(">i", 5)
    payload[24:32] = struct.pack(">q", 2**62)
    return zlib.compress(bytes(payload))


def made_by(function: str, arguments: bytes) -> bytes:
    return named("elasticutor.transport.control", function) + arguments + b"R"


def blob(data: bytes) -> bytes:
    return b"B" + struct.pack("<I", len(data)) + data


@pytest.mark.parametrize(
    "note",
    [
        b"\x8e" + struct.pack("<Q", 2**33) + b"x",
        b"\x96" + struct.pack("<Q", 2**33) + b"x",
        b"\x8d" + struct.pack("<Q", 2**33) + b"x",
        b"B" + struct.pack("<I", 2**32 - 1) + b"x",
        b"\x8b" + struct.pack("<i", 2**31 - 1) + b"x",
        b"\x95" + struct.pack("<Q", 2**40) + b"N",
        b"N" + b"r" + struct.pack("<I", 2**27),
        b"N" + b"p134217728\n",
        made_by("_histogram", blob(zlib.compress(bytes(200_000_000), 9)) + b"\x85"),
        made_by("_histogram", blob(huge_histogram()) + b"\x85"),
        made_by("_array", b"\x8c\x02f8J\0\0\0\x7f\x85" + blob(b"") + b"\x87"),
        made_by("_array", b"\x8c\x0d1000000000,f8)" + blob(bytes(8)) + b"\x87"),
        made_by("_array", b"\x8c\x01OK\x01\x85" + blob(bytes(8)) + b"\x87"),
    ],
    ids=[
        *("bytes", "bytearray", "text", "short bytes", "integer", "frame", "memo", "text memo"),
        *("histogram that inflates", "histogram of many buckets"),
        *("array of many", "array of blocks", "array of objects"),
    ],
)
def test_a_small_message_takes_little_memory_whatever_it_says(note: bytes) -> None:
    body = prepared(note)
    assert len(body) < SMALL / 4
    tracemalloc.start()
    try:
        with contextlib.suppress(WireError):
            decode([bytes([0xE1, 1, Kind.CONTROL]), body])
        assert tracemalloc.get_traced_memory()[1] < SMALL
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("kind", [b"S8", b"O8", b"V8", b"M8"])
def test_an_array_of_anything_but_numbers_is_refused(kind: bytes) -> None:
    refused(
        prepared(made_by("_array", b"\x8c\x02" + kind + b"K\x01\x85" + blob(bytes(8)) + b"\x87"))
    )


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
    with pytest.raises(WireError) as refusal:
        decode(
            [bytes([0xE1, 1, 0]), b"\x80\x05" + b"\x8d" + struct.pack("<Q", 10**6) + b"x" * 10**6]
        )
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
    assert type(message) in ours | control._MESSAGES
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
@example(Kind.CONTROL, [b""], b"")
def test_random_frames_are_refused_or_are_a_whole_message(
    kind: Kind, frames: list[bytes], rest: bytes
) -> None:
    try:
        message = decode([bytes([0xE1, 1, kind]) + rest, *frames])
    except WireError:
        return
    require_whole(message)


OPCODES = st.sampled_from(sorted(control._Unpickler.dispatch)).map(lambda code: bytes([code]))
NAMES = st.sampled_from([named(*name) for name in sorted(control._MAKERS)])


@settings(max_examples=200)
@given(st.lists(OPCODES | NAMES | st.binary(max_size=3), max_size=25).map(b"".join))
def test_random_programs_of_our_own_opcodes_are_refused_or_are_a_whole_message(
    program: bytes,
) -> None:
    for body in (b"\x80\x05" + program + b".", prepared(program)):
        try:
            message = decode([bytes([0xE1, 1, Kind.CONTROL]), body])
        except WireError:
            continue
        require_whole(message)


@settings(max_examples=100)
@given(st.data(), histograms())
def test_a_damaged_histogram_is_refused_or_has_our_buckets(
    data: st.DataObject, latency: LatencyHistogram
) -> None:
    payload = bytearray(zlib.decompress(latency.to_bytes()))
    at = data.draw(st.integers(0, len(payload) - 1))
    payload[at] ^= data.draw(st.integers(1, 255))
    note = made_by("_histogram", blob(zlib.compress(bytes(payload))) + b"\x85")
    try:
        back = decode([bytes([0xE1, 1, 0]), prepared(note)]).note
    except WireError:
        return
    assert back.count >= 0
    assert math.isnan(back.mean_s) or back.mean_s >= 0


def test_what_is_read_is_what_the_standard_library_would_read() -> None:
    """The dialect is pickle: nothing in it means anything else there."""
    message = say.Said("r", Peer("a"), ev.LabelReached(TaskId(1), *(2, 3)))  # type: ignore[arg-type]
    assert pickle.load(io.BytesIO(control.dumps(message))) == message  # noqa: S301 - our own bytes
    assert decode(encode(ev.TaskStarted(TaskId(1)))).task == TaskId(1)


# Bundles ------------------------------------------------------------------------------------------
