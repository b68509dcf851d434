"""Control messages: each comes back as it was, and bytes lead to such a message or to nothing."""

from __future__ import annotations

import contextlib
import copyreg
import dataclasses
import functools
import math
import os
import pickle
import subprocess
import sys
import tracemalloc
from datetime import date
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.core.work_rig import done
from tests.transport.wire_rig import (
    CONTROL,
    as_shipped,
    control_head,
    histograms,
    messages_of,
    plain_values,
    same,
)

from elasticutor.core.measure.latency import BUCKETS, LatencyHistogram
from elasticutor.core.measure.metrics import Meter
from elasticutor.core.message import Message
from elasticutor.core.protocol import coordinator as co
from elasticutor.core.protocol import events as ev
from elasticutor.core.protocol import instructions as do
from elasticutor.core.protocol.ids import Attempt, Epoch, MoveId, NodeId, Peer, TaskId
from elasticutor.core.protocol.keeper import SendSlice
from elasticutor.driver import journal
from elasticutor.errors import BadValueError
from elasticutor.state.levels import Record
from elasticutor.transport import control
from elasticutor.transport import messages as say
from elasticutor.transport.channels import Endpoint, Links
from elasticutor.transport.codec import Kind, WireError, decode, encode

SMALL = 2 * 1024 * 1024
"""What a small message may take at most, in bytes."""


def back(message: Any) -> Any:
    return decode(as_shipped(encode(message)))


def prepared(note: Any) -> co.ParticipantPrepared:
    return co.ParticipantPrepared(Peer("a"), Attempt(1), Epoch(1), note)


def measured(rows: int = 200, tasks: int = 2) -> say.Measured:
    meter = Meter(shards=256, now=0.0)
    meter.arrived(rows, 128 * rows)
    per_shard = np.bincount(np.arange(rows) % 256, minlength=256)
    meter.add_work(done(per_shard, 0.2, waits_s=[0.004], wait_counts=[rows]))
    seen = {
        TaskId(task): say.TaskSeen(NodeId(f"n{task}"), "active", 0.5, 128, 4711)
        for task in range(tasks)
    }
    return say.Measured("run-1", Peer("count.7"), meter.snapshot(0.25), seen, dropped=3)


def peers(count: int) -> say.Peers:
    return say.Peers(
        {f"count.{n}": Endpoint(f"n{n}", f"ipc:///s/{n}", f"tcp://h:{n}") for n in range(count)}
    )


# Round trips --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", CONTROL, ids=lambda kind: kind.__qualname__)
@settings(max_examples=6, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_every_control_message_comes_back_as_it_was(kind: type, data: st.DataObject) -> None:
    message = data.draw(messages_of(kind))
    assert same(message, back(message))


@settings(max_examples=100)
@given(plain_values)
def test_a_note_comes_back_with_its_tuples_sets_and_keys(note: Any) -> None:
    assert same(prepared(note), back(prepared(note)))
    carried = say.Said("r", Peer("a"), do.ReportPrepared(Attempt(1), Epoch(2), (note, note)))
    assert same(carried, back(carried))


def test_a_message_in_a_message_in_a_message_comes_back() -> None:
    inner = say.Said("r", Peer("a"), prepared({"said": ("x", 1)}))
    outer = say.ForStore("r", Peer("b"), inner)
    assert back(outer) == outer


def test_a_dictionary_that_looks_like_a_message_is_none() -> None:
    notes: list[Any] = [{"Finish": {}}, {"tuple": [1]}, {"a": 1}]
    for note in notes:
        assert back(prepared(note)) == prepared(note)


def test_numbers_of_numpy_arrive_as_numbers_of_python() -> None:
    seen = say.TaskSeen(NodeId("n"), "busy", np.float64(0.5), np.int32(3), np.int64(7))  # type: ignore[arg-type]
    arrived = back(seen)
    assert arrived == say.TaskSeen(NodeId("n"), "busy", 0.5, 3, 7)
    assert [type(value) for value in (arrived.load, arrived.shards, arrived.pid)] == [
        float,
        int,
        int,
    ]
    [offset] = back(prepared([np.int64(7)])).note
    assert (type(offset), offset) == (int, 7)


def test_large_payloads_and_slices_of_many_records_come_back() -> None:
    payload = os.urandom(1_000_000)
    assert back(say.StartExecutor("r", Peer("a"), payload)).payload == payload
    records = tuple(Record(b"%d" % n, Epoch(n), None if n % 3 else bytes(n)) for n in range(1000))
    piece = SendSlice(NodeId("n"), *(1, 2), records, True, False)  # type: ignore[arg-type]
    slices = say.Slice("r", Peer("a"), 3, piece)
    assert back(slices) == slices


def test_a_measurement_comes_back_with_shards_and_latencies() -> None:
    before = measured()
    after = back(before)
    assert np.array_equal(after.metrics.shard_rows, before.metrics.shard_rows)
    assert after.metrics.shard_rows.dtype == np.int64
    assert np.array_equal(after.metrics.shard_seconds, before.metrics.shard_seconds)
    assert after.metrics.latency == before.metrics.latency
    assert after.tasks == before.tasks
    assert repr(after) == repr(before)


def test_many_rows_of_a_shard_arrive_as_they_are() -> None:
    for rows in (2**16 - 1, 2**16, 2**32, 2**62):
        shard_rows = np.array([rows, 0])
        metrics = dataclasses.replace(
            measured().metrics, shard_rows=shard_rows, shard_seconds=np.zeros(2), state_bytes=rows
        )
        after = back(replace(measured(), metrics=metrics))
        assert after.metrics.shard_rows.tolist() == [rows, 0]
        assert after.metrics.state_bytes == rows


def test_what_comes_often_or_is_long_is_small() -> None:
    sizes = {
        2: ev.ShardOpened(MoveId(5)),
        13 * 1024 // 4: measured(),  # 256 shards of 2 and 8 bytes, and the latencies
        64 * 1024: peers(1000),
    }
    head = len(control_head("ShardOpened")) + len("move") + 3
    for most, message in sizes.items():
        assert len(encode(message)[0]) <= most + head


def test_a_text_that_is_no_unicode_arrives_escaped() -> None:
    failed = say.Failed("r", "a", b"", "no key \ud800")
    assert back(failed).text == "no key \\ud800"
    reported = say.Said("r", Peer("a"), do.ReportFailure(Attempt(1), "\udcff"))
    assert back(reported).what.reason == "\\udcff"
    assert back(prepared("\ud800")).note == "\ud800"  # a note is never changed


# What is refused where it is sent -----------------------------------------------------------------


class Holder(dict[str, int]):
    """A subclass of something plain."""


@pytest.mark.parametrize(
    "note",
    [date(2024, 1, 1), Holder(), Kind.CREDIT, print, object(), int, Path("x"), 1j, np.arange(3)],
    ids=lambda note: repr(note).partition(" at 0x")[0],
)
def test_a_value_that_the_receiver_would_refuse_is_refused_by_the_sender(note: object) -> None:
    for message in (prepared([note]), say.Said("r", Peer("a"), prepared(note))):
        with pytest.raises(WireError, match="offset of a source"):
            encode(message)


def test_what_is_no_message_is_not_sent() -> None:
    for thing in (None, 3, {"a": 1}, object(), Endpoint("", "", ""), say.Beat):
        with pytest.raises(WireError, match="control messages"):
            encode(thing)


@pytest.mark.parametrize(
    "message",
    [
        say.ShardLoadsMeasured("r", Peer("a"), np.array([print])),
        say.ShardLoadsMeasured("r", Peer("a"), np.array(["2024-01-01"], "M8[s]")),
        say.ShardLoadsMeasured("r", Peer("a"), np.zeros((2, 2))),
        say.StateRead(NodeId("n"), "r", Peer("a"), print, ()),  # type: ignore[arg-type]
        ev.ShardOpened(MoveId(2**64)),
        say.Peers({"\ud800": Endpoint("n", "", "")}),
    ],
    ids=["objects", "dates", "dimensions", "function", "number", "name"],
)
def test_what_does_not_fit_into_its_field_is_not_sent(message: object) -> None:
    with pytest.raises(WireError):
        encode(message)


def test_a_value_that_holds_itself_is_not_sent() -> None:
    ring: list[Any] = []
    ring.append(ring)
    with pytest.raises(WireError):
        encode(prepared(ring))


# Messages that are not the system's own -----------------------------------------------------------


class Guest(Message):
    """A message of a test."""

    number: int


def test_a_guest_travels_once_it_is_admitted_under_a_name_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(control, "_FORMS", dict(control._FORMS))
    monkeypatch.setattr(control, "_BY_NAME", dict(control._BY_NAME))
    with pytest.raises(WireError):
        encode(Guest(3))
    control.admit(Guest)
    assert back(Guest(3)) == Guest(3)
    assert back(say.Said("r", Peer("a"), Guest(3))).what == Guest(3)
    with pytest.raises(BadValueError, match="name of its own"):
        control.admit(Guest)


# What is refused where it arrives -----------------------------------------------------------------


def refused(frame: bytes) -> None:
    with pytest.raises(WireError):
        decode([frame])


def written(name: str, **values: Any) -> bytes:
    return control_head(name) + msgspec.msgpack.encode(values)


class Calls:
    """Pickles into a call of something."""

    def __init__(self, what: Any, *args: Any) -> None:
        self.what = what, args

    def __reduce__(self) -> Any:
        return self.what


class Kin(say.Finish):
    """A subclass of a message."""


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_nothing_is_called_by_decoding(protocol: int, tmp_path: Path) -> None:
    mark = tmp_path / "called"
    calls = [
        Calls(os.mkdir, str(mark)),
        Calls(eval, f"__import__('os').mkdir({str(mark)!r})"),
        Calls(exec, f"import os; os.mkdir({str(mark)!r})"),
        Calls(subprocess.Popen, ["mkdir", str(mark)]),
        Calls(functools.partial(os.mkdir, str(mark))),
        Calls(journal.Journal, mark),
        Calls(Links, "n", None),
        Calls(copyreg._reconstructor, say.Beat, object, None),  # type: ignore[attr-defined]
        np.array([Calls(os.mkdir, str(mark))], object),
        Kin(),
    ]
    for call in calls:
        with pytest.raises(WireError):
            encode(call)
        with pytest.raises(WireError):
            encode(say.Said("r", Peer("a"), call))
        for thing in (call, say.Said("r", Peer("a"), call)):
            try:
                body = pickle.dumps(thing, protocol)
            except (pickle.PicklingError, TypeError):
                continue
            refused(bytes([0xE1, 1, Kind.CONTROL]) + body)
            refused(control_head("Said") + body)
            failed = decode([written("Failed", run="r", who="a", error=body, text="")])
            assert failed.error == body  # a pickle is bytes, and stays so
    assert not mark.exists()


@pytest.mark.parametrize(
    "name",
    [
        *("os.system", "eval", "getattr", "Links", "Path", "Journal", "ZygoteClient", "Endpoint"),
        *("Record", "LatencyHistogram", "ExecutorMetrics", "Coordinator", "Beat.__class__", "beat"),
        *("elasticutor.transport.messages.Beat", "Tuples", "Credit", "", "DieNow"),
    ],
)
def test_no_other_name_is_looked_up(name: str) -> None:
    loaded = set(sys.modules)
    refused(written(name))
    refused(written("Said", run="r", who="a", what={name: {}}))
    assert set(sys.modules) == loaded
    assert decode([written("Beat")]) == say.Beat()


@pytest.mark.parametrize(
    "frame",
    [
        written("LabelReached", task="1", move=2, size=3),
        written("LabelReached", task=1.5, move=2, size=3),
        written("LabelReached", task=None, move=2, size=3),
        written("LabelReached", task=1, move=2),
        written("AssignCores", who="a", cores={"n": "two"}),
        written("AssignCores", who="a", cores=[["n", 2]]),
        written("Peers", book={"a": {"node": "n", "ipc": ""}}),
        written("Peers", book={"a": ["n", "", ""]}),
        written("ParticipantRested", who=b"n"),
        written("StateRead", node="n", run="r", who="a", ask=1, items=[[b"k"]]),
        written("ShardLoadsMeasured", run="r", who="a", loads=[1.0]),
        written("ShardLoadsMeasured", run="r", who="a", loads=["|O", bytes(8)]),
        written("ShardLoadsMeasured", run="r", who="a", loads=["1000000000,f8", bytes(8)]),
        written("ShardLoadsMeasured", run="r", who="a", loads=["<f8", bytes(7)]),
        written("ShardLoadsMeasured", run="r", who="a", loads=["<f8", 2**40]),
        written("Said", run="r", who="a", what={"LabelReached": {"task": "1"}}),
        written("Said", run="r", who="a", what={"LabelReached": [1, 2, 3]}),
        written("ParticipantPrepared", who="a", attempt=1, epoch=1, note={"int": 5}),
        written("ParticipantPrepared", who="a", attempt=1, epoch=1, note={"a": 1, "b": 2}),
        written("ParticipantPrepared", who="a", attempt=1, epoch=1, note={"set": [{"dict": []}]}),
        control_head("Beat"),
        control_head("Beat") + b"\x90",
        bytes([0xE1, 1, Kind.CONTROL]),
        bytes([0xE1, 1, Kind.CONTROL, 200]) + b"Beat",
    ],
    ids=range(24),
)
def test_fields_of_another_type_are_refused(frame: bytes) -> None:
    refused(frame)


@pytest.mark.parametrize(
    "message",
    [measured(), measured(0, 0), peers(3), say.Said("r", Peer("a"), prepared((1, "b")))],
    ids=["measured", "idle", "peers", "said"],
)
def test_a_message_that_is_shorter_or_longer_is_refused(message: object) -> None:
    [frame] = encode(message)
    body = bytes(frame)
    for size in range(0, len(body), max(1, len(body) // 300)):
        refused(body[:size])
    refused(body + b"x")


def test_impossible_measurements_are_refused_where_they_arrive() -> None:
    values = msgspec.msgpack.decode(encode(measured())[0][len(control_head("Measured")) :])
    for name, wrong in (
        ("seconds", -1.0),
        ("rows_arrived", -1),
        ("shard_rows", ["<i8", b"\xff" * 8]),
    ):
        changed = values | {"metrics": values["metrics"] | {name: wrong}}
        refused(control_head("Measured") + msgspec.msgpack.encode(changed))


# Memory -------------------------------------------------------------------------------------------


def latency_of(buckets: bytes, counts: bytes) -> bytes:
    return written("SinkMeasured", run="r", who="a", seconds=1.0, rows=1, latency=[buckets, counts])


def note_of(body: bytes) -> bytes:
    """A message with a note of the attacker's choice."""
    plain = written("ParticipantPrepared", who="a", attempt=1, epoch=1, note=None)
    assert plain[-1:] == b"\xc0"
    return plain[:-1] + body


DEEP = 150_000


@pytest.mark.parametrize(
    "frame",
    [
        note_of(b"\xc6\xff\xff\xff\xffx"),
        note_of(b"\xdb\xff\xff\xff\xffx"),
        note_of(b"\xdd\xff\xff\xff\xff\xc0"),
        note_of(b"\xdf\xff\xff\xff\xff\xc0\xc0"),
        note_of(b"\xc9\xff\xff\xff\xff\x05x"),
        note_of(b"\x91" * DEEP),
        note_of(b"\x81\xa5tuple\x91" * (DEEP // 8)),
        note_of(b"\x81\xa3set\x91" + b"\x81\xa5tuple\x91" * (DEEP // 8) + b"\xc0"),
        note_of(b"\x81\xa4Said\x81\xa4what" * (DEEP // 11)),
        note_of(b"\x81" + b"\x91" * DEEP),
        control_head("WaitExplained") + b"\x81\xa5waits\xdd\xff\xff\xff\xff\xa1x",
        control_head("StateRead") + b"\x81\xa5items\xdd\xff\xff\xff\xff\x92",
        control_head("AssignCores") + b"\x81\xa5cores\xdf\xff\xff\xff\xff\xa1a\x01",
        control_head("StartEnd") + b"\x81\xa7payload\xc6\xff\xff\xff\xffx",
        control_head("Beat") + b"\xdf\xff\xff\xff\xff",
        latency_of(np.array([BUCKETS], "<u2").tobytes(), np.array([1], "<i8").tobytes()),
        latency_of(bytes(4), np.array([1, 1], "<i8").tobytes()),
    ],
    ids=[
        *("bytes", "text", "array", "map", "extension", "nested", "nested tuples", "nested member"),
        *("nested messages", "nested keys", "texts", "pairs", "cores", "payload", "fields"),
        *("a bucket too far", "a bucket twice"),
    ],
)
def test_a_small_message_takes_little_memory_whatever_it_says(frame: bytes) -> None:
    assert len(frame) < SMALL / 4
    tracemalloc.start()
    try:
        refused(frame)
        assert tracemalloc.get_traced_memory()[1] < SMALL
    finally:
        tracemalloc.stop()


# Fuzzing ------------------------------------------------------------------------------------------

NAMES = st.sampled_from(sorted(control._BY_NAME))
FIELDS = st.sampled_from(sorted({name for kind in CONTROL for name in kind.__struct_fields__}))
wild = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | NAMES
    | st.text(max_size=4)
    | st.binary(max_size=16)
    | st.sampled_from(["<f8", "<u2", "|O", "0x10", "inf", "nan"]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(NAMES | FIELDS | st.integers(0, 9), inner, max_size=4)
        | st.sampled_from(
            ["int", "float", "str", "bytes", "tuple", "set", "frozenset", "dict"]
        ).flatmap(lambda name: inner.map(lambda value: {name: value}))
    ),
    max_leaves=12,
)


@settings(max_examples=300, suppress_health_check=list(HealthCheck))
@given(NAMES, wild)
def test_any_structure_under_our_names_is_refused_or_is_a_message(name: str, value: Any) -> None:
    for body in (value, {"run": "r", "who": "a", "what": {name: value}}):
        with contextlib.suppress(WireError):
            message = decode(
                [control_head("Said" if body is not value else name) + msgspec.msgpack.encode(body)]
            )
            assert type(message) in control._FORMS


@settings(max_examples=200, suppress_health_check=list(HealthCheck))
@given(wild)
def test_any_note_is_refused_or_is_part_of_a_message(value: Any) -> None:
    try:
        message = decode([note_of(msgspec.msgpack.encode(value))])
    except WireError:
        return
    assert type(message) is co.ParticipantPrepared


@settings(max_examples=100)
@given(histograms(), st.binary(max_size=24), st.integers(0, 2**16))
def test_a_damaged_histogram_is_refused_or_has_our_buckets(
    latency: LatencyHistogram, noise: bytes, where: int
) -> None:
    buckets, counts = latency.filled()
    parts = bytearray(buckets.astype("<u2").tobytes() + counts.astype("<i8").tobytes())
    at = where % (len(parts) + 1)
    parts[at : at + len(noise)] = noise
    try:
        message = decode(
            [latency_of(bytes(parts[: 2 * len(buckets)]), bytes(parts[2 * len(buckets) :]))]
        )
    except WireError:
        return
    arrived = message.latency
    assert arrived.count > 0 or not len(arrived.filled()[0])
    assert math.isnan(arrived.mean_s) or arrived.mean_s >= 0
