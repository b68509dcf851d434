"""A sink's process in the epochs: every tuple in its own, every epoch once."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.process.sink_rig import (
    LEFT,
    OUT,
    RIGHT,
    SCHEMA,
    KilledError,
    SinkRig,
    live,
)

from elasticutor.core.protocol.coordinator import (
    BeginAttempt,
    CommitEpoch,
    ParticipantPrepared,
    ParticipantReady,
)
from elasticutor.core.protocol.ids import Attempt, Epoch
from elasticutor.sinks import EpochMemory, EpochWriter, MemorySink, NoSink, Sink, SinkError, Writer
from elasticutor.transport import messages as say
from elasticutor.transport.codec import Credit
from elasticutor.transport.packets import open_batch


class Ledger(Sink):
    """A user's own sink: a file for each epoch, which is renamed when it is committed."""

    fuse: ClassVar[int | None] = None
    log: ClassVar[list[Any]] = []

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def open(self, task: int, schema: pa.Schema) -> Writer:
        return LedgerWriter(Path(self.folder))

    @property
    def seen(self) -> dict[int, list[int]]:
        """What is published, by epoch."""
        paths = Path(self.folder).glob("*.json")
        return {int(path.stem): json.loads(path.read_text()) for path in paths}


class LedgerWriter(EpochWriter):
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.numbers: list[int] = []

    def write(self, batch: pa.RecordBatch) -> None:
        self.numbers.extend(batch.column("n").to_pylist())

    def prepare(self, epoch: int) -> Any:
        Ledger.log.append(("prepare", epoch))
        if not self.numbers:
            return None
        draft = self.folder / f"draft-{epoch}-{self.numbers[0]}"
        draft.write_text(json.dumps(self.numbers))
        self.numbers = []
        return draft.name

    def commit(self, epoch: int, message: Any) -> None:
        Ledger.log.append(("commit", epoch))
        self.step()
        draft, final = self.folder / message, self.folder / f"{epoch}.json"
        if not final.exists():
            draft.rename(final)
        self.step()

    def abort(self) -> None:
        Ledger.log.append("abort")
        self.numbers = []
        for draft in self.folder.glob("draft-*"):
            draft.unlink()

    def step(self) -> None:
        if Ledger.fuse is not None:
            Ledger.fuse -= 1
            if Ledger.fuse < 0:
                raise KilledError


def set_fuse(steps: int | None) -> None:
    Ledger.fuse = steps


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    Ledger.log.clear()
    return Ledger(str(tmp_path))


def test_tuples_of_an_upstream_that_is_ahead_are_written_in_their_own_epoch(
    ledger: Ledger,
) -> None:
    rig = SinkRig(ledger)
    rig.begin()
    rig.send(LEFT, 1)
    rig.mark(LEFT, 1)
    rig.send(LEFT, 2)  # of epoch 2, while the other upstream is in epoch 1
    rig.send(RIGHT, 3)
    rig.send(LEFT, 4)
    assert rig.said(ParticipantPrepared) == []
    rig.mark(RIGHT, 1)
    rig.send(RIGHT, 5)
    rig.take(CommitEpoch(OUT, Attempt(1), Epoch(1)))
    rig.mark(RIGHT, 2)
    rig.mark(LEFT, 2)
    rig.take(CommitEpoch(OUT, Attempt(1), Epoch(2)))
    assert ledger.seen == {1: [1, 3], 2: [2, 4, 5]}
    assert rig.mail.dropped == []


def test_tuples_that_wait_earn_no_credit_until_they_are_written() -> None:
    rig = SinkRig(NoSink(), credit_bytes=1)
    rig.begin()

    def granted() -> list[str]:
        return [who for who, message in rig.mail.sent if isinstance(message, Credit)]

    rig.mark(LEFT, 1)
    rig.send(LEFT, 1)
    assert granted() == []
    rig.send(RIGHT, 2)
    assert granted() == [RIGHT]
    rig.mark(RIGHT, 1)
    assert granted() == [RIGHT, LEFT]


def test_the_end_of_an_epoch_proves_that_the_one_before_it_is_committed(ledger: Ledger) -> None:
    """Word of a commit comes from the driver, and markers from others: either may come first."""
    rig = SinkRig(ledger)
    rig.begin()
    rig.write(2)
    rig.prepare()
    rig.write_manifest()
    rig.write(1)
    rig.prepare()
    assert ledger.seen == {1: [0, 1]}
    rig.take(CommitEpoch(OUT, Attempt(1), Epoch(1)))
    assert ledger.seen == {1: [0, 1]}
    rig.write_manifest()
    rig.commit()
    assert ledger.seen == rig.counted == {1: [0, 1], 2: [2]}
    assert Ledger.log.count(("commit", 1)) == 1


def test_an_attempt_begins_with_what_counts_and_then_drops_what_does_not(ledger: Ledger) -> None:
    rig = SinkRig(ledger)
    rig.begin()
    assert Ledger.log == ["abort"]
    rig.write(1)
    rig.prepare()
    rig.write_manifest()
    rig.write(1)
    Ledger.log.clear()
    rig.begin()  # somebody else was lost while the manifest was being written
    assert Ledger.log == [("commit", 1), "abort"]
    assert ledger.seen == {1: [0]}
    assert len(rig.said(ParticipantReady)) == 2


def test_what_belongs_to_an_attempt_that_was_given_up_is_passed_over(ledger: Ledger) -> None:
    rig = SinkRig(ledger)
    rig.begin()
    rig.begin()
    Ledger.log.clear()
    rig.attempt = 1
    rig.send(LEFT, 1)
    rig.mark(LEFT, 1)
    rig.mark(RIGHT, 1)
    rig.take(CommitEpoch(OUT, Attempt(1), Epoch(1)))
    rig.take(BeginAttempt(OUT, Attempt(1), Epoch(0), Epoch(1)))
    assert Ledger.log == []
    rig.attempt = 2
    rig.write(1)
    rig.end_epoch()
    assert ledger.seen == {1: [0]}


def test_what_was_on_its_way_to_a_killed_sink_is_passed_over_by_the_next_one() -> None:
    rig = SinkRig(NoSink())
    rig.begin()
    rig.mail.dropped.clear()
    rig.process._greeted.clear()
    rig.attempt = 0
    rig.send(LEFT, 1)
    assert rig.mail.dropped == []
    rig.attempt = 1
    rig.send(LEFT, 1)
    assert "tuples must follow a greeting" in rig.mail.dropped[0]


def test_half_an_alignment_is_forgotten_with_its_attempt(ledger: Ledger) -> None:
    rig = SinkRig(ledger)
    rig.begin()
    rig.mark(LEFT, 1)
    rig.send(LEFT, 7)
    rig.begin()
    rig.write(1, LEFT)
    rig.mark(RIGHT, 1)
    assert rig.said(ParticipantPrepared) == []
    rig.mark(LEFT, 1)
    assert len(rig.said(ParticipantPrepared)) == 1
    rig.take(CommitEpoch(OUT, Attempt(2), Epoch(1)))
    rig.base = 1
    rig.write(1)
    rig.end_epoch()
    assert ledger.seen == {1: [0], 2: [1]}


@pytest.mark.parametrize("epoch", [1, 3])
def test_a_marker_that_is_not_the_next_one_is_dropped(ledger: Ledger, epoch: int) -> None:
    rig = SinkRig(ledger)
    rig.begin()
    rig.mark(LEFT, 1)
    rig.mark(LEFT, epoch)
    assert "marker of 'left' must be of epoch 1" in rig.mail.dropped[0]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 999), max_size=40))
def test_whatever_happens_every_committed_epoch_is_seen_once(
    choices: list[int],
) -> None:
    with tempfile.TemporaryDirectory() as home:
        ledger = Ledger(home)
        rig = SinkRig(ledger)
        live(rig, choices, set_fuse)
        assert ledger.seen == rig.counted
        assert rig.mail.dropped == []


# Sinks that know nothing of epochs ----------------------------------------------------------------


class Plain(Sink):
    log: ClassVar[list[Any]] = []

    def open(self, task: int, schema: pa.Schema) -> Writer:
        return PlainWriter()


class PlainWriter(Writer):
    def write(self, batch: pa.RecordBatch) -> None:
        Plain.log.append(batch.column("n").to_pylist())

    def flush(self) -> None:
        Plain.log.append("flush")


def test_a_plain_writer_writes_at_once_is_flushed_at_the_end_and_given_all_again() -> None:
    Plain.log.clear()
    rig = SinkRig(Plain())
    rig.begin()
    rig.send(LEFT, 1)
    assert Plain.log == [[1]]
    assert rig.prepare() is None
    rig.write_manifest()
    rig.commit()
    rig.send(LEFT, 2)
    rig.begin()
    rig.send(LEFT, 2)
    assert Plain.log == [[1], "flush", [2], [2]]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 999), max_size=40))
def test_the_driver_can_show_committed_rows_of_a_memory_sink_alone(
    choices: list[int],
) -> None:
    rig = Driver()
    live(rig, choices, lambda steps: None)
    rig.catch_up()
    expected = [n for epoch in sorted(rig.counted) for n in rig.counted[epoch]]
    assert rig.memory.table().column("n").to_pylist() == expected
    rest = [] if rig.prepared is None else rig.prepared[1]
    every = rig.memory.table(committed_only=False).column("n").to_pylist()
    assert every == [*expected, *rest, *rig.written]
    assert rig.memory.rows == len(every)


class Driver(SinkRig):
    """Does with a memory sink's rows what the driver does."""

    def __init__(self) -> None:
        self.memory = EpochMemory(SCHEMA, max_rows=10_000)
        super().__init__(MemorySink())

    def catch_up(self) -> None:
        kept = []
        for who, message in self.mail.sent:
            if isinstance(message, say.Collected):
                batch = open_batch(message.data, message.rows, SCHEMA)
                self.memory.write(message.attempt, message.epoch, batch)
            else:
                kept.append((who, message))
        self.mail.sent = kept

    def start(self) -> None:
        if self.attempt:
            self.catch_up()
        super().start()

    def write_manifest(self) -> None:
        super().write_manifest()
        self.catch_up()
        self.memory.commit(self.base)

    def begin(self) -> None:
        self.memory.begin(self.attempt + 1)
        super().begin()
        self.catch_up()


# User code that fails -----------------------------------------------------------------------------


class Unfit(Sink):
    def __init__(self, where: str) -> None:
        self.where = where

    def open(self, task: int, schema: pa.Schema) -> Writer:
        return UnfitWriter(self.where)


class UnfitWriter(EpochWriter):
    def __init__(self, where: str) -> None:
        self.where = where

    def write(self, batch: pa.RecordBatch) -> None:
        """Takes it."""

    def prepare(self, epoch: int) -> Any:
        self.fail_in("prepare")
        return {"done": [1, (2.5, b"x", None)], 7: object()} if self.where == "message" else 1

    def commit(self, epoch: int, message: Any) -> None:
        self.fail_in("commit")

    def abort(self) -> None:
        self.fail_in("abort")

    def fail_in(self, here: str) -> None:
        if here == self.where:
            raise ValueError("no such table")


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("abort", "sink 'out' must give up what is not committed; got 'ValueError: no such table'"),
        ("prepare", "sink 'out' must prepare epoch 1; got 'ValueError: no such table'"),
        ("message", "UnfitWriter.prepare must return numbers, text, bytes"),
        ("commit", "sink 'out' must commit epoch 1; got 'ValueError: no such table'"),
    ],
)
def test_a_users_writer_that_fails_ends_the_process_by_name(where: str, message: str) -> None:
    rig = SinkRig(Unfit(where))
    with pytest.raises(SinkError) as refused:
        live(rig, [13], lambda steps: None)
    assert message in str(refused.value)
    assert rig.mail.dropped == []
