"""Checked runs of a micro-batch query: the epochs are batches, and this module plays Spark.

A batch is executed operator after operator: the stage of the next begins when all tasks of the last
have left, as after an exchange. Tasks come in waves, are copied, die and are tried again; stages
are run again in part; batches are executed again, before and after they are durable and published;
and the query is restarted at any time. The core decides what becomes of the tasks.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from elasticutor.core.executor.executor import Phase
from elasticutor.core.protocol import batch_protocol as ba
from elasticutor.core.protocol import coordinator as co
from elasticutor.core.protocol import instructions as do
from elasticutor.core.protocol.ids import Epoch, NodeId, ShardId, TaskId
from elasticutor.lab.check.pipeline import ChainOperator, Expected, Row, by_origin
from elasticutor.lab.check.query_driver import CheckedQueryDriver
from elasticutor.lab.check.run import CheckedRun
from elasticutor.lab.check.scenario import Scenario, draw_habits
from elasticutor.lab.check.spark_task import Feeder
from elasticutor.lab.check.trace import Trace
from elasticutor.lab.check.world.hosts import ExecutorHost
from elasticutor.lab.check.world.network import Address


@dataclass(slots=True, eq=False)
class QueryStage:
    """One operator's part of one execution of a batch."""

    operator: ChainOperator
    number: int
    execution: int
    turn: int
    parts: list[list[Row]]
    slots: int
    tasks: int = 0
    """How many its latest try has."""
    waiting: deque[int] = field(default_factory=deque)
    """Partitions that have yet to be run."""
    running: dict[int, Feeder] = field(default_factory=dict)
    """By task."""
    outputs: dict[int, list[Row]] = field(default_factory=dict)
    """Of partitions that are done."""
    failures: Counter[int] = field(default_factory=Counter)
    """By partition."""
    refusable: bool = False
    """Whether it must not come to its end."""
    output: int = -1
    """The stage that its output is of: its own number, unless it makes lost output again."""


class QueryRun(CheckedRun):
    """Runs a query: batch after batch, operator after operator."""

    def __init__(self, scenario: Scenario, trace: Trace | None = None) -> None:
        super().__init__(scenario, trace)
        # Operators of a query are chained by the plan and not by their executors.
        self._operators = scenario.operators
        self._habits = draw_habits(scenario)
        self._drivers = {
            op.name: CheckedQueryDriver(self, op, calm=self._habits.calm) for op in self._operators
        }
        self._inputs = self._cut(scenario)
        self._batch = 0
        self._epoch = Epoch(1)
        self._lives = 0
        self._executions = 0
        self._tasks = 0
        self._stages: list[QueryStage] = []
        self._stage: QueryStage | None = None
        self._skipped: tuple[int, Epoch] | None = None  # a batch that was not run to its end
        self._used_twice: set[int] = set()  # executions with a second stage
        self._published_until = 0
        self._last_published: dict[int, list[Row]] = {}

    def start(self) -> None:
        """Execute the first batch."""
        self._execute()

    def expected(self) -> Expected:
        """What a sequential run comes to: one operator after the other, on what the last made."""
        expected = Expected()
        rows = [row for batch in self._inputs for row in batch]
        for operator in self._operators:
            state = expected.states[operator.name]
            made = [operator.apply(state, ShardId(0), _rekey(operator, row)) for row in rows]
            rows = [row for outputs in made for _, row in outputs]
        expected.outputs = by_origin(rows)
        return expected

    def waiting_for(self) -> list[str]:
        """Why it does not go on, if it does not."""
        words = [
            f"{name}: {'; '.join(driver.waiting_for())}" for name, driver in self._drivers.items()
        ]
        stage = self._stage
        if stage is None:
            return [f"batch {self._batch}: between stages", *words]
        running = [feeder.task for feeder in stage.running.values()]
        return [
            f"batch {self._batch} of {len(self._inputs)}, operator {stage.operator.name}: "
            f"done {sorted(stage.outputs)}, waiting {list(stage.waiting)}, running {running}",
            *words,
        ]

    def hosts_at_end(self) -> list[ExecutorHost]:
        """Main processes that have taken part since they were started."""
        hosts = super().hosts_at_end()
        return [host for host in hosts if host.core.phase is not Phase.IDLE]

    # Messages and losses

    def driver_receives(self, sender: Address, message: Any) -> None:
        """Take a report of an executor, or a task's message, in."""
        match message:
            case (name, do.ReportReady(attempt)):
                self._driver_of(name).tell(co.ParticipantReady(name, attempt))
            case (name, do.ReportPrepared(attempt, epoch)):
                self._driver_of(name).tell(co.ParticipantPrepared(name, attempt, epoch))
            case (name, do.ReportFailure(attempt, reason)):
                self._driver_of(name).failed(attempt, reason)
            case (name, ba.TaskArrived() as event):
                self._drivers[name].arrive(event, sender)
            case (name, ba.TaskDone() as event):
                self._drivers[name].tell(event)

    def _driver_of(self, executor: str) -> CheckedQueryDriver:
        return self._drivers[executor.split("/")[0]]

    def start_executors(self) -> None:
        """Start them all at once."""
        for operator in self.scenario.operators:
            for name in operator.executor_names:
                self.place_anywhere(name, operator)

    def lose_main(self, host: ExecutorHost) -> None:
        """Lose a main process; the driver notices a little later."""
        host.die()
        self.clock.after(self.notice_s(), self._replace, host)

    def lose_task_of(self, host: ExecutorHost, task: TaskId) -> None:
        """Lose a task's process; its main process notices."""
        host.lose_task(task)

    def lose_everything_on(self, node: NodeId, successor: NodeId) -> None:
        """Lose a node with everything on it."""
        before = [host for host in self.world.executors.values() if host.alive]
        self.world.lose_node(node)
        for host in before:
            if not host.alive:
                self.clock.after(self.notice_s(), self._replace, host)

    def _replace(self, host: ExecutorHost) -> None:
        """Have another main process, and what the operator's tasks have sent is lost."""
        if not self.done and self.world.executors[host.name] is host:
            self.place_anywhere(host.name, host.operator)
            self._driver_of(host.name).lose(f"the main process of {host.name} was lost")

    def lose_driver(self) -> None:
        """Lose the driver and every process with it; restart the query with new ones."""
        self.world.network.leave(self.world.driver)
        self.world.network.join(self.world.driver, self.driver_receives)
        self._restart("the driver was lost", everything=True)
        for stage in self._stages:
            for feeder in stage.running.values():
                feeder.end()
        for driver in self._drivers.values():
            driver.forget_stages()
        self._lives += 1
        self._executions = self._tasks = 0
        self._used_twice.clear()
        self._stages.clear()

    def fail_something(self) -> None:
        """Cancel the running stage; its tasks notice after a while."""
        if self._stage is not None:
            self._execution_failed("it was cancelled")

    # Batches

    def _execute(self) -> None:
        self._executions += 1
        self.oracle.counts["executions"] += 1
        self._begin_stage(0, self._inputs[self._batch])

    def _end_execution(self, rows: list[Row]) -> None:
        self._stage = None
        if self._skipped is not None:
            self.oracle.violate(f"fence: batch {self._skipped[0]} was skipped without an error")
        if self.rng.random() < self._habits.again:
            self.oracle.counts["executed_again"] += 1
            self.turn += 1
            self.soon(self.rng.uniform(0.0, 0.01), self._execute)
        else:
            self.soon(self.storage_s(), self._publish, rows)

    def _publish(self, rows: list[Row]) -> None:
        """Publish the batch once, as a sink that knows batches by their numbers."""
        if self.rng.random() < self.scenario.rates.crash_before_commit:
            self._restart("a crash before the sink's commit")
            return
        made = by_origin(rows)
        if self._batch == self._published_until:
            self.published.extend(rows)
            self._published_until += 1
            self._last_published = made
        elif made != self._last_published:
            self.oracle.violate(f"outputs: batch {self._batch} came to something else again")
        self.soon(self.storage_s(), self._commit)

    def _commit(self) -> None:
        if self.rng.random() < self._habits.crash_around_commit:
            self._restart("a crash before the batch's commit")
            return
        self._batch += 1
        if self._batch == len(self._inputs):
            self.done = True
            return
        # Batch numbers may have gaps.
        self._epoch = Epoch(self._epoch + self.rng.choice((1, 1, 3)))
        if self.rng.random() < self._habits.crash_around_commit:
            self._restart("a crash after the batch's commit")
        else:
            self.soon(self.storage_s(), self._execute)

    def _execution_failed(self, reason: str) -> None:
        if self._may_skip() and self.rng.random() < self._habits.skips:
            self._skip()
            return
        if self.rng.random() < 0.5:
            self._restart(reason)
            return
        self._abandon(f"execution {self._executions} failed: {reason}")
        self.soon(self.rng.uniform(0.0, 0.01), self._execute)

    def _may_skip(self) -> bool:
        """Whether the batch has come to the first operator, is not in its state, and not the last.

        One that has not come at all is a gap as any other, and one whose manifest is being written
        may be in the state a moment later.
        """
        first = self._operators[0]
        driver = self._drivers[first.name]
        known = driver.knows(self._epoch) and not driver.writes(self._epoch)
        kept = self.world.durable.newest_below(first.executor_names[0], Epoch(self._epoch + 1))
        more = self._batch + 1 < len(self._inputs)
        return self._skipped is None and more and known and kept != self._epoch

    def _skip(self) -> None:
        """Commit the batch although it has failed: the next one must be refused.

        Then the commit is taken back, and the batch comes again.
        """
        self.oracle.counts["skipped_batches"] += 1
        self._abandon(f"batch {self._batch} is skipped")
        self._skipped = (self._batch, self._epoch)
        self._batch, self._epoch = self._batch + 1, Epoch(self._epoch + 1)
        self.soon(self.rng.uniform(0.0, 0.01), self._execute)

    def _restart(self, reason: str, *, everything: bool = False) -> None:
        """Restart the query; what is committed decides with which batch."""
        self.oracle.counts["query_restarts"] += 1
        self._abandon(f"the query ends: {reason}")
        for driver in self._drivers.values():
            driver.close(reason, replace=everything or self.rng.random() < 0.5)
        self.soon(self.rng.uniform(0.0, 0.01), self._execute)

    def _abandon(self, reason: str) -> None:
        self.note("spark", reason)
        if self._skipped is not None:
            (self._batch, self._epoch), self._skipped = self._skipped, None
        stages = [stage for stage in self._stages if stage.turn == self.turn]
        self.turn += 1
        self._stage = None
        for stage in stages:
            for feeder in stage.running.values():
                # A cancelled task does not end at once, and goes on sending until it does.
                self.clock.after(self.rng.uniform(0.0, 0.02), feeder.end)
            for part in list(stage.waiting)[: self.rng.randint(0, 2)]:
                # Nor is one that is being started held back.
                self.clock.after(self.rng.uniform(0.0, 0.03), self._start_late, stage, part)

    def _start_late(self, stage: QueryStage, part: int) -> None:
        if stage in self._stages:  # not if its driver is gone
            self.oracle.counts["late_tasks"] += 1
            feeder = self._start_task(stage, part)
            self.clock.after(self.rng.uniform(0.0, 0.05), feeder.end)

    # Stages

    def count(self, stage: int) -> tuple[int, int, int] | None:
        """Tasks that a stage runs, its partitions, and what its output is for; None: it is gone."""
        found = self._stages[stage] if stage < len(self._stages) else None
        if found is None or found.turn != self.turn:
            return None
        return found.tasks, len(found.parts), found.output

    def _begin_stage(self, place: int, rows: Iterable[Row]) -> None:
        operator, habits = self._operators[place], self._habits
        parts: list[list[Row]] = [[] for _ in range(self.rng.randint(1, 4))]
        for row in rows:
            parts[row[1] % len(parts)].append(_rekey(operator, row))
        stage = self._stage = self._add_stage(operator, parts)
        if len(parts) > 1 and self.rng.random() < habits.in_part:
            self.oracle.counts["stages_in_part"] += 1
            stage.refusable = True  # some output is still there, from an earlier execution
            stage.outputs[stage.waiting.popleft()] = []
            stage.tasks -= 1
        self._launch(stage)
        if self.rng.random() < habits.twice:
            self.oracle.counts["used_twice"] += 1
            self._used_twice.add(stage.execution)
            stage.refusable = True
            # The same rows behind a filter, say: what it would come to is not what the first does.
            other = self._add_stage(operator, [part[::2] for part in parts])
            self.clock.after(self.rng.uniform(0.0, 0.02), self._launch, other)

    def _add_stage(self, operator: ChainOperator, parts: list[list[Row]]) -> QueryStage:
        slots = self.rng.randint(1, len(parts))
        number = len(self._stages)
        stage = QueryStage(operator, number, self._executions, self.turn, parts, slots, len(parts))
        stage.output = number
        stage.waiting.extend(range(len(parts)))
        self._stages.append(stage)
        return stage

    def _end_stage(self, stage: QueryStage) -> None:
        if self.rng.random() < self._habits.lost_outputs:
            self._lose_outputs(stage)
            return
        rows = [row for part in sorted(stage.outputs) for row in stage.outputs[part]]
        place = self._operators.index(stage.operator) + 1
        if place < len(self._operators):
            self._begin_stage(place, rows)
        else:
            self._end_execution(rows)

    def _lose_outputs(self, stage: QueryStage) -> None:
        """Shuffle files are gone: the stage is run again, for those partitions.

        Under another number, if the job is over that it was of.
        """
        lost = sorted(self.rng.sample(range(len(stage.parts)), self.rng.randint(1, stage.slots)))
        self.oracle.counts["lost_outputs"] += 1
        self.note("fault", f"lose the outputs of stage {stage.number}: {lost}")
        if self.rng.random() < 0.5:
            self.oracle.counts["lost_outputs_of_jobs"] += 1
            before, stage = stage, self._add_stage(stage.operator, stage.parts)
            stage.output, stage.outputs = before.output, dict(before.outputs)
            stage.waiting.clear()
            self._stage = stage
        for part in lost:
            del stage.outputs[part]
        stage.tasks = len(lost)
        stage.refusable = True
        stage.waiting.extend(lost)
        self._launch(stage)

    # Tasks

    def _launch(self, stage: QueryStage) -> None:
        if stage.turn != self.turn:
            return
        while stage.waiting and len(stage.running) < stage.slots:
            self._start_task(stage, stage.waiting.popleft())

    def _start_task(self, stage: QueryStage, part: int) -> Feeder:
        number, self._tasks = self._tasks, self._tasks + 1
        task = ba.Ingress(self._epoch, stage.execution, stage.number, part, number)
        feeder = Feeder(
            self,
            Address(f"task-{self._lives}-{number}"),
            stage.operator,
            task,
            stage.parts[part],
            partial(self._ended, stage),
        )
        stage.running[number] = feeder
        habits, soon = self._habits, self.rng.uniform(0.0, 0.06)
        if self.rng.random() < habits.copies:
            self.clock.after(soon, self._copy, stage, part)
        if self.rng.random() < habits.deaths:
            self.clock.after(soon, self._kill, stage, feeder)
        return feeder

    def _copy(self, stage: QueryStage, part: int) -> None:
        """Run a task a second time, since the first seems slow."""
        if stage.turn == self.turn and (part not in stage.outputs or self.rng.random() < 0.3):
            self.oracle.counts["copied_tasks"] += 1
            self._start_task(stage, part)

    def _kill(self, stage: QueryStage, feeder: Feeder) -> None:
        if feeder.alive:
            self.oracle.counts["lost_feeders"] += 1
            self.note("fault", f"kill {feeder.task}")
            feeder.end()
            self.clock.after(self.notice_s(), self._task_failed, stage, feeder, "it was killed")

    def _ended(self, stage: QueryStage, feeder: Feeder, order: ba.Leave | ba.Refuse) -> None:
        if isinstance(order, ba.Refuse):
            self.oracle.counts["refused_feeders"] += 1
            remade = stage.output != stage.number and stage.execution not in self._used_twice
            if remade and not order.again and "used twice" in order.reason:
                self.oracle.violate(f"fence: lost output was taken for a second use: {order}")
            self._task_failed(stage, feeder, order.reason)
            return
        stage.running.pop(feeder.task.task, None)
        if stage.turn == self.turn:
            stage.outputs.setdefault(feeder.task.partition, feeder.outputs)
            self._go_on(stage)

    def _task_failed(self, stage: QueryStage, feeder: Feeder, reason: str) -> None:
        stage.running.pop(feeder.task.task, None)
        if stage.turn != self.turn:
            return
        part = feeder.task.partition
        if part not in stage.outputs:  # a copy of one that is done is not missed
            stage.failures[part] += 1
            if stage.failures[part] >= self._habits.tries:
                self._execution_failed(reason)
                return
            if all(other.task.partition != part for other in stage.running.values()):
                stage.waiting.append(part)
        self._go_on(stage)

    def _go_on(self, stage: QueryStage) -> None:
        self._launch(stage)
        if stage is self._stage and len(stage.outputs) == len(stage.parts):
            if stage.refusable and stage.tasks < len(stage.parts):
                self.oracle.violate(f"fence: stage {stage.number} was run in part, to its end")
            self._end_stage(stage)

    def _cut(self, scenario: Scenario) -> list[list[Row]]:
        """Batches of all sources' tuples, in their order."""
        rows = [row for source in zip(*scenario.inputs, strict=True) for row in source]
        batches = []
        while rows:
            count = self.rng.randint(1, max(2, scenario.tuples // 4))
            batches.append(rows[:count])
            rows = rows[count:]
        return batches


def _rekey(operator: ChainOperator, row: Row) -> Row:
    key, origin, sequence, payload = row
    return operator.key_from(key), origin, sequence, payload
