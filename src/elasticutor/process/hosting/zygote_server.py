"""The zygote itself: one thread that forks, kills, reaps and reports."""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import importlib
import io
import os
import select
import signal
import socket
import sys
import time
import traceback
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, Pipe
from operator import attrgetter
from pathlib import Path
from typing import IO, NoReturn

from elasticutor.process.hosting.directories import remove_directory
from elasticutor.process.hosting.lifeline import (
    close_all_but,
    hold_on,
    keep_to,
    name_process,
    watch_process,
)
from elasticutor.process.hosting.zygote import Ended, Fork, Forked, Kill, ZygoteClient

#: Imported once, before the first fork. None of them may start threads or open sockets.
PRELOADED = (
    "elasticutor.process.main",
    "elasticutor.process.node",
    "elasticutor.process.sink",
    "elasticutor.process.source",
    "elasticutor.process.task",
)
#: How much of what a process printed last is reported when it ends badly.
SAID_BYTES = 4096

#: For every process that is forked. What it allocates is mostly state and rows, which hold no
#: cycles, and a look at everything takes long beside a million cached states.
GC_THRESHOLDS = (10_000, 20, 100)

_PATIENCE_S = 5.0


@dataclass(slots=True, eq=False)
class _Asker:
    """A connection: the host, or a process that the zygote forked."""

    connection: Connection
    #: What it has not read yet. The zygote never waits for a reader.
    outbox: deque[object] = field(default_factory=deque)
    living: dict[str, _Child] = field(default_factory=dict)
    #: Which process it is; None for the host.
    process: _Child | None = None

    def tell(self, message: object) -> None:
        if not self.connection.closed:
            self.outbox.append(message)


@dataclass(slots=True, eq=False)
class _Child:
    """A process that the zygote forked."""

    name: str
    pid: int
    owner: _Asker
    log: str
    #: Size of the log before it printed anything.
    log_start: int
    #: Its own connection, if it is connected.
    asker: _Asker | None = None
    #: None as long as it lives.
    code: int | None = None


class _Server:
    """The zygote's loop: one thread, one `poll`, and no waiting anywhere else."""

    def __init__(self, host: Connection, host_pid: int) -> None:
        self._host = _Asker(host)
        # A connection ends when no process has its other end open. Should the host have forked a
        # process that keeps it open, then this still tells of the host's end.
        self._host_watch = watch_process(host_pid)
        self._over = os.getppid() != host_pid
        self._children: dict[int, _Child] = {}
        self._lifeline, self._lifeline_held = os.pipe()
        self._wake, self._waker = socket.socketpair()

    def serve(self) -> None:
        """Fork, kill and report, until the host is gone."""
        self._catch_signals()
        self._host.tell(Forked("zygote", os.getpid()))
        while not self._over:
            for fd, events in self._poll():
                if fd == self._wake.fileno():
                    self._wake.recv(4096)
                elif fd == self._host_watch:
                    self._over = True
                elif asker := self._asker(fd):
                    self._attend(asker, events)
            self._reap()

    def kill_all(self) -> None:
        """Kill every process and wait until each has ended."""
        deadline = time.monotonic() + _PATIENCE_S
        while self._children and time.monotonic() < deadline:
            for pid in self._children:
                _kill(pid)
            poll = select.poll()
            poll.register(self._wake, select.POLLIN)
            # The signal that ends the wait may have come before it: then look again soon.
            if poll.poll(100):
                self._wake.recv(4096)
            self._reap()

    def _catch_signals(self) -> None:
        for end in (self._wake, self._waker):
            end.setblocking(False)
        signal.set_wakeup_fd(self._waker.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, self._terminate)

    def _terminate(self, *_: object) -> None:
        self._over = True

    def _askers(self) -> Iterator[_Asker]:
        yield self._host
        yield from (child.asker for child in self._children.values() if child.asker)

    def _asker(self, fd: int) -> _Asker | None:
        living = (asker for asker in self._askers() if not asker.connection.closed)
        return next((asker for asker in living if asker.connection.fileno() == fd), None)

    def _poll(self) -> list[tuple[int, int]]:
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        if self._host_watch is not None:
            poll.register(self._host_watch, select.POLLIN)
        for asker in self._askers():
            if not asker.connection.closed:
                more = select.POLLOUT if asker.outbox else 0
                poll.register(asker.connection, select.POLLIN | more)
        return poll.poll()

    def _attend(self, asker: _Asker, events: int) -> None:
        try:
            if events & select.POLLOUT:
                # A stream socket says so while most of its buffer is free: as our messages are
                # short, this one fits in.
                asker.connection.send(asker.outbox.popleft())
            elif events:
                self._carry_out(asker.connection.recv(), asker)
        except (EOFError, OSError):
            asker.connection.close()
            self._over |= asker is self._host

    def _carry_out(self, request: Fork | Kill, asker: _Asker) -> None:
        if isinstance(request, Fork):
            self._fork(request, asker)
        elif child := asker.living.get(request.name):
            _kill(child.pid)

    def _fork(self, request: Fork, owner: _Asker) -> None:
        try:
            child = self._forked(request, owner)
        except OSError as error:  # No such directory for its log; too many processes.
            owner.tell(Ended(request.name, 0, 1, f"{type(error).__name__}: {error}"))
            return
        self._children[child.pid] = owner.living[request.name] = child
        owner.tell(Forked(request.name, child.pid))

    def _forked(self, request: Fork, owner: _Asker) -> _Child:
        with contextlib.ExitStack() as ours:
            log = ours.enter_context(_log(request.log)) if request.log else None
            start = os.fstat(log.fileno()).st_size if log else 0
            connection, theirs = Pipe() if request.connected else (None, None)
            if theirs:
                ours.enter_context(theirs)
            zygote = os.getpid()
            # Held back until the child has handlers of its own: one that came before would be lost.
            signals = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGCHLD})
            try:
                pid = os.fork()
                if pid == 0:
                    self._become(request, theirs, log, zygote)
            except OSError:
                if connection:
                    connection.close()
                raise
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, signals)
            with contextlib.suppress(OSError):  # It has done so itself, or has ended.
                os.setpgid(pid, pid)
            child = _Child(request.name, pid, owner, request.log, start)
            if connection:
                child.asker = _Asker(connection, process=child)
            return child

    def _become(
        self, request: Fork, connection: Connection | None, log: IO[bytes] | None, zygote: int
    ) -> NoReturn:
        """Be the process that was asked for, to its end: nothing of the zygote runs after this."""
        code = 1
        try:
            os.setpgid(0, 0)
            hold_on(self._lifeline, zygote)
            if log:
                os.dup2(log.fileno(), 1)
                os.dup2(log.fileno(), 2)
                log.close()
            self._forget(connection)
            _settle_in(request)
            _call(request, connection)
            code = 0
        except SystemExit as end:
            code = _exit_code(end)
        except BaseException:
            traceback.print_exc()
        finally:
            with contextlib.suppress(Exception):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)

    def _forget(self, connection: Connection | None) -> None:
        """Close everything that is the zygote's, and restore the signals."""
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM, signal.SIGCHLD})
        # By their objects first: one that believed itself open would some day close a file that
        # has got its number.
        for asker in self._askers():
            asker.connection.close()
        self._wake.close()
        self._waker.close()
        close_all_but({self._lifeline, *([connection.fileno()] if connection else [])})

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            _kill_group(pid)  # What it may have started.
            self._ended(self._children.pop(pid), os.waitstatus_to_exitcode(status))

    def _ended(self, child: _Child, code: int) -> None:
        child.code = code
        if child.asker:
            child.asker.connection.close()
            for dependent in child.asker.living.values():
                _kill(dependent.pid)
        self._tell_end(child)

    def _tell_end(self, child: _Child) -> None:
        """Report an end once everything that was forked on behalf of it has ended too."""
        if child.code is None or (child.asker and child.asker.living):
            return
        said = _said(child) if child.code else ""
        del child.owner.living[child.name]
        child.owner.tell(Ended(child.name, child.pid, child.code, said))
        if child.owner.process:
            self._tell_end(child.owner.process)


def _kill(pid: int) -> None:
    """Kill a process of ours, which has not been reaped, with what it has started."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    _kill_group(pid)


def _kill_group(pid: int) -> None:
    # The number cannot belong to another process yet: it was ours until now, and they are given out
    # in turn.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def _log(path: str) -> IO[bytes]:
    """A file to print to: behind what is there, readable by us only, and no symbolic link."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
    return os.fdopen(os.open(path, flags, 0o600), "wb")


def _said(child: _Child) -> str:
    """The last that this process printed, and nothing of what an earlier one did."""
    if not child.log:
        return ""
    try:
        with Path(child.log).open("rb") as log:
            size = os.fstat(log.fileno()).st_size
            log.seek(max(child.log_start, size - SAID_BYTES))
            return log.read(SAID_BYTES).decode(errors="replace")
    except OSError:  # It was removed.
        return ""


def _settle_in(request: Fork) -> None:
    name_process(request.name)
    keep_to(request.cpus)
    for stream in (sys.stdout, sys.stderr):
        # By lines, so that one that is killed has not kept its last words to itself.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True)
    faulthandler.enable()
    gc.set_threshold(*GC_THRESHOLDS)
    gc.enable()


def _call(request: Fork, connection: Connection | None) -> None:
    module, _, name = request.target.partition(":")
    function = attrgetter(name)(importlib.import_module(module))
    if connection:
        function(request.payload, ZygoteClient(connection))
    else:
        function(request.payload)


def _exit_code(end: SystemExit) -> int:
    if isinstance(end.code, int):
        return end.code & 0xFF
    if end.code is not None:
        sys.stderr.write(f"{end.code}\n")
    return 0 if end.code is None else 1


def _preload() -> None:
    # Collected and then set aside for good, so that no collection writes to what is shared.
    gc.disable()
    for module in PRELOADED:
        importlib.import_module(module)
    _import_what_arrow_looks_for()
    gc.collect()
    gc.freeze()


def _import_what_arrow_looks_for() -> None:
    """Let Arrow import pandas here, once, where it is installed.

    Arrow does so when it first makes an array of a list, or numbers of an array. In every task that
    would be 0.2 to 0.4 s of CPU time in its first chunk: a core just granted would be of no use for
    as long, and the load measured in that chunk a hundred times too large.
    """
    import pyarrow as pa

    pa.array([0]).to_numpy()


def main(arguments: Sequence[str]) -> None:
    """Be a zygote: `Zygote.start` runs this in a fresh interpreter.

    The arguments are descriptors of the connection to the host and of its stderr, the host's
    process id, and the directories to remove at the end.
    """
    # What a terminal sends on Ctrl-C, or when it is closed, is for the host, whose end is
    # then seen. All processes are forked with this.
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    connection, stderr, host = map(int, arguments[:3])
    try:
        name_process("zygote")
        _preload()
        server = _Server(Connection(connection), host)
        for standard in (1, 2):  # Until here it was for the error, should the start fail.
            os.dup2(stderr, standard)
        os.close(stderr)
        try:
            server.serve()
        finally:
            server.kill_all()
    finally:
        for directory in arguments[3:]:
            remove_directory(directory)
