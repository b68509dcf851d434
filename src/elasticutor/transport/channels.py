"""Channels between the processes of a cluster: ordered, authenticated, and never blocking.

Every process has one `Links`. Through it, it binds an *inbox*, where others reach it, and connects
an *outbox* to each peer that it sends to. Processes of one machine meet at socket files in a
directory that is closed to other users (`elasticutor.transport.streams`); all others by TCP through
ZeroMQ, encrypted, and only with the cluster's keys (`elasticutor.transport.security`). A process
that never meets another machine's has no ZeroMQ context and no thread but its own.

What a sender and a receiver can rely on:

- All that one process sends to an inbox travels on one outbox, so it arrives in order; what is sent
  before the inbox is bound waits and arrives once it is.
- **No gaps.** A Unix connection that breaks stays broken. ZeroMQ reconnects by itself, and what was
  under way is then lost without a word, though what follows arrives. So over TCP every message
  carries its number, and an inbox takes nothing more from a sender of whom something is missing: it
  counts it in `Inbox.torn`, and the owner treats that peer as lost.
- Nothing here bounds what is under way: credits do (`elasticutor.core.executor.credits`).

A `Links`, its inboxes and its outboxes belong to one thread of one process.
"""

from __future__ import annotations

import errno
import hashlib
import os
import socket
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final
from weakref import WeakSet

import zmq

from elasticutor.errors import BadValueError, ProtocolError
from elasticutor.transport.boxes import (
    LARGE_BYTES,
    Endpoint,
    Inbox,
    Outbox,
    RemoteOutbox,
    Socket,
    StreamOutbox,
)
from elasticutor.transport.poller import Poller
from elasticutor.transport.security import ClusterKeys, Doorkeeper, require_private_directory
from elasticutor.transport.streams import (
    LONGEST_PATH,
    StreamListener,
    StreamSender,
    answers,
    scratch,
)

__all__ = [
    "LARGE_BYTES",
    "ClusterKeys",
    "Endpoint",
    "Inbox",
    "Links",
    "Outbox",
    "advertised_host",
]

_MAX_BYTES: Final = 256 * 1024 * 1024
_RECONNECT_MS: Final = (50, 1000)  # first and longest pause
_RETRY_S: Final = 0.01
_HANDSHAKE_MS: Final = 10_000
_KEEPALIVE_S: Final = (30, 10, 3)  # idle, between probes, and how many until it counts as lost
_MAX_SOCKETS: Final = 16_384  # libzmq's own default, 1023, is fewer than a large topology's peers
_DISCARD_PORT: Final = 9  # any port would do: nothing is sent

_made: WeakSet[Links] = WeakSet()
"""Those of this process and of its ancestors."""


def _forked() -> None:
    for links in _made:
        links.usable = False


os.register_at_fork(after_in_child=_forked)


def advertised_host(towards: tuple[str, int]) -> str:
    """The address of this machine on the way to `towards`: the one under which peers find it.

    A machine has several addresses and its name often stands for the wrong one. The operating
    system knows which it would use; asking sends nothing.
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
        node: The node that this process is on; empty for none. Processes of one node meet at their
            socket files; one that is on no node meets all others of its machine there.
        keys: The cluster's keys.
        ipc_dir: Directory for the sockets of this process, of this user's own and with mode 0700;
            None for a process without, as the driver.
        host: Address or name under which peers on other machines reach this process. Inboxes are
            bound to it alone where it is this machine's own, and to all interfaces where it is not
            (address translation, a Kubernetes service): then the keys alone guard them.
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
        #: Whether it is open, and of this very process: looked at before every use.
        self.usable = True
        self._closed = False
        self._inboxes: dict[str, Inbox] = {}
        self._outboxes: dict[Endpoint, Outbox] = {}
        self._unconnected: set[StreamOutbox] = set()
        self._parting: dict[StreamSender, float] = {}  # closed, with something to send until then
        self._doorkeeper: Doorkeeper | None = None
        self._made_context: zmq.Context[Socket] | None = None
        self._poller = Poller()
        self._scratch: memoryview | None = None
        self._children: list[Links] = []
        self._polled = False
        _made.add(self)

    @property
    def refused(self) -> int:
        """How many connections were turned away because they lack the cluster's keys."""
        return self._doorkeeper.refused if self._doorkeeper else 0

    # Waiting

    def wait(self, timeout_s: float) -> bool:
        """Wait until a message is here, a watched file can be read, or the time is up.

        Sends on what the system did not take at once. Returns whether anything has happened.
        """
        self._polled = True
        if self._parting:
            self._let_go()
        if self._holds_messages():
            self._poller.poll(0.0)
            return True
        left = max(0.0, timeout_s)
        until = 0.0 if left == 0.0 else time.monotonic() + left
        while True:
            if self._unconnected:
                self._connect_late()
            if self._poller.poll(min(_RETRY_S, left) if self._unconnected else left):
                return True
            if left:
                left = until - time.monotonic()
            if left <= 0.0:
                return False

    def look(self) -> None:
        """Take in what has come, unless `wait` has just done so."""
        if not self.usable:
            self.require_usable()
        if not self._polled:
            self.wait(0.0)
        self._polled = False

    def watch(self, fd: int) -> None:
        """Let `wait` end when this file can be read, too."""
        self._poller.watch(fd, _wakes)

    def watch_too(self, other: Links) -> None:
        """Let `wait` end when something comes in through other links of this thread, too."""
        self._children.append(other)
        self._poller.watch(other._poller.fileno(), _wakes)

    def unwatch(self, fd: int) -> None:
        """Do not look at this file any more."""
        self._poller.unwatch(fd)

    def _holds_messages(self) -> bool:
        for inbox in self._inboxes.values():
            if inbox.holds_messages:
                return True
        return bool(self._children) and any(c._holds_messages() for c in self._children)

    def _connect_late(self) -> None:
        for outbox in list(self._unconnected):
            if outbox.try_to_connect():
                self._unconnected.discard(outbox)

    def part(self, sender: StreamSender, until: float) -> None:
        """Let a connection that is closed send what it still has, but no longer than until then."""
        self._parting[sender] = until
        self._poller.watch(sender.fileno(), partial(self._write_last, sender), writing=True)

    def _write_last(self, sender: StreamSender) -> bool:
        sender.writable()
        if not sender.waiting:
            self._let_go()
        return False

    def _let_go(self) -> None:
        now = time.monotonic()
        for sender, until in list(self._parting.items()):
            if not sender.waiting or now >= until:
                del self._parting[sender]
                self._poller.unwatch(sender.fileno())
                sender.close()

    # Binding and connecting

    def inbox(
        self, name: str, *, max_bytes: int = _MAX_BYTES, port: int = 0, tcp: bool = True
    ) -> Inbox:
        """Bind an inbox.

        Args:
            name: Tells the inboxes of a directory apart: no two live ones may share a name.
            max_bytes: Longest message taken from a socket file, and longest frame by TCP. A
                sender of a longer one is cut off.
            port: TCP port; 0 takes any that is free.
            tcp: Whether peers on other machines shall reach it.
        """
        self.require_usable()
        if name in self._inboxes or not (tcp or self._ipc_dir):
            raise BadValueError(
                f"inbox {name!r}",
                "have a name of its own, and a directory or a TCP port",
                "a second one of this name" if name in self._inboxes else "neither",
            )
        listener = StreamListener(self._socket_path(name)) if self._ipc_dir else None
        pull, address = None, ""
        try:
            if tcp:
                pull, address = self._bind_tcp(port, max_bytes)
        except BaseException:
            if listener is not None:
                listener.close()
            raise
        ipc = f"ipc://{listener.path}" if listener is not None else ""
        made = Inbox(self, name, Endpoint(self.node, ipc, address), listener, pull, max_bytes)
        self._inboxes[name] = made
        return made

    def connect(self, to: Endpoint) -> Outbox:
        """The outbox to `to`: the same one every time, for as long as it is open.

        It does not matter whether the inbox is bound already. On the same node the connection is a
        socket file, otherwise TCP. A process on no node and one on any node of the same machine
        meet at the socket file, too.
        """
        self.require_usable()
        standing = self._outboxes.get(to)
        if standing is not None:
            return standing
        path = to.ipc.removeprefix("ipc://")
        local = self._meets_at_file(to)
        if not local and not to.tcp:
            raise BadValueError(
                f"peer of node {self.node!r}",
                "have a TCP address, or be on the same node with a directory for sockets",
                to,
            )
        made: Outbox
        if local:
            require_private_directory(str(Path(path).parent))
            made = StreamOutbox(self, to, path)
            if not made.try_to_connect():
                self._unconnected.add(made)
        else:
            made = RemoteOutbox(self, to, self._connected(to.tcp))
        self._outboxes[to] = made
        return made

    def _meets_at_file(self, to: Endpoint) -> bool:
        if not to.ipc or not self._ipc_dir:
            return False
        if to.node == self.node:
            return not to.tcp or Path(to.ipc.removeprefix("ipc://")).parent.exists()
        # On another machine there is no such file.
        return not (to.node and self.node) and answers(to.ipc.removeprefix("ipc://"))

    def close(self, linger_s: float = 0.0) -> None:
        """Close everything; what is still unsent has `linger_s` seconds to leave.

        Closing twice is once, and in a process forked off this one it does nothing: the channels
        are the parent's.
        """
        if self._closed or os.getpid() != self._pid:
            return
        until = time.monotonic() + linger_s
        for outbox in list(self._outboxes.values()):
            outbox.close(max(0.0, until - time.monotonic()))
        for inbox in list(self._inboxes.values()):
            inbox.close()
        for sender, limit in self._parting.items():
            sender.drain(min(until, limit))
            sender.close()
        self._parting.clear()
        self._closed, self.usable = True, False
        self._poller.close()
        if self._doorkeeper is not None:
            self._doorkeeper.stop()
        if self._made_context is not None:
            self._made_context.term()

    def require_usable(self) -> None:
        """Refuse use after `close`, and use in a process forked off the one that made this.

        After a fork both processes would write to the same connections, and the threads that carry
        them exist in the parent only.
        """
        if os.getpid() != self._pid:
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
            if isinstance(closed, StreamOutbox):
                self._unconnected.discard(closed)

    @property
    def poller(self) -> Poller:
        """What waits for the files of inboxes and outboxes."""
        return self._poller

    @property
    def scratch(self) -> memoryview:
        """Memory to receive into."""
        if self._scratch is None:
            self._scratch = scratch()
        return self._scratch

    def _socket_path(self, name: str) -> str:
        assert self._ipc_dir is not None
        # The digest is short whatever the name, and free of characters that mean something.
        path = f"{self._ipc_dir}/{hashlib.blake2b(name.encode(), digest_size=5).hexdigest()}"
        if len(os.fsencode(path)) > LONGEST_PATH:
            raise BadValueError(
                "path of a socket",
                f"have at most {LONGEST_PATH} bytes",
                path,
                "give a directory with a shorter path, for instance below /tmp",
            )
        if answers(path):
            raise BadValueError(f"inbox {name!r}", "be the only one of its name here", path)
        return path

    # ZeroMQ, to other machines

    def _context(self) -> zmq.Context[Socket]:
        if self._made_context is None:
            # Not the context that pyzmq shares: a context has one doorkeeper, and this is ours.
            self._made_context = zmq.Context()
            self._made_context.set(zmq.MAX_SOCKETS, _MAX_SOCKETS)
        return self._made_context

    def _socket(self, kind: int) -> Socket:
        made = self._context().socket(kind)
        made.linger = 0
        made.set_hwm(0)  # credits bound what is under way; a full queue would block or drop
        made.setsockopt(zmq.HANDSHAKE_IVL, _HANDSHAKE_MS)
        idle, interval, probes = _KEEPALIVE_S
        made.setsockopt(zmq.TCP_KEEPALIVE, 1)
        made.setsockopt(zmq.TCP_KEEPALIVE_IDLE, idle)
        made.setsockopt(zmq.TCP_KEEPALIVE_INTVL, interval)
        made.setsockopt(zmq.TCP_KEEPALIVE_CNT, probes)
        return made

    def _connected(self, address: str) -> Socket:
        made = self._socket(zmq.PUSH)
        made.copy_threshold = LARGE_BYTES
        first, longest = _RECONNECT_MS
        made.setsockopt(zmq.RECONNECT_IVL, first)
        made.setsockopt(zmq.RECONNECT_IVL_MAX, longest)
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

    def _bind_tcp(self, port: int, max_bytes: int) -> tuple[Socket, str]:
        if self._doorkeeper is None:
            self._doorkeeper = Doorkeeper(self._context(), self._keys)
        made = self._socket(zmq.PULL)
        made.setsockopt(zmq.MAXMSGSIZE, max_bytes)
        try:
            return made, self._bound(made, port)
        except BaseException:
            made.close(0)
            raise

    def _bound(self, made: Socket, port: int) -> str:
        self._keys.serve(made)
        assert self._doorkeeper is not None
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


def _wakes() -> bool:
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
