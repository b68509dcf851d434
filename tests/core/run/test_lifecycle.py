"""Starting, draining, ending and waiting: every phase of a run, decided without a process."""

from __future__ import annotations

import pytest
from tests.core.run.run_rig import A0, A1, EVERYBODY, N0, OUT, S0, S1, Rig

from elasticutor.core.protocol import coordinator as co
from elasticutor.core.protocol.ids import Attempt, Epoch
from elasticutor.core.run import run_events as ev
from elasticutor.core.run import run_instructions as do
from elasticutor.core.run.phases import RunError, RunPhase
from elasticutor.errors import BadValueError, OutOfOrderError


def drained_to_rest(rig: Rig) -> None:
    """All sources are exhausted, and the last epoch is committed."""
    rig.exhaust(S0, S1)
    rig.prepare(1)
    rig.tell(ev.EpochStored(Epoch(1), rig.attempt, 100))


# Starting


def test_a_run_is_running_when_tuples_flow() -> None:
    rig = Rig()
    rig.now = 1.0
    rig.hosts_up()
    rig.up(*EVERYBODY)
    assert rig.phase() is RunPhase.STARTING
    rig.ready()
    assert rig.of(do.EnterPhase) == [do.EnterPhase(RunPhase.RUNNING)]
    assert rig.journal("run running") == [{"seconds": 1.0, "epoch": 0}]
    assert [order.who for order in rig.of(co.StartSource)] == [S0, S1]


def test_a_run_that_does_not_start_in_time_says_who_is_missing() -> None:
    rig = Rig(durable=False)
    rig.hosts_up()
    rig.up(*EVERYBODY[:-1])
    rig.tell(ev.Tick(), after_s=30.1)
    assert rig.phase() is RunPhase.ENDING
    assert str(rig.life.error) == "run did not start in time: no word from out"


def test_a_query_feeds_its_run_when_all_executors_are_up() -> None:
    rig = Rig(query=True)
    rig.hosts_up()
    rig.up(*EVERYBODY[:-1])
    assert rig.phase() is RunPhase.STARTING
    rig.up(EVERYBODY[-1])
    assert rig.of(do.EnterPhase) == [do.EnterPhase(RunPhase.RUNNING)]
    assert rig.phase() is RunPhase.RUNNING
    rig.tell(ev.DrainAsked())  # its batches end by themselves
    assert rig.phase() is RunPhase.RUNNING
    rig.lose(A0)
    assert rig.phase() is RunPhase.ENDING


def test_other_events_are_refused() -> None:
    with pytest.raises(BadValueError, match="be one for a run"):
        Rig().life.handle(co.EpochDue(), 0.0)  # type: ignore[arg-type]


# Epochs


def test_epochs_end_one_interval_after_another() -> None:
    rig = Rig().running()
    rig.tell(ev.Tick(), after_s=1.9)
    assert rig.of(co.EndEpoch) == []
    rig.tell(ev.Tick(), after_s=0.2)
    assert [order.who for order in rig.of(co.EndEpoch)] == [S0, S1]
    rig.prepare(1)
    assert [order.epoch for order in rig.of(co.WriteManifest)] == [1]
    rig.tell(ev.EpochStored(Epoch(1), Attempt(1), 100), after_s=0.5)
    assert rig.journal("epoch committed") == [{"epoch": 1, "seconds": 0.5, "bytes": 100}]
    assert {order.who for order in rig.of(co.CommitEpoch)} == set(EVERYBODY)
    assert [order.at for order in rig.of(do.Wake)] == [pytest.approx(4.1)]


def test_without_a_checkpoint_only_the_last_epoch_ends() -> None:
    rig = Rig(durable=False).running()
    rig.tell(ev.Tick(), after_s=60.0)
    assert rig.of(co.EndEpoch) == []
    rig.exhaust(S0, S1)
    assert [order.who for order in rig.of(co.EndEpoch)] == [S0, S1]
    rig.prepare(1)
    assert rig.of(co.WriteManifest) == []
    assert rig.of(do.EnterPhase)[0] == do.EnterPhase(RunPhase.DRAINED)
    assert rig.phase() is RunPhase.ENDING


def test_storage_that_refuses_a_manifest_ends_the_run() -> None:
    rig = Rig().running()
    rig.tell(ev.Tick(), after_s=2.0)
    rig.prepare(1)
    error = RunError("storage", "take it", "is full")
    rig.tell(ev.EpochStored(Epoch(1), Attempt(1), 0, error))
    assert rig.life.error is error
    assert rig.phase() is RunPhase.ENDING


def test_a_manifest_that_is_durable_after_the_end_counts() -> None:
    rig = Rig().running()
    rig.tell(ev.Tick(), after_s=2.0)
    rig.prepare(1)
    rig.tell(ev.EndAsked())
    rig.tell(ev.EpochStored(Epoch(1), Attempt(1), 100))
    assert rig.journal("epoch committed") != []
    assert rig.of(do.KeepCommitted) == [do.KeepCommitted(Epoch(1))]


def test_an_answer_to_an_attempt_that_was_given_up_is_ignored() -> None:
    rig = Rig().running()
    rig.tell(co.ParticipantFailed(A0, Attempt(1), "failed"))
    (ignored,) = rig.tell(co.ParticipantReady(A0, Attempt(1)))
    assert isinstance(ignored, do.IgnoreMessage)


# Draining


def test_a_run_drains_when_its_last_source_is_exhausted() -> None:
    rig = Rig().running()
    rig.exhaust(S0)
    assert rig.phase() is RunPhase.RUNNING
    rig.exhaust(S1)
    assert rig.phase() is RunPhase.DRAINING
    assert [order.who for order in rig.of(co.StopSending)] == [S0, S1]
    assert [order.who for order in rig.of(co.EndEpoch)] == [S0, S1]


def test_it_is_drained_when_the_sinks_rest_and_ends_by_itself() -> None:
    rig = Rig().running()
    drained_to_rest(rig)
    assert [order.who for order in rig.of(co.AskToRest)] == [OUT]
    assert rig.phase() is RunPhase.DRAINING
    rig.rest(OUT)
    assert rig.journal("run drained") != []
    assert rig.phase() is RunPhase.ENDING
    (end,) = rig.of(do.EndProcesses)
    assert (end.hosts, end.host_grace_s) == ((0, 1), 60.0)  # sinks may be publishing


def test_one_that_is_kept_waits_for_its_executors_too_and_stays() -> None:
    rig = Rig(keep=True).running()
    drained_to_rest(rig)
    assert [order.who for order in rig.of(co.AskToRest)] == [A0, A1, OUT]
    rig.rest(OUT, A0)
    assert rig.phase() is RunPhase.DRAINING
    rig.rest(A1)
    assert rig.phase() is RunPhase.DRAINED
    assert rig.of(do.EndProcesses) == []


def test_a_loss_while_it_drains_takes_the_answers_back_but_not_the_asking() -> None:
    rig = Rig().running()
    rig.tell(ev.DrainAsked())
    rig.lose(OUT)
    assert rig.phase() is RunPhase.RECOVERING
    rig.up(OUT)
    rig.ready()
    assert rig.phase() is RunPhase.DRAINING
    assert [order.who for order in rig.of(co.StopSending)] == [S0, S1]
    assert [order.who for order in rig.of(co.EndEpoch)] == [S0, S1]


def test_sources_that_were_exhausted_before_a_loss_say_so_again() -> None:
    rig = Rig().running()
    rig.exhaust(S0)
    rig.lose(S1)
    rig.up(S1)
    rig.ready()
    rig.exhaust(S1)
    assert rig.phase() is RunPhase.RUNNING
    rig.tell(co.SourceExhausted(S0, Attempt(1)))  # late
    assert rig.phase() is RunPhase.RUNNING
    rig.exhaust(S0)
    assert rig.phase() is RunPhase.DRAINING


def test_a_rest_that_was_not_asked_for_is_of_an_earlier_drain() -> None:
    rig = Rig().running()
    rig.rest(OUT)
    rig.tell(ev.DrainAsked())
    rig.rest(OUT)
    assert rig.phase() is RunPhase.DRAINING


def test_a_drain_waits_for_shards_that_change_their_executor() -> None:
    rig = Rig(durable=False).running()
    rig.shards_move = True
    rig.tell(ev.DrainAsked())
    assert rig.phase() is RunPhase.RUNNING
    assert rig.life.draining.put_off
    rig.shards_move = False
    rig.tell(ev.ShardsSettled())
    assert rig.phase() is RunPhase.DRAINING


def test_a_drain_asked_before_the_run_is_running_follows_at_once() -> None:
    rig = Rig()
    rig.tell(ev.DrainAsked())
    rig.hosts_up()
    rig.up(*EVERYBODY)
    rig.ready()
    assert rig.phase() is RunPhase.DRAINING


def test_a_sink_that_does_not_come_to_rest_is_replaced() -> None:
    rig = Rig().running()
    drained_to_rest(rig)
    rig.tell(ev.Tick(), after_s=10.1)
    assert [order.who for order in rig.of(do.DropLife)] == [OUT]
    assert rig.started() == [(OUT, 1)]


# The end


def test_a_run_has_ended_when_every_place_is_cleared_or_gone() -> None:
    rig = Rig().running()
    rig.tell(ev.EndAsked())
    assert rig.of(do.EndProcesses) == [do.EndProcesses((0, 1), 2.0, 2.0)]
    rig.cleared(["n1", "host 1"])
    rig.leave(N0)
    assert rig.phase() is RunPhase.ENDING
    rig.tell(ev.HostLost(0, "exit code 0"))
    assert rig.phase() is RunPhase.ENDED
    assert [order.error for order in rig.of(do.CloseRun)] == [""]


def test_places_that_do_not_answer_are_named_and_given_up() -> None:
    rig = Rig().running()
    rig.tell(ev.EndAsked())
    rig.cleared(["n0", "host 0"])
    rig.tell(ev.Tick(), after_s=7.9)
    assert rig.phase() is RunPhase.ENDING
    rig.tell(ev.Tick(), after_s=0.2)
    assert rig.journal("failure") == [{"reason": "no word of its end from host 1, n1"}]
    assert rig.phase() is RunPhase.ENDED


def test_only_the_first_failure_counts() -> None:
    rig = Rig().running()
    first, second = RunError("a", "go on", "failed"), RunError("b", "go on", "failed")
    rig.tell(ev.RunFailed(first))
    rig.tell(ev.RunFailed(second))
    assert rig.life.error is first


def test_a_sink_that_cannot_close_after_all_was_processed_is_a_failure() -> None:
    rig = Rig().running()
    drained_to_rest(rig)
    rig.rest(OUT)
    error = RunError("out", "close", "failed")
    rig.tell(ev.ProcessFailed("out", error))
    assert rig.life.error is error


def test_a_host_that_comes_after_the_end_is_sent_home() -> None:
    rig = Rig()
    rig.tell(ev.EndAsked())
    rig.tell(ev.HostUp(0))
    assert rig.orders == [do.DismissHost(0)]


def test_a_participant_that_comes_up_after_the_end_begins_nothing() -> None:
    rig = Rig()
    rig.hosts_up()
    rig.up(*EVERYBODY[:-1])
    rig.tell(ev.EndAsked())
    rig.up(OUT)
    assert rig.begun() == []


def test_an_answer_that_comes_after_the_end_does_not_take_that_back() -> None:
    rig = Rig()
    rig.hosts_up()
    rig.up(*EVERYBODY)
    rig.tell(ev.EndAsked())
    rig.ready()
    assert rig.phase() is RunPhase.ENDING
    rig.cleared()
    assert rig.phase() is RunPhase.ENDED


def test_a_run_ends_with_its_cluster() -> None:
    rig = Rig().running()
    rig.tell(ev.ClusterGone())
    assert rig.phase() is RunPhase.ENDED
    assert "was stopped while the run was going on" in str(rig.life.error)


@pytest.mark.parametrize(("node", "begins"), [(" on node 'n0'", True), ("", False)])
def test_a_protocol_error_costs_an_attempt_if_its_process_goes_on(node: str, begins: bool) -> None:
    rig = Rig().running()
    rig.tell(ev.ProcessFailed(f"a.0{node}", OutOfOrderError("a", "b", "c")))
    assert bool(rig.begun()) == begins
    assert rig.life.error is None


# Time-outs


def test_who_does_not_answer_is_asked_why_and_then_replaced() -> None:
    rig = Rig().running()
    rig.tell(ev.Tick(), after_s=2.0)  # the epoch ends
    rig.tell(co.ParticipantPrepared(S0, Attempt(1), Epoch(1)))
    rig.tell(ev.Tick(), after_s=0.1)
    rig.tell(ev.Tick(), after_s=10.1)
    assert rig.of(co.AskWhy) == [co.AskWhy(A0), co.AskWhy(A1)]
    rig.tell(co.WaitExplained(A0, ("a marker of s.1",)))
    rig.tell(ev.Tick(), after_s=2.1)
    (lost,) = rig.journal("lost")
    assert lost["reason"].endswith("| a.0: a marker of s.1")
    assert [order.who for order in rig.of(do.DropLife)] == [S1, A0, A1, OUT]


def test_silence_of_a_run_that_does_not_recover_ends_it() -> None:
    rig = Rig(durable=False).running()
    rig.tell(ev.AnswersLate((A0,)))
    assert rig.of(co.AskWhy) == [co.AskWhy(A0)]
    rig.tell(ev.AnswersLate((A0,), "no answer within 30 s: shards of a"))
    assert str(rig.life.error) == "run does not: no answer within 30 s: shards of a"
