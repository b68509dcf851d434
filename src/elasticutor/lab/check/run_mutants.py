"""Bugs of the run's life, put in by hand: what `lab.check.mutants` does for the executor."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

from elasticutor.core.protocol import coordinator as co
from elasticutor.core.protocol.ids import Attempt, Peer
from elasticutor.core.run import lifecycle
from elasticutor.core.run.draining import Draining
from elasticutor.core.run.lifecycle import RunLifecycle
from elasticutor.core.run.participants import Participants
from elasticutor.core.run.recovery import Recovery
from elasticutor.core.run.restart_policy import RestartPolicy
from elasticutor.core.run.timeouts import Timeouts


def _successor_started_twice(self: Recovery, who: Peer) -> None:
    _RECOVERY_START(self, who)
    if self._participants.is_executor(who) and who not in self._homeless:
        self._participants.start_main(who)


def _begun_with_one_missing(self: Participants) -> bool:
    return len(self.up) >= len(self.everybody) - 1


def _late_registration_taken(self: Participants, who: Peer, life: int, address: Any) -> bool:
    return _PARTICIPANTS_REGISTERED(self, who, self.lives[who], address)


def _late_loss_taken(self: RunLifecycle, event: co.ProcessLost) -> None:
    life = self.participants.lives[event.who]
    _LIFE_ON_PROCESS_LOST(self, co.ProcessLost(event.who, life, event.task, event.reason))


def _drain_forgets_one(self: Draining, whom: Iterable[Peer], now: float) -> None:
    _DRAINING_REST(self, tuple(whom)[:-1], now)


def _drained_with_the_first(self: Draining, who: Peer) -> bool:
    return who in self._restless


def _restart_counted_twice(self: RestartPolicy, kind: str) -> bool:
    _POLICY_FAILED(self, kind)
    return _POLICY_FAILED(self, kind)


def _what_follows_is_counted(
    self: Recovery, who: Peer, attempt: Attempt, reason: str, now: float
) -> None:
    self._counted = Attempt(-1)
    _RECOVERY_FAILED(self, who, attempt, reason, now)


def _lost_sink_not_noticed(self: RunLifecycle, event: co.ProcessLost) -> None:
    if event.who not in self.participants.sinks:
        _LIFE_ON_PROCESS_LOST(self, event)


def _exhausted_before_counts(self: Draining) -> None:
    self._restless.clear()


def _silence_endures(self: Timeouts, *_: Any) -> None:
    pass


_RECOVERY_START = Recovery._start
_RECOVERY_FAILED = Recovery.failed
_PARTICIPANTS_REGISTERED = Participants.registered
_LIFE_ON_PROCESS_LOST = RunLifecycle._on_process_lost
_DRAINING_REST = Draining.rest
_POLICY_FAILED = RestartPolicy.failed


def _method(owner: type, name: str, wrong: Any) -> Callable[[], AbstractContextManager[Any]]:
    return lambda: patch.object(owner, name, wrong)


def _on_process_lost(wrong: Any) -> Callable[[], AbstractContextManager[Any]]:
    return lambda: patch.dict(lifecycle._HANDLERS, {co.ProcessLost: wrong})


BUGS: tuple[tuple[str, Callable[[], AbstractContextManager[Any]]], ...] = (
    ("successor started twice", _method(Recovery, "_start", _successor_started_twice)),
    (
        "attempt begun with one missing",
        _method(Participants, "complete", property(_begun_with_one_missing)),
    ),
    (
        "late answer of an earlier life taken",
        _method(Participants, "registered", _late_registration_taken),
    ),
    ("late loss of an earlier life taken", _on_process_lost(_late_loss_taken)),
    ("drain forgets a participant", _method(Draining, "rest", _drain_forgets_one)),
    ("drained when the first rests", _method(Draining, "rested", _drained_with_the_first)),
    ("restart counted twice", _method(RestartPolicy, "failed", _restart_counted_twice)),
    ("what follows from a loss counted", _method(Recovery, "failed", _what_follows_is_counted)),
    ("lost sink not noticed", _on_process_lost(_lost_sink_not_noticed)),
    ("commit is no progress", _method(Recovery, "committed", lambda self: None)),
    (
        "exhaustion of an earlier attempt counts",
        _method(Draining, "begin_again", _exhausted_before_counts),
    ),
    ("successor not introduced", _method(Participants, "introduce", lambda self: None)),
    ("silence endures", _method(Timeouts, "look", _silence_endures)),
)
