"""How much a source reads at once, and how it takes part in attempts and epochs."""

from __future__ import annotations

from typing import Any, ClassVar, cast

import cloudpickle
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.process.sink_rig import Mail

from elasticutor.core.protocol.coordinator import (
    CommitEpoch,
    EndEpoch,
    ParticipantPrepared,
    SourceExhausted,
    StartSource,
    StopSending,
)
from elasticutor.core.protocol.ids import Attempt, Epoch, NodeId, Peer
from elasticutor.core.protocol.repartition import PauseUpstream
from elasticutor.process.operator.rows import MisfitError
from elasticutor.process.source import SourceProcess, batch_rows
from elasticutor.process.specs import Route, Site, SourceSpec, Tempo
from elasticutor.sources import Offer, Reader, RowOffer, Source
from elasticutor.transport import messages as say
from elasticutor.transport.codec import Credit, RowTuples, Tuples
from elasticutor.transport.row_packets import RowPacket

row_bytes = st.floats(1.0, 1e9)


@given(row_bytes, st.integers(0, 2**40))
def test_a_batch_has_at_least_one_row_and_is_bounded(size: float, step: int) -> None:
    rows = batch_rows(size, step)
    assert 1 <= rows <= 16_384
    assert rows == 1 or rows * size <= 2.5 * 1024 * 1024


@given(row_bytes, st.integers(0, 2**40), st.integers(0, 2**40))
def test_more_credit_never_means_smaller_batches(size: float, one: int, other: int) -> None:
    less, more = sorted((one, other))
    assert batch_rows(size, less) <= batch_rows(size, more)


@given(row_bytes, st.integers(0, 1024 * 1024))
def test_batches_for_a_small_window_are_not_enlarged(size: float, step: int) -> None:
    assert batch_rows(size, step) == batch_rows(size, 0) <= 8192


@given(row_bytes, st.integers(0, 2**40), st.integers(1, 10_000))
def test_more_executors_never_mean_smaller_batches(size: float, step: int, executors: int) -> None:
    rows = batch_rows(size, step, executors)
    assert rows >= batch_rows(size, step)
    assert rows == 1 or rows * size <= 8 * 1024 * 1024


# Attempts and epochs ------------------------------------------------------------------------------

SCHEMA = pa.schema([("n", pa.int64())])
WHO, COUNTS = Peer("clicks.0"), Peer("counts.0")


class Clicks(Source):
    """The numbers up to 10, one at a time; its readers note what they are told."""

    schema = SCHEMA
    log: ClassVar[list[Any]] = []

    def open(self, task: int, tasks: int, offset: Any | None) -> Reader:
        Clicks.log.append(("open", offset))
        return ClicksReader(offset or 0)


class ClicksReader(Reader):
    def __init__(self, offset: int) -> None:
        self.offset = offset

    def poll(self, now: float, max_rows: int) -> Offer | None:
        Clicks.log.append(("checkpointed", self.checkpointed))
        self.offset += 1
        self.exhausted = self.offset == 10
        return Offer(pa.record_batch([pa.array([self.offset - 1])], schema=SCHEMA), now)

    def committed(self, offset: Any) -> None:
        Clicks.log.append(("committed", offset))

    def close(self) -> None:
        Clicks.log.append("close")


class SourceRig:
    """A source's process, without a process."""

    def __init__(
        self,
        *,
        checkpointed: bool = True,
        shards: int = 0,
        source: Source | None = None,
        schema: pa.Schema = SCHEMA,
        columns: tuple[str, ...] | None = None,
        executors: tuple[Peer, ...] = (COUNTS,),
    ) -> None:
        none = cast("Any", None)
        spec = SourceSpec(
            Site("run-1", NodeId("n0"), "", "", none, none),
            WHO,
            cloudpickle.dumps(source or Clicks()),
            schema,
            0,
            1,
            (Route("counts", ("n",), executors, shards, columns),),
            1 << 20,
            Tempo(),
            checkpointed,
        )
        Clicks.log.clear()
        self.mail = Mail()
        self.process = SourceProcess(spec, cast("Any", self.mail))

    def start(self, attempt: int, epoch: int = 1, offset: Any = None) -> None:
        self.take(StartSource(WHO, Attempt(attempt), Epoch(epoch), offset))

    def end(self, attempt: int, epoch: int) -> None:
        self.take(EndEpoch(WHO, Attempt(attempt), Epoch(epoch)))

    def commit(self, attempt: int, epoch: int) -> None:
        self.take(CommitEpoch(WHO, Attempt(attempt), Epoch(epoch)))

    def take(self, message: Any) -> None:
        self.process.take(message)

    def read(self, times: int = 1) -> None:
        """Let it send so many times, without waiting in between."""
        for _ in range(times):
            self.process._send_at = 0.0
            self.process.work()

    def sent(self, kind: type) -> list[Any]:
        return [message for who, message in self.mail.sent if isinstance(message, kind)]

    def said(self, kind: type) -> list[Any]:
        """What it has told the driver, of a kind."""
        return [said.what for said in self.sent(say.Said) if isinstance(said.what, kind)]

    def tuples(self) -> list[Any]:
        """Messages with tuples, in batches or row by row."""
        return [
            message for who, message in self.mail.sent if isinstance(message, Tuples | RowTuples)
        ]

    def offsets(self) -> list[Any]:
        """What it has told the coordinator."""
        return [what.note for what in self.said(ParticipantPrepared)]


def test_tuples_wait_for_others_when_a_packet_has_just_left() -> None:
    rig = SourceRig()
    rig.start(1)
    assert 0 < rig.process.work() <= 0.002
    assert len(rig.tuples()) == 1
    rig.process.work()
    assert len(rig.tuples()) == 1
    rig.read()
    assert len(rig.tuples()) == 2


def test_every_tuple_has_its_own_birth() -> None:
    class TwoDue(ClicksReader):
        def poll(self, now: float, max_rows: int) -> Offer | None:
            self.exhausted = True
            batch = pa.record_batch([pa.array([1, 2])], schema=SCHEMA)
            return Offer(batch, 5.0, np.array([5_000_000, 5_002_000]))

    rig = SourceRig()
    rig.start(1)
    rig.process._reader = TwoDue(0)
    rig.process.work()
    (tuples,) = rig.tuples()
    assert tuples.packet.births.tolist() == [[5_000_000, 1], [5_002_000, 1]]


def test_a_source_gathers_what_a_reader_has_before_it_cuts_it_for_many_executors() -> None:
    many = tuple(Peer(f"counts.{n}") for n in range(200))
    pieces = [
        pa.record_batch([pa.array(range(n, n + 500))], schema=SCHEMA) for n in range(0, 9000, 500)
    ]

    class Pieces(ClicksReader):
        def poll(self, now: float, max_rows: int) -> Offer | None:
            return Offer(pieces.pop(0), 5.0 + len(pieces) / 1e3) if pieces else None

    rig = SourceRig(executors=many)
    rig.start(1)
    rig.process._reader = Pieces(0)
    rig.read()
    sent = rig.tuples()
    assert len(sent) == len({who for who, message in rig.mail.sent if message in sent}) == 200
    values = [n for one in sent for n in one.packet.open(SCHEMA)["n"].to_pylist()]
    assert sorted(values) == list(range(9000))
    births = sent[0].packet.births
    assert births[:, 1].sum() == sent[0].packet.rows
    assert len(births) > 1
    assert births[:, 0].min() >= 5_000_000


def test_columns_that_are_not_sent_count_for_how_much_is_read_at_once() -> None:
    """A reader of large rows is not asked for thousands because little of each is sent."""
    asked: list[int] = []
    schema = pa.schema([("n", pa.int64()), ("text", pa.string())])

    class Wide(ClicksReader):
        def poll(self, now: float, max_rows: int) -> Offer | None:
            asked.append(max_rows)
            rows = 50 if len(asked) == 2 else max_rows
            columns = [pa.array(range(rows)), pa.array(["x" * 2_000] * rows)]
            return Offer(pa.record_batch(columns, schema=schema), now)

    rig = SourceRig(schema=schema, columns=("n",))
    rig.start(1)
    rig.process._reader = Wide(0)
    rig.read(3)
    first, *later = asked
    assert first == 8192
    assert len(later) == 2
    assert all(300 * 2_000 < rows * 2_000 < 1280 * 1024 for rows in later)
    assert all(one.packet.open(SCHEMA).schema.equals(SCHEMA) for one in rig.tuples())


def test_what_no_route_takes_neither_travels_nor_keeps_few_tuples_from_travelling_as_rows() -> None:
    schema = pa.schema([("n", pa.int64()), ("at", pa.timestamp("us"))])

    class Timed(ClicksReader):
        def poll(self, now: float, max_rows: int) -> Offer | None:
            self.exhausted = True
            batch = pa.record_batch([pa.array([4, 5]), pa.array([0, None])], ["n", "at"])
            return Offer(batch.cast(schema), now)

    rig = SourceRig(schema=schema, columns=("n",))
    rig.start(1)
    rig.process._reader = Timed(0)
    rig.read()
    (hello,) = rig.sent(say.Hello)
    assert pa.ipc.read_schema(pa.py_buffer(hello.schema)).equals(SCHEMA)
    (sent,) = rig.sent(RowTuples)
    assert sent.packet.open(SCHEMA)["n"].to_pylist() == [4, 5]


def test_a_reader_is_told_the_offset_of_every_epoch_that_is_committed() -> None:
    rig = SourceRig()
    rig.start(1)
    rig.read(2)
    rig.end(1, 1)
    rig.read(3)
    assert ("checkpointed", True) in Clicks.log
    rig.commit(1, 1)
    rig.end(1, 2)
    rig.commit(1, 2)
    rig.commit(1, 2)
    told = [entry for entry in Clicks.log if entry[0] == "committed"]
    assert told == [("committed", 2), ("committed", 5)]
    assert rig.offsets() == [2, 5]


def test_without_a_checkpoint_a_reader_is_told_of_no_commit() -> None:
    rig = SourceRig(checkpointed=False)
    rig.start(1)
    rig.read()
    rig.end(1, 1)
    rig.commit(1, 1)
    assert Clicks.log == [("open", None), ("checkpointed", False)]


def test_a_new_attempt_reads_again_from_its_offset_and_forgets_the_one_before() -> None:
    rig = SourceRig()
    rig.start(1)
    rig.take(StopSending(WHO))
    rig.read(20)
    rig.end(1, 1)
    rig.read()
    assert len(rig.said(SourceExhausted)) == 1
    Clicks.log.clear()
    rig.start(2, offset=7)
    assert Clicks.log == ["close", ("open", 7)]
    rig.mail.sent.clear()
    rig.commit(1, 1)
    rig.end(1, 1)
    rig.take(Credit(COUNTS, Attempt(1), 1 << 40))
    rig.start(1)
    assert rig.process._side.credit_step == 0
    rig.read(20)
    assert [message.attempt for message in rig.tuples()] == [2, 2, 2]
    assert len(rig.said(SourceExhausted)) == 1
    rig.end(2, 1)
    assert rig.offsets() == [10]
    assert [marker.attempt for marker in rig.sent(say.Marker)] == [2]
    assert not [entry for entry in Clicks.log if entry[0] == "committed"]
    assert rig.mail.dropped == []


@pytest.mark.parametrize("drained", [True, False])
def test_a_source_is_silent_after_its_last_marker_only_if_this_attempt_is_drained(
    drained: bool,
) -> None:
    rig = SourceRig()
    rig.start(1)
    rig.take(StopSending(WHO))
    rig.end(1, 1)
    rig.read()
    assert rig.tuples() == []
    rig.start(2)
    if drained:
        rig.take(StopSending(WHO))
    rig.end(2, 1)
    rig.read()
    assert len(rig.tuples()) == (0 if drained else 1)


def test_a_pause_ends_with_its_attempt() -> None:
    rig = SourceRig(shards=4)
    rig.start(1)
    rig.take(PauseUpstream(WHO, 1, "counts"))
    rig.read()
    assert rig.tuples() == []
    rig.start(2)
    rig.read()
    assert len(rig.tuples()) == 1


def test_an_epoch_that_ends_before_the_source_has_started_is_passed_over() -> None:
    rig = SourceRig()
    rig.end(1, 1)
    rig.commit(1, 1)
    assert rig.mail.sent == []


# Few tuples ---------------------------------------------------------------------------------------


class Scheduled(Reader):
    """Has rows at hand, and knows when the next are due."""

    knows_when = True

    def __init__(self, rows: list[Any]) -> None:
        self.rows = rows
        self.polled = 0

    def poll_rows(self, now: float, most: int) -> RowOffer | None:
        few, self.rows = self.rows[:2], self.rows[2:]
        return RowOffer([(n,) for n in few], [10 * n for n in range(len(few))]) if few else None

    def poll(self, now: float, max_rows: int) -> Offer | None:
        self.polled += 1
        return None

    def wait_s(self, now: float) -> float:
        return 0.7


class Rows(Clicks):
    rows: ClassVar[list[Any]] = []

    def open(self, task: int, tasks: int, offset: Any | None) -> Reader:
        return Scheduled(list(self.rows))


def by_rows(rows: list[Any]) -> SourceRig:
    Rows.rows = rows
    rig = SourceRig(source=Rows())
    rig.start(1)
    return rig


def test_rows_at_hand_are_sent_as_rows_with_the_time_when_each_was_due() -> None:
    rig = by_rows([5, 6, 7])
    rig.read(2)
    sent = [message.packet for message in rig.sent(RowTuples)]
    assert [type(packet) for packet in sent] == [RowPacket, RowPacket]
    assert [packet.open(SCHEMA)["n"].to_pylist() for packet in sent] == [[5, 6], [7]]
    assert [packet.born_us for packet in sent] == [[0, 10], [0]]


def test_a_source_that_knows_when_sleeps_until_then() -> None:
    rig = by_rows([5])
    assert rig.process.work() == pytest.approx(0.7)
    assert len(rig.sent(RowTuples)) == 1


def test_rows_that_are_none_are_nothing() -> None:
    rig = by_rows([])
    rig.process._reader.poll_rows = lambda now, most: RowOffer([], [])  # type: ignore[union-attr, method-assign]
    assert rig.process.work() == pytest.approx(0.7)
    assert not rig.sent(RowTuples) + rig.sent(Tuples)


def test_rows_that_do_not_fit_are_converted_or_refused_as_a_batch_of_them() -> None:
    rig = by_rows([np.int64(5)])
    rig.read()
    (sent,) = rig.sent(Tuples)
    assert sent.packet.open(SCHEMA)["n"].to_pylist() == [5]
    with pytest.raises(MisfitError, match="one"):
        by_rows(["one"]).read()


def test_a_small_batch_is_sent_as_rows() -> None:
    rig = SourceRig()
    rig.start(1)
    rig.read()
    (sent,) = rig.sent(RowTuples)
    assert isinstance(sent.packet, RowPacket)
    assert sent.packet.open(SCHEMA)["n"].to_pylist() == [0]


def test_rows_are_not_asked_for_where_only_batches_go() -> None:
    Rows.rows = [5]
    rig = SourceRig(source=Rows(), shards=4)
    rig.start(1)
    rig.read()
    assert not rig.tuples()
