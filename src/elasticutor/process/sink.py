"""A sink's process: opens tuples, writes them, and measures how old they are.

Credits, epochs, and when output may be seen are `core.protocol.sink`'s to decide.
"""

from __future__ import annotations

import pickle
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any

import cloudpickle
import numpy as np
import pyarrow as pa

from elasticutor.core.measure.latency import LatencyHistogram
from elasticutor.core.protocol.coordinator import (
    AskToRest,
    BeginAttempt,
    CommitEpoch,
    ParticipantPrepared,
    ParticipantReady,
    ParticipantRested,
)
from elasticutor.core.protocol.ids import Epoch, Peer
from elasticutor.core.protocol.repartition import ConfirmOutputs
from elasticutor.core.protocol.sink import (
    AbortOutput,
    CommitOutput,
    PrepareOutput,
    SinkOrder,
    SinkSide,
    WriteHeld,
)
from elasticutor.errors import BadValueError, ProtocolError
from elasticutor.process.actor import Participant
from elasticutor.process.failures import reporting
from elasticutor.process.routes import require_schema
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
    """Run the sink that the payload describes, until the driver ends it."""
    spec: SinkSpec = pickle.loads(payload)  # noqa: S301 - it came from the driver, authenticated
    ask_for_short_slices()
    mail = Mailbox.at(spec.site, spec.who)
    with reporting(mail, spec.site.run, spec.who):
        SinkProcess(spec, mail).run()


class _Outlet(ABC):
    """Where a sink's tuples go."""

    @abstractmethod
    def write(self, batch: pa.RecordBatch) -> None:
        """Take tuples of the open epoch."""

    def prepare(self, epoch: Epoch) -> Any:  # noqa: B027 (what is with the driver is safe)
        """Make the epoch's tuples safe; returns what it takes to commit them, if anything."""

    def commit(self, epoch: Epoch, note: Any) -> None:  # noqa: B027 (most have shown all by then)
        """Show the epoch's tuples, unless they are seen already."""

    def abort(self) -> None:  # noqa: B027
        """Drop what is not committed; what a plain writer has written stays written."""

    def tick(self) -> None:  # noqa: B027
        """Some time has passed."""

    def close(self) -> None:  # noqa: B027
        """Called once, whatever happened."""


class _ToDriver(_Outlet):
    """Ships what a memory sink takes to the driver, which knows what is committed."""

    def __init__(self, spec: SinkSpec, mail: Mailbox, side: SinkSide) -> None:
        self._spec = spec
        self._mail = mail
        self._side = side
        self._schema = spec.schema.serialize().to_pybytes()

    def write(self, batch: pa.RecordBatch) -> None:
        data = batch.serialize().to_pybytes()
        collected = say.Collected(
            self._spec.site.run,
            self._spec.who,
            self._side.attempt,
            self._side.epoch,
            self._schema,
            data,
            batch.num_rows,
        )
        self._mail.send(DRIVER, collected)


class _AtOnce(_Outlet):
    """A writer that knows nothing of epochs: what it writes is seen, and may be written again."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer

    def write(self, batch: pa.RecordBatch) -> None:
        self._writer.write(batch)

    def prepare(self, epoch: Epoch) -> Any:
        self._writer.flush()

    def tick(self) -> None:
        self._writer.tick()

    def close(self) -> None:
        self._writer.close()


class _ByEpochs(_AtOnce):
    """A writer that publishes by epochs."""

    def __init__(self, writer: EpochWriter) -> None:
        super().__init__(writer)
        self._epochs = writer

    def prepare(self, epoch: Epoch) -> Any:
        return self._epochs.prepare(epoch)

    def commit(self, epoch: Epoch, note: Any) -> None:
        self._epochs.commit(epoch, note)

    def abort(self) -> None:
        self._epochs.abort()


def _outlet(sink: Sink, spec: SinkSpec, mail: Mailbox, side: SinkSide) -> _Outlet:
    if sink.collects:
        return _ToDriver(spec, mail, side)
    run = SinkRun(spec.who, spec.site.run, spec.job, spec.checkpointed)
    writer = open_sink(spec.who, sink, 0, spec.schema, run)
    return _ByEpochs(writer) if isinstance(writer, EpochWriter) else _AtOnce(writer)


class SinkProcess(Participant):
    """One sink."""

    def __init__(self, spec: SinkSpec, mail: Mailbox) -> None:
        super().__init__(mail, "a sink", spec.site, spec.who)
        self._spec = spec
        sink: Sink = cloudpickle.loads(spec.blob)
        self._writes = not isinstance(sink, NoSink)  # otherwise packets stay unopened
        self._side = SinkSide(
            spec.who,
            spec.upstreams,
            first=spec.credit_bytes,
            limit=_INSIDE * spec.credit_bytes,
        )
        self._outlet = _outlet(sink, spec, mail, self._side)
        self._greeted: set[Peer] = set()
        self._rows = 0
        self._latency = LatencyHistogram()
        self._ages: list[float] = []  # of single tuples, in seconds: counted when it is measured
        self._since = time.monotonic()

    def run(self) -> None:
        """Register, then write what comes until the driver says `Finish`."""
        spec = self._spec
        self.register()
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
        require_schema(message, self._spec.schema)
        self._greeted.add(message.sender)

    def _on_tuples(self, message: Tuples | RowTuples) -> None:
        sender, attempt = message.sender, message.attempt
        if attempt != self._side.attempt:
            return
        if sender not in self._greeted:
            raise BadValueError("tuples", "follow a greeting", sender)
        # Opened first, so that what is damaged is refused before anything has changed.
        batch = message.packet.open(self._spec.schema) if self._writes else None
        if self._side.arrive(sender, attempt, message.size, (message, batch)):
            self._write(message, batch)

    def _write(self, message: Tuples | RowTuples, batch: pa.RecordBatch | None) -> None:
        if batch is not None:
            self._outlet.write(batch)
        self._note_ages(message.packet)
        grant = self._side.written(message.sender, message.attempt, message.size)
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
        self._carry_out(self._side.mark(message.sender, message.attempt, message.epoch))

    def _on_begin(self, order: BeginAttempt) -> None:
        self._carry_out(self._side.begin(order))

    def _on_commit(self, order: CommitEpoch) -> None:
        self._carry_out(self._side.commit(order))

    def _carry_out(self, orders: Iterable[SinkOrder]) -> None:
        for order in orders:
            match order:
                case WriteHeld():
                    self._write(*order.content)
                case PrepareOutput(attempt, epoch):
                    note = self._outlet.prepare(epoch)
                    self._carry_out(self._side.prepared(attempt, epoch, note))
                case CommitOutput(epoch, note):
                    self._outlet.commit(epoch, note)
                case AbortOutput():
                    self._outlet.abort()
                case ParticipantPrepared():
                    self._measure()  # before a run that ends with this epoch is over
                    self.report(order)
                case ParticipantReady():
                    self.report(order)

    def _on_confirm_outputs(self, order: ConfirmOutputs) -> None:
        self._mail.send(order.executor, self._side.confirm(order))

    def _on_peers(self, message: say.Peers) -> None:
        self._mail.know_all(message.book)

    def _on_rest(self, message: AskToRest) -> None:
        # In its place behind the last commit: when the run is over, all is published.
        self.report(ParticipantRested(self._spec.who))

    def _on_finish(self, message: say.Finish) -> None:
        self.finish()

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
    AskToRest: SinkProcess._on_rest,
    say.Finish: SinkProcess._on_finish,
}
