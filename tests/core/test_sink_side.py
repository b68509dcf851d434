"""A sink's side of the protocol, without a sink: messages and orders in, what to write out."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticutor.core.protocol.coordinator import (
    BeginAttempt,
    CommitEpoch,
    ParticipantPrepared,
    ParticipantReady,
)
from elasticutor.core.protocol.ids import Attempt, Epoch, Peer
from elasticutor.core.protocol.instructions import GrantCredit
from elasticutor.core.protocol.repartition import ConfirmOutputs, OutputsTaken
from elasticutor.core.protocol.sink import (
    AbortOutput,
    CommitOutput,
    PrepareOutput,
    SinkSide,
    WriteHeld,
)
from elasticutor.errors import CreditExceededError, OutOfOrderError, UnknownPeerError

ME, LEFT, RIGHT = Peer("out"), Peer("left"), Peer("right")
UPSTREAMS = (LEFT, RIGHT)


def begin(sink: SinkSide, attempt: int, base: int = 0, note: Any = None) -> list[Any]:
    return sink.begin(BeginAttempt(ME, Attempt(attempt), Epoch(base), Epoch(base + 1), note))


def begun(attempt: int = 1) -> SinkSide:
    sink = SinkSide(ME, UPSTREAMS, first=100, limit=400)
    begin(sink, attempt)
    return sink


def arrive(sink: SinkSide, who: Peer, what: Any, attempt: int = 1, size: int = 10) -> bool:
    return sink.arrive(who, Attempt(attempt), size, what)


def mark(sink: SinkSide, who: Peer, epoch: int, attempt: int = 1) -> list[Any]:
    return sink.mark(who, Attempt(attempt), Epoch(epoch))


def prepared(sink: SinkSide, epoch: int, note: Any = None, attempt: int = 1) -> list[Any]:
    return sink.prepared(Attempt(attempt), Epoch(epoch), note)


def commit(sink: SinkSide, epoch: int, attempt: int = 1) -> list[Any]:
    return sink.commit(CommitEpoch(ME, Attempt(attempt), Epoch(epoch)))


def end(sink: SinkSide, epoch: int, note: Any = None, attempt: int = 1) -> list[Any]:
    """End an epoch; returns what the last marker and the answer of the writer have led to."""
    mark(sink, LEFT, epoch, attempt)
    orders = mark(sink, RIGHT, epoch, attempt)
    assert orders[-1] == PrepareOutput(Attempt(attempt), Epoch(epoch))
    return [*orders[:-1], *prepared(sink, epoch, note, attempt)]


def test_an_attempt_begins_with_the_output_of_its_base_and_drops_all_other() -> None:
    sink = SinkSide(ME, UPSTREAMS, first=100, limit=400)
    ready = [AbortOutput(), ParticipantReady(ME, Attempt(1))]
    assert begin(sink, 1) == ready
    again = begin(sink, 2, base=4, note="part-4")
    assert again[:2] == [CommitOutput(Epoch(4), "part-4"), AbortOutput()]
    assert (sink.attempt, sink.epoch) == (2, 5)


@pytest.mark.parametrize("attempt", [1, 2])
def test_an_attempt_that_is_over_or_has_begun_does_not_begin_again(attempt: int) -> None:
    sink = begun(2)
    assert begin(sink, attempt, base=3) == []
    assert (sink.attempt, sink.epoch) == (2, 1)


def test_an_epoch_ends_with_the_markers_of_all_upstreams() -> None:
    sink = begun()
    assert mark(sink, LEFT, 1) == []
    assert mark(sink, RIGHT, 1) == [PrepareOutput(Attempt(1), Epoch(1))]
    assert sink.epoch == 1
    assert prepared(sink, 1, "n") == [ParticipantPrepared(ME, Attempt(1), Epoch(1), "n")]
    assert sink.epoch == 2


def test_tuples_of_an_upstream_that_is_ahead_are_held_until_the_next_epoch_is_open() -> None:
    sink = begun()
    assert arrive(sink, LEFT, "a")
    mark(sink, LEFT, 1)
    assert not arrive(sink, LEFT, "b")
    assert arrive(sink, RIGHT, "c")
    mark(sink, RIGHT, 1)
    assert not arrive(sink, RIGHT, "d")  # the writer has not answered yet
    assert prepared(sink, 1)[1:] == [
        WriteHeld(LEFT, Attempt(1), 10, "b"),
        WriteHeld(RIGHT, Attempt(1), 10, "d"),
    ]
    assert arrive(sink, LEFT, "e")
    assert end(sink, 2)[1:] == []


def test_tuples_earn_credit_when_they_are_written() -> None:
    sink = begun()
    arrive(sink, LEFT, "a", size=100)
    with pytest.raises(CreditExceededError):
        arrive(sink, LEFT, "b")
    granted = sink.written(LEFT, Attempt(1), 100)
    assert granted == GrantCredit(LEFT, Attempt(1), 500)
    assert sink.written(LEFT, Attempt(1), 0) is None  # not worth a message
    assert arrive(sink, LEFT, "b")


def test_held_tuples_count_as_inside() -> None:
    sink = begun()
    mark(sink, LEFT, 1)
    arrive(sink, LEFT, "ahead", size=100)
    with pytest.raises(CreditExceededError):
        arrive(sink, LEFT, "further ahead")


def test_output_is_committed_with_its_epoch_once() -> None:
    sink = begun()
    end(sink, 1, "part-1")
    assert commit(sink, 2) == []
    assert commit(sink, 1) == [CommitOutput(Epoch(1), "part-1")]
    assert commit(sink, 1) == []


def test_an_epoch_without_output_has_nothing_to_commit() -> None:
    sink = begun()
    end(sink, 1, None)
    assert commit(sink, 1) == []


def test_the_last_marker_of_an_epoch_proves_that_the_one_before_it_is_committed() -> None:
    sink = begun()
    end(sink, 1, "part-1")
    mark(sink, LEFT, 2)
    assert mark(sink, RIGHT, 2) == [
        CommitOutput(Epoch(1), "part-1"),
        PrepareOutput(Attempt(1), Epoch(2)),
    ]
    assert commit(sink, 1) == []
    prepared(sink, 2, "part-2")
    assert commit(sink, 1) == []
    assert commit(sink, 2) == [CommitOutput(Epoch(2), "part-2")]


def test_nothing_of_an_attempt_outlives_it() -> None:
    sink = begun()
    arrive(sink, LEFT, "a", size=100)
    end(sink, 1, "part-1")
    mark(sink, LEFT, 2)
    begin(sink, 2)
    assert not arrive(sink, LEFT, "late", attempt=1)
    assert mark(sink, RIGHT, 2, attempt=1) == commit(sink, 1, attempt=1) == []
    assert prepared(sink, 2, "part-2", attempt=1) == []
    assert sink.written(LEFT, Attempt(1), 100) is None
    assert sink.epoch == 1
    assert commit(sink, 1, attempt=2) == []
    assert arrive(sink, LEFT, "b", attempt=2, size=100)
    mark(sink, LEFT, 1, attempt=2)
    assert mark(sink, RIGHT, 1, attempt=2) == [PrepareOutput(Attempt(2), Epoch(1))]
    assert prepared(sink, 1, attempt=2)[1:] == []


@pytest.mark.parametrize(("who", "epoch"), [(LEFT, 1), (RIGHT, 2), (RIGHT, 0)])
def test_a_marker_that_is_not_the_next_one_is_refused(who: Peer, epoch: int) -> None:
    sink = begun()
    mark(sink, LEFT, 1)
    with pytest.raises(OutOfOrderError, match="be of epoch 1, and one from each upstream"):
        mark(sink, who, epoch)
    assert mark(sink, RIGHT, 1) == [PrepareOutput(Attempt(1), Epoch(1))]


def test_strangers_are_refused() -> None:
    sink, stranger = begun(), Peer("stranger")
    with pytest.raises(UnknownPeerError):
        arrive(sink, stranger, "a")
    with pytest.raises(UnknownPeerError):
        mark(sink, stranger, 1)
    with pytest.raises(UnknownPeerError):
        sink.confirm(ConfirmOutputs(ME, stranger, 3))


def test_an_executor_learns_that_its_outputs_are_taken() -> None:
    sink = begun()
    assert sink.confirm(ConfirmOutputs(ME, LEFT, 3)) == OutputsTaken(ME, 3)


@given(st.data())
def test_every_tuple_is_written_in_its_own_epoch_in_order(data: st.DataObject) -> None:
    """Two upstreams that send and end epochs as they like, one epoch apart at most."""
    sink = begun()
    written: dict[Peer, list[tuple[int, int]]] = {LEFT: [], RIGHT: []}
    sent = dict.fromkeys(UPSTREAMS, 0)
    at = dict.fromkeys(UPSTREAMS, 1)
    granted = dict.fromkeys(UPSTREAMS, 100)
    used = dict.fromkeys(UPSTREAMS, 0)

    def write(who: Peer, what: tuple[int, int]) -> None:
        assert what[0] == sink.epoch
        written[who].append(what)
        grant = sink.written(who, Attempt(1), 30)
        if grant is not None:
            granted[who] = grant.total

    for _ in range(data.draw(st.integers(0, 40))):
        who = data.draw(st.sampled_from(UPSTREAMS))
        other = RIGHT if who == LEFT else LEFT
        if data.draw(st.booleans()) and at[who] <= at[other]:
            for order in mark(sink, who, at[who]):
                if isinstance(order, PrepareOutput):
                    for held in prepared(sink, order.epoch)[1:]:
                        write(held.upstream, held.content)
            at[who] += 1
        elif used[who] < granted[who]:
            used[who] += 30
            what = (at[who], sent[who])
            sent[who] += 1
            if arrive(sink, who, what, size=30):
                write(who, what)
    for who in UPSTREAMS:
        assert [number for _, number in written[who]] == list(range(len(written[who])))
        ahead = sum(1 for _ in range(sent[who])) - len(written[who])
        assert ahead == 0 or at[who] > sink.epoch
