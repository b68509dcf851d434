"""Channels between the processes of a cluster: ordered, authenticated, and never blocking.

Every process has one `Links`. Through it, it binds *inboxes*, where others reach it, and connects
an *outbox* to each peer that it sends to. Peers on one node talk through socket files in a
directory that is closed to other users; all others by TCP, encrypted, and only with the cluster's
keys (`elasticutor.runtime.security`).

What a sender and a receiver can rely on:

- All that one process sends to an inbox travels on one outbox, so it arrives in order; what is sent
  before the inbox is bound waits and arrives once it is.
- **No gaps.** ZeroMQ reconnects by itself when a connection breaks, and what was under way is then
  lost without a word, though what follows arrives. So every message carries its number, and an
  inbox takes nothing more from a sender of whom something is missing: it counts it in
  `Inbox.torn`, and the owner treats that peer as lost. The same keeps an inbox that was bound anew
  from the rest of what was meant for its predecessor.
- Nothing here bounds what is under way: credits do (`elasticutor.core.flow`).

A `Links`, its inboxes and its outboxes belong to one thread of one process.
"""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import secrets
import socket
import struct
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self, TypeAlias

import zmq

from elasticutor.errors import BadValueError, ProtocolError
from elasticutor.runtime.security import ClusterKeys, Doorkeeper, require_private_directory

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["ClusterKeys", "Endpoint", "Inbox", "Links", "Outbox", "advertised_host"]

logger = logging.getLogger(__name__)

Socket: TypeAlias = zmq.Socket[bytes]

#: Frames from this size on are neither copied when they are sent nor when they are received. Below,
#: a copy is cheaper than the bookkeeping that spares it: by measurement they meet at 16 to 32 KB.
LARGE_BYTES: Final = 32 * 1024

_MAX_BYTES: Final = 256 * 1024 * 1024
_IPC_PATH_BYTES: Final = 103 if sys.platform == "darwin" else 107  # sun_path, less its final NUL
_RECONNECT_MS: Final = (50, 1000)  # first and longest pause
_HANDSHAKE_MS: Final = 10_000
_KEEPALIVE_S: Final = (
    30,
    10,
    3,
)  # idle, between probes, probes until the connection counts as lost
_MAX_SOCKETS: Final = 16_384  # libzmq's own default, 1023, is fewer than a large topology's peers
_DISCARD_PORT: Final = 9  # any port would do: nothing is sent

#: What precedes every message: which outbox it comes from, and its number there, from 1.
_TICKET: Final = struct.Struct(">8sQ")


_forks = 0
"""How often this process's ancestors have forked on the way to it; to compare it costs nothing."""


def _forked() -> None:
    global _forks
    _forks += 1


os.register_at_fork(after_in_child=_forked)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where an inbox is reached: a plain value, to be sent to whoever shall send there."""

    node: str
    #: ``ipc://`` address for peers on the same node; empty where there is none.
    ipc: str
    #: ``tcp://`` address for all others; empty where there is none.
    tcp: str


def advertised_host(towards: tuple[str, int]) -> str:
    """The address of this machine on the way to `towards`: the one under which peers find it.

    A machine has several addresses and its name often stands for the wrong one. The operating
    system knows which it would use; asking sends nothing.

    Example:
        >>> advertised_host(("127.0.0.1", 7077))
        '127.0.0.1'
    """
    host, port = towards
    problem: OSError | None = None
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect((host, port or _DISCARD_PORT))
                return str(probe.getsockname()[0])
        except OSError as error:
            problem = problem or error
    raise BadValueError(
        "the driver's address", "be one that this machine has a way to", towards, str(problem)
    )


class Links:
    """One process's channels to the others of its cluster.

    Args:
        node: The node that this process is on.
        keys: The cluster's keys.
        ipc_dir: Directory for the sockets of this node, of this user's own and with mode 0700;
            None for a process that shares no node with others, as the driver.
        host: Address or name under which peers on other nodes reach this process. Inboxes are bound
            to it alone where it is this machine's own, and to all interfaces where it is not
            (address translation, a Kubernetes service): then the keys alone guard them.

    Raises:
        BadValueError: if the directory is open to others.
    """

    def __init__(
        self, node: str, keys: ClusterKeys, *, ipc_dir: str | None, host: str = "127.0.0.1"
    ) -> None:
        if ipc_dir is not None:
            ipc_dir = str(Path(ipc_dir).absolute())
            require_private_directory(ipc_dir)
        self.node = node
        self._keys = keys
        self._ipc_dir = ipc_dir
        self._host = host
        self._pid = os.getpid()
        self._forks = _forks
        self._closed = False
        self._inboxes: dict[str, Inbox] = {}
        self._outboxes: dict[Endpoint, Outbox] = {}
        self._doorkeeper: Doorkeeper | None = None
        # Not the context that pyzmq shares: a context has one doorkeeper, and this one is ours.
        self._context: zmq.Context[Socket] = zmq.Context()
        self._context.set(zmq.MAX_SOCKETS, _MAX_SOCKETS)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def refused(self) -> int:
        """How many connections were turned away because they lack the cluster's keys."""
        return self._doorkeeper.refused if self._doorkeeper else 0

    def inbox(
        self, name: str, *, max_bytes: int = _MAX_BYTES, port: int = 0, tcp: bool = True
    ) -> Inbox:
        """Bind an inbox.

        Args:
            name: Tells the inboxes of a node apart: no two live ones may share a name.
            max_bytes: Longest frame taken. Who sends a longer one is cut off.
            port: TCP port; 0 takes any that is free.
            tcp: Whether peers on other nodes shall reach it.

        Raises:
            BadValueError: if there is nothing to bind, or it cannot be bound.
        """
        self.require_usable()
        if name in self._inboxes or not (tcp or self._ipc_dir):
            raise BadValueError(
                f"inbox {name!r}",
                "have a name of its own, and a directory or a TCP port",
                "a second one of this name" if name in self._inboxes else "neither",
            )
        bound: list[Socket] = []
        ipc = ""
        try:
            ipc = self._bind_ipc(name, max_bytes, bound) if self._ipc_dir else ""
            address = self._bind_tcp(port, max_bytes, bound) if tcp else ""
        except BaseException:
            for half in bound:
                half.close(0)
            _remove(ipc)
            raise
        made = Inbox(self, name, Endpoint(self.node, ipc, address), tuple(bound))
        self._inboxes[name] = made
        return made

    def connect(self, to: Endpoint) -> Outbox:
        """The outbox to `to`: the same one every time, for as long as it is open.

        It does not matter whether the inbox is bound already. On the same node the connection is a
        socket file, otherwise TCP.

        Raises:
            BadValueError: if there is no way to reach it, or its directory is open to others.
        """
        self.require_usable()
        standing = self._outboxes.get(to)
        if standing is not None:
            return standing
        local = bool(to.ipc and self._ipc_dir and to.node == self.node)
        if not local and not to.tcp:
            raise BadValueError(
                f"peer of node {self.node!r}",
                "have a TCP address, or be on the same node with a directory for sockets",
                to,
            )
        if local:
            require_private_directory(str(Path(to.ipc.removeprefix("ipc://")).parent))
        made = Outbox(self, to, self._connected(to.ipc if local else to.tcp, secure=not local))
        self._outboxes[to] = made
        return made

    def close(self, linger_s: float = 0.0) -> None:
        """Close everything; what is still unsent has `linger_s` seconds to leave.

        Closing twice is once, and in a process forked off this one it does nothing: the channels
        are the parent's.
        """
        if self._closed or os.getpid() != self._pid:
            return
        for outbox in list(self._outboxes.values()):
            outbox.close(linger_s)
        for inbox in list(self._inboxes.values()):
            inbox.close()
        self._closed = True
        if self._doorkeeper is not None:
            self._doorkeeper.stop()
        self._context.term()

    def require_usable(self) -> None:
        """Refuse use after `close`, and use in a process forked off the one that made this.

        Raises:
            ProtocolError: in either case. After a fork both processes would write to the same
                connections, and the threads that carry them exist in the parent only.
        """
        if _forks != self._forks:
            raise ProtocolError(
                "links",
                f"be used in the process that made them, {self._pid}",
                os.getpid(),
                "make a Links of its own in every process, after the fork",
            )
        if self._closed:
            raise ProtocolError("links", "be open", "closed")

    def forget(self, closed: Inbox | Outbox) -> None:
        """Take a closed inbox or outbox off the books."""
        if isinstance(closed, Inbox):
            self._inboxes.pop(closed.name, None)
        else:
            self._outboxes.pop(closed.to, None)

    def _socket(self, kind: int) -> Socket:
        made = self._context.socket(kind)
        made.linger = 0
        made.set_hwm(0)  # credits bound what is under way; a full queue would block or drop
        made.setsockopt(zmq.HANDSHAKE_IVL, _HANDSHAKE_MS)
        idle, interval, probes = _KEEPALIVE_S
        made.setsockopt(zmq.TCP_KEEPALIVE, 1)
        made.setsockopt(zmq.TCP_KEEPALIVE_IDLE, idle)
        made.setsockopt(zmq.TCP_KEEPALIVE_INTVL, interval)
        made.setsockopt(zmq.TCP_KEEPALIVE_CNT, probes)
        return made

    def _connected(self, address: str, *, secure: bool) -> Socket:
        made = self._socket(zmq.PUSH)
        made.copy_threshold = LARGE_BYTES
        first, longest = _RECONNECT_MS
        made.setsockopt(zmq.RECONNECT_IVL, first)
        made.setsockopt(zmq.RECONNECT_IVL_MAX, longest)
        if secure:
            self._keys.visit(made)
            made.ipv6 = address.startswith("tcp://[")
        try:
            made.connect(address)
        except zmq.ZMQError as error:
            made.close(0)
            raise BadValueError(
                "a peer's address", "be one to connect to", address, str(error)
            ) from error
        return made

    def _pull(self, max_bytes: int, bound: list[Socket]) -> Socket:
        made = self._socket(zmq.PULL)
        bound.append(made)
        made.setsockopt(zmq.MAXMSGSIZE, max_bytes)
        return made

    def _bind_ipc(self, name: str, max_bytes: int, bound: list[Socket]) -> str:
        assert self._ipc_dir is not None
        # The digest is short whatever the name, and free of characters that mean something.
        path = f"{self._ipc_dir}/{hashlib.blake2b(name.encode(), digest_size=5).hexdigest()}"
        if len(os.fsencode(path)) > _IPC_PATH_BYTES:
            raise BadValueError(
                "path of a socket",
                f"have at most {_IPC_PATH_BYTES} bytes",
                path,
                "give a directory with a shorter path, for instance below /tmp",
            )
        if _answers(path):  # libzmq would take the path over without a word
            raise BadValueError(f"inbox {name!r}", "be the only one of its name here", path)
        self._pull(max_bytes, bound).bind(f"ipc://{path}")
        return f"ipc://{path}"

    def _bind_tcp(self, port: int, max_bytes: int, bound: list[Socket]) -> str:
        if self._doorkeeper is None:
            self._doorkeeper = Doorkeeper(self._context, self._keys)
        made = self._pull(max_bytes, bound)
        self._keys.serve(made)
        self._doorkeeper.watch(made)
        address = _resolved(self._host)
        made.ipv6 = ":" in address
        try:
            try:
                made.bind(_tcp_address(address, port or "*"))
            except zmq.ZMQError as error:
                if error.errno not in (errno.EADDRNOTAVAIL, errno.ENODEV):
                    raise
                made.bind(_tcp_address("::" if made.ipv6 else "0.0.0.0", port or "*"))  # noqa: S104
        except zmq.ZMQError as error:
            raise BadValueError(
                f"TCP port {port} of {self._host!r}", "be free to bind", str(error)
            ) from error
        taken = made.getsockopt_string(zmq.LAST_ENDPOINT).rpartition(":")[2]
        # A name that has only IPv6 addresses is given as one: who connects must know beforehand.
        return _tcp_address(address if made.ipv6 else self._host, taken)


# As plain numbers: to combine flags costs more than a small frame does.
_LAST = int(zmq.DONTWAIT)
_AHEAD = int(zmq.DONTWAIT | zmq.SNDMORE)


class Inbox:
    """Where a process is reached. Made by `Links.inbox`.

    The owner registers `sockets` in its poller and calls `receive` when one is readable.
    """

    def __init__(
        self, links: Links, name: str, endpoint: Endpoint, sockets: tuple[Socket, ...]
    ) -> None:
        self.name = name
        self.endpoint = endpoint
        self.sockets = sockets
        #: Senders of whom something is missing, and from whom nothing is taken any more.
        self.torn = 0
        self._links = links
        self._numbers: dict[bytes, int] = {}  # last number taken by outbox; -1 once it is torn
        self._first = 0  # the socket that has the first turn next time
        self._closed = False

    def receive(self, limit: int = 256) -> Iterator[list[zmq.Frame | bytes]]:
        """What has arrived by now, at most `limit` messages, one from each socket in turn.

        Never waits. Every message is whole; its frames are `bytes`, or from `LARGE_BYTES` on
        `zmq.Frame`, whose ``buffer`` is the memory it arrived in.
        """
        self._links.require_usable()
        if self._closed:
            raise ProtocolError(f"inbox {self.name!r}", "be open", "closed")
        waiting = deque(self.sockets)
        waiting.rotate(-self._first)
        self._first = (self._first + 1) % len(self.sockets)
        for _ in range(limit):
            message = _next_message(waiting)
            if message is None:
                return
            if self._continues(message):
                yield message

    def close(self) -> None:
        """Unbind, and free the name. What has arrived and was not received is lost.

        Closing twice is once.
        """
        if self._closed or os.getpid() != self._links._pid:
            return
        self._closed = True
        for bound in self.sockets:
            bound.close(0)
        self._links.forget(self)
        _remove(self.endpoint.ipc)

    def _continues(self, message: list[zmq.Frame | bytes]) -> bool:
        """Take the ticket off `message`; whether it is the next one of its sender."""
        first = message[0]
        if isinstance(first, zmq.Frame):
            first = first.bytes
        if len(first) < _TICKET.size:
            return self._tear(b"", "a message that no outbox sent")
        outbox, number = _TICKET.unpack_from(first)
        message[0] = first[_TICKET.size :]
        last = self._numbers.get(outbox, 0)
        if number == last + 1:
            self._numbers[outbox] = number
            return True
        if last == -1:
            return False
        return self._tear(outbox, f"message {number} after message {last}")

    def _tear(self, outbox: bytes, what: str) -> bool:
        self._numbers[outbox] = -1
        self.torn += 1
        logger.error("inbox %r takes nothing more from %s: got %s", self.name, outbox.hex(), what)
        return False


class Outbox:
    """The way to one peer's inbox. Made by `Links.connect`."""

    def __init__(self, links: Links, to: Endpoint, connected: Socket) -> None:
        self.to = to
        self._links = links
        self._socket = connected
        self._name = secrets.token_bytes(8)
        self._sent = 0
        self._closed = False

    def send(self, frames: Sequence[Buffer | zmq.Frame]) -> None:
        """Send one message. Never waits: it is on its way, or queued in this process.

        Frames from `LARGE_BYTES` on are not copied, so their memory must not change any more. A
        message is sent whole or, when this raises, not at all.

        Raises:
            BadValueError: if there is no frame, or one that is no contiguous buffer.
            ProtocolError: if the outbox is closed, or its peer turned it away.
        """
        self._links.require_usable()
        if self._closed:
            raise ProtocolError("outbox", "be open", "closed", f"it went to {self.to}")
        _require_buffers(frames)
        push = self._socket.send
        last = len(frames) - 1
        # The ticket and the first frame, a header, are one: every frame costs some microseconds.
        ticket = _TICKET.pack(self._name, self._sent + 1) + _joined_bytes(frames[0])
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

    def close(self, linger_s: float = 0.0) -> None:
        """Close; what is still unsent has `linger_s` seconds to leave, in the background.

        `Links.close` waits for that. Closing twice is once.
        """
        if self._closed or os.getpid() != self._links._pid:
            return
        self._closed = True
        self._socket.close(round(linger_s * 1000))
        self._links.forget(self)


def _next_message(waiting: deque[Socket]) -> list[zmq.Frame | bytes] | None:
    """The next message of the socket whose turn it is; sockets without one leave the round."""
    while waiting:
        try:
            frame = waiting[0].recv(_LAST, copy=False)
        except zmq.Again:
            waiting.popleft()
            continue
        # Frame by frame: `recv_multipart` asks the socket after each whether there is another one,
        # which takes longer than all the rest for small frames.
        message: list[zmq.Frame | bytes] = []
        while True:
            message.append(frame if len(frame) >= LARGE_BYTES else frame.bytes)
            if not frame.more:
                break
            frame = waiting[0].recv(_LAST, copy=False)  # it is there: messages come whole
        waiting.rotate(-1)
        return message
    return None


def _joined_bytes(frame: Buffer | zmq.Frame) -> bytes:
    return frame.bytes if isinstance(frame, zmq.Frame) else bytes(frame)


def _require_buffers(frames: Sequence[object]) -> None:
    """Refuse frames that libzmq would stumble over half-way through a message."""
    if not frames:
        raise BadValueError("a message", "have at least one frame", frames)
    for frame in frames:
        if isinstance(frame, bytes | zmq.Frame):
            continue
        try:
            fits = memoryview(frame).c_contiguous  # type: ignore[arg-type]
        except TypeError:
            fits = False
        if not fits:
            raise BadValueError("a frame", "be a contiguous buffer of bytes", type(frame).__name__)


def _remove(ipc: str) -> None:
    """Remove the file of a socket that was closed: libzmq leaves it."""
    if ipc:
        Path(ipc.removeprefix("ipc://")).unlink(missing_ok=True)


def _answers(path: str) -> bool:
    """Whether a live process listens at this socket file: one left by a dead process is free."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(path)
        except TimeoutError:
            return True
        except OSError:
            return False
        return True


def _resolved(host: str) -> str:
    """The address that `host` stands for, IPv4 before IPv6: libzmq binds to addresses only."""
    for family in (socket.AF_INET, socket.AF_INET6):
        with suppress(OSError):
            return str(socket.getaddrinfo(host, None, family, socket.SOCK_STREAM)[0][4][0])
    raise BadValueError(
        "host of the inboxes", "be an address or a known name", host, "see advertised_host()"
    )


def _tcp_address(host: str, port: int | str) -> str:
    """A ``tcp://`` address, with IPv6 in brackets.

    Example:
        >>> _tcp_address("10.0.0.7", 4000), _tcp_address("::1", 4000)
        ('tcp://10.0.0.7:4000', 'tcp://[::1]:4000')
    """
    return f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"
