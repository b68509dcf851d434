"""A run: a topology at work on a cluster, as its user sees it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Self

import pyarrow as pa

from elasticutor.core.executor.tasks import core_changes
from elasticutor.core.protocol import events as ev
from elasticutor.core.protocol.coordinator import AskWhy
from elasticutor.core.protocol.ids import NodeId, Peer, ShardId, TaskId
from elasticutor.core.run.phases import RunError, RunPhase
from elasticutor.core.run.run_events import DrainAsked, EndAsked
from elasticutor.driver.cores import free_cores, spread_cores
from elasticutor.driver.loop import ClusterError, DriverLoop
from elasticutor.driver.metrics import Moment, RunMetrics
from elasticutor.driver.queries.batch_driver import BatchDriver
from elasticutor.driver.supervisor import Supervisor
from elasticutor.errors import BadValueError
from elasticutor.state.codec import decode, decode_key
from elasticutor.transport import messages as say


class Run:
    """A topology at work. Made by `submit`; safe to use from several threads.

    As a context manager it stops at the end of the block.
    """

    def __init__(self, hub: DriverLoop, supervisor: Supervisor) -> None:
        self._hub = hub
        self._supervisor = supervisor
        self._asks = 0

    @property
    def id(self) -> str:
        """The run's name, unique on its cluster."""
        return self._supervisor.run

    @property
    def supervisor(self) -> Supervisor:
        """The driver's side of it; for the driver's loop."""
        return self._supervisor

    @property
    def phase(self) -> str:
        """starting, running, recovering, draining, drained, ending or ended."""
        return self._supervisor.phase.value

    @property
    def journal(self) -> Path | None:
        """The file with the events, as JSON lines."""
        return self._supervisor.journal.path

    # What it does

    def metrics(self) -> RunMetrics:
        """Throughput, latency, and the load of every executor and task: lately, and in all."""
        return self._supervisor.ledger.metrics()

    def as_dict(self) -> dict[str, Any]:
        """Its name, its figures, and the last batch of a query, as plain values."""
        supervisor = self._supervisor
        figures: dict[str, Any] = {
            "name": supervisor.plan.name,
            "phase": self.phase,
            "cores": {who: sum(cores.values()) for who, cores in supervisor.cores.items()},
            **self.metrics().as_dict(),
        }
        if isinstance(supervisor.epochs, BatchDriver):
            reports = supervisor.epochs.reporter.reports
            figures["lastBatch"] = reports[-1].as_dict() if reports else None
        return figures

    def reset_metrics(self) -> None:
        """Reset the totals, after a warm-up for instance."""
        self._supervisor.ledger.reset()

    def timeline(self) -> list[Moment]:
        """What the sinks took in and how old it was, interval by interval."""
        return list(self._supervisor.ledger.timeline)

    def events(self, kind: str | None = None) -> list[dict[str, Any]]:
        """Every core grant, shard move and failure so far, with cause, duration and bytes."""
        return self._supervisor.journal.events(kind)

    def collected(self, sink: str) -> pa.Table:
        """What a `MemorySink` has taken so far."""
        writer = self._supervisor.answers.collected.get(sink)
        if writer is None:
            known = sorted(self._supervisor.answers.collected)
            raise BadValueError("sink", f"be a MemorySink: one of {known}", sink)
        with self._supervisor.changed:
            return writer.table(committed_only=self._supervisor.epochs.durable)

    def state(self, operator: str, timeout_s: float = 60.0) -> dict[Any, Any]:
        """The state of every key of an operator, once the run is drained.

        Before that, tasks have changes that their store has not seen.
        """
        supervisor = self._supervisor
        if supervisor.phase is not RunPhase.DRAINED:
            hint = "submit with keep=True, then drain() or wait()"
            raise BadValueError("run", "be drained", supervisor.phase.value, hint)
        found: dict[Any, Any] = {}
        stores = self._executors_of(operator)
        if supervisor.paradigm.shares_stores:
            stores = (Peer(operator),)
        for who in stores:
            self._asks += 1
            ask = self._asks
            nodes = set(self._hub.nodes)
            order = say.ReadState(supervisor.run, who, ask)
            self._hub.call(partial(self._hub.send_nodes, nodes, order))

            def all_here(ask: int = ask, nodes: set[NodeId] = nodes) -> bool:
                return len(supervisor.answers.state_read.get(ask, ())) >= len(nodes)

            self._await(all_here, timeout_s, f"the state of {who}")
            for answer in supervisor.answers.state_read.pop(ask):
                found |= {decode_key(key): decode(value) for key, value in answer.items}
        return found

    # Cores and shards

    def cores(self, operator: str, executor: int) -> dict[NodeId, int]:
        """The cores that an executor should have now, by node."""
        return dict(self._supervisor.cores[self._executor(operator, executor)])

    def tasks(self, operator: str, executor: int) -> Mapping[TaskId, say.TaskSeen]:
        """The tasks that an executor has now."""
        return self._supervisor.ledger.tasks(self._executor(operator, executor))

    def set_cores(
        self,
        operator: str,
        executor: int,
        cores: int | Mapping[str, int],
        *,
        wait: bool = True,
        timeout_s: float = 30.0,
    ) -> None:
        """Give an executor these cores while it runs; the scheduler leaves it alone then.

        Args:
            operator: The operator's name.
            executor: Which of its executors, from 0.
            cores: How many, by node; a plain number means on the executor's own node first, and
                then wherever most are free.
            wait: Return only when it is so.
            timeout_s: How long that may take.

        Raises:
            BadValueError: There is no such executor, node, or number of free cores.
            LastCoreError: No core at all.
            RunError: The run has ended.
        """
        who = self._executor(operator, executor)
        wanted = self._hub.call(lambda: self._change_cores(who, cores))
        if wait:
            enough = Counter({node: count for node, count in wanted.items() if count})

            def there() -> bool:
                tasks = self._supervisor.ledger.tasks(who).values()
                return Counter(t.node for t in tasks) == enough and all(
                    t.status == "active" for t in tasks
                )

            self._await(there, timeout_s, f"{who} to have the cores {dict(enough)}")

    def _change_cores(self, who: Peer, cores: int | Mapping[str, int]) -> dict[NodeId, int]:
        """Check and send them; in the driver's loop, so that no other cores change meanwhile."""
        supervisor = self._supervisor
        if supervisor.phase is not RunPhase.RUNNING:
            raise RunError(f"run {self.id}", "be running", f"is {supervisor.phase.value}")
        if not supervisor.paradigm.is_scheduled:
            raise BadValueError(
                f"paradigm of run {self.id}", "be elastic or naive", supervisor.paradigm.value
            )
        free = free_cores(self._hub, without=(supervisor.run, who))
        if isinstance(cores, Mapping):
            wanted = {NodeId(node): count for node, count in cores.items()}
        else:
            wanted = spread_cores(cores, supervisor.home(who), free)
        core_changes({}, {}, wanted)  # refuses numbers that cannot be
        for node, count in wanted.items():
            if node not in free:
                raise BadValueError("node", f"be one of {sorted(free)}", node)
            if count > free[node]:
                raise BadValueError(
                    f"cores on node {node!r}",
                    f"be at most the {free[node]} that no other executor has",
                    count,
                    "take cores from another executor first, or give the cluster more",
                )
        supervisor.set_cores(who, wanted, by_hand=True)
        return wanted

    def release_cores(self, operator: str, executor: int) -> None:
        """Let the scheduler decide again, after `set_cores`."""
        who = self._executor(operator, executor)
        self._hub.call(lambda: self._supervisor.by_hand.discard(who))

    def move(self, operator: str, executor: int, shard: int, task: int) -> None:
        """Ask for a shard to be moved to a task; `events("shard moved")` shows when it is there.

        Nothing comes of it if the shard is on the move, or if the node that it should go to has
        not yet dropped the copy that it had before; then ask again.

        Raises:
            BadValueError: There is no such executor, shard or task.
        """
        who = self._executor(operator, executor)
        shards = next(op.shards for op in self._supervisor.plan.operators if op.name == operator)
        if type(shard) is not int or not 0 <= shard < shards:
            raise BadValueError(f"shard of {who!r}", f"be 0 to {shards - 1}", shard)
        tasks = sorted(self.tasks(operator, executor))
        if task not in tasks:
            raise BadValueError(f"task of {who!r}", f"be one of {tasks}", task)
        asked = ev.MoveAsked(ShardId(shard), TaskId(task))
        self._hub.call(lambda: self._supervisor.ask(who, asked))

    # The end

    def wait(self, timeout_s: float | None = None) -> None:
        """Wait until the run has ended by itself (or, with `keep=True`, is drained).

        Raises:
            TimeoutError: It has not within the time; it goes on.
            Exception: Whatever made it fail: `OperatorError`, `RunError` and others.
        """
        over = (RunPhase.DRAINED, RunPhase.ENDED)
        supervisor = self._supervisor
        until = None if timeout_s is None else time.monotonic() + timeout_s
        with supervisor.changed:
            while supervisor.phase not in over or (
                supervisor.phase is RunPhase.DRAINED and supervisor.ends_by_itself
            ):
                left = 1.0 if until is None else until - time.monotonic()
                if left <= 0:
                    raise TimeoutError(f"run {self.id} is still {supervisor.phase.value}")
                supervisor.changed.wait(min(left, 1.0))
        self._raise()

    def drain(self, timeout_s: float = 60.0) -> None:
        """Stop the sources, and wait until all that they have sent is processed.

        With `keep=True` the processes stay, and `state` can be read; otherwise the run ends.
        """
        self._hub.call(lambda: self._supervisor.decide(DrainAsked()))
        supervisor = self._supervisor

        def drained() -> bool:
            return supervisor.phase in (RunPhase.DRAINED, RunPhase.ENDED)

        self._await(drained, timeout_s, "the run to be drained", explain=True)
        self._raise()

    def stop(self, timeout_s: float = 60.0) -> None:
        """Drain, and end every process of the run; idempotent.

        Raises:
            Exception: Whatever had made the run fail before.
        """
        going = (RunPhase.RUNNING, RunPhase.RECOVERING, RunPhase.DRAINING)
        if self._supervisor.phase in going:
            try:
                self.drain(timeout_s)
            except TimeoutError:
                self.cancel()
                raise
        self.cancel()
        self._raise()

    def cancel(self, timeout_s: float = 30.0) -> None:
        """End every process of the run at once, whatever is under way; does not raise its error."""
        if self._supervisor.phase is RunPhase.ENDED:
            return
        try:
            self._hub.call(lambda: self._supervisor.decide(EndAsked()))
        except ClusterError:
            return  # the cluster is gone, and so is the run
        self._await(lambda: self._supervisor.phase is RunPhase.ENDED, timeout_s, "its end", False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.stop()
        else:
            self.cancel()

    # Waiting

    def _raise(self) -> None:
        if self._supervisor.error is not None:
            raise self._supervisor.error

    def _await(
        self, condition: Callable[[], bool], timeout_s: float, what: str, explain: bool = False
    ) -> None:
        supervisor = self._supervisor
        until = time.monotonic() + timeout_s
        with supervisor.changed:
            while not condition():
                if supervisor.error is not None and supervisor.phase is RunPhase.ENDED:
                    break
                if time.monotonic() >= until:
                    break
                supervisor.changed.wait(0.05)
            else:
                return
        self._raise()
        waits = "\n".join(self._explained()) if explain else ""
        raise TimeoutError(f"waited {timeout_s:g} s for {what}; {supervisor.phase.value}\n{waits}")

    def _explained(self) -> Iterator[str]:
        """Ask every executor what it waits for; answers that take long are left out."""
        supervisor = self._supervisor
        executors = list(supervisor.cores)
        yield from supervisor.epochs.waiting_for()
        for who in executors:
            self._hub.call(partial(supervisor.ask, who, AskWhy(who)))
        until = time.monotonic() + 2.0
        with supervisor.changed:
            while len(supervisor.answers.recounts) < len(executors) and time.monotonic() < until:
                supervisor.changed.wait(0.05)
        for who in executors:
            waits = supervisor.answers.recounts.get(who, ("no answer",))
            yield f"{who}: {'; '.join(waits)}"

    def _executor(self, operator: str, executor: int) -> Peer:
        executors = self._executors_of(operator)
        if type(executor) is not int or not 0 <= executor < len(executors):
            raise BadValueError(
                f"executor of {operator!r}", f"be 0 to {len(executors) - 1}", executor
            )
        return executors[executor]

    def _executors_of(self, operator: str) -> tuple[Peer, ...]:
        for planned in self._supervisor.plan.operators:
            if planned.name == operator:
                return tuple(map(Peer, planned.processes))
        known = [planned.name for planned in self._supervisor.plan.operators]
        raise BadValueError("operator", f"be one of {known}", operator)

    def __repr__(self) -> str:
        return f"<Run {self.id}: {self.phase}>"
