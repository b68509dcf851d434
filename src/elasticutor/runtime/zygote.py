"""A fork server: where the processes of a node come from, and what ends them all.

Starting a Python that knows numpy, Arrow and ZeroMQ takes half a second; forking one that knows
them takes a few milliseconds, and its memory is shared. So the *host* (the Python worker of a Spark
task) starts one *zygote*, a fresh interpreter without threads, and the zygote forks everything
else: node processes, main processes, tasks.

```
host ──connection── zygote ──forks──▶ node process ──connection── zygote ──forks──▶ main process,
                                                                                     task, ...
```

Whoever is *connected* asks for forks and is told when they end. **Nothing survives:**

- The host ends, in whatever way: the zygote sees its connection end, kills and reaps every process,
  removes the directories it owns, and ends. It is in a session of its own and ignores Ctrl-C and
  hang-ups, so that it lives to do so.
- The zygote is killed: its processes die by their lifelines (`elasticutor.runtime.lifeline`), and
  the host, which sees the connection end, removes the directories.
- A connected process ends: all that was forked on its behalf is killed, and when it has ended too,
  whoever asked for the connected process is told.

Each process leads a process group of its own, so that what an operator starts is killed with it.
"""

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
import subprocess
import sys
import tempfile
import time
import traceback
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, Pipe
from operator import attrgetter
from pathlib import Path
from types import TracebackType
from typing import IO, NoReturn, Self

from elasticutor.errors import BadValueError, ElasticutorError
from elasticutor.runtime.lifeline import (
    Lifeline,
    close_all_but,
    hold_on,
    keep_to,
    name_process,
    watch_process,
)
from elasticutor.runtime.places import remove_directory

#: Imported once, before the first fork. None of them may start threads or open sockets.
PRELOADED = (
    "elasticutor.runtime.executor",
    "elasticutor.runtime.node",
    "elasticutor.runtime.sink",
    "elasticutor.runtime.source",
    "elasticutor.runtime.task",
)
#: How much of what a process printed last is told when it ends badly.
SAID_BYTES = 4096

# No library may start threads: a fork does not take them along, and a task has one core anyway.
_NO_THREADS = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
}
_PATIENCE_S = 5.0


class ZygoteError(ElasticutorError, RuntimeError):
    """The zygote could not be started, or has gone.

    Example:
        >>> print(ZygoteError("the zygote", "start", 1, said="No module named 'zmq'"))
        the zygote must start; got 1. What it said:
        No module named 'zmq'
    """

    def __init__(self, who: str, must: str, got: object, hint: str = "", said: str = "") -> None:
        super().__init__(who, must, got, hint)
        self.said = said

    def __str__(self) -> str:
        sentence = super().__str__()
        return f"{sentence}. What it said:\n{self.said}" if self.said else sentence


@dataclass(frozen=True, slots=True)
class Fork:
    """Asks for a process that calls a function, and ends when the function returns.

    Example:
        >>> Fork("task-1", "elasticutor.runtime.task:run").cpus
        ()
        >>> Fork("task-1", "elasticutor.runtime.task")
        Traceback (most recent call last):
        elasticutor.errors.BadValueError: target must be 'package.module:function'; got ...
    """

    #: Unique among the living processes of whoever asks. Also its name in `ps` and `top`.
    name: str
    #: `package.module:function`, called with the payload, and the client if it is connected.
    target: str
    payload: bytes = b""
    #: Cores to keep to; none: any.
    cpus: tuple[int, ...] = ()
    #: Whether it may ask for forks itself, through a `ZygoteClient`.
    connected: bool = False
    #: File that takes what it prints, at the end of what is there; empty: the host's stderr.
    log: str = ""

    def __post_init__(self) -> None:
        if not self.name:
            raise BadValueError("name of a process", "not be empty", self.name)
        module, _, function = self.target.partition(":")
        if not (module and function):
            raise BadValueError("target", "be 'package.module:function'", self.target)


@dataclass(frozen=True, slots=True)
class Forked:
    """There is such a process now."""

    name: str
    pid: int


@dataclass(frozen=True, slots=True)
class Ended:
    """A process has ended, and everything that was forked on its behalf."""

    name: str
    #: 0 if it could not even be forked.
    pid: int
    #: 0 if the function returned, 1 if it raised, -n if signal n ended it.
    code: int
    #: Unless the code is 0: the last that it printed, as far as it has a log of its own.
    said: str = ""


@dataclass(frozen=True, slots=True)
class Kill:
    """Asks for a process to be killed at once; `Ended` answers. Without effect if it has ended."""

    name: str


class ZygoteClient:
    """How a connected process asks for others, and is told what became of them.

    Nothing here waits for an answer. Poll `fileno()`, and `receive()` when there is something.
    """

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        #: Processes asked for that have not ended: name to process id, 0 until it is known.
        self.living: dict[str, int] = {}

    def fork(self, request: Fork) -> None:
        """Ask for a process; `Forked` and, some day, `Ended` will tell of it.

        Raises:
            BadValueError: A process of this name is living.
            ZygoteError: The zygote has gone.
        """
        if request.name in self.living:
            raise BadValueError(
                "name of a process", "not be that of a living one", request.name, "await its end"
            )
        self._send(request)
        self.living[request.name] = 0

    def kill(self, name: str) -> None:
        """Ask for a process to be killed at once; `Ended` will tell."""
        self._send(Kill(name))

    def receive(self) -> Iterator[Forked | Ended]:
        """What has been told and not yet received; never waits for more.

        Raises:
            ZygoteError: The zygote has gone, and everything it told before has been received.
        """
        told: list[Forked | Ended] = []
        try:
            while self.connection.poll():
                told.append(self._note(self.connection.recv()))
        except (EOFError, OSError):
            if not told:
                raise self._gone() from None
        return iter(told)

    def fileno(self) -> int:
        """For multiplexing: readable when there is something to receive."""
        return self.connection.fileno()

    def _note(self, message: Forked | Ended) -> Forked | Ended:
        if isinstance(message, Ended):
            self.living.pop(message.name, None)
        else:
            self.living[message.name] = message.pid
        return message

    def _send(self, message: Fork | Kill) -> None:
        try:
            self.connection.send(message)
        except OSError:
            raise self._gone() from None

    def _gone(self) -> ZygoteError:
        return ZygoteError("the zygote", "live as long as its processes", "an end of connection")


class Zygote(ZygoteClient):
    """The host's side: starts the zygote, asks for processes, and sees to it that all end.

    Example:
        >>> with Zygote.start() as zygote:
        ...     zygote.fork(Fork("greeter", "os:getenvb", b"HOME"))
        ...     while zygote.living and zygote.connection.poll(30):
        ...         for told in zygote.receive():
        ...             print(type(told).__name__, told.name)
        Forked greeter
        Ended greeter
    """

    def __init__(
        self, process: subprocess.Popen[bytes], connection: Connection, owned: Sequence[str]
    ) -> None:
        super().__init__(connection)
        self.pid = process.pid
        self._process = process
        self._owned = tuple(owned)

    @classmethod
    def start(
        cls,
        *,
        owned: Sequence[str] = (),
        holding: Sequence[int] = (),
        path: Sequence[str] | None = None,
        env: Mapping[str, str] | None = None,
        timeout_s: float = 60.0,
    ) -> Zygote:
        """Start a zygote, and wait until it can fork.

        Args:
            owned: Directories to remove at the end, however it comes; also if the start fails.
            holding: Open files that the zygote holds while it lives, and its processes do not:
                the locks of a `Place`.
            path: Where modules are looked for; default: where this process looks for them.
            env: Variables to set beside those of this process.
            timeout_s: How long it may take to start.

        Raises:
            BadValueError: A directory that is not named by an absolute path.
            ZygoteError: It did not start; says what it printed.
        """
        for directory in owned:
            if not Path(directory).is_absolute():
                raise BadValueError("a directory to own", "be an absolute path", directory)
        ours, theirs = Pipe()
        with tempfile.TemporaryFile() as printed:
            with theirs, _standard_error() as stderr:
                process = subprocess.Popen(  # noqa: S603 - this very Python, and words of ours
                    [
                        *(sys.executable, "-P", "-m", "elasticutor.runtime.zygote"),
                        *map(str, (theirs.fileno(), stderr.fileno(), os.getpid())),
                        *owned,
                    ],
                    stdin=subprocess.DEVNULL,
                    stdout=printed,
                    stderr=printed,
                    pass_fds=(theirs.fileno(), stderr.fileno(), *holding),
                    start_new_session=True,
                    env={**os.environ, **_NO_THREADS, **(env or {}), "PYTHONPATH": _joined(path)},
                )
            zygote = cls(process, ours, owned)
            zygote._await_ready(printed, timeout_s)
        return zygote

    def stop(self, timeout_s: float = 10.0) -> None:
        """End all processes and the zygote, and remove the directories; once more does nothing.

        Raises:
            ZygoteError: A directory could not be removed.
        """
        self.connection.close()
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self.living.clear()
        # The zygote has done so, unless it was killed.
        left = [directory for directory in self._owned if not remove_directory(directory)]
        self._owned = ()
        if left:
            raise ZygoteError("directories of the zygote", "be removed", left, "remove them")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def _await_ready(self, printed: IO[bytes], timeout_s: float) -> None:
        got: object = f"nothing for {timeout_s:g} s"
        try:
            if self.connection.poll(timeout_s):
                self.connection.recv()
                return
            self._process.kill()
        except (EOFError, OSError):
            got = f"exit code {self._process.wait()}"
        except BaseException:
            self.stop()
            raise
        self.stop()
        printed.seek(0)
        said = printed.read().decode(errors="replace").strip()
        hint = "everything that elasticutor needs must be installed on every machine"
        raise ZygoteError("the zygote", "start", got, hint, said)

    def _gone(self) -> ZygoteError:
        self.stop()
        got = f"exit code {self._process.returncode}"
        return ZygoteError("the zygote", "live until it is stopped", got)


def _joined(path: Sequence[str] | None) -> str:
    entries = sys.path if path is None else path
    # An empty entry means the directory we are in, and is not kept by PYTHONPATH.
    return os.pathsep.join(entry or str(Path.cwd()) for entry in entries)


def _standard_error() -> IO[bytes]:
    """A duplicate of this process's stderr, or of nowhere if it has none (daemons close it)."""
    try:
        return os.fdopen(os.dup(2), "wb")
    except OSError:
        return Path(os.devnull).open("wb")


# From here on: the zygote itself.


@dataclass(slots=True, eq=False)
class _Asker:
    """Somebody connected: the host, or a process that the zygote forked."""

    connection: Connection
    #: What it has not been told yet. The zygote never waits for somebody to listen.
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
        # A connection ends when nobody has its other end open. Should the host have forked a
        # process that keeps it open, then this still tells of the host's end.
        self._host_watch = watch_process(host_pid)
        self._over = os.getppid() != host_pid
        self._children: dict[int, _Child] = {}
        self._lifeline, self._lifeline_held = Lifeline.open()
        self._wake, self._waker = socket.socketpair()

    def serve(self) -> None:
        """Fork, kill and tell, until the host has gone."""
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
        """Close everything that is the zygote's, and take its hands off the signals."""
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
        own = {self._lifeline.fd, *([connection.fileno()] if connection else [])}
        close_all_but(own)

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
        """Tell of an end once everything that was forked on behalf of it has ended too."""
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
    # The number cannot belong to somebody else yet: it was ours until now, and they are given out
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
    except OSError:  # Somebody has removed it.
        return ""


def _settle_in(request: Fork) -> None:
    name_process(request.name)
    keep_to(request.cpus)
    for stream in (sys.stdout, sys.stderr):
        # By lines, so that one that is killed has not kept its last words to itself.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True)
    faulthandler.enable()
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


def _preload(modules: Iterable[str] = PRELOADED) -> None:
    # Collected and then set aside for good, so that no collection writes to what is shared.
    gc.disable()
    for module in modules:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()


def main(arguments: Sequence[str]) -> None:
    """Be a zygote: `Zygote.start` runs this in a fresh interpreter.

    Args:
        arguments: Descriptors of the connection to the host and of its stderr, the host's process
            id, and the directories to remove at the end.
    """
    # What a terminal sends when somebody presses Ctrl-C or closes it is for the host, whose end is
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


if __name__ == "__main__":
    # Once more, under its own name: messages must be of the same classes here and at the host.
    from elasticutor.runtime import zygote

    zygote.main(sys.argv[1:])
