"""Fencing of micro-batches: what is run again is applied once, and nothing is skipped."""

from __future__ import annotations

import pytest

from elasticutor.core.protocol import batch_protocol as ba
from elasticutor.core.protocol import coordinator as co
from elasticutor.core.protocol.batch_attempt import BatchPhase
from elasticutor.core.protocol.batch_protocol import BatchOrder, Ingress
from elasticutor.core.protocol.batches import Batches
from elasticutor.core.protocol.coordinator import WriteManifest
from elasticutor.core.protocol.ids import Attempt, Epoch, Peer
from elasticutor.errors import BadValueError, OutOfOrderError, StaleAttemptError

EXECUTORS = ("x/0", "x/1")


def a_task(
    partition: int = 0, *, epoch: int = 5, execution: int = 1, stage: int = 1, number: int = -1
) -> Ingress:
    task = 1000 * stage + partition if number < 0 else number
    return Ingress(Epoch(epoch), execution, stage, partition, task)


class Query:
    """A query that does what it should, unless told otherwise."""

    def __init__(self, *, committed: int = 4, keeps: bool = True) -> None:
        self.batches = Batches(EXECUTORS, committed=Epoch(committed), keeps=keeps)

    @property
    def attempt(self) -> Attempt:
        return self.batches.attempt

    def tell(self, event: ba.BatchEvent) -> list[BatchOrder]:
        return self.batches.handle(event)

    def arrive(self, *tasks: Ingress) -> list[BatchOrder]:
        return [order for task in tasks for order in self.tell(ba.TaskArrived(task))]

    def counted(self, task: Ingress, partitions: int) -> list[BatchOrder]:
        event = ba.StageCounted(task.execution, task.stage, partitions, partitions)
        return self.tell(event)

    def ready(self) -> list[BatchOrder]:
        orders = [self.tell(co.ParticipantReady(Peer(who), self.attempt)) for who in EXECUTORS]
        return [order for some in orders for order in some]

    def run(self, *tasks: Ingress) -> list[BatchOrder]:
        """Let tasks come, one per partition, until they may send."""
        self.arrive(*tasks)
        self.counted(tasks[0], len(tasks))
        if self.batches.phase is BatchPhase.RETURNING:
            self.tell(ba.WentBack(self.attempt))
        return self.ready()

    def done(self, task: Ingress) -> list[BatchOrder]:
        return self.tell(ba.TaskDone(task, self.attempt))

    def prepare(self) -> list[BatchOrder]:
        epoch = self.batches.epoch
        orders = [
            self.tell(co.ParticipantPrepared(Peer(who), self.attempt, epoch)) for who in EXECUTORS
        ]
        return [order for some in orders for order in some]

    def durable(self) -> list[BatchOrder]:
        return self.tell(ba.EpochDurable(self.attempt, self.batches.epoch))

    def finish(self, *tasks: Ingress) -> list[BatchOrder]:
        """Run a batch to its end."""
        self.run(*tasks)
        orders = [order for task in tasks for order in self.done(task)]
        return [*orders, *self.prepare(), *self.durable()]


def refusals(orders: list[BatchOrder]) -> list[ba.Refuse]:
    return [order for order in orders if isinstance(order, ba.Refuse)]


def begins(orders: list[BatchOrder]) -> list[ba.BeginBatch]:
    return [order for order in orders if isinstance(order, ba.BeginBatch)]


def admitted(orders: list[BatchOrder]) -> list[Ingress]:
    return [order.task for order in orders if isinstance(order, ba.Admit)]


# How a batch begins -------------------------------------------------------------------------------


def test_the_first_task_asks_how_many_there_are_and_nobody_begins_before_that_is_known() -> None:
    query = Query()
    assert query.arrive(a_task(0)) == [ba.CountTasks(1, 1)]
    assert query.arrive(a_task(1)) == []


def test_every_executor_is_told_the_base_and_all_upstreams() -> None:
    query = Query()
    query.arrive(a_task(1))
    orders = begins(query.counted(a_task(1), 3))
    assert [order.who for order in orders] == list(EXECUTORS)
    assert {(order.base, order.epoch) for order in orders} == {(4, 5)}
    assert orders[0].upstreams == ("p0@1", "p1@1", "p2@1")


def test_nobody_is_admitted_before_all_executors_are_ready() -> None:
    query = Query()
    query.arrive(a_task(0))
    query.counted(a_task(0), 1)
    assert query.tell(co.ParticipantReady(Peer("x/0"), Attempt(1))) == []
    assert admitted(query.tell(co.ParticipantReady(Peer("x/1"), Attempt(1)))) == [a_task(0)]


def test_a_task_that_comes_while_others_send_is_admitted_at_once() -> None:
    query = Query()
    query.arrive(a_task(0))
    query.counted(a_task(0), 2)
    query.ready()
    assert query.arrive(a_task(1)) == [ba.Admit(a_task(1), Attempt(1), Peer("p1@1"))]


def test_numbers_of_batches_may_have_gaps() -> None:
    query = Query(committed=4)
    query.finish(a_task(epoch=9))
    query.arrive(a_task(epoch=12, stage=2))
    orders = begins(query.counted(a_task(epoch=12, stage=2), 1))
    assert {(order.base, order.epoch) for order in orders} == {(9, 12)}


def test_a_batch_is_known_to_be_committed_when_a_later_one_begins() -> None:
    query = Query()
    query.finish(a_task())
    assert query.batches.committed == 4
    query.arrive(a_task(epoch=6, stage=2))
    assert query.batches.committed == 5


# How it ends --------------------------------------------------------------------------------------


def test_a_task_may_leave_before_others_have_begun() -> None:
    query = Query()
    query.arrive(a_task(0))
    query.counted(a_task(0), 2)
    query.ready()
    assert query.done(a_task(0)) == [ba.Leave(a_task(0))]
    assert admitted(query.arrive(a_task(1))) == [a_task(1)]


def test_the_last_task_waits_until_the_epoch_is_durable() -> None:
    query = Query()
    query.run(a_task(0), a_task(1))
    assert query.done(a_task(1)) == [ba.Leave(a_task(1))]
    assert query.done(a_task(0)) == []
    assert [type(order) for order in query.prepare()] == [WriteManifest]
    assert query.durable() == [ba.Leave(a_task(0))]


def test_the_last_task_leaves_at_once_if_the_epoch_is_durable_already() -> None:
    query = Query()
    query.run(a_task())
    query.prepare()
    assert query.durable() == []
    assert query.done(a_task()) == [ba.Leave(a_task())]


def test_the_manifest_names_its_predecessor_and_what_executors_said() -> None:
    query = Query()
    query.run(a_task())
    query.tell(co.ParticipantPrepared(Peer("x/1"), Attempt(1), Epoch(5), ("f",)))
    (order,) = query.tell(co.ParticipantPrepared(Peer("x/0"), Attempt(1), Epoch(5)))
    notes = {Peer("x/0"): None, Peer("x/1"): ("f",)}
    assert order == WriteManifest(Epoch(5), Attempt(1), Epoch(4), notes)


def test_without_anything_kept_the_last_leaves_when_all_are_prepared() -> None:
    query = Query(committed=0, keeps=False)
    query.run(a_task(epoch=1))
    assert query.done(a_task(epoch=1)) == []
    assert query.prepare() == [ba.Leave(a_task(epoch=1))]


# What is run again --------------------------------------------------------------------------------


def test_a_second_task_of_a_partition_ends_the_attempt() -> None:
    query = Query()
    query.run(a_task(0), a_task(1))
    copy = a_task(0, number=77)
    orders = query.arrive(copy)
    assert [order.task for order in refusals(orders)] == [a_task(0), a_task(1), copy]
    assert query.batches.phase is BatchPhase.ABORTED


def test_a_copy_of_a_task_that_has_left_harms_only_itself() -> None:
    query = Query()
    query.run(a_task(0), a_task(1))
    query.done(a_task(0))
    copy = a_task(0, number=77)
    assert [order.task for order in refusals(query.arrive(copy))] == [copy]
    query.done(a_task(1))
    query.prepare()
    assert query.durable() == [ba.Leave(a_task(1))]


def test_tasks_of_an_attempt_that_was_given_up_are_refused_with_its_reason() -> None:
    query = Query()
    query.run(a_task(0))
    query.batches.give_up("a node is gone")
    (refusal,) = refusals(query.arrive(a_task(0, number=77)))
    assert (refusal.reason, refusal.again) == ("a node is gone", True)


def test_a_later_execution_of_a_durable_batch_goes_back_before_it_begins() -> None:
    query = Query()
    query.finish(a_task())
    again = a_task(execution=2, stage=2)
    assert query.arrive(again) == [ba.GoBack(Attempt(2), Epoch(4)), ba.CountTasks(2, 2)]
    assert query.counted(again, 1) == []
    orders = begins(query.tell(ba.WentBack(Attempt(2))))
    assert {(order.base, order.epoch, order.attempt) for order in orders} == {(4, 5, 2)}


def test_a_later_execution_goes_back_even_if_the_manifest_was_still_being_written() -> None:
    query = Query()
    query.run(a_task())
    query.done(a_task())
    query.prepare()
    orders = query.arrive(a_task(execution=2, stage=2))
    assert [order.task for order in refusals(orders)] == [a_task()]
    assert ba.GoBack(Attempt(2), Epoch(4)) in orders
    with pytest.raises(StaleAttemptError):
        query.tell(ba.EpochDurable(Attempt(1), Epoch(5)))


def test_nobody_goes_back_where_nothing_was_written() -> None:
    query = Query()
    query.run(a_task())
    query.batches.give_up("lost")
    assert query.arrive(a_task(execution=2, stage=2)) == [ba.CountTasks(2, 2)]


def test_who_was_told_to_go_back_and_gave_up_first_is_told_again() -> None:
    query = Query()
    query.finish(a_task())
    query.arrive(a_task(execution=2, stage=2))
    query.batches.give_up("lost")
    assert ba.GoBack(Attempt(3), Epoch(4)) in query.arrive(a_task(execution=3, stage=3))


def test_an_execution_that_is_superseded_has_its_tasks_refused_and_late_ones_too() -> None:
    query = Query()
    query.run(a_task(0), a_task(1))
    query.done(a_task(0))
    orders = query.arrive(a_task(execution=2, stage=2))
    assert [order.task for order in refusals(orders)] == [a_task(1)]
    late = a_task(0, number=99)
    assert [order.task for order in refusals(query.arrive(late))] == [late]
    assert query.attempt == 2


def test_a_stage_of_an_earlier_execution_cannot_go_on_under_a_later_one() -> None:
    query = Query()
    query.run(a_task(0), a_task(1))
    query.done(a_task(0))
    query.batches.give_up("lost")
    rest = a_task(1, execution=2, stage=1, number=99)
    assert [order.task for order in refusals(query.arrive(rest))] == [rest]


def test_a_second_stage_in_one_execution_is_refused_for_good() -> None:
    query = Query()
    query.run(a_task())
    orders = refusals(query.arrive(a_task(stage=2)))
    assert [(order.task.stage, order.again) for order in orders] == [(1, False), (2, False)]
    (later,) = refusals(query.arrive(a_task(number=99)))
    assert not later.again


def test_a_second_stage_in_one_execution_is_known_whichever_comes_first() -> None:
    query = Query()
    query.run(a_task(stage=2))
    orders = refusals(query.arrive(a_task(stage=1)))
    assert [(order.task.stage, order.again) for order in orders] == [(2, False), (1, False)]


def test_a_stage_run_in_part_is_refused() -> None:
    query = Query()
    query.arrive(a_task(1))
    orders = query.tell(ba.StageCounted(1, 1, tasks=2, partitions=3))
    assert [order.task for order in refusals(orders)] == [a_task(1)]


@pytest.mark.parametrize("over", [False, True])
def test_a_partition_beyond_those_of_the_stage_gets_an_answer(over: bool) -> None:
    query = Query()
    if over:
        query.finish(a_task(0))
    else:
        query.run(a_task(0))
    assert a_task(3) in [order.task for order in refusals(query.arrive(a_task(3)))]


def test_without_anything_kept_every_execution_begins_with_nothing() -> None:
    query = Query(committed=0, keeps=False)
    first = a_task(epoch=1)
    query.run(first)
    query.done(first)
    query.prepare()
    again = a_task(epoch=1, execution=1, stage=2)
    assert query.arrive(again) == [ba.CountTasks(1, 2)]
    assert {order.base for order in begins(query.counted(again, 1))} == {0}


# What is never skipped ----------------------------------------------------------------------------


def test_a_batch_that_is_committed_already_is_refused_for_good() -> None:
    (refusal,) = refusals(Query(committed=4).arrive(a_task(epoch=4)))
    assert not refusal.again
    assert "older than the state" in refusal.reason


def test_no_batch_follows_one_that_is_not_in_the_state() -> None:
    query = Query()
    query.run(a_task())
    orders = refusals(query.arrive(a_task(epoch=6, execution=2, stage=2)))
    assert [(order.task.epoch, order.again) for order in orders] == [(5, False), (6, False)]
    assert "batch 4 is not in the state" in orders[-1].reason
    assert refusals(query.arrive(a_task(epoch=7, execution=3, stage=3)))


def test_a_restart_helps_if_an_earlier_execution_of_the_batch_is_durable() -> None:
    query = Query()
    query.finish(a_task())
    query.run(a_task(execution=2, stage=2))
    query.batches.give_up("lost")
    (refusal,) = refusals(query.arrive(a_task(epoch=6, execution=3, stage=3)))
    assert refusal.again


def test_a_batch_that_another_run_has_begun_must_come_before_later_ones() -> None:
    query = Query()
    query.batches.owe(Epoch(5))
    (refusal,) = refusals(query.arrive(a_task(epoch=6)))
    assert "batch 4 is not in the state" in refusal.reason
    assert not refusal.again


def test_a_batch_that_another_run_has_begun_may_come_again() -> None:
    query = Query()
    query.batches.owe(Epoch(5))
    query.finish(a_task())
    assert query.arrive(a_task(epoch=6, execution=2, stage=2)) == [ba.CountTasks(2, 2)]


def test_nothing_is_owed_that_became_durable_after_all() -> None:
    query = Query(committed=5)
    query.batches.owe(Epoch(5))
    assert query.arrive(a_task(epoch=6)) == [ba.CountTasks(1, 1)]


# What comes late, or cannot be --------------------------------------------------------------------


@pytest.mark.parametrize(
    "event",
    [
        ba.StageCounted(1, 1, 1, 1),
        ba.WentBack(Attempt(1)),
        co.ParticipantReady(Peer("x/0"), Attempt(1)),
        co.ParticipantPrepared(Peer("x/0"), Attempt(1), Epoch(5)),
        ba.TaskDone(a_task(), Attempt(1)),
        ba.EpochDurable(Attempt(1), Epoch(5)),
    ],
    ids=lambda event: type(event).__name__,
)
def test_what_belongs_to_an_attempt_that_was_given_up_is_late(event: ba.BatchEvent) -> None:
    query = Query()
    query.run(a_task())
    query.run(a_task(execution=2, stage=2))
    with pytest.raises(StaleAttemptError):
        query.tell(event)
    assert query.batches.phase is BatchPhase.RUNNING


@pytest.mark.parametrize(
    "event",
    [
        ba.TaskArrived(a_task()),
        ba.WentBack(Attempt(1)),
        co.ParticipantReady(Peer("x/0"), Attempt(2)),
        co.ParticipantPrepared(Peer("x/0"), Attempt(1), Epoch(6)),
        co.ParticipantPrepared(Peer("y/0"), Attempt(1), Epoch(5)),
        ba.TaskDone(a_task(1), Attempt(1)),
        ba.EpochDurable(Attempt(1), Epoch(5)),
    ],
    ids=str,
)
def test_what_cannot_come_now_is_told_and_changes_nothing(event: ba.BatchEvent) -> None:
    query = Query()
    query.run(a_task())
    with pytest.raises(OutOfOrderError):
        query.tell(event)
    assert query.done(a_task()) == []
    query.prepare()
    assert query.durable() == [ba.Leave(a_task())]


def test_nobody_is_done_who_was_not_admitted() -> None:
    query = Query()
    query.arrive(a_task())
    query.counted(a_task(), 1)
    with pytest.raises(OutOfOrderError):
        query.done(a_task())


@pytest.mark.parametrize("task", [a_task(epoch=0), a_task(-1)], ids=["batch", "partition"])
def test_a_task_without_a_batch_or_a_partition_cannot_be(task: Ingress) -> None:
    with pytest.raises(BadValueError):
        Query().arrive(task)


def test_a_stage_has_tasks() -> None:
    query = Query()
    query.arrive(a_task())
    with pytest.raises(BadValueError):
        query.tell(ba.StageCounted(1, 1, 0, 0))


def test_there_is_an_executor() -> None:
    with pytest.raises(BadValueError):
        Batches([])


# What others see ----------------------------------------------------------------------------------


def test_it_tells_whom_everybody_waits_for() -> None:
    query = Query()
    assert query.batches.waiting_for() == ["the first batch"]
    query.arrive(a_task())
    query.counted(a_task(), 1)
    assert query.batches.missing() == EXECUTORS
    assert "answer of x/0, x/1" in query.batches.waiting_for()
    query.ready()
    assert not query.batches.waits()
    query.done(a_task())
    assert query.batches.waits()
    assert query.batches.missing() == EXECUTORS


# A second stage in one execution, when the first is done ------------------------------------------


def finished(output: int | None = 77) -> Query:
    """A batch that is complete, and whose stage's output is for an exchange."""
    query = Query()
    query.arrive(a_task())
    query.tell(ba.StageCounted(1, 1, 1, 1, output))
    query.ready()
    assert refusals([*query.done(a_task()), *query.prepare(), *query.durable()]) == []
    return query


def counted_as(output: int | None) -> ba.StageCounted:
    return ba.StageCounted(1, 2, 1, 2, output)


def test_a_stage_that_makes_lost_output_anew_is_refused_and_running_the_batch_again_helps() -> None:
    query = finished()
    assert query.arrive(a_task(stage=2)) == [ba.CountTasks(1, 2)]
    assert query.arrive(a_task(1, stage=2)) == []
    told = refusals(query.tell(counted_as(77)))
    assert [refused.task for refused in told] == [a_task(stage=2), a_task(1, stage=2)]
    assert all(refused.again and "was lost" in refused.reason for refused in told)
    assert query.batches.phase is BatchPhase.DURABLE
    # And so it does.
    assert len(admitted(query.run(a_task(execution=2, stage=3)))) == 1


@pytest.mark.parametrize(("first", "second"), [(77, 78), (77, None), (None, 78), (None, None)])
def test_a_second_use_is_refused_and_running_the_batch_again_would_not_help(
    first: int | None, second: int | None
) -> None:
    query = finished(first)
    query.arrive(a_task(stage=2))
    [refused] = refusals(query.tell(counted_as(second)))
    assert not refused.again
    assert "used twice" in refused.reason


def test_while_the_first_stage_has_tasks_a_second_one_can_only_be_a_second_use() -> None:
    query = Query()
    query.run(a_task(0), a_task(1))
    query.done(a_task(0))
    told = refusals(query.arrive(a_task(stage=2)))
    assert [refused.task for refused in told] == [a_task(1), a_task(stage=2)]
    assert not any(refused.again for refused in told)


def test_who_waits_for_what_its_stage_is_for_is_not_forgotten() -> None:
    query = finished()
    query.arrive(a_task(stage=2))
    assert query.batches.present == [a_task(stage=2)]
    assert query.batches.waits()
    assert "what stage 2 is for" in query.batches.waiting_for()
    [refused] = refusals(query.batches.give_up("the size of stage 2 is not known"))
    assert refused == ba.Refuse(a_task(stage=2), "the size of stage 2 is not known", True)
    assert query.batches.present == []
    assert not query.batches.waits()
    with pytest.raises(StaleAttemptError):
        query.tell(counted_as(77))


def test_what_a_stage_is_for_is_asked_once() -> None:
    query = finished()
    query.arrive(a_task(stage=2))
    [first] = query.tell(counted_as(77))
    [second] = query.arrive(a_task(1, stage=2))
    assert isinstance(first, ba.Refuse)
    assert second == ba.Refuse(a_task(1, stage=2), first.reason, True)


def test_a_stage_that_cannot_be_looked_into_takes_nobody_else_along() -> None:
    query = finished()
    query.arrive(a_task(stage=2))
    asked = ba.CountTasks(1, 2)
    assert query.batches.cannot_count(asked, "gone") == [ba.Refuse(a_task(stage=2), "gone", True)]
    assert query.batches.phase is BatchPhase.DURABLE
    query.run(a_task(execution=2, stage=3))
    assert query.batches.cannot_count(asked, "gone") == []
    assert query.batches.cannot_count(ba.CountTasks(2, 3), "gone") == []  # it is known already
    assert query.batches.present == [a_task(execution=2, stage=3)]


def test_a_first_stage_that_cannot_be_counted_is_given_up() -> None:
    query = Query()
    query.arrive(a_task())
    orders = query.batches.cannot_count(ba.CountTasks(1, 1), "gone")
    assert orders == [ba.Refuse(a_task(), "gone", True)]
    assert query.batches.phase is BatchPhase.ABORTED
    assert Query().batches.cannot_count(ba.CountTasks(1, 1), "gone") == []


def test_another_execution_refuses_those_in_doubt() -> None:
    query = finished()
    query.arrive(a_task(stage=2))
    told = refusals(query.arrive(a_task(execution=2, stage=3)))
    assert [refused.task for refused in told] == [a_task(stage=2)]


def test_giving_up_twice_refuses_nobody_twice() -> None:
    query = Query()
    query.run(a_task())
    assert len(query.batches.give_up("lost")) == 1
    assert query.batches.give_up("lost") == []
    assert query.batches.present == []


def test_giving_up_a_batch_that_is_complete_changes_nothing() -> None:
    query = Query()
    query.finish(a_task())
    assert query.batches.give_up("lost") == []
    assert query.batches.phase is BatchPhase.DURABLE
