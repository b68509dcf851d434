"""Where messages arrive and leave: inboxes and outboxes, near by Unix sockets and far by ZeroMQ."""

from __future__ import annotations

import logging
import os
import secrets
import struct
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import zmq

from elasticutor.errors import BadValueError, ProtocolError
from elasticutor.transport.streams import Frames, StreamListener, StreamReceiver, StreamSender

if TYPE_CHECKING:
    from elasticutor.transport.channels import Links

logger = logging.getLogger(__name__)

Socket: TypeAlias = zmq.Socket[bytes]

#: Frames from this size on are neither copied when ZeroMQ sends them nor when it receives them.
#: Below, a copy is cheaper than the bookkeeping that spares it: they meet at 16 to 32 KB.
LARGE_BYTES: Final = 32 * 1024

#: What precedes all that is sent by TCP at once: which outbox it comes from, its number there, from
#: 1, and how many messages it is; then for each of them how many frames it has.
_TICKET: Final = struct.Struct("<8sQI")
_MOST_MESSAGES: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where an inbox is reached: a plain value that travels to its peers."""

    #: The node of the process; empty for one that is on no node.
    node: str
    #: ``ipc://`` address for peers on the same machine; empty where there is none.
    ipc: str
    #: ``tcp://`` address for all others; empty where there is none.
    tcp: str


# As plain numbers: to combine flags costs more than a small frame does.
_LAST = int(zmq.DONTWAIT)
_AHEAD = int(zmq.DONTWAIT | zmq.SNDMORE)


class Inbox:
    """Where a process is reached. Made by `Links.inbox`.

    The owner calls `Links.wait`, and `look` and `next` when something may have come.
    """

    def __init__(
        self,
        links: Links,
        name: str,
        endpoint: Endpoint,
        listener: StreamListener | None,
        pull: Socket | None,
        max_bytes: int,
    ) -> None:
        self.name = name
        self.endpoint = endpoint
        #: Senders of whom something is missing, and from whom nothing is taken any more.
        self.torn = 0
        self._links = links
        self._max_bytes = max_bytes
        self._listener = listener
        self._pull = pull
        self._pull_ready = False
        self._near: deque[list[Any]] = deque()  # arrived at the socket file
        self._far: deque[list[Any]] = deque()  # arrived by TCP
        self._connections: dict[int, StreamReceiver] = {}
        self._numbers: dict[bytes, int] = {}  # last number taken by outbox; -1 once it is torn
        self._closed = False
        if listener is not None:
            links.poller.watch(listener.fileno(), self._accept)
        if pull is not None:
            links.poller.watch(_number(pull, zmq.FD), self._pull_has_news)

    @property
    def holds_messages(self) -> bool:
        """Whether messages are here that `next` has not given out."""
        return bool(self._near or self._far or self._pull_ready)

    def look(self) -> None:
        """Take in what has arrived, for `next` to give out."""
        if self._closed:
            self._links.require_usable()
            raise ProtocolError(f"inbox {self.name!r}", "be open", "closed")
        self._links.look()

    def next(self, turn: int) -> list[Any] | None:
        """The next message that is here, at even turns from near if possible; None if none is.

        It is whole; its frames are bytes or memory views.
        """
        near, far = self._near, self._far
        if self._pull_ready and not far:
            self._pull_some()
        box = (far or near) if turn & 1 else (near or far)
        return box.popleft() if box else None

    def close(self) -> None:
        """Unbind, and free the name; what has arrived and was not received is lost. Idempotent."""
        if self._closed or os.getpid() != self._links._pid:
            return
        self._closed = True
        for receiver in list(self._connections.values()):
            self._drop(receiver)
        if self._listener is not None:
            self._links.poller.unwatch(self._listener.fileno())
            self._listener.close()
        if self._pull is not None:
            self._links.poller.unwatch(_number(self._pull, zmq.FD))
            self._pull.close(0)
        self._links.forget(self)

    # Near

    def _accept(self) -> bool:
        assert self._listener is not None
        for receiver in self._listener.accept(self._max_bytes):
            self._connections[receiver.fileno()] = receiver
            self._links.poller.watch(receiver.fileno(), partial(self._read, receiver))
        return False

    def _read(self, receiver: StreamReceiver) -> bool:
        try:
            goes_on = receiver.read(self._links.scratch, self._near)
        except ValueError as error:
            self.torn += 1
            logger.error("inbox %r takes nothing more from a sender: got %s", self.name, error)
            goes_on = False
        if not goes_on:
            self._drop(receiver)
        return bool(self._near) or not goes_on

    def _drop(self, receiver: StreamReceiver) -> None:
        self._connections.pop(receiver.fileno(), None)
        self._links.poller.unwatch(receiver.fileno())
        receiver.close()

    # Far

    def _pull_has_news(self) -> bool:
        assert self._pull is not None
        # libzmq reports news once; asking for events acknowledges it.
        if _number(self._pull, zmq.EVENTS) & zmq.POLLIN:
            self._pull_ready = True
        return self._pull_ready

    def _pull_some(self) -> None:
        """Take one message, or several that were sent at once, off ZeroMQ."""
        assert self._pull is not None
        frames: list[Any] = []
        try:
            frame = self._pull.recv(_LAST, copy=False)
        except zmq.Again:
            self._pull_ready = False
            return
        # Frame by frame: `recv_multipart` asks the socket after each whether there is another one,
        # which takes longer than all the rest for small frames.
        while True:
            frames.append(frame.buffer if len(frame) >= LARGE_BYTES else frame.bytes)
            if not frame.more:
                break
            frame = self._pull.recv(_LAST, copy=False)  # it is there: messages come whole
        self._far.extend(self._unpacked(frames))

    def _unpacked(self, frames: list[Any]) -> list[list[Any]]:
        """The messages of what was sent at once, if it is the next of its sender."""
        first = bytes(frames[0])
        if len(first) < _TICKET.size:
            return self._tear(b"", "a message that no outbox sent")
        outbox, number, messages = _TICKET.unpack_from(first)
        last = self._numbers.get(outbox, 0)
        if last == -1:
            return []
        if number != last + 1:
            return self._tear(outbox, f"message {number} after message {last}")
        end = _TICKET.size + 4 * messages
        if not 0 < messages <= _MOST_MESSAGES or len(first) < end:
            return self._tear(outbox, f"{messages} messages in {len(first)} bytes")
        counts = struct.unpack_from(f"<{messages}I", first, _TICKET.size)
        if sum(counts) != len(frames) or 0 in counts:
            return self._tear(outbox, f"{len(frames)} frames, where {sum(counts)} were announced")
        self._numbers[outbox] = number
        frames[0] = first[end:]
        return [frames[a:b] for a, b in pairwise(accumulate(counts, initial=0))]

    def _tear(self, outbox: bytes, what: str) -> list[list[Any]]:
        self._numbers[outbox] = -1
        self.torn += 1
        logger.error("inbox %r takes nothing more from %s: got %s", self.name, outbox.hex(), what)
        return []


class Outbox(ABC):
    """The way to one peer's inbox. Made by `Links.connect`."""

    def __init__(self, links: Links, to: Endpoint) -> None:
        self.to = to
        self._links = links
        self._closed = False

    def send(self, frames: Frames) -> None:
        """Send one message. Never waits: it is on its way, or queued in this process.

        The memory of large frames must not change any more. A message is sent whole or, when this
        raises, not at all.
        """
        self.send_all([frames])

    def send_all(self, messages: Sequence[Frames]) -> None:
        """Send several messages in order, at the cost of one."""
        self._links.require_usable()
        if self._closed:
            raise ProtocolError("outbox", "be open", "closed", f"it went to {self.to}")
        for frames in messages:
            _require_buffers(frames)
        self._send_all(messages)

    @abstractmethod
    def _send_all(self, messages: Sequence[Frames]) -> None: ...

    def close(self, linger_s: float = 0.0) -> None:
        """Close; what is still unsent has `linger_s` seconds to leave. Idempotent."""
        if self._closed or os.getpid() != self._links._pid:
            return
        self._closed = True
        self._close(linger_s)
        self._links.forget(self)

    @abstractmethod
    def _close(self, linger_s: float) -> None: ...


class StreamOutbox(Outbox):
    """The way to a process of this machine."""

    def __init__(self, links: Links, to: Endpoint, path: str) -> None:
        super().__init__(links, to)
        self._watched = False
        self._sender = StreamSender(path, self._blocked)

    def try_to_connect(self) -> bool:
        """Connect, if the peer is there by now; returns whether that is settled."""
        return self._sender.try_to_connect() or self._sender.broken

    def send(self, frames: Frames) -> None:
        """Send one message; as `Outbox.send`, with fewer steps for one of a single frame."""
        single = len(frames) == 1 and type(frames[0]) is bytes
        if single and self._links.usable and not self._closed:
            self._sender.send_single(frames[0])
        else:
            self.send_all([frames])

    def _send_all(self, messages: Sequence[Frames]) -> None:
        self._sender.send(messages)

    def _blocked(self, blocked: bool) -> None:
        if blocked != self._watched:
            self._watched = blocked
            if blocked:
                self._links.poller.watch(self._sender.fileno(), self._writable, writing=True)
            else:
                self._links.poller.unwatch(self._sender.fileno())

    def _writable(self) -> bool:
        self._sender.writable()
        if not self._sender.waiting:
            self._blocked(False)
        return False

    def _close(self, linger_s: float) -> None:
        self._blocked(False)
        if linger_s and self._sender.waiting:
            self._links.part(self._sender, time.monotonic() + linger_s)
        else:
            self._sender.close()


class RemoteOutbox(Outbox):
    """The way to a process of another machine, by ZeroMQ."""

    def __init__(self, links: Links, to: Endpoint, connected: Socket) -> None:
        super().__init__(links, to)
        self._socket = connected
        self._name = secrets.token_bytes(8)
        self._sent = 0

    def _send_all(self, messages: Sequence[Frames]) -> None:
        push = self._socket.send
        frames = [frame for message in messages for frame in message]
        last = len(frames) - 1
        # The ticket and the first frame, a header, are one: every frame costs some microseconds.
        ticket = _TICKET.pack(self._name, self._sent + 1, len(messages))
        ticket += struct.pack(f"<{len(messages)}I", *map(len, messages)) + bytes(frames[0])
        try:
            push(ticket, _AHEAD if last else _LAST, copy=False)
        except zmq.Again:
            # There is no limit to run into, so the connection was given up: keys were refused.
            raise ProtocolError(
                "outbox", "be let in by its peer", self.to, "are the cluster's keys the same?"
            ) from None
        self._sent += 1
        for at in range(1, last + 1):
            push(frames[at], _LAST if at == last else _AHEAD, copy=False)

    def _close(self, linger_s: float) -> None:
        self._socket.close(round(linger_s * 1000))


def _number(of: Socket, option: int) -> int:
    value = of.getsockopt(option)
    assert isinstance(value, int)
    return value


def _require_buffers(frames: Sequence[object]) -> None:
    """Refuse frames that could not be sent, before a part of their message is."""
    if not frames:
        raise BadValueError("a message", "have at least one frame", frames)
    for frame in frames:
        if type(frame) is bytes:
            continue
        try:
            fits = memoryview(frame).c_contiguous  # type: ignore[arg-type]
        except TypeError:
            fits = False
        if not fits:
            raise BadValueError("a frame", "be a contiguous buffer of bytes", type(frame).__name__)
