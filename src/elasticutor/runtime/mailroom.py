"""A process's mail: its inbox, its outboxes by name, and what it could not make sense of."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import time
from collections.abc import Iterator, Mapping
from typing import Any

import zmq

from elasticutor.errors import ProtocolError, UnknownPeerError
from elasticutor.runtime.channels import Endpoint, Links, Outbox
from elasticutor.runtime.messages import DieAt
from elasticutor.runtime.specs import Site
from elasticutor.runtime.wire import Frames, WireError, bundle, decode, encode, unbundled

log = logging.getLogger(__name__)

DRIVER = "driver"
_COMPLAIN_EVERY_S = 10.0
_MOST_GATHERED = 64


class Mailroom:
    """Sends to peers by their names, and receives from anybody; for a single thread."""

    def __init__(self, links: Links, name: str, *, port: int = 0) -> None:
        self._links = links
        self._inbox = links.inbox(name, port=port)
        self._book: dict[str, Endpoint] = {}
        self._outboxes: dict[str, Outbox] = {}
        self._poller = zmq.Poller()
        for socket in self._inbox.sockets:
            self._poller.register(socket, zmq.POLLIN)
        self.dropped = 0
        """Messages that were malformed or out of place."""
        self._excused = 0
        self._gathering = False
        self._gathered: dict[Outbox, list[Frames]] = {}
        self._complained_at = -_COMPLAIN_EVERY_S
        self._doom: DieAt | None = None

    @classmethod
    def at(cls, site: Site, name: str) -> Mailroom:
        """The mail of a process that was started at a site; it knows the driver."""
        links = Links(site.node, site.keys, ipc_dir=site.sockets or None, host=site.host)
        # Runs share the node's directory of sockets, and two of them may be of one topology. What
        # was on its way to one that is lost must not come to its successor, either.
        mail = cls(links, f"{site.run}/{name}/{site.life}")
        mail.know(DRIVER, site.driver)
        return mail

    @property
    def endpoint(self) -> Endpoint:
        """Where others reach this process."""
        return self._inbox.endpoint

    def watch(self, fd: int) -> None:
        """Wake up when this file can be read, too."""
        self._poller.register(fd, zmq.POLLIN)

    def watch_too(self, other: Mailroom) -> None:
        """Wake up when another mailroom of this thread has mail, too."""
        for socket in other._inbox.sockets:
            self._poller.register(socket, zmq.POLLIN)

    def unwatch(self, fd: int) -> None:
        """Do not look at this file any more."""
        self._poller.unregister(fd)

    def know(self, who: str, endpoint: Endpoint) -> None:
        """Take note of where somebody is; a new address replaces the old one."""
        if self._book.get(who) != endpoint:
            self.forget(who)
            self._book[who] = endpoint

    def know_all(self, book: Mapping[str, Endpoint]) -> None:
        """Take note of where many are."""
        for who, endpoint in book.items():
            self.know(who, endpoint)

    def forget(self, who: str) -> None:
        """Nobody will send there any more."""
        self._book.pop(who, None)
        outbox = self._outboxes.pop(who, None)
        # One inbox has one outbox here, whatever the names under which it is known.
        if outbox is not None and outbox not in self._outboxes.values():
            gathered = self._gathered.pop(outbox, None)
            if gathered:
                outbox.send(bundle(gathered))
            outbox.close(linger_s=1.0)

    def send(self, who: str, message: Any) -> None:
        """Send to somebody known, behind everything that was sent there before."""
        outbox = self._outboxes.get(who)
        if outbox is None:
            endpoint = self._book.get(who)
            if endpoint is None:
                raise UnknownPeerError("peer", f"be one of {sorted(self._book)}", who)
            outbox = self._outboxes[who] = self._links.connect(endpoint)
        if self._doom is not None:
            self._meet_doom(message, sends=True)
        frames = encode(message)
        if not self._gathering:
            outbox.send(frames)
            return
        gathered = self._gathered.setdefault(outbox, [])
        gathered.append(frames)
        if len(gathered) >= _MOST_GATHERED:
            outbox.send(bundle(self._gathered.pop(outbox)))

    @contextlib.contextmanager
    def gathering(self) -> Iterator[None]:
        """Keep what is sent until the end of the block, and send what goes to one peer as one.

        For an event loop that takes in whatever is there: the more it finds, the less often it has
        to send, and whom it sends to, to wake up.
        """
        self._gathering = True
        try:
            yield
        finally:
            self._gathering = False
            self._send_gathered()

    def _send_gathered(self) -> None:
        while self._gathered:
            outbox, messages = self._gathered.popitem()
            outbox.send(bundle(messages))

    def wait(self, timeout_s: float) -> bool:
        """Wait until there is mail, a watched file can be read, or the time is up."""
        return bool(self._poller.poll(max(0, round(timeout_s * 1e3 + 0.499))))

    def receive(self, limit: int = 256) -> Iterator[Any]:
        """The messages that are here now."""
        for received in self._inbox.receive(limit):
            try:
                messages = unbundled(received)
            except WireError as error:
                self.drop(str(error))
                continue
            for frames in messages:
                try:
                    message = decode(frames)
                except WireError as error:
                    self.drop(str(error))
                    continue
                if isinstance(message, DieAt) and message.task is None:
                    self._doom = message
                    continue
                if self._doom is not None:
                    self._meet_doom(message, sends=False)
                yield message
        self.require_all()

    def _meet_doom(self, message: Any, *, sends: bool) -> None:
        """Die here, if this is the point that was named."""
        assert self._doom is not None  # the caller has looked
        carried = getattr(message, "order", None) or getattr(message, "what", None) or message
        if self._doom.sends is sends and type(carried).__name__ == self._doom.kind:
            os.kill(os.getpid(), signal.SIGKILL)

    @property
    def torn(self) -> int:
        """Senders of whom a message is missing; nothing more is taken from them."""
        return self._inbox.torn

    def require_all(self) -> None:
        """Refuse to go on when a message on its way here was lost.

        The protocol rests on every channel being whole and in order, so there is no going on.
        """
        if self.torn > self._excused:
            raise ProtocolError(
                "every message", "arrive", f"a gap in what {self.torn} peers have sent"
            )

    def excuse(self) -> int:
        """Go on in spite of gaps, and tell how many are new; for whoever has other ways."""
        new, self._excused = self.torn - self._excused, self.torn
        return new

    def drop(self, why: str) -> None:
        """Count a message that is malformed or out of place, and say so now and then."""
        self.dropped += 1
        now = time.monotonic()
        if now - self._complained_at >= _COMPLAIN_EVERY_S:
            self._complained_at = now
            log.warning("dropped a message (%d so far): %s", self.dropped, why)

    def close(self, linger_s: float = 0.0) -> None:
        """Close all sockets; what is still to be sent has so much time."""
        self._links.close(linger_s)
