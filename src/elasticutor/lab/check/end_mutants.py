"""Bugs of sources and sinks, put in by hand: what `lab.check.mutants` does for the executor."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

from elasticutor.core.protocol.coordinator import (
    BeginAttempt,
    EndEpoch,
    ParticipantReady,
    StartSource,
)
from elasticutor.core.protocol.ids import Attempt, Epoch, Peer
from elasticutor.core.protocol.sink import AbortOutput, CommitOutput, SinkOrder, SinkSide
from elasticutor.core.protocol.source import CommitOffset, ReadFrom, SourceOrder, SourceSide

# Sources ------------------------------------------------------------------------------------------


def _old_credit_counts(self: SourceSide, destination: Peer, attempt: Attempt, total: int) -> Any:
    return _SOURCE_CREDIT(self, destination, self.attempt, total)


def _goes_back_to_where_it_stood(self: SourceSide, order: StartSource) -> list[SourceOrder]:
    stood = max(self._offsets.items(), default=(0, order.offset))[1]
    return [
        ReadFrom(stood) if isinstance(one, ReadFrom) else one for one in _SOURCE_START(self, order)
    ]


def _sends_what_waited_before(self: SourceSide, order: StartSource) -> list[SourceOrder]:
    before = self.outputs
    orders = _SOURCE_START(self, order)
    if before.destinations:
        self.outputs = before
    return orders


def _reports_the_offset_before(self: SourceSide, order: EndEpoch, offset: Any) -> list[SourceOrder]:
    last: Any = self.__dict__.setdefault("last_offset", 0)
    self.__dict__["last_offset"] = offset
    return _SOURCE_END_EPOCH(self, order, last)


def _forgets_what_is_only_prepared(
    self: SourceSide, order: EndEpoch, offset: Any
) -> list[SourceOrder]:
    orders = _SOURCE_END_EPOCH(self, order, offset)
    return [*orders, CommitOffset(offset)] if orders else orders


def _drains_for_ever(self: SourceSide, order: StartSource) -> list[SourceOrder]:
    draining = self._draining
    orders = _SOURCE_START(self, order)
    self._draining = draining
    return orders


# Sinks --------------------------------------------------------------------------------------------


def _one_marker_is_not_awaited(
    self: SinkSide, upstream: Peer, attempt: Attempt, epoch: Epoch
) -> list[SinkOrder]:
    late = attempt == self.attempt and epoch == self.epoch - 1  # the marker that was not awaited
    if late:
        return []
    everyone = self._upstreams
    self._upstreams = frozenset(sorted(everyone)[1:] or everyone)
    orders = _SINK_MARK(self, upstream, attempt, epoch)
    self._upstreams = everyone
    return orders


def _held_tuples_written_too_early(
    self: SinkSide, upstream: Peer, attempt: Attempt, size: int, content: Any
) -> bool:
    marked, self._marked = self._marked, set()
    now = _SINK_ARRIVE(self, upstream, attempt, size, content)
    self._marked = marked
    return now


def _held_tuples_lost(self: SinkSide, attempt: Attempt, epoch: Epoch, note: Any) -> list[SinkOrder]:
    return _SINK_PREPARED(self, attempt, epoch, note)[:1]


def _old_tuples_written(
    self: SinkSide, upstream: Peer, attempt: Attempt, size: int, content: Any
) -> bool:
    return attempt < self.attempt or _SINK_ARRIVE(self, upstream, attempt, size, content)


def _held_tuples_survive_their_attempt(self: SinkSide, order: BeginAttempt) -> list[SinkOrder]:
    held = list(self._held)
    orders = _SINK_BEGIN(self, order)
    self._held = held
    return orders


def _prepared_is_shown(
    self: SinkSide, attempt: Attempt, epoch: Epoch, note: Any
) -> list[SinkOrder]:
    return [*_SINK_PREPARED(self, attempt, epoch, note), *self._commit()]


def _base_not_shown_again(self: SinkSide, order: BeginAttempt) -> list[SinkOrder]:
    return [one for one in _SINK_BEGIN(self, order) if not isinstance(one, CommitOutput)]


def _nothing_aborted(self: SinkSide, order: BeginAttempt) -> list[SinkOrder]:
    return [one for one in _SINK_BEGIN(self, order) if not isinstance(one, AbortOutput)]


def _shows_what_it_had_prepared(self: SinkSide, order: BeginAttempt) -> list[SinkOrder]:
    before = self._commit()
    orders = _SINK_BEGIN(self, order)
    return [*before, *orders] if any(isinstance(one, ParticipantReady) for one in orders) else []


_SOURCE_CREDIT = SourceSide.credit
_SOURCE_START = SourceSide.start
_SOURCE_END_EPOCH = SourceSide.end_epoch
_SINK_MARK = SinkSide.mark
_SINK_ARRIVE = SinkSide.arrive
_SINK_PREPARED = SinkSide.prepared
_SINK_BEGIN = SinkSide.begin


def _method(owner: type, name: str, wrong: Any) -> Callable[[], AbstractContextManager[Any]]:
    return lambda: patch.object(owner, name, wrong)


BUGS: tuple[tuple[str, Callable[[], AbstractContextManager[Any]]], ...] = (
    ("credit of an old attempt counts", _method(SourceSide, "credit", _old_credit_counts)),
    (
        "source goes back to the wrong offset",
        _method(SourceSide, "start", _goes_back_to_where_it_stood),
    ),
    (
        "source sends what waited in the attempt before",
        _method(SourceSide, "start", _sends_what_waited_before),
    ),
    (
        "source reports the offset of the epoch before",
        _method(SourceSide, "end_epoch", _reports_the_offset_before),
    ),
    (
        "source forgets what is only prepared",
        _method(SourceSide, "end_epoch", _forgets_what_is_only_prepared),
    ),
    ("source drains for ever", _method(SourceSide, "start", _drains_for_ever)),
    ("sink does not wait for one marker", _method(SinkSide, "mark", _one_marker_is_not_awaited)),
    ("held tuples written too early", _method(SinkSide, "arrive", _held_tuples_written_too_early)),
    ("held tuples lost", _method(SinkSide, "prepared", _held_tuples_lost)),
    (
        "held tuples survive their attempt",
        _method(SinkSide, "begin", _held_tuples_survive_their_attempt),
    ),
    ("tuples of an old attempt written", _method(SinkSide, "arrive", _old_tuples_written)),
    ("output shown when it is prepared", _method(SinkSide, "prepared", _prepared_is_shown)),
    ("output of the base not shown again", _method(SinkSide, "begin", _base_not_shown_again)),
    ("output not aborted", _method(SinkSide, "begin", _nothing_aborted)),
    (
        "output shown that was only prepared",
        _method(SinkSide, "begin", _shows_what_it_had_prepared),
    ),
)
"""By name: what has the bug for a while."""
