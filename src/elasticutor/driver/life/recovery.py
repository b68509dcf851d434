"""What is done about losses: who is started anew and where, and when everybody begins again.

```
lost: a task          its main process is told, starts another one, and gives the attempt up
      a main process  what is left of it is dropped everywhere, and another one started
      a node          all of that, for everybody who had something there
      source or sink  another one is started
```

When all those are up who should be, they are introduced to each other, and the coordinator lets
everybody begin again from the last epoch that was committed. How often that is tried without an
epoch committed in between is `core.run.restart_policy`'s to say.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from elasticutor.core.protocol import coordinator as co
from elasticutor.core.protocol import events as ev
from elasticutor.core.protocol.ids import Attempt, NodeId, Peer, TaskId
from elasticutor.core.run.restart_policy import RestartPolicy
from elasticutor.core.scheduler.placement import Placement, make_up, rehouse
from elasticutor.driver.life.epochs import RunEpochs
from elasticutor.driver.life.participants import Participants
from elasticutor.transport import messages as say

if TYPE_CHECKING:
    from elasticutor.driver.supervisor import Supervisor


class Recovery:
    """Brings one run back after losses. Lives in the hub's thread.

    Args:
        supervisor: Of the run.
        attendance: Who takes part.
        epochs: What begins attempts.
        patience: How often.
        patience_s: How long a successor may take to come up.
        free_cores: The cores of every node that nobody has.
        restart_hosts: Starts hosts of sources and sinks again, by their numbers.
    """

    def __init__(
        self,
        supervisor: Supervisor,
        attendance: Participants,
        epochs: RunEpochs,
        *,
        patience: RestartPolicy,
        patience_s: float,
        free_cores: Callable[[], dict[NodeId, int]],
        restart_hosts: Callable[[Sequence[int]], None],
    ) -> None:
        self._supervisor = supervisor
        self._attendance = attendance
        self._epochs = epochs
        self._patience = patience
        self._patience_s = patience_s
        self._free_cores = free_cores
        self._restart_hosts = restart_hosts
        self._absent: dict[Peer, float] = {}
        """Those who have yet to come up again, and by when."""
        self._homeless: set[Peer] = set()
        """Those of them that wait for a node."""
        self._strangers = False
        """Whether somebody has come up who knows nothing of the attempt that has begun."""
        self._counted = Attempt(0)
        """The last attempt of which a loss was counted."""
        self._reason = ""
        self._since = 0.0
        self._targets = {who: sum(cores.values()) for who, cores in supervisor.cores.items()}

    @property
    def possible(self) -> bool:
        """Whether there is anything to go back to."""
        return self._epochs.durable

    @property
    def under_way(self) -> bool:
        """Whether somebody is being replaced."""
        return bool(self._absent)

    def want(self, who: Peer, cores: int) -> None:
        """Somebody has said how many cores an executor should have."""
        self._targets[who] = cores

    # Losses

    def task_lost(self, who: Peer, task: TaskId, reason: str) -> None:
        """A task's process is gone."""
        if not self._bear(f"task of {who}", reason):
            return
        if who in self._attendance.book:
            self._attendance.send(who, ev.TaskLost(task))
        elif who not in self._homeless:  # it has not come up: begin with it anew
            self._replace(who, reason)

    def participant_lost(self, who: Peer, reason: str) -> None:
        """A main process, a source task or a sink is gone."""
        if self._bear(who, reason):
            self._replace(who, reason)

    def node_lost(self, node: NodeId, slot: str, reason: str) -> None:
        """A node is gone, with everything on it."""
        supervisor, attendance = self._supervisor, self._attendance
        guests, gone = [], []
        for who in attendance.executors:
            at_home = attendance.placements[who].node == node
            # One that is not up cannot be told: its tasks there would be waited for in vain.
            if at_home or (who not in attendance.book and supervisor.cores[who].get(node)):
                gone.append(who)
            elif who in attendance.book:
                guests.append(who)
        needed = gone or any(supervisor.cores[who].get(node) for who in guests)
        if needed and not self._bear(f"node {slot}", reason):
            return
        for who in guests:
            attendance.send(who, ev.NodeLost(node))
            if supervisor.cores[who].pop(node, 0):
                supervisor.cores_changed()
                self._make_up(who)
        for who in gone:
            self._replace(who, reason)

    def node_joined(self, node: NodeId) -> None:
        """A node is there: whoever lacks a home or cores may have some."""
        self._attendance.introduce_nodes()
        for who in sorted(self._homeless):
            self._house(who)
        if not self._supervisor.is_scheduled:
            for who in self._attendance.executors:
                if who in self._attendance.book:
                    self._make_up(who)

    def hosts_lost(self, numbers: Sequence[int], reason: str) -> None:
        """Hosts of sources and sinks are gone, and they with them."""
        for number in numbers:
            self._attendance.hosts.pop(number, None)
        if self._bear("hosts of sources and sinks", reason):
            for who in [who for n in numbers for who in self._attendance.ends_on(n)]:
                self._replace(who, reason)
            self._restart_hosts(numbers)

    def host_replaced(self, host: say.EndsHostUp, reason: str) -> None:
        """Another host has come in the place of one that was lost."""
        self._attendance.hosts.pop(host.number, None)
        if self._bear(f"host {host.number} of sources and sinks", reason):
            for who in self._attendance.ends_on(host.number):
                self._replace(who, reason)
            self._attendance.host_up(host)

    def failed(self, who: Peer, attempt: Attempt, reason: str) -> None:
        """An executor cannot go on with the attempt, and is there to begin another one."""
        if attempt < self._epochs.attempt:
            return
        # What follows from a loss that has been counted is not counted once more.
        if attempt != self._counted and not self._bear(f"attempt of {who}", reason):
            return
        self._note(reason)
        if not self._absent:  # otherwise all begin again when those are up
            self._epochs.handle(co.ParticipantFailed(who, attempt, reason))

    def message_lost(self, reason: str) -> None:
        """A message to the driver was lost, and nobody knows which: all begin again."""
        if self._bear("messages to the driver", reason):
            self._note(reason)
            if self._epochs.started and not self._absent:
                who = self._attendance.executors[0]
                self._epochs.handle(co.ParticipantLost(who, reason))

    def too_late(self, missing: Sequence[Peer], reason: str) -> None:
        """These have not answered: whatever they do, others take their places."""
        if not self._bear(f"answer of {', '.join(missing)}", reason):
            return
        for who in missing:
            self._replace(who, reason)

    def committed(self) -> None:
        """An epoch was committed: that is progress."""
        self._patience.progressed()

    def _bear(self, kind: str, reason: str) -> bool:
        """Whether to try again."""
        self._counted = self._epochs.attempt
        self._supervisor.journal.write("lost", run=self._supervisor.run, who=kind, reason=reason)
        if self._patience.failed(kind):
            return True
        self._supervisor.give_up(kind, reason, self._patience.summary())
        return False

    # Successors

    def _note(self, reason: str) -> None:
        if not self._reason:
            self._reason, self._since = reason, time.monotonic()
        self._supervisor.interrupted()

    def _replace(self, who: Peer, reason: str) -> None:
        self._note(reason)
        self._attendance.lose(who)
        pause_s = self._patience.pause_s
        self._absent[who] = time.monotonic() + pause_s + self._patience_s
        if pause_s:
            life = self._attendance.lives[who]
            self._supervisor.after(pause_s, lambda: self._start(who, life))
        else:
            self._start(who, self._attendance.lives[who])

    def _start(self, who: Peer, life: int) -> None:
        if life != self._attendance.lives[who] or not self._supervisor.recovers:
            return  # that one was lost before it was started, or the run is over
        if self._attendance.is_executor(who):
            self._house(who)
        else:
            self._attendance.start_end(who)

    def _house(self, who: Peer) -> None:
        """Start an executor where it was, if that is still there, and elsewhere otherwise."""
        home, cores = self._attendance.placements[who].node, self._supervisor.cores[who]
        free = self._free_cores()
        free |= {node: free[node] + n for node, n in cores.items() if node in free}
        found = rehouse(Placement(home, cores), self._targets[who], free, who)
        if found is None:
            self._homeless.add(who)
            return
        self._homeless.discard(who)
        self._supervisor.cores[who] = dict(found.cores)
        self._supervisor.cores_changed()
        self._attendance.placements[who] = found
        self._attendance.start_executor(who)

    def _make_up(self, who: Peer) -> None:
        """Let an executor that has lost cores have others, as far as there are any."""
        home, cores = self._attendance.placements[who].node, self._supervisor.cores[who]
        if sum(cores.values()) >= self._targets[who] and cores.keys() <= self._supervisor.nodes:
            return  # it has lost none
        found = make_up(Placement(home, cores), self._targets[who], self._free_cores())
        if found and found != cores:
            self._supervisor.set_cores(who, found)

    def registered(self, who: Peer) -> None:
        """A participant is up; when all are, everybody begins again."""
        if self._absent.pop(who, None) is not None:
            self._strangers = True
        if not self._attendance.complete:
            return
        self._attendance.introduce()
        for executor in self._attendance.executors:  # somebody may have decided meanwhile
            cores = self._supervisor.cores[executor]
            if cores != self._attendance.placements[executor].cores:
                self._supervisor.set_cores(executor, cores)
        if not self._epochs.started:
            self._epochs.start()
        elif self._strangers:
            self._strangers = False
            self._epochs.handle(co.ParticipantLost(who, self._reason))

    def recovered(self) -> tuple[str, float] | None:
        """Tuples flow again: why they had not, and for how long."""
        if not self._reason or self._absent:
            return None
        told = self._reason, time.monotonic() - self._since
        self._reason = ""
        return told

    def tick(self, now: float) -> None:
        """Nobody may be waited for without end."""
        for who, until in list(self._absent.items()):
            if now > until:
                reason = f"{who} has not come up within {self._patience_s:g} s"
                if who in self._homeless:
                    reason += ": there is no node"
                self.participant_lost(who, reason)
                return
