"""Bugs of sources and sinks."""

from __future__ import annotations

from typing import Any

from elasticutor.core.protocol.coordinator import (
    BeginAttempt,
    EndEpoch,
    ParticipantReady,
    StartSource,
)
from elasticutor.core.protocol.ids import Attempt, Epoch, Peer
from elasticutor.core.protocol.sink import AbortOutput, CommitOutput, SinkOrder, SinkSide
from elasticutor.core.protocol.source import CommitOffset, ReadFrom, SourceOrder, SourceSide
from elasticutor.lab.check.mutants.mutant import Mutants

SOURCES = Mutants()
SINKS = Mutants()


@SOURCES.around(SourceSide, "credit")
def _credit_of_an_old_attempt_counts(
    right: Any, self: SourceSide, destination: Peer, attempt: Attempt, total: int
) -> Any:
    return right(self, destination, self.attempt, total)


@SOURCES.around(SourceSide, "start")
def _source_goes_back_to_the_wrong_offset(right: Any, self: SourceSide, order: StartSource) -> Any:
    stood = max(self._offsets.items(), default=(0, order.offset))[1]
    return [ReadFrom(stood) if isinstance(one, ReadFrom) else one for one in right(self, order)]


@SOURCES.around(SourceSide, "start")
def _source_sends_what_waited_in_the_attempt_before(
    right: Any, self: SourceSide, order: StartSource
) -> Any:
    before = self.outputs
    orders = right(self, order)
    if before.destinations:
        self.outputs = before
    return orders


@SOURCES.around(SourceSide, "end_epoch")
def _source_reports_the_offset_of_the_epoch_before(
    right: Any, self: SourceSide, order: EndEpoch, offset: Any
) -> Any:
    last = self.__dict__.get("last_offset", 0)
    self.__dict__["last_offset"] = offset
    return right(self, order, last)


@SOURCES.around(SourceSide, "end_epoch")
def _source_forgets_what_is_only_prepared(
    right: Any, self: SourceSide, order: EndEpoch, offset: Any
) -> list[SourceOrder]:
    orders = right(self, order, offset)
    return [*orders, CommitOffset(offset)] if orders else []


@SOURCES.around(SourceSide, "start")
def _source_drains_for_ever(right: Any, self: SourceSide, order: StartSource) -> Any:
    draining = self._draining
    orders = right(self, order)
    self._draining = draining
    return orders


@SINKS.around(SinkSide, "mark")
def _sink_does_not_wait_for_one_marker(
    right: Any, self: SinkSide, upstream: Peer, attempt: Attempt, epoch: Epoch
) -> Any:
    late = attempt == self.attempt and epoch == self.epoch - 1  # the marker that was not awaited
    if late:
        return []
    everyone = self._upstreams
    self._upstreams = frozenset(sorted(everyone)[1:] or everyone)
    orders = right(self, upstream, attempt, epoch)
    self._upstreams = everyone
    return orders


@SINKS.around(SinkSide, "arrive")
def _held_tuples_written_too_early(right: Any, self: SinkSide, *arrived: Any) -> Any:
    marked, self._marked = self._marked, set()
    now = right(self, *arrived)
    self._marked = marked
    return now


@SINKS.around(SinkSide, "prepared")
def _held_tuples_lost(right: Any, self: SinkSide, *what: Any) -> Any:
    return right(self, *what)[:1]


@SINKS.around(SinkSide, "begin")
def _held_tuples_survive_their_attempt(right: Any, self: SinkSide, order: BeginAttempt) -> Any:
    held = list(self._held)
    orders = right(self, order)
    self._held = held
    return orders


@SINKS.around(SinkSide, "arrive")
def _tuples_of_an_old_attempt_written(
    right: Any, self: SinkSide, upstream: Peer, attempt: Attempt, size: int, content: Any
) -> Any:
    return attempt < self.attempt or right(self, upstream, attempt, size, content)


@SINKS.around(SinkSide, "prepared")
def _output_shown_when_it_is_prepared(right: Any, self: SinkSide, *what: Any) -> list[SinkOrder]:
    return [*right(self, *what), *self._commit()]


@SINKS.around(SinkSide, "begin")
def _output_of_the_base_not_shown_again(right: Any, self: SinkSide, order: BeginAttempt) -> Any:
    return [one for one in right(self, order) if not isinstance(one, CommitOutput)]


@SINKS.around(SinkSide, "begin")
def _output_not_aborted(right: Any, self: SinkSide, order: BeginAttempt) -> list[SinkOrder]:
    return [one for one in right(self, order) if not isinstance(one, AbortOutput)]


@SINKS.around(SinkSide, "begin")
def _output_shown_that_was_only_prepared(right: Any, self: SinkSide, order: BeginAttempt) -> Any:
    before = self._commit()
    orders = right(self, order)
    return [*before, *orders] if any(isinstance(one, ParticipantReady) for one in orders) else []
