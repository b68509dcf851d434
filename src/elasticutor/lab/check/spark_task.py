"""A Spark task, simulated: it feeds an operator with its partition, and takes the outputs back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from elasticutor.core.executor.emitter import Emitter
from elasticutor.core.protocol import batch_protocol as ba
from elasticutor.core.protocol import events as ev
from elasticutor.core.protocol.ids import Peer
from elasticutor.lab.check.pipeline import ChainOperator, Row
from elasticutor.lab.check.run import CheckedRun
from elasticutor.lab.check.world.hosts import TuplesSent
from elasticutor.lab.check.world.network import Address


@dataclass(slots=True, eq=False)
class Feeder:
    """Runs one task: it sends when it is admitted, and ends when it is ordered to."""

    run: CheckedRun
    address: Address
    operator: ChainOperator
    task: ba.Ingress
    rows: list[Row]
    on_end: Callable[[Feeder, ba.Leave | ba.Refuse], None]
    alive: bool = True
    outputs: list[Row] = field(default_factory=list)
    _position: int = 0
    _admitted: ba.Admit | None = None
    _unmarked: set[Peer] = field(init=False)
    _taken: Counter[Peer] = field(default_factory=Counter)
    _sending: Emitter = field(init=False)
    _waiting: bool = False

    def __post_init__(self) -> None:
        self._unmarked = set(self.operator.executor_names)
        self.run.world.network.join(self.address, self.receive)
        self._tell(ba.TaskArrived(self.task))

    def end(self) -> None:
        """End the task."""
        self.alive = False
        self.run.world.network.leave(self.address)
        if self._admitted is not None:
            peers, name = self.run.world.peers, self._admitted.upstream
            if peers.get(name) == self.address:
                del peers[name]

    def receive(self, sender: Address, message: Any) -> None:
        """Handle outputs, markers and credits, and orders of the driver."""
        match message:
            case ba.Admit():
                self._start(message)
            case ba.Leave() | ba.Refuse():
                self.end()
                self.on_end(self, message)
            case ev.CreditGranted(executor, _, total):
                self._sending.credit(executor, total)
                self._send(executor)
                if self._waiting and not self._blocked:
                    self._waiting = False
                    self._produce()
            case TuplesSent(executor, _, rows, size):
                self.outputs.extend(rows)
                self._taken[executor] += size
                slow = 0.05 if self.run.rng.random() < 0.03 else 0.0
                self.run.clock.after(slow, self._grant, executor)
            case ev.MarkerArrived(executor, attempt, _):
                self._unmarked.discard(executor)
                if not self._unmarked:
                    self._tell(ba.TaskDone(self.task, attempt))

    def _start(self, admitted: ba.Admit) -> None:
        self._admitted = admitted
        self.run.world.peers[admitted.upstream] = self.address
        credit = self.run.scenario.config.min_credit_bytes
        executors = self.operator.executor_names
        self._sending = Emitter(executors, first=credit, limit=2 * credit, returned=False)
        self._produce()

    @property
    def _blocked(self) -> bool:
        return self._sending.blocked(Peer(""))

    def _produce(self) -> None:
        if not self.alive:
            return
        if self._blocked:
            self._waiting = True
            return
        scenario, rng = self.run.scenario, self.run.rng
        count = rng.randint(1, scenario.source_rows * 2)
        batch = self.rows[self._position : self._position + count]
        self._position += count
        for executor, rows in self.operator.by_executor(batch).items():
            size = self.operator.size(len(rows))
            self._sending.add(ev.Output(executor, rows, size, len(rows)))
            self._send(executor)
        if self._position < len(self.rows):
            pause = scenario.source_interval_s * rng.uniform(0.0, 0.5)
            self.run.clock.after(pause, self._produce)
        else:
            self._sending.end_epoch(self.task.epoch)
            for executor in self._sending.destinations:
                self._send(executor)

    def _send(self, executor: Peer) -> None:
        assert self._admitted is not None  # it sends only then
        for order in self._sending.send(executor, self._admitted.attempt):
            self.run.world.emit(self._admitted.upstream, self.address, order)

    def _grant(self, executor: Peer) -> None:
        if self.alive and self._admitted is not None:
            total = self._taken[executor] + self.run.scenario.config.min_credit_bytes
            granted = ev.CreditGranted(self._admitted.upstream, self._admitted.attempt, total)
            self.run.world.send(self.address, executor, granted)

    def _tell(self, event: ba.TaskArrived | ba.TaskDone) -> None:
        driver = self.run.world.driver
        self.run.world.network.send(self.address, driver, (self.operator.name, event))
