"""Bugs of the run's life."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from elasticutor.core.protocol import coordinator as co
from elasticutor.core.protocol.ids import Attempt, Peer
from elasticutor.core.run import lifecycle
from elasticutor.core.run.draining import Draining
from elasticutor.core.run.lifecycle import RunLifecycle
from elasticutor.core.run.participants import Participants
from elasticutor.core.run.recovery import Recovery
from elasticutor.core.run.restart_policy import RestartPolicy
from elasticutor.core.run.timeouts import Timeouts
from elasticutor.lab.check.mutants.mutant import Mutants

LIFE = Mutants()


@LIFE.around(Recovery, "_start")
def _successor_started_twice(right: Any, self: Recovery, who: Peer) -> None:
    right(self, who)
    if self._participants.is_executor(who) and who not in self._homeless:
        self._participants.start_main(who)


@LIFE.instead_of(Participants, "complete")
def _attempt_begun_with_one_missing(self: Participants) -> bool:
    return len(self.up) >= len(self.everybody) - 1


@LIFE.around(Participants, "registered")
def _late_answer_of_an_earlier_life_taken(
    right: Any, self: Participants, who: Peer, life: int, address: Any
) -> Any:
    return right(self, who, self.lives[who], address)


@LIFE.around(lifecycle._HANDLERS, co.ProcessLost)
def _late_loss_of_an_earlier_life_taken(
    right: Any, self: RunLifecycle, event: co.ProcessLost
) -> None:
    life = self.participants.lives[event.who]
    right(self, co.ProcessLost(event.who, life, event.task, event.reason))


@LIFE.around(Draining, "rest")
def _drain_forgets_a_participant(
    right: Any, self: Draining, whom: Iterable[Peer], now: float
) -> None:
    right(self, tuple(whom)[:-1], now)


@LIFE.instead_of(Draining, "rested")
def _drained_when_the_first_rests(self: Draining, who: Peer) -> bool:
    return who in self._restless


@LIFE.around(RestartPolicy, "failed")
def _restart_counted_twice(right: Any, self: RestartPolicy, kind: str) -> Any:
    right(self, kind)
    return right(self, kind)


@LIFE.around(Recovery, "failed")
def _what_follows_from_a_loss_counted(right: Any, self: Recovery, *what: Any) -> None:
    self._counted = Attempt(-1)
    right(self, *what)


@LIFE.around(lifecycle._HANDLERS, co.ProcessLost)
def _lost_sink_not_noticed(right: Any, self: RunLifecycle, event: co.ProcessLost) -> None:
    if event.who not in self.participants.sinks:
        right(self, event)


LIFE.omission_of(Recovery, "committed", "commit is no progress")


@LIFE.instead_of(Draining, "begin_again")
def _exhaustion_of_an_earlier_attempt_counts(self: Draining) -> None:
    self._restless.clear()


LIFE.omission_of(Participants, "introduce", "successor not introduced")


LIFE.omission_of(Timeouts, "look", "silence endures")
