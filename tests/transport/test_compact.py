"""Messages in binary: as small and plain as they should be, and never at the cost of a message."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from elasticutor.core.measure.latency import LatencyHistogram
from elasticutor.core.measure.metrics import Meter
from elasticutor.core.protocol.ids import NodeId, Peer, TaskId
from elasticutor.transport import compact, control
from elasticutor.transport import messages as say
from elasticutor.transport.channels import Endpoint


def measured(rows: int = 200, tasks: int = 2) -> say.Measured:
    meter = Meter(shards=256, now=0.0)
    meter.arrived(rows, 128 * rows)
    meter.processed(np.arange(rows) % 256, useful_s=0.2)
    meter.latency(0.004, rows)
    seen = {
        TaskId(task): say.TaskSeen(NodeId(f"n{task}"), "active", 0.5, 128, 4711)
        for task in range(tasks)
    }
    return say.Measured("run-1", Peer("count.7"), meter.snapshot(0.25), seen, dropped=3)


def source(**routed: int) -> say.SourceMeasured:
    counts = {Peer(who): rows for who, rows in routed.items()}
    return say.SourceMeasured("run-1", Peer("clicks.0"), 0.25, 9, 0.5, 0.1, None, counts)


def sink(*ages_s: float) -> say.SinkMeasured:
    latency = LatencyHistogram()
    for age_s in ages_s:
        latency.record(age_s)
    return say.SinkMeasured("run-1", Peer("out"), 0.25, len(ages_s), latency)


def peers(count: int) -> say.Peers:
    return say.Peers(
        {f"count.{n}": Endpoint(f"n{n}", f"ipc:///s/{n}", f"tcp://h:{n}") for n in range(count)}
    )


COMMON = [measured(), measured(0, 0), source(a=1, b=2), source(), sink(0.1, 2.0), sink(), peers(3)]


@pytest.mark.parametrize("message", COMMON, ids=lambda message: type(message).__name__)
def test_what_comes_often_is_in_binary_and_comes_back(message: object) -> None:
    body = compact.pack(message)
    assert body is not None
    assert body[0] != compact.PICKLED
    assert control.dumps(message) == body
    assert repr(control.loads(body)) == repr(message)


def test_a_measurement_comes_back_with_shards_and_latencies() -> None:
    before = measured()
    after = control.loads(control.dumps(before))
    assert np.array_equal(after.metrics.shard_rows, before.metrics.shard_rows)
    assert after.metrics.shard_rows.dtype == np.int64
    assert np.array_equal(after.metrics.shard_seconds, before.metrics.shard_seconds)
    assert after.metrics.latency == before.metrics.latency
    assert after.tasks == before.tasks


def test_many_rows_of_a_shard_arrive_as_they_are() -> None:
    for rows in (2**16 - 1, 2**16, 2**32, 2**62):
        shard_rows = np.array([rows, 0])
        metrics = replace(
            measured().metrics, shard_rows=shard_rows, shard_seconds=np.zeros(2), state_bytes=rows
        )
        after = control.loads(control.dumps(replace(measured(), metrics=metrics)))
        assert after.metrics.shard_rows.tolist() == [rows, 0]
        assert after.metrics.state_bytes == rows


@pytest.mark.parametrize(
    "message",
    [
        replace(measured(), dropped=2**70),
        replace(measured(), run="a\0b"),
        replace(source(), who=Peer("\ud800")),
        replace(source(), routed={Peer("a"): 2**80}),
        replace(sink(), rows=-(2**65)),
        say.Peers({"a\0": Endpoint("n", "", "")}),
    ],
    ids=["dropped", "NUL", "surrogate", "routed", "rows", "name"],
)
def test_what_does_not_fit_in_travels_as_other_messages_do(message: object) -> None:
    assert compact.pack(message) is None
    assert repr(control.loads(control.dumps(message))) == repr(message)


@pytest.mark.parametrize("message", COMMON, ids=lambda message: type(message).__name__)
def test_a_message_that_is_shorter_or_longer_is_refused(message: object) -> None:
    body = compact.pack(message)
    assert body is not None
    for wrong in (*(body[:size] for size in range(1, len(body))), body + b"x"):
        with pytest.raises(Exception):  # noqa: B017, PT011 - any will do: the codec wraps it
            control.loads(wrong)


def test_impossible_measurements_are_refused_where_they_arrive() -> None:
    body = bytearray(compact.pack(measured()) or b"")
    body[26:34] = np.float64(-1.0).tobytes()  # the seconds, behind the head's other numbers
    with pytest.raises(ValueError, match="seconds"):
        control.loads(bytes(body))
