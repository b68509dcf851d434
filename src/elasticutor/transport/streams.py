"""Unix stream sockets between processes of one machine: length-prefixed frames, in one thread.

| on the wire | bytes |
|---|---|
| length of what follows, number of frames | 4 + 4 |
| length of each frame | 4 each, padded to 8 |
| the frames | each padded to 8, so that Arrow and NumPy find aligned memory |

A message of `PASSED_BYTES` or more travels as a memory file whose descriptor is passed, so that it
is copied once and wakes the receiver once. A connection that breaks stays broken: whatever a
receiver takes from it is a gapless beginning of what was sent.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import mmap
import os
import socket
import struct
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any, Final

Frames = Sequence[Any]
"""The frames of one message: bytes, or anything with the buffer protocol."""

logger = logging.getLogger(__name__)

PASSED_BYTES: Final = 256 * 1024
"""Messages from this size on are passed as memory files; below, the stream's copies are cheaper."""

_PREFIX: Final = struct.Struct("<II")
_SINGLE: Final = struct.Struct("<IIII")
"""What precedes the frame of a message that has one: prefix, the frame's length, and a pad."""
_SINGLE_TABLE: Final = 8
_PASSED: Final = 1 << 31
"""Set in the number of frames: the message is in a memory file."""
_PADS: Final = (b"", b"\0" * 7, b"\0" * 6, b"\0" * 5, b"\0" * 4, b"\0" * 3, b"\0" * 2, b"\0")
"""By length modulo 8: what is missing to a multiple of 8."""
_JOINED_BYTES: Final = 16 * 1024
"""Parts up to this size in all are joined before they are sent: cheaper than many buffers."""
_MOST_PARTS: Final = 512
"""Buffers of one call; the system allows 1,024."""
_SCRATCH_BYTES: Final = 128 * 1024
_SOCKET_BYTES: Final = 4 * 1024 * 1024
_MOST_FRAMES: Final = 1 << 20
_MOST_PASSED: Final = 64
_BROKEN: Final = frozenset({errno.EPIPE, errno.ECONNRESET, errno.ENOTCONN, errno.ESHUTDOWN})
_ABSENT: Final = frozenset({errno.ENOENT, errno.ECONNREFUSED})
_CAN_PASS: Final = hasattr(os, "memfd_create") and hasattr(socket, "send_fds")
LONGEST_PATH: Final = 103 if sys.platform == "darwin" else 107
"""Bytes of a socket file's path: `sun_path`, less its final NUL."""


def packed(frames: Frames) -> tuple[list[Any], int]:
    """The parts of a message as they go into the stream, and their bytes."""
    sizes = [len(f) if type(f) is bytes else memoryview(f).nbytes for f in frames]
    count = len(sizes)
    table = count + (count & 1)
    total = 4 * table
    parts: list[Any] = [b""]
    for frame, size in zip(frames, sizes, strict=True):
        parts.append(frame)
        rest = size & 7
        if rest:
            parts.append(_PADS[rest])
            total += size + 8 - rest
        else:
            total += size
    if count & 1:
        parts[0] = struct.pack(f"<{count + 3}I", total, count, *sizes, 0)
    else:
        parts[0] = struct.pack(f"<{count + 2}I", total, count, *sizes)
    return parts, total + _PREFIX.size


def unpacked(body: memoryview, count: int) -> list[memoryview]:
    """The frames of a message, without a copy."""
    at = 4 * (count + (count & 1))
    sizes = struct.unpack_from(f"<{count}I", body)
    ends = list(accumulate(((size + 7) & ~7 for size in sizes), initial=at))
    if ends[-1] != len(body):
        raise ValueError(f"{len(body)} bytes, where the frames have {ends[-1]}")
    return [body[start : start + size] for start, size in zip(ends, sizes, strict=False)]


class StreamSender:
    """The sending end of a connection; never blocks.

    What the system does not take now waits here, and `writable` sends more of it.

    Args:
        path: The socket file of the receiver. It need not be there yet.
        blocked: Called with True when something begins to wait here for the system, with False
            when nothing does any more.
    """

    def __init__(self, path: str, blocked: Callable[[bool], None]) -> None:
        self._path = path
        self._blocked = blocked
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.setblocking(False)
        with contextlib.suppress(OSError):
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SOCKET_BYTES)
        self._waiting: deque[memoryview | int] = deque()  # numbers are files, before their prefix
        self.connected = False
        self.broken = False
        self.try_to_connect()

    def fileno(self) -> int:
        """The socket, to be watched for writing."""
        return self._socket.fileno()

    @property
    def waiting(self) -> bool:
        """Whether anything is still to be sent."""
        return bool(self._waiting)

    def try_to_connect(self) -> bool:
        """Connect, if the receiver is there by now; returns whether it was."""
        if self.connected or self.broken:
            return self.connected
        try:
            self._socket.connect(self._path)
        except BlockingIOError:  # the receiver has not accepted the others yet
            return False
        except OSError as error:
            if error.errno not in _ABSENT:
                raise
            return False
        self.connected = True
        if self._waiting:
            self.writable()
            if self._waiting:
                self._blocked(True)
        return True

    def send_single(self, frame: bytes) -> None:
        """Send a message of one frame: what is sent most often, so with the fewest steps."""
        size = len(frame)
        if size > _JOINED_BYTES or self._waiting or not self.connected or self.broken:
            self.send([[frame]])
            return
        total = _SINGLE_TABLE + (size + 7 & ~7)
        data = _SINGLE.pack(total, 1, size, 0) + frame + _PADS[size & 7]
        try:
            sent = self._socket.send(data)
        except BlockingIOError:
            sent = 0
        except OSError as error:
            self._break(error)
            return
        if sent < len(data):
            self._waiting.append(memoryview(data)[sent:])
            self._blocked(True)

    def send(self, messages: Sequence[Frames]) -> None:
        """Send messages in order."""
        parts: list[Any] = []
        size = 0
        for frames in messages:
            some, length = packed(frames)
            if length >= PASSED_BYTES and _CAN_PASS:
                self._push(parts, size)
                parts, size = [], 0
                self._pass(some, length - _PREFIX.size, len(frames))
            else:
                parts += some
                size += length
        self._push(parts, size)

    def _push(self, parts: list[Any], size: int) -> None:
        if not parts or self.broken:
            return
        if size <= _JOINED_BYTES:
            parts = [b"".join(parts)]
        if self._waiting or not self.connected:
            self._waiting.append(memoryview(b"".join(parts)))
            return
        for begin in range(0, len(parts), _MOST_PARTS):
            some = parts[begin : begin + _MOST_PARTS]
            left = self._send_now(some)
            if left is None:
                return
            if left:
                self._waiting.append(left)
                self._waiting.extend(
                    memoryview(bytes(part)) for part in parts[begin + _MOST_PARTS :]
                )
                self._blocked(True)
                return

    def _send_now(self, parts: list[Any]) -> memoryview | None:
        """Send as much as the system takes; returns the rest, and None if the peer is gone."""
        try:
            one = len(parts) == 1
            sent = self._socket.send(parts[0]) if one else self._socket.sendmsg(parts)
        except BlockingIOError:
            sent = 0
        except OSError as error:
            self._break(error)
            return None
        size = sum(memoryview(part).nbytes for part in parts)
        if sent == size:
            return memoryview(b"")
        return memoryview(b"".join(parts))[sent:]

    def _pass(self, parts: list[Any], size: int, count: int) -> None:
        """Send a message as a memory file."""
        if self.broken:
            return
        fd = os.memfd_create("elasticutor", os.MFD_CLOEXEC)
        try:
            os.ftruncate(fd, size)
            with mmap.mmap(fd, size) as memory:
                at = 0
                for part in [parts[0][_PREFIX.size :], *parts[1:]]:
                    view = memoryview(part).cast("B")
                    memory[at : at + len(view)] = view
                    at += len(view)
        except BaseException:
            os.close(fd)
            raise
        self._waiting.append(fd)
        self._waiting.append(memoryview(_PREFIX.pack(size, count | _PASSED)))
        if self.connected and len(self._waiting) == 2:
            self.writable()
            if self._waiting:
                self._blocked(True)

    def writable(self) -> None:
        """Send what has been waiting, as far as the system takes it."""
        waiting = self._waiting
        while waiting:
            first = waiting[0]
            try:
                if isinstance(first, int):
                    # One byte carries the descriptor: it cannot be sent in part.
                    prefix = waiting[1]
                    assert not isinstance(prefix, int)
                    socket.send_fds(self._socket, [prefix[:1]], [first])
                    os.close(first)
                    waiting.popleft()
                    waiting[0] = prefix[1:]
                    continue
                sent = self._socket.send(first)
            except BlockingIOError:
                return
            except OSError as error:
                self._break(error)
                return
            if sent == len(first):
                waiting.popleft()
            else:
                waiting[0] = first[sent:]

    def drain(self, until: float) -> None:
        """Send all that waits, but no longer than until then."""
        while self._waiting and not self.broken and (left := until - time.monotonic()) > 0:
            if not self.connected and not self.try_to_connect():
                time.sleep(min(0.01, left))
                continue
            self._socket.settimeout(left)
            try:
                self.writable()
            finally:
                self._socket.setblocking(False)

    def _break(self, error: OSError) -> None:
        if error.errno not in _BROKEN:
            raise error
        logger.debug("%s is gone: %s", self._path, error)
        self.broken = True
        self._forget()

    def _forget(self) -> None:
        for item in self._waiting:
            if isinstance(item, int):
                os.close(item)
        self._waiting.clear()

    def close(self) -> None:
        """Close; what still waits is lost."""
        self._forget()
        self._socket.close()


class StreamReceiver:
    """The receiving end of a connection.

    Args:
        accepted: The connection.
        max_bytes: The longest message that is taken.
    """

    def __init__(self, accepted: socket.socket, max_bytes: int) -> None:
        accepted.setblocking(False)
        self._socket = accepted
        self._max_bytes = max_bytes
        self._rest = b""  # of a prefix
        self._files: deque[int] = deque()
        self._body: bytearray | None = None  # of a message that has come in part
        self._filled = 0
        self._count = 0

    def fileno(self) -> int:
        """The socket, to be watched for reading."""
        return self._socket.fileno()

    def read(self, scratch: memoryview, arrived: deque[list[Any]]) -> bool:
        """Take in what has come; returns whether the connection goes on.

        Raises:
            ValueError: What has come is no message.
        """
        while True:
            into = scratch
            if self._body is not None:
                into = memoryview(self._body)[self._filled :]
            elif self._rest:
                scratch[: len(self._rest)] = self._rest
                into = scratch[len(self._rest) :]
            try:
                size, ancillary, _, _ = self._socket.recvmsg_into([into], _ANCILLARY_BYTES)
            except BlockingIOError:
                return True
            except OSError as error:
                if error.errno not in _BROKEN:
                    raise
                return False
            if ancillary:
                self._take_files(ancillary)
            if size >= _SINGLE.size and into is scratch:
                # What comes most often is one message of one frame: with the fewest steps.
                total, count, length, _ = _SINGLE.unpack_from(scratch)
                padded = _SINGLE_TABLE + (length + 7 & ~7)
                if count == 1 and padded == total == size - 8 and total <= self._max_bytes:
                    arrived.append([scratch[_SINGLE.size : _SINGLE.size + length].tobytes()])
                    if size < len(scratch):
                        return True
                    continue
            if not size:
                return False
            if self._body is not None:
                self._filled += size
                if self._filled < len(self._body):
                    return True
                arrived.append(unpacked(memoryview(self._body), self._count))
                self._body = None
                continue
            have = len(self._rest) + size
            self._rest = b""
            self._parse(scratch[:have], arrived)
            if size < len(into):
                return True

    def _parse(self, data: memoryview, arrived: deque[list[Any]]) -> None:
        at, end = 0, len(data)
        while end - at >= _PREFIX.size:
            total, count = _PREFIX.unpack_from(data, at)
            self._require(total, count)
            at += _PREFIX.size
            if count & _PASSED:
                arrived.append(self._opened(total, count & ~_PASSED))
            elif end - at >= total:
                arrived.append(unpacked(memoryview(bytes(data[at : at + total])), count))
                at += total
            else:
                self._body, self._count = bytearray(total), count
                self._filled = end - at
                self._body[: end - at] = data[at:]
                return
        self._rest = bytes(data[at:])

    def _require(self, total: int, count: int) -> None:
        frames = count & ~_PASSED
        if total > self._max_bytes or not 0 < frames <= _MOST_FRAMES or total < 4 * frames:
            raise ValueError(
                f"a message of {frames} frames and {total} bytes; at most {self._max_bytes} fit"
            )

    def _take_files(self, ancillary: list[tuple[int, int, bytes]]) -> None:
        for level, kind, data in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                self._files.extend(struct.unpack(f"{len(data) // 4}i", data[: len(data) // 4 * 4]))

    def _opened(self, size: int, count: int) -> list[memoryview]:
        if not self._files:
            raise ValueError("a message in a memory file, and no file")
        fd = self._files.popleft()
        try:
            if os.fstat(fd).st_size < size:
                raise ValueError(f"a memory file of less than {size} bytes")
            memory = mmap.mmap(fd, size, flags=_MAP_FLAGS, prot=mmap.PROT_READ)
        finally:
            os.close(fd)
        return unpacked(memoryview(memory), count)

    def close(self) -> None:
        """Close; what has come and was not taken in is lost."""
        for fd in self._files:
            os.close(fd)
        self._files.clear()
        self._socket.close()


_ANCILLARY_BYTES: Final = socket.CMSG_SPACE(4 * _MOST_PASSED)
_MAP_FLAGS: Final = mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0)


class StreamListener:
    """A socket file at which a process is reached by others of its user on this machine."""

    def __init__(self, path: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)  # noqa: PTH108 - of a dead process: the caller has looked
            self._socket.bind(path)
            self._socket.listen(1024)
            self._socket.setblocking(False)
        except BaseException:
            self._socket.close()
            raise
        self.path = path

    def fileno(self) -> int:
        """The socket, to be watched for reading."""
        return self._socket.fileno()

    def accept(self, max_bytes: int) -> list[StreamReceiver]:
        """All connections that wait to be accepted; those of other users are refused."""
        accepted: list[StreamReceiver] = []
        while True:
            try:
                connection, _ = self._socket.accept()
            except BlockingIOError:
                return accepted
            except ConnectionAbortedError:
                continue
            if _is_own(connection):
                accepted.append(StreamReceiver(connection, max_bytes))
            else:
                logger.warning("refused a connection of another user at %s", self.path)
                connection.close()

    def close(self) -> None:
        """Stop listening, and remove the file."""
        self._socket.close()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path)  # noqa: PTH108


def _is_own(connection: socket.socket) -> bool:
    if not hasattr(socket, "SO_PEERCRED"):
        return True  # the directory alone keeps others out
    got = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    uid: int = struct.unpack("3i", got)[1]
    return uid == os.geteuid()


def scratch() -> memoryview:
    """Memory to receive into, for all connections of a thread."""
    return memoryview(bytearray(_SCRATCH_BYTES))


def answers(path: str) -> bool:
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
