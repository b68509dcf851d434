"""What is done about losses: who is started again and where, and when a new attempt begins.

```
lost: a task          its main process starts another one, and gives the attempt up
      a main process  what is left of it is dropped everywhere, and another one started
      a node          all of that, for each executor that had something there
      source or sink  another one is started
```

When all participants are up, they are introduced to each other, and the coordinator lets them
begin again from the last epoch that was committed. How often that is tried without an epoch
committed in between is `core.run.restart_policy`'s to say.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from elasticutor.core.protocol import coordinator as co
from elasticutor.core.protocol.events import NodeLost, TaskLost
from elasticutor.core.protocol.ids import Attempt, NodeId, Peer, TaskId
from elasticutor.core.run import run_instructions as do
from elasticutor.core.run.epoch_cycle import EpochCycle
from elasticutor.core.run.participants import Participants
from elasticutor.core.run.restart_policy import RestartPolicy
from elasticutor.core.scheduler.placement import Placement, make_up, rehouse

if TYPE_CHECKING:
    from elasticutor.core.run.lifecycle import RunLifecycle


class Recovery:
    """Brings one run back after losses.

    Where a scheduler gives cores (`scheduled`), those of a lost node are not made up for here.
    """

    def __init__(
        self,
        life: RunLifecycle,
        participants: Participants,
        epochs: EpochCycle | None,
        emit: do.EmitInstruction,
        *,
        policy: RestartPolicy,
        patience_s: float,
        free_cores: Callable[[], dict[NodeId, int]],
        scheduled: bool,
    ) -> None:
        self._life = life
        self._participants = participants
        self._epochs = epochs
        self._emit = emit
        self._policy = policy
        self._patience_s = patience_s
        self._free_cores = free_cores
        self._scheduled = scheduled
        self._absent: dict[Peer, float] = {}  # those being replaced, and by when they must be up
        self._homeless: set[Peer] = set()  # those of them that wait for a node
        self._paused: dict[Peer, tuple[float, int]] = {}  # when to start which life of them
        self._counted = Attempt(0)  # the last attempt of which a loss was counted
        self._reason = ""
        self._since = 0.0
        self._targets = {who: sum(cores.values()) for who, cores in participants.cores.items()}

    @property
    def under_way(self) -> bool:
        """Whether a participant is being replaced."""
        return bool(self._absent)

    # Losses

    def task_lost(self, who: Peer, task: TaskId, reason: str, now: float) -> None:
        """Act on the loss of a task's process."""
        if not self._bear(f"task of {who}", reason):
            return
        if who in self._participants.up:
            self._emit(do.ReportLoss(who, TaskLost(task)))
        elif who not in self._homeless:  # it has not come up: start it again as a whole
            self._replace(who, reason, now)

    def participant_lost(self, who: Peer, reason: str, now: float) -> None:
        """Act on the loss of a main process, a source task or a sink."""
        if self._bear(who, reason):
            self._replace(who, reason, now)

    def node_lost(self, node: NodeId, slot: str, reason: str, now: float) -> None:
        """Act on the loss of a node, with everything on it."""
        there = self._participants
        guests, gone = [], []
        for who in there.executors:
            at_home = there.placements[who].node == node
            # One that is not up cannot learn of it: it would wait for its tasks there in vain.
            if at_home or (who not in there.up and there.cores[who].get(node)):
                gone.append(who)
            elif who in there.up:
                guests.append(who)
        needed = gone or any(there.cores[who].get(node) for who in guests)
        if needed and not self._bear(f"node {slot}", reason):
            return
        for who in guests:
            self._emit(do.ReportLoss(who, NodeLost(node)))
            if there.cores[who].pop(node, 0):
                self._emit(do.CountCores())
                self._make_up(who)
        for who in gone:
            self._replace(who, reason, now)

    def hosts_lost(self, numbers: Sequence[int], reason: str, now: float) -> None:
        """Act on the loss of hosts of sources and sinks, and of these with them."""
        there = self._participants
        for number in numbers:
            there.host_lost(number)
        if self._bear("hosts of sources and sinks", reason):
            for who in [who for number in numbers for who in there.ends_on(number)]:
                self._replace(who, reason, now)
            self._emit(do.RestartHosts(tuple(numbers)))

    def host_replaced(self, number: int, reason: str, now: float) -> None:
        """Act on another host in the place of one that was lost."""
        there = self._participants
        there.host_lost(number)
        if self._bear(f"host {number} of sources and sinks", reason):
            for who in there.ends_on(number):
                self._replace(who, reason, now)
            there.host_up(number)

    def failed(self, who: Peer, attempt: Attempt, reason: str, now: float) -> None:
        """Act on a participant that cannot go on with the attempt, but can begin another one."""
        assert self._epochs is not None  # otherwise nothing is recovered
        if attempt < self._epochs.attempt:
            return
        # What follows from a loss that has been counted is not counted once more.
        if attempt != self._counted and not self._bear(f"attempt of {who}", reason):
            return
        self._note(reason, now)
        if not self._absent:  # otherwise the new attempt waits for their successors
            self._epochs.handle(co.ParticipantFailed(who, attempt, reason), now)

    def message_lost(self, reason: str, now: float) -> None:
        """Act on a lost message to the driver: whatever it said, a new attempt makes up for it."""
        assert self._epochs is not None  # otherwise nothing is recovered
        if self._bear("messages to the driver", reason):
            self._note(reason, now)
            if self._epochs.started and not self._absent:
                who = self._participants.executors[0]
                self._epochs.handle(co.ParticipantLost(who, reason), now)

    def too_late(self, missing: Sequence[Peer], reason: str, now: float) -> None:
        """Act on participants that do not answer: whatever they do, others take their places."""
        if not self._bear(f"answer of {', '.join(missing)}", reason):
            return
        for who in missing:
            self._replace(who, reason, now)

    def committed(self) -> None:
        """Take in that an epoch was committed: that is progress."""
        self._policy.progressed()

    def _bear(self, kind: str, reason: str) -> bool:
        """Count a loss; says whether to try again."""
        if self._epochs is not None:
            self._counted = self._epochs.attempt
        self._emit(do.WriteJournal("lost", {"who": kind, "reason": reason}))
        if self._policy.failed(kind):
            return True
        self._life.give_up(kind, reason, self._policy.summary())
        return False

    # Successors

    def _note(self, reason: str, now: float) -> None:
        if not self._reason:
            self._reason, self._since = reason, now
        self._life.interrupted()

    def _replace(self, who: Peer, reason: str, now: float) -> None:
        self._note(reason, now)
        self._participants.lose(who)
        self._homeless.discard(who)  # what becomes of the next life is decided when it is started
        pause_s = self._policy.pause_s
        self._absent[who] = now + pause_s + self._patience_s
        if pause_s:
            self._paused[who] = now + pause_s, self._participants.lives[who]
            self._emit(do.Wake(now + pause_s))
        else:
            self._start(who)

    def _start(self, who: Peer) -> None:
        self._paused.pop(who, None)
        if self._participants.is_executor(who):
            self._house(who)
        else:
            self._participants.start_end(who)

    def _house(self, who: Peer) -> None:
        """Start an executor where it was, if that is still there, and elsewhere otherwise."""
        there = self._participants
        home, cores = there.placements[who].node, there.cores[who]
        free = self._free_cores()
        free |= {node: free[node] + n for node, n in cores.items() if node in free}
        found = rehouse(Placement(home, cores), self._targets[who], free, who)
        if found is None:
            self._homeless.add(who)
            return
        self._homeless.discard(who)
        there.cores[who] = dict(found.cores)
        self._emit(do.CountCores())
        there.placements[who] = found
        there.start_main(who)

    def registered(self, who: Peer, now: float) -> None:
        """Take in that a participant is up; when all are, an attempt begins."""
        self._absent.pop(who, None)
        there = self._participants
        if not there.complete:
            return
        there.introduce()
        for executor in there.executors:  # the scheduler may have decided meanwhile
            if there.cores[executor] != there.placements[executor].cores:
                self.assign(executor, there.cores[executor])
        if self._epochs is None or not self._epochs.started:
            self._life.all_up()
        elif there.newcomers:
            self._epochs.handle(co.ParticipantLost(who, self._reason), now)

    def recovered(self, now: float) -> tuple[str, float] | None:
        """Why tuples had not flowed, and for how long; None if they had, or do not yet."""
        if not self._reason or self._absent:
            return None
        reason, self._reason = self._reason, ""
        return reason, now - self._since

    def tick(self, now: float) -> None:
        """Start successors whose pause is over, and see which have not come up."""
        for who, (at, life) in list(self._paused.items()):
            if now >= at:
                del self._paused[who]
                if life == self._participants.lives[who]:
                    self._start(who)
        for who, until in list(self._absent.items()):
            if now > until:
                reason = f"{who} has not come up within {self._patience_s:g} s"
                if who in self._homeless:
                    reason += ": there is no node"
                self.participant_lost(who, reason, now)
                return

    # Cores

    def want(self, who: Peer, cores: int) -> None:
        """Take in how many cores an executor should have again after a loss."""
        self._targets[who] = cores

    def assign(self, who: Peer, wanted: Mapping[NodeId, int]) -> None:
        """Let an executor have these cores, but for those of nodes that are gone."""
        there = self._participants
        cores = {node: count for node, count in wanted.items() if node in there.nodes}
        if sum(cores.values()):  # otherwise it was decided before the node was lost
            there.cores[who] = cores
            self._emit(do.CountCores())
            self._emit(co.AssignCores(who, cores))

    def node_joined(self, node: NodeId) -> None:
        """Give executors that lack a home or cores what a new node has."""
        for who in sorted(self._homeless):
            self._house(who)
        if not self._scheduled:
            for who in self._participants.executors:
                if who in self._participants.up:
                    self._make_up(who)

    def _make_up(self, who: Peer) -> None:
        """Let an executor that has lost cores have others, as far as there are any."""
        there = self._participants
        home, cores = there.placements[who].node, there.cores[who]
        if sum(cores.values()) >= self._targets[who] and cores.keys() <= there.nodes:
            return  # it has lost none
        found = make_up(Placement(home, cores), self._targets[who], self._free_cores())
        if found and found != cores:
            self.assign(who, found)
