from __future__ import annotations

import pytest

from elasticutor.core.protocol import repartition as rc
from elasticutor.core.protocol.giver import Drain, Release
from elasticutor.core.protocol.ids import MoveId, Peer, ShardId, TaskId
from elasticutor.errors import OutOfOrderError

GIVER = Peer("x.0")
SINKS = (Peer("a"), Peer("b"))


def test_without_destinations_an_executor_has_drained_with_the_last_row_and_not_before() -> None:
    drain = Drain(GIVER)
    drain.processed(3)
    assert drain.proceed(sent=True) == []
    drain.begin(rc.DrainExecutor(GIVER, 7, 5))
    drain.processed(1)
    assert drain.proceed(sent=True) == []
    drain.processed(1)
    assert drain.proceed(sent=True) == [rc.ExecutorDrained(GIVER, 7)]
    drain.processed(1)
    assert drain.proceed(sent=True) == []  # said once
    drain.begin(rc.DrainExecutor(GIVER, 8, 6))
    assert drain.proceed(sent=True) == [rc.ExecutorDrained(GIVER, 8)]


def test_destinations_are_asked_once_when_all_outputs_are_sent() -> None:
    drain = Drain(GIVER, SINKS)
    drain.begin(rc.DrainExecutor(GIVER, 1, 0))
    assert drain.proceed(sent=False) == []
    assert drain.proceed(sent=True) == [rc.ConfirmOutputs(sink, GIVER, 1) for sink in SINKS]
    assert drain.proceed(sent=True) == []


def test_an_executor_has_drained_when_every_destination_has_taken_its_outputs_in() -> None:
    drain = Drain(GIVER, SINKS)
    drain.begin(rc.DrainExecutor(GIVER, 1, 0))
    drain.proceed(sent=True)
    assert drain.taken(rc.OutputsTaken(SINKS[1], 1)) is None
    assert drain.taken(rc.OutputsTaken(SINKS[0], 1)) == rc.ExecutorDrained(GIVER, 1)
    drain.begin(rc.DrainExecutor(GIVER, 2, 0))
    assert drain.proceed(sent=True) == [rc.ConfirmOutputs(sink, GIVER, 2) for sink in SINKS]


@pytest.mark.parametrize(
    "answer", [rc.OutputsTaken(SINKS[0], 2), rc.OutputsTaken(Peer("c"), 1), "twice", "unasked"]
)
def test_a_confirmation_that_does_not_fit_is_refused_and_changes_nothing(
    answer: rc.OutputsTaken | str,
) -> None:
    drain = Drain(GIVER, SINKS)
    fitting = rc.OutputsTaken(SINKS[0], 1)
    if answer != "unasked":
        drain.begin(rc.DrainExecutor(GIVER, 1, 0))
        drain.proceed(sent=True)
    if answer == "twice":
        drain.taken(fitting)
    before = drain.waiting_for()
    with pytest.raises(OutOfOrderError, match="be one that is waited for"):
        drain.taken(fitting if isinstance(answer, str) else answer)
    assert drain.waiting_for() == before


def test_an_executor_says_what_it_waits_for_while_it_drains() -> None:
    drain = Drain(GIVER, SINKS)
    assert drain.waiting_for() == []
    drain.begin(rc.DrainExecutor(GIVER, 1, 2))
    assert drain.waiting_for() == ["2 tuples to be processed, round 1"]
    drain.processed(2)
    assert drain.waiting_for() == ["credit for outputs, round 1"]
    drain.proceed(sent=True)
    assert drain.waiting_for() == [f"{sink} to take outputs in, round 1" for sink in SINKS]


def test_shards_are_released_with_the_last_label_and_labels_of_others_are_none_of_it() -> None:
    release = Release(GIVER)
    order = rc.ReleaseShards(GIVER, 3, (ShardId(0), ShardId(5)))
    first, second = release.begin(order, TaskId(2))
    assert (first.task, first.shard, second.shard) == (2, 0, 5)
    assert not release.awaits(MoveId(0))
    assert release.awaits(first.move)
    assert release.reached(first.move) is None
    assert release.reached(second.move) == rc.ShardsReleased(GIVER, 3)
    assert not release.awaits(second.move)
