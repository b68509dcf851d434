from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elasticutor.core.protocol.coordinator import (
    BeginAttempt,
    CommitEpoch,
    Coordinator,
    CoordinatorEvent,
    CoordinatorPhase,
    EndEpoch,
    EpochDue,
    ManifestFailed,
    ManifestWritten,
    Order,
    ParticipantFailed,
    ParticipantLost,
    ParticipantPrepared,
    ParticipantReady,
    StartSource,
    WriteManifest,
)
from elasticutor.core.protocol.ids import Attempt, Epoch, Peer
from elasticutor.errors import BadValueError, ElasticutorError, OutOfOrderError, StaleAttemptError

CLICKS, VIEWS, COUNT, JOIN, TABLE = map(Peer, ("clicks", "views", "count", "join", "table"))
SOURCES, EXECUTORS, SINKS = (CLICKS, VIEWS), (COUNT, JOIN), (TABLE,)
RECEIVERS = (*EXECUTORS, *SINKS)
EVERYBODY = (*SOURCES, *RECEIVERS)


def coordinator() -> Coordinator:
    return Coordinator(EXECUTORS, SOURCES, SINKS)


def begun(attempt: int, base: int, note: str | None = None) -> list[Order]:
    """All are told to begin, and the sink what it is to commit once more."""
    notes = {TABLE: note}
    return [
        BeginAttempt(who, Attempt(attempt), Epoch(base), Epoch(base + 1), notes.get(who))
        for who in RECEIVERS
    ]


def ready(coordinator: Coordinator) -> list[Order]:
    """All executors and sinks answer; what the last answer led to."""
    orders: list[Order] = []
    for who in RECEIVERS:
        assert orders == []
        orders = coordinator.handle(ParticipantReady(who, coordinator.attempt))
    return orders


def prepare(coordinator: Coordinator, offset: int = 0) -> list[Order]:
    """Everybody prepares the epoch; what the last answer led to."""
    orders: list[Order] = []
    for who in EVERYBODY:
        assert orders == []
        note = offset if who in SOURCES else f"{who} wrote {offset}" if who in SINKS else None
        orders = coordinator.handle(
            ParticipantPrepared(who, coordinator.attempt, coordinator.epoch, note)
        )
    return orders


def notes_of(offset: int) -> dict[Peer, Any]:
    return {CLICKS: offset, VIEWS: offset, COUNT: None, JOIN: None, TABLE: f"table wrote {offset}"}


def started(attempt: int, epoch: int, offset: Any) -> list[Order]:
    return [StartSource(who, Attempt(attempt), Epoch(epoch), offset) for who in SOURCES]


def run_epochs(coordinator: Coordinator, number: int) -> None:
    """Commit so many epochs, with ten times the epoch as the offset of each source."""
    for _ in range(number):
        coordinator.handle(EpochDue())
        epoch = coordinator.epoch
        prepare(coordinator, 10 * epoch)
        coordinator.handle(ManifestWritten(epoch))


def in_phase(phase: str, epochs: int = 0, failures: int = 0) -> Coordinator:
    """A coordinator with some epochs committed after some failures."""
    made = coordinator()
    made.start()
    for _ in range(failures):
        made.handle(failure(made))
    if phase == "beginning":
        made.handle(ParticipantReady(COUNT, made.attempt))
        return made
    ready(made)
    run_epochs(made, epochs)
    if phase == "running":
        return made
    made.handle(EpochDue())
    made.handle(ParticipantPrepared(CLICKS, made.attempt, made.epoch, "clicks's note"))
    if phase == "ending":
        return made
    for who in EVERYBODY[1:]:
        made.handle(ParticipantPrepared(who, made.attempt, made.epoch, f"{who}'s note"))
    return made


def failure(coordinator: Coordinator, who: Peer = JOIN) -> ParticipantFailed:
    return ParticipantFailed(who, coordinator.attempt, "the node is gone")


# As it should go ----------------------------------------------------------------------------------


def test_epochs_begin_end_and_are_committed_one_after_the_other() -> None:
    made = coordinator()
    assert made.start() == begun(1, 0)
    assert ready(made) == started(1, 1, None)
    for epoch in (1, 2, 3):
        assert (made.phase, made.epoch) == (CoordinatorPhase.RUNNING, epoch)
        ends = [EndEpoch(who, Attempt(1), Epoch(epoch)) for who in SOURCES]
        assert made.handle(EpochDue()) == ends
        manifest = WriteManifest(Epoch(epoch), Attempt(1), Epoch(epoch - 1), notes_of(100 * epoch))
        assert prepare(made, 100 * epoch) == [manifest]
        assert made.committed == epoch - 1
        commits = [CommitEpoch(who, Attempt(1), Epoch(epoch)) for who in (*RECEIVERS, *SOURCES)]
        assert made.handle(ManifestWritten(Epoch(epoch))) == commits
        assert made.committed == epoch


def test_answers_may_come_in_any_order() -> None:
    made = coordinator()
    made.start()
    for who in (TABLE, COUNT):
        assert made.handle(ParticipantReady(who, Attempt(1))) == []
    assert made.handle(ParticipantReady(JOIN, Attempt(1))) == started(1, 1, None)
    made.handle(EpochDue())
    for who in (TABLE, JOIN, COUNT, VIEWS):
        assert made.handle(ParticipantPrepared(who, Attempt(1), Epoch(1))) == []
    [order] = made.handle(ParticipantPrepared(CLICKS, Attempt(1), Epoch(1), 5))
    assert isinstance(order, WriteManifest)
    assert order.notes == {CLICKS: 5, VIEWS: None, COUNT: None, JOIN: None, TABLE: None}


def test_a_topology_may_do_without_sinks() -> None:
    made = Coordinator(["count"], ["clicks"], [])
    assert len(made.start()) == 1
    assert made.handle(ParticipantReady(COUNT, Attempt(1))) == [
        StartSource(CLICKS, Attempt(1), Epoch(1), None)
    ]


def test_it_starts_from_a_manifest() -> None:
    made = coordinator()
    assert made.start(Epoch(7), {CLICKS: 70, TABLE: "done"}) == begun(1, 7, "done")
    assert ready(made) == [
        StartSource(CLICKS, Attempt(1), Epoch(8), 70),
        StartSource(VIEWS, Attempt(1), Epoch(8), None),
    ]
    made.handle(EpochDue())
    assert prepare(made, 80) == [WriteManifest(Epoch(8), Attempt(1), Epoch(7), notes_of(80))]


def test_a_written_manifest_is_not_changed_by_what_comes_later() -> None:
    made = in_phase("running")
    made.handle(EpochDue())
    [manifest] = prepare(made, 10)
    made.handle(ManifestWritten(Epoch(1)))
    run_epochs(made, 1)
    assert manifest == WriteManifest(Epoch(1), Attempt(1), Epoch(0), notes_of(10))


@pytest.mark.parametrize("phase", ["beginning", "ending", "writing"])
def test_an_epoch_is_not_due_before_the_last_one_is_done(phase: str) -> None:
    made = in_phase(phase)
    before = deepcopy(vars(made))
    assert made.handle(EpochDue()) == []
    assert vars(made) == before


def test_an_epoch_is_not_due_before_the_start() -> None:
    made = coordinator()
    assert made.handle(EpochDue()) == []
    assert made.phase is CoordinatorPhase.IDLE


def test_who_is_waited_for_can_be_asked() -> None:
    made = in_phase("beginning")
    assert made.waiting_for() == [
        "beginning, attempt 1, epoch 1",
        "join to be ready",
        "table to be ready",
    ]
    assert in_phase("running").waiting_for() == ["running, attempt 1, epoch 1"]
    assert in_phase("ending").waiting_for() == [
        "ending, attempt 1, epoch 1",
        *(f"{who} to prepare" for who in EVERYBODY[1:]),
    ]
    assert in_phase("writing").waiting_for() == ["writing, attempt 1, epoch 1"]


# Failures -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("who", EVERYBODY)
@pytest.mark.parametrize("phase", ["running", "ending"])
def test_a_failure_leads_back_to_the_last_committed_epoch(phase: str, who: Peer) -> None:
    made = in_phase(phase, epochs=2)
    assert made.handle(failure(made, who)) == begun(2, 2, "table wrote 20")
    assert ready(made) == started(2, 3, 20)
    made.handle(EpochDue())
    assert prepare(made, 33) == [WriteManifest(Epoch(3), Attempt(2), Epoch(2), notes_of(33))]


def test_a_failure_before_the_first_commit_leads_back_to_the_beginning() -> None:
    made = in_phase("ending")
    assert made.handle(failure(made)) == begun(2, 0)
    assert ready(made) == started(2, 1, None)


def test_a_failure_while_beginning_begins_again() -> None:
    made = coordinator()
    made.start(Epoch(5), {CLICKS: 50, VIEWS: 50})
    made.handle(ParticipantReady(COUNT, Attempt(1)))
    assert made.handle(failure(made)) == begun(2, 5)
    assert ready(made) == started(2, 6, 50)


def test_a_failure_while_writing_waits_for_the_manifest() -> None:
    made = in_phase("writing", epochs=2)
    assert made.handle(failure(made)) == []
    assert (made.phase, made.attempt, made.committed) == (CoordinatorPhase.WRITING, 1, 2)


@pytest.mark.parametrize("failures", [1, 2])
def test_a_manifest_written_after_a_failure_is_the_new_base(failures: int) -> None:
    made = in_phase("writing", epochs=2)
    for who in (COUNT, CLICKS)[:failures]:
        made.handle(failure(made, who))
    to_sources = [CommitEpoch(who, Attempt(1), Epoch(3)) for who in SOURCES]
    again = [*begun(2, 3, "table's note"), *to_sources]
    assert made.handle(ManifestWritten(Epoch(3))) == again
    assert ready(made) == [
        StartSource(CLICKS, Attempt(2), Epoch(4), "clicks's note"),
        StartSource(VIEWS, Attempt(2), Epoch(4), "views's note"),
    ]


@pytest.mark.parametrize("failed_before", [False, True])
def test_a_manifest_that_failed_leaves_the_old_base(failed_before: bool) -> None:
    made = in_phase("writing", epochs=2)
    if failed_before:
        made.handle(failure(made))
    again = made.handle(ManifestFailed(Epoch(3), "the disk is full"))
    assert again == begun(2, 2, "table wrote 20")
    assert ready(made) == started(2, 3, 20)


def test_a_failure_that_was_dealt_with_is_forgotten() -> None:
    made = in_phase("writing")
    made.handle(failure(made))
    made.handle(ManifestWritten(Epoch(1)))
    ready(made)
    made.handle(EpochDue())
    prepare(made)
    commits = [CommitEpoch(who, Attempt(2), Epoch(2)) for who in (*RECEIVERS, *SOURCES)]
    assert made.handle(ManifestWritten(Epoch(2))) == commits


def test_what_was_prepared_before_a_failure_does_not_count_after_it() -> None:
    made = in_phase("ending")
    made.handle(failure(made))
    ready(made)
    made.handle(EpochDue())
    for who in EVERYBODY[1:]:
        assert made.handle(ParticipantPrepared(who, Attempt(2), Epoch(1))) == []
    [order] = made.handle(ParticipantPrepared(CLICKS, Attempt(2), Epoch(1), "anew"))
    assert isinstance(order, WriteManifest)
    assert order.notes[CLICKS] == "anew"


# Refusals -----------------------------------------------------------------------------------------


def refuse(
    coordinator: Coordinator, event: CoordinatorEvent, error: type[ElasticutorError]
) -> None:
    before = deepcopy(vars(coordinator))
    with pytest.raises(error):
        coordinator.handle(event)
    assert vars(coordinator) == before


@pytest.mark.parametrize("phase", ["beginning", "running", "ending", "writing"])
def test_events_of_other_attempts_are_refused(phase: str) -> None:
    made = in_phase(phase, failures=4)
    assert made.attempt == 5
    for attempt, error in ((Attempt(4), StaleAttemptError), (Attempt(6), OutOfOrderError)):
        refuse(made, ParticipantReady(JOIN, attempt), error)
        refuse(made, ParticipantPrepared(JOIN, attempt, made.epoch), error)
        refuse(made, ParticipantFailed(JOIN, attempt, "late"), error)


@pytest.mark.parametrize("phase", ["beginning", "running", "ending", "writing"])
def test_answers_that_nobody_waits_for_are_refused(phase: str) -> None:
    made = in_phase(phase, epochs=1)
    attempt, epoch = made.attempt, made.epoch
    refuse(made, ParticipantReady(COUNT, attempt), OutOfOrderError)  # has answered already
    refuse(made, ParticipantReady(CLICKS, attempt), OutOfOrderError)  # a source is not asked
    refuse(made, ParticipantReady(Peer("stranger"), attempt), OutOfOrderError)
    refuse(made, ParticipantPrepared(CLICKS, attempt, epoch), OutOfOrderError)
    refuse(made, ParticipantPrepared(Peer("stranger"), attempt, epoch), OutOfOrderError)
    refuse(made, ParticipantPrepared(VIEWS, attempt, Epoch(epoch - 1)), OutOfOrderError)
    refuse(made, ParticipantPrepared(VIEWS, attempt, Epoch(epoch + 1)), OutOfOrderError)
    if phase != "beginning":
        refuse(made, ParticipantReady(JOIN, attempt), OutOfOrderError)
    if phase != "ending":
        refuse(made, ParticipantPrepared(VIEWS, attempt, epoch), OutOfOrderError)
    if phase != "writing":
        refuse(made, ManifestWritten(epoch), OutOfOrderError)
        refuse(made, ManifestFailed(epoch, "late"), OutOfOrderError)
    for other in (Epoch(epoch - 1), Epoch(epoch + 1)):
        refuse(made, ManifestWritten(other), OutOfOrderError)
        refuse(made, ManifestFailed(other, "late"), OutOfOrderError)


def test_nobody_answers_before_the_start() -> None:
    made = coordinator()
    refuse(made, ParticipantReady(COUNT, Attempt(0)), OutOfOrderError)
    refuse(made, ParticipantPrepared(COUNT, Attempt(0), Epoch(1)), OutOfOrderError)
    refuse(made, ManifestWritten(Epoch(1)), OutOfOrderError)


def test_it_starts_once() -> None:
    made = in_phase("running")
    before = deepcopy(vars(made))
    with pytest.raises(OutOfOrderError, match="coordinator must be idle"):
        made.start(Epoch(9), {CLICKS: 90})
    assert vars(made) == before


@pytest.mark.parametrize(
    ("executors", "sources", "sinks"),
    [
        (["count", "count"], ["clicks"], []),
        (["count"], ["clicks", "clicks"], []),
        (["count"], ["clicks"], ["table", "table"]),
        (["count"], ["count"], []),
        (["count"], ["clicks"], ["clicks"]),
        (["count"], ["clicks"], ["count"]),
    ],
)
def test_names_must_differ(executors: list[str], sources: list[str], sinks: list[str]) -> None:
    with pytest.raises(BadValueError, match="names of participants must differ"):
        Coordinator(executors, sources, sinks)


@pytest.mark.parametrize(("executors", "sources"), [([], ["clicks"]), (["count"], [])])
def test_a_topology_has_a_source_and_an_executor(executors: list[str], sources: list[str]) -> None:
    with pytest.raises(BadValueError, match="have a source and an executor"):
        Coordinator(executors, sources, ["table"])


# Whatever happens ---------------------------------------------------------------------------------


class Topology:
    """Participants that answer when they are let, and a checkpoint location with manifests."""

    def __init__(self) -> None:
        self.coordinator = coordinator()
        self.answers: list[CoordinatorEvent] = []
        self.manifests: list[WriteManifest] = []
        self.offset = 0
        self.carry_out(self.coordinator.start())

    @property
    def newest(self) -> WriteManifest:
        return (
            self.manifests[-1]
            if self.manifests
            else WriteManifest(Epoch(0), Attempt(0), Epoch(0), {})
        )

    def tell(self, event: CoordinatorEvent) -> None:
        current = self.coordinator.attempt
        if getattr(event, "attempt", current) == current:
            self.carry_out(self.coordinator.handle(event))
        else:
            refuse(self.coordinator, event, StaleAttemptError)

    def carry_out(self, orders: list[Order]) -> None:
        for order in orders:
            match order:
                case BeginAttempt(who, attempt, base, epoch):
                    assert (base, epoch) == (self.newest.epoch, self.newest.epoch + 1)
                    self.answers.append(ParticipantReady(who, attempt))
                case StartSource(who, attempt, epoch, offset):
                    assert epoch == self.newest.epoch + 1
                    assert offset == self.newest.notes.get(who)
                case EndEpoch(who, attempt, epoch):
                    assert epoch == self.newest.epoch + 1
                    self.offset += 1
                    self.answers.append(ParticipantPrepared(who, attempt, epoch, self.offset))
                    if who == CLICKS:  # the marker travels from the sources to everybody
                        self.answers += [
                            ParticipantPrepared(peer, attempt, epoch) for peer in RECEIVERS
                        ]
                case WriteManifest(epoch, _, predecessor, notes):
                    assert predecessor == self.newest.epoch
                    assert epoch == predecessor + 1
                    assert set(notes) == set(EVERYBODY)
                    self.manifests.append(order)
                    self.answers.append(ManifestWritten(epoch))
                case CommitEpoch(who, attempt, epoch):
                    assert epoch == self.newest.epoch
                    # Sources hear of a commit in the attempt that they have started last.
                    behind = who in SOURCES and self.coordinator.phase is CoordinatorPhase.BEGINNING
                    assert attempt == self.coordinator.attempt - behind

    def fail_to_write(self) -> None:
        for answer in self.answers:
            if isinstance(answer, ManifestWritten):
                self.answers.remove(answer)
                self.manifests.pop()
                self.tell(ManifestFailed(answer.epoch, "the disk is full"))
                return


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("answer"), st.integers(0, 20)),
            st.tuples(st.just("answer"), st.just(0)),
            st.tuples(st.just("due"), st.just(0)),
            st.tuples(st.sampled_from(["fail", "fail to write"]), st.integers(0, 4)),
        ),
        max_size=80,
    )
)
def test_it_always_goes_on_from_the_newest_manifest(steps: list[tuple[str, int]]) -> None:
    topology = Topology()
    for what, number in steps:
        if what == "answer" and topology.answers:
            topology.tell(topology.answers.pop(number % len(topology.answers)))
        elif what == "due":
            topology.tell(EpochDue())
        elif what == "fail":
            topology.tell(failure(topology.coordinator, EVERYBODY[number]))
        elif what == "fail to write":
            topology.fail_to_write()

    # When failures cease, epochs are committed again.
    reached = topology.newest.epoch
    for _ in range(3):
        while topology.answers:
            topology.tell(topology.answers.pop(0))
        topology.tell(EpochDue())
    assert topology.coordinator.committed >= reached + 1
    assert [m.epoch for m in topology.manifests] == list(range(1, topology.newest.epoch + 1))


def test_a_failure_before_the_start_or_of_a_stranger_begins_nothing() -> None:
    coordinator = Coordinator(["e"], ["s"], [])
    with pytest.raises(OutOfOrderError):
        coordinator.handle(ParticipantFailed(Peer("e"), Attempt(0), "too early"))
    assert coordinator.phase is CoordinatorPhase.IDLE
    coordinator.start()
    with pytest.raises(OutOfOrderError):
        coordinator.handle(ParticipantFailed(Peer("nobody"), Attempt(1), "who?"))
    assert coordinator.attempt == 1


def test_an_event_of_another_kind_is_refused() -> None:
    with pytest.raises(BadValueError, match="event must be one for a coordinator"):
        Coordinator(["e"], ["s"], []).handle(object())  # type: ignore[arg-type]


def test_a_new_coordinator_goes_on_with_the_next_attempt() -> None:
    made = coordinator()
    assert made.start(Epoch(7), {CLICKS: 70}, Attempt(5)) == begun(6, 7)


def test_a_lost_participant_costs_the_attempt_whatever_attempt_it_knew() -> None:
    made = in_phase("beginning")
    assert made.handle(ParticipantLost(COUNT, "killed")) == begun(made.attempt, 0)
    assert made.attempt == 2
