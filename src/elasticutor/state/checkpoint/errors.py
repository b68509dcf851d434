"""What can be the matter with a checkpoint, by name; `elasticutor.errors` draws the tree."""

from __future__ import annotations

import errno
from typing import Final

import pyarrow as pa

from elasticutor.errors import ElasticutorError, Words

STORAGE_FAULTS: Final = (OSError, pa.ArrowException)
"""What `pyarrow.fs` and the operating system raise."""

_HINTS: Final[dict[int, str]] = {
    errno.ENOSPC: "make room there or give another location; the last committed epoch is intact",
    errno.EDQUOT: "the quota is used up: make room there or give another location",
    errno.EFBIG: "files may not grow this large here: see ulimit -f",
    errno.EACCES: "let this user write there (chmod, chown), or give another location",
    errno.EPERM: "let this user write there (chmod, chown), or give another location",
    errno.EROFS: "it is mounted read-only: mount it for writing, or give another location",
    errno.ENOTDIR: "a file is where a folder should be: move it away, or give another location",
    errno.EISDIR: "a folder is where a file should be: move it away",
    errno.EEXIST: "something else is in its place: move it away",
    errno.ENOENT: "the folder is gone, or the bucket does not exist: make it, or correct the URI",
    errno.EIO: "the disk fails: see the system's log",
    errno.ESTALE: "the network file system was remounted: start again",
}


class CheckpointError(ElasticutorError, RuntimeError):
    """A checkpoint that cannot be used, or not for this."""


class DamagedError(CheckpointError):
    """A file is not as it was written: torn, changed, or gone."""


class LayoutError(CheckpointError):
    """A file is of a layout that this version does not read."""


class MismatchError(CheckpointError):
    """What is in the checkpoint does not fit the topology."""


class InUseError(CheckpointError):
    """Another run has the checkpoint."""


class UncertainError(CheckpointError):
    """It is not known whether an epoch was committed: the storage does not answer.

    The next one to open the checkpoint will see.
    """


class StorageError(CheckpointError):
    """The storage does not do what is asked of it."""


class AbsentError(StorageError):
    """There is no such file."""


def refused(path: str, must: str, error: Exception) -> StorageError:
    """What the storage said, with the path and what to do about it."""
    number = error.errno if isinstance(error, OSError) else None
    said = (isinstance(error, OSError) and error.strerror) or str(error)
    # Arrow also says where in its own sources; one line is enough.
    words = Words(said.splitlines()[0] if said else type(error).__name__)
    hint = "see whether the storage can be reached, and whether this user may use it"
    if number is not None:
        hint = _HINTS.get(number, hint)
    kind = AbsentError if isinstance(error, FileNotFoundError) else StorageError
    return kind(path, must, words, hint)
