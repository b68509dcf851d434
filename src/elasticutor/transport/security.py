"""Who may talk to a cluster's processes: its keys, its directories and its doorkeeper.

A cluster has one CURVE key pair, handed to its processes through Spark. A process that holds the
secret half belongs to the cluster; the public half alone opens nothing. Within a node the sockets
are files, and the directory they are in keeps other users out.
"""

from __future__ import annotations

import logging
import os
import socket
import stat
import threading
import time
from dataclasses import dataclass, field
from typing import Final, Self

import zmq
from zmq.utils import z85
from zmq.utils.monitor import parse_monitor_message

from elasticutor.errors import BadValueError

logger = logging.getLogger(__name__)

#: Seconds between two lines in the log about refused connections: a scanner must not fill a disk.
_LOG_INTERVAL_S: Final = 60.0

_ZAP_ADDRESS: Final = "inproc://zeromq.zap.01"  # where libzmq asks, by its protocol
_CONTROL_ADDRESS: Final = "inproc://doorkeeper"
_UNKNOWN: Final = "an unknown address"
_STOP: Final = b""
_DOMAIN: Final = b"elasticutor"

#: Peers that fail before libzmq asks the doorkeeper: without keys, or with another cluster's. What
#: the doorkeeper itself denies is counted where it is denied. Of what is not ZeroMQ at all, a port
#: scanner's bytes for instance, libzmq tells nothing, so it goes uncounted.
_FAILURES: Final = zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
_WATCHED: Final = zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED | _FAILURES


@dataclass(frozen=True)
class ClusterKeys:
    """The CURVE key pair that all processes of one cluster share, in Z85 text.

    Every process proves with it that it belongs to the cluster, whichever side opened the
    connection. The secret half does not show in the representation, so a log cannot leak it.

    Example:
        >>> keys = ClusterKeys.generate()
        >>> keys.secret.decode() in repr(keys)
        False
    """

    public: bytes
    secret: bytes = field(repr=False)

    def __post_init__(self) -> None:
        try:
            matches = zmq.curve_public(self.secret) == self.public
        except (TypeError, ValueError, zmq.ZMQError):
            matches = False
        if not matches:
            raise BadValueError(
                "the cluster's keys",
                "be a CURVE key pair in Z85, the public half derived from the secret one",
                self.public,
                "make them with ClusterKeys.generate() and hand both on unchanged",
            )

    @classmethod
    def generate(cls) -> Self:
        """A new pair for a new cluster."""
        if not zmq.has("curve"):
            hint = "the wheels of pyzmq on PyPI are"
            raise BadValueError("libzmq", "be built with CURVE", zmq.zmq_version(), hint)
        public, secret = zmq.curve_keypair()
        return cls(public, secret)

    def serve(self, inbox: zmq.Socket[bytes]) -> None:
        """Let `inbox` admit holders of these keys only; without a doorkeeper it admits none."""
        inbox.curve_server = True
        inbox.curve_publickey = self.public
        inbox.curve_secretkey = self.secret
        inbox.zap_domain = _DOMAIN
        # libzmq admits all where no doorkeeper answers, unless this option is set.
        inbox.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)

    def visit(self, outbox: zmq.Socket[bytes]) -> None:
        """Let `outbox` show these keys, and talk only to peers that hold them too."""
        outbox.curve_serverkey = self.public
        outbox.curve_publickey = self.public
        outbox.curve_secretkey = self.secret


def require_private_directory(path: str) -> None:
    """Refuse a directory for sockets into which another user could look or write.

    Sockets of a node are files without keys, so this check is what keeps other users out. A
    symbolic link is no directory.
    """
    try:
        found = os.lstat(path)
    except OSError as error:
        raise _not_private(path, error.strerror or "an error") from error
    mode = stat.S_IMODE(found.st_mode)
    if not stat.S_ISDIR(found.st_mode):
        raise _not_private(path, "no directory")
    if found.st_uid != os.geteuid():
        raise _not_private(path, f"owner {found.st_uid}, this process has {os.geteuid()}")
    if mode & 0o777 != 0o700:  # a set-group-id bit, inherited on some systems, opens nothing
        raise _not_private(path, f"mode {mode:04o}")


def _not_private(path: str, got: str) -> BadValueError:
    return BadValueError(
        f"directory for sockets {path!r}",
        "be a directory of this user's own with mode 0700",
        got,
        "make it with tempfile.mkdtemp()",
    )


class Doorkeeper:
    """Decides who may connect to the inboxes of one process, in a thread of its own.

    libzmq asks it (by ZAP, its authentication protocol) about every peer that shows valid keys:
    only the cluster's own are let in. It also hears of peers that never got as far as being asked.
    The thread sleeps until there is something to answer, so an idle cluster costs nothing.
    """

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], keys: ClusterKeys) -> None:
        #: Connections turned away so far. One peer that tries again and again counts every time.
        self.refused = 0
        self._admitted = z85.decode(keys.public)
        self._context = context
        self._watched = 0
        self._peers: dict[int, str] = {}  # file descriptor → address, of connections that stand
        self._failure = ""  # why the connection failed whose end is announced next
        self._logged_at = -_LOG_INTERVAL_S
        self._logged_refused = 0
        self._poller = zmq.Poller()
        self._zap = self._bound(zmq.REP, _ZAP_ADDRESS)
        self._orders = self._bound(zmq.PAIR, _CONTROL_ADDRESS)
        self._control = context.socket(zmq.PAIR)
        self._control.connect(_CONTROL_ADDRESS)
        self._thread = threading.Thread(target=self._run, name="doorkeeper", daemon=True)
        self._thread.start()

    def _bound(self, kind: int, address: str) -> zmq.Socket[bytes]:
        made = self._context.socket(kind)
        made.linger = 0
        made.bind(address)
        self._poller.register(made, zmq.POLLIN)
        return made

    def watch(self, inbox: zmq.Socket[bytes]) -> None:
        """Count the connections that `inbox` turns away, from before it is bound until its end."""
        self._watched += 1
        address = f"{_CONTROL_ADDRESS}/{self._watched}"
        inbox.monitor(address, _WATCHED)
        self._control.send(address.encode())
        # Wait until the thread listens: until then libzmq would block on the first thing to tell.
        self._control.recv()

    def stop(self) -> None:
        """End the thread. The inboxes that it watched must be closed before."""
        self._control.send(_STOP)
        self._thread.join()
        self._control.close(0)

    def _run(self) -> None:
        monitors: set[zmq.Socket[bytes]] = set()
        try:
            while True:
                for ready, _ in self._poller.poll():
                    if ready is self._zap:
                        self._answer()
                    elif ready is self._orders:
                        order = self._orders.recv()
                        if order == _STOP:
                            return
                        monitors.add(self._listen(order.decode()))
                        self._orders.send(b"listening")
                    else:
                        self._note(ready, monitors)
        finally:
            for left in (self._zap, self._orders, *monitors):
                left.close(0)

    def _listen(self, address: str) -> zmq.Socket[bytes]:
        monitor = self._context.socket(zmq.PAIR)
        monitor.linger = 0
        monitor.connect(address)
        self._poller.register(monitor, zmq.POLLIN)
        return monitor

    def _answer(self) -> None:
        """Answer one request of libzmq whether a peer may come in."""
        version, request, _, address, _, mechanism, *credentials = self._zap.recv_multipart()
        if mechanism == b"CURVE" and credentials == [self._admitted]:
            self._zap.send_multipart([version, request, b"200", b"", b"cluster", b""])
            return
        self._zap.send_multipart([version, request, b"400", b"not of this cluster", b"", b""])
        self._refuse(address.decode(errors="replace"), "its keys are not the cluster's")

    def _note(self, monitor: zmq.Socket[bytes], monitors: set[zmq.Socket[bytes]]) -> None:
        """Take in what libzmq tells of one inbox's connections."""
        parsed = parse_monitor_message(monitor.recv_multipart())
        event, value = parsed["event"], parsed["value"]
        if event == zmq.EVENT_MONITOR_STOPPED:
            self._poller.unregister(monitor)
            monitors.discard(monitor)
            monitor.close(0)
        elif event == zmq.EVENT_ACCEPTED:
            self._peers[value] = _peer_address(value)
        elif event & _FAILURES:
            self._failure = f"handshake failed, libzmq's code {value:#x}"
        elif event == zmq.EVENT_DISCONNECTED:
            # A failed handshake is reported without its connection, whose end follows.
            peer = self._peers.pop(value, _UNKNOWN)
            if self._failure:
                failure, self._failure = self._failure, ""
                self._refuse(peer, failure)

    def _refuse(self, peer: str, why: str) -> None:
        self.refused += 1
        now = time.monotonic()
        if now - self._logged_at < _LOG_INTERVAL_S:
            return
        fresh = self.refused - self._logged_refused
        logger.warning("refused %d connection(s), the last one from %s: %s", fresh, peer, why)
        self._logged_at, self._logged_refused = now, self.refused


def _peer_address(descriptor: int) -> str:
    """The address at the other end of a connection, for the log, as far as it is known.

    The connection is libzmq's own. A peer that fails at once may be gone before it can be asked
    after, and its descriptor may be another's by then: nothing but the log may rely on this.
    """
    try:
        with socket.socket(fileno=os.dup(descriptor)) as connection:
            return str(connection.getpeername()[0])
    except (OSError, IndexError):
        return _UNKNOWN
