"""Stand-ins for the nodes, executors, sources and sinks of a large run, for `bench driver`.

One process stands in for hundreds of participants. Each of these has an inbox of its own and its
own connection to the driver, answers what the protocol asks, and sends the measurements that a real
one would send, as often as its specification says. Only tuples are missing: how much work there is
follows from the clock and a seed.
"""

from __future__ import annotations

import heapq
import math
import os
import pickle
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from elasticutor.core.measure.latency import LatencyHistogram
from elasticutor.core.measure.metrics import Meter
from elasticutor.core.measure.work import WorkDone
from elasticutor.core.protocol import instructions as do
from elasticutor.core.protocol.coordinator import (
    AskToRest,
    AssignCores,
    BeginAttempt,
    EndEpoch,
    ParticipantPrepared,
    ParticipantReady,
    ParticipantRested,
    PlaceCleared,
)
from elasticutor.core.protocol.ids import MoveId, NodeId, Peer, ShardId, TaskId
from elasticutor.process.hosting.hosts import Bootstrap, ends_name
from elasticutor.process.specs import ExecutorSpec, SinkSpec, SourceSpec
from elasticutor.transport import messages as say
from elasticutor.transport.channels import Endpoint, Links
from elasticutor.transport.mailbox import DRIVER, Mailbox

_TICK_S = 0.02
"""How often what is due is sent, and inboxes are looked into."""
_LONGEST_S = 0.1
"""How long that may take: on a busy machine executors start slowly, and nodes have to answer."""
_SERVICE_RATE = 1000.0  # tuples of 1 ms
_ROW_BYTES = 128
_WORK = 0.7  # of an executor, in cores, on average
_SKEW = 0.5  # of executors against each other: sigma of a log-normal
_SWING = 0.3  # how far an executor's work goes up and down
_SWING_S = 60.0
_MOVES_S = 0.05  # shards that an executor moves per second
_AGES = 60  # different latencies in a measurement


class StandInWork:
    """How much work every executor of an operator has, at any time; alike in every process."""

    def __init__(self, executors: int, seed: int) -> None:
        rng = np.random.default_rng(seed)
        weights = rng.lognormal(0.0, _SKEW, executors)
        self.executors = executors
        self._mean: npt.NDArray[np.float64] = _WORK * weights / weights.mean()
        self._phase = rng.uniform(0.0, 2 * math.pi, executors)  # when it is at its highest

    def at(self, now: float) -> npt.NDArray[np.float64]:
        """Cores that each would fill."""
        swing = _SWING * np.sin(2 * math.pi * now / _SWING_S + self._phase)
        return np.asarray(self._mean * (1.0 + swing))


class _StandIn:
    """A process of the cluster with an inbox of its own, and its own connection to the driver."""

    def __init__(self, office: Office, name: str) -> None:
        self.office = office
        self.mail = Mailbox(office.links, name)
        driver = office.bootstrap.driver
        self.mail.know(DRIVER, Endpoint(f"driver of {name}", "", driver.tcp))
        office.inside.append(self)

    def take(self, message: Any) -> None:
        """A message has come."""
        raise NotImplementedError

    def tell(self, message: Any) -> None:
        """Send to the driver."""
        self.mail.send(DRIVER, message)


class Office:
    """One process, and all that it stands in for."""

    def __init__(self, bootstrap: Bootstrap, name: str, work: tuple[StandInWork, ...]) -> None:
        self.bootstrap = bootstrap
        self.work = work
        self.links = Links(name, bootstrap.keys, ipc_dir=None, host=bootstrap.address[0])
        self.over = False
        self.rng = np.random.default_rng(abs(hash(name)))
        self.inside: list[_StandIn] = []
        self._clock = Mailbox(self.links, "clock")
        self._due: list[tuple[float, int, Callable[[], float]]] = []
        self._made = 0

    def do_at(self, at: float, action: Callable[[], float]) -> None:
        """Do something at a time; it returns after how long to do it again, infinity for never."""
        self._made += 1
        heapq.heappush(self._due, (at, self._made, action))

    def run(self) -> None:
        """Answer and measure until the end."""
        look_at = 0.0
        while not self.over:
            self._clock.wait(_TICK_S)
            self._do_what_is_due()
            if time.monotonic() >= look_at:
                for one in list(self.inside):
                    for message in one.mail.receive():
                        one.take(message)
                look_at = time.monotonic() + _TICK_S
        self.links.close(linger_s=2.0)

    def _do_what_is_due(self) -> None:
        """If that takes long, the rest is for the next time."""
        now = time.monotonic()
        while self._due and self._due[0][0] <= now and time.monotonic() < now + _LONGEST_S:
            at, _, action = heapq.heappop(self._due)
            again_s = action()
            if again_s < math.inf:
                self.do_at(max(now, at + again_s), action)


def be_nodes(
    bootstrap: Bootstrap, work: tuple[StandInWork, ...], names: Sequence[str], cores: int
) -> None:
    """Stand in for nodes, and for the executors that are started there."""
    office = Office(bootstrap, names[0], work)
    for name in names:
        _Node(office, name, cores)
    office.run()


def be_ends(bootstrap: Bootstrap, work: tuple[StandInWork, ...], run: str, number: int) -> None:
    """Stand in for a host of sources and sinks, and for them."""
    office = Office(bootstrap, ends_name(number), work)
    _EndsHost(office, run, number)
    office.run()


class _Node(_StandIn):
    def __init__(self, office: Office, name: str, cores: int) -> None:
        super().__init__(office, f"node {name}")
        self.ended = False
        self._node = NodeId(name)
        self._executors: list[_Executor] = []
        host = office.bootstrap.address[0]
        up = say.NodeUp(
            self._node, cores, self.mail.endpoint, os.getpid(), host, name, "", "", slot=name
        )
        self.tell(up)

    def take(self, message: Any) -> None:
        match message:
            case say.Beat():
                self.tell(say.Alive(self._node))
            case say.StartExecutor():
                spec: ExecutorSpec = pickle.loads(message.payload)  # noqa: S301 - the driver's
                self.office.do_at(time.monotonic(), lambda: self._start(spec))
            case say.EndRun():
                for executor in self._executors:
                    executor.ended = True
                self.tell(say.Said(message.run, Peer(self._node), PlaceCleared(self._node)))
            case say.EndNode():
                self.ended = True
                nodes = [one for one in self.office.inside if isinstance(one, _Node)]
                self.office.over = all(node.ended for node in nodes)

    def _start(self, spec: ExecutorSpec) -> float:
        self._executors.append(_Executor(self.office, spec))
        return math.inf


class _Participant(_StandIn):
    def __init__(self, office: Office, spec: ExecutorSpec | SourceSpec | SinkSpec) -> None:
        self.who, self.run = spec.who, spec.site.run
        super().__init__(office, f"{self.run}/{self.who}/{spec.site.life}")
        self.ended = False
        """Then it sends nothing more."""
        where = self.mail.endpoint
        self.tell(say.Registered(self.run, self.who, where, os.getpid(), spec.site.life))
        # Real ones have started one after the other, and so measure one after the other.
        first_s = office.rng.uniform(0.0, spec.tempo.measure_s)
        self._measured_at = time.monotonic()
        self._every_s = spec.tempo.measure_s
        office.do_at(time.monotonic() + first_s, self._measure_and_go_on)

    def say(self, what: Any) -> None:
        """Answer the coordinator."""
        self.tell(say.Said(self.run, self.who, what))

    def _measure_and_go_on(self) -> float:
        if self.ended:
            return math.inf
        now = time.monotonic()
        self.measure(now, max(now - self._measured_at, 1e-3))
        self._measured_at = now
        return self._every_s

    def measure(self, now: float, seconds: float) -> None:
        """Send what was measured in these seconds."""
        raise NotImplementedError


class _Executor(_Participant):
    def __init__(self, office: Office, spec: ExecutorSpec) -> None:
        self._shards = spec.config.shards
        self._number = spec.number
        self._operator = 0 if spec.operator.routes[0].key else len(office.work) - 1
        self._cores = {node: count for node, count in spec.cores.items() if count}
        self._tasks: dict[TaskId, say.TaskSeen] = {}
        self._started = self._moves = 0
        skew = 1.0 / np.arange(1, self._shards + 1) ** 0.5
        self._shares = skew / skew.sum()
        super().__init__(office, spec)
        self._staff()

    def take(self, message: Any) -> None:
        match message:
            case BeginAttempt():
                self.say(do.ReportReady(message.attempt))
            case AssignCores():
                self._cores = {node: count for node, count in message.cores.items() if count}
                self._staff()
            case AskToRest():
                self.say(ParticipantRested(self.who))
            case say.Finish():
                self.ended = True

    def _staff(self) -> None:
        """Let tasks come and go until they are as wanted, and report each."""
        surplus = Counter(task.node for task in self._tasks.values())
        surplus.subtract(self._cores)
        for task, seen in list(self._tasks.items()):
            if surplus[seen.node] > 0:
                surplus[seen.node] -= 1
                del self._tasks[task]
                self._tell_staff(f"task {task} ended")
        for node, count in surplus.items():
            for _ in range(-count):
                self._started += 1
                task = TaskId(self._started)
                self._tasks[task] = say.TaskSeen(node, "active", 0.0, self._shards, os.getpid())
                self._tell_staff(f"task {task} started")

    def _tell_staff(self, cause: str) -> None:
        self.tell(say.Staff(self.run, self.who, dict(self._tasks), cause, 0.1))

    def measure(self, now: float, seconds: float) -> None:
        rng, cores = self.office.rng, len(self._tasks)
        work = float(self.office.work[self._operator].at(now)[self._number])
        arrived = int(rng.poisson(work * _SERVICE_RATE * seconds))
        done = min(arrived, round(cores * _SERVICE_RATE * seconds))
        meter = Meter(self._shards, now - seconds, cores)
        meter.arrived(arrived, arrived * _ROW_BYTES)
        rows = rng.multinomial(done, self._shares)
        ages_s = rng.lognormal(math.log(0.005), 0.7, min(done, _AGES))
        size = done * _ROW_BYTES
        meter.add_work(
            WorkDone(
                rows=rows,
                seconds=rows / _SERVICE_RATE,
                count=done,
                useful_s=done / _SERVICE_RATE,
                bytes_in=size,
                bytes_out=size,
                rows_out=done,
                waits_s=ages_s,
                wait_counts=np.full(len(ages_s), max(1, done // _AGES)),
            )
        )
        meter.state_bytes(1 << 20)
        metrics = meter.snapshot(now, backlog_rows=arrived - done)
        tasks = {
            task: say.TaskSeen(
                seen.node, seen.status, work / cores, self._shards // cores, seen.pid
            )
            for task, seen in self._tasks.items()
        }
        self.tell(say.Measured(self.run, self.who, metrics, tasks, 0))
        for _ in range(rng.poisson(_MOVES_S * seconds)):
            self._moves += 1
            first = next(iter(self._tasks))
            self.say(
                do.ReportMove(
                    MoveId(self._moves), ShardId(0), first, first, False, "balance", 1e-3, 0.0, 0, 0
                )
            )


class _Source(_Participant):
    def __init__(self, office: Office, spec: SourceSpec) -> None:
        self._spec = spec
        super().__init__(office, spec)

    def take(self, message: Any) -> None:
        match message:
            case EndEpoch():
                self.say(ParticipantPrepared(self.who, message.attempt, message.epoch, 0))
            case say.Finish():
                self.ended = True

    def measure(self, now: float, seconds: float) -> None:
        due = self.office.work[0].at(now) * (_SERVICE_RATE * seconds / self._spec.tasks)
        counts = self.office.rng.poisson(due)
        routed = dict(zip(self._spec.routes[0].peers, counts.tolist(), strict=True))
        rows = int(counts.sum())
        self.tell(say.SourceMeasured(self.run, self.who, seconds, rows, 0.0, 0.0, None, routed))


class _Sink(_Participant):
    def take(self, message: Any) -> None:
        match message:
            case BeginAttempt():
                self.say(ParticipantReady(self.who, message.attempt))
            case AskToRest():
                self.say(ParticipantRested(self.who))
            case say.Finish():
                self.ended = True

    def measure(self, now: float, seconds: float) -> None:
        latency = LatencyHistogram()
        rows = round(float(self.office.work[-1].at(now).sum()) * _SERVICE_RATE * seconds)
        ages = self.office.rng.lognormal(math.log(0.005), 0.7, 500)
        latency.record_many(ages, np.full(len(ages), max(1, rows // len(ages))))
        self.tell(say.SinkMeasured(self.run, self.who, seconds, rows, latency))


class _EndsHost(_StandIn):
    def __init__(self, office: Office, run: str, number: int) -> None:
        super().__init__(office, f"{ends_name(number)} of {run}")
        self._run, self._number = run, number
        self._ends: list[_Participant] = []
        host = office.bootstrap.address[0]
        self.tell(say.EndsHostUp(run, number, self.mail.endpoint, ends_name(number), host))

    def take(self, message: Any) -> None:
        match message:
            case say.StartEnds():
                for started in message.ends:
                    spec = pickle.loads(started.payload)  # noqa: S301 - the driver's
                    kind = _Source if started.kind == "source" else _Sink
                    self._ends.append(kind(self.office, spec))
            case say.EndRun():
                for end in self._ends:
                    end.ended = True
                name = ends_name(self._number)
                self.tell(say.Said(self._run, Peer(name), PlaceCleared(name)))
                self.office.over = True
