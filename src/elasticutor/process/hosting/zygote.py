"""A fork server: where the processes of a node come from, and what ends them all.

Starting a Python that knows numpy, Arrow and ZeroMQ takes half a second; forking one that knows
them takes a few milliseconds, and its memory is shared. So the *host* (the Python worker of a Spark
task) starts one *zygote*, a fresh interpreter without threads, and the zygote forks everything
else: node processes, main processes, tasks.

```
host ──connection── zygote ──forks──▶ node process ──connection── zygote ──forks──▶ main process,
                                                                                     task, ...
```

A *connected* process asks for forks and learns when they end. **Nothing survives:**

- The host ends, in whatever way: the zygote sees its connection end, kills and reaps every process,
  removes the directories it owns, and ends. It is in a session of its own and ignores Ctrl-C and
  hang-ups, so that it lives to do so.
- The zygote is killed: its processes die by their lifelines (`process.hosting.lifeline`), and the
  host, which sees the connection end, removes the directories.
- A connected process ends: all that was forked on its behalf is killed, and when it has ended too,
  the one that asked for the connected process learns of it.

Each process leads a process group of its own, so that what an operator starts is killed with it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import IO, Self

from elasticutor.errors import BadValueError, ElasticutorError
from elasticutor.process.hosting.directories import remove_directory

# No library may start threads: a fork does not take them along, and a task has one core anyway.
_NO_THREADS = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
}


class ZygoteError(ElasticutorError, RuntimeError):
    """The zygote could not be started, or has gone."""

    def __init__(self, who: str, must: str, got: object, hint: str = "", said: str = "") -> None:
        super().__init__(who, must, got, hint)
        self.said = said

    def __str__(self) -> str:
        sentence = super().__str__()
        return f"{sentence}. What it said:\n{self.said}" if self.said else sentence


@dataclass(frozen=True, slots=True)
class Fork:
    """Asks for a process that calls a function, and ends when the function returns."""

    #: Unique among the living processes of the one that asks. Also its name in `ps` and `top`.
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
    """A process was forked."""

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
    """How a connected process asks for others, and learns what became of them.

    Nothing here waits for an answer. Poll `fileno()`, and `receive()` when there is something.
    """

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        #: Processes asked for that have not ended: name to process id, 0 until it is known.
        self.living: dict[str, int] = {}

    def fork(self, request: Fork) -> None:
        """Ask for a process; `Forked` and, in the end, `Ended` answer."""
        if request.name in self.living:
            must = "not be that of a living one"
            raise BadValueError("name of a process", must, request.name, "await its end")
        self._send(request)
        self.living[request.name] = 0

    def kill(self, name: str) -> None:
        """Ask for a process to be killed at once; `Ended` answers."""
        self._send(Kill(name))

    def receive(self) -> Iterator[Forked | Ended]:
        """The messages that are here; never waits for more.

        Raises:
            ZygoteError: The zygote has gone, and all of its messages have been received.
        """
        events: list[Forked | Ended] = []
        try:
            while self.connection.poll():
                events.append(self._note(self.connection.recv()))
        except (EOFError, OSError):
            if not events:
                raise self._gone() from None
        return iter(events)

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
        ...         for event in zygote.receive():
        ...             print(type(event).__name__, event.name)
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
        timeout_s: float = 60.0,
    ) -> Zygote:
        """Start a zygote, and wait until it can fork.

        Args:
            owned: Directories to remove at the end, however it comes; also if the start fails.
            holding: Open files that the zygote holds while it lives, and its processes do not:
                the locks of `NodeDirectories`.
            path: Where modules are looked for; default: where this process looks for them.
            timeout_s: How long it may take to start.
        """
        for directory in owned:
            if not Path(directory).is_absolute():
                raise BadValueError("a directory to own", "be an absolute path", directory)
        ours, theirs = Pipe()
        with tempfile.TemporaryFile() as printed:
            with theirs, _standard_error() as stderr:
                process = subprocess.Popen(  # noqa: S603 - this very Python, and words of ours
                    [
                        *(sys.executable, "-P", "-m", "elasticutor.process.hosting.zygote"),
                        *map(str, (theirs.fileno(), stderr.fileno(), os.getpid())),
                        *owned,
                    ],
                    stdin=subprocess.DEVNULL,
                    stdout=printed,
                    stderr=printed,
                    pass_fds=(theirs.fileno(), stderr.fileno(), *holding),
                    start_new_session=True,
                    env={**os.environ, **_NO_THREADS, "PYTHONPATH": _joined(path)},
                )
            zygote = cls(process, ours, owned)
            zygote._await_ready(printed, timeout_s)
        return zygote

    def stop(self, timeout_s: float = 10.0) -> None:
        """End all processes and the zygote, and remove the directories; idempotent."""
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

    def __exit__(self, *raised: object) -> None:
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


if __name__ == "__main__":
    # Under its own name: messages must be of the same classes here and at the host.
    from elasticutor.process.hosting import zygote_server

    zygote_server.main(sys.argv[1:])
