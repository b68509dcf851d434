"""A source's side of the protocol, without a source: orders and credits in, messages out."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticutor.core.protocol.coordinator import (
    CommitEpoch,
    EndEpoch,
    ParticipantPrepared,
    SourceExhausted,
    StartSource,
)
from elasticutor.core.protocol.events import Output
from elasticutor.core.protocol.ids import Attempt, Epoch, Peer
from elasticutor.core.protocol.instructions import Emit, EmitMarker
from elasticutor.core.protocol.source import CommitOffset, ReadFrom, SourceSide
from elasticutor.errors import OutOfOrderError, UnknownPeerError

ME, LEFT, RIGHT = Peer("clicks.0"), Peer("counts.0"), Peer("counts.1")


def a_source(*, checkpointed: bool = True) -> SourceSide:
    return SourceSide(ME, [LEFT, RIGHT], first=100, limit=50, checkpointed=checkpointed)


def start(source: SourceSide, attempt: int, offset: Any = None, epoch: int = 1) -> list[Any]:
    return source.start(StartSource(ME, Attempt(attempt), Epoch(epoch), offset))


def end(source: SourceSide, attempt: int, epoch: int, offset: Any) -> list[Any]:
    return source.end_epoch(EndEpoch(ME, Attempt(attempt), Epoch(epoch)), offset)


def commit(source: SourceSide, attempt: int, epoch: int) -> list[Any]:
    return source.commit(CommitEpoch(ME, Attempt(attempt), Epoch(epoch)))


def credit(source: SourceSide, who: Peer, attempt: int, total: int) -> list[Any]:
    return source.credit(who, Attempt(attempt), total)


def send(source: SourceSide, who: Peer, name: str, size: int) -> list[str]:
    source.outputs.add(Output(who, name, size, 1))
    return [one.batch for one in source.outputs.send(who, source.attempt) if isinstance(one, Emit)]


def started(attempt: int = 1, **options: bool) -> SourceSide:
    source = a_source(**options)
    start(source, attempt)
    return source


def test_nothing_may_be_read_before_an_attempt_has_begun() -> None:
    source = a_source()
    assert source.silent
    assert end(source, 1, 1, 0) == commit(source, 1, 1) == credit(source, LEFT, 1, 500) == []
    assert start(source, 1, offset="o") == [ReadFrom("o")]
    assert not source.silent


@pytest.mark.parametrize("attempt", [1, 2])
def test_an_attempt_that_is_over_or_has_begun_does_not_begin_again(attempt: int) -> None:
    source = started(2)
    assert start(source, attempt, offset=7) == []
    assert source.attempt == 2


def test_a_marker_follows_all_that_is_cut_to_every_destination() -> None:
    source = started()
    assert send(source, LEFT, "a", 100) == ["a"]
    assert send(source, LEFT, "b", 10) == []
    assert end(source, 1, 1, offset=12) == [
        EmitMarker(RIGHT, Attempt(1), Epoch(1)),
        ParticipantPrepared(ME, Attempt(1), Epoch(1), 12),
    ]
    assert credit(source, LEFT, 1, 200) == [
        Emit(LEFT, Attempt(1), "b", 10),
        EmitMarker(LEFT, Attempt(1), Epoch(1)),
    ]


def test_a_reader_learns_the_offset_of_an_epoch_once_and_only_when_it_is_committed() -> None:
    source = started()
    end(source, 1, 1, offset=12)
    assert commit(source, 1, 2) == []
    assert commit(source, 1, 1) == [CommitOffset(12)]
    assert commit(source, 1, 1) == []


def test_without_a_checkpoint_no_reader_may_forget_anything() -> None:
    source = started(checkpointed=False)
    assert end(source, 1, 1, offset=12)[-1].note == 12
    assert commit(source, 1, 1) == []


def test_a_reader_with_no_offset_has_nothing_to_learn() -> None:
    source = started()
    end(source, 1, 1, offset=None)
    assert commit(source, 1, 1) == []


def test_nothing_of_an_attempt_outlives_it() -> None:
    source = started()
    send(source, LEFT, "a", 100)
    send(source, LEFT, "waits", 60)
    assert source.outputs.blocked(ME)
    end(source, 1, 1, offset=12)
    credit(source, RIGHT, 1, 400)
    assert start(source, 2, offset=5) == [ReadFrom(5)]
    assert (source.credit_step, source.outputs.empty) == (0, True)
    assert credit(source, LEFT, 1, 10**6) == []
    assert commit(source, 1, 1) == commit(source, 2, 1) == end(source, 1, 2, 20) == []
    assert send(source, LEFT, "b", 100) == ["b"]
    assert send(source, LEFT, "c", 1) == []  # the first credit of the new attempt is used up
    assert credit(source, LEFT, 2, 101) == [Emit(LEFT, Attempt(2), "c", 1)]


def test_a_credit_of_a_stranger_or_below_an_earlier_one_is_refused() -> None:
    source = started()
    credit(source, LEFT, 1, 300)
    with pytest.raises(OutOfOrderError, match="be at least 300; got 200"):
        credit(source, LEFT, 1, 200)
    with pytest.raises(UnknownPeerError):
        credit(source, Peer("stranger"), 1, 200)


def test_the_step_of_a_credit_counts_for_all_destinations() -> None:
    source = started()
    credit(source, LEFT, 1, 300)
    assert source.credit_step == 400
    credit(source, RIGHT, 1, 110)
    assert source.credit_step == 20


def test_a_draining_source_is_silent_after_its_next_marker_until_it_starts_again() -> None:
    source = started()
    source.drain()
    silent = [source.silent]
    end(source, 1, 1, 0)
    silent.append(source.silent)
    start(source, 2)
    silent.append(source.silent)
    end(source, 2, 1, 0)
    silent.append(source.silent)
    assert silent == [False, True, False, False]


def test_a_source_reports_once_in_each_attempt_that_it_is_exhausted() -> None:
    source = started()
    assert source.exhaust() == [SourceExhausted(ME, Attempt(1))]
    assert source.exhaust() == []
    start(source, 2)
    assert source.exhaust() == [SourceExhausted(ME, Attempt(2))]


@given(st.lists(st.sampled_from(["send", "credit", "end", "old credit", "fail"]), max_size=40))
def test_every_epoch_is_what_was_cut_between_two_offsets(history: list[str]) -> None:
    """Whatever happens: what arrives before a marker is just what its offset is behind."""
    source = started()
    attempt, epoch, position, base = 1, 1, 0, 0
    granted = 100
    got: list[Any] = []

    def take(orders: list[Any]) -> None:
        for order in orders:
            if isinstance(order, Emit):
                got.append(order.batch)
            elif isinstance(order, EmitMarker) and order.destination == LEFT:
                got.append("marker")

    for what in history:
        if what == "send" and not source.outputs.blocked(ME):
            take([Emit(LEFT, Attempt(attempt), name, 30) for name in _cut(source, position)])
            position += 1
        elif what == "credit":
            granted += 40
            take(credit(source, LEFT, attempt, granted))
        elif what == "old credit":
            take(credit(source, LEFT, attempt - 1, 10**6))
        elif what == "end":
            orders = end(source, attempt, epoch, position)
            take(orders)
            assert orders[-1] == ParticipantPrepared(ME, Attempt(attempt), Epoch(epoch), position)
            assert commit(source, attempt, epoch) == [CommitOffset(position)]
            base, epoch = position, epoch + 1
        elif what == "fail":
            attempt, granted, position = attempt + 1, 100, base
            assert start(source, attempt, base, epoch) == [ReadFrom(base)]
            got.clear()
            got.extend(range(base))  # the epochs that are committed count
    take(credit(source, LEFT, attempt, 10**6))
    assert [one for one in got if one != "marker"] == list(range(position))
    assert source.outputs.empty


def _cut(source: SourceSide, position: int) -> list[Any]:
    source.outputs.add(Output(LEFT, position, 30, 1))
    sent = source.outputs.send(LEFT, source.attempt)
    return [one.batch for one in sent if isinstance(one, Emit)]
