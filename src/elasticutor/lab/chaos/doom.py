"""Makes a process die at a named point: just before it takes in, or sends, a message of a kind.

The protocol's messages are its steps, so every point between two steps has a name, and nothing is
planted in the code. A cluster whose processes are to be doomed starts with `MAILBOX` in the
environment as `transport.mailbox.FACTORY`; then `DieAt`, sent as any other message, reaches a
`DoomedMailbox`, which keeps it to itself.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Iterator
from typing import Any

from msgspec.structs import replace

from elasticutor.core.message import Message
from elasticutor.core.protocol.ids import TaskId
from elasticutor.transport import control
from elasticutor.transport.mailbox import Mailbox

MAILBOX = f"{__name__}:DoomedMailbox"


class DieAt(Message):
    """Kill yourself just before you take in, or send, a message of this kind."""

    sends: bool
    kind: str
    """The name of the message's class, or of the class of the message that it carries."""
    task: TaskId | None = None
    """The receiver's task that is to die; None: the receiver itself."""


control.admit(DieAt)


class DoomedMailbox(Mailbox):
    """A mailbox whose process dies at the point that the last `DieAt` has named."""

    _doom: DieAt | None = None

    def send(self, who: str, message: Any) -> None:
        """Send, or die before."""
        self._meet(message, sends=True)
        super().send(who, message)

    def send_all(self, whom: Iterable[str], message: Any) -> None:
        """Send to all, or die before."""
        self._meet(message, sends=True)
        super().send_all(whom, message)

    def receive(self, limit: int = 256) -> Iterator[Any]:
        """The messages that are here, but for dooms."""
        for message in super().receive(limit):
            if type(message) is DieAt:
                self._take(message)
                continue
            self._meet(message, sends=False)
            yield message

    def _take(self, message: DieAt) -> None:
        if message.task is None:
            self._doom = message
        elif f"task {message.task}" in self._book:
            self.send(f"task {message.task}", replace(message, task=None))

    def _meet(self, message: Any, *, sends: bool) -> None:
        doom = self._doom
        if doom is None or doom.sends is not sends:
            return
        carried = getattr(message, "order", None) or getattr(message, "what", None) or message
        if type(carried).__name__ == doom.kind:
            os.kill(os.getpid(), signal.SIGKILL)
