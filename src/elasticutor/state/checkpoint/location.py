"""Where a checkpoint is: a folder on a disk, in HDFS or in an object store."""

from __future__ import annotations

import contextlib
import os
import posixpath
import re
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import pyarrow as pa
from pyarrow import fs

from elasticutor.errors import BadValueError
from elasticutor.state.checkpoint.errors import STORAGE_FAULTS, AbsentError, refused

_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_PUT_IS_ATOMIC: Final = frozenset({"s3", "gcs", "abfs"})
_TEMPORARY: Final = re.compile(r"\.(?P<name>.+)\.[0-9a-f]{12}\.tmp")


class Location:
    """A folder that all nodes and the driver reach, by a path or a URI.

    Several threads may use one, and it can be pickled. Paths are relative to the folder, with `/`
    between their parts.

    What is written appears whole or not at all, and is durable when `write` returns. On disks and
    in HDFS it is written under another name and then renamed; on a disk also `fsync`ed, its folder
    included. In object stores a file appears when it is complete, anyway.
    """

    def __init__(self, uri: str, filesystem: fs.FileSystem, root: str) -> None:
        self.uri = uri
        self._filesystem = filesystem
        self._root = root.rstrip("/")
        self._local = isinstance(filesystem, fs.LocalFileSystem)
        self._put_is_atomic = filesystem.type_name in _PUT_IS_ATOMIC

    @classmethod
    def at(cls, uri: str | os.PathLike[str]) -> Location:
        """The location with this URI: a path, or `file://`, `hdfs://`, `s3://`, `gs://` and so on.

        A path that is relative or begins with `~` is made whole here and now, because other
        processes have other working directories.
        """
        text: Any = os.fspath(uri) if isinstance(uri, os.PathLike) else uri
        if not isinstance(text, str) or not text.strip() or "\0" in text:
            raise BadValueError("location of a checkpoint", "be a path or a URI", uri)
        if not _SCHEME.match(text):
            path = os.path.abspath(os.path.expanduser(text))  # noqa: PTH100, PTH111 (text stays)
            return cls(path, fs.LocalFileSystem(), path)
        if text.startswith("file://"):
            return cls(text, fs.LocalFileSystem(), _path_of(text))
        try:
            filesystem, root = fs.FileSystem.from_uri(text)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            hint = f"{str(error).splitlines()[0]}; known are file, hdfs, s3, gs and abfs"
            raise BadValueError("location of a checkpoint", "be a URI", text, hint) from error
        except STORAGE_FAULTS as error:
            raise refused(text, "be reachable", error) from error
        if not root.strip("/"):
            hint = "name a bucket or folder, as in s3://bucket/folder"
            raise BadValueError("location of a checkpoint", "name a folder", text, hint)
        return cls(text, filesystem, root)

    @property
    def identity(self) -> str:
        """The same for all ways to write one location."""
        if self._local:
            return f"file:{os.path.realpath(self._root)}"
        return f"{self._filesystem.type_name}:{posixpath.normpath(self._root)}"

    def __reduce__(self) -> tuple[Any, ...]:
        return Location.at, (self.uri,)

    def __repr__(self) -> str:
        return f"Location.at({self.uri!r})"

    def full(self, path: str) -> str:
        """The whole path of a file, for messages."""
        return f"{self._root}/{path}" if self._local else f"{self.uri.rstrip('/')}/{path}"

    def write(self, path: str, data: pa.Buffer | bytes) -> None:
        """Let there be a file with this content, instead of what may have been there.

        If that fails, there is at most what was there before.
        """
        place = f"{self._root}/{path}"
        with self._naming(path, "be written"):
            if self._local:
                _write_local(place, data)
            elif self._put_is_atomic:
                self._put(place, data)
            else:
                self._put_and_rename(place, data)

    def read(self, path: str) -> pa.Buffer:
        """The content of a file; raises `AbsentError` if there is none."""
        place = f"{self._root}/{path}"
        with self._naming(path, "be readable"):
            if self._local:
                return pa.py_buffer(Path(place).read_bytes())
            with self._filesystem.open_input_file(place) as file:
                return file.read_buffer()

    def size(self, path: str) -> int:
        """How many bytes a file has; raises as `read` does."""
        place = f"{self._root}/{path}"
        with self._naming(path, "be readable"):
            if self._local:
                return Path(place).stat().st_size
            info = self._filesystem.get_file_info(place)
        if info.type is fs.FileType.NotFound:
            raise AbsentError(self.full(path), "be there", "nothing")
        return int(info.size or 0)

    def names(self, folder: str) -> list[str]:
        """What is in a folder, by name and in order; nothing if there is no such folder."""
        return [name for name in self._entries(folder) if not _TEMPORARY.fullmatch(name)]

    def unfinished(self, folder: str) -> list[tuple[str, str]]:
        """Files under a temporary name: being written, or left by a writer that died.

        Each as the name that it has and the one that it was to have.
        """
        found = ((name, _TEMPORARY.fullmatch(name)) for name in self._entries(folder))
        return [(name, match["name"]) for name, match in found if match]

    def remove(self, path: str) -> None:
        """Let a file not be there; it may be gone already."""
        place = f"{self._root}/{path}"
        try:
            if self._local:
                Path(place).unlink(missing_ok=True)
            else:
                self._filesystem.delete_file(place)
        except STORAGE_FAULTS as error:
            named = refused(self.full(path), "be removable", error)
            if isinstance(named, AbsentError) or (not self._local and not self._is_there(place)):
                return
            raise named from error

    @contextlib.contextmanager
    def _naming(self, path: str, must: str) -> Iterator[None]:
        """Name the file in what the storage refuses."""
        try:
            yield
        except STORAGE_FAULTS as error:
            raise refused(self.full(path), must, error) from error

    def _entries(self, folder: str) -> list[str]:
        place = f"{self._root}/{folder}"
        try:
            if self._local:
                return sorted(os.listdir(place))  # noqa: PTH208 (names, not paths)
            found = self._filesystem.get_file_info(fs.FileSelector(place, allow_not_found=True))
        except FileNotFoundError:
            return []
        except STORAGE_FAULTS as error:
            raise refused(self.full(folder), "be a readable folder", error) from error
        return sorted(info.base_name for info in found)

    def _is_there(self, place: str) -> bool:
        try:
            found = self._filesystem.get_file_info(place)
        except STORAGE_FAULTS:
            return True
        return found.type is not fs.FileType.NotFound

    def _put(self, place: str, data: pa.Buffer | bytes) -> None:
        try:
            with self._filesystem.open_output_stream(place) as file:
                file.write(data)
        except BaseException:
            # A stream that is closed after a fault may leave the part that was written.
            with contextlib.suppress(*STORAGE_FAULTS):
                self._filesystem.delete_file(place)
            raise

    def _put_and_rename(self, place: str, data: pa.Buffer | bytes) -> None:
        folder, _, _ = place.rpartition("/")
        self._filesystem.create_dir(folder, recursive=True)
        temporary = _temporary(place)
        self._put(temporary, data)
        try:
            self._filesystem.move(temporary, place)
        except STORAGE_FAULTS:
            # HDFS does not rename over a file that is there.
            if self._filesystem.get_file_info(place).type is fs.FileType.NotFound:
                self._filesystem.delete_file(temporary)
                raise
            self._filesystem.delete_file(place)
            self._filesystem.move(temporary, place)


def _write_local(place: str, data: pa.Buffer | bytes) -> None:
    folder = Path(place).parent
    make_folders(folder)
    temporary = Path(_temporary(place))
    try:
        with temporary.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(place)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    sync(folder)


def make_folders(folder: Path) -> None:
    """Make a local folder, and the folders above it, so that they survive a loss of power."""
    missing = [one for one in (folder, *folder.parents) if not one.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for made in missing:
        sync(made.parent)


def sync(path: Path) -> None:
    """Wait until a file, or the entries of a folder, would survive a loss of power."""
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def _temporary(place: str) -> str:
    folder, _, name = place.rpartition("/")
    return f"{folder}/.{name}.{secrets.token_hex(6)}.tmp"


def _path_of(uri: str) -> str:
    parts = urlsplit(uri)
    if parts.netloc not in ("", "localhost") or parts.query or parts.fragment or not parts.path:
        hint = "write file:///folder with three slashes, or the path alone"
        raise BadValueError("location of a checkpoint", "name a folder of this machine", uri, hint)
    return unquote(parts.path)
