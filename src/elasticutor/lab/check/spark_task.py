"""A Spark task, simulated: it feeds an operator with its partition, and takes the outputs back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from elasticutor.core.protocol import batch_protocol as ba
from elasticutor.core.protocol.ids import Peer
from elasticutor.lab.check.pipeline import ChainOperator, Row
from elasticutor.lab.check.run import CheckedRun
from elasticutor.lab.check.world.hosts import CreditSent, MarkerSent, TuplesSent
from elasticutor.lab.check.world.network import Address
from elasticutor.lab.check.world.sender import Sender


class Feeder:
    """Runs one task: it sends when it is admitted, and ends when it is ordered to."""

    def __init__(
        self,
        run: CheckedRun,
        address: Address,
        operator: ChainOperator,
        task: ba.Ingress,
        rows: list[Row],
        ended: Callable[[Feeder, ba.Leave | ba.Refuse], None],
    ) -> None:
        self.run = run
        self.task = task
        self.outputs: list[Row] = []
        self.alive = True
        self._operator = operator
        self._rows = rows
        self._on_end = ended
        self._position = 0
        self._address = address
        self._admitted: ba.Admit | None = None
        self._unmarked = set(operator.executor_names)
        self._taken = dict.fromkeys(operator.executor_names, 0)
        self._sender = Sender(run.world, Peer(""), address, operator)
        self._waiting = False
        run.world.network.join(address, self.receive)
        self._tell(ba.TaskArrived(task))

    def end(self) -> None:
        """End the task."""
        self.alive = False
        self.run.world.network.leave(self._address)
        if self._admitted is not None:
            peers, name = self.run.world.peers, self._admitted.upstream
            if peers.get(name) == self._address:
                del peers[name]

    def receive(self, sender: Address, message: Any) -> None:
        """Handle outputs, markers and credits, and orders of the driver."""
        match message:
            case ba.Admit():
                self._start(message)
            case ba.Leave() | ba.Refuse():
                self.end()
                self._on_end(self, message)
            case CreditSent(executor, _, total):
                self._sender.credit(executor, total)
                if self._waiting and not self._sender.blocked:
                    self._waiting = False
                    self._produce()
            case TuplesSent(executor, _, rows, size):
                self.outputs.extend(rows)
                self._taken[executor] += size
                slow = 0.05 if self.run.rng.random() < 0.03 else 0.0
                self.run.clock.after(slow, self._grant, executor)
            case MarkerSent(executor, attempt, _):
                self._unmarked.discard(executor)
                if not self._unmarked:
                    self._tell(ba.TaskDone(self.task, attempt))

    def _start(self, admitted: ba.Admit) -> None:
        self._admitted = admitted
        self.run.world.peers[admitted.upstream] = self._address
        credit = self.run.scenario.config.min_credit_bytes
        self._sender = Sender(self.run.world, admitted.upstream, self._address, self._operator)
        self._sender.open(
            admitted.attempt, self._operator.executor_names, first=credit, limit=2 * credit
        )
        self._produce()

    def _produce(self) -> None:
        if not self.alive:
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
            self.run.clock.after(pause, self._produce)
        else:
            self._sender.end_epoch(self.task.epoch)

    def _grant(self, executor: Peer) -> None:
        if self.alive and self._admitted is not None:
            total = self._taken[executor] + self.run.scenario.config.min_credit_bytes
            message = CreditSent(self._admitted.upstream, self._sender.attempt, total)
            self.run.world.send(self._address, executor, message)

    def _tell(self, event: ba.TaskArrived | ba.TaskDone) -> None:
        driver = self.run.world.driver
        self.run.world.network.send(self._address, driver, (self._operator.name, event))
