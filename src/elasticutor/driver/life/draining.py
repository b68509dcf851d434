"""How a run comes to rest: sources stop, all that they have sent is processed, and shards arrive.

```
asked, or all sources exhausted ──▶ the last epoch ──committed──▶ at rest ──everybody is──▶ done
        └── put off while shards change their executor
```

A loss in the midst of it takes the run back to its last epoch, and all but the asking with it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable

from elasticutor.core.protocol.ids import Peer
from elasticutor.driver.life.participants import Participants
from elasticutor.transport import messages as say


class Draining:
    """Who has still to stop or to rest; the supervisor of the run says when what is due."""

    def __init__(self, attendance: Participants, patience_s: float) -> None:
        self._attendance = attendance
        self._patience_s = patience_s
        self._exhausted: set[Peer] = set()
        self._restless: set[Peer] = set()
        self._rest_by = math.inf
        self.asked = False
        """Somebody wants the run to stop."""
        self.put_off = False
        """It is due as soon as no shard is on the move between executors."""
        self.done = False
        """All was processed."""

    def begin_anew(self) -> None:
        """The run is back at its last epoch: sources have more to send, and nobody rests."""
        self._exhausted.clear()
        self._restless.clear()

    def exhausted(self, who: Peer) -> bool:
        """A source has no more; returns whether none has."""
        self._exhausted.add(who)
        return self._exhausted == set(self._attendance.sources)

    def stop_sources(self) -> None:
        """Let the sources send nothing more."""
        for source in self._attendance.sources:
            self._send(source, say.StopSource())

    def rest(self, whom: Iterable[Peer]) -> None:
        """Let these say when nothing of theirs is under way any more."""
        self._restless = set(whom)
        self._rest_by = time.monotonic() + self._patience_s
        for who in self._restless:
            self._send(who, say.Rest())

    def rested(self, who: Peer) -> bool:
        """Somebody is at rest; returns whether everybody is, by that."""
        if who not in self._restless:
            return False  # it rests on account of a drain that came to nothing
        self._restless.discard(who)
        return not self._restless

    def overdue(self, now: float) -> list[Peer]:
        """Who has not come to rest for too long; told once."""
        if not self._restless or now <= self._rest_by:
            return []
        self._rest_by = math.inf
        return sorted(self._restless)

    def _send(self, who: Peer, message: object) -> None:
        if who in self._attendance.book:  # whoever is being replaced hears of what comes later
            self._attendance.send(who, message)
