"""A source task's process: reads what is due, cuts it for its destinations, and sends it.

Attempts, epochs, credits and offsets are `core.protocol.source`'s to decide. Here are the reader,
the packets, the clock and what is measured.
"""

from __future__ import annotations

import pickle
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import cloudpickle
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from elasticutor.core.measure.pacing import PACE_S, USUAL_GAP_S, next_gap_s
from elasticutor.core.protocol import instructions as do
from elasticutor.core.protocol.coordinator import (
    CommitEpoch,
    EndEpoch,
    ParticipantPrepared,
    SourceExhausted,
    StartSource,
    StopSending,
)
from elasticutor.core.protocol.events import Output
from elasticutor.core.protocol.ids import Peer
from elasticutor.core.protocol.repartition import PauseUpstream, UpdateTable
from elasticutor.core.protocol.source import (
    CommitOffset,
    ReadFrom,
    SourceOrder,
    SourceSide,
)
from elasticutor.errors import ProtocolError
from elasticutor.process.actor import Participant
from elasticutor.process.failures import reporting
from elasticutor.process.idle import IdleShare
from elasticutor.process.operator.rows import RowWriter
from elasticutor.process.routes import Router, RowRouter, greetings
from elasticutor.process.slices import ask_for_short_slices
from elasticutor.process.specs import SourceSpec
from elasticutor.sources import Offer, Reader, RowOffer, Source
from elasticutor.transport import messages as say
from elasticutor.transport.codec import Credit, tuples
from elasticutor.transport.mailbox import DRIVER, Mailbox
from elasticutor.transport.packets import born, born_at
from elasticutor.transport.row_packets import MOST_ROWS

_IDLE_S = 1.0
_MOST_OFFERS = 16
"""Offers that are sent before messages are looked at."""
_MOST_ROWS = 8192
_BATCH_BYTES = 1280 * 1024
"""What one batch should have at most: small enough to be divided, large enough to be cheap."""
_ENLARGED = 2
"""How many times that where credits say that the work is cheap."""
_ROWS_EACH = 64
"""Tuples that a batch has for each executor, where there are many: a packet of 8 costs as much."""
_WIDE_BATCH_BYTES = 8 * 1024 * 1024
"""What one batch should have at most for the sake of many executors."""


def run_source(payload: bytes) -> None:
    """Run the source task that the payload describes, until the driver ends it."""
    spec: SourceSpec = pickle.loads(payload)  # noqa: S301 - it came from the driver, authenticated
    ask_for_short_slices()
    mail = Mailbox.at(spec.site, spec.who)
    with reporting(mail, spec.site.run, spec.who):
        SourceProcess(spec, mail).run()


class SourceProcess(Participant):
    """One task of a source."""

    def __init__(self, spec: SourceSpec, mail: Mailbox) -> None:
        super().__init__(mail, "a source", spec.site, spec.who)
        self._spec = spec
        self._source: Source = cloudpickle.loads(spec.blob)
        self._reader: Reader | None = None
        self._router = Router(spec.routes, spec.who)
        self._row_router = RowRouter.of(spec.routes, spec.schema)
        self._few_router = RowRouter.of_batches(spec.routes, spec.schema)  # of few, from a batch
        self._prunes = any(route.columns is not None for route in spec.routes)
        self._width = max((len(route.peers) for route in spec.routes), default=1)
        self._wide = _is_wide(self._width)
        self._writer = RowWriter(spec.schema)
        self._asks_for_rows = False  # of the reader
        self._side = SourceSide(
            spec.who,
            self._router.peers,
            first=spec.credit_bytes,
            limit=spec.credit_bytes,
            checkpointed=spec.checkpointed,
        )
        self._row_bytes = 128.0  # as sent
        self._read_bytes = 0.0  # as read, where that may be more
        self._send_at = 0.0
        self._gap_s = USUAL_GAP_S  # between two packets, unless they are full
        self._idle = IdleShare()
        self._meter = _Meter(time.monotonic())
        self._routed: Counter[Peer] = Counter()  # rows by destination, since the last measurement

    def run(self) -> None:
        """Register, then send what is due until the driver says `Finish`."""
        spec = self._spec
        self.register()
        self.every(spec.tempo.measure_s, self._measure)
        self.every(PACE_S, self._pace)
        try:
            self.serve()
        finally:
            self._idle.close()
            self._stop_reading()

    def _pace(self) -> None:
        idle = self._idle.take()
        if idle is not None:
            self._gap_s = next_gap_s(self._gap_s, idle)

    def work(self) -> float:
        """Send what is due; returns how long there is nothing to do."""
        reader, side = self._reader, self._side
        for _ in range(_MOST_OFFERS):
            blocked = side.outputs.blocked(side.who) or self._router.paused
            self._meter.blocked(blocked, time.monotonic())
            if reader is None or side.silent or blocked:
                return _IDLE_S
            if reader.exhausted:
                self._carry_out(side.exhaust())
                return _IDLE_S
            early_s = self._send_at - time.monotonic()
            if early_s > 0:
                wait_s = reader.wait_s(time.time()) if reader.knows_when else 0.0
                return min(_IDLE_S, max(early_s, wait_s))
            now = time.time()
            if self._asks_for_rows:
                few = reader.poll_rows(now, MOST_ROWS)
                if few is not None and few.rows:
                    self._send_rows(few)
                    self._send_at = time.monotonic() + self._gap_s
                    continue
            row_bytes = max(self._row_bytes, self._read_bytes)
            rows = batch_rows(row_bytes, side.credit_step, self._width)
            offer = reader.poll(now, rows)
            if self._wide and offer is not None:
                offer = _followed(offer, reader, now, rows)
            if offer is None or not offer.batch.num_rows:
                left_s = 0.0 if _ended(reader) else reader.wait_s(time.time())
                return min(_IDLE_S, max(0.0, left_s))
            self._send(offer)
            if offer.batch.num_rows >= rows:
                if self._prunes:
                    self._read_bytes = offer.batch.nbytes / offer.batch.num_rows
                return 0.0
            self._send_at = time.monotonic() + self._gap_s
        return 0.0

    def _send(self, offer: Offer) -> None:
        batch, due_us = offer.batch, offer.due_us
        packets: Sequence[Output] | None = None
        router = self._few_router
        rows = None if router is None else router.rows_of(batch)
        if router is not None and rows is not None:
            if due_us is None:
                each_us = [round(offer.born * 1e6)] * batch.num_rows
            else:
                each_us = due_us.tolist()
            packets = router.split(rows, each_us)
        if packets is None:
            births = born(offer.born, batch.num_rows) if due_us is None else born_at(due_us)
            packets = self._router.split(batch, births)
        self._send_packets(packets, batch.num_rows, offer.born)

    def _send_rows(self, offer: RowOffer) -> None:
        assert self._row_router is not None  # rows are asked for only then
        packets: Sequence[Output] | None = self._row_router.split(offer.rows, offer.due_us)
        if packets is None:  # refused, or converted, as a batch of them is
            batch = self._writer.batch(offer.rows)
            packets = self._router.split(batch, born_at(np.array(offer.due_us, np.int64)))
        self._send_packets(packets, len(offer.rows), offer.due_us[0] / 1e6)

    def _send_packets(self, packets: Sequence[Output], count: int, born_s: float) -> None:
        self._meter.sent(count, time.time() - born_s)
        outputs, attempt = self._side.outputs, self._side.attempt
        size = 0
        for output in packets:
            size += output.size
            self._routed[output.destination] += output.rows
            outputs.add(output)
            self._emit(outputs.send(output.destination, attempt))
        self._row_bytes = size / count

    def _emit(self, orders: Iterable[do.Emit | do.EmitMarker]) -> None:
        who = self._spec.who
        for order in orders:
            message: Any
            if isinstance(order, do.Emit):
                message = tuples(who, order.attempt, order.size, order.batch)
            else:
                message = say.Marker(who, order.attempt, order.epoch)
            self._mail.send(order.destination, message)

    def _measure(self) -> None:
        spec = self._spec
        seconds, rows, share, behind = self._meter.take(time.monotonic())
        rate = None if self._reader is None else self._reader.rate
        routed, self._routed = dict(self._routed), Counter()
        measured = say.SourceMeasured(
            spec.site.run, spec.who, seconds, rows, share, behind, rate, routed
        )
        self._mail.send(DRIVER, measured)

    # What arrives

    def take(self, message: Any) -> None:
        """Handle a message; one that does not fit is dropped."""
        try:
            super().take(message)
        except ProtocolError as error:
            self._mail.drop(str(error))

    def _on_start(self, order: StartSource) -> None:
        self._carry_out(self._side.start(order))

    def _on_end_epoch(self, order: EndEpoch) -> None:
        if self._reader is not None:
            self._carry_out(self._side.end_epoch(order, self._reader.offset))

    def _on_commit(self, order: CommitEpoch) -> None:
        self._carry_out(self._side.commit(order))

    def _on_credit(self, message: Credit) -> None:
        self._emit(self._side.credit(message.sender, message.attempt, message.total))

    def _carry_out(self, orders: Iterable[SourceOrder]) -> None:
        for order in orders:
            match order:
                case do.Emit() | do.EmitMarker():
                    self._emit((order,))
                case ParticipantPrepared():
                    self._measure()  # before a run that ends with this epoch is over
                    self.report(order)
                case ReadFrom(offset):
                    self._read_from(offset)
                case CommitOffset(offset):
                    if self._reader is not None:
                        self._reader.committed(offset)
                case SourceExhausted():
                    self.report(order)

    def _read_from(self, offset: Any) -> None:
        self._stop_reading()
        spec = self._spec
        self._router = Router(spec.routes, spec.who)  # with tables of shards as at the beginning
        for peer, hello in greetings(spec.who, spec.routes, spec.schema):
            self._mail.send(peer, hello)
        self._send_at = 0.0
        self._reader = self._source.open(spec.task, spec.tasks, offset)
        self._reader.checkpointed = spec.checkpointed
        has_rows = type(self._reader).poll_rows is not Reader.poll_rows
        self._asks_for_rows = has_rows and self._row_router is not None

    def _stop_reading(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()

    def _on_pause(self, order: PauseUpstream) -> None:
        # What is cut already counts as sent: it goes out as its executors grant credit.
        self.report(self._router.tables[order.operator].pause(order))

    def _on_table(self, order: UpdateTable) -> None:
        self.report(self._router.tables[order.operator].update(order))

    def _on_peers(self, message: say.Peers) -> None:
        self._mail.know_all(message.book)

    def _on_drain(self, message: StopSending) -> None:
        self._side.drain()

    def _on_finish(self, message: say.Finish) -> None:
        self.finish()


def batch_rows(row_bytes: float, credit_step: int, executors: int = 1) -> int:
    """Return how many tuples to ask a reader for.

    Batches are larger where two of them fit into the window of their receiver; it moves on by its
    quarters. The window of an expensive operator is small: there, large batches would only wait.
    Batches are also larger where they are cut for many executors: a packet costs as much as some
    tens of tuples.

    Args:
        row_bytes: Of one tuple, as measured.
        credit_step: By how much the last credit was above the one before, for all peers together.
        executors: Of the operator that has the most of them.

    Example:
        >>> batch_rows(128.0, credit_step=16_000), batch_rows(128.0, credit_step=3_000_000)
        (8192, 16384)
        >>> batch_rows(1e9, credit_step=0)
        1
        >>> batch_rows(128.0, credit_step=16_000, executors=1_000)
        64000
    """
    times = _ENLARGED if 2 * credit_step >= _ENLARGED * _BATCH_BYTES else 1
    rows = times * min(_MOST_ROWS, _BATCH_BYTES / row_bytes)
    if _is_wide(executors):
        rows = max(rows, min(executors * _ROWS_EACH, _WIDE_BATCH_BYTES / row_bytes))
    return max(1, int(rows))


def _is_wide(executors: int) -> bool:
    """Return whether a batch of the usual size would have only few tuples for each executor."""
    return executors * _ROWS_EACH > _MOST_ROWS


def _followed(offer: Offer, reader: Reader, now: float, rows: int) -> Offer:
    """Return an offer together with what the reader has besides, up to about `rows` tuples."""
    offers, count = [offer], offer.batch.num_rows
    while count < rows and not _ended(reader):
        more = reader.poll(now, rows - count)
        if more is None or not more.batch.num_rows:
            break
        offers.append(more)
        count += more.batch.num_rows
    if len(offers) == 1:
        return offer
    batch = pa.concat_batches([each.batch for each in offers])
    due_us = None
    if any(each.due_us is not None or each.born != offer.born for each in offers):
        due_us = np.concatenate([_due_us(each) for each in offers])
    return Offer(batch, offer.born, due_us)


def _due_us(offer: Offer) -> npt.NDArray[np.int64]:
    if offer.due_us is not None:
        return offer.due_us
    return np.full(offer.batch.num_rows, round(offer.born * 1e6), np.int64)


def _ended(reader: Reader) -> bool:
    """Whether polling has brought the reader to its end."""
    return reader.exhausted


class _Meter:
    """How much was sent, and for how long nothing could be."""

    def __init__(self, now: float) -> None:
        self._since = now
        self._rows = 0
        self._blocked_s = 0.0
        self._blocked_since: float | None = None
        self._behind_s = 0.0

    def sent(self, rows: int, behind_s: float) -> None:
        self._rows += rows
        self._behind_s = max(0.0, behind_s)

    def blocked(self, blocked: bool, now: float) -> None:
        if self._blocked_since is not None:
            self._blocked_s += now - self._blocked_since
        self._blocked_since = now if blocked else None

    def take(self, now: float) -> tuple[float, int, float, float]:
        """Seconds, rows, the share of time blocked, and how far behind; starts over."""
        self.blocked(self._blocked_since is not None, now)
        seconds = max(now - self._since, 1e-9)
        share = min(1.0, self._blocked_s / seconds)
        taken = seconds, self._rows, share, self._behind_s
        self._since, self._rows, self._blocked_s = now, 0, 0.0
        return taken


SourceProcess.handlers = {
    StartSource: SourceProcess._on_start,
    EndEpoch: SourceProcess._on_end_epoch,
    CommitEpoch: SourceProcess._on_commit,
    Credit: SourceProcess._on_credit,
    PauseUpstream: SourceProcess._on_pause,
    UpdateTable: SourceProcess._on_table,
    say.Peers: SourceProcess._on_peers,
    StopSending: SourceProcess._on_drain,
    say.Finish: SourceProcess._on_finish,
}
