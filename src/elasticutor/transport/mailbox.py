"""A process's mailbox: its inbox, its outboxes by name, and a count of dropped messages."""

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
    """Sends to peers by name, and receives from all; for a single thread."""

    def __init__(self, links: Links, name: str, *, port: int = 0, tcp: bool = True) -> None:
        self._links = links
        self._inbox = links.inbox(name, port=port, tcp=tcp)
        self._book: dict[str, Endpoint] = {}
        self._outboxes: dict[str, Outbox] = {}
        self._resting: dict[Endpoint, tuple[Outbox, float]] = {}
        """Connections without a name, and since when; the oldest first."""
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
        if not named:
            return cls(links, name, tcp=tcp)
        made: Mailbox = pkgutil.resolve_name(named)(links, name, tcp=tcp)
        return made

    @classmethod
    def at(cls, site: Site, name: str, *, tcp: bool = True) -> Mailbox:
        """The mailbox of a process that was started at a site; it knows the driver.

        Without `tcp` only processes of its node reach it.
        """
        node = site.node if site.on_node else ""
        links = Links(node, site.keys, ipc_dir=site.sockets or None, host=site.host)
        # Runs of one topology share the node's directory of sockets, so the run is in the name. So
        # is the life: a successor must not receive what was on its way to a lost process.
        mail = cls.of(links, f"{site.run}/{name}/{site.life}", tcp=tcp)
        mail.know(DRIVER, site.driver)
        return mail

    @property
    def endpoint(self) -> Endpoint:
        """Where others reach this process."""
        return self._inbox.endpoint

    def watch(self, fd: int) -> None:
        """Also end `wait` when this file can be read."""
        self._links.watch(fd)

    def watch_too(self, other: Mailbox) -> None:
        """Also end `wait` when another mailbox of this thread has mail."""
        self._links.watch_too(other._links)

    def unwatch(self, fd: int) -> None:
        """Stop watching a file."""
        self._links.unwatch(fd)

    def know(self, who: str, endpoint: Endpoint) -> None:
        """Remember the address of a peer; a new one replaces the old one."""
        if self._book.get(who) != endpoint:
            self.forget(who)
            self._book[who] = endpoint

    def know_all(self, book: Mapping[str, Endpoint]) -> None:
        """Remember the addresses of many peers."""
        for who, endpoint in book.items():
            self.know(who, endpoint)

    def forget(self, who: str) -> None:
        """Forget a peer, and close its outbox unless another name shares it."""
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
        """Forget a name, but keep its connection for a while: another name may share its address.

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
        """Send to a known peer, behind everything that was sent to it before."""
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
        """Send one message to many known peers; it is encoded once."""
        frames = encode(message)
        self._send_kept()
        for who in whom:
            self._outbox(who).send(frames)

    @contextlib.contextmanager
    def gathering(self) -> Iterator[None]:
        """Send the first message for each peer at once, and all others as one at the block's end.

        For an event loop that takes in all that is there: the first message wakes up the peer,
        which finds the others when it looks again.
        """
        self.gather()
        try:
            yield
        finally:
            self.send_gathered()

    def gather(self) -> None:
        """Begin to gather, as `gathering` does; `send_gathered` ends it."""
        self._gathering = True

    def send_gathered(self) -> None:
        """Send what was gathered, and gather nothing more."""
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
        """Refuse to go on after a gap: the protocol relies on complete and ordered channels."""
        if self.torn > self._excused:
            got = f"a gap in what {self.torn} peers have sent"
            raise ProtocolError("every message", "arrive", got)

    def excuse(self) -> int:
        """Accept gaps and return the number of new ones, where another protocol covers them."""
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
        """Close all sockets; what is still unsent has `linger_s` seconds to leave."""
        self._links.close(linger_s)
