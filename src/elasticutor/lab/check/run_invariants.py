"""What must hold of every decision about the life of a run, whatever the state comes to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from elasticutor.core.protocol import coordinator as co
from elasticutor.core.protocol.ids import Attempt, Peer
from elasticutor.core.run import run_events as ev
from elasticutor.core.run import run_instructions as do
from elasticutor.core.run.participants import Roles
from elasticutor.core.run.phases import RunPhase, Terms

_GOING = (RunPhase.STARTING, RunPhase.RUNNING, RunPhase.RECOVERING, RunPhase.DRAINING)
"""When a loss has to be answered with a successor."""
_TOO_OFTEN = " was lost too often"


class RunInvariants:
    """Watches the events and the instructions of one run.

    It keeps books of its own: which life of whom was started, is up, or is dropped. `durable` says
    whether the run has a checkpoint.
    """

    def __init__(
        self, roles: Roles, terms: Terms, violate: Callable[[str], None], *, durable: bool = True
    ) -> None:
        self._terms = terms
        self._violate = violate
        self._everybody = (*roles.executors, *roles.sources, *roles.sinks)
        kept = () if terms.end_when_drained else roles.executors
        publishing = roles.sinks if durable or kept else ()
        self._to_rest = frozenset((*kept, *publishing))
        self._sources = frozenset(roles.sources)
        self._exhausted: set[Peer] = set()
        self._drain_asked = False
        self._started: dict[Peer, int] = {}
        self._dropped: dict[Peer, int] = {}
        self._up: dict[Peer, int] = {}
        self._rested: set[Peer] = set()
        self._phase = RunPhase.STARTING
        self._attempt = Attempt(0)
        self._counted = Attempt(0)
        self._losses: Counter[str] = Counter()

    def handled(self, event: ev.RunEvent, instructions: Sequence[do.RunInstruction]) -> None:
        """Look at one event, and at everything that is ordered because of it."""
        self._look_at_event(event, instructions)
        counted_before = self._counted
        for order in instructions:
            self._look_at_order(order)
        notes = [o for o in instructions if isinstance(o, do.WriteJournal) and o.kind == "lost"]
        follows = isinstance(event, co.ParticipantFailed) and event.attempt == counted_before
        if len(notes) > (0 if follows else 1):
            self._violate(f"life: a loss is counted again: {event}")
        drops, waits = (any(isinstance(o, k) for o in instructions) for k in (do.DropLife, do.Wake))
        if drops and waits and self._losses.total() == 1:
            self._violate(f"life: the first loss since a commit waits for a moment: {event}")

    def _look_at_event(self, event: ev.RunEvent, instructions: Sequence[do.RunInstruction]) -> None:
        match event:
            case ev.ParticipantUp(who, life) if self._current(who, life):
                self._up[who] = life
            case ev.ParticipantUp(who, life) if instructions:
                self._violate(f"life: life {life} of {who} is over, and was let in")
            case co.ProcessLost(who, life, None) if self._phase in _GOING and self._current(
                who, life
            ):
                drops = [o.who for o in instructions if isinstance(o, do.DropLife)]
                phases = [o.phase for o in instructions if isinstance(o, do.EnterPhase)]
                if who not in drops and RunPhase.ENDING not in phases:
                    self._violate(f"life: the loss of {who} was not noticed")
            case co.ProcessLost(who, life, task) if not self._current(who, life) and instructions:
                self._violate(f"life: life {life} of {who} is over, and its loss acted on: {task}")
            case co.ParticipantRested(who):
                self._rested.add(who)
            case co.SourceExhausted(who, attempt) if attempt == self._attempt:
                self._exhausted.add(who)
            case ev.DrainAsked():
                self._drain_asked = True

    def _look_at_order(self, order: do.RunInstruction) -> None:
        match order:
            case do.StartMain(who, life):
                self._start(who, life)
            case do.StartOnHost(_, ends):
                for who, life in ends:
                    self._start(who, life)
            case do.DropLife(who, life):
                self._dropped[who] = life
                self._up.pop(who, None)
            case co.BeginAttempt(who, attempt):
                self._begin(who, attempt)
            case co.AskToRest(who):
                self._rested.discard(who)
            case do.KeepCommitted():
                self._losses.clear()
            case do.WriteJournal("lost", fields):
                self._counted = self._attempt
                self._losses[fields["who"]] += 1
            case do.WriteJournal("failure", fields) if _TOO_OFTEN in fields["reason"]:
                kind = fields["reason"].partition(_TOO_OFTEN)[0]
                if self._losses[kind] <= self._terms.restarts:
                    self._violate(f"life: {kind} given up after {self._losses[kind]} losses")
            case do.EnterPhase(phase):
                if self._phase is RunPhase.ENDING:
                    self._violate(f"life: {phase.value} after its end was decided")
                self._phase = phase
                early = not self._drain_asked and not self._sources <= self._exhausted
                if phase is RunPhase.DRAINING and early:
                    missing = sorted(self._sources - self._exhausted)
                    self._violate(f"life: draining although {missing} have more to send")
                if phase is RunPhase.DRAINED and not self._to_rest <= self._rested:
                    missing = sorted(self._to_rest - self._rested)
                    self._violate(f"life: drained although {missing} are not at rest")

    def _begin(self, who: Peer, attempt: Attempt) -> None:
        if attempt != self._attempt:
            self._attempt = attempt
            self._rested.clear()
            self._exhausted.clear()
            missing = [name for name in self._everybody if name not in self._up]
            if missing:
                self._violate(f"life: attempt {attempt} begins without {missing}")

    def _start(self, who: Peer, life: int) -> None:
        last = self._started.get(who)
        if last is not None and life <= last:
            self._violate(f"life: life {life} of {who} is started again")
        elif last is not None and self._dropped.get(who, -1) < last:
            self._violate(f"life: {who} gets life {life} beside life {last}")
        self._started[who] = life

    def _current(self, who: Peer, life: int) -> bool:
        return self._started.get(who) == life and self._dropped.get(who, -1) < life
