"""A task of a query: sends its rows to the executors, and takes their outputs back.

It is an upstream that lives as long as its partition of its batch. Everything happens in the one
thread in which rows are asked for: while it waits for credit it takes outputs, and while the source
of its rows or the taker of its outputs has its time, the executors keep what is for it, at no
cost for others. A ring of tasks that wait for each other cannot form, because all outputs of
an operator go through an exchange before the next one sees any.
"""

from __future__ import annotations

import math
import os
import secrets
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from elasticutor.core.executor.credits import InputCredits
from elasticutor.core.executor.emitter import Emitter
from elasticutor.core.measure.latency import LatencyHistogram
from elasticutor.core.protocol import instructions as do
from elasticutor.core.protocol.batch_protocol import Ingress
from elasticutor.core.protocol.events import Output
from elasticutor.core.protocol.ids import NodeId, Peer
from elasticutor.process.failures import SilentDriverError, unpickled
from elasticutor.process.hosting.hosts import SILENCE_S, Bootstrap, home
from elasticutor.process.routes import Router
from elasticutor.process.slices import ask_for_short_slices
from elasticutor.process.specs import Route
from elasticutor.transport import messages as say
from elasticutor.transport.channels import Links, advertised_host
from elasticutor.transport.codec import Credit, RowTuples, Tuples, tuples
from elasticutor.transport.mailbox import DRIVER, Mailbox
from elasticutor.transport.packets import Packet, born
from elasticutor.transport.row_packets import RowPacket

if TYPE_CHECKING:
    from elasticutor.plan import Plan

_TICK_S = 0.5
_YIELD_ROWS = 10_000
"""How many outputs go back to Spark at once, as many as it sends itself; or fewer, if they are
large:"""
_YIELD_BYTES = 2 * 1024 * 1024
_FEW_BIRTHS = 8
"""Up to here, they are counted faster one by one than with NumPy."""
_TAKE_BYTES = 8 * 1024 * 1024
"""How much each executor may have on its way back."""
_AHEAD_BYTES = 1024 * 1024
"""How much a task makes ready to be sent while it waits to be admitted."""
_PAUSE_SHARE = 0.01
"""A task that has sent everything waits for outputs, and no single one of them is urgent. It lets
them gather for this share of the time that it has waited: each time that it wakes up, it takes a
core from those that make them. So it learns of the last one later by one percent at most."""
_PAUSE_S = 0.02
"""But it looks at least this often: what an executor may have on its way back is limited."""
_WORTH_PAUSING_S = 0.001
"""A shorter pause saves less than it costs."""


@dataclass(frozen=True)
class Feed:
    """What the tasks of an elastic DataFrame need; it travels with the query's plan."""

    bootstrap: Bootstrap
    frame: str
    routes: tuple[Route, ...]
    schema: pa.Schema
    outputs: Mapping[Peer, tuple[str, pa.Schema]]
    """What each executor makes: the operator, and the schema."""

    @classmethod
    def of(cls, bootstrap: Bootstrap, frame: str, plan: Plan) -> Feed:
        """For the operators of a plan, which all take the same rows."""
        routes = tuple(
            Route(operator.name, operator.key, tuple(map(Peer, operator.processes)))
            for operator in plan.operators
        )
        outputs = {
            Peer(who): (operator.name, operator.output)
            for operator in plan.operators
            for who in operator.processes
        }
        return cls(bootstrap, frame, routes, plan.operators[0].input, outputs)

    def run(
        self, task: Ingress, batches: Iterable[pa.RecordBatch], *, query: str = "", group: str = ""
    ) -> Iterator[tuple[str, pa.RecordBatch]]:
        """Send a partition, and yield what is made of it, with the name of the operator.

        Returns only when the driver lets it leave: all that it has sent is safe.

        Raises:
            ElasticutorError: An operator has failed, something was lost, or the task may not send.
        """
        self.bootstrap.require_version()
        connection = Connection.of(self.bootstrap)
        connection.ask(self.frame, query, group, task)
        cut = map(_Cutter(self.routes), batches)
        ahead: list[_Cut] = []
        while (admitted := connection.admitted(task)) is None:
            if sum(one.size for one in ahead) >= _AHEAD_BYTES:
                connection.wait()
            elif (one := next(cut, None)) is None:
                break
            else:
                ahead.append(one)
                connection.wait_again()
        admitted = admitted or connection.await_admission(task)
        yield from _PartitionFeed(self, connection, task, admitted).run(chain(ahead, cut))


class Connection:
    """This process's connection with one cluster; it stays from task to task."""

    _OPEN: dict[str, Connection] = {}  # noqa: RUF012 - one per process and cluster, on purpose

    def __init__(self, bootstrap: Bootstrap) -> None:
        ask_for_short_slices()  # the executors' tasks have nothing to do until this one is run
        self._bootstrap = bootstrap
        self._pid = os.getpid()
        self._host = advertised_host(bootstrap.address)
        # Of a name of its own: a peer that keeps a connection to another process that had its port
        # does not take it for this one's.
        self.driver = self._mail(NodeId(f"ingress-{secrets.token_hex(4)}"), "")
        self._mails: dict[tuple[str, str], Mailbox] = {}
        self._heard_at = 0.0

    @classmethod
    def of(cls, bootstrap: Bootstrap) -> Connection:
        """The connection of this process."""
        found = cls._OPEN.get(bootstrap.cluster)
        if found is None or found._pid != os.getpid():
            found = cls._OPEN[bootstrap.cluster] = cls(bootstrap)
        return found

    def close(self) -> None:
        """Close all of its mail, and forget it."""
        self._OPEN.pop(self._bootstrap.cluster, None)
        for mail in (*self._mails.values(), self.driver):
            mail.close()

    def _mail(self, node: NodeId, sockets: str) -> Mailbox:
        links = Links(node, self._bootstrap.keys, ipc_dir=sockets or None, host=self._host)
        mail = Mailbox.of(links, f"ingress-{os.getpid()}")
        mail.know(DRIVER, self._bootstrap.driver)
        return mail

    def beside(self, node: NodeId, sockets: str) -> Mailbox:
        """The mail for data, on the node that this process is beside."""
        if (node, sockets) not in self._mails:
            for other in [place for place in self._mails if place[1] == sockets]:
                self._mails.pop(other).close()  # of a node whose place this one has taken
            mail = self._mails[node, sockets] = self._mail(node, sockets)
            mail.watch_too(self.driver)
        return self._mails[node, sockets]

    def ask(self, frame: str, query: str, group: str, task: Ingress) -> None:
        """Ask the driver to admit a task."""
        self.wait_again()
        message = say.Arrive(frame, query, group, task, self.driver.endpoint, home())
        self.driver.send(DRIVER, message)

    def admitted(self, task: Ingress) -> say.Admitted | None:
        """The admission of a task, if it is here."""
        self.driver.wait(0.0)
        for answer in self.answers(task):
            if isinstance(answer, say.Admitted):
                return answer
        return None

    def await_admission(self, task: Ingress) -> say.Admitted:
        """Wait for the admission of a task."""
        while (answer := self.admitted(task)) is None:
            self.wait()
        return answer

    def wait(self) -> None:
        """Wait for a message from the driver, for a moment."""
        self.driver.wait(_TICK_S)

    def wait_again(self) -> None:
        """Count the driver's silence from now on: before, nothing was read."""
        self._heard_at = time.monotonic()

    def answers(self, task: Ingress) -> Iterator[say.Admitted | say.Left]:
        """The driver's answers to a task; raises the reason if it was refused."""
        for message in self.driver.receive():
            self._heard_at = time.monotonic()
            match message:
                case say.Beat():
                    pass
                case say.Refused(number) if number == task.task:
                    raise unpickled(message)
                case say.Admitted(number) | say.Left(number) if number == task.task:
                    yield message
                case _:
                    pass  # for a task that this process has had before
        if time.monotonic() - self._heard_at > SILENCE_S:
            raise SilentDriverError.after(SILENCE_S, "this task of the elastic operators")


@dataclass(frozen=True, slots=True)
class _Cut:
    """A batch, cut into a packet for each executor."""

    rows: int
    packets: Sequence[Output]

    @property
    def size(self) -> int:
        return sum(out.size for out in self.packets)


class _Cutter:
    """Cuts batches as soon as they are there, which is when their latency begins to count."""

    def __init__(self, routes: tuple[Route, ...]) -> None:
        self._router = Router(routes)

    def __call__(self, batch: pa.RecordBatch) -> _Cut:
        rows = batch.num_rows
        return _Cut(rows, self._router.split(batch, born(time.time(), rows)))


class _PartitionFeed:
    """Feeds one partition to the executors, from its task's admission to its end."""

    def __init__(
        self, feed: Feed, connection: Connection, task: Ingress, admitted: say.Admitted
    ) -> None:
        self._feed = feed
        self._connection = connection
        self._task = task
        self._admitted = admitted
        self._me = admitted.upstream
        self._attempt = admitted.attempt
        self._peers = Router(feed.routes).peers
        self._mail = connection.beside(admitted.node, admitted.sockets)
        peers = self._peers
        credit = admitted.credit
        self._outputs = Emitter(peers, first=credit, limit=credit, returned=False)
        self._intake = InputCredits(peers, first=credit)
        self._unmarked = set(peers)
        self._made = _OutputBuffer()
        self._left = False
        self._meter = _Meter(admitted, task, feed.routes)
        schema = feed.schema.serialize().to_pybytes()
        join = say.Join(self._me, self._attempt, schema, self._mail.endpoint)
        for _ in self._mail.receive():
            pass  # for tasks that this process has had before
        for who in peers:
            self._mail.know(who, admitted.book[who])
            self._mail.send(who, join)

    def run(self, rows: Iterable[_Cut]) -> Iterator[tuple[str, pa.RecordBatch]]:
        for cut in rows:
            self._connection.wait_again()
            self._send(cut)
            yield from self._take()
            while self._blocked():
                yield from self._wait_and_take()
        self._outputs.end_epoch(self._admitted.epoch)
        for who in self._peers:
            self._flush(who)
        sent_at = time.monotonic()
        while self._unmarked:
            self._let_gather(time.monotonic() - sent_at)
            yield from self._wait_and_take()
        meter, mail = self._meter, self._connection.driver
        meter.tell(mail)
        rows_in = {route.name: meter.rows_in for route in self._feed.routes}
        mail.send(
            DRIVER,
            say.PartitionDone(
                self._admitted.run,
                self._task,
                self._attempt,
                rows_in,
                meter.rows_out,
                meter.latency,
            ),
        )
        yield from self._made.all()
        while not self._left:
            yield from self._wait_and_take()

    def _let_gather(self, waited_s: float) -> None:
        """Leave outputs where they are for a moment; not while others need what is still here."""
        pause_s = min(_PAUSE_SHARE * waited_s, _PAUSE_S)
        if pause_s >= _WORTH_PAUSING_S and self._outputs.empty:
            time.sleep(pause_s)

    def _blocked(self) -> bool:
        blocked = self._outputs.blocked(self._me)
        self._meter.blocked(blocked)
        return blocked

    def _send(self, cut: _Cut) -> None:
        self._meter.sent(cut.rows, cut.packets)
        for out in cut.packets:
            self._outputs.add(out)
            self._flush(out.destination)

    def _flush(self, who: Peer) -> None:
        for order in self._outputs.send(who, self._attempt):
            if isinstance(order, do.Emit):
                self._mail.send(who, tuples(self._me, order.attempt, order.size, order.batch))
            else:
                self._mail.send(who, say.Marker(self._me, order.attempt, order.epoch))

    def _wait_and_take(self) -> Iterator[tuple[str, pa.RecordBatch]]:
        self._mail.wait(_TICK_S)
        yield from self._take()

    def _take(self) -> Iterator[tuple[str, pa.RecordBatch]]:
        """Take what has come by now."""
        for message in self._mail.receive():
            if getattr(message, "attempt", None) == self._attempt:
                self._receive(message)
        for answer in self._connection.answers(self._task):
            self._left = self._left or isinstance(answer, say.Left)
        self._meter.tell_if_due(self._connection.driver)
        for made in self._made.ripe():
            yield made
            self._connection.wait_again()

    def _receive(self, message: Any) -> None:
        match message:
            case Credit(sender, _, total):
                self._outputs.credit(sender, total)
                self._flush(sender)
            case Tuples(sender, attempt, size, packet) | RowTuples(sender, attempt, size, packet):
                operator, schema = self._feed.outputs[sender]
                self._made.add(operator, packet.open(schema), size)
                self._meter.took(operator, packet)
                self._intake.spend(sender, size)
                grant = self._intake.finish(sender, size, attempt, _TAKE_BYTES)
                if grant is not None:
                    self._mail.send(sender, Credit(self._me, attempt, grant.total))
            case say.Marker(sender):
                self._unmarked.discard(sender)


class _OutputBuffer:
    """Gathers outputs by operator: a batch costs Spark as much as some thousand rows."""

    def __init__(self) -> None:
        self._parts: dict[str, list[pa.RecordBatch]] = {}
        self._rows: Counter[str] = Counter()
        self._bytes: Counter[str] = Counter()

    def add(self, operator: str, batch: pa.RecordBatch, size: int) -> None:
        """Add outputs of an operator."""
        self._parts.setdefault(operator, []).append(batch)
        self._rows[operator] += batch.num_rows
        self._bytes[operator] += size

    def ripe(self) -> Iterator[tuple[str, pa.RecordBatch]]:
        """Yield outputs that have reached the batch size."""
        for operator in list(self._parts):
            if self._rows[operator] >= _YIELD_ROWS or self._bytes[operator] >= _YIELD_BYTES:
                yield operator, self._together(operator)

    def all(self) -> Iterator[tuple[str, pa.RecordBatch]]:
        """Yield all that are left."""
        for operator in list(self._parts):
            yield operator, self._together(operator)

    def _together(self, operator: str) -> pa.RecordBatch:
        parts = self._parts.pop(operator)
        self._rows.pop(operator)
        self._bytes.pop(operator)
        return parts[0] if len(parts) == 1 else pa.concat_batches(parts)


class _Meter:
    """Counts what a task has sent and taken: since its last report, and in all, by operator."""

    def __init__(self, admitted: say.Admitted, task: Ingress, routes: Sequence[Route]) -> None:
        self._run = admitted.run
        self._who = Peer(f"ingress.{task.partition}")
        self._every_s = admitted.measure_s
        self._blocked_since: float | None = None
        names = [route.name for route in routes]
        self.rows_in = 0
        self.rows_out = dict.fromkeys(names, 0)
        self.latency = {name: LatencyHistogram() for name in names}
        self._start(time.monotonic())

    def _start(self, now: float) -> None:
        self._since = now
        self._sent = self._taken = 0
        self._blocked_s = 0.0
        self._routed: Counter[Peer] = Counter()
        self._latency = LatencyHistogram()

    def sent(self, rows: int, packets: Iterable[Output]) -> None:
        """Count rows that were cut into packets."""
        self.rows_in += rows
        self._sent += rows
        for out in packets:
            self._routed[out.destination] += out.rows

    def took(self, operator: str, packet: Packet | RowPacket) -> None:
        """Count outputs that have come back, and their latency."""
        self._taken += packet.rows
        self.rows_out[operator] += packet.rows
        now, births = time.time(), packet.births
        both = self._latency, self.latency[operator]
        if len(births) <= _FEW_BIRTHS:  # as a rule: all rows of a batch of Spark's are born at once
            for born_us, rows in births.tolist():
                for latency in both:
                    latency.record(max(0.0, now - born_us / 1e6), rows)
            return
        ages = (now - births[:, 0] / 1e6).clip(0.0)
        for latency in both:
            latency.record_many(ages, births[:, 1])

    def blocked(self, blocked: bool) -> None:
        """Note whether the task is blocked now."""
        now = time.monotonic()
        if self._blocked_since is not None:
            self._blocked_s += now - self._blocked_since
        self._blocked_since = now if blocked else None

    def tell_if_due(self, mail: Mailbox) -> None:
        """Report to the driver, if the last report is some time ago."""
        if time.monotonic() - self._since >= self._every_s:
            self.tell(mail)

    def tell(self, mail: Mailbox) -> None:
        """Report to the driver."""
        self.blocked(self._blocked_since is not None)
        now = time.monotonic()
        seconds = max(now - self._since, 1e-9)
        share = min(1.0, self._blocked_s / seconds)
        routed = dict(self._routed)
        mail.send(
            DRIVER,
            # All that there is is offered at once.
            say.SourceMeasured(
                self._run, self._who, seconds, self._sent, share, 0.0, math.inf, routed
            ),
        )
        taken = say.SinkMeasured(self._run, self._who, seconds, self._taken, self._latency)
        mail.send(DRIVER, taken)
        self._start(now)
