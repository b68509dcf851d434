"""The one loop of all processes of a run: wait, take messages, do what is due, send.

A process is an `Actor`: it has a mailbox, a handler per kind of message, and timers. What its
handlers send leaves at once if it is the first for its receiver in a round, and else together with
what follows when the round ends (`Mailbox.gathering`); it never waits for what a timer does.
"""

from __future__ import annotations

import heapq
import os
import time
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from elasticutor.core.protocol.ids import Peer
from elasticutor.process.specs import Site
from elasticutor.transport import messages as say
from elasticutor.transport.mailbox import DRIVER, Mailbox

_LONGEST_WAIT_S = 5.0


class Actor:
    """A process that lives by messages and timers.

    Derived classes fill `handlers`, and override `work` if they have something to do besides.

    Args:
        mail: How it is reached.
        role: What it is, for the log: "a sink".
    """

    handlers: ClassVar[Mapping[type, Callable[[Any, Any], None]]] = {}
    """By type of message: called with the actor and the message."""

    at_once: ClassVar[int] = 64
    """Messages that are taken before timers are looked at."""

    def __init__(self, mail: Mailbox, role: str) -> None:
        self._mail = mail
        self._role = role
        self._finished = False
        self._timers: list[tuple[float, int, float, Callable[[], None]]] = []

    def every(self, seconds: float, function: Callable[[], None]) -> None:
        """Call a function at this interval, first when one has passed; 0: never."""
        if seconds:
            entry = (time.monotonic() + seconds, len(self._timers), seconds, function)
            heapq.heappush(self._timers, entry)

    def serve(self) -> None:
        """Live until `finish` is called."""
        mail = self._mail
        wait_s = 0.0
        while not self._finished:
            if wait_s > 0.0 and self._timers:
                wait_s = min(wait_s, self._timers[0][0] - time.monotonic())
            mail.wait(wait_s)
            mail.gather()
            try:
                for message in mail.receive(self.at_once):
                    self.take(message)
                wait_s = self.work()
            finally:
                mail.send_gathered()
            if self._timers and self._timers[0][0] <= time.monotonic():
                self._ring()

    def finish(self) -> None:
        """Let `serve` return when the messages in hand are taken."""
        self._finished = True

    def take(self, message: Any) -> None:
        """Handle a message; one that is not for this process is dropped, and counted."""
        handler = self.handlers.get(type(message))
        if handler is None:
            self._mail.drop(f"{type(message).__name__} is not for {self._role}")
        else:
            handler(self, message)

    def work(self) -> float:
        """Do what is to do besides messages; returns for how many seconds there is nothing."""
        return _LONGEST_WAIT_S

    def _ring(self) -> None:
        with self._mail.gathering():
            while self._timers and self._timers[0][0] <= time.monotonic():
                _, number, seconds, function = self._timers[0]
                heapq.heapreplace(
                    self._timers, (time.monotonic() + seconds, number, seconds, function)
                )
                function()


class Participant(Actor):
    """A process that takes part in a run: the driver knows where it is, and hears what it says.

    Args:
        mail: How it is reached.
        role: What it is, for the log.
        site: The run, and where the process is.
        who: Its name in the run.
    """

    def __init__(self, mail: Mailbox, role: str, site: Site, who: Peer) -> None:
        super().__init__(mail, role)
        self._site = site
        self._who = who

    def register(self) -> None:
        """Tell the driver where this process is."""
        site, endpoint = self._site, self._mail.endpoint
        where = say.Registered(site.run, self._who, endpoint, os.getpid(), site.life)
        self._mail.send(DRIVER, where)

    def report(self, what: Any) -> None:
        """Tell the driver what has happened."""
        self._mail.send(DRIVER, say.Said(self._site.run, self._who, what))
