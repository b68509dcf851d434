from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pyarrow import fs

from elasticutor.errors import BadValueError
from elasticutor.state.checkpoint import AbsentError, Location, StorageError


class Bucket(fs.FileSystemHandler):  # type: ignore[misc]
    """An object store: no folders to make, nothing is renamed, a file appears when it is closed."""

    def __init__(self, root: Path) -> None:
        self._inner = fs.LocalFileSystem()
        self._root = root

    def _at(self, path: str) -> str:
        return str(self._root / path)

    def get_type_name(self) -> str:
        return "s3"

    def get_file_info(self, paths: list[str]) -> list[fs.FileInfo]:
        return [
            fs.FileInfo(path, info.type, size=info.size)
            for path in paths
            for info in [self._inner.get_file_info(self._at(path))]
        ]

    def get_file_info_selector(self, selector: fs.FileSelector) -> list[fs.FileInfo]:
        inner = fs.FileSelector(self._at(selector.base_dir), selector.allow_not_found)
        found = self._inner.get_file_info(inner)
        return [fs.FileInfo(f"{selector.base_dir}/{i.base_name}", i.type) for i in found]

    def delete_file(self, path: str) -> None:
        self._inner.delete_file(self._at(path))

    def open_input_file(self, path: str) -> Any:
        return self._inner.open_input_file(self._at(path))

    def open_output_stream(self, path: str, metadata: Any) -> Any:
        Path(self._at(path)).parent.mkdir(parents=True, exist_ok=True)
        return self._inner.open_output_stream(self._at(path))

    def __getattr__(self, name: str) -> Any:
        raise NotImplementedError(name)

    create_dir = delete_dir = delete_dir_contents = delete_root_dir_contents = move = None
    copy_file = open_input_stream = open_append_stream = normalize_path = None


Bucket.__abstractmethods__ = frozenset()


def locations(where: Path) -> list[Location]:
    memory, _ = fs.FileSystem.from_uri("mock:///")
    bucket = Location("s3://bucket/folder", fs.PyFileSystem(Bucket(where)), "bucket/folder")
    bucket._put_is_atomic = True  # as its type would say, were it not wrapped
    return [Location.at(str(where / "disk")), Location("mock:///a", memory, "a"), bucket]


@pytest.fixture(params=["disk", "renaming", "bucket"])
def location(request: pytest.FixtureRequest, tmp_path: Path) -> Location:
    names = ["disk", "renaming", "bucket"]
    return locations(tmp_path)[names.index(request.param)]


def test_what_is_written_can_be_read_listed_replaced_and_removed(location: Location) -> None:
    assert location.names("folder") == []
    location.write("folder/b", b"one")
    location.write("folder/a", b"")
    location.write("folder/b", b"two")
    assert location.names("folder") == ["a", "b"]
    assert location.read("folder/b").to_pybytes() == b"two"
    assert (location.size("folder/b"), location.size("folder/a")) == (3, 0)
    location.remove("folder/b")
    location.remove("folder/b")
    location.remove("nowhere/b")
    assert location.names("folder") == ["a"]
    assert location.unfinished("folder") == []


def test_a_file_that_is_not_there_is_named(location: Location) -> None:
    for ask in (location.read, location.size):
        with pytest.raises(AbsentError, match="folder/x"):
            ask("folder/x")


@pytest.mark.parametrize("uri", ["", "  ", "htp://x/y", "s3://", "file://host/x", "a\0b", 5, None])
def test_a_uri_that_cannot_be_is_refused(uri: Any) -> None:
    with pytest.raises(BadValueError, match="location of a checkpoint must"):
        Location.at(uri)


def test_paths_and_file_uris_are_the_same_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    Location.at(tmp_path / "a b").write("x", b"1")
    for uri in ("a b", "~/a b", f"{tmp_path}/a b/", f"file://{tmp_path}/a%20b"):
        assert Location.at(uri).names("") == ["x"]


def test_a_relative_path_stays_what_it_was_in_another_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    made = Location.at("here")
    made.write("x", b"1")
    monkeypatch.chdir("/")
    twin = pickle.loads(pickle.dumps(made))  # noqa: S301 (our own)
    assert twin.names("") == ["x"]


def test_what_a_writer_that_died_left_is_told_apart(tmp_path: Path) -> None:
    location = Location.at(tmp_path)
    location.write("folder/a", b"1")
    (tmp_path / "folder/.b.0123456789ab.tmp").write_bytes(b"")
    assert location.names("folder") == ["a"]
    assert location.unfinished("folder") == [(".b.0123456789ab.tmp", "b")]


def test_a_file_in_the_way_of_a_folder_is_named_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "folder").write_text("in the way")
    location = Location.at(tmp_path)
    with pytest.raises(StorageError, match=r"folder/a must be written; got .* Hint: "):
        location.write("folder/a", b"1")
    with pytest.raises(StorageError, match=r"a file is where a folder should be"):
        location.names("folder")


def test_a_writer_that_fails_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    location = Location.at(tmp_path)
    location.write("a", b"before")

    def fail(number: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("elasticutor.state.checkpoint.location.os.fsync", fail)
    with pytest.raises(
        StorageError, match=r"/a must be written; got No space left on device\. Hint"
    ):
        location.write("a", b"after")
    assert location.read("a").to_pybytes() == b"before"
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_many_threads_may_write_and_read(location: Location) -> None:
    def work(number: int) -> bytes:
        location.write(f"folder/{number % 4}", bytes([number]) * 1000)
        return bytes(location.read(f"folder/{number % 4}").to_pybytes())

    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(work, range(40)):
            assert found == found[:1] * 1000
