"""The end of a run: every node and host ends its part, and says when nothing of it is left."""

from __future__ import annotations

import math

from elasticutor.core.run import run_instructions as do
from elasticutor.core.run.participants import Participants

_GRACE_S = 2.0
"""How long processes have to end by themselves."""
_COMMIT_S = 60.0
"""How long sinks have to publish the last epoch."""


class Ending:
    """Waits for nodes and hosts to say that nothing of a run is left there."""

    def __init__(self, emit: do.EmitInstruction, participants: Participants) -> None:
        self._emit = emit
        self._participants = participants
        self._until = math.inf
        self.left: set[str] = set()
        """The nodes and hosts that have yet to answer."""

    def begin(self, now: float, *, publishing: bool) -> None:
        """Let every process end."""
        participants = self._participants
        grace_s = _COMMIT_S if publishing else _GRACE_S
        self._until = now + grace_s + 3 * _GRACE_S
        hosts = tuple(sorted(participants.hosts))
        self._emit(do.EndProcesses(hosts, _GRACE_S, grace_s))
        self.left = {*participants.nodes, *(participants.host_names[n] for n in hosts)}

    def cleared(self, name: str) -> None:
        """Take in that nothing of the run is left on a node or host, or that it is gone itself."""
        self.left.discard(name)

    def overdue(self, now: float) -> str:
        """Who has not answered for too long; they are not waited for any more."""
        if now <= self._until:
            return ""
        silent = ", ".join(sorted(self.left))
        self.left.clear()
        return silent
