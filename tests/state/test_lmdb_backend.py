"""What only a shared store promises: several processes, transactions, and an end of room."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import resource
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import lmdb
import pytest

from elasticutor.core.protocol.ids import Attempt, Epoch, ShardId
from elasticutor.errors import (
    BadValueError,
    OutOfOrderError,
    ProtocolError,
    StaleAttemptError,
    StateFullError,
)
from elasticutor.state.backend import MISSING
from elasticutor.state.levels import Levels
from elasticutor.state.lmdb_backend import LmdbBackend

S0, S1 = ShardId(0), ShardId(1)
A1, A2 = Attempt(1), Attempt(2)
WAIT_S = 60
SPAWN = multiprocessing.get_context("spawn")


@pytest.fixture
def backend(tmp_path: Path) -> Iterator[LmdbBackend]:
    with LmdbBackend.create(str(tmp_path), map_size=2**24) as backend:
        yield backend


# Other processes --------------------------------------------------------------------------------


def told(connection: Connection) -> Any:
    assert connection.poll(WAIT_S), "the other process says nothing"
    return connection.recv()


@contextmanager
def other_process(
    work: Callable[[str, Connection], None], path: str
) -> Iterator[tuple[Connection, int]]:
    """Runs `work` over the same environment; it must have ended, or been ended, in the end."""
    here, there = SPAWN.Pipe()
    process = SPAWN.Process(target=work, args=(path, there))
    process.start()
    there.close()
    assert process.pid is not None
    try:
        yield here, process.pid
        process.join(WAIT_S)
        assert process.exitcode is not None
    finally:
        if process.is_alive():
            process.kill()
            process.join()
        process.close()
        here.close()


def write_when_told(path: str, connection: Connection) -> None:
    with LmdbBackend.attach(path) as backend:
        task = Levels(backend)
        connection.send(backend.map_size)
        while (order := told(connection)) is not None:
            attempt, epoch, value = order
            try:
                task.write(Attempt(attempt), Epoch(epoch), S0, [(b"k", value)])
                connection.send(task.read(S0, b"k"))
            except StaleAttemptError as error:
                connection.send(str(error))


def test_a_writer_of_a_past_attempt_is_refused_once_another_process_has_rolled_back(
    backend: LmdbBackend,
) -> None:
    keeper = Levels.create(backend, attempt=A1, committed=Epoch(0))
    with other_process(write_when_told, backend.path) as (task, _):
        assert told(task) == 2**24
        task.send((1, 1, b"one"))
        assert told(task) == b"one"
        keeper.commit(Epoch(1))
        task.send((1, 2, b"two"))
        assert told(task) == b"two"
        assert keeper.read(S0, b"k") == b"two"
        keeper.roll_back(A2, Epoch(1), keep=[S0])
        task.send((1, 2, b"stale"))
        assert "must be 2 or later; got 1" in told(task)
        assert keeper.read(S0, b"k") == b"one"
        task.send((2, 2, b"new"))
        assert told(task) == b"new"
        assert keeper.read(S0, b"k") == b"new"
        task.send(None)


def write_stale_while_a_transaction_is_open(path: str, connection: Connection) -> None:
    with LmdbBackend.attach(path) as backend:
        connection.send("about to write")
        try:
            Levels(backend).write(A1, Epoch(1), S0, [(b"k", b"stale")])
            connection.send("written")
        except StaleAttemptError:
            connection.send("refused")


def test_a_writer_that_waits_for_a_roll_back_sees_its_fence(backend: LmdbBackend) -> None:
    """It reads the fence after it has got its turn, not before: or it would write stale state."""
    keeper = Levels.create(backend, attempt=A1, committed=Epoch(0))
    with other_process(write_stale_while_a_transaction_is_open, backend.path) as (task, _):
        with backend.transaction():
            assert told(task) == "about to write"
            keeper.roll_back(A2, Epoch(0), keep=[])
        assert told(task) == "refused"
    assert keeper.contents() == {}


def stop_within_a_write(path: str, connection: Connection) -> None:
    backend = LmdbBackend.attach(path)
    backend.put("t", S0, [(b"done", b"1")])
    with backend.transaction():
        # More than fits in memory pages at first, so that the tree is split and rebuilt.
        backend.put("t", S0, [(b"%d" % number, b"x" * 1000) for number in range(2000)])
        backend.remove("t", S0, [b"done", b"kept"])
        connection.send("within")
        told(connection)


def test_a_process_killed_within_a_write_leaves_none_of_it_and_the_store_usable(
    backend: LmdbBackend,
) -> None:
    backend.put("t", S0, [(b"kept", b"1")])
    with other_process(stop_within_a_write, backend.path) as (child, pid):
        assert told(child) == "within"
        os.kill(pid, signal.SIGKILL)
    assert backend.scan("t", S0) == [(b"done", b"1"), (b"kept", b"1")]
    backend.put("t", S0, [(b"after", b"2")])
    assert backend.get("t", S0, b"after") == b"2"


def stop_within_a_reading(path: str, connection: Connection) -> None:
    backend = LmdbBackend.attach(path)
    with backend.reading():
        connection.send(backend.get("t", S0, b"k"))
        told(connection)


def test_a_process_killed_within_a_reading_is_forgotten_when_readers_are_checked(
    backend: LmdbBackend,
) -> None:
    backend.put("t", S0, [(b"k", b"1")])
    with other_process(stop_within_a_reading, backend.path) as (child, pid):
        assert told(child) == b"1"
        assert backend.check_readers() == 0
        os.kill(pid, signal.SIGKILL)
    assert backend.check_readers() == 1
    assert backend.check_readers() == 0


def in_a_fork(work: Callable[[], object]) -> Any:
    """What the work returns, or raises, in a forked process."""
    out, into = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            result: object = work()
        except Exception as error:
            result = error
        os.write(into, pickle.dumps(result))
        os._exit(0)
    os.close(into)
    with os.fdopen(out, "rb") as reader:
        data = reader.read()
    assert os.waitpid(pid, 0) == (pid, 0)
    return pickle.loads(data)  # noqa: S301 (our own)


def test_a_forked_process_is_refused_until_it_attaches_for_itself(backend: LmdbBackend) -> None:
    backend.put("t", S0, [(b"k", b"parent")])

    def attach_anew() -> object:
        backend.close()
        with LmdbBackend.attach(path) as own:
            found = own.get("t", S0, b"k")
            own.put("t", S0, [(b"k", b"child")])
            return found

    path = backend.path
    for use in (
        lambda: backend.get("t", S0, b"k"),
        lambda: backend.put("t", S0, [(b"k", b"child")]),
        lambda: backend.scan("t", S0),
    ):
        error = in_a_fork(use)
        assert isinstance(error, ProtocolError)
        assert "be used by the process that opened it" in str(error)
    assert backend.get("t", S0, b"k") == b"parent"
    assert in_a_fork(attach_anew) == b"parent"
    assert backend.get("t", S0, b"k") == b"child"
    backend.put("t", S0, [(b"k", b"parent again")])
    assert backend.get("t", S0, b"k") == b"parent again"


# Transactions -----------------------------------------------------------------------------------


def test_an_exception_undoes_the_whole_transaction_with_those_that_joined_it(
    backend: LmdbBackend,
) -> None:
    backend.put("t", S0, [(b"a", b"1")])
    backend.save("n", (1,))

    def fail_late() -> None:
        with backend.transaction():
            backend.remove("t", S0, [b"a"])
            with backend.transaction():
                backend.put("t", S1, [(b"b", b"2")])
                backend.save("n", (2,))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_late()
    assert backend.scan("t", S0) == [(b"a", b"1")]
    assert (backend.shards("t"), backend.load("n")) == ((S0,), (1,))


def test_a_transaction_is_not_kept_when_a_part_of_it_failed_unheeded(backend: LmdbBackend) -> None:
    def fail_unheeded() -> None:
        with backend.transaction():
            backend.put("t", S0, [(b"a", b"1")])
            with pytest.raises(ZeroDivisionError), backend.transaction():
                raise ZeroDivisionError

    with pytest.raises(ProtocolError, match="be given up once a part failed"):
        fail_unheeded()
    assert backend.scan("t", S0) == []
    backend.put("t", S0, [(b"a", b"2")])
    assert backend.get("t", S0, b"a") == b"2"


def test_what_cannot_be_read_to_its_end_is_not_put_at_all(backend: LmdbBackend) -> None:
    def items() -> Iterator[tuple[bytes, bytes]]:
        yield b"a", b"1"
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        backend.put("t", S0, items())
    assert backend.shards("t") == ()


def test_nothing_is_written_within_a_reading(backend: LmdbBackend) -> None:
    with backend.reading(), pytest.raises(OutOfOrderError, match="not come within a reading"):
        backend.put("t", S0, [(b"a", b"1")])
    backend.put("t", S0, [(b"a", b"1")])
    assert backend.get("t", S0, b"a") == b"1"


def test_a_reading_sees_one_moment_and_the_next_one_sees_what_came_since(
    backend: LmdbBackend,
) -> None:
    keeper = Levels.create(backend, attempt=A1, committed=Epoch(0))
    with other_process(write_when_told, backend.path) as (task, _):
        told(task)
        with backend.reading():
            assert keeper.read(S0, b"k") is None
            task.send((1, 1, b"one"))
            assert told(task) == b"one"
            assert keeper.read(S0, b"k") is None
        assert keeper.read(S0, b"k") == b"one"
        task.send(None)


# What is held for another thread -----------------------------------------------------------------


def test_another_thread_reads_what_was_held_while_this_one_writes(backend: LmdbBackend) -> None:
    before = [(b"%05d" % number, b"before") for number in range(5000)]
    for shard in (S0, S1):
        backend.put("t", shard, before)
    held = backend.hold("t", [S0, S1])
    with ThreadPoolExecutor(1) as others:
        found = others.submit(held.read)
        writes = 0
        while not found.done() or writes < 10:
            backend.put("t", S0, [(key, b"after") for key, _ in before[:50]])
            backend.drop("t", S1, 50)
            writes += 1
    keys, values = [key for key, _ in before], [value for _, value in before]
    assert found.result() == {S0: (keys, values), S1: (keys, values)}
    assert backend.get("t", S0, keys[0]) == b"after"


def test_what_was_held_cannot_be_read_after_the_store_is_closed(tmp_path: Path) -> None:
    with LmdbBackend.create(str(tmp_path), map_size=2**20) as backend:
        backend.put("t", S0, [(b"k", b"1")])
        held = backend.hold("t", [S0])
    with pytest.raises(ProtocolError, match="store must be open while it is read"):
        held.read()
    held.release()


def test_pages_are_used_again_once_what_was_held_is_read_or_released(tmp_path: Path) -> None:
    with LmdbBackend.create(str(tmp_path), map_size=2**22) as backend:
        for number in range(20):  # ten times what the map can hold
            backend.put("t", S0, MANY)
            held = backend.hold("t", [S0])
            if number % 2:
                assert held.read()[S0][0] == [key for key, _ in MANY]
            held.release()
            backend.drop("t", S0)
        assert backend.shards("t") == ()


# The end of room --------------------------------------------------------------------------------

MANY = [(b"%05d" % number, b"x" * 1000) for number in range(500)]


def test_a_full_map_is_said_so_keeps_nothing_of_the_write_and_remains_usable(
    tmp_path: Path,
) -> None:
    with LmdbBackend.create(str(tmp_path), map_size=2**18) as backend:
        store = Levels.create(backend, attempt=A1, committed=Epoch(0))
        store.write(A1, Epoch(1), S0, MANY[:20])
        with pytest.raises(StateFullError) as caught:
            store.write(A1, Epoch(2), S0, MANY)
        assert str(tmp_path) in str(caught.value)
        assert f"must fit into its map; got '{backend.used_bytes()} bytes used of 262144'" in str(
            caught.value
        )
        assert "Hint: raise the map size" in str(caught.value)
        assert store.uncommitted == (1,)
        assert store.contents() == dict(MANY[:20])
        store.write(A1, Epoch(2), S0, MANY[20:30])
        assert store.contents() == dict(MANY[:30])


def fill_a_small_disk(path: str, connection: Connection) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**18, 2**18))
    with LmdbBackend.create(path, map_size=2**24) as backend:
        backend.put("t", S0, MANY[:20])
        try:
            backend.put("t", S0, MANY)
        except StateFullError as error:
            connection.send(str(error))
        backend.put("t", S1, MANY[20:30])
        connection.send((backend.scan("t", S0), backend.scan("t", S1)))


def test_a_full_disk_is_said_so_keeps_nothing_of_the_write_and_remains_usable(
    tmp_path: Path,
) -> None:
    with other_process(fill_a_small_disk, str(tmp_path)) as (child, _):
        sentence = told(child)
        assert f"state in {tmp_path} must fit on its disk or shared memory" in sentence
        assert "Hint: give more shared memory" in sentence
        assert told(child) == (MANY[:20], MANY[20:30])


def test_the_bytes_in_use_grow_with_the_records_and_shrink_with_them(backend: LmdbBackend) -> None:
    before = backend.used_bytes()
    backend.put("t", S0, MANY)
    full = backend.used_bytes()
    assert before < 500_000 < full < 2**24
    backend.drop("t", S0)
    assert backend.used_bytes() == before


def test_pages_that_were_freed_are_used_again(tmp_path: Path) -> None:
    with LmdbBackend.create(str(tmp_path), map_size=2**22) as backend:
        for _ in range(20):  # ten times what the map can hold
            backend.put("t", S0, MANY)
            backend.drop("t", S0)
        assert backend.shards("t") == ()


# Opening ----------------------------------------------------------------------------------------


def test_what_was_written_is_there_for_who_attaches_later(tmp_path: Path) -> None:
    with LmdbBackend.create(str(tmp_path), map_size=2**23) as backend:
        backend.put("t", S0, [(b"k", b"1")])
    with LmdbBackend.attach(str(tmp_path)) as backend:
        assert (backend.get("t", S0, b"k"), backend.get("t", S0, b"l")) == (b"1", MISSING)
        assert (backend.map_size, backend.path) == (2**23, str(tmp_path))


def test_a_store_is_made_once_and_attached_to_only_when_made(tmp_path: Path) -> None:
    with pytest.raises(BadValueError, match="store must have been created"):
        LmdbBackend.attach(str(tmp_path))
    with pytest.raises(BadValueError, match="store must have been created"):
        LmdbBackend.attach(str(tmp_path / "nowhere"))
    with pytest.raises(BadValueError, match="be at least 65536; got 0"):
        LmdbBackend.create(str(tmp_path), map_size=0)
    with pytest.raises(FileNotFoundError):
        LmdbBackend.create(str(tmp_path / "nowhere"), map_size=2**20)
    with LmdbBackend.create(str(tmp_path), map_size=2**20):
        with pytest.raises(BadValueError, match="have none yet"):
            LmdbBackend.create(str(tmp_path), map_size=2**20)
        with pytest.raises(lmdb.Error, match="already open in this process"):
            LmdbBackend.attach(str(tmp_path))


def test_the_lock_file_has_all_its_pages_from_the_start(backend: LmdbBackend) -> None:
    """A full tmpfs would otherwise end the process that first touches a missing one."""
    lock = Path(backend.path, "lock.mdb").stat()
    assert lock.st_blocks * 512 >= lock.st_size > 512 * 64
    assert lock.st_mode & 0o077 == 0


def test_a_table_needs_a_name_of_reasonable_length(backend: LmdbBackend) -> None:
    for name in ("", "x" * 65):
        with pytest.raises(BadValueError, match="have 1 to 64 bytes"):
            backend.get(name, S0, b"k")
    longest = b"k" * 400
    backend.put("x" * 64, S0, [(longest, b"1"), (longest + b"k", b"2")])
    assert backend.scan("x" * 64, S0, after=longest) == [(longest + b"k", b"2")]
