"""Who is up, which life counts, and which addresses and nodes each learns of."""

from __future__ import annotations

from tests.core.run.run_rig import A0, A1, EVERYBODY, N0, N1, N2, OUT, S0, S1, Rig

from elasticutor.core.run import run_events as ev
from elasticutor.core.run import run_instructions as do
from elasticutor.core.run.introductions import Introduction


def test_main_processes_start_at_once_and_each_end_with_its_host() -> None:
    rig = Rig()
    assert rig.started() == [(A0, 0), (A1, 0)]
    assert [order.placed.node for order in rig.of(do.StartMain)] == [N0, N1]
    rig.tell(ev.HostUp(0))
    assert rig.started() == [(S0, 0), (OUT, 0)]
    rig.tell(ev.HostUp(1))
    assert rig.started() == [(S1, 0)]


def test_an_attempt_begins_with_the_last_participant_and_not_before() -> None:
    rig = Rig()
    rig.hosts_up()
    for who in EVERYBODY[:-1]:
        rig.up(who)
        assert rig.begun() == []
    rig.up(OUT)
    assert rig.begun() == [(A0, 1), (A1, 1), (OUT, 1)]


def test_all_are_introduced_once_when_all_are_up() -> None:
    rig = Rig()
    rig.hosts_up()
    rig.up(*EVERYBODY[:-1])
    assert rig.of(Introduction) == []
    rig.up(OUT)
    assert rig.of(Introduction) == [
        Introduction((S0, S1), (A0, A1)),
        Introduction((A0, A1), (S0, S1, OUT)),
        Introduction((OUT,), (A0, A1)),
    ]


def test_of_a_successor_those_learn_that_need_it_and_it_learns_all() -> None:
    rig = Rig().running()
    rig.lose(A1)
    rig.up(A1)
    assert rig.of(Introduction) == [
        Introduction((S0, S1), (A1,)),
        Introduction((A1,), (S0, S1, OUT)),
        Introduction((OUT,), (A1,)),
    ]


def test_executors_alone_learn_of_nodes_that_came_after_they_were_started() -> None:
    rig = Rig()
    rig.hosts_up()
    rig.join(N2)
    assert rig.of(do.IntroduceNodes) == []
    rig.up(A0)
    assert rig.of(do.IntroduceNodes) == [do.IntroduceNodes((A0,), (N2,))]
    rig.up(S0, A1)
    rig.leave(N2)
    rig.join(N2)  # at another address
    assert rig.of(do.IntroduceNodes) == [do.IntroduceNodes((A0, A1), (N2,))]
    rig.up(S1, OUT)
    assert rig.of(do.IntroduceNodes) == []


def test_a_node_that_joins_is_introduced_to_runs_that_do_not_recover_too() -> None:
    for rig in (Rig(durable=False), Rig(query=True)):
        rig.hosts_up()
        rig.up(*EVERYBODY)
        rig.join(N2)
        assert rig.of(do.IntroduceNodes) == [do.IntroduceNodes((A0, A1), (N2,))]


def test_a_late_registration_of_an_earlier_life_changes_nothing() -> None:
    rig = Rig().running()
    rig.lose(A0)
    assert rig.tell(ev.ParticipantUp(A0, 0, "late")) == []
    assert A0 not in rig.life.participants.up
    rig.up(A0)
    assert rig.of(do.Connect) == [do.Connect(A0, "a.0 at 1")]


def test_who_is_missing_is_said_in_words() -> None:
    rig = Rig()
    assert rig.life.missing() == (
        "no word from a.0, a.1, s.0, s.1, out; the Spark job for sources and sinks has not started "
        "2 of its 2 tasks: are there free slots?"
    )
    rig.hosts_up()
    rig.up(*EVERYBODY[:-1])
    assert rig.life.missing() == "no word from out"
