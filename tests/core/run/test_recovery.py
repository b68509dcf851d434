"""What is done about each loss, how often it counts, and when a new attempt begins."""

from __future__ import annotations

import pytest
from tests.core.run.run_rig import A0, A1, EVERYBODY, N0, N1, N2, OUT, S0, S1, Rig

from elasticutor.core.protocol import coordinator as co
from elasticutor.core.protocol.events import NodeLost, TaskLost
from elasticutor.core.protocol.ids import Attempt, Epoch, TaskId
from elasticutor.core.run import run_events as ev
from elasticutor.core.run import run_instructions as do
from elasticutor.core.run.phases import RunError, RunPhase
from elasticutor.errors import OutOfOrderError


def test_a_lost_task_is_reported_to_its_main_process_which_gives_the_attempt_up() -> None:
    rig = Rig().running()
    rig.lose(A0, task=3)
    assert rig.of(do.ReportLoss) == [do.ReportLoss(A0, TaskLost(TaskId(3)))]
    assert rig.journal("lost") == [{"who": "task of a.0", "reason": "a.0, task 3 was lost: killed"}]
    assert rig.phase() is RunPhase.RUNNING
    rig.tell(co.ParticipantFailed(A0, Attempt(1), "task 3 is gone"))
    assert rig.begun() == [(A0, 2), (A1, 2), (OUT, 2)]
    assert rig.phase() is RunPhase.RECOVERING


def test_what_follows_from_a_counted_loss_is_not_counted_again() -> None:
    rig = Rig(restarts=1).running()
    rig.lose(A0, task=3)
    rig.tell(co.ParticipantFailed(A0, Attempt(1), "task 3 is gone"))
    assert rig.journal("lost") == []
    rig.ready()
    rig.tell(co.ParticipantFailed(A0, Attempt(2), "something else"))
    assert rig.journal("lost") == [{"who": "attempt of a.0", "reason": "a.0: something else"}]


def test_a_failure_of_an_earlier_attempt_is_late() -> None:
    rig = Rig().running()
    rig.tell(co.ParticipantFailed(A0, Attempt(1), "first"))
    assert rig.attempt == 2
    assert rig.tell(co.ParticipantFailed(A1, Attempt(1), "late")) == []


@pytest.mark.parametrize("who", EVERYBODY)
def test_a_lost_participant_has_one_successor_and_all_begin_again_with_it(who: str) -> None:
    rig = Rig().running()
    rig.lose(who)  # type: ignore[arg-type]
    assert [(order.who, order.life) for order in rig.of(do.DropLife)] == [(who, 0)]
    assert rig.started() == [(who, 1)]
    assert rig.begun() == []
    assert rig.phase() is RunPhase.RECOVERING
    rig.up(who)  # type: ignore[arg-type]
    assert rig.begun() == [(A0, 2), (A1, 2), (OUT, 2)]
    rig.ready()
    assert rig.phase() is RunPhase.RUNNING
    assert [told["reason"] for told in rig.journal("recovered")] == [f"{who} was lost: killed"]


def test_the_same_loss_told_twice_counts_once() -> None:
    rig = Rig().running()
    rig.lose(A0)
    assert rig.tell(co.ProcessLost(A0, 0, None, "was lost: killed")) == []
    assert rig.tell(co.ProcessLost(A0, 0, TaskId(1), "was lost: killed")) == []


def test_an_attempt_waits_for_all_successors() -> None:
    rig = Rig().running()
    rig.lose(A0)
    rig.lose(OUT)
    rig.tell(ev.Tick(), after_s=1.0)  # a second loss waits for a moment
    rig.up(A0)
    assert rig.begun() == []
    rig.up(OUT)
    assert {attempt for _, attempt in rig.begun()} == {2}


def test_a_task_of_a_main_process_that_is_not_up_takes_that_along() -> None:
    rig = Rig()
    rig.lose(A0, task=0)
    assert rig.started() == [(A0, 1)]


def test_a_lost_node_moves_those_at_home_there_and_takes_cores_from_its_guests() -> None:
    rig = Rig().running()
    rig.tell(ev.CoresAsked(A1, {N0: 1, N1: 1}, by_hand=True))
    rig.leave(N0)
    assert rig.of(do.ReportLoss) == [do.ReportLoss(A1, NodeLost(N0))]
    assert rig.of(co.AssignCores) == [co.AssignCores(A1, {N1: 2})]
    (start,) = rig.of(do.StartMain)
    assert (start.who, start.life, start.placed.node) == (A0, 1, N1)
    assert rig.journal("lost") == [{"who": "node slot n0", "reason": "node 'n0' was lost: killed"}]


def test_an_executor_without_a_node_waits_for_one() -> None:
    rig = Rig().running()
    rig.leave(N0)
    rig.tell(ev.Tick(), after_s=1.0)
    rig.leave(N1)
    rig.tell(ev.Tick(), after_s=1.0)
    assert rig.of(do.StartMain) == []
    rig.join(N2)
    assert [who for who, _ in rig.started()] == [A0, A1]
    rig.up(A0, A1)
    assert {attempt for _, attempt in rig.begun()} == {2}


def test_one_that_waits_for_a_node_for_too_long_is_started_once_when_one_comes() -> None:
    rig = Rig().running()
    rig.leave(N0)
    rig.tell(ev.Tick(), after_s=1.0)
    rig.leave(N1)
    rig.tell(ev.Tick(), after_s=11.0)
    (lost,) = rig.journal("lost")
    assert lost["reason"] == "a.0 has not come up within 10 s: there is no node"
    rig.join(N2)
    assert A0 not in [who for who, _ in rig.started()]
    rig.tell(ev.Tick(), after_s=1.0)
    assert A0 in [who for who, _ in rig.started()]


def test_an_unused_node_may_leave_unnoticed() -> None:
    rig = Rig().running()
    rig.join(N2)
    rig.leave(N2)
    assert rig.journal("lost") == []
    assert rig.phase() is RunPhase.RUNNING


def test_a_lost_host_takes_its_sources_and_sinks_along_and_is_started_again() -> None:
    rig = Rig().running()
    rig.tell(ev.HostLost(0, "signal 9"))
    assert [order.who for order in rig.of(do.DropLife)] == [S0, OUT]
    assert rig.of(do.RestartHosts) == [do.RestartHosts((0,))]
    rig.tell(ev.HostUp(0))
    assert rig.started() == [(S0, 1), (OUT, 1)]
    rig.tell(ev.Tick(), after_s=1.0)
    assert rig.started() == []
    rig.up(S0, OUT)
    assert {attempt for _, attempt in rig.begun()} == {2}


def test_a_host_in_the_place_of_one_that_is_up_means_that_this_was_lost() -> None:
    rig = Rig().running()
    rig.tell(ev.HostUp(1, ", beside node 'n1',"))
    assert rig.started() == [(S1, 1)]
    (lost,) = rig.journal("lost")
    assert lost["reason"].startswith("host 1 of sources and sinks, beside node 'n1', was lost")


def test_a_lost_message_to_the_driver_lets_all_begin_again() -> None:
    rig = Rig().running()
    rig.tell(ev.MessageLost(OutOfOrderError("message", "arrive", "nothing")))
    assert rig.begun() == [(A0, 2), (A1, 2), (OUT, 2)]


def test_a_loss_while_a_manifest_is_written_waits_for_it() -> None:
    rig = Rig().running()
    rig.tell(ev.Tick(), after_s=2.0)
    rig.prepare(1)
    rig.lose(A0)
    rig.up(A0)
    assert rig.begun() == []
    rig.tell(ev.EpochStored(Epoch(1), Attempt(1), 100))
    assert {(order.base, order.attempt) for order in rig.of(co.BeginAttempt)} == {(1, 2)}


def test_no_attempt_begins_with_one_missing_because_a_manifest_held_a_failure_up() -> None:
    rig = Rig().running()
    rig.tell(ev.Tick(), after_s=2.0)
    rig.prepare(1)
    rig.tell(co.ParticipantFailed(A0, Attempt(1), "a task is gone"))
    rig.lose(A1)
    rig.tell(ev.EpochStored(Epoch(1), Attempt(1), 100))
    assert rig.journal("epoch committed") != []
    assert rig.begun() == []
    rig.tell(ev.Tick(), after_s=1.0)
    rig.up(A1)
    assert {(order.base, order.attempt) for order in rig.of(co.BeginAttempt)} == {(1, 3)}


def test_a_newcomer_hears_nothing_of_the_attempt_before_it() -> None:
    rig = Rig().running()
    rig.tell(ev.Tick(), after_s=2.0)
    rig.prepare(1)
    rig.lose(A0)
    rig.lose(S0)
    rig.up(A0)  # and the successor of the source is on its way
    rig.tell(ev.EpochStored(Epoch(1), Attempt(1), 100))
    assert A0 not in {order.who for order in rig.of(co.CommitEpoch)}
    assert A1 in {order.who for order in rig.of(co.CommitEpoch)}
    rig.tell(ev.Tick(), after_s=1.0)
    rig.up(S0)
    assert {attempt for _, attempt in rig.begun()} == {2}


def test_a_source_that_came_up_while_the_manifest_was_written_hears_of_no_commit() -> None:
    rig = Rig().running()
    rig.tell(ev.Tick(), after_s=2.0)
    rig.prepare(1)
    rig.lose(S0)
    rig.tell(ev.Tick(), after_s=1.0)
    rig.up(S0)  # all are up again, and the next attempt waits for the manifest
    rig.tell(ev.EpochStored(Epoch(1), Attempt(1), 100))
    assert {attempt for _, attempt in rig.begun()} == {2}
    assert S0 not in {order.who for order in rig.of(co.CommitEpoch)}


def test_the_same_loss_is_put_up_with_so_often_and_then_ends_the_run() -> None:
    rig = Rig(restarts=2).running()
    for _ in range(2):
        rig.lose(A0)
        rig.tell(ev.Tick(), after_s=1.0)
    rig.lose(A0)
    assert rig.phase() is RunPhase.ENDING
    assert isinstance(rig.life.error, RunError)
    assert str(rig.life.error).startswith(
        "a.0 was lost too often without an epoch committed in between (a.0 3 times). "
        "The last time: a.0 was lost: killed"
    )


def test_a_commit_makes_up_for_losses() -> None:
    rig = Rig(restarts=1).running()
    for epoch in range(1, 5):
        rig.lose(A0)
        rig.tell(ev.Tick(), after_s=1.0)
        rig.up(A0)
        rig.ready()
        rig.commit(epoch)
    assert rig.phase() is RunPhase.RUNNING


def test_the_second_loss_without_progress_waits_for_a_moment() -> None:
    rig = Rig().running()
    rig.lose(A0)
    rig.lose(A0)
    assert rig.started() == []
    (wake,) = rig.of(do.Wake)
    assert wake.at == pytest.approx(0.02)
    rig.tell(ev.Tick(), after_s=0.01)
    assert rig.started() == []
    rig.tell(ev.Tick(), after_s=0.01)
    assert rig.started() == [(A0, 2)]


def test_a_successor_that_is_lost_before_it_was_started_is_not_started() -> None:
    rig = Rig().running()
    rig.lose(A0)
    rig.lose(A0)
    rig.tell(ev.NodeLeft(N0, "slot n0", "killed"))
    rig.tell(ev.Tick(), after_s=1.0)
    assert rig.started() == [(A0, 3)]


def test_a_successor_that_does_not_come_up_is_replaced() -> None:
    rig = Rig().running()
    rig.lose(A0)
    rig.tell(ev.Tick(), after_s=10.1)
    assert rig.journal("lost") == [{"who": "a.0", "reason": "a.0 has not come up within 10 s"}]
    rig.tell(ev.Tick(), after_s=1.0)
    assert rig.started() == [(A0, 2)]


@pytest.mark.parametrize("who", EVERYBODY)
def test_without_a_checkpoint_a_loss_ends_the_run(who: str) -> None:
    rig = Rig(durable=False).running()
    rig.lose(who)  # type: ignore[arg-type]
    assert rig.phase() is RunPhase.ENDING
    assert str(rig.life.error) == f"{who} was lost: killed"


def test_cores_decided_while_a_main_process_comes_up_are_assigned_then() -> None:
    rig = Rig().running()
    rig.lose(A0)
    rig.tell(ev.CoresAsked(A0, {N0: 2}))
    rig.up(A0)
    assert rig.of(co.AssignCores) == [co.AssignCores(A0, {N0: 2})]


def test_cores_of_nodes_that_are_gone_are_not_assigned() -> None:
    rig = Rig().running()
    rig.tell(ev.CoresAsked(A0, {N0: 1, N2: 1}))
    assert rig.of(co.AssignCores) == [co.AssignCores(A0, {N0: 1})]
    assert rig.tell(ev.CoresAsked(A0, {N2: 1})) == []
