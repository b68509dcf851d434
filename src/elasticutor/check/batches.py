"""Checked runs of a micro-batch query: the epochs are batches, and Spark's part is played here.

Every batch of every operator is an attempt of its own, with upstreams of its own: the partitions of
a stage. Outputs return to the partition that sent the input, and the next operator's stage starts
when all of them are there, as after an exchange. A batch is committed some time after everybody has
prepared it, and a crash before that runs it again, from the state before it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from elasticutor.check.pipeline import ChainOperator, Expected, Row
from elasticutor.check.run import Run
from elasticutor.check.scenario import Scenario
from elasticutor.check.trace import Trace
from elasticutor.core import events as ev
from elasticutor.core import instructions as do
from elasticutor.core.ids import Attempt, Epoch, Peer
from elasticutor.sim.hosts import Credit, ExecutorHost, Marker, Tuples
from elasticutor.sim.network import Address
from elasticutor.sim.sender import Sender


@dataclass(slots=True)
class Stage:
    """One operator's part of one try at a batch."""

    operator: ChainOperator
    attempt: Attempt
    unready: set[Peer]
    unprepared: set[Peer]
    partitions: list[PartitionHost] = field(default_factory=list)

    @property
    def complete(self) -> bool:
        """Whether every output is back and every executor has prepared the batch."""
        return not self.unprepared and all(host.complete for host in self.partitions)


class BatchRun(Run):
    """A query whose batches run one after the other, operator after operator."""

    def __init__(self, scenario: Scenario, trace: Trace | None = None) -> None:
        super().__init__(scenario, trace)
        # Operators of a query are chained by the plan and not by their executors.
        self._operators = scenario.operators
        self._batches = self._cut(scenario)
        self._batch = 0
        self._epoch = Epoch(0)
        self._next_attempt = 1
        self._attempts: dict[str, Attempt] = {}  # per operator, of the current try
        self._bases: dict[str, Epoch] = {op.name: Epoch(0) for op in self._operators}
        self._stage: Stage | None = None
        self._stage_number = 0
        self._committing = False

    def start(self) -> None:
        """Start the first batch."""
        self._start_batch(Epoch(1))

    def expected(self) -> Expected:
        """What a sequential run comes to: one operator after the other, on what the last made."""
        expected = Expected()
        rows = [row for batch in self._batches for row in batch]
        for operator in self._operators:
            rows = [_rekey(operator, row) for row in rows]
            state = expected.plain_state(operator)
            made = [operator.process(state, 0, row, Peer("")) for row in rows]  # type: ignore[arg-type]
            rows = [row for outputs in made for _, row in outputs]
        for row in rows:
            expected.outputs.setdefault(row[1], []).append(row)
        return expected

    def waiting_for(self) -> list[str]:
        """Why it does not go on, if it does not."""
        stage = self._stage
        if stage is None:
            return [f"batch {self._batch}: between stages"]
        slow = [host.name for host in stage.partitions if not host.complete]
        return [
            f"batch {self._batch} of {len(self._batches)}, operator {stage.operator.name}: "
            f"unready {sorted(stage.unready)}, unprepared {sorted(stage.unprepared)}, "
            f"incomplete {slow}"
        ]

    # The driver

    def driver_receives(self, sender: Address, message: Any) -> None:
        """Take a report of an executor or of a partition in."""
        stage = self._stage
        match message:
            case (name, do.ReportReady(attempt)) if stage and attempt == stage.attempt:
                stage.unready.discard(name)
                if not stage.unready:
                    for host in stage.partitions:
                        host.start()
            case (name, do.ReportPrepared(attempt, _)) if stage and attempt == stage.attempt:
                stage.unprepared.discard(name)
                self._try_to_end_stage()
            case (_, do.ReportFailure(attempt, reason)) if stage and attempt == stage.attempt:
                self._again(reason)
            case PartitionHost():
                self._try_to_end_stage()

    def executor_lost(self, host: ExecutorHost) -> None:
        """A main process is gone: whatever batch is running runs again."""
        if not self._committing:
            self._again(f"the main process of {host.name} was lost")

    def lose_driver(self) -> None:
        """The driver is gone, and every process with it; the batch runs again, from new ones."""
        for host in list(self.world.executors.values()):
            if host.alive:
                host.die()
            self.place_executor(host.name, self._operator_of(host))
        if not self._committing:
            self._again("the driver was lost")

    def fail_something(self) -> None:
        """Cancel the running stage; its tasks notice after a while."""
        if not self._committing:
            self._again("the stage was cancelled")

    def _start_batch(self, epoch: Epoch) -> None:
        self._epoch = epoch
        self._stage_number = 0
        self._committing = False
        self._attempts.clear()
        self._start_stage(self._batches[self._batch])

    def _start_stage(self, rows: Iterable[Row]) -> None:
        operator = self._operators[self._stage_number]
        names = operator.executor_names
        attempt = Attempt(self._next_attempt)
        self._next_attempt += 1
        stage = Stage(operator, attempt, set(names), set(names))
        self._stage = stage
        self._attempts[operator.name] = attempt
        partitions: list[list[Row]] = [[] for _ in range(self.rng.randint(1, 3))]
        for row in rows:
            partitions[row[1] % len(partitions)].append(_rekey(operator, row))
        stage.partitions = [
            PartitionHost(self, Peer(f"p{number}@{attempt}"), operator, attempt, self._epoch, part)
            for number, part in enumerate(partitions)
        ]
        upstreams = tuple(host.name for host in stage.partitions)
        base = self._bases[operator.name]
        for name in names:
            self.begin(name, ev.AttemptBegun(attempt, base, self._epoch, upstreams))

    def _try_to_end_stage(self) -> None:
        stage = self._stage
        if stage is None or not stage.complete:
            return
        self._stage = None
        rows = [row for host in stage.partitions for row in host.outputs]
        for host in stage.partitions:
            host.end()
        self._stage_number += 1
        if self._stage_number < len(self._operators):
            self._start_stage(rows)
        else:
            self._committing = True
            self.kernel.after(self.storage_s(), self._commit, rows)

    def _commit(self, rows: list[Row]) -> None:
        if self.rng.random() < self.scenario.rates.crash_before_commit:
            self._again("a crash before the commit")
            return
        for operator in self._operators:
            self._bases[operator.name] = self._epoch
            for name in operator.executor_names:
                self.world.durable.commit(name, self._epoch, self._attempts[operator.name])
        self.published.extend(rows)
        self.oracle.counts["epochs"] += 1
        self._batch += 1
        if self._batch == len(self._batches):
            self.done = True
            return
        # Batch numbers may have gaps.
        following = Epoch(self._epoch + self.rng.choice((1, 1, 3)))
        self.kernel.after(self.storage_s(), self._start_batch, following)
        self._committing = True  # until then a loss costs no batch

    def _again(self, reason: str) -> None:
        self.abort(f"batch {self._batch}: {reason}")
        stage, self._stage = self._stage, None
        for host in stage.partitions if stage else ():
            # A cancelled task does not end at once, and goes on sending until it does.
            self.kernel.after(self.rng.uniform(0.0, 0.02), host.end)
        self._committing = True
        self.kernel.after(self.rng.uniform(0.0, 0.01), self._start_batch, self._epoch)

    def _cut(self, scenario: Scenario) -> list[list[Row]]:
        """Batches of all sources' tuples, in their order."""
        rows = [row for source in zip(*scenario.inputs, strict=True) for row in source]
        batches = []
        while rows:
            count = self.rng.randint(1, max(2, scenario.tuples // 4))
            batches.append(rows[:count])
            rows = rows[count:]
        return batches


class PartitionHost:
    """A Spark task that feeds an operator with its partition, and takes the outputs back."""

    def __init__(
        self,
        run: BatchRun,
        name: Peer,
        operator: ChainOperator,
        attempt: Attempt,
        epoch: Epoch,
        rows: list[Row],
    ) -> None:
        self.run = run
        self.name = name
        self.outputs: list[Row] = []
        self._operator = operator
        self._epoch = epoch
        self._rows = rows
        self._position = 0
        self._address = Address(name)
        self._unmarked = set(operator.executor_names)
        self._taken = dict.fromkeys(operator.executor_names, 0)
        config = run.scenario.config
        self._sender = Sender(run.world, name, self._address, operator)
        self._sender.open(
            attempt,
            operator.executor_names,
            first=config.min_credit_bytes,
            limit=2 * config.min_credit_bytes,
        )
        self._ended = False
        self._waiting = False
        run.world.network.join(self._address, self.receive)
        run.world.peers[name] = self._address

    @property
    def complete(self) -> bool:
        """Whether all outputs are back."""
        return not self._unmarked

    def start(self) -> None:
        """Send."""
        self._produce()

    def end(self) -> None:
        """Let the task be gone."""
        self._ended = True
        self.run.world.network.leave(self._address)
        self.run.world.peers.pop(self.name, None)

    def receive(self, sender: Address, message: Any) -> None:
        """Take outputs, markers and credits in."""
        match message:
            case Credit(executor, _, total):
                self._sender.credit(executor, total)
                if self._waiting and not self._sender.blocked:
                    self._waiting = False
                    self._produce()
            case Tuples(executor, _, rows, size):
                self.outputs.extend(rows)
                self._taken[executor] += size
                slow = 0.05 if self.run.rng.random() < 0.03 else 0.0
                self.run.kernel.after(slow, self._grant, executor)
            case Marker(executor, _, _):
                self._unmarked.discard(executor)
                if not self._unmarked:
                    self.run.world.network.send(self._address, self.run.world.driver, self)

    def _produce(self) -> None:
        if self._ended:
            return
        if self._sender.blocked:
            self._waiting = True
            return
        scenario, rng = self.run.scenario, self.run.rng
        count = rng.randint(1, scenario.source_rows * 2)
        batch = self._rows[self._position : self._position + count]
        self._position += count
        self._sender.put(self._operator.by_executor(batch))
        if self._position < len(self._rows):
            pause = scenario.source_interval_s * rng.uniform(0.0, 0.5)
            self.run.kernel.after(pause, self._produce)
        else:
            self._sender.end_epoch(self._epoch)

    def _grant(self, executor: Peer) -> None:
        total = self._taken[executor] + self.run.scenario.config.min_credit_bytes
        message = Credit(self.name, self._sender.attempt, total)
        self.run.world.send(self._address, executor, message)


def _rekey(operator: ChainOperator, row: Row) -> Row:
    key, origin, sequence, payload = row
    return operator.key_from(key), origin, sequence, payload
