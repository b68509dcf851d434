"""Where a tuple's time goes: a mailbox that notes when messages with tuples are sent and taken.

`elasticutor bench path` starts its cluster inside `traced`: the environment names a folder, and
this module as the maker of mailboxes. Processes that start while a file `on` is in the folder note
there what they send and take. A tuple is known by its birth; a sample of tuples is noted.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from elasticutor.transport.channels import Links
from elasticutor.transport.codec import Chunk, Result, RowChunk, RowResult, RowTuples, Tuples
from elasticutor.transport.mailbox import FACTORY, Mailbox
from elasticutor.transport.row_packets import RowPacket

TRACE = "ELASTICUTOR_TRACE"
"""The environment variable with the folder for notes."""
ON = "on"
"""The file that switches tracing on, for processes that start from then on."""
EVERY = 3
"""One tuple of about this number is noted."""

_AT_ONCE = 200


@contextmanager
def traced(folder: Path) -> Iterator[None]:
    """Processes of clusters that start meanwhile note in this folder what they see."""
    ours = {TRACE: str(folder), FACTORY: f"{__name__}:mailbox"}
    before = {name: os.environ.get(name) for name in ours}
    os.environ.update(ours)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value


def mailbox(links: Links, name: str, *, tcp: bool = True) -> Mailbox:
    """The mailbox of a process: one that takes notes, if tracing is on."""
    folder = os.environ.get(TRACE)
    if not folder or not (Path(folder) / ON).exists():
        return Mailbox(links, name, tcp=tcp)
    mail = TracedMailbox(links, name, tcp=tcp)
    _, *who = name.split("/")  # a run's processes are called "run/who/life"
    mail.note_in(Path(folder) / f"{who[0] if who else name}.{os.getpid()}")
    return mail


class TracedMailbox(Mailbox):
    """A mailbox that notes when tuples come and go; one line for each message.

    Lines are `sent KIND BIRTH BEFORE AFTER` and `taken KIND BIRTH IDLE WOKEN TAKEN DONE`, all times
    in seconds since 1970: since when the process had nothing to do, when it was woken up, when the
    message was taken and when it was done with. What a task sends ends with the time spent in the
    operator.
    """

    _notes: Path | None = None

    def note_in(self, path: Path) -> None:
        """Where the notes go."""
        self._notes = path
        self._lines: list[str] = []
        self._idle = self._woken = time.time()

    def send(self, who: str, message: Any) -> None:
        before = time.time()
        super().send(who, message)
        useful = (message.useful_s,) if type(message) in (Result, RowResult) else ()
        self._note("sent", message, before, time.time(), *useful)

    def wait(self, timeout_s: float) -> bool:
        """As usual, and note when it began and ended."""
        self._idle = time.time()
        there = super().wait(timeout_s)
        self._woken = time.time()
        return there

    def receive(self, limit: int = 256) -> Iterator[Any]:
        """As usual, and note when each message was taken, and when the receiver was done."""
        for message in super().receive(limit):
            taken = time.time()
            yield message
            self._note("taken", message, self._idle, self._woken, taken, time.time())

    def close(self, linger_s: float = 0.0) -> None:
        self._write()
        super().close(linger_s)

    def _note(self, what: str, message: Any, *times: float) -> None:
        birth = birth_of(message)
        if birth is None:
            return
        kind = type(message).__name__.removeprefix("Row")
        self._lines.append(" ".join([what, kind, str(birth), *(f"{t:.6f}" for t in times)]) + "\n")
        if len(self._lines) >= _AT_ONCE:
            self._write()

    def _write(self) -> None:
        if self._notes is not None and self._lines:
            with self._notes.open("a") as notes:
                notes.write("".join(self._lines))
            self._lines = []


def birth_of(message: Any) -> int | None:
    """The birth of a message's first tuple, if it has tuples and is one of the sample."""
    kind = type(message)
    if kind is Tuples or kind is RowTuples:
        of = message.packet
    elif kind is Chunk or kind is RowChunk:
        of = message
    elif (kind is Result or kind is RowResult) and message.outputs:
        of = message.outputs[0].batch
    else:
        return None
    if isinstance(of, RowPacket | RowChunk):
        birth = of.born_us[0]
    else:
        birth = int(of.births[0, 0]) if len(of.births) else 1
    return birth if birth % EVERY == 0 else None
