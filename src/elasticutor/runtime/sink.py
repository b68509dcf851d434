"""A sink's process: it takes tuples in, writes them, and measures how old they are."""

from __future__ import annotations

import os
import pickle
import time
from collections.abc import Callable
from typing import Any

import cloudpickle
import numpy as np
import pyarrow as pa

from elasticutor.core.coordinator import (
    BeginAttempt,
    CommitEpoch,
    ParticipantPrepared,
    ParticipantReady,
)
from elasticutor.core.flow import InputCredits
from elasticutor.core.ids import Attempt, Epoch, Peer
from elasticutor.core.latency import LatencyHistogram
from elasticutor.errors import BadValueError, ElasticutorError, ProtocolError
from elasticutor.runtime import messages as say
from elasticutor.runtime.failures import reporting
from elasticutor.runtime.mailroom import DRIVER, Mailroom
from elasticutor.runtime.packets import Packet
from elasticutor.runtime.specs import SinkSpec
from elasticutor.runtime.wire import Credit, Tuples
from elasticutor.sinks import NoSink, Sink, Writer, open_sink

_INSIDE = 64
"""What an upstream may have under way to a sink, in first credits."""


def run_sink(payload: bytes) -> None:
    """Be the sink that the payload describes, until told to finish."""
    spec: SinkSpec = pickle.loads(payload)  # noqa: S301 - it came from the driver, authenticated
    mail = Mailroom.at(spec.site, spec.who)
    with reporting(mail, spec.site.run, spec.who):
        SinkProcess(spec, mail).run()


class _ToDriver(Writer):
    """Ships what a memory sink takes to the driver."""

    def __init__(self, spec: SinkSpec, mail: Mailroom) -> None:
        self._spec = spec
        self._mail = mail
        self._schema = spec.schema.serialize().to_pybytes()

    def write(self, batch: pa.RecordBatch) -> None:
        data = batch.serialize().to_pybytes()
        collected = say.Collected(
            self._spec.site.run, self._spec.who, self._schema, data, batch.num_rows
        )
        self._mail.send(DRIVER, collected)


class SinkProcess:
    """One sink."""

    def __init__(self, spec: SinkSpec, mail: Mailroom) -> None:
        self._spec = spec
        self._mail = mail
        sink: Sink = cloudpickle.loads(spec.blob)
        self._writes = not isinstance(sink, NoSink)  # otherwise nobody looks into the packets
        self._writer = (
            _ToDriver(spec, mail) if sink.collects else open_sink(spec.who, sink, 0, spec.schema)
        )
        self._greeted: set[Peer] = set()
        self._credits = InputCredits([], first=0)
        self._attempt = Attempt(0)
        self._marked: set[Peer] = set()
        self._finished = False
        self._rows = 0
        self._latency = LatencyHistogram()
        self._since = time.monotonic()

    def run(self) -> None:
        """Register, then write whatever comes until told to finish."""
        spec = self._spec
        where = say.Registered(spec.site.run, spec.who, self._mail.endpoint, os.getpid())
        self._mail.send(DRIVER, where)
        measure_at = time.monotonic() + spec.tempo.measure_s
        try:
            while not self._finished:
                self._mail.wait(max(0.0, measure_at - time.monotonic()))
                for message in self._mail.receive():
                    self._take(message)
                if time.monotonic() >= measure_at:
                    measure_at = time.monotonic() + spec.tempo.measure_s
                    self._writer.tick()
                    self._measure()
        finally:
            self._writer.close()

    def _take(self, message: Any) -> None:
        handler = _HANDLERS.get(type(message))
        try:
            if handler is None:
                self._mail.drop(f"{type(message).__name__} is not for a sink")
            else:
                handler(self, message)
        except (ProtocolError, BadValueError) as error:
            self._mail.drop(str(error))

    def _on_hello(self, message: say.Hello) -> None:
        schema = pa.ipc.read_schema(pa.py_buffer(message.schema))
        if not schema.equals(self._spec.schema):
            raise ElasticutorError(
                f"tuples from {message.sender!r}", f"have the schema {self._spec.schema}", schema
            )
        self._greeted.add(message.sender)

    def _on_tuples(self, message: Tuples) -> None:
        if message.sender not in self._greeted:
            raise BadValueError("tuples", "follow a greeting", message.sender)
        if message.attempt != self._attempt:
            return
        self._credits.require_credit(message.sender)
        packet = message.packet
        batch = packet.open(self._spec.schema) if self._writes else None
        self._credits.spend(message.sender, message.size)
        if batch is not None:
            self._writer.write(batch)
        self._note_ages(packet)
        self._credits.finish(message.sender, message.size)
        limit = _INSIDE * self._spec.credit_bytes
        grant = self._credits.grant(message.sender, self._attempt, limit)
        if grant is not None:
            self._mail.send(message.sender, Credit(self._spec.who, grant.attempt, grant.total))

    def _note_ages(self, packet: Packet) -> None:
        now, births = time.time(), packet.births
        self._rows += packet.rows
        if len(births) == 1:  # by far the most common, and by far cheaper
            self._latency.record(max(0.0, now - int(births[0, 0]) / 1e6), packet.rows)
        else:
            ages = np.maximum(now - births[:, 0] / 1e6, 0.0)
            self._latency.record_many(ages, births[:, 1])

    def _on_marker(self, message: say.Marker) -> None:
        if message.attempt != self._attempt:
            return
        self._credits.require(message.sender)
        self._marked.add(message.sender)
        if len(self._marked) == len(self._spec.upstreams):
            self._marked.clear()
            self._writer.flush()
            self._measure()
            self._say(ParticipantPrepared(self._spec.who, message.attempt, Epoch(message.epoch)))

    def _on_begin(self, order: BeginAttempt) -> None:
        self._attempt = order.attempt
        self._marked.clear()
        self._credits = InputCredits(self._spec.upstreams, first=self._spec.credit_bytes)
        self._say(ParticipantReady(self._spec.who, order.attempt))

    def _on_commit(self, order: CommitEpoch) -> None:
        """Nothing to do: what this sink writes, it writes at once."""

    def _on_peers(self, message: say.Peers) -> None:
        self._mail.know_all(message.book)

    def _on_finish(self, message: say.Finish) -> None:
        self._finished = True

    def _say(self, what: Any) -> None:
        self._mail.send(DRIVER, say.Said(self._spec.site.run, self._spec.who, what))

    def _measure(self) -> None:
        now = time.monotonic()
        spec = self._spec
        measured = say.SinkMeasured(
            spec.site.run, spec.who, now - self._since, self._rows, self._latency
        )
        self._mail.send(DRIVER, measured)
        self._since, self._rows, self._latency = now, 0, LatencyHistogram()


_HANDLERS: dict[type, Callable[[SinkProcess, Any], None]] = {
    say.Hello: SinkProcess._on_hello,
    Tuples: SinkProcess._on_tuples,
    say.Marker: SinkProcess._on_marker,
    BeginAttempt: SinkProcess._on_begin,
    CommitEpoch: SinkProcess._on_commit,
    say.Peers: SinkProcess._on_peers,
    say.Finish: SinkProcess._on_finish,
}
