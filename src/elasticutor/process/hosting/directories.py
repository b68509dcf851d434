"""The directories of a node: state in shared memory, sockets under a short path, logs.

A *place* is one or two directories named `elasticutor-<uid>-<cluster>-<node>`, readable by their
owner only. State goes to shared memory if there is enough of it (containers often have 64 MB), and
to disk otherwise.

A directory is alive as long as a lock on it is held (`flock`, on the directory itself, so that
there is no moment in which it exists and its lock file does not). The kernel drops the lock when
the last process that has it open has ended: the one that made the place, and the zygote that it was
handed to. So what is left behind need not be guessed from process ids and ages: `remove_stale`
removes what no process holds.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from elasticutor.errors import BadValueError, ElasticutorError

SHARED_MEMORY = "/dev/shm"  # noqa: S108 - the names below it are ours, checked, and private
MIB = 1 << 20
#: Longest path of an `ipc://` socket: the least of what the systems we know allow (macOS: 103).
LONGEST_SOCKET_PATH = 103
#: What of that is kept free for a socket's name.
SOCKET_NAME_ROOM = 32

_PREFIX = f"elasticutor-{os.getuid()}-"
_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")


class DirectoryError(ElasticutorError, RuntimeError):
    """A directory that cannot be had: no room, in use, or another user's."""


@dataclass(slots=True)
class NodeDirectories:
    """A node's directories, and the locks that keep them alive."""

    #: For LMDB environments; in shared memory where there is enough.
    state: Path
    #: For `ipc://` sockets: `SOCKET_NAME_ROOM` bytes are free for a name.
    sockets: Path
    #: For what processes print.
    logs: Path
    #: The directories to remove at the end: hand them to `Zygote.start(owned=...)`.
    owned: tuple[str, ...]
    #: Open files that hold the locks: hand them to `Zygote.start(holding=...)`.
    locks: tuple[int, ...]
    #: Why the state is not in shared memory; empty if it is.
    note: str = ""

    @classmethod
    def make(
        cls,
        cluster: str,
        node: str,
        *,
        need_bytes: int = 256 * MIB,
        shm: str = SHARED_MEMORY,
        tmp: str = "",
        patience_s: float = 10.0,
    ) -> NodeDirectories:
        """Make a node's directories, empty, and lock them.

        Args:
            cluster: Name of the cluster, and
            node: of the node: letters, digits, dots, dashes. Short, for the sake of the sockets.
            need_bytes: How much space must be free for state.
            shm: Where shared memory is; otherwise state goes to the directories of
                `SPARK_LOCAL_DIRS`, or that for temporary files.
            tmp: Where sockets and logs go; default: the directory for temporary files.
            patience_s: How long to wait for an earlier node of this name that is still ending.
        """
        for who, name in (("cluster", cluster), ("node", node)):
            if not _NAME.fullmatch(name):
                raise BadValueError(who, "be 1 to 64 letters, digits, dots and dashes", name)
        directory = f"{_PREFIX}{cluster}-{node}"
        short = _short_base(directory, tmp)
        base, note = _base_for_state(need_bytes, shm)
        owned = tuple(dict.fromkeys([str(base / directory), str(short / directory)]))
        locks: list[int] = []
        try:
            for root in owned:
                locks.append(_make_locked(root, patience_s))  # noqa: PERF401 - closed on error
        except BaseException:
            for fd, root in zip(locks, owned, strict=False):
                _remove_and_unlock(fd, root)
            raise
        state, near = base / directory / "state", short / directory
        for path in (state, near / "sockets", near / "logs"):
            path.mkdir(mode=0o700)
        return cls(state, near / "sockets", near / "logs", owned, tuple(locks), note)

    def remove(self) -> None:
        """Remove everything and drop the locks; idempotent."""
        locks, self.locks = self.locks, ()
        for root in self.owned if locks else ():
            remove_directory(root)
        for fd in locks:
            os.close(fd)


def remove_directory(path: str, patience_s: float = 5.0) -> bool:
    """Remove a directory with everything in it; True if it is gone then.

    Tried again for a while: a process that was just killed may still be putting files there.
    """
    deadline = time.monotonic() + patience_s
    while os.path.lexists(path):
        if Path(path).is_symlink():  # Whatever it leads to was not ours to remove.
            return False
        shutil.rmtree(path, ignore_errors=True)
        if os.path.lexists(path):
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)
    return True


def remove_stale(*bases: str) -> list[str]:
    """Remove this user's directories that no process holds any more; returns which.

    By default it looks everywhere that a node has directories by default.
    """
    where = bases or (SHARED_MEMORY, *_usual_fallbacks(), "/tmp")  # noqa: S108
    removed = []
    for base in dict.fromkeys(where):
        for root in _ours(base):
            try:
                fd = _lock(root)
            except (DirectoryError, OSError):  # Another user's, or gone in the meantime.
                continue
            if fd is not None:
                removed += [root] if _remove_and_unlock(fd, root) else []
    return removed


def _ours(base: str) -> Iterator[str]:
    with suppress(OSError):  # No such directory, or not to be read by us.
        yield from sorted(str(path) for path in Path(base).glob(f"{_PREFIX}*"))


def _make_locked(root: str, patience_s: float) -> int:
    """Make this directory, and hold its lock."""
    deadline = time.monotonic() + patience_s
    while True:
        made = _make_directory(root)
        with suppress(FileNotFoundError):  # another process that removes stale ones was quicker
            fd = _lock(root)
            if fd is not None and made:
                os.fchmod(fd, 0o700)
                return fd
            if fd is not None:
                _remove_and_unlock(fd, root)
        if time.monotonic() > deadline:
            must, hint = "be of one node at a time", "give the node a new name"
            raise DirectoryError(root, must, "in use", hint)
        if not made:
            time.sleep(0.02)


def _make_directory(root: str) -> bool:
    try:
        Path(root).mkdir(mode=0o700)
    except FileExistsError:
        return False
    return True


def _lock(root: str) -> int | None:
    """An open file that holds this directory's lock; None if another process holds it."""
    try:
        fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        if error.errno not in (errno.ENOTDIR, errno.ELOOP):
            raise
        got = "a symbolic link or a file"
        raise DirectoryError(root, "be a directory", got, "remove it") from None
    try:
        found = os.fstat(fd)
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
            raise DirectoryError(root, f"be owned by user {os.getuid()}", found.st_uid, "remove it")
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Between opening and locking it may have been removed, and another one made in its stead.
        if not os.path.samestat(found, os.lstat(root)):
            raise FileNotFoundError(root)
    except BlockingIOError:
        os.close(fd)
        return None
    except BaseException:
        os.close(fd)
        raise
    return fd


def _remove_and_unlock(fd: int, root: str) -> bool:
    # In this order: a process that waits for the lock then finds that its directory is gone, and
    # makes another one.
    try:
        return remove_directory(root)
    finally:
        os.close(fd)


def _usual_fallbacks() -> tuple[str, ...]:
    spark = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")
    return (*(path for path in spark if path), tempfile.gettempdir())


def _base_for_state(need_bytes: int, shm: str) -> tuple[Path, str]:
    free = {base: _free_bytes(base) for base in dict.fromkeys((shm, *_usual_fallbacks()))}
    chosen = next((base for base, room in free.items() if room >= need_bytes), None)
    if chosen is None:
        raise DirectoryError(
            "a directory for state",
            f"have {need_bytes // MIB} MiB free",
            {base: f"{room // MIB} MiB" for base, room in free.items()},
            "give the container more shared memory (docker: --shm-size), or set SPARK_LOCAL_DIRS",
        )
    if chosen == shm:
        return Path(shm), ""
    note = (
        f"state is kept in {chosen}, which may be a disk: {shm} has {free[shm] // MIB} MiB free, "
        f"and {need_bytes // MIB} MiB are asked for"
    )
    return Path(chosen), note


def _free_bytes(base: str) -> int:
    """The bytes that may still be written there; 0 where writing is not allowed."""
    try:
        found = os.statvfs(base)
    except OSError:
        return 0
    return found.f_bavail * found.f_frsize if os.access(base, os.W_OK | os.X_OK) else 0


def _short_base(directory: str, tmp: str) -> Path:
    longest = LONGEST_SOCKET_PATH - SOCKET_NAME_ROOM
    tried = [tmp] if tmp else [tempfile.gettempdir(), "/tmp"]  # noqa: S108
    paths = [Path(base) / directory / "sockets" for base in tried]
    for base, path in zip(tried, paths, strict=True):
        if len(os.fsencode(path)) < longest and os.access(base, os.W_OK | os.X_OK):
            return Path(base)
    raise BadValueError(
        "the directory for sockets",
        f"be writable, with a path shorter than {longest} bytes",
        str(paths[-1]),
        "give cluster and node shorter names, or set TMPDIR to a shorter path",
    )
