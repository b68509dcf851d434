"""Bugs of the run's life."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from elasticutor.core.protocol.ids import Attempt, Peer
from elasticutor.core.run import lifecycle
from elasticutor.core.run import run_events as ev
from elasticutor.core.run.draining import Draining
from elasticutor.core.run.lifecycle import RunLifecycle
from elasticutor.core.run.participants import Participants
from elasticutor.core.run.recovery import Recovery
from elasticutor.core.run.restart_policy import RestartPolicy
from elasticutor.core.run.timeouts import Timeouts
from elasticutor.lab.check.mutants.mutant import Mutants, Right

LIFE = Mutants()


@LIFE.plant(Recovery, "_start")
def _successor_started_twice(right: Right, self: Recovery, who: Peer) -> None:
    right(self, who)
    if self._participants.is_executor(who) and who not in self._homeless:
        self._participants.start_main(who)


@LIFE.plant(Participants, "complete")
def _attempt_begun_with_one_missing(right: Any, self: Participants) -> bool:
    return len(self.up) >= len(self.everybody) - 1


@LIFE.plant(Participants, "registered")
def _late_answer_of_an_earlier_life_taken(
    right: Right, self: Participants, who: Peer, life: int, address: Any
) -> Any:
    return right(self, who, self.lives[who], address)


@LIFE.plant(lifecycle._HANDLERS, ev.ProcessLost)
def _late_loss_of_an_earlier_life_taken(
    right: Right, self: RunLifecycle, event: ev.ProcessLost
) -> None:
    life = self.participants.lives[event.who]
    right(self, ev.ProcessLost(event.who, life, event.task, event.reason))


@LIFE.plant(Draining, "rest")
def _drain_forgets_a_participant(
    right: Right, self: Draining, whom: Iterable[Peer], now: float
) -> None:
    right(self, tuple(whom)[:-1], now)


@LIFE.plant(Draining, "rested")
def _drained_when_the_first_rests(right: Right, self: Draining, who: Peer) -> bool:
    return who in self._restless


@LIFE.plant(RestartPolicy, "failed")
def _restart_counted_twice(right: Right, self: RestartPolicy, kind: str) -> Any:
    right(self, kind)
    return right(self, kind)


@LIFE.plant(Recovery, "failed")
def _what_follows_from_a_loss_counted(right: Right, self: Recovery, *what: Any) -> None:
    self._counted = Attempt(-1)
    right(self, *what)


@LIFE.plant(lifecycle._HANDLERS, ev.ProcessLost)
def _lost_sink_not_noticed(right: Right, self: RunLifecycle, event: ev.ProcessLost) -> None:
    if event.who not in self.participants.sinks:
        right(self, event)


LIFE.omit(Recovery, "committed", "commit is no progress")


@LIFE.plant(Draining, "begin_again")
def _exhaustion_of_an_earlier_attempt_counts(right: Right, self: Draining) -> None:
    self._restless.clear()


LIFE.omit(Participants, "introduce", "successor not introduced")


LIFE.omit(Timeouts, "look", "silence endures")
