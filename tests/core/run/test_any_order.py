"""Whatever is lost, registers, commits, exhausts or drains, in any order: one run goes on or ends.

The machine plays nodes, hosts, participants, storage and time. What it has started is under way
until a rule delivers it. `RunInvariants` looks at every decision.
"""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
)
from tests.core.run.run_rig import A0, A1, EVERYBODY, OUT, S0, S1, Rig

from elasticutor.core.protocol import coordinator as co
from elasticutor.core.protocol.ids import Attempt, Epoch, NodeId, Peer, TaskId
from elasticutor.core.run import run_events as ev
from elasticutor.core.run import run_instructions as do
from elasticutor.core.run.phases import OVER, RunPhase

WHO = st.sampled_from(EVERYBODY)
STEPS_TO_END = 400


class AnyOrder(RuleBasedStateMachine):
    """A run, and all that can happen to it."""

    @initialize(
        keep=st.booleans(),
        restarts=st.integers(0, 4),
        silent=st.integers(0, 3),
        running=st.integers(0, 3),
    )
    def begin(self, keep: bool, restarts: int, silent: int, running: int) -> None:
        self.silent = silent == 0
        self.rig = Rig(keep=keep, restarts=restarts)
        self.hosts: set[int] = set()
        self.starting: list[tuple[Peer, int]] = []
        self.alive: dict[Peer, int] = {}
        self.said: list[ev.RunEvent] = []
        """What was sent to the driver and has not arrived."""
        self.manifests: list[co.WriteManifest] = []
        self.next_node = 2
        self.losses = True
        self._follow()
        for _ in range(4 if running else 0):
            self.all_come_up()
            self.all_arrive()

    # What the world makes of instructions

    def tell(self, event: ev.RunEvent, after_s: float = 0.001) -> None:
        self.rig.tell(event, after_s)
        self._follow()

    def _follow(self) -> None:
        self.starting += self.rig.started()
        for order in self.rig.orders:
            match order:
                case do.DropLife(who, life):
                    if self.alive.get(who) == life:
                        del self.alive[who]
                case co.BeginAttempt(who, attempt) if who in self.alive:
                    self.said.append(co.ParticipantReady(who, attempt))
                case co.EndEpoch(source, attempt, epoch):
                    # Markers run through everything: all prepare, if all are there.
                    whom = (source, A0, A1, OUT) if source == S0 else (source,)
                    self.said += [
                        co.ParticipantPrepared(who, attempt, epoch)
                        for who in whom
                        if who in self.alive
                    ]
                case co.WriteManifest():
                    self.manifests.append(order)
                case co.AskToRest(who) if who in self.alive:
                    self.said.append(co.ParticipantRested(who))
                case do.EndProcesses(hosts):
                    names = [*self.rig.nodes, *(f"host {number}" for number in hosts)]
                    self.said += [co.PlaceCleared(name) for name in names]

    # Starting

    @rule(number=st.integers(0, 1))
    def host_comes_up(self, number: int) -> None:
        self._lose_ends_on(number)
        self.hosts.add(number)
        self.tell(ev.HostUp(number))

    @precondition(lambda self: self.starting)
    @rule(data=st.data())
    def process_comes_up(self, data: st.DataObject) -> None:
        who, life = data.draw(st.sampled_from(self.starting))
        self.starting.remove((who, life))
        if self.rig.lives[who] == life and life == self.rig.life.participants.lives[who]:
            self.alive[who] = life
        self.said.append(ev.ParticipantUp(who, life))

    @rule()
    def all_come_up(self) -> None:
        for number in sorted({0, 1} - self.hosts):
            self.host_comes_up(number)
        for who, life in self.starting:
            if self.rig.life.participants.lives[who] == life:
                self.alive[who] = life
            self.said.append(ev.ParticipantUp(who, life))
        self.starting = []

    @rule()
    def all_arrive(self) -> None:
        said, self.said = self.said, []
        for event in said:
            self.tell(event)

    @rule()
    def epoch_is_committed(self) -> None:
        self.tell(ev.Tick(), 2.1)
        self.all_arrive()
        while self.manifests:
            self.manifest_is_stored()

    @precondition(lambda self: self.said)
    @rule(data=st.data())
    def something_arrives(self, data: st.DataObject) -> None:
        said = data.draw(st.sampled_from(self.said))
        self.said.remove(said)
        self.tell(said)

    @precondition(lambda self: self.manifests)
    @rule()
    def manifest_is_stored(self) -> None:
        order = self.manifests.pop(0)
        self.tell(ev.EpochStored(order.epoch, order.attempt, 1))

    @rule(seconds=st.sampled_from((0.05, 0.05, 0.5, 2.1, 11.0)))
    def time_passes(self, seconds: float) -> None:
        self.tell(ev.Tick(), seconds)

    # Losses

    @precondition(lambda self: self.losses)
    @rule(who=WHO)
    def participant_is_lost(self, who: Peer) -> None:
        life = self.rig.lives.get(who)
        if life is not None:
            self.alive.pop(who, None)
            self.said.append(co.ProcessLost(who, life, None, "was lost: killed"))

    @precondition(lambda self: self.losses)
    @rule(who=st.sampled_from((A0, A1)))
    def task_is_lost(self, who: Peer) -> None:
        self.said.append(co.ProcessLost(who, self.rig.lives[who], TaskId(0), "was lost: killed"))

    @precondition(lambda self: self.losses and len(self.rig.nodes) > 0)
    @rule(data=st.data())
    def node_is_lost(self, data: st.DataObject) -> None:
        node = data.draw(st.sampled_from(sorted(self.rig.nodes)))
        for who in (A0, A1):
            if self.rig.life.participants.placements[who].node == node:
                self.alive.pop(who, None)
        self.rig.leave(node)
        self._follow()

    @rule()
    def node_joins(self) -> None:
        self.rig.join(NodeId(f"n{self.next_node}"))
        self.next_node += 1
        self._follow()

    @precondition(lambda self: self.losses and self.hosts)
    @rule(data=st.data())
    def host_is_lost(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.hosts)))
        self.hosts.discard(number)
        self._lose_ends_on(number)
        self.tell(ev.HostLost(number, "killed"))

    @precondition(lambda self: self.losses)
    @rule(who=st.sampled_from((A0, A1, OUT)))
    def attempt_fails(self, who: Peer) -> None:
        if self.rig.attempt:
            self.said.append(co.ParticipantFailed(who, self.rig.attempt, "failed"))

    def _lose_ends_on(self, number: int) -> None:
        for who in self.rig.life.participants.ends_on(number):
            self.alive.pop(who, None)

    # The way to the end

    @rule(who=st.sampled_from((S0, S1)))
    def source_is_exhausted(self, who: Peer) -> None:
        if self.rig.phase() is RunPhase.RUNNING and who in self.alive:
            self.said.append(co.SourceExhausted(who, self.rig.attempt))

    @rule()
    def drain_is_asked(self) -> None:
        self.tell(ev.DrainAsked())

    @rule(now=st.integers(0, 20))
    def end_is_asked(self, now: int) -> None:
        if now == 20:
            self.tell(ev.EndAsked())

    def teardown(self) -> None:
        """With answers and without losses the run drains and ends; with silence alone it fails."""
        if not hasattr(self, "rig"):
            return
        rig = self.rig
        if self.silent:
            for _ in range(STEPS_TO_END):
                if rig.phase() is RunPhase.DRAINED:
                    self.tell(ev.EndAsked())
                self.tell(ev.Tick(), 3.0)
            assert rig.phase() is RunPhase.ENDED, rig.life.missing()
            return
        self.losses = False
        if not rig.nodes:
            self.node_joins()
        if rig.phase() not in (*OVER, RunPhase.DRAINED):
            self.tell(ev.DrainAsked())
        for _ in range(STEPS_TO_END):
            if rig.phase() is RunPhase.ENDED:
                break
            if rig.phase() is RunPhase.DRAINED:
                self.tell(ev.EndAsked())
            self.all_come_up()
            self.all_arrive()
            while self.manifests:
                self.manifest_is_stored()
            self.tell(ev.Tick(), 0.5)
        assert rig.phase() is RunPhase.ENDED, rig.life.missing()


AnyOrder.TestCase.settings = settings(max_examples=120, stateful_step_count=40)
TestAnyOrder = AnyOrder.TestCase


def test_silence_alone_ends_every_wait() -> None:
    """No answer ever comes: participants are replaced as often as they may, and the run ends."""
    rig = Rig(restarts=2).running()
    rig.tell(ev.Tick(), after_s=2.0)
    for _ in range(60):
        if rig.phase() in OVER:
            break
        rig.tell(ev.Tick(), after_s=1.5)
    assert rig.phase() is RunPhase.ENDING
    assert rig.attempt == Attempt(1)
    for _ in range(8):
        rig.tell(ev.Tick(), after_s=1.5)
    assert rig.phase() is RunPhase.ENDED
    assert rig.life.epochs is not None
    assert rig.life.epochs.committed == Epoch(0)
