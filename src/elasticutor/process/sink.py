"""A sink's process: it takes tuples in, writes them, and measures how old they are.

An epoch ends here when its markers have come from all upstreams. Who has sent its marker may go on
with the next epoch meanwhile; its tuples wait, so that every tuple is written in its own epoch.
"""

from __future__ import annotations

import os
import pickle
import time
from abc import ABC, abstractmethod
from typing import Any

import cloudpickle
import numpy as np
import pyarrow as pa

from elasticutor.core.executor.credits import InputCredits
from elasticutor.core.measure.latency import LatencyHistogram
from elasticutor.core.protocol.coordinator import (
    BeginAttempt,
    CommitEpoch,
    ParticipantPrepared,
    ParticipantReady,
)
from elasticutor.core.protocol.ids import Attempt, Epoch, Peer
from elasticutor.core.protocol.repartition import ConfirmOutputs, OutputsTaken
from elasticutor.errors import BadValueError, ElasticutorError, OutOfOrderError, ProtocolError
from elasticutor.process.actor import Actor
from elasticutor.process.failures import reporting
from elasticutor.process.slices import ask_for_short_slices
from elasticutor.process.specs import SinkSpec
from elasticutor.sinks import EpochWriter, NoSink, Sink, SinkRun, Writer, open_sink
from elasticutor.transport import messages as say
from elasticutor.transport.codec import Credit, RowTuples, Tuples
from elasticutor.transport.mailbox import DRIVER, Mailbox
from elasticutor.transport.packets import Packet
from elasticutor.transport.row_packets import RowPacket

_INSIDE = 64
"""What an upstream may have under way to a sink, in first credits."""


def run_sink(payload: bytes) -> None:
    """Be the sink that the payload describes, until told to finish."""
    spec: SinkSpec = pickle.loads(payload)  # noqa: S301 - it came from the driver, authenticated
    ask_for_short_slices()
    mail = Mailbox.at(spec.site, spec.who)
    with reporting(mail, spec.site.run, spec.who):
        SinkProcess(spec, mail).run()


class _Outlet(ABC):
    """Where a sink's tuples go, as the epochs see it."""

    @abstractmethod
    def begin(self, order: BeginAttempt) -> None:
        """Go back to the attempt's base."""

    @abstractmethod
    def write(self, batch: pa.RecordBatch) -> None:
        """Take tuples of the epoch that is next to be prepared."""

    @abstractmethod
    def prepare(self, epoch: Epoch) -> Any:
        """Make the epoch's tuples safe; returns what it takes to commit them."""

    def commit(self, epoch: Epoch) -> None:  # noqa: B027 (most have shown all by then)
        """The epoch counts."""

    def tick(self) -> None:  # noqa: B027
        """Some time has passed."""

    def close(self) -> None:  # noqa: B027
        """Called once, whatever happened."""


class _ToDriver(_Outlet):
    """Ships what a memory sink takes to the driver, which knows what is committed."""

    def __init__(self, spec: SinkSpec, mail: Mailbox) -> None:
        self._spec = spec
        self._mail = mail
        self._schema = spec.schema.serialize().to_pybytes()
        self._attempt = Attempt(0)
        self._epoch = Epoch(0)

    def begin(self, order: BeginAttempt) -> None:
        self._attempt, self._epoch = order.attempt, order.epoch

    def write(self, batch: pa.RecordBatch) -> None:
        data = batch.serialize().to_pybytes()
        collected = say.Collected(
            self._spec.site.run,
            self._spec.who,
            self._attempt,
            self._epoch,
            self._schema,
            data,
            batch.num_rows,
        )
        self._mail.send(DRIVER, collected)

    def prepare(self, epoch: Epoch) -> None:
        self._epoch = Epoch(epoch + 1)


class _AtOnce(_Outlet):
    """A writer that knows nothing of epochs: what it writes is seen, and may be written again."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer

    def begin(self, order: BeginAttempt) -> None:
        """What is written is written."""

    def write(self, batch: pa.RecordBatch) -> None:
        self._writer.write(batch)

    def prepare(self, epoch: Epoch) -> None:
        self._writer.flush()

    def tick(self) -> None:
        self._writer.tick()

    def close(self) -> None:
        self._writer.close()


class _ByEpochs(_Outlet):
    """A writer that publishes by epochs."""

    def __init__(self, writer: EpochWriter) -> None:
        self._writer = writer
        self._prepared: tuple[Epoch, Any] | None = None

    def begin(self, order: BeginAttempt) -> None:
        # First what counts, by whoever it was prepared: all that is left is then given up.
        self._prepared = None
        if order.note is not None:
            self._writer.commit(order.base, order.note)
        self._writer.abort()

    def write(self, batch: pa.RecordBatch) -> None:
        self._writer.write(batch)

    def prepare(self, epoch: Epoch) -> Any:
        # Sources end an epoch only when the one before it is committed, though the word of that may
        # be slower on its way than their markers.
        self._publish()
        note = self._writer.prepare(epoch)
        self._prepared = (epoch, note)
        return note

    def commit(self, epoch: Epoch) -> None:
        if self._prepared is not None and self._prepared[0] == epoch:
            self._publish()

    def tick(self) -> None:
        self._writer.tick()

    def close(self) -> None:
        self._writer.close()

    def _publish(self) -> None:
        if self._prepared is not None:
            epoch, note = self._prepared
            if note is not None:
                self._writer.commit(epoch, note)
            self._prepared = None


def _outlet(sink: Sink, spec: SinkSpec, mail: Mailbox) -> _Outlet:
    if sink.collects:
        return _ToDriver(spec, mail)
    run = SinkRun(spec.who, spec.site.run, spec.job, spec.checkpointed)
    writer = open_sink(spec.who, sink, 0, spec.schema, run)
    return _ByEpochs(writer) if isinstance(writer, EpochWriter) else _AtOnce(writer)


class SinkProcess(Actor):
    """One sink."""

    def __init__(self, spec: SinkSpec, mail: Mailbox) -> None:
        super().__init__(mail, "a sink")
        self._spec = spec
        sink: Sink = cloudpickle.loads(spec.blob)
        self._writes = not isinstance(sink, NoSink)  # otherwise nobody looks into the packets
        self._outlet = _outlet(sink, spec, mail)
        self._greeted: set[Peer] = set()
        self._credits = InputCredits([], first=0)
        self._attempt = Attempt(0)
        self._epoch = Epoch(0)  # the one whose markers come next
        self._marked: set[Peer] = set()
        # Of the epoch after it.
        self._held: list[tuple[Tuples | RowTuples, pa.RecordBatch | None]] = []
        self._rows = 0
        self._latency = LatencyHistogram()
        self._ages: list[float] = []  # of single tuples, in seconds: counted when it is measured
        self._since = time.monotonic()

    def run(self) -> None:
        """Register, then write whatever comes until told to finish."""
        spec = self._spec
        where = say.Registered(
            spec.site.run, spec.who, self._mail.endpoint, os.getpid(), spec.site.life
        )
        self._mail.send(DRIVER, where)
        self.every(spec.tempo.measure_s, self._outlet.tick)
        self.every(spec.tempo.measure_s, self._measure)
        try:
            self.serve()
        finally:
            self._outlet.close()

    def take(self, message: Any) -> None:
        """Handle a message; one that does not fit is dropped."""
        try:
            super().take(message)
        except (ProtocolError, BadValueError) as error:
            self._mail.drop(str(error))

    def _on_hello(self, message: say.Hello) -> None:
        schema = pa.ipc.read_schema(pa.py_buffer(message.schema))
        if not schema.equals(self._spec.schema):
            raise ElasticutorError(
                f"tuples from {message.sender!r}", f"have the schema {self._spec.schema}", schema
            )
        self._greeted.add(message.sender)

    def _on_tuples(self, message: Tuples | RowTuples) -> None:
        if message.attempt != self._attempt:
            return
        if message.sender not in self._greeted:
            raise BadValueError("tuples", "follow a greeting", message.sender)
        self._credits.require_credit(message.sender)
        # Opened first, so that what is damaged is refused before anything has changed.
        batch = message.packet.open(self._spec.schema) if self._writes else None
        self._credits.spend(message.sender, message.size)
        if message.sender in self._marked:
            # It is an epoch ahead of others. These tuples count as inside, so it cannot run away.
            self._held.append((message, batch))
        else:
            self._write(message, batch)

    def _write(self, message: Tuples | RowTuples, batch: pa.RecordBatch | None) -> None:
        if batch is not None:
            self._outlet.write(batch)
        self._note_ages(message.packet)
        self._credits.finish(message.sender, message.size)
        limit = _INSIDE * self._spec.credit_bytes
        grant = self._credits.grant(message.sender, self._attempt, limit)
        if grant is not None:
            self._mail.send(message.sender, Credit(self._spec.who, grant.attempt, grant.total))

    def _note_ages(self, packet: Packet | RowPacket) -> None:
        now = time.time()
        self._rows += packet.rows
        if type(packet) is RowPacket:
            self._ages += [now - born_us / 1e6 for born_us in packet.born_us]
            return
        births = packet.births
        if len(births) == 1:  # by far the most common, and by far cheaper
            self._latency.record(max(0.0, now - int(births[0, 0]) / 1e6), packet.rows)
        else:
            ages = np.maximum(now - births[:, 0] / 1e6, 0.0)
            self._latency.record_many(ages, births[:, 1])

    def _on_marker(self, message: say.Marker) -> None:
        if message.attempt != self._attempt:
            return
        self._credits.require(message.sender)
        if message.epoch != self._epoch or message.sender in self._marked:
            must = f"be of epoch {self._epoch}, and one from each upstream"
            raise OutOfOrderError(f"marker of {message.sender!r}", must, message.epoch)
        self._marked.add(message.sender)
        if len(self._marked) == len(self._spec.upstreams):
            self._end_epoch()

    def _end_epoch(self) -> None:
        ended = self._epoch
        note = self._outlet.prepare(ended)
        self._epoch = Epoch(ended + 1)
        self._marked.clear()
        self._measure()
        self._say(ParticipantPrepared(self._spec.who, self._attempt, ended, note))
        held, self._held = self._held, []
        for message, batch in held:
            self._write(message, batch)

    def _on_confirm_outputs(self, order: ConfirmOutputs) -> None:
        # What came before it is written, or held in its place: nothing that comes by another way
        # from now on can be before that.
        self._credits.require(order.executor)
        self._mail.send(order.executor, OutputsTaken(self._spec.who, order.round))

    def _on_begin(self, order: BeginAttempt) -> None:
        if order.attempt <= self._attempt:
            return
        self._attempt, self._epoch = order.attempt, order.epoch
        self._marked.clear()
        self._held.clear()
        self._credits = InputCredits(self._spec.upstreams, first=self._spec.credit_bytes)
        self._outlet.begin(order)
        self._say(ParticipantReady(self._spec.who, order.attempt))

    def _on_commit(self, order: CommitEpoch) -> None:
        if order.attempt == self._attempt:
            self._outlet.commit(order.epoch)

    def _on_peers(self, message: say.Peers) -> None:
        self._mail.know_all(message.book)

    def _on_rest(self, message: say.Rest) -> None:
        # In its place behind the last commit: so whoever waits for the run finds all published.
        self._say(say.Rested())

    def _on_finish(self, message: say.Finish) -> None:
        self.finish()

    def _say(self, what: Any) -> None:
        self._mail.send(DRIVER, say.Said(self._spec.site.run, self._spec.who, what))

    def _measure(self) -> None:
        now = time.monotonic()
        spec = self._spec
        if self._ages:
            ages = np.maximum(self._ages, 0.0)
            self._latency.record_many(ages, np.ones(len(ages), np.int64))
            self._ages.clear()
        measured = say.SinkMeasured(
            spec.site.run, spec.who, now - self._since, self._rows, self._latency
        )
        self._mail.send(DRIVER, measured)
        self._since, self._rows, self._latency = now, 0, LatencyHistogram()


SinkProcess.handlers = {
    say.Hello: SinkProcess._on_hello,
    Tuples: SinkProcess._on_tuples,
    RowTuples: SinkProcess._on_tuples,
    say.Marker: SinkProcess._on_marker,
    ConfirmOutputs: SinkProcess._on_confirm_outputs,
    BeginAttempt: SinkProcess._on_begin,
    CommitEpoch: SinkProcess._on_commit,
    say.Peers: SinkProcess._on_peers,
    say.Rest: SinkProcess._on_rest,
    say.Finish: SinkProcess._on_finish,
}
