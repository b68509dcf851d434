"""A process's mail: its inbox, its outboxes by name, and what it could not make sense of."""

from __future__ import annotations

import contextlib
import logging
import os
import pkgutil
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from elasticutor.errors import ProtocolError, UnknownPeerError
from elasticutor.process.specs import Site
from elasticutor.transport.channels import Endpoint, Links, Outbox
from elasticutor.transport.codec import Frames, WireError, decode, encode

log = logging.getLogger(__name__)

DRIVER = "driver"
FACTORY = "ELASTICUTOR_MAILBOX"
"""The environment variable that names another maker of mailboxes, as `module:name`."""
_COMPLAIN_EVERY_S = 10.0
_MOST_GATHERED = 64
_REST_S = 30.0
_MOST_RESTING = 256


class Mailbox:
    """Sends to peers by their names, and receives from anybody; for a single thread."""

    def __init__(self, links: Links, name: str, *, port: int = 0, tcp: bool = True) -> None:
        self._links = links
        self._inbox = links.inbox(name, port=port, tcp=tcp)
        self._book: dict[str, Endpoint] = {}
        self._outboxes: dict[str, Outbox] = {}
        self._resting: dict[Endpoint, tuple[Outbox, float]] = {}
        """Connections that no name stands for now, and since when; the oldest first."""
        self.dropped = 0
        """Messages that were malformed or out of place."""
        self._excused = 0
        self._gathering = False
        self._gathered: dict[Outbox, list[Frames]] = {}
        self._complained_at = -_COMPLAIN_EVERY_S

    @classmethod
    def of(cls, links: Links, name: str, *, tcp: bool = True) -> Mailbox:
        """The mailbox of a process: the usual one, unless the environment names another maker.

        The laboratory traces processes so, and kills them.
        """
        named = os.environ.get(FACTORY)
        if named is None:
            return cls(links, name, tcp=tcp)
        made: Mailbox = pkgutil.resolve_name(named)(links, name, tcp=tcp)
        return made

    @classmethod
    def at(cls, site: Site, name: str, *, tcp: bool = True) -> Mailbox:
        """The mail of a process that was started at a site; it knows the driver.

        Without `tcp` only processes of its node reach it.
        """
        node = site.node if site.on_node else ""
        links = Links(node, site.keys, ipc_dir=site.sockets or None, host=site.host)
        # Runs share the node's directory of sockets, and two of them may be of one topology. What
        # was on its way to one that is lost must not come to its successor, either.
        mail = cls.of(links, f"{site.run}/{name}/{site.life}", tcp=tcp)
        mail.know(DRIVER, site.driver)
        return mail

    @property
    def endpoint(self) -> Endpoint:
        """Where others reach this process."""
        return self._inbox.endpoint

    def watch(self, fd: int) -> None:
        """Wake up when this file can be read, too."""
        self._links.watch(fd)

    def watch_too(self, other: Mailbox) -> None:
        """Wake up when another mailbox of this thread has mail, too."""
        self._links.watch_too(other._links)

    def unwatch(self, fd: int) -> None:
        """Do not look at this file any more."""
        self._links.unwatch(fd)

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
            self._close(outbox)

    def _close(self, outbox: Outbox) -> None:
        gathered = self._gathered.pop(outbox, None)
        if gathered:
            outbox.send_all(gathered)
        outbox.close(linger_s=1.0)

    def rest(self, who: str) -> None:
        """Forget a name, but keep the connection for a while: another name may be of its address.

        For peers that come and go by name, and stay by address.
        """
        endpoint = self._book.get(who)
        outbox = self._outboxes.get(who)
        if endpoint is None or outbox is None:
            self.forget(who)
            return
        del self._book[who], self._outboxes[who]
        now = time.monotonic()
        if outbox not in self._outboxes.values():
            self._resting.pop(endpoint, None)
            self._resting[endpoint] = outbox, now
        for other, (closing, since) in list(self._resting.items()):
            if now - since < _REST_S and len(self._resting) <= _MOST_RESTING:
                break
            del self._resting[other]
            self._close(closing)

    def send(self, who: str, message: Any) -> None:
        """Send to somebody known, behind everything that was sent there before."""
        outbox = self._outboxes.get(who)
        if outbox is None:
            outbox = self._outbox(who)
        frames = encode(message)
        if self._gathering and outbox in self._gathered:
            self._keep(outbox, frames)
        else:
            outbox.send(frames)
            if self._gathering:
                self._gathered[outbox] = []

    def _outbox(self, who: str) -> Outbox:
        outbox = self._outboxes.get(who)
        if outbox is None:
            endpoint = self._book.get(who)
            if endpoint is None:
                raise UnknownPeerError("peer", f"be one of {sorted(self._book)}", who)
            self._resting.pop(endpoint, None)  # if it is there, it is what `connect` returns
            outbox = self._outboxes[who] = self._links.connect(endpoint)
        return outbox

    def _keep(self, outbox: Outbox, frames: Frames) -> None:
        kept = self._gathered[outbox]
        kept.append(frames)
        if len(kept) >= _MOST_GATHERED:
            self._gathered[outbox] = []
            outbox.send_all(kept)

    def send_all(self, whom: Iterable[str], message: Any) -> None:
        """Send the same to many known peers; it is written once."""
        frames = encode(message)
        self._send_kept()
        for who in whom:
            self._outbox(who).send(frames)

    @contextlib.contextmanager
    def gathering(self) -> Iterator[None]:
        """Send the first message for each peer at once, and all others as one at the block's end.

        For an event loop that takes in whatever is there: a peer that was woken up by the first
        message finds the others as it looks again.
        """
        self.gather()
        try:
            yield
        finally:
            self.send_gathered()

    def gather(self) -> None:
        """Begin what `gathering` does; `send_gathered` ends it."""
        self._gathering = True

    def send_gathered(self) -> None:
        """Send what was kept, and keep nothing more."""
        self._gathering = False
        if self._gathered:
            self._send_kept()

    def _send_kept(self) -> None:
        gathered, self._gathered = self._gathered, {}
        for outbox, kept in gathered.items():
            if kept:
                outbox.send_all(kept)

    def wait(self, timeout_s: float) -> bool:
        """Wait until there is mail, a watched file can be read, or the time is up."""
        return self._links.wait(timeout_s)

    def receive(self, limit: int = 256) -> Iterator[Any]:
        """The messages that are here now."""
        inbox = self._inbox
        inbox.look()
        turn = 0
        while turn < limit:
            frames = inbox.next(turn)
            if frames is None:
                break
            turn += 1
            try:
                message = decode(frames)
            except WireError as error:
                self.drop(str(error))
                continue
            yield message
        if inbox.torn:
            self.require_all()

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
