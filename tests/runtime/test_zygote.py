"""Processes that come and go: real ones, and none of them survives."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from elasticutor.errors import BadValueError
from elasticutor.process.hosting.directories import NodeDirectories, remove_stale
from elasticutor.process.hosting.zygote import Ended, Fork, Forked, Zygote, ZygoteError
from elasticutor.process.hosting.zygote_server import GC_THRESHOLDS

pytestmark = pytest.mark.live

PATIENCE_S = 30.0

# What the processes of these tests do.
_TARGETS = """
import os, select, signal, subprocess, sys, time
from elasticutor.process.hosting.zygote import Fork

def tell(payload):
    print(payload.decode(), sorted(os.sched_getaffinity(0)), open("/proc/self/comm").read().strip())

def leave(payload):
    sys.exit(int(payload))

def kill_itself(payload):
    print("last words")
    os.kill(os.getpid(), int(payload))

def fail(payload):
    raise ValueError(payload.decode())

def crash(payload):
    import ctypes
    ctypes.string_at(0)

def look_around(payload):
    signals = [signal.getsignal(n).name for n in (signal.SIGTERM, signal.SIGCHLD, signal.SIGINT)]
    print([m in sys.modules for m in payload.decode().split()], signals, "blocked:",
          signal.pthread_sigmask(signal.SIG_BLOCK, []))

def collect(payload):
    import gc
    print(gc.isenabled(), gc.get_threshold(), gc.get_freeze_count() > 10_000)

def rest(payload):
    signal.pause()

def start_another(payload):
    print(subprocess.Popen(["sleep", "600"]).pid, flush=True)
    signal.pause()

def node(payload, zygote):
    '''Forks as many tasks as it is told, prints their ids, and says who ended.'''
    for i in range(int(payload)):
        zygote.fork(Fork(f"task-{i}", "zygote_targets:rest"))
    while True:
        select.select([zygote], [], [])
        for told in zygote.receive():
            print(told, flush=True)

def deaf(payload, zygote):
    '''Asks for very much, and never listens.'''
    for i in range(int(payload)):
        zygote.fork(Fork(f"{i}", "zygote_targets:rest", log="/no/such/directory/log"))
    print("asked", flush=True)
    signal.pause()
"""

# A host as Spark has one: killed without a word. Prints the ids of all its processes.
_HOST = """
import os, sys, time
from elasticutor.process.hosting.directories import NodeDirectories
from elasticutor.process.hosting.zygote import Fork, Zygote

base, hidden = sys.argv[1:]
place = NodeDirectories.make("c", "n", need_bytes=1, shm=base, tmp=base)
zygote = Zygote.start(owned=place.owned, holding=place.locks)
if hidden == "connection held by a fork" and os.fork() == 0:
    time.sleep(600)
log = str(place.logs / "node")
zygote.fork(Fork("node", "zygote_targets:node", b"2", connected=True, log=log))
pids = [zygote.pid]
while len(pids) < 2 and zygote.connection.poll(30):
    pids += [told.pid for told in zygote.receive()]
deadline = time.monotonic() + 30
while open(log).read().count("Forked(") < 2 and time.monotonic() < deadline:
    time.sleep(0.01)
print(*pids, *(line.split("pid=")[1].split(")")[0] for line in open(log)), flush=True)
time.sleep(600)
"""


def running(pid: int) -> bool:
    # One that nobody has reaped has ended all the same.
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def wait_until(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not within {PATIENCE_S} s"
        time.sleep(0.005)


def wait_until_none_runs(pids: list[int]) -> None:
    assert pids
    wait_until(lambda: not any(map(running, pids)), f"end of {pids}")


def told_by(zygote: Zygote, count: int) -> list[Forked | Ended]:
    told: list[Forked | Ended] = []
    while len(told) < count:
        assert zygote.connection.poll(PATIENCE_S), f"only {told}"
        told += zygote.receive()
    return told


def end_of(zygote: Zygote, request: Fork) -> Ended:
    zygote.fork(request)
    forked, ended = told_by(zygote, 2)
    assert isinstance(forked, Forked)
    assert isinstance(ended, Ended)
    assert (ended.name, ended.pid) == (request.name, forked.pid)
    assert not psutil.pid_exists(ended.pid)
    return ended


def pids_in(log: Path, count: int) -> list[int]:
    """The ids of the processes that a node has told of."""
    wait_until(lambda: log.exists() and log.read_text().count("Forked(") == count, f"{log}")
    lines = [line for line in log.read_text().splitlines() if line.startswith("Forked(")]
    return [int(line.split("pid=")[1].rstrip(")")) for line in lines]


def start_node(zygote: Zygote, name: str, tasks: int, log: Path) -> tuple[int, list[int]]:
    target = "zygote_targets:node"
    zygote.fork(Fork(name, target, str(tasks).encode(), connected=True, log=str(log)))
    (forked,) = told_by(zygote, 1)
    return forked.pid, pids_in(log, tasks)


@contextmanager
def started_host(
    targets: str, hidden: str = ""
) -> Iterator[tuple[subprocess.Popen[str], Path, list[int]]]:
    """A host, the directory of its place, and the ids of zygote, node and two tasks."""
    with (
        tempfile.TemporaryDirectory(prefix="e-") as base,
        subprocess.Popen(
            [sys.executable, "-c", _HOST, base, hidden],
            env={**os.environ, "PYTHONPATH": os.pathsep.join([targets, *sys.path])},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        ) as host,
    ):
        try:
            assert host.stdout
            pids = [int(pid) for pid in host.stdout.readline().split()]
            assert len(pids) == 4
            assert all(map(running, pids))
            yield host, Path(base), pids
        finally:
            with suppress(ProcessLookupError):
                os.killpg(host.pid, signal.SIGKILL)


@pytest.fixture(scope="module")
def targets(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("targets")
    (path / "zygote_targets.py").write_text(_TARGETS)
    return str(path)


@pytest.fixture(scope="module")
def shared(targets: str) -> Iterator[Zygote]:
    with Zygote.start(path=[*sys.path, targets]) as started:
        yield started
    assert not running(started.pid)


@pytest.fixture
def zygote(shared: Zygote) -> Iterator[Zygote]:
    """One zygote for many tests, each of which finds it without any process."""
    yield shared
    for name in shared.living:
        shared.kill(name)
    while shared.living:
        told_by(shared, 1)
    assert children_of(shared.pid) == []


def children_of(pid: int) -> list[psutil.Process]:
    return list(psutil.Process(pid).children(recursive=True)) if running(pid) else []


def test_a_process_does_its_work_where_it_should_and_ends(zygote: Zygote, tmp_path: Path) -> None:
    (cpu, *_) = sorted(os.sched_getaffinity(0))
    log = tmp_path / "log"
    name = "executor-3-task-12"
    ended = end_of(zygote, Fork(name, "zygote_targets:tell", b"hello", cpus=(cpu,), log=str(log)))
    assert (ended.code, ended.said) == (0, "")
    assert log.read_text() == f"hello [{cpu}] executor-3-task\n"
    assert log.stat().st_mode & 0o777 == 0o600


def test_cores_that_do_not_exist_are_no_reason_not_to_run(zygote: Zygote, tmp_path: Path) -> None:
    log = tmp_path / "log"
    request = Fork("a", "zygote_targets:tell", b"hello", cpus=(100_000,), log=str(log))
    assert end_of(zygote, request).code == 0
    assert log.read_text() == (
        "cannot be pinned to cores [100000] here: runs on any core\n"
        f"hello {sorted(os.sched_getaffinity(0))} a\n"
    )


def test_the_way_a_process_ends_is_told(zygote: Zygote, tmp_path: Path) -> None:
    log = str(tmp_path / "log")
    assert end_of(zygote, Fork("a", "zygote_targets:leave", b"3", log=log)).code == 3
    killed = end_of(zygote, Fork("a", "zygote_targets:kill_itself", b"9", log=log))
    assert (killed.code, killed.said) == (-9, "last words\n")
    failed = end_of(zygote, Fork("a", "zygote_targets:fail", b"no such luck", log=log))
    assert failed.code == 1
    assert failed.said.startswith("Traceback")
    assert failed.said.endswith("ValueError: no such luck\n")
    assert "last words" not in failed.said  # Those were another's.
    crashed = end_of(zygote, Fork("a", "zygote_targets:crash", log=log))
    assert crashed.code == -signal.SIGSEGV
    assert "in crash" in crashed.said
    missing = end_of(zygote, Fork("a", "zygote_targets:nothing", log=log))
    assert "has no attribute 'nothing'" in missing.said
    absent = end_of(zygote, Fork("a", "no_such_module:f", log=log))
    assert "No module named 'no_such_module'" in absent.said


def test_of_a_long_log_the_end_is_told(zygote: Zygote, tmp_path: Path) -> None:
    log = str(tmp_path / "log")
    ended = end_of(zygote, Fork("a", "zygote_targets:fail", b"x" * 10_000 + b"!", log=log))
    assert len(ended.said) == 4096
    assert ended.said.endswith("x!\n")


def test_a_process_that_cannot_be_forked_is_told_as_ended(zygote: Zygote) -> None:
    zygote.fork(Fork("a", "zygote_targets:rest", log="/no/such/directory/log"))
    (ended,) = told_by(zygote, 1)
    assert ended == Ended(
        "a",
        0,
        1,
        "FileNotFoundError: [Errno 2] No such file or directory: '/no/such/directory/log'",
    )
    assert zygote.living == {}


def test_a_process_knows_what_was_loaded_and_has_clean_signals(
    zygote: Zygote, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    modules = (
        b"numpy pyarrow pandas zmq lmdb cloudpickle elasticutor.core.executor.executor pyspark"
    )
    ended = end_of(zygote, Fork("a", "zygote_targets:look_around", modules, log=str(log)))
    assert ended.said == ""
    assert log.read_text() == (
        "[True, True, True, True, True, True, True, False] "
        "['SIG_DFL', 'SIG_DFL', 'SIG_IGN'] blocked: set()\n"
    )


def test_a_process_collects_seldom_and_never_what_was_loaded_before_it(
    zygote: Zygote, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    end_of(zygote, Fork("it", "zygote_targets:collect", log=str(log)))
    assert log.read_text().strip() == f"True {GC_THRESHOLDS} True"


def test_the_zygote_has_one_thread(zygote: Zygote) -> None:
    assert psutil.Process(zygote.pid).num_threads() == 1


def test_a_living_process_can_be_killed_and_its_name_is_taken_until_then(zygote: Zygote) -> None:
    zygote.fork(Fork("a", "zygote_targets:rest"))
    with pytest.raises(BadValueError, match="not be that of a living one; got 'a'"):
        zygote.fork(Fork("a", "zygote_targets:rest"))
    (forked,) = told_by(zygote, 1)
    assert zygote.living == {"a": forked.pid}
    zygote.kill("a")
    zygote.kill("nobody")
    assert told_by(zygote, 1) == [Ended("a", forked.pid, -9, "")]
    assert not psutil.pid_exists(forked.pid)
    assert zygote.living == {}


def test_what_a_process_starts_is_killed_with_it(zygote: Zygote, tmp_path: Path) -> None:
    log = tmp_path / "log"
    zygote.fork(Fork("a", "zygote_targets:start_another", log=str(log)))
    told_by(zygote, 1)
    wait_until(lambda: log.exists() and log.read_text().endswith("\n"), "its pid")
    other = int(log.read_text())
    assert running(other)
    zygote.kill("a")
    told_by(zygote, 1)
    wait_until_none_runs([other])


def test_a_killed_node_takes_its_processes_along(zygote: Zygote, tmp_path: Path) -> None:
    first, tasks = start_node(zygote, "node-1", 3, tmp_path / "1")
    second, others = start_node(zygote, "node-2", 2, tmp_path / "2")
    assert all(map(running, [first, second, *tasks, *others]))
    os.kill(first, signal.SIGKILL)
    (ended,) = told_by(zygote, 1)
    assert isinstance(ended, Ended)
    assert (ended.name, ended.pid, ended.code) == ("node-1", first, -9)
    # Told only when all of them have ended and are reaped.
    assert not any(map(psutil.pid_exists, tasks))
    assert all(map(running, [second, *others]))


def test_a_node_is_told_when_its_processes_end(zygote: Zygote, tmp_path: Path) -> None:
    log = tmp_path / "log"
    _, (task, _) = start_node(zygote, "node", 2, log)
    os.kill(task, signal.SIGKILL)
    wait_until(
        lambda: f"Ended(name='task-0', pid={task}, code=-9, said='')" in log.read_text(), "told"
    )
    assert not list(zygote.receive())  # It is not the host's.


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_processes_have_no_open_files_of_each_other(targets: str, tmp_path: Path) -> None:
    lock = os.open(tmp_path, os.O_RDONLY)
    with Zygote.start(path=[*sys.path, targets], holding=[lock]) as zygote:
        first, tasks = start_node(zygote, "node-1", 1, tmp_path / "1")
        second, others = start_node(zygote, "node-2", 1, tmp_path / "2")
        wait_until(
            lambda: [kinds(pid) for pid in (first, second)] == [["pipe", "socket"]] * 2,
            "nodes with a lifeline and a connection each",
        )
        wait_until(
            lambda: [kinds(pid) for pid in (*tasks, *others)] == [["pipe"]] * 2,
            "tasks with a lifeline only",
        )
        # The lifeline, and not the connection.
        assert len(open_files(first) & open_files(second)) == 1
        assert str(tmp_path) in open_files(zygote.pid)
    os.close(lock)
    wait_until_none_runs([zygote.pid, first, second, *tasks, *others])


def open_files(pid: int) -> set[str]:
    """What this process has open beside its standard streams."""
    paths = Path(f"/proc/{pid}/fd").iterdir()
    with suppress(FileNotFoundError):  # Closed while we look.
        return {str(path.readlink()) for path in paths if int(path.name) > 2}
    return set()


def kinds(pid: int) -> list[str]:
    return sorted(name.split(":")[0] for name in open_files(pid))


def test_a_node_that_does_not_listen_holds_nobody_up(zygote: Zygote, tmp_path: Path) -> None:
    log = tmp_path / "log"
    zygote.fork(Fork("deaf", "zygote_targets:deaf", b"5000", connected=True, log=str(log)))
    told_by(zygote, 1)
    wait_until(lambda: log.read_text() == "asked\n", "all asked for")
    assert end_of(zygote, Fork("a", "zygote_targets:leave", b"0")).code == 0


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGHUP])
def test_what_a_terminal_sends_harms_neither_zygote_nor_processes(
    zygote: Zygote, end: signal.Signals
) -> None:
    zygote.fork(Fork("a", "zygote_targets:rest"))
    (forked,) = told_by(zygote, 1)
    os.killpg(zygote.pid, end)
    os.kill(forked.pid, end)
    assert end_of(zygote, Fork("b", "zygote_targets:leave", b"0")).code == 0
    assert running(forked.pid)


@pytest.mark.parametrize(
    ("end", "hidden"),
    [
        (signal.SIGKILL, ""),
        (signal.SIGHUP, ""),
        (signal.SIGINT, ""),
        (signal.SIGKILL, "connection held by a fork"),
    ],
)
def test_nothing_survives_the_host(targets: str, end: signal.Signals, hidden: str) -> None:
    with started_host(targets, hidden) as (host, base, pids):
        assert [path.name for path in base.iterdir()] == [f"elasticutor-{os.getuid()}-c-n"]
        others = [child.pid for child in children_of(host.pid) if child.pid not in pids]
        if hidden:
            os.kill(host.pid, end)
        else:
            os.killpg(host.pid, end)  # To all of its group, as a terminal does.
        host.wait(PATIENCE_S)
        wait_until_none_runs(pids)
        wait_until(lambda: not list(base.iterdir()), f"{base} empty")
        assert all(map(running, others))  # It outlived everything, as it was meant to.
        assert len(others) == (1 if hidden else 0)


def test_nothing_survives_a_killed_zygote(targets: str, tmp_path: Path) -> None:
    owned = tmp_path / "owned"
    owned.mkdir()
    zygote = Zygote.start(path=[*sys.path, targets], owned=[str(owned)])
    node, tasks = start_node(zygote, "node", 2, owned / "log")
    os.kill(zygote.pid, signal.SIGKILL)
    with pytest.raises(ZygoteError, match="live until it is stopped; got 'exit code -9'"):
        told_by(zygote, 1)
    assert not owned.exists()
    wait_until_none_runs([zygote.pid, node, *tasks])
    with pytest.raises(ZygoteError, match="exit code -9"):
        zygote.fork(Fork("a", "zygote_targets:rest"))
    zygote.stop()


@pytest.mark.parametrize("how", ["stopped", "terminated"])
def test_the_zygote_leaves_nothing_behind_when_it_is(
    how: str, targets: str, tmp_path: Path
) -> None:
    owned = tmp_path / "owned"
    owned.mkdir()
    zygote = Zygote.start(path=[*sys.path, targets], owned=[str(owned)])
    node, tasks = start_node(zygote, "node", 2, owned / "log")
    if how == "terminated":
        os.kill(zygote.pid, signal.SIGTERM)
        wait_until(lambda: not owned.exists(), "removed by the zygote itself")
    zygote.stop()
    zygote.stop()
    assert not owned.exists()
    assert not any(map(psutil.pid_exists, [zygote.pid, node, *tasks]))


def test_a_stopped_host_keeps_its_place_and_a_killed_tree_leaves_a_stale_one(targets: str) -> None:
    with started_host(targets) as (host, base, pids):
        assert remove_stale(str(base)) == []
        os.kill(host.pid, signal.SIGSTOP)  # So that it cannot clean up after its zygote.
        os.kill(pids[0], signal.SIGKILL)
        wait_until_none_runs(pids)
        assert remove_stale(str(base)) == []
        host.kill()
        host.wait(PATIENCE_S)
        assert len(remove_stale(str(base))) == 1


def test_a_machine_without_a_package_is_told_at_once_and_by_name(tmp_path: Path) -> None:
    owned = tmp_path / "owned"
    owned.mkdir()
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "zmq.py").write_text("raise ModuleNotFoundError(\"No module named 'zmq'\")\n")
    with pytest.raises(ZygoteError, match="start; got 'exit code 1'") as caught:
        Zygote.start(path=[str(broken), *sys.path], owned=[str(owned)])
    assert str(caught.value).endswith("ModuleNotFoundError: No module named 'zmq'")
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)  # noqa: S301
    assert not owned.exists()


def test_one_that_does_not_start_in_time_is_given_up(tmp_path: Path) -> None:
    (tmp_path / "zmq.py").write_text("import time; print('waiting', flush=True); time.sleep(600)\n")
    before = set(psutil.Process().children())
    with pytest.raises(ZygoteError, match=r"start; got 'nothing for 0\.5 s'"):
        Zygote.start(path=[str(tmp_path), *sys.path], timeout_s=0.5)
    assert set(psutil.Process().children()) == before


def test_a_relative_directory_is_not_taken_over() -> None:
    with pytest.raises(BadValueError, match="absolute path; got 'here'"):
        Zygote.start(owned=["here"])


def test_a_process_watching_its_lifeline_is_killed_when_the_other_end_is_gone() -> None:
    """What replaces the parent-death signal where there is none."""
    reading, held = os.pipe()
    code = (
        "import sys, time; from elasticutor.process.hosting.lifeline import watch_lifeline;"
        "watch_lifeline(int(sys.argv[1])); print('watching', flush=True); time.sleep(600)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(reading)],
        pass_fds=[reading],
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        os.close(reading)
        assert process.stdout
        assert process.stdout.readline() == "watching\n"
        assert process.poll() is None
        os.close(held)
        assert process.wait(PATIENCE_S) == -signal.SIGKILL


def test_a_place_handed_over_is_gone_with_the_zygote(targets: str) -> None:
    place = NodeDirectories.make("test-zygote", str(os.getpid()), need_bytes=1)
    zygote = Zygote.start(path=[*sys.path, targets], owned=place.owned, holding=place.locks)
    assert place.state.is_dir()
    zygote.stop()
    assert not any(Path(root).exists() for root in place.owned)
    place.remove()
    assert not running(zygote.pid)
