"""The end of a run: everybody is told, and has to say that nothing of it is left."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from elasticutor.driver.life.participants import Participants
from elasticutor.process.hosting.hosts import ends_name
from elasticutor.transport import messages as say

if TYPE_CHECKING:
    from elasticutor.driver.loop import DriverLoop

_GRACE_S = 2.0
"""How long processes have to end by themselves."""
_COMMIT_S = 60.0
"""How long sinks have to publish the last epoch."""


class Ending:
    """Waits for nodes and hosts to say that nothing of a run is left there."""

    def __init__(self, hub: DriverLoop, run: str, attendance: Participants) -> None:
        self._hub = hub
        self._run = run
        self._attendance = attendance
        self._until = float("inf")
        self.left: set[str] = set()
        """Those that have yet to say so: nodes, and the hosts of sources and sinks."""

    def begin(self, *, publishing: bool) -> None:
        """Tell everybody to end.

        Args:
            publishing: Whether sinks may be publishing the last epoch: nobody else would do it.
        """
        self._attendance.send_all(say.Finish())
        grace_s = _COMMIT_S if publishing else _GRACE_S
        self._until = time.monotonic() + grace_s + 3 * _GRACE_S
        self._hub.send_nodes(self._hub.nodes, say.EndRun(self._run, _GRACE_S))
        hosts = {ends_name(number) for number in self._attendance.hosts}
        for host in hosts:
            self._attendance.send(host, say.EndRun(self._run, grace_s))
        self.left = {*self._hub.nodes, *hosts}

    def gone(self, who: str) -> None:
        """Nothing of the run is left on a node or a host, or they are gone themselves."""
        self.left.discard(who)

    def overdue(self, now: float) -> str:
        """Who has not said a word for too long; they are not waited for any more."""
        if now <= self._until:
            return ""
        silent = ", ".join(sorted(self.left))
        self.left.clear()
        return silent
