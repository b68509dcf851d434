"""How a run comes to rest: sources stop, all that they have sent is processed, and shards arrive.

```
asked, or all sources exhausted ──▶ the last epoch ──committed──▶ at rest ──all are──▶ done
        └── put off while shards change their executor
```

A loss in the midst of it takes the run back to its last epoch, and all but the asking with it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from elasticutor.core.protocol import coordinator as co
from elasticutor.core.protocol.ids import Peer
from elasticutor.core.run import run_instructions as do
from elasticutor.core.run.participants import Participants


class Draining:
    """Which participants have yet to stop or to rest; the lifecycle says when what is due."""

    def __init__(
        self, emit: do.EmitInstruction, participants: Participants, patience_s: float
    ) -> None:
        self._emit = emit
        self._participants = participants
        self._patience_s = patience_s
        self._exhausted: set[Peer] = set()
        self._restless: set[Peer] = set()
        self._rest_by = math.inf
        self.asked = False
        """The user wants the run to stop."""
        self.put_off = False
        """It is due as soon as no shard is on the move between executors."""
        self.done = False
        """All was processed."""

    def begin_again(self) -> None:
        """Forget all answers: the run is back at its last epoch, and sources have more to send."""
        self._exhausted.clear()
        self._restless.clear()

    def exhausted(self, who: Peer) -> bool:
        """Take in that a source has no more; returns whether none has."""
        self._exhausted.add(who)
        return self._exhausted == set(self._participants.sources)

    def stop_sources(self) -> None:
        """Let the sources send nothing more."""
        for source in self._participants.sources:
            self._emit(co.StopSending(source))

    def rest(self, whom: Iterable[Peer], now: float) -> None:
        """Let these say when nothing of theirs is under way any more."""
        asked = tuple(whom)
        self._restless = set(asked)
        self._rest_by = now + self._patience_s
        for who in asked:
            self._emit(co.AskToRest(who))

    def rested(self, who: Peer) -> bool:
        """Take in that a participant is at rest; returns whether all are, by that."""
        if who not in self._restless:
            return False  # it rests on account of a drain that came to nothing
        self._restless.discard(who)
        return not self._restless

    def overdue(self, now: float) -> list[Peer]:
        """Who has not come to rest for too long; each time-out is reported once."""
        if not self._restless or now <= self._rest_by:
            return []
        self._rest_by = math.inf
        return sorted(self._restless)
