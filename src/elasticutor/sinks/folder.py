"""A folder anywhere that `pyarrow.fs` reaches, in which files appear whole or not at all."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

from pyarrow import fs

from elasticutor.errors import BadValueError
from elasticutor.sinks.base import SinkError
from elasticutor.state.checkpoint.location import make_folders, sync

_SCHEMES = ("file", "hdfs", "viewfs", "s3", "gs", "gcs", "abfs", "abfss")
_OBJECTS = ("s3", "gcs", "abfs")  # where there are no folders, only names with slashes in them


def require_uri(uri: Any) -> str:
    """Return a location as text; a path without a scheme becomes absolute, as of this process."""
    text = os.fspath(uri) if isinstance(uri, os.PathLike) else uri
    scheme, found, _ = text.partition("://") if isinstance(text, str) else ("", "", "")
    if not isinstance(text, str) or not text or (found and scheme not in _SCHEMES):
        *most, last = (f"{name}://" for name in _SCHEMES)
        must = f"be a path, or begin with {', '.join(most)} or {last}"
        raise BadValueError("uri", must, uri, "for others give filesystem=…, and the path in it")
    return text if found else str(Path(text).absolute())


class Folder:
    """Files by their names, which are relative to the folder."""

    def __init__(self, filesystem: fs.FileSystem, path: str) -> None:
        self._fs = filesystem
        self._path = path.rstrip("/") or path
        self._local = isinstance(filesystem, fs.LocalFileSystem)

    @classmethod
    def at(cls, uri: str, filesystem: fs.FileSystem | None = None) -> Folder:
        """Return the folder that a URI names, or a path in a given file system."""
        if filesystem is not None:
            return cls(filesystem, uri)
        return cls(*fs.FileSystem.from_uri(uri))

    def make(self, name: str = "") -> None:
        """Make a folder in it, or itself, where the file system has folders."""
        if self._fs.type_name in _OBJECTS:
            return
        if self._local:
            make_folders(Path(self._at(name)))
        else:
            self._fs.create_dir(self._at(name), recursive=True)

    def create(self, name: str) -> Any:
        """Return a stream to a new file."""
        return self._fs.open_output_stream(self._at(name))

    def open(self, name: str) -> Any:
        """Return a file to read."""
        return self._fs.open_input_file(self._at(name))

    def names(self, name: str = "") -> list[str]:
        """Return the files in a folder in it, or in itself, without those further down."""
        selector = fs.FileSelector(self._at(name), allow_not_found=True)
        found = self._fs.get_file_info(selector)
        return sorted(info.base_name for info in found if info.type == fs.FileType.File)

    def settle(self, *names: str) -> None:
        """Wait until these files, and the folders they are in, would survive a loss of power."""
        if self._local:
            paths = [Path(self._at(name)) for name in names]
            for path in (*paths, *{path.parent for path in paths}):
                sync(path)

    def publish(self, moves: list[tuple[str, str]]) -> None:
        """Move files to their final names; those that are there already stay as they are.

        Raises:
            SinkError: One is in neither place.
        """
        for source, target in moves:
            here, there = self._fs.get_file_info([self._at(source), self._at(target)])
            if here.type == fs.FileType.File:
                # An object store copies, then deletes; between the two, both are there.
                if there.type == fs.FileType.File and there.size == here.size:
                    self.remove(source)
                else:
                    self._fs.move(self._at(source), self._at(target))
            elif there.type != fs.FileType.File:
                must = f"be there as {target} or, before it is published, as {source}"
                hint = "was the folder moved, emptied, or is it on another machine's disk?"
                raise SinkError(f"a committed file of {self._path}", must, "neither", hint)
        if self._local:
            for folder in {Path(self._at(name)).parent for move in moves for name in move}:
                with contextlib.suppress(FileNotFoundError):  # an earlier life's own folder
                    sync(folder)

    def remove(self, name: str) -> None:
        """Remove a file, if it exists."""
        with contextlib.suppress(FileNotFoundError):
            self._fs.delete_file(self._at(name))

    def remove_folder(self, name: str) -> None:
        """Remove a folder in it with all its files, if it exists."""
        with contextlib.suppress(FileNotFoundError):
            self._fs.delete_dir(self._at(name))

    def _at(self, name: str) -> str:
        return f"{self._path}/{name}" if name else self._path

    def __str__(self) -> str:
        return self._path
