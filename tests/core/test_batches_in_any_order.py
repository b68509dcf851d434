"""Whatever whoever runs a query does, and in whatever order it is heard of: applied once, or told.

The machine plays Spark, the executors, the checkpoint's clerk and the reception. All messages are
under way until a rule delivers them, in any order; the clerk alone does one thing after the other.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from elasticutor.core.protocol import batch_protocol as ba
from elasticutor.core.protocol import coordinator as co
from elasticutor.core.protocol.batch_protocol import Ingress
from elasticutor.core.protocol.batches import Batches
from elasticutor.core.protocol.coordinator import WriteManifest
from elasticutor.core.protocol.ids import Attempt, Epoch, Peer
from elasticutor.errors import StaleAttemptError

EXECUTORS = (Peer("x/0"), Peer("x/1"))

Work = tuple[Epoch, Attempt, frozenset[Ingress]]


@dataclass(eq=False)
class Stage:
    """A stage of Spark's."""

    epoch: Epoch
    execution: int
    number: int
    partitions: int
    tasks: int
    left: set[int] = field(default_factory=set)
    in_part: bool = False
    """Whether it was told to have fewer tasks than partitions."""
    output: int = 0
    """Which exchange its output is for."""


@dataclass
class Executor:
    """What it has applied, of the attempt that it is in."""

    attempt: Attempt = Attempt(0)
    epoch: Epoch = Epoch(0)
    upstreams: tuple[Peer, ...] = ()
    applied: dict[Peer, Ingress] = field(default_factory=dict)


class AnyOrder(RuleBasedStateMachine):
    """One operator with two executors."""

    def __init__(self) -> None:
        super().__init__()
        self.batches: Batches | None = None
        self.attempt = Attempt(0)
        self.newest, self.owed = -1, Epoch(0)
        self.executors = {who: Executor() for who in EXECUTORS}
        self.prepared: dict[tuple[Attempt, Peer], frozenset[Ingress]] = {}
        self.states: dict[Epoch, tuple[Work, ...]] = {Epoch(0): ()}
        self.pointer = Epoch(0)
        self.clerk: deque[tuple[Callable[[], None], ba.BatchEvent]] = deque()
        self.mail: list[tuple[str, Any]] = []
        self.stages: list[Stage] = [Stage(Epoch(1), 1, 0, 2, 2)]
        self.alive: dict[Ingress, str] = {}
        """Tasks that have had no last answer, and what they wait for."""
        self.identities: dict[Attempt, tuple[int, int]] = {}
        self.returned: dict[Ingress, set[Peer]] = {}
        self.seen: set[Epoch] = set()
        self.skipped: Epoch | None = None
        self.numbers = 0

    @property
    def stage(self) -> Stage:
        return self.stages[-1]

    # Spark

    @rule(pick=st.integers(0, 2), late=st.sampled_from([0, 0, 1, 2]), arrives=st.booleans())
    def launch(self, pick: int, late: int, arrives: bool) -> None:
        """Run a task, of the newest stage or not, of any partition, a second time or not."""
        stage = self.stages[-1 - late % len(self.stages)]
        self.start(stage, pick % stage.partitions)
        if arrives:
            self.deliver(len(self.mail) - 1)

    @rule(steps=st.sampled_from([5, 10, 15, 20, 30, 40, 100, 100]), whole=st.booleans())
    def let_it_run(self, steps: int, whole: bool) -> None:
        """Let things take their course for a while, perhaps with all tasks that are missing."""
        if whole:
            self.start_missing()
        for _ in range(steps):
            if self.clerk and (steps % 2 or not self.mail):
                self.work_of_the_clerk()
            elif self.mail:
                self.deliver(0)

    @rule(partitions=st.integers(1, 3))
    def execute_again(self, partitions: int) -> None:
        self.add_stage(self.stage.epoch, self.stage.execution + 1, partitions)

    @rule()
    def use_twice(self) -> None:
        self.add_stage(self.stage.epoch, self.stage.execution, self.stage.partitions)

    @precondition(lambda self: len(self.stage.left) == self.stage.partitions)
    @rule(tasks=st.integers(1, 3))
    def make_lost_output_anew(self, tasks: int) -> None:
        before = self.stage
        self.add_stage(before.epoch, before.execution, before.partitions)
        self.stage.tasks = min(tasks, before.partitions)
        self.stage.output = before.output

    @precondition(lambda self: self.stage.partitions > 1)
    @rule()
    def lose_outputs(self) -> None:
        self.stage.tasks = self.stage.partitions - 1

    @precondition(lambda self: len(self.stage.left) == self.stage.partitions)
    @rule(gap=st.integers(1, 3), partitions=st.integers(1, 3))
    def next_batch(self, gap: int, partitions: int) -> None:
        epoch = Epoch(self.stage.epoch + gap)
        self.add_stage(epoch, self.stage.execution + 1, partitions)

    @precondition(lambda self: self.skipped is None and self.stage.epoch in self.seen)
    @rule()
    def skip(self) -> None:
        """Commit a batch although it is not known to be complete."""
        self.skipped = self.stage.epoch
        self.add_stage(Epoch(self.stage.epoch + 1), self.stage.execution + 1, 1)

    @precondition(lambda self: self.skipped not in (None, *self.states))
    @rule()
    def take_back(self) -> None:
        """Run a batch that was skipped after all, from a start of the query."""
        assert self.skipped is not None
        epoch, self.skipped = self.skipped, None
        self.seen = {seen for seen in self.seen if seen <= epoch}
        self.add_stage(epoch, self.stage.execution + 1, 2)
        self.restart(0)

    def add_stage(self, epoch: Epoch, execution: int, partitions: int) -> None:
        number = len(self.stages)
        self.stages.append(Stage(epoch, execution, number, partitions, partitions, output=number))

    def start(self, stage: Stage, partition: int) -> None:
        self.numbers += 1
        task = Ingress(stage.epoch, stage.execution, stage.number, partition, self.numbers)
        self.alive[task] = "an answer"
        self.mail.append(("arrive", task))

    def start_missing(self) -> None:
        for partition in range(self.stage.partitions):
            here = [task for task in self.alive if task.stage == self.stage.number]
            if partition not in {*self.stage.left, *(task.partition for task in here)}:
                self.start(self.stage, partition)

    @precondition(lambda self: self.alive)
    @rule(pick=st.integers(0, 9))
    def kill(self, pick: int) -> None:
        task = list(self.alive)[pick % len(self.alive)]
        del self.alive[task]

    # Whoever serves it

    @rule()
    def give_up(self) -> None:
        if self.batches is not None:
            self.obey(self.batches.give_up("something was lost"))

    @rule(jobs=st.integers(0, 2))
    def restart(self, jobs: int) -> None:
        """Let the run be over; the clerk may still do something of what he had to."""
        if self.batches is None:
            return
        self.give_up()
        self.attempt, self.owed = self.batches.attempt, self.batches.owed
        self.batches = None
        for act, _ in list(self.clerk)[:jobs]:
            act()
        self.clerk.clear()

    def receive(self, task: Ingress) -> None:
        if self.batches is None:
            if task.stage <= self.newest:
                self.obey([ba.Refuse(task, "its run is over", True)])
                return
            self.pointer = self.newest_below(task.epoch)
            self.batches = Batches(EXECUTORS, committed=self.pointer, first=self.attempt)
            self.batches.owe(self.owed)
        if task.stage >= self.newest:
            self.seen.add(task.epoch)
        self.newest = max(self.newest, task.stage)
        self.tell(ba.TaskArrived(task))

    def tell(self, event: ba.BatchEvent) -> None:
        if self.batches is not None:
            try:
                orders = self.batches.handle(event)
            except StaleAttemptError:
                return
            self.obey(orders)

    def obey(self, orders: list[ba.BatchOrder]) -> None:
        for order in orders:
            match order:
                case ba.CountTasks(execution, stage):
                    assert self.batches is not None
                    self.identities[self.batches.attempt] = (execution, stage)
                    self.mail.append(("count", order))
                case ba.GoBack(attempt, base):
                    self.clerk.append((partial(self.go_back, base), ba.WentBack(attempt)))
                case WriteManifest(epoch, attempt):
                    written = ba.EpochDurable(attempt, epoch)
                    self.clerk.append((partial(self.write, order), written))
                case ba.BeginBatch():
                    self.check_base(order)
                    self.mail.append(("begin", order))
                case ba.Admit(task, attempt):
                    assert not self.stages[task.stage].in_part
                    assert self.identities[attempt] == (task.execution, task.stage)
                    self.mail += [("data", (who, order)) for who in EXECUTORS]
                    self.returned[task] = set()
                case ba.Leave(task):
                    self.leave(task)
                case ba.Refuse(task):
                    self.alive.pop(task, None)

    # The checkpoint

    @precondition(lambda self: self.clerk)
    @rule()
    def work_of_the_clerk(self) -> None:
        act, then = self.clerk.popleft()
        act()
        self.tell(then)

    def newest_below(self, epoch: Epoch) -> Epoch:
        return max(kept for kept in self.states if kept < epoch)

    def go_back(self, base: Epoch) -> None:
        assert base in self.states
        self.pointer = base

    def write(self, order: WriteManifest) -> None:
        assert self.pointer == order.predecessor < order.epoch
        (tasks,) = {self.prepared[order.attempt, who] for who in EXECUTORS}
        partitions = sorted(task.partition for task in tasks)
        assert partitions == list(range(len(tasks))), "one task per partition"
        assert len({(task.epoch, task.execution, task.stage) for task in tasks}) == 1
        state = (*self.states[self.pointer], (order.epoch, order.attempt, tasks))
        self.states = {at: kept for at, kept in self.states.items() if at <= self.pointer}
        self.states[order.epoch] = state
        self.pointer = order.epoch

    # What must hold

    def check_base(self, order: ba.BeginBatch) -> None:
        assert order.base == self.newest_below(order.epoch) == self.pointer
        inside = {epoch for epoch, _, _ in self.states[order.base]}
        assert {epoch for epoch in self.seen if epoch < order.epoch} <= inside, "none is skipped"

    def leave(self, task: Ingress) -> None:
        assert self.returned[task] == set(EXECUTORS)
        self.alive.pop(task, None)
        stage = self.stages[task.stage]
        assert task.partition not in stage.left, "once"
        stage.left.add(task.partition)
        if len(stage.left) == stage.partitions:
            epoch, _, tasks = self.states[task.epoch][-1]
            assert epoch == task.epoch
            assert {done.stage for done in tasks} == {stage.number}, "durable, and its own"

    def teardown(self) -> None:
        """Nothing waits for ever, if everybody answers and no task is missing."""
        self.start_missing()
        while self.mail or self.clerk:
            if self.mail:
                self.deliver(0)
            else:
                self.work_of_the_clerk()
        assert self.alive == {}

    # Messages

    @precondition(lambda self: self.mail)
    @rule(pick=st.integers(0, 30))
    def deliver(self, pick: int) -> None:
        kind, content = self.mail.pop(pick % len(self.mail))
        match kind, content:
            case "arrive", task:
                self.receive(task)
            case "count", ba.CountTasks(execution, number):
                stage = self.stages[number]
                stage.in_part |= stage.tasks < stage.partitions
                known = stage.tasks, stage.partitions, stage.output
                self.tell(ba.StageCounted(execution, number, *known))
            case "begin", ba.BeginBatch(who, attempt, _, epoch, _, upstreams):
                if attempt > self.executors[who].attempt:
                    self.executors[who] = Executor(attempt, epoch, upstreams)
                    self.mail.append(("event", co.ParticipantReady(who, attempt)))
            case "data", (who, ba.Admit() as admitted):
                self.apply(who, admitted)
            case "event", event:
                self.tell(event)

    @precondition(lambda self: len(self.mail) > 3)
    @rule()
    def deliver_all_that_is_here(self) -> None:
        for _ in range(len(self.mail)):
            self.deliver(0)

    def apply(self, who: Peer, admitted: ba.Admit) -> None:
        """All of a task's rows, and its marker."""
        executor, task = self.executors[who], admitted.task
        if executor.attempt != admitted.attempt:
            assert executor.attempt > admitted.attempt, "it was ready before anybody was admitted"
            return
        if task not in self.alive:
            return  # it died before it had sent
        assert admitted.upstream in executor.upstreams
        assert executor.applied.setdefault(admitted.upstream, task) == task
        self.returned[task].add(who)
        if len(self.returned[task]) == len(EXECUTORS):
            self.mail.append(("event", ba.TaskDone(task, admitted.attempt)))
        if len(executor.applied) == len(executor.upstreams):
            self.prepared[executor.attempt, who] = frozenset(executor.applied.values())
            done = co.ParticipantPrepared(who, executor.attempt, executor.epoch)
            self.mail.append(("event", done))


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(
    max_examples=250,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
