"""Drives one operator of a checked query: `batches` decides, and this carries it out.

It plays what stands between a query's tasks and the executors of one operator: what starts another
run when one is over, the driver of a run, and the writer of its checkpoint, which does one thing
after the other.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from elasticutor.core.protocol import batch_protocol as ba
from elasticutor.core.protocol import events as ev
from elasticutor.core.protocol.batch_attempt import BatchPhase
from elasticutor.core.protocol.batches import Batches
from elasticutor.core.protocol.coordinator import WriteManifest
from elasticutor.core.protocol.ids import Attempt, Epoch
from elasticutor.core.protocol.succession import Succession
from elasticutor.errors import StaleAttemptError
from elasticutor.lab.check.invariants import Fences
from elasticutor.lab.check.pipeline import ChainOperator
from elasticutor.lab.check.world.network import Address

if TYPE_CHECKING:
    from elasticutor.lab.check.batches import QueryRun

_GONE_ON = "the run that the stage has begun with is over, and what its other tasks have sent too"


class CheckedQueryDriver:
    """Receives the tasks that feed one operator."""

    def __init__(self, run: QueryRun, operator: ChainOperator, *, calm: bool) -> None:
        self._run = run
        self._kept = run.world.durable
        self._operator = operator
        self._batches: Batches | None = None  # None: no run is there
        self._opened = 0
        self._attempt = Attempt(0)
        self._succession = Succession()
        self._addresses: dict[ba.Ingress, Address] = {}
        self._jobs: deque[tuple[Callable[[], None], ba.BatchEvent]] = deque()
        self._free_at = 0.0
        self._fences = Fences(operator.name, self._newest_below, run.oracle.violate, calm)

    def waiting_for(self) -> list[str]:
        """Why it does not go on, if it does not."""
        return ["no run"] if self._batches is None else self._batches.waiting_for()

    def knows(self, epoch: Epoch) -> bool:
        """Whether a task of this epoch has been here, and no later one."""
        return epoch == (self._batches.epoch if self._batches else self._succession.owed)

    def writes(self, epoch: Epoch) -> bool:
        """Whether the manifest of this epoch is being written."""
        durable = [then for _, then in self._jobs if isinstance(then, ba.EpochDurable)]
        return any(one.epoch == epoch for one in durable)

    # Events

    def arrive(self, event: ba.TaskArrived, address: Address) -> None:
        """Handle a task's arrival; start another run for it if there is none."""
        task = event.task
        self._addresses[task] = address
        self._fences.heard(event)
        if self._batches is None:
            if not self._succession.may_begin(task):
                self._carry_out(ba.Refuse(task, _GONE_ON, True))
                return
            self._open(task.epoch)
        self._succession.saw(task)
        self.tell(event)

    def tell(self, event: ba.BatchEvent) -> None:
        """Let the core decide what comes of an event, unless it is late."""
        batches = self._batches
        if batches is None:
            return
        before = None if batches.idle else batches.attempt
        try:
            orders = batches.handle(event)
        except StaleAttemptError:
            return
        self._run.note(f"{self._operator.name} driver", event)
        self._fences.heard(event)
        given_up = batches.attempt != before or batches.phase is BatchPhase.ABORTED
        if before is not None and given_up:
            self._run.abort(str(event))
        for order in orders:
            self._carry_out(order)

    def failed(self, attempt: Attempt, reason: str) -> None:
        """Give up an attempt that an executor cannot go on with."""
        if self._batches is not None and attempt == self._batches.attempt:
            self.lose(reason)

    def lose(self, reason: str) -> None:
        """Give up all tasks that are here, and mostly the run as well: something is lost."""
        chance = self._run.rng.random()
        if chance < 0.3:
            self._give_up(reason)
        else:
            self.close(reason, replace=chance < 0.6)

    def close(self, reason: str, *, replace: bool) -> None:
        """End the run; with `replace`, its executors too. The next task begins another one."""
        self._give_up(reason)
        if self._batches is not None:
            self._attempt = self._batches.attempt
            self._succession.owes(self._batches.owed)
        self._batches = None
        self._opened += 1
        while self._jobs and self._run.rng.random() < 0.5:  # others are never done
            self._jobs.popleft()[0]()
        self._jobs.clear()
        if replace:
            for name in self._operator.executor_names:
                host = self._run.world.executors[name]
                if host.alive:
                    host.die()
                self._run.place_anywhere(name, self._operator)

    def forget_stages(self) -> None:
        """Forget all stages: another driver numbers them from the first again."""
        self._succession = Succession()
        self._fences.stage = -1

    def _give_up(self, reason: str) -> None:
        batches = self._batches
        if batches is None:
            return
        if not batches.idle:
            self._run.abort(reason)
        for order in batches.give_up(reason):
            self._carry_out(order)

    def _open(self, epoch: Epoch) -> None:
        base = self._newest_below(epoch)
        self._go_back(base)
        names = self._operator.executor_names
        self._batches = Batches(names, committed=base, first=self._attempt)
        self._succession.bequeath(self._batches)
        self._run.oracle.counts["query_runs"] += 1

    def _newest_below(self, epoch: Epoch) -> Epoch:
        (newest,) = {self._kept.newest_below(name, epoch) for name in self._operator.executor_names}
        return newest

    # Orders

    def _carry_out(self, order: ba.BatchOrder) -> None:
        self._fences.ordered(order)
        self._run.note(f"{self._operator.name} driver", order)
        match order:
            case ba.CountTasks():
                pause = self._run.rng.uniform(0.0, 0.01)
                self._run.clock.after(pause, self._count, self._opened, order)
            case ba.GoBack(attempt, base):
                self._run.oracle.counts["went_back"] += 1
                self._write_later(lambda: self._go_back(base), ba.WentBack(attempt))
            case ba.BeginBatch(who, attempt, base, epoch, _, upstreams):
                self._run.begin(who, ev.AttemptBegun(attempt, base, epoch, upstreams))
            case WriteManifest(epoch, attempt):
                durable = ba.EpochDurable(attempt, epoch)
                self._write_later(lambda: self._write(epoch, attempt), durable)
            case ba.Admit(task):
                self._answer(task, order)
            case ba.Refuse(task) | ba.Leave(task):
                self._answer(task, order)
                self._addresses.pop(task, None)

    def _answer(self, task: ba.Ingress, order: Any) -> None:
        address = self._addresses.get(task)
        if address is not None:
            self._run.world.network.send(self._run.world.driver, address, order)

    def _count(self, opened: int, order: ba.CountTasks) -> None:
        batches = self._batches
        if opened != self._opened or batches is None:
            return
        found = self._run.count(order.stage)
        if found is not None:
            self.tell(ba.StageCounted(order.execution, order.stage, *found))
            return
        was_idle, reason = batches.idle, f"the size of stage {order.stage} is not known"
        answers = batches.cannot_count(order, reason)
        if batches.idle and not was_idle:
            self._run.abort(reason)
        for answer in answers:
            self._carry_out(answer)

    # The checkpoint's writer

    def _write_later(self, act: Callable[[], None], then: ba.BatchEvent) -> None:
        self._jobs.append((act, then))
        self._free_at = max(self._free_at, self._run.clock.now) + self._run.storage_s()
        self._run.clock.at(self._free_at, self._do_next, self._opened)

    def _do_next(self, opened: int) -> None:
        if opened != self._opened:
            return
        act, then = self._jobs.popleft()
        rng, rates = self._run.rng, self._run.scenario.rates
        if isinstance(then, ba.EpochDurable) and rng.random() < rates.manifest_fails:
            self._run.oracle.counts["failed_manifests"] += 1
            if rng.random() < 0.5:  # it is there, but the answer is lost
                act()
            self.lose("the manifest could not be written")
            return
        act()
        self.tell(then)

    def _go_back(self, base: Epoch) -> None:
        for name in self._operator.executor_names:
            self._kept.go_back(name, base)

    def _write(self, epoch: Epoch, attempt: Attempt) -> None:
        for name in self._operator.executor_names:
            self._kept.commit(name, epoch, attempt)
        self._run.oracle.counts["epochs"] += 1
